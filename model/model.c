/* A model on a device: the list of its matrix products, the share of a rank of a tensor group, creation, and the
 * callbacks that the engine runs. block.c and embedding_head.c have the arithmetic of one rank. */
#include "model/model.h"

#include "core/rng.h"
#include "core/size.h"
#include "model/model_private.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Lists the matrix products of a training step, from the products that the model has prepared. */

enum pass { FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT };
static const char *const passes[] = {
    [FORWARD] = "forward", [INPUT_GRADIENT] = "input gradient", [WEIGHT_GRADIENT] = "weight gradient"};

/* Adds a product and its two gradients to the list. Returns the new count. */
static int add(struct sw_model_product *out, int count, const char *layer, const struct sw_gemm shapes[3],
               int64_t times) {
    for (int i = FORWARD; i <= WEIGHT_GRADIENT; i++)
        out[count++] = (struct sw_model_product){.layer = layer, .pass = passes[i], .shape = shapes[i], .times = times};
    return count;
}

/* The sizes of tiles along one side of the head, and how many tiles have each size: the last tile may be smaller. */
struct sizes {
    int64_t size[2], times[2];
    int count;
};

static struct sizes cut(int64_t all, int64_t tile) {
    struct sizes sizes = {.count = 0};
    if (all >= tile)
        sizes = (struct sizes){.size = {tile}, .times = {all / tile}, .count = 1};
    if (all % tile != 0) {
        sizes.size[sizes.count] = all % tile;
        sizes.times[sizes.count++] = 1;
    }
    return sizes;
}

/* Adds a product of the head, or counts it with an equal one already in the list. Returns the new count. */
static int add_of_head(struct sw_model_product *out, int count, enum pass pass, struct sw_gemm shape, int64_t times) {
    const struct sw_model_product added = {
        .layer = "head", .pass = passes[pass], .head = true, .shape = shape, .times = times};
    for (int i = 0; i < count; i++) {
        const struct sw_gemm *there = &out[i].shape;
        if (out[i].head && out[i].pass == added.pass && there->m == shape.m && there->n == shape.n &&
            there->k == shape.k) {
            out[i].times += times;
            return count;
        }
    }
    out[count] = added;
    return count + 1;
}

static int add_head(struct sw_model_product *out, int count, const struct sw_model *model) {
    const struct sizes rows = cut(model->rows, model->head.rows), cols = cut(model->vocab.grains, model->head.cols);
    for (int r = 0; r < rows.count; r++) {
        const struct sizes parts = cut(rows.size[r], model->head.logits_rows);
        for (int c = 0; c < cols.count; c++) {
            const struct head_products tile = sw_head_products(model, rows.size[r], cols.size[c]);
            const int64_t times = rows.times[r] * cols.times[c];
            /* With a cut vocabulary, the logits of all tiles but the last are computed again for the gradients. A
             * tensor rank computes those of its last tile again too: its softmax waits for the other ranks. */
            const int64_t kept = model->cut.ranks == 1 && c + 1 == cols.count ? rows.times[r] : 0;
            const int64_t of_cut = model->head.cut ? times - kept : 0;
            /* Logits of pairs are computed again once all losses are known. */
            const int64_t again = sw_has_pairs(model) ? times : of_cut;
            for (int p = 0; p < parts.count; p++)
                count = add_of_head(out, count, FORWARD, sw_head_products(model, parts.size[p], cols.size[c]).logits,
                                    (times + again) * parts.times[p]);
            count = add_of_head(out, count, INPUT_GRADIENT, tile.input_gradient, times);
            count = add_of_head(out, count, WEIGHT_GRADIENT, tile.table_gradient, times);
        }
    }
    return count;
}

int sw_model_products(const struct sw_model *model, struct sw_model_product out[SW_MODEL_MAX_PRODUCTS]) {
    static const char *const names[LINEARS] = {"qkv", "projection", "up", "down"};
    static_assert(3 * (LINEARS + 4) <= SW_MODEL_MAX_PRODUCTS, "there is room for each product");
    int count = 0;
    for (int i = 0; i < LINEARS; i++) {
        const struct linear *linear = &model->linear[i];
        if (linear->forward.m == 0) /* blocks with experts have no dense MLP */
            continue;
        struct sw_gemm shapes[] = {linear->forward, linear->input_gradient, linear->weight_gradient};
        /* The addition of the residual is not part of the product. */
        shapes[0].addend = false;
        count = add(out, count, names[i], shapes, model->config.layers * model->cut.tiles);
    }
    return add_head(out, count, model);
}

/* The share of a tensor rank (Shoeybi et al., arXiv 1909.08053): of a half of a block, in one tile or several, of the
 * embedding and of the head.
 *
 * The functions here only compute; the plan adds the ranks' parts between them. So an exchange is an op like any other,
 * which the plan can order, price and overlap, and a rank blocks in no call of the model. Parts of one rank's own tiles
 * are added here, because no other rank needs them.
 *
 * Each rank adds the residual of its own rows to its part before the sum, with or without sequence parallelism, so that
 * both give the same bits and no rank needs a whole input for it. */

