/* A GPU: whether there is one, a driver that is new enough, and kernels for it; its memory, streams and events. */
#include "core/arena.h"
#include "core/log.h"
#include "core/machine.h"
#include "core/size.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/kernel_ops.h"
#include "kernels/cuda/launch.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* cp.async and bf16 matrix instructions begin with Ampere. */
enum { LEAST_MAJOR = 8 };
/* Code for products of warpgroups runs on this GPU, and on none before or after it. */
#define WARPGROUP_ISA "sm_90"

/* Returns what an error means for this machine, in addition to CUDA's own name. */
static const char *meaning_of(cudaError_t error) {
    switch (error) {
    case cudaErrorECCUncorrectable: return ": the GPU's memory is damaged, which `nvidia-smi -q -d ECC` shows";
    case cudaErrorUnknown: return ": the driver may have lost the GPU, which `dmesg` and `nvidia-smi` show";
    default: return "";
    }
}

sw_status sw_cuda_check(cudaError_t error, const char *doing) {
    if (error == cudaSuccess)
        return SW_OK;
    const sw_status status = error == cudaErrorMemoryAllocation ? SW_ERR_NOMEM : SW_ERR_DEVICE;
    return sw_fail(status, "CUDA: %s (%s)%s, while %s", cudaGetErrorString(error), cudaGetErrorName(error),
                   meaning_of(error), doing);
}

sw_status sw_cuda_check_lt(cublasStatus_t status, const char *doing) {
    if (status == CUBLAS_STATUS_SUCCESS)
        return SW_OK;
    return sw_fail(SW_ERR_DEVICE, "cuBLASLt: %s, while %s", cublasLtGetStatusString(status), doing);
}

/* CUDA has one error for a missing driver and for one that is too old. Only an old driver is a failure of this machine.
 */
static sw_status refuse_driver(void) {
    int version = 0;
    if (cudaDriverGetVersion(&version) != cudaSuccess || version == 0)
        return sw_fail(SW_ERR_UNSUPPORTED, "--device cuda: NVIDIA's driver is not installed here, or not for this "
                                           "container; install it, or use --device cpu");
    return sw_fail(
        SW_ERR_DEVICE,
        "--device cuda: NVIDIA's driver is for CUDA %d.%d, older than CUDA %d.%d, with which this program was "
        "built; install a newer driver, or use --device cpu",
        version / 1000, version % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
}

/* Says why no GPU can be used, and what would help. */
static sw_status refuse(cudaError_t error) {
    switch (error) {
    case cudaErrorInsufficientDriver: return refuse_driver();
    case cudaErrorNoDevice:
        return sw_fail(SW_ERR_UNSUPPORTED, "--device cuda: this machine has no GPU of NVIDIA, or CUDA_VISIBLE_DEVICES "
                                           "hides it; use --device cpu");
    default:
        return sw_fail(
            SW_ERR_DEVICE,
            "--device cuda: CUDA cannot start: %s (%s); `nvidia-smi` says more, and --device cpu needs no GPU",
            cudaGetErrorString(error), cudaGetErrorName(error));
    }
}

static sw_status choose_gpu(const char *number, int *out) {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess)
        return refuse(error);
    char *end = NULL;
    const long wanted = number == NULL ? 0 : strtol(number, &end, 10);
    if (number != NULL && (end == number || *end != '\0'))
        return sw_fail(SW_ERR_ARG, "--device cuda:%s: a GPU has a number, from 0 to %d here", number, count - 1);
    if (count == 0)
        return refuse(cudaErrorNoDevice);
    if (wanted < 0 || wanted >= count)
        return sw_fail(SW_ERR_ARG, "--device cuda:%ld: GPUs are numbered from 0, and the last one here is %d", wanted,
                       count - 1);
    *out = (int)wanted;
    return SW_OK;
}

/* Writes the GPU's address on the PCI bus as the system's files spell it; empty: not known. */
static void read_bus(struct sw_cuda *cuda) {
    if (cudaDeviceGetPCIBusId(cuda->bus, sizeof cuda->bus, cuda->number) != cudaSuccess)
        cuda->bus[0] = '\0';
    for (char *c = cuda->bus; *c != '\0'; c++)
        *c = (char)tolower((unsigned char)*c);
}

