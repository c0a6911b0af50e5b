/* The operations of kernels/moments.c on vectors, in the same order: the bits are a contract. */
#ifndef SW_KERNELS_CPU_MOMENTS_H
#define SW_KERNELS_CPU_MOMENTS_H

#include "kernels/cpu/lanes.h"
#include "kernels/moments.h"

#include <float.h>

typedef int32_t sw_vec_ints __attribute__((vector_size(SW_LANES * sizeof(int32_t))));
typedef uint64_t sw_vec_pairs __attribute__((vector_size(SW_LANES * sizeof(uint32_t))));
typedef uint8_t sw_vec_bytes __attribute__((vector_size(SW_LANES)));
typedef uint8_t sw_vec_bytes_unaligned __attribute__((vector_size(SW_LANES), aligned(1), may_alias));

/* A block's moments, the largest magnitudes among every SW_LANES-th of them, and the random words of its elements. */
struct sw_moment_block {
    sw_vec largest_m, largest_v;
    _Alignas(64) float m[SW_MOMENT_BLOCK_ELEMS];
    _Alignas(64) float v[SW_MOMENT_BLOCK_ELEMS];
    _Alignas(64) uint32_t words[SW_MOMENT_BLOCK_ELEMS / 2]; /* 16 bits an element */
};

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

/* Returns the lower halves of all 64-bit lanes times a number of 32 bits. */
SW_INLINE sw_vec_pairs sw_vec_mul_low(sw_vec_pairs a, uint32_t by) {
#if defined(__AVX512F__)
    return (sw_vec_pairs)_mm512_mul_epu32((__m512i)a, _mm512_set1_epi64((int64_t)by));
#elif defined(__AVX2__)
    return (sw_vec_pairs)_mm256_mul_epu32((__m256i)a, _mm256_set1_epi64x((int64_t)by));
#elif defined(__SSE2__)
    return (sw_vec_pairs)_mm_mul_epu32((__m128i)a, _mm_set1_epi64x((int64_t)by));
#else
    return (a & UINT32_MAX) * by;
#endif
}

/* Philox of SW_LANES/2 counters. A lane's upper half is garbage, which no product reads. */
struct sw_philox {
    sw_vec_pairs c[4];
};

SW_INLINE void sw_philox_round(struct sw_philox *p, uint32_t k0, uint32_t k1) {
    const sw_vec_pairs p0 = sw_vec_mul_low(p->c[0], 0xD2511F53u), p1 = sw_vec_mul_low(p->c[2], 0xCD9E8D57u);
    p->c[0] = (p1 >> 32) ^ p->c[1] ^ (uint64_t)k0;
    p->c[2] = (p0 >> 32) ^ p->c[3] ^ (uint64_t)k1;
    p->c[1] = p1;
    p->c[3] = p0;
}

/* Writes the words of SW_LANES counters, word w to to[w·SW_MOMENT_LANES]. The counters' upper halves are equal. */
SW_INLINE void sw_philox_words(uint64_t seed, uint64_t stream, uint64_t counter, uint32_t *to) {
    static const uint64_t twice[] = {0, 2, 4, 6, 8, 10, 12, 14};
    struct sw_philox even, odd;
    memcpy(&even.c[0], twice, sizeof even.c[0]);
    even.c[0] += counter & UINT32_MAX;
    odd.c[0] = even.c[0] + 1;
    even.c[1] = odd.c[1] = (sw_vec_pairs){0} + (counter >> 32);
    even.c[2] = odd.c[2] = (sw_vec_pairs){0} + stream;
    even.c[3] = odd.c[3] = (sw_vec_pairs){0} + (stream >> 32);
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        sw_philox_round(&even, k0, k1);
        sw_philox_round(&odd, k0, k1);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    for (int word = 0; word < 4; word++) {
        const sw_vec_pairs pairs = (even.c[word] & UINT32_MAX) | odd.c[word] << 32;
        memcpy(to + word * SW_MOMENT_LANES, &pairs, sizeof pairs);
    }
}

