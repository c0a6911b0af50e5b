#include "core/rng.h"

#include <assert.h>
#include <math.h>

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