/* Floats of a row in a softmax record: the largest logit, the sum of exponentials, the target's logit. */
enum { SOFTMAX_FLOATS = 3, SOFTMAX_ALIGN_BYTES = 64 };

/* Returns the bytes of one rank's softmax record, which has SOFTMAX_FLOATS floats for each row. */
static int64_t softmax_bytes(const struct sw_model *model) {
    return sw_round_up(SOFTMAX_FLOATS * model->rows * (int64_t)sizeof(float), SOFTMAX_ALIGN_BYTES);
}

static bool is_mlp(const struct sw_model *model, const struct sw_unit_call *call) {
    const enum block_kind kind = sw_tile_of(&model->cut, call->unit).kind;
    return kind == MLP_FIRST || kind == MLP_NEXT || kind == SHARED_MLP;
}

static int64_t row_bytes(const struct sw_model *model) {
    return model->config.hidden * sw_dtype_bytes(model->shape.type);
}

/* Computes the last product of the first tile of a half. */
static sw_status begin_half(const struct sw_model *model, const struct sw_unit_call *call, enum linear_name name,
                            enum sw_block_tensor weight, const void *x) {
    SW_TRY(sw_linear_forward(model, call, name, weight, x, NULL, call->out));
    return sw_rank_add_own_rows(model, call);
}

/* Computes a tile's last product and adds it to the sum of the rank's earlier tiles. */
static sw_status add_half(const struct sw_model *model, const struct sw_unit_call *call, enum linear_name name,
                          enum sw_block_tensor weight, const void *x) {
    if (sw_tile_of(&model->cut, call->unit).first)
        return begin_half(model, call, name, weight, x);
    const void *matrix;
    SW_TRY(sw_block_matrix(model, call, weight, &matrix));
    SW_TRY(sw_gemm_add(call->stream, &model->linear[name].forward_continued, x, matrix, NULL, call->in, call->out,
                       area_at(call->work, model->work.scratch)));
    return sw_adapter_forward(model, call, name, x, call->out);
}

static bool has_experts(const struct sw_model *model, const struct sw_unit_call *call) {
    return model->config.experts > 0 && is_mlp(model, call);
}

/* Tells whether the unit has the norm of its half, as its first tile does. */
static bool has_norm(const struct sw_model *model, const struct sw_unit_call *call) {
    return sw_tile_of(&model->cut, call->unit).first;
}

/* Returns a half's normalised input: the plan's, the one that the first tile handed on, or the memory that fill_norm
 * fills. Calls with sequence parallelism that do not read it must not ask for it. */
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
    if (sw_tile_of(&model->cut, call->unit).last)
        return SW_OK;
    SW_TRY(
        sw_copy_on_device(call->stream, area_at(call->out, sw_norm_offset(model)), n, model->rows * row_bytes(model)));
    return sw_adapters_hand_on(model, call);
}

/* The passes of a tensor rank; engine.h says what each leaves to the plan. */
static sw_status rank_forward(struct sw_model *model, const struct sw_unit_call *call) {
    const struct saved s = sw_saved_of(model, call);
    const void *n = normed_of(model, call, &s);
    SW_TRY(fill_norm(model, call, &s));
    if (has_experts(model, call)) {
        const void *addend;
        SW_TRY(sw_shared_forward(model, call, n, NULL, &s, area_at(call->work, model->work.shared_rows), &addend));
        SW_TRY(sw_experts_forward(model, call, n, addend, &s));
        SW_TRY(sw_rank_add_own_rows(model, call));
    } else if (is_mlp(model, call)) {
        SW_TRY(sw_mlp_forward(model, call, n, &s));
        SW_TRY(add_half(model, call, LINEAR_DOWN, DOWN_WEIGHT, s.activated));
    } else {
        SW_TRY(sw_attend_forward(model, call, n, &s));
        SW_TRY(add_half(model, call, LINEAR_PROJECTION, PROJECTION_WEIGHT, s.attention_out));
    }
    return hand_on(model, call, n);
}

static sw_status rank_recompute(struct sw_model *model, const struct sw_unit_call *call) {
    if (sw_tile_of(&model->cut, call->unit).kind == SHARED_MLP) /* keeps nothing */
        return SW_OK;
    const struct saved s = sw_saved_of(model, call);
    const void *n = normed_of(model, call, &s);
    const bool mlp = is_mlp(model, call);
    SW_TRY(fill_norm(model, call, &s));
    if (call->recompute == SW_RECOMPUTE_DERIVED)
        return mlp ? SW_OK : sw_attend_derive(model, call, &s);
    if (has_experts(model, call)) {
        SW_TRY(sw_shared_recompute(model, call, n, &s));
        return sw_experts_up(model, call, n, &s);
    }
    return mlp ? sw_linear_forward(model, call, LINEAR_UP, UP_WEIGHT, n, NULL, s.up)
               : sw_attend_forward(model, call, n, &s);
}

