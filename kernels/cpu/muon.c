/* The products of the Muon update on the CPU, in fp32 by tiles.
 *
 * Every sum of a tile goes on where the block of terms before it ended, so each element is one chain of fused
 * multiply-adds, as in ref/muon.c, and has its bits. The product of a matrix by its transpose is symmetric to the last
 * bit, because the factors of each term only change places: half of it is computed and the rest copied. */
#include "kernels/muon.h"
#include "core/size.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/share.h"
#include "kernels/cpu/vector.h"

/* A register tile: its sums, two vectors of the right side and an element of the left fill the vector registers. */
#if defined(__AVX512F__)
enum { TILE_ROWS = 12 };
#else
enum { TILE_ROWS = 6 };
#endif
enum { TILE_VECTORS = 2, TILE_COLS = TILE_VECTORS * SW_LANES };
/* The terms of a block, and the sides of a piece of the result, which one thread makes. The packed columns of a piece
 * stay in the second-level cache, and a packed tile of rows in the first. */
enum { TERMS = 128, PIECE_ROWS = 96, PIECE_COLS = 256 };
static_assert(PIECE_ROWS % TILE_ROWS == 0 && PIECE_COLS % TILE_COLS == 0, "a piece is a whole number of tiles");
/* Multiplications of a product, and elements of a pass, below which starting threads costs more than it gains. */
enum { PARALLEL_MIN_PRODUCTS = 1 << 19, PARALLEL_MIN_ELEMS = 1 << 15 };

struct call {
    int64_t rows, cols, terms; /* of the result, and of each of its sums */
    const float *left, *right; /* left[rows][terms]; right[terms][cols], or [cols][terms] of a gram */
    float *to;
    bool gram;
    int64_t piece_cols; /* pieces side by side */
};

/* Loads up to SW_LANES neighbours; what follows them is zero. */
SW_INLINE sw_vec load_some(const float *from, int64_t count) {
    float some[SW_LANES] = {0};
    if (__builtin_expect(count >= SW_LANES, 1))
        return sw_vec_load(from);
    memcpy(some, from, (size_t)count * sizeof some[0]);
    return sw_vec_load(some);
}

/* Packs `terms` terms of up to `width` rows, which are `stride` elements apart, as [terms][width]. Rows behind the last
 * are zero. A row of the result is stored in whole vectors: what exceeds it is overwritten by the next one. */
SW_INLINE void pack_rows(const int width, const float *from, int64_t stride, int64_t rows, int64_t terms, float *to) {
    enum { MOST_VECTORS = (TILE_COLS + SW_LANES - 1) / SW_LANES };
    const int vectors = (width + SW_LANES - 1) / SW_LANES;
    for (int64_t term = 0; term < terms; term += SW_LANES) {
        const int64_t count = sw_min_i64(SW_LANES, terms - term);
        sw_vec square[MOST_VECTORS][SW_LANES];
        for (int v = 0; v < vectors; v++) {
            for (int64_t i = 0, row = v * SW_LANES; i < SW_LANES; i++, row++)
                square[v][i] = row < rows ? load_some(from + row * stride + term, count) : (sw_vec){0};
            sw_vec_transpose(square[v]);
        }
        for (int64_t i = 0; i < count; i++)
            for (int v = 0; v < vectors; v++)
                sw_vec_store(to + (term + i) * width + v * SW_LANES, square[v][i]);
    }
}

/* Packs columns [col, col + cols) of `terms` terms of the right side as [tiles][terms][TILE_COLS]. Columns behind the
 * last are zero. */
static void pack_right(const struct call *call, int64_t col, int64_t cols, int64_t term, int64_t terms, float *to) {
    for (int64_t tile = 0; tile < cols; tile += TILE_COLS, to += terms * TILE_COLS) {
        const int64_t some = sw_min_i64(TILE_COLS, cols - tile);
        if (call->gram)
            pack_rows(TILE_COLS, call->right + (col + tile) * call->terms + term, call->terms, some, terms, to);
        for (int64_t k = 0; k < terms && !call->gram; k++) {
            memset(to + k * TILE_COLS, 0, TILE_COLS * sizeof *to);
            memcpy(to + k * TILE_COLS, call->right + (term + k) * call->cols + col + tile, (size_t)some * sizeof *to);
        }
    }
}

/* Packs rows of the left side as [terms][TILE_ROWS]. */
static void pack_left(const struct call *call, int64_t row, int64_t rows, int64_t term, int64_t terms, float *to) {
    pack_rows(TILE_ROWS, call->left + row * call->terms + term, call->terms, rows, terms, to);
}

