/* The first and the last unit: the token and position tables; the final norm, logits and loss.
 *
 * The logits of a micro-batch never exist as a whole.
 * The head works in tiles (model_shapes.c chooses their sizes). A tile of rows with the whole vocabulary needs each
 * logit once. Where memory allows only few rows, the vocabulary is cut instead, and the logits of all tiles but the
 * last are computed a second time for the gradients: a pass over the output table and its fp32 gradient for every few
 * rows would cost more than the second product.
 *
 * Loss and gradient come from one pass in training, because keeping anything between the two would mean keeping logits.
 * Pairs of sequences (arXiv 2305.18290) need two passes over all tiles, because the loss of a pair scales the gradient
 * of each of its rows. Of the first pass only the numbers of each row are kept.
 */
#include "core/size.h"
#include "model/model_private.h"

#include <math.h>
#include <string.h>

static bool has_position_table(const struct sw_model *model) {
    return model->config.positions == SW_POSITIONS_LEARNED;
}

/* Return the rows of the token table and of the position table that a rank of a tensor group has; 0 rows: all. */
static struct sw_table_part tokens_part(const struct sw_model *model) {
    const struct sw_span rows = model->cut.ranks > 1 ? model->vocab : (struct sw_span){0};
    return (struct sw_table_part){.first = rows.first_grain, .rows = rows.grains};
}

static struct sw_table_part positions_part(const struct sw_model *model) {
    const struct sw_span rows = sw_shard(model->config.max_positions, model->cut.ranks, model->cut.rank);
    return model->cut.ranks > 1 ? (struct sw_table_part){.first = rows.first_grain, .rows = rows.grains}
                                : (struct sw_table_part){0};
}

struct gathered_layout sw_gathered_layout(const struct sw_model *model) {
    const int64_t row_bytes = model->config.hidden * sw_dtype_bytes(model->shape.type);
    const int64_t positions = sw_round_up(model->rows * row_bytes, SW_BUFFER_ALIGN_BYTES);
    const int64_t position_rows = has_position_table(model) ? model->shape.seq : 0;
    const int64_t numbers = positions + sw_round_up(position_rows * row_bytes, SW_BUFFER_ALIGN_BYTES);
    return (struct gathered_layout){
        .positions = positions, .numbers = numbers, .bytes = numbers + model->rows * (int64_t)sizeof(int32_t)};
}

/* Copies the part of one row that the chunk holds. The row is elements [from, from + hidden) of the unit. */
static void gather_row(const struct sw_model *model, const struct sw_gather_call *call, int64_t from, void *to) {
    const int64_t typed = sw_dtype_bytes(model->shape.type), end = from + model->config.hidden;
    const int64_t first = sw_max_i64(from, call->first_elem);
    const int64_t last = sw_min_i64(end, call->first_elem + call->elems);
    if (first < last)
        memcpy((char *)to + (first - from) * typed, (const char *)call->weights + (first - call->first_elem) * typed,
               (size_t)((last - first) * typed));
}

void sw_embedding_gather(struct sw_model *model, const struct sw_gather_call *call) {
    const struct gathered_layout at = sw_gathered_layout(model);
    const struct sw_tensor *tensor = model->units->unit[0].tensor;
    const int64_t hidden = model->config.hidden, row_bytes = hidden * sw_dtype_bytes(model->shape.type);
    char *out = call->out;
    for (int64_t r = 0; r < model->rows; r++)
        gather_row(model, call, tensor[TOKEN_TABLE].offset + call->tokens[r] * hidden, out + r * row_bytes);
    for (int64_t t = 0; has_position_table(model) && t < model->shape.seq; t++)
        gather_row(model, call, tensor[POSITION_TABLE].offset + t * hidden, out + at.positions + t * row_bytes);
    int32_t *numbers = area_at(out, at.numbers);
    for (int64_t r = 0; r < model->rows; r++)
        numbers[r] = (int32_t)r;
}

