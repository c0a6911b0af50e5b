/* The position of the rows of a norm; those of a LayerNorm are the plain case of those of a root-mean-square norm. */
#ifndef SW_KERNELS_CPU_NORM_H
#define SW_KERNELS_CPU_NORM_H

#include "kernels/cpu/isa.h"

static inline int64_t sw_rmsnorm_row(const struct sw_rmsnorm *shape, int64_t stride, int64_t row) {
    return shape->groups == 1 ? row * stride : row / shape->groups * stride + row % shape->groups * shape->cols;
}

#endif
