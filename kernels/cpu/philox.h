/* The random words of core/rng.h, of as many counters at a time as a vector has lanes. */
#ifndef SW_KERNELS_CPU_PHILOX_H
#define SW_KERNELS_CPU_PHILOX_H

#include "kernels/cpu/vector.h"

enum { SW_RNG_WORDS = 4 };

typedef uint64_t sw_vec_pairs __attribute__((vector_size(SW_LANES * sizeof(uint32_t))));

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

/* Philox of SW_LANES/2 counters. The upper half of a lane is garbage, which no product reads. */
struct sw_philox {
    sw_vec_pairs c[SW_RNG_WORDS];
};

SW_INLINE void sw_philox_round(struct sw_philox *p, uint32_t k0, uint32_t k1) {
    const sw_vec_pairs p0 = sw_vec_mul_low(p->c[0], 0xD2511F53u), p1 = sw_vec_mul_low(p->c[2], 0xCD9E8D57u);
    p->c[0] = (p1 >> 32) ^ p->c[1] ^ (uint64_t)k0;
    p->c[2] = (p0 >> 32) ^ p->c[3] ^ (uint64_t)k1;
    p->c[1] = p1;
    p->c[3] = p0;
}

/* Writes the words of SW_LANES consecutive counters, whose upper halves are equal: lane l of words[w] receives word w
 * of sw_rng(seed, stream, counter + l). */
SW_INLINE void sw_philox_words(uint64_t seed, uint64_t stream, uint64_t counter, sw_vec_bits words[SW_RNG_WORDS]) {
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
    for (int word = 0; word < SW_RNG_WORDS; word++)
        words[word] = (sw_vec_bits)((even.c[word] & UINT32_MAX) | odd.c[word] << 32);
}

#endif
