/* The first unit and the last: token and position tables; final norm, logits and loss. */
#include "core/size.h"
#include "train/model_private.h"

#include <string.h>

sw_status sw_embedding_unit_forward(struct sw_model *model, const struct sw_unit_call *call) {
    return sw_embedding_forward(call->stream, model->shape.type, model->shape.batch, model->shape.seq,
                                model->config.hidden, call->tokens, tensor_at(model, call, TOKEN_TABLE),
                                tensor_at(model, call, POSITION_TABLE), call->out);
}

sw_status sw_embedding_unit_backward(struct sw_model *model, const struct sw_unit_call *call) {
    return sw_embedding_backward(call->stream, model->shape.type, model->shape.batch, model->shape.seq,
                                 model->config.hidden, call->tokens, call->grad, acc_at(model, call, TOKEN_TABLE),
                                 acc_at(model, call, POSITION_TABLE));
}

/* The table that turns hidden rows into logits, and its gradient's accumulator. A tied one is the embedding's first
 * tensor. */
static const void *output_table(const struct sw_model *model, const struct sw_unit_call *call) {
    return model->config.tied_embeddings ? call->table : tensor_at(model, call, OUTPUT_TABLE);
}

static float *output_table_acc(const struct sw_model *model, const struct sw_unit_call *call) {
    return model->config.tied_embeddings ? call->table_acc : acc_at(model, call, OUTPUT_TABLE);
}

static sw_status final_norm(struct sw_model *model, const struct sw_unit_call *call, int64_t rows, const void *in) {
    const struct work_layout *w = &model->work;
    return sw_layernorm_forward(call->stream, model->shape.type, rows, model->config.hidden,
                                (float)model->config.norm_epsilon, in, tensor_at(model, call, FINAL_NORM_SCALE),
                                tensor_at(model, call, FINAL_NORM_BIAS), area_at(call->work, w->norm_out),
                                area_at(call->work, w->norm_mean), area_at(call->work, w->norm_rstd));
}

/* Loss of a tile of rows and, in training, the gradients of its hidden rows and of the table. */
static sw_status run_tile(struct sw_model *model, const struct sw_unit_call *call, int64_t first, int64_t rows,
                          bool train) {
    const struct work_layout *w = &model->work;
    const struct head_products *products = rows == model->tile_rows ? &model->tile : &model->last_tile;
    const int64_t offset = first * model->config.hidden * sw_dtype_bytes(model->shape.type);
    const void *table = output_table(model, call);
    void *scratch = area_at(call->work, w->scratch);
    void *hidden = area_at(call->work, w->norm_out + offset);
    float *logits = area_at(call->work, w->logits), *losses = area_at(call->work, w->losses);
    void *logits_grad = train ? area_at(call->work, w->logits_grad) : NULL;
    SW_TRY(sw_gemm(call->stream, &products->logits, hidden, table, NULL, logits, scratch));
    SW_TRY(sw_cross_entropy(call->stream, model->shape.type, rows, model->config.vocab, logits,
                            call->tokens + model->rows + first, call->loss_scale, losses, logits_grad));
    for (int64_t r = 0; r < rows; r++)
        *call->loss += (double)losses[r];
    if (!train)
        return SW_OK;
    SW_TRY(sw_gemm(call->stream, &products->table_gradient, logits_grad, hidden, NULL, output_table_acc(model, call),
                   scratch));
    return sw_gemm(call->stream, &products->input_gradient, logits_grad, table, NULL,
                   area_at(call->work, w->norm_grad + offset), scratch);
}

static sw_status run_tiles(struct sw_model *model, const struct sw_unit_call *call, bool train) {
    SW_TRY(final_norm(model, call, model->rows, call->in));
    *call->loss = 0.0;
    for (int64_t first = 0; first < model->rows; first += model->tile_rows)
        SW_TRY(run_tile(model, call, first, sw_min_i64(model->tile_rows, model->rows - first), train));
    return SW_OK;
}

sw_status sw_head_train(struct sw_model *model, const struct sw_unit_call *call) {
    const struct work_layout *w = &model->work;
    SW_TRY(run_tiles(model, call, true));
    return sw_layernorm_backward(
        call->stream, model->shape.type, model->rows, model->config.hidden, area_at(call->work, w->norm_grad), call->in,
        tensor_at(model, call, FINAL_NORM_SCALE), area_at(call->work, w->norm_mean), area_at(call->work, w->norm_rstd),
        false, call->grad, acc_at(model, call, FINAL_NORM_SCALE), acc_at(model, call, FINAL_NORM_BIAS));
}

sw_status sw_head_loss(struct sw_model *model, const struct sw_unit_call *call) {
    return run_tiles(model, call, false);
}

sw_status sw_head_logits(struct sw_model *model, const struct sw_unit_call *call) {
    const struct work_layout *w = &model->work;
    const int64_t row_bytes = model->config.hidden * sw_dtype_bytes(model->shape.type);
    float *logits = area_at(call->work, w->logits);
    *call->loss = 0.0;
    SW_TRY(final_norm(model, call, 1, (const char *)call->in + call->row * row_bytes));
    SW_TRY(sw_gemm(call->stream, &model->row.logits, area_at(call->work, w->norm_out), output_table(model, call), NULL,
                   logits, area_at(call->work, w->scratch)));
    return sw_copy_to_host(call->stream, call->logits, logits, model->config.vocab * (int64_t)sizeof(float));
}