/* Reads a GPU's properties, and the node of the machine's memory that it is attached to. */
static sw_status read_gpu(struct sw_cuda *cuda) {
    struct cudaDeviceProp gpu;
    SW_TRY(sw_cuda_check(cudaGetDeviceProperties(&gpu, cuda->number), "asking for a GPU's properties"));
    snprintf(cuda->name, sizeof cuda->name, "%s", gpu.name);
    cuda->capability = gpu.major * 10 + gpu.minor;
    snprintf(cuda->isa, sizeof cuda->isa, "sm_%d%d", gpu.major, gpu.minor);
    cuda->total_bytes = (int64_t)gpu.totalGlobalMem;
    cuda->multiprocessors = gpu.multiProcessorCount;
    if (cudaDriverGetVersion(&cuda->driver) != cudaSuccess)
        cuda->driver = 0;
    read_bus(cuda);
    cuda->numa_node = sw_machine_node_of_bus(cuda->bus);
    if (gpu.major >= LEAST_MAJOR)
        return SW_OK;
    return sw_fail(SW_ERR_UNSUPPORTED,
                   "%s has compute capability %d.%d and spillway needs %d.0 (Ampere) or newer; use --device cpu",
                   gpu.name, gpu.major, gpu.minor, (int)LEAST_MAJOR);
}

/* A program that was compiled for other GPUs, or whose PTX is newer than the driver, would fail in the first step. */
static sw_status check_kernels(const struct sw_cuda *cuda) {
    const cudaError_t error = (cudaError_t)sw_cuda_kernels_error();
    if (error != cudaErrorInvalidDeviceFunction && error != cudaErrorNoKernelImageForDevice &&
        error != cudaErrorInvalidPtx && error != cudaErrorUnsupportedPtxVersion)
        return sw_cuda_check(error, "loading the kernels");
    return sw_fail(
        SW_ERR_DEVICE,
        "--device cuda: this program has no kernels for %s (%s): %s (%s); build it where that GPU is, or with "
        "-Dgpu_arch=all, or use --device cpu",
        cuda->name, cuda->isa, cudaGetErrorString(error), cudaGetErrorName(error));
}

/* Makes the first calls that need the GPU itself; they fail where another process has it for its own or has taken all
 * of it. */
static sw_status start_gpu(struct sw_cuda *cuda, int64_t *out_free_bytes) {
    size_t free_bytes, total_bytes;
    cudaError_t error = cudaSetDevice(cuda->number);
    if (error == cudaSuccess)
        error = cudaMemGetInfo(&free_bytes, &total_bytes);
    if (error != cudaSuccess)
        return sw_fail(SW_ERR_DEVICE,
                       "%s cannot be used: %s (%s); another process may hold it or its memory, which "
                       "`nvidia-smi` shows",
                       cuda->name, cudaGetErrorString(error), cudaGetErrorName(error));
    *out_free_bytes = (int64_t)free_bytes;
    SW_TRY(check_kernels(cuda));
    return sw_cuda_check_lt(cublasLtCreate(&cuda->lt), "starting cuBLASLt");
}

static void close_cuda(struct sw_device *device) {
    struct sw_cuda *cuda = sw_cuda_of(device);
    cublasLtDestroy(cuda->lt);
    sw_gemm_algorithms_release(&cuda->algorithms);
    free(cuda);
}

static sw_status open_cuda(struct sw_cuda *cuda, const char *number, int64_t *out_free_bytes) {
    SW_TRY(choose_gpu(number, &cuda->number));
    SW_TRY(read_gpu(cuda));
    SW_TRY(sw_cublaslt_load());
    snprintf(cuda->library_name, sizeof cuda->library_name, "%s", sw_cublaslt_name());
    return start_gpu(cuda, out_free_bytes);
}

static sw_status check_warpgroups(const struct sw_device *device) {
    static const struct sw_attention usual = {.batch = 1,
                                              .seq = 1,
                                              .heads = 1,
                                              .kv_heads = 1,
                                              .head_dim = 64,
                                              .q_stride = 64,
                                              .k_stride = 64,
                                              .v_stride = 64,
                                              .o_stride = 64};
    const struct sw_cuda *cuda = sw_cuda_of(device);
    if (strcmp(cuda->isa, WARPGROUP_ISA) != 0)
        return sw_fail(SW_ERR_UNSUPPORTED, "%s (%s) has no products of warpgroups, which are those of %s alone",
                       cuda->name, cuda->isa, WARPGROUP_ISA);
    return sw_cuda_hopper_attention_serves(&usual, SW_BF16)
               ? SW_OK
               : sw_fail(SW_ERR_UNSUPPORTED, "this program was built without products of warpgroups");
}

