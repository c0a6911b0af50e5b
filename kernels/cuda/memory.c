/* Memory of the GPU, pinned memory of the host, and copies between them. */
#include "core/arena.h"
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

/* Memory that is not pinned would make every copy slow and wait for the host, so it is never taken instead. */
static sw_status take_host(struct sw_memory *memory) {
    char text[SW_SIZE_CHARS];
    struct sw_arena *arena = NULL;
    sw_status status = SW_OK;
    SW_TRY(sw_arena_create_near(memory->name, memory->bytes, sw_cuda_of(memory->device)->numa_node, &arena));
    SW_TRY_GOTO(sw_arena_take(arena, memory->bytes, &memory->base), fail);
    sw_arena_seal(arena);
    const cudaError_t error = cudaHostRegister(memory->base, (size_t)memory->bytes, cudaHostRegisterPortable);
    if (error != cudaSuccess) {
        cudaGetLastError();
        SW_TRY_GOTO(
            sw_fail(SW_ERR_NOMEM,
                    "the driver cannot pin %s of host memory for the GPU: %s (%s); lower --host-memory, or free "
                    "memory",
                    sw_format_size(memory->bytes, text), cudaGetErrorString(error), cudaGetErrorName(error)),
            fail);
    }
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
    (void)cudaHostUnregister(memory->base);
    sw_arena_destroy(memory->backend);
}

static sw_status copy(struct sw_stream *stream, void *to, const void *from, int64_t bytes, enum cudaMemcpyKind kind,
                      const char *doing) {
    SW_TRY(sw_cuda_use(stream->device));
    return sw_cuda_check(cudaMemcpyAsync(to, from, (size_t)bytes, kind, sw_cuda_stream(stream)), doing);
}

static sw_status copy_to_device(struct sw_stream *stream, void *to, const void *from, int64_t bytes) {
    return copy(stream, to, from, bytes, cudaMemcpyHostToDevice, "copying to the GPU");
}

static sw_status copy_to_host(struct sw_stream *stream, void *to, const void *from, int64_t bytes) {
    return copy(stream, to, from, bytes, cudaMemcpyDeviceToHost, "copying from the GPU");
}

static sw_status copy_on_device(struct sw_stream *stream, void *to, const void *from, int64_t bytes) {
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
