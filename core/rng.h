/* Counter-based random numbers: Philox4x32-10 (Salmon et al., SC11). A value is a pure function of seed, stream and
 * counter, so that results do not depend on threads, order or where a run was resumed. */
#ifndef SW_CORE_RNG_H
#define SW_CORE_RNG_H

#include <stdint.h>

struct sw_rng_block {
    uint32_t word[4];
};

struct sw_rng_block sw_rng(uint64_t seed, uint64_t stream, uint64_t counter);

/* Returns a number uniform in [0, 1), with 53 random bits. */
double sw_rng_uniform(uint64_t seed, uint64_t stream, uint64_t counter);

/* Returns a standard normal number (Box-Muller). */
float sw_rng_normal(uint64_t seed, uint64_t stream, uint64_t counter);
/* Writes the numbers that sw_rng_normal returns for `count` consecutive counters, bit for bit, but several times as
 * fast. */
void sw_rng_normals(uint64_t seed, uint64_t stream, uint64_t counter, int64_t count, float *out);

/* Fills memory with the same random words each time, for measurements that must not gain by compressible data. bytes: a
 * multiple of 8, and memory is aligned to that. */
void sw_rng_fill(void *memory, int64_t bytes);

/* Returns the index-th element of a random permutation of [0, count), without storing it (a Feistel network with cycle
 * walking). count > 0, index < count. */
uint64_t sw_rng_permute(uint64_t seed, uint64_t stream, uint64_t index, uint64_t count);

#endif
