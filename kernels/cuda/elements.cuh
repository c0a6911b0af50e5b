/* Elements of every type as fp32, one or eight at a time, with the bits of core/dtype.h for every value. */
#ifndef SW_KERNELS_CUDA_ELEMENTS_CUH
#define SW_KERNELS_CUDA_ELEMENTS_CUH

#include "kernels/cuda/platform.cuh"

struct sw_cuda_bf16 {
    uint16_t bits;
};
struct sw_cuda_f16 {
    uint16_t bits;
};

/* SW_FOR_TYPE(type, launch, arguments...) calls launch<T>(arguments...) with the T of an sw_dtype. */
#define SW_FOR_TYPE(type, function, ...)                                                                               \
    ((type) == SW_F32    ? function<float>(__VA_ARGS__)                                                                \
     : (type) == SW_BF16 ? function<sw_cuda_bf16>(__VA_ARGS__)                                                         \
                         : function<sw_cuda_f16>(__VA_ARGS__))

static __device__ __forceinline__ float sw_widen(float value) {
    return value;
}

static __device__ __forceinline__ float sw_widen(sw_cuda_bf16 value) {
    return sw_bits_float((uint32_t)value.bits << 16);
}

/* The GPU's own instruction drops the payload of a NaN. */
static __device__ __forceinline__ float sw_widen(sw_cuda_f16 value) {
    const uint32_t bits = value.bits;
    const uint32_t nan = (bits & 0x8000u) << 16 | 0x7fc00000u | (bits & 0x7fffu) << 13;
    return (bits & 0x7fffu) > 0x7c00u ? sw_bits_float(nan) : sw_f16_value(value.bits);
}

static __device__ __forceinline__ void sw_round(float value, float *to) {
    *to = value;
}

static __device__ __forceinline__ void sw_round(float value, sw_cuda_bf16 *to) {
    const uint32_t nan = (sw_float_bits(value) >> 16) | 0x40u;
    to->bits = value != value ? (uint16_t)nan : sw_bf16_bits(value);
}

static __device__ __forceinline__ void sw_round(float value, sw_cuda_f16 *to) {
    const uint32_t bits = sw_float_bits(value);
    const uint32_t nan = (bits >> 16 & 0x8000u) | 0x7e00u | (bits >> 13 & 0x3ffu);
    to->bits = value != value ? (uint16_t)nan : sw_f16_bits(value);
}

/* Returns two numbers rounded to T, the first in the lower half. */
template <typename T> static __device__ __forceinline__ uint32_t sw_round_pair(float first, float second);
template <> __device__ __forceinline__ uint32_t sw_round_pair<sw_cuda_bf16>(float first, float second) {
    return sw_bf16_pair(first, second);
}
template <> __device__ __forceinline__ uint32_t sw_round_pair<sw_cuda_f16>(float first, float second) {
    return sw_f16_pair(first, second);
}

enum { SW_ELEMS = 8 }; /* elements that a thread handles at once: 16 bytes of a 16-bit type */

/* Returns, on the host, whether one instruction may load a vector of SW_ELEMS elements from p. */
static inline bool sw_is_aligned(const void *p) {
    return (uintptr_t)p % sizeof(sw_vector16) == 0;
}

static __device__ __forceinline__ void sw_words_of(sw_vector16 v, uint32_t words[4]) {
    words[0] = v.x;
    words[1] = v.y;
    words[2] = v.z;
    words[3] = v.w;
}

static __device__ __forceinline__ void sw_load_whole(const float *from, float out[SW_ELEMS]) {
    uint32_t words[2][4];
    sw_words_of(sw_load16(from), words[0]);
    sw_words_of(sw_load16(from + 4), words[1]);
    for (int i = 0; i < SW_ELEMS; i++)
        out[i] = sw_bits_float(words[i / 4][i % 4]);
}

template <typename T> static __device__ __forceinline__ void sw_load_whole(const T *from, float out[SW_ELEMS]) {
    uint32_t words[4];
    sw_words_of(sw_load16(from), words);
    for (int i = 0; i < SW_ELEMS; i++) {
        T value;
        value.bits = (uint16_t)(words[i / 2] >> (i % 2 * 16));
        out[i] = sw_widen(value);
    }
}

static __device__ __forceinline__ void sw_store_whole(float *to, const float in[SW_ELEMS]) {
    for (int i = 0; i < SW_ELEMS; i += 4) {
        const sw_vector16 v = {sw_float_bits(in[i]), sw_float_bits(in[i + 1]), sw_float_bits(in[i + 2]),
                               sw_float_bits(in[i + 3])};
        sw_store16(to + i, v);
    }
}

template <typename T> static __device__ __forceinline__ void sw_store_whole(T *to, const float in[SW_ELEMS]) {
    uint32_t words[4];
    for (int i = 0; i < 4; i++) {
        T low, high;
        sw_round(in[2 * i], &low);
        sw_round(in[2 * i + 1], &high);
        words[i] = low.bits | (uint32_t)high.bits << 16;
    }
    const sw_vector16 v = {words[0], words[1], words[2], words[3]};
    sw_store16(to, v);
}

/* Loads the elements from[0, count), at most SW_ELEMS, and zeros after them. `aligned`: sw_is_aligned holds for `from`.
 */
template <typename T>
static __device__ __forceinline__ void sw_load_elems(const T *from, int64_t count, bool aligned, float out[SW_ELEMS]) {
    if (aligned && count >= SW_ELEMS) {
        sw_load_whole(from, out);
        return;
    }
    for (int i = 0; i < SW_ELEMS; i++)
        out[i] = i < count ? sw_widen(from[i]) : 0.0f;
}

template <typename T>
static __device__ __forceinline__ void sw_store_elems(T *to, int64_t count, bool aligned, const float in[SW_ELEMS]) {
    if (aligned && count >= SW_ELEMS) {
        sw_store_whole(to, in);
        return;
    }
    for (int i = 0; i < SW_ELEMS; i++) {
        if (i < count)
            sw_round(in[i], &to[i]);
    }
}

#endif
