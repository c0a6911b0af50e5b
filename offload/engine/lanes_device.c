/* A lane of a device that works on its own, such as a GPU. One thread gives ops to the lane's stream as soon as what
 * they wait for is done or has been given to the same device, which keeps that order itself; a second thread waits for
 * each and counts it done. So the device always has work before it runs out, and the host waits for nothing that only
 * the device needs. */
#include "core/clock.h"
#include "offload/engine/engine_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* How often a lane of collectives looks around while it has nothing to give: a lost rank is noticed within this time.
 */
#define CHECK_NS INT64_C(20000000)
/* How long collectives that were given before one that was refused may take to end well. */
#define GRACE_NS INT64_C(1000000000)
#define NS_PER_S INT64_C(1000000000)

struct device_lane {
    /* Marks around each op, indexed by the op's serial number modulo the window. */
    struct sw_event *start[SW_DEVICE_WINDOW], *end[SW_DEVICE_WINDOW];
    bool skipped[SW_DEVICE_WINDOW];             /* the op did nothing */
    bool host_wait[SW_DEVICE_WINDOW];           /* the op was given once the host had seen what it waits for */
    struct sw_comm_left left[SW_DEVICE_WINDOW]; /* the op's collective; an empty name: it has none on the device */
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
    return (int)((lane->device->first_serial + number) % SW_DEVICE_WINDOW);
}

