#include "kernels/ref/ref.h"
#include "kernels/tiling.h"

#include <math.h>

static double grain_sum(sw_dtype type, int64_t at, const void *grads) {
    double partial[SW_GRAIN_PARTIAL_SUMS] = {0};
    for (int64_t i = 0; i < SW_GRAIN_ELEMS; i++) {
        const double value = sw_dtype_load(type, grads, at + i);
        partial[i % SW_GRAIN_PARTIAL_SUMS] = fma(value, value, partial[i % SW_GRAIN_PARTIAL_SUMS]);
    }
    for (int64_t half = SW_GRAIN_PARTIAL_SUMS / 2; half >= 1; half /= 2) {
        for (int64_t i = 0; i < half; i++)
            partial[i] += partial[i + half];
    }
    return partial[0];
}

static sw_status square_sums(struct sw_stream *stream, sw_dtype type, int64_t elems, const void *grads, double *sums) {
    (void)stream;
    for (int64_t grain = 0; grain < elems / SW_GRAIN_ELEMS; grain++)
        sums[grain] = grain_sum(type, grain * SW_GRAIN_ELEMS, grads);
    return SW_OK;
}

static sw_status finish_gradient(struct sw_stream *stream, sw_dtype type, int64_t elems, const float *acc, void *grads,
                                 double *sums) {
    for (int64_t i = 0; i < elems; i++)
        sw_dtype_store(type, grads, i, acc[i]);
    return square_sums(stream, type, elems, grads, sums);
}

void sw_ref_add_gradient(struct sw_device_ops *ops) {
    ops->finish_gradient = finish_gradient;
    ops->square_sums = square_sums;
}
