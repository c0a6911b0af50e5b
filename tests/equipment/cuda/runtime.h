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

/* The GPU's library of matrix products (blas.c). */
struct sw_emulation_blas {
    int64_t version; /* returned by cublasLtGetVersion */
    int algorithms;  /* count of algorithms for each product, by falling preference */
    bool wrong;      /* the last column of each product is off by some percent */
};

/* The emulated machine. The default is one GPU of compute capability 9.0 with 16 GiB, and all host memory may be
 * pinned. With SW_EMULATED_CAPABILITY=8.9 in the environment it is one of that capability, whose multiprocessors have
 * the least shared memory. */
struct sw_emulation_gpu {
    cudaError_t start; /* the error that the first call returns */
    int driver;        /* the CUDA version of the driver, in the form of CUDART_VERSION; 0: there is no driver */
    int gpus, major, minor, multiprocessors;
    size_t memory_bytes, held_bytes; /* bytes of each GPU; held_bytes: those that other processes have taken */
    size_t shared_bytes;             /* shared memory of a multiprocessor */
    size_t pinnable_bytes;
    cudaError_t kernels; /* the error of kernels that were compiled for other GPUs */
    struct sw_emulation_blas blas;
};
extern const struct sw_emulation_gpu sw_emulation_default_gpu;
/* Sets the machine. Call it before any device is opened. */
void sw_emulation_set_gpu(const struct sw_emulation_gpu *gpu);
struct sw_emulation_blas sw_emulation_blas(void);
/* Returns how many products had a large first factor that was one number throughout. */
int64_t sw_emulation_constant_products(void);

/* Sets the shared memory of a multiprocessor, for launches from now on. Call it while no stream has work. */
enum { SW_EMULATION_LEAST_SHARED_BYTES = 100 << 10 }; /* that of a GPU of capability 8.6, 8.9 or 12.0 */
void sw_emulation_set_shared(size_t bytes);

/* Makes every task of a stream wait before it runs, for up to most_ns by random numbers from the seed. 0: no task
 * waits. */
void sw_emulation_set_delays(int64_t most_ns, uint64_t seed);

/* Makes cudaStreamWaitEvent do nothing from now on where this stream is to wait (before), or where an event was last
 * recorded in it (after): tests that it then changes bits show that they would see a wait that is missing. */
void sw_emulation_forget_waits(cudaStream_t stream, bool before, bool after);

/* Returns the bytes of host memory that are registered with CUDA. */
size_t sw_emulation_pinned_bytes(void);

/* Returns the bytes of the GPUs' memory that are allocated now, or the most that have been. */
size_t sw_emulation_device_bytes(bool most);

/* Ends the GPU's work with cudaErrorLaunchFailure, which every call then returns, as CUDA's own errors do. */
void sw_emulation_break(const char *text);
/* Lets no task of any stream begin any more, without an error. */
void sw_emulation_hang(void);
/* Ends the GPU's work with another error. */
void sw_emulation_break_as(cudaError_t error, const char *text);

#ifdef __cplusplus
}
#endif
#endif
