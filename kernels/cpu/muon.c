/* The loops and products of the Muon update on the CPU.
 *
 * A product is made by tiles of pairs of bf16 terms. Every sum of a tile goes on where the block of terms before it
 * ended, so each element is one chain of fused multiply-adds, as in ref/muon.c, and has its bits. Without AVX-512's
 * products of pairs a packed pair is two numbers of fp32, the second term first. Half of a symmetric result is computed
 * and the rest copied. */
#include "kernels/muon.h"
#include "core/optimizer_format.h"
#include "core/size.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/moments.h"
#include "kernels/cpu/pairs.h"
#include "kernels/cpu/quant.h"
#include "kernels/cpu/share.h"
#include "kernels/cpu/tile.h"

#include <math.h>

/* A register tile: its sums, two vectors of the right side and an element of the left fill the vector registers. */
#if defined(__AVX512F__)
enum { TILE_ROWS = 12 };
#else
enum { TILE_ROWS = 6 };
#endif
enum { TILE_VECTORS = 2, TILE_COLS = TILE_VECTORS * SW_LANES };
/* Numbers of fp32 that a packed pair takes, or pairs themselves where the processor multiplies them. */
enum { PAIR_STEPS = SW_FAST_PAIRS ? 1 : 2 };
/* The pairs of a block, and the sides of a piece of the result, which one thread makes. The packed columns of a piece
 * and its sums stay in the second-level cache, and a packed tile of rows in the first. */
enum { PAIRS = 128 / PAIR_STEPS, PIECE_ROWS = 96, PIECE_COLS = 256, SMALL_PIECE_ROWS = 48 };
static_assert(PIECE_ROWS % TILE_ROWS == 0 && SMALL_PIECE_ROWS % TILE_ROWS == 0 && PIECE_COLS % TILE_COLS == 0,
              "a piece is a whole number of tiles");
/* A thread should have this many pieces, lest it waits for others. */
enum { PIECES_OF_THREAD = 3 };
/* Multiplications of a product, and elements of a pass, below which starting threads costs more than it gains. */
enum { PARALLEL_MIN_PRODUCTS = 1 << 19, PARALLEL_MIN_ELEMS = 1 << 15 };
/* A side of the squares in which half of a symmetric result is copied to the other half. */
enum { SQUARE = SW_LANES };

struct call {
    const struct sw_muon_product *product;
    int64_t left_stride, stride;    /* of the left side; of the right side and the result */
    int64_t piece_rows, piece_cols; /* rows of a piece; pieces side by side */
};

/* Stores the words of pairs as the products want them. `width`: words of a step */
SW_INLINE void store_pairs(float *to, int64_t width, sw_vec words) {
    if (SW_FAST_PAIRS) {
        sw_vec_store(to, words);
        return;
    }
    sw_vec_store(to, (sw_vec)((sw_vec_bits)words & 0xffff0000u));
    sw_vec_store(to + width, (sw_vec)((sw_vec_bits)words << 16));
}

/* Packs `pairs` pairs of up to `width` rows, which are `stride` elements apart, as [steps][width]. Rows behind the last
 * are zero. A step is stored in whole vectors, first to last: what exceeds one is overwritten by the next one. */
SW_INLINE void pack_rows(const int width, const sw_bf16 *from, int64_t stride, int64_t rows, int64_t pairs, float *to) {
    enum { MOST_VECTORS = (TILE_COLS + SW_LANES - 1) / SW_LANES };
    const int vectors = (width + SW_LANES - 1) / SW_LANES;
    for (int64_t pair = 0; pair < pairs; pair += SW_LANES) {
        const int64_t count = sw_min_i64(SW_LANES, pairs - pair);
        sw_vec square[MOST_VECTORS][SW_LANES];
        for (int v = 0; v < vectors; v++) {
            for (int64_t i = 0, row = v * SW_LANES; i < SW_LANES; i++, row++)
                square[v][i] =
                    row < sw_min_i64(rows, width) ? (sw_vec)sw_load_words(from + row * stride + 2 * pair) : (sw_vec){0};
            sw_vec_transpose(square[v]);
        }
        for (int64_t i = 0; i < count; i++)
            for (int step = 0; step < PAIR_STEPS; step++)
                for (int v = 0; v < vectors; v++) {
                    const sw_vec_bits words = (sw_vec_bits)square[v][i];
                    sw_vec_store(to + ((pair + i) * PAIR_STEPS + step) * width + v * SW_LANES,
                                 (sw_vec)(SW_FAST_PAIRS ? words
                                          : step == 0   ? words & 0xffff0000u
                                                        : words << 16));
                }
    }
}

