#include "tests/offload/toy.h"

#include "core/size.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define TOY_BUDGET_BYTES (1 * SW_GIB)
#define STORE_FILE_NAME "store.spillway"
enum { TOY_BYTES = 4096, TOY_IO_DEPTH = 8, AWAIT_SECONDS = 600, TOY_ROW = 3, TEXT_CHARS = 32 };

/* Small enough that gradients made of weights do not grow, and a clip that every gradient exceeds. */
#define GRADIENT_SHARE 0x1p-10f
#define TOY_CLIP 0.5

static void complain(struct toy *toy, const char *what, const struct sw_unit_call *call, int64_t step) {
    if (toy->wrong[0] == '\0')
        snprintf(toy->wrong, sizeof toy->wrong, "%s of unit %lld, micro-batch %lld, step %lld", what,
                 (long long)call->unit, (long long)call->micro, (long long)step);
}

/* The content of a block input, saved area or gradient: no two that are alive at once are equal. */
static float signature(int64_t step, int64_t unit, int64_t micro, int64_t what) {
    return (float)(((step * TOY_UNITS + unit) * TOY_MICROS + micro) * 4 + what);
}
enum { SIGN_OUT, SIGN_SAVED, SIGN_DERIVED, SIGN_GRAD };

/* Outputs of one page, of two, and of a little more than one. */
static const int64_t unit_bytes[TOY_UNITS] = {TOY_BYTES, 2 * TOY_BYTES, TOY_BYTES + 8, 16};

/* Both ends of a unit's output, so that a part which did not travel shows. */
static float *last_of(const void *boundary, int64_t unit) {
    return (float *)(uintptr_t)boundary + unit_bytes[unit] / (int64_t)sizeof(float) - 1;
}

static bool is_output(const void *boundary, int64_t step, int64_t unit, int64_t micro) {
    const float expected = signature(step, unit, micro, SIGN_OUT);
    return *(const float *)boundary == expected && *last_of(boundary, unit) == expected;
}

/* The step is the first token. */
static int64_t step_of(struct toy *toy, const struct sw_unit_call *call) {
    if (call->tokens == NULL)
        return toy->last_step;
    if (call->tokens[1] != call->micro)
        complain(toy, "tokens of another micro-batch", call, call->tokens[0]);
    return call->tokens[0];
}

/* The place in the step that a call must have: group after group of micro-batches, each unit by unit, forward, then the
 * head, then backward where the step trains. */
static int64_t expected_calls(const struct toy *toy, toy_kind kind, const struct sw_unit_call *call) {
    const int64_t first = call->micro / toy->spec.group * toy->spec.group;
    const int64_t count = sw_min_i64(toy->spec.group, TOY_MICROS - first);
    const int64_t passes = toy->trains ? 2 * TOY_UNITS - 1 : TOY_UNITS;
    const int64_t pass = kind == TOY_BACKWARD ? 2 * TOY_UNITS - 2 - call->unit : call->unit;
    return first * passes + pass * count + call->micro - first;
}

static sw_status note_call(struct toy *toy, toy_kind kind, const struct sw_unit_call *call, int64_t step) {
    const struct toy_place *fail = &toy->spec.fail;
    if (step != toy->last_step)
        toy->calls = 0;
    toy->last_step = step;
    /* The logits program has one micro-batch, so every call is the next unit's. */
    const int64_t expected = toy->one_micro ? call->unit : expected_calls(toy, kind, call);
    if (toy->calls++ != expected)
        complain(toy, "wrong order", call, step);
    /* An embedding's gradient does not depend on its weights. */
    const bool needs_weights = kind != TOY_BACKWARD || call->unit > 0;
    if ((call->weights == NULL && needs_weights) || call->work == NULL)
        complain(toy, "no weights or work area", call, step);
    if (fail->kind == kind && fail->step == step && fail->unit == call->unit && fail->micro == call->micro)
        return sw_fail(SW_ERR_IO, "the call failed on purpose");
    return SW_OK;
}

/* One number that all weights of a unit have a part in. */
static float mix(const struct toy *toy, int64_t unit, const void *weights) {
    const float *at = weights;
    float sum = 0.0f;
    for (int64_t e = 0; e < toy->units->unit[unit].elems; e++)
        sum += at[e] * (float)(1 + e % 7);
    return sum * GRADIENT_SHARE / (float)toy->units->unit[unit].elems;
}

