#include "model/unit_run.h"

#include "core/machine.h"
#include "core/size.h"
#include "core/team.h"
#include "model/model_private.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Weights are made in two buffers of host memory: threads fill one while the other is copied to the device. */
enum { BOX_GRAINS = 64, BOXES = 2 };

/* The runner: memory that fits any unit of the model, and the call of the chosen unit. */
struct sw_unit_run {
    struct sw_model *model;
    struct sw_unit_ops ops;
    bool described; /* the device is only described and reads no numbers, so none are made */
    const struct sw_units *units;
    struct sw_memory *memory,
        *host; /* all areas, in device memory; and the host buffers through which they are filled */
    struct sw_stream *stream;
    struct sw_unit_call call;
    void *weights, *base, *table;
    void *normed; /* in an expert group: the rows of all ranks */
    double *loss; /* owned: what the head hands to the host */
    struct sw_model_init init;
    struct sw_team *team; /* threads that make random weights */
    bool ran_forward;     /* the chosen unit has run its forward pass */
};

static int64_t most_base_bytes(const struct sw_units *units) {
    int64_t most = 0;
    for (int64_t u = 0; u < units->count; u++)
        most = sw_max_i64(most, sw_units_base_bytes(units, u));
    return most;
}

static int64_t most_elems(const struct sw_units *units) {
    int64_t most = 0;
    for (int64_t u = 0; u < units->count; u++)
        most = sw_max_i64(most, units->unit[u].elems);
    return most;
}

/* Returns the largest of each kind of bytes that a unit has. */
static struct sw_unit_cost largest_cost(const struct sw_unit_cost *cost, int64_t count) {
    struct sw_unit_cost most = {0};
    for (int64_t u = 0; u < count; u++) {
        most.output_bytes = sw_max_i64(most.output_bytes, cost[u].output_bytes);
        most.saved_bytes = sw_max_i64(most.saved_bytes, cost[u].saved_bytes);
        most.derived_bytes = sw_max_i64(most.derived_bytes, cost[u].derived_bytes);
    }
    return most;
}

enum {
    WEIGHTS,
    BASE,
    TABLE,
    ACC,
    TABLE_ACC,
    TOKENS,
    IN,
    OUT,
    GRAD,
    NORMED,
    NORM_GRAD,
    PRODUCT_GRAD,
    SOFTMAX,
    SAVED,
    DERIVED,
    WORK,
    AREAS
};

static int64_t size_areas(struct sw_model *model, int64_t bytes[AREAS]) {
    const struct sw_units *units = sw_model_get_units(model);
    const struct sw_model_bytes sizes = sw_model_bytes(model);
    const int64_t elems = most_elems(units), table_elems = units->unit[0].elems;
    const int64_t typed = sw_dtype_bytes(sw_model_type(model));
    const struct sw_unit_cost most = largest_cost(sizes.cost, units->count);
    int64_t all_bytes = 0;
    bytes[WEIGHTS] = elems * typed;
    bytes[BASE] = most_base_bytes(units);
    bytes[TABLE] = table_elems * typed;
    bytes[ACC] = elems * (int64_t)sizeof(float);
    bytes[TABLE_ACC] = table_elems * (int64_t)sizeof(float);
    bytes[TOKENS] = sizes.token;
    /* In an expert group a rank works on the rows of all. */
    const int64_t group_ranks = sw_max_i64(1, model->cut.expert_ranks), all = group_ranks * most.output_bytes;
    bytes[IN] = most.output_bytes;
    bytes[OUT] = bytes[GRAD] = all;
    bytes[NORMED] = group_ranks > 1 ? all : 0;
    bytes[NORM_GRAD] = group_ranks > 1 || model->cut.ranks > 1 ? all : 0;
    bytes[PRODUCT_GRAD] = sizes.product;
    bytes[SOFTMAX] = model->cut.ranks * sizes.softmax;
    bytes[SAVED] = most.saved_bytes;
    bytes[DERIVED] = most.derived_bytes;
    bytes[WORK] = sizes.work;
    for (int i = 0; i < AREAS; i++)
        all_bytes += sw_round_up(bytes[i], SW_BUFFER_ALIGN_BYTES);
    return all_bytes;
}

