#include "offload/engine.h"

#include "core/clock.h"
#include "core/log.h"
#include "core/size.h"
#include "offload/engine_private.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static sw_status map_arena(struct sw_engine *engine, sw_tier tier) {
    const int64_t bytes = engine->plan->tier_bytes[tier];
    void *base;
    bool locked = false;
    SW_TRY(sw_arena_create(sw_tier_name(tier), bytes, tier == SW_HOST, &locked, &engine->arena[tier]));
    SW_TRY(sw_arena_take(engine->arena[tier], bytes, &base));
    sw_arena_seal(engine->arena[tier]);
    return SW_OK;
}

/* Room in the store for state that the plan keeps there but never commits, and the host tier as the rings' memory. */
static sw_status prepare_store(struct sw_engine *engine) {
    const struct sw_plan *plan = engine->plan;
    if (plan->spec.train) {
        int64_t *grains = calloc((size_t)plan->spec.units->count, sizeof *grains);
        if (grains == NULL)
            return sw_fail(SW_ERR_NOMEM, "no memory for the store's layout");
        bool any = false;
        for (int64_t u = 0; u < plan->spec.units->count; u++) {
            grains[u] = plan->placement[u].tier[SW_GRADS] == SW_NVME ? plan->spec.units->unit[u].grains : 0;
            any |= grains[u] > 0;
        }
        const int64_t grain_bytes = SW_GRAIN_ELEMS * sw_dtype_bytes(plan->spec.type);
        const sw_status status =
            any ? sw_store_add_scratch(engine->spec.store, SW_STORE_GRADS, grains, grain_bytes) : SW_OK;
        free(grains);
        SW_TRY(status);
    }
    SW_TRY(sw_store_add_buffer(engine->spec.store, sw_arena_base(engine->arena[SW_HOST]),
                               sw_arena_bytes(engine->arena[SW_HOST])));
    const struct sw_store_commit *commit = sw_store_last_commit(engine->spec.store);
    engine->committed_generation = commit->generation;
    engine->saved_step = engine->step = commit->step;
    return sw_store_lane_open(engine->spec.store, engine->spec.io_depth, &engine->setup_lane);
}

