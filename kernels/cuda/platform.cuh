/* The parts of CUDA that kernels use beyond its plain language: as nvcc spells them, and as the emulation does with
 * which tests run every kernel on the host. */
#ifndef SW_KERNELS_CUDA_PLATFORM_CUH
#define SW_KERNELS_CUDA_PLATFORM_CUH

#include "core/dtype.h"
#include "kernels/cuda/launch.h"

enum { SW_WARP = 32 };
#define SW_ALL_LANES 0xffffffffu

#ifdef __CUDACC__

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

/* Launches a kernel. One with template arguments is written in parentheses. */
#define SW_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                                      \
    kernel<<<(grid), (block), (shared_bytes), (stream)>>>(__VA_ARGS__)
/* Allows a kernel more dynamic shared memory than the 48 KiB that every kernel may have. */
#define SW_ALLOW_SHARED(kernel, bytes)                                                                                 \
    (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)(bytes))
/* The cudaError_t with which launches of a kernel end where the program has no code of it for this GPU. */
#define SW_KERNEL_ERROR(kernel) sw_kernel_error((const void *)(kernel))
/* SW_SHARED(float, sums, [8]) is an array of the block, SW_DYNAMIC_SHARED(name) its bytes given at the launch. */
#define SW_SHARED(type, name, dims) __shared__ type name dims
#define SW_DYNAMIC_SHARED(name) extern __shared__ __align__(128) char name[]
/* States the bytes that the kernel's launches give, a constant, in the compiled code, where tools/kernel_report.py
 * finds them. */
#define SW_STATE_SHARED(bytes) asm volatile("// dynamic shared bytes %0" ::"n"(bytes))
/* Before a loop: its body is repeated in full, so that arrays which it indexes can be in registers. */
#define SW_UNROLL _Pragma("unroll")
/* Before a loop: its body is repeated twice, so that the loads of both turns are under way; more would take too many
 * registers. */
#define SW_UNROLL_TWICE _Pragma("unroll 2")

static inline int sw_kernel_error(const void *kernel) {
    struct cudaFuncAttributes ignored;
    return (int)cudaFuncGetAttributes(&ignored, kernel);
}

static __device__ __forceinline__ uint16_t sw_bf16_bits(float value) {
    return __bfloat16_as_ushort(__float2bfloat16_rn(value));
}

static __device__ __forceinline__ uint16_t sw_f16_bits(float value) {
    return __half_as_ushort(__float2half_rn(value));
}

/* Returns two elements as one word, the first in the lower half. A NaN keeps no payload. */
static __device__ __forceinline__ uint32_t sw_bf16_pair(float first, float second) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
    return __bfloat16_as_ushort(pair.x) | (uint32_t)__bfloat16_as_ushort(pair.y) << 16;
}

static __device__ __forceinline__ uint32_t sw_f16_pair(float first, float second) {
    const __half2 pair = __floats2half2_rn(first, second);
    return __half_as_ushort(pair.x) | (uint32_t)__half_as_ushort(pair.y) << 16;
}

/* Returns 2^x by the GPU's own instruction, to 2 units in the last place, and 0 below 2^-126. */
static __device__ __forceinline__ float sw_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Returns a product that is rounded before anything is added to it. */
static __device__ __forceinline__ float sw_rounded_product(float a, float b) {
    return __fmul_rn(a, b);
}

static __device__ __forceinline__ float sw_f16_value(uint16_t bits) {
    return __half2float(__ushort_as_half(bits));
}

static __device__ __forceinline__ uint32_t sw_float_bits(float value) {
    return __float_as_uint(value);
}

static __device__ __forceinline__ float sw_bits_float(uint32_t bits) {
    return __uint_as_float(bits);
}

typedef uint4 sw_vector16;

static __device__ __forceinline__ sw_vector16 sw_load16(const void *from) {
    return *(const uint4 *)from;
}

static __device__ __forceinline__ void sw_store16(void *to, sw_vector16 value) {
    *(uint4 *)to = value;
}

/* Copies 16 bytes from device memory to shared memory while the thread goes on; `zero` writes zeros. */
static __device__ __forceinline__ void sw_copy16_later(void *shared_to, const void *from, bool zero) {
    const unsigned to = (unsigned)__cvta_generic_to_shared(shared_to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from), "r"(zero ? 0 : 16) : "memory");
}

