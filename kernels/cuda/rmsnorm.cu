/* Root-mean-square norms, made like layernorm.cu, with rows that may be grouped. */
#include "kernels/cuda/columns.cuh"
#include "kernels/cuda/rows.cuh"

static __device__ __forceinline__ int64_t row_at(const sw_rmsnorm &shape, int64_t stride, int64_t row) {
    return row / shape.groups * stride + row % shape.groups * shape.cols;
}

static bool rows_aligned(const sw_rmsnorm *shape, const void *at_x, const void *at_y, const void *gamma) {
    return shape->cols % SW_ELEMS == 0 && shape->x_stride % SW_ELEMS == 0 && shape->y_stride % SW_ELEMS == 0 &&
           sw_is_aligned(at_x) && sw_is_aligned(at_y) && sw_is_aligned(gamma);
}

template <typename T, int THREADS>
static __global__ void __launch_bounds__(SW_BLOCK_THREADS, SW_ROW_BLOCKS)
    forward_kernel(sw_rmsnorm shape, sw_addends<T> add, const T *x, const T *gamma, T *y, float *rstd, bool aligned) {
    const int64_t row = sw_row_of_thread<THREADS>(), first = threadIdx.x * SW_ELEMS, cols = shape.cols;
    if (row >= shape.rows)
        return;
    const T *from = x + row_at(shape, shape.x_stride, row);
    T *to = y + row_at(shape, shape.y_stride, row);
    sw_add_row<THREADS>(add, row * cols, cols, aligned);
    float values[SW_ELEMS], squares = 0.0f;
    SW_UNROLL_TWICE
    for (int64_t col = first; col < cols; col += THREADS * SW_ELEMS) {
        sw_load_elems(from + col, cols - col, aligned, values);
        for (int i = 0; i < SW_ELEMS; i++)
            squares = fmaf(values[i], values[i], squares);
    }
    const float scale = 1.0f / sqrtf(sw_row_sum<THREADS>(squares) / (float)cols + shape.epsilon);
    if (threadIdx.x == 0)
        rstd[row] = scale;
    for (int64_t col = first; col < cols; col += THREADS * SW_ELEMS) {
        float factors[SW_ELEMS];
        sw_load_elems(from + col, cols - col, aligned, values);
        sw_load_elems(gamma + col, cols - col, aligned, factors);
        for (int i = 0; i < SW_ELEMS; i++)
            values[i] = values[i] * scale * (factors[i] + shape.gamma_base);
        sw_store_elems(to + col, cols - col, aligned, values);
    }
}

template <typename T>
static void forward(cudaStream_t stream, const sw_rmsnorm *shape, const void *a, const void *b, const void *x,
                    void *sum, const void *gamma, void *y, float *rstd) {
    const sw_rmsnorm s = *shape;
    const bool aligned = rows_aligned(shape, x, y, gamma) && sw_is_aligned(a) && sw_is_aligned(b);
    const sw_addends<T> add = {(const T *)a, (const T *)b, (T *)sum};
    SW_FOR_ROWS(forward_kernel, T, s.rows, s.cols, stream, s, add, (const T *)x, (const T *)gamma, (T *)y, rstd,
                aligned);
}

void sw_cuda_rmsnorm_forward(cudaStream_t stream, const void *args) {
    const sw_rmsnorm_forward *op = (const sw_rmsnorm_forward *)args;
    if (op->shape->rows > 0)
        SW_FOR_TYPE(op->type, forward, stream, op->shape, NULL, NULL, op->x, NULL, op->gamma, op->y, op->rstd);
}

void sw_cuda_add_rmsnorm_forward(cudaStream_t stream, const void *args) {
    const sw_add_norm_forward *op = (const sw_add_norm_forward *)args;
    const sw_rmsnorm shape = {op->rows, op->cols, 1, op->cols, op->cols, op->epsilon, op->gamma_base};
    if (op->rows > 0)
        SW_FOR_TYPE(op->type, forward, stream, &shape, op->a, op->b, op->sum, op->sum, op->gamma, op->y, op->rstd);
}

