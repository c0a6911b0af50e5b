/* Cross-entropy of whole rows, and in two passes over tiles: a block of threads for each row; and the sum of losses. */
#include "kernels/cuda/rows.cuh"
#include "kernels/tiling.h"
#include <float.h>

/* The running maximum and sum of a row of logits, in blocks of SW_SOFTMAX_BLOCK_COLUMNS columns. A warp reduces each
 * block to its own maximum and sum, in an order that only the block's columns decide, and takes the blocks into the row
 * in their order. So a row has the same bits however it is cut into tiles of whole blocks. */

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

/* The terms of a row of d_logits = scale·(exp(logit - max)/sum - onehot(target)); zeros where the row has no target. */
struct gradient_row {
    int64_t target_col; /* outside of the row's columns where the target is not among them */
    bool ignored;
    float scale;
    sw_running sums;
};

template <typename T>
static __device__ __forceinline__ void write_vector(const gradient_row &row, int64_t col, int64_t count, bool aligned,
                                                    float values[SW_ELEMS], T *d_logits) {
    const int64_t target = row.target_col - col;
    for (int i = 0; i < SW_ELEMS; i++) {
        const float probability = expf(values[i] - row.sums.max) / row.sums.sum;
        values[i] = row.ignored ? 0.0f : row.scale * (i == target ? probability - 1.0f : probability);
    }
    sw_store_elems(d_logits + col, count, aligned, values);
}

/* Writes the gradient of a row's columns from the last to the first: the caches still hold the last ones since the pass
 * that summed them. */
template <typename T>
static __device__ __forceinline__ void write_gradient(const float *logits, int64_t cols, const gradient_row &row,
                                                      bool aligned, T *d_logits) {
    enum { VECTORS = 2, STEP = SW_BLOCK_THREADS * SW_ELEMS };
    const int64_t turn = VECTORS * STEP;
    float values[VECTORS][SW_ELEMS] = {};
    for (int64_t first = (cols - 1) / turn * turn + threadIdx.x * SW_ELEMS; first >= 0; first -= turn) {
        if (aligned && first + STEP + SW_ELEMS <= cols) {
            SW_UNROLL
            for (int i = 0; i < VECTORS && !row.ignored; i++)
                sw_load_whole(logits + first + i * STEP, values[i]);
            SW_UNROLL
            for (int i = 0; i < VECTORS; i++)
                write_vector(row, first + i * STEP, SW_ELEMS, true, values[i], d_logits);
            continue;
        }
        for (int64_t col = first; col < cols && col < first + turn; col += STEP) {
            if (!row.ignored)
                sw_load_elems(logits + col, cols - col, aligned, values[0]);
            write_vector(row, col, cols - col, aligned, values[0], d_logits);
        }
    }
}

static __device__ __forceinline__ float loss_of(sw_running row, float target_logit) {
    return logf(row.sum) + (row.max - target_logit);
}

static __device__ __forceinline__ float scale_of(float scale, const float *row_scale, int64_t row) {
    return row_scale == NULL ? scale : scale * row_scale[row];
}

template <typename T>
static __global__ void __launch_bounds__(SW_BLOCK_THREADS)
    whole_kernel(int64_t vocab, int64_t stride, const float *logits, const int32_t *targets, float scale,
                 const float *row_scale, float *loss, T *d_logits, bool aligned) {
    const int64_t row = blockIdx.x;
    const float *line = logits + row * stride;
    const int32_t target = targets[row];
    const sw_running nothing = {-FLT_MAX, 0.0f};
    const sw_running sums = target < 0 ? nothing : sw_softmax_row(nothing, line, vocab, aligned);
    if (threadIdx.x == 0)
        loss[row] = target < 0 ? 0.0f : loss_of(sums, line[target]);
    if (d_logits != NULL)
        write_gradient(line, vocab, {target, target < 0, scale_of(scale, row_scale, row), sums}, aligned,
                       d_logits + row * stride);
}

template <typename T> static void whole(cudaStream_t stream, const sw_cross_entropy *op) {
    const bool aligned = op->stride % SW_ELEMS == 0 && sw_is_aligned(op->logits) && sw_is_aligned(op->d_logits);
    SW_LAUNCH(whole_kernel<T>, (unsigned)op->rows, SW_BLOCK_THREADS, 0, stream, op->vocab, op->stride, op->logits,
              op->targets, op->scale, op->row_scale, op->loss, (T *)op->d_logits, aligned);
}

