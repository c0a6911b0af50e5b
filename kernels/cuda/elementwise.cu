/* Sums and casts of whole tensors: one vector a thread, one pass over memory. */
#include "kernels/cuda/grid.cuh"

template <typename T>
static __global__ void __launch_bounds__(SW_BLOCK_THREADS)
    add_kernel(int64_t elems, const T *a, const T *b, T *y, bool aligned) {
    const int64_t at = sw_thread_of_grid() * SW_ELEMS;
    if (at >= elems)
        return;
    float left[SW_ELEMS], right[SW_ELEMS];
    sw_load_elems(a + at, elems - at, aligned, left);
    sw_load_elems(b + at, elems - at, aligned, right);
    for (int i = 0; i < SW_ELEMS; i++)
        left[i] += right[i];
    sw_store_elems(y + at, elems - at, aligned, left);
}

template <typename T> static void add(cudaStream_t stream, int64_t elems, const void *a, const void *b, void *y) {
    const bool aligned = sw_is_aligned(a) && sw_is_aligned(b) && sw_is_aligned(y);
    SW_LAUNCH(add_kernel<T>, sw_blocks(sw_vectors(elems), SW_BLOCK_THREADS), SW_BLOCK_THREADS, 0, stream, elems,
              (const T *)a, (const T *)b, (T *)y, aligned);
}

void sw_cuda_add(cudaStream_t stream, sw_dtype type, int64_t elems, const void *a, const void *b, void *y) {
    if (elems > 0)
        SW_FOR_TYPE(type, add, stream, elems, a, b, y);
}

template <typename From, typename To>
static __global__ void __launch_bounds__(SW_BLOCK_THREADS)
    cast_kernel(int64_t elems, const From *from, To *to, bool aligned) {
    const int64_t at = sw_thread_of_grid() * SW_ELEMS;
    if (at >= elems)
        return;
    float values[SW_ELEMS];
    sw_load_elems(from + at, elems - at, aligned, values);
    sw_store_elems(to + at, elems - at, aligned, values);
}

template <typename From, typename To> static void cast(cudaStream_t stream, int64_t elems, const void *from, void *to) {
    const bool aligned = sw_is_aligned(from) && sw_is_aligned(to);
    SW_LAUNCH((cast_kernel<From, To>), sw_blocks(sw_vectors(elems), SW_BLOCK_THREADS), SW_BLOCK_THREADS, 0, stream,
              elems, (const From *)from, (To *)to, aligned);
}

template <typename To> static void cast_from_f32(cudaStream_t stream, int64_t elems, const void *from, void *to) {
    cast<float, To>(stream, elems, from, to);
}

template <typename From> static void cast_to_f32(cudaStream_t stream, int64_t elems, const void *from, void *to) {
    cast<From, float>(stream, elems, from, to);
}

void sw_cuda_cast_from_f32(cudaStream_t stream, sw_dtype type, int64_t elems, const float *from, void *to) {
    if (elems > 0)
        SW_FOR_TYPE(type, cast_from_f32, stream, elems, from, to);
}

void sw_cuda_cast_to_f32(cudaStream_t stream, sw_dtype type, int64_t elems, const void *from, float *to) {
    if (elems > 0)
        SW_FOR_TYPE(type, cast_to_f32, stream, elems, from, to);
}
