/* The lanes' threads: each takes its ops in order, starts them when their waits are met, and counts them done in order.
 */
#include "core/clock.h"
#include "core/log.h"
#include "core/size.h"
#include "core/status.h"
#include "core/thread.h"
#include "offload/engine/engine_private.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { DEVICE_WINDOW = 64 }; /* ops of a lane that are given to an asynchronous device and not done */

/* The state that lanes share: the next op, whether it may start, and the threads to wake. */

/* The kinds of lanes share the functions below. All but lane_op, lane_context, lane_skips and lane_op_is_of_host need
 * the mutex. */

static const struct sw_op *sw_lane_op(const struct sw_engine *engine, const struct lane *lane, int64_t number) {
    const int32_t per_step = engine->program->lane_count[lane->which];
    return &engine->program->op[engine->program->lane_op[lane->which][number % per_step]];
}

static struct step_context *lane_context(struct sw_engine *engine, const struct lane *lane, int64_t number) {
    const int64_t step = engine->program_first + number / engine->program->lane_count[lane->which];
    return &engine->context[step % SW_ENGINE_STEPS_AHEAD];
}

static void op_note_times(const struct sw_engine *engine, const struct step_context *context, const struct sw_op *op,
                          struct sw_op_times times) {
    if (context->times != NULL)
        context->times[op - engine->program->op] = times;
}

/* Tells whether the routing, for which the op has waited, gives its unit no rows. */
static bool lacks_rows(const struct sw_engine *engine, const struct sw_op *op) {
    return op->routed &&
           !engine->spec.ops.has_rows(engine->spec.ops.context, op->unit,
                                      sw_engine_piece(engine, sw_plan_buffer(engine->plan, SW_BUFFER_ROUTING), 0));
}

/* Tells whether an op does nothing: a redo that the norm, for which the op has waited, found needless, or a transfer of
 * experts that no token chose. If only I/O is replayed, all ops do nothing except transfers and the norm, which the
 * commit needs. */
static bool lane_skips(const struct sw_engine *engine, const struct sw_op *op) {
    const bool unneeded = (op->redo && !engine->pending.redo) || lacks_rows(engine, op);
    return unneeded || (engine->io_only && !sw_lane_is_io(op->lane) && op->kind != SW_OP_COMPUTE_NORM);
}

/* Returns the number, in its lane, of the op for which an op of this step waits; negative: there is none. */
static int64_t wait_target(const struct sw_engine *engine, const struct sw_wait *wait, int64_t step) {
    const int64_t target_step = step - wait->steps_back;
    return target_step < 0 ? -1 : target_step * engine->program->lane_count[wait->lane] + wait->position;
}

/* Tells whether an op is work of the host although the lane's other ops run on its device, or begins with some: the
 * host must have the routing before it gives such a transfer to the device. */
static bool lane_op_is_of_host(const struct lane *lane, const struct sw_op *op) {
    return lane->device == NULL || sw_ops[op->kind].of_host || op->routed;
}

/* Returns how many ops of a lane have gone far enough for an op that waits for them. On one device work follows earlier
 * work in the device's own order. */
static int64_t followed(const struct lane *lane, bool by_host) {
    return lane->device == NULL || by_host ? lane->done : lane->given;
}

