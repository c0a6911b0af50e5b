/* Attention on the CPU, in blocks of queries and keys (FlashAttention-2), forward and backward.
 *
 * The queries of a block are the vector lanes. A row's maximum and sum are then lanes, so no reduction runs across a
 * vector and all rows of a block advance together. The other way round, with a row's scores along the lanes, each row
 * would end in a horizontal sum.
 *
 * The small products are written here: a library's call for 64 by 64 costs as much as the product. Words are fp32, or
 * pairs of bf16 where the processor multiplies pairs faster.
 *
 * A sum's order depends on shape and blocks only, never on threads or documents' masks, so the bits are the same
 * however the work is divided. */
#include "core/size.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/pairs.h"
#include "kernels/cpu/tile.h"
#include "kernels/cpu/vector_math.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>

/* Which part of a product is needed, if a triangle of zeros or of unwanted results is known. */
typedef enum {
    PART_ALL,
    PART_COLUMNS_FROM_ROW, /* only C[i][j] with j >= i; the others may keep their content */
    PART_TERMS_FROM_ROW,   /* A[i][k] is zero for k < i */
    PART_TERMS_UP_TO_ROW   /* A[i][k] is zero for k > i */
} sw_part;

enum {
    SMALL_PRODUCT_ROWS = 8,    /* m is rounded up to this: A and C have that many rows */
    SMALL_PRODUCT_COLUMNS = 16 /* n is a multiple of this */
};

/* C[m,n] = or += A[m,k]·B[k,n] in fp32. A and B consist of words: fp32 numbers or, with `pairs`, two bf16 numbers each,
 * and k is even. The word of A[i][k] is a[i·a_row + t·a_term], that of B[k][j] is b[t·b_row + j], with t = k, or k/2
 * for pairs. Rows of C are contiguous. */
struct small_product {
    int64_t m, n, k;
    bool pairs;
    const void *a;
    int64_t a_row, a_term;
    const void *b;
    int64_t b_row;
    float *c;
    int64_t c_row;
    bool accumulate;
    sw_part part;
};

/* The accumulators of a register tile, a row of B and a broadcast of A together fill the vector registers. */
#if defined(__AVX512F__)
enum { TILE_ROWS = 8, TILE_VECTORS = 2 };
#else
enum { TILE_ROWS = 4, TILE_VECTORS = 2 };
#endif
static_assert(SMALL_PRODUCT_ROWS % TILE_ROWS == 0, "rows are a whole number of register tiles");
static_assert(SMALL_PRODUCT_COLUMNS % SW_LANES == 0, "columns are a whole number of vectors");
static_assert(TILE_ROWS % 2 == 0, "a register tile's triangle is a whole number of pairs");

/* Computes one register tile over the words of the terms [first, end). pairs and vectors are constants after inlining.
 */
