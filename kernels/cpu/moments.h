/* The random words of moments and their rounding to bf16, as kernels/moments.c has them, on vectors. */
#ifndef SW_KERNELS_CPU_MOMENTS_H
#define SW_KERNELS_CPU_MOMENTS_H

#include "kernels/cpu/lanes.h"
#include "kernels/cpu/philox.h"
#include "kernels/moments.h"

typedef int32_t sw_vec_ints __attribute__((vector_size(SW_LANES * sizeof(int32_t))));

/* Writes the words of a block that begins at element `elem` of its unit. */
SW_INLINE void sw_block_words(const struct sw_moment_rounding *how, int64_t elem, uint32_t *words) {
    const uint64_t stream = sw_moment_stream(how->unit, how->step);
    for (int i = 0; i < SW_MOMENT_BLOCK_ELEMS; i += SW_MOMENT_GROUP)
        for (int lane = 0; lane < SW_MOMENT_LANES; lane += SW_LANES) {
            sw_vec_bits drawn[SW_RNG_WORDS];
            sw_philox_words(how->seed, stream, sw_moment_counter(elem + i + lane), drawn);
            for (int word = 0; word < SW_RNG_WORDS; word++)
                memcpy(words + i / 2 + lane + word * SW_MOMENT_LANES, &drawn[word], sizeof drawn[word]);
        }
}

/* Returns the index of the first word of the vector at element i of a block. */
SW_INLINE int sw_word_at(int i) {
    return i / (2 * SW_MOMENT_LANES) * SW_MOMENT_LANES + i % SW_MOMENT_LANES;
}

/* Returns a half of each word, optionally with its bytes exchanged. */
SW_INLINE sw_vec_bits sw_half_of(sw_vec_bits words, const bool upper, const bool exchanged) {
    if (!exchanged)
        return upper ? words >> 16 : words & 0xffffu;
#if defined(__AVX2__)
    /* Bytes 1 and 0, or 3 and 2, of each lane, and zeros. */
    const __m128i order = _mm_add_epi8(_mm_setr_epi8(1, 0, -16, -16, 5, 4, -16, -16, 9, 8, -16, -16, 13, 12, -16, -16),
                                       _mm_set1_epi8(upper ? 2 : 0));
#if defined(__AVX512F__)
    return (sw_vec_bits)_mm512_shuffle_epi8((__m512i)words, _mm512_broadcast_i32x4(order));
#else
    return (sw_vec_bits)_mm256_shuffle_epi8((__m256i)words, _mm256_broadcastsi128_si256(order));
#endif
#else
    const sw_vec_bits half = upper ? words >> 16 : words & 0xffffu;
    return half >> 8 | (half << 8 & 0xff00u);
#endif
}

SW_INLINE sw_vec_ints sw_vec_max_ints(sw_vec_ints a, sw_vec_ints b) {
#if defined(__AVX512F__)
    return (sw_vec_ints)_mm512_max_epi32((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return (sw_vec_ints)_mm256_max_epi32((__m256i)a, (__m256i)b);
#else
    const sw_vec_ints larger = a > b;
    return (a & larger) | (b & ~larger);
#endif
}

SW_INLINE sw_vec_bits sw_vec_min_bits(sw_vec_bits a, sw_vec_bits b) {
#if defined(__AVX512F__)
    return (sw_vec_bits)_mm512_min_epu32((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return (sw_vec_bits)_mm256_min_epu32((__m256i)a, (__m256i)b);
#else
    const sw_vec_bits smaller = (sw_vec_bits)(a < b);
    return (a & smaller) | (b & ~smaller);
#endif
}

/* Rounds a vector to bf16. `random` has 16 bits per lane; `least` is the smallest magnitude. */
SW_INLINE sw_vec_half sw_moments_to_bf16(const sw_rounding rounding, sw_vec value, sw_vec_bits random,
                                         sw_vec_ints least) {
    const sw_vec_bits bits = (sw_vec_bits)value;
    const sw_vec_bits more = rounding == SW_ROUND_NEAREST ? (bits >> 16 & 1u) + 0x7fffu : random;
    const sw_vec_bits size = sw_vec_min_bits((bits & 0x7fffffffu) + more, (sw_vec_bits){0} + 0x7f7fffffu) >> 16;
    const sw_vec_bits above = (sw_vec_bits)sw_vec_max_ints((sw_vec_ints)size, least);
    return __builtin_convertvector((bits >> 16 & 0x8000u) | above, sw_vec_half);
}

#endif