bool sw_device_has_cuda(void) {
    return true;
}

int sw_device_gpus(void) {
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

/* Memory of the GPU, pinned memory of the host, and copies between them. */

/* CUDA clears memory asynchronously on its default stream, and our streams do not wait for that stream: their first
 * results could be cleared too. */
static sw_status clear_now(void *base, int64_t bytes) {
    SW_TRY(sw_cuda_check(cudaMemset(base, 0, (size_t)bytes), "clearing the GPU's memory"));
    return sw_cuda_check(cudaStreamSynchronize(NULL), "clearing the GPU's memory");
}

static sw_status take_device(struct sw_memory *memory) {
    char want[SW_SIZE_CHARS], have[SW_SIZE_CHARS];
    size_t free_bytes = 0, total_bytes = 0;
    const cudaError_t error = cudaMalloc(&memory->base, (size_t)memory->bytes);
    if (error == cudaErrorMemoryAllocation) {
        cudaGetLastError(); /* has been handled, and would show at the next launch */
        cudaMemGetInfo(&free_bytes, &total_bytes);
        return sw_fail(SW_ERR_NOMEM,
                       "%s has %s free and %s are needed; lower --device-memory, or end what else uses this GPU "
                       "(`nvidia-smi` lists it)",
                       sw_cuda_of(memory->device)->name, sw_format_size((int64_t)free_bytes, have),
                       sw_format_size(memory->bytes, want));
    }
    SW_TRY(sw_cuda_check(error, "taking the GPU's memory"));
    const sw_status status = clear_now(memory->base, memory->bytes);
    if (status != SW_OK)
        (void)cudaFree(memory->base);
    return status;
}

/* Host memory is pinned in pieces, since the driver takes seconds for many gigabytes: between two pieces the start says
 * how far it is and can be stopped. A piece ends where an address is a multiple of its size. CUDA documents copies
 * within one registered range, and copies from a registered range into unregistered memory as an error; it says nothing
 * of two ranges that adjoin. Copies therefore end at the same addresses. */
#ifndef SW_CUDA_PIN_BYTES
#define SW_CUDA_PIN_BYTES SW_GIB
#endif

/* Returns how many of the `bytes` from `at` on are in one piece. */
static int64_t bytes_in_piece(const void *at, int64_t bytes) {
    return sw_min_i64(bytes, SW_CUDA_PIN_BYTES - (int64_t)((uintptr_t)at % (uintptr_t)SW_CUDA_PIN_BYTES));
}

static void unpin(char *base, int64_t pinned_bytes) {
    for (int64_t at = 0; at < pinned_bytes; at += bytes_in_piece(base + at, pinned_bytes - at))
        (void)cudaHostUnregister(base + at);
}

static sw_status refuse_pinning(const struct sw_memory *memory, int64_t pinned_bytes, cudaError_t error) {
    char all[SW_SIZE_CHARS], pinned[SW_SIZE_CHARS];
    cudaGetLastError(); /* has been handled, and would show at the next launch */
    return sw_fail(SW_ERR_NOMEM,
                   "the driver cannot pin %s of host memory for the GPU, only %s of it: %s (%s); lower --host-memory "
                   "below that, or free memory",
                   sw_format_size(memory->bytes, all), sw_format_size(pinned_bytes, pinned), cudaGetErrorString(error),
                   cudaGetErrorName(error));
}

static sw_status pin(const struct sw_memory *memory) {
    char *base = memory->base;
    struct sw_long_work progress = sw_long_work_begin("pinning host memory for the GPU", memory->bytes);
    for (int64_t at = 0, bytes; at < memory->bytes; at += bytes) {
        bytes = bytes_in_piece(base + at, memory->bytes - at);
        sw_status status = sw_long_work_at(&progress, at);
        const cudaError_t error =
            status == SW_OK ? cudaHostRegister(base + at, (size_t)bytes, cudaHostRegisterPortable) : cudaSuccess;
        if (error != cudaSuccess)
            status = refuse_pinning(memory, at, error);
        if (status != SW_OK) {
            unpin(base, at);
            return status;
        }
    }
    return SW_OK;
}

/* Memory that is not pinned would make every copy slow and wait for the host, so it is never taken instead. */
static sw_status take_host(struct sw_memory *memory) {
    struct sw_arena *arena = NULL;
    sw_status status = SW_OK;
    SW_TRY(sw_arena_create_near(memory->name, memory->bytes, sw_cuda_of(memory->device)->numa_node, &arena));
    SW_TRY_GOTO(sw_arena_take(arena, memory->bytes, &memory->base), fail);
    sw_arena_seal(arena);
    SW_TRY_GOTO(pin(memory), fail);
    memory->backend = arena;
    return SW_OK;
fail:
    sw_arena_destroy(arena);
    return status;
}

static sw_status open_memory(struct sw_memory *memory) {
    SW_TRY(sw_cuda_use(memory->device));
    return memory->side == SW_MEMORY_DEVICE ? take_device(memory) : take_host(memory);
}

/* Errors have been reported by whoever waited for the work; here nobody is left to hear them. */
static void close_memory(struct sw_memory *memory) {
    (void)cudaSetDevice(sw_cuda_of(memory->device)->number);
    if (memory->side == SW_MEMORY_DEVICE) {
        (void)cudaFree(memory->base);
        return;
    }
    unpin(memory->base, memory->bytes);
    sw_arena_destroy(memory->backend);
}

static sw_status copy(struct sw_stream *stream, void *to, const void *from, int64_t bytes, enum cudaMemcpyKind kind,
                      const char *doing) {
    return sw_cuda_check(cudaMemcpyAsync(to, from, (size_t)bytes, kind, sw_cuda_stream(stream)), doing);
}

static sw_status copy_to_device(struct sw_stream *stream, void *to, const void *from, int64_t bytes) {
    SW_TRY(sw_cuda_use(stream->device));
    for (int64_t at = 0, part; at < bytes; at += part) {
        const char *host = (const char *)from + at;
        part = bytes_in_piece(host, bytes - at);
        SW_TRY(copy(stream, (char *)to + at, host, part, cudaMemcpyHostToDevice, "copying to the GPU"));
    }
    return SW_OK;
}

static sw_status copy_to_host(struct sw_stream *stream, void *to, const void *from, int64_t bytes) {
    SW_TRY(sw_cuda_use(stream->device));
    for (int64_t at = 0, part; at < bytes; at += part) {
        char *host = (char *)to + at;
        part = bytes_in_piece(host, bytes - at);
        SW_TRY(copy(stream, host, (const char *)from + at, part, cudaMemcpyDeviceToHost, "copying from the GPU"));
    }
    return SW_OK;
}

static sw_status copy_on_device(struct sw_stream *stream, void *to, const void *from, int64_t bytes) {
    SW_TRY(sw_cuda_use(stream->device));
    return copy(stream, to, from, bytes, cudaMemcpyDeviceToDevice, "copying on the GPU");
}

static sw_status zero(struct sw_stream *stream, void *to, int64_t bytes) {
    SW_TRY(sw_cuda_use(stream->device));
    return sw_cuda_check(cudaMemsetAsync(to, 0, (size_t)bytes, sw_cuda_stream(stream)), "clearing memory of the GPU");
}

static void add_memory(struct sw_device_ops *ops) {
    ops->open_memory = open_memory;
    ops->close_memory = close_memory;
    ops->copy_to_device = copy_to_device;
    ops->copy_to_host = copy_to_host;
    ops->copy_on_device = copy_on_device;
    ops->zero = zero;
}

/* Streams, events, and what kernels need to know of them. */

/* A launch is about the thread's current GPU, as every call is; an error of choosing it shows at the launch. */
cudaStream_t sw_cuda_stream_handle(const struct sw_stream *stream) {
    (void)cudaSetDevice(sw_cuda_of(stream->device)->number);
    return sw_cuda_stream(stream);
}

sw_status sw_cuda_launched(struct sw_stream *stream, const char *op) {
    (void)stream;
    const cudaError_t error = cudaGetLastError();
    return error == cudaSuccess ? SW_OK
                                : sw_fail(SW_ERR_DEVICE, "CUDA: %s (%s), while starting %s", cudaGetErrorString(error),
                                          cudaGetErrorName(error), op);
}

/* Opens a stream that does not wait for the default one. */
static sw_status open_stream(struct sw_stream *stream) {
    cudaStream_t opened;
    SW_TRY(sw_cuda_use(stream->device));
    SW_TRY(sw_cuda_check(cudaStreamCreateWithFlags(&opened, cudaStreamNonBlocking), "making a stream"));
    stream->backend = opened;
    return SW_OK;
}

static void close_stream(struct sw_stream *stream) {
    (void)cudaSetDevice(sw_cuda_of(stream->device)->number);
    (void)cudaStreamSynchronize(sw_cuda_stream(stream));
    (void)cudaStreamDestroy(sw_cuda_stream(stream));
}

static sw_status synchronize(struct sw_stream *stream) {
    SW_TRY(sw_cuda_use(stream->device));
    return sw_cuda_check(cudaStreamSynchronize(sw_cuda_stream(stream)), "waiting for the GPU");
}

/* Whoever waits sleeps: the cores are for the update. */
static sw_status open_event(struct sw_event *event) {
    cudaEvent_t opened;
    SW_TRY(sw_cuda_use(event->device));
    SW_TRY(sw_cuda_check(cudaEventCreateWithFlags(&opened, cudaEventBlockingSync), "making an event"));
    event->backend = opened;
    return SW_OK;
}

static void close_event(struct sw_event *event) {
    (void)cudaSetDevice(sw_cuda_of(event->device)->number);
    (void)cudaEventDestroy(event->backend);
}

static sw_status record_event(struct sw_event *event, struct sw_stream *stream) {
    SW_TRY(sw_cuda_use(event->device));
    return sw_cuda_check(cudaEventRecord(event->backend, sw_cuda_stream(stream)), "recording an event");
}

static sw_status wait_event(struct sw_event *event) {
    SW_TRY(sw_cuda_use(event->device));
    return sw_cuda_check(cudaEventSynchronize(event->backend), "waiting for the GPU");
}

static sw_status event_reached(struct sw_event *event, bool *out_reached) {
    SW_TRY(sw_cuda_use(event->device));
    const cudaError_t state = cudaEventQuery(event->backend);
    *out_reached = state == cudaSuccess;
    if (state != cudaErrorNotReady)
        return sw_cuda_check(state, "asking the GPU how far it is");
    cudaGetLastError(); /* cudaErrorNotReady is no error, and would show at the next launch */
    return SW_OK;
}

static sw_status stream_wait(struct sw_stream *stream, struct sw_event *event) {
    SW_TRY(sw_cuda_use(event->device));
    return sw_cuda_check(cudaStreamWaitEvent(sw_cuda_stream(stream), event->backend, cudaEventWaitDefault),
                         "putting streams in order");
}

static sw_status elapsed_ns(const struct sw_event *from, const struct sw_event *to, int64_t *out_ns) {
    float milliseconds;
    SW_TRY(sw_cuda_use(from->device));
    SW_TRY(sw_cuda_check(cudaEventElapsedTime(&milliseconds, from->backend, to->backend), "timing the GPU"));
    *out_ns = (int64_t)((double)milliseconds * 1e6);
    return SW_OK;
}

static sw_status use(const struct sw_device *device) {
    return sw_cuda_use(device);
}

static void add_streams(struct sw_device_ops *ops) {
    ops->use = use;
    ops->open_stream = open_stream;
    ops->close_stream = close_stream;
    ops->synchronize = synchronize;
    ops->open_event = open_event;
    ops->close_event = close_event;
    ops->record_event = record_event;
    ops->wait_event = wait_event;
    ops->event_reached = event_reached;
    ops->stream_wait = stream_wait;
    ops->elapsed_ns = elapsed_ns;
}

sw_status sw_cuda_device_init(struct sw_device *device, const char *number) {
    int64_t free_bytes = 0;
    struct sw_cuda *cuda = calloc(1, sizeof *cuda);
    if (cuda == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to open the CUDA device");
    const sw_status status = open_cuda(cuda, number, &free_bytes);
    if (status != SW_OK) {
        free(cuda);
        return status;
    }
    device->backend = cuda;
    device->ops.close = close_cuda;
    device->ops.check_warpgroups = check_warpgroups;
    add_memory(&device->ops);
    add_streams(&device->ops);
    sw_cuda_add_gemm(&device->ops);
    sw_cuda_add_kernels(&device->ops);
    device->info = (struct sw_device_info){.name = "cuda",
                                           .isa = cuda->isa,
                                           .model = cuda->name,
                                           .bus = cuda->bus,
                                           .library_name = cuda->library_name,
                                           .threads = 0,
                                           .number = cuda->number,
                                           .multiprocessors = cuda->multiprocessors,
                                           .driver = cuda->driver,
                                           .library = (int64_t)cublasLtGetVersion(),
                                           .bf16_fast = true,
                                           .threads_keep_bits = {true, true, true},
                                           .asynchronous = true,
                                           .memory_bytes = free_bytes};
    return SW_OK;
}