SW_INLINE void register_tile(const struct small_product *p, int64_t row, int64_t col, int64_t first, int64_t end,
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

SW_INLINE void row_of_tiles(const struct small_product *p, int64_t row, const bool pairs) {
    const int64_t terms = pairs ? 2 : 1;
    const int64_t first = p->part == PART_TERMS_FROM_ROW ? sw_min_i64(row, p->k) / terms : 0;
    const int64_t end = (p->part == PART_TERMS_UP_TO_ROW ? sw_min_i64(row + TILE_ROWS, p->k) : p->k) / terms;
    const int64_t wide = TILE_VECTORS * SW_LANES;
    int64_t col = 0;
    if (p->part == PART_COLUMNS_FROM_ROW)
        col = sw_min_i64(row / wide * wide, p->n);
    for (; col + wide <= p->n; col += wide)
        register_tile(p, row, col, first, end, pairs, TILE_VECTORS);
    for (; col < p->n; col += SW_LANES)
        register_tile(p, row, col, first, end, pairs, 1);
}

static void small_product(const struct small_product *product) {
    for (int64_t row = 0; row < product->m; row += TILE_ROWS) {
        if (product->pairs)
            row_of_tiles(product, row, true);
        else
            row_of_tiles(product, row, false);
    }
}

/* Helpers of attention forward and backward: blocks of queries and keys as the words of small products, with the
 * queries of a score block along the vector lanes, so that a row's statistics are lanes and no sum runs across a
 * vector. Words are fp32 numbers, or pairs of bf16 numbers if the instruction set multiplies those faster. */
enum { BLOCK = 64 };

/* A call: its shape, and sizes derived from it. */
struct call {
    sw_dtype type;
    struct sw_attention shape;
    bool pairs;         /* words are pairs */
    int64_t terms;      /* head_dim rounded up to whole words */
    int64_t padded_dim; /* head_dim rounded up to whole vectors */
    int64_t row_words;  /* words of a token's row, rounded up to whole vectors */
    int64_t blocks;     /* blocks per sequence */
};

/* A block of tokens: the first, and their number. */
struct block {
    int64_t first, count;
};

static inline struct block block_at(const struct call *call, int64_t index) {
    const int64_t first = index * BLOCK, rest = call->shape.seq - first;
    return (struct block){.first = first, .count = rest < BLOCK ? rest : BLOCK};
}

/* Returns a block of keys. With a past there are more keys than queries. */
static inline struct block key_block_at(const struct call *call, int64_t index) {
    const int64_t first = index * BLOCK, rest = call->shape.past + call->shape.seq - first;
    return (struct block){.first = first, .count = rest < BLOCK ? rest : BLOCK};
}

/* Returns a block of queries by their positions among the keys. */
static inline struct block positions_of(const struct call *call, struct block queries) {
    return (struct block){.first = call->shape.past + queries.first, .count = queries.count};
}

/* Returns count rounded up to what a small product requires of its columns (and so of its rows). */
static inline int64_t padded(int64_t count) {
    return (count + SMALL_PRODUCT_COLUMNS - 1) / SMALL_PRODUCT_COLUMNS * SMALL_PRODUCT_COLUMNS;
}

/* A head's rows in a tensor: element (token, i) is at first + token·stride + i. */
struct head_rows {
    int64_t first, stride;
};

static inline struct head_rows query_rows(const struct sw_attention *shape, int64_t batch, int64_t head) {
    return (struct head_rows){.first = batch * shape->seq * shape->q_stride + head * sw_attention_head_stride(shape),
                              .stride = shape->q_stride};
}

static inline struct head_rows output_rows(const struct sw_attention *shape, int64_t batch, int64_t head) {
    return (struct head_rows){.first = batch * shape->seq * shape->o_stride + head * shape->head_dim,
                              .stride = shape->o_stride};
}

static inline struct head_rows key_rows(const struct sw_attention *shape, int64_t batch, int64_t kv_head) {
    const int64_t column = kv_head * sw_attention_head_stride(shape);
    return (struct head_rows){.first = batch * (shape->past + shape->seq) * shape->k_stride + column,
                              .stride = shape->k_stride};
}

static inline struct head_rows value_rows(const struct sw_attention *shape, int64_t batch, int64_t kv_head) {
    const int64_t column = kv_head * sw_attention_head_stride(shape);
    return (struct head_rows){.first = batch * (shape->past + shape->seq) * shape->v_stride + column,
                              .stride = shape->v_stride};
}

/* Returns the first key that a query, given by its position, sees: the beginning of its window or of its document.
 * Never smaller than an earlier query's. */
static inline int64_t first_key_of(const struct sw_attention *shape, int64_t batch, int64_t position) {
    const int64_t in_window = shape->window > 0 ? sw_max_i64(0, position - shape->window + 1) : 0;
    const int64_t query = position - shape->past;
    return shape->document_start == NULL ? in_window
                                         : sw_max_i64(in_window, shape->document_start[batch * shape->seq + query]);
}

/* Returns the first block of keys that a block of queries, given by their positions, sees. */
static inline int64_t first_key_block(const struct sw_attention *shape, int64_t batch, struct block queries) {
    return first_key_of(shape, batch, queries.first) / BLOCK;
}

/* Returns whether some of these queries see only the later keys of a block. */
static inline bool cuts_block(const struct sw_attention *shape, int64_t batch, struct block queries,
                              struct block keys) {
    return first_key_of(shape, batch, queries.first + queries.count - 1) > keys.first;
}

static struct call call_of(sw_dtype type, const struct sw_attention *shape) {
    const bool pairs = SW_FAST_PAIRS && type == SW_BF16;
    const int64_t terms = pairs ? sw_round_up(shape->head_dim, 2) : shape->head_dim;
    return (struct call){.type = type,
                         .shape = *shape,
                         .pairs = pairs,
                         .terms = terms,
                         .padded_dim = padded(shape->head_dim),
                         .row_words = padded(pairs ? terms / 2 : terms),
                         .blocks = sw_div_up(shape->seq, BLOCK)};
}

/* Loads a block as fp32 [BLOCK, padded_dim], padded with zeros to whole vectors. */
static void block_load(const struct call *call, const void *tensor, struct head_rows rows, struct block block,
                       float *to) {
    const int64_t dim = call->shape.head_dim, width = call->padded_dim;
    for (int64_t i = 0; i < block.count; i++) {
        const int64_t at = rows.first + (block.first + i) * rows.stride;
        sw_widen(call->type, tensor, at, dim, to + i * width);
        for (int64_t j = dim; j < width; j++)
            to[i * width + j] = 0.0f;
    }
    memset(to + block.count * width, 0, (size_t)((padded(block.count) - block.count) * width) * sizeof *to);
}

/* Stores a block into its tensor, without the padding. */
static void block_store(const struct call *call, const float *from, struct head_rows rows, struct block block,
                        void *tensor) {
    const int64_t dim = call->shape.head_dim;
    for (int64_t i = 0; i < block.count; i++) {
        const int64_t at = rows.first + (block.first + i) * rows.stride;
        sw_narrow(call->type, tensor, at, dim, from + i * call->padded_dim);
    }
}

/* Copies a row of bf16 numbers, padded with zeros. The rows are too short to call the library for each. */
static void copy_row(int64_t count, int64_t width, const uint16_t *from, uint16_t *to) {
    int64_t i = 0;
    for (; i + SW_LANES <= count; i += SW_LANES)
        *(sw_vec_half_unaligned *)(to + i) = *(const sw_vec_half_unaligned *)(from + i);
    for (; i < width; i++)
        to[i] = i < count ? from[i] : 0;
}

/* Loads a block as words [BLOCK, row_words], with the terms along a row, padded with zeros. */
static void block_words(const struct call *call, const void *tensor, struct head_rows rows, struct block block,
                        void *to) {
    const int64_t width = 2 * call->row_words;
    if (!call->pairs) {
        block_load(call, tensor, rows, block, to);
        return;
    }
    uint16_t *row = to;
    for (int64_t i = 0; i < block.count; i++, row += width)
        copy_row(call->shape.head_dim, width, (const uint16_t *)tensor + rows.first + (block.first + i) * rows.stride,
                 row);
    memset(row, 0, (size_t)((padded(block.count) - block.count) * width) * sizeof *row);
}

/* Transposes by squares, so that both sides stay in the first-level cache. */
/* Transposes such words into rows of BLOCK, one word per token: to[i][token] = from[token][i]. */
static void block_transpose(const struct call *call, struct block block, const void *from, void *to) {
    enum { SQUARE = SMALL_PRODUCT_COLUMNS };
    const sw_word *in = from;
    sw_word *out = to;
    for (int64_t token = 0; token < padded(block.count); token += SQUARE) {
        for (int64_t i = 0; i < call->row_words; i += SQUARE) {
            for (int64_t row = 0; row < SQUARE; row++) {
                for (int64_t col = 0; col < SQUARE; col++)
                    out[(i + row) * BLOCK + token + col] = in[(token + col) * call->row_words + i + row];
            }
        }
    }
}

/* Returns words [tokens, padded_dim] whose terms are tokens: in `to`, or `from` itself if its words are single numbers.
 */
static const void *block_stack(const struct call *call, struct block block, const void *from, void *to) {
    if (!call->pairs)
        return from;
    const int64_t row_elems = 2 * call->row_words;
    sw_word *out = to;
    for (int64_t token = 0; token < padded(block.count); token += 2, out += call->padded_dim) {
        const uint16_t *first = (const uint16_t *)from + token * row_elems, *second = first + row_elems;
        for (int64_t i = 0; i < call->padded_dim; i += SW_LANES)
            sw_store_words(out + i, sw_pairs_of_rows(first + i, second + i));
    }
    return to;
}

/* Computes scores[key, query] = rows·transposed. `diagonal`: the blocks are on the diagonal. */
static void block_scores(const struct call *call, const void *rows, const void *transposed, int64_t keys,
                         int64_t queries, bool diagonal, float *scores) {
    small_product(&(struct small_product){.m = keys,
                                          .n = queries,
                                          .k = call->terms,
                                          .pairs = call->pairs,
                                          .a = rows,
                                          .a_row = call->row_words,
                                          .a_term = 1,
                                          .b = transposed,
                                          .b_row = BLOCK,
                                          .c = scores,
                                          .c_row = BLOCK,
                                          .part = diagonal ? PART_COLUMNS_FROM_ROW : PART_ALL});
}

/* Returns the slope of a head's biases in units of unscaled scores; 0: there are none. */
static inline float raw_slope(const struct sw_attention *shape, int64_t head) {
    return shape->alibi_heads > 0 ? sw_alibi_slope(shape->alibi_heads, shape->alibi_first + head) / shape->scale : 0.0f;
}

/* Adds the biases of ALiBi to unscaled scores[key][query]. Both blocks are positions. */
static void block_bias(struct block queries, struct block keys, float slope, float *scores) {
    if (slope == 0.0f)
        return;
    for (int64_t key = 0; key < padded(keys.count); key++) {
        const float first = (float)(keys.first + key - queries.first);
        float *row = scores + key * BLOCK;
#pragma omp simd
        for (int query = 0; query < (int)padded(queries.count); query++)
            row[query] += slope * (first - (float)query);
    }
}

/* Sets scores[key][query] to value if the key comes after the query, whose position is given. */
static void block_mask(struct block queries, struct block keys, float value, float *scores) {
    for (int64_t key = 0; key < padded(keys.count); key++) {
        const int64_t end = sw_min_i64(keys.first + key - queries.first, BLOCK);
        for (int64_t query = 0; query < end; query++)
            scores[key * BLOCK + query] = value;
    }
}

/* Sets scores[key][query] to value if the key comes before the first that the query sees. */
static void block_mask_before(const struct sw_attention *shape, int64_t batch, struct block queries, struct block keys,
                              float value, float *scores) {
    int64_t seeing = 0; /* queries that see the key: the first ones; a later key has at least as many */
    for (int64_t key = 0; key < keys.count; key++) {
        while (seeing < queries.count && first_key_of(shape, batch, queries.first + seeing) <= keys.first + key)
            seeing++;
        for (int64_t query = seeing; query < padded(queries.count); query++)
            scores[key * BLOCK + query] = value;
    }
}

/* Attention of one query per sequence: products of a vector and a matrix. Reading keys and values is the bottleneck, so
 * they are used in place. */

/* One query of one head, while it takes the keys block by block. */
struct query {
    int64_t dim, position;
    float scale;
    float slope;         /* of ALiBi; 0: scores have no biases */
    struct sw_tile q, o; /* o is unnormalised until the end */
    float largest, sum;  /* over the keys so far */
    float weight[BLOCK]; /* one entry per key of the block: scores, then exponentials */
};
static_assert((int)SW_TILE_ELEMS >= (int)SW_ATTENTION_MAX_HEAD_DIM, "a tile holds a head");

SW_INLINE void score_keys(const sw_dtype type, struct query *query, const void *k, struct head_rows rows,
                          struct block keys) {
    for (int64_t key = 0; key < keys.count; key++) {
        const int64_t at = rows.first + (keys.first + key) * rows.stride;
        sw_vec sum = {0};
        for (int64_t i = 0; i < query->dim; i += SW_LANES)
            sum =
                sw_vec_fma(sw_vec_load(query->q.value + i), sw_load_up_to(type, k, at + i, query->dim - i, 0.0f), sum);
        query->weight[key] =
            query->scale * sw_vec_sum(sum) - query->slope * (float)(query->position - keys.first - key);
    }
}

SW_INLINE void add_values(const sw_dtype type, struct query *query, float rescale, const void *v, struct head_rows rows,
                          struct block keys) {
    for (int64_t i = 0; i < query->dim; i += SW_LANES) {
        sw_vec sum = sw_vec_load(query->o.value + i) * rescale;
        for (int64_t key = 0; key < keys.count; key++) {
            const int64_t at = rows.first + (keys.first + key) * rows.stride;
            const sw_vec value = sw_load_up_to(type, v, at + i, query->dim - i, 0.0f);
            sum = sw_vec_fma(sw_vec_splat(query->weight[key]), value, sum);
        }
        sw_vec_store(query->o.value + i, sum);
    }
}

/* Turns scores into exponentials relative to the largest so far. Returns the factor for everything accumulated before.
 */
static float take_scores(struct query *query, int64_t keys) {
    sw_vec largest = sw_vec_splat(query->largest), sum = {0};
    for (int64_t key = keys; key < BLOCK; key++)
        query->weight[key] = -INFINITY;
    for (int64_t i = 0; i < BLOCK; i += SW_LANES)
        largest = sw_vec_max(sw_vec_load(query->weight + i), largest);
    const float now = sw_vec_largest(largest), rescale = expf(query->largest - now);
    for (int64_t i = 0; i < BLOCK; i += SW_LANES) {
        const sw_vec p = sw_vec_exp(sw_vec_load(query->weight + i) - now);
        sw_vec_store(query->weight + i, p);
        sum += p;
    }
    query->largest = now;
    query->sum = query->sum * rescale + sw_vec_sum(sum);
    return rescale;
}

static void attend(const struct sw_attention_forward *op, int64_t batch, int64_t head, struct query *query) {
    const struct sw_attention *shape = op->shape;
    const int64_t kv_head = head / (shape->heads / shape->kv_heads), end = shape->past + 1;
    const struct head_rows k_rows = key_rows(shape, batch, kv_head), v_rows = value_rows(shape, batch, kv_head);
    const int64_t first = shape->window > 0 ? sw_max_i64(0, end - shape->window) : 0;
    for (int64_t key = first; key < end; key += BLOCK) {
        const struct block keys = {.first = key, .count = sw_min_i64(BLOCK, end - key)};
        SW_FOR_TYPE(score_keys, op->type, query, op->k, k_rows, keys);
        const float rescale = take_scores(query, keys.count);
        SW_FOR_TYPE(add_values, op->type, query, rescale, op->v, v_rows, keys);
    }
}

static void some_pairs(const void *args, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct sw_attention_forward *op = args;
    const struct sw_attention *shape = op->shape;
    for (int64_t pair = first; pair < end; pair++) {
        const int64_t batch = pair / shape->heads, head = pair % shape->heads;
        struct query query = {.dim = shape->head_dim,
                              .position = shape->past,
                              .scale = shape->scale,
                              .slope = raw_slope(shape, head) * shape->scale,
                              .largest = -FLT_MAX};
        sw_widen(op->type, op->q, query_rows(shape, batch, head).first, query.dim, query.q.value);
        attend(op, batch, head, &query);
        for (int64_t i = 0; i < query.dim; i++)
            query.o.value[i] /= query.sum;
        sw_narrow(op->type, op->o, output_rows(shape, batch, head).first, query.dim, query.o.value);
        op->log_sum_exp[pair] = query.largest + logf(query.sum);
    }
}

/* Runs the forward op if a sequence has one query, as when a text is continued. */
static sw_status forward_of_one(struct sw_stream *stream, const struct sw_attention_forward *op) {
    sw_cpu_share(stream, true, op->shape->batch * op->shape->heads, some_pairs, op);
    return SW_OK;
}

/* One thread's memory. Names are those of the literature: O is unnormalised until the end. */
struct forward_space {
    void *q, *q_transposed, *k; /* words */
    float *v, *o;               /* [BLOCK, dim] */
    float *scores;              /* [key, query], unscaled; then the numerators of the probabilities */
    float *largest, *sum;       /* per query, so far; the largest is unscaled */
};

/* Returns the size in floats of a thread's working memory, which is part of the caller's scratch. */
static int64_t forward_floats(const struct call *call) {
    return 5 * BLOCK * call->padded_dim + BLOCK * BLOCK + 2 * BLOCK;
}

static struct forward_space carve_forward(const struct call *call, float *at) {
    const int64_t block = BLOCK * call->padded_dim;
    float *scores = at + 5 * block;
    return (struct forward_space){.q = at,
                                  .q_transposed = at + block,
                                  .k = at + 2 * block,
                                  .v = at + 3 * block,
                                  .o = at + 4 * block,
                                  .scores = scores,
                                  .largest = scores + BLOCK * BLOCK,
                                  .sum = scores + BLOCK * BLOCK + BLOCK};
}

struct forward_call {
    struct call call;
    const struct sw_attention_forward *op;
    int64_t thread_floats; /* floats of the scratch per thread */
};

/* Returns the factor from a difference of unscaled scores to an exponent of 2. */
static float exponent_scale(const struct call *call) {
    return call->shape.scale * SW_LOG2_E;
}

/* Updates the running maximum, and rescales what was summed with the old one. */
static void raise_largest(const struct call *call, const struct forward_space *s, int64_t keys, int64_t queries) {
    const float scale = exponent_scale(call);
    float rescale[BLOCK], largest[BLOCK];
    bool raised = false;
    memcpy(largest, s->largest, sizeof largest);
    for (int64_t key = 0; key < keys; key++) {
        const float *row = s->scores + key * BLOCK;
        for (int64_t i = 0; i < queries; i += SW_LANES)
            sw_vec_store(largest + i, sw_vec_max(sw_vec_load(row + i), sw_vec_load(largest + i)));
    }
    for (int64_t i = 0; i < queries; i += SW_LANES) {
        const sw_vec before = sw_vec_load(s->largest + i), now = sw_vec_load(largest + i);
        const sw_vec factor = sw_vec_exp2((before - now) * scale);
        sw_vec_store(rescale + i, factor);
        sw_vec_store(s->sum + i, sw_vec_load(s->sum + i) * factor);
        sw_vec_store(s->largest + i, now);
    }
    for (int64_t i = 0; i < queries; i++)
        raised = raised || rescale[i] != 1.0f;
    for (int64_t i = 0; raised && i < queries; i++) {
        float *o = s->o + i * call->padded_dim;
#pragma omp simd
        for (int64_t j = 0; j < call->padded_dim; j++)
            o[j] *= rescale[i];
    }
}

static void exponentials(const struct call *call, const struct forward_space *s, int64_t keys, int64_t queries) {
    const float scale = exponent_scale(call);
    for (int64_t i = 0; i < queries; i += SW_LANES) {
        const sw_vec largest = sw_vec_load(s->largest + i);
        sw_vec sum = sw_vec_load(s->sum + i);
        for (int64_t key = 0; key < keys; key++) {
            float *scores = s->scores + key * BLOCK + i;
            const sw_vec p = sw_vec_exp2((sw_vec_load(scores) - largest) * scale);
            sw_vec_store(scores, p);
            sum += p;
        }
        sw_vec_store(s->sum + i, sum);
    }
}

/* Adds one block of keys to the sums of a block of queries, given by their positions. */
static void take_keys(const struct call *call, const struct forward_space *s, int64_t batch, int64_t head,
                      struct block key_block, struct block query_block) {
    const int64_t dim = call->padded_dim;
    const int64_t keys = padded(key_block.count), queries = padded(query_block.count);
    const bool diagonal = key_block.first == query_block.first;
    const bool hides = key_block.first + keys > query_block.first + 1; /* some keys are hidden from the first query */
    block_scores(call, s->k, s->q_transposed, keys, queries, diagonal, s->scores);
    block_bias(query_block, key_block, raw_slope(&call->shape, head), s->scores);
    if (hides)
        block_mask(query_block, key_block, -INFINITY, s->scores);
    if (cuts_block(&call->shape, batch, query_block, key_block))
        block_mask_before(&call->shape, batch, query_block, key_block, -INFINITY, s->scores);
    raise_largest(call, s, keys, queries);
    exponentials(call, s, keys, queries);
    small_product(&(struct small_product){.m = queries,
                                          .n = dim,
                                          .k = keys,
                                          .a = s->scores,
                                          .a_row = 1,
                                          .a_term = BLOCK,
                                          .b = s->v,
                                          .b_row = dim,
                                          .c = s->o,
                                          .c_row = dim,
                                          .accumulate = true,
                                          .part = diagonal ? PART_TERMS_UP_TO_ROW : PART_ALL});
}

static void start_queries(const struct call *call, const struct forward_space *s) {
    memset(s->o, 0, (size_t)(BLOCK * call->padded_dim) * sizeof *s->o);
    for (int64_t i = 0; i < BLOCK; i++) {
        s->largest[i] = -FLT_MAX; /* finite, so that the difference of two of them is a number */
        s->sum[i] = 0.0f;
    }
}

static void finish_queries(const struct forward_call *f, const struct forward_space *s, int64_t batch, int64_t head,
                           struct block block) {
    const struct sw_attention *shape = &f->call.shape;
    float *lse = f->op->log_sum_exp + (batch * shape->heads + head) * shape->seq + block.first;
    for (int64_t i = 0; i < block.count; i++) {
        const float inverse = 1.0f / s->sum[i];
        float *o = s->o + i * f->call.padded_dim;
        lse[i] = s->largest[i] * shape->scale + logf(s->sum[i]);
#pragma omp simd
        for (int64_t j = 0; j < f->call.padded_dim; j++)
            o[j] *= inverse;
    }
    block_store(&f->call, s->o, output_rows(shape, batch, head), block, f->op->o);
}

static void forward_block(const struct forward_call *f, const struct forward_space *s, int64_t batch, int64_t head,
                          int64_t index) {
    const struct call *call = &f->call;
    const struct sw_attention *shape = &call->shape;
    const struct block queries = block_at(call, index), positions = positions_of(call, queries);
    const int64_t kv_head = head / (shape->heads / shape->kv_heads);
    const struct head_rows k_rows = key_rows(shape, batch, kv_head), v_rows = value_rows(shape, batch, kv_head);
    block_words(call, f->op->q, query_rows(shape, batch, head), queries, s->q);
    block_transpose(call, queries, s->q, s->q_transposed);
    start_queries(call, s);
    const int64_t last = (positions.first + positions.count - 1) / BLOCK;
    for (int64_t key_index = first_key_block(shape, batch, positions); key_index <= last; key_index++) {
        const struct block keys = key_block_at(call, key_index);
        block_words(call, f->op->k, k_rows, keys, s->k);
        block_load(call, f->op->v, v_rows, keys, s->v);
        take_keys(call, s, batch, head, keys, positions);
    }
    finish_queries(f, s, batch, head, queries);
}

/* The longest rows come first, so that the threads finish together. */
static void forward_items(const void *context, int64_t first, int64_t end, int thread) {
    const struct forward_call *f = context;
    const struct sw_attention *shape = &f->call.shape;
    const int64_t pairs = shape->batch * shape->heads;
    const struct forward_space space = carve_forward(&f->call, (float *)f->op->scratch + thread * f->thread_floats);
    for (int64_t item = first; item < end; item++) {
        const int64_t pair = item % pairs, index = f->call.blocks - 1 - item / pairs;
        forward_block(f, &space, pair / shape->heads, pair % shape->heads, index);
    }
}

static sw_status forward(struct sw_stream *stream, const void *args) {
    const struct sw_attention_forward *op = args;
    const struct sw_attention *shape = op->shape;
    if (shape->seq == 1)
        return forward_of_one(stream, op);
    struct forward_call f = {.call = call_of(op->type, shape), .op = op};
    f.thread_floats = forward_floats(&f.call);
    sw_cpu_share_long(stream, shape->batch * shape->heads * f.call.blocks, forward_items, &f);
    return SW_OK;
}

/* If a thread takes one key head with all query heads that use it, the scores of a pair of blocks are computed once for
 * dq, dk and dv. If that leaves threads without work, dk and dv of a few blocks of keys are one item, and dq of a block
 * of queries another: twice the scores, but items for every thread. Either way sums have the same order: dk and dv over
 * heads, then queries; dq over keys. */

struct backward_space {
    void *rows;                          /* words of a block in transit */
    void *q_transposed, *d_o_transposed; /* words, terms along the dimension */
    void *q_stacked, *d_o_stacked;       /* words, terms along queries */
    void *k, *v, *k_stacked;             /* words of a block of keys, the last with terms along keys */
    float *dq;                           /* [BLOCK, dim] */
    float *p, *ds;                       /* [key, query]: probabilities, gradients of the scores */
    void *p_rows, *ds_rows, *ds_columns; /* p and ds as words, terms along queries or along keys */
    float *log2_sum, *delta;             /* one entry per query: log-sum-exp to base 2; o·d_o */
    float *dk, *dv;                      /* [keys, dim], summed over queries and heads */
};

enum { SPACE_BLOCKS = 9, SPACE_SQUARES = 4, STRIP_BLOCKS = 4 };

/* Which gradients of a pair of blocks to compute. */
typedef enum { KEYS = 1, QUERIES = 2, BOTH = KEYS | QUERIES } sides;

/* Returns whether one thread computes all gradients of a key head. If keys and queries are split, a pair of blocks
 * takes seven products instead of five. */
static bool together(const struct call *call, int threads) {
    const int64_t items = call->shape.batch * call->shape.kv_heads;
    return 5 * sw_div_up(items, threads) * threads <= 7 * items;
}

static int64_t strip_blocks(const struct call *call, int threads) {
    return together(call, threads) ? call->blocks : sw_min_i64(STRIP_BLOCKS, call->blocks);
}

/* Returns the size in floats of a thread's working memory in the backward pass. */
static int64_t backward_floats(const struct call *call, int threads) {
    return (SPACE_BLOCKS + 2 * strip_blocks(call, threads)) * BLOCK * call->padded_dim + SPACE_SQUARES * BLOCK * BLOCK +
           2 * BLOCK;
}

static float *take(float **at, int64_t floats) {
    float *taken = *at;
    *at += floats;
    return taken;
}

static struct backward_space carve_backward(const struct call *call, int64_t strip, float *at) {
    const int64_t block = BLOCK * call->padded_dim, square = BLOCK * BLOCK;
    struct backward_space s = {.rows = take(&at, block),
                               .q_transposed = take(&at, block),
                               .d_o_transposed = take(&at, block),
                               .q_stacked = take(&at, block),
                               .d_o_stacked = take(&at, block),
                               .k = take(&at, block),
                               .v = take(&at, block),
                               .k_stacked = take(&at, block),
                               .dq = take(&at, block),
                               .p = take(&at, square),
                               .ds = take(&at, square),
                               .log2_sum = take(&at, BLOCK),
                               .delta = take(&at, BLOCK),
                               .dk = take(&at, strip * block),
                               .dv = take(&at, strip * block)};
    s.p_rows = call->pairs ? take(&at, square / 2) : s.p;
    s.ds_rows = call->pairs ? take(&at, square / 2) : s.ds;
    s.ds_columns = call->pairs ? take(&at, square / 2) : s.ds;
    return s;
}

struct backward_call {
    struct call call;
    const struct sw_attention_backward *op;
    int64_t strip; /* blocks of keys whose gradients a thread sums at once */
    bool whole_heads;
    int64_t thread_floats; /* floats of the scratch per thread */
};

SW_INLINE float dot(const sw_dtype type, int64_t count, const void *a, const void *b, int64_t at) {
    sw_vec sum = {0};
    for (int64_t i = 0; i < count; i += SW_LANES)
        sum = sw_vec_fma(sw_load_up_to(type, a, at + i, count - i, 0.0f),
                         sw_load_up_to(type, b, at + i, count - i, 0.0f), sum);
    return sw_vec_sum(sum);
}

/* Loads the statistics of each row of scores. Padded queries get zeros, which add nothing. */
static void load_statistics(const struct backward_call *b, const struct backward_space *s, int64_t batch, int64_t head,
                            struct block queries) {
    const struct sw_attention *shape = &b->call.shape;
    const struct head_rows rows = output_rows(shape, batch, head);
    const float *log_sum_exp = b->op->log_sum_exp + (batch * shape->heads + head) * shape->seq + queries.first;
    memset(s->delta, 0, BLOCK * sizeof *s->delta);
    memset(s->log2_sum, 0, BLOCK * sizeof *s->log2_sum);
    for (int64_t i = 0; i < queries.count; i++) {
        const int64_t at = rows.first + (queries.first + i) * rows.stride;
        s->delta[i] = SW_FOR_TYPE(dot, b->call.type, shape->head_dim, b->op->o, b->op->d_o, at);
        s->log2_sum[i] = log_sum_exp[i] * SW_LOG2_E;
    }
}

/* Loads both forms of a block of queries' words. With single numbers the stack is the rows themselves, so these stay.
 */
static void load_queries(const struct backward_call *b, const struct backward_space *s, int64_t batch, int64_t head,
                         struct block queries) {
    const struct call *call = &b->call;
    const struct {
        const void *tensor;
        struct head_rows rows;
        void *transposed, *stacked;
    } parts[] = {{b->op->q, query_rows(&call->shape, batch, head), s->q_transposed, s->q_stacked},
                 {b->op->d_o, output_rows(&call->shape, batch, head), s->d_o_transposed, s->d_o_stacked}};
    for (int i = 0; i < 2; i++) {
        void *rows = call->pairs ? s->rows : parts[i].stacked;
        block_words(call, parts[i].tensor, parts[i].rows, queries, rows);
        block_transpose(call, queries, rows, parts[i].transposed);
        block_stack(call, queries, rows, parts[i].stacked);
    }
    load_statistics(b, s, batch, head, queries);
    memset(s->dq, 0, (size_t)(BLOCK * call->padded_dim) * sizeof *s->dq);
}

/* Computes p and ds from the raw scores in p and from d_o·v in ds. */
static void score_gradients(const struct backward_space *s, float scale, int64_t keys, int64_t queries) {
    for (int64_t i = 0; i < queries; i += SW_LANES) {
        const sw_vec log2_sum = sw_vec_load(s->log2_sum + i), delta = sw_vec_load(s->delta + i);
        for (int64_t key = 0; key < keys; key++) {
            float *p = s->p + key * BLOCK + i, *ds = s->ds + key * BLOCK + i;
            const sw_vec exponent = sw_vec_fma(sw_vec_load(p), sw_vec_splat(scale * SW_LOG2_E), -log2_sum);
            const sw_vec probability = sw_vec_exp2(exponent);
            sw_vec_store(p, probability);
            sw_vec_store(ds, probability * (sw_vec_load(ds) - delta) * scale);
        }
    }
}

/* Rounds p and ds to words. */
static void pack_gradients(const struct backward_space *s, int64_t keys, int64_t queries) {
    static_assert(BLOCK % (2 * SW_LANES) == 0, "rows are rounded by two vectors");
    for (int64_t key = 0; key < keys; key += 2) {
        const float *p = s->p + key * BLOCK, *ds = s->ds + key * BLOCK;
        uint16_t *p_rows = (uint16_t *)s->p_rows + key * BLOCK, *ds_rows = (uint16_t *)s->ds_rows + key * BLOCK;
        sw_word *columns = (sw_word *)s->ds_columns + key / 2 * BLOCK;
        for (int64_t i = 0; i < queries; i += SW_LANES)
            sw_store_words(columns + i, sw_vec_to_pairs(sw_vec_load(ds + i), sw_vec_load(ds + BLOCK + i)));
        for (int64_t i = 0; i < 2 * BLOCK; i += 2 * SW_LANES) {
            sw_store_two_bf16(p_rows + i, sw_vec_load(p + i), sw_vec_load(p + i + SW_LANES));
            sw_store_two_bf16(ds_rows + i, sw_vec_load(ds + i), sw_vec_load(ds + i + SW_LANES));
        }
    }
}

/* sum[key, dim] += weights[key, query]·stacked[query, dim]. */
static void add_over_queries(const struct call *call, const void *weights, const void *stacked, int64_t keys,
                             int64_t queries, bool diagonal, float *sum) {
    small_product(&(struct small_product){.m = keys,
                                          .n = call->padded_dim,
                                          .k = queries,
                                          .pairs = call->pairs,
                                          .a = weights,
                                          .a_row = call->pairs ? BLOCK / 2 : BLOCK,
                                          .a_term = 1,
                                          .b = stacked,
                                          .b_row = call->padded_dim,
                                          .c = sum,
                                          .c_row = call->padded_dim,
                                          .accumulate = true,
                                          .part = diagonal ? PART_TERMS_FROM_ROW : PART_ALL});
}

/* dq[query, dim] += ds[query, key]·k[key, dim]. */
static void add_over_keys(const struct call *call, const struct backward_space *s, const void *k_stacked, int64_t keys,
                          int64_t queries, bool diagonal) {
    small_product(&(struct small_product){.m = queries,
                                          .n = call->padded_dim,
                                          .k = keys,
                                          .pairs = call->pairs,
                                          .a = s->ds_columns,
                                          .a_row = 1,
                                          .a_term = BLOCK,
                                          .b = k_stacked,
                                          .b_row = call->padded_dim,
                                          .c = s->dq,
                                          .c_row = call->padded_dim,
                                          .accumulate = true,
                                          .part = diagonal ? PART_TERMS_UP_TO_ROW : PART_ALL});
}

/* Adds the gradients of a pair of blocks. dk and dv begin with the key first_key. */
static void take_pair(const struct backward_call *b, const struct backward_space *s, int64_t batch, int64_t head,
                      struct block query_block, struct block key_block, int64_t first_key, sides want) {
    const struct call *call = &b->call;
    const bool diagonal = query_block.first == key_block.first;
    const int64_t keys = padded(key_block.count), queries = padded(query_block.count);
    const int64_t at = (key_block.first - first_key) * call->padded_dim;
    block_scores(call, s->k, s->q_transposed, keys, queries, diagonal, s->p);
    block_bias(query_block, key_block, raw_slope(&call->shape, head), s->p);
    block_scores(call, s->v, s->d_o_transposed, keys, queries, diagonal, s->ds);
    if (diagonal) {
        block_mask(query_block, key_block, -INFINITY, s->p);
        block_mask(query_block, key_block, 0.0f, s->ds);
    }
    if (cuts_block(&call->shape, batch, query_block, key_block)) {
        block_mask_before(&call->shape, batch, query_block, key_block, -INFINITY, s->p);
        block_mask_before(&call->shape, batch, query_block, key_block, 0.0f, s->ds);
    }
    score_gradients(s, call->shape.scale, keys, queries);
    if (call->pairs)
        pack_gradients(s, keys, queries);
    if (want & KEYS) {
        add_over_queries(call, s->p_rows, s->d_o_stacked, keys, queries, diagonal, s->dv + at);
        add_over_queries(call, s->ds_rows, s->q_stacked, keys, queries, diagonal, s->dk + at);
    }
    if (want & QUERIES)
        add_over_keys(call, s, block_stack(call, key_block, s->k, s->k_stacked), keys, queries, diagonal);
}

/* Combines a block of queries with the blocks of keys [first, end), as far as it sees them. */
static void take_queries(const struct backward_call *b, const struct backward_space *s, int64_t batch, int64_t head,
                         struct block queries, int64_t first, int64_t end, sides want) {
    const struct call *call = &b->call;
    const int64_t kv_head = head / (call->shape.heads / call->shape.kv_heads);
    load_queries(b, s, batch, head, queries);
    const int64_t begin = sw_max_i64(first, first_key_block(&call->shape, batch, queries));
    for (int64_t index = begin; index < end && index * BLOCK <= queries.first; index++) {
        const struct block keys = block_at(call, index);
        block_words(call, b->op->k, key_rows(&call->shape, batch, kv_head), keys, s->k);
        block_words(call, b->op->v, value_rows(&call->shape, batch, kv_head), keys, s->v);
        take_pair(b, s, batch, head, queries, keys, first * BLOCK, want);
    }
    if (want & QUERIES)
        block_store(call, s->dq, query_rows(&call->shape, batch, head), queries, b->op->dq);
}

/* Computes dk and dv of the blocks of keys [first, end); with BOTH, which requires all blocks, dq too. */
static void sum_keys(const struct backward_call *b, const struct backward_space *s, int64_t batch, int64_t kv_head,
                     int64_t first, int64_t end, sides want) {
    const struct call *call = &b->call;
    const int64_t group = call->shape.heads / call->shape.kv_heads;
    const size_t sum_bytes = (size_t)((end - first) * BLOCK * call->padded_dim) * sizeof *s->dk;
    memset(s->dk, 0, sum_bytes);
    memset(s->dv, 0, sum_bytes);
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; head++) {
        for (int64_t index = first; index < call->blocks; index++) {
            const struct block queries = block_at(call, index);
            if (first_key_block(&call->shape, batch, queries) >= end)
                break;
            take_queries(b, s, batch, head, queries, first, end, want);
        }
    }
    for (int64_t index = first; index < end; index++) {
        const struct block keys = block_at(call, index);
        const int64_t at = (index - first) * BLOCK * call->padded_dim;
        block_store(call, s->dk + at, key_rows(&call->shape, batch, kv_head), keys, b->op->dk);
        block_store(call, s->dv + at, value_rows(&call->shape, batch, kv_head), keys, b->op->dv);
    }
}

