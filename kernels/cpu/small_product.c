#include "kernels/cpu/small_product.h"

#include "core/size.h"
#include "kernels/cpu/pairs.h"

/* The accumulators of a register tile, a row of B and a broadcast of A together fill the vector registers. */
#if defined(__AVX512F__)
enum { TILE_ROWS = 8, TILE_VECTORS = 2 };
#else
enum { TILE_ROWS = 4, TILE_VECTORS = 2 };
#endif
static_assert(SW_SMALL_PRODUCT_ROWS % TILE_ROWS == 0, "rows are a whole number of register tiles");
static_assert(SW_SMALL_PRODUCT_COLUMNS % SW_LANES == 0, "columns are a whole number of vectors");
static_assert(TILE_ROWS % 2 == 0, "a register tile's triangle is a whole number of pairs");

/* One register tile over the words of the terms [first, end). pairs and vectors are constants where this is inlined. */
SW_INLINE void register_tile(const struct sw_small_product *p, int64_t row, int64_t col, int64_t first, int64_t end,
                             const bool pairs, const int vectors) {
    sw_vec sum[TILE_ROWS][TILE_VECTORS];
    float *c = p->c + row * p->c_row + col;
    for (int i = 0; i < TILE_ROWS; i++) {
        for (int j = 0; j < vectors; j++)
            sum[i][j] = p->accumulate ? sw_vec_load(c + i * p->c_row + j * SW_LANES) : (sw_vec){0};
    }
    const int64_t a_row = p->a_row;
    const sw_word *a = (const sw_word *)p->a + row * a_row + first * p->a_term;
    const sw_word *b = (const sw_word *)p->b + first * p->b_row + col;
    for (int64_t word = first; word < end; word++, a += p->a_term, b += p->b_row) {
        sw_vec_bits right[TILE_VECTORS];
        for (int j = 0; j < vectors; j++)
            right[j] = sw_load_words(b + j * SW_LANES);
        for (int i = 0; i < TILE_ROWS; i++) {
            const sw_vec_bits left = a[i * a_row] - (sw_vec_bits){0};
            for (int j = 0; j < vectors; j++)
                sum[i][j] = pairs ? sw_vec_fma_pairs(left, right[j], sum[i][j])
                                  : sw_vec_fma((sw_vec)left, (sw_vec)right[j], sum[i][j]);
        }
    }
    for (int i = 0; i < TILE_ROWS; i++) {
        for (int j = 0; j < vectors; j++)
            sw_vec_store(c + i * p->c_row + j * SW_LANES, sum[i][j]);
    }
}

SW_INLINE void row_of_tiles(const struct sw_small_product *p, int64_t row, const bool pairs) {
    const int64_t terms = pairs ? 2 : 1;
    const int64_t first = p->part == SW_PART_TERMS_FROM_ROW ? sw_min_i64(row, p->k) / terms : 0;
    const int64_t end = (p->part == SW_PART_TERMS_UP_TO_ROW ? sw_min_i64(row + TILE_ROWS, p->k) : p->k) / terms;
    const int64_t wide = TILE_VECTORS * SW_LANES;
    int64_t col = 0;
    if (p->part == SW_PART_COLUMNS_FROM_ROW)
        col = sw_min_i64(row / wide * wide, p->n);
    for (; col + wide <= p->n; col += wide)
        register_tile(p, row, col, first, end, pairs, TILE_VECTORS);
    for (; col < p->n; col += SW_LANES)
        register_tile(p, row, col, first, end, pairs, 1);
}

void SW_ISA_NAME(sw_small_product)(const struct sw_small_product *product) {
    for (int64_t row = 0; row < product->m; row += TILE_ROWS) {
        if (product->pairs)
            row_of_tiles(product, row, true);
        else
            row_of_tiles(product, row, false);
    }
}
