/* One transformer block, forward and backward: norm, attention, norm, MLP, each in the form that the configuration
 * names. A tile of a block runs the same functions on its part of the weights.
 *
 * Intermediates are of two classes. Saved ones need a matrix product to compute again; derived ones (norms, rotated
 * heads, activated values) cost only memory traffic. The plan may keep both, only the saved ones, or none, so the
 * forward pass and every recomputation call the same functions: the bits cannot depend on the choice.
 *
 * The backward pass of a half is three functions: the gradient at its input, then the weights of its last and of its
 * first product. A whole block calls them in turn. A tensor group runs them as three ops, and its exchanges overlap the
 * products of weights. One function with hooks between the parts would put the order of ops here; it belongs to the
 * plan.
 *
 * Queries, keys and values are one product even where a rank has only some of their rows: gathering those rows into one
 * matrix keeps one product of one shape. */
#include "model/model_private.h"

/* The product of queries, keys and values on a rank that shares its key-value head with other ranks of its tensor
 * group. The unit holds the weights of all keys and values, which the group keeps equal on all ranks (model_units.c).
 * The rank collects the rows it needs as one matrix, and adds the gradient of that matrix back to these rows. */

/* The tensors of queries, keys and values, in the order of their pieces in the unit. */
enum { QKV_PIECES = 3 };

/* Returns the index in the unit of the first of the three tensors, or -1 where this rank does not collect them. */
static int first_piece(const struct sw_model *model, const struct sw_unit_call *call, enum sw_block_tensor tensor) {
    return sw_cut_copies_kv(&model->config, &model->cut) ? sw_block_tensor_in(model, call->unit, tensor) : -1;
}

static sw_status collect(const struct sw_model *model, const struct sw_unit_call *call, enum sw_block_tensor tensor,
                         int64_t row_elems, char *to) {
    const int64_t bytes = row_elems * sw_dtype_bytes(model->shape.type);
    const int first = first_piece(model, call, tensor);
    for (int piece = 0; first >= 0 && piece < QKV_PIECES; piece++) {
        const struct sw_own_rows own = sw_own_rows_of(model, tensor, piece);
        const int64_t elem = model->units->unit[call->unit].tensor[first + piece].offset + own.first * row_elems;
        char *at = to + own.collected * bytes;
        if (is_in_base(model, call->unit, first + piece))
            SW_TRY(sw_dequantize_base(call->stream, .type = model->shape.type, .format = model->units->base,
                                      .first_elem = elem, .elems = own.rows * row_elems, .records = call->base,
                                      .to = at));
        else if (sw_units_packs(model->units, call->unit) && tensor == QKV_WEIGHT)
            SW_TRY(sw_unpack_weights(call->stream, .type = model->shape.type, .first_elem = elem,
                                     .elems = own.rows * row_elems, .weights = call->weights, .to = at));
        else
            SW_TRY(sw_copy_on_device(call->stream, at,
                                     (const char *)tensor_at(model, call, first + piece) + own.first * bytes,
                                     own.rows * bytes));
    }
    return SW_OK;
}

/* Collects the weights and biases of this rank's queries, keys and values as one matrix in the work area; zeroes the
 * gradients of that matrix; adds those gradients to the unit's. Each of the three does nothing unless the rank copies
 * key-value heads. */
static sw_status collect_qkv(const struct sw_model *model, const struct sw_unit_call *call) {
    SW_TRY(collect(model, call, QKV_WEIGHT, model->config.hidden, area_at(call->work, model->work.own_qkv)));
    return collect(model, call, QKV_BIAS, 1, area_at(call->work, model->work.own_qkv_bias));
}

/* Tells whether this rank collects the three tensors and they are trained. */
static bool has_own_acc(const struct sw_model *model, const struct sw_unit_call *call, enum sw_block_tensor tensor) {
    const int first = first_piece(model, call, tensor);
    return first >= 0 && acc_at(model, call, first) != NULL;
}

static sw_status zero_acc(const struct sw_model *model, const struct sw_unit_call *call, enum sw_block_tensor tensor,
                          int64_t row_elems, float *acc) {
    const int64_t bytes = model->widths.qkv * row_elems * (int64_t)sizeof *acc;
    return has_own_acc(model, call, tensor) ? sw_zero(call->stream, acc, bytes) : SW_OK;
}

static sw_status zero_qkv_acc(const struct sw_model *model, const struct sw_unit_call *call) {
    SW_TRY(zero_acc(model, call, QKV_WEIGHT, model->config.hidden, area_at(call->work, model->work.own_qkv_acc)));
    return zero_acc(model, call, QKV_BIAS, 1, area_at(call->work, model->work.own_qkv_bias_acc));
}

static sw_status add_acc(const struct sw_model *model, const struct sw_unit_call *call, enum sw_block_tensor tensor,
                         int64_t row_elems, const float *from) {
    const int first = first_piece(model, call, tensor);
    for (int piece = 0; has_own_acc(model, call, tensor) && piece < QKV_PIECES; piece++) {
        const struct sw_own_rows own = sw_own_rows_of(model, tensor, piece);
        float *acc = acc_at(model, call, first + piece) + own.first * row_elems;
        SW_TRY(sw_add(call->stream, .type = SW_F32, .elems = own.rows * row_elems, .a = acc,
                      .b = from + own.collected * row_elems, .y = acc));
    }
    return SW_OK;
}

static sw_status add_qkv_acc(const struct sw_model *model, const struct sw_unit_call *call) {
    SW_TRY(add_acc(model, call, QKV_WEIGHT, model->config.hidden, area_at(call->work, model->work.own_qkv_acc)));
    return add_acc(model, call, QKV_BIAS, 1, area_at(call->work, model->work.own_qkv_bias_acc));
}

struct saved sw_saved_of(const struct sw_model *model, const struct sw_unit_call *call) {
    const struct saved_layout *at = &model->saved[sw_tile_of(&model->cut, call->unit).kind];
    return (struct saved){
        .norm1_mean = area_at(call->derived, at->norm1_mean),
        .norm1_rstd = area_at(call->derived, at->norm1_rstd),
        .norm1_out = area_at(call->derived, at->norm1_out),
        .qkv = area_at(call->saved, at->qkv),
        .q_rstd = area_at(call->derived, at->q_rstd),
        .k_rstd = area_at(call->derived, at->k_rstd),
        .heads = area_at(call->derived, at->heads),
        .log_sum_exp = area_at(call->saved, at->log_sum_exp),
        .attention_out = area_at(call->saved, at->attention_out),
        .residual = area_at(call->saved, at->residual),
        .norm2_mean = area_at(call->derived, at->norm2_mean),
        .norm2_rstd = area_at(call->derived, at->norm2_rstd),
        .norm2_out = area_at(call->derived, at->norm2_out),
        .up = area_at(call->saved, at->up),
        .activated = area_at(call->derived, at->activated),
        .attention_result = area_at(call->saved, at->attention_result),
        .attention_result_rstd = area_at(call->saved, at->attention_result_rstd),
        .mlp_result = area_at(call->saved, at->mlp_result),
        .mlp_result_rstd = area_at(call->saved, at->mlp_result_rstd),
        .router_logits = area_at(call->saved, at->router_logits),
        .expert_chosen = area_at(call->saved, at->expert_chosen),
        .expert_weight = area_at(call->saved, at->expert_weight),
        .expert_offset = area_at(call->saved, at->expert_offset),
        .expert_source = area_at(call->saved, at->expert_source),
        .expert_place = area_at(call->saved, at->expert_place),
        .expert_up = area_at(call->saved, at->expert_up),
        .shared_logits = area_at(call->saved, at->shared_logits),
        .shared_chosen = area_at(call->saved, at->shared_chosen),
        .shared_weight = area_at(call->saved, at->shared_weight),
        .shared_offset = area_at(call->saved, at->shared_offset),
        .shared_source = area_at(call->saved, at->shared_source),
        .shared_place = area_at(call->saved, at->shared_place),
        .shared_sum = area_at(call->saved, at->shared_sum),
    };
}