static void sign_intermediates(const struct sw_unit_call *call, int64_t step, sw_recompute which) {
    if (which == SW_RECOMPUTE_UNIT)
        *(float *)call->saved = signature(step, call->unit, call->micro, SIGN_SAVED);
    *(float *)call->derived = signature(step, call->unit, call->micro, SIGN_DERIVED);
}

static bool has_intermediates(const struct sw_unit_call *call, int64_t step) {
    return *(const float *)call->saved == signature(step, call->unit, call->micro, SIGN_SAVED) &&
           *(const float *)call->derived == signature(step, call->unit, call->micro, SIGN_DERIVED);
}

static sw_status forward(void *context, const struct sw_unit_call *call) {
    struct toy *toy = context;
    const int64_t step = call->unit == 0 ? step_of(toy, call) : toy->last_step;
    pthread_mutex_lock(&toy->mutex);
    toy->reached = (struct toy_place){.kind = TOY_FORWARD, .step = step, .unit = call->unit, .micro = call->micro};
    pthread_cond_broadcast(&toy->changed);
    pthread_mutex_unlock(&toy->mutex);
    SW_TRY(note_call(toy, TOY_FORWARD, call, step));
    if (call->unit > 0) {
        if (!is_output(call->in, step, call->unit - 1, call->micro))
            complain(toy, "another unit's input", call, step);
        sign_intermediates(call, step, SW_RECOMPUTE_UNIT);
    }
    float *out = call->out;
    out[0] = *last_of(out, call->unit) = signature(step, call->unit, call->micro, SIGN_OUT);
    out[1] = mix(toy, call->unit, call->weights) + (call->unit > 0 ? ((const float *)call->in)[1] : 0.0f);
    return SW_OK;
}

static sw_status head(void *context, const struct sw_unit_call *call) {
    struct toy *toy = context;
    const int64_t step = step_of(toy, call);
    SW_TRY(note_call(toy, TOY_HEAD, call, step));
    if (!is_output(call->in, step, call->unit - 1, call->micro))
        complain(toy, "another unit's input", call, step);
    if ((call->table != NULL) != toy->spec.tied || (call->table_acc != NULL) != toy->spec.tied)
        complain(toy, "a table where none is shared, or none", call, step);
    if (call->table_acc != NULL) {
        call->table_acc[0] += 1.0f;
        call->table_acc[1] += mix(toy, 0, call->table);
    }
    call->acc[0] += toy_overflows(toy, step) ? INFINITY : 1.0f;
    call->acc[1] += ((const float *)call->in)[1];
    call->acc[2] += mix(toy, call->unit, call->weights);
    float *grad = call->grad;
    grad[0] = signature(step, call->unit - 1, call->micro, SIGN_GRAD);
    grad[1] = ((const float *)call->in)[1];
    *call->loss = (double)(step + call->micro);
    return SW_OK;
}

/* The derived intermediates follow from the saved ones. */
static sw_status recompute(void *context, const struct sw_unit_call *call) {
    struct toy *toy = context;
    const int64_t step = toy->last_step;
    const bool derives = call->recompute == SW_RECOMPUTE_DERIVED;
    if (call->unit == 0 || call->recompute != toy->spec.recompute)
        complain(toy, "too much or too little computed again", call, step);
    if (derives && *(const float *)call->saved != signature(step, call->unit, call->micro, SIGN_SAVED))
        complain(toy, "another unit's saved intermediates", call, step);
    sign_intermediates(call, step, call->recompute);
    return SW_OK;
}

static sw_status backward(void *context, const struct sw_unit_call *call) {
    struct toy *toy = context;
    const int64_t step = toy->last_step;
    SW_TRY(note_call(toy, TOY_BACKWARD, call, step));
    if (*(const float *)call->grad != signature(step, call->unit, call->micro, SIGN_GRAD))
        complain(toy, "another unit's gradient", call, step);
    if (call->unit > 0) {
        const bool shares = toy->spec.shares_input && call->unit == TOY_UNITS - 2;
        if (!is_output(call->in, step, call->unit - (shares ? 2 : 1), call->micro))
            complain(toy, "another unit's input", call, step);
        if (!has_intermediates(call, step))
            complain(toy, "another unit's intermediates", call, step);
        call->acc[1] += ((const float *)call->in)[1];
        *(float *)call->grad = signature(step, call->unit - 1, call->micro, SIGN_GRAD);
    }
    call->acc[0] += 1.0f;
    call->acc[3] += ((const float *)call->grad)[1];
    for (int64_t e = 4; call->unit > 0 && e < toy->units->unit[call->unit].elems; e++)
        call->acc[e] += GRADIENT_SHARE * ((const float *)call->weights)[e];
    return SW_OK;
}

