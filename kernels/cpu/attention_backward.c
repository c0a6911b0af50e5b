/* The scores of a pair of blocks are computed once for dq, dk and dv where a thread takes one key head with all query
 * heads that use it. Where that would leave threads without work, dk and dv of a few blocks of keys are one item, and
 * dq of a block of queries another: twice the scores, but items for every thread. Either way a sum has the same order:
 * dk and dv over heads and then queries, dq over keys. */
#include "kernels/cpu/attention.h"
#include "kernels/cpu/pairs.h"
#include "kernels/cpu/tile.h"
#include "kernels/cpu/vector_math.h"

#include <math.h>

enum { BLOCK = SW_ATTENTION_BLOCK };

struct backward_space {
    void *rows;                          /* words of a block on their way */
    void *q_transposed, *d_o_transposed; /* words, terms along the dimension */
    void *q_stacked, *d_o_stacked;       /* words, terms along queries */
    void *k, *v, *k_stacked;             /* words of a block of keys, the last with terms along keys */
    float *dq;                           /* [BLOCK, dim] */
    float *p, *ds;                       /* [key, query]: probabilities, gradients of the scores */
    void *p_rows, *ds_rows, *ds_columns; /* p and ds as words, terms along queries or along keys */
    float *log2_sum, *delta;             /* one entry a query: log-sum-exp to base 2; o·d_o */
    float *dk, *dv;                      /* [keys, dim], summed over queries and heads */
};

enum { SPACE_BLOCKS = 9, SPACE_SQUARES = 4, STRIP_BLOCKS = 4 };

/* The gradients that are wanted of a pair of blocks. */
typedef enum { KEYS = 1, QUERIES = 2, BOTH = KEYS | QUERIES } sides;

/* Returns whether one thread computes all gradients of a key head. If keys and queries are split, a pair of blocks
 * takes seven products instead of five. */
static bool together(const struct sw_attention_call *call, int threads) {
    const int64_t items = call->shape.batch * call->shape.kv_heads;
    return 5 * sw_div_up(items, threads) * threads <= 7 * items;
}

static int64_t strip_blocks(const struct sw_attention_call *call, int threads) {
    return together(call, threads) ? call->blocks : sw_min_i64(STRIP_BLOCKS, call->blocks);
}

int64_t SW_ISA_NAME(sw_attention_backward_floats)(const struct sw_attention_call *call, int threads) {
    return (SPACE_BLOCKS + 2 * strip_blocks(call, threads)) * BLOCK * call->padded_dim + SPACE_SQUARES * BLOCK * BLOCK +
           2 * BLOCK;
}

static float *take(float **at, int64_t floats) {
    float *taken = *at;
    *at += floats;
    return taken;
}

static struct backward_space carve(const struct sw_attention_call *call, int64_t strip, float *at) {
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
    struct sw_attention_call call;
    const struct sw_attention_backward *op;
    int64_t strip; /* blocks of keys whose gradients a thread sums at once */
    bool whole_heads;
    int64_t thread_floats; /* of the scratch, for each thread */
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
                            struct sw_block queries) {
    const struct sw_attention *shape = &b->call.shape;
    const struct sw_head_rows rows = sw_output_rows(shape, batch, head);
    const float *log_sum_exp = b->op->log_sum_exp + (batch * shape->heads + head) * shape->seq + queries.first;
    memset(s->delta, 0, BLOCK * sizeof *s->delta);
    memset(s->log2_sum, 0, BLOCK * sizeof *s->log2_sum);
    for (int64_t i = 0; i < queries.count; i++) {
        const int64_t at = rows.first + (queries.first + i) * rows.stride;
        s->delta[i] = SW_FOR_TYPE(dot, b->call.type, shape->head_dim, b->op->o, b->op->d_o, at);
        s->log2_sum[i] = log_sum_exp[i] * SW_LOG2_E;
    }
}

