#include "kernels/cpu/isa.h"
#include "kernels/cpu/tile.h"
#include "kernels/tiling.h"

/* Columns whose sums stay in registers, and columns that one thread sums at once. */
enum { STRIP_VECTORS = 4, STRIP = STRIP_VECTORS * SW_LANES, COLUMN_TILE = 256 };
static_assert(COLUMN_TILE % STRIP == 0, "a thread's columns are whole strips");

/* One tile of rows into the accumulators of `count` <= STRIP columns. vectors is a constant where this is inlined. */
SW_INLINE void strip_sums(const sw_dtype type, int64_t first, int64_t end, int64_t cols, const void *dy, int64_t at,
                          int64_t count, const int vectors, float *acc) {
    sw_vec sum[STRIP_VECTORS] = {{0}};
    for (int64_t row = first; row < end; row++) {
        for (int j = 0; j < vectors; j++)
            sum[j] += sw_load_up_to(type, dy, row * cols + at + j * SW_LANES, count - j * SW_LANES, 0.0f);
    }
    for (int j = 0; j < vectors; j++) {
        const int64_t col = at + j * SW_LANES, rest = count - j * SW_LANES;
        sw_store_up_to(SW_F32, acc, col, rest, sw_load_up_to(SW_F32, acc, col, rest, 0.0f) + sum[j]);
    }
}

SW_INLINE void column_sums(const sw_dtype type, int64_t rows, int64_t cols, const void *dy, int64_t at, int64_t end,
                           float *acc) {
    for (int64_t first = 0; first < rows; first += SW_BIAS_TILE_ROWS) {
        const int64_t last = sw_min_i64(rows, first + SW_BIAS_TILE_ROWS);
        int64_t col = at;
        for (; col + STRIP <= end; col += STRIP)
            strip_sums(type, first, last, cols, dy, col, STRIP, STRIP_VECTORS, acc);
        for (; col < end; col += SW_LANES)
            strip_sums(type, first, last, cols, dy, col, end - col, 1, acc);
    }
}

static sw_status bias_gradient(struct sw_stream *stream, const void *args) {
    const struct sw_bias_gradient *op = args;
    const int threads = stream->device->info.threads;
#pragma omp parallel for num_threads(threads) schedule(static) if (op->rows * op->cols >= SW_PARALLEL_MIN_ELEMS)
    for (int64_t at = 0; at < op->cols; at += COLUMN_TILE)
        SW_FOR_TYPE(column_sums, op->type, op->rows, op->cols, op->dy, at, sw_min_i64(op->cols, at + COLUMN_TILE),
                    op->acc);
    return SW_OK;
}

void SW_ISA_NAME(sw_cpu_add_columns)(struct sw_device_ops *ops) {
    ops->op[SW_DEVICE_BIAS_GRADIENT] = bias_gradient;
}