/* Packs columns [col, col + cols) of `pairs` pairs of the right side as [tiles][steps][TILE_COLS]. */
static void pack_right(const struct call *call, int64_t col, int64_t cols, int64_t pair, int64_t pairs, float *to) {
    const struct sw_muon_product *p = call->product;
    for (int64_t tile = col; tile < col + cols; tile += TILE_COLS, to += pairs * PAIR_STEPS * TILE_COLS) {
        if (p->right == NULL)
            pack_rows(TILE_COLS, p->left + tile * call->left_stride + 2 * pair, call->left_stride, p->cols - tile,
                      pairs, to);
        for (int64_t k = 0; k < pairs && p->right != NULL; k++)
            for (int v = 0; v < TILE_VECTORS; v++) {
                const sw_bf16 *rows = p->right + 2 * (pair + k) * call->stride + tile + v * SW_LANES;
                store_pairs(to + k * PAIR_STEPS * TILE_COLS + v * SW_LANES, TILE_COLS,
                            (sw_vec)sw_pairs_of_rows(rows, rows + call->stride));
            }
    }
}

/* Returns sum + left·right for a step of the left side in all lanes. A product of two numbers of bf16 is exact in fp32,
 * so that it does not matter whether an instruction rounds it. */
SW_INLINE sw_vec add_product(const float *left, sw_vec right, sw_vec sum) {
    return SW_FAST_PAIRS ? sw_vec_fma_pairs((sw_vec_bits){0} + *(const sw_word *)left, (sw_vec_bits)right, sum)
                         : sw_vec_fma(sw_vec_splat(*left), right, sum);
}

/* Adds the terms of a block to the sums of a tile. skipped: vectors of each row that are left out; first: the sums are
 * zero before */
