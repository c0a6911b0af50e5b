#include "kernels/cuda/emulation/runtime.h"

#include "core/clock.h"
#include "core/rng.h"
#include "kernels/cuda/emulation/machine.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { ERROR_CHARS = 512, PAGE_BYTES = 4096, DELAY_STREAM = 501 };

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
};

struct CUevent_st {
    pthread_mutex_t mutex;
    pthread_cond_t reached_more;
    int64_t recorded, reached; /* records, by number */
    int64_t time_ns;           /* of the last one reached */
};

/* A registered range of the host's memory. */
struct pinned {
    const char *base;
    size_t bytes;
    struct pinned *next;
};

const struct sw_emulation_gpu sw_emulation_default_gpu = {.driver = CUDART_VERSION,
                                                          .gpus = 1,
                                                          .major = 9,
                                                          .memory_bytes = (size_t)16 << 30,
                                                          .pinnable_bytes = SIZE_MAX,
                                                          .blas = {.version = 130002, .algorithms = 3}};

/* The machine, which is one: what the operating system would hold for a real GPU. */
static struct {
    pthread_once_t once;
    pthread_mutex_t mutex; /* guards what follows */
    struct sw_emulation_gpu gpu;
    size_t used_bytes, pinned_bytes;
    struct pinned *pinned;
    int key;            /* of the GPU's memory; -1: this processor has none */
    bool blocking;      /* CUDA_LAUNCH_BLOCKING=1, as CUDA has it: a launch has ended when it returns */
    cudaError_t broken; /* what ended the GPU's work; cudaSuccess: nothing */
    char error[ERROR_CHARS];
    int64_t delay_ns;
    uint64_t delay_seed, tasks;
    cudaStream_t default_stream; /* with NULL for its name; it begins with its first task */
} machine = {.once = PTHREAD_ONCE_INIT, .mutex = PTHREAD_MUTEX_INITIALIZER};

/* Of this thread's launches where they have ended when they return: those alone do not end the GPU's work. */
static _Thread_local bool launch_failed;
static _Thread_local char launch_error[ERROR_CHARS];
/* Of this thread: CUDA takes the answer to a question for its last error. */
static _Thread_local bool said_not_ready;

/* Of this thread: the GPU that its calls are about. */
static _Thread_local int current;

static void start_machine(void) {
    const char *blocking = getenv("CUDA_LAUNCH_BLOCKING");
    machine.gpu = sw_emulation_default_gpu;
    machine.blocking = blocking != NULL && strcmp(blocking, "1") == 0;
    machine.key = pkey_alloc(0, PKEY_DISABLE_ACCESS);
}

static void start(void) {
    pthread_once(&machine.once, start_machine);
}

/* The GPU's own threads may touch its memory, and a call that stands for the GPU while it runs. */
static void open_memory_of_gpu(bool open) {
    if (machine.key >= 0)
        pkey_set(machine.key, open ? 0 : PKEY_DISABLE_ACCESS);
}

void sw_emulation_set_gpu(const struct sw_emulation_gpu *gpu) {
    start();
    machine.gpu = *gpu;
}

struct sw_emulation_blas sw_emulation_blas(void) {
    start();
    return machine.gpu.blas;
}

void sw_emulation_set_delays(int64_t most_ns, uint64_t seed) {
    start();
    pthread_mutex_lock(&machine.mutex);
    machine.delay_ns = most_ns;
    machine.delay_seed = seed;
    pthread_mutex_unlock(&machine.mutex);
}

void sw_emulation_break_as(cudaError_t error, const char *text) {
    pthread_mutex_lock(&machine.mutex);
    if (machine.broken == cudaSuccess) {
        snprintf(machine.error, sizeof machine.error, "%s", text);
        machine.broken = error;
    }
    pthread_mutex_unlock(&machine.mutex);
}

void sw_emulation_break(const char *text) {
    sw_emulation_break_as(cudaErrorLaunchFailure, text);
}

static cudaError_t state(void) {
    pthread_mutex_lock(&machine.mutex);
    const cudaError_t broken = machine.broken;
    pthread_mutex_unlock(&machine.mutex);
    return broken;
}

