#include "tests/equipment/cuda/gpu.h"

#include "core/clock.h"
#include "core/rng.h"
#include "tests/equipment/cuda/machine.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { DELAY_STREAM = 501 };

struct task {
    void (*run)(void *argument);
    void *argument;
    struct task *next;
};

struct CUstream_st {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct task *first, *last;
    int64_t given, done;
    bool closing;
    _Atomic bool forgets, is_forgotten; /* waits in it, and waits for what is recorded in it, do nothing */
};

struct CUevent_st {
    pthread_mutex_t mutex;
    pthread_cond_t reached_more;
    int64_t recorded, reached; /* the numbers of the newest record and of the last one reached */
    int64_t time_ns;           /* the time of the last record reached */
    _Atomic bool is_forgotten; /* the stream of the last record has its waits forgotten */
};

static pthread_cond_t never = PTHREAD_COND_INITIALIZER; /* nobody signals it */

void sw_emulation_hang(void) {
    pthread_mutex_lock(&sw_emulated_machine.mutex);
    sw_emulated_machine.hangs = true;
    pthread_mutex_unlock(&sw_emulated_machine.mutex);
}

/* Lets other threads go first, by chance. */
static void delay(void) {
    pthread_mutex_lock(&sw_emulated_machine.mutex);
    while (sw_emulated_machine.hangs)
        pthread_cond_wait(&never, &sw_emulated_machine.mutex);
    const int64_t most_ns = sw_emulated_machine.delay_ns;
    const uint32_t drawn = sw_rng(sw_emulated_machine.delay_seed, DELAY_STREAM, sw_emulated_machine.tasks++).word[0];
    pthread_mutex_unlock(&sw_emulated_machine.mutex);
    if (most_ns == 0)
        return;
    const struct timespec time = {.tv_nsec = (long)((int64_t)drawn * most_ns >> 32)};
    nanosleep(&time, NULL);
}

static void run_task(struct task *task) {
    delay();
    task->run(task->argument);
    const char *error = sw_emulation_take_error();
    if (error != NULL)
        sw_emulation_break(error);
    free(task);
}

static void *run_stream(void *argument) {
    struct CUstream_st *stream = argument;
    sw_emulated_open_memory(true);
    pthread_mutex_lock(&stream->mutex);
    while (stream->first != NULL || !stream->closing) {
        struct task *task = stream->first;
        if (task == NULL) {
            pthread_cond_wait(&stream->changed, &stream->mutex);
            continue;
        }
        stream->first = task->next;
        pthread_mutex_unlock(&stream->mutex);
        run_task(task);
        pthread_mutex_lock(&stream->mutex);
        stream->done++;
        pthread_cond_broadcast(&stream->changed);
    }
    pthread_mutex_unlock(&stream->mutex);
    return NULL;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags) {
    (void)flags;
    sw_emulated_start();
    struct CUstream_st *stream = calloc(1, sizeof *stream);
    if (stream == NULL)
        return cudaErrorMemoryAllocation;
    pthread_mutex_init(&stream->mutex, NULL);
    pthread_cond_init(&stream->changed, NULL);
    if (pthread_create(&stream->thread, NULL, run_stream, stream) != 0) {
        free(stream);
        return cudaErrorMemoryAllocation;
    }
    *out = stream;
    return sw_emulated_state();
}

void sw_emulated_wait(struct CUstream_st *stream) {
    pthread_mutex_lock(&stream->mutex);
    for (const int64_t given = stream->given; stream->done < given;)
        pthread_cond_wait(&stream->changed, &stream->mutex);
    pthread_mutex_unlock(&stream->mutex);
}

cudaStream_t sw_emulated_default_stream(void) {
    cudaStream_t made = NULL;
    pthread_mutex_lock(&sw_emulated_machine.mutex);
    cudaStream_t stream = sw_emulated_machine.default_stream;
    pthread_mutex_unlock(&sw_emulated_machine.mutex);
    if (stream != NULL || cudaStreamCreateWithFlags(&made, 0) == cudaErrorMemoryAllocation)
        return stream;
    pthread_mutex_lock(&sw_emulated_machine.mutex);
    const bool first = sw_emulated_machine.default_stream == NULL;
    sw_emulated_machine.default_stream = first ? made : sw_emulated_machine.default_stream;
    stream = sw_emulated_machine.default_stream;
    pthread_mutex_unlock(&sw_emulated_machine.mutex);
    if (!first)
        cudaStreamDestroy(made);
    return stream;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    stream = stream != NULL ? stream : sw_emulated_default_stream();
    if (stream == NULL)
        return cudaErrorMemoryAllocation;
    sw_emulated_wait(stream);
    return sw_emulated_state();
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    pthread_mutex_lock(&stream->mutex);
    stream->closing = true;
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->mutex);
    pthread_join(stream->thread, NULL);
    pthread_mutex_destroy(&stream->mutex);
    pthread_cond_destroy(&stream->changed);
    free(stream);
    return sw_emulated_state();
}

