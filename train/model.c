#include "train/model.h"

#include "core/rng.h"
#include "core/size.h"
#include "train/model_private.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Logits and their gradient of one tile of rows; the tile depends on the model alone, so that budgets never change
 * bits. */
#define HEAD_TILE_BYTES (64 * SW_MIB)
enum { HEAD_TILE_ROWS_MULTIPLE = 16, AREA_ALIGN_BYTES = 128 };

static sw_status add_block_tensors(struct sw_unit *unit, const struct sw_model_config *c, int64_t layer) {
    const struct {
        const char *name;
        int dims;
        int64_t dim[2];
    } tensors[BLOCK_TENSORS] = {
        [NORM1_SCALE] = {"ln_1.weight", 1, {c->hidden}},
        [NORM1_BIAS] = {"ln_1.bias", 1, {c->hidden}},
        [QKV_WEIGHT] = {"attn.c_attn.weight", 2, {c->hidden, 3 * c->hidden}},
        [QKV_BIAS] = {"attn.c_attn.bias", 1, {3 * c->hidden}},
        [PROJECTION_WEIGHT] = {"attn.c_proj.weight", 2, {c->hidden, c->hidden}},
        [PROJECTION_BIAS] = {"attn.c_proj.bias", 1, {c->hidden}},
        [NORM2_SCALE] = {"ln_2.weight", 1, {c->hidden}},
        [NORM2_BIAS] = {"ln_2.bias", 1, {c->hidden}},
        [UP_WEIGHT] = {"mlp.c_fc.weight", 2, {c->hidden, c->ffn}},
        [UP_BIAS] = {"mlp.c_fc.bias", 1, {c->ffn}},
        [DOWN_WEIGHT] = {"mlp.c_proj.weight", 2, {c->ffn, c->hidden}},
        [DOWN_BIAS] = {"mlp.c_proj.bias", 1, {c->hidden}},
    };
    for (int t = 0; t < BLOCK_TENSORS; t++) {
        char name[SW_TENSOR_NAME_CHARS];
        snprintf(name, sizeof name, "transformer.h.%lld.%s", (long long)layer, tensors[t].name);
        SW_TRY(sw_unit_add_tensor(unit, name, tensors[t].dims, tensors[t].dim, tensors[t].dims > 1));
    }
    return SW_OK;
}

static sw_status add_all_tensors(struct sw_units *units, const struct sw_model_config *c) {
    struct sw_unit *embedding = &units->unit[0], *head = &units->unit[units->count - 1];
    snprintf(embedding->name, sizeof embedding->name, "embedding");
    SW_TRY(sw_unit_add_tensor(embedding, "transformer.wte.weight", 2, (int64_t[]){c->vocab, c->hidden}, true));
    SW_TRY(sw_unit_add_tensor(embedding, "transformer.wpe.weight", 2, (int64_t[]){c->max_positions, c->hidden}, true));
    for (int64_t layer = 0; layer < c->layers; layer++) {
        snprintf(units->unit[1 + layer].name, SW_UNIT_NAME_CHARS, "block %lld", (long long)layer);
        SW_TRY(add_block_tensors(&units->unit[1 + layer], c, layer));
    }
    snprintf(head->name, sizeof head->name, "head");
    SW_TRY(sw_unit_add_tensor(head, "transformer.ln_f.weight", 1, &c->hidden, false));
    SW_TRY(sw_unit_add_tensor(head, "transformer.ln_f.bias", 1, &c->hidden, false));
    if (!c->tied_embeddings)
        SW_TRY(sw_unit_add_tensor(head, "lm_head.weight", 2, (int64_t[]){c->vocab, c->hidden}, true));
    return SW_OK;
}

sw_status sw_model_units(const struct sw_model_config *config, struct sw_units **out) {
    struct sw_units *units;
    SW_TRY(sw_units_create(config->layers + 2, &units));
    units->tied = config->tied_embeddings;
    sw_status status = add_all_tensors(units, config);
    if (status == SW_OK)
        status = sw_units_seal(units);
    if (status != SW_OK) {
        sw_units_destroy(units);
        return status;
    }
    *out = units;
    return SW_OK;
}

