/* One transformer block, forward and backward (GPT-2: pre-norm, fused query-key-value, biases everywhere); its parts
 * also serve the tiles of a block. */
#include "train/model_private.h"

struct saved sw_saved_of(const struct sw_model *model, const struct sw_unit_call *call) {
    const struct saved_layout *at = &model->saved[sw_tile_of(model->tiles, call->unit).kind];
    return (struct saved){
        .norm1_mean = area_at(call->saved, at->norm1_mean),
        .norm1_rstd = area_at(call->saved, at->norm1_rstd),
        .norm1_out = area_at(call->saved, at->norm1_out),
        .qkv = area_at(call->saved, at->qkv),
        .log_sum_exp = area_at(call->saved, at->log_sum_exp),
        .attention_out = area_at(call->saved, at->attention_out),
        .residual = area_at(call->saved, at->residual),
        .norm2_mean = area_at(call->saved, at->norm2_mean),
        .norm2_rstd = area_at(call->saved, at->norm2_rstd),
        .norm2_out = area_at(call->saved, at->norm2_out),
        .up = area_at(call->saved, at->up),
        .activated = area_at(call->saved, at->activated),
    };
}

static const void *weights_of(const struct sw_model *model, const struct sw_unit_call *call, int tensor) {
    return tensor_at(model, call, block_tensor_in(model, call->unit, (enum block_tensor)tensor));
}

static float *acc_of(const struct sw_model *model, const struct sw_unit_call *call, int tensor) {
    return acc_at(model, call, block_tensor_in(model, call->unit, (enum block_tensor)tensor));
}

/* The bias of a sum over tiles is in the first one. */
static bool has_bias(const struct sw_model *model, const struct sw_unit_call *call, enum block_tensor weight) {
    return (int)weight + 1 < sw_block_range(sw_tile_of(model->tiles, call->unit).kind).end;
}

sw_status sw_linear_forward(const struct sw_model *model, const struct sw_unit_call *call, enum linear_name name,
                            enum block_tensor weight, const void *x, void *y) {
    const struct linear *linear = &model->linear[name];
    const bool bias = has_bias(model, call, weight);
    return sw_gemm(call->stream, bias ? &linear->forward : &linear->forward_plain, x, weights_of(model, call, weight),
                   bias ? weights_of(model, call, (int)weight + 1) : NULL, y, area_at(call->work, model->work.scratch));
}

/* Gradients of weight and bias (the tensor after it), then of the input. dx may not be dy. */
static sw_status linear_backward(const struct sw_model *model, const struct sw_unit_call *call, enum linear_name name,
                                 enum block_tensor weight, const void *x, const void *dy, void *dx) {
    const struct linear *linear = &model->linear[name];
    void *scratch = area_at(call->work, model->work.scratch);
    SW_TRY(sw_gemm(call->stream, &linear->weight_gradient, x, dy, NULL, acc_of(model, call, weight), scratch));
    if (has_bias(model, call, weight))
        SW_TRY(sw_bias_gradient(call->stream, model->shape.type, model->rows, linear->forward.n, dy,
                                acc_of(model, call, (int)weight + 1)));
    return sw_gemm(call->stream, &linear->input_gradient, dy, weights_of(model, call, weight), NULL, dx, scratch);
}

sw_status sw_norm_forward(const struct sw_model *model, const struct sw_unit_call *call, enum block_tensor scale,
                          const void *x, void *y, float *mean, float *rstd) {
    return sw_layernorm_forward(call->stream, model->shape.type, model->rows, model->config.hidden,
                                (float)model->config.norm_epsilon, x, weights_of(model, call, scale),
                                weights_of(model, call, (int)scale + 1), y, mean, rstd);
}

sw_status sw_norm_backward(const struct sw_model *model, const struct sw_unit_call *call, enum block_tensor scale,
                           const void *dy, const void *x, const float *mean, const float *rstd) {
    return sw_layernorm_backward(call->stream, model->shape.type, model->rows, model->config.hidden, dy, x,
                                 weights_of(model, call, scale), mean, rstd, true, call->grad,
                                 acc_of(model, call, scale), acc_of(model, call, (int)scale + 1));
}

static char *third(const struct sw_model *model, char *qkv, int64_t which) {
    return qkv + which * model->attention.o_stride * sw_dtype_bytes(model->shape.type);
}

