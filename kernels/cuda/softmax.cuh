/* The running maximum and sum of a row of logits, in blocks of SW_SOFTMAX_BLOCK_COLUMNS columns. Each warp reduces a
 * block to its own maximum and sum, in an order that only the block's columns decide; one thread takes the blocks into
 * the row in their order. So a row has the same bits however it is cut into tiles of whole blocks. */
#ifndef SW_KERNELS_CUDA_SOFTMAX_CUH
#define SW_KERNELS_CUDA_SOFTMAX_CUH

#include "kernels/cuda/rows.cuh"
#include "kernels/tiling.h"

#include <float.h>

enum { SW_SOFTMAX_ELEMS = SW_SOFTMAX_BLOCK_COLUMNS / SW_WARP, SW_SOFTMAX_WARPS = SW_BLOCK_THREADS / SW_WARP };
static_assert(SW_SOFTMAX_ELEMS % SW_ELEMS == 0, "a lane takes whole vectors of a block");

struct sw_running {
    float max, sum;
};

static __device__ __forceinline__ float sw_warp_max(float value) {
    for (int distance = SW_WARP / 2; distance > 0; distance /= 2)
        value = fmaxf(value, __shfl_xor_sync(SW_ALL_LANES, value, distance));
    return value;
}

/* Of the columns [0, count) at logits, count <= SW_SOFTMAX_BLOCK_COLUMNS. NaN stays in the sum. */
static __device__ __forceinline__ sw_running sw_softmax_block(const float *logits, int64_t count, bool aligned) {
    const int first = (int)threadIdx.x % SW_WARP * SW_ELEMS;
    float values[SW_SOFTMAX_ELEMS];
    sw_running block = {-FLT_MAX, 0.0f};
    for (int part = 0; part < SW_SOFTMAX_ELEMS / SW_ELEMS; part++) {
        const int at = first + part * SW_WARP * SW_ELEMS;
        sw_load_elems(logits + at, count - at, aligned, values + part * SW_ELEMS);
        for (int i = 0; i < SW_ELEMS; i++) {
            if (at + i >= count)
                values[part * SW_ELEMS + i] = -INFINITY;
            block.max = fmaxf(block.max, values[part * SW_ELEMS + i]);
        }
    }
    block.max = sw_warp_max(block.max);
    for (int i = 0; i < SW_SOFTMAX_ELEMS; i++)
        block.sum += expf(values[i] - block.max);
    block.sum = sw_warp_sum(block.sum);
    return block;
}

static __device__ __forceinline__ sw_running sw_softmax_join(sw_running row, sw_running block) {
    sw_running joined;
    joined.max = fmaxf(row.max, block.max);
    joined.sum = fmaf(row.sum, expf(row.max - joined.max), block.sum * expf(block.max - joined.max));
    return joined;
}

/* Takes `cols` columns into the row, by a block of SW_BLOCK_THREADS threads; all get the result. */
static __device__ __forceinline__ sw_running sw_softmax_row(sw_running row, const float *logits, int64_t cols,
                                                            bool aligned) {
    SW_SHARED(sw_running, blocks, [SW_SOFTMAX_WARPS]);
    const int warp = (int)threadIdx.x / SW_WARP;
    for (int64_t first = 0; first < cols; first += SW_SOFTMAX_WARPS * SW_SOFTMAX_BLOCK_COLUMNS) {
        const int64_t at = first + warp * SW_SOFTMAX_BLOCK_COLUMNS;
        sw_running block = {-FLT_MAX, 0.0f};
        if (at < cols)
            block = sw_softmax_block(logits + at, cols - at, aligned);
        if (threadIdx.x % SW_WARP == 0)
            blocks[warp] = block;
        __syncthreads();
        for (int i = 0; i < SW_SOFTMAX_WARPS; i++) {
            if (first + i * SW_SOFTMAX_BLOCK_COLUMNS < cols)
                row = sw_softmax_join(row, blocks[i]);
        }
        __syncthreads();
    }
    return row;
}

#endif
