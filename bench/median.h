/* The middle of some measurements: what a machine that does other things at times still shows. */
#ifndef SW_BENCH_MEDIAN_H
#define SW_BENCH_MEDIAN_H

#include <stdlib.h>

static inline int sw_by_value(const void *left, const void *right) {
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* Sorts the values. */
static inline double sw_median(double *values, int count) {
    qsort(values, (size_t)count, sizeof *values, sw_by_value);
    return values[count / 2];
}

#endif
