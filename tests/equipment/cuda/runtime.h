/* A GPU that is not there, for tests: CUDA's runtime on threads of the host. A stream is a thread that does what it is
 * given in order, so the device code really runs beside the host, and copies from pinned memory happen when they
 * happen. Where the processor has protection keys, only those threads can touch the GPU's memory: a host that does
 * crashes. */
#ifndef SW_TESTS_EQUIPMENT_CUDA_RUNTIME_H
#define SW_TESTS_EQUIPMENT_CUDA_RUNTIME_H

#include "tests/equipment/cuda/stream.h"

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Its library of matrix products (blas.c). */
struct sw_emulation_blas {
    int64_t version; /* as cublasLtGetVersion says it */
    int algorithms;  /* that it knows for each product, by falling preference */
    bool wrong;      /* the last column of each product is off by some percent */
};

/* What the machine has. The default is one GPU of compute capability 9.0 with 16 GiB, and all may be pinned. */
struct sw_emulation_gpu {
    cudaError_t start; /* what the first call says */
    int driver;        /* the CUDA that the driver is for, as CUDART_VERSION is; 0: there is no driver */
    int gpus, major, minor;
    size_t memory_bytes, held_bytes; /* of each; by other processes */
    size_t pinnable_bytes;
    cudaError_t kernels; /* what it says of kernels that were compiled for other GPUs */
    struct sw_emulation_blas blas;
};
extern const struct sw_emulation_gpu sw_emulation_default_gpu;
/* Before any device is opened. */
void sw_emulation_set_gpu(const struct sw_emulation_gpu *gpu);
struct sw_emulation_blas sw_emulation_blas(void);

/* From now on every task of a stream waits before it runs, up to so long, by random numbers from the seed. 0: none. */
void sw_emulation_set_delays(int64_t most_ns, uint64_t seed);

/* Host memory that is registered with CUDA now. */
size_t sw_emulation_pinned_bytes(void);

/* Ends what the GPU does with an error, which every call then returns, as CUDA's own errors do. */
void sw_emulation_break(const char *text);
/* The same with another error than cudaErrorLaunchFailure. */
void sw_emulation_break_as(cudaError_t error, const char *text);

#ifdef __cplusplus
}
#endif
#endif
