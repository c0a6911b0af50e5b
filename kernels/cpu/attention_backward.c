/* A thread takes one key head with all query heads that use it, so that dk and dv are summed in a fixed order, and the
 * scores of a pair of blocks are computed once for dq, dk and dv. */
#include "kernels/cpu/attention.h"
#include "kernels/cpu/tile.h"
#include "kernels/cpu/vector_math.h"

#include <math.h>
#include <omp.h>

enum { BLOCK = SW_ATTENTION_BLOCK };

struct backward_space {
    float *q, *q_transposed, *d_o, *d_o_transposed; /* a block of queries; q_transposed is scaled */
    float *o, *dq;
    float *k, *v;       /* a block of keys */
    float *p, *ds;      /* [key, query]: probabilities, gradients of the scores */
    float *lse, *delta; /* of each query; delta = o·d_o */
    float *dk, *dv;     /* [seq, dim], summed over queries and heads */
};

enum { SPACE_BLOCKS = 8 };

int64_t SW_ISA_NAME(sw_attention_backward_floats)(const struct sw_attention_call *call) {
    return (SPACE_BLOCKS + 2 * call->blocks) * BLOCK * call->padded_dim + 2 * BLOCK * BLOCK + 2 * BLOCK;
}

static struct backward_space carve(const struct sw_attention_call *call, float *at) {
    const int64_t block = BLOCK * call->padded_dim;
    float *p = at + SPACE_BLOCKS * block, *lse = p + 2 * BLOCK * BLOCK, *dk = lse + 2 * BLOCK;
    return (struct backward_space){.q = at,
                                   .q_transposed = at + block,
                                   .d_o = at + 2 * block,
                                   .d_o_transposed = at + 3 * block,
                                   .o = at + 4 * block,
                                   .dq = at + 5 * block,
                                   .k = at + 6 * block,
                                   .v = at + 7 * block,
                                   .p = p,
                                   .ds = p + BLOCK * BLOCK,
                                   .lse = lse,
                                   .delta = lse + BLOCK,
                                   .dk = dk,
                                   .dv = dk + call->blocks * block};
}

struct backward_call {
    struct sw_attention_call call;
    const void *q, *k, *v, *o, *d_o;
    const float *log_sum_exp;
    void *dq, *dk, *dv;
};

/* Loads a block of queries with what belongs to it; padded queries get zeros, which add nothing. */
static void load_queries(const struct backward_call *b, const struct backward_space *s, int64_t batch, int64_t head,
                         struct sw_block queries) {
    const struct sw_attention_call *call = &b->call;
    const struct sw_head_rows q_rows = sw_query_rows(&call->shape, batch, head);
    const struct sw_head_rows o_rows = sw_output_rows(&call->shape, batch, head);
    const float *lse = b->log_sum_exp + (batch * call->shape.heads + head) * call->shape.seq + queries.first;
    SW_ISA_NAME(sw_block_load)(call, b->q, q_rows, queries, s->q);
    SW_ISA_NAME(sw_block_load)(call, b->o, o_rows, queries, s->o);
    SW_ISA_NAME(sw_block_load)(call, b->d_o, o_rows, queries, s->d_o);
    SW_ISA_NAME(sw_block_transpose)(call, queries, call->shape.scale, s->q, s->q_transposed);
    SW_ISA_NAME(sw_block_transpose)(call, queries, 1.0f, s->d_o, s->d_o_transposed);
    memset(s->dq, 0, (size_t)(BLOCK * call->padded_dim) * sizeof *s->dq);
    for (int64_t i = 0; i < sw_padded(queries.count); i++) {
        const float *o = s->o + i * call->padded_dim, *d_o = s->d_o + i * call->padded_dim;
        float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
        for (int64_t j = 0; j < call->padded_dim; j++)
            sum += o[j] * d_o[j];
        s->delta[i] = sum;
        s->lse[i] = i < queries.count ? lse[i] : 0.0f;
    }
}

/* p and ds from the raw scores in p and from d_o·v in ds. */
static void score_gradients(const struct backward_space *s, float scale, int64_t keys, int64_t queries) {
    for (int64_t i = 0; i < queries; i += SW_LANES) {
        const sw_vec lse = sw_vec_load(s->lse + i), delta = sw_vec_load(s->delta + i);
        for (int64_t key = 0; key < keys; key++) {
            float *p = s->p + key * BLOCK + i, *ds = s->ds + key * BLOCK + i;
            const sw_vec probability = sw_vec_exp(sw_vec_load(p) - lse);
            sw_vec_store(p, probability);
            sw_vec_store(ds, probability * (sw_vec_load(ds) - delta) * scale);
        }
    }
}

/* a[key, dim]·transposed[dim, query] into scores. */
static void scores_of(const struct sw_attention_call *call, const float *a, const float *transposed, int64_t keys,
                      int64_t queries, bool diagonal, float *scores) {
    SW_ISA_NAME(sw_small_product)
    (&(struct sw_small_product){.m = keys,
                                .n = queries,
                                .k = call->shape.head_dim,
                                .a = a,
                                .a_row = call->padded_dim,
                                .a_term = 1,
                                .b = transposed,
                                .b_row = BLOCK,
                                .c = scores,
                                .c_row = BLOCK,
                                .part = diagonal ? SW_PART_COLUMNS_FROM_ROW : SW_PART_ALL});
}