/* Rounds the scale to the compute type, as transformers does. */
static float embedding_scale(const struct sw_model *model) {
    if (!model->config.scaled_embedding)
        return 1.0f;
    float rounded;
    sw_dtype_store(model->shape.type, &rounded, 0, (float)sqrt((double)model->config.hidden));
    return sw_dtype_load(model->shape.type, &rounded, 0);
}

static sw_status forward_gathered(const struct sw_model *model, const struct sw_unit_call *call) {
    const struct gathered_layout at = sw_gathered_layout(model);
    const char *rows = call->rows;
    return sw_embedding_forward(call->stream, model->shape.type, model->shape.batch, model->shape.seq,
                                model->config.hidden, (const int32_t *)(const void *)(rows + at.numbers),
                                sw_token_part(model, call, TOKEN_DOCUMENT_START), rows,
                                has_position_table(model) ? rows + at.positions : NULL, call->out,
                                (struct sw_table_part){0}, (struct sw_table_part){0}, embedding_scale(model));
}

/* Returns the rows of the position table that the unit has, counted from the first position of this pass. */
static struct sw_table_part positions_from(const struct sw_model *model, const struct sw_unit_call *call) {
    struct sw_table_part part = positions_part(model);
    part.rows = part.rows > 0 ? part.rows : model->config.max_positions;
    part.first -= call->past;
    return part;
}

sw_status sw_embedding_unit_forward(struct sw_model *model, const struct sw_unit_call *call) {
    if (call->rows != NULL)
        return forward_gathered(model, call);
    return sw_embedding_forward(call->stream, model->shape.type, model->shape.batch, model->shape.seq,
                                model->config.hidden, call->tokens, sw_token_part(model, call, TOKEN_DOCUMENT_START),
                                tensor_at(model, call, TOKEN_TABLE),
                                has_position_table(model) ? tensor_at(model, call, POSITION_TABLE) : NULL, call->out,
                                tokens_part(model), positions_from(model, call), embedding_scale(model));
}

/* A plan has no such pass of a frozen embedding; only a measurement asks for it, and finds it free. */
sw_status sw_embedding_unit_backward(struct sw_model *model, const struct sw_unit_call *call) {
    float *table_acc = acc_at(model, call, TOKEN_TABLE);
    if (table_acc == NULL)
        return SW_OK;
    return sw_embedding_backward(call->stream, model->shape.type, model->shape.batch, model->shape.seq,
                                 model->config.hidden, call->tokens, sw_token_part(model, call, TOKEN_DOCUMENT_START),
                                 call->grad, table_acc,
                                 has_position_table(model) ? acc_at(model, call, POSITION_TABLE) : NULL,
                                 tokens_part(model), positions_part(model), embedding_scale(model));
}

/* Tensors of the head: the final norm's scale; its bias, if it has one; the output table, unless it is tied. */
enum { FINAL_NORM_SCALE = 0, FINAL_NORM_BIAS = 1 };

static bool has_norm_bias(const struct sw_model *model) {
    return model->config.norm == SW_NORM_LAYER;
}

static int own_table(const struct sw_model *model) {
    return has_norm_bias(model) ? FINAL_NORM_BIAS + 1 : FINAL_NORM_SCALE + 1;
}

/* Return the output table, which turns hidden rows into logits, and the accumulator of its gradient. A tied table is
 * the embedding's first tensor. */
static const void *output_table(const struct sw_model *model, const struct sw_unit_call *call) {
    return model->config.tied_embeddings ? call->table : tensor_at(model, call, own_table(model));
}

static float *output_table_acc(const struct sw_model *model, const struct sw_unit_call *call) {
    return model->config.tied_embeddings ? call->table_acc : acc_at(model, call, own_table(model));
}

struct sw_norm_call sw_final_norm_call(const struct sw_model *model, const struct sw_unit_call *call, int64_t rows) {
    return (struct sw_norm_call){
        .rows = rows,
        .scale = tensor_at(model, call, FINAL_NORM_SCALE),
        .bias = has_norm_bias(model) ? tensor_at(model, call, FINAL_NORM_BIAS) : NULL,
        .mean = area_at(call->work, model->work.norm_mean),
        .rstd = area_at(call->work, model->work.norm_rstd),
    };
}

