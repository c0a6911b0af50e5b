/* The comparisons of the ops that gpt-oss has and no other family. */
#include "kernels/self_test/cases.h"

#include "core/size.h"

#include <math.h>

static const struct trial_tolerance CURVES = {4e-6, 4e-6}, GRADIENTS = {4e-6, 2e-5};
enum { EXPERTS = 5, CHOSEN = 2 };

/* The log-sum-exp that the first op leaves is drawn for the second, so that neither depends on the other. */
sw_status trial_sinks(struct trial *trial) {
    const struct test_heads *s = trial->shape;
    const int64_t rows = s->batch * s->seq, wide = s->heads * s->head_dim;
    const struct sw_attention shape = {.batch = s->batch,
                                       .seq = s->seq,
                                       .heads = s->heads,
                                       .kv_heads = s->kv_heads,
                                       .head_dim = s->head_dim,
                                       .o_stride = wide + s->gap};
    const int64_t elems = (rows - 1) * shape.o_stride + wide;
    const double sum = 1e-5 * sqrt((double)rows * (double)s->head_dim);
    const void *sink = trial_input(trial, "sinks", trial->type, s->heads, 2.0f);
    const void *result = trial_input(trial, "o", trial->type, elems, 1.0f);
    const void *d_o = trial_input(trial, "d_o", trial->type, elems, 1.0f);
    const float *before = trial_input(trial, "log-sum-exp", SW_F32, rows * s->heads, 1.0f);
    void *o = trial_sum(trial, "o with sinks", trial->type, elems, CURVES);
    float *lse = trial_sum(trial, "log-sum-exp with sinks", SW_F32, rows * s->heads, CURVES);
    float *acc = trial_sum(trial, "the sinks' gradient", SW_F32, s->heads, (struct trial_tolerance){1e-5, sum});
    if (trial->pass < TRIAL_REFERENCE)
        return SW_OK;
    SW_TRY(sw_sink_forward(trial->stream, trial->type, &shape, sink, o, lse));
    return sw_sink_backward(trial->stream, trial->type, &shape, sink, result, d_o, before, acc);
}

/* Some gates and values are beyond their bounds. */
sw_status trial_clamped(struct trial *trial) {
    const struct test_rows *s = trial->shape;
    const void *x = trial_input(trial, "x", trial->type, 2 * s->rows * s->cols, 4.0f);
    const void *dy = trial_input(trial, "dy", trial->type, s->rows * s->cols, 1.0f);
    void *y = trial_output(trial, "y", trial->type, s->rows * s->cols, CURVES);
    void *dx = trial_output(trial, "dx", trial->type, 2 * s->rows * s->cols, GRADIENTS);
    if (trial->pass < TRIAL_REFERENCE)
        return SW_OK;
    SW_TRY(sw_clamped_forward(trial->stream, trial->type, s->rows, s->cols, x, y, SW_ALL_ROWS));
    return sw_clamped_backward(trial->stream, trial->type, s->rows, s->cols, x, dy, dx, SW_ALL_ROWS);
}

static int32_t *index_output(struct trial *trial, const char *name, int64_t elems) {
    return trial_operand(
        trial, (struct trial_operand){.name = name, .type = ELEMENT_I32, .elems = elems, .compare = COMPARE_BITS});
}

sw_status trial_expert_biases(struct trial *trial) {
    const struct test_rows *s = trial->shape;
    const int64_t pairs = s->rows * CHOSEN;
    const int32_t *expert = trial_operand(
        trial, (struct trial_operand){
                   .name = "experts", .type = ELEMENT_I32, .elems = pairs, .fill = FILL_INDICES, .limit = EXPERTS});
    int32_t *offset = index_output(trial, "the experts' first places", EXPERTS + 1);
    int32_t *source = index_output(trial, "the places' pairs", pairs);
    int32_t *place = index_output(trial, "the pairs' places", pairs);
    const float *weight = trial_input(trial, "weights", SW_F32, pairs, 1.0f);
    const void *bias = trial_input(trial, "biases", trial->type, EXPERTS * s->cols, 1.0f);
    const void *dy = trial_input(trial, "dy", trial->type, pairs * s->cols, 1.0f);
    const struct trial_tolerance along_rows = {1e-5, 2e-6 * sqrt((double)pairs)},
                                 along_cols = {1e-5, 2e-6 * sqrt((double)s->cols)};
    void *y = trial_sum(trial, "rows with biases", trial->type, pairs * s->cols, CURVES);
    float *acc = trial_sum(trial, "the biases' gradient", SW_F32, EXPERTS * s->cols, along_rows);
    float *d_weight = trial_sum(trial, "the weights' gradient", SW_F32, pairs, along_cols);
    if (trial->pass < TRIAL_REFERENCE)
        return SW_OK;
    SW_TRY(sw_order_by_expert(trial->stream, s->rows, EXPERTS, CHOSEN, expert, offset, source, place));
    SW_TRY(sw_expert_bias_forward(trial->stream, .type = trial->type, .experts = EXPERTS, .rows = pairs,
                                  .cols = s->cols, .bias_stride = s->cols, .offset = offset, .source = source,
                                  .weight = weight, .bias = bias, .y = y));
    return sw_expert_bias_backward(trial->stream, .type = trial->type, .experts = EXPERTS, .rows = pairs,
                                   .cols = s->cols, .bias_stride = s->cols, .offset = offset, .source = source,
                                   .weight = weight, .bias = bias, .dy = dy, .acc = acc, .d_weight = d_weight);
}