static float gamma_base(const struct sw_model *model) {
    return model->config.norm_from_one ? 1.0f : 0.0f;
}

static struct sw_rmsnorm rms_shape(const struct sw_model *model, int64_t rows) {
    const int64_t hidden = model->config.hidden;
    return (struct sw_rmsnorm){.rows = rows,
                               .cols = hidden,
                               .groups = 1,
                               .x_stride = hidden,
                               .y_stride = hidden,
                               .epsilon = (float)model->config.norm_epsilon,
                               .gamma_base = gamma_base(model)};
}

sw_status sw_model_norm_forward(const struct sw_model *model, struct sw_stream *stream, const struct sw_norm_call *norm,
                                const void *x, void *y) {
    const struct sw_model_config *c = &model->config;
    const struct sw_rmsnorm shape = rms_shape(model, norm->rows);
    if (c->norm == SW_NORM_RMS)
        return sw_rmsnorm_forward(stream, model->shape.type, &shape, x, norm->scale, y, norm->rstd);
    return sw_layernorm_forward(stream, model->shape.type, norm->rows, c->hidden, (float)c->norm_epsilon, x,
                                norm->scale, norm->bias, y, norm->mean, norm->rstd);
}

sw_status sw_model_norm_backward(const struct sw_model *model, struct sw_stream *stream,
                                 const struct sw_norm_call *norm, const void *dy, const void *x, bool add_to_dx,
                                 void *dx) {
    const struct sw_rmsnorm shape = rms_shape(model, norm->rows);
    if (model->config.norm == SW_NORM_RMS)
        return sw_rmsnorm_backward(stream, model->shape.type, &shape, add_to_dx, dy, x, norm->scale, norm->rstd, dx,
                                   norm->scale_acc);
    return sw_layernorm_backward(stream, model->shape.type, norm->rows, model->config.hidden, add_to_dx, dy, x,
                                 norm->scale, norm->mean, norm->rstd, dx, norm->scale_acc, norm->bias_acc);
}

/* Tells whether the work area holds the operand of this tensor's product. */
static bool is_collected(const struct sw_model *model, int tensor) {
    return (tensor == QKV_WEIGHT || tensor == QKV_BIAS) && sw_cut_copies_kv(&model->config, &model->cut);
}

/* Returns the weights of a tensor, or NULL if the unit does not have it. */
static const void *weights_of(const struct sw_model *model, const struct sw_unit_call *call, int tensor) {
    const int at = sw_block_tensor_in(model, call->unit, (enum sw_block_tensor)tensor);
    if (at >= 0 && is_collected(model, tensor))
        return area_at(call->work, tensor == QKV_WEIGHT ? model->work.own_qkv : model->work.own_qkv_bias);
    return at < 0 ? NULL : tensor_at(model, call, at);
}

sw_status sw_block_matrix(const struct sw_model *model, const struct sw_unit_call *call, enum sw_block_tensor weight,
                          const void **out) {
    const struct sw_unit *unit = &model->units->unit[call->unit];
    const int at = sw_block_tensor_in(model, call->unit, weight);
    const bool base = at >= 0 && is_in_base(model, call->unit, at);
    if ((!base && !sw_units_packs(model->units, call->unit)) || is_collected(model, (int)weight)) {
        *out = weights_of(model, call, (int)weight);
        return SW_OK;
    }
    int64_t end = at + 1;
    while (end < unit->tensor_count && unit->tensor[end].part.joined)
        end++;
    void *to = area_at(call->work, model->work.matrix);
    const struct sw_tensor *last = &unit->tensor[end - 1];
    const int64_t first = unit->tensor[at].offset, elems = last->offset + last->elems - first;
    *out = to;
    if (base)
        return sw_dequantize_base(call->stream, .type = model->shape.type, .format = model->units->base,
                                  .first_elem = first, .elems = elems, .records = call->base, .to = to);
    return sw_unpack_weights(call->stream, .type = model->shape.type, .first_elem = first, .elems = elems,
                             .weights = call->weights, .to = to);
}

static float *acc_of(const struct sw_model *model, const struct sw_unit_call *call, int tensor) {
    const int at = sw_block_tensor_in(model, call->unit, (enum sw_block_tensor)tensor);
    if (at >= 0 && is_collected(model, tensor) && acc_at(model, call, at) != NULL)
        return area_at(call->work, tensor == QKV_WEIGHT ? model->work.own_qkv_acc : model->work.own_qkv_bias_acc);
    return at < 0 ? NULL : acc_at(model, call, at);
}

/* Returns the accumulator of a norm's tensor, or NULL if the unit does not have the tensor. */
static float *norm_acc_of(const struct sw_model *model, const struct sw_unit_call *call, int tensor) {
    const int at = sw_block_tensor_in(model, call->unit, (enum sw_block_tensor)tensor);
    return at < 0 ? NULL : norm_acc_at(model, call, at);
}

sw_status sw_linear_forward(const struct sw_model *model, const struct sw_unit_call *call, enum linear_name name,
                            enum sw_block_tensor weight, const void *x, const void *addend, void *y) {
    const struct linear *linear = &model->linear[name];
    /* Only the first tile, and the first rank of a tensor group, adds the bias of a product whose results are added up.
     */
    const bool adds_bias = model->cut.rank == 0 || !is_behind_sum(name);
    const void *bias = adds_bias ? weights_of(model, call, (int)weight + 1) : NULL, *matrix;
    SW_TRY(sw_block_matrix(model, call, weight, &matrix));
    SW_TRY(sw_gemm_add(call->stream, bias != NULL ? &linear->forward : &linear->forward_plain, x, matrix, bias, addend,
                       y, area_at(call->work, model->work.scratch)));
    return sw_adapter_forward(model, call, name, x, y);
}

