#include "kernels/cpu/isa.h"
#include "kernels/cpu/tile.h"

static sw_status add(struct sw_stream *stream, sw_dtype type, int64_t elems, const void *a, const void *b, void *y) {
    const int threads = stream->device->info.threads;
#pragma omp parallel for num_threads(threads) schedule(static) if (elems >= SW_PARALLEL_MIN_ELEMS)
    for (int64_t at = 0; at < elems; at += SW_TILE_ELEMS) {
        const int64_t count = sw_min_i64(SW_TILE_ELEMS, elems - at);
        struct sw_tile a_tile, b_tile, y_tile;
        const float *left = sw_tile_load(type, a, at, count, &a_tile);
        const float *right = sw_tile_load(type, b, at, count, &b_tile);
        float *sum = sw_tile_target(type, y, at, &y_tile);
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            sum[i] = left[i] + right[i];
        sw_tile_store(type, y, at, count, &y_tile);
    }
    return SW_OK;
}

static sw_status cast_from_f32(struct sw_stream *stream, sw_dtype type, int64_t elems, const float *from, void *to) {
    const int threads = stream->device->info.threads;
#pragma omp parallel for num_threads(threads) schedule(static) if (elems >= SW_PARALLEL_MIN_ELEMS)
    for (int64_t at = 0; at < elems; at += SW_TILE_ELEMS) {
        const int64_t count = sw_min_i64(SW_TILE_ELEMS, elems - at);
        if (type == SW_F32)
            memcpy((float *)to + at, from + at, (size_t)count * sizeof *from);
        else
            sw_narrow(count, from + at, (sw_bf16 *)to + at);
    }
    return SW_OK;
}

void SW_ISA_NAME(sw_cpu_add_elementwise)(struct sw_device_ops *ops) {
    ops->add = add;
    ops->cast_from_f32 = cast_from_f32;
}
