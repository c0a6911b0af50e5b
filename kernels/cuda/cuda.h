/* Internals of the CUDA device: its state, and the translation of CUDA's errors into ours. */
#ifndef SW_KERNELS_CUDA_CUDA_H
#define SW_KERNELS_CUDA_CUDA_H

#include "kernels/device_ops.h"
#include "kernels/products.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>

enum { SW_CUDA_BUS_CHARS = 32, SW_CUDA_LIBRARY_CHARS = 1280 };

struct sw_cuda {
    int number;    /* the GPU's number in CUDA */
    int numa_node; /* the NUMA node that the GPU is attached to; -1: not known */
    int multiprocessors;
    int capability; /* the compute capability: 89 for 8.9 */
    int driver;     /* the CUDA version of the driver, in the form of CUDART_VERSION */
    int64_t total_bytes;
    char name[256], isa[16], bus[SW_CUDA_BUS_CHARS];
    char library_name[SW_CUDA_LIBRARY_CHARS]; /* version and file of cuBLASLt */
    cublasLtHandle_t lt;
    bool tf32;                            /* fp32 operands of products are rounded to TF32 */
    struct sw_gemm_algorithms algorithms; /* recorded algorithms, which products take where the library accepts them */
    bool measures_algorithms;             /* other products take the cheapest algorithm by measurement */
};

static inline struct sw_cuda *sw_cuda_of(const struct sw_device *device) {
    return (struct sw_cuda *)device->backend;
}

static inline cudaStream_t sw_cuda_stream(const struct sw_stream *stream) {
    return (cudaStream_t)stream->backend;
}

/* Returns SW_OK, or records the error of CUDA that came while `doing`. An error of earlier work shows at any later
 * call. */
sw_status sw_cuda_check(cudaError_t error, const char *doing);
sw_status sw_cuda_check_lt(cublasStatus_t status, const char *doing);

/* Makes the device the thread's current GPU, which every call of CUDA is about. */
static inline sw_status sw_cuda_use(const struct sw_device *device) {
    return sw_cuda_check(cudaSetDevice(sw_cuda_of(device)->number), "choosing a GPU");
}

/* Loads the library, before any other call of cuBLASLt. */
sw_status sw_cublaslt_load(void);
/* Returns the version and the file of the library that was loaded, valid until the calling thread's next call. */
const char *sw_cublaslt_name(void);

void sw_cuda_add_gemm(struct sw_device_ops *ops);

#endif