/* sum[key, dim] += weights[key, query]·rows[query, dim]. */
static void add_over_queries(const struct sw_attention_call *call, const float *weights, const float *rows,
                             int64_t keys, int64_t queries, bool diagonal, float *sum) {
    SW_ISA_NAME(sw_small_product)
    (&(struct sw_small_product){.m = keys,
                                .n = call->padded_dim,
                                .k = queries,
                                .a = weights,
                                .a_row = BLOCK,
                                .a_term = 1,
                                .b = rows,
                                .b_row = call->padded_dim,
                                .c = sum,
                                .c_row = call->padded_dim,
                                .accumulate = true,
                                .part = diagonal ? SW_PART_TERMS_FROM_ROW : SW_PART_ALL});
}

static void take_pair(const struct backward_call *b, const struct backward_space *s, struct sw_block query_block,
                      struct sw_block key_block, int64_t batch, int64_t kv_head) {
    const struct sw_attention_call *call = &b->call;
    const bool diagonal = query_block.first == key_block.first;
    const int64_t keys = sw_padded(key_block.count), queries = sw_padded(query_block.count);
    const int64_t at = key_block.first * call->padded_dim;
    SW_ISA_NAME(sw_block_load)(call, b->k, sw_key_rows(&call->shape, batch, kv_head), key_block, s->k);
    SW_ISA_NAME(sw_block_load)(call, b->v, sw_value_rows(&call->shape, batch, kv_head), key_block, s->v);
    scores_of(call, s->k, s->q_transposed, keys, queries, diagonal, s->p);
    scores_of(call, s->v, s->d_o_transposed, keys, queries, diagonal, s->ds);
    if (diagonal) {
        SW_ISA_NAME(sw_block_mask)(query_block, key_block, -INFINITY, s->p);
        SW_ISA_NAME(sw_block_mask)(query_block, key_block, 0.0f, s->ds);
    }
    if (sw_cuts_block(&call->shape, batch, query_block, key_block)) {
        SW_ISA_NAME(sw_block_mask_before)(&call->shape, batch, query_block, key_block, -INFINITY, s->p);
        SW_ISA_NAME(sw_block_mask_before)(&call->shape, batch, query_block, key_block, 0.0f, s->ds);
    }
    score_gradients(s, call->shape.scale, keys, queries);
    add_over_queries(call, s->p, s->d_o, keys, queries, diagonal, s->dv + at);
    add_over_queries(call, s->ds, s->q, keys, queries, diagonal, s->dk + at);
    SW_ISA_NAME(sw_small_product)
    (&(struct sw_small_product){.m = queries,
                                .n = call->padded_dim,
                                .k = keys,
                                .a = s->ds,
                                .a_row = 1,
                                .a_term = BLOCK,
                                .b = s->k,
                                .b_row = call->padded_dim,
                                .c = s->dq,
                                .c_row = call->padded_dim,
                                .accumulate = true,
                                .part = diagonal ? SW_PART_TERMS_UP_TO_ROW : SW_PART_ALL});
}

static void backward_head(const struct backward_call *b, const struct backward_space *s, int64_t batch, int64_t head) {
    const struct sw_attention_call *call = &b->call;
    const struct sw_attention *shape = &call->shape;
    const int64_t kv_head = head / (shape->heads / shape->kv_heads);
    for (int64_t index = 0; index < call->blocks; index++) {
        const struct sw_block queries = sw_block_at(call, index);
        load_queries(b, s, batch, head, queries);
        for (int64_t key_index = sw_first_key_block(shape, batch, queries); key_index <= index; key_index++)
            take_pair(b, s, queries, sw_block_at(call, key_index), batch, kv_head);
        SW_ISA_NAME(sw_block_store)(call, s->dq, sw_query_rows(shape, batch, head), queries, b->dq);
    }
}

static void backward_key_head(const struct backward_call *b, const struct backward_space *s, int64_t batch,
                              int64_t kv_head) {
    const struct sw_attention_call *call = &b->call;
    const int64_t group = call->shape.heads / call->shape.kv_heads;
    const struct sw_head_rows k_rows = sw_key_rows(&call->shape, batch, kv_head);
    const struct sw_head_rows v_rows = sw_value_rows(&call->shape, batch, kv_head);
    memset(s->dk, 0, (size_t)(2 * call->blocks * BLOCK * call->padded_dim) * sizeof *s->dk);
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; head++)
        backward_head(b, s, batch, head);
    for (int64_t index = 0; index < call->blocks; index++) {
        const struct sw_block keys = sw_block_at(call, index);
        const int64_t at = keys.first * call->padded_dim;
        SW_ISA_NAME(sw_block_store)(call, s->dk + at, k_rows, keys, b->dk);
        SW_ISA_NAME(sw_block_store)(call, s->dv + at, v_rows, keys, b->dv);
    }
}

sw_status SW_ISA_NAME(sw_attention_backward)(struct sw_stream *stream, sw_dtype type, const struct sw_attention *shape,
                                             const void *q, const void *k, const void *v, const void *o,
                                             const void *d_o, const float *log_sum_exp, void *dq, void *dk, void *dv,
                                             void *scratch) {
    const struct backward_call b = {.call = SW_ISA_NAME(sw_attention_call)(type, shape),
                                    .q = q,
                                    .k = k,
                                    .v = v,
                                    .o = o,
                                    .d_o = d_o,
                                    .log_sum_exp = log_sum_exp,
                                    .dq = dq,
                                    .dk = dk,
                                    .dv = dv};
    const int threads = stream->device->info.threads;
    const int64_t per_thread = SW_ISA_NAME(sw_attention_backward_floats)(&b.call);
    const int64_t items = shape->batch * shape->kv_heads;
#pragma omp parallel num_threads(threads)
    {
        const struct backward_space space = carve(&b.call, (float *)scratch + omp_get_thread_num() * per_thread);
#pragma omp for schedule(dynamic)
        for (int64_t item = 0; item < items; item++)
            backward_key_head(&b, &space, item / shape->kv_heads, item % shape->kv_heads);
    }
    return SW_OK;
}
