#include "tests/equipment/cuda/driver.h"

#include "tests/equipment/cuda/gpu.h"

#include <stdlib.h>

enum { MOST_GPUS = 8, MOST_DEPTH = 16 };

/* The GPUs' primary contexts: their addresses are the handles. */
static int contexts[MOST_GPUS];
/* The thread's stack of current contexts. As the driver does, calls without one are refused. */
static _Thread_local CUcontext stack[MOST_DEPTH];
static _Thread_local int depth;

static int number_of(CUcontext context) {
    return (int)((int *)(void *)context - contexts);
}

/* Makes the current context's GPU that of CUDA's runtime. */
static CUresult use_current(void) {
    return depth > 0 ? (CUresult)cudaSetDevice(number_of(stack[depth - 1])) : CUDA_ERROR_INVALID_CONTEXT;
}

static void *pointer(CUdeviceptr address) {
    return (void *)(uintptr_t)address;
}

static CUstream stream_of(CUstream stream) {
    return stream != NULL ? stream : sw_emulated_default_stream();
}

CUresult cuInit(unsigned flags) {
    (void)flags;
    int count;
    return (CUresult)cudaGetDeviceCount(&count);
}

CUresult cuGetErrorName(CUresult error, const char **out) {
    *out = cudaGetErrorName((cudaError_t)error);
    return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char **out) {
    *out = cudaGetErrorString((cudaError_t)error);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *out) {
    return (CUresult)cudaGetDeviceCount(out);
}

CUresult cuDeviceGet(CUdevice *out, int number) {
    *out = number;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device) {
    *out = (CUcontext)(void *)&contexts[device];
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    (void)device;
    return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext context) {
    if (depth == MOST_DEPTH)
        return CUDA_ERROR_INVALID_VALUE;
    stack[depth++] = context;
    const CUresult result = use_current();
    depth -= result != CUDA_SUCCESS;
    return result;
}

CUresult cuCtxPopCurrent_v2(CUcontext *out) {
    if (depth == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    *out = stack[--depth];
    return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream *out, unsigned flags) {
    const CUresult result = use_current();
    return result == CUDA_SUCCESS ? (CUresult)cudaStreamCreateWithFlags(out, flags) : result;
}

CUresult cuStreamDestroy_v2(CUstream stream) {
    return (CUresult)cudaStreamDestroy(stream);
}

CUresult cuStreamSynchronize(CUstream stream) {
    const CUresult result = use_current();
    return result == CUDA_SUCCESS ? (CUresult)cudaStreamSynchronize(stream) : result;
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
    const CUresult result = use_current();
    return result == CUDA_SUCCESS ? (CUresult)cudaStreamWaitEvent(stream_of(stream), event, flags) : result;
}

CUresult cuEventCreate(CUevent *out, unsigned flags) {
    const CUresult result = use_current();
    return result == CUDA_SUCCESS ? (CUresult)cudaEventCreateWithFlags(out, flags) : result;
}

CUresult cuEventDestroy_v2(CUevent event) {
    return (CUresult)cudaEventDestroy(event);
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
    const CUresult result = use_current();
    return result == CUDA_SUCCESS ? (CUresult)cudaEventRecord(event, stream_of(stream)) : result;
}

CUresult cuEventSynchronize(CUevent event) {
    return (CUresult)cudaEventSynchronize(event);
}

CUresult cuMemHostAlloc(void **out, size_t bytes, unsigned flags) {
    const CUresult current = use_current();
    if (current != CUDA_SUCCESS)
        return current;
    const size_t page = 4096;
    *out = aligned_alloc(page, (bytes + page - 1) / page * page);
    if (*out == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    const CUresult result = (CUresult)cudaHostRegister(*out, bytes, flags);
    if (result == CUDA_SUCCESS)
        return result;
    free(*out);
    *out = NULL;
    return result;
}

CUresult cuMemFreeHost(void *memory) {
    const CUresult result = (CUresult)cudaHostUnregister(memory);
    free(memory);
    return result;
}

CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes) {
    void *memory = NULL;
    const CUresult current = use_current();
    if (current != CUDA_SUCCESS)
        return current;
    const CUresult result = (CUresult)cudaMalloc(&memory, bytes);
    *out = (CUdeviceptr)(uintptr_t)memory;
    return result;
}

CUresult cuMemFree_v2(CUdeviceptr memory) {
    return (CUresult)cudaFree(pointer(memory));
}

CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
    const CUresult current = use_current();
    if (current != CUDA_SUCCESS || !sw_emulated_owns(pointer(from), bytes))
        return current != CUDA_SUCCESS ? current : CUDA_ERROR_INVALID_VALUE;
    return (CUresult)cudaMemcpyAsync(to, pointer(from), bytes, cudaMemcpyDeviceToHost, stream_of(stream));
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
    const CUresult current = use_current();
    if (current != CUDA_SUCCESS || !sw_emulated_owns(pointer(to), bytes))
        return current != CUDA_SUCCESS ? current : CUDA_ERROR_INVALID_VALUE;
    return (CUresult)cudaMemcpyAsync(pointer(to), from, bytes, cudaMemcpyHostToDevice, stream_of(stream));
}

CUresult cuPointerGetAttribute(void *out, int attribute, CUdeviceptr address) {
    const int device = sw_emulated_device_of(pointer(address));
    if (device < 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (attribute == CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
        *(unsigned *)out = CU_MEMORYTYPE_DEVICE;
    else
        *(int *)out = device;
    return CUDA_SUCCESS;
}
