/* Matrix products in fp32 of operands of any type: for types that the processor cannot multiply, and for fp32 where
 * this is as fast as a library.
 *
 * Operands are widened into packed blocks as they are needed, never whole (Goto and van de Geijn, "Anatomy of
 * High-Performance Matrix Multiplication", 2008). Each element is a sum of partial sums of TERMS successive terms, in
 * order, however C is cut into pieces, so its bits do not depend on the threads. Cutting k among threads would keep
 * more of them busy for small C, and would break that. */
#include "kernels/cpu/tile.h"

#include <string.h>

/* A register tile: its sums, a row of B and an element of A fill the vector registers. */
#if defined(__AVX512F__)
enum { TILE_ROWS = 12 };
#else
enum { TILE_ROWS = 6 };
#endif
enum { TILE_VECTORS = 2, TILE_COLS = TILE_VECTORS * SW_LANES, TILE_ELEMS = TILE_ROWS * TILE_COLS };
/* Terms per block. A tile's part of B stays in the first-level cache, a strip of A in the second. */
enum { TERMS = 256, STRIP_ROWS = 192 };
static_assert(STRIP_ROWS % TILE_ROWS == 0, "a strip is a whole number of tiles");
enum { MOST_PIECE_ROWS = 384, MOST_PIECE_COLS = 768, LEAST_PIECE_ROWS = 48, LEAST_PIECE_COLS = 128 };
/* Vectors per row of a tile. A tile's part of A is a cache line longer than needed: whole vectors are stored, and tiles
 * do not compete for the same cache lines. */
enum { ROW_VECTORS = (TILE_ROWS + SW_LANES - 1) / SW_LANES, A_TILE_ELEMS = TILE_ROWS * TERMS + 16 };
static_assert((TERMS - 1) * TILE_ROWS + ROW_VECTORS * SW_LANES <= A_TILE_ELEMS, "the last row has room behind it");
/* With this many pieces per thread, no thread waits long for a slow one. */
enum { PIECES_OF_THREAD = 4 };
/* Multiplications below which starting threads costs more than it gains. */
enum { PARALLEL_MIN_PRODUCTS = 1 << 21 };
/* Rows of B packed together: each fills only part of the cache lines it touches. */
enum { PACK_ROWS = 8 };

/* A division of C into pieces of whole tiles; the last ones may be smaller. */
struct grid {
    int64_t piece_rows, piece_cols, rows, cols;
};

/* A thread's buffers: a strip of A as [tiles of rows][terms][TILE_ROWS], a piece's columns of B as [tiles of
 * columns][terms][TILE_COLS], and the piece's sums of earlier blocks, as tiles. */
struct blocks {
    float *a, *b, *sums;
};

struct call {
    const struct sw_gemm *shape;
    struct grid grid;
    const void *a, *b, *bias;
    void *c;
    char *scratch; /* one `blocks` per thread, one after the other */
};

/* A piece of C, or a strip of its rows, and the terms of the block being added. */
struct piece {
    int64_t row, rows, col, cols, term, terms;
};

static int64_t shrink(int64_t side, int64_t tile, int64_t most) {
    return sw_round_up(sw_div_up(side, sw_div_up(side, most)), tile);
}

static struct grid cut(const struct sw_gemm *shape, int threads) {
    int64_t most_rows = MOST_PIECE_ROWS, most_cols = MOST_PIECE_COLS;
    struct grid grid;
    for (;;) {
        grid.piece_rows = shrink(shape->m, TILE_ROWS, most_rows);
        grid.piece_cols = shrink(shape->n, TILE_COLS, most_cols);
        grid.rows = sw_div_up(shape->m, grid.piece_rows);
        grid.cols = sw_div_up(shape->n, grid.piece_cols);
        const bool rows_halve = grid.piece_rows >= 2 * LEAST_PIECE_ROWS;
        const bool cols_halve = grid.piece_cols >= 2 * LEAST_PIECE_COLS;
        if (threads == 1 || grid.rows * grid.cols >= (int64_t)PIECES_OF_THREAD * threads ||
            (!rows_halve && !cols_halve))
            return grid;
        if (cols_halve && (grid.piece_cols > grid.piece_rows || !rows_halve))
            most_cols = grid.piece_cols / 2;
        else
            most_rows = grid.piece_rows / 2;
    }
}

static int64_t a_elems(const struct grid *grid) {
    return sw_min_i64(grid->piece_rows, STRIP_ROWS) / TILE_ROWS * A_TILE_ELEMS;
}

