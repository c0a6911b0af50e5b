/* Layer normalisation. A row stays in the first-level cache between its passes, so device memory sees it once. */
#include "kernels/cuda/columns.cuh"
#include "kernels/cuda/rows.cuh"

template <typename T, int THREADS>
static __global__ void __launch_bounds__(SW_BLOCK_THREADS, SW_ROW_BLOCKS)
    forward_kernel(int64_t rows, int64_t cols, float epsilon, sw_addends<T> add, const T *x, const T *gamma,
                   const T *beta, T *y, float *mean, float *rstd, bool aligned) {
    const int64_t row = sw_row_of_thread<THREADS>(), first = threadIdx.x * SW_ELEMS;
    if (row >= rows)
        return;
    const T *from = x + row * cols;
    sw_add_row<THREADS>(add, row * cols, cols, aligned);
    float values[SW_ELEMS], sum = 0.0f, squares = 0.0f;
    SW_UNROLL_TWICE
    for (int64_t col = first; col < cols; col += THREADS * SW_ELEMS) {
        sw_load_elems(from + col, cols - col, aligned, values);
        for (int i = 0; i < SW_ELEMS; i++)
            sum += values[i];
    }
    const float centre = sw_row_sum<THREADS>(sum) / (float)cols;
    SW_UNROLL_TWICE
    for (int64_t col = first; col < cols; col += THREADS * SW_ELEMS) {
        sw_load_elems(from + col, cols - col, aligned, values);
        for (int i = 0; i < SW_ELEMS; i++) {
            const float centred = col + i < cols ? values[i] - centre : 0.0f;
            squares = fmaf(centred, centred, squares);
        }
    }
    const float scale = 1.0f / sqrtf(sw_row_sum<THREADS>(squares) / (float)cols + epsilon);
    if (threadIdx.x == 0) {
        mean[row] = centre;
        rstd[row] = scale;
    }
    for (int64_t col = first; col < cols; col += THREADS * SW_ELEMS) {
        float factors[SW_ELEMS], offsets[SW_ELEMS];
        sw_load_elems(from + col, cols - col, aligned, values);
        sw_load_elems(gamma + col, cols - col, aligned, factors);
        sw_load_elems(beta + col, cols - col, aligned, offsets);
        for (int i = 0; i < SW_ELEMS; i++)
            values[i] = fmaf((values[i] - centre) * scale, factors[i], offsets[i]);
        sw_store_elems(y + row * cols + col, cols - col, aligned, values);
    }
}

/* Without a sum the row is a, and already in memory. */
template <typename T> static void forward(cudaStream_t stream, const sw_add_norm_forward *op) {
    const void *x = op->sum == NULL ? op->a : op->sum;
    const bool aligned = op->cols % SW_ELEMS == 0 && sw_is_aligned(op->a) && sw_is_aligned(op->b) && sw_is_aligned(x) &&
                         sw_is_aligned(op->gamma) && sw_is_aligned(op->beta) && sw_is_aligned(op->y);
    const sw_addends<T> add = {(const T *)op->a, (const T *)op->b, (T *)op->sum};
    SW_FOR_ROWS(forward_kernel, T, op->rows, op->cols, stream, op->rows, op->cols, op->epsilon, add, (const T *)x,
                (const T *)op->gamma, (const T *)op->beta, (T *)op->y, op->mean, op->rstd, aligned);
}

void sw_cuda_add_layernorm_forward(cudaStream_t stream, const void *args) {
    const sw_add_norm_forward *op = (const sw_add_norm_forward *)args;
    if (op->rows > 0)
        SW_FOR_TYPE(op->type, forward, stream, op);
}

void sw_cuda_layernorm_forward(cudaStream_t stream, const void *args) {
    const sw_layernorm_forward *op = (const sw_layernorm_forward *)args;
    const sw_add_norm_forward norm = {op->type,  op->rows, op->cols, op->epsilon, op->x,    NULL, NULL,
                                      op->gamma, op->beta, op->y,    op->mean,    op->rstd, 0.0f};
    sw_cuda_add_layernorm_forward(stream, &norm);
}

