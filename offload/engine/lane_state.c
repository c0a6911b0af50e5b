/* The state that lanes share: which op is next, whether it may start, and who is to be woken. */
#include "core/size.h"
#include "offload/engine/engine_private.h"

#include <stdio.h>

const struct sw_op *sw_lane_op(const struct sw_engine *engine, const struct lane *lane, int64_t number) {
    const int32_t per_step = engine->program->lane_count[lane->which];
    return &engine->program->op[engine->program->lane_op[lane->which][number % per_step]];
}

struct step_context *sw_lane_context(struct sw_engine *engine, const struct lane *lane, int64_t number) {
    const int64_t step = engine->program_first + number / engine->program->lane_count[lane->which];
    return &engine->context[step % SW_ENGINE_STEPS_AHEAD];
}

void sw_op_note_times(const struct sw_engine *engine, const struct step_context *context, const struct sw_op *op,
                      struct sw_op_times times) {
    if (context->times != NULL)
        context->times[op - engine->program->op] = times;
}

/* Tells whether an op does nothing: a redo that the norm, which the op has waited for, found needless. Where only I/O
 * is replayed, all but transfers and the norm, which the commit needs, do nothing. */
bool sw_lane_skips(const struct sw_engine *engine, const struct sw_op *op) {
    const bool unneeded = op->redo && !engine->pending.redo;
    return unneeded || (engine->io_only && !sw_lane_is_io(op->lane) && op->kind != SW_OP_COMPUTE_NORM);
}

int64_t sw_wait_target(const struct sw_engine *engine, const struct sw_wait *wait, int64_t step) {
    const int64_t target_step = step - wait->steps_back;
    return target_step < 0 ? -1 : target_step * engine->program->lane_count[wait->lane] + wait->position;
}

sw_status sw_lane_end_collective(const struct lane *lane, struct sw_comm_request *request) {
    if (lane->left == NULL)
        return sw_comm_wait(request);
    sw_comm_leave(request, lane->left);
    return SW_OK;
}

bool sw_lane_op_is_of_host(const struct lane *lane, const struct sw_op *op) {
    return lane->device == NULL || sw_ops[op->kind].of_host;
}

/* Returns how many ops of a lane are far enough for an op to follow. Work of one device follows its other work on the
 * device itself. */
static int64_t followed(const struct lane *lane, bool by_host) {
    return lane->device == NULL || by_host ? lane->done : lane->given;
}

bool sw_lane_ready(const struct sw_engine *engine, const struct lane *lane) {
    if (engine->program == NULL || engine->program->lane_count[lane->which] == 0)
        return false;
    /* One less than the window: the event of the op that was done last is still needed. */
    if (lane->device != NULL && lane->number - lane->done >= SW_DEVICE_WINDOW - 1)
        return false;
    const int64_t step = lane->number / engine->program->lane_count[lane->which];
    if (engine->program_first + step >= engine->begun)
        return false;
    const struct sw_op *op = sw_lane_op(engine, lane, lane->number);
    const bool by_host = sw_lane_op_is_of_host(lane, op);
    if (by_host && lane->done < lane->given)
        return false;
    for (int32_t w = 0; w < op->wait_count; w++) {
        const struct sw_wait *wait = &engine->program->wait[op->first_wait + w];
        if (followed(&engine->lane[wait->lane], by_host) <= sw_wait_target(engine, wait, step))
            return false;
    }
    return op->kind != SW_OP_COMMIT || engine->pending.step <= engine->described_step;
}

int64_t sw_engine_steps_done(const struct sw_engine *engine) {
    int64_t steps = engine->begun - engine->program_first;
    for (int which = 0; engine->program != NULL && which < SW_LANES; which++)
        if (engine->program->lane_count[which] > 0)
            steps = sw_min_i64(steps, engine->lane[which].done / engine->program->lane_count[which]);
    return steps;
}

bool sw_engine_ended(const struct sw_engine *engine) {
    return engine->stopping || engine->failure != SW_OK;
}

void sw_engine_wake(struct sw_engine *engine) {
    for (int which = 0; which < SW_LANES; which++) {
        struct lane *lane = &engine->lane[which];
        if (!lane->asleep || !(sw_engine_ended(engine) || sw_lane_ready(engine, lane)))
            continue;
        lane->asleep = false;
        pthread_cond_signal(&lane->wake);
    }
    if (engine->awaited_steps > 0 && (sw_engine_ended(engine) || sw_engine_steps_done(engine) >= engine->awaited_steps))
        pthread_cond_signal(&engine->awaited_done);
}

void sw_engine_fail(struct sw_engine *engine, sw_status status) {
    if (engine->failure == SW_OK) {
        engine->failure = status;
        snprintf(engine->failure_text, sizeof engine->failure_text, "%s", sw_error_message(status));
    }
    sw_engine_wake(engine);
}

void sw_lane_sleep(struct sw_engine *engine, struct lane *lane) {
    lane->asleep = true;
    while (lane->asleep)
        pthread_cond_wait(&lane->wake, &engine->mutex);
}

void sw_lane_tell(const struct sw_engine *engine, const struct lane *lane, const struct sw_op *op) {
    /* The comm tells of its own. */
    if (lane->which == SW_LANE_COMM)
        return;
    if (op != NULL)
        sw_watch_enter(engine->spec.watch, 1 + (int)lane->which, sw_op_name(op->kind), op->unit);
    else
        sw_watch_leave(engine->spec.watch, 1 + (int)lane->which);
}
