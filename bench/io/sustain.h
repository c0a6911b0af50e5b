/* A rate over time, second by second, and whether it has settled. */
#ifndef SW_BENCH_IO_SUSTAIN_H
#define SW_BENCH_IO_SUSTAIN_H

#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

enum { SW_IO_WINDOW = 10 }; /* samples whose mean is compared with the mean of the window before */

struct sw_io_samples {
    double *at_s, *bytes_per_s; /* of each sample: its end, from the run's begin, and its rate */
    int count, room;
    double start_s; /* of the phase, from the run's begin */
    double last_s;  /* end of the last sample, from the phase's begin */
    int64_t last_bytes;
};

sw_status sw_io_samples_open(double seconds, double start_s, struct sw_io_samples *out);
void sw_io_samples_close(struct sw_io_samples *samples);

/* Adds a sample: the time and the bytes of the phase so far. */
void sw_io_samples_add(struct sw_io_samples *samples, double seconds, int64_t bytes);

double sw_io_samples_last(const struct sw_io_samples *samples);
/* Returns whether the last two windows differ by at most a twentieth. */
bool sw_io_samples_settled(const struct sw_io_samples *samples);
/* Returns the first sample of a lasting fall below four fifths of the first window's rate, or -1. */
int sw_io_samples_fall(const struct sw_io_samples *samples);

#endif