/* Returns the rows that count in the gradient of a bias. A bias that follows a sum over a tensor group exists on every
 * rank, and each rank adds up its own rows. */
static struct sw_span bias_rows(const struct sw_model *model, const struct sw_unit_call *call, enum linear_name name) {
    return model->cut.ranks > 1 && is_behind_sum(name) ? call->own_rows : (struct sw_span){.grains = model->rows};
}

/* Adds the gradients of a weight and of its bias, which is the tensor after it, unless they are frozen. */
static sw_status linear_weight_gradient(const struct sw_model *model, const struct sw_unit_call *call,
                                        enum linear_name name, enum sw_block_tensor weight, const void *x,
                                        const void *dy) {
    const struct linear *linear = &model->linear[name];
    const bool out_first = model->config.out_first;
    float *acc = acc_of(model, call, weight), *bias_acc = acc_of(model, call, (int)weight + 1);
    const struct sw_span rows = bias_rows(model, call, name);
    const int64_t row_bytes = linear->forward.n * sw_dtype_bytes(model->shape.type);
    if (acc != NULL)
        SW_TRY(sw_gemm(call->stream, &linear->weight_gradient, out_first ? dy : x, out_first ? x : dy, NULL, acc,
                       area_at(call->work, model->work.scratch)));
    SW_TRY(sw_adapter_weight_gradient(model, call, name, x, dy));
    return bias_acc == NULL ? SW_OK
                            : sw_bias_gradient(call->stream, model->shape.type, rows.grains, linear->forward.n,
                                               (const char *)dy + rows.first_grain * row_bytes, bias_acc);
}

/* Computes the gradient of a product's input. dx and dy must not overlap. */
static sw_status linear_input_gradient(const struct sw_model *model, const struct sw_unit_call *call,
                                       enum linear_name name, enum sw_block_tensor weight, const void *dy, void *dx) {
    const void *matrix;
    SW_TRY(sw_block_matrix(model, call, weight, &matrix));
    SW_TRY(sw_gemm(call->stream, &model->linear[name].input_gradient, dy, matrix, NULL, dx,
                   area_at(call->work, model->work.scratch)));
    return sw_adapter_input_gradient(model, call, name, dy, dx);
}

static struct sw_norm_call norm_call(const struct sw_model *model, const struct sw_unit_call *call,
                                     enum sw_block_tensor scale, float *mean, float *rstd) {
    return (struct sw_norm_call){.rows = model->rows,
                                 .scale = weights_of(model, call, scale),
                                 .bias = weights_of(model, call, (int)scale + 1),
                                 .mean = mean,
                                 .rstd = rstd};
}

struct sw_norm_call sw_block_norm_call(const struct sw_model *model, const struct sw_unit_call *call,
                                       enum sw_block_tensor scale) {
    return norm_call(model, call, scale, NULL, NULL);
}

void sw_block_norm_accumulate(const struct sw_model *model, const struct sw_unit_call *call, enum sw_block_tensor scale,
                              struct sw_norm_call *norm) {
    norm->scale_acc = norm_acc_of(model, call, scale);
    norm->bias_acc = norm_acc_of(model, call, (int)scale + 1);
}

sw_status sw_rank_add_own_rows(const struct sw_model *model, const struct sw_unit_call *call) {
    const int64_t row_bytes = model->config.hidden * sw_dtype_bytes(model->shape.type);
    char *own_out = (char *)call->out + call->own_rows.first_grain * row_bytes;
    return sw_add(call->stream, .type = model->shape.type, .elems = call->own_rows.grains * model->config.hidden,
                  .a = own_out, .b = call->own_in, .y = own_out);
}

sw_status sw_norm_forward(const struct sw_model *model, const struct sw_unit_call *call, enum sw_block_tensor scale,
                          const void *x, void *y, float *mean, float *rstd) {
    const struct sw_norm_call norm = norm_call(model, call, scale, mean, rstd);
    return sw_model_norm_forward(model, call->stream, &norm, x, y);
}

/* Adds the gradient of the norm's input to call->grad. */
static sw_status norm_backward(const struct sw_model *model, const struct sw_unit_call *call,
                               enum sw_block_tensor scale, const void *dy, const void *x, float *mean, float *rstd) {
    struct sw_norm_call norm = norm_call(model, call, scale, mean, rstd);
    sw_block_norm_accumulate(model, call, scale, &norm);
    return sw_model_norm_backward(model, call->stream, &norm, dy, x, true, call->grad);
}

/* The norm of the embedding belongs to the first layer: its input is then the embedding's own output, which the ranks
 * of a tensor group add up before any norm. Its result is computed again wherever it is needed. */

static struct sw_norm_call embedding_norm(const struct sw_model *model, const struct sw_unit_call *call, int64_t rows) {
    struct sw_norm_call norm =
        norm_call(model, call, EMBEDDING_NORM_SCALE, area_at(call->work, model->work.embedding_mean),
                  area_at(call->work, model->work.embedding_rstd));
    norm.rows = rows;
    return norm;
}

static bool norms_embedding(const struct sw_model *model, const struct sw_unit_call *call) {
    return model->config.embedding_norm && call->unit == 1;
}

sw_status sw_enter_first_layer(const struct sw_model *model, const struct sw_unit_call *call,
                               struct sw_unit_call *own) {
    char *normed = area_at(call->work, model->work.embedding_normed);
    const int64_t row_bytes = model->config.hidden * sw_dtype_bytes(model->shape.type);
    *own = *call;
    if (!norms_embedding(model, call) || (call->in == NULL && call->own_in == NULL))
        return SW_OK;
    const bool all = call->in != NULL;
    const struct sw_norm_call norm = embedding_norm(model, call, all ? model->rows : call->own_rows.grains);
    SW_TRY(sw_model_norm_forward(model, call->stream, &norm, all ? call->in : call->own_in, normed));
    if (all)
        own->in = normed;
    if (call->own_in != NULL)
        own->own_in = normed + (all ? call->own_rows.first_grain * row_bytes : 0);
    return SW_OK;
}

sw_status sw_leave_first_layer(const struct sw_model *model, const struct sw_unit_call *call, const void *in,
                               int64_t rows, void *grad) {
    void *normed = area_at(call->work, model->work.embedding_normed);
    if (!norms_embedding(model, call))
        return SW_OK;
    struct sw_norm_call norm = embedding_norm(model, call, rows);
    SW_TRY(sw_model_norm_forward(model, call->stream, &norm, in, normed)); /* for the statistics of these rows */
    SW_TRY(
        sw_copy_on_device(call->stream, normed, grad, rows * model->config.hidden * sw_dtype_bytes(model->shape.type)));
    sw_block_norm_accumulate(model, call, EMBEDDING_NORM_SCALE, &norm);
    return sw_model_norm_backward(model, call->stream, &norm, normed, in, false, grad);
}

/* The inputs of attention, or their gradients. Queries and keys are normalised if the model does so. */
struct head_rows {
    char *q, *k, *v;
};

