/* The activations and their slopes in fp32; as in kernels/ref/elementwise.c. */
#ifndef SW_KERNELS_CUDA_CURVES_CUH
#define SW_KERNELS_CUDA_CURVES_CUH

#include "kernels/cuda/platform.cuh"

#define SW_GELU_CUBIC 0.044715f
#define SW_SQRT_2_OVER_PI 0.797884560802865356f
#define SW_SQRT_HALF 0.707106781186547524f
#define SW_HALF_2_OVER_SQRT_PI 0.564189583547756287f

static __device__ __forceinline__ float sw_sigmoid(float x) {
    return 1.0f / (1.0f + expf(-x));
}

/* 2u, where gelu's tanh form is x·(1 + tanh(u))/2 = x·sigmoid(2u). */
static __device__ __forceinline__ float sw_gelu_argument(float x) {
    return 2.0f * SW_SQRT_2_OVER_PI * (x + SW_GELU_CUBIC * x * x * x);
}

static __device__ __forceinline__ float sw_curve(sw_activation which, float x) {
    switch (which) {
    case SW_RELU: return x > 0.0f || x != x ? x : 0.0f;
    case SW_SILU: return x / (1.0f + expf(-x));
    case SW_GELU_ERF: return 0.5f * x * erfcf(-x * SW_SQRT_HALF);
    default: return x / (1.0f + expf(-sw_gelu_argument(x)));
    }
}

/* The slope of x·s(x) where s is the sigmoid of something of slope `inner`. */
static __device__ __forceinline__ float sw_gate_slope(float x, float s, float inner) {
    return s + x * s * (1.0f - s) * inner;
}

static __device__ __forceinline__ float sw_slope(sw_activation which, float x) {
    switch (which) {
    case SW_RELU: return x > 0.0f ? 1.0f : 0.0f;
    case SW_SILU: return sw_gate_slope(x, sw_sigmoid(x), 1.0f);
    case SW_GELU_ERF:
        return 0.5f * erfcf(-x * SW_SQRT_HALF) + x * expf(-0.5f * x * x) * SW_HALF_2_OVER_SQRT_PI * SW_SQRT_HALF;
    default:
        return sw_gate_slope(x, sw_sigmoid(sw_gelu_argument(x)),
                             2.0f * SW_SQRT_2_OVER_PI * (1.0f + 3.0f * SW_GELU_CUBIC * x * x));
    }
}

#endif
