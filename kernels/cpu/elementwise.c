#include "kernels/cpu/isa.h"
#include "kernels/cpu/tile.h"

SW_INLINE void add_tile(const sw_dtype type, int64_t at, int64_t end, const void *a, const void *b, void *y) {
    for (int64_t i = at; i < end; i += SW_LANES) {
        const sw_vec sum = sw_load_up_to(type, a, i, end - i, 0.0f) + sw_load_up_to(type, b, i, end - i, 0.0f);
        sw_store_up_to(type, y, i, end - i, sum);
    }
}

static void add_tiles(const void *args, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct sw_add *op = args;
    for (int64_t at = first * SW_TILE_ELEMS; at < sw_min_i64(end * SW_TILE_ELEMS, op->elems); at += SW_TILE_ELEMS)
        SW_FOR_TYPE(add_tile, op->type, at, sw_min_i64(at + SW_TILE_ELEMS, op->elems), op->a, op->b, op->y);
}

static sw_status add(struct sw_stream *stream, const void *args) {
    const struct sw_add *op = args;
    sw_cpu_share(stream, op->elems >= SW_PARALLEL_MIN_ELEMS, sw_div_up(op->elems, SW_TILE_ELEMS), add_tiles, op);
    return SW_OK;
}

static void narrow_tiles(const void *args, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct sw_cast_from_f32 *op = args;
    const int64_t at = first * SW_TILE_ELEMS;
    sw_narrow(op->type, op->to, at, sw_min_i64(end * SW_TILE_ELEMS, op->elems) - at, op->from + at);
}

static sw_status cast_from_f32(struct sw_stream *stream, const void *args) {
    const struct sw_cast_from_f32 *op = args;
    sw_cpu_share(stream, op->elems >= SW_PARALLEL_MIN_ELEMS, sw_div_up(op->elems, SW_TILE_ELEMS), narrow_tiles, op);
    return SW_OK;
}

static void widen_tiles(const void *args, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct sw_cast_to_f32 *op = args;
    const int64_t at = first * SW_TILE_ELEMS;
    sw_widen(op->type, op->from, at, sw_min_i64(end * SW_TILE_ELEMS, op->elems) - at, op->to + at);
}

static sw_status cast_to_f32(struct sw_stream *stream, const void *args) {
    const struct sw_cast_to_f32 *op = args;
    sw_cpu_share(stream, op->elems >= SW_PARALLEL_MIN_ELEMS, sw_div_up(op->elems, SW_TILE_ELEMS), widen_tiles, op);
    return SW_OK;
}

void SW_ISA_NAME(sw_cpu_add_elementwise)(struct sw_device_ops *ops) {
    ops->op[SW_DEVICE_ADD] = add;
    ops->op[SW_DEVICE_CAST_FROM_F32] = cast_from_f32;
    ops->op[SW_DEVICE_ROUND_GRADIENT] = cast_from_f32;
    ops->op[SW_DEVICE_CAST_TO_F32] = cast_to_f32;
}