/* With n = x·rstd and g = dy·gamma, dx = rstd·(g - n·average(g·n)) over the row. */
template <typename T, int THREADS>
static __global__ void __launch_bounds__(SW_BLOCK_THREADS, SW_ROW_BLOCKS)
    dx_kernel(sw_rmsnorm shape, const T *dy, const T *x, const T *gamma, const float *rstd, bool add_to_dx, T *dx,
              bool aligned) {
    const int64_t row = sw_row_from_end<THREADS>(shape.rows), first = threadIdx.x * SW_ELEMS, cols = shape.cols;
    if (row < 0)
        return;
    const int64_t x_at = row_at(shape, shape.x_stride, row), y_at = row_at(shape, shape.y_stride, row);
    const float scale = rstd[row];
    float g[SW_ELEMS], normal[SW_ELEMS], factors[SW_ELEMS], sum_normal = 0.0f;
    SW_UNROLL_TWICE
    for (int64_t col = first; col < cols; col += THREADS * SW_ELEMS) {
        sw_load_elems(dy + y_at + col, cols - col, aligned, g);
        sw_load_elems(gamma + col, cols - col, aligned, factors);
        for (int i = 0; i < SW_ELEMS; i++)
            g[i] *= factors[i] + shape.gamma_base;
        sw_load_elems(x + x_at + col, cols - col, aligned, normal);
        for (int i = 0; i < SW_ELEMS; i++)
            sum_normal = fmaf(g[i], normal[i] * scale, sum_normal);
    }
    const float average_normal = sw_row_sum<THREADS>(sum_normal) / (float)cols;
    for (int64_t col = first; col < cols; col += THREADS * SW_ELEMS) {
        float before[SW_ELEMS] = {0};
        sw_load_elems(dy + y_at + col, cols - col, aligned, g);
        sw_load_elems(gamma + col, cols - col, aligned, factors);
        for (int i = 0; i < SW_ELEMS; i++)
            g[i] *= factors[i] + shape.gamma_base;
        sw_load_elems(x + x_at + col, cols - col, aligned, normal);
        if (add_to_dx)
            sw_load_elems(dx + x_at + col, cols - col, aligned, before);
        for (int i = 0; i < SW_ELEMS; i++)
            before[i] = fmaf(scale, fmaf(-normal[i] * scale, average_normal, g[i]), before[i]);
        sw_store_elems(dx + x_at + col, cols - col, aligned, before);
    }
}

namespace {
template <typename T> struct norm_terms {
    sw_rmsnorm shape;
    const T *dy, *x;
    const float *rstd;
    bool aligned;
    __device__ __forceinline__ void load(int64_t row, int64_t col, int64_t count, float out[1][SW_ELEMS]) const {
        float values[SW_ELEMS];
        sw_load_elems(dy + row_at(shape, shape.y_stride, row) + col, count, aligned, out[0]);
        sw_load_elems(x + row_at(shape, shape.x_stride, row) + col, count, aligned, values);
        for (int i = 0; i < SW_ELEMS; i++)
            out[0][i] *= values[i] * rstd[row];
    }
};
} // namespace

template <typename T> static void backward(cudaStream_t stream, const sw_rmsnorm_backward *op) {
    const sw_rmsnorm s = *op->shape;
    const T *dy = (const T *)op->dy, *x = (const T *)op->x, *gamma = (const T *)op->gamma;
    const bool aligned = rows_aligned(op->shape, x, dy, gamma) && sw_is_aligned(op->dx);
    SW_FOR_ROWS(dx_kernel, T, s.rows, s.cols, stream, s, dy, x, gamma, op->rstd, op->add_to_dx, (T *)op->dx, aligned);
    const norm_terms<T> source = {s, dy, x, op->rstd, aligned};
    sw_sum_columns<norm_terms<T>, 1, false>(stream, s.rows, s.cols, source, op->gamma_acc, op->gamma_acc);
}

void sw_cuda_rmsnorm_backward(cudaStream_t stream, const void *args) {
    const sw_rmsnorm_backward *op = (const sw_rmsnorm_backward *)args;
    if (op->shape->rows > 0)
        SW_FOR_TYPE(op->type, backward, stream, op);
}