static struct backward_space space_of(const struct backward_call *b, int thread) {
    return carve_backward(&b->call, b->strip, (float *)b->op->scratch + thread * b->thread_floats);
}

/* Long items come first, so that the threads finish together. */
static void key_items(const void *context, int64_t first_item, int64_t end_item, int thread) {
    const struct backward_call *b = context;
    const struct call *call = &b->call;
    const int64_t kv_heads = call->shape.kv_heads, pairs = call->shape.batch * kv_heads;
    const struct backward_space space = space_of(b, thread);
    for (int64_t item = first_item; item < end_item; item++) {
        const int64_t pair = item % pairs, first = item / pairs * b->strip;
        sum_keys(b, &space, pair / kv_heads, pair % kv_heads, first, sw_min_i64(first + b->strip, call->blocks),
                 b->whole_heads ? BOTH : KEYS);
    }
}

static void query_items(const void *context, int64_t first, int64_t end, int thread) {
    const struct backward_call *b = context;
    const struct call *call = &b->call;
    const int64_t heads = call->shape.heads, pairs = call->shape.batch * heads;
    const struct backward_space space = space_of(b, thread);
    for (int64_t item = first; item < end; item++) {
        const int64_t pair = item % pairs, index = call->blocks - 1 - item / pairs;
        take_queries(b, &space, pair / heads, pair % heads, block_at(call, index), 0, call->blocks, QUERIES);
    }
}

