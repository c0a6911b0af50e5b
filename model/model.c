#include "model/model.h"

#include "core/rng.h"
#include "core/size.h"
#include "model/model_private.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static sw_status list_sizes(struct sw_model *model) {
    const size_t count = (size_t)model->units->count;
    model->output_bytes = calloc(count, sizeof *model->output_bytes);
    model->saved_bytes = calloc(count, sizeof *model->saved_bytes);
    model->derived_bytes = calloc(count, sizeof *model->derived_bytes);
    model->unnormed_bytes = calloc(count, sizeof *model->unnormed_bytes);
    model->cache_bytes = calloc(count, sizeof *model->cache_bytes);
    model->shares_input = calloc(count, sizeof *model->shares_input);
    model->continues = calloc(count, sizeof *model->continues);
    if (model->output_bytes == NULL || model->saved_bytes == NULL || model->derived_bytes == NULL ||
        model->unnormed_bytes == NULL || model->cache_bytes == NULL || model->shares_input == NULL ||
        model->continues == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the model");
    for (int64_t u = 0; u < model->units->count; u++) {
        const struct sw_unit_sizes sizes = sw_model_unit_sizes(model, u);
        model->output_bytes[u] = sizes.output_bytes;
        model->saved_bytes[u] = sizes.saved_bytes;
        model->derived_bytes[u] = sizes.derived_bytes;
        model->unnormed_bytes[u] = sizes.unnormed_bytes;
        model->cache_bytes[u] = sizes.cache_bytes;
        model->shares_input[u] = sizes.shares_input;
        model->continues[u] = sizes.continues;
    }
    return SW_OK;
}

/* Makes the model for passes of one token, of otherwise the same shape. */
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

sw_status sw_model_create(const struct sw_model_config *config, const struct sw_model_shape *shape,
                          struct sw_device *device, struct sw_model **out) {
    if (sw_max_i64(shape->seq, shape->context) > config->max_positions)
        return sw_fail(SW_ERR_ARG, "--seq %lld is longer than the model's %lld positions", (long long)shape->seq,
                       (long long)config->max_positions);
    int64_t widest;
    if (!sw_mul_i64(shape->batch, shape->seq, &widest) ||
        !sw_mul_i64(widest, 64 * sw_max_i64(config->ffn, config->hidden), &widest) ||
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
    model->cut = (struct sw_cut){.tiles = sw_max_i64(shape->tiles, 1), .ranks = 1};
    if (shape->tensor_ranks > 1) {
        model->cut.ranks = shape->tensor_ranks;
        model->cut.rank = shape->tensor_rank;
    }
    model->vocab = sw_shard(config->vocab, model->cut.ranks, model->cut.rank);
    sw_status status = model->cut.ranks > 1 ? sw_model_rank_units(config, model->cut.ranks, model->cut.rank,
                                                                  model->cut.tiles, shape->optimizer, &model->units)
                                            : sw_model_units(config, model->cut.tiles, shape->optimizer, &model->units);
    assert(!shape->fp8 || (shape->type == SW_BF16 && shape->optimizer != SW_OPTIMIZER_FP32));
    if (status == SW_OK)
        model->units->fp8 = shape->fp8;
    if (status == SW_OK)
        status = sw_model_prepare(model);
    if (status == SW_OK)
        status = list_sizes(model);
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
    free(model->output_bytes);
    free(model->saved_bytes);
    free(model->derived_bytes);
    free(model->unnormed_bytes);
    free(model->cache_bytes);
    free(model->shares_input);
    free(model->continues);
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
    return (struct sw_model_bytes){
        .token = sw_token_parts(model) * model->rows * (int64_t)sizeof(int32_t),
        .output = model->output_bytes,
        .saved = model->saved_bytes,
        .derived = model->derived_bytes,
        .unnormed = model->unnormed_bytes,
        .cache = model->cache_bytes,
        .shares_input = model->shares_input,
        .continues = model->continues,
        .work = sw_max_i64(model->work.bytes, model->of_one == NULL ? 0 : model->of_one->work.bytes),
        .gathered = model->config.tied_embeddings || model->cut.ranks > 1 ? 0 : sw_gathered_layout(model).bytes,
        .product = sw_model_splits_backward(model) ? sw_product_bytes(model) : 0,
        .softmax = model->cut.ranks > 1 ? sw_softmax_bytes(model) : 0,
        .rows = model->rows,
    };
}

/* The model for passes of one token uses the same table, which lies at the same offset. */
static sw_status begin(void *context, struct sw_stream *stream, void *work) {
    const struct sw_model *model = context;
    const int64_t bytes = sw_most_keys(model) * model->config.head_dim * (int64_t)sizeof *model->rotation;
    return model->rotation == NULL
               ? SW_OK
               : sw_copy_to_device(stream, area_at(work, model->work.rotation), model->rotation, bytes);
}

struct sw_tokens sw_model_tokens(const struct sw_model *model, int32_t *tokens) {
    const bool starts = model->shape.documents;
    return (struct sw_tokens){.inputs = tokens + TOKEN_INPUTS * model->rows,
                              .targets = tokens + TOKEN_TARGETS * model->rows,
                              .document_start = starts ? tokens + TOKEN_DOCUMENT_START * model->rows : NULL};
}

/* Returns the model whose shapes fit a call: passes of one token have their own. */
static struct sw_model *model_for(void *context, const struct sw_unit_call *call) {
    struct sw_model *model = context;
    return call->count == 1 && model->of_one != NULL ? model->of_one : model;
}

static sw_status forward(void *context, const struct sw_unit_call *call) {
    struct sw_model *model = model_for(context, call);
    if (call->unit == 0)
        return sw_embedding_unit_forward(model, call);
    if (model->cut.ranks > 1)
        return sw_rank_forward(model, call);
    return model->cut.tiles == 1 ? sw_block_forward(model, call) : sw_tile_forward(model, call);
}

static sw_status backward(void *context, const struct sw_unit_call *call) {
    struct sw_model *model = context;
    if (call->unit == 0)
        return sw_embedding_unit_backward(model, call);
    if (model->cut.ranks > 1)
        return sw_rank_backward(model, call);
    return model->cut.tiles == 1 ? sw_block_backward(model, call) : sw_tile_backward(model, call);
}

static sw_status recompute(void *context, const struct sw_unit_call *call) {
    struct sw_model *model = context;
    if (model->cut.ranks > 1)
        return sw_rank_recompute(model, call);
    return model->cut.tiles == 1 ? sw_block_recompute(model, call) : sw_tile_recompute(model, call);
}

static sw_status head(void *context, const struct sw_unit_call *call) {
    struct sw_model *model = context;
    return model->cut.ranks > 1 ? sw_rank_head_train(model, call) : sw_head_train(model, call);
}

static sw_status loss(void *context, const struct sw_unit_call *call) {
    struct sw_model *model = context;
    return model->cut.ranks > 1 ? sw_rank_head_loss(model, call) : sw_head_loss(model, call);
}

static sw_status norm_forward(void *context, const struct sw_unit_call *call) {
    return sw_rank_norm_forward(context, call);
}

static sw_status norm_backward(void *context, const struct sw_unit_call *call) {
    return sw_rank_norm_backward(context, call);
}

static sw_status last_product(void *context, const struct sw_unit_call *call) {
    return sw_rank_last_product(context, call);
}

static sw_status first_product(void *context, const struct sw_unit_call *call) {
    return sw_rank_first_product(context, call);
}

static sw_status head_logits(void *context, const struct sw_unit_call *call) {
    return sw_rank_head_logits(context, call);
}

static sw_status logits(void *context, const struct sw_unit_call *call) {
    return sw_head_logits(model_for(context, call), call);
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
                                .head = head,
                                .loss = loss,
                                .logits = logits,
                                .gather = gather};
}