static struct head_rows head_rows(const struct sw_model *model, char *qkv, char *heads) {
    const int64_t typed = sw_dtype_bytes(model->shape.type), q = model->widths.q * typed, kv = model->widths.kv * typed;
    char *first = model->config.qk_norm ? heads : qkv;
    if (model->config.qkv_by_head) {
        const int64_t part = model->config.head_dim * typed;
        return (struct head_rows){.q = qkv, .k = qkv + part, .v = qkv + 2 * part};
    }
    return (struct head_rows){.q = first, .k = first + q, .v = qkv + q + kv};
}

/* Returns the attention of a unit: with the micro-batch's documents, with its layer's window unless no query looks back
 * that far, and with the numbers of its heads among those of the model. */
static struct sw_attention attention_of(const struct sw_model *model, const struct sw_unit_call *call) {
    const struct sw_tile tile = sw_tile_of(&model->cut, call->unit);
    const int64_t window = sw_config_window(&model->config, tile.layer);
    struct sw_attention attention = model->attention;
    attention.document_start = sw_token_part(model, call, TOKEN_DOCUMENT_START);
    if (window < sw_most_keys(model))
        attention.window = window;
    attention.past = call->past;
    if (attention.alibi_heads > 0)
        attention.alibi_first = (model->cut.rank * model->cut.tiles + tile.index) * attention.heads;
    return attention;
}

/* Rotates queries and keys, which are neighbours in each row. Positions run on across the documents of a sequence:
 * attention depends only on the distance between query and key. */
static sw_status rotate(const struct sw_model *model, const struct sw_unit_call *call, char *q, bool back) {
    const struct sw_attention *a = &model->attention;
    const struct sw_rotation shape = {.batch = a->batch,
                                      .seq = a->seq,
                                      .heads = a->heads + a->kv_heads,
                                      .head_dim = a->head_dim,
                                      .stride = a->q_stride,
                                      .back = back};
    if (model->rotation == NULL)
        return SW_OK;
    const int64_t layer = sw_tile_of(&model->cut, call->unit).layer;
    const float *table = area_at(call->work, model->work.rotation +
                                                 sw_rope_table_of(&model->config, layer) * sw_rope_table_bytes(model));
    return sw_rotate(call->stream, model->shape.type, &shape, table + call->past * a->head_dim, q);
}

/* The norm of queries or of keys, from the result of the product to the input of attention. */
struct head_norm {
    struct sw_rmsnorm shape;
    int64_t offset_bytes; /* offsets within a row: of the product's result, and of the input of attention */
    enum sw_block_tensor scale;
    float *rstd;
};

enum { HEAD_NORMS = 2 };
static void head_norms(const struct sw_model *model, const struct saved *s, struct head_norm out[HEAD_NORMS]) {
    const struct sw_attention *a = &model->attention;
    const bool joint = model->config.joint_qk_norm;
    const struct sw_rmsnorm shape = {.cols = a->head_dim,
                                     .x_stride = model->widths.qkv,
                                     .y_stride = a->q_stride,
                                     .epsilon = (float)model->config.norm_epsilon,
                                     .gamma_base = gamma_base(model)};
    out[0] = (struct head_norm){.shape = shape, .scale = Q_NORM, .rstd = s->q_rstd};
    out[1] = (struct head_norm){.shape = shape,
                                .scale = K_NORM,
                                .rstd = s->k_rstd,
                                .offset_bytes = model->widths.q * sw_dtype_bytes(model->shape.type)};
    out[0].shape.groups = joint ? 1 : a->heads;
    out[1].shape.groups = joint ? 1 : a->kv_heads;
    if (joint) {
        out[0].shape.cols = model->widths.q;
        out[1].shape.cols = model->widths.kv;
    }
    for (int i = 0; i < HEAD_NORMS; i++)
        out[i].shape.rows = model->rows * out[i].shape.groups;
}

static sw_status norm_heads(const struct sw_model *model, const struct sw_unit_call *call, const struct saved *s) {
    struct head_norm norm[HEAD_NORMS];
    if (!model->config.qk_norm)
        return SW_OK;
    head_norms(model, s, norm);
    for (int i = 0; i < HEAD_NORMS; i++)
        SW_TRY(sw_rmsnorm_forward(call->stream, model->shape.type, &norm[i].shape, s->qkv + norm[i].offset_bytes,
                                  weights_of(model, call, norm[i].scale), s->heads + norm[i].offset_bytes,
                                  norm[i].rstd));
    return SW_OK;
}

static sw_status norm_heads_backward(const struct sw_model *model, const struct sw_unit_call *call,
                                     const struct saved *s, const char *d_heads, char *d_qkv) {
    struct head_norm norm[HEAD_NORMS];
    if (!model->config.qk_norm)
        return SW_OK;
    head_norms(model, s, norm);
    for (int i = 0; i < HEAD_NORMS; i++)
        SW_TRY(sw_rmsnorm_backward(call->stream, model->shape.type, &norm[i].shape, false,
                                   d_heads + norm[i].offset_bytes, s->qkv + norm[i].offset_bytes,
                                   weights_of(model, call, norm[i].scale), norm[i].rstd, d_qkv + norm[i].offset_bytes,
                                   norm_acc_of(model, call, norm[i].scale)));
    return SW_OK;
}

/* Keeps whole rows of queries, keys and values, whose parts are `part_bytes` long: one copy of all rows costs less than
 * two for each head, and the queries among them take a third of the cache. */
static sw_status keep_rows(const struct sw_model *model, const struct sw_unit_call *call, struct head_rows *rows,
                           int64_t part_bytes) {
    const int64_t row_bytes = model->widths.qkv * sw_dtype_bytes(model->shape.type);
    char *kept = call->cache;
    SW_TRY(sw_copy_on_device(call->stream, kept + call->past * row_bytes, rows->q, model->rows * row_bytes));
    rows->k = kept + part_bytes;
    rows->v = kept + 2 * part_bytes;
    return SW_OK;
}

/* Appends this pass's keys and values to the KV cache, and points the attention at those of all passes. */
static sw_status keep_keys(const struct sw_model *model, const struct sw_unit_call *call,
                           struct sw_attention *attention, struct head_rows *rows) {
    const int64_t typed = sw_dtype_bytes(model->shape.type), row_bytes = model->widths.kv * typed;
    if (call->cache == NULL)
        return SW_OK;
    if (model->config.qkv_by_head)
        return keep_rows(model, call, rows, attention->head_dim * typed);
    char *keys = call->cache, *values = keys + sw_cache_values_offset(model);
    for (int64_t t = 0; t < model->rows; t++) {
        const int64_t at = (call->past + t) * row_bytes;
        SW_TRY(sw_copy_on_device(call->stream, keys + at, rows->k + t * attention->k_stride * typed, row_bytes));
        SW_TRY(sw_copy_on_device(call->stream, values + at, rows->v + t * attention->v_stride * typed, row_bytes));
    }
    rows->k = keys;
    rows->v = values;
    attention->k_stride = attention->v_stride = model->widths.kv;
    return SW_OK;
}