/* Returns the distance in elements between packed tiles of B. It is not a power of two, which would map what is packed
 * together to the same cache lines. */
static int64_t b_tile_elems(int64_t terms) {
    return TILE_COLS * terms + 16;
}

static int64_t b_elems(const struct sw_gemm *shape, const struct grid *grid) {
    return grid->piece_cols / TILE_COLS * b_tile_elems(sw_min_i64(TERMS, shape->k));
}

static int64_t sum_elems(const struct sw_gemm *shape, const struct grid *grid) {
    return shape->k > TERMS ? grid->piece_rows * grid->piece_cols : 0;
}

static int64_t float_bytes(int64_t elems) {
    return sw_round_up(elems * (int64_t)sizeof(float), SW_BUFFER_ALIGN_BYTES);
}

static int64_t thread_bytes(const struct sw_gemm *shape, const struct grid *grid) {
    return float_bytes(a_elems(grid)) + float_bytes(b_elems(shape, grid)) + float_bytes(sum_elems(shape, grid));
}

static struct blocks blocks_of(const struct call *call, int thread) {
    char *at = call->scratch + thread * thread_bytes(call->shape, &call->grid);
    const struct blocks blocks = {.a = (float *)at, .b = (float *)(at + float_bytes(a_elems(&call->grid)))};
    return (struct blocks){
        .a = blocks.a,
        .b = blocks.b,
        .sums = (float *)((char *)blocks.b + float_bytes(b_elems(call->shape, &call->grid))),
    };
}

static bool is_shared(const struct sw_gemm *shape, const struct grid *grid) {
    return grid->rows * grid->cols > 1 &&
           (double)shape->m * (double)shape->n * (double)shape->k >= PARALLEL_MIN_PRODUCTS;
}

static int64_t scratch_bytes(const struct sw_gemm *shape, int threads) {
    const struct grid grid = cut(shape, threads);
    return thread_bytes(shape, &grid) * (is_shared(shape, &grid) ? threads : 1);
}

/* Loads up to `side` rows of a square of an operand, `stride` elements apart. Outside the existing rows and columns it
 * is zero. */
SW_INLINE void load_square(const sw_dtype type, const void *operand, int64_t from, int64_t stride, const int64_t side,
                           int64_t rows, int64_t cols, sw_vec square[SW_LANES]) {
    if (rows >= side && cols >= SW_LANES)
        for (int64_t i = 0; i < SW_LANES; i++)
            square[i] = i < side ? sw_load(type, operand, from + i * stride) : (sw_vec){0};
    else
        for (int64_t i = 0; i < SW_LANES; i++)
            square[i] =
                i < sw_min_i64(rows, side) ? sw_load_up_to(type, operand, from + i * stride, cols, 0.0f) : (sw_vec){0};
}

/* Packs rows of A. Values stored beyond a tile's rows are overwritten by the next term. */
SW_INLINE void pack_a(const sw_dtype type, const struct call *call, const struct piece *piece, float *to) {
    const int64_t stride = sw_gemm_a_stride(call->shape);
    for (int64_t row = 0; row < piece->rows; row += TILE_ROWS, to += A_TILE_ELEMS)
        for (int64_t term = 0; term < piece->terms; term += SW_LANES) {
            const int64_t count = sw_min_i64(SW_LANES, piece->terms - term);
            sw_vec square[ROW_VECTORS][SW_LANES];
#pragma GCC unroll 2
            for (int64_t i = 0; i < ROW_VECTORS; i++) {
                const int64_t first = row + i * SW_LANES;
                load_square(type, call->a, (piece->row + first) * stride + piece->term + term, stride,
                            TILE_ROWS - i * SW_LANES, piece->rows - first, count, square[i]);
                sw_vec_transpose(square[i]);
            }
            for (int64_t i = 0; i < count; i++)
                for (int64_t j = 0; j < ROW_VECTORS; j++)
                    sw_vec_store(to + (term + i) * TILE_ROWS + j * SW_LANES, square[j][i]);
        }
}

/* Packs columns of the stored A, as pack_a packs rows. */
SW_INLINE void pack_transposed_a(const sw_dtype type, const struct call *call, const struct piece *piece, float *to) {
    const int64_t m = call->shape->m, stride = sw_gemm_a_stride(call->shape);
    for (int64_t row = 0; row < piece->rows; row += TILE_ROWS, to += A_TILE_ELEMS) {
        for (int64_t term = 0; term < piece->terms; term++) {
            const int64_t from = (piece->term + term) * stride + piece->row + row, rest = m - piece->row - row;
            for (int64_t i = 0; i < TILE_ROWS; i += SW_LANES)
                sw_vec_store(to + term * TILE_ROWS + i,
                             i < rest ? sw_load_up_to(type, call->a, from + i, rest - i, 0.0f) : (sw_vec){0});
        }
    }
}