static bool lane_ready(const struct sw_engine *engine, const struct lane *lane) {
    if (engine->program == NULL || engine->program->lane_count[lane->which] == 0)
        return false;
    /* One less than the window: the event of the op that was done last is still needed. */
    if (lane->device != NULL && lane->number - lane->done >= DEVICE_WINDOW - 1)
        return false;
    const int64_t step = lane->number / engine->program->lane_count[lane->which];
    if (engine->program_first + step >= engine->begun)
        return false;
    const struct sw_op *op = sw_lane_op(engine, lane, lane->number);
    const bool by_host = lane_op_is_of_host(lane, op);
    if (by_host && lane->done < lane->given)
        return false;
    for (int32_t w = 0; w < op->wait_count; w++) {
        const struct sw_wait *wait = &engine->program->wait[op->first_wait + w];
        if (followed(&engine->lane[wait->lane], by_host) <= wait_target(engine, wait, step))
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

static bool engine_ended(const struct sw_engine *engine) {
    return engine->stopping || engine->failure != SW_OK;
}

void sw_engine_wake(struct sw_engine *engine) {
    for (int which = 0; which < SW_LANES; which++) {
        struct lane *lane = &engine->lane[which];
        if (!lane->asleep || !(engine_ended(engine) || lane_ready(engine, lane)))
            continue;
        lane->asleep = false;
        pthread_cond_signal(&lane->wake);
    }
    const bool for_steps = engine->awaited_steps > 0, for_updates = engine->awaited_updates > 0;
    if ((for_steps && (engine_ended(engine) || sw_engine_steps_done(engine) >= engine->awaited_steps)) ||
        (for_updates && (engine_ended(engine) || engine->lane[SW_LANE_UPDATE].done >= engine->awaited_updates)))
        pthread_cond_signal(&engine->awaited_done);
}

/* Keeps the first failure and wakes everyone. */
static void engine_fail(struct sw_engine *engine, sw_status status) {
    if (engine->failure == SW_OK) {
        engine->failure = status;
        snprintf(engine->failure_text, sizeof engine->failure_text, "%s", sw_error_message(status));
    }
    sw_engine_wake(engine);
}

/* Sleeps until the lane is ready, or the lanes end. */
static void lane_sleep(struct sw_engine *engine, struct lane *lane) {
    lane->asleep = true;
    while (lane->asleep)
        pthread_cond_wait(&lane->wake, &engine->mutex);
}

/* Tells the watch that a lane has begun an op, or, if op is NULL, that it has nothing to do. */
static void lane_tell(const struct sw_engine *engine, const struct lane *lane, const struct sw_op *op) {
    /* The comm tells the watch about its own work. */
    if (lane->which == SW_LANE_COMM)
        return;
    if (op != NULL)
        sw_watch_enter(engine->spec.watch, 1 + (int)lane->which, sw_op_name(op->kind), op->unit);
    else
        sw_watch_leave(engine->spec.watch, 1 + (int)lane->which);
}

/* A lane of a device that works on its own, such as a GPU. One thread gives an op to the lane's stream as soon as the
 * ops that it waits for are done, or have been given to the same device, which keeps that order itself. A second thread
 * waits for each op and counts it done. So the device never runs out of work, and the host does not wait for results
 * that only the device needs. */

/* How often a lane of collectives looks around while it has nothing to give: a lost rank is noticed within this time.
 */
#define CHECK_NS INT64_C(20000000)
/* How long the collectives given before a refused one may take to end well. */
#define GRACE_NS INT64_C(1000000000)
#define NS_PER_S INT64_C(1000000000)

struct device_lane {
    /* Marks around each op, indexed by the op's serial number modulo the window. */
    struct sw_event *start[DEVICE_WINDOW], *end[DEVICE_WINDOW];
    bool skipped[DEVICE_WINDOW];   /* the op did nothing */
    bool host_wait[DEVICE_WINDOW]; /* the op was given only after the host had seen the ends that it waits for */
    struct sw_comm_left left[DEVICE_WINDOW]; /* the op's collective; an empty name: the op has none on the device */
    int64_t first_serial;    /* serial number of the program's first op; lane numbers begin anew with each program */
    struct sw_event *last;   /* a mark that was reached at last_ns of the host's clock, from which times are counted */
    struct sw_event *origin; /* the first such mark */
    int64_t last_ns;
    pthread_t completer;
    bool started;         /* the completer's thread runs */
    pthread_cond_t given; /* wakes the completer when an op has been given, or refused */
    sw_status refused;    /* why the op after those given could not be given; SW_OK: none was refused */
    char refused_text[ENGINE_ERROR_CHARS];
};

static int slot_of(const struct lane *lane, int64_t number) {
    return (int)((lane->device->first_serial + number) % DEVICE_WINDOW);
}

static sw_status device_lane_open(struct lane *lane) {
    struct sw_device *device = lane->engine->spec.device;
    struct device_lane *d = calloc(1, sizeof *d);
    if (d == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the %s lane", sw_lane_name(lane->which));
    lane->device = d;
    pthread_cond_init(&d->given, NULL);
    for (int i = 0; i < DEVICE_WINDOW; i++) {
        SW_TRY(sw_event_open(device, &d->start[i]));
        SW_TRY(sw_event_open(device, &d->end[i]));
    }
    SW_TRY(sw_event_open(device, &d->origin));
    SW_TRY(sw_event_record(d->origin, lane->stream));
    SW_TRY(sw_event_wait(d->origin));
    d->last = d->origin;
    d->last_ns = sw_now_ns();
    return SW_OK;
}

/* Frees what device_lane_open took, after the lane's thread has been joined. */
static void device_lane_close(struct lane *lane) {
    struct device_lane *d = lane->device;
    for (int i = 0; i < DEVICE_WINDOW; i++) {
        sw_event_close(d->start[i]);
        sw_event_close(d->end[i]);
    }
    sw_event_close(d->origin);
    pthread_cond_destroy(&d->given);
    free(d);
    lane->device = NULL;
}

static void device_lane_restart(struct lane *lane) {
    lane->device->first_serial += lane->number;
}

/* Collects the end marks of the ops that an op must follow on the device, and returns their number. A mark that is
 * reached meanwhile may be recorded again by a later op. That op cannot depend on this one, which has not been given
 * yet. Needs the mutex. */
static int ends_to_follow(const struct sw_engine *engine, const struct lane *lane, const struct sw_op *op,
                          struct sw_event *out[SW_LANES]) {
    const int64_t step = lane->number / engine->program->lane_count[lane->which];
    int64_t latest[SW_LANES];
    int count = 0;
    for (int which = 0; which < SW_LANES; which++)
        latest[which] = -1;
    for (int32_t w = 0; w < op->wait_count; w++) {
        const struct sw_wait *wait = &engine->program->wait[op->first_wait + w];
        const int64_t target = wait_target(engine, wait, step);
        if (target > latest[wait->lane])
            latest[wait->lane] = target;
    }
    for (int which = 0; which < SW_LANES; which++) {
        const struct lane *other = &engine->lane[which];
        if (other != lane && other->device != NULL && latest[which] >= other->done)
            out[count++] = other->device->end[slot_of(other, latest[which])];
    }
    return count;
}

/* Tells whether an op waits for work that only the host follows, or is such work. Needs the mutex. */
static bool waits_on_host(const struct sw_engine *engine, const struct lane *lane, const struct sw_op *op) {
    const int64_t step = lane->number / engine->program->lane_count[lane->which];
    for (int32_t w = 0; w < op->wait_count; w++) {
        const struct sw_wait *wait = &engine->program->wait[op->first_wait + w];
        if (engine->lane[wait->lane].device == NULL && wait_target(engine, wait, step) >= 0)
            return true;
    }
    return lane_op_is_of_host(lane, op);
}

/* Gives the lane's next op to the device. */
static sw_status give(struct sw_engine *engine, struct lane *lane, int slot, const struct sw_op *op,
                      struct step_context *context, struct sw_event *const *follow, int follow_count) {
    struct device_lane *d = lane->device;
    for (int i = 0; i < follow_count; i++)
        SW_TRY(sw_stream_wait(lane->stream, follow[i]));
    d->skipped[slot] = lane_skips(engine, op);
    lane->left = &d->left[slot];
    lane->left->what[0] = '\0';
    SW_TRY(sw_event_record(d->start[slot], lane->stream));
    if (!d->skipped[slot])
        SW_TRY(sw_engine_start_op(engine, lane, op, context));
    return sw_event_record(d->end[slot], lane->stream);
}

/* Notes that an op could not be given. An error of an op on the device shows at the next op that is given, so the
 * completer goes first: if all given ops end well, the error belongs to this op. Needs the mutex. */
static void refuse(struct device_lane *d, sw_status status) {
    d->refused = status;
    snprintf(d->refused_text, sizeof d->refused_text, "%s", sw_error_message(status));
}

/* Ends those of the comm lane's collectives that other ranks may never join, so that the lanes' second threads can end.
 * Called on the lane's thread, or after that has been joined. */
static void device_lane_withdraw(struct lane *lane) {
    struct sw_engine *engine = lane->engine;
    pthread_mutex_lock(&engine->mutex);
    const bool under_way = lane->done < lane->given;
    pthread_mutex_unlock(&engine->mutex);
    if (under_way)
        sw_comm_withdraw(engine->spec.comm);
}

/* Fails the engine, so that no lane starts anything more, and then ends the lane's collectives, which may never end by
 * themselves. Needs the mutex, and releases it meanwhile: other threads may have to go on for NCCL to end. */
static void fail_collectives(struct sw_engine *engine, struct lane *lane, sw_status status) {
    engine_fail(engine, status);
    pthread_mutex_unlock(&engine->mutex);
    device_lane_withdraw(lane);
    pthread_mutex_lock(&engine->mutex);
}

/* Sleeps for at most a while. Returns true if the lane is still not ready. Needs the mutex. */
static bool sleep_a_while(struct sw_engine *engine, struct lane *lane) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += CHECK_NS;
    until.tv_sec += until.tv_nsec / NS_PER_S;
    until.tv_nsec %= NS_PER_S;
    lane->asleep = true;
    while (lane->asleep && pthread_cond_timedwait(&lane->wake, &engine->mutex, &until) == 0)
        ;
    const bool late = lane->asleep;
    lane->asleep = false;
    return late;
}

/* Sleeps until the lane is ready, or the lanes end. A collective that another rank never joins never ends, so the comm
 * is asked meanwhile. It is asked under the mutex: once the last collective is counted done, the comm is the owner's.
 * Needs the mutex. */
static void sleep_until_ready(struct sw_engine *engine, struct lane *lane) {
    if (lane->which != SW_LANE_COMM || lane->done == lane->given) {
        lane_sleep(engine, lane);
        return;
    }
    if (!sleep_a_while(engine, lane) || lane->done == lane->given)
        return;
    const sw_status status = sw_comm_check(engine->spec.comm);
    if (status == SW_OK)
        return;
    fail_collectives(
        engine, lane,
        sw_engine_fail_while(status, sw_lane_op(engine, lane, lane->done), lane_context(engine, lane, lane->done)));
}

/* Waits, for a limited time, for the collectives before a refused one: their errors go first. Needs the mutex. */
static void await_earlier(struct sw_engine *engine, struct lane *lane) {
    const struct device_lane *d = lane->device;
    for (const int64_t until_ns = sw_now_ns() + GRACE_NS; sw_now_ns() < until_ns && lane->done < lane->given;) {
        if (engine_ended(engine))
            return;
        (void)sleep_a_while(engine, lane);
    }
    if (!engine_ended(engine) && lane->done < lane->given)
        fail_collectives(engine, lane, sw_fail(d->refused, "%s", d->refused_text));
}

static void *run_device_lane(void *argument) {
    struct lane *lane = argument;
    struct sw_engine *engine = lane->engine;
    pthread_mutex_lock(&engine->mutex);
    while (!engine_ended(engine)) {
        if (!lane_ready(engine, lane)) {
            sleep_until_ready(engine, lane);
            continue;
        }
        struct sw_event *follow[SW_LANES];
        const struct sw_op *op = sw_lane_op(engine, lane, lane->number);
        struct step_context *context = lane_context(engine, lane, lane->number);
        const int follow_count = ends_to_follow(engine, lane, op, follow);
        const bool host_wait = waits_on_host(engine, lane, op);
        const int slot = slot_of(lane, lane->number++);
        lane->device->host_wait[slot] = host_wait;
        pthread_mutex_unlock(&engine->mutex);
        const sw_status status = give(engine, lane, slot, op, context, follow, follow_count);
        pthread_mutex_lock(&engine->mutex);
        if (status != SW_OK) {
            refuse(lane->device, status);
            break;
        }
        lane->given++;
        pthread_cond_signal(&lane->device->given);
        sw_engine_wake(engine);
    }
    pthread_cond_signal(&lane->device->given);
    if (lane->which == SW_LANE_COMM && lane->device->refused != SW_OK)
        await_earlier(engine, lane);
    pthread_mutex_unlock(&engine->mutex);
    return NULL;
}

/* Waits for the end of a collective, and tells the watch about it. A collective begins after the device's earlier work:
 * a late rank has not joined it, although its device has been given the op. */
static sw_status wait_for_collective(const struct sw_engine *engine, const struct device_lane *d, int slot) {
    SW_TRY(sw_event_wait(d->start[slot]));
    sw_comm_note_begun(engine->spec.comm, &d->left[slot]);
    SW_TRY(sw_event_wait(d->end[slot]));
    sw_comm_note_ended(engine->spec.comm);
    return SW_OK;
}

/* Waits for an op's end, and tells the watch about it. */
static sw_status wait_for_end(const struct sw_engine *engine, const struct lane *lane, int slot,
                              const struct sw_op *op) {
    const struct device_lane *d = lane->device;
    if (d->left[slot].what[0] != '\0')
        return wait_for_collective(engine, d, slot);
    lane_tell(engine, lane, op);
    const sw_status status = sw_event_wait(d->end[slot]);
    lane_tell(engine, lane, NULL);
    return status;
}

/* Returns when an op that the device has done began and ended. */
static sw_status find_times(struct device_lane *d, int slot, struct sw_op_times *out) {
    int64_t idle_ns, busy_ns;
    SW_TRY(sw_event_elapsed_ns(d->last, d->start[slot], &idle_ns));
    SW_TRY(sw_event_elapsed_ns(d->start[slot], d->end[slot], &busy_ns));
    out->start_ns = d->last_ns + idle_ns;
    out->end_ns = out->start_ns + busy_ns;
    d->last = d->end[slot];
    d->last_ns = out->end_ns;
    return SW_OK;
}

/* Adds to an error the ops that were given to the device, since it does not say which of them failed. Needs the mutex.
 */
static sw_status fail_in_flight(struct sw_engine *engine, sw_status status) {
    for (int which = 0; which < SW_LANES; which++) {
        const struct lane *lane = &engine->lane[which];
        if (lane->device != NULL && lane->done < lane->given)
            status = sw_engine_fail_while(status, sw_lane_op(engine, lane, lane->done),
                                          lane_context(engine, lane, lane->done));
    }
    return status;
}

static void *complete_ops(void *argument) {
    struct lane *lane = argument;
    struct sw_engine *engine = lane->engine;
    struct device_lane *d = lane->device;
    pthread_mutex_lock(&engine->mutex);
    while (!engine_ended(engine)) {
        if (lane->done == lane->given && d->refused != SW_OK) {
            const sw_status status = sw_fail(d->refused, "%s", d->refused_text);
            engine_fail(engine, status == SW_ERR_DEVICE ? fail_in_flight(engine, status) : status);
            break;
        }
        if (lane->done == lane->given) {
            pthread_cond_wait(&d->given, &engine->mutex);
            continue;
        }
        struct sw_op_times times = {0};
        const struct sw_op *op = sw_lane_op(engine, lane, lane->done);
        struct step_context *context = lane_context(engine, lane, lane->done);
        const int slot = slot_of(lane, lane->done);
        pthread_mutex_unlock(&engine->mutex);
        sw_status status = wait_for_end(engine, lane, slot, op);
        if (status == SW_OK)
            status = find_times(d, slot, &times);
        times.host_wait = d->host_wait[slot];
        pthread_mutex_lock(&engine->mutex);
        if (status != SW_OK) {
            engine_fail(engine, fail_in_flight(engine, status));
            break;
        }
        if (!d->skipped[slot]) {
            op_note_times(engine, context, op, times);
            context->result.busy_seconds[lane->which] += (double)(times.end_ns - times.start_ns) * 1e-9;
            context->result.lane_bytes[lane->which] += op->bytes;
        }
        lane->done++;
        sw_engine_wake(engine);
    }
    pthread_mutex_unlock(&engine->mutex);
    return NULL;
}

static sw_status device_lane_start(struct lane *lane) {
    const int error = sw_thread_start(&lane->device->completer, complete_ops, lane);
    if (error != 0)
        return sw_fail(SW_ERR_NOMEM, "cannot start the %s lane's thread: %s", sw_lane_name(lane->which),
                       strerror(error));
    lane->device->started = true;
    return SW_OK;
}

/* Joins its second thread, once the lanes end. */
static void device_lane_join(struct lane *lane) {
    if (lane->device->started)
        pthread_join(lane->device->completer, NULL);
}

/* Transfers that an I/O lane keeps outstanding. */
enum { IO_WINDOW = 128 };
static_assert((int)IO_WINDOW <= (int)SW_STORE_LANE_TRANSFERS, "the store must accept the window");

static void note_start(const struct sw_engine *engine, const struct step_context *context, const struct sw_op *op,
                       int64_t now_ns) {
    if (context->times != NULL)
        context->times[op - engine->program->op].start_ns = now_ns;
}

static void note_end(const struct sw_engine *engine, const struct step_context *context, const struct sw_op *op,
                     int64_t now_ns) {
    if (context->times != NULL)
        context->times[op - engine->program->op].end_ns = now_ns;
}

static void *run_sync_lane(void *argument) {
    struct lane *lane = argument;
    struct sw_engine *engine = lane->engine;
    pthread_mutex_lock(&engine->mutex);
    while (!engine_ended(engine)) {
        if (!lane_ready(engine, lane)) {
            lane_sleep(engine, lane);
            continue;
        }
        const struct sw_op *op = sw_lane_op(engine, lane, lane->number);
        struct step_context *context = lane_context(engine, lane, lane->number);
        lane->number++;
        pthread_mutex_unlock(&engine->mutex);
        const int64_t start_ns = sw_now_ns();
        lane_tell(engine, lane, op);
        const sw_status status = lane_skips(engine, op) ? SW_OK : sw_engine_run_op(engine, lane, op, context);
        lane_tell(engine, lane, NULL);
        const int64_t end_ns = sw_now_ns();
        if (!lane_skips(engine, op))
            op_note_times(engine, context, op, (struct sw_op_times){.start_ns = start_ns, .end_ns = end_ns});
        pthread_mutex_lock(&engine->mutex);
        context->result.busy_seconds[lane->which] += (double)(end_ns - start_ns) * 1e-9;
        context->result.lane_bytes[lane->which] += lane_skips(engine, op) ? 0 : op->bytes;
        lane->done++;
        if (status != SW_OK)
            engine_fail(engine, status);
        sw_engine_wake(engine);
    }
    pthread_mutex_unlock(&engine->mutex);
    return NULL;
}

/* State of an I/O lane that only its thread uses. */
struct io_state {
    bool finished[IO_WINDOW]; /* op number modulo the window */
    int outstanding;
    int64_t busy_since_ns;
};

/* Counts ops that have finished as done, in order. Needs the mutex. */
static void advance(struct sw_engine *engine, struct lane *lane, struct io_state *io) {
    while (lane->done < lane->number && io->finished[lane->done % IO_WINDOW]) {
        const struct sw_op *op = sw_lane_op(engine, lane, lane->done);
        io->finished[lane->done % IO_WINDOW] = false;
        lane_context(engine, lane, lane->done)->result.lane_bytes[lane->which] +=
            lane_skips(engine, op) ? 0 : op->bytes;
        lane->done++;
    }
    sw_engine_wake(engine);
}

/* Starts the lane's next op. Needs the mutex, and releases it meanwhile. */
static sw_status start_io_op(struct sw_engine *engine, struct lane *lane, struct io_state *io) {
    const int64_t number = lane->number++;
    const struct sw_op *op = sw_lane_op(engine, lane, number);
    struct step_context *context = lane_context(engine, lane, number);
    if (lane_skips(engine, op)) {
        io->finished[number % IO_WINDOW] = true;
        advance(engine, lane, io);
        return SW_OK;
    }
    pthread_mutex_unlock(&engine->mutex);
    sw_status status;
    const int64_t start_ns = sw_now_ns();
    note_start(engine, context, op, start_ns);
    lane_tell(engine, lane, op);
    if (op->kind == SW_OP_COMMIT) {
        status = sw_engine_run_op(engine, lane, op, context);
        io->finished[number % IO_WINDOW] = true;
    } else {
        struct sw_store_transfer transfer = sw_engine_transfer(engine, op, context);
        transfer.tag = (uint64_t)number;
        status = sw_store_submit(lane->store_lane, &transfer);
        if (io->outstanding++ == 0)
            io->busy_since_ns = start_ns;
    }
    pthread_mutex_lock(&engine->mutex);
    if (op->kind == SW_OP_COMMIT) {
        if (io->outstanding == 0)
            lane_tell(engine, lane, NULL);
        const int64_t end_ns = sw_now_ns();
        note_end(engine, context, op, end_ns);
        context->result.busy_seconds[lane->which] += (double)(end_ns - start_ns) * 1e-9;
        advance(engine, lane, io);
    }
    return status;
}

/* Takes in transfers that have finished. Needs the mutex, and releases it meanwhile. */
static sw_status reap_io(struct sw_engine *engine, struct lane *lane, struct io_state *io, bool wait) {
    uint64_t tags[IO_WINDOW];
    int count = 0;
    pthread_mutex_unlock(&engine->mutex);
    const sw_status status = sw_store_reap(lane->store_lane, wait, tags, IO_WINDOW, &count);
    const int64_t now_ns = sw_now_ns();
    pthread_mutex_lock(&engine->mutex);
    if (count == 0)
        return status;
    /* The lane is busy while any transfer is in flight; that time belongs to the step of the transfer that finished. */
    struct step_context *context = lane_context(engine, lane, (int64_t)tags[0]);
    context->result.busy_seconds[lane->which] += (double)(now_ns - io->busy_since_ns) * 1e-9;
    io->busy_since_ns = now_ns;
    io->outstanding -= count;
    if (io->outstanding == 0)
        lane_tell(engine, lane, NULL);
    for (int i = 0; i < count; i++) {
        const int64_t number = (int64_t)tags[i];
        sw_watch_tick(engine->spec.watch, 1 + (int)lane->which);
        io->finished[number % IO_WINDOW] = true;
        note_end(engine, lane_context(engine, lane, number), sw_lane_op(engine, lane, number), now_ns);
    }
    advance(engine, lane, io);
    return status;
}

static void *run_io_lane(void *argument) {
    struct lane *lane = argument;
    struct sw_engine *engine = lane->engine;
    struct io_state io = {0};
    sw_status status = SW_OK;
    /* A store warns about removed files on the thread that meets them. */
    sw_log_set_rank(sw_plan_job_rank(engine->plan));
    pthread_mutex_lock(&engine->mutex);
    while (!engine_ended(engine)) {
        bool started = false;
        while (status == SW_OK && lane->number - lane->done < IO_WINDOW && lane_ready(engine, lane)) {
            status = start_io_op(engine, lane, &io);
            started = true;
        }
        if (status == SW_OK && io.outstanding > 0)
            status = reap_io(engine, lane, &io, !started);
        else if (status == SW_OK && !started)
            lane_sleep(engine, lane);
        if (status != SW_OK)
            engine_fail(engine, status);
    }
    pthread_mutex_unlock(&engine->mutex);
    return NULL;
}

static sw_status open_lane(struct sw_engine *engine, struct lane *lane) {
    const struct sw_plan *plan = engine->plan;
    if (lane->which == SW_LANE_COMM && engine->spec.comm_stream != NULL) {
        lane->stream = engine->spec.comm_stream;
        return device_lane_open(lane);
    }
    if (lane->which == SW_LANE_COMM)
        return sw_plan_quantizes_weights(plan) || sw_plan_quantizes_grads(plan)
                   ? sw_stream_open(engine->spec.device, &lane->stream)
                   : SW_OK;
    if (!sw_lane_is_io(lane->which)) {
        struct sw_device *device = sw_lane_is_of_device(lane->which) ? engine->spec.device : engine->spec.host;
        SW_TRY(sw_stream_open(device, &lane->stream));
        return sw_device_info(device).asynchronous ? device_lane_open(lane) : SW_OK;
    }
    return engine->spec.store == NULL
               ? SW_OK
               : sw_store_lane_open(engine->spec.store, engine->spec.io_depth, &lane->store_lane);
}

/* A wait with a limit counts on the monotonic clock. */
static void init_wake(struct lane *lane) {
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&lane->wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

sw_status sw_engine_start_lanes(struct sw_engine *engine) {
    for (int which = 0; which < SW_LANES; which++) {
        struct lane *lane = &engine->lane[which];
        *lane = (struct lane){.engine = engine, .which = (sw_lane)which};
        init_wake(lane);
        SW_TRY(open_lane(engine, lane));
    }
    for (int which = 0; which < SW_LANES; which++) {
        struct lane *lane = &engine->lane[which];
        void *(*run)(void *) = sw_lane_is_io(lane->which) ? run_io_lane
                               : lane->device != NULL     ? run_device_lane
                                                          : run_sync_lane;
        const int error = sw_thread_start(&lane->thread, run, lane);
        if (error != 0)
            return sw_fail(SW_ERR_NOMEM, "cannot start the %s lane's thread: %s", sw_lane_name(lane->which),
                           strerror(error));
        lane->started = true;
        if (lane->device != NULL)
            SW_TRY(device_lane_start(lane));
    }
    return SW_OK;
}

void sw_engine_restart_lane(struct lane *lane) {
    if (lane->device != NULL)
        device_lane_restart(lane);
    lane->number = lane->given = lane->done = 0;
}

/* Joins the thread that begins collectives, and ends those that other ranks may never join. */
static void end_collectives(struct sw_engine *engine) {
    struct lane *lane = &engine->lane[SW_LANE_COMM];
    if (!lane->started || lane->device == NULL)
        return;
    pthread_join(lane->thread, NULL);
    lane->started = false;
    device_lane_withdraw(lane);
}

static void close_stream(const struct sw_engine *engine, struct sw_stream *stream) {
    if (stream == NULL || stream != engine->spec.comm_stream) {
        sw_stream_close(stream);
        return;
    }
    SW_HANDLES_ERRORS();
    (void)sw_stream_synchronize(stream);
}

void sw_engine_stop_lanes(struct sw_engine *engine) {
    pthread_mutex_lock(&engine->mutex);
    engine->stopping = true;
    sw_engine_wake(engine);
    pthread_mutex_unlock(&engine->mutex);
    end_collectives(engine);
    for (int which = 0; which < SW_LANES; which++) {
        struct lane *lane = &engine->lane[which];
        if (lane->started)
            pthread_join(lane->thread, NULL);
        if (lane->device != NULL)
            device_lane_join(lane);
    }
    /* Only now: a lane that ends looks at the others. */
    for (int which = 0; which < SW_LANES; which++) {
        struct lane *lane = &engine->lane[which];
        close_stream(engine, lane->stream);
        if (lane->device != NULL)
            device_lane_close(lane);
        if (lane->store_lane != NULL)
            sw_store_lane_close(lane->store_lane);
        if (lane->engine != NULL)
            pthread_cond_destroy(&lane->wake);
        *lane = (struct lane){0};
    }
}
