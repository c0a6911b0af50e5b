#include "core/rng.h"

#include "core/machine.h"
#include "core/size.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum { PHILOX_ROUNDS = 10, FEISTEL_ROUNDS = 6 };

struct sw_rng_block sw_rng(uint64_t seed, uint64_t stream, uint64_t counter) {
    uint32_t c[4] = {(uint32_t)counter, (uint32_t)(counter >> 32), (uint32_t)stream, (uint32_t)(stream >> 32)};
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        const uint64_t p0 = (uint64_t)0xD2511F53u * c[0];
        const uint64_t p1 = (uint64_t)0xCD9E8D57u * c[2];
        const uint32_t n0 = (uint32_t)(p1 >> 32) ^ c[1] ^ k0;
        const uint32_t n2 = (uint32_t)(p0 >> 32) ^ c[3] ^ k1;
        c[1] = (uint32_t)p1;
        c[3] = (uint32_t)p0;
        c[0] = n0;
        c[2] = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return (struct sw_rng_block){{c[0], c[1], c[2], c[3]}};
}

double sw_rng_uniform(uint64_t seed, uint64_t stream, uint64_t counter) {
    const struct sw_rng_block block = sw_rng(seed, stream, counter);
    const uint64_t bits = ((uint64_t)block.word[0] << 32 | block.word[1]) >> 11;
    return (double)bits * 0x1p-53;
}

float sw_rng_normal(uint64_t seed, uint64_t stream, uint64_t counter) {
    const struct sw_rng_block block = sw_rng(seed, stream, counter);
    const double radius_uniform = ((double)block.word[0] + 0.5) * 0x1p-32;
    const double angle_uniform = (double)block.word[1] * 0x1p-32;
    return (float)(sqrt(-2.0 * log(radius_uniform)) * cos(6.283185307179586 * angle_uniform));
}

static uint64_t feistel(uint64_t seed, uint64_t stream, uint64_t value, unsigned half_bits) {
    const uint64_t mask = (UINT64_C(1) << half_bits) - 1;
    uint64_t left = value >> half_bits, right = value & mask;
    for (uint64_t round = 0; round < FEISTEL_ROUNDS; round++) {
        const struct sw_rng_block block = sw_rng(seed, stream, right << 3 | round);
        const uint64_t mixed = left ^ (((uint64_t)block.word[0] << 32 | block.word[1]) & mask);
        left = right;
        right = mixed;
    }
    return left << half_bits | right;
}

uint64_t sw_rng_permute(uint64_t seed, uint64_t stream, uint64_t index, uint64_t count) {
    assert(index < count && count <= UINT64_C(1) << 60);
    unsigned half_bits = 1;
    while (UINT64_C(1) << 2 * half_bits < count)
        half_bits++;
    uint64_t value = index;
    do {
        value = feistel(seed, stream, value, half_bits);
    } while (value >= count);
    return value;
}

/* Many normals at once, in loops that compilers vectorise. Logarithm and cosine are approximated to about 50 bits,
 * which decides nearly every float; where it does not, the scalar function decides. So the bits are those of
 * sw_rng_normal, whatever the compiler makes of the loops. */
enum { LANES = 64 };

/* The first two words of LANES blocks, as sw_rng makes them. */
struct words {
    uint32_t first[LANES], second[LANES];
};

static inline __attribute__((always_inline)) void draw(uint64_t seed, uint64_t stream, uint64_t counter,
                                                       struct words *out) {
    uint32_t c0[LANES], c1[LANES], c2[LANES], c3[LANES];
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int i = 0; i < LANES; i++) {
        c0[i] = (uint32_t)(counter + (uint64_t)i);
        c1[i] = (uint32_t)((counter + (uint64_t)i) >> 32);
        c2[i] = (uint32_t)stream;
        c3[i] = (uint32_t)(stream >> 32);
    }
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        for (int i = 0; i < LANES; i++) {
            const uint64_t p0 = (uint64_t)0xD2511F53u * c0[i];
            const uint64_t p1 = (uint64_t)0xCD9E8D57u * c2[i];
            c0[i] = (uint32_t)(p1 >> 32) ^ c1[i] ^ k0;
            c2[i] = (uint32_t)(p0 >> 32) ^ c3[i] ^ k1;
            c1[i] = (uint32_t)p1;
            c3[i] = (uint32_t)p0;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    memcpy(out->first, c0, sizeof c0);
    memcpy(out->second, c1, sizeof c1);
}

/* Converts a word through a signed integer, the only kind that vector units convert. */
static inline __attribute__((always_inline)) double number_of(uint32_t word) {
    return (double)(int32_t)(word ^ 0x80000000u) + 0x1p31;
}

/* Returns log of (word + 1/2) / 2^32, by the series of atanh around a power of two. */
static inline __attribute__((always_inline)) double log_of(uint32_t word) {
    enum { ROOT_OF_HALF_HIGH = 0x3FE6A09E, EXPONENT_BIT = 20 };
    const double value = (number_of(word) + 0.5) * 0x1p-32;
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    const int32_t exponent = ((int32_t)(bits >> 32) - ROOT_OF_HALF_HIGH) >> EXPONENT_BIT;
    bits -= (uint64_t)(int64_t)exponent << (32 + EXPONENT_BIT);
    double m;
    memcpy(&m, &bits, sizeof m);
    const double f = (m - 1.0) / (m + 1.0), s = f * f;
    double sum = 1.0 / 23.0;
    sum = sum * s + 1.0 / 21.0;
    sum = sum * s + 1.0 / 19.0;
    sum = sum * s + 1.0 / 17.0;
    sum = sum * s + 1.0 / 15.0;
    sum = sum * s + 1.0 / 13.0;
    sum = sum * s + 1.0 / 11.0;
    sum = sum * s + 1.0 / 9.0;
    sum = sum * s + 1.0 / 7.0;
    sum = sum * s + 1.0 / 5.0;
    sum = sum * s + 1.0 / 3.0;
    return (double)exponent * 0x1.62e42fefa39efp-1 + (2.0 * f + 2.0 * f * s * sum);
}

