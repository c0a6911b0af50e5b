/* Activations, plain and gated: one vector a thread, one pass over memory. */
#include "kernels/cuda/curves.cuh"
#include "kernels/cuda/grid.cuh"

template <typename T>
static __global__ void __launch_bounds__(SW_BLOCK_THREADS)
    forward_kernel(sw_activation which, int64_t elems, const T *x, T *y, bool aligned) {
    const int64_t at = sw_thread_of_grid() * SW_ELEMS;
    if (at >= elems)
        return;
    float values[SW_ELEMS];
    sw_load_elems(x + at, elems - at, aligned, values);
    for (int i = 0; i < SW_ELEMS; i++)
        values[i] = sw_curve(which, values[i]);
    sw_store_elems(y + at, elems - at, aligned, values);
}

template <typename T>
static void forward(cudaStream_t stream, sw_activation which, int64_t elems, const void *x, void *y) {
    SW_LAUNCH(forward_kernel<T>, sw_blocks(sw_vectors(elems), SW_BLOCK_THREADS), SW_BLOCK_THREADS, 0, stream, which,
              elems, (const T *)x, (T *)y, sw_is_aligned(x) && sw_is_aligned(y));
}

void sw_cuda_activation_forward(cudaStream_t stream, sw_dtype type, sw_activation which, int64_t elems, const void *x,
                                void *y) {
    if (elems > 0)
        SW_FOR_TYPE(type, forward, stream, which, elems, x, y);
}

template <typename T>
static __global__ void __launch_bounds__(SW_BLOCK_THREADS)
    backward_kernel(sw_activation which, int64_t elems, const T *x, const T *dy, T *dx, T *activated, bool aligned) {
    const int64_t at = sw_thread_of_grid() * SW_ELEMS;
    if (at >= elems)
        return;
    float values[SW_ELEMS], gradients[SW_ELEMS];
    sw_load_elems(x + at, elems - at, aligned, values);
    sw_load_elems(dy + at, elems - at, aligned, gradients);
    for (int i = 0; i < SW_ELEMS; i++)
        gradients[i] *= sw_slope(which, values[i]);
    sw_store_elems(dx + at, elems - at, aligned, gradients);
    if (activated == NULL)
        return;
    for (int i = 0; i < SW_ELEMS; i++)
        values[i] = sw_curve(which, values[i]);
    sw_store_elems(activated + at, elems - at, aligned, values);
}

template <typename T>
static void backward(cudaStream_t stream, sw_activation which, int64_t elems, const void *x, const void *dy, void *dx,
                     void *activated) {
    const bool aligned = sw_is_aligned(x) && sw_is_aligned(dy) && sw_is_aligned(dx) && sw_is_aligned(activated);
    SW_LAUNCH(backward_kernel<T>, sw_blocks(sw_vectors(elems), SW_BLOCK_THREADS), SW_BLOCK_THREADS, 0, stream, which,
              elems, (const T *)x, (const T *)dy, (T *)dx, (T *)activated, aligned);
}

void sw_cuda_activation_backward(cudaStream_t stream, sw_dtype type, sw_activation which, int64_t elems, const void *x,
                                 const void *dy, void *dx, void *activated) {
    if (elems > 0)
        SW_FOR_TYPE(type, backward, stream, which, elems, x, dy, dx, activated);
}

namespace {
/* A vector of a row: the thread's column, how many elements remain there, and where its gates begin. */
struct gated_place {
    int64_t row, col, count, gates, values;
};
} // namespace

static __device__ __forceinline__ gated_place place_of(int64_t rows, int64_t cols) {
    const int64_t vectors = (cols + SW_ELEMS - 1) / SW_ELEMS, index = sw_thread_of_grid();
    gated_place p;
    p.row = index / vectors;
    p.col = index % vectors * SW_ELEMS;
    p.count = p.row < rows ? cols - p.col : 0;
    p.gates = p.row * 2 * cols + p.col;
    p.values = p.gates + cols;
    return p;
}

