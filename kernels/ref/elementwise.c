#include "kernels/ref/ref.h"

#include <math.h>

/* The tanh form: x·(1 + tanh(u))/2 with u = sqrt(2/pi)·(x + 0.044715·x³). */
static const double SW_GELU_CUBIC = 0.044715;

static double activation(sw_activation which, double x) {
    if (which == SW_RELU)
        return isnan(x) || x > 0.0 ? x : 0.0;
    if (which == SW_SILU)
        return x / (1.0 + exp(-x));
    if (which == SW_GELU_ERF)
        return 0.5 * x * erfc(-x * M_SQRT1_2);
    const double u = M_2_SQRTPI * M_SQRT1_2 * (x + SW_GELU_CUBIC * x * x * x);
    return x / (1.0 + exp(-2.0 * u));
}

static double slope(sw_activation which, double x) {
    if (which == SW_RELU)
        return x > 0.0 ? 1.0 : 0.0;
    if (which == SW_SILU) {
        const double gate = 1.0 / (1.0 + exp(-x));
        return gate + x * gate * (1.0 - gate);
    }
    if (which == SW_GELU_ERF)
        return 0.5 * erfc(-x * M_SQRT1_2) + x * exp(-0.5 * x * x) * 0.5 * M_2_SQRTPI * M_SQRT1_2;
    const double factor = M_2_SQRTPI * M_SQRT1_2;
    const double sigmoid = 1.0 / (1.0 + exp(-2.0 * factor * (x + SW_GELU_CUBIC * x * x * x)));
    return sigmoid + x * sigmoid * (1.0 - sigmoid) * 2.0 * factor * (1.0 + 3.0 * SW_GELU_CUBIC * x * x);
}

static sw_status activation_forward(struct sw_stream *stream, sw_dtype type, sw_activation which, int64_t elems,
                                    const void *x, void *y) {
    (void)stream;
    for (int64_t i = 0; i < elems; i++)
        sw_dtype_store(type, y, i, (float)activation(which, sw_dtype_load(type, x, i)));
    return SW_OK;
}

static sw_status activation_backward(struct sw_stream *stream, sw_dtype type, sw_activation which, int64_t elems,
                                     const void *x, const void *dy, void *dx, void *activated) {
    for (int64_t i = 0; i < elems; i++) {
        const double gradient = sw_dtype_load(type, dy, i);
        sw_dtype_store(type, dx, i, (float)(gradient * slope(which, sw_dtype_load(type, x, i))));
    }
    return activated == NULL ? SW_OK : activation_forward(stream, type, which, elems, x, activated);
}

static sw_status gated_forward(struct sw_stream *stream, sw_dtype type, sw_activation which, int64_t rows, int64_t cols,
                               const void *x, void *y) {
    (void)stream;
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t col = 0; col < cols; col++) {
            const int64_t gate = 2 * row * cols + col;
            const double value = sw_dtype_load(type, x, gate + cols);
            sw_dtype_store(type, y, row * cols + col, (float)(activation(which, sw_dtype_load(type, x, gate)) * value));
        }
    }
    return SW_OK;
}

static sw_status gated_backward(struct sw_stream *stream, sw_dtype type, sw_activation which, int64_t rows,
                                int64_t cols, const void *x, const void *dy, void *dx, void *activated) {
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t col = 0; col < cols; col++) {
            const int64_t at = 2 * row * cols + col;
            const double gate = sw_dtype_load(type, x, at), value = sw_dtype_load(type, x, at + cols);
            const double gradient = sw_dtype_load(type, dy, row * cols + col);
            sw_dtype_store(type, dx, at, (float)(gradient * value * slope(which, gate)));
            sw_dtype_store(type, dx, at + cols, (float)(gradient * activation(which, gate)));
        }
    }
    return activated == NULL ? SW_OK : gated_forward(stream, type, which, rows, cols, x, activated);
}

static sw_status add(struct sw_stream *stream, sw_dtype type, int64_t elems, const void *a, const void *b, void *y) {
    (void)stream;
    for (int64_t i = 0; i < elems; i++)
        sw_dtype_store(type, y, i, sw_dtype_load(type, a, i) + sw_dtype_load(type, b, i));
    return SW_OK;
}

static sw_status cast_from_f32(struct sw_stream *stream, sw_dtype type, int64_t elems, const float *from, void *to) {
    (void)stream;
    for (int64_t i = 0; i < elems; i++)
        sw_dtype_store(type, to, i, from[i]);
    return SW_OK;
}

static sw_status cast_to_f32(struct sw_stream *stream, sw_dtype type, int64_t elems, const void *from, float *to) {
    (void)stream;
    for (int64_t i = 0; i < elems; i++)
        to[i] = sw_dtype_load(type, from, i);
    return SW_OK;
}

void sw_ref_add_elementwise(struct sw_device_ops *ops) {
    ops->activation_forward = activation_forward;
    ops->activation_backward = activation_backward;
    ops->gated_forward = gated_forward;
    ops->gated_backward = gated_backward;
    ops->add = add;
    ops->cast_from_f32 = cast_from_f32;
    ops->cast_to_f32 = cast_to_f32;
}