void sw_final_norm_accumulate(const struct sw_model *model, const struct sw_unit_call *call,
                              struct sw_norm_call *norm) {
    norm->scale_acc = norm_acc_at(model, call, FINAL_NORM_SCALE);
    norm->bias_acc = has_norm_bias(model) ? norm_acc_at(model, call, FINAL_NORM_BIAS) : NULL;
}

sw_status sw_final_norm(struct sw_model *model, const struct sw_unit_call *call, int64_t rows, const void *in) {
    const struct sw_norm_call norm = sw_final_norm_call(model, call, rows);
    return sw_model_norm_forward(model, call->stream, &norm, in, area_at(call->work, model->work.norm_out));
}

struct head_tile sw_head_tile_at(const struct sw_model *model, const struct sw_unit_call *call, int64_t first,
                                 bool train) {
    const struct work_layout *w = &model->work;
    const int64_t offset = first * model->config.hidden * sw_dtype_bytes(model->shape.type);
    const int64_t kept = sw_has_pairs(model) ? first * (int64_t)sizeof(float) : 0;
    return (struct head_tile){
        .first = first,
        .rows = sw_min_i64(model->head.rows, model->rows - first),
        .targets = sw_token_part(model, call, TOKEN_TARGETS) + first,
        .hidden =
            call->normed != NULL ? (const char *)call->normed + offset : area_at(call->work, w->norm_out + offset),
        .norm_grad = area_at(call->work, w->norm_grad + offset),
        .scratch = area_at(call->work, w->scratch),
        .table = output_table(model, call),
        .table_acc = train ? output_table_acc(model, call) : NULL,
        .logits = area_at(call->work, w->logits),
        .losses = area_at(call->work, w->losses + kept),
        .row_scale = sw_has_pairs(model) ? area_at(call->work, w->row_scale + kept) : NULL,
        .largest = area_at(call->work, w->largest + kept),
        .sums = area_at(call->work, w->sums + kept),
        .target_logits = area_at(call->work, w->target_logits + kept),
        .hidden_grad = area_at(call->work, w->hidden_grad),
        .logits_grad = train ? area_at(call->work, w->logits_grad) : NULL,
    };
}

sw_status sw_head_tile_logits(const struct sw_model *model, const struct sw_unit_call *call, const struct head_tile *t,
                              int64_t col, int64_t cols) {
    const struct head_products products = sw_head_products(model, t->rows, cols);
    const int64_t offset = col * model->config.hidden * sw_dtype_bytes(model->shape.type);
    return sw_gemm(call->stream, &products.logits, t->hidden, t->table + offset, NULL, t->logits, t->scratch);
}

sw_status sw_head_tile_gradients(const struct sw_model *model, const struct sw_unit_call *call,
                                 const struct head_tile *t, int64_t col, int64_t cols) {
    const struct head_products products = sw_head_products(model, t->rows, cols);
    const int64_t at = col * model->config.hidden;
    if (t->table_acc != NULL)
        SW_TRY(sw_gemm(call->stream, &products.table_gradient, t->logits_grad, t->hidden, NULL, t->table_acc + at,
                       t->scratch));
    return sw_gemm(call->stream, &products.input_gradient, t->logits_grad,
                   t->table + at * sw_dtype_bytes(model->shape.type), NULL,
                   model->head.cut ? (void *)t->hidden_grad : t->norm_grad, t->scratch);
}

/* Returns a part of a tile: it begins at row `first` and has as many rows as fit the logits buffer. */
static struct head_tile part_of(const struct sw_model *model, const struct head_tile *t, int64_t first) {
    const int64_t typed = sw_dtype_bytes(model->shape.type);
    struct head_tile part = *t;
    part.rows = sw_min_i64(model->head.logits_rows, t->rows - first);
    part.targets += first;
    part.hidden = (const char *)t->hidden + first * model->config.hidden * typed;
    part.losses += first;
    part.row_scale = t->row_scale != NULL ? t->row_scale + first : NULL;
    part.logits_grad = area_at(t->logits_grad, first * sw_head_stride(model, model->config.vocab) * typed);
    return part;
}