int64_t sw_unit_run_bytes(struct sw_model *model) {
    int64_t bytes[AREAS];
    return size_areas(model, bytes);
}

static sw_status bring(struct sw_unit_run *run, const void *to, int64_t bytes) {
    SW_TRY(sw_copy_to_device(run->stream, (void *)(uintptr_t)to, sw_memory_base(run->host), bytes));
    return sw_stream_synchronize(run->stream);
}

/* Fills an area with numbers of both signs: products of zeros may be faster. */
static sw_status bring_numbers(struct sw_unit_run *run, const void *to, int64_t bytes, float factor) {
    enum { PERIOD = 101, MIDDLE = 50 };
    const sw_dtype type = sw_model_type(run->model);
    for (int64_t i = 0; i < bytes / sw_dtype_bytes(type); i++)
        sw_dtype_store(type, sw_memory_base(run->host), i, (float)(i % PERIOD - MIDDLE) * factor);
    return bring(run, to, bytes);
}

/* Fills in tokens from the whole vocabulary. */
static sw_status bring_tokens(struct sw_unit_run *run, const int32_t *to, int64_t bytes) {
    enum { TOKEN_STEP = 7919 };
    const int64_t vocab = sw_model_get_config(run->model)->vocab;
    int32_t *tokens = sw_memory_base(run->host);
    for (int64_t i = 0; i < bytes / (int64_t)sizeof *tokens; i++)
        tokens[i] = (int32_t)(i * TOKEN_STEP % vocab);
    return bring(run, to, bytes);
}

static sw_status fill_inputs(struct sw_unit_run *run, const int64_t bytes[AREAS]) {
    const struct sw_unit_call *call = &run->call;
    if (!run->described) {
        SW_TRY(bring_numbers(run, call->in, bytes[IN], 0x1p-5f));
        SW_TRY(bring_numbers(run, call->grad, bytes[GRAD], 0x1p-15f));
        SW_TRY(bring_numbers(run, run->normed, bytes[NORMED], 0x1p-5f));
        SW_TRY(bring_tokens(run, call->tokens, bytes[TOKENS]));
    }
    return run->ops.begin == NULL ? SW_OK : run->ops.begin(run->ops.context, run->stream, call->work);
}

static sw_status take_areas(struct sw_unit_run *run, struct sw_device *device) {
    struct sw_unit_call *call = &run->call;
    void *area[AREAS];
    int64_t bytes[AREAS], taken_bytes = 0;
    const int64_t all_bytes = size_areas(run->model, bytes);
    SW_TRY(sw_memory_open(device, "measurement", SW_MEMORY_DEVICE, all_bytes, &run->memory));
    const int64_t boxes_bytes = (int64_t)BOXES * BOX_GRAINS * SW_GRAIN_ELEMS * (int64_t)sizeof(float);
    SW_TRY(sw_memory_open(device, "measurement", SW_MEMORY_HOST,
                          sw_max_i64(sw_max_i64(bytes[GRAD], bytes[TOKENS]), boxes_bytes), &run->host));
    for (int i = 0; i < AREAS; i++) {
        area[i] = (char *)sw_memory_base(run->memory) + taken_bytes;
        taken_bytes += sw_round_up(bytes[i], SW_BUFFER_ALIGN_BYTES);
    }
    run->weights = area[WEIGHTS];
    run->base = area[BASE];
    run->table = area[TABLE];
    call->draw = 1; /* steps of a training are measured */
    call->weights = area[WEIGHTS];
    call->acc = area[ACC];
    call->table_acc = run->model->units->unit[0].tensor[TOKEN_TABLE].frozen ? NULL : area[TABLE_ACC];
    call->tokens = area[TOKENS];
    call->in = area[IN];
    call->out = area[OUT];
    call->grad = area[GRAD];
    run->normed = area[NORMED];
    call->norm_grad = area[NORM_GRAD];
    call->product_grad = area[PRODUCT_GRAD];
    call->softmax = area[SOFTMAX];
    call->own_rows = sw_shard(run->model->rows, run->model->cut.ranks, run->model->cut.rank);
    call->own_in = area[IN]; /* any rows will do */
    call->saved = area[SAVED];
    call->derived = area[DERIVED];
    call->work = area[WORK];
    return fill_inputs(run, bytes);
}