sw_status sw_engine_open(const struct sw_engine_spec *spec, struct sw_engine **out) {
    sw_status status = SW_OK;
    struct sw_engine *engine = calloc(1, sizeof *engine);
    if (engine == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the engine");
    engine->spec = *spec;
    engine->plan = spec->plan;
    engine->saved_step = -1;
    engine->applied_steps = spec->applied_steps;
    engine->skipped_steps = spec->skipped_steps;
    pthread_mutex_init(&engine->mutex, NULL);
    pthread_cond_init(&engine->changed, NULL);
    for (int c = 0; c < SW_ENGINE_STEPS_AHEAD; c++) {
        engine->context[c].loss = calloc((size_t)spec->plan->spec.micro_batches, sizeof(double));
        if (engine->context[c].loss == NULL)
            SW_TRY_GOTO(sw_fail(SW_ERR_NOMEM, "no memory for the engine"), fail);
    }
    SW_TRY_GOTO(map_arena(engine, SW_DEVICE), fail);
    SW_TRY_GOTO(map_arena(engine, SW_HOST), fail);
    SW_TRY_GOTO(sw_stream_open(spec->device, &engine->setup_stream), fail);
    SW_TRY_GOTO(sw_stream_open(spec->host, &engine->host_stream), fail);
    if (spec->store != NULL)
        SW_TRY_GOTO(prepare_store(engine), fail);
    SW_TRY_GOTO(sw_engine_start_lanes(engine), fail);
    *out = engine;
    return SW_OK;
fail:
    sw_engine_close(engine);
    return status;
}

void sw_engine_close(struct sw_engine *engine) {
    if (engine == NULL)
        return;
    sw_engine_stop_lanes(engine);
    if (engine->setup_lane != NULL)
        sw_store_lane_close(engine->setup_lane);
    if (engine->setup_stream != NULL)
        sw_stream_close(engine->setup_stream);
    if (engine->host_stream != NULL)
        sw_stream_close(engine->host_stream);
    for (int t = SW_DEVICE; t <= SW_HOST; t++)
        sw_arena_destroy(engine->arena[t]);
    for (int c = 0; c < SW_ENGINE_STEPS_AHEAD; c++)
        free(engine->context[c].loss);
    pthread_mutex_destroy(&engine->mutex);
    pthread_cond_destroy(&engine->changed);
    free(engine);
}

int32_t *sw_engine_tokens(struct sw_engine *engine, int64_t micro) {
    const int64_t half = engine->begun % SW_ENGINE_STEPS_AHEAD * engine->plan->spec.micro_batches;
    return sw_engine_piece(engine, engine->plan->index->token_stage, half + micro);
}

/* Lanes are idle when a program changes: they start counting anew. Needs the mutex. */
static void change_program(struct sw_engine *engine, const struct sw_program *program) {
    assert(engine->begun == engine->waited);
    engine->program = program;
    engine->begun = engine->waited = 0;
    for (int which = 0; which < SW_LANES; which++)
        engine->lane[which].number = engine->lane[which].done = 0;
}

/* Which generation a training step reads and writes on NVMe: it never writes the committed one. */
static void choose_generations(struct sw_engine *engine, struct step_context *context) {
    const int working = 1 - engine->committed_generation;
    context->read_generation = engine->working_is_newer ? working : engine->committed_generation;
    context->write_generation = working;
    if (engine->plan->commit_every_step) {
        engine->committed_generation = working;
        engine->working_is_newer = false;
    } else {
        engine->working_is_newer = true;
    }
}

sw_status sw_engine_begin(struct sw_engine *engine, const struct sw_step_input *input) {
    const struct sw_program *program = &engine->plan->program[input->program];
    assert(program->op_count > 0 && input->loss_tokens > 0);
    pthread_mutex_lock(&engine->mutex);
    if (engine->program != program) {
        /* The tokens were put where the step of the old count belongs. */
        const bool odd = engine->begun % SW_ENGINE_STEPS_AHEAD != 0;
        change_program(engine, program);
        if (odd) {
            const struct sw_plan_spec *spec = &engine->plan->spec;
            const int32_t stage = engine->plan->index->token_stage;
            for (int64_t m = 0; m < spec->micro_batches; m++)
                memcpy(sw_engine_piece(engine, stage, m), sw_engine_piece(engine, stage, spec->micro_batches + m),
                       (size_t)spec->token_bytes);
        }
    }
    assert(engine->begun - engine->waited < SW_ENGINE_STEPS_AHEAD);
    struct step_context *context = &engine->context[engine->begun % SW_ENGINE_STEPS_AHEAD];
    double *loss = context->loss;
    *context = (struct step_context){.input = *input, .loss = loss, .begun_ns = sw_now_ns()};
    context->result.step = input->step;
    if (input->program == SW_PROGRAM_TRAIN)
        choose_generations(engine, context);
    engine->begun++;
    pthread_cond_broadcast(&engine->changed);
    pthread_mutex_unlock(&engine->mutex);
    return SW_OK;
}

double sw_engine_loss_sum(const struct sw_engine *engine, const struct step_context *context) {
    double sum = 0.0;
    for (int64_t m = 0; m < engine->plan->spec.micro_batches; m++)
        sum += context->loss[m];
    return sum;
}

/* Needs the mutex. */
static bool step_done(const struct sw_engine *engine) {
    for (int which = 0; which < SW_LANES; which++)
        if (engine->lane[which].done < (engine->waited + 1) * engine->program->lane_count[which])
            return false;
    return true;
}

sw_status sw_engine_wait(struct sw_engine *engine, struct sw_step_result *out) {
    pthread_mutex_lock(&engine->mutex);
    assert(engine->waited < engine->begun);
    while (engine->failure == SW_OK && !step_done(engine))
        pthread_cond_wait(&engine->changed, &engine->mutex);
    sw_status status = engine->failure;
    if (status != SW_OK)
        status = sw_fail(status, "%s", engine->failure_text);
    struct step_context *context = &engine->context[engine->waited % SW_ENGINE_STEPS_AHEAD];
    const int64_t now_ns = sw_now_ns();
    if (status == SW_OK) {
        *out = context->result;
        out->loss_sum = sw_engine_loss_sum(engine, context);
        out->seconds = (double)(now_ns - sw_max_i64(engine->last_end_ns, context->begun_ns)) * 1e-9;
        engine->last_end_ns = now_ns;
        engine->waited++;
        if (context->input.program == SW_PROGRAM_TRAIN)
            engine->step = context->input.step;
        if (context->input.program == SW_PROGRAM_TRAIN && engine->plan->commit_every_step)
            engine->saved_step = engine->step;
    }
    pthread_mutex_unlock(&engine->mutex);
    return status;
}