/* Packs one term of a tile's columns of B. Columns after the last are zero. */
SW_INLINE void pack_row(const sw_dtype type, const void *b, int64_t from, int64_t cols, float *to) {
    for (int64_t i = 0; i < TILE_COLS; i += SW_LANES)
        sw_vec_store(to + i, cols >= TILE_COLS ? sw_load(type, b, from + i)
                             : i < cols        ? sw_load_up_to(type, b, from + i, cols - i, 0.0f)
                                               : (sw_vec){0});
}

SW_INLINE void pack_b(const sw_dtype type, const struct call *call, const struct piece *piece, float *to) {
    const int64_t n = call->shape->n, tile = b_tile_elems(piece->terms);
    for (int64_t first = 0; first < piece->terms; first += PACK_ROWS) {
        const int64_t end = sw_min_i64(first + PACK_ROWS, piece->terms);
        for (int64_t col = 0; col < piece->cols; col += TILE_COLS)
            for (int64_t term = first; term < end; term++)
                pack_row(type, call->b, (piece->term + term) * n + piece->col + col, piece->cols - col,
                         to + col / TILE_COLS * tile + term * TILE_COLS);
    }
}

/* Packs stored rows of the transposed B. */
SW_INLINE void pack_transposed_b(const sw_dtype type, const struct call *call, const struct piece *piece, float *to) {
    const int64_t k = call->shape->k, tile = b_tile_elems(piece->terms);
    for (int64_t col = 0; col < sw_round_up(piece->cols, TILE_COLS); col += SW_LANES) {
        float *columns = to + col / TILE_COLS * tile + col % TILE_COLS;
        for (int64_t term = 0; term < piece->terms; term += SW_LANES) {
            const int64_t count = sw_min_i64(SW_LANES, piece->terms - term);
            sw_vec square[SW_LANES];
            load_square(type, call->b, (piece->col + col) * k + piece->term + term, k, SW_LANES, piece->cols - col,
                        count, square);
            sw_vec_transpose(square);
            for (int64_t i = 0; i < count; i++)
                sw_vec_store(columns + (term + i) * TILE_COLS, square[i]);
        }
    }
}

/* Multiplies a tile's part of a block, several terms per iteration: fewer iterations mean fewer instructions that do
 * not multiply. */
static void multiply(int64_t terms, const float *a, const float *b, float *sums) {
    sw_vec sum[TILE_ROWS][TILE_VECTORS];
#pragma GCC unroll 16
    for (int i = 0; i < TILE_ROWS; i++)
#pragma GCC unroll 2
        for (int j = 0; j < TILE_VECTORS; j++)
            sum[i][j] = (sw_vec){0};
#pragma GCC unroll 8
    for (int64_t term = 0; term < terms; term++, a += TILE_ROWS, b += TILE_COLS) {
        sw_vec right[TILE_VECTORS];
#pragma GCC unroll 2
        for (int j = 0; j < TILE_VECTORS; j++)
            right[j] = sw_vec_load(b + j * SW_LANES);
#pragma GCC unroll 16
        for (int i = 0; i < TILE_ROWS; i++) {
            const sw_vec left = sw_vec_splat(a[i]);
#pragma GCC unroll 2
            for (int j = 0; j < TILE_VECTORS; j++)
                sum[i][j] = sw_vec_fma(left, right[j], sum[i][j]);
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < TILE_ROWS; i++)
#pragma GCC unroll 2
        for (int j = 0; j < TILE_VECTORS; j++)
            sw_vec_store(sums + i * TILE_COLS + j * SW_LANES, sum[i][j]);
}

static void add(const float *tile, float *sums) {
    for (int i = 0; i < TILE_ELEMS; i += SW_LANES)
        sw_vec_store(sums + i, sw_vec_load(sums + i) + sw_vec_load(tile + i));
}

/* Rounds a tile's sums into C, after adding bias or addend. */
SW_INLINE void finish(const sw_dtype type, const struct call *call, int64_t row, int64_t rows, int64_t col,
                      int64_t cols, const float *sums) {
    const struct sw_gemm *shape = call->shape;
    const int64_t stride = sw_gemm_c_stride(shape);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j += SW_LANES) {
            const int64_t at = (row + i) * stride + col + j, rest = cols - j;
            sw_vec value = sw_vec_load(sums + i * TILE_COLS + j);
            if (shape->bias)
                value += sw_load_up_to(type, call->bias, col + j, rest, 0.0f);
            if (shape->accumulate)
                value += sw_load_up_to(type, call->c, at, rest, 0.0f);
            sw_store_up_to(type, call->c, at, rest, value);
        }
}

