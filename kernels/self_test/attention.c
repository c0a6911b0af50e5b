/* Attention, with windows, documents, grouped heads and keys from before. */
#include "kernels/self_test/ops.h"

#include <math.h>

/* The tensors of a trial; rows are as long as strides say, and the last ends where its elements do. */
struct tensors {
    struct sw_attention shape;
    const void *q, *k, *v;
};

static int64_t elems_of(int64_t rows, int64_t stride, int64_t width) {
    return (rows - 1) * stride + width;
}

static struct tensors tensors_of(struct trial *trial) {
    const struct test_heads *s = trial->shape;
    const int64_t wide = s->heads * s->head_dim, narrow = s->kv_heads * s->head_dim;
    const int64_t queries = s->batch * s->seq, keys = s->batch * (s->past + s->seq);
    struct tensors t = {.shape = {.batch = s->batch,
                                  .seq = s->seq,
                                  .past = s->past,
                                  .heads = s->heads,
                                  .kv_heads = s->kv_heads,
                                  .head_dim = s->head_dim,
                                  .q_stride = wide + s->gap,
                                  .k_stride = narrow + 2 * s->gap,
                                  .v_stride = narrow + 5 * s->gap,
                                  .o_stride = wide + 3 * s->gap,
                                  .window = s->window,
                                  .scale = 1.0f / sqrtf((float)s->head_dim)}};
    t.q = trial_input(trial, "q", trial->type, elems_of(queries, t.shape.q_stride, wide), 1.5f);
    t.k = trial_input(trial, "k", trial->type, elems_of(keys, t.shape.k_stride, narrow), 1.5f);
    t.v = trial_input(trial, "v", trial->type, elems_of(keys, t.shape.v_stride, narrow), 1.0f);
    if (s->document > 0)
        t.shape.document_start = trial_operand(trial, (struct trial_operand){.name = "documents",
                                                                             .type = ELEMENT_I32,
                                                                             .elems = queries,
                                                                             .fill = FILL_DOCUMENTS,
                                                                             .first = s->seq,
                                                                             .limit = s->document});
    if (trial->pass == TRIAL_DECLARE)
        trial_needs_scratch(trial, sw_attention_scratch_bytes(trial->device, &t.shape, trial->type),
                            sw_attention_scratch_bytes(trial->reference, &t.shape, trial->type));
    return t;
}

/* The matrix instructions of a GPU take probabilities and their gradients in the tensors' type, 8 bits of bf16 and 11
 * of fp16; fp32 tensors are multiplied in fp32. */
static struct trial_tolerance rounding_of(sw_dtype type, double roundings) {
    const double one = type == SW_F32 ? 3e-5 : type == SW_BF16 ? 0x1p-8 : 0x1p-11;
    return (struct trial_tolerance){roundings * one, roundings * one};
}

sw_status trial_attention_forward(struct trial *trial) {
    const struct tensors t = tensors_of(trial);
    const struct sw_attention *s = &t.shape;
    const int64_t wide = s->heads * s->head_dim, queries = s->batch * s->seq;
    void *o =
        trial_output(trial, "o", trial->type, elems_of(queries, s->o_stride, wide), rounding_of(trial->type, 1.0));
    float *log_sum_exp =
        trial_output(trial, "log-sum-exp", SW_F32, queries * s->heads, (struct trial_tolerance){1e-5, 1e-5});
    if (trial->pass < TRIAL_REFERENCE)
        return SW_OK;
    return sw_attention_forward(trial->stream, trial->type, s, t.q, t.k, t.v, o, log_sum_exp, trial->scratch);
}

/* The backward pass rounds twice, and adds up what is off over all queries of a key. */
enum { BACKWARD_ROUNDINGS = 8 };

sw_status trial_attention_backward(struct trial *trial) {
    const struct tensors t = tensors_of(trial);
    const struct sw_attention *s = &t.shape;
    const sw_dtype type = trial->type;
    const int64_t wide = s->heads * s->head_dim, narrow = s->kv_heads * s->head_dim, rows = s->batch * s->seq;
    const struct trial_tolerance within = rounding_of(type, BACKWARD_ROUNDINGS);
    const void *d_o = trial_input(trial, "d_o", type, elems_of(rows, s->o_stride, wide), 1.0f);
    void *o = (void *)trial_input(trial, "o", type, elems_of(rows, s->o_stride, wide), 1.0f);
    float *log_sum_exp = (float *)trial_input(trial, "log-sum-exp", SW_F32, rows * s->heads, 1.0f);
    void *dq = trial_output(trial, "dq", type, elems_of(rows, s->q_stride, wide), within);
    void *dk = trial_output(trial, "dk", type, elems_of(rows, s->k_stride, narrow), within);
    void *dv = trial_output(trial, "dv", type, elems_of(rows, s->v_stride, narrow), within);
    if (trial->pass == TRIAL_DECLARE)
        return SW_OK;
    if (trial->pass == TRIAL_PREPARE)
        return sw_attention_forward(trial->stream, type, s, t.q, t.k, t.v, o, log_sum_exp, trial->scratch);
    return sw_attention_backward(trial->stream, type, s, t.q, t.k, t.v, o, d_o, log_sum_exp, dq, dk, dv,
                                 trial->scratch);
}