static sw_status backward(struct sw_stream *stream, const void *args) {
    const struct sw_attention_backward *op = args;
    const int threads = stream->device->info.threads;
    const struct call call = call_of(op->type, op->shape);
    const struct backward_call b = {.call = call,
                                    .op = op,
                                    .strip = strip_blocks(&call, threads),
                                    .whole_heads = together(&call, threads),
                                    .thread_floats = backward_floats(&call, threads)};
    const struct sw_attention *shape = &call.shape;
    sw_cpu_share_long(stream, shape->batch * shape->kv_heads * sw_div_up(call.blocks, b.strip), key_items, &b);
    if (!b.whole_heads)
        sw_cpu_share_long(stream, shape->batch * shape->heads * call.blocks, query_items, &b);
    return SW_OK;
}

static int64_t attention_scratch_bytes(const struct sw_device *device, const struct sw_attention *shape,
                                       sw_dtype type) {
    const struct call call = call_of(type, shape);
    const int64_t forward = forward_floats(&call);
    const int64_t backward = backward_floats(&call, device->info.threads);
    return device->info.threads * sw_max_i64(forward, backward) * (int64_t)sizeof(float);
}

void SW_ISA_NAME(sw_cpu_add_attention)(struct sw_device_ops *ops) {
    ops->attention_scratch_bytes = attention_scratch_bytes;
    ops->op[SW_DEVICE_ATTENTION_FORWARD] = forward;
    ops->op[SW_DEVICE_ATTENTION_BACKWARD] = backward;
}
