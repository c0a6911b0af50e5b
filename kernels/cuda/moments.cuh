/* The rounding of moments in blocks of 256 elements, of which a warp has one: each of its lanes a vector of eight. */
#ifndef SW_KERNELS_CUDA_MOMENTS_CUH
#define SW_KERNELS_CUDA_MOMENTS_CUH

#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/philox.cuh"
extern "C" {
#include "kernels/moments.h"
}

enum {
    SW_MOMENT_WARPS = SW_BLOCK_THREADS / SW_WARP,
    SW_MOMENT_WORDS = SW_MOMENT_BLOCK_ELEMS / 2, /* random words of a block: 16 bits an element */
};
static_assert((int)SW_MOMENT_BLOCK_ELEMS == (int)SW_WARP * (int)SW_ELEMS, "a warp has a block");

/* Each lane draws the four words of one counter of its warp's block, which begins at element `elem` of its unit. */
static __device__ __forceinline__ void sw_draw_words(uint64_t seed, uint64_t stream, int64_t elem, int lane,
                                                     uint32_t *words) {
    const int group = lane / SW_MOMENT_LANES, side = lane % SW_MOMENT_LANES;
    const uint64_t counter = (uint64_t)((elem / SW_MOMENT_GROUP + group) * SW_MOMENT_LANES + side);
    const sw_random drawn = sw_draw(seed, stream, counter);
    uint32_t *to = words + group * 4 * SW_MOMENT_LANES + side;
    SW_UNROLL
    for (int word = 0; word < 4; word++)
        to[word * SW_MOMENT_LANES] = drawn.word[word];
}

/* Returns the 16 random bits of element i of a lane. */
static __device__ __forceinline__ uint32_t sw_random_of(const uint32_t *words, int lane, int i) {
    const int elem = lane * SW_ELEMS + i;
    const uint32_t word = words[elem / (2 * SW_MOMENT_LANES) * SW_MOMENT_LANES + elem % SW_MOMENT_LANES];
    return word >> (elem / SW_MOMENT_LANES % 2 * 16) & 0xffffu;
}

/* Returns the bits of a moment rounded to bf16, whose magnitude's bits are at least `least`. */
static __device__ __forceinline__ uint32_t sw_bf16_moment(bool stochastic, float value, uint32_t random,
                                                          uint32_t least) {
    const uint32_t bits = sw_float_bits(value), nearest = 0x7fffu + (bits >> 16 & 1u);
    const uint32_t size = (bits & 0x7fffffffu) + (stochastic ? random : nearest);
    const uint32_t finite = (size < 0x7f7fffffu ? size : 0x7f7fffffu) >> 16;
    return (bits >> 16 & 0x8000u) | (finite > least ? finite : least);
}

#endif
