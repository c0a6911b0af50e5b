/* The parts of the page's data that are no curves: the start of a run, a step's timeline, samples. */
#ifndef SW_REPORT_DETAILS_H
#define SW_REPORT_DETAILS_H

#include "report/curves.h"

#include <jansson.h>
#include <stdio.h>

/* Writes machine and prediction of run.json, and the medians of the steps since then. */
void sw_put_start(FILE *to, const json_t *run, const struct sw_curves *curves);
/* Writes the run's timeline.json; null: there is none that can be read. A timeline of more than most_bytes is left out,
 * and its place says so. */
void sw_put_timeline(FILE *to, const char *folder, size_t most_bytes);
void sw_put_samples(FILE *to, const struct sw_samples *samples);

#endif