sw_status sw_device_lane_open(struct lane *lane) {
    struct sw_device *device = lane->engine->spec.device;
    struct device_lane *d = calloc(1, sizeof *d);
    if (d == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the %s lane", sw_lane_name(lane->which));
    lane->device = d;
    pthread_cond_init(&d->given, NULL);
    for (int i = 0; i < SW_DEVICE_WINDOW; i++) {
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

void sw_device_lane_close(struct lane *lane) {
    struct device_lane *d = lane->device;
    for (int i = 0; i < SW_DEVICE_WINDOW; i++) {
        sw_event_close(d->start[i]);
        sw_event_close(d->end[i]);
    }
    sw_event_close(d->origin);
    pthread_cond_destroy(&d->given);
    free(d);
    lane->device = NULL;
}

void sw_device_lane_restart(struct lane *lane) {
    lane->device->first_serial += lane->number;
}

/* Collects the end marks of ops that an op must follow on the device, and returns how many. A mark that is reached
 * meanwhile may be recorded again by a later op, which cannot depend on this one, as this one has not been given yet.
 * Needs the mutex. */
static int ends_to_follow(const struct sw_engine *engine, const struct lane *lane, const struct sw_op *op,
                          struct sw_event *out[SW_LANES]) {
    const int64_t step = lane->number / engine->program->lane_count[lane->which];
    int64_t latest[SW_LANES];
    int count = 0;
    for (int which = 0; which < SW_LANES; which++)
        latest[which] = -1;
    for (int32_t w = 0; w < op->wait_count; w++) {
        const struct sw_wait *wait = &engine->program->wait[op->first_wait + w];
        const int64_t target = sw_wait_target(engine, wait, step);
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

/* Tells whether an op waits for work that the host alone follows, or is such work. Needs the mutex. */
static bool waits_on_host(const struct sw_engine *engine, const struct lane *lane, const struct sw_op *op) {
    const int64_t step = lane->number / engine->program->lane_count[lane->which];
    for (int32_t w = 0; w < op->wait_count; w++) {
        const struct sw_wait *wait = &engine->program->wait[op->first_wait + w];
        if (engine->lane[wait->lane].device == NULL && sw_wait_target(engine, wait, step) >= 0)
            return true;
    }
    return sw_lane_op_is_of_host(lane, op);
}

/* Gives the lane's next op to the device. */
static sw_status give(struct sw_engine *engine, struct lane *lane, int slot, const struct sw_op *op,
                      struct step_context *context, struct sw_event *const *follow, int follow_count) {
    struct device_lane *d = lane->device;
    for (int i = 0; i < follow_count; i++)
        SW_TRY(sw_stream_wait(lane->stream, follow[i]));
    d->skipped[slot] = sw_lane_skips(engine, op);
    lane->left = &d->left[slot];
    lane->left->what[0] = '\0';
    SW_TRY(sw_event_record(d->start[slot], lane->stream));
    if (!d->skipped[slot])
        SW_TRY(sw_engine_start_op(engine, lane, op, context));
    return sw_event_record(d->end[slot], lane->stream);
}

/* Notes that an op could not be given. An error of an op that the device has reached shows at whatever it is given
 * next, so the completer goes first: if all given ops end well, the error belongs to this op. Needs the mutex. */
static void refuse(struct device_lane *d, sw_status status) {
    d->refused = status;
    snprintf(d->refused_text, sizeof d->refused_text, "%s", sw_error_message(status));
}

void sw_device_lane_withdraw(struct lane *lane) {
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
    sw_engine_fail(engine, status);
    pthread_mutex_unlock(&engine->mutex);
    sw_device_lane_withdraw(lane);
    pthread_mutex_lock(&engine->mutex);
}

/* Sleeps for a while at most. Returns true if the lane is still not ready. Needs the mutex. */
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
        sw_lane_sleep(engine, lane);
        return;
    }
    if (!sleep_a_while(engine, lane) || lane->done == lane->given)
        return;
    const sw_status status = sw_comm_check(engine->spec.comm);
    if (status == SW_OK)
        return;
    fail_collectives(
        engine, lane,
        sw_engine_fail_while(status, sw_lane_op(engine, lane, lane->done), sw_lane_context(engine, lane, lane->done)));
}

/* Waits for the collectives before one that was refused, whose errors go first, but not without end. Needs the mutex.
 */
static void await_earlier(struct sw_engine *engine, struct lane *lane) {
    const struct device_lane *d = lane->device;
    for (const int64_t until_ns = sw_now_ns() + GRACE_NS; sw_now_ns() < until_ns && lane->done < lane->given;) {
        if (sw_engine_ended(engine))
            return;
        (void)sleep_a_while(engine, lane);
    }
    if (!sw_engine_ended(engine) && lane->done < lane->given)
        fail_collectives(engine, lane, sw_fail(d->refused, "%s", d->refused_text));
}

void *sw_device_lane_run(void *argument) {
    struct lane *lane = argument;
    struct sw_engine *engine = lane->engine;
    pthread_mutex_lock(&engine->mutex);
    while (!sw_engine_ended(engine)) {
        if (!sw_lane_ready(engine, lane)) {
            sleep_until_ready(engine, lane);
            continue;
        }
        struct sw_event *follow[SW_LANES];
        const struct sw_op *op = sw_lane_op(engine, lane, lane->number);
        struct step_context *context = sw_lane_context(engine, lane, lane->number);
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

/* Waits for the end of a collective, and tells the watch of it. It begins where the device's earlier work lets it: a
 * rank that is late has not joined it, though the device has been given it. */
static sw_status wait_for_collective(const struct sw_engine *engine, const struct device_lane *d, int slot) {
    SW_TRY(sw_event_wait(d->start[slot]));
    sw_comm_note_begun(engine->spec.comm, &d->left[slot]);
    SW_TRY(sw_event_wait(d->end[slot]));
    sw_comm_note_ended(engine->spec.comm);
    return SW_OK;
}

/* Waits for an op's end, and tells the watch what the lane does until then. */
static sw_status wait_for_end(const struct sw_engine *engine, const struct lane *lane, int slot,
                              const struct sw_op *op) {
    const struct device_lane *d = lane->device;
    if (d->left[slot].what[0] != '\0')
        return wait_for_collective(engine, d, slot);
    sw_lane_tell(engine, lane, op);
    const sw_status status = sw_event_wait(d->end[slot]);
    sw_lane_tell(engine, lane, NULL);
    return status;
}

/* Returns when an op began and ended that the device has done. */
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
                                          sw_lane_context(engine, lane, lane->done));
    }
    return status;
}

static void *complete_ops(void *argument) {
    struct lane *lane = argument;
    struct sw_engine *engine = lane->engine;
    struct device_lane *d = lane->device;
    pthread_mutex_lock(&engine->mutex);
    while (!sw_engine_ended(engine)) {
        if (lane->done == lane->given && d->refused != SW_OK) {
            const sw_status status = sw_fail(d->refused, "%s", d->refused_text);
            sw_engine_fail(engine, status == SW_ERR_DEVICE ? fail_in_flight(engine, status) : status);
            break;
        }
        if (lane->done == lane->given) {
            pthread_cond_wait(&d->given, &engine->mutex);
            continue;
        }
        struct sw_op_times times = {0};
        const struct sw_op *op = sw_lane_op(engine, lane, lane->done);
        struct step_context *context = sw_lane_context(engine, lane, lane->done);
        const int slot = slot_of(lane, lane->done);
        pthread_mutex_unlock(&engine->mutex);
        sw_status status = wait_for_end(engine, lane, slot, op);
        if (status == SW_OK)
            status = find_times(d, slot, &times);
        times.host_wait = d->host_wait[slot];
        pthread_mutex_lock(&engine->mutex);
        if (status != SW_OK) {
            sw_engine_fail(engine, fail_in_flight(engine, status));
            break;
        }
        if (!d->skipped[slot]) {
            sw_op_note_times(engine, context, op, times);
            context->result.busy_seconds[lane->which] += (double)(times.end_ns - times.start_ns) * 1e-9;
            context->result.lane_bytes[lane->which] += op->bytes;
        }
        lane->done++;
        sw_engine_wake(engine);
    }
    pthread_mutex_unlock(&engine->mutex);
    return NULL;
}

sw_status sw_device_lane_start(struct lane *lane) {
    const int error = pthread_create(&lane->device->completer, NULL, complete_ops, lane);
    if (error != 0)
        return sw_fail(SW_ERR_NOMEM, "cannot start the %s lane's thread: %s", sw_lane_name(lane->which),
                       strerror(error));
    lane->device->started = true;
    return SW_OK;
}

void sw_device_lane_join(struct lane *lane) {
    if (lane->device->started)
        pthread_join(lane->device->completer, NULL);
}