/* One job of the threads: random weights for some grains of a unit. */
struct box {
    struct sw_unit_run *run;
    int64_t unit, first, elems;
    float *to;
};

/* Fills one grain. Random weights cannot fail. */
static void fill_grain(void *context, int64_t g, int thread) {
    (void)thread;
    const struct box *box = context;
    const int64_t at = g * SW_GRAIN_ELEMS;
    (void)sw_model_fill_random(&box->run->init, box->unit, box->first + at, SW_GRAIN_ELEMS, box->to + at);
}

/* Makes a buffer's 8-bit weights from their fp32 values on the device, grain by grain: there are no optimizer records
 * to make them from. */
static sw_status pack_box(const struct box *box, const float *fp32, void *to) {
    const struct sw_units *units = box->run->units;
    for (int64_t at = 0; at < box->elems; at += SW_GRAIN_ELEMS)
        SW_TRY(sw_pack_weights(box->run->stream, .type = sw_model_type(box->run->model), .first_elem = box->first + at,
                               .grains = 1, .wide_elem = units->unit[box->unit].wide_grain * SW_GRAIN_ELEMS,
                               .format = units->optimizer, .records = fp32 + at,
                               .weights = (char *)to + box->first + at));
    return SW_OK;
}

static sw_status send_box(const struct box *box, void *to) {
    struct sw_unit_run *run = box->run;
    float *fp32 = (float *)run->call.acc + box->first;
    const int64_t behind = run->units->unit[box->unit].base_grains * SW_GRAIN_ELEMS;
    const sw_dtype type = sw_model_type(run->model);
    /* Waits until the last copy has read the box that the threads fill next. */
    SW_TRY(sw_stream_synchronize(run->stream));
    SW_TRY(sw_copy_to_device(run->stream, fp32, box->to, box->elems * (int64_t)sizeof(float)));
    if (sw_units_packs(run->units, box->unit))
        return pack_box(box, fp32, to);
    return sw_cast_from_f32(run->stream, .type = type, .elems = box->elems, .from = fp32,
                            .to = (char *)to + (box->first - behind) * sw_dtype_bytes(type));
}

/* Makes one record of weights of both signs. Time depends on no number, so none is drawn and quantized. */
static void make_record(sw_base_format format, char *record) {
    enum { CODE_STEP = 37, NOT_NAN = 0xf7, SCALE_BYTE = 127 - 7 };
    const float scale = 0x1p-12f;
    struct sw_nf4_record *nf4 = (struct sw_nf4_record *)(void *)record;
    struct sw_fp8_record *fp8 = (struct sw_fp8_record *)(void *)record;
    struct sw_mxfp4_record *mxfp4 = (struct sw_mxfp4_record *)(void *)record;
    for (int64_t i = 0; i < sw_base_grain_bytes(format); i++)
        record[i] = (char)(format == SW_BASE_FP8 ? i * CODE_STEP & NOT_NAN : i * CODE_STEP);
    if (format == SW_BASE_NF4)
        nf4->spread = nf4->offset = scale;
    if (format == SW_BASE_MXFP4)
        memset(mxfp4->scales, SCALE_BYTE, sizeof mxfp4->scales);
    for (int block = 0; format == SW_BASE_FP8 && block < SW_FP8_BASE_BLOCKS; block++)
        fp8->scales[block] = scale;
    for (int block = 0; format == SW_BASE_INT8 && block < SW_QUANT_GRAIN_BLOCKS; block++)
        ((float *)(void *)(record + SW_GRAIN_ELEMS))[block] = scale;
}

