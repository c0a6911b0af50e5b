/* Computes the part that a rank of a tensor group has (Shoeybi et al., arXiv 1909.08053) of a half of a block, in one
 * tile or several, of the embedding and of the head. The plan adds up the parts between these calls; those of one
 * rank's tiles are added up here. */
#include "core/size.h"
#include "model/model_private.h"

/* Floats of a row in a record of the softmax: the largest logit, the sum of exponentials, the target's logit. */
enum { SOFTMAX_FLOATS = 3, SOFTMAX_ALIGN_BYTES = 64 };

int64_t sw_softmax_bytes(const struct sw_model *model) {
    return sw_round_up(SOFTMAX_FLOATS * model->rows * (int64_t)sizeof(float), SOFTMAX_ALIGN_BYTES);
}

static bool is_mlp(const struct sw_model *model, const struct sw_unit_call *call) {
    const enum block_kind kind = sw_tile_of(&model->cut, call->unit).kind;
    return kind == MLP_FIRST || kind == MLP_NEXT;
}

static int64_t row_bytes(const struct sw_model *model) {
    return model->config.hidden * sw_dtype_bytes(model->shape.type);
}

/* Computes the last product of the first tile of a rank's part of a half. The first rank's part has the bias, and each
 * has its rows of the residual, of which it need not have others. */
static sw_status begin_half(const struct sw_model *model, const struct sw_unit_call *call, enum linear_name name,
                            enum sw_block_tensor weight, const void *x) {
    char *own_out = (char *)call->out + call->own_rows.first_grain * row_bytes(model);
    const void *matrix;
    if (model->cut.rank == 0) {
        SW_TRY(sw_linear_forward(model, call, name, weight, x, NULL, call->out));
    } else {
        SW_TRY(sw_block_matrix(model, call, weight, &matrix));
        SW_TRY(sw_gemm(call->stream, &model->linear[name].forward_plain, x, matrix, NULL, call->out,
                       area_at(call->work, model->work.scratch)));
    }
    return sw_add(call->stream, .type = model->shape.type, .elems = call->own_rows.grains * model->config.hidden,
                  .a = own_out, .b = call->own_in, .y = own_out);
}

/* Computes a tile's last product, and adds it to what the rank's tiles before have. */
static sw_status add_half(const struct sw_model *model, const struct sw_unit_call *call, enum linear_name name,
                          enum sw_block_tensor weight, const void *x) {
    if (sw_tile_of(&model->cut, call->unit).first)
        return begin_half(model, call, name, weight, x);
    const void *matrix;
    SW_TRY(sw_block_matrix(model, call, weight, &matrix));
    return sw_gemm_add(call->stream, &model->linear[name].forward_continued, x, matrix, NULL, call->in, call->out,
                       area_at(call->work, model->work.scratch));
}

/* Tells whether the unit has the norm of its half: its first tile. */
static bool has_norm(const struct sw_model *model, const struct sw_unit_call *call) {
    return sw_tile_of(&model->cut, call->unit).first;
}

/* Returns a half's normalised input, which the plan has, which the first tile hands on, or which fill_norm computes.
 * Not for calls with sequence parallelism that do not read it. */
static const void *normed_of(const struct sw_model *model, const struct sw_unit_call *call, const struct saved *s) {
    if (call->normed != NULL)
        return call->normed;
    if (!has_norm(model, call))
        return (const char *)call->in + sw_norm_offset(model);
    return is_mlp(model, call) ? s->norm2_out : s->norm1_out;
}

static sw_status fill_norm(const struct sw_model *model, const struct sw_unit_call *call, const struct saved *s) {
    if (call->in == NULL || !has_norm(model, call))
        return SW_OK;
    return is_mlp(model, call)
               ? sw_norm_forward(model, call, NORM2_SCALE, call->in, s->norm2_out, s->norm2_mean, s->norm2_rstd)
               : sw_norm_forward(model, call, NORM1_SCALE, call->in, s->norm1_out, s->norm1_mean, s->norm1_rstd);
}

/* Hands the normalised input on to the half's next tile, if there is one. */
static sw_status hand_on(const struct sw_model *model, const struct sw_unit_call *call, const void *n) {
    return sw_tile_of(&model->cut, call->unit).last
               ? SW_OK
               : sw_copy_on_device(call->stream, area_at(call->out, sw_norm_offset(model)), n,
                                   model->rows * row_bytes(model));
}

sw_status sw_rank_forward(struct sw_model *model, const struct sw_unit_call *call) {
    const struct saved s = sw_saved_of(model, call);
    const void *n = normed_of(model, call, &s);
    SW_TRY(fill_norm(model, call, &s));
    if (is_mlp(model, call)) {
        SW_TRY(sw_mlp_forward(model, call, n, &s));
        SW_TRY(add_half(model, call, LINEAR_DOWN, DOWN_WEIGHT, s.activated));
    } else {
        SW_TRY(sw_attend_forward(model, call, n, &s));
        SW_TRY(add_half(model, call, LINEAR_PROJECTION, PROJECTION_WEIGHT, s.attention_out));
    }
    return hand_on(model, call, n);
}