/* Returns the cosine of the double nearest to 2 pi word / 2^32. The quarter of the circle is known from the word, and
 * pi / 2 is subtracted in parts whose products with it are exact (Cody and Waite). */
static inline __attribute__((always_inline)) double cos_of(uint32_t word) {
    const double x = 6.283185307179586 * (number_of(word) * 0x1p-32);
    const uint32_t quarter = (word >> 30) + (word >> 29 & 1);
    const double k = (double)(int32_t)quarter;
    const double r = ((x - k * 0x1.921fb544p+0) - k * 0x1.0b4611a6p-34) - k * 0x1.3198a2e037073p-69, s = r * r;
    double c = 1.0 / 20922789888000.0, d = 1.0 / 355687428096000.0;
    c = c * s - 1.0 / 87178291200.0;
    d = d * s - 1.0 / 1307674368000.0;
    c = c * s + 1.0 / 479001600.0;
    d = d * s + 1.0 / 6227020800.0;
    c = c * s - 1.0 / 3628800.0;
    d = d * s - 1.0 / 39916800.0;
    c = c * s + 1.0 / 40320.0;
    d = d * s + 1.0 / 362880.0;
    c = c * s - 1.0 / 720.0;
    d = d * s - 1.0 / 5040.0;
    c = c * s + 1.0 / 24.0;
    d = d * s + 1.0 / 120.0;
    c = c * s - 0.5;
    d = d * s - 1.0 / 6.0;
    const double cosine = 1.0 + c * s, sine = r + r * s * d;
    /* Selects by bits: a branch would end the vector loop. */
    const uint64_t odd = -(uint64_t)(quarter & 1), negative = (uint64_t)((quarter + 1) >> 1 & 1) << 63;
    uint64_t cosine_bits, sine_bits;
    double value;
    memcpy(&cosine_bits, &cosine, sizeof cosine_bits);
    memcpy(&sine_bits, &sine, sizeof sine_bits);
    const uint64_t bits = ((sine_bits & odd) | (cosine_bits & ~odd)) ^ negative;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* An upper bound of the relative error of both the approximation and the scalar function. */
#define DOUBT 0x1p-45

/* Approximates the normals. Returns how many are so near the middle between two floats that either may be right. */
static inline __attribute__((always_inline)) int approximate(const struct words *words, float *out) {
    double value[LANES];
    int doubts = 0;
    for (int i = 0; i < LANES; i++)
        value[i] = -2.0 * log_of(words->first[i]);
    for (int i = 0; i < LANES; i++)
        value[i] = __builtin_sqrt(value[i]);
    for (int i = 0; i < LANES; i++)
        value[i] *= cos_of(words->second[i]);
    for (int i = 0; i < LANES; i++) {
        const float low = (float)(value[i] * (1.0 - DOUBT)), high = (float)(value[i] * (1.0 + DOUBT));
        doubts += low != high;
        out[i] = high;
    }
    return doubts;
}

static inline __attribute__((always_inline)) void normals(uint64_t seed, uint64_t stream, uint64_t counter,
                                                          int64_t count, float *out) {
    for (int64_t at = 0; at < count; at += LANES) {
        const int64_t wanted = sw_min_i64(LANES, count - at);
        const uint64_t first = counter + (uint64_t)at;
        struct words words;
        float block[LANES];
        draw(seed, stream, first, &words);
        if (approximate(&words, block) > 0)
            for (int i = 0; i < LANES; i++)
                block[i] = sw_rng_normal(seed, stream, first + (uint64_t)i);
        memcpy(out + at, block, (size_t)wanted * sizeof *out);
    }
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void normals_avx2(uint64_t seed, uint64_t stream, uint64_t counter,
                                                         int64_t count, float *out) {
    normals(seed, stream, counter, count, out);
}

__attribute__((target("avx512f"))) static void normals_avx512(uint64_t seed, uint64_t stream, uint64_t counter,
                                                              int64_t count, float *out) {
    normals(seed, stream, counter, count, out);
}
#endif

void sw_rng_normals(uint64_t seed, uint64_t stream, uint64_t counter, int64_t count, float *out) {
#if defined(__x86_64__)
    const sw_isa isa = sw_isa_of_process();
    if (isa >= SW_ISA_AVX2) {
        (isa >= SW_ISA_AVX512 ? normals_avx512 : normals_avx2)(seed, stream, counter, count, out);
        return;
    }
#endif
    normals(seed, stream, counter, count, out);
}

void sw_rng_fill(void *memory, int64_t bytes) {
    uint64_t state = UINT64_C(0x9e3779b97f4a7c15), *words = memory; /* xorshift64 (Marsaglia 2003), for speed */
    for (int64_t i = 0; i < bytes / (int64_t)sizeof *words; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        words[i] = state;
    }
}
