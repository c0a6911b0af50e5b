/* Matrix products by blocks: in fp32 of operands of any type, for types that the processor cannot multiply and for fp32
 * where this is as fast as a library; and grouped products of any type, those of bf16 by pairs where the processor
 * multiplies them.
 *
 * Operands are widened into packed blocks as they are needed, never whole (Goto and van de Geijn, "Anatomy of
 * High-Performance Matrix Multiplication", 2008). Each element is a sum of partial sums of blocks of successive terms,
 * in order, however C is cut into pieces, so its bits do not depend on the threads. Cutting k among threads would keep
 * more of them busy for small C, and would break that. */
#include "kernels/cpu/pairs.h"
#include "kernels/cpu/tile.h"

#include <string.h>

/* A register tile: its sums, a row of B and an element of A fill the vector registers. */
#if defined(__AVX512F__)
enum { TILE_ROWS = 12 };
#else
enum { TILE_ROWS = 6 };
#endif
enum { TILE_VECTORS = 2, TILE_COLS = TILE_VECTORS * SW_LANES, TILE_ELEMS = TILE_ROWS * TILE_COLS };
/* The words of a block: terms in fp32, or pairs of terms in bf16. A tile's part of B stays in the first-level cache, or
 * in the second with pairs, and a strip of A in the second. */
enum { TERMS = 256, PAIRS = 512, STRIP_ROWS = 192 };
static_assert(STRIP_ROWS % TILE_ROWS == 0, "a strip is a whole number of tiles");
enum { MOST_PIECE_ROWS = 384, MOST_PIECE_COLS = 768, LEAST_PIECE_ROWS = 48, LEAST_PIECE_COLS = 128 };
/* Vectors per row of a tile. */
enum { ROW_VECTORS = (TILE_ROWS + SW_LANES - 1) / SW_LANES };
/* Elements between packed tiles. The distance is not a power of two, which would map what is packed together to the
 * same cache lines; and behind a tile's last row of A there is room for the rest of its vector. */
enum { TILE_GAP = 16 };
static_assert(ROW_VECTORS * SW_LANES - TILE_ROWS <= TILE_GAP, "a row of A is stored in whole vectors");
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

/* A thread's buffers: a strip of A as [tiles of rows][words][TILE_ROWS], a piece's columns of B as [tiles of
 * columns][words][TILE_COLS], and the piece's sums of earlier blocks, as tiles. */
struct blocks {
    float *a, *b, *sums;
};

