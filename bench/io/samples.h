/* A rate over time, second by second, and whether it has settled. */
#ifndef SW_BENCH_IO_SAMPLES_H
#define SW_BENCH_IO_SAMPLES_H

#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

enum { SW_IO_WINDOW = 10 }; /* seconds that are compared with those before */

struct sw_io_samples {
    double *at_s, *bytes_per_s; /* the end of each sample's second */
    int count, room;
    double start_s; /* of the phase, in the run */
    double last_s;  /* of the phase */
    int64_t last_bytes;
};

sw_status sw_io_samples_open(double seconds, double start_s, struct sw_io_samples *out);
void sw_io_samples_close(struct sw_io_samples *samples);

/* What is done so far. What the last call leaves is added only where there is nothing else. */
void sw_io_samples_add(struct sw_io_samples *samples, double seconds, int64_t bytes);
void sw_io_samples_end(struct sw_io_samples *samples, double seconds, int64_t bytes);

/* Of the first and of the last window, or of what there is. */
double sw_io_samples_burst(const struct sw_io_samples *samples);
double sw_io_samples_last(const struct sw_io_samples *samples);
/* The last two windows differ by no more than a twentieth. */
bool sw_io_samples_settled(const struct sw_io_samples *samples);
/* The index of the first sample of a lasting fall below four fifths of the first window's rate, or -1. */
int sw_io_samples_fall(const struct sw_io_samples *samples);

#endif
