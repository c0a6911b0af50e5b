#include "kernels/cpu/isa.h"
#include "kernels/cpu/tile.h"
#include "kernels/tiling.h"

enum { COLUMN_TILE = SW_TILE_ELEMS / 2 };

static void column_sums(sw_dtype type, int64_t rows, int64_t cols, const void *dy, int64_t at, int64_t count,
                        float *acc) {
    for (int64_t first = 0; first < rows; first += SW_BIAS_TILE_ROWS) {
        const int64_t end = sw_min_i64(rows, first + SW_BIAS_TILE_ROWS);
        struct sw_tile sum = {0};
        for (int64_t row = first; row < end; row++) {
            struct sw_tile tile;
            const float *gradient = sw_tile_load(type, dy, row * cols + at, count, &tile);
#pragma omp simd
            for (int64_t i = 0; i < count; i++)
                sum.value[i] += gradient[i];
        }
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            acc[at + i] += sum.value[i];
    }
}

static sw_status bias_gradient(struct sw_stream *stream, sw_dtype type, int64_t rows, int64_t cols, const void *dy,
                               float *acc) {
    const int threads = stream->device->info.threads;
#pragma omp parallel for num_threads(threads) schedule(static) if (rows * cols >= SW_PARALLEL_MIN_ELEMS)
    for (int64_t at = 0; at < cols; at += COLUMN_TILE)
        column_sums(type, rows, cols, dy, at, sw_min_i64(COLUMN_TILE, cols - at), acc);
    return SW_OK;
}

void SW_ISA_NAME(sw_cpu_add_columns)(struct sw_device_ops *ops) {
    ops->bias_gradient = bias_gradient;
}