/* Loads both forms of a block of queries' words. A stack of single numbers is the rows themselves, so these stay. */
static void load_queries(const struct backward_call *b, const struct backward_space *s, int64_t batch, int64_t head,
                         struct sw_block queries) {
    const struct sw_attention_call *call = &b->call;
    const struct {
        const void *tensor;
        struct sw_head_rows rows;
        void *transposed, *stacked;
    } parts[] = {{b->op->q, sw_query_rows(&call->shape, batch, head), s->q_transposed, s->q_stacked},
                 {b->op->d_o, sw_output_rows(&call->shape, batch, head), s->d_o_transposed, s->d_o_stacked}};
    for (int i = 0; i < 2; i++) {
        void *rows = call->pairs ? s->rows : parts[i].stacked;
        SW_ISA_NAME(sw_block_words)(call, parts[i].tensor, parts[i].rows, queries, rows);
        SW_ISA_NAME(sw_block_transpose)(call, queries, rows, parts[i].transposed);
        SW_ISA_NAME(sw_block_stack)(call, queries, rows, parts[i].stacked);
    }
    load_statistics(b, s, batch, head, queries);
    memset(s->dq, 0, (size_t)(BLOCK * call->padded_dim) * sizeof *s->dq);
}

/* Makes p and ds from the raw scores in p and from d_o·v in ds. */
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
static void add_over_queries(const struct sw_attention_call *call, const void *weights, const void *stacked,
                             int64_t keys, int64_t queries, bool diagonal, float *sum) {
    SW_ISA_NAME(sw_small_product)
    (&(struct sw_small_product){.m = keys,
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
                                .part = diagonal ? SW_PART_TERMS_FROM_ROW : SW_PART_ALL});
}

/* dq[query, dim] += ds[query, key]·k[key, dim]. */
static void add_over_keys(const struct sw_attention_call *call, const struct backward_space *s, const void *k_stacked,
                          int64_t keys, int64_t queries, bool diagonal) {
    SW_ISA_NAME(sw_small_product)
    (&(struct sw_small_product){.m = queries,
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
                                .part = diagonal ? SW_PART_TERMS_UP_TO_ROW : SW_PART_ALL});
}

/* Adds the gradients of a pair of blocks. dk and dv begin with the key at first_key. */
static void take_pair(const struct backward_call *b, const struct backward_space *s, int64_t batch,
                      struct sw_block query_block, struct sw_block key_block, int64_t first_key, sides want) {
    const struct sw_attention_call *call = &b->call;
    const bool diagonal = query_block.first == key_block.first;
    const int64_t keys = sw_padded(key_block.count), queries = sw_padded(query_block.count);
    const int64_t at = (key_block.first - first_key) * call->padded_dim;
    SW_ISA_NAME(sw_block_scores)(call, s->k, s->q_transposed, keys, queries, diagonal, s->p);
    SW_ISA_NAME(sw_block_scores)(call, s->v, s->d_o_transposed, keys, queries, diagonal, s->ds);
    if (diagonal) {
        SW_ISA_NAME(sw_block_mask)(query_block, key_block, -INFINITY, s->p);
        SW_ISA_NAME(sw_block_mask)(query_block, key_block, 0.0f, s->ds);
    }
    if (sw_cuts_block(&call->shape, batch, query_block, key_block)) {
        SW_ISA_NAME(sw_block_mask_before)(&call->shape, batch, query_block, key_block, -INFINITY, s->p);
        SW_ISA_NAME(sw_block_mask_before)(&call->shape, batch, query_block, key_block, 0.0f, s->ds);
    }
    score_gradients(s, call->shape.scale, keys, queries);
    if (call->pairs)
        pack_gradients(s, keys, queries);
    if (want & KEYS) {
        add_over_queries(call, s->p_rows, s->d_o_stacked, keys, queries, diagonal, s->dv + at);
        add_over_queries(call, s->ds_rows, s->q_stacked, keys, queries, diagonal, s->dk + at);
    }
    if (want & QUERIES)
        add_over_keys(call, s, SW_ISA_NAME(sw_block_stack)(call, key_block, s->k, s->k_stacked), keys, queries,
                      diagonal);
}

/* Takes a block of queries with the blocks of keys [first, end), as far as it sees them. */
static void take_queries(const struct backward_call *b, const struct backward_space *s, int64_t batch, int64_t head,
                         struct sw_block queries, int64_t first, int64_t end, sides want) {
    const struct sw_attention_call *call = &b->call;
    const int64_t kv_head = head / (call->shape.heads / call->shape.kv_heads);
    load_queries(b, s, batch, head, queries);
    const int64_t begin = sw_max_i64(first, sw_first_key_block(&call->shape, batch, queries));
    for (int64_t index = begin; index < end && index * BLOCK <= queries.first; index++) {
        const struct sw_block keys = sw_block_at(call, index);
        SW_ISA_NAME(sw_block_words)(call, b->op->k, sw_key_rows(&call->shape, batch, kv_head), keys, s->k);
        SW_ISA_NAME(sw_block_words)(call, b->op->v, sw_value_rows(&call->shape, batch, kv_head), keys, s->v);
        take_pair(b, s, batch, queries, keys, first * BLOCK, want);
    }
    if (want & QUERIES)
        SW_ISA_NAME(sw_block_store)(call, s->dq, sw_query_rows(&call->shape, batch, head), queries, b->op->dq);
}

