/* The lanes' threads: each takes its ops in order, starts them when their waits are met, and counts them done in order.
 */
#include "core/clock.h"
#include "core/log.h"
#include "core/size.h"
#include "core/status.h"
#include "offload/engine/engine_private.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

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
    while (!sw_engine_ended(engine)) {
        if (!sw_lane_ready(engine, lane)) {
            sw_lane_sleep(engine, lane);
            continue;
        }
        const struct sw_op *op = sw_lane_op(engine, lane, lane->number);
        struct step_context *context = sw_lane_context(engine, lane, lane->number);
        lane->number++;
        pthread_mutex_unlock(&engine->mutex);
        const int64_t start_ns = sw_now_ns();
        sw_lane_tell(engine, lane, op);
        const sw_status status = sw_lane_skips(engine, op) ? SW_OK : sw_engine_run_op(engine, lane, op, context);
        sw_lane_tell(engine, lane, NULL);
        const int64_t end_ns = sw_now_ns();
        if (!sw_lane_skips(engine, op))
            sw_op_note_times(engine, context, op, (struct sw_op_times){.start_ns = start_ns, .end_ns = end_ns});
        pthread_mutex_lock(&engine->mutex);
        context->result.busy_seconds[lane->which] += (double)(end_ns - start_ns) * 1e-9;
        context->result.lane_bytes[lane->which] += sw_lane_skips(engine, op) ? 0 : op->bytes;
        lane->done++;
        if (status != SW_OK)
            sw_engine_fail(engine, status);
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
        sw_lane_context(engine, lane, lane->done)->result.lane_bytes[lane->which] +=
            sw_lane_skips(engine, op) ? 0 : op->bytes;
        lane->done++;
    }
    sw_engine_wake(engine);
}

/* Starts the lane's next op. Needs the mutex, and releases it meanwhile. */
static sw_status start_io_op(struct sw_engine *engine, struct lane *lane, struct io_state *io) {
    const int64_t number = lane->number++;
    const struct sw_op *op = sw_lane_op(engine, lane, number);
    struct step_context *context = sw_lane_context(engine, lane, number);
    if (sw_lane_skips(engine, op)) {
        io->finished[number % IO_WINDOW] = true;
        advance(engine, lane, io);
        return SW_OK;
    }
    pthread_mutex_unlock(&engine->mutex);
    sw_status status;
    const int64_t start_ns = sw_now_ns();
    note_start(engine, context, op, start_ns);
    sw_lane_tell(engine, lane, op);
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
            sw_lane_tell(engine, lane, NULL);
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
    /* Busy is while anything is in flight; it belongs to the step of what finished. */
    struct step_context *context = sw_lane_context(engine, lane, (int64_t)tags[0]);
    context->result.busy_seconds[lane->which] += (double)(now_ns - io->busy_since_ns) * 1e-9;
    io->busy_since_ns = now_ns;
    io->outstanding -= count;
    if (io->outstanding == 0)
        sw_lane_tell(engine, lane, NULL);
    for (int i = 0; i < count; i++) {
        const int64_t number = (int64_t)tags[i];
        sw_watch_tick(engine->spec.watch, 1 + (int)lane->which);
        io->finished[number % IO_WINDOW] = true;
        note_end(engine, sw_lane_context(engine, lane, number), sw_lane_op(engine, lane, number), now_ns);
    }
    advance(engine, lane, io);
    return status;
}

static void *run_io_lane(void *argument) {
    struct lane *lane = argument;
    struct sw_engine *engine = lane->engine;
    struct io_state io = {0};
    sw_status status = SW_OK;
    /* A store warns of files that are removed, on the thread that meets them. */
    sw_log_set_rank(sw_plan_job_rank(engine->plan));
    pthread_mutex_lock(&engine->mutex);
    while (!sw_engine_ended(engine)) {
        bool started = false;
        while (status == SW_OK && lane->number - lane->done < IO_WINDOW && sw_lane_ready(engine, lane)) {
            status = start_io_op(engine, lane, &io);
            started = true;
        }
        if (status == SW_OK && io.outstanding > 0)
            status = reap_io(engine, lane, &io, !started);
        else if (status == SW_OK && !started)
            sw_lane_sleep(engine, lane);
        if (status != SW_OK)
            sw_engine_fail(engine, status);
    }
    pthread_mutex_unlock(&engine->mutex);
    return NULL;
}

static sw_status open_lane(struct sw_engine *engine, struct lane *lane) {
    const struct sw_plan *plan = engine->plan;
    if (lane->which == SW_LANE_COMM && engine->spec.comm_stream != NULL) {
        lane->stream = engine->spec.comm_stream;
        return sw_device_lane_open(lane);
    }
    if (lane->which == SW_LANE_COMM)
        return sw_plan_quantizes_weights(plan) || sw_plan_quantizes_grads(plan)
                   ? sw_stream_open(engine->spec.device, &lane->stream)
                   : SW_OK;
    if (!sw_lane_is_io(lane->which)) {
        struct sw_device *device = sw_lane_is_of_device(lane->which) ? engine->spec.device : engine->spec.host;
        SW_TRY(sw_stream_open(device, &lane->stream));
        return sw_device_info(device).asynchronous ? sw_device_lane_open(lane) : SW_OK;
    }
    return engine->spec.store == NULL
               ? SW_OK
               : sw_store_lane_open(engine->spec.store, engine->spec.io_depth, &lane->store_lane);
}

/* A wait with a limit counts by the clock that nobody sets. */
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
                               : lane->device != NULL     ? sw_device_lane_run
                                                          : run_sync_lane;
        const int error = pthread_create(&lane->thread, NULL, run, lane);
        if (error != 0)
            return sw_fail(SW_ERR_NOMEM, "cannot start the %s lane's thread: %s", sw_lane_name(lane->which),
                           strerror(error));
        lane->started = true;
        if (lane->device != NULL)
            SW_TRY(sw_device_lane_start(lane));
    }
    return SW_OK;
}

void sw_engine_restart_lane(struct lane *lane) {
    if (lane->device != NULL)
        sw_device_lane_restart(lane);
    lane->number = lane->given = lane->done = 0;
}

/* Joins the thread that begins collectives, and ends those that other ranks may never join. */
static void end_collectives(struct sw_engine *engine) {
    struct lane *lane = &engine->lane[SW_LANE_COMM];
    if (!lane->started || lane->device == NULL)
        return;
    pthread_join(lane->thread, NULL);
    lane->started = false;
    sw_device_lane_withdraw(lane);
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
            sw_device_lane_join(lane);
    }
    /* Only now: a lane that ends looks at the others. */
    for (int which = 0; which < SW_LANES; which++) {
        struct lane *lane = &engine->lane[which];
        close_stream(engine, lane->stream);
        if (lane->device != NULL)
            sw_device_lane_close(lane);
        if (lane->store_lane != NULL)
            sw_store_lane_close(lane->store_lane);
        if (lane->engine != NULL)
            pthread_cond_destroy(&lane->wake);
        *lane = (struct lane){0};
    }
}