/* With n = (x - mean)·rstd and g = dy·gamma, dx = rstd·(g - average(g) - n·average(g·n)) over the row. */
template <typename T, int THREADS>
static __global__ void __launch_bounds__(SW_BLOCK_THREADS, SW_ROW_BLOCKS)
    dx_kernel(int64_t rows, int64_t cols, const T *dy, const T *x, const T *gamma, const float *mean, const float *rstd,
              bool add_to_dx, T *dx, bool aligned) {
    const int64_t row = sw_row_from_end<THREADS>(rows), first = threadIdx.x * SW_ELEMS;
    if (row < 0)
        return;
    const float centre = mean[row], scale = rstd[row];
    float g[SW_ELEMS], normal[SW_ELEMS], factors[SW_ELEMS], sum = 0.0f, sum_normal = 0.0f;
    SW_UNROLL_TWICE
    for (int64_t col = first; col < cols; col += THREADS * SW_ELEMS) {
        sw_load_elems(dy + row * cols + col, cols - col, aligned, g);
        sw_load_elems(x + row * cols + col, cols - col, aligned, normal);
        sw_load_elems(gamma + col, cols - col, aligned, factors);
        for (int i = 0; i < SW_ELEMS; i++) {
            sum = fmaf(g[i], factors[i], sum);
            sum_normal = fmaf(g[i] * factors[i], (normal[i] - centre) * scale, sum_normal);
        }
    }
    const float average = sw_row_sum<THREADS>(sum) / (float)cols;
    const float average_normal = sw_row_sum<THREADS>(sum_normal) / (float)cols;
    for (int64_t col = first; col < cols; col += THREADS * SW_ELEMS) {
        float before[SW_ELEMS] = {0};
        sw_load_elems(dy + row * cols + col, cols - col, aligned, g);
        sw_load_elems(x + row * cols + col, cols - col, aligned, normal);
        sw_load_elems(gamma + col, cols - col, aligned, factors);
        if (add_to_dx)
            sw_load_elems(dx + row * cols + col, cols - col, aligned, before);
        for (int i = 0; i < SW_ELEMS; i++) {
            const float centred = fmaf(-(normal[i] - centre) * scale, average_normal, g[i] * factors[i] - average);
            before[i] = fmaf(scale, centred, before[i]);
        }
        sw_store_elems(dx + row * cols + col, cols - col, aligned, before);
    }
}

namespace {
template <typename T> struct norm_terms {
    const T *dy, *x;
    const float *mean, *rstd;
    int64_t cols;
    bool aligned;
    __device__ __forceinline__ void load(int64_t row, int64_t col, int64_t count, float out[2][SW_ELEMS]) const {
        float values[SW_ELEMS];
        sw_load_elems(dy + row * cols + col, count, aligned, out[1]);
        sw_load_elems(x + row * cols + col, count, aligned, values);
        for (int i = 0; i < SW_ELEMS; i++)
            out[0][i] = out[1][i] * ((values[i] - mean[row]) * rstd[row]);
    }
};
} // namespace

template <typename T> static void backward(cudaStream_t stream, const sw_layernorm_backward *op) {
    const int64_t rows = op->rows, cols = op->cols;
    const T *dy = (const T *)op->dy, *x = (const T *)op->x, *gamma = (const T *)op->gamma;
    const bool aligned =
        cols % SW_ELEMS == 0 && sw_is_aligned(dy) && sw_is_aligned(x) && sw_is_aligned(gamma) && sw_is_aligned(op->dx);
    SW_FOR_ROWS(dx_kernel, T, rows, cols, stream, rows, cols, dy, x, gamma, op->mean, op->rstd, op->add_to_dx,
                (T *)op->dx, aligned);
    const norm_terms<T> source = {dy, x, op->mean, op->rstd, cols, aligned};
    sw_sum_columns<norm_terms<T>, 2, false>(stream, rows, cols, source, op->gamma_acc, op->beta_acc);
}

void sw_cuda_layernorm_backward(cudaStream_t stream, const void *args) {
    const sw_layernorm_backward *op = (const sw_layernorm_backward *)args;
    if (op->rows > 0)
        SW_FOR_TYPE(op->type, backward, stream, op);
}
