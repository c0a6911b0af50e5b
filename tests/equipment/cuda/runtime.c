#include "tests/equipment/cuda/gpu.h"
#include "tests/equipment/cuda/machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

const struct sw_emulation_gpu sw_emulation_default_gpu = {.driver = CUDART_VERSION,
                                                          .gpus = 1,
                                                          .major = 9,
                                                          .multiprocessors = 1,
                                                          .memory_bytes = (size_t)16 << 30,
                                                          .shared_bytes = (size_t)228 << 10,
                                                          .pinnable_bytes = SIZE_MAX,
                                                          .blas = {.version = 130002, .algorithms = 3}};

struct sw_emulated_machine sw_emulated_machine = {.once = PTHREAD_ONCE_INIT, .mutex = PTHREAD_MUTEX_INITIALIZER};
_Thread_local struct sw_emulated_thread sw_emulated_thread;

/* The GPU that this thread's calls are about. */
static _Thread_local int current;

static void start_machine(void) {
    const char *blocking = getenv("CUDA_LAUNCH_BLOCKING");
    const char *capability = getenv("SW_EMULATED_CAPABILITY");
    struct sw_emulation_gpu *gpu = &sw_emulated_machine.gpu;
    *gpu = sw_emulation_default_gpu;
    if (capability != NULL && strcmp(capability, "8.9") == 0) {
        gpu->major = 8;
        gpu->minor = 9;
        gpu->shared_bytes = SW_EMULATION_LEAST_SHARED_BYTES;
    }
    sw_emulation_set_most_shared(gpu->shared_bytes - SW_EMULATED_RESERVED_BYTES);
    sw_emulated_machine.blocking = blocking != NULL && strcmp(blocking, "1") == 0;
    sw_emulated_machine.key = pkey_alloc(0, PKEY_DISABLE_ACCESS);
}

void sw_emulated_start(void) {
    pthread_once(&sw_emulated_machine.once, start_machine);
}

/* The GPU's own threads may touch its memory, and a call that stands for the GPU while it runs. */
void sw_emulated_open_memory(bool open) {
    if (sw_emulated_machine.key >= 0)
        pkey_set(sw_emulated_machine.key, open ? 0 : PKEY_DISABLE_ACCESS);
}

void sw_emulation_set_gpu(const struct sw_emulation_gpu *gpu) {
    sw_emulated_start();
    sw_emulated_machine.gpu = *gpu;
    sw_emulation_set_shared(gpu->shared_bytes);
}

void sw_emulation_set_shared(size_t bytes) {
    sw_emulated_start();
    sw_emulated_machine.gpu.shared_bytes = bytes;
    sw_emulation_set_most_shared(bytes - SW_EMULATED_RESERVED_BYTES);
}

struct sw_emulation_blas sw_emulation_blas(void) {
    sw_emulated_start();
    return sw_emulated_machine.gpu.blas;
}

void sw_emulation_set_delays(int64_t most_ns, uint64_t seed) {
    sw_emulated_start();
    pthread_mutex_lock(&sw_emulated_machine.mutex);
    sw_emulated_machine.delay_ns = most_ns;
    sw_emulated_machine.delay_seed = seed;
    pthread_mutex_unlock(&sw_emulated_machine.mutex);
}

void sw_emulation_break_as(cudaError_t error, const char *text) {
    pthread_mutex_lock(&sw_emulated_machine.mutex);
    if (sw_emulated_machine.broken == cudaSuccess) {
        snprintf(sw_emulated_machine.error, sizeof sw_emulated_machine.error, "%s", text);
        sw_emulated_machine.broken = error;
    }
    pthread_mutex_unlock(&sw_emulated_machine.mutex);
}

void sw_emulation_break(const char *text) {
    sw_emulation_break_as(cudaErrorLaunchFailure, text);
}

cudaError_t sw_emulated_state(void) {
    pthread_mutex_lock(&sw_emulated_machine.mutex);
    const cudaError_t broken = sw_emulated_machine.broken;
    pthread_mutex_unlock(&sw_emulated_machine.mutex);
    return broken;
}

cudaError_t cudaGetLastError(void) {
    const bool failed = sw_emulated_thread.launch_failed, not_ready = sw_emulated_thread.said_not_ready;
    sw_emulated_thread.launch_failed = sw_emulated_thread.said_not_ready = false;
    if (failed)
        return cudaErrorLaunchFailure;
    return not_ready ? cudaErrorNotReady : sw_emulated_state();
}

cudaError_t cudaGetDeviceCount(int *count) {
    sw_emulated_start();
    *count = sw_emulated_machine.gpu.gpus;
    return sw_emulated_machine.gpu.start;
}

cudaError_t cudaDriverGetVersion(int *version) {
    sw_emulated_start();
    *version = sw_emulated_machine.gpu.driver;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
    sw_emulated_start();
    if (device < 0 || device >= sw_emulated_machine.gpu.gpus)
        return cudaErrorInvalidDevice;
    current = device;
    return sw_emulated_machine.gpu.held_bytes < sw_emulated_machine.gpu.memory_bytes ? sw_emulated_state()
                                                                                     : cudaErrorDevicesUnavailable;
}

cudaError_t cudaGetDevice(int *device) {
    *device = current;
    return sw_emulated_state();
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int device) {
    (void)device;
    *out = (struct cudaDeviceProp){.name = "Emulated GPU",
                                   .major = sw_emulated_machine.gpu.major,
                                   .minor = sw_emulated_machine.gpu.minor,
                                   .totalGlobalMem = sw_emulated_machine.gpu.memory_bytes,
                                   .multiProcessorCount = sw_emulated_machine.gpu.multiprocessors};
    return cudaSuccess;
}

int sw_emulation_kernel_error(void) {
    return (int)sw_emulated_machine.gpu.kernels;
}

cudaError_t cudaDeviceGetAttribute(int *out, enum cudaDeviceAttr which, int device) {
    (void)device;
    sw_emulated_start();
    *out = which == cudaDevAttrMaxSharedMemoryPerMultiprocessor ? (int)sw_emulated_machine.gpu.shared_bytes
                                                                : (int)SW_EMULATED_RESERVED_BYTES;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *out, int chars, int device) {
    snprintf(out, (size_t)chars, "ffff:%02X:00.0", (unsigned)device);
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    if (sw_emulated_machine.gpu.held_bytes >= sw_emulated_machine.gpu.memory_bytes)
        return cudaErrorDevicesUnavailable;
    pthread_mutex_lock(&sw_emulated_machine.mutex);
    *total_bytes = sw_emulated_machine.gpu.memory_bytes;
    *free_bytes =
        sw_emulated_machine.gpu.memory_bytes - sw_emulated_machine.gpu.held_bytes - sw_emulated_machine.used_bytes;
    pthread_mutex_unlock(&sw_emulated_machine.mutex);
    return sw_emulated_state();
}
