/* Pairs of bf16 numbers as one word, the first in the low half: the operands of AVX-512 BF16's dot products. Elsewhere
 * ordinary instructions do the same, except for how the two products of a pair round. */
#ifndef SW_KERNELS_CPU_PAIRS_H
#define SW_KERNELS_CPU_PAIRS_H

#include "kernels/cpu/lanes.h"

/* True if the processor multiplies pairs of bf16 numbers faster than widened ones. */
#if defined(__AVX512BF16__)
#define SW_FAST_PAIRS true
#else
#define SW_FAST_PAIRS false
#endif

/* c + a.low·b.low + a.high·b.high */
SW_INLINE sw_vec sw_vec_fma_pairs(sw_vec_bits a, sw_vec_bits b, sw_vec c) {
#if defined(__AVX512BF16__)
    return _mm512_dpbf16_ps(c, (__m512bh)a, (__m512bh)b);
#else
    const sw_vec low = sw_vec_fma((sw_vec)(a << 16), (sw_vec)(b << 16), c);
    return sw_vec_fma((sw_vec)(a & 0xffff0000u), (sw_vec)(b & 0xffff0000u), low);
#endif
}

/* Rounds two rows to the pairs (low[i], high[i]). */
SW_INLINE sw_vec_bits sw_vec_to_pairs(sw_vec low, sw_vec high) {
#if defined(__AVX512BF16__)
    const __m512i interleaved = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7,
                                                 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return (sw_vec_bits)_mm512_permutexvar_epi16(interleaved, (__m512i)_mm512_cvtne2ps_pbh(high, low));
#else
    const sw_vec_bits first = __builtin_convertvector(sw_vec_to_bf16(low), sw_vec_bits);
    return first | __builtin_convertvector(sw_vec_to_bf16(high), sw_vec_bits) << 16;
#endif
}

/* Rounds two vectors to bf16 and stores them in order. */
SW_INLINE void sw_store_two_bf16(uint16_t *to, sw_vec first, sw_vec second) {
#if defined(__AVX512BF16__)
    _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(second, first));
#else
    sw_store(SW_BF16, to, 0, first);
    sw_store(SW_BF16, to, SW_LANES, second);
#endif
}

/* Returns the pairs (first[i], second[i]) of two rows of bf16 numbers. */
SW_INLINE sw_vec_bits sw_pairs_of_rows(const uint16_t *first, const uint16_t *second) {
    const sw_vec_half low = *(const sw_vec_half_unaligned *)first;
    const sw_vec_half high = *(const sw_vec_half_unaligned *)second;
#if defined(__AVX512F__)
    return (sw_vec_bits)_mm512_or_si512(_mm512_cvtepu16_epi32((__m256i)low),
                                        _mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)high), 16));
#else
    return __builtin_convertvector(low, sw_vec_bits) | __builtin_convertvector(high, sw_vec_bits) << 16;
#endif
}

/* An fp32 number or a pair of bf16 numbers, read as bits. */
typedef uint32_t sw_word __attribute__((may_alias));
typedef uint32_t sw_vec_bits_unaligned __attribute__((vector_size(SW_LANES * sizeof(uint32_t)), aligned(4), may_alias));

SW_INLINE sw_vec_bits sw_load_words(const void *from) {
    return *(const sw_vec_bits_unaligned *)from;
}

SW_INLINE void sw_store_words(void *to, sw_vec_bits words) {
    *(sw_vec_bits_unaligned *)to = words;
}

#endif
