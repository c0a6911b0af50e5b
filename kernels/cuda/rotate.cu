/* Rotary positions in place: a thread turns SW_ELEMS pairs of one head. */
#include "kernels/cuda/grid.cuh"

template <typename T>
static __global__ void __launch_bounds__(SW_BLOCK_THREADS)
    rotate_kernel(sw_rotation shape, const float *table, T *x, bool aligned) {
    const int64_t half = shape.head_dim / 2, vectors = (half + SW_ELEMS - 1) / SW_ELEMS;
    const int64_t index = sw_thread_of_grid(), i = index % vectors * SW_ELEMS;
    const int64_t head = index / vectors % shape.heads, row = index / vectors / shape.heads;
    if (row >= shape.batch * shape.seq)
        return;
    const float *angles = table + row % shape.seq * shape.head_dim + i;
    T *at = x + row * shape.stride + head * shape.head_dim + i;
    float cosines[SW_ELEMS], sines[SW_ELEMS], first[SW_ELEMS], second[SW_ELEMS];
    sw_load_elems(angles, half - i, aligned, cosines);
    sw_load_elems(angles + half, half - i, aligned, sines);
    sw_load_elems(at, half - i, aligned, first);
    sw_load_elems(at + half, half - i, aligned, second);
    for (int e = 0; e < SW_ELEMS; e++) {
        const float sine = shape.back ? -sines[e] : sines[e], a = first[e], b = second[e];
        first[e] = fmaf(a, cosines[e], -(b * sine));
        second[e] = fmaf(b, cosines[e], a * sine);
    }
    sw_store_elems(at, half - i, aligned, first);
    sw_store_elems(at + half, half - i, aligned, second);
}

template <typename T> static void rotate(cudaStream_t stream, const sw_rotation *shape, const float *table, void *x) {
    const sw_rotation s = *shape;
    const int64_t half = s.head_dim / 2, threads = s.batch * s.seq * s.heads * sw_vectors(half);
    const bool aligned = half % SW_ELEMS == 0 && s.stride % SW_ELEMS == 0 && sw_is_aligned(table) && sw_is_aligned(x);
    SW_LAUNCH(rotate_kernel<T>, sw_blocks(threads, SW_BLOCK_THREADS), SW_BLOCK_THREADS, 0, stream, s, table, (T *)x,
              aligned);
}

void sw_cuda_rotate(cudaStream_t stream, sw_dtype type, const struct sw_rotation *shape, const float *table, void *x) {
    if (shape->batch * shape->seq > 0)
        SW_FOR_TYPE(type, rotate, stream, shape, table, x);
}
