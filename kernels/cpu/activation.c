#include "kernels/cpu/isa.h"
#include "kernels/cpu/tile.h"
#include "kernels/cpu/vector_math.h"

#define SW_GELU_CUBIC 0.044715f
#define SW_SQRT_2_OVER_PI 0.7978845608f
#define SW_SQRT_HALF 0.7071067812f
#define SW_NORMAL_DENSITY_AT_0 0.3989422804f /* 1/sqrt(2·pi) */

/* (1 + tanh(u))/2 is the sigmoid of 2u, which keeps its precision where tanh comes near -1. */
static inline float gelu_tanh_gate(float x) {
    return sw_sigmoid(2.0f * SW_SQRT_2_OVER_PI * x * sw_fma_fast(SW_GELU_CUBIC * x, x, 1.0f));
}

static inline float gelu_tanh(float x) {
    return x * gelu_tanh_gate(x);
}

static inline float gelu_tanh_slope(float x) {
    const float gate = gelu_tanh_gate(x);
    const float inner = 2.0f * SW_SQRT_2_OVER_PI * sw_fma_fast(3.0f * SW_GELU_CUBIC * x, x, 1.0f);
    return sw_fma_fast(x * gate * (1.0f - gate), inner, gate);
}

/* exp(-x²/2), and the normal distribution function made from it. */
static inline float normal_decay(float x) {
    return sw_exp(-0.5f * x * x);
}

static inline float normal_distribution(float x, float decay) {
    const float tail = 0.5f * decay * sw_erfc_scaled(SW_SQRT_HALF * __builtin_fabsf(x));
    return x < 0.0f ? tail : 1.0f - tail;
}

static inline float gelu_erf(float x) {
    return x * normal_distribution(x, normal_decay(x));
}

static inline float gelu_erf_slope(float x) {
    const float decay = normal_decay(x);
    return sw_fma_fast(x * decay, SW_NORMAL_DENSITY_AT_0, normal_distribution(x, decay));
}

static void forward_tile(sw_activation which, int64_t count, const float *x, float *y) {
    if (which == SW_GELU_TANH) {
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            y[i] = gelu_tanh(x[i]);
    } else if (which == SW_GELU_ERF) {
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            y[i] = gelu_erf(x[i]);
    } else {
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            y[i] = x[i] <= 0.0f ? 0.0f : x[i];
    }
}

static void backward_tile(sw_activation which, int64_t count, const float *x, const float *dy, float *dx) {
    if (which == SW_GELU_TANH) {
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            dx[i] = dy[i] * gelu_tanh_slope(x[i]);
    } else if (which == SW_GELU_ERF) {
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            dx[i] = dy[i] * gelu_erf_slope(x[i]);
    } else {
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            dx[i] = dy[i] * (x[i] > 0.0f ? 1.0f : 0.0f);
    }
}

static sw_status activation_forward(struct sw_stream *stream, sw_dtype type, sw_activation which, int64_t elems,
                                    const void *x, void *y) {
    const int threads = stream->device->info.threads;
#pragma omp parallel for num_threads(threads) schedule(static) if (elems >= SW_PARALLEL_MIN_ELEMS)
    for (int64_t at = 0; at < elems; at += SW_TILE_ELEMS) {
        const int64_t count = sw_min_i64(SW_TILE_ELEMS, elems - at);
        struct sw_tile x_tile, y_tile;
        const float *in = sw_tile_load(type, x, at, count, &x_tile);
        forward_tile(which, count, in, sw_tile_target(type, y, at, &y_tile));
        sw_tile_store(type, y, at, count, &y_tile);
    }
    return SW_OK;
}

static sw_status activation_backward(struct sw_stream *stream, sw_dtype type, sw_activation which, int64_t elems,
                                     const void *x, const void *dy, void *dx) {
    const int threads = stream->device->info.threads;
#pragma omp parallel for num_threads(threads) schedule(static) if (elems >= SW_PARALLEL_MIN_ELEMS)
    for (int64_t at = 0; at < elems; at += SW_TILE_ELEMS) {
        const int64_t count = sw_min_i64(SW_TILE_ELEMS, elems - at);
        struct sw_tile x_tile, dy_tile, dx_tile;
        const float *in = sw_tile_load(type, x, at, count, &x_tile);
        const float *gradient = sw_tile_load(type, dy, at, count, &dy_tile);
        backward_tile(which, count, in, gradient, sw_tile_target(type, dx, at, &dx_tile));
        sw_tile_store(type, dx, at, count, &dx_tile);
    }
    return SW_OK;
}

void SW_ISA_NAME(sw_cpu_add_activation)(struct sw_device_ops *ops) {
    ops->activation_forward = activation_forward;
    ops->activation_backward = activation_backward;
}
