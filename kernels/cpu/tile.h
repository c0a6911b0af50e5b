/* Short tiles of fp32 that stay in the first-level cache, for ops without vector code of their own: a tile is widened
 * from the compute type, worked on, and rounded back. fp32 tensors are used in place. */
#ifndef SW_KERNELS_CPU_TILE_H
#define SW_KERNELS_CPU_TILE_H

#include "core/size.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/share.h"

enum { SW_TILE_ELEMS = 512 };
static_assert(SW_GRAIN_ELEMS % SW_TILE_ELEMS == 0, "a grain is a whole number of tiles");

/* Elements below which starting threads costs more than it gains. */
enum { SW_PARALLEL_MIN_ELEMS = 16384 };

struct sw_tile {
    _Alignas(64) float value[SW_TILE_ELEMS];
};

SW_INLINE void sw_widen_from(const sw_dtype type, int64_t count, const void *from, float *to) {
    for (int64_t i = 0; i < count; i += SW_LANES)
        sw_store_up_to(SW_F32, to, i, count - i, sw_load_up_to(type, from, i, count - i, 0.0f));
}

SW_INLINE void sw_narrow_to(const sw_dtype type, int64_t count, const float *from, void *to) {
    for (int64_t i = 0; i < count; i += SW_LANES)
        sw_store_up_to(type, to, i, count - i, sw_load_up_to(SW_F32, from, i, count - i, 0.0f));
}

/* Widen `count` elements, starting at element `at` of a tensor, to fp32; round them back. */
static inline void sw_widen(sw_dtype type, const void *tensor, int64_t at, int64_t count, float *to) {
    const void *from = (const char *)tensor + at * sw_dtype_bytes(type);
    SW_FOR_TYPE(sw_widen_from, type, count, from, to);
}

static inline void sw_narrow(sw_dtype type, void *tensor, int64_t at, int64_t count, const float *from) {
    void *to = (char *)tensor + at * sw_dtype_bytes(type);
    SW_FOR_TYPE(sw_narrow_to, type, count, from, to);
}

/* Returns the fp32 values of [at, at+count): in the tensor itself, or in the tile. */
static inline const float *sw_tile_load(sw_dtype type, const void *tensor, int64_t at, int64_t count,
                                        struct sw_tile *tile) {
    if (type == SW_F32)
        return (const float *)tensor + at;
    sw_widen(type, tensor, at, count, tile->value);
    return tile->value;
}

/* Returns where to write the values of a tile, which sw_tile_store then brings to the tensor. */
static inline float *sw_tile_target(sw_dtype type, void *tensor, int64_t at, struct sw_tile *tile) {
    return type == SW_F32 ? (float *)tensor + at : tile->value;
}

static inline void sw_tile_store(sw_dtype type, void *tensor, int64_t at, int64_t count, const struct sw_tile *tile) {
    if (type != SW_F32)
        sw_narrow(type, tensor, at, count, tile->value);
}

#endif
