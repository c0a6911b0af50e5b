/* The texts that a run wrote while it trained, as its log has them: a bounded number, evenly over the steps. */
#ifndef SW_REPORT_SAMPLES_H
#define SW_REPORT_SAMPLES_H

#include "core/status.h"

#include <jansson.h>
#include <stdint.h>

/* The most samples of a run, those of one step, and bytes of a text; the rest of a longer one is cut off. */
enum { SW_SAMPLES = 240, SW_SAMPLES_OF_STEP = 12, SW_SAMPLE_CHARS = 2000 };

struct sw_sample {
    int64_t step;
    int64_t number;        /* of the step among those with samples, from 0 */
    int64_t page_bytes;    /* that it takes in the page */
    json_t *prompt, *text; /* strings, owned */
};

/* The samples of a step are kept or left out together. Those of the newest step are always kept. */
struct sw_samples {
    struct sw_sample sample[SW_SAMPLES + SW_SAMPLES_OF_STEP];
    int64_t count;
    int64_t newest;           /* number of the newest step */
    int64_t stride;           /* every stride-th step is kept, and the newest; 0: there was no sample yet */
    int64_t most_page_bytes;  /* of all samples in the page; set by the caller before the first is added */
    int64_t seen, unreadable; /* samples of the log; those of them that are no text */
};

/* Adds the sample of a log's line. A line whose sample is not readable is only counted. */
sw_status sw_samples_add(struct sw_samples *samples, const char *line);
void sw_samples_release(struct sw_samples *samples);

#endif
