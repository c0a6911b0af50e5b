#include "kernels/cpu/attention.h"
#include "kernels/cpu/tile.h"
#include "kernels/cpu/vector_math.h"

#include <float.h>
#include <math.h>

enum { BLOCK = SW_ATTENTION_BLOCK };

/* One thread's memory. Names as in the literature: O is unnormalised until the end. */
struct forward_space {
    void *q, *q_transposed, *k; /* words */
    float *v, *o;               /* [BLOCK, dim] */
    float *scores;              /* [key, query], unscaled, and then the probabilities' numerators */
    float *largest, *sum;       /* of each query so far; the largest is unscaled */
};

int64_t SW_ISA_NAME(sw_attention_forward_floats)(const struct sw_attention_call *call) {
    return 5 * BLOCK * call->padded_dim + BLOCK * BLOCK + 2 * BLOCK;
}

static struct forward_space carve(const struct sw_attention_call *call, float *at) {
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
    struct sw_attention_call call;
    const struct sw_attention_forward *op;
    int64_t thread_floats; /* of the scratch, for each thread */
};

/* Returns the factor that turns a difference of unscaled scores into an exponent of 2. */
static float exponent_scale(const struct sw_attention_call *call) {
    return call->shape.scale * SW_LOG2_E;
}

/* Moves the running maximum on; what was summed under the old one is brought to the new. */
static void raise_largest(const struct sw_attention_call *call, const struct forward_space *s, int64_t keys,
                          int64_t queries) {
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

static void exponentials(const struct sw_attention_call *call, const struct forward_space *s, int64_t keys,
                         int64_t queries) {
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

/* Takes one block of keys into the sums of a block of queries, given by their positions. */
static void take_keys(const struct sw_attention_call *call, const struct forward_space *s, int64_t batch,
                      struct sw_block key_block, struct sw_block query_block) {
    const int64_t dim = call->padded_dim;
    const int64_t keys = sw_padded(key_block.count), queries = sw_padded(query_block.count);
    const bool diagonal = key_block.first == query_block.first;
    const bool hides = key_block.first + keys > query_block.first + 1; /* some of them from the first query */
    SW_ISA_NAME(sw_block_scores)(call, s->k, s->q_transposed, keys, queries, diagonal, s->scores);
    if (hides)
        SW_ISA_NAME(sw_block_mask)(query_block, key_block, -INFINITY, s->scores);
    if (sw_cuts_block(&call->shape, batch, query_block, key_block))
        SW_ISA_NAME(sw_block_mask_before)(&call->shape, batch, query_block, key_block, -INFINITY, s->scores);
    raise_largest(call, s, keys, queries);
    exponentials(call, s, keys, queries);
    SW_ISA_NAME(sw_small_product)
    (&(struct sw_small_product){.m = queries,
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
                                .part = diagonal ? SW_PART_TERMS_UP_TO_ROW : SW_PART_ALL});
}

static void start_queries(const struct sw_attention_call *call, const struct forward_space *s) {
    memset(s->o, 0, (size_t)(BLOCK * call->padded_dim) * sizeof *s->o);
    for (int64_t i = 0; i < BLOCK; i++) {
        s->largest[i] = -FLT_MAX; /* finite, so that the difference of two of them is a number */
        s->sum[i] = 0.0f;
    }
}

static void finish_queries(const struct forward_call *f, const struct forward_space *s, int64_t batch, int64_t head,
                           struct sw_block block) {
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
    SW_ISA_NAME(sw_block_store)(&f->call, s->o, sw_output_rows(shape, batch, head), block, f->op->o);
}

static void forward_block(const struct forward_call *f, const struct forward_space *s, int64_t batch, int64_t head,
                          int64_t index) {
    const struct sw_attention_call *call = &f->call;
    const struct sw_attention *shape = &call->shape;
    const struct sw_block queries = sw_block_at(call, index), positions = sw_positions_of(call, queries);
    const int64_t kv_head = head / (shape->heads / shape->kv_heads);
    const struct sw_head_rows k_rows = sw_key_rows(shape, batch, kv_head),
                              v_rows = sw_value_rows(shape, batch, kv_head);
    SW_ISA_NAME(sw_block_words)(call, f->op->q, sw_query_rows(shape, batch, head), queries, s->q);
    SW_ISA_NAME(sw_block_transpose)(call, queries, s->q, s->q_transposed);
    start_queries(call, s);
    const int64_t last = (positions.first + positions.count - 1) / BLOCK;
    for (int64_t key_index = sw_first_key_block(shape, batch, positions); key_index <= last; key_index++) {
        const struct sw_block keys = sw_key_block_at(call, key_index);
        SW_ISA_NAME(sw_block_words)(call, f->op->k, k_rows, keys, s->k);
        SW_ISA_NAME(sw_block_load)(call, f->op->v, v_rows, keys, s->v);
        take_keys(call, s, batch, keys, positions);
    }
    finish_queries(f, s, batch, head, queries);
}

/* The longest rows come first, so that the threads end together. */
static void forward_items(const void *context, int64_t first, int64_t end, int thread) {
    const struct forward_call *f = context;
    const struct sw_attention *shape = &f->call.shape;
    const int64_t pairs = shape->batch * shape->heads;
    const struct forward_space space = carve(&f->call, (float *)f->op->scratch + thread * f->thread_floats);
    for (int64_t item = first; item < end; item++) {
        const int64_t pair = item % pairs, index = f->call.blocks - 1 - item / pairs;
        forward_block(f, &space, pair / shape->heads, pair % shape->heads, index);
    }
}

sw_status SW_ISA_NAME(sw_attention_forward)(struct sw_stream *stream, const void *args) {
    const struct sw_attention_forward *op = args;
    const struct sw_attention *shape = op->shape;
    if (shape->seq == 1)
        return SW_ISA_NAME(sw_attention_of_one)(stream, op);
    struct forward_call f = {.call = SW_ISA_NAME(sw_attention_call)(op->type, shape), .op = op};
    f.thread_floats = SW_ISA_NAME(sw_attention_forward_floats)(&f.call);
    sw_cpu_share_long(stream, shape->batch * shape->heads * f.call.blocks, forward_items, &f);
    return SW_OK;
}