sw_status sw_rank_recompute(struct sw_model *model, const struct sw_unit_call *call) {
    const struct saved s = sw_saved_of(model, call);
    const void *n = normed_of(model, call, &s);
    const bool mlp = is_mlp(model, call);
    SW_TRY(fill_norm(model, call, &s));
    if (call->recompute == SW_RECOMPUTE_DERIVED)
        return mlp ? SW_OK : sw_attend_derive(model, call, &s);
    return mlp ? sw_linear_forward(model, call, LINEAR_UP, UP_WEIGHT, n, NULL, s.up)
               : sw_attend_forward(model, call, n, &s);
}

/* The backward pass of a half in tiles begins with the last tile. The gradients of its tiles at the norm add up beside
 * the gradient at its output, and the first tile, which has the norm, leaves their sum in its place. */
sw_status sw_rank_backward(struct sw_model *model, const struct sw_unit_call *call) {
    const struct saved s = sw_saved_of(model, call);
    const struct sw_tile tile = sw_tile_of(&model->cut, call->unit);
    if (model->cut.tiles == 1)
        return is_mlp(model, call) ? sw_mlp_input_gradient(model, call, &s, call->product_grad, call->norm_grad)
                                   : sw_attend_input_gradient(model, call, &s, call->product_grad, call->norm_grad);
    const void *n = normed_of(model, call, &s);
    void *sum = area_at(call->grad, sw_norm_offset(model)), *out = tile.first ? call->norm_grad : sum;
    void *dn = tile.first || tile.last ? out : area_at(call->work, model->work.narrow);
    SW_TRY(is_mlp(model, call) ? sw_mlp_backward(model, call, n, &s, dn) : sw_attend_backward(model, call, n, &s, dn));
    return tile.last ? SW_OK
                     : sw_add(call->stream, .type = model->shape.type, .elems = model->rows * model->config.hidden,
                              .a = sum, .b = dn, .y = out);
}

sw_status sw_rank_last_product(struct sw_model *model, const struct sw_unit_call *call) {
    const struct saved s = sw_saved_of(model, call);
    return is_mlp(model, call) ? sw_mlp_last_product(model, call, &s) : sw_attend_last_product(model, call, &s);
}

sw_status sw_rank_first_product(struct sw_model *model, const struct sw_unit_call *call) {
    const struct saved s = sw_saved_of(model, call);
    const void *n = normed_of(model, call, &s);
    return is_mlp(model, call) ? sw_mlp_first_product(model, call, n, call->product_grad)
                               : sw_attend_first_product(model, call, n, call->product_grad);
}

/* The norm of a block's half, or the final norm. */
struct own_norm {
    bool head;
    enum sw_block_tensor scale; /* of a half */
    struct sw_norm_call call;
};

static struct own_norm own_norm_of(const struct sw_model *model, const struct sw_unit_call *call) {
    struct own_norm norm = {.head = call->unit + 1 == model->units->count};
    norm.scale = !norm.head && is_mlp(model, call) ? NORM2_SCALE : NORM1_SCALE;
    norm.call = norm.head ? sw_final_norm_call(model, call, call->own_rows.grains)
                          : sw_block_norm_call(model, call, norm.scale);
    norm.call.rows = call->own_rows.grains;
    norm.call.mean = area_at(call->work, model->work.norm_mean);
    norm.call.rstd = area_at(call->work, model->work.norm_rstd);
    return norm;
}

sw_status sw_rank_norm_forward(struct sw_model *model, const struct sw_unit_call *call) {
    const struct own_norm norm = own_norm_of(model, call);
    return sw_model_norm_forward(model, call->stream, &norm.call, call->own_in,
                                 (char *)call->out + call->own_rows.first_grain * row_bytes(model));
}

/* Statistics of the rank's rows are computed again, from the input: what the backward pass computed may be gone. */
sw_status sw_rank_norm_backward(struct sw_model *model, const struct sw_unit_call *call) {
    const int64_t offset = call->own_rows.first_grain * row_bytes(model);
    struct own_norm norm = own_norm_of(model, call);
    SW_TRY(sw_model_norm_forward(model, call->stream, &norm.call, call->own_in,
                                 area_at(call->work, model->work.norm_out)));
    if (norm.head)
        sw_final_norm_accumulate(model, call, &norm.call);
    else
        sw_block_norm_accumulate(model, call, norm.scale, &norm.call);
    return sw_model_norm_backward(model, call->stream, &norm.call, (const char *)call->norm_grad + offset, call->own_in,
                                  !norm.head, call->own_grad);
}