static int64_t place(int64_t *used_bytes, int64_t bytes) {
    const int64_t at = *used_bytes;
    *used_bytes += sw_round_up(bytes, AREA_ALIGN_BYTES);
    return at;
}

static void lay_saved(struct sw_model *model) {
    const struct sw_model_config *c = &model->config;
    struct saved_layout *s = &model->saved;
    const int64_t hidden_bytes = model->rows * c->hidden * sw_dtype_bytes(model->shape.type);
    const int64_t ffn_bytes = model->rows * c->ffn * sw_dtype_bytes(model->shape.type);
    const int64_t row_bytes = model->rows * (int64_t)sizeof(float);
    s->norm1_mean = place(&s->bytes, row_bytes);
    s->norm1_rstd = place(&s->bytes, row_bytes);
    s->norm1_out = place(&s->bytes, hidden_bytes);
    s->qkv = place(&s->bytes, 3 * hidden_bytes);
    s->log_sum_exp = place(&s->bytes, row_bytes * c->heads);
    s->attention_out = place(&s->bytes, hidden_bytes);
    s->residual = place(&s->bytes, hidden_bytes);
    s->norm2_mean = place(&s->bytes, row_bytes);
    s->norm2_rstd = place(&s->bytes, row_bytes);
    s->norm2_out = place(&s->bytes, hidden_bytes);
    s->up = place(&s->bytes, ffn_bytes);
    s->activated = place(&s->bytes, ffn_bytes);
}

static void lay_work(struct sw_model *model) {
    const struct sw_model_config *c = &model->config;
    struct work_layout *w = &model->work;
    const int64_t typed = sw_dtype_bytes(model->shape.type);
    const int64_t hidden_bytes = model->rows * c->hidden * typed;
    const int64_t row_bytes = model->rows * (int64_t)sizeof(float);
    w->scratch = place(&w->bytes, sw_round_up(model->scratch_bytes, SW_BUFFER_ALIGN_BYTES));
    int64_t block = w->bytes, head = w->bytes;
    w->wide = place(&block, model->rows * sw_max_i64(c->ffn, 3 * c->hidden) * typed);
    w->narrow = place(&block, hidden_bytes);
    w->norm_mean = place(&head, row_bytes);
    w->norm_rstd = place(&head, row_bytes);
    w->norm_out = place(&head, hidden_bytes);
    w->norm_grad = place(&head, hidden_bytes);
    w->logits = place(&head, model->tile_rows * c->vocab * (int64_t)sizeof(float));
    w->logits_grad = place(&head, model->tile_rows * c->vocab * typed);
    w->losses = place(&head, model->tile_rows * (int64_t)sizeof(float));
    w->bytes = sw_max_i64(block, head);
}

static sw_status prepare(struct sw_model *model, const struct sw_gemm *shape) {
    int64_t bytes;
    SW_TRY(sw_device_prepare_gemm(model->device, shape, &bytes));
    model->scratch_bytes = sw_max_i64(model->scratch_bytes, bytes);
    return SW_OK;
}

static sw_status prepare_linear(struct sw_model *model, enum linear_name name, int64_t in, int64_t out) {
    const sw_dtype type = model->shape.type;
    struct linear *linear = &model->linear[name];
    linear->forward = (struct sw_gemm){.m = model->rows, .n = out, .k = in, .bias = true, .in = type, .out = type};
    linear->input_gradient =
        (struct sw_gemm){.m = model->rows, .n = in, .k = out, .transpose_b = true, .in = type, .out = type};
    linear->weight_gradient = (struct sw_gemm){
        .m = in, .n = out, .k = model->rows, .transpose_a = true, .accumulate = true, .in = type, .out = SW_F32};
    SW_TRY(prepare(model, &linear->forward));
    SW_TRY(prepare(model, &linear->input_gradient));
    return prepare(model, &linear->weight_gradient);
}