/* Writes the words of a block that begins at element `elem` of its unit. */
SW_INLINE void sw_block_words(const struct sw_moment_rounding *how, int64_t elem, uint32_t *words) {
    const uint64_t stream = sw_moment_stream(how->unit, how->step);
    for (int i = 0; i < SW_MOMENT_BLOCK_ELEMS; i += SW_MOMENT_GROUP)
        for (int lane = 0; lane < SW_MOMENT_LANES; lane += SW_LANES)
            sw_philox_words(how->seed, stream, sw_moment_counter(elem + i + lane), words + i / 2 + lane);
}

/* Returns the index of the first word of the vector from element i of a block on. */
SW_INLINE int sw_word_at(int i) {
    return i / (2 * SW_MOMENT_LANES) * SW_MOMENT_LANES + i % SW_MOMENT_LANES;
}

/* Returns a half of each word, or that with its bytes exchanged. */
SW_INLINE sw_vec_bits sw_half_of(sw_vec_bits words, const bool upper, const bool exchanged) {
    const sw_vec_bits half = upper ? words >> 16 : words & 0xffffu;
    return exchanged ? half >> 8 | (half << 8 & 0xff00u) : half;
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

SW_INLINE sw_vec sw_number_of_v(const char *codes) {
    const sw_vec_bytes bytes = *(const sw_vec_bytes_unaligned *)codes;
    const sw_vec code = sw_vec_of_bytes(bytes);
    /* The product is exact, so that the sum alone is rounded. */
    return sw_number_at(&sw_moment_maps[SW_MOMENT_V], sw_vec_fma_once(code, sw_vec_splat(0.5f), sw_vec_splat(0.75f)));
}

/* Widen a vector of moments from element `at` of a grain. */
SW_INLINE sw_vec sw_widen_m(const sw_optimizer_format format, const struct sw_record_parts *record, int64_t at,
                            float scale) {
    return format == SW_OPTIMIZER_BF16 ? sw_load(SW_BF16, record->m, at) : sw_number_of_m(record->m + at) * scale;
}

SW_INLINE sw_vec sw_widen_v(const sw_optimizer_format format, const struct sw_record_parts *record, int64_t at,
                            float scale) {
    return format == SW_OPTIMIZER_BF16 ? sw_load(SW_BF16, record->v, at) : sw_number_of_v(record->v + at) * scale;
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
    /* The product is exact, so that the sum alone is rounded. */
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

/* Returns the largest lane; none is NaN. */
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

/* Returns 1 in the lanes that are above zero. */
SW_INLINE sw_vec_ints sw_vec_least(sw_vec v) {
#if defined(__AVX512F__)
    return (sw_vec_ints)_mm512_min_epu32((__m512i)v, _mm512_set1_epi32(1));
#elif defined(__AVX2__)
    return (sw_vec_ints)_mm256_min_epu32((__m256i)v, _mm256_set1_epi32(1));
#else
    return ((sw_vec_ints)v != 0) & 1;
#endif
}

/* Rounds the vector from element i of a block on. `upper`: its random bits are the upper halves of their words. */
SW_INLINE void sw_round_codes(const sw_rounding rounding, const struct sw_moment_block *block, int i,
                              const float inverse[2], const bool upper, char *to_m, char *to_v) {
    const sw_vec m = sw_vec_load(block->m + i), v = sw_vec_load(block->v + i);
    const sw_vec_bits words = *(const sw_vec_bits *)(block->words + sw_word_at(i));
    const sw_vec size =
        sw_rounded(&sw_moment_maps[SW_MOMENT_M], rounding, m, inverse[SW_MOMENT_M], sw_half_of(words, upper, false));
    const sw_vec code =
        sw_rounded(&sw_moment_maps[SW_MOMENT_V], rounding, v, inverse[SW_MOMENT_V], sw_half_of(words, upper, true));
    const sw_vec_bits steps = (sw_vec_bits)size | ((sw_vec_bits)m & 0x80000000u);
    sw_store_codes(to_m + i,
                   sw_vec_max_ints(__builtin_convertvector((sw_vec)steps, sw_vec_ints), (sw_vec_ints){0} - 127));
    sw_store_codes(to_v + i, sw_vec_max_ints(__builtin_convertvector(code, sw_vec_ints), sw_vec_least(v)));
}

SW_INLINE void sw_round_to_codes(const sw_rounding rounding, const struct sw_moment_block *block, int64_t at,
                                 const struct sw_record_parts *record) {
    const float m_scale = sw_scale_of(block->largest_m), v_scale = sw_scale_of(block->largest_v);
    const float inverse[SW_MOMENTS] = {sw_inverse_of(m_scale), sw_inverse_of(v_scale)};
    char *m = record->m + at, *v = record->v + at;
    record->m_scale[at / SW_MOMENT_BLOCK_ELEMS] = m_scale;
    record->v_scale[at / SW_MOMENT_BLOCK_ELEMS] = v_scale;
    for (int first = 0; first < SW_MOMENT_BLOCK_ELEMS; first += 2 * SW_MOMENT_LANES)
        for (int i = first; i < first + SW_MOMENT_LANES; i += SW_LANES) {
            sw_round_codes(rounding, block, i, inverse, false, m, v);
            sw_round_codes(rounding, block, i + SW_MOMENT_LANES, inverse, true, m, v);
        }
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

/* Rounds a vector to bf16: `random` has 16 bits a lane, `least` is the least magnitude's. */
SW_INLINE sw_vec_half sw_moments_to_bf16(const sw_rounding rounding, sw_vec value, sw_vec_bits random,
                                         sw_vec_ints least) {
    const sw_vec_bits bits = (sw_vec_bits)value;
    const sw_vec_bits more = rounding == SW_ROUND_NEAREST ? (bits >> 16 & 1u) + 0x7fffu : random;
    const sw_vec_bits size = sw_vec_min_bits((bits & 0x7fffffffu) + more, (sw_vec_bits){0} + 0x7f7fffffu) >> 16;
    const sw_vec_bits above = (sw_vec_bits)sw_vec_max_ints((sw_vec_ints)size, least);
    return __builtin_convertvector((bits >> 16 & 0x8000u) | above, sw_vec_half);
}

SW_INLINE void sw_round_bf16(const sw_rounding rounding, const struct sw_moment_block *block, int i, const bool upper,
                             sw_bf16 *to_m, sw_bf16 *to_v) {
    const sw_vec_bits words = *(const sw_vec_bits *)(block->words + sw_word_at(i));
    const sw_vec m = sw_vec_load(block->m + i), v = sw_vec_load(block->v + i);
    *(sw_vec_half_unaligned *)(to_m + i) =
        sw_moments_to_bf16(rounding, m, sw_half_of(words, upper, false), (sw_vec_ints){0});
    *(sw_vec_half_unaligned *)(to_v + i) =
        sw_moments_to_bf16(rounding, v, sw_half_of(words, upper, true), sw_vec_least(v));
}

SW_INLINE void sw_round_to_bf16(const sw_rounding rounding, const struct sw_moment_block *block, sw_bf16 *to_m,
                                sw_bf16 *to_v) {
    for (int first = 0; first < SW_MOMENT_BLOCK_ELEMS; first += 2 * SW_MOMENT_LANES)
        for (int i = first; i < first + SW_MOMENT_LANES; i += SW_LANES) {
            sw_round_bf16(rounding, block, i, false, to_m, to_v);
            sw_round_bf16(rounding, block, i + SW_MOMENT_LANES, true, to_m, to_v);
        }
}

SW_INLINE void sw_round_moments(const sw_optimizer_format format, const sw_rounding rounding,
                                const struct sw_moment_rounding *how, int64_t at, struct sw_moment_block *block,
                                const struct sw_record_parts *record) {
    if (rounding == SW_ROUND_STOCHASTIC)
        sw_block_words(how, how->first_elem + at, block->words);
    if (format == SW_OPTIMIZER_BF16) {
        sw_round_to_bf16(rounding, block, (sw_bf16 *)record->m + at, (sw_bf16 *)record->v + at);
        return;
    }
    sw_round_to_codes(rounding, block, at, record);
}

#endif
