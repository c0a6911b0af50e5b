/* Ops work on short tiles of fp32 that stay in the first-level cache: a tile is widened from the compute type, worked
 * on, and rounded back. fp32 tensors are used in place. So each op is written once, for fp32. */
#ifndef SW_KERNELS_CPU_TILE_H
#define SW_KERNELS_CPU_TILE_H

#include "core/dtype.h"
#include "core/size.h"

enum { SW_TILE_ELEMS = 512 };
static_assert(SW_GRAIN_ELEMS % SW_TILE_ELEMS == 0, "a grain is a whole number of tiles");

/* Elements below which starting other threads costs more than it gains. */
enum { SW_PARALLEL_MIN_ELEMS = 16384 };

struct sw_tile {
    _Alignas(64) float value[SW_TILE_ELEMS];
};

static inline void sw_widen(int64_t count, const sw_bf16 *from, float *to) {
#pragma omp simd
    for (int64_t i = 0; i < count; i++)
        to[i] = sw_bf16_to_f32(from[i]);
}

static inline void sw_narrow(int64_t count, const float *from, sw_bf16 *to) {
#pragma omp simd
    for (int64_t i = 0; i < count; i++)
        to[i] = sw_f32_to_bf16(from[i]);
}

/* The values of [at, at+count) in fp32: in the tensor itself, or in the tile. */
static inline const float *sw_tile_load(sw_dtype type, const void *tensor, int64_t at, int64_t count,
                                        struct sw_tile *tile) {
    if (type == SW_F32)
        return (const float *)tensor + at;
    sw_widen(count, (const sw_bf16 *)tensor + at, tile->value);
    return tile->value;
}

/* Where to write the values of a tile that sw_tile_store then brings to the tensor. */
static inline float *sw_tile_target(sw_dtype type, void *tensor, int64_t at, struct sw_tile *tile) {
    return type == SW_F32 ? (float *)tensor + at : tile->value;
}

static inline void sw_tile_store(sw_dtype type, void *tensor, int64_t at, int64_t count, const struct sw_tile *tile) {
    if (type != SW_F32)
        sw_narrow(count, tile->value, (sw_bf16 *)tensor + at);
}

#endif