/* Takes one tile of rows through this rank's part of the vocabulary, up to its record of the softmax. */
static sw_status note_softmax(const struct sw_model *model, const struct sw_unit_call *call,
                              const struct head_tile *t) {
    float *record = area_at(call->softmax, model->cut.rank * sw_softmax_bytes(model));
    float *largest = record + t->first, *sums = largest + model->rows, *target_logits = sums + model->rows;
    const int64_t begin = model->vocab.first_grain;
    for (int64_t col = 0; col < model->vocab.grains; col += model->head.cols) {
        const int64_t cols = sw_head_cols_at(model, col);
        SW_TRY(sw_head_tile_logits(model, call, t, col, cols));
        SW_TRY(sw_softmax_partial(call->stream, .rows = t->rows, .tile_cols = cols,
                                  .stride = sw_head_stride(model, cols), .first_col = begin + col, .begin_col = begin,
                                  .logits = t->logits, .targets = t->targets, .max = largest, .sum = sums,
                                  .target_logit = target_logits));
    }
    return SW_OK;
}

sw_status sw_rank_head_logits(struct sw_model *model, const struct sw_unit_call *call) {
    if (call->normed == NULL)
        SW_TRY(sw_final_norm(model, call, model->rows, call->in));
    for (int64_t first = 0; first < model->rows; first += model->head.rows) {
        const struct head_tile t = sw_head_tile_at(model, call, first, false);
        SW_TRY(note_softmax(model, call, &t));
    }
    return SW_OK;
}

/* Combines the records of all ranks for a tile of rows, and computes the losses of these. */
static sw_status combine(const struct sw_model *model, const struct sw_unit_call *call, const struct head_tile *t) {
    SW_TRY(sw_softmax_combine(call->stream, .rows = t->rows, .parts = model->cut.ranks,
                              .part_stride = sw_softmax_bytes(model) / (int64_t)sizeof(float),
                              .row_stride = model->rows, .part = (const float *)call->softmax + t->first,
                              .max = t->largest, .sum = t->sums, .target_logit = t->target_logits));
    return sw_cross_entropy_tile(call->stream, .type = model->shape.type, .rows = t->rows, .tile_cols = 1, .stride = 1,
                                 .targets = t->targets, .max = t->largest, .sum = t->sums,
                                 .target_logit = t->target_logits, .loss = t->losses);
}

/* Computes the gradients of a tile of rows from this rank's part of the logits, which are computed again. */
static sw_status tile_backward(const struct sw_model *model, const struct sw_unit_call *call,
                               const struct head_tile *t) {
    const int64_t elems = t->rows * model->config.hidden;
    SW_TRY(sw_zero(call->stream, t->hidden_grad, elems * (int64_t)sizeof(float)));
    for (int64_t col = 0; col < model->vocab.grains; col += model->head.cols) {
        const int64_t cols = sw_head_cols_at(model, col);
        SW_TRY(sw_head_tile_logits(model, call, t, col, cols));
        SW_TRY(sw_cross_entropy_tile(call->stream, .type = model->shape.type, .rows = t->rows, .tile_cols = cols,
                                     .stride = sw_head_stride(model, cols), .first_col = model->vocab.first_grain + col,
                                     .scale = call->loss_scale, .logits = t->logits, .targets = t->targets,
                                     .max = t->largest, .sum = t->sums, .target_logit = t->target_logits,
                                     .d_logits = t->logits_grad));
        SW_TRY(sw_head_tile_gradients(model, call, t, col, cols));
    }
    return sw_cast_from_f32(call->stream, model->shape.type, elems, t->hidden_grad,
                            area_at(call->norm_grad, t->first * row_bytes(model)));
}

static sw_status run_head(struct sw_model *model, const struct sw_unit_call *call, bool train) {
    double *loss = area_at(call->work, model->work.loss);
    if (train && call->normed == NULL)
        SW_TRY(sw_final_norm(model, call, model->rows, call->in));
    SW_TRY(sw_zero(call->stream, loss, sizeof *loss));
    for (int64_t first = 0; first < model->rows; first += model->head.rows) {
        const struct head_tile t = sw_head_tile_at(model, call, first, train);
        SW_TRY(combine(model, call, &t));
        if (train)
            SW_TRY(tile_backward(model, call, &t));
        SW_TRY(sw_sum_losses(call->stream, t.rows, t.losses, loss));
    }
    return sw_copy_to_host(call->stream, call->loss, loss, sizeof *loss);
}

sw_status sw_rank_head_train(struct sw_model *model, const struct sw_unit_call *call) {
    return run_head(model, call, true);
}

sw_status sw_rank_head_loss(struct sw_model *model, const struct sw_unit_call *call) {
    return run_head(model, call, false);
}