static sw_status loss(void *context, const struct sw_unit_call *call) {
    struct toy *toy = context;
    const int64_t step = step_of(toy, call);
    SW_TRY(note_call(toy, TOY_LOSS, call, step));
    *call->loss = (double)(step + call->micro);
    return SW_OK;
}

static sw_status logits(void *context, const struct sw_unit_call *call) {
    struct toy *toy = context;
    SW_TRY(note_call(toy, TOY_LOGITS, call, step_of(toy, call)));
    if (call->row != TOY_ROW)
        complain(toy, "another row", call, toy->last_step);
    *call->loss = 0.0;
    call->logits[0] = (float)toy->last_step;
    return SW_OK;
}

static sw_status fill(void *context, int64_t unit, int64_t first, int64_t count, float *out) {
    (void)context;
    for (int64_t i = 0; i < count; i++)
        out[i] = (float)(unit * 100 + (first + i) % 17);
    return SW_OK;
}

static sw_status make_units(struct toy *toy) {
    const int64_t grains[TOY_UNITS] = {3, 5, 2, toy->spec.head_grains};
    SW_TRY(sw_units_create(TOY_UNITS, &toy->units));
    for (int u = 0; u < TOY_UNITS; u++)
        SW_TRY(
            sw_unit_add_tensor(&toy->units->unit[u], "tensor", 1, &(int64_t){grains[u] * SW_GRAIN_ELEMS - 100}, true));
    toy->units->tied = toy->spec.tied;
    return sw_units_seal(toy->units);
}

static sw_status make_plan(struct toy *toy) {
    struct sw_unit_cost cost[TOY_UNITS];
    for (int u = 0; u < TOY_UNITS; u++)
        cost[u] = (struct sw_unit_cost){.output_bytes = unit_bytes[u],
                                        .saved_bytes = unit_bytes[u],
                                        .derived_bytes = unit_bytes[u],
                                        .shares_input = toy->spec.shares_input && u == TOY_UNITS - 2};
    struct sw_plan_spec spec = {
        .units = toy->units,
        .type = SW_F32,
        .train = true,
        .micro_batches = TOY_MICROS,
        .token_bytes = TOY_BYTES,
        .cost = cost,
        .work_bytes = TOY_BYTES,
        .group = toy->spec.group,
        .unit_slots = toy->spec.unit_slots,
        .recompute = toy->spec.recompute,
        .chunk_grains = toy->spec.chunk_grains,
        .ring_chunks = toy->spec.ring_chunks,
        .budget_bytes = {TOY_BUDGET_BYTES, TOY_BUDGET_BYTES},
    };
    bool streams[TOY_UNITS];
    for (int u = 0; u < TOY_UNITS; u++)
        streams[u] = toy->spec.update_on_device >> u & 1;
    spec.update_on_device = streams;
    SW_TRY(sw_placement_parse(toy->spec.place, &spec.place));
    SW_TRY(sw_plan_create(&spec, &toy->plan));
    return sw_plan_check(toy->plan);
}

static sw_status make_store(struct toy *toy) {
    int64_t grains[TOY_UNITS];
    for (int u = 0; u < TOY_UNITS; u++)
        grains[u] = toy->units->unit[u].grains;
    const struct sw_store_spec spec = {
        .directories = &toy->spec.directory, .directory_count = 1, .unit_grains = grains, .unit_count = TOY_UNITS};
    return toy->spec.directory == NULL ? SW_OK : sw_store_create(&spec, NULL, NULL, &toy->store);
}

static sw_status make_engine(struct toy *toy) {
    const struct sw_engine_spec spec = {
        .plan = toy->plan,
        .device = toy->device,
        .host = toy->host,
        .store = toy->store,
        .io_depth = TOY_IO_DEPTH,
        .speculation = toy->spec.speculation,
        .ops = {.context = toy,
                .forward = forward,
                .recompute = recompute,
                .backward = backward,
                .head = head,
                .loss = loss,
                .logits = logits},
        .described = true,
    };
    SW_TRY(sw_engine_open(&spec, &toy->engine));
    sw_engine_describe(toy->engine, 0, "step 0");
    const struct sw_load load = {.fill = fill};
    return sw_engine_load(toy->engine, &load);
}

