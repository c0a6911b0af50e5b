/* Opening a GPU: whether there is one, a driver that is new enough, and kernels for it. */
#include "core/machine.h"
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

/* Meanings of some errors for the machine, beside CUDA's own names. */
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

/* CUDA has one error for a driver that is not there and for one that is too old. Only the latter is a failure of what
 * this machine has. */
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
    sw_cuda_add_memory(&device->ops);
    sw_cuda_add_streams(&device->ops);
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
