#include "train/unit_run.h"

#include "core/arena.h"
#include "core/size.h"

#include <stdlib.h>
#include <string.h>

/* The memory of any unit, and its call. */
struct sw_unit_run {
    struct sw_model *model;
    struct sw_unit_ops ops;
    const struct sw_units *units;
    struct sw_arena *arena;
    struct sw_stream *stream;
    struct sw_unit_call call;
    void *weights, *table;
    double loss;
    struct sw_model_init init;
};

static int64_t most_elems(const struct sw_units *units) {
    int64_t most = 0;
    for (int64_t u = 0; u < units->count; u++)
        most = sw_max_i64(most, units->unit[u].elems);
    return most;
}

static int64_t most_of(const int64_t *bytes, int64_t count) {
    int64_t most = 0;
    for (int64_t u = 0; u < count; u++)
        most = sw_max_i64(most, bytes[u]);
    return most;
}

enum { WEIGHTS, TABLE, ACC, TABLE_ACC, TOKENS, IN, OUT, GRAD, SAVED, WORK, AREAS };

static int64_t size_areas(struct sw_model *model, int64_t bytes[AREAS]) {
    const struct sw_units *units = sw_model_get_units(model);
    const struct sw_model_bytes sizes = sw_model_bytes(model);
    const int64_t elems = most_elems(units), table_elems = units->unit[0].elems;
    const int64_t typed = sw_dtype_bytes(sw_model_type(model)), boundary = most_of(sizes.boundary, units->count);
    int64_t all_bytes = 0;
    bytes[WEIGHTS] = elems * typed;
    bytes[TABLE] = table_elems * typed;
    bytes[ACC] = elems * (int64_t)sizeof(float);
    bytes[TABLE_ACC] = table_elems * (int64_t)sizeof(float);
    bytes[TOKENS] = sizes.token;
    bytes[IN] = bytes[OUT] = bytes[GRAD] = boundary;
    bytes[SAVED] = most_of(sizes.saved, units->count);
    bytes[WORK] = sizes.work;
    for (int i = 0; i < AREAS; i++)
        all_bytes += sw_round_up(bytes[i], SW_BUFFER_ALIGN_BYTES);
    return all_bytes;
}

int64_t sw_unit_run_bytes(struct sw_model *model) {
    int64_t bytes[AREAS];
    return size_areas(model, bytes);
}

/* Numbers of both signs, since products of zeros may be faster than real ones; and tokens all over the table. */
static void fill_inputs(const struct sw_unit_run *run, const int64_t bytes[AREAS]) {
    enum { PERIOD = 101, MIDDLE = 50, TOKEN_STEP = 7919 };
    const sw_dtype type = sw_model_type(run->model);
    const int64_t vocab = sw_model_get_config(run->model)->vocab;
    const struct sw_unit_call *call = &run->call;
    int32_t *tokens = (int32_t *)(uintptr_t)call->tokens;
    for (int64_t i = 0; i < bytes[IN] / sw_dtype_bytes(type); i++) {
        const float number = (float)(i % PERIOD - MIDDLE);
        sw_dtype_store(type, (void *)(uintptr_t)call->in, i, number * 0x1p-5f);
        sw_dtype_store(type, call->grad, i, number * 0x1p-15f);
    }
    for (int64_t i = 0; i < bytes[TOKENS] / (int64_t)sizeof *tokens; i++)
        tokens[i] = (int32_t)(i * TOKEN_STEP % vocab);
}

static sw_status take_areas(struct sw_unit_run *run) {
    struct sw_unit_call *call = &run->call;
    void *area[AREAS];
    int64_t bytes[AREAS];
    SW_TRY(sw_arena_create("measurement", size_areas(run->model, bytes), false, NULL, &run->arena));
    for (int i = 0; i < AREAS; i++) {
        SW_TRY(sw_arena_take(run->arena, bytes[i], &area[i]));
        memset(area[i], 0, (size_t)bytes[i]);
    }
    run->weights = area[WEIGHTS];
    run->table = area[TABLE];
    call->weights = area[WEIGHTS];
    call->acc = area[ACC];
    call->table_acc = area[TABLE_ACC];
    call->tokens = area[TOKENS];
    call->in = area[IN];
    call->out = area[OUT];
    call->grad = area[GRAD];
    call->saved = area[SAVED];
    call->work = area[WORK];
    fill_inputs(run, bytes);
    return SW_OK;
}

/* Random weights: products of zeros may be faster than real ones. */
static sw_status fill_weights(struct sw_unit_run *run, int64_t unit, void *to) {
    enum { AT_ONCE = SW_GRAIN_ELEMS };
    const sw_dtype type = sw_model_type(run->model);
    float *from = malloc(AT_ONCE * sizeof *from);
    sw_status status = from == NULL ? sw_fail(SW_ERR_NOMEM, "no memory to measure a unit") : SW_OK;
    for (int64_t first = 0; status == SW_OK && first < run->units->unit[unit].elems; first += AT_ONCE) {
        status = sw_model_fill_random(&run->init, unit, first, AT_ONCE, from);
        if (status == SW_OK)
            status = sw_cast_from_f32(run->stream, type, AT_ONCE, from, (char *)to + first * sw_dtype_bytes(type));
    }
    if (status == SW_OK)
        status = sw_stream_synchronize(run->stream);
    free(from);
    return status;
}

sw_status sw_unit_run_open(struct sw_model *model, struct sw_device *device, struct sw_unit_run **out) {
    *out = NULL;
    struct sw_unit_run *run = calloc(1, sizeof *run);
    if (run == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to measure a unit");
    run->model = model;
    run->ops = sw_model_ops(model);
    run->units = sw_model_get_units(model);
    run->init = (struct sw_model_init){.config = sw_model_get_config(model), .units = run->units};
    sw_status status = take_areas(run);
    if (status == SW_OK)
        status = sw_stream_open(device, &run->stream);
    run->call.stream = run->stream;
    run->call.loss = &run->loss;
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
    if (run->stream != NULL)
        sw_stream_close(run->stream);
    sw_arena_destroy(run->arena);
    free(run);
}

sw_status sw_unit_run_choose(struct sw_unit_run *run, int64_t unit) {
    const bool head = unit + 1 == run->units->count;
    run->call.unit = unit;
    run->call.table = head && run->units->tied ? run->table : NULL;
    return fill_weights(run, unit, run->weights);
}

sw_status sw_unit_run_pass(struct sw_unit_run *run, sw_unit_pass pass) {
    struct sw_unit_call *call = &run->call;
    const bool head = call->unit + 1 == run->units->count;
    const struct sw_unit_ops *ops = &run->ops;
    const sw_unit_function function = head ? (pass == SW_UNIT_FORWARD ? ops->loss : ops->head)
                                           : (pass == SW_UNIT_FORWARD ? ops->forward : ops->backward);
    call->recompute = pass == SW_UNIT_RECOMPUTE_BACKWARD;
    SW_TRY(function(ops->context, call));
    return sw_stream_synchronize(call->stream);
}