static sw_status prepare_head(struct sw_model *model, struct head_products *products, int64_t rows) {
    const struct sw_model_config *c = &model->config;
    const sw_dtype type = model->shape.type;
    products->logits =
        (struct sw_gemm){.m = rows, .n = c->vocab, .k = c->hidden, .transpose_b = true, .in = type, .out = SW_F32};
    products->input_gradient = (struct sw_gemm){.m = rows, .n = c->hidden, .k = c->vocab, .in = type, .out = type};
    products->table_gradient = (struct sw_gemm){
        .m = c->vocab, .n = c->hidden, .k = rows, .transpose_a = true, .accumulate = true, .in = type, .out = SW_F32};
    SW_TRY(prepare(model, &products->logits));
    SW_TRY(prepare(model, &products->input_gradient));
    return prepare(model, &products->table_gradient);
}

static void cut_head_tiles(struct sw_model *model) {
    const int64_t row_bytes = model->config.vocab * ((int64_t)sizeof(float) + sw_dtype_bytes(model->shape.type));
    const int64_t most_rows = sw_max_i64(HEAD_TILE_BYTES / row_bytes, HEAD_TILE_ROWS_MULTIPLE);
    const int64_t tiles = sw_div_up(model->rows, most_rows);
    model->tile_rows = sw_min_i64(model->rows, sw_round_up(sw_div_up(model->rows, tiles), HEAD_TILE_ROWS_MULTIPLE));
    const int64_t rest = model->rows % model->tile_rows;
    model->last_tile_rows = rest == 0 ? model->tile_rows : rest;
}

static sw_status prepare_products(struct sw_model *model) {
    const struct sw_model_config *c = &model->config;
    SW_TRY(prepare_linear(model, LINEAR_QKV, c->hidden, 3 * c->hidden));
    SW_TRY(prepare_linear(model, LINEAR_PROJECTION, c->hidden, c->hidden));
    SW_TRY(prepare_linear(model, LINEAR_UP, c->hidden, c->ffn));
    SW_TRY(prepare_linear(model, LINEAR_DOWN, c->ffn, c->hidden));
    SW_TRY(prepare_head(model, &model->tile, model->tile_rows));
    SW_TRY(prepare_head(model, &model->last_tile, model->last_tile_rows));
    SW_TRY(prepare_head(model, &model->row, 1));
    model->attention = (struct sw_attention){
        .batch = model->shape.batch,
        .seq = model->shape.seq,
        .heads = c->heads,
        .kv_heads = c->kv_heads,
        .head_dim = c->head_dim,
        .q_stride = 3 * c->hidden,
        .kv_stride = 3 * c->hidden,
        .o_stride = c->hidden,
        .scale = (float)(1.0 / sqrt((double)c->head_dim)),
    };
    model->scratch_bytes = sw_max_i64(model->scratch_bytes,
                                      sw_attention_scratch_bytes(model->device, &model->attention, model->shape.type));
    return SW_OK;
}

