/* The rounding of moments in blocks of 256 elements, of which a warp has one: each of its lanes a vector of eight. */
#ifndef SW_KERNELS_CUDA_MOMENTS_CUH
#define SW_KERNELS_CUDA_MOMENTS_CUH

#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/philox.cuh"
extern "C" {
#include "kernels/moments.h"
}

#include <float.h>

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

static __device__ __forceinline__ float sw_moment_number(const sw_moment_map &map, float q) {
    const uint32_t bits = sw_float_bits(q), entry = (bits >> 23) % SW_MAP_ENTRIES;
    const float mantissa = sw_bits_float((bits & 0x7fffffu) | 0x3f800000u);
    return fmaf(map.slope[entry], mantissa - 1.0f, map.first[entry]);
}

static __device__ __forceinline__ float sw_moment_position(const sw_moment_map &map, float y) {
    const float logarithm = fmaf((float)(int32_t)sw_float_bits(y), SW_MOMENT_ENTRY_SLOPE, map.entry_offset);
    const int entry = (int)fmaxf(logarithm, 0.0f);
    const float z = y * map.steep[entry];
    const float parts = fminf(z + map.line[entry], fmaf(z, SW_MOMENT_FIFTH, map.next[entry]));
    const float lowest = fminf(parts, fmaf(z, SW_MOMENT_THIRD, map.cross[entry]));
    return fmaxf(lowest, fmaf(y, map.to_one, map.one_offset));
}

/* Returns the code's steps from 0.0 of a magnitude. */
static __device__ __forceinline__ int sw_moment_steps(const sw_moment_map &map, float value, float inverse,
                                                      bool stochastic, uint32_t random) {
    const float y = fabsf(value) * inverse, more = stochastic ? (float)(int32_t)random * 0x1p-16f : 0.5f;
    return (int)(sw_moment_position(map, y < 1.0f ? y : 1.0f) + more);
}

/* Returns the scale of a warp's block from each lane's largest magnitude. */
static __device__ __forceinline__ float sw_moment_scale(const float values[SW_ELEMS]) {
    float largest = 0.0f;
    SW_UNROLL
    for (int i = 0; i < SW_ELEMS; i++)
        largest = fabsf(values[i]) > largest ? fabsf(values[i]) : largest;
    SW_UNROLL
    for (int with = SW_WARP / 2; with > 0; with /= 2)
        largest = fmaxf(largest, __shfl_xor_sync(SW_ALL_LANES, largest, with));
    return largest > 0.0f ? fminf(fmaxf(largest, FLT_MIN), FLT_MAX) : 0.0f;
}

/* Returns the number of a code of m, before its scale. */
static __device__ __forceinline__ float sw_number_of_m(const sw_moment_map &map, uint32_t code) {
    const float steps = (float)((code + 127u) & 0xffu) - 127.0f;
    const float number = sw_moment_number(map, fabsf(steps) + 0.5f);
    return steps < 0.0f ? -number : number;
}

/* Returns the code of an m. inverse: 1/scale of its block, 0 if that is 0 */
static __device__ __forceinline__ uint32_t sw_code_of_m(const sw_moment_map &map, float value, float inverse,
                                                        bool stochastic, uint32_t random) {
    const int size = sw_moment_steps(map, value, inverse, stochastic, random);
    const int negative = size > 127 ? -127 : -size;
    return (uint32_t)(sw_float_bits(value) >> 31 ? negative : size) & 0xffu;
}

#endif
