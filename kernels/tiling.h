/* Sizes that fix the order of a sum: part of the arithmetic, so shared by every implementation. */
#ifndef SW_KERNELS_TILING_H
#define SW_KERNELS_TILING_H

#include "core/size.h"

enum {
    SW_BIAS_TILE_ROWS = 64,         /* rows of dy summed before they meet the accumulator */
    SW_SOFTMAX_BLOCK_COLUMNS = 512, /* columns of logits between two looks at the running maximum */
    SW_GRAIN_PARTIAL_SUMS = 256     /* partial sums of squares of a grain */
};
static_assert(SW_GRAIN_ELEMS % SW_GRAIN_PARTIAL_SUMS == 0, "every partial sum takes the same number of elements");
static_assert((SW_GRAIN_PARTIAL_SUMS & (SW_GRAIN_PARTIAL_SUMS - 1)) == 0, "partial sums are added in halves");

#endif