/* Adds a block to the sums of one tile or, after the last block, rounds them into C. */
static void do_tile(const struct call *call, const struct piece *strip, const struct blocks *blocks, int64_t row,
                    int64_t col, float *sums) {
    const struct sw_gemm *shape = call->shape;
    const float *a = blocks->a + row / TILE_ROWS * A_TILE_ELEMS,
                *b = blocks->b + col / TILE_COLS * b_tile_elems(strip->terms);
    _Alignas(64) float tile[TILE_ELEMS];
    const bool first = strip->term == 0, last = strip->term + strip->terms == shape->k;
    float *to = first && !last ? sums : tile;
    multiply(strip->terms, a, b, to);
    if (!first)
        add(tile, sums);
    if (last)
        SW_FOR_TYPE(finish, shape->out, call, strip->row + row, sw_min_i64(TILE_ROWS, strip->rows - row),
                    strip->col + col, sw_min_i64(TILE_COLS, strip->cols - col), first ? tile : sums);
}

/* Multiplies a strip by the packed columns of B. Returns where the sums of the next strip begin. */
static float *do_strip(const struct call *call, const struct piece *strip, const struct blocks *blocks, float *sums) {
    const struct sw_gemm *shape = call->shape;
    if (shape->transpose_a)
        SW_FOR_TYPE(pack_transposed_a, shape->in, call, strip, blocks->a);
    else
        SW_FOR_TYPE(pack_a, shape->in, call, strip, blocks->a);
    for (int64_t col = 0; col < strip->cols; col += TILE_COLS)
        for (int64_t row = 0; row < strip->rows; row += TILE_ROWS, sums += TILE_ELEMS)
            do_tile(call, strip, blocks, row, col, sums);
    return sums;
}

static void do_piece(const struct call *call, struct piece piece, const struct blocks *blocks) {
    const struct sw_gemm *shape = call->shape;
    for (; piece.term < shape->k; piece.term += TERMS) {
        piece.terms = sw_min_i64(TERMS, shape->k - piece.term);
        if (shape->transpose_b)
            SW_FOR_TYPE(pack_transposed_b, shape->in, call, &piece, blocks->b);
        else
            SW_FOR_TYPE(pack_b, shape->in, call, &piece, blocks->b);
        float *sums = blocks->sums;
        for (int64_t row = 0; row < piece.rows; row += STRIP_ROWS) {
            struct piece strip = piece;
            strip.row += row;
            strip.rows = sw_min_i64(STRIP_ROWS, piece.rows - row);
            sums = do_strip(call, &strip, blocks, sums);
        }
    }
}

static void do_pieces(const void *context, int64_t first, int64_t end, int thread) {
    const struct call *call = context;
    const struct grid *grid = &call->grid;
    const struct blocks blocks = blocks_of(call, thread);
    for (int64_t index = first; index < end; index++) {
        const int64_t row = index % grid->rows * grid->piece_rows, col = index / grid->rows * grid->piece_cols;
        const struct piece piece = {.row = row,
                                    .rows = sw_min_i64(grid->piece_rows, call->shape->m - row),
                                    .col = col,
                                    .cols = sw_min_i64(grid->piece_cols, call->shape->n - col)};
        do_piece(call, piece, &blocks);
    }
}

static void block_product(struct sw_stream *stream, const struct sw_gemm *shape, const void *a, const void *b,
                          const void *bias, void *c, void *scratch) {
    const struct call call = {.shape = shape,
                              .grid = cut(shape, stream->device->info.threads),
                              .a = a,
                              .b = b,
                              .bias = bias,
                              .c = c,
                              .scratch = scratch};
    const int64_t pieces = call.grid.rows * call.grid.cols;
    if (is_shared(shape, &call.grid))
        sw_cpu_share_long(stream, pieces, do_pieces, &call);
    else
        do_pieces(&call, 0, pieces, 0);
}

void SW_ISA_NAME(sw_cpu_add_block_product)(struct sw_device_ops *ops) {
    ops->block_product_scratch_bytes = scratch_bytes;
    ops->block_product = block_product;
}