const char *cudaGetErrorString(cudaError_t error) {
    switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInsufficientDriver: return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorDevicesUnavailable: return "CUDA-capable device(s) is/are busy or unavailable";
    case cudaErrorHostMemoryAlreadyRegistered: return "part or all of the requested memory range is already mapped";
    case cudaErrorHostMemoryNotRegistered: return "pointer does not correspond to a registered memory region";
    case cudaErrorNoKernelImageForDevice: return "no kernel image is available for execution on the device";
    case cudaErrorECCUncorrectable: return "uncorrectable ECC error encountered";
    case cudaErrorUnknown: return "unknown error";
    default:
        return launch_error[0] != '\0'    ? launch_error
               : machine.error[0] != '\0' ? machine.error
                                          : "unspecified launch failure";
    }
}

const char *cudaGetErrorName(cudaError_t error) {
    switch (error) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorInsufficientDriver: return "cudaErrorInsufficientDriver";
    case cudaErrorNoDevice: return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
    case cudaErrorDevicesUnavailable: return "cudaErrorDevicesUnavailable";
    case cudaErrorHostMemoryAlreadyRegistered: return "cudaErrorHostMemoryAlreadyRegistered";
    case cudaErrorHostMemoryNotRegistered: return "cudaErrorHostMemoryNotRegistered";
    case cudaErrorNoKernelImageForDevice: return "cudaErrorNoKernelImageForDevice";
    case cudaErrorECCUncorrectable: return "cudaErrorECCUncorrectable";
    case cudaErrorUnknown: return "cudaErrorUnknown";
    default: return "cudaErrorLaunchFailure";
    }
}

cudaError_t cudaGetLastError(void) {
    const bool failed = launch_failed, not_ready = said_not_ready;
    launch_failed = said_not_ready = false;
    return failed ? cudaErrorLaunchFailure : not_ready ? cudaErrorNotReady : state();
}

cudaError_t cudaGetDeviceCount(int *count) {
    start();
    *count = machine.gpu.gpus;
    return machine.gpu.start;
}

cudaError_t cudaDriverGetVersion(int *version) {
    start();
    *version = machine.gpu.driver;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
    start();
    if (device < 0 || device >= machine.gpu.gpus)
        return cudaErrorInvalidDevice;
    current = device;
    return machine.gpu.held_bytes < machine.gpu.memory_bytes ? state() : cudaErrorDevicesUnavailable;
}

cudaError_t cudaGetDevice(int *device) {
    *device = current;
    return state();
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int device) {
    (void)device;
    *out = (struct cudaDeviceProp){.name = "Emulated GPU",
                                   .major = machine.gpu.major,
                                   .minor = machine.gpu.minor,
                                   .totalGlobalMem = machine.gpu.memory_bytes,
                                   .multiProcessorCount = 1};
    return cudaSuccess;
}

int sw_emulation_kernel_error(void) {
    return (int)machine.gpu.kernels;
}

cudaError_t cudaDeviceGetPCIBusId(char *out, int chars, int device) {
    snprintf(out, (size_t)chars, "ffff:%02X:00.0", (unsigned)device);
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    if (machine.gpu.held_bytes >= machine.gpu.memory_bytes)
        return cudaErrorDevicesUnavailable;
    pthread_mutex_lock(&machine.mutex);
    *total_bytes = machine.gpu.memory_bytes;
    *free_bytes = machine.gpu.memory_bytes - machine.gpu.held_bytes - machine.used_bytes;
    pthread_mutex_unlock(&machine.mutex);
    return state();
}

/* Lets other threads go first, by chance. */
static void delay(void) {
    pthread_mutex_lock(&machine.mutex);
    const int64_t most_ns = machine.delay_ns;
    const uint32_t drawn = sw_rng(machine.delay_seed, DELAY_STREAM, machine.tasks++).word[0];
    pthread_mutex_unlock(&machine.mutex);
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
    open_memory_of_gpu(true);
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
    start();
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
    return state();
}

static void wait_for_stream(struct CUstream_st *stream) {
    pthread_mutex_lock(&stream->mutex);
    for (const int64_t given = stream->given; stream->done < given;)
        pthread_cond_wait(&stream->changed, &stream->mutex);
    pthread_mutex_unlock(&stream->mutex);
}

static cudaStream_t default_stream(void) {
    cudaStream_t made = NULL;
    pthread_mutex_lock(&machine.mutex);
    cudaStream_t stream = machine.default_stream;
    pthread_mutex_unlock(&machine.mutex);
    if (stream != NULL || cudaStreamCreateWithFlags(&made, 0) == cudaErrorMemoryAllocation)
        return stream;
    pthread_mutex_lock(&machine.mutex);
    const bool first = machine.default_stream == NULL;
    machine.default_stream = first ? made : machine.default_stream;
    stream = machine.default_stream;
    pthread_mutex_unlock(&machine.mutex);
    if (!first)
        cudaStreamDestroy(made);
    return stream;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    stream = stream != NULL ? stream : default_stream();
    if (stream == NULL)
        return cudaErrorMemoryAllocation;
    wait_for_stream(stream);
    return state();
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
    return state();
}