/* Normalises and rotates queries and keys. Without norms they are rotated in place, in the product's result, so a
 * recomputation must not rotate them again. */
static sw_status turn_heads(const struct sw_model *model, const struct sw_unit_call *call, const struct saved *s) {
    SW_TRY(norm_heads(model, call, s));
    return rotate(model, call, head_rows(model, s->qkv, s->heads).q, false);
}

sw_status sw_attend_derive(const struct sw_model *model, const struct sw_unit_call *call, const struct saved *s) {
    return model->config.qk_norm ? turn_heads(model, call, s) : SW_OK;
}

/* Returns the place of this rank's heads among the attention sinks that it has: ranks that copy key-value heads have
 * those of all heads. */
static int64_t first_sink(const struct sw_model *model) {
    return sw_cut_copies_kv(&model->config, &model->cut) ? model->cut.rank * model->attention.heads : 0;
}

/* Returns the sinks of the unit's heads; NULL: there are none. */
static const void *sinks_of(const struct sw_model *model, const struct sw_unit_call *call) {
    const char *sinks = weights_of(model, call, SINKS);
    return sinks == NULL ? NULL : sinks + first_sink(model) * sw_dtype_bytes(model->shape.type);
}

sw_status sw_attend_forward(const struct sw_model *model, const struct sw_unit_call *call, const void *n,
                            const struct saved *s) {
    struct sw_attention attention = attention_of(model, call);
    struct head_rows rows = head_rows(model, s->qkv, s->heads);
    SW_TRY(collect_qkv(model, call));
    SW_TRY(sw_linear_forward(model, call, LINEAR_QKV, QKV_WEIGHT, n, NULL, s->qkv));
    SW_TRY(turn_heads(model, call, s));
    SW_TRY(keep_keys(model, call, &attention, &rows));
    SW_TRY(sw_attention_forward(call->stream, model->shape.type, &attention, rows.q, rows.k, rows.v, s->attention_out,
                                s->log_sum_exp, area_at(call->work, model->work.scratch)));
    const void *sinks = sinks_of(model, call);
    return sinks == NULL
               ? SW_OK
               : sw_sink_forward(call->stream, model->shape.type, &attention, sinks, s->attention_out, s->log_sum_exp);
}

/* Adds the gradient of the sinks, from the gradient at the result of attention. */
static sw_status sink_gradient(const struct sw_model *model, const struct sw_unit_call *call, const struct saved *s,
                               const struct sw_attention *attention, const void *d_o) {
    float *acc = acc_of(model, call, SINKS);
    return acc == NULL ? SW_OK
                       : sw_sink_backward(call->stream, model->shape.type, attention, sinks_of(model, call),
                                          s->attention_out, d_o, s->log_sum_exp, acc + first_sink(model));
}

sw_status sw_attend_input_gradient(const struct sw_model *model, const struct sw_unit_call *call, const struct saved *s,
                                   void *product_grad, void *dn) {
    const struct sw_attention attention = attention_of(model, call);
    void *narrow = area_at(call->work, model->work.narrow);
    char *d_qkv = product_grad, *d_heads = area_at(call->work, model->work.heads);
    const struct head_rows rows = head_rows(model, s->qkv, s->heads), grads = head_rows(model, d_qkv, d_heads);
    SW_TRY(linear_input_gradient(model, call, LINEAR_PROJECTION, PROJECTION_WEIGHT, call->grad, narrow));
    SW_TRY(sw_attention_backward(call->stream, model->shape.type, &attention, rows.q, rows.k, rows.v, s->attention_out,
                                 narrow, s->log_sum_exp, grads.q, grads.k, grads.v,
                                 area_at(call->work, model->work.scratch)));
    SW_TRY(sink_gradient(model, call, s, &attention, narrow));
    SW_TRY(rotate(model, call, grads.q, true));
    SW_TRY(norm_heads_backward(model, call, s, d_heads, d_qkv));
    SW_TRY(collect_qkv(model, call));
    return linear_input_gradient(model, call, LINEAR_QKV, QKV_WEIGHT, d_qkv, dn);
}

sw_status sw_attend_last_product(const struct sw_model *model, const struct sw_unit_call *call, const struct saved *s) {
    return linear_weight_gradient(model, call, LINEAR_PROJECTION, PROJECTION_WEIGHT, s->attention_out, call->grad);
}

sw_status sw_attend_first_product(const struct sw_model *model, const struct sw_unit_call *call, const void *n,
                                  const void *product_grad) {
    SW_TRY(zero_qkv_acc(model, call));
    SW_TRY(linear_weight_gradient(model, call, LINEAR_QKV, QKV_WEIGHT, n, product_grad));
    return add_qkv_acc(model, call);
}

sw_status sw_attend_backward(const struct sw_model *model, const struct sw_unit_call *call, const void *n,
                             const struct saved *s, void *dn) {
    void *product_grad = area_at(call->work, model->work.wide);
    SW_TRY(sw_attend_input_gradient(model, call, s, product_grad, dn));
    SW_TRY(sw_attend_last_product(model, call, s));
    return sw_attend_first_product(model, call, n, product_grad);
}

sw_status sw_mlp_forward(const struct sw_model *model, const struct sw_unit_call *call, const void *n,
                         const struct saved *s) {
    const sw_activation activation = model->config.activation;
    SW_TRY(sw_linear_forward(model, call, LINEAR_UP, UP_WEIGHT, n, NULL, s->up));
    return model->config.gated ? sw_gated_forward(call->stream, model->shape.type, activation, model->rows,
                                                  model->widths.ffn, s->up, s->activated, SW_ALL_ROWS)
                               : sw_activation_forward(call->stream, model->shape.type, activation,
                                                       model->rows * model->widths.ffn, s->up, s->activated);
}

/* Where activated values were not kept, the backward pass of the activation makes them from its own input. The products
 * that read them must come later. */
sw_status sw_mlp_input_gradient(const struct sw_model *model, const struct sw_unit_call *call, const struct saved *s,
                                void *product_grad, void *dn) {
    const sw_activation activation = model->config.activation;
    void *inner = model->config.gated ? area_at(call->work, model->work.inner) : product_grad;
    void *again = call->recompute == SW_RECOMPUTE_NOTHING ? NULL : s->activated;
    SW_TRY(linear_input_gradient(model, call, LINEAR_DOWN, DOWN_WEIGHT, call->grad, inner));
    SW_TRY(model->config.gated
               ? sw_gated_backward(call->stream, model->shape.type, activation, model->rows, model->widths.ffn, s->up,
                                   inner, product_grad, again, SW_ALL_ROWS)
               : sw_activation_backward(call->stream, model->shape.type, activation, model->rows * model->widths.ffn,
                                        s->up, inner, product_grad, again));
    return linear_input_gradient(model, call, LINEAR_UP, UP_WEIGHT, product_grad, dn);
}

