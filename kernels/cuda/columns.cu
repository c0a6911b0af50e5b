/* The gradient of a bias. */
#include "kernels/cuda/columns.cuh"

namespace {
template <typename T> struct gradients {
    const T *dy;
    int64_t cols;
    bool aligned;
    __device__ __forceinline__ void load(int64_t row, int64_t col, int64_t count, float out[1][SW_ELEMS]) const {
        sw_load_elems(dy + row * cols + col, count, aligned, out[0]);
    }
};
} // namespace

template <typename T>
static void bias_gradient(cudaStream_t stream, int64_t rows, int64_t cols, const void *dy, float *acc) {
    const gradients<T> source = {(const T *)dy, cols, cols % SW_ELEMS == 0 && sw_is_aligned(dy)};
    sw_sum_columns<gradients<T>, 1, true>(stream, rows, cols, source, acc, acc);
}

void sw_cuda_bias_gradient(cudaStream_t stream, const void *args) {
    const sw_bias_gradient *op = (const sw_bias_gradient *)args;
    SW_FOR_TYPE(op->type, bias_gradient, stream, op->rows, op->cols, op->dy, op->acc);
}
