/* One transformer block, forward and backward (GPT-2: pre-norm, fused query-key-value, biases everywhere). */
#include "train/model_private.h"

/* Addresses of a block's intermediates. */
struct saved {
    float *norm1_mean, *norm1_rstd, *log_sum_exp, *norm2_mean, *norm2_rstd;
    char *norm1_out, *qkv, *attention_out, *residual, *norm2_out, *up, *activated;
};

static struct saved saved_of(const struct sw_model *model, const struct sw_unit_call *call) {
    const struct saved_layout *at = &model->saved;
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

static sw_status linear_forward(const struct sw_model *model, const struct sw_unit_call *call, enum linear_name name,
                                int weight, const void *x, void *y) {
    return sw_gemm(call->stream, &model->linear[name].forward, x, tensor_at(model, call, weight),
                   tensor_at(model, call, weight + 1), y, area_at(call->work, model->work.scratch));
}

/* Gradients of weight and bias (the tensor after it), then of the input. dx may not be dy. */
static sw_status linear_backward(const struct sw_model *model, const struct sw_unit_call *call, enum linear_name name,
                                 int weight, const void *x, const void *dy, void *dx) {
    const struct linear *linear = &model->linear[name];
    void *scratch = area_at(call->work, model->work.scratch);
    SW_TRY(sw_gemm(call->stream, &linear->weight_gradient, x, dy, NULL, acc_at(model, call, weight), scratch));
    SW_TRY(sw_bias_gradient(call->stream, model->shape.type, model->rows, linear->forward.n, dy,
                            acc_at(model, call, weight + 1)));
    return sw_gemm(call->stream, &linear->input_gradient, dy, tensor_at(model, call, weight), NULL, dx, scratch);
}

static const char *third(const struct sw_model *model, const char *qkv, int64_t which) {
    return qkv + which * model->config.hidden * sw_dtype_bytes(model->shape.type);
}

/* Everything up to the activated inner layer: what the backward pass needs. */
static sw_status fill_saved(struct sw_model *model, const struct sw_unit_call *call, const struct saved *s) {
    const sw_dtype type = model->shape.type;
    const int64_t rows = model->rows, hidden = model->config.hidden;
    const float epsilon = (float)model->config.norm_epsilon;
    void *narrow = area_at(call->work, model->work.narrow);
    void *scratch = area_at(call->work, model->work.scratch);
    SW_TRY(sw_layernorm_forward(call->stream, type, rows, hidden, epsilon, call->in,
                                tensor_at(model, call, NORM1_SCALE), tensor_at(model, call, NORM1_BIAS), s->norm1_out,
                                s->norm1_mean, s->norm1_rstd));
    SW_TRY(linear_forward(model, call, LINEAR_QKV, QKV_WEIGHT, s->norm1_out, s->qkv));
    SW_TRY(sw_attention_forward(call->stream, type, &model->attention, s->qkv, third(model, s->qkv, 1),
                                third(model, s->qkv, 2), s->attention_out, s->log_sum_exp, scratch));
    SW_TRY(linear_forward(model, call, LINEAR_PROJECTION, PROJECTION_WEIGHT, s->attention_out, narrow));
    SW_TRY(sw_add(call->stream, type, rows * hidden, call->in, narrow, s->residual));
    SW_TRY(sw_layernorm_forward(call->stream, type, rows, hidden, epsilon, s->residual,
                                tensor_at(model, call, NORM2_SCALE), tensor_at(model, call, NORM2_BIAS), s->norm2_out,
                                s->norm2_mean, s->norm2_rstd));
    SW_TRY(linear_forward(model, call, LINEAR_UP, UP_WEIGHT, s->norm2_out, s->up));
    return sw_activation_forward(call->stream, type, model->config.activation, rows * model->config.ffn, s->up,
                                 s->activated);
}

sw_status sw_block_forward(struct sw_model *model, const struct sw_unit_call *call) {
    const struct saved s = saved_of(model, call);
    void *narrow = area_at(call->work, model->work.narrow);
    SW_TRY(fill_saved(model, call, &s));
    SW_TRY(linear_forward(model, call, LINEAR_DOWN, DOWN_WEIGHT, s.activated, narrow));
    return sw_add(call->stream, model->shape.type, model->rows * model->config.hidden, s.residual, narrow, call->out);
}

static sw_status mlp_backward(struct sw_model *model, const struct sw_unit_call *call, const struct saved *s) {
    const sw_dtype type = model->shape.type;
    void *wide = area_at(call->work, model->work.wide), *narrow = area_at(call->work, model->work.narrow);
    SW_TRY(linear_backward(model, call, LINEAR_DOWN, DOWN_WEIGHT, s->activated, call->grad, wide));
    SW_TRY(sw_activation_backward(call->stream, type, model->config.activation, model->rows * model->config.ffn, s->up,
                                  wide, wide));
    SW_TRY(linear_backward(model, call, LINEAR_UP, UP_WEIGHT, s->norm2_out, wide, narrow));
    return sw_layernorm_backward(call->stream, type, model->rows, model->config.hidden, narrow, s->residual,
                                 tensor_at(model, call, NORM2_SCALE), s->norm2_mean, s->norm2_rstd, true, call->grad,
                                 acc_at(model, call, NORM2_SCALE), acc_at(model, call, NORM2_BIAS));
}

static sw_status attention_backward(struct sw_model *model, const struct sw_unit_call *call, const struct saved *s) {
    const sw_dtype type = model->shape.type;
    void *narrow = area_at(call->work, model->work.narrow);
    char *d_qkv = area_at(call->work, model->work.wide);
    SW_TRY(linear_backward(model, call, LINEAR_PROJECTION, PROJECTION_WEIGHT, s->attention_out, call->grad, narrow));
    SW_TRY(sw_attention_backward(call->stream, type, &model->attention, s->qkv, third(model, s->qkv, 1),
                                 third(model, s->qkv, 2), s->attention_out, narrow, s->log_sum_exp, d_qkv,
                                 (char *)third(model, d_qkv, 1), (char *)third(model, d_qkv, 2),
                                 area_at(call->work, model->work.scratch)));
    SW_TRY(linear_backward(model, call, LINEAR_QKV, QKV_WEIGHT, s->norm1_out, d_qkv, narrow));
    return sw_layernorm_backward(call->stream, type, model->rows, model->config.hidden, narrow, call->in,
                                 tensor_at(model, call, NORM1_SCALE), s->norm1_mean, s->norm1_rstd, true, call->grad,
                                 acc_at(model, call, NORM1_SCALE), acc_at(model, call, NORM1_BIAS));
}

sw_status sw_block_backward(struct sw_model *model, const struct sw_unit_call *call) {
    const struct saved s = saved_of(model, call);
    if (call->recompute)
        SW_TRY(fill_saved(model, call, &s));
    SW_TRY(mlp_backward(model, call, &s));
    return attention_backward(model, call, &s);
}