/* Puts a unit's base on the device. */
static sw_status fill_base(struct sw_unit_run *run, int64_t unit) {
    const struct sw_units *units = run->units;
    const int64_t grains = run->described ? 0 : units->unit[unit].base_grains;
    run->call.base = units->unit[unit].base_grains > 0 ? run->base : NULL;
    if (grains == 0)
        return SW_OK;
    const int64_t bytes = sw_base_grain_bytes(units->base);
    make_record(units->base, sw_memory_base(run->host));
    for (int64_t g = 0; g < grains; g++)
        SW_TRY(sw_copy_to_device(run->stream, (char *)run->base + g * bytes, sw_memory_base(run->host), bytes));
    return sw_stream_synchronize(run->stream);
}

/* Puts a unit's random weights on the device, from behind its base on. Their fp32 values pass through the memory of its
 * gradient. */
static sw_status fill_weights(struct sw_unit_run *run, int64_t unit, void *to) {
    const int64_t elems = run->described ? 0 : run->units->unit[unit].elems;
    const int64_t behind = run->units->unit[unit].base_grains * SW_GRAIN_ELEMS;
    const int64_t box_elems = (int64_t)BOX_GRAINS * SW_GRAIN_ELEMS;
    for (int64_t first = behind; first < elems; first += box_elems) {
        struct box box = {.run = run, .unit = unit, .first = first, .elems = sw_min_i64(box_elems, elems - first)};
        box.to = (float *)sw_memory_base(run->host) + first / box_elems % BOXES * box_elems;
        sw_team_begin(run->team, fill_grain, &box, box.elems / SW_GRAIN_ELEMS);
        sw_team_finish(run->team);
        SW_TRY(send_box(&box, to));
    }
    return sw_stream_synchronize(run->stream);
}

