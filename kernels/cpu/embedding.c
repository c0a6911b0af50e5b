#include "kernels/cpu/isa.h"
#include "kernels/cpu/tile.h"

/* Columns that one thread adds to: threads share tokens' rows, never a column, so the order of sums is that of rows. */
enum { COLUMN_TILE = 128 };

static void forward_row(sw_dtype type, int64_t cols, const void *table, int64_t table_at, const void *positions,
                        int64_t positions_at, void *out, int64_t out_at) {
    for (int64_t at = 0; at < cols; at += SW_TILE_ELEMS) {
        const int64_t count = sw_min_i64(SW_TILE_ELEMS, cols - at);
        struct sw_tile table_tile, position_tile, out_tile;
        const float *word = sw_tile_load(type, table, table_at + at, count, &table_tile);
        float *sum = sw_tile_target(type, out, out_at + at, &out_tile);
        if (positions == NULL) {
            memcpy(sum, word, (size_t)count * sizeof *sum);
        } else {
            const float *place = sw_tile_load(type, positions, positions_at + at, count, &position_tile);
#pragma omp simd
            for (int64_t i = 0; i < count; i++)
                sum[i] = word[i] + place[i];
        }
        sw_tile_store(type, out, out_at + at, count, &out_tile);
    }
}

static sw_status embedding_forward(struct sw_stream *stream, sw_dtype type, int64_t batch, int64_t seq, int64_t cols,
                                   const int32_t *tokens, const void *table, const void *positions, void *out) {
    const int threads = stream->device->info.threads;
    const int64_t rows = batch * seq;
#pragma omp parallel for num_threads(threads) schedule(static) if (rows * cols >= SW_PARALLEL_MIN_ELEMS)
    for (int64_t row = 0; row < rows; row++)
        forward_row(type, cols, table, tokens[row] * cols, positions, row % seq * cols, out, row * cols);
    return SW_OK;
}

static void add_to(int64_t count, const float *gradient, float *acc) {
#pragma omp simd
    for (int64_t i = 0; i < count; i++)
        acc[i] += gradient[i];
}

static sw_status embedding_backward(struct sw_stream *stream, sw_dtype type, int64_t batch, int64_t seq, int64_t cols,
                                    const int32_t *tokens, const void *d_out, float *table_acc, float *positions_acc) {
    const int threads = stream->device->info.threads;
    const int64_t rows = batch * seq;
#pragma omp parallel for num_threads(threads) schedule(static) if (rows * cols >= SW_PARALLEL_MIN_ELEMS)
    for (int64_t at = 0; at < cols; at += COLUMN_TILE) {
        const int64_t count = sw_min_i64(COLUMN_TILE, cols - at);
        for (int64_t row = 0; row < rows; row++) {
            struct sw_tile tile;
            const float *gradient = sw_tile_load(type, d_out, row * cols + at, count, &tile);
            add_to(count, gradient, table_acc + tokens[row] * cols + at);
            if (positions_acc != NULL)
                add_to(count, gradient, positions_acc + row % seq * cols + at);
        }
    }
    return SW_OK;
}

void SW_ISA_NAME(sw_cpu_add_embedding)(struct sw_device_ops *ops) {
    ops->embedding_forward = embedding_forward;
    ops->embedding_backward = embedding_backward;
}