static sw_status run_whole_rows(const struct sw_model *model, const struct sw_unit_call *call,
                                const struct head_tile *t, bool train) {
    const int64_t vocab = model->config.vocab;
    for (int64_t first = 0; first < t->rows; first += model->head.logits_rows) {
        const struct head_tile part = part_of(model, t, first);
        SW_TRY(sw_head_tile_logits(model, call, &part, 0, vocab));
        SW_TRY(sw_cross_entropy(call->stream, .type = model->shape.type, .rows = part.rows, .vocab = vocab,
                                .stride = sw_head_stride(model, vocab), .scale = call->loss_scale,
                                .logits = part.logits, .targets = part.targets, .loss = part.losses,
                                .d_logits = part.logits_grad, .row_scale = part.row_scale));
    }
    return train ? sw_head_tile_gradients(model, call, t, 0, vocab) : SW_OK;
}

int64_t sw_head_cols_at(const struct sw_model *model, int64_t col) {
    return sw_min_i64(model->head.cols, model->vocab.grains - col);
}

/* Walks from the last tile of the vocabulary to the first: the logits of the last are still in memory, unless the rows
 * are pairs, and those of the others are computed again. */
static sw_status run_gradients_of_cut_rows(const struct sw_model *model, const struct sw_unit_call *call,
                                           const struct head_tile *t) {
    const int64_t elems = t->rows * model->config.hidden;
    const int64_t last = (sw_div_up(model->vocab.grains, model->head.cols) - 1) * model->head.cols;
    SW_TRY(sw_zero(call->stream, t->hidden_grad, elems * (int64_t)sizeof(float)));
    for (int64_t col = last; col >= 0; col -= model->head.cols) {
        const int64_t cols = sw_head_cols_at(model, col);
        if (col < last || sw_has_pairs(model))
            SW_TRY(sw_head_tile_logits(model, call, t, col, cols));
        SW_TRY(sw_cross_entropy_tile(call->stream, .type = model->shape.type, .rows = t->rows, .tile_cols = cols,
                                     .stride = sw_head_stride(model, cols), .first_col = col, .scale = call->loss_scale,
                                     .logits = t->logits, .targets = t->targets, .max = t->largest, .sum = t->sums,
                                     .target_logit = t->target_logits, .d_logits = t->logits_grad,
                                     .row_scale = t->row_scale));
        SW_TRY(sw_head_tile_gradients(model, call, t, col, cols));
    }
    return sw_cast_from_f32(call->stream, .type = model->shape.type, .elems = elems, .from = t->hidden_grad,
                            .to = t->norm_grad);
}

static sw_status run_cut_rows(const struct sw_model *model, const struct sw_unit_call *call, const struct head_tile *t,
                              bool train) {
    for (int64_t col = 0; col < model->vocab.grains; col += model->head.cols) {
        const int64_t cols = sw_head_cols_at(model, col);
        SW_TRY(sw_head_tile_logits(model, call, t, col, cols));
        SW_TRY(sw_softmax_partial(call->stream, .rows = t->rows, .tile_cols = cols,
                                  .stride = sw_head_stride(model, cols), .first_col = col, .logits = t->logits,
                                  .targets = t->targets, .max = t->largest, .sum = t->sums,
                                  .target_logit = t->target_logits));
    }
    SW_TRY(sw_cross_entropy_tile(call->stream, .type = model->shape.type, .rows = t->rows, .tile_cols = 1, .stride = 1,
                                 .targets = t->targets, .max = t->largest, .sum = t->sums,
                                 .target_logit = t->target_logits, .loss = t->losses));
    return train ? run_gradients_of_cut_rows(model, call, t) : SW_OK;
}