struct call {
    const struct sw_gemm *shape;
    bool pairs;   /* operands are bf16 and packed as pairs; otherwise they are widened */
    bool fetches; /* B is fetched from memory before it is packed */
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

/* Return the words of a number of terms, and the terms of a block. */
SW_INLINE int64_t words_of(const bool pairs, int64_t terms) {
    return pairs ? sw_div_up(terms, 2) : terms;
}

static int64_t block_terms(bool pairs) {
    return SW_FAST_PAIRS && pairs ? 2 * PAIRS : TERMS;
}

/* Return the distances in elements between packed tiles of A and of B. */
static int64_t a_tile_elems(int64_t words) {
    return TILE_ROWS * words + TILE_GAP;
}

static int64_t b_tile_elems(int64_t words) {
    return TILE_COLS * words + TILE_GAP;
}

static int64_t float_bytes(int64_t elems) {
    return sw_round_up(elems * (int64_t)sizeof(float), SW_BUFFER_ALIGN_BYTES);
}

/* Return the bytes of each of a thread's buffers, and of all. */
static int64_t a_bytes(const struct grid *grid, int64_t words) {
    return float_bytes(sw_min_i64(grid->piece_rows, STRIP_ROWS) / TILE_ROWS * a_tile_elems(words));
}

static int64_t b_bytes(const struct grid *grid, int64_t words) {
    return float_bytes(grid->piece_cols / TILE_COLS * b_tile_elems(words));
}

static int64_t thread_bytes(const struct grid *grid, int64_t k, bool pairs) {
    const int64_t words = words_of(pairs, sw_min_i64(k, block_terms(pairs)));
    const int64_t sum_elems = k > block_terms(pairs) ? grid->piece_rows * grid->piece_cols : 0;
    return a_bytes(grid, words) + b_bytes(grid, words) + float_bytes(sum_elems);
}

static struct blocks blocks_of(const struct call *call, int thread) {
    const int64_t k = call->shape->k, words = words_of(call->pairs, sw_min_i64(k, block_terms(call->pairs)));
    char *at = call->scratch + thread * thread_bytes(&call->grid, k, call->pairs);
    char *b = at + a_bytes(&call->grid, words);
    return (struct blocks){.a = (float *)at, .b = (float *)b, .sums = (float *)(b + b_bytes(&call->grid, words))};
}

static bool is_shared(const struct sw_gemm *shape, const struct grid *grid) {
    return grid->rows * grid->cols > 1 &&
           (double)shape->m * (double)shape->n * (double)shape->k >= PARALLEL_MIN_PRODUCTS;
}

static int64_t scratch_bytes(const struct sw_gemm *shape, int threads) {
    const struct grid grid = cut(shape, threads);
    return thread_bytes(&grid, shape->k, false) * (is_shared(shape, &grid) ? threads : 1);
}

/* Loads the words of up to `terms` terms, which are neighbours in memory. What follows them is zero. */
SW_INLINE sw_vec load_words(const sw_dtype type, const bool pairs, const void *operand, int64_t from, int64_t terms) {
    if (!pairs)
        return sw_load_up_to(type, operand, from, terms, 0.0f);
    const uint16_t *at = (const uint16_t *)operand + from;
    if (__builtin_expect(terms >= 2 * SW_LANES, 1))
        return (sw_vec)sw_load_words(at);
    uint16_t some[2 * SW_LANES] = {0};
    memcpy(some, at, (size_t)terms * sizeof some[0]);
    return (sw_vec)sw_load_words(some);
}

/* Loads the words of two rows, or of one term of each column where words are terms. `second` says whether the second
 * row exists; otherwise it is zero, as columns after the last are. */
SW_INLINE sw_vec load_columns(const sw_dtype type, const bool pairs, const void *operand, int64_t from, int64_t stride,
                              bool second, int64_t cols) {
    if (!pairs)
        return sw_load_up_to(type, operand, from, cols, 0.0f);
    const uint16_t *at = (const uint16_t *)operand + from;
    if (__builtin_expect(second && cols >= SW_LANES, 1))
        return (sw_vec)sw_pairs_of_rows(at, at + stride);
    uint16_t some[2][SW_LANES] = {{0}};
    memcpy(some[0], at, (size_t)sw_min_i64(cols, SW_LANES) * sizeof(uint16_t));
    if (second)
        memcpy(some[1], at + stride, (size_t)sw_min_i64(cols, SW_LANES) * sizeof(uint16_t));
    return (sw_vec)sw_pairs_of_rows(some[0], some[1]);
}

/* Loads up to `side` rows of a square of words of an operand, with rows `stride` elements apart. Outside the existing
 * rows and terms it is zero. */
SW_INLINE void load_square(const sw_dtype type, const bool pairs, const void *operand, int64_t from, int64_t stride,
                           const int64_t side, int64_t rows, int64_t terms, sw_vec square[SW_LANES]) {
    if (rows >= side && words_of(pairs, terms) >= SW_LANES)
        for (int64_t i = 0; i < SW_LANES; i++)
            square[i] = i >= side ? (sw_vec){0}
                        : pairs   ? load_words(type, pairs, operand, from + i * stride, terms)
                                  : sw_load(type, operand, from + i * stride);
    else
        for (int64_t i = 0; i < SW_LANES; i++)
            square[i] =
                i < sw_min_i64(rows, side) ? load_words(type, pairs, operand, from + i * stride, terms) : (sw_vec){0};
}

/* Packs rows of A. Values stored beyond a tile's rows are overwritten by the next word. */
SW_INLINE void pack_a(const sw_dtype type, const bool pairs, const struct call *call, const struct piece *piece,
                      float *to) {
    const int64_t stride = sw_gemm_a_stride(call->shape), words = words_of(pairs, piece->terms);
    const int64_t word_terms = pairs ? 2 : 1;
    for (int64_t row = 0; row < piece->rows; row += TILE_ROWS, to += a_tile_elems(words))
        for (int64_t word = 0; word < words; word += SW_LANES) {
            const int64_t count = sw_min_i64(SW_LANES, words - word), term = word * word_terms;
            sw_vec square[ROW_VECTORS][SW_LANES];
#pragma GCC unroll 2
            for (int64_t i = 0; i < ROW_VECTORS; i++) {
                const int64_t first = row + i * SW_LANES;
                load_square(type, pairs, call->a, (piece->row + first) * stride + piece->term + term, stride,
                            TILE_ROWS - i * SW_LANES, piece->rows - first, piece->terms - term, square[i]);
                sw_vec_transpose(square[i]);
            }
            for (int64_t i = 0; i < count; i++)
                for (int64_t j = 0; j < ROW_VECTORS; j++)
                    sw_vec_store(to + (word + i) * TILE_ROWS + j * SW_LANES, square[j][i]);
        }
}

/* Packs columns of the stored A, as pack_a packs rows. */
SW_INLINE void pack_transposed_a(const sw_dtype type, const bool pairs, const struct call *call,
                                 const struct piece *piece, float *to) {
    const int64_t m = call->shape->m, stride = sw_gemm_a_stride(call->shape);
    const int64_t words = words_of(pairs, piece->terms), word_terms = pairs ? 2 : 1;
    for (int64_t row = 0; row < piece->rows; row += TILE_ROWS, to += a_tile_elems(words)) {
        for (int64_t word = 0; word < words; word++) {
            const int64_t term = word * word_terms, rest = m - piece->row - row;
            const int64_t from = (piece->term + term) * stride + piece->row + row;
            for (int64_t i = 0; i < TILE_ROWS; i += SW_LANES)
                sw_vec_store(to + word * TILE_ROWS + i, i < rest ? load_columns(type, pairs, call->a, from + i, stride,
                                                                                term + 1 < piece->terms, rest - i)
                                                                 : (sw_vec){0});
        }
    }
}

/* Brings an element near that is packed later; it need not exist. The matrix of an expert with few rows is read once,
 * from memory, and what is read at once lies far apart. */
SW_INLINE void fetch(const sw_dtype type, const void *operand, int64_t at) {
    __builtin_prefetch((const void *)((uintptr_t)operand + (uintptr_t)(at * sw_dtype_bytes(type))), 0, 2);
}

/* Packs one word of a tile's columns of B. Columns after the last are zero. */
SW_INLINE void pack_row(const sw_dtype type, const bool pairs, const void *b, int64_t from, int64_t stride, bool second,
                        int64_t cols, float *to) {
    for (int64_t i = 0; i < TILE_COLS; i += SW_LANES)
        sw_vec_store(to + i, i < cols ? load_columns(type, pairs, b, from + i, stride, second, cols - i) : (sw_vec){0});
}

SW_INLINE void pack_b(const sw_dtype type, const bool pairs, const struct call *call, const struct piece *piece,
                      float *to) {
    const int64_t n = call->shape->n, words = words_of(pairs, piece->terms), tile = b_tile_elems(words);
    const int64_t word_terms = pairs ? 2 : 1;
    for (int64_t first = 0; first < words; first += PACK_ROWS) {
        const int64_t end = sw_min_i64(first + PACK_ROWS, words);
        for (int64_t col = 0; col < piece->cols; col += TILE_COLS)
            for (int64_t word = first; word < end; word++) {
                const int64_t term = word * word_terms;
                for (int64_t i = 0; call->fetches && i < word_terms; i++)
                    fetch(type, call->b, (piece->term + term + word_terms * PACK_ROWS + i) * n + piece->col + col);
                pack_row(type, pairs, call->b, (piece->term + term) * n + piece->col + col, n, term + 1 < piece->terms,
                         piece->cols - col, to + col / TILE_COLS * tile + word * TILE_COLS);
            }
    }
}

/* Packs stored rows of the transposed B. */
SW_INLINE void pack_transposed_b(const sw_dtype type, const bool pairs, const struct call *call,
                                 const struct piece *piece, float *to) {
    const int64_t k = call->shape->k, words = words_of(pairs, piece->terms), tile = b_tile_elems(words);
    const int64_t word_terms = pairs ? 2 : 1;
    for (int64_t col = 0; col < sw_round_up(piece->cols, TILE_COLS); col += SW_LANES) {
        float *columns = to + col / TILE_COLS * tile + col % TILE_COLS;
        for (int64_t word = 0; word < words; word += SW_LANES) {
            const int64_t count = sw_min_i64(SW_LANES, words - word), term = word * word_terms;
            sw_vec square[SW_LANES];
            for (int64_t i = 0; call->fetches && i < SW_LANES; i++)
                fetch(type, call->b, (piece->col + col + SW_LANES + i) * k + piece->term + term);
            load_square(type, pairs, call->b, (piece->col + col) * k + piece->term + term, k, SW_LANES,
                        piece->cols - col, piece->terms - term, square);
            sw_vec_transpose(square);
            for (int64_t i = 0; i < count; i++)
                sw_vec_store(columns + (word + i) * TILE_COLS, square[i]);
        }
    }
}

/* Returns sum + left·right for a word of A in all lanes. */
SW_INLINE sw_vec add_product(const bool pairs, const float *left, sw_vec right, sw_vec sum) {
    return pairs ? sw_vec_fma_pairs((sw_vec_bits){0} + *(const sw_word *)left, (sw_vec_bits)right, sum)
                 : sw_vec_fma(sw_vec_splat(*left), right, sum);
}

/* Multiplies the first `rows` rows of a tile's part of a block, several words per iteration: fewer iterations mean
 * fewer instructions that do not multiply. */
SW_INLINE void multiply_rows(const bool pairs, const int rows, int64_t words, const float *a, const float *b,
                             float *sums) {
    sw_vec sum[TILE_ROWS][TILE_VECTORS];
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int j = 0; j < TILE_VECTORS; j++)
            sum[i][j] = (sw_vec){0};
#pragma GCC unroll 8
    for (int64_t word = 0; word < words; word++, a += TILE_ROWS, b += TILE_COLS) {
        sw_vec right[TILE_VECTORS];
#pragma GCC unroll 2
        for (int j = 0; j < TILE_VECTORS; j++)
            right[j] = sw_vec_load(b + j * SW_LANES);
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
#pragma GCC unroll 2
            for (int j = 0; j < TILE_VECTORS; j++)
                sum[i][j] = add_product(pairs, a + i, right[j], sum[i][j]);
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
        for (int j = 0; j < TILE_VECTORS; j++)
            sw_vec_store(sums + i * TILE_COLS + j * SW_LANES, sum[i][j]);
}

/* Multiplies a tile of which `rows` rows exist. The last tile of an expert with few rows is a large part of its work,
 * so it has code of its own. */
SW_INLINE void multiply(const bool pairs, int64_t rows, int64_t words, const float *a, const float *b, float *sums) {
    if (rows > 2 * TILE_ROWS / 3)
        multiply_rows(pairs, TILE_ROWS, words, a, b, sums);
    else if (rows > TILE_ROWS / 3)
        multiply_rows(pairs, 2 * TILE_ROWS / 3, words, a, b, sums);
    else
        multiply_rows(pairs, TILE_ROWS / 3, words, a, b, sums);
}

static void multiply_terms(int64_t rows, int64_t terms, const float *a, const float *b, float *sums) {
    multiply(false, rows, terms, a, b, sums);
}

static void multiply_pairs(int64_t rows, int64_t words, const float *a, const float *b, float *sums) {
    multiply(true, rows, words, a, b, sums);
}

static void add(int64_t rows, const float *tile, float *sums) {
    for (int64_t i = 0; i < rows * TILE_COLS; i += SW_LANES)
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

/* Pack operands of bf16 as pairs. */
static void pack_a_pairs(const struct call *call, const struct piece *piece, float *to) {
    pack_a(SW_BF16, true, call, piece, to);
}

static void pack_transposed_a_pairs(const struct call *call, const struct piece *piece, float *to) {
    pack_transposed_a(SW_BF16, true, call, piece, to);
}

static void pack_b_pairs(const struct call *call, const struct piece *piece, float *to) {
    pack_b(SW_BF16, true, call, piece, to);
}

static void pack_transposed_b_pairs(const struct call *call, const struct piece *piece, float *to) {
    pack_transposed_b(SW_BF16, true, call, piece, to);
}

/* Adds a block to the sums of one tile or, after the last block, rounds them into C. */
static void do_tile(const struct call *call, const struct piece *strip, const struct blocks *blocks, int64_t row,
                    int64_t col, float *sums) {
    const struct sw_gemm *shape = call->shape;
    const bool pairs = SW_FAST_PAIRS && call->pairs;
    const int64_t words = words_of(pairs, strip->terms), rows = sw_min_i64(TILE_ROWS, strip->rows - row);
    const float *a = blocks->a + row / TILE_ROWS * a_tile_elems(words),
                *b = blocks->b + col / TILE_COLS * b_tile_elems(words);
    _Alignas(64) float tile[TILE_ELEMS];
    const bool first = strip->term == 0, last = strip->term + strip->terms == shape->k;
    float *to = first && !last ? sums : tile;
    (pairs ? multiply_pairs : multiply_terms)(rows, words, a, b, to);
    if (!first)
        add(rows, tile, sums);
    if (last)
        SW_FOR_TYPE(finish, shape->out, call, strip->row + row, rows, strip->col + col,
                    sw_min_i64(TILE_COLS, strip->cols - col), first ? tile : sums);
}

/* Packs a strip's rows of A. */
static void pack_strip(const struct call *call, const struct piece *strip, float *to) {
    const struct sw_gemm *shape = call->shape;
    if (SW_FAST_PAIRS && call->pairs)
        (shape->transpose_a ? pack_transposed_a_pairs : pack_a_pairs)(call, strip, to);
    else if (shape->transpose_a)
        SW_FOR_TYPE(pack_transposed_a, shape->in, false, call, strip, to);
    else
        SW_FOR_TYPE(pack_a, shape->in, false, call, strip, to);
}

/* Multiplies a strip by the packed columns of B. Returns where the sums of the next strip begin. If there are few terms
 * and C is read and written, reaching C takes longest: tiles then follow its rows, as memory does. */
static float *do_strip(const struct call *call, const struct piece *strip, const struct blocks *blocks, float *sums) {
    const bool along_rows = call->shape->accumulate && call->shape->k <= block_terms(call->pairs);
    pack_strip(call, strip, blocks->a);
    for (int64_t col = 0; !along_rows && col < strip->cols; col += TILE_COLS)
        for (int64_t row = 0; row < strip->rows; row += TILE_ROWS, sums += TILE_ELEMS)
            do_tile(call, strip, blocks, row, col, sums);
    for (int64_t row = 0; along_rows && row < strip->rows; row += TILE_ROWS)
        for (int64_t col = 0; col < strip->cols; col += TILE_COLS, sums += TILE_ELEMS)
            do_tile(call, strip, blocks, row, col, sums);
    return sums;
}

static void do_piece(const struct call *call, struct piece piece, const struct blocks *blocks) {
    const struct sw_gemm *shape = call->shape;
    for (; piece.term < shape->k; piece.term += block_terms(call->pairs)) {
        piece.terms = sw_min_i64(block_terms(call->pairs), shape->k - piece.term);
        if (SW_FAST_PAIRS && call->pairs)
            (shape->transpose_b ? pack_transposed_b_pairs : pack_b_pairs)(call, &piece, blocks->b);
        else if (shape->transpose_b)
            SW_FOR_TYPE(pack_transposed_b, shape->in, false, call, &piece, blocks->b);
        else
            SW_FOR_TYPE(pack_b, shape->in, false, call, &piece, blocks->b);
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

/* Grouped products: the pieces of every expert's product, in one list that all threads share. */
struct grouped {
    const struct sw_grouped_product *op;
    bool pairs;
    int64_t most_rows, most_cols;             /* of a piece */
    int64_t first_piece[SW_MOST_EXPERTS + 1]; /* of each expert */
};

/* Returns the product of one expert. */
static struct sw_gemm product_of(const struct grouped *grouped, int64_t expert) {
    const struct sw_grouped_gemm *s = grouped->op->shape;
    const int64_t rows = grouped->op->offset[expert + 1] - grouped->op->offset[expert];
    struct sw_gemm product = {.m = rows, .n = s->n, .k = s->k, .in = s->in, .out = s->out, .a_stride = s->a_stride};
    if (s->weight_gradient) {
        product.m = s->n;
        product.n = s->k;
        product.k = rows;
        product.transpose_a = product.accumulate = true;
        return product;
    }
    product.transpose_b = s->transpose_b;
    product.bias = s->bias;
    product.accumulate = s->accumulate;
    product.c_stride = s->c_stride;
    return product;
}

static struct grid cut_grouped(const struct grouped *grouped, const struct sw_gemm *product) {
    const int64_t rows = shrink(product->m, TILE_ROWS, grouped->most_rows);
    const int64_t cols = shrink(product->n, TILE_COLS, grouped->most_cols);
    return (struct grid){.piece_rows = rows,
                         .piece_cols = cols,
                         .rows = sw_div_up(product->m, rows),
                         .cols = sw_div_up(product->n, cols)};
}

/* Counts the pieces of every expert. Returns those of all. */
static int64_t count_pieces(struct grouped *grouped) {
    int64_t pieces = 0;
    for (int64_t e = 0; e < grouped->op->shape->experts; e++) {
        const struct sw_gemm product = product_of(grouped, e);
        grouped->first_piece[e] = pieces;
        if (product.m > 0 && product.k > 0) {
            const struct grid grid = cut_grouped(grouped, &product);
            pieces += grid.rows * grid.cols;
        }
    }
    grouped->first_piece[grouped->op->shape->experts] = pieces;
    return pieces;
}

/* Halves pieces until each thread has some, or they would become too small. */
static int64_t cut_all(struct grouped *grouped, int threads) {
    int64_t pieces = count_pieces(grouped);
    while (threads > 1 && pieces < (int64_t)PIECES_OF_THREAD * threads &&
           (grouped->most_rows >= 2 * LEAST_PIECE_ROWS || grouped->most_cols >= 2 * LEAST_PIECE_COLS)) {
        if (grouped->most_cols >= 2 * LEAST_PIECE_COLS &&
            (grouped->most_cols > grouped->most_rows || grouped->most_rows < 2 * LEAST_PIECE_ROWS))
            grouped->most_cols /= 2;
        else
            grouped->most_rows /= 2;
        pieces = count_pieces(grouped);
    }
    return pieces;
}

static bool multiplies_pairs(const struct sw_grouped_gemm *shape) {
    return SW_FAST_PAIRS && shape->in == SW_BF16;
}

/* The sides of a piece in a large product. */
static struct grid largest_pieces(const struct sw_grouped_gemm *shape) {
    const int64_t m = shape->weight_gradient ? shape->n : sw_max_i64(shape->rows, 1);
    const int64_t n = shape->weight_gradient ? shape->k : shape->n;
    return (struct grid){.piece_rows = sw_min_i64(MOST_PIECE_ROWS, sw_round_up(m, TILE_ROWS)),
                         .piece_cols = sw_min_i64(MOST_PIECE_COLS, sw_round_up(n, TILE_COLS))};
}

static int64_t grouped_thread_bytes(const struct sw_grouped_gemm *shape) {
    const struct grid pieces = largest_pieces(shape);
    return thread_bytes(&pieces, shape->weight_gradient ? shape->rows : shape->k, multiplies_pairs(shape));
}

static void do_expert_piece(const struct grouped *grouped, int64_t expert, int64_t index, char *scratch) {
    const struct sw_grouped_product *op = grouped->op;
    const struct sw_grouped_gemm *s = op->shape;
    const struct sw_gemm product = product_of(grouped, expert);
    const int64_t row = op->offset[expert], matrix = expert * s->matrix_stride;
    const int64_t in = sw_dtype_bytes(s->in), out = sw_dtype_bytes(s->out);
    const struct call call = {
        .shape = &product,
        .pairs = grouped->pairs,
        .fetches = true,
        .grid = cut_grouped(grouped, &product),
        .a = (const char *)op->a + row * sw_grouped_a_stride(s) * in,
        .b = (const char *)op->b + (s->weight_gradient ? row * s->k : matrix) * in,
        .bias = s->bias ? (const char *)op->bias + expert * s->bias_stride * in : NULL,
        .c = (char *)op->c + (s->weight_gradient ? matrix : row * sw_grouped_c_stride(s)) * out,
        .scratch = scratch,
    };
    do_pieces(&call, index, index + 1, 0);
}

static void do_grouped_pieces(const void *context, int64_t first, int64_t end, int thread) {
    const struct grouped *grouped = context;
    char *scratch = (char *)grouped->op->scratch + thread * grouped_thread_bytes(grouped->op->shape);
    int64_t expert = 0;
    for (int64_t index = first; index < end; index++) {
        while (index >= grouped->first_piece[expert + 1])
            expert++;
        do_expert_piece(grouped, expert, index - grouped->first_piece[expert], scratch);
    }
}

static sw_status grouped_gemm(struct sw_stream *stream, const void *args) {
    const struct sw_grouped_product *op = args;
    struct grouped grouped = {
        .op = op, .pairs = multiplies_pairs(op->shape), .most_rows = MOST_PIECE_ROWS, .most_cols = MOST_PIECE_COLS};
    const int64_t pieces = cut_all(&grouped, stream->device->info.threads);
    const double rows = (double)(op->offset[op->shape->experts] - op->offset[0]);
    if (rows * (double)op->shape->n * (double)op->shape->k >= PARALLEL_MIN_PRODUCTS)
        sw_cpu_share_long(stream, pieces, do_grouped_pieces, &grouped);
    else
        do_grouped_pieces(&grouped, 0, pieces, 0);
    return SW_OK;
}

static sw_status prepare_grouped_gemm(struct sw_device *device, const struct sw_grouped_gemm *shape,
                                      int64_t *out_scratch_bytes) {
    *out_scratch_bytes = grouped_thread_bytes(shape) * device->info.threads;
    return SW_OK;
}

void SW_ISA_NAME(sw_cpu_add_block_product)(struct sw_device_ops *ops) {
    ops->prepare_grouped_gemm = prepare_grouped_gemm;
    ops->op[SW_DEVICE_GROUPED_GEMM] = grouped_gemm;
    ops->block_product_scratch_bytes = scratch_bytes;
    ops->block_product = block_product;
}
