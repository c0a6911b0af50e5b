#include "tests/kernels/fragment_products.h"

#include "kernels/cuda/attention/fragment.cuh"

template <typename T, bool SHUFFLES> struct product {
    static __device__ void multiply(sw_fragment_c *c, const sw_fragment_a<T> &a, const sw_fragment_b<T> &b) {
        sw_multiply(c, a, b);
    }
};
template <> struct product<float, true> {
    static __device__ void multiply(sw_fragment_c *c, const sw_fragment_a<float> &a, const sw_fragment_b<float> &b) {
        *c = sw_multiply_by_shuffles(*c, a, b);
    }
};

template <typename T, bool SHUFFLES>
static __global__ void multiply_kernel(bool rows_of_b, const float *a, const float *b, float *c) {
    enum { STRIDE = FRAGMENT_SIDE + 8 };
    SW_SHARED(T, tiles, [2][FRAGMENT_SIDE * STRIDE]);
    for (int i = (int)threadIdx.x; i < FRAGMENT_ELEMS; i += SW_WARP) {
        const int at = i / FRAGMENT_SIDE * STRIDE + i % FRAGMENT_SIDE;
        sw_round(a[i], &tiles[0][at]);
        sw_round(b[i], &tiles[1][at]);
    }
    __syncwarp();
    sw_fragment_a<T> left;
    sw_fragment_b<T> right[2];
    sw_fragment_c out[2] = {};
    sw_load_a(&left, tiles[0], STRIDE);
    if (rows_of_b)
        sw_load_b_of_rows(right, tiles[1], STRIDE);
    else
        sw_load_b_of_columns(right, tiles[1], STRIDE);
    for (int n = 0; n < 2; n++) {
        product<T, SHUFFLES>::multiply(&out[n], left, right[n]);
        for (int i = 0; i < 4; i++) {
            const int row = sw_lane() / 4 + i / 2 * 8, column = n * SW_FRAGMENT_COLS + sw_lane() % 4 * 2 + i % 2;
            c[row * FRAGMENT_SIDE + column] = out[n].values[i];
        }
    }
}

template <typename T, bool SHUFFLES> static void multiply(bool rows_of_b, const float *a, const float *b, float *c) {
    cudaStream_t stream = nullptr;
    SW_LAUNCH((multiply_kernel<T, SHUFFLES>), 1, (unsigned)SW_WARP, 0, stream, rows_of_b, a, b, c);
}

void fragment_multiply(fragment_product how, int rows_of_b, const float *a, const float *b, float *c) {
    typedef void (*function)(bool rows_of_b, const float *a, const float *b, float *c);
    static const function all[] = {multiply<sw_cuda_bf16, false>, multiply<sw_cuda_f16, false>, multiply<float, false>,
                                   multiply<float, true>};
    all[how](rows_of_b != 0, a, b, c);
}