/* Computes dk and dv of the blocks of keys [first, end); with BOTH, which wants all blocks, dq too. */
static void take_keys(const struct backward_call *b, const struct backward_space *s, int64_t batch, int64_t kv_head,
                      int64_t first, int64_t end, sides want) {
    const struct sw_attention_call *call = &b->call;
    const int64_t group = call->shape.heads / call->shape.kv_heads;
    const size_t sum_bytes = (size_t)((end - first) * BLOCK * call->padded_dim) * sizeof *s->dk;
    memset(s->dk, 0, sum_bytes);
    memset(s->dv, 0, sum_bytes);
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; head++) {
        for (int64_t index = first; index < call->blocks; index++) {
            const struct sw_block queries = sw_block_at(call, index);
            if (sw_first_key_block(&call->shape, batch, queries) >= end)
                break;
            take_queries(b, s, batch, head, queries, first, end, want);
        }
    }
    for (int64_t index = first; index < end; index++) {
        const struct sw_block keys = sw_block_at(call, index);
        const int64_t at = (index - first) * BLOCK * call->padded_dim;
        SW_ISA_NAME(sw_block_store)(call, s->dk + at, sw_key_rows(&call->shape, batch, kv_head), keys, b->op->dk);
        SW_ISA_NAME(sw_block_store)(call, s->dv + at, sw_value_rows(&call->shape, batch, kv_head), keys, b->op->dv);
    }
}

static struct backward_space space_of(const struct backward_call *b, int thread) {
    return carve(&b->call, b->strip, (float *)b->op->scratch + thread * b->thread_floats);
}

/* Long items come first, so that the threads end together. */
static void key_items(const void *context, int64_t first_item, int64_t end_item, int thread) {
    const struct backward_call *b = context;
    const struct sw_attention_call *call = &b->call;
    const int64_t kv_heads = call->shape.kv_heads, pairs = call->shape.batch * kv_heads;
    const struct backward_space space = space_of(b, thread);
    for (int64_t item = first_item; item < end_item; item++) {
        const int64_t pair = item % pairs, first = item / pairs * b->strip;
        take_keys(b, &space, pair / kv_heads, pair % kv_heads, first, sw_min_i64(first + b->strip, call->blocks),
                  b->whole_heads ? BOTH : KEYS);
    }
}

static void query_items(const void *context, int64_t first, int64_t end, int thread) {
    const struct backward_call *b = context;
    const struct sw_attention_call *call = &b->call;
    const int64_t heads = call->shape.heads, pairs = call->shape.batch * heads;
    const struct backward_space space = space_of(b, thread);
    for (int64_t item = first; item < end; item++) {
        const int64_t pair = item % pairs, index = call->blocks - 1 - item / pairs;
        take_queries(b, &space, pair / heads, pair % heads, sw_block_at(call, index), 0, call->blocks, QUERIES);
    }
}

sw_status SW_ISA_NAME(sw_attention_backward)(struct sw_stream *stream, const void *args) {
    const struct sw_attention_backward *op = args;
    const int threads = stream->device->info.threads;
    const struct sw_attention_call call = SW_ISA_NAME(sw_attention_call)(op->type, op->shape);
    const struct backward_call b = {.call = call,
                                    .op = op,
                                    .strip = strip_blocks(&call, threads),
                                    .whole_heads = together(&call, threads),
                                    .thread_floats = SW_ISA_NAME(sw_attention_backward_floats)(&call, threads)};
    const struct sw_attention *shape = &call.shape;
    sw_cpu_share_long(stream, shape->batch * shape->kv_heads * sw_div_up(call.blocks, b.strip), key_items, &b);
    if (!b.whole_heads)
        sw_cpu_share_long(stream, shape->batch * shape->heads * call.blocks, query_items, &b);
    return SW_OK;
}