SW_INLINE void multiply_vectors(const int skipped, const bool first, int64_t steps, const float *left,
                                const float *right, float *sums) {
    sw_vec sum[TILE_ROWS][TILE_VECTORS];
#pragma GCC unroll 16
    for (int i = 0; i < TILE_ROWS; i++)
#pragma GCC unroll 2
        for (int j = skipped; j < TILE_VECTORS; j++)
            sum[i][j] = first ? (sw_vec){0} : sw_vec_load(sums + i * TILE_COLS + j * SW_LANES);
#pragma GCC unroll 4
    for (int64_t k = 0; k < steps; k++, left += TILE_ROWS, right += TILE_COLS) {
        sw_vec column[TILE_VECTORS];
#pragma GCC unroll 2
        for (int j = skipped; j < TILE_VECTORS; j++)
            column[j] = sw_vec_load(right + j * SW_LANES);
#pragma GCC unroll 16
        for (int i = 0; i < TILE_ROWS; i++) {
#pragma GCC unroll 2
            for (int j = skipped; j < TILE_VECTORS; j++)
                sum[i][j] = add_product(left + i, column[j], sum[i][j]);
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < TILE_ROWS; i++)
#pragma GCC unroll 2
        for (int j = skipped; j < TILE_VECTORS; j++)
            sw_vec_store(sums + i * TILE_COLS + j * SW_LANES, sum[i][j]);
}

static void multiply(int skipped, bool first, int64_t steps, const float *left, const float *right, float *sums) {
    if (skipped > 0)
        multiply_vectors(1, first, steps, left, right, sums);
    else
        multiply_vectors(0, first, steps, left, right, sums);
}

SW_INLINE sw_vec_half round_lanes(sw_vec value) {
    const sw_vec_bits small = (sw_vec_bits)((value > -SW_MUON_LEAST) & (value < SW_MUON_LEAST));
    return sw_vec_to_bf16((sw_vec)((sw_vec_bits)value & ~small));
}

/* Makes an element of the diagonal that lies elsewhere. */
static void finish_diagonal(const struct sw_muon_product *p, int64_t at, int64_t row, float sum) {
    float right = 0.0f;
    if (p->right_diagonal != NULL)
        right = p->right_diagonal[row];
    else if (p->right != NULL)
        right = sw_bf16_to_f32(p->right[at]);
    if (p->left_diagonal != NULL)
        sum = fmaf(p->left_diagonal[row], right, sum);
    p->to_diagonal[row] = fmaf(p->factor, sum, p->right_factor * right) + p->identity;
    p->to[at] = 0;
}

/* Makes a tile of the result from its sums, but for the first columns. */
static void finish(const struct call *call, int64_t row, int64_t rows, int64_t col, int64_t skipped_cols,
                   const float *sums) {
    const struct sw_muon_product *p = call->product;
    const sw_vec factor = sw_vec_splat(p->factor);
    for (int64_t i = 0; i < rows; i++) {
        const sw_vec left_diagonal = sw_vec_splat(p->left_diagonal == NULL ? 0.0f : p->left_diagonal[row + i]);
        for (int64_t j = skipped_cols; j < TILE_COLS; j += SW_LANES) {
            const int64_t at = (row + i) * call->stride + col + j;
            const sw_vec right = p->right == NULL ? (sw_vec){0} : sw_load(SW_BF16, p->right, at);
            sw_vec sum = sw_vec_load(sums + i * TILE_COLS + j);
            if (p->left_diagonal != NULL)
                sum = sw_vec_fma_once(left_diagonal, right, sum);
            if (p->right_diagonal != NULL)
                sum = sw_vec_fma_once(sw_load(SW_BF16, p->left, at), sw_vec_load(p->right_diagonal + col + j), sum);
            const sw_vec value = sw_vec_fma_once(factor, sum, p->right_factor * right);
            if (p->to == NULL)
                sw_vec_store(p->to_fp32 + at, value);
            else
                *(sw_vec_half_unaligned *)(p->to + at) = round_lanes(value);
        }
        if (p->to_diagonal != NULL && row + i >= col && row + i < col + TILE_COLS)
            finish_diagonal(p, (row + i) * call->stride + row + i, row + i, sums[i * TILE_COLS + row + i - col]);
    }
}

/* Tells whether columns of a piece are copied from the other side of the diagonal, as they are in front of all rows. */
static bool is_mirrored(const struct call *call, int64_t row, int64_t col, int64_t cols) {
    return call->product->to_diagonal != NULL && col + cols <= row;
}

static void do_pieces(const void *context, int64_t first, int64_t end, int thread) {
    const struct call *call = context;
    const int64_t all_pairs = sw_div_up(call->product->terms, 2);
    _Alignas(64) float left[PAIRS * PAIR_STEPS * PIECE_ROWS + SW_LANES];
    _Alignas(64) float right[PAIRS * PAIR_STEPS * PIECE_COLS];
    _Alignas(64) float sums[PIECE_ROWS * PIECE_COLS];
    (void)thread;
    for (int64_t piece = first; piece < end; piece++) {
        const int64_t row = piece / call->piece_cols * call->piece_rows, col = piece % call->piece_cols * PIECE_COLS;
        const int64_t rows = sw_min_i64(call->piece_rows, call->product->rows - row);
        const int64_t cols = sw_min_i64(PIECE_COLS, call->stride - col);
        int64_t mirrored = 0; /* columns */
        while (mirrored < cols && is_mirrored(call, row, col + mirrored, TILE_COLS))
            mirrored += TILE_COLS;
        for (int64_t pair = 0; pair < all_pairs && mirrored < cols; pair += PAIRS) {
            const int64_t pairs = sw_min_i64(PAIRS, all_pairs - pair), steps = pairs * PAIR_STEPS;
            pack_right(call, col + mirrored, cols - mirrored, pair, pairs, right + mirrored * steps);
            for (int64_t i = 0; i < rows; i += TILE_ROWS)
                pack_rows(TILE_ROWS, call->product->left + (row + i) * call->left_stride + 2 * pair, call->left_stride,
                          sw_min_i64(TILE_ROWS, rows - i), pairs, left + i * steps);
            for (int64_t j = mirrored; j < cols; j += TILE_COLS)
                for (int64_t i = 0; i < rows && !is_mirrored(call, row + i, col + j, TILE_COLS); i += TILE_ROWS) {
                    float *tile = sums + i * PIECE_COLS + j * TILE_ROWS;
                    const int skipped = is_mirrored(call, row + i, col + j, SW_LANES) ? 1 : 0;
                    multiply(skipped, pair == 0, steps, left + i * steps, right + j * steps, tile);
                    if (pair + pairs == all_pairs)
                        finish(call, row + i, sw_min_i64(TILE_ROWS, rows - i), col + j, skipped * SW_LANES, tile);
                }
        }
    }
}

/* Copies the part of a symmetric result that lies below its diagonal, by rows of squares. */
static void copy_squares(const void *context, int64_t first, int64_t end, int thread) {
    const struct call *call = context;
    const int64_t rows = call->product->rows;
    sw_bf16 *to = call->product->to;
    (void)thread;
    for (int64_t square = first * SQUARE; square < sw_min_i64(end * SQUARE, rows); square += SQUARE) {
        for (int64_t left = 0; left < square; left += SQUARE) {
            sw_vec line[SQUARE];
            for (int64_t i = 0; i < SQUARE; i++)
                line[i] = sw_load(SW_BF16, to, (left + i) * call->stride + square);
            sw_vec_transpose(line);
            for (int64_t i = 0; i < sw_min_i64(SQUARE, rows - square); i++)
                sw_store(SW_BF16, to, (square + i) * call->stride + left, line[i]);
        }
        for (int64_t row = square; row < sw_min_i64(square + SQUARE, rows); row++)
            for (int64_t col = square; col < row; col++)
                to[row * call->stride + col] = to[col * call->stride + row];
    }
}

static void product(struct sw_stream *stream, const struct sw_muon_product *p) {
    struct call call = {.product = p,
                        .left_stride = sw_muon_stride(p->terms),
                        .stride = sw_muon_stride(p->cols),
                        .piece_rows = PIECE_ROWS};
    const bool shared = (double)p->rows * (double)p->cols * (double)p->terms >= PARALLEL_MIN_PRODUCTS;
    call.piece_cols = sw_div_up(call.stride, PIECE_COLS);
    if (sw_div_up(p->rows, PIECE_ROWS) * call.piece_cols < (int64_t)PIECES_OF_THREAD * stream->device->info.threads)
        call.piece_rows = SMALL_PIECE_ROWS;
    const int64_t pieces = sw_div_up(p->rows, call.piece_rows) * call.piece_cols;
    if (shared)
        sw_cpu_share_long(stream, pieces, do_pieces, &call);
    else
        do_pieces(&call, 0, pieces, 0);
    if (p->to_diagonal != NULL)
        sw_cpu_share(stream, p->rows * p->rows >= PARALLEL_MIN_ELEMS, sw_div_up(p->rows, SQUARE), copy_squares, &call);
}

static struct sw_record_parts record_of(const struct sw_update_muon *op, int64_t at) {
    char *records = op->records;
    return sw_muon_record_parts(op->format, records + at / SW_GRAIN_ELEMS * sw_optimizer_muon_bytes(op->format));
}

static float *master_of(const struct sw_update_muon *op, int64_t at) {
    return record_of(op, at).master + at % SW_GRAIN_ELEMS;
}

/* Widens gradients, at most a tile of them. */
static const float *widen_gradients(const struct sw_update_muon *op, int64_t at, int64_t count, struct sw_tile *tile) {
    if (op->grads_format != SW_GRADS_8BIT)
        return sw_tile_load(op->type, op->grads, at, count, tile);
    for (int64_t i = 0; i < count; i++)
        tile->value[i] = sw_grads_8bit_at(op->grads, at + i);
    return tile->value;
}

/* The elements from `at` on that lie in one grain and fit in a tile. */
static int64_t tile_of(int64_t at, int64_t count) {
    return sw_min_i64(count, sw_min_i64(SW_TILE_ELEMS, SW_GRAIN_ELEMS - at % SW_GRAIN_ELEMS));
}

/* Widens momenta in codes from element `at` of a grain. The codes of a block share a scale, and a run may begin and end
 * within a block. */
static void widen_codes(const struct sw_record_parts *record, int64_t at, int64_t count, float *to) {
    for (int64_t end = at + count, some; at < end; at += some, to += some) {
        const float scale = record->m_scale[at / SW_MOMENT_BLOCK_ELEMS];
        some = sw_min_i64(end - at, SW_MOMENT_BLOCK_ELEMS - at % SW_MOMENT_BLOCK_ELEMS);
        for (int64_t i = 0; i < some; i += SW_LANES) {
            const int64_t lanes = sw_min_i64(some - i, SW_LANES);
            char codes[SW_LANES] = {0};
            memcpy(codes, record->m + at + i, (size_t)lanes);
            sw_store_up_to(SW_F32, to, i, lanes, sw_number_of_m(codes) * scale);
        }
    }
}

/* Returns the momenta of an update of at most a tile's elements: in their record, or in the tile. */
static const float *widen_momenta(const struct sw_update_muon *op, int64_t at, int64_t count, struct sw_tile *tile) {
    const struct sw_record_parts record = record_of(op, at);
    const sw_optimizer_format form = sw_optimizer_momentum(op->format);
    if (form != SW_OPTIMIZER_8BIT)
        return sw_tile_load(form == SW_OPTIMIZER_BF16 ? SW_BF16 : SW_F32, record.m, at % SW_GRAIN_ELEMS, count, tile);
    widen_codes(&record, at % SW_GRAIN_ELEMS, count, tile->value);
    return tile->value;
}

/* Writes momenta moved towards their gradients, as ref/muon.c does. count: at most a tile */
static void approach(const struct sw_update_muon *op, int64_t at, int64_t count, float *to) {
    const sw_vec rest = sw_vec_splat((float)(1.0 - op->muon->momentum));
    struct sw_tile tile, momenta;
    const float *grads = widen_gradients(op, at, count, &tile);
    const float *m = widen_momenta(op, at, count, &momenta);
    for (int64_t i = 0; i < count; i += SW_LANES) {
        const sw_vec grad = sw_load_up_to(SW_F32, grads, i, count - i, 0.0f);
        const sw_vec before = sw_load_up_to(SW_F32, m, i, count - i, 0.0f);
        sw_store_up_to(SW_F32, to, i, count - i, sw_vec_fma_once(rest, grad * op->muon->grad_scale - before, before));
    }
}

/* Rounds a vector of momenta, element i of a block, to bf16 or, with a scale, to codes. */
SW_INLINE void round_momentum(const sw_optimizer_format form, const sw_rounding rounding, const uint32_t *words, int i,
                              sw_vec m, float inverse, char *to) {
    const sw_vec_bits word = *(const sw_vec_bits *)(words + sw_word_at(i));
    const sw_vec_bits random = i / SW_MOMENT_LANES % 2 != 0 ? word >> 16 : word & 0xffffu;
    if (form == SW_OPTIMIZER_8BIT)
        sw_store_codes(to + i, sw_steps_of_m(rounding, m, inverse, random));
    else
        *(sw_vec_half_unaligned *)((sw_bf16 *)(void *)to + i) =
            sw_moments_to_bf16(rounding, m, random, (sw_vec_ints){0});
}

/* Rounds a tile of momenta, by pairs of vectors that share their random words. */
SW_INLINE void round_momenta(const sw_optimizer_format form, const sw_rounding rounding,
                             const struct sw_moment_rounding *how, int64_t at, const float *m,
                             const struct sw_record_parts *record) {
    const int64_t bytes = form == SW_OPTIMIZER_8BIT ? 1 : (int64_t)sizeof(sw_bf16);
    for (const int64_t end = at + SW_TILE_ELEMS; at < end; at += SW_MOMENT_BLOCK_ELEMS, m += SW_MOMENT_BLOCK_ELEMS) {
        _Alignas(64) uint32_t words[SW_MOMENT_BLOCK_ELEMS / 2] = {0};
        sw_vec largest = {0};
        float inverse = 0.0f;
        if (rounding == SW_ROUND_STOCHASTIC)
            sw_block_words(how, how->first_elem + at, words);
        if (form == SW_OPTIMIZER_8BIT) {
            for (int i = 0; i < SW_MOMENT_BLOCK_ELEMS; i += SW_LANES)
                largest = sw_vec_max(sw_vec_abs(sw_vec_load(m + i)), largest);
            record->m_scale[at / SW_MOMENT_BLOCK_ELEMS] = sw_scale_of(largest);
            inverse = sw_inverse_of(sw_scale_of(largest));
        }
        for (int i = 0; i < SW_MOMENT_BLOCK_ELEMS; i += SW_LANES)
            round_momentum(form, rounding, words, i, sw_vec_load(m + i), inverse, record->m + at * bytes);
    }
}

static void momentum(const struct sw_update_muon *op, int64_t at, int64_t count) {
    const struct sw_moment_rounding how = {.seed = op->seed,
                                           .unit = op->unit,
                                           .step = op->step,
                                           .first_elem = op->first_elem + at / SW_GRAIN_ELEMS * SW_GRAIN_ELEMS};
    const struct sw_record_parts record = record_of(op, at);
    const sw_optimizer_format form = sw_optimizer_momentum(op->format);
    const bool wide = form == SW_OPTIMIZER_FP32, codes = form == SW_OPTIMIZER_8BIT;
    const bool nearest = op->rounding == SW_ROUND_NEAREST;
    for (int64_t end = at + count; at < end; at += SW_TILE_ELEMS) {
        const int64_t elem = at % SW_GRAIN_ELEMS;
        struct sw_tile tile;
        float *made = wide ? (float *)(void *)record.m + elem : tile.value;
        approach(op, at, SW_TILE_ELEMS, made);
        if (codes && nearest)
            round_momenta(SW_OPTIMIZER_8BIT, SW_ROUND_NEAREST, &how, elem, made, &record);
        else if (codes)
            round_momenta(SW_OPTIMIZER_8BIT, SW_ROUND_STOCHASTIC, &how, elem, made, &record);
        else if (!wide && nearest)
            round_momenta(SW_OPTIMIZER_BF16, SW_ROUND_NEAREST, &how, elem, made, &record);
        else if (!wide)
            round_momenta(SW_OPTIMIZER_BF16, SW_ROUND_STOCHASTIC, &how, elem, made, &record);
    }
}

static void update(const struct sw_update_muon *op, int64_t at, int64_t count, float *to) {
    for (int64_t end = at + count, some; at < end; at += some, to += some) {
        some = tile_of(at, end - at);
        approach(op, at, some, to);
    }
}

static double square_sum(int64_t cols, const float *row) {
    double sums[SW_MUON_SUMS] = {0.0}, total = 0.0;
    int64_t i = 0;
    for (; i + SW_MUON_SUMS <= cols; i += SW_MUON_SUMS)
        for (int j = 0; j < SW_MUON_SUMS; j++)
            sums[j] += (double)row[i + j] * (double)row[i + j]; /* the product is exact */
    for (int j = 0; i + j < cols; j++)
        sums[j] += (double)row[i + j] * (double)row[i + j];
    for (int j = 0; j < SW_MUON_SUMS; j++)
        total += sums[j];
    return total;
}

static void scale(int64_t cols, const float *from, double factor, sw_bf16 *to) {
    for (int64_t i = 0; i < sw_muon_stride(cols); i += SW_LANES) {
        sw_vec value = i < cols ? sw_load_up_to(SW_F32, from, i, cols - i, 0.0f) : (sw_vec){0};
        for (int j = 0; j < SW_LANES; j++)
            value[j] = (float)((double)value[j] * factor);
        *(sw_vec_half_unaligned *)(to + i) = round_lanes(value);
    }
}

static void descend(const struct sw_update_muon *op, int64_t at, int64_t count, const float *x, float decay,
                    float minus_step) {
    for (int64_t end = at + count, some; at < end; at += some, x += some) {
        float *masters = master_of(op, at);
        some = tile_of(at, end - at);
        for (int64_t i = 0; i < some; i += SW_LANES) {
            const sw_vec before = sw_load_up_to(SW_F32, masters, i, some - i, 0.0f) * decay;
            const sw_vec step = sw_load_up_to(SW_F32, x, i, some - i, 0.0f);
            sw_store_up_to(SW_F32, masters, i, some - i, sw_vec_fma_once(sw_vec_splat(minus_step), step, before));
        }
    }
}

static void weights(const struct sw_update_muon *op, int64_t at, int64_t count) {
    sw_narrow(op->type, op->weights, at, count, master_of(op, at));
}

static void share(struct sw_stream *stream, int64_t elems, int64_t items, sw_muon_items do_items, const void *context) {
    sw_cpu_share(stream, elems >= PARALLEL_MIN_ELEMS, items, do_items, context);
}

static sw_status update_muon(struct sw_stream *stream, const struct sw_update_muon *args) {
    const struct sw_muon_loops loops = {.momentum = momentum,
                                        .update = update,
                                        .square_sum = square_sum,
                                        .scale = scale,
                                        .product = product,
                                        .descend = descend,
                                        .weights = weights,
                                        .share = share};
    sw_muon_update(stream, &loops, args);
    return SW_OK;
}

void SW_ISA_NAME(sw_cpu_add_muon)(struct sw_device_ops *ops) {
    ops->update_muon = update_muon;
}