/* The backward pass of a half in tiles begins with the last tile. Each tile adds its gradient at the norm to a sum that
 * is stored after the gradient at the half's output. The first tile, which has the norm, writes the sum to
 * call->norm_grad. */
static sw_status rank_backward(struct sw_model *model, const struct sw_unit_call *call) {
    const struct saved s = sw_saved_of(model, call);
    const struct sw_tile tile = sw_tile_of(&model->cut, call->unit);
    if (has_experts(model, call)) {
        SW_TRY(sw_shared_input_gradient(model, call, &s, call->product_grad));
        return sw_experts_input_gradient(model, call, &s, call->product_grad, call->norm_grad);
    }
    if (model->cut.tiles == 1)
        return is_mlp(model, call) ? sw_mlp_input_gradient(model, call, &s, call->product_grad, call->norm_grad)
                                   : sw_attend_input_gradient(model, call, &s, call->product_grad, call->norm_grad);
    const void *n = normed_of(model, call, &s);
    void *sum = area_at(call->grad, sw_norm_offset(model)), *out = tile.first ? call->norm_grad : sum;
    void *dn = tile.first || tile.last ? out : area_at(call->work, model->work.narrow);
    SW_TRY(sw_adapters_begin_backward(model, call));
    SW_TRY(is_mlp(model, call) ? sw_mlp_backward(model, call, n, &s, dn) : sw_attend_backward(model, call, n, &s, dn));
    SW_TRY(sw_adapters_end_backward(model, call));
    return tile.last ? SW_OK
                     : sw_add(call->stream, .type = model->shape.type, .elems = model->rows * model->config.hidden,
                              .a = sum, .b = dn, .y = out);
}

static sw_status rank_last_product(struct sw_model *model, const struct sw_unit_call *call) {
    const struct saved s = sw_saved_of(model, call);
    if (has_experts(model, call)) {
        SW_TRY(sw_shared_last_product(model, call, &s));
        return sw_experts_last_product(model, call, &s);
    }
    return is_mlp(model, call) ? sw_mlp_last_product(model, call, &s) : sw_attend_last_product(model, call, &s);
}

static sw_status rank_first_product(struct sw_model *model, const struct sw_unit_call *call) {
    const struct saved s = sw_saved_of(model, call);
    const void *n = normed_of(model, call, &s);
    if (has_experts(model, call)) {
        SW_TRY(sw_shared_first_product(model, call, n, call->product_grad));
        return sw_experts_first_product(model, call, n, &s, call->product_grad);
    }
    return is_mlp(model, call) ? sw_mlp_first_product(model, call, n, call->product_grad)
                               : sw_attend_first_product(model, call, n, call->product_grad);
}

/* The norm of a block's half, or the final norm. */
struct own_norm {
    bool head;
    enum sw_block_tensor scale; /* which norm, for a half of a block */
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

static sw_status rank_norm_forward(struct sw_model *model, const struct sw_unit_call *call) {
    const struct own_norm norm = own_norm_of(model, call);
    return sw_model_norm_forward(model, call->stream, &norm.call, call->own_in,
                                 (char *)call->out + call->own_rows.first_grain * row_bytes(model));
}

/* Computes the statistics of the rank's rows again from the input: those of the backward op may be gone. */
static sw_status rank_norm_backward(struct sw_model *model, const struct sw_unit_call *call) {
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

/* Computes this rank's softmax record for one tile of rows. */
static sw_status note_softmax(const struct sw_model *model, const struct sw_unit_call *call,
                              const struct head_tile *t) {
    float *record = area_at(call->softmax, model->cut.rank * softmax_bytes(model));
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

static sw_status rank_head_logits(struct sw_model *model, const struct sw_unit_call *call) {
    if (call->normed == NULL)
        SW_TRY(sw_final_norm(model, call, model->rows, call->in));
    for (int64_t first = 0; first < model->rows; first += model->head.rows) {
        const struct head_tile t = sw_head_tile_at(model, call, first, false);
        SW_TRY(note_softmax(model, call, &t));
    }
    return SW_OK;
}

/* Combines the softmax records of all ranks for a tile of rows, and computes the losses of these rows. */
static sw_status combine(const struct sw_model *model, const struct sw_unit_call *call, const struct head_tile *t) {
    SW_TRY(sw_softmax_combine(call->stream, .rows = t->rows, .parts = model->cut.ranks,
                              .part_stride = softmax_bytes(model) / (int64_t)sizeof(float), .row_stride = model->rows,
                              .part = (const float *)call->softmax + t->first, .max = t->largest, .sum = t->sums,
                              .target_logit = t->target_logits));
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
                                     .d_logits = t->logits_grad, .row_scale = t->row_scale));
        SW_TRY(sw_head_tile_gradients(model, call, t, col, cols));
    }
    return sw_cast_from_f32(call->stream, .type = model->shape.type, .elems = elems, .from = t->hidden_grad,
                            .to = area_at(call->norm_grad, t->first * row_bytes(model)));
}

