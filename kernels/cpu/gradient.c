#include "kernels/cpu/isa.h"
#include "kernels/cpu/quant.h"
#include "kernels/cpu/tile.h"
#include "kernels/tiling.h"

#include <math.h>

static_assert((int)SW_GRAIN_PARTIAL_SUMS <= (int)SW_TILE_ELEMS, "a round of partial sums fits a tile");
static_assert((int)SW_GRAIN_PARTIAL_SUMS == (int)SW_QUANT_BLOCK_ELEMS, "a block has an element of each partial sum");

static void add_squares(const float *restrict values, double *restrict partial) {
#pragma omp simd
    for (int64_t i = 0; i < SW_GRAIN_PARTIAL_SUMS; i++)
        partial[i] = fma((double)values[i], (double)values[i], partial[i]);
}

static double sum_in_halves(double *partial) {
    for (int64_t half = SW_GRAIN_PARTIAL_SUMS / 2; half >= 1; half /= 2) {
        for (int64_t i = 0; i < half; i++)
            partial[i] += partial[i + half];
    }
    return partial[0];
}

static void add_tile(sw_dtype type, const void *grads, int64_t at, double *restrict partial) {
    struct sw_tile tile;
    add_squares(sw_tile_load(type, grads, at, SW_GRAIN_PARTIAL_SUMS, &tile), partial);
}

static double finish_grain(sw_dtype type, const float *restrict acc, void *grads, int64_t at) {
    _Alignas(64) double partial[SW_GRAIN_PARTIAL_SUMS] = {0};
    for (int64_t i = at; i < at + SW_GRAIN_ELEMS; i += SW_GRAIN_PARTIAL_SUMS) {
        sw_narrow(type, grads, i, SW_GRAIN_PARTIAL_SUMS, acc + i);
        add_tile(type, grads, i, partial);
    }
    return sum_in_halves(partial);
}

/* Quantizes a grain into its record, and sums the squares of the quantized values. */
static double finish_grain_8bit(const float *acc, char *record) {
    _Alignas(64) double partial[SW_GRAIN_PARTIAL_SUMS] = {0};
    _Alignas(64) float values[SW_QUANT_BLOCK_ELEMS];
    float *scales = (float *)(void *)(record + SW_GRAIN_ELEMS);
    for (int64_t block = 0; block < SW_QUANT_GRAIN_BLOCKS; block++) {
        int8_t *code = (int8_t *)record + block * SW_QUANT_BLOCK_ELEMS;
        float inverse;
        scales[block] = sw_quant_scale(SW_QUANT_INT8, acc + block * SW_QUANT_BLOCK_ELEMS, &inverse);
        sw_quant_codes(acc + block * SW_QUANT_BLOCK_ELEMS, inverse, code);
        sw_quant_add(code, scales[block], true, values);
        add_squares(values, partial);
    }
    memset(scales + SW_QUANT_GRAIN_BLOCKS, 0,
           (size_t)(SW_GRADS_8BIT_GRAIN_BYTES - sw_quant_grain_bytes(SW_QUANT_INT8)));
    return sum_in_halves(partial);
}

static double sum_grain(sw_dtype type, const void *grads, int64_t at) {
    _Alignas(64) double partial[SW_GRAIN_PARTIAL_SUMS] = {0};
    for (int64_t i = at; i < at + SW_GRAIN_ELEMS; i += SW_GRAIN_PARTIAL_SUMS)
        add_tile(type, grads, i, partial);
    return sum_in_halves(partial);
}

static void finish_grains(const void *args, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct sw_finish_gradient *op = args;
    for (int64_t grain = first; grain < end; grain++)
        op->sums[grain] = op->format == SW_GRADS_8BIT
                              ? finish_grain_8bit(op->acc + grain * SW_GRAIN_ELEMS,
                                                  (char *)op->grads + grain * SW_GRADS_8BIT_GRAIN_BYTES)
                              : finish_grain(op->type, op->acc, op->grads, grain * SW_GRAIN_ELEMS);
}

static sw_status finish_gradient(struct sw_stream *stream, const void *args) {
    const struct sw_finish_gradient *op = args;
    sw_cpu_share(stream, true, op->elems / SW_GRAIN_ELEMS, finish_grains, op);
    return SW_OK;
}

static void sum_grains(const void *args, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct sw_square_sums *op = args;
    for (int64_t grain = first; grain < end; grain++)
        op->sums[grain] = sum_grain(op->type, op->grads, grain * SW_GRAIN_ELEMS);
}

static sw_status square_sums(struct sw_stream *stream, const void *args) {
    const struct sw_square_sums *op = args;
    sw_cpu_share(stream, true, op->elems / SW_GRAIN_ELEMS, sum_grains, op);
    return SW_OK;
}

/* Columns whose sums stay in registers, and columns that one thread sums at once. */
enum { STRIP_VECTORS = 4, STRIP = STRIP_VECTORS * SW_LANES, COLUMN_TILE = 256 };
static_assert(COLUMN_TILE % STRIP == 0, "a thread's columns are whole strips");

/* Adds one tile of rows to the accumulators of `count` <= STRIP columns. vectors is a constant after inlining. */
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

static void bias_columns(const void *args, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct sw_bias_gradient *op = args;
    SW_FOR_TYPE(column_sums, op->type, op->rows, op->cols, op->dy, first * COLUMN_TILE,
                sw_min_i64(op->cols, end * COLUMN_TILE), op->acc);
}

static sw_status bias_gradient(struct sw_stream *stream, const void *args) {
    const struct sw_bias_gradient *op = args;
    sw_cpu_share(stream, op->rows * op->cols >= SW_PARALLEL_MIN_ELEMS, sw_div_up(op->cols, COLUMN_TILE), bias_columns,
                 op);
    return SW_OK;
}

void SW_ISA_NAME(sw_cpu_add_gradient)(struct sw_device_ops *ops) {
    ops->op[SW_DEVICE_BIAS_GRADIENT] = bias_gradient;
    ops->op[SW_DEVICE_FINISH_GRADIENT] = finish_gradient;
    ops->op[SW_DEVICE_SQUARE_SUMS] = square_sums;
}