sw_status sw_attend_forward(const struct sw_model *model, const struct sw_unit_call *call, const void *n,
                            const struct saved *s) {
    SW_TRY(sw_linear_forward(model, call, LINEAR_QKV, QKV_WEIGHT, n, s->qkv));
    return sw_attention_forward(call->stream, model->shape.type, &model->attention, s->qkv, third(model, s->qkv, 1),
                                third(model, s->qkv, 2), s->attention_out, s->log_sum_exp,
                                area_at(call->work, model->work.scratch));
}

sw_status sw_attend_backward(const struct sw_model *model, const struct sw_unit_call *call, const void *n,
                             const struct saved *s, void *dn) {
    void *narrow = area_at(call->work, model->work.narrow);
    char *d_qkv = area_at(call->work, model->work.wide);
    SW_TRY(linear_backward(model, call, LINEAR_PROJECTION, PROJECTION_WEIGHT, s->attention_out, call->grad, narrow));
    SW_TRY(sw_attention_backward(call->stream, model->shape.type, &model->attention, s->qkv, third(model, s->qkv, 1),
                                 third(model, s->qkv, 2), s->attention_out, narrow, s->log_sum_exp, d_qkv,
                                 third(model, d_qkv, 1), third(model, d_qkv, 2),
                                 area_at(call->work, model->work.scratch)));
    return linear_backward(model, call, LINEAR_QKV, QKV_WEIGHT, n, d_qkv, dn);
}

sw_status sw_mlp_forward(const struct sw_model *model, const struct sw_unit_call *call, const void *n,
                         const struct saved *s) {
    SW_TRY(sw_linear_forward(model, call, LINEAR_UP, UP_WEIGHT, n, s->up));
    return sw_activation_forward(call->stream, model->shape.type, model->config.activation,
                                 model->rows * model->linear[LINEAR_UP].forward.n, s->up, s->activated);
}

sw_status sw_mlp_backward(const struct sw_model *model, const struct sw_unit_call *call, const void *n,
                          const struct saved *s, void *dn) {
    void *wide = area_at(call->work, model->work.wide);
    SW_TRY(linear_backward(model, call, LINEAR_DOWN, DOWN_WEIGHT, s->activated, call->grad, wide));
    SW_TRY(sw_activation_backward(call->stream, model->shape.type, model->config.activation,
                                  model->rows * model->linear[LINEAR_UP].forward.n, s->up, wide, wide));
    return linear_backward(model, call, LINEAR_UP, UP_WEIGHT, n, wide, dn);
}

/* Everything up to the activated inner layer: what the backward pass needs. */
static sw_status fill_saved(struct sw_model *model, const struct sw_unit_call *call, const struct saved *s) {
    void *narrow = area_at(call->work, model->work.narrow);
    SW_TRY(sw_norm_forward(model, call, NORM1_SCALE, call->in, s->norm1_out, s->norm1_mean, s->norm1_rstd));
    SW_TRY(sw_attend_forward(model, call, s->norm1_out, s));
    SW_TRY(sw_linear_forward(model, call, LINEAR_PROJECTION, PROJECTION_WEIGHT, s->attention_out, narrow));
    SW_TRY(sw_add(call->stream, model->shape.type, model->rows * model->config.hidden, call->in, narrow, s->residual));
    SW_TRY(sw_norm_forward(model, call, NORM2_SCALE, s->residual, s->norm2_out, s->norm2_mean, s->norm2_rstd));
    return sw_mlp_forward(model, call, s->norm2_out, s);
}

sw_status sw_block_forward(struct sw_model *model, const struct sw_unit_call *call) {
    const struct saved s = sw_saved_of(model, call);
    void *narrow = area_at(call->work, model->work.narrow);
    SW_TRY(fill_saved(model, call, &s));
    SW_TRY(sw_linear_forward(model, call, LINEAR_DOWN, DOWN_WEIGHT, s.activated, narrow));
    return sw_add(call->stream, model->shape.type, model->rows * model->config.hidden, s.residual, narrow, call->out);
}

sw_status sw_block_backward(struct sw_model *model, const struct sw_unit_call *call) {
    const struct saved s = sw_saved_of(model, call);
    void *narrow = area_at(call->work, model->work.narrow);
    if (call->recompute)
        SW_TRY(fill_saved(model, call, &s));
    SW_TRY(sw_mlp_backward(model, call, s.norm2_out, &s, narrow));
    SW_TRY(sw_norm_backward(model, call, NORM2_SCALE, narrow, s.residual, s.norm2_mean, s.norm2_rstd));
    SW_TRY(sw_attend_backward(model, call, s.norm1_out, &s, narrow));
    return sw_norm_backward(model, call, NORM1_SCALE, narrow, call->in, s.norm1_mean, s.norm1_rstd);
}
