#include "kernels/cpu/small_product.h"

#include "core/size.h"
#include "kernels/cpu/vector.h"

/* The accumulators of a register tile, a row of B and a broadcast of A together fill the vector registers. */
#if defined(__AVX512F__)
enum { TILE_ROWS = 8, TILE_VECTORS = 2 };
#else
enum { TILE_ROWS = 4, TILE_VECTORS = 2 };
#endif
static_assert(SW_SMALL_PRODUCT_ROWS % TILE_ROWS == 0, "rows are a whole number of register tiles");
static_assert(SW_SMALL_PRODUCT_COLUMNS % SW_LANES == 0, "columns are a whole number of vectors");

/* One register tile over the terms [first, end). vectors is a constant where this is inlined. */
static inline __attribute__((always_inline)) void register_tile(const struct sw_small_product *p, int64_t row,
                                                                int64_t col, int64_t first, int64_t end,
                                                                const int vectors) {
    sw_vec sum[TILE_ROWS][TILE_VECTORS];
    float *c = p->c + row * p->c_row + col;
    for (int i = 0; i < TILE_ROWS; i++) {
        for (int j = 0; j < vectors; j++)
            sum[i][j] = p->accumulate ? sw_vec_load(c + i * p->c_row + j * SW_LANES) : (sw_vec){0};
    }
    const int64_t a_row = p->a_row;
    const float *a = p->a + row * a_row + first * p->a_term;
    const float *b = p->b + first * p->b_row + col;
    for (int64_t term = first; term < end; term++, a += p->a_term, b += p->b_row) {
        sw_vec right[TILE_VECTORS];
        for (int j = 0; j < vectors; j++)
            right[j] = sw_vec_load(b + j * SW_LANES);
        for (int i = 0; i < TILE_ROWS; i++) {
            const sw_vec left = sw_vec_splat(a[i * a_row]);
            for (int j = 0; j < vectors; j++)
                sum[i][j] = sw_vec_fma(left, right[j], sum[i][j]);
        }
    }
    for (int i = 0; i < TILE_ROWS; i++) {
        for (int j = 0; j < vectors; j++)
            sw_vec_store(c + i * p->c_row + j * SW_LANES, sum[i][j]);
    }
}

static void row_of_tiles(const struct sw_small_product *p, int64_t row) {
    const int64_t first = p->part == SW_PART_TERMS_FROM_ROW ? sw_min_i64(row, p->k) : 0;
    const int64_t end = p->part == SW_PART_TERMS_UP_TO_ROW ? sw_min_i64(row + TILE_ROWS, p->k) : p->k;
    const int64_t wide = TILE_VECTORS * SW_LANES;
    int64_t col = 0;
    if (p->part == SW_PART_COLUMNS_FROM_ROW)
        col = sw_min_i64(row / wide * wide, p->n);
    for (; col + wide <= p->n; col += wide)
        register_tile(p, row, col, first, end, TILE_VECTORS);
    for (; col < p->n; col += SW_LANES)
        register_tile(p, row, col, first, end, 1);
}

void SW_ISA_NAME(sw_small_product)(const struct sw_small_product *product) {
    for (int64_t row = 0; row < product->m; row += TILE_ROWS)
        row_of_tiles(product, row);
}