/* Returns the keys that a query sees on average. A full triangle counts as seq / 2, as is usual. */
static double keys_seen(const struct sw_model_config *config, int64_t layer, int64_t seq) {
    const int64_t limit = sw_config_window(config, layer);
    const double all = (double)seq, window = limit > 0 ? (double)sw_min_i64(limit, seq) : all;
    return window * (1.0 - window / (2.0 * all));
}

double sw_model_flops_per_token(const struct sw_model_config *config, int64_t seq) {
    const double hidden = (double)config->hidden, q = (double)(config->heads * config->head_dim);
    const double kv = (double)(config->kv_heads * config->head_dim);
    const double block = hidden * (2.0 * q + 2.0 * kv + (config->gated ? 3.0 : 2.0) * (double)config->ffn);
    double keys = 0.0;
    for (int64_t layer = 0; layer < config->layers; layer++)
        keys += keys_seen(config, layer, seq);
    return 6.0 * ((double)config->layers * block + (double)config->vocab * hidden) + 12.0 * q * keys;
}

static bool ends_with(const char *text, const char *end) {
    const size_t text_length = strlen(text), end_length = strlen(end);
    return text_length >= end_length && strcmp(text + text_length - end_length, end) == 0;
}

static bool adds_to_residual(const char *name) {
    static const char *const endings[] = {"c_proj.weight", "o_proj.weight", "down_proj.weight"};
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++)
        if (ends_with(name, endings[i]))
            return true;
    return false;
}

/* The stream of a tensor's random numbers: its name, hashed (FNV-1a), so that it does not depend on the tensor's place.
 */
static uint64_t stream_of(const char *name) {
    uint64_t hash = UINT64_C(14695981039346656037);
    for (const char *c = name; *c != '\0'; c++)
        hash = (hash ^ (unsigned char)*c) * UINT64_C(1099511628211);
    return hash;
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
    if (tensor->dims == 1) {
        const float value = ends_with(tensor->name, ".weight") ? 1.0f : 0.0f;
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
