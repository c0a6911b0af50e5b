/* delta = sum of o·d_o over each row of each head, a warp for each row. The backward pass subtracts it from every
 * gradient of a score. */
#ifndef SW_KERNELS_CUDA_ATTENTION_DELTA_CUH
#define SW_KERNELS_CUDA_ATTENTION_DELTA_CUH

#include "kernels/cuda/attention/attention.cuh"
#include "kernels/cuda/rows.cuh"

template <typename T>
static __global__ void __launch_bounds__(SW_BLOCK_THREADS)
    sw_delta_kernel(sw_attention shape, const T *o, const T *d_o, float *delta, bool aligned) {
    const int64_t row = sw_row_of_thread<SW_WARP>(), heads = shape.heads;
    if (row >= shape.batch * shape.seq * heads)
        return;
    const int64_t head = row % heads, token = row / heads, dim = shape.head_dim;
    const int64_t at = token * shape.o_stride + head * dim;
    float sum = 0.0f;
    for (int64_t col = sw_lane() * SW_ELEMS; col < dim; col += SW_WARP * SW_ELEMS) {
        float left[SW_ELEMS], right[SW_ELEMS];
        sw_load_elems(o + at + col, dim - col, aligned, left);
        sw_load_elems(d_o + at + col, dim - col, aligned, right);
        for (int i = 0; i < SW_ELEMS; i++)
            sum = fmaf(left[i], right[i], sum);
    }
    sum = sw_warp_sum(sum);
    if (sw_lane() == 0)
        delta[(token / shape.seq * heads + head) * shape.seq + token % shape.seq] = sum;
}

template <typename T>
static void sw_launch_delta(cudaStream_t stream, const sw_attention *shape, const T *o, const T *d_o, float *delta) {
    const sw_attention s = *shape;
    const bool aligned =
        s.head_dim % SW_ELEMS == 0 && s.o_stride % SW_ELEMS == 0 && sw_is_aligned(o) && sw_is_aligned(d_o);
    SW_LAUNCH(sw_delta_kernel<T>, sw_blocks(s.batch * s.seq * s.heads, SW_BLOCK_THREADS / SW_WARP),
              dim3(SW_WARP, SW_BLOCK_THREADS / SW_WARP), 0, stream, s, o, d_o, delta, aligned);
}

#endif
