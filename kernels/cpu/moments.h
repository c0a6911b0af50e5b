/* The operations of kernels/moments.c on vectors, in the same order: the bits are a contract. */
#ifndef SW_KERNELS_CPU_MOMENTS_H
#define SW_KERNELS_CPU_MOMENTS_H

#include "kernels/cpu/lanes.h"
#include "kernels/cpu/philox.h"
#include "kernels/moments.h"

#include <float.h>

typedef int32_t sw_vec_ints __attribute__((vector_size(SW_LANES * sizeof(int32_t))));
typedef uint8_t sw_vec_bytes __attribute__((vector_size(SW_LANES)));
typedef uint8_t sw_vec_bytes_unaligned __attribute__((vector_size(SW_LANES), aligned(1), may_alias));

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

/* Returns table[index % 8] of each lane. */
SW_INLINE sw_vec sw_vec_pick(const float table[SW_MAP_ENTRIES], sw_vec_bits index) {
#if defined(__AVX512F__)
    return _mm512_permutexvar_ps((__m512i)index, _mm512_broadcast_f32x8(_mm256_loadu_ps(table)));
#elif defined(__AVX2__)
    return _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), (__m256i)index);
#else
    sw_vec value;
    for (int i = 0; i < SW_LANES; i++)
        value[i] = table[index[i] % SW_MAP_ENTRIES];
    return value;
#endif
}

SW_INLINE sw_vec sw_vec_abs(sw_vec value) {
    return (sw_vec)((sw_vec_bits)value & 0x7fffffffu);
}

SW_INLINE sw_vec sw_number_at(const struct sw_moment_map *map, sw_vec q) {
    const sw_vec_bits bits = (sw_vec_bits)q;
    const sw_vec_bits entry = bits >> 23;
    const sw_vec mantissa = (sw_vec)((bits & 0x7fffffu) | 0x3f800000u);
    return sw_vec_fma_once(sw_vec_pick(map->slope, entry), mantissa - 1.0f, sw_vec_pick(map->first, entry));
}

/* Returns bytes as numbers of fp32. */
SW_INLINE sw_vec sw_vec_of_bytes(sw_vec_bytes bytes) {
#if defined(__AVX512F__)
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32((__m128i)bytes));
#elif defined(__AVX2__)
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((int64_t)bytes)));
#else
    return __builtin_convertvector(__builtin_convertvector(bytes, sw_vec_ints), sw_vec);
#endif
}

SW_INLINE sw_vec sw_number_of_m(const char *codes) {
    const sw_vec_bytes shifted = *(const sw_vec_bytes_unaligned *)codes + 127;
    const sw_vec steps = sw_vec_of_bytes(shifted) - 127.0f;
    const sw_vec number = sw_number_at(&sw_moment_maps[SW_MOMENT_M], sw_vec_abs(steps) + 0.5f);
    return (sw_vec)((sw_vec_bits)number | ((sw_vec_bits)steps & 0x80000000u));
}

SW_INLINE sw_vec sw_position(const struct sw_moment_map *map, sw_vec y) {
    const sw_vec logarithm = sw_vec_fma_once(__builtin_convertvector((sw_vec_ints)y, sw_vec),
                                             sw_vec_splat(SW_MOMENT_ENTRY_SLOPE), sw_vec_splat(map->entry_offset));
    const sw_vec_bits entry =
        (sw_vec_bits) __builtin_convertvector(sw_vec_max(logarithm, sw_vec_splat(0.0f)), sw_vec_ints);
    const sw_vec z = y * sw_vec_pick(map->steep, entry);
    const sw_vec next = sw_vec_fma_once(z, sw_vec_splat(SW_MOMENT_FIFTH), sw_vec_pick(map->next, entry));
    const sw_vec cross = sw_vec_fma_once(z, sw_vec_splat(SW_MOMENT_THIRD), sw_vec_pick(map->cross, entry));
    const sw_vec parts = sw_vec_min(z + sw_vec_pick(map->line, entry), next);
    return sw_vec_max(sw_vec_min(parts, cross),
                      sw_vec_fma_once(y, sw_vec_splat(map->to_one), sw_vec_splat(map->one_offset)));
}

/* Returns the position of each lane's magnitude in its block, and what the rounding adds. `random` has 16 bits a lane.
 */
SW_INLINE sw_vec sw_rounded(const struct sw_moment_map *map, const sw_rounding rounding, sw_vec value, float inverse,
                            sw_vec_bits random) {
    const sw_vec y = sw_vec_min(sw_vec_abs(value) * inverse, sw_vec_splat(1.0f));
    if (rounding == SW_ROUND_NEAREST)
        return sw_position(map, y) + 0.5f;
    /* The product is exact, so only the sum is rounded. */
    return sw_vec_fma_once(__builtin_convertvector((sw_vec_ints)random, sw_vec), sw_vec_splat(0x1p-16f),
                           sw_position(map, y));
}

SW_INLINE void sw_store_codes(char *codes, sw_vec_ints steps) {
#if defined(__AVX512F__)
    _mm_storeu_si128((__m128i_u *)codes, _mm512_cvtepi32_epi8((__m512i)steps));
#else
    *(sw_vec_bytes_unaligned *)codes = __builtin_convertvector(steps, sw_vec_bytes);
#endif
}

/* Returns the largest lane. None may be NaN. */
SW_INLINE float sw_largest_lane(sw_vec value) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps(value);
#elif defined(__AVX__)
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(value), _mm256_extractf128_ps(value, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
#else
    return sw_vec_largest(value);
#endif
}

/* Returns the scale of a block whose magnitudes are at most those of a vector's lanes. */
SW_INLINE float sw_scale_of(sw_vec largest_lanes) {
    const float largest = sw_largest_lane(largest_lanes), normal = largest > FLT_MIN ? largest : FLT_MIN;
    return largest > 0.0f ? (normal < FLT_MAX ? normal : FLT_MAX) : 0.0f;
}

SW_INLINE float sw_inverse_of(float scale) {
    return scale > 0.0f ? 1.0f / scale : 0.0f;
}

/* Returns the codes of a vector of m, relative to the scale of its block. `random` has 16 bits a lane. */
SW_INLINE sw_vec_ints sw_steps_of_m(const sw_rounding rounding, sw_vec m, float inverse, sw_vec_bits random) {
    const sw_vec size = sw_rounded(&sw_moment_maps[SW_MOMENT_M], rounding, m, inverse, random);
    const sw_vec_bits steps = (sw_vec_bits)size | ((sw_vec_bits)m & 0x80000000u);
    return sw_vec_max_ints(__builtin_convertvector((sw_vec)steps, sw_vec_ints), (sw_vec_ints){0} - 127);
}

#endif