sw_status toy_open(const struct toy_spec *spec, struct toy *out) {
    sw_status status;
    *out = (struct toy){.spec = *spec};
    pthread_mutex_init(&out->mutex, NULL);
    pthread_cond_init(&out->changed, NULL);
    SW_TRY_GOTO(make_units(out), fail);
    SW_TRY_GOTO(sw_device_open("ref", 1, &out->device), fail);
    SW_TRY_GOTO(sw_device_open(spec->host_threads > 0 ? "cpu" : "ref", spec->host_threads > 0 ? spec->host_threads : 1,
                               &out->host),
                fail);
    SW_TRY_GOTO(make_plan(out), fail);
    SW_TRY_GOTO(make_store(out), fail);
    SW_TRY_GOTO(make_engine(out), fail);
    return SW_OK;
fail:
    toy_close(out);
    return status;
}

void toy_close(struct toy *toy) {
    sw_engine_close(toy->engine);
    if (toy->store != NULL)
        sw_store_close(toy->store);
    sw_plan_destroy(toy->plan);
    if (toy->device != NULL)
        sw_device_close(toy->device);
    if (toy->host != NULL)
        sw_device_close(toy->host);
    sw_units_destroy(toy->units);
    pthread_mutex_destroy(&toy->mutex);
    pthread_cond_destroy(&toy->changed);
}

bool toy_clips(const struct toy *toy, int64_t step) {
    return toy->spec.clip_every > 0 && step % toy->spec.clip_every == 0;
}

bool toy_overflows(const struct toy *toy, int64_t step) {
    return toy->spec.overflow_every > 0 && step % toy->spec.overflow_every == 0;
}

sw_status toy_begin(struct toy *toy, sw_step_kind kind, int64_t step, float *out_logits) {
    if (kind != SW_STEP_TRAIN)
        SW_TRY(sw_engine_settle(toy->engine));
    /* Kinds of steps change only when no lane reads these. */
    if (toy->one_micro != (kind == SW_STEP_LOGITS))
        toy->one_micro = !toy->one_micro;
    if (toy->trains != (kind == SW_STEP_TRAIN))
        toy->trains = !toy->trains;
    for (int64_t m = 0; m < TOY_MICROS; m++) {
        int32_t *tokens = sw_engine_tokens(toy->engine, m);
        tokens[0] = (int32_t)step;
        tokens[1] = (int32_t)m;
    }
    const struct sw_step_input input = {
        .kind = kind,
        .step = step,
        .adamw = {.lr = 0.125, .beta1 = 0.5, .beta2 = 0.5, .eps = 1e-8},
        .clip = toy_clips(toy, step) ? TOY_CLIP : 0.0,
        .loss_tokens = 1,
        .row = TOY_ROW,
        .logits = out_logits,
    };
    return sw_engine_begin(toy->engine, &input);
}

void toy_describe(struct toy *toy, int64_t step) {
    char text[TEXT_CHARS];
    snprintf(text, sizeof text, "step %lld", (long long)step);
    sw_engine_describe(toy->engine, step, text);
}

sw_status toy_wait(struct toy *toy, struct sw_step_result *out) {
    SW_TRY(sw_engine_wait(toy->engine, out));
    if (toy->trains)
        toy_describe(toy, out->step);
    return SW_OK;
}

static bool has_come(const struct toy_place *reached, int64_t step, int64_t unit) {
    return reached->step > step || (reached->step == step && reached->unit >= unit);
}

bool toy_await_forward(struct toy *toy, int64_t step, int64_t unit) {
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += AWAIT_SECONDS;
    pthread_mutex_lock(&toy->mutex);
    int error = 0;
    while (error == 0 && !has_come(&toy->reached, step, unit))
        error = pthread_cond_timedwait(&toy->changed, &toy->mutex, &end);
    const bool came = has_come(&toy->reached, step, unit);
    pthread_mutex_unlock(&toy->mutex);
    return came;
}

int toy_make_directory(void **state) {
    char *path = calloc(1, TOY_PATH_CHARS);
    const char *base = getenv("TMPDIR");
    if (path == NULL)
        return -1;
    snprintf(path, TOY_PATH_CHARS, "%s/spillway-offload-XXXXXX", base != NULL ? base : ".");
    *state = path;
    return mkdtemp(path) == NULL ? -1 : 0;
}

void toy_remove_store(const char *directory) {
    char file[TOY_PATH_CHARS + sizeof STORE_FILE_NAME + 1];
    snprintf(file, sizeof file, "%s/%s", directory, STORE_FILE_NAME);
    unlink(file);
}

int toy_remove_directory(void **state) {
    toy_remove_store(*state);
    rmdir(*state);
    free(*state);
    return 0;
}
