/* Attention of one query a sequence: products of a vector and a matrix, bound by the reading of keys and values, which
 * are therefore taken as they lie. */
#include "kernels/cpu/attention.h"
#include "kernels/cpu/tile.h"
#include "kernels/cpu/vector_math.h"

#include <float.h>
#include <math.h>

enum { BLOCK = SW_ATTENTION_BLOCK };

/* One query of one head on its way over the keys, block by block. */
struct query {
    int64_t dim;
    float scale;
    struct sw_tile q, o; /* o is unnormalised until the end */
    float largest, sum;  /* over the keys so far */
    float weight[BLOCK]; /* one entry a key of the block: scores, then exponentials */
};
static_assert((int)SW_TILE_ELEMS >= (int)SW_ATTENTION_MAX_HEAD_DIM, "a tile holds a head");

SW_INLINE void score_keys(const sw_dtype type, struct query *query, const void *k, struct sw_head_rows rows,
                          struct sw_block keys) {
    for (int64_t key = 0; key < keys.count; key++) {
        const int64_t at = rows.first + (keys.first + key) * rows.stride;
        sw_vec sum = {0};
        for (int64_t i = 0; i < query->dim; i += SW_LANES)
            sum =
                sw_vec_fma(sw_vec_load(query->q.value + i), sw_load_up_to(type, k, at + i, query->dim - i, 0.0f), sum);
        query->weight[key] = query->scale * sw_vec_sum(sum);
    }
}

SW_INLINE void add_values(const sw_dtype type, struct query *query, float rescale, const void *v,
                          struct sw_head_rows rows, struct sw_block keys) {
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

/* Scores become exponentials below the largest so far. Returns what everything before must be multiplied by. */
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
    const struct sw_head_rows k_rows = sw_key_rows(shape, batch, kv_head),
                              v_rows = sw_value_rows(shape, batch, kv_head);
    const int64_t first = shape->window > 0 ? sw_max_i64(0, end - shape->window) : 0;
    for (int64_t key = first; key < end; key += BLOCK) {
        const struct sw_block keys = {.first = key, .count = sw_min_i64(BLOCK, end - key)};
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
        struct query query = {.dim = shape->head_dim, .scale = shape->scale, .largest = -FLT_MAX};
        sw_widen(op->type, op->q, sw_query_rows(shape, batch, head).first, query.dim, query.q.value);
        attend(op, batch, head, &query);
        for (int64_t i = 0; i < query.dim; i++)
            query.o.value[i] /= query.sum;
        sw_narrow(op->type, op->o, sw_output_rows(shape, batch, head).first, query.dim, query.o.value);
        op->log_sum_exp[pair] = query.largest + logf(query.sum);
    }
}

sw_status SW_ISA_NAME(sw_attention_of_one)(struct sw_stream *stream, const struct sw_attention_forward *op) {
    sw_cpu_share(stream, true, op->shape->batch * op->shape->heads, some_pairs, op);
    return SW_OK;
}