sw_status sw_mlp_last_product(const struct sw_model *model, const struct sw_unit_call *call, const struct saved *s) {
    return linear_weight_gradient(model, call, LINEAR_DOWN, DOWN_WEIGHT, s->activated, call->grad);
}

sw_status sw_mlp_first_product(const struct sw_model *model, const struct sw_unit_call *call, const void *n,
                               const void *product_grad) {
    return linear_weight_gradient(model, call, LINEAR_UP, UP_WEIGHT, n, product_grad);
}

sw_status sw_mlp_backward(const struct sw_model *model, const struct sw_unit_call *call, const void *n,
                          const struct saved *s, void *dn) {
    void *product_grad = area_at(call->work, model->work.wide);
    SW_TRY(sw_mlp_input_gradient(model, call, s, product_grad, dn));
    SW_TRY(sw_mlp_last_product(model, call, s));
    return sw_mlp_first_product(model, call, n, product_grad);
}

/* The shared expert of a mixture is its dense MLP, whose result the sigmoid of a logit scales: a softmax over that
 * logit and 0. So every row is routed to two experts, of which it is the first, and as in experts.c the weight scales
 * the activated values. The places of the first expert's pairs are the rows in their order. */

static sw_status shared_route(const struct sw_model *model, const struct sw_unit_call *call, const void *n,
                              const struct saved *s) {
    const void *gate = weights_of(model, call, SHARED_GATE);
    const int64_t logits_bytes = 2 * model->rows * sw_dtype_bytes(model->shape.type);
    SW_TRY(sw_zero(call->stream, s->shared_logits, logits_bytes));
    SW_TRY(sw_gemm(call->stream, &model->shared_gate.forward, n, gate, NULL, s->shared_logits,
                   area_at(call->work, model->work.scratch)));
    SW_TRY(sw_route_forward(call->stream, .type = model->shape.type, .shape = &model->shared_routing,
                            .logits = s->shared_logits, .expert = s->shared_chosen, .weight = s->shared_weight));
    return sw_order_by_expert(call->stream, .rows = model->rows, .experts = 2, .chosen = 2, .expert = s->shared_chosen,
                              .offset = s->shared_offset, .source = s->shared_source, .place = s->shared_place);
}

/* Scales the activated values into the work area, and lets *out have them in the place of the unscaled. */
static sw_status shared_scale(const struct sw_model *model, const struct sw_unit_call *call, const struct saved *s,
                              struct saved *out) {
    *out = *s;
    out->activated = area_at(call->work, model->work.shared_inner);
    return sw_scale_rows(call->stream, .type = model->shape.type, .rows = model->rows, .cols = model->widths.ffn,
                         .source = s->shared_source, .weight = s->shared_weight, .x = s->activated,
                         .y = out->activated);
}

sw_status sw_shared_forward(const struct sw_model *model, const struct sw_unit_call *call, const void *n,
                            const void *residual, const struct saved *s, void *sum, const void **out) {
    struct saved scaled;
    *out = residual;
    if (!sw_config_has_shared_expert(&model->config))
        return SW_OK;
    *out = sum;
    SW_TRY(sw_mlp_forward(model, call, n, s));
    SW_TRY(shared_route(model, call, n, s));
    SW_TRY(shared_scale(model, call, s, &scaled));
    return sw_linear_forward(model, call, LINEAR_DOWN, DOWN_WEIGHT, scaled.activated, residual, sum);
}

sw_status sw_shared_recompute(const struct sw_model *model, const struct sw_unit_call *call, const void *n,
                              const struct saved *s) {
    if (!sw_config_has_shared_expert(&model->config))
        return SW_OK;
    SW_TRY(sw_linear_forward(model, call, LINEAR_UP, UP_WEIGHT, n, NULL, s->up));
    return shared_route(model, call, n, s);
}

/* Goes from the gradient at the scaled activated values, `inner`, to that at the activated values, in its place, and to
 * that at the logit of each row. */
static sw_status shared_scale_backward(const struct sw_model *model, const struct sw_unit_call *call,
                                       const struct saved *s, void *inner, void *logits_grad) {
    float *weight_grad = area_at(call->work, model->work.shared_weight_grad);
    SW_TRY(sw_zero(call->stream, weight_grad, 2 * model->rows * (int64_t)sizeof *weight_grad));
    SW_TRY(sw_scale_rows_backward(call->stream, .type = model->shape.type, .rows = model->rows,
                                  .cols = model->widths.ffn, .source = s->shared_source, .weight = s->shared_weight,
                                  .x = s->activated, .dy = inner, .dx = inner, .d_weight = weight_grad));
    return sw_route_backward(call->stream, .type = model->shape.type, .shape = &model->shared_routing,
                             .logits = s->shared_logits, .expert = s->shared_chosen, .d_weight = weight_grad,
                             .d_logits = logits_grad);
}

/* Goes from call->grad to the gradients at the results of the first product and of the gate, and to that at the
 * normalised input, in the work area. */
static sw_status shared_input_gradient(const struct sw_model *model, const struct sw_unit_call *call,
                                       const struct saved *s, void *up_grad, void *logits_grad) {
    const sw_activation activation = model->config.activation;
    const int64_t ffn = model->widths.ffn;
    void *inner = area_at(call->work, model->work.inner), *dn = area_at(call->work, model->work.shared_rows);
    if (call->recompute != SW_RECOMPUTE_NOTHING)
        SW_TRY(sw_gated_forward(call->stream, model->shape.type, activation, model->rows, ffn, s->up, s->activated,
                                SW_ALL_ROWS));
    SW_TRY(linear_input_gradient(model, call, LINEAR_DOWN, DOWN_WEIGHT, call->grad, inner));
    SW_TRY(shared_scale_backward(model, call, s, inner, logits_grad));
    SW_TRY(sw_gated_backward(call->stream, model->shape.type, activation, model->rows, ffn, s->up, inner, up_grad, NULL,
                             SW_ALL_ROWS));
    SW_TRY(linear_input_gradient(model, call, LINEAR_UP, UP_WEIGHT, up_grad, dn));
    return sw_gemm(call->stream, &model->shared_gate.input_gradient, logits_grad, weights_of(model, call, SHARED_GATE),
                   NULL, dn, area_at(call->work, model->work.scratch));
}

/* Adds the gradients of the first product's weights and of the gate. */
static sw_status shared_first_product(const struct sw_model *model, const struct sw_unit_call *call, const void *n,
                                      const void *up_grad, const void *logits_grad) {
    float *acc = acc_of(model, call, SHARED_GATE);
    SW_TRY(sw_mlp_first_product(model, call, n, up_grad));
    return acc == NULL ? SW_OK
                       : sw_gemm(call->stream, &model->shared_gate.weight_gradient, logits_grad, n, NULL, acc,
                                 area_at(call->work, model->work.scratch));
}

