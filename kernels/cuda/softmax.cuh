/* The running maximum and sum of a row of logits, in blocks of SW_SOFTMAX_BLOCK_COLUMNS columns. A warp reduces each
 * block to its own maximum and sum, in an order that only the block's columns decide, and takes the blocks into the row
 * in their order. So a row has the same bits however it is cut into tiles of whole blocks. */
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

/* Returns maximum and sum of the first `count` columns at logits, at most SW_SOFTMAX_BLOCK_COLUMNS, by a warp. NaN
 * stays in the sum. */
static __device__ __forceinline__ sw_running sw_softmax_block(const float *logits, int64_t count, bool aligned) {
    const int first = (int)threadIdx.x % SW_WARP * SW_ELEMS;
    const bool whole = aligned && count >= SW_SOFTMAX_BLOCK_COLUMNS;
    float values[SW_SOFTMAX_ELEMS];
    sw_running block = {-FLT_MAX, 0.0f};
    SW_UNROLL
    for (int part = 0; part < SW_SOFTMAX_ELEMS / SW_ELEMS; part++) {
        const int at = first + part * SW_WARP * SW_ELEMS;
        sw_load_elems(logits + at, whole ? (int64_t)SW_ELEMS : count - at, aligned, values + part * SW_ELEMS);
        for (int i = 0; i < SW_ELEMS; i++) {
            if (!whole && at + i >= count)
                values[part * SW_ELEMS + i] = -INFINITY;
        }
    }
    for (int i = 0; i < SW_SOFTMAX_ELEMS; i++)
        block.max = fmaxf(block.max, values[i]);
    block.max = sw_warp_max(block.max);
    for (int i = 0; i < SW_SOFTMAX_ELEMS; i++)
        block.sum += expf(values[i] - block.max);
    block.sum = sw_warp_sum(block.sum);
    return block;
}

enum { SW_SOFTMAX_GROUP = SW_WARP /* blocks of columns between two barriers: one for each lane that joins them */ };

/* Takes the first `count` of a group's blocks into the row, in their order, by a whole warp; every lane has the result.
 * A lane works out the factors of one block, so only one multiply-add a block is left to do in order. */
static __device__ __forceinline__ sw_running sw_softmax_join(sw_running row, const sw_running *blocks, int count) {
    const int lane = (int)threadIdx.x % SW_WARP;
    const sw_running nothing = {-FLT_MAX, 0.0f}, block = lane < count ? blocks[lane] : nothing;
    float largest = fmaxf(row.max, block.max); /* of the row and of all blocks up to the lane's */
    for (int distance = 1; distance < SW_WARP; distance *= 2) {
        const float other = __shfl_sync(SW_ALL_LANES, largest, lane - distance);
        largest = lane >= distance ? fmaxf(largest, other) : largest;
    }
    const float last = __shfl_sync(SW_ALL_LANES, largest, lane - 1), before = lane == 0 ? row.max : last;
    const float keep = expf(before - largest), add = block.sum * expf(block.max - largest);
    for (int i = 0; i < count; i++)
        row.sum = fmaf(row.sum, __shfl_sync(SW_ALL_LANES, keep, i), __shfl_sync(SW_ALL_LANES, add, i));
    row.max = __shfl_sync(SW_ALL_LANES, largest, SW_WARP - 1);
    return row;
}

/* Takes `cols` columns into the row, by a block of SW_BLOCK_THREADS threads; all get the result. Groups alternate
 * between two halves of shared memory, so a warp that is ahead writes where no other still reads. */
static __device__ __forceinline__ sw_running sw_softmax_row(sw_running row, const float *logits, int64_t cols,
                                                            bool aligned) {
    SW_SHARED(sw_running, blocks, [2][SW_SOFTMAX_GROUP]);
    const int warp = (int)threadIdx.x / SW_WARP, all = (int)((cols - 1) / SW_SOFTMAX_BLOCK_COLUMNS) + 1;
    for (int first = 0, half = 0; first < all; first += SW_SOFTMAX_GROUP, half = 1 - half) {
        const int count = all - first < SW_SOFTMAX_GROUP ? all - first : (int)SW_SOFTMAX_GROUP;
        for (int i = warp; i < count; i += SW_SOFTMAX_WARPS) {
            const int64_t at = (int64_t)(first + i) * SW_SOFTMAX_BLOCK_COLUMNS;
            const sw_running block = sw_softmax_block(logits + at, cols - at, aligned);
            if (threadIdx.x % SW_WARP == 0)
                blocks[half][i] = block;
        }
        __syncthreads();
        row = sw_softmax_join(row, blocks[half], count);
    }
    return row;
}

#endif
