#include "offload/engine/engine.h"

#include "core/clock.h"
#include "core/log.h"
#include "core/size.h"
#include "offload/engine/engine_private.h"
#include "offload/engine/scratch.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Loading writes only the masters of grains, so it needs more requests in flight to keep a drive as busy. */
enum { SETUP_MORE = SW_OPTIMIZER_VECTORS };

/* Takes the memory of the tiers and of the losses. The device copies to and from host memory, so that is registered
 * with it. */
static sw_status take_memory(struct sw_engine *engine) {
    struct sw_device *device = engine->spec.device;
    const int64_t *bytes = engine->plan->tier_bytes;
    const int64_t tally = engine->plan->spec.tally;
    const int64_t losses = engine->plan->spec.micro_batches * sw_plan_losses(engine->plan) + 2 * tally;
    SW_TRY(sw_memory_open(device, "device", SW_MEMORY_DEVICE, bytes[SW_DEVICE], &engine->memory[SW_DEVICE]));
    SW_TRY(sw_memory_open(device, "host", SW_MEMORY_HOST, bytes[SW_HOST], &engine->memory[SW_HOST]));
    SW_TRY(sw_memory_open(device, "losses", SW_MEMORY_HOST, SW_ENGINE_STEPS_AHEAD * losses * (int64_t)sizeof(double),
                          &engine->losses));
    for (int c = 0; c < SW_ENGINE_STEPS_AHEAD; c++) {
        engine->context[c].tally = (double *)sw_memory_base(engine->losses) + c * losses;
        engine->context[c].shared_tally = engine->context[c].tally + tally;
        engine->context[c].loss = engine->context[c].shared_tally + tally;
    }
    return SW_OK;
}

/* Lets the model fill the part of the work area that stays. */
static sw_status begin_units(struct sw_engine *engine) {
    const struct sw_unit_ops *ops = &engine->spec.ops;
    if (ops->begin == NULL)
        return SW_OK;
    SW_TRY(ops->begin(ops->context, engine->setup_stream,
                      sw_engine_piece(engine, sw_plan_buffer(engine->plan, SW_BUFFER_WORK), 0)));
    return sw_stream_synchronize(engine->setup_stream);
}