sw_status sw_unit_run_open(struct sw_model *model, struct sw_device *device, struct sw_unit_run **out) {
    *out = NULL;
    struct sw_unit_run *run = calloc(1, sizeof *run);
    if (run == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to measure a unit");
    run->model = model;
    run->described = sw_device_info(device).described;
    run->ops = sw_model_ops(model);
    run->units = sw_model_get_units(model);
    run->init = (struct sw_model_init){.config = sw_model_get_config(model), .units = run->units};
    sw_status status = sw_stream_open(device, &run->stream);
    run->call.stream = run->stream;
    if (status == SW_OK)
        status = sw_team_open(sw_machine_cores(), &run->team);
    if (status == SW_OK)
        status = take_areas(run, device);
    run->call.loss = run->loss = calloc((size_t)sw_max_i64(1, sw_model_bytes(model).pair_sequences), sizeof *run->loss);
    if (status == SW_OK && run->loss == NULL)
        status = sw_fail(SW_ERR_NOMEM, "no memory to measure a unit");
    run->call.loss_scale = 1.0f;
    if (status == SW_OK)
        status = fill_weights(run, 0, run->table);
    if (status == SW_OK)
        *out = run;
    else
        sw_unit_run_close(run);
    return status;
}

void sw_unit_run_close(struct sw_unit_run *run) {
    if (run == NULL)
        return;
    sw_team_close(run->team);
    sw_stream_close(run->stream);
    sw_memory_close(run->memory);
    sw_memory_close(run->host);
    free(run->loss);
    free(run);
}

/* Lets the block of some experts hand its routing on to them. */
static sw_status bring_routing(struct sw_unit_run *run, int64_t block) {
    const struct sw_handed_layout at = sw_handed_layout(run->model);
    SW_TRY(sw_unit_run_choose(run, block));
    SW_TRY(sw_unit_run_pass(run, SW_UNIT_FORWARD));
    SW_TRY(sw_copy_on_device(run->stream, (void *)(uintptr_t)run->call.in, run->call.out, at.sum));
    return sw_stream_synchronize(run->stream);
}

sw_status sw_unit_run_choose(struct sw_unit_run *run, int64_t unit) {
    const bool head = unit + 1 == run->units->count;
    assert(unit >= 0 && unit < run->units->count);
    const struct sw_tile tile = sw_tile_of(&run->model->cut, unit);
    if (unit > 0 && !head && tile.kind == EXPERT_GROUP && !run->described)
        SW_TRY(bring_routing(run, unit - tile.index));
    run->ran_forward = false;
    run->call.unit = unit;
    run->call.table = head && run->units->tied ? run->table : NULL;
    SW_TRY(fill_base(run, unit));
    if (unit > 0 || run->described)
        return fill_weights(run, unit, run->weights);
    const int64_t bytes = run->units->unit[unit].elems * sw_dtype_bytes(sw_model_type(run->model));
    SW_TRY(sw_copy_on_device(run->stream, run->weights, run->table, bytes));
    return sw_stream_synchronize(run->stream);
}

static sw_unit_function function_of(const struct sw_unit_run *run, sw_unit_pass pass) {
    const struct sw_unit_ops *ops = &run->ops;
    const sw_unit_function of_head[SW_UNIT_PASSES] = {
        [SW_UNIT_FORWARD] = ops->head_logits != NULL ? ops->head_logits : ops->loss, [SW_UNIT_BACKWARD] = ops->head};
    const sw_unit_function of_others[SW_UNIT_PASSES] = {
        [SW_UNIT_FORWARD] = ops->forward,           [SW_UNIT_BACKWARD] = ops->backward,
        [SW_UNIT_LAST_PRODUCT] = ops->last_product, [SW_UNIT_FIRST_PRODUCT] = ops->first_product,
        [SW_UNIT_RECOMPUTE] = ops->recompute,       [SW_UNIT_DERIVE] = ops->recompute,
        [SW_UNIT_BACKWARD_DERIVING] = ops->backward};
    return run->call.unit + 1 == run->units->count ? of_head[pass] : of_others[pass];
}

bool sw_unit_run_has_products(const struct sw_unit_run *run) {
    return run->ops.last_product != NULL && !run->units->unit[run->call.unit].shared_out;
}

/* Runs a pass of a block whose experts a group shares out, or of these, without what the ranks exchange in it. */
static sw_status run_shared(struct sw_unit_run *run, sw_unit_pass pass) {
    struct sw_unit_call block = run->call, experts = run->call;
    const struct sw_unit_ops *ops = &run->ops;
    const bool forward = pass == SW_UNIT_FORWARD;
    block.out = run->normed;
    experts.normed = run->normed;
    if (run->units->unit[run->call.unit].shared_out)
        return (forward ? ops->experts_forward : ops->experts_backward)(ops->context, &experts);
    if (forward)
        return ops->send(ops->context, &block);
    SW_TRY(ops->recall(ops->context, &block));
    return ops->backward(ops->context, &block);
}

sw_status sw_unit_run_pass(struct sw_unit_run *run, sw_unit_pass pass) {
    static const sw_recompute again[SW_UNIT_PASSES] = {[SW_UNIT_RECOMPUTE] = SW_RECOMPUTE_UNIT,
                                                       [SW_UNIT_DERIVE] = SW_RECOMPUTE_DERIVED,
                                                       [SW_UNIT_BACKWARD_DERIVING] = SW_RECOMPUTE_DERIVED};
    struct sw_unit_call *call = &run->call;
    const bool block = call->unit > 0 && call->unit + 1 < run->units->count;
    assert(pass >= 0 && pass < SW_UNIT_PASSES && function_of(run, pass) != NULL);
    assert(!block || pass == SW_UNIT_FORWARD || run->ran_forward);
    run->ran_forward |= pass == SW_UNIT_FORWARD;
    call->recompute = again[pass];
    const bool joins = run->model->cut.ranks == 1 || run->units->unit[call->unit].shared_out;
    const bool shared = block && run->ops.send != NULL && joins && pass != SW_UNIT_RECOMPUTE && pass != SW_UNIT_DERIVE;
    SW_TRY(shared ? run_shared(run, pass) : function_of(run, pass)(run->ops.context, call));
    return sw_stream_synchronize(call->stream);
}