/* Computes the loss of every row, then the sums of all sequences and the scales of their rows, and in training the
 * gradients with these. */
static sw_status run_pairs(struct sw_model *model, const struct sw_unit_call *call, bool train) {
    for (int64_t first = 0; first < model->rows; first += model->head.rows) {
        const struct head_tile t = sw_head_tile_at(model, call, first, false);
        SW_TRY(combine(model, call, &t));
    }
    SW_TRY(sw_head_preference(model, call, train));
    for (int64_t first = 0; train && first < model->rows; first += model->head.rows) {
        const struct head_tile t = sw_head_tile_at(model, call, first, true);
        SW_TRY(tile_backward(model, call, &t));
    }
    return sw_head_pair_losses(model, call);
}

static sw_status run_head(struct sw_model *model, const struct sw_unit_call *call, bool train) {
    double *loss = area_at(call->work, model->work.loss);
    if (train && call->normed == NULL)
        SW_TRY(sw_final_norm(model, call, model->rows, call->in));
    if (sw_has_pairs(model))
        return run_pairs(model, call, train);
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

static sw_status rank_head_train(struct sw_model *model, const struct sw_unit_call *call) {
    return run_head(model, call, true);
}

static sw_status rank_head_loss(struct sw_model *model, const struct sw_unit_call *call) {
    return run_head(model, call, false);
}

static sw_status list_costs(struct sw_model *model) {
    model->cost = calloc((size_t)model->units->count, sizeof *model->cost);
    if (model->cost == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the model");
    for (int64_t u = 0; u < model->units->count; u++)
        model->cost[u] = sw_model_unit_cost(model, u);
    return SW_OK;
}

/* Makes the model for passes of one token, which otherwise has the same shape. */
static sw_status add_model_of_one(struct sw_model *model) {
    struct sw_model_shape shape = model->shape;
    shape.seq = 1;
    if (model->shape.context == 0 || model->shape.seq == 1)
        return SW_OK;
    assert(model->shape.batch == 1 && model->shape.context >= model->shape.seq);
    SW_TRY(sw_model_create(&model->config, &shape, model->device, &model->of_one));
    free(model->of_one->rotation);
    model->of_one->rotation = model->rotation;
    assert(model->of_one->work.rotation == model->work.rotation);
    return SW_OK;
}

/* Weights in 8 bits know one border between narrow and wide grains. */
static sw_status set_fp8(struct sw_model *model) {
    const struct sw_units *units = model->units;
    if (model->shape.fp8 && units->base != SW_BASE_TYPED)
        return sw_fail(SW_ERR_UNSUPPORTED, "--precision fp8 does not go with a base that is kept in %s",
                       sw_base_format_name(units->base));
    if (model->shape.fp8 && model->config.experts > 0)
        return sw_fail(SW_ERR_UNSUPPORTED,
                       "--precision fp8 is not supported for %s, whose blocks have experts; give bf16",
                       model->config.family);
    model->units->fp8 = model->shape.fp8;
    for (int64_t u = 0; u < units->count && units->fp8; u++)
        if (units->unit[u].trained_grain > 0 && units->unit[u].trained_grain < units->unit[u].grains)
            return sw_fail(SW_ERR_UNSUPPORTED,
                           "--precision fp8 needs each block all trained or all frozen, and --lora or --freeze leaves "
                           "%s with both; leave one of them out, or freeze whole blocks",
                           units->unit[u].name);
    return SW_OK;
}

sw_status sw_model_create(const struct sw_model_config *config, const struct sw_model_shape *shape,
                          struct sw_device *device, struct sw_model **out) {
    assert(shape->batch > 0 && shape->seq > 0 && shape->tensor_rank >= 0);
    assert(shape->dpo_beta == 0.0 || shape->batch % 2 == 0);
    assert(shape->tensor_rank < (shape->tensor_ranks > 1 ? shape->tensor_ranks : 1));
    if (sw_max_i64(shape->seq, shape->context) > config->max_positions)
        return sw_fail(SW_ERR_ARG, "--seq %lld is longer than the model's %lld positions", (long long)shape->seq,
                       (long long)config->max_positions);
    int64_t widest;
    if (!sw_mul_i64(shape->batch, shape->seq, &widest) ||
        !sw_mul_i64(widest, 64 * sw_max_i64(sw_max_i64(config->ffn, config->hidden), config->expert_ffn), &widest) ||
        !sw_mul_i64(widest, sw_max_i64(config->chosen_experts, 1), &widest) ||
        !sw_mul_i64(widest, 4 * config->head_dim, &widest))
        return sw_fail(SW_ERR_ARG, "a micro-batch of %lld sequences is too large", (long long)shape->batch);
    if (shape->tensor_ranks > shape->batch * shape->seq && !shape->forward_only)
        return sw_fail(SW_ERR_ARG,
                       "--tensor %d is more than the %lld tokens of a micro-batch; give a smaller one, or a larger "
                       "--seq or --micro-batch",
                       shape->tensor_ranks, (long long)(shape->batch * shape->seq));
    struct sw_model *model = calloc(1, sizeof *model);
    if (model == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the model");
    model->config = *config;
    model->shape = *shape;
    model->device = device;
    model->rows = shape->batch * shape->seq;
    model->cut = (struct sw_cut){
        .tiles = sw_max_i64(shape->tiles, 1), .ranks = 1, .expert_units = sw_model_expert_units(config)};
    if (shape->tensor_ranks > 1) {
        model->cut.ranks = shape->tensor_ranks;
        model->cut.rank = shape->tensor_rank;
    }
    model->cut.expert_ranks = shape->expert_ranks;
    model->cut.expert_rank = shape->expert_rank;
    model->vocab = sw_shard(config->vocab, model->cut.ranks, model->cut.rank);
    const int expert_ranks = shape->expert_ranks > 1 ? shape->expert_ranks : 1;
    const struct sw_model_group group = {.ranks = expert_ranks * model->cut.ranks,
                                         .rank = shape->expert_rank * model->cut.ranks + model->cut.rank,
                                         .experts = expert_ranks};
    sw_status status =
        sw_model_group_units(config, &group, model->cut.tiles, shape->optimizer, &shape->tuning, &model->units);
    assert(!shape->fp8 || (shape->type == SW_BF16 && shape->optimizer != SW_OPTIMIZER_FP32));
    if (status == SW_OK)
        status = set_fp8(model);
    if (status == SW_OK)
        status = sw_model_prepare(model);
    if (status == SW_OK)
        status = list_costs(model);
    if (status == SW_OK)
        status = add_model_of_one(model);
    if (status != SW_OK) {
        sw_model_destroy(model);
        return status;
    }
    *out = model;
    return SW_OK;
}

void sw_model_destroy(struct sw_model *model) {
    if (model == NULL)
        return;
    if (model->of_one != NULL)
        model->of_one->rotation = NULL;
    sw_model_destroy(model->of_one);
    sw_units_destroy(model->units);
    free(model->rotation);
    free(model->adapter);
    free(model->expert_factors);
    free(model->cost);
    free(model);
}

const struct sw_units *sw_model_get_units(const struct sw_model *model) {
    return model->units;
}

struct sw_units *sw_model_tunable_units(struct sw_model *model) {
    return model->units;
}

const struct sw_model_config *sw_model_get_config(const struct sw_model *model) {
    return &model->config;
}

sw_dtype sw_model_type(const struct sw_model *model) {
    return model->shape.type;
}

struct sw_model_bytes sw_model_bytes(const struct sw_model *model) {
    const bool has_pairs = sw_has_pairs(model);
    return (struct sw_model_bytes){
        .token = sw_reference_offset(model) + (has_pairs ? model->shape.batch * (int64_t)sizeof(double) : 0),
        .pair_sequences = has_pairs ? model->shape.batch : 0,
        .tally = sw_experts_tally(model),
        .cost = model->cost,
        .work = sw_max_i64(model->work.bytes, model->of_one == NULL ? 0 : model->of_one->work.bytes),
        .muon_gpu = model->muon_gpu_bytes,
        .gathered = model->config.tied_embeddings || model->cut.ranks > 1 || model->cut.expert_ranks > 1
                        ? 0
                        : sw_gathered_layout(model).bytes,
        .product = sw_split_product_bytes(model),
        .softmax = model->cut.ranks > 1 ? softmax_bytes(model) : 0,
        .rows = model->rows,
        .sent = model->cut.expert_ranks > 1 ? model->rows : 0,
    };
}

/* The model for passes of one token uses the same tables, at the same offset. */
static sw_status begin(void *context, struct sw_stream *stream, void *work) {
    const struct sw_model *model = context;
    if (sw_experts_tally(model) > 0)
        SW_TRY(sw_zero(stream, area_at(work, model->work.tally), sw_experts_tally(model) * (int64_t)sizeof(double)));
    return model->rotation == NULL
               ? SW_OK
               : sw_copy_to_device(stream, area_at(work, model->work.rotation), model->rotation, sw_rope_bytes(model));
}

struct sw_model_tally sw_model_tally(const struct sw_model *model, const double *tally) {
    const double *losses = tally + model->config.layers * model->config.experts;
    return (struct sw_model_tally){.layers = model->config.layers,
                                   .experts = model->config.experts,
                                   .routed = tally,
                                   .aux_loss = losses[0],
                                   .z_loss = losses[1]};
}

struct sw_tokens sw_model_tokens(const struct sw_model *model, int32_t *tokens) {
    const bool starts = model->shape.documents;
    return (struct sw_tokens){.inputs = tokens + TOKEN_INPUTS * model->rows,
                              .targets = tokens + TOKEN_TARGETS * model->rows,
                              .document_start = starts ? tokens + TOKEN_DOCUMENT_START * model->rows : NULL};
}

double *sw_model_reference(const struct sw_model *model, int32_t *tokens) {
    return sw_has_pairs(model) ? (double *)(void *)((char *)tokens + sw_reference_offset(model)) : NULL;
}

/* Scores the pairs of a micro-batch (sw_unit_ops). log1p keeps the digits of a loss near 0. */
static void score(void *context, const int32_t *tokens, const double *losses, double out[SW_PAIR_SUMS]) {
    const struct sw_model *model = context;
    const double *reference = (const double *)(const void *)((const char *)tokens + sw_reference_offset(model));
    const double beta = model->shape.dpo_beta;
    for (int64_t s = 0; s < model->shape.batch; s += 2) {
        const double chosen = beta * (-losses[s] - reference[s]), rejected = beta * (-losses[s + 1] - reference[s + 1]);
        const double margin = chosen - rejected;
        if (isnan(reference[s]))
            continue;
        out[SW_PAIR_LOSS] += fmax(0.0, -margin) + log1p(exp(-fabs(margin)));
        out[SW_PAIR_CHOSEN] += chosen;
        out[SW_PAIR_REJECTED] += rejected;
        out[SW_PAIR_RIGHT] += margin > 0.0;
    }
}

/* Returns the model whose shapes fit a call: passes of one token have their own. */
static struct sw_model *model_for(void *context, const struct sw_unit_call *call) {
    struct sw_model *model = context;
    return call->count == 1 && model->of_one != NULL ? model->of_one : model;
}

/* The passes of a rank without a tensor group, by kinds of units. */
struct passes {
    sw_status (*forward)(struct sw_model *model, const struct sw_unit_call *call);
    sw_status (*recompute)(struct sw_model *model, const struct sw_unit_call *call);
    sw_status (*backward)(struct sw_model *model, const struct sw_unit_call *call);
};

static const struct passes *passes_of(const struct sw_model *model, const struct sw_unit_call *call) {
    static const struct passes block = {sw_block_forward, sw_block_recompute, sw_block_backward},
                               tile = {sw_tile_forward, sw_tile_recompute, sw_tile_backward},
                               routed = {sw_routed_forward, sw_routed_recompute, sw_routed_backward},
                               experts = {sw_expert_unit_forward, sw_expert_unit_recompute, sw_expert_unit_backward};
    switch (sw_tile_of(&model->cut, call->unit).kind) {
    case BLOCK_WHOLE: return &block;
    case BLOCK_ROUTED: return &routed;
    case EXPERT_GROUP: return &experts;
    default: return &tile;
    }
}

static sw_status forward(void *context, const struct sw_unit_call *call) {
    struct sw_model *model = model_for(context, call);
    struct sw_unit_call own;
    if (call->unit == 0)
        return sw_embedding_unit_forward(model, call);
    SW_TRY(sw_enter_first_layer(model, call, &own));
    if (model->cut.ranks > 1)
        return rank_forward(model, &own);
    return passes_of(model, &own)->forward(model, &own);
}

static sw_status backward(void *context, const struct sw_unit_call *call) {
    struct sw_model *model = context;
    struct sw_unit_call own;
    if (call->unit == 0)
        return sw_embedding_unit_backward(model, call);
    if (model->cut.expert_ranks > 1 && model->cut.ranks == 1)
        return sw_group_backward_rest(model, call);
    SW_TRY(sw_enter_first_layer(model, call, &own));
    if (model->cut.ranks > 1)
        return rank_backward(model, &own);
    SW_TRY(passes_of(model, &own)->backward(model, &own));
    return sw_leave_first_layer(model, call, call->in, model->rows, call->grad);
}

static sw_status recompute(void *context, const struct sw_unit_call *call) {
    struct sw_model *model = context;
    struct sw_unit_call own;
    SW_TRY(sw_enter_first_layer(model, call, &own));
    if (model->cut.ranks > 1)
        return rank_recompute(model, &own);
    if (model->cut.expert_ranks > 1) /* experts keep nothing */
        return sw_tile_of(&model->cut, own.unit).kind == SHARED_EXPERTS ? SW_OK : sw_group_recompute(model, &own);
    return passes_of(model, &own)->recompute(model, &own);
}

static sw_status send(void *context, const struct sw_unit_call *call) {
    return sw_group_send(context, call);
}

static sw_status experts_forward(void *context, const struct sw_unit_call *call) {
    return sw_group_forward(context, call);
}

static sw_status recall(void *context, const struct sw_unit_call *call) {
    return sw_group_recall(context, call);
}

static sw_status experts_backward(void *context, const struct sw_unit_call *call) {
    return sw_group_backward(context, call);
}

/* Each micro-batch hands over the sums so far, so those of the last are the step's. */
static sw_status head(void *context, const struct sw_unit_call *call) {
    struct sw_model *model = context;
    if (call->tally != NULL)
        SW_TRY(sw_copy_to_host(call->stream, call->tally, area_at(call->work, model->work.tally),
                               sw_experts_tally(model) * (int64_t)sizeof *call->tally));
    return model->cut.ranks > 1 ? rank_head_train(model, call) : sw_head_train(model, call);
}

static sw_status loss(void *context, const struct sw_unit_call *call) {
    struct sw_model *model = context;
    return model->cut.ranks > 1 ? rank_head_loss(model, call) : sw_head_loss(model, call);
}

static sw_status norm_forward(void *context, const struct sw_unit_call *call) {
    struct sw_unit_call own;
    SW_TRY(sw_enter_first_layer(context, call, &own));
    return rank_norm_forward(context, &own);
}

static sw_status norm_backward(void *context, const struct sw_unit_call *call) {
    struct sw_unit_call own;
    SW_TRY(sw_enter_first_layer(context, call, &own));
    SW_TRY(rank_norm_backward(context, &own));
    return sw_leave_first_layer(context, call, call->own_in, call->own_rows.grains, call->own_grad);
}

static sw_status last_product(void *context, const struct sw_unit_call *call) {
    return rank_last_product(context, call);
}

static sw_status first_product(void *context, const struct sw_unit_call *call) {
    return rank_first_product(context, call);
}

static sw_status head_logits(void *context, const struct sw_unit_call *call) {
    return rank_head_logits(context, call);
}

static sw_status logits(void *context, const struct sw_unit_call *call) {
    return sw_head_logits(model_for(context, call), call);
}

/* The routing that a block tells the host is the first place of each expert. */
static bool has_rows(void *context, int64_t unit, const void *routing) {
    const struct sw_model *model = context;
    const int32_t *offset = routing;
    const struct sw_expert_run own = sw_experts_in(&model->config, &model->cut, unit);
    return offset[own.first] < offset[own.first + own.count];
}

static void gather(void *context, const struct sw_gather_call *call) {
    sw_embedding_gather(context, call);
}

struct sw_unit_ops sw_model_ops(struct sw_model *model) {
    return (struct sw_unit_ops){.context = model,
                                .begin = begin,
                                .forward = forward,
                                .recompute = recompute,
                                .backward = backward,
                                .last_product = sw_model_splits_backward(model) ? last_product : NULL,
                                .first_product = sw_model_splits_backward(model) ? first_product : NULL,
                                .norm_forward = model->cut.ranks > 1 ? norm_forward : NULL,
                                .norm_backward = model->cut.ranks > 1 ? norm_backward : NULL,
                                .head_logits = model->cut.ranks > 1 ? head_logits : NULL,
                                .send = model->cut.expert_ranks > 1 ? send : NULL,
                                .experts_forward = model->cut.expert_ranks > 1 ? experts_forward : NULL,
                                .recall = model->cut.expert_ranks > 1 ? recall : NULL,
                                .experts_backward = model->cut.expert_ranks > 1 ? experts_backward : NULL,
                                .head = head,
                                .loss = loss,
                                .logits = logits,
                                .has_rows = has_rows,
                                .gather = gather,
                                .score = score};
}

/* Returns the number of keys that a query sees on average. A full triangle counts as seq / 2, as is usual. */
static double keys_seen(const struct sw_model_config *config, int64_t layer, int64_t seq) {
    const int64_t limit = sw_config_window(config, layer);
    const double all = (double)seq, window = limit > 0 ? (double)sw_min_i64(limit, seq) : all;
    return window * (1.0 - window / (2.0 * all));
}

/* Returns the number of parameters of the adapters of a layer's joined experts, which the unit of the first of them
 * counts. */
static int64_t joined_adapter_parameters(const struct sw_model_config *config, const struct sw_unit *unit) {
    int64_t count = 0;
    for (int64_t t = 0; t < unit->tensor_count; t++) {
        const struct sw_tensor *tensor = &unit->tensor[t];
        const bool counts = unit->shared_out || tensor->part.first_row == 0;
        count += tensor->added && counts && sw_expert_matrix_of(config, tensor->name) >= 0
                     ? sw_tensor_whole_elems(tensor)
                     : 0;
    }
    return count;
}

/* Returns the number of parameters of all experts' adapters. A rank that shares out experts has those of as many
 * experts as any other. */
static int64_t expert_adapter_parameters(const struct sw_model_config *config, const struct sw_units *units) {
    int64_t count = 0;
    for (int64_t u = 0; u < units->count; u++) {
        int64_t here = 0, experts = 0;
        if (config->joined_experts) {
            count += joined_adapter_parameters(config, &units->unit[u]);
            continue;
        }
        for (int64_t t = 0; t < units->unit[u].tensor_count; t++) {
            const struct sw_tensor *tensor = &units->unit[u].tensor[t];
            const int matrix = sw_expert_matrix_of(config, tensor->name);
            here += tensor->added && matrix >= 0 ? sw_tensor_whole_elems(tensor) : 0;
            experts += !tensor->added && matrix == EXPERT_GATE;
        }
        count += units->unit[u].shared_out && experts > 0 ? here * (config->experts / experts) : here;
    }
    return count;
}

int64_t sw_model_active_parameters(const struct sw_model_config *config, const struct sw_units *units,
                                   int64_t parameters) {
    if (config->experts == 0)
        return parameters;
    const int64_t biases = config->joined_experts ? 2 * config->expert_ffn + config->hidden : 0;
    const int64_t of_expert = EXPERT_MATRICES * config->hidden * config->expert_ffn + biases;
    const int64_t adapters = units == NULL ? 0 : expert_adapter_parameters(config, units) / config->experts;
    return parameters - (config->experts - config->chosen_experts) * (config->layers * of_expert + adapters);
}

double sw_model_flops_per_token(const struct sw_model_config *config, int64_t seq) {
    const double hidden = (double)config->hidden, q = (double)(config->heads * config->head_dim);
    const double kv = (double)(config->kv_heads * config->head_dim);
    const double inner = (double)(config->ffn + config->chosen_experts * config->expert_ffn);
    const double block = hidden * (2.0 * q + 2.0 * kv + (config->gated ? 3.0 : 2.0) * inner + (double)config->experts);
    double keys = 0.0;
    for (int64_t layer = 0; layer < config->layers; layer++)
        keys += keys_seen(config, layer, seq);
    return 6.0 * ((double)config->layers * block + (double)config->vocab * hidden) + 12.0 * q * keys;
}

static bool adds_to_residual(const char *name) {
    static const char *const endings[] = {"c_proj.weight",     "o_proj.weight", "down_proj.weight",    "w2.weight",
                                          "experts.down_proj", ".dense.weight", "dense_4h_to_h.weight"};
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++)
        if (sw_name_ends_with(name, endings[i]))
            return true;
    return false;
}

/* Returns the random stream of a tensor: a hash (FNV-1a) of its name, so that it does not depend on the tensor's
 * position. */
static uint64_t stream_of(const char *name) {
    uint64_t hash = UINT64_C(14695981039346656037);
    for (const char *c = name; *c != '\0'; c++)
        hash = (hash ^ (unsigned char)*c) * UINT64_C(1099511628211);
    return hash;
}

/* Tells whether a tensor starts as zeros or ones: norms and biases. As in transformers, attention sinks and a router's
 * biases are random. */
static bool has_no_noise(const struct sw_tensor *tensor) {
    const bool drawn = sw_name_ends_with(tensor->name, ".sinks") || sw_name_ends_with(tensor->name, ".router.bias");
    return !drawn && (tensor->dims == 1 || sw_name_ends_with(tensor->name, "_bias"));
}

struct random_fill {
    const struct sw_model_init *init;
    const struct sw_unit *unit;
    float *out;
};

static sw_status fill_run(void *context, int64_t tensor_number, int64_t whole, int64_t run, int64_t at) {
    const struct random_fill *fill = context;
    const struct sw_model_init *init = fill->init;
    const struct sw_tensor *tensor = &fill->unit->tensor[tensor_number];
    float *out = fill->out + at;
    if (tensor->added) /* its first values are another's matter, such as sw_lora_load's */
        return SW_OK;
    if (has_no_noise(tensor)) {
        const bool one = sw_name_ends_with(tensor->name, ".weight") && !init->config->norm_from_one;
        const float value = one ? 1.0f : 0.0f;
        for (int64_t i = 0; i < run; i++)
            out[i] = value;
        return SW_OK;
    }
    const bool into_residual = adds_to_residual(tensor->name);
    const double std =
        into_residual ? init->config->init_std / sqrt(2.0 * (double)init->config->layers) : init->config->init_std;
    const uint64_t stream = stream_of(tensor->name);
    sw_rng_normals(init->seed, stream, (uint64_t)whole, run, out);
    for (int64_t i = 0; i < run; i++)
        out[i] *= (float)std;
    return SW_OK;
}

sw_status sw_model_fill_random(void *context, int64_t unit, int64_t first, int64_t count, float *out) {
    const struct sw_model_init *init = context;
    struct random_fill fill = {.init = init, .unit = &init->units->unit[unit], .out = out};
    memset(out, 0, (size_t)count * sizeof *out);
    return sw_unit_walk(fill.unit, first, count, fill_run, &fill);
}
