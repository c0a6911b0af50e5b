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

static sw_status activation_forward(struct sw_stream *stream, const void *args) {
    const struct sw_activation_forward *op = args;
    (void)stream;
    for (int64_t i = 0; i < op->elems; i++)
        sw_dtype_store(op->type, op->y, i, (float)activation(op->which, sw_dtype_load(op->type, op->x, i)));
    return SW_OK;
}

static sw_status activation_backward(struct sw_stream *stream, const void *args) {
    const struct sw_activation_backward *op = args;
    for (int64_t i = 0; i < op->elems; i++) {
        const double gradient = sw_dtype_load(op->type, op->dy, i);
        sw_dtype_store(op->type, op->dx, i, (float)(gradient * slope(op->which, sw_dtype_load(op->type, op->x, i))));
    }
    return op->activated == NULL ? SW_OK
                                 : sw_activation_forward(stream, op->type, op->which, op->elems, op->x, op->activated);
}

static sw_status gated_forward(struct sw_stream *stream, const void *args) {
    const struct sw_gated_forward *op = args;
    (void)stream;
    for (int64_t row = 0; row < op->rows; row++) {
        for (int64_t col = 0; col < op->cols; col++) {
            const int64_t gate = 2 * row * op->cols + col;
            const double value = sw_dtype_load(op->type, op->x, gate + op->cols);
            sw_dtype_store(op->type, op->y, row * op->cols + col,
                           (float)(activation(op->which, sw_dtype_load(op->type, op->x, gate)) * value));
        }
    }
    return SW_OK;
}

static sw_status gated_backward(struct sw_stream *stream, const void *args) {
    const struct sw_gated_backward *op = args;
    for (int64_t row = 0; row < op->rows; row++) {
        for (int64_t col = 0; col < op->cols; col++) {
            const int64_t at = 2 * row * op->cols + col;
            const double gate = sw_dtype_load(op->type, op->x, at),
                         value = sw_dtype_load(op->type, op->x, at + op->cols);
            const double gradient = sw_dtype_load(op->type, op->dy, row * op->cols + col);
            sw_dtype_store(op->type, op->dx, at, (float)(gradient * value * slope(op->which, gate)));
            sw_dtype_store(op->type, op->dx, at + op->cols, (float)(gradient * activation(op->which, gate)));
        }
    }
    return op->activated == NULL
               ? SW_OK
               : sw_gated_forward(stream, op->type, op->which, op->rows, op->cols, op->x, op->activated);
}

static sw_status add(struct sw_stream *stream, const void *args) {
    const struct sw_add *op = args;
    (void)stream;
    for (int64_t i = 0; i < op->elems; i++)
        sw_dtype_store(op->type, op->y, i, sw_dtype_load(op->type, op->a, i) + sw_dtype_load(op->type, op->b, i));
    return SW_OK;
}

static sw_status cast_from_f32(struct sw_stream *stream, const void *args) {
    const struct sw_cast_from_f32 *op = args;
    (void)stream;
    for (int64_t i = 0; i < op->elems; i++)
        sw_dtype_store(op->type, op->to, i, op->from[i]);
    return SW_OK;
}

static sw_status cast_to_f32(struct sw_stream *stream, const void *args) {
    const struct sw_cast_to_f32 *op = args;
    (void)stream;
    for (int64_t i = 0; i < op->elems; i++)
        op->to[i] = sw_dtype_load(op->type, op->from, i);
    return SW_OK;
}

void sw_ref_add_elementwise(struct sw_device_ops *ops) {
    ops->op[SW_DEVICE_ACTIVATION_FORWARD] = activation_forward;
    ops->op[SW_DEVICE_ACTIVATION_BACKWARD] = activation_backward;
    ops->op[SW_DEVICE_GATED_FORWARD] = gated_forward;
    ops->op[SW_DEVICE_GATED_BACKWARD] = gated_backward;
    ops->op[SW_DEVICE_ADD] = add;
    ops->op[SW_DEVICE_CAST_FROM_F32] = cast_from_f32;
    ops->op[SW_DEVICE_ROUND_GRADIENT] = cast_from_f32;
    ops->op[SW_DEVICE_CAST_TO_F32] = cast_to_f32;
}
