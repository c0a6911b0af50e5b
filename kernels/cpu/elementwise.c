#include "kernels/cpu/isa.h"
#include "kernels/cpu/tile.h"

SW_INLINE void add_tile(const sw_dtype type, int64_t at, int64_t end, const void *a, const void *b, void *y) {
    for (int64_t i = at; i < end; i += SW_LANES) {
        const sw_vec sum = sw_load_up_to(type, a, i, end - i, 0.0f) + sw_load_up_to(type, b, i, end - i, 0.0f);
        sw_store_up_to(type, y, i, end - i, sum);
    }
}

static sw_status add(struct sw_stream *stream, sw_dtype type, int64_t elems, const void *a, const void *b, void *y) {
    const int threads = stream->device->info.threads;
#pragma omp parallel for num_threads(threads) schedule(static) if (elems >= SW_PARALLEL_MIN_ELEMS)
    for (int64_t at = 0; at < elems; at += SW_TILE_ELEMS)
        SW_FOR_TYPE(add_tile, type, at, sw_min_i64(at + SW_TILE_ELEMS, elems), a, b, y);
    return SW_OK;
}

static sw_status cast_from_f32(struct sw_stream *stream, sw_dtype type, int64_t elems, const float *from, void *to) {
    const int threads = stream->device->info.threads;
#pragma omp parallel for num_threads(threads) schedule(static) if (elems >= SW_PARALLEL_MIN_ELEMS)
    for (int64_t at = 0; at < elems; at += SW_TILE_ELEMS)
        sw_narrow(type, to, at, sw_min_i64(SW_TILE_ELEMS, elems - at), from + at);
    return SW_OK;
}

static sw_status cast_to_f32(struct sw_stream *stream, sw_dtype type, int64_t elems, const void *from, float *to) {
    const int threads = stream->device->info.threads;
#pragma omp parallel for num_threads(threads) schedule(static) if (elems >= SW_PARALLEL_MIN_ELEMS)
    for (int64_t at = 0; at < elems; at += SW_TILE_ELEMS)
        sw_widen(type, from, at, sw_min_i64(SW_TILE_ELEMS, elems - at), to + at);
    return SW_OK;
}

void SW_ISA_NAME(sw_cpu_add_elementwise)(struct sw_device_ops *ops) {
    ops->add = add;
    ops->cast_from_f32 = cast_from_f32;
    ops->cast_to_f32 = cast_to_f32;
}