cudaError_t sw_emulated_give(cudaStream_t stream, void (*run)(void *), void *argument) {
    struct task *task = calloc(1, sizeof *task);
    if (task == NULL)
        return cudaErrorMemoryAllocation;
    *task = (struct task){.run = run, .argument = argument};
    pthread_mutex_lock(&stream->mutex);
    if (stream->first == NULL)
        stream->first = task;
    else
        stream->last->next = task;
    stream->last = task;
    stream->given++;
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->mutex);
    return sw_emulated_state();
}

/* Runs a task on the caller's thread, whose settings of the emulation it obeys. */
static void run_now(cudaStream_t stream, void (*run)(void *), void *argument) {
    if (stream != NULL)
        sw_emulated_wait(stream);
    sw_emulated_open_memory(true);
    run(argument);
    sw_emulated_open_memory(false);
    const char *error = stream == NULL ? NULL : sw_emulation_take_error();
    if (error == NULL)
        return;
    sw_emulated_thread.launch_failed = true;
    snprintf(sw_emulated_thread.launch_error, sizeof sw_emulated_thread.launch_error, "%s", error);
}

void sw_emulation_give(cudaStream_t stream, void (*run)(void *), void *argument) {
    sw_emulated_start();
    if (stream == NULL || sw_emulated_machine.blocking)
        run_now(stream, run, argument);
    else if (sw_emulated_give(stream, run, argument) == cudaErrorMemoryAllocation)
        sw_emulation_break("no memory for a launch");
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags) {
    (void)flags;
    struct CUevent_st *event = calloc(1, sizeof *event);
    if (event == NULL)
        return cudaErrorMemoryAllocation;
    pthread_mutex_init(&event->mutex, NULL);
    pthread_cond_init(&event->reached_more, NULL);
    *out = event;
    return sw_emulated_state();
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    pthread_mutex_destroy(&event->mutex);
    pthread_cond_destroy(&event->reached_more);
    free(event);
    return sw_emulated_state();
}

/* A record of an event, that a stream reaches or waits for. */
struct mark {
    struct CUevent_st *event;
    int64_t record;
};

static cudaError_t give_mark(cudaStream_t stream, void (*run)(void *), struct CUevent_st *event, int64_t record) {
    struct mark *mark = malloc(sizeof *mark);
    if (mark == NULL)
        return cudaErrorMemoryAllocation;
    *mark = (struct mark){.event = event, .record = record};
    const cudaError_t error = sw_emulated_give(stream, run, mark);
    if (error == cudaErrorMemoryAllocation)
        free(mark);
    return error;
}

static void reach(void *argument) {
    const struct mark mark = *(struct mark *)argument;
    free(argument);
    pthread_mutex_lock(&mark.event->mutex);
    mark.event->reached = mark.record;
    mark.event->time_ns = sw_now_ns();
    pthread_cond_broadcast(&mark.event->reached_more);
    pthread_mutex_unlock(&mark.event->mutex);
}

static void await(struct CUevent_st *event, int64_t record) {
    pthread_mutex_lock(&event->mutex);
    while (event->reached < record)
        pthread_cond_wait(&event->reached_more, &event->mutex);
    pthread_mutex_unlock(&event->mutex);
}

static void await_mark(void *argument) {
    const struct mark mark = *(struct mark *)argument;
    free(argument);
    await(mark.event, mark.record);
}

static int64_t last_record(struct CUevent_st *event, int64_t more) {
    pthread_mutex_lock(&event->mutex);
    event->recorded += more;
    const int64_t record = event->recorded;
    pthread_mutex_unlock(&event->mutex);
    return record;
}

void sw_emulation_forget_waits(cudaStream_t stream, bool before, bool after) {
    stream->forgets = before;
    stream->is_forgotten = after;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    event->is_forgotten = stream->is_forgotten;
    return give_mark(stream, reach, event, last_record(event, 1));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    (void)flags;
    if (stream->forgets || (event->is_forgotten && !stream->is_forgotten))
        return sw_emulated_state();
    return give_mark(stream, await_mark, event, last_record(event, 0));
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    await(event, last_record(event, 0));
    return sw_emulated_state();
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    pthread_mutex_lock(&event->mutex);
    const bool reached = event->reached >= event->recorded;
    pthread_mutex_unlock(&event->mutex);
    sw_emulated_thread.said_not_ready |= !reached;
    return reached ? sw_emulated_state() : cudaErrorNotReady;
}

cudaError_t cudaEventElapsedTime(float *out_ms, cudaEvent_t from, cudaEvent_t to) {
    *out_ms = (float)((double)(to->time_ns - from->time_ns) * 1e-6);
    return sw_emulated_state();
}