void sw_cuda_cross_entropy(cudaStream_t stream, const void *args) {
    const sw_cross_entropy *op = (const sw_cross_entropy *)args;
    if (op->rows > 0)
        SW_FOR_TYPE(op->type, whole, stream, op);
}

static __global__ void __launch_bounds__(SW_BLOCK_THREADS)
    partial_kernel(int64_t tile_cols, int64_t stride, int64_t first_col, bool first, const float *logits,
                   const int32_t *targets, float *max, float *sum, float *target_logit, bool aligned) {
    const int64_t row = blockIdx.x;
    const int32_t target = targets[row];
    if (target < 0) {
        if (threadIdx.x == 0 && first) {
            max[row] = target_logit[row] = 0.0f;
            sum[row] = 1.0f;
        }
        return;
    }
    const float *line = logits + row * stride;
    sw_running sums = {-FLT_MAX, 0.0f};
    if (!first) {
        sums.max = max[row];
        sums.sum = sum[row];
    }
    sums = sw_softmax_row(sums, line, tile_cols, aligned);
    if (threadIdx.x != 0)
        return;
    max[row] = sums.max;
    sum[row] = sums.sum;
    if (target >= first_col && target < first_col + tile_cols)
        target_logit[row] = line[target - first_col];
    else if (first)
        target_logit[row] = 0.0f;
}

void sw_cuda_softmax_partial(cudaStream_t stream, const void *args) {
    const sw_softmax_partial *op = (const sw_softmax_partial *)args;
    const bool aligned = op->stride % SW_ELEMS == 0 && sw_is_aligned(op->logits);
    if (op->rows > 0)
        SW_LAUNCH(partial_kernel, (unsigned)op->rows, SW_BLOCK_THREADS, 0, stream, op->tile_cols, op->stride,
                  op->first_col, op->first_col == op->begin_col, op->logits, op->targets, op->max, op->sum,
                  op->target_logit, aligned);
}

/* The reference's order of additions. */
static __global__ void __launch_bounds__(SW_BLOCK_THREADS) combine_kernel(sw_softmax_combine op) {
    const int64_t row = (int64_t)blockIdx.x * SW_BLOCK_THREADS + threadIdx.x;
    if (row >= op.rows)
        return;
    const float *part = op.part + row;
    float largest = part[0];
    double sum = 0.0, target_logit = 0.0;
    for (int64_t p = 1; p < op.parts; p++)
        largest = fmaxf(largest, part[p * op.part_stride]);
    for (int64_t p = 0; p < op.parts; p++) {
        const float *at = part + p * op.part_stride;
        sum += (double)at[op.row_stride] * exp((double)at[0] - (double)largest);
        target_logit += (double)at[2 * op.row_stride];
    }
    op.max[row] = largest;
    op.sum[row] = (float)sum;
    op.target_logit[row] = (float)target_logit;
}

void sw_cuda_softmax_combine(cudaStream_t stream, const void *args) {
    const sw_softmax_combine *op = (const sw_softmax_combine *)args;
    if (op->rows > 0)
        SW_LAUNCH(combine_kernel, sw_blocks(op->rows, SW_BLOCK_THREADS), SW_BLOCK_THREADS, 0, stream, *op);
}

template <typename T>
static __global__ void __launch_bounds__(SW_BLOCK_THREADS)
    tile_kernel(int64_t tile_cols, int64_t stride, int64_t first_col, const float *logits, const int32_t *targets,
                float scale, const float *row_scale, const float *max, const float *sum, const float *target_logit,
                float *loss, T *d_logits, bool aligned) {
    const int64_t row = blockIdx.x;
    const int32_t target = targets[row];
    const float factor = scale_of(scale, row_scale, row);
    const sw_running sums = {max[row], sum[row]};
    if (threadIdx.x == 0 && loss != NULL && first_col == 0)
        loss[row] = target < 0 ? 0.0f : loss_of(sums, target_logit[row]);
    if (d_logits != NULL)
        write_gradient(logits + row * stride, tile_cols, {target - first_col, target < 0, factor, sums}, aligned,
                       d_logits + row * stride);
}