static cudaError_t give(cudaStream_t stream, void (*run)(void *), void *argument) {
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
    return state();
}

/* On the caller's thread, whose settings of the emulation it then obeys. */
static void run_now(cudaStream_t stream, void (*run)(void *), void *argument) {
    if (stream != NULL)
        wait_for_stream(stream);
    open_memory_of_gpu(true);
    run(argument);
    open_memory_of_gpu(false);
    const char *error = stream == NULL ? NULL : sw_emulation_take_error();
    if (error == NULL)
        return;
    launch_failed = true;
    snprintf(launch_error, sizeof launch_error, "%s", error);
}

void sw_emulation_give(cudaStream_t stream, void (*run)(void *), void *argument) {
    start();
    if (stream == NULL || machine.blocking)
        run_now(stream, run, argument);
    else if (give(stream, run, argument) == cudaErrorMemoryAllocation)
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
    return state();
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    pthread_mutex_destroy(&event->mutex);
    pthread_cond_destroy(&event->reached_more);
    free(event);
    return state();
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
    const cudaError_t error = give(stream, run, mark);
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

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    return give_mark(stream, reach, event, last_record(event, 1));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    (void)flags;
    return give_mark(stream, await_mark, event, last_record(event, 0));
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    await(event, last_record(event, 0));
    return state();
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    pthread_mutex_lock(&event->mutex);
    const bool reached = event->reached >= event->recorded;
    pthread_mutex_unlock(&event->mutex);
    said_not_ready |= !reached;
    return reached ? state() : cudaErrorNotReady;
}

cudaError_t cudaEventElapsedTime(float *out_ms, cudaEvent_t from, cudaEvent_t to) {
    *out_ms = (float)((double)(to->time_ns - from->time_ns) * 1e-6);
    return state();
}

/* The size of a region of the GPU's memory stands in a page before it. */
static size_t mapped_bytes(size_t bytes) {
    const size_t page = PAGE_BYTES;
    return page + (bytes + page - 1) / page * page;
}

cudaError_t cudaMalloc(void **out, size_t bytes) {
    const size_t mapped = mapped_bytes(bytes);
    pthread_mutex_lock(&machine.mutex);
    const bool fits = bytes <= machine.gpu.memory_bytes - machine.gpu.held_bytes - machine.used_bytes;
    machine.used_bytes += fits ? bytes : 0;
    pthread_mutex_unlock(&machine.mutex);
    if (!fits)
        return cudaErrorMemoryAllocation;
    char *base = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return cudaErrorMemoryAllocation;
    *(size_t *)(void *)base = bytes;
    memset(base + PAGE_BYTES, 0xff, mapped - PAGE_BYTES); /* NaN in every type */
    if (machine.key >= 0)
        pkey_mprotect(base + PAGE_BYTES, mapped - PAGE_BYTES, PROT_READ | PROT_WRITE, machine.key);
    *out = base + PAGE_BYTES;
    return state();
}

/* As CUDA's, it waits for what the GPU still does by itself. */
cudaError_t cudaFree(void *memory) {
    const cudaError_t error = cudaStreamSynchronize(NULL);
    char *base = (char *)memory - PAGE_BYTES;
    const size_t bytes = *(size_t *)(void *)base;
    pthread_mutex_lock(&machine.mutex);
    machine.used_bytes -= bytes;
    pthread_mutex_unlock(&machine.mutex);
    munmap(base, mapped_bytes(bytes));
    return error;
}

/* A copy, or with from NULL a clearing. */
struct copy {
    void *to, *from;
    int value;
    size_t bytes;
    bool owned; /* from is a copy of what the host had */
};

static void run_copy(void *argument) {
    const struct copy copy = *(struct copy *)argument;
    free(argument);
    if (copy.from == NULL)
        memset(copy.to, copy.value, copy.bytes);
    else
        memcpy(copy.to, copy.from, copy.bytes);
    if (copy.owned)
        free(copy.from);
}