sw_status sw_model_create(const struct sw_model_config *config, const struct sw_model_shape *shape,
                          struct sw_device *device, struct sw_model **out) {
    if (shape->seq > config->max_positions)
        return sw_fail(SW_ERR_ARG, "--seq %lld is longer than the model's %lld positions", (long long)shape->seq,
                       (long long)config->max_positions);
    int64_t widest;
    if (!sw_mul_i64(shape->batch, shape->seq, &widest) ||
        !sw_mul_i64(widest, 64 * sw_max_i64(config->ffn, config->hidden), &widest))
        return sw_fail(SW_ERR_ARG, "a micro-batch of %lld sequences is too large", (long long)shape->batch);
    struct sw_model *model = calloc(1, sizeof *model);
    if (model == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the model");
    model->config = *config;
    model->shape = *shape;
    model->device = device;
    model->rows = shape->batch * shape->seq;
    cut_head_tiles(model);
    sw_status status = sw_model_units(config, &model->units);
    if (status == SW_OK)
        status = prepare_products(model);
    if (status != SW_OK) {
        sw_model_destroy(model);
        return status;
    }
    lay_saved(model);
    lay_work(model);
    *out = model;
    return SW_OK;
}

void sw_model_destroy(struct sw_model *model) {
    if (model == NULL)
        return;
    sw_units_destroy(model->units);
    free(model);
}

const struct sw_units *sw_model_get_units(const struct sw_model *model) {
    return model->units;
}

const struct sw_model_config *sw_model_get_config(const struct sw_model *model) {
    return &model->config;
}

sw_dtype sw_model_type(const struct sw_model *model) {
    return model->shape.type;
}

struct sw_model_bytes sw_model_bytes(const struct sw_model *model) {
    return (struct sw_model_bytes){
        .token = 2 * model->rows * (int64_t)sizeof(int32_t),
        .boundary = model->rows * model->config.hidden * sw_dtype_bytes(model->shape.type),
        .saved = model->saved.bytes,
        .work = model->work.bytes,
    };
}

static sw_status forward(void *context, const struct sw_unit_call *call) {
    return call->unit == 0 ? sw_embedding_unit_forward(context, call) : sw_block_forward(context, call);
}

static sw_status backward(void *context, const struct sw_unit_call *call) {
    return call->unit == 0 ? sw_embedding_unit_backward(context, call) : sw_block_backward(context, call);
}

static sw_status head(void *context, const struct sw_unit_call *call) {
    return sw_head_train(context, call);
}

static sw_status loss(void *context, const struct sw_unit_call *call) {
    return sw_head_loss(context, call);
}

static sw_status logits(void *context, const struct sw_unit_call *call) {
    return sw_head_logits(context, call);
}

struct sw_unit_ops sw_model_ops(struct sw_model *model) {
    return (struct sw_unit_ops){
        .context = model, .forward = forward, .backward = backward, .head = head, .loss = loss, .logits = logits};
}

double sw_model_flops_per_token(const struct sw_model_config *config, int64_t seq) {
    const double hidden = (double)config->hidden;
    const double block = hidden * (4.0 * hidden + 2.0 * (double)config->ffn);
    const double multiplying = (double)config->layers * block + (double)config->vocab * hidden;
    return 6.0 * multiplying + 6.0 * (double)config->layers * hidden * (double)seq;
}

static bool ends_with(const char *text, const char *end) {
    const size_t text_length = strlen(text), end_length = strlen(end);
    return text_length >= end_length && strcmp(text + text_length - end_length, end) == 0;
}

/* The stream of a tensor's random numbers: its name, hashed (FNV-1a), so that it does not depend on the tensor's place.
 */
static uint64_t stream_of(const char *name) {
    uint64_t hash = UINT64_C(14695981039346656037);
    for (const char *c = name; *c != '\0'; c++)
        hash = (hash ^ (unsigned char)*c) * UINT64_C(1099511628211);
    return hash;
}

static void fill_tensor(const struct sw_model_init *init, const struct sw_tensor *tensor, int64_t first, int64_t count,
                        float *out) {
    if (tensor->dims == 1) {
        const float value = ends_with(tensor->name, ".weight") ? 1.0f : 0.0f;
        for (int64_t i = 0; i < count; i++)
            out[i] = value;
        return;
    }
    const bool into_residual = ends_with(tensor->name, "c_proj.weight");
    const double std =
        into_residual ? init->config->init_std / sqrt(2.0 * (double)init->config->layers) : init->config->init_std;
    const uint64_t stream = stream_of(tensor->name);
    for (int64_t i = 0; i < count; i++)
        out[i] = (float)std * sw_rng_normal(init->seed, stream, (uint64_t)(first + i));
}

sw_status sw_model_fill_random(void *context, int64_t unit, int64_t first, int64_t count, float *out) {
    const struct sw_model_init *init = context;
    const struct sw_unit *u = &init->units->unit[unit];
    memset(out, 0, (size_t)count * sizeof *out);
    for (int64_t t = 0; t < u->tensor_count; t++) {
        const struct sw_tensor *tensor = &u->tensor[t];
        const int64_t begin = sw_max_i64(first, tensor->offset);
        const int64_t end = sw_min_i64(first + count, tensor->offset + tensor->elems);
        if (begin < end)
            fill_tensor(init, tensor, begin - tensor->offset, end - begin, out + (begin - first));
    }
    return SW_OK;
}
