#include "kernels/ref/ref.h"

#include "core/rng.h"

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
    for (int64_t row = sw_first_row(&op->run); row < sw_end_row(&op->run, op->rows); row++) {
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
    for (int64_t row = sw_first_row(&op->run); row < sw_end_row(&op->run, op->rows); row++) {
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
               : sw_gated_forward(stream, op->type, op->which, op->rows, op->cols, op->x, op->activated, op->run);
}

/* A gate and its value after their clamps, and the sigmoid that opens the gate. */
struct clamped {
    double gate, value, open;
};

static struct clamped clamp(double gate, double value) {
    struct clamped at = {.gate = gate > SW_CLAMPED_MOST ? SW_CLAMPED_MOST : gate, .value = value};
    if (value > SW_CLAMPED_MOST || value < -SW_CLAMPED_MOST)
        at.value = value > 0.0 ? SW_CLAMPED_MOST : -SW_CLAMPED_MOST;
    at.open = 1.0 / (1.0 + exp(-SW_CLAMPED_SLOPE * at.gate));
    return at;
}

static sw_status clamped_forward(struct sw_stream *stream, const void *args) {
    const struct sw_clamped_forward *op = args;
    (void)stream;
    for (int64_t at = sw_first_row(&op->run) * op->cols; at < sw_end_row(&op->run, op->rows) * op->cols; at++) {
        const struct clamped c =
            clamp(sw_dtype_load(op->type, op->x, 2 * at), sw_dtype_load(op->type, op->x, 2 * at + 1));
        sw_dtype_store(op->type, op->y, at, (float)(c.gate * c.open * (c.value + 1.0)));
    }
    return SW_OK;
}

static sw_status clamped_backward(struct sw_stream *stream, const void *args) {
    const struct sw_clamped_backward *op = args;
    (void)stream;
    for (int64_t at = sw_first_row(&op->run) * op->cols; at < sw_end_row(&op->run, op->rows) * op->cols; at++) {
        const double gate = sw_dtype_load(op->type, op->x, 2 * at), value = sw_dtype_load(op->type, op->x, 2 * at + 1);
        const double dy = sw_dtype_load(op->type, op->dy, at);
        const struct clamped c = clamp(gate, value);
        const double slope = c.open + SW_CLAMPED_SLOPE * c.gate * c.open * (1.0 - c.open);
        sw_dtype_store(op->type, op->dx, 2 * at, gate > SW_CLAMPED_MOST ? 0.0f : (float)(dy * (c.value + 1.0) * slope));
        sw_dtype_store(op->type, op->dx, 2 * at + 1,
                       value > SW_CLAMPED_MOST || value < -SW_CLAMPED_MOST ? 0.0f : (float)(dy * c.gate * c.open));
    }
    return SW_OK;
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
    const bool all = op->run.first == NULL;
    (void)stream;
    for (int64_t i = all ? 0 : *op->run.first * op->cols; i < (all ? op->elems : *op->run.end * op->cols); i++)
        sw_dtype_store(op->type, op->to, i, sw_cast_scale(op) == 1.0f ? op->from[i] : op->scale * op->from[i]);
    return SW_OK;
}

static sw_status cast_to_f32(struct sw_stream *stream, const void *args) {
    const struct sw_cast_to_f32 *op = args;
    (void)stream;
    for (int64_t i = 0; i < op->elems; i++)
        op->to[i] = sw_dtype_load(op->type, op->from, i);
    return SW_OK;
}

static sw_status dropout(struct sw_stream *stream, const void *args) {
    const struct sw_dropout *op = args;
    (void)stream;
    for (int64_t i = 0; i < op->elems; i++) {
        const int64_t number = sw_dropout_number(op, i);
        const uint32_t word = sw_rng(op->seed, op->stream, (uint64_t)(number / 4)).word[number % 4];
        const bool kept = word >= sw_dropout_threshold(op);
        sw_dtype_store(op->type, op->y, i, kept ? sw_dtype_load(op->type, op->x, i) * sw_dropout_scale(op) : 0.0f);
    }
    return SW_OK;
}

void sw_ref_add_elementwise(struct sw_device_ops *ops) {
    ops->op[SW_DEVICE_ACTIVATION_FORWARD] = activation_forward;
    ops->op[SW_DEVICE_ACTIVATION_BACKWARD] = activation_backward;
    ops->op[SW_DEVICE_GATED_FORWARD] = gated_forward;
    ops->op[SW_DEVICE_GATED_BACKWARD] = gated_backward;
    ops->op[SW_DEVICE_CLAMPED_FORWARD] = clamped_forward;
    ops->op[SW_DEVICE_CLAMPED_BACKWARD] = clamped_backward;
    ops->op[SW_DEVICE_ADD] = add;
    ops->op[SW_DEVICE_DROPOUT] = dropout;
    ops->op[SW_DEVICE_CAST_FROM_F32] = cast_from_f32;
    ops->op[SW_DEVICE_ROUND_GRADIENT] = cast_from_f32;
    ops->op[SW_DEVICE_CAST_TO_F32] = cast_to_f32;
}

static void rotate_head(sw_dtype type, int64_t head_dim, bool back, const float *table, void *x, int64_t at) {
    const int64_t half = head_dim / 2;
    for (int64_t i = 0; i < half; i++) {
        const double cosine = table[i], sine = back ? -table[half + i] : table[half + i];
        const double first = sw_dtype_load(type, x, at + i), second = sw_dtype_load(type, x, at + half + i);
        sw_dtype_store(type, x, at + i, (float)(first * cosine - second * sine));
        sw_dtype_store(type, x, at + half + i, (float)(second * cosine + first * sine));
    }
}

static sw_status rotate(struct sw_stream *stream, const void *args) {
    const struct sw_rotate *op = args;
    (void)stream;
    for (int64_t row = 0; row < op->shape->batch * op->shape->seq; row++) {
        for (int64_t head = 0; head < op->shape->heads; head++)
            rotate_head(op->type, op->shape->head_dim, op->shape->back,
                        op->table + row % op->shape->seq * op->shape->head_dim, op->x,
                        row * op->shape->stride + head * op->shape->head_dim);
    }
    return SW_OK;
}

void sw_ref_add_rotate(struct sw_device_ops *ops) {
    ops->op[SW_DEVICE_ROTATE] = rotate;
}

/* Returns a row's position in its document. */
static int64_t position_of(int64_t row, int64_t seq, const int32_t *document_start) {
    return row % seq - (document_start == NULL ? 0 : document_start[row]);
}

static sw_status embedding_forward(struct sw_stream *stream, const void *args) {
    const struct sw_embedding_forward *op = args;
    const float scale = sw_embedding_scale(op->scale);
    (void)stream;
    for (int64_t row = 0; row < op->batch * op->seq; row++) {
        const int64_t at = sw_table_row(op->table_part, op->tokens[row]);
        const int64_t position = sw_table_row(op->positions_part, position_of(row, op->seq, op->document_start));
        for (int64_t col = 0; col < op->cols; col++) {
            float value = at < 0 ? 0.0f : scale * sw_dtype_load(op->type, op->table, at * op->cols + col);
            if (op->positions != NULL && position >= 0)
                value += sw_dtype_load(op->type, op->positions, position * op->cols + col);
            sw_dtype_store(op->type, op->out, row * op->cols + col, value);
        }
    }
    return SW_OK;
}

static sw_status embedding_backward(struct sw_stream *stream, const void *args) {
    const struct sw_embedding_backward *op = args;
    const float scale = sw_embedding_scale(op->scale);
    (void)stream;
    for (int64_t row = 0; row < op->batch * op->seq; row++) {
        const int64_t at = sw_table_row(op->table_part, op->tokens[row]);
        const int64_t position = sw_table_row(op->positions_part, position_of(row, op->seq, op->document_start));
        for (int64_t col = 0; col < op->cols; col++) {
            const float gradient = sw_dtype_load(op->type, op->d_out, row * op->cols + col);
            if (at >= 0)
                op->table_acc[at * op->cols + col] += scale * gradient;
            if (op->positions_acc != NULL && position >= 0)
                op->positions_acc[position * op->cols + col] += gradient;
        }
    }
    return SW_OK;
}

void sw_ref_add_embedding(struct sw_device_ops *ops) {
    ops->op[SW_DEVICE_EMBEDDING_FORWARD] = embedding_forward;
    ops->op[SW_DEVICE_EMBEDDING_BACKWARD] = embedding_backward;
}
