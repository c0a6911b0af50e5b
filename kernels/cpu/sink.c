/* Attention sinks: an op behind attention, and the gradient of the sinks. */
#include "kernels/cpu/isa.h"
#include "kernels/cpu/tile.h"
#include "kernels/cpu/vector_math.h"

#include <math.h>

/* Returns the place of a token's head in log_sum_exp. */
static int64_t lse_at(const struct sw_attention *shape, int64_t row, int64_t head) {
    return (row / shape->seq * shape->heads + head) * shape->seq + row % shape->seq;
}

SW_INLINE void sink_row(const sw_dtype type, const struct sw_sink_forward *op, int64_t row) {
    const struct sw_attention *shape = op->shape;
    for (int64_t head = 0; head < shape->heads; head++) {
        float *lse = &op->log_sum_exp[lse_at(shape, row, head)];
        const float sink = sw_dtype_load(type, op->sink, head);
        const float after = (*lse > sink ? *lse : sink) + log1pf(expf(-fabsf(*lse - sink)));
        const sw_vec factor = sw_vec_splat(expf(*lse - after));
        const int64_t at = row * shape->o_stride + head * shape->head_dim;
        for (int64_t i = 0; i < shape->head_dim; i += SW_LANES) {
            const int64_t rest = shape->head_dim - i;
            sw_store_up_to(type, op->o, at + i, rest, factor * sw_load_up_to(type, op->o, at + i, rest, 0.0f));
        }
        *lse = after;
    }
}

static void sink_rows(const void *args, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct sw_sink_forward *op = args;
    for (int64_t row = first; row < end; row++)
        SW_FOR_TYPE(sink_row, op->type, op, row);
}

static bool is_enough(const struct sw_attention *shape) {
    return shape->batch * shape->seq * shape->heads * shape->head_dim >= SW_PARALLEL_MIN_ELEMS;
}

static sw_status sink_forward(struct sw_stream *stream, const void *args) {
    const struct sw_sink_forward *op = args;
    sw_cpu_share(stream, is_enough(op->shape), op->shape->batch * op->shape->seq, sink_rows, op);
    return SW_OK;
}

SW_INLINE void sink_back(const sw_dtype type, const struct sw_sink_backward *op, int64_t head) {
    const struct sw_attention *shape = op->shape;
    const float sink = sw_dtype_load(type, op->sink, head);
    double sum = 0.0;
    for (int64_t row = 0; row < shape->batch * shape->seq; row++) {
        const int64_t at = row * shape->o_stride + head * shape->head_dim;
        sw_vec product = {0};
        for (int64_t i = 0; i < shape->head_dim; i += SW_LANES) {
            const int64_t rest = shape->head_dim - i;
            product = sw_vec_fma(sw_load_up_to(type, op->o, at + i, rest, 0.0f),
                                 sw_load_up_to(type, op->d_o, at + i, rest, 0.0f), product);
        }
        sum += (double)expf(sink - op->log_sum_exp[lse_at(shape, row, head)]) * (double)sw_vec_sum(product);
    }
    op->acc[head] = (float)(op->acc[head] - sum);
}

static void sink_back_heads(const void *args, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct sw_sink_backward *op = args;
    for (int64_t head = first; head < end; head++)
        SW_FOR_TYPE(sink_back, op->type, op, head);
}

static sw_status sink_backward(struct sw_stream *stream, const void *args) {
    const struct sw_sink_backward *op = args;
    sw_cpu_share(stream, is_enough(op->shape), op->shape->heads, sink_back_heads, op);
    return SW_OK;
}

void SW_ISA_NAME(sw_cpu_add_sink)(struct sw_device_ops *ops) {
    ops->op[SW_DEVICE_SINK_FORWARD] = sink_forward;
    ops->op[SW_DEVICE_SINK_BACKWARD] = sink_backward;
}
