#include "bench/io/samples.h"

#include "core/size.h"

#include <math.h>
#include <stdlib.h>

/* Samples beyond one a second: a phase may end a little after its limit. */
enum { SPARE = 8 };
#define SETTLED_PART 0.05
#define FALLEN_PART 0.8

sw_status sw_io_samples_open(double seconds, double start_s, struct sw_io_samples *out) {
    const int room = (int)fmin(seconds, 1e7) + SPARE;
    *out = (struct sw_io_samples){.at_s = calloc((size_t)room, sizeof(double)),
                                  .bytes_per_s = calloc((size_t)room, sizeof(double)),
                                  .room = room,
                                  .start_s = start_s};
    return out->at_s != NULL && out->bytes_per_s != NULL
               ? SW_OK
               : sw_fail(SW_ERR_NOMEM, "no memory for the rates of %.0f seconds", seconds);
}

void sw_io_samples_close(struct sw_io_samples *samples) {
    free(samples->at_s);
    free(samples->bytes_per_s);
    *samples = (struct sw_io_samples){0};
}

void sw_io_samples_add(struct sw_io_samples *samples, double seconds, int64_t bytes) {
    const double passed_s = seconds - samples->last_s;
    if (samples->count == samples->room || passed_s <= 0.0)
        return;
    samples->at_s[samples->count] = samples->start_s + seconds;
    samples->bytes_per_s[samples->count++] = (double)(bytes - samples->last_bytes) / passed_s;
    samples->last_s = seconds;
    samples->last_bytes = bytes;
}

void sw_io_samples_end(struct sw_io_samples *samples, double seconds, int64_t bytes) {
    if (samples->count == 0)
        sw_io_samples_add(samples, seconds, bytes);
}

static double mean(const struct sw_io_samples *samples, int first, int count) {
    double sum = 0.0;
    for (int i = first; i < first + count; i++)
        sum += samples->bytes_per_s[i];
    return count > 0 ? sum / count : 0.0;
}

static int window_of(const struct sw_io_samples *samples) {
    return (int)sw_min_i64(samples->count, SW_IO_WINDOW);
}

double sw_io_samples_burst(const struct sw_io_samples *samples) {
    return mean(samples, 0, window_of(samples));
}

double sw_io_samples_last(const struct sw_io_samples *samples) {
    const int window = window_of(samples);
    return mean(samples, samples->count - window, window);
}

bool sw_io_samples_settled(const struct sw_io_samples *samples) {
    if (samples->count < 2 * SW_IO_WINDOW)
        return false;
    const double last = sw_io_samples_last(samples);
    const double before = mean(samples, samples->count - 2 * SW_IO_WINDOW, SW_IO_WINDOW);
    return fabs(last - before) <= SETTLED_PART * before;
}

int sw_io_samples_fall(const struct sw_io_samples *samples) {
    const double below = FALLEN_PART * sw_io_samples_burst(samples);
    if (samples->count < 2 * SW_IO_WINDOW || sw_io_samples_last(samples) >= below)
        return -1;
    int first = 1;
    while (samples->bytes_per_s[first] >= below || mean(samples, first, samples->count - first) >= below)
        first++;
    return first;
}
