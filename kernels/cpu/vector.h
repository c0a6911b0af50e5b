/* Vectors as wide as the instruction set, in the compiler's own vector types. Intrinsics do what those types cannot
 * express. */
#ifndef SW_KERNELS_CPU_VECTOR_H
#define SW_KERNELS_CPU_VECTOR_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
enum { SW_LANES = 16 };
#elif defined(__AVX__)
enum { SW_LANES = 8 };
#else
enum { SW_LANES = 4 };
#endif

#define SW_INLINE static inline __attribute__((always_inline))

typedef float sw_vec __attribute__((vector_size(SW_LANES * sizeof(float))));
typedef float sw_vec_unaligned __attribute__((vector_size(SW_LANES * sizeof(float)), aligned(4), may_alias));
typedef uint32_t sw_vec_bits __attribute__((vector_size(SW_LANES * sizeof(uint32_t))));

SW_INLINE sw_vec sw_vec_load(const float *from) {
    return *(const sw_vec_unaligned *)from;
}

SW_INLINE void sw_vec_store(float *to, sw_vec value) {
    *(sw_vec_unaligned *)to = value;
}

SW_INLINE sw_vec sw_vec_splat(float value) {
    return value - (sw_vec){0};
}

/* Returns a·b + c. Without the instruction the product is rounded too, so use it only where no bits are promised. */
SW_INLINE sw_vec sw_vec_fma(sw_vec a, sw_vec b, sw_vec c) {
#if defined(__AVX512F__)
    return _mm512_fmadd_ps(a, b, c);
#elif defined(__FMA__)
    return _mm256_fmadd_ps(a, b, c);
#else
    return a * b + c;
#endif
}

/* Returns a·b + c rounded once, with or without the instruction, for use where bits are promised. */
SW_INLINE sw_vec sw_vec_fma_once(sw_vec a, sw_vec b, sw_vec c) {
#if defined(__FMA__)
    return sw_vec_fma(a, b, c);
#else
    for (int i = 0; i < SW_LANES; i++)
        c[i] = fmaf(a[i], b[i], c[i]);
    return c;
#endif
}

SW_INLINE sw_vec sw_vec_sqrt(sw_vec value) {
#if defined(__AVX512F__)
    return _mm512_sqrt_ps(value);
#elif defined(__AVX__)
    return _mm256_sqrt_ps(value);
#else
    for (int i = 0; i < SW_LANES; i++)
        value[i] = sqrtf(value[i]);
    return value;
#endif
}

/* Returns a where the mask's lane is all ones, b where it is zero. Comparisons of vectors give such masks. */
SW_INLINE sw_vec sw_vec_select(sw_vec_bits mask, sw_vec a, sw_vec b) {
    return (sw_vec)(((sw_vec_bits)a & mask) | ((sw_vec_bits)b & ~mask));
}

/* Returns a mask of the lanes that are NaN: neither comparison holds there. */
SW_INLINE sw_vec_bits sw_vec_is_nan(sw_vec value) {
    return ~(sw_vec_bits)((value >= 0.0f) | (value < 0.0f));
}

/* Returns a > b ? a : b, and so b if one is NaN. */
SW_INLINE sw_vec sw_vec_max(sw_vec a, sw_vec b) {
#if defined(__AVX512F__)
    return _mm512_max_ps(a, b);
#elif defined(__AVX__)
    return _mm256_max_ps(a, b);
#else
    return sw_vec_select((sw_vec_bits)(a > b), a, b);
#endif
}

/* Returns a < b ? a : b, and so b if one is NaN. */
SW_INLINE sw_vec sw_vec_min(sw_vec a, sw_vec b) {
#if defined(__AVX512F__)
    return _mm512_min_ps(a, b);
#elif defined(__AVX__)
    return _mm256_min_ps(a, b);
#else
    return sw_vec_select((sw_vec_bits)(a < b), a, b);
#endif
}

/* Returns the nearest number within bounds; NaN stays NaN. */
SW_INLINE sw_vec sw_vec_within(float lowest, sw_vec value, float highest) {
    return sw_vec_max(sw_vec_splat(lowest), sw_vec_min(sw_vec_splat(highest), value));
}