/* Copies 4 bytes in the same way. */
static __device__ __forceinline__ void sw_copy4_later(void *shared_to, const void *from, bool zero) {
    const unsigned to = (unsigned)__cvta_generic_to_shared(shared_to);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(to), "l"(from), "r"(zero ? 0 : 4) : "memory");
}

static __device__ __forceinline__ void sw_commit_copies(void) {
    asm volatile("cp.async.commit_group;\n" ::: "memory");
}

/* Waits for all commits but the newest ones. */
template <int newest> static __device__ __forceinline__ void sw_wait_copies(void) {
    asm volatile("cp.async.wait_group %0;\n" ::"n"(newest) : "memory");
}

#else

#include <emulated/language.cuh>

#define SW_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                                      \
    sw_emulation_run(                                                                                                  \
        #kernel, grid, block, shared_bytes, stream, [](auto... arguments) { kernel(arguments...); }, __VA_ARGS__)
#define SW_ALLOW_SHARED(kernel, bytes) ((void)(bytes))
#define SW_KERNEL_ERROR(kernel) sw_emulation_kernel_error()
#define SW_SHARED(type, name, dims)                                                                                    \
    typedef type name##_array dims;                                                                                    \
    static const char name##_key = 0;                                                                                  \
    name##_array &name = *(name##_array *)sw_emulation_shared(&name##_key, sizeof(name##_array))
#define SW_UNROLL
#define SW_UNROLL_TWICE
#define SW_DYNAMIC_SHARED(name) char *const name = (char *)sw_emulation_dynamic_shared()
#define SW_STATE_SHARED(bytes) sw_emulation_check_dynamic_shared(bytes)

static inline uint16_t sw_bf16_bits(float value) {
    return sw_f32_to_bf16(value);
}

static inline uint16_t sw_f16_bits(float value) {
    return sw_f32_to_f16(value);
}

static inline uint32_t sw_bf16_pair(float first, float second) {
    return sw_bf16_bits(first) | (uint32_t)sw_bf16_bits(second) << 16;
}

static inline uint32_t sw_f16_pair(float first, float second) {
    return sw_f16_bits(first) | (uint32_t)sw_f16_bits(second) << 16;
}

static inline float sw_exp2(float x) {
    return exp2f(x);
}

static inline float sw_rounded_product(float a, float b) {
    volatile float product = a * b;
    return product;
}

static inline float sw_f16_value(uint16_t bits) {
    return sw_f16_to_f32(bits);
}

static inline uint32_t sw_float_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float sw_bits_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

struct sw_vector16 {
    uint32_t x, y, z, w;
};

static inline sw_vector16 sw_load16(const void *from) {
    sw_emulation_check_aligned(from, sizeof(sw_vector16));
    sw_vector16 value;
    memcpy(&value, from, sizeof value);
    return value;
}

static inline void sw_store16(void *to, sw_vector16 value) {
    sw_emulation_check_aligned(to, sizeof value);
    memcpy(to, &value, sizeof value);
}

static inline void sw_copy16_later(void *shared_to, const void *from, bool zero) {
    sw_emulation_copy_later(shared_to, from, 16, zero);
}

static inline void sw_copy4_later(void *shared_to, const void *from, bool zero) {
    sw_emulation_copy_later(shared_to, from, 4, zero);
}

static inline void sw_commit_copies(void) {
    sw_emulation_commit_copies();
}

template <int newest> static inline void sw_wait_copies(void) {
    sw_emulation_wait_copies(newest);
}

#endif

/* Tells, on the host, whether a multiprocessor of the current GPU has shared memory for two blocks of so many bytes,
 * including the part that CUDA itself takes for each. */
static inline bool sw_two_blocks_fit(size_t bytes) {
    int gpu = 0, all = 0, of_cuda = 0;
    (void)cudaGetDevice(&gpu);
    (void)cudaDeviceGetAttribute(&all, cudaDevAttrMaxSharedMemoryPerMultiprocessor, gpu);
    (void)cudaDeviceGetAttribute(&of_cuda, cudaDevAttrReservedSharedMemoryPerBlock, gpu);
    return 2 * (bytes + (size_t)of_cuda) <= (size_t)all;
}

#endif