static cudaError_t give_copy(cudaStream_t stream, const struct copy *copy) {
    struct copy *own = malloc(sizeof *own);
    if (own == NULL)
        return cudaErrorMemoryAllocation;
    *own = *copy;
    const cudaError_t error = give(stream, run_copy, own);
    if (error == cudaErrorMemoryAllocation)
        free(own);
    return error;
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
    return give_copy(stream, &(struct copy){.to = to, .value = value, .bytes = bytes});
}

/* The host does not wait for it. */
cudaError_t cudaMemset(void *to, int value, size_t bytes) {
    const cudaStream_t stream = default_stream();
    return stream == NULL ? cudaErrorMemoryAllocation : cudaMemsetAsync(to, value, bytes, stream);
}

static bool overlaps(const struct pinned *p, const char *at, size_t bytes) {
    return at < p->base + p->bytes && p->base < at + bytes;
}

/* How the host's side of a copy lies to the registered ranges. */
typedef enum { APART, WITHIN_ONE, ACROSS } pinned_relation;

static pinned_relation relation_to_pinned(const void *host, size_t bytes) {
    const char *at = host;
    pinned_relation found = APART;
    pthread_mutex_lock(&machine.mutex);
    for (const struct pinned *p = machine.pinned; p != NULL && found == APART; p = p->next)
        if (overlaps(p, at, bytes))
            found = at >= p->base && at + bytes <= p->base + p->bytes ? WITHIN_ONE : ACROSS;
    pthread_mutex_unlock(&machine.mutex);
    return found;
}

/* CUDA refuses a copy that leaves a registered range, and does not promise that it may enter the next. Of memory that
 * is not pinned it takes a copy before it returns, and waits for what it writes there. */
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
    struct copy copy = {.to = to, .from = (void *)(uintptr_t)from, .bytes = bytes};
    const void *host = kind == cudaMemcpyHostToDevice ? from : to;
    const pinned_relation relation = kind == cudaMemcpyDeviceToDevice ? WITHIN_ONE : relation_to_pinned(host, bytes);
    if (relation == ACROSS)
        return cudaErrorInvalidValue;
    if (kind == cudaMemcpyHostToDevice && relation == APART) {
        copy.from = malloc(bytes);
        if (copy.from == NULL)
            return cudaErrorMemoryAllocation;
        memcpy(copy.from, from, bytes);
        copy.owned = true;
    }
    const cudaError_t error = give_copy(stream, &copy);
    if (error == cudaErrorMemoryAllocation && copy.owned)
        free(copy.from);
    if (kind == cudaMemcpyDeviceToHost && relation == APART)
        wait_for_stream(stream);
    return error;
}

static cudaError_t register_range(struct pinned *range) {
    cudaError_t error = cudaSuccess;
    pthread_mutex_lock(&machine.mutex);
    for (const struct pinned *p = machine.pinned; p != NULL; p = p->next)
        if (overlaps(p, range->base, range->bytes))
            error = cudaErrorHostMemoryAlreadyRegistered;
    if (error == cudaSuccess && machine.pinned_bytes + range->bytes > machine.gpu.pinnable_bytes)
        error = cudaErrorMemoryAllocation;
    if (error == cudaSuccess) {
        range->next = machine.pinned;
        machine.pinned = range;
        machine.pinned_bytes += range->bytes;
    }
    pthread_mutex_unlock(&machine.mutex);
    return error;
}

cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned flags) {
    (void)flags;
    struct pinned *range = calloc(1, sizeof *range);
    if (range == NULL)
        return cudaErrorMemoryAllocation;
    *range = (struct pinned){.base = memory, .bytes = bytes};
    const cudaError_t error = register_range(range);
    if (error != cudaSuccess)
        free(range);
    return error;
}

cudaError_t cudaHostUnregister(void *memory) {
    pthread_mutex_lock(&machine.mutex);
    struct pinned **at = &machine.pinned, *found = NULL;
    while (*at != NULL && (*at)->base != memory)
        at = &(*at)->next;
    if (*at != NULL) {
        found = *at;
        *at = found->next;
        machine.pinned_bytes -= found->bytes;
    }
    pthread_mutex_unlock(&machine.mutex);
    free(found);
    return found == NULL ? cudaErrorHostMemoryNotRegistered : state();
}

size_t sw_emulation_pinned_bytes(void) {
    pthread_mutex_lock(&machine.mutex);
    const size_t bytes = machine.pinned_bytes;
    pthread_mutex_unlock(&machine.mutex);
    return bytes;
}
