/* Memory of the GPU, pinned memory of the host, and copies between them. */
#include "core/arena.h"
#include "core/long_work.h"
#include "core/size.h"
#include "kernels/cuda/cuda.h"

/* CUDA clears memory after it has returned, on its default stream, and our streams do not wait for that one: what they
 * were given first would be cleared too. */
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

/* Returns how many of the `bytes` from `at` on lie in one piece. */
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

void sw_cuda_add_memory(struct sw_device_ops *ops) {
    ops->open_memory = open_memory;
    ops->close_memory = close_memory;
    ops->copy_to_device = copy_to_device;
    ops->copy_to_host = copy_to_host;
    ops->copy_on_device = copy_on_device;
    ops->zero = zero;
}