template <typename T>
static __global__ void __launch_bounds__(SW_BLOCK_THREADS)
    gated_forward_kernel(sw_activation which, int64_t rows, int64_t cols, const T *x, T *y, bool aligned) {
    const gated_place p = place_of(rows, cols);
    if (p.count <= 0)
        return;
    float gates[SW_ELEMS], values[SW_ELEMS];
    sw_load_elems(x + p.gates, p.count, aligned, gates);
    sw_load_elems(x + p.values, p.count, aligned, values);
    for (int i = 0; i < SW_ELEMS; i++)
        values[i] *= sw_curve(which, gates[i]);
    sw_store_elems(y + p.row * cols + p.col, p.count, aligned, values);
}

template <typename T>
static void gated_forward(cudaStream_t stream, sw_activation which, int64_t rows, int64_t cols, const void *x,
                          void *y) {
    const bool aligned = cols % SW_ELEMS == 0 && sw_is_aligned(x) && sw_is_aligned(y);
    SW_LAUNCH(gated_forward_kernel<T>, sw_blocks(rows * sw_vectors(cols), SW_BLOCK_THREADS), SW_BLOCK_THREADS, 0,
              stream, which, rows, cols, (const T *)x, (T *)y, aligned);
}

void sw_cuda_gated_forward(cudaStream_t stream, sw_dtype type, sw_activation which, int64_t rows, int64_t cols,
                           const void *x, void *y) {
    if (rows > 0)
        SW_FOR_TYPE(type, gated_forward, stream, which, rows, cols, x, y);
}

template <typename T>
static __global__ void __launch_bounds__(SW_BLOCK_THREADS)
    gated_backward_kernel(sw_activation which, int64_t rows, int64_t cols, const T *x, const T *dy, T *dx, T *activated,
                          bool aligned) {
    const gated_place p = place_of(rows, cols);
    if (p.count <= 0)
        return;
    float gates[SW_ELEMS], values[SW_ELEMS], gradients[SW_ELEMS], results[SW_ELEMS];
    sw_load_elems(x + p.gates, p.count, aligned, gates);
    sw_load_elems(x + p.values, p.count, aligned, values);
    sw_load_elems(dy + p.row * cols + p.col, p.count, aligned, gradients);
    for (int i = 0; i < SW_ELEMS; i++) {
        const float curve = sw_curve(which, gates[i]);
        results[i] = values[i] * curve;
        values[i] *= gradients[i] * sw_slope(which, gates[i]);
        gradients[i] *= curve;
    }
    sw_store_elems(dx + p.gates, p.count, aligned, values);
    sw_store_elems(dx + p.values, p.count, aligned, gradients);
    if (activated != NULL)
        sw_store_elems(activated + p.row * cols + p.col, p.count, aligned, results);
}

template <typename T>
static void gated_backward(cudaStream_t stream, sw_activation which, int64_t rows, int64_t cols, const void *x,
                           const void *dy, void *dx, void *activated) {
    const bool aligned =
        cols % SW_ELEMS == 0 && sw_is_aligned(x) && sw_is_aligned(dy) && sw_is_aligned(dx) && sw_is_aligned(activated);
    SW_LAUNCH(gated_backward_kernel<T>, sw_blocks(rows * sw_vectors(cols), SW_BLOCK_THREADS), SW_BLOCK_THREADS, 0,
              stream, which, rows, cols, (const T *)x, (const T *)dy, (T *)dx, (T *)activated, aligned);
}

void sw_cuda_gated_backward(cudaStream_t stream, sw_dtype type, sw_activation which, int64_t rows, int64_t cols,
                            const void *x, const void *dy, void *dx, void *activated) {
    if (rows > 0)
        SW_FOR_TYPE(type, gated_backward, stream, which, rows, cols, x, dy, dx, activated);
}