sw_status sw_shared_input_gradient(const struct sw_model *model, const struct sw_unit_call *call, const struct saved *s,
                                   void *product_grad) {
    return sw_config_has_shared_expert(&model->config)
               ? shared_input_gradient(model, call, s, (char *)product_grad + sw_shared_grad_offset(model),
                                       (char *)product_grad + sw_shared_logits_grad_offset(model))
               : SW_OK;
}

sw_status sw_shared_last_product(const struct sw_model *model, const struct sw_unit_call *call, const struct saved *s) {
    struct saved scaled;
    if (!sw_config_has_shared_expert(&model->config))
        return SW_OK;
    SW_TRY(shared_scale(model, call, s, &scaled));
    return sw_mlp_last_product(model, call, &scaled);
}

sw_status sw_shared_first_product(const struct sw_model *model, const struct sw_unit_call *call, const void *n,
                                  const void *product_grad) {
    return sw_config_has_shared_expert(&model->config)
               ? shared_first_product(model, call, n, (const char *)product_grad + sw_shared_grad_offset(model),
                                      (const char *)product_grad + sw_shared_logits_grad_offset(model))
               : SW_OK;
}

sw_status sw_shared_backward(const struct sw_model *model, const struct sw_unit_call *call, const void *n,
                             const struct saved *s) {
    void *up_grad = area_at(call->work, model->work.wide);
    void *logits_grad = area_at(call->work, model->work.shared_logits_grad);
    if (!sw_config_has_shared_expert(&model->config))
        return SW_OK;
    SW_TRY(shared_input_gradient(model, call, s, up_grad, logits_grad));
    SW_TRY(sw_shared_last_product(model, call, s));
    return shared_first_product(model, call, n, up_grad, logits_grad);
}

/* Adds to the residual and normalises the sum, in one pass over memory. */
static sw_status add_norm_forward(const struct sw_model *model, const struct sw_unit_call *call, const void *added,
                                  const struct saved *s) {
    const struct sw_norm_call norm = norm_call(model, call, NORM2_SCALE, s->norm2_mean, s->norm2_rstd);
    const bool layer = model->config.norm == SW_NORM_LAYER;
    return sw_add_norm_forward(call->stream, model->shape.type, model->rows, model->config.hidden,
                               (float)model->config.norm_epsilon, call->in, added, s->residual, norm.scale,
                               layer ? norm.bias : NULL, s->norm2_out, layer ? norm.mean : NULL, norm.rstd,
                               gamma_base(model));
}

/* Computes everything up to the MLP's normalised input. */
sw_status sw_block_fill_attention(struct sw_model *model, const struct sw_unit_call *call, const struct saved *s) {
    void *narrow = area_at(call->work, model->work.narrow);
    const bool norms_result = model->config.norm_of_results;
    void *result = norms_result ? s->attention_result : narrow;
    SW_TRY(sw_norm_forward(model, call, NORM1_SCALE, call->in, s->norm1_out, s->norm1_mean, s->norm1_rstd));
    SW_TRY(sw_attend_forward(model, call, s->norm1_out, s));
    SW_TRY(sw_linear_forward(model, call, LINEAR_PROJECTION, PROJECTION_WEIGHT, s->attention_out, NULL, result));
    if (norms_result)
        SW_TRY(sw_norm_forward(model, call, ATTENTION_RESULT_NORM, result, narrow, NULL, s->attention_result_rstd));
    return add_norm_forward(model, call, narrow, s);
}

/* Computes the MLP's result before its norm. */
static sw_status fill_mlp_result(const struct sw_model *model, const struct sw_unit_call *call, const struct saved *s) {
    SW_TRY(sw_mlp_forward(model, call, s->norm2_out, s));
    return sw_linear_forward(model, call, LINEAR_DOWN, DOWN_WEIGHT, s->activated, NULL, s->mlp_result);
}

/* Computes the gradient at the result of attention or the MLP from that at its norm's output, and adds the gradient of
 * the scale. */
static sw_status result_norm_backward(const struct sw_model *model, const struct sw_unit_call *call,
                                      enum sw_block_tensor scale, const void *result, float *rstd, void *result_grad) {
    struct sw_norm_call norm = norm_call(model, call, scale, NULL, rstd);
    sw_block_norm_accumulate(model, call, scale, &norm);
    return sw_model_norm_backward(model, call->stream, &norm, call->grad, result, false, result_grad);
}

/* Recomputes, with the arithmetic of the forward pass, the inputs of the backward pass that need no matrix product. The
 * activated values are left out, because the backward pass computes them itself. */
sw_status sw_block_fill_derived(const struct sw_model *model, const struct sw_unit_call *call, const struct saved *s) {
    SW_TRY(sw_norm_forward(model, call, NORM1_SCALE, call->in, s->norm1_out, s->norm1_mean, s->norm1_rstd));
    SW_TRY(sw_attend_derive(model, call, s));
    return sw_norm_forward(model, call, NORM2_SCALE, s->residual, s->norm2_out, s->norm2_mean, s->norm2_rstd);
}

/* Normalises the MLP's result into the work area. */
static sw_status norm_mlp_result(const struct sw_model *model, const struct sw_unit_call *call, const struct saved *s) {
    return sw_norm_forward(model, call, MLP_RESULT_NORM, s->mlp_result, area_at(call->work, model->work.narrow), NULL,
                           s->mlp_result_rstd);
}

sw_status sw_block_recompute(struct sw_model *model, const struct sw_unit_call *call) {
    const struct saved s = sw_saved_of(model, call);
    if (call->recompute == SW_RECOMPUTE_DERIVED)
        return sw_block_fill_derived(model, call, &s);
    SW_TRY(sw_block_fill_attention(model, call, &s));
    if (model->config.experts > 0) {
        SW_TRY(sw_shared_recompute(model, call, s.norm2_out, &s));
        return sw_experts_up(model, call, s.norm2_out, &s);
    }
    if (model->config.norm_of_results) {
        SW_TRY(fill_mlp_result(model, call, &s));
        return norm_mlp_result(model, call, &s);
    }
    return sw_linear_forward(model, call, LINEAR_UP, UP_WEIGHT, s.norm2_out, NULL, s.up);
}

sw_status sw_block_forward(struct sw_model *model, const struct sw_unit_call *call) {
    const struct saved s = sw_saved_of(model, call);
    SW_TRY(sw_block_fill_attention(model, call, &s));
    if (model->config.experts > 0) {
        const void *addend;
        SW_TRY(sw_shared_forward(model, call, s.norm2_out, s.residual, &s, area_at(call->work, model->work.shared_rows),
                                 &addend));
        return sw_experts_forward(model, call, s.norm2_out, addend, &s);
    }
    if (model->config.norm_of_results) {
        SW_TRY(fill_mlp_result(model, call, &s));
        SW_TRY(norm_mlp_result(model, call, &s));
        return sw_add(call->stream, model->shape.type, model->rows * model->config.hidden, s.residual,
                      area_at(call->work, model->work.narrow), call->out);
    }
    SW_TRY(sw_mlp_forward(model, call, s.norm2_out, &s));
    return sw_linear_forward(model, call, LINEAR_DOWN, DOWN_WEIGHT, s.activated, s.residual, call->out);
}