/* Computes the loss of every row and, in training, the gradients of the hidden rows and of the table. */
static sw_status run_tiles(struct sw_model *model, const struct sw_unit_call *call, bool train) {
    double *loss = area_at(call->work, model->work.loss);
    SW_TRY(sw_final_norm(model, call, model->rows, call->in));
    SW_TRY(sw_zero(call->stream, loss, sizeof *loss));
    for (int64_t first = 0; first < model->rows; first += model->head.rows) {
        const struct head_tile t = sw_head_tile_at(model, call, first, train);
        SW_TRY(model->head.cut ? run_cut_rows(model, call, &t, train) : run_whole_rows(model, call, &t, train));
        SW_TRY(sw_sum_losses(call->stream, t.rows, t.losses, loss));
    }
    return sw_copy_to_host(call->stream, call->loss, loss, sizeof *loss);
}

sw_status sw_head_preference(const struct sw_model *model, const struct sw_unit_call *call, bool train) {
    const struct work_layout *w = &model->work;
    const void *reference = (const char *)call->tokens + sw_reference_offset(model);
    return sw_preference(call->stream, .pairs = model->shape.batch / 2, .seq = model->shape.seq,
                         .beta = model->shape.dpo_beta, .losses = area_at(call->work, w->losses),
                         .reference = reference, .sums = area_at(call->work, w->loss),
                         .row_scale = train ? area_at(call->work, w->row_scale) : NULL);
}

sw_status sw_head_pair_losses(const struct sw_model *model, const struct sw_unit_call *call) {
    return sw_copy_to_host(call->stream, call->loss, area_at(call->work, model->work.loss),
                           model->shape.batch * (int64_t)sizeof(double));
}

/* Computes the loss of every row, then the sums of all sequences and the scales of their rows, and in training the
 * gradients with these. */
static sw_status run_pairs(struct sw_model *model, const struct sw_unit_call *call, bool train) {
    SW_TRY(sw_final_norm(model, call, model->rows, call->in));
    for (int64_t first = 0; first < model->rows; first += model->head.rows) {
        const struct head_tile t = sw_head_tile_at(model, call, first, false);
        SW_TRY(model->head.cut ? run_cut_rows(model, call, &t, false) : run_whole_rows(model, call, &t, false));
    }
    SW_TRY(sw_head_preference(model, call, train));
    for (int64_t first = 0; train && first < model->rows; first += model->head.rows) {
        const struct head_tile t = sw_head_tile_at(model, call, first, true);
        SW_TRY(model->head.cut ? run_gradients_of_cut_rows(model, call, &t) : run_whole_rows(model, call, &t, true));
    }
    return sw_head_pair_losses(model, call);
}

static sw_status run_head(struct sw_model *model, const struct sw_unit_call *call, bool train) {
    return sw_has_pairs(model) ? run_pairs(model, call, train) : run_tiles(model, call, train);
}

sw_status sw_head_train(struct sw_model *model, const struct sw_unit_call *call) {
    struct sw_norm_call norm = sw_final_norm_call(model, call, model->rows);
    sw_final_norm_accumulate(model, call, &norm);
    SW_TRY(run_head(model, call, true));
    return sw_model_norm_backward(model, call->stream, &norm, area_at(call->work, model->work.norm_grad), call->in,
                                  false, call->grad);
}

sw_status sw_head_loss(struct sw_model *model, const struct sw_unit_call *call) {
    return run_head(model, call, false);
}

sw_status sw_head_logits(struct sw_model *model, const struct sw_unit_call *call) {
    const struct work_layout *w = &model->work;
    const int64_t row_bytes = model->config.hidden * sw_dtype_bytes(model->shape.type);
    const struct head_products products = sw_head_products(model, 1, model->vocab.grains);
    float *logits = area_at(call->work, w->logits);
    const void *hidden = area_at(call->work, w->norm_out);
    if (call->normed != NULL)
        hidden = (const char *)call->normed + call->row * row_bytes;
    else
        SW_TRY(sw_final_norm(model, call, 1, (const char *)call->in + call->row * row_bytes));
    SW_TRY(sw_gemm(call->stream, &products.logits, hidden, output_table(model, call), NULL, logits,
                   area_at(call->work, w->scratch)));
    return sw_copy_to_host(call->stream, call->logits + model->vocab.first_grain, logits,
                           model->vocab.grains * (int64_t)sizeof(float));
}