/* Gives the collectives memory of the tier that reductions work in. */
static sw_status prepare_ranks(struct sw_engine *engine) {
    const struct sw_plan *plan = engine->plan;
    const int ranks = sw_plan_job_ranks(plan);
    if (ranks == 1)
        return SW_OK;
    assert(engine->spec.comm != NULL && sw_comm_identity(engine->spec.comm)->ranks == ranks &&
           sw_comm_identity(engine->spec.comm)->rank == sw_plan_job_rank(plan));
    sw_comm_set_groups(engine->spec.comm, sw_plan_tensor_ranks(plan), sw_plan_expert_ranks(plan));
    sw_comm_set_stages(engine->spec.comm, sw_plan_stages(plan));
    sw_comm_set_part_ranks(engine->spec.comm, plan->spec.secondary_ranks);
    assert(plan->spec.secondary_ranks < 2 ||
           (sw_comm_scope_ranks(engine->spec.comm, SW_SCOPE_PART) == plan->spec.secondary_ranks &&
            sw_comm_scope_rank(engine->spec.comm, SW_SCOPE_PART) == plan->spec.secondary_rank));
    engine->bounds = calloc((size_t)ranks + 1, sizeof *engine->bounds);
    if (engine->bounds == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the engine");
    const int32_t staging = sw_plan_buffer(plan, SW_BUFFER_REDUCTIONS);
    return sw_comm_use_staging(engine->spec.comm, sw_engine_piece(engine, staging, 0), plan->slot[staging].bytes);
}

/* Lets the store read frozen weights from the model's own files. */
static sw_status borrow_files(struct sw_engine *engine) {
    const int32_t rooms = sw_plan_buffer(engine->plan, SW_BUFFER_IN_PLACE);
    assert(engine->spec.files != NULL);
    return sw_store_borrow(engine->spec.store, engine->spec.files, sw_engine_piece(engine, rooms, 0),
                           engine->plan->slot[rooms].piece_bytes);
}

/* Makes room in the store for state that the plan never commits, and registers the host tier as the rings' memory. */
static sw_status prepare_store(struct sw_engine *engine) {
    struct sw_scratch scratch;
    sw_status status = sw_scratch_of(engine->plan, &scratch);
    for (int k = 0; status == SW_OK && k < scratch.count; k++)
        status = sw_store_add_scratch(engine->spec.store, &scratch.kind[k]);
    sw_scratch_release(&scratch);
    SW_TRY(status);
    if (sw_plan_in_place_bytes(engine->plan) > 0)
        SW_TRY(borrow_files(engine));
    if (engine->spec.frozen_digest != 0)
        SW_TRY(sw_store_take_kept(engine->spec.store, sw_scratch_made_from(engine->plan, engine->spec.frozen_digest)));
    SW_TRY(sw_store_add_buffer(engine->spec.store, sw_memory_base(engine->memory[SW_HOST]),
                               sw_memory_bytes(engine->memory[SW_HOST])));
    const struct sw_store_commit *commit = sw_store_last_commit(engine->spec.store);
    engine->committed_generation = commit->generation;
    engine->saved_step = engine->step = commit->step;
    return sw_store_lane_open(engine->spec.store, SETUP_MORE * engine->spec.io_depth, &engine->setup_lane);
}

sw_status sw_engine_open(const struct sw_engine_spec *spec, struct sw_engine **out) {
    sw_status status = SW_OK;
    for (int kind = 0; kind < SW_OP_KINDS; kind++)
        assert(sw_engine_runs((sw_op_kind)kind));
    struct sw_engine *engine = calloc(1, sizeof *engine);
    if (engine == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the engine");
    engine->spec = *spec;
    engine->plan = spec->plan;
    engine->saved_step = -1;
    engine->trained_step = -1;
    engine->described_step = spec->described ? -1 : INT64_MAX;
    sw_pace_start(&engine->pace);
    engine->applied_steps = spec->applied_steps;
    engine->loss_scale = spec->loss_scale;
    if (engine->loss_scale.scale == 0.0)
        engine->loss_scale.scale = spec->plan->spec.type == SW_F16 ? SW_FP16_INITIAL_SCALE : 1.0;
    engine->skipped_steps = spec->skipped_steps;
    pthread_mutex_init(&engine->mutex, NULL);
    pthread_cond_init(&engine->awaited_done, NULL);
    if (spec->trace_ops > 0)
        SW_TRY_GOTO(sw_trace_create(spec->plan, spec->trace_ops, "spillway", &engine->trace), fail);
    SW_TRY_GOTO(take_memory(engine), fail);
    SW_TRY_GOTO(prepare_ranks(engine), fail);
    SW_TRY_GOTO(sw_stream_open(spec->device, &engine->setup_stream), fail);
    SW_TRY_GOTO(begin_units(engine), fail);
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
    free(engine->cells);
    if (engine->setup_stream != NULL)
        sw_stream_close(engine->setup_stream);
    if (engine->host_stream != NULL)
        sw_stream_close(engine->host_stream);
    for (int t = SW_DEVICE; t <= SW_HOST; t++)
        sw_memory_close(engine->memory[t]);
    sw_memory_close(engine->losses);
    sw_trace_destroy(engine->trace);
    free(engine->bounds);
    pthread_mutex_destroy(&engine->mutex);
    pthread_cond_destroy(&engine->awaited_done);
    free(engine);
}

int32_t *sw_engine_tokens(struct sw_engine *engine, int64_t micro) {
    return sw_engine_staged_tokens(engine, engine->begun % SW_ENGINE_STEPS_AHEAD, micro);
}

void sw_engine_describe(struct sw_engine *engine, int64_t step, const char *text) {
    pthread_mutex_lock(&engine->mutex);
    assert(engine->spec.described && step > engine->described_step && strlen(text) < sizeof engine->text);
    memcpy(engine->text, text, strlen(text) + 1);
    engine->described_step = step;
    sw_engine_wake(engine);
    pthread_mutex_unlock(&engine->mutex);
}

/* Needs the mutex. */
static sw_status failure_of(const struct sw_engine *engine) {
    return engine->failure == SW_OK ? SW_OK : sw_fail(engine->failure, "%s", engine->failure_text);
}

/* Waits until `steps` steps of the program are done, or returns the failure of a lane. Needs the mutex. */
static sw_status wait_done(struct sw_engine *engine, int64_t steps) {
    /* Without the text that the caller owes, the commit would never come. */
    assert(engine->trained_step <= engine->described_step);
    engine->awaited_steps = steps;
    while (engine->failure == SW_OK && sw_engine_steps_done(engine) < steps)
        pthread_cond_wait(&engine->awaited_done, &engine->mutex);
    engine->awaited_steps = 0;
    return failure_of(engine);
}

/* Makes another program the current one, once the lanes have nothing left to do. Needs the mutex. */
static sw_status change_program(struct sw_engine *engine, const struct sw_program *program) {
    SW_TRY(wait_done(engine, engine->begun - engine->program_first));
    engine->program = program;
    engine->program_first = engine->begun;
    for (int which = 0; which < SW_LANES; which++)
        sw_engine_restart_lane(&engine->lane[which]);
    return SW_OK;
}

/* Returns the program of a training step, by what it finds waiting and by whether it speculates. */
static sw_program_kind training_program(sw_waiting waiting, bool speculates) {
    static const sw_program_kind kinds[][2] = {
        [SW_WAITING_NOTHING] = {SW_PROGRAM_START, SW_PROGRAM_START_SPECULATE},
        [SW_WAITING_UPDATE] = {SW_PROGRAM_UPDATE, SW_PROGRAM_UPDATE_SPECULATE},
        [SW_WAITING_REDO] = {SW_PROGRAM_REDO, SW_PROGRAM_REDO_SPECULATE},
    };
    return kinds[waiting][speculates];
}

/* Needs the mutex. */
static bool will_speculate(const struct sw_engine *engine) {
    if (!sw_plan_may_speculate(engine->plan) || engine->spec.speculation == SW_SPECULATE_NEVER)
        return false;
    return engine->spec.speculation == SW_SPECULATE_ALWAYS || sw_pace_speculates(&engine->pace);
}

/* Chooses which of the store's generations the accesses of a step mean. Where every step commits, a program that
 * applies an update commits the other generation, which then is the committed one. Where not, updates go into the
 * generation that is not committed, and read the committed one if that is newer; a program that saves commits it. */
static void choose_generations(struct sw_engine *engine, struct step_context *context) {
    const bool applies = engine->waiting != SW_WAITING_NOTHING;
    const int working = sw_engine_working(engine);
    context->generation[SW_GENERATION_NONE] = working;
    context->in_place_from = engine->working_is_newer ? working : engine->committed_generation;
    if (applies && (engine->plan->commit_every_step || context->input.save)) {
        engine->committed_generation = working;
        engine->working_is_newer = false;
        engine->saved_step = engine->step;
    } else if (applies) {
        engine->working_is_newer = true;
    }
    context->generation[SW_GENERATION_COMMITTED] = engine->committed_generation;
    context->generation[SW_GENERATION_OTHER] = 1 - engine->committed_generation;
}

/* Tells whether the trace may keep the times of this program. */
static bool may_trace(const struct sw_engine *engine, sw_program_kind kind, int64_t step) {
    const int64_t wanted = engine->spec.trace_step;
    return engine->trace != NULL &&
           (wanted == 0 || (step >= wanted && sw_program_repeats(kind) && sw_trace_steps(engine->trace) == 0));
}

/* Needs the mutex. */
static sw_status begin(struct sw_engine *engine, sw_program_kind kind, bool speculates,
                       const struct sw_step_input *input) {
    const struct sw_program *program = &engine->plan->program[kind];
    /* A rank without a share may have nothing to do in it; it has the program all the same. */
    assert(program->lane_op[SW_LANE_COMPUTE] != NULL && engine->begun - engine->waited < SW_ENGINE_STEPS_AHEAD);
    const bool steady = engine->program == program;
    if (!steady)
        SW_TRY(change_program(engine, program));
    struct step_context *context = &engine->context[engine->begun % SW_ENGINE_STEPS_AHEAD];
    double *loss = context->loss, *tally = context->tally, *shared_tally = context->shared_tally;
    memset(loss, 0, (size_t)(engine->plan->spec.micro_batches * sw_plan_losses(engine->plan)) * sizeof *loss);
    memset(tally, 0, (size_t)engine->plan->spec.tally * sizeof *tally);
    *context = (struct step_context){.input = *input,
                                     .loss = loss,
                                     .tally = tally,
                                     .shared_tally = shared_tally,
                                     .begun_ns = sw_now_ns(),
                                     .speculates = speculates,
                                     .steady = steady};
    context->result.step = input->step;
    if (may_trace(engine, kind, input->step))
        context->times = sw_trace_begin(engine->trace, kind, input->step, context->begun_ns);
    choose_generations(engine, context);
    engine->begun++;
    sw_engine_wake(engine);
    return SW_OK;
}

/* Training changes the only generation in place, so what it holds stops being a commit. */
static sw_status withdraw_commit(struct sw_engine *engine) {
    struct sw_store *store = engine->spec.store;
    if (!engine->plan->spec.one_generation || store == NULL || sw_store_last_commit(store)->step < 0)
        return SW_OK;
    assert(engine->begun == engine->waited);
    SW_TRY(sw_store_withdraw(store));
    engine->saved_step = -1;
    return SW_OK;
}

bool sw_engine_may_save(const struct sw_engine *engine) {
    return engine->spec.store != NULL && sw_plan_saves(engine->plan) && engine->waiting == SW_WAITING_UPDATE;
}

sw_status sw_engine_begin(struct sw_engine *engine, const struct sw_step_input *input) {
    const bool train = input->kind == SW_STEP_TRAIN;
    assert(input->loss_tokens >= 0 && (train || engine->waiting == SW_WAITING_NOTHING));
    if (train)
        SW_TRY(withdraw_commit(engine));
    pthread_mutex_lock(&engine->mutex);
    const bool speculates = train && will_speculate(engine);
    assert(!input->save || sw_engine_may_save(engine));
    const sw_program_kind kind = train && input->save            ? SW_PROGRAM_UPDATE_SAVE
                                 : train                         ? training_program(engine->waiting, speculates)
                                 : input->kind == SW_STEP_LOGITS ? SW_PROGRAM_LOGITS
                                                                 : SW_PROGRAM_LOSS;
    const sw_status status = begin(engine, kind, speculates, input);
    if (status == SW_OK && train) {
        engine->step = input->step;
        engine->waiting = speculates ? SW_WAITING_REDO : SW_WAITING_UPDATE;
    }
    pthread_mutex_unlock(&engine->mutex);
    return status;
}

bool sw_engine_has_failed(struct sw_engine *engine) {
    pthread_mutex_lock(&engine->mutex);
    const bool failed = engine->failure != SW_OK;
    pthread_mutex_unlock(&engine->mutex);
    return failed;
}

void sw_engine_request(struct sw_engine *engine, unsigned requests) {
    atomic_store(&engine->requests, requests);
}

sw_status sw_engine_wait(struct sw_engine *engine, struct sw_step_result *out) {
    pthread_mutex_lock(&engine->mutex);
    assert(engine->waited < engine->begun);
    const sw_status status = wait_done(engine, engine->waited + 1 - engine->program_first);
    struct step_context *context = &engine->context[engine->waited % SW_ENGINE_STEPS_AHEAD];
    const int64_t now_ns = sw_now_ns();
    if (status == SW_OK) {
        *out = context->result;
        sw_engine_step_sums(engine, context, out->pair_sums);
        out->loss_sum = out->pair_sums[SW_PAIR_LOSS];
        out->loss_tokens = context->input.loss_tokens;
        out->seconds = (double)(now_ns - sw_max_i64(engine->last_end_ns, context->begun_ns)) * 1e-9;
        engine->last_end_ns = now_ns;
        if (context->steady && context->input.kind == SW_STEP_TRAIN && !out->redone)
            sw_pace_note_step(&engine->pace, context->speculates, out->seconds);
        if (context->input.kind == SW_STEP_TRAIN)
            engine->trained_step = out->step;
        engine->waited++;
    }
    pthread_mutex_unlock(&engine->mutex);
    return status;
}

const double *sw_engine_sequence_losses(const struct sw_engine *engine, int64_t micro) {
    assert(engine->waited > 0 && engine->plan->spec.pair_sequences > 0);
    return engine->context[(engine->waited - 1) % SW_ENGINE_STEPS_AHEAD].loss +
           micro * engine->plan->spec.pair_sequences;
}

const double *sw_engine_tally(const struct sw_engine *engine) {
    assert(engine->waited > 0 && engine->plan->spec.tally > 0);
    const struct step_context *context = &engine->context[(engine->waited - 1) % SW_ENGINE_STEPS_AHEAD];
    return sw_plan_job_ranks(engine->plan) > 1 ? context->shared_tally : context->tally;
}

sw_status sw_engine_settle_begin(struct sw_engine *engine) {
    assert(engine->begun == engine->waited && engine->waiting != SW_WAITING_NOTHING);
    const sw_program_kind kind = engine->waiting == SW_WAITING_REDO ? SW_PROGRAM_FLUSH_REDO : SW_PROGRAM_FLUSH_UPDATE;
    const struct sw_step_input input = {.step = engine->step, .loss_tokens = 1};
    pthread_mutex_lock(&engine->mutex);
    const sw_status status = begin(engine, kind, false, &input);
    pthread_mutex_unlock(&engine->mutex);
    return status;
}

sw_status sw_engine_settle_end(struct sw_engine *engine) {
    assert(engine->begun == engine->waited + 1);
    pthread_mutex_lock(&engine->mutex);
    const sw_status status = wait_done(engine, engine->begun - engine->program_first);
    if (status == SW_OK) {
        engine->waited++;
        engine->waiting = SW_WAITING_NOTHING;
    }
    pthread_mutex_unlock(&engine->mutex);
    return status;
}

sw_status sw_engine_settle(struct sw_engine *engine) {
    if (engine->waiting == SW_WAITING_NOTHING)
        return SW_OK;
    SW_TRY(sw_engine_settle_begin(engine));
    return sw_engine_settle_end(engine);
}

/* Returns how many ops of the update lane a step of the program has until elements [0, elems) of a unit are given. The
 * lane has the units, and the chunks of a unit, in their order; ops without a unit come last. */
static int64_t updates_until_given(const struct sw_program *program, int64_t unit, int64_t elems) {
    int64_t low = 0, high = program->lane_count[SW_LANE_UPDATE];
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        const struct sw_op *op = &program->op[program->lane_op[SW_LANE_UPDATE][middle]];
        if (op->unit >= 0 && (op->unit < unit || (op->unit == unit && op->first_grain * SW_GRAIN_ELEMS < elems)))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

sw_status sw_engine_wait_given(struct sw_engine *engine, int64_t unit, int64_t elems) {
    assert(engine->plan->spec.update_only && engine->begun == engine->waited + 1);
    pthread_mutex_lock(&engine->mutex);
    const struct sw_program *program = engine->program;
    const int64_t earlier = (engine->begun - 1 - engine->program_first) * program->lane_count[SW_LANE_UPDATE];
    engine->awaited_updates = earlier + updates_until_given(program, unit, elems);
    while (engine->failure == SW_OK && engine->lane[SW_LANE_UPDATE].done < engine->awaited_updates)
        pthread_cond_wait(&engine->awaited_done, &engine->mutex);
    engine->awaited_updates = 0;
    const sw_status status = failure_of(engine);
    pthread_mutex_unlock(&engine->mutex);
    return status;
}

void sw_engine_replay_io(struct sw_engine *engine, bool on) {
    assert(engine->begun == engine->waited);
    engine->io_only = on;
}

const struct sw_trace *sw_engine_trace(const struct sw_engine *engine) {
    assert(engine->trace != NULL);
    return engine->trace;
}