/* Adds the terms of a block to the sums of a tile. */
static void multiply(int64_t terms, const float *left, const float *right, float *sums) {
    sw_vec sum[TILE_ROWS][TILE_VECTORS];
#pragma GCC unroll 16
    for (int i = 0; i < TILE_ROWS; i++)
#pragma GCC unroll 2
        for (int j = 0; j < TILE_VECTORS; j++)
            sum[i][j] = sw_vec_load(sums + i * TILE_COLS + j * SW_LANES);
    for (int64_t k = 0; k < terms; k++, left += TILE_ROWS, right += TILE_COLS) {
        sw_vec column[TILE_VECTORS];
#pragma GCC unroll 2
        for (int j = 0; j < TILE_VECTORS; j++)
            column[j] = sw_vec_load(right + j * SW_LANES);
#pragma GCC unroll 16
        for (int i = 0; i < TILE_ROWS; i++) {
#pragma GCC unroll 2
            for (int j = 0; j < TILE_VECTORS; j++)
                sum[i][j] = sw_vec_fma_once(sw_vec_splat(left[i]), column[j], sum[i][j]);
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < TILE_ROWS; i++)
#pragma GCC unroll 2
        for (int j = 0; j < TILE_VECTORS; j++)
            sw_vec_store(sums + i * TILE_COLS + j * SW_LANES, sum[i][j]);
}

/* Does the tiles of one row of tiles, for one block of terms. */
static void do_tiles(const struct call *call, int64_t row, int64_t rows, int64_t col, int64_t cols, int64_t terms,
                     bool first, const float *left, const float *right) {
    _Alignas(64) float sums[TILE_ROWS * TILE_COLS];
    for (int64_t tile = 0; tile < cols; tile += TILE_COLS, right += terms * TILE_COLS) {
        const int64_t some = sw_min_i64(TILE_COLS, cols - tile);
        float *to = call->to + row * call->cols + col + tile;
        memset(sums, 0, sizeof sums);
        for (int64_t i = 0; i < rows && !first; i++)
            memcpy(sums + i * TILE_COLS, to + i * call->cols, (size_t)some * sizeof *to);
        multiply(terms, left, right, sums);
        for (int64_t i = 0; i < rows; i++)
            memcpy(to + i * call->cols, sums + i * TILE_COLS, (size_t)some * sizeof *to);
    }
}

static void do_pieces(const void *context, int64_t first, int64_t end, int thread) {
    const struct call *call = context;
    _Alignas(64) float left[TERMS * TILE_ROWS + SW_LANES];
    _Alignas(64) float right[TERMS * PIECE_COLS];
    (void)thread;
    for (int64_t piece = first; piece < end; piece++) {
        const int64_t row = piece / call->piece_cols * PIECE_ROWS, col = piece % call->piece_cols * PIECE_COLS;
        const int64_t rows = sw_min_i64(PIECE_ROWS, call->rows - row), cols = sw_min_i64(PIECE_COLS, call->cols - col);
        if (call->gram && col + cols <= row)
            continue; /* copied from the other side of the diagonal */
        for (int64_t term = 0; term < call->terms; term += TERMS) {
            const int64_t terms = sw_min_i64(TERMS, call->terms - term);
            pack_right(call, col, cols, term, terms, right);
            for (int64_t i = 0; i < rows; i += TILE_ROWS) {
                const int64_t some = sw_min_i64(TILE_ROWS, rows - i);
                pack_left(call, row + i, some, term, terms, left);
                do_tiles(call, row + i, some, col, cols, terms, term == 0, left, right);
            }
        }
    }
}

static void copy_rows(const void *context, int64_t first, int64_t end, int thread) {
    const struct call *call = context;
    (void)thread;
    for (int64_t row = first; row < end; row++)
        for (int64_t col = 0; col < row; col++)
            call->to[row * call->cols + col] = call->to[col * call->cols + row];
}

static bool is_shared(const struct call *call) {
    return (double)call->rows * (double)call->cols * (double)call->terms >= PARALLEL_MIN_PRODUCTS;
}

static void run(struct sw_stream *stream, struct call *call) {
    call->piece_cols = sw_div_up(call->cols, PIECE_COLS);
    const int64_t pieces = sw_div_up(call->rows, PIECE_ROWS) * call->piece_cols;
    if (is_shared(call))
        sw_cpu_share_long(stream, pieces, do_pieces, call);
    else
        do_pieces(call, 0, pieces, 0);
}

static void gram(struct sw_stream *stream, int64_t rows, int64_t terms, const float *from, float *to) {
    struct call call = {
        .rows = rows, .cols = rows, .terms = terms, .left = from, .right = from, .to = to, .gram = true};
    run(stream, &call);
    sw_cpu_share(stream, is_shared(&call), rows, copy_rows, &call);
}

static void product(struct sw_stream *stream, int64_t rows, int64_t cols, const float *left, const float *right,
                    float *to) {
    struct call call = {.rows = rows, .cols = cols, .terms = rows, .left = left, .right = right, .to = to};
    run(stream, &call);
}

static void share(struct sw_stream *stream, int64_t elems, int64_t items, sw_muon_items do_items, const void *context) {
    sw_cpu_share(stream, elems >= PARALLEL_MIN_ELEMS, items, do_items, context);
}

static sw_status update_muon(struct sw_stream *stream, const struct sw_update_muon *args) {
    const struct sw_muon_products products = {.gram = gram, .product = product, .share = share};
    sw_muon_update(stream, &products, args);
    return SW_OK;
}

void SW_ISA_NAME(sw_cpu_add_muon)(struct sw_device_ops *ops) {
    ops->update_muon = update_muon;
}