/* Interleaves the lanes of two vectors: a0 b0 a1 b1 ... */
SW_INLINE void sw_vec_interleave(sw_vec a, sw_vec b, sw_vec *out_low, sw_vec *out_high) {
#if defined(__AVX512F__)
    const __m512i low = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const __m512i high = _mm512_set_epi32(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8);
    *out_low = _mm512_permutex2var_ps(a, low, b);
    *out_high = _mm512_permutex2var_ps(a, high, b);
#elif defined(__AVX__)
    const sw_vec even = _mm256_unpacklo_ps(a, b), odd = _mm256_unpackhi_ps(a, b);
    *out_low = _mm256_permute2f128_ps(even, odd, 0x20);
    *out_high = _mm256_permute2f128_ps(even, odd, 0x31);
#else
    sw_vec low, high;
    for (int i = 0; i < SW_LANES / 2; i++) {
        low[2 * i] = a[i];
        low[2 * i + 1] = b[i];
        high[2 * i] = a[i + SW_LANES / 2];
        high[2 * i + 1] = b[i + SW_LANES / 2];
    }
    *out_low = low;
    *out_high = high;
#endif
}

/* Transposes a square. AVX shuffles fastest within halves of vectors, so it exchanges halves last. The others
 * interleave the square's upper and lower halves as often as a side can be halved. */
SW_INLINE void sw_vec_transpose(sw_vec row[SW_LANES]) {
#if defined(__AVX__) && !defined(__AVX512F__)
    sw_vec half[SW_LANES];
    for (int i = 0; i < SW_LANES; i += 4) {
        const sw_vec a = _mm256_unpacklo_ps(row[i], row[i + 1]), b = _mm256_unpackhi_ps(row[i], row[i + 1]);
        const sw_vec c = _mm256_unpacklo_ps(row[i + 2], row[i + 3]), d = _mm256_unpackhi_ps(row[i + 2], row[i + 3]);
        half[i] = _mm256_shuffle_ps(a, c, _MM_SHUFFLE(1, 0, 1, 0));
        half[i + 1] = _mm256_shuffle_ps(a, c, _MM_SHUFFLE(3, 2, 3, 2));
        half[i + 2] = _mm256_shuffle_ps(b, d, _MM_SHUFFLE(1, 0, 1, 0));
        half[i + 3] = _mm256_shuffle_ps(b, d, _MM_SHUFFLE(3, 2, 3, 2));
    }
    for (int i = 0; i < SW_LANES / 2; i++) {
        row[i] = _mm256_permute2f128_ps(half[i], half[i + 4], 0x20);
        row[i + 4] = _mm256_permute2f128_ps(half[i], half[i + 4], 0x31);
    }
#else
    for (int side = SW_LANES; side > 1; side /= 2) {
        sw_vec next[SW_LANES];
        for (int i = 0; i < SW_LANES / 2; i++)
            sw_vec_interleave(row[i], row[i + SW_LANES / 2], &next[2 * i], &next[2 * i + 1]);
        for (int i = 0; i < SW_LANES; i++)
            row[i] = next[i];
    }
#endif
}

/* Returns the sum of all lanes, in a fixed order. */
SW_INLINE float sw_vec_sum(sw_vec value) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps(value);
#else
    float lane[SW_LANES];
    memcpy(lane, &value, sizeof lane);
    for (int half = SW_LANES / 2; half >= 1; half /= 2) {
        for (int i = 0; i < half; i++)
            lane[i] += lane[i + half];
    }
    return lane[0];
#endif
}

SW_INLINE float sw_vec_largest(sw_vec value) {
    float lane[SW_LANES];
    memcpy(lane, &value, sizeof lane);
    for (int half = SW_LANES / 2; half >= 1; half /= 2) {
        for (int i = 0; i < half; i++)
            lane[i] = lane[i] > lane[i + half] ? lane[i] : lane[i + half];
    }
    return lane[0];
}

#endif
