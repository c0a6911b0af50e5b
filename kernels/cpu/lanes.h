/* A tensor's elements as vectors of fp32, whatever its type. If an op is an always-inlined function of its type, called
 * through SW_FOR_TYPE, the compiler makes one loop per type from one source. */
#ifndef SW_KERNELS_CPU_LANES_H
#define SW_KERNELS_CPU_LANES_H

#include "core/dtype.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/vector.h"

/* Calls function(type, ...) with the type as a constant. */
#define SW_FOR_TYPE(function, type, ...)                                                                               \
    ((type) == SW_F32    ? function(SW_F32, __VA_ARGS__)                                                               \
     : (type) == SW_BF16 ? function(SW_BF16, __VA_ARGS__)                                                              \
                         : function(SW_F16, __VA_ARGS__))

typedef uint16_t sw_vec_half __attribute__((vector_size(SW_LANES * sizeof(uint16_t))));
typedef uint16_t sw_vec_half_unaligned __attribute__((vector_size(SW_LANES * sizeof(uint16_t)), aligned(2), may_alias));

SW_INLINE sw_vec sw_vec_from_bf16(sw_vec_half half) {
#if defined(__AVX512F__)
    return (sw_vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)half), 16);
#elif defined(__AVX2__)
    return (sw_vec)_mm256_slli_epi32(_mm256_cvtepu16_epi32((__m128i)half), 16);
#else
    return (sw_vec)(__builtin_convertvector(half, sw_vec_bits) << 16);
#endif
}

SW_INLINE sw_vec_half sw_vec_to_bf16(sw_vec value) {
    const sw_vec_bits bits = (sw_vec_bits)value, high = bits >> 16;
    const sw_vec_bits rounded = (bits + 0x7fffu + (high & 1u)) >> 16;
#if defined(__AVX512F__)
    const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    const __m512i quiet = _mm512_set1_epi32(0x40);
    return (sw_vec_half)_mm512_cvtepi32_epi16(_mm512_mask_or_epi32((__m512i)rounded, nan, (__m512i)high, quiet));
#else
    const sw_vec_bits nan = sw_vec_is_nan(value);
    return __builtin_convertvector(((high | 0x40u) & nan) | (rounded & ~nan), sw_vec_half);
#endif
}

/* The instructions give the bits of core/dtype.h. */
SW_INLINE sw_vec sw_vec_from_f16(sw_vec_half half) {
#if defined(__AVX512F__)
    return _mm512_cvtph_ps((__m256i)half);
#elif defined(__F16C__)
    return _mm256_cvtph_ps((__m128i)half);
#else
    sw_vec value;
    for (int i = 0; i < SW_LANES; i++)
        value[i] = sw_f16_to_f32(half[i]);
    return value;
#endif
}

SW_INLINE sw_vec_half sw_vec_to_f16(sw_vec value) {
#if defined(__AVX512F__)
    return (sw_vec_half)_mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT);
#elif defined(__F16C__)
    return (sw_vec_half)_mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT);
#else
    sw_vec_half half;
    for (int i = 0; i < SW_LANES; i++)
        half[i] = sw_f32_to_f16(value[i]);
    return half;
#endif
}

/* Loads a whole vector, starting at element `at`. */
SW_INLINE sw_vec sw_load(const sw_dtype type, const void *tensor, int64_t at) {
    if (type == SW_F32)
        return sw_vec_load((const float *)tensor + at);
    const sw_vec_half half = *(const sw_vec_half_unaligned *)((const uint16_t *)tensor + at);
    return type == SW_BF16 ? sw_vec_from_bf16(half) : sw_vec_from_f16(half);
}

SW_INLINE void sw_store(const sw_dtype type, void *tensor, int64_t at, sw_vec value) {
    if (type == SW_F32)
        sw_vec_store((float *)tensor + at, value);
    else
        *(sw_vec_half_unaligned *)((uint16_t *)tensor + at) =
            type == SW_BF16 ? sw_vec_to_bf16(value) : sw_vec_to_f16(value);
}

/* Stores without caching, for results that nobody reads soon, if the instruction set can and the address is a multiple
 * of the vector: the cache need not fetch lines that are overwritten completely. Call sw_end_streams before others read
 * the result. */
SW_INLINE void sw_stream(const sw_dtype type, void *tensor, int64_t at, sw_vec value) {
    char *to = (char *)tensor + at * (type == SW_F32 ? (int64_t)sizeof(float) : (int64_t)sizeof(uint16_t));
    const uintptr_t vector_bytes = type == SW_F32 ? sizeof(sw_vec) : sizeof(sw_vec_half);
    if ((uintptr_t)to % vector_bytes != 0) {
        sw_store(type, tensor, at, value);
        return;
    }
#if defined(__AVX512F__)
    if (type == SW_F32)
        _mm512_stream_ps((float *)to, value);
    else
        _mm256_stream_si256((__m256i *)to, (__m256i)(type == SW_BF16 ? sw_vec_to_bf16(value) : sw_vec_to_f16(value)));
#elif defined(__AVX__)
    if (type == SW_F32)
        _mm256_stream_ps((float *)to, value);
    else
        _mm_stream_si128((__m128i *)to, (__m128i)(type == SW_BF16 ? sw_vec_to_bf16(value) : sw_vec_to_f16(value)));
#else
    sw_store(type, tensor, at, value);
#endif
}

SW_INLINE void sw_end_streams(void) {
#if defined(__AVX__)
    _mm_sfence();
#endif
}

/* Load and store the last elements of a row, fewer than a vector. The other lanes are `fill`, and are not stored. */
sw_vec SW_ISA_NAME(sw_load_rest)(sw_dtype type, const void *tensor, int64_t at, int64_t count, float fill);
void SW_ISA_NAME(sw_store_rest)(sw_dtype type, void *tensor, int64_t at, int64_t count, sw_vec value);

/* Loads a vector of which `count` elements exist, or all if count is larger. */
SW_INLINE sw_vec sw_load_up_to(const sw_dtype type, const void *tensor, int64_t at, int64_t count, float fill) {
    if (__builtin_expect(count >= SW_LANES, 1))
        return sw_load(type, tensor, at);
    return SW_ISA_NAME(sw_load_rest)(type, tensor, at, count, fill);
}

SW_INLINE void sw_store_up_to(const sw_dtype type, void *tensor, int64_t at, int64_t count, sw_vec value) {
    if (__builtin_expect(count >= SW_LANES, 1))
        sw_store(type, tensor, at, value);
    else
        SW_ISA_NAME(sw_store_rest)(type, tensor, at, count, value);
}

#endif