sw_status sw_block_attention_backward(struct sw_model *model, const struct sw_unit_call *call, const struct saved *s,
                                      const void *dn) {
    void *narrow = area_at(call->work, model->work.narrow);
    SW_TRY(norm_backward(model, call, NORM2_SCALE, dn, s->residual, s->norm2_mean, s->norm2_rstd));
    SW_TRY(sw_attend_backward(model, call, s->norm1_out, s, narrow));
    return norm_backward(model, call, NORM1_SCALE, narrow, call->in, s->norm1_mean, s->norm1_rstd);
}

/* Runs the two halves with the gradients at their results, which come before the norms of these. */
static sw_status backward_with_result_norms(struct sw_model *model, const struct sw_unit_call *call,
                                            const struct saved *s) {
    void *narrow = area_at(call->work, model->work.narrow);
    struct sw_unit_call half = *call;
    half.grad = area_at(call->work, model->work.result_grad);
    SW_TRY(result_norm_backward(model, call, MLP_RESULT_NORM, s->mlp_result, s->mlp_result_rstd, half.grad));
    SW_TRY(sw_mlp_backward(model, &half, s->norm2_out, s, narrow));
    SW_TRY(norm_backward(model, call, NORM2_SCALE, narrow, s->residual, s->norm2_mean, s->norm2_rstd));
    SW_TRY(result_norm_backward(model, call, ATTENTION_RESULT_NORM, s->attention_result, s->attention_result_rstd,
                                half.grad));
    SW_TRY(sw_attend_backward(model, &half, s->norm1_out, s, narrow));
    return norm_backward(model, call, NORM1_SCALE, narrow, call->in, s->norm1_mean, s->norm1_rstd);
}

sw_status sw_block_backward(struct sw_model *model, const struct sw_unit_call *call) {
    const struct saved s = sw_saved_of(model, call);
    void *narrow = area_at(call->work, model->work.narrow);
    if (model->config.norm_of_results)
        return backward_with_result_norms(model, call, &s);
    if (model->config.experts > 0)
        SW_TRY(sw_shared_backward(model, call, s.norm2_out, &s));
    SW_TRY(model->config.experts > 0 ? sw_experts_backward(model, call, s.norm2_out, &s, narrow)
                                     : sw_mlp_backward(model, call, s.norm2_out, &s, narrow));
    return sw_block_attention_backward(model, call, &s, narrow);
}

/* A tile of one half of a block, forward and backward: some heads of the attention, or some columns of the MLP's inner
 * layer. Each tile adds its share to the residual, so the device holds the weights of only one tile at a time. The
 * first tile also computes the half's normalised input and hands it on. In the backward pass the gradient at that input
 * is summed from the last tile to the first, which runs the backward pass of the norm. */

struct tile_call {
    struct sw_tile tile;
    bool mlp;
    struct saved s;
    const void *n; /* the half's normalised input */
    void *norm_out;
    float *mean, *rstd;
};

static struct tile_call describe(const struct sw_model *model, const struct sw_unit_call *call) {
    struct tile_call t = {.tile = sw_tile_of(&model->cut, call->unit), .s = sw_saved_of(model, call)};
    t.mlp = t.tile.kind == MLP_FIRST || t.tile.kind == MLP_NEXT;
    t.norm_out = t.mlp ? t.s.norm2_out : t.s.norm1_out;
    t.mean = t.mlp ? t.s.norm2_mean : t.s.norm1_mean;
    t.rstd = t.mlp ? t.s.norm2_rstd : t.s.norm1_rstd;
    t.n = t.tile.first ? t.norm_out : (const char *)call->in + sw_norm_offset(model);
    return t;
}

static int64_t hidden_elems(const struct sw_model *model) {
    return model->rows * model->config.hidden;
}

static sw_status fill_norm(const struct sw_model *model, const struct sw_unit_call *call, const struct tile_call *t) {
    const enum sw_block_tensor scale = t->mlp ? NORM2_SCALE : NORM1_SCALE;
    return t->tile.first ? sw_norm_forward(model, call, scale, call->in, t->norm_out, t->mean, t->rstd) : SW_OK;
}

sw_status sw_tile_recompute(struct sw_model *model, const struct sw_unit_call *call) {
    const struct tile_call t = describe(model, call);
    SW_TRY(fill_norm(model, call, &t));
    if (call->recompute == SW_RECOMPUTE_DERIVED)
        return SW_OK; /* heads whose norms would have to be computed again are not cut into tiles */
    return t.mlp ? sw_linear_forward(model, call, LINEAR_UP, UP_WEIGHT, t.n, NULL, t.s.up)
                 : sw_attend_forward(model, call, t.n, &t.s);
}

sw_status sw_tile_forward(struct sw_model *model, const struct sw_unit_call *call) {
    const struct tile_call t = describe(model, call);
    SW_TRY(fill_norm(model, call, &t));
    SW_TRY(t.mlp ? sw_mlp_forward(model, call, t.n, &t.s) : sw_attend_forward(model, call, t.n, &t.s));
    SW_TRY(t.mlp ? sw_linear_forward(model, call, LINEAR_DOWN, DOWN_WEIGHT, t.s.activated, call->in, call->out)
                 : sw_linear_forward(model, call, LINEAR_PROJECTION, PROJECTION_WEIGHT, t.s.attention_out, call->in,
                                     call->out));
    if (t.tile.last)
        return SW_OK;
    SW_TRY(sw_copy_on_device(call->stream, area_at(call->out, sw_norm_offset(model)), t.n,
                             hidden_elems(model) * sw_dtype_bytes(model->shape.type)));
    return sw_adapters_hand_on(model, call);
}

sw_status sw_tile_backward(struct sw_model *model, const struct sw_unit_call *call) {
    const struct tile_call t = describe(model, call);
    void *narrow = area_at(call->work, model->work.narrow);
    void *norm_grad = area_at(call->grad, sw_norm_offset(model));
    void *dn = t.tile.last ? norm_grad : narrow; /* the backward pass begins with the last tile */
    SW_TRY(sw_adapters_begin_backward(model, call));
    SW_TRY(t.mlp ? sw_mlp_backward(model, call, t.n, &t.s, dn) : sw_attend_backward(model, call, t.n, &t.s, dn));
    if (!t.tile.last)
        SW_TRY(sw_add(call->stream, model->shape.type, hidden_elems(model), norm_grad, narrow, norm_grad));
    SW_TRY(sw_adapters_end_backward(model, call));
    return t.tile.first
               ? norm_backward(model, call, t.mlp ? NORM2_SCALE : NORM1_SCALE, norm_grad, call->in, t.mean, t.rstd)
               : SW_OK;
}