template <typename T> static void tile(cudaStream_t stream, const sw_cross_entropy_tile *op) {
    const bool aligned = op->stride % SW_ELEMS == 0 && sw_is_aligned(op->logits) && sw_is_aligned(op->d_logits);
    SW_LAUNCH(tile_kernel<T>, (unsigned)op->rows, SW_BLOCK_THREADS, 0, stream, op->tile_cols, op->stride, op->first_col,
              op->logits, op->targets, op->scale, op->row_scale, op->max, op->sum, op->target_logit, op->loss,
              (T *)op->d_logits, aligned);
}

void sw_cuda_cross_entropy_tile(cudaStream_t stream, const void *args) {
    const sw_cross_entropy_tile *op = (const sw_cross_entropy_tile *)args;
    if (op->rows > 0)
        SW_FOR_TYPE(op->type, tile, stream, op);
}

/* The sum of a micro-batch's losses: one block, each thread a stride of the rows, then halves pairwise. */
static __global__ void __launch_bounds__(SW_BLOCK_THREADS)
    sum_kernel(int64_t rows, const float *losses, double *total) {
    SW_SHARED(double, partial, [SW_BLOCK_THREADS]);
    const int thread = (int)threadIdx.x;
    double sum = 0.0;
    for (int64_t row = thread; row < rows; row += SW_BLOCK_THREADS)
        sum += (double)losses[row];
    partial[thread] = sum;
    __syncthreads();
    for (int half = SW_BLOCK_THREADS / 2; half >= 1; half /= 2) {
        if (thread < half)
            partial[thread] += partial[thread + half];
        __syncthreads();
    }
    if (thread == 0)
        *total += partial[0];
}

void sw_cuda_sum_losses(cudaStream_t stream, const void *args) {
    const sw_sum_losses *op = (const sw_sum_losses *)args;
    SW_LAUNCH(sum_kernel, 1, SW_BLOCK_THREADS, 0, stream, op->rows, op->losses, op->total);
}

/* A block for each pair: each thread a stride of a sequence's rows, then halves pairwise. */
static __global__ void __launch_bounds__(SW_BLOCK_THREADS) preference_kernel(sw_preference op) {
    SW_SHARED(double, partial, [2][SW_BLOCK_THREADS]);
    const int thread = (int)threadIdx.x;
    const int64_t chosen = 2 * (int64_t)blockIdx.x * op.seq, rejected = chosen + op.seq;
    const double *reference = op.reference + 2 * (int64_t)blockIdx.x;
    double sum[2] = {0.0, 0.0};
    for (int64_t row = thread; row < op.seq; row += SW_BLOCK_THREADS) {
        sum[0] += (double)op.losses[chosen + row];
        sum[1] += (double)op.losses[rejected + row];
    }
    partial[0][thread] = sum[0];
    partial[1][thread] = sum[1];
    __syncthreads();
    for (int half = SW_BLOCK_THREADS / 2; half >= 1; half /= 2) {
        if (thread < half) {
            partial[0][thread] += partial[0][thread + half];
            partial[1][thread] += partial[1][thread + half];
        }
        __syncthreads();
    }
    const double margin = (-partial[0][0] - reference[0]) - (-partial[1][0] - reference[1]);
    const double derivative = isnan(reference[0]) ? 0.0 : op.beta / (1.0 + exp(op.beta * margin));
    if (thread < 2)
        op.sums[2 * (int64_t)blockIdx.x + thread] = partial[thread][0];
    for (int64_t row = thread; op.row_scale != NULL && row < op.seq; row += SW_BLOCK_THREADS) {
        op.row_scale[chosen + row] = (float)derivative;
        op.row_scale[rejected + row] = (float)-derivative;
    }
}

void sw_cuda_preference(cudaStream_t stream, const void *args) {
    const sw_preference *op = (const sw_preference *)args;
    if (op->pairs > 0)
        SW_LAUNCH(preference_kernel, (unsigned)op->pairs, SW_BLOCK_THREADS, 0, stream, *op);
}

/* All kernels are compiled for the same GPUs, so that one speaks for all. */
int sw_cuda_kernels_error(void) {
    return SW_KERNEL_ERROR(sum_kernel);
}
