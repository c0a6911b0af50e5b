/* Helpers that attention forward and backward share: blocks of queries and keys as the words of small products, with
 * the queries of a score block along the vector lanes, so that a row's statistics are lanes and no sum runs across a
 * vector. Words are fp32 numbers, or pairs of bf16 numbers where the instruction set multiplies those faster. */
#ifndef SW_KERNELS_CPU_ATTENTION_H
#define SW_KERNELS_CPU_ATTENTION_H

#include "core/size.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/small_product.h"

enum { SW_ATTENTION_BLOCK = 64 };

/* A call: its shape, and sizes that follow from it. */
struct sw_attention_call {
    sw_dtype type;
    struct sw_attention shape;
    bool pairs;         /* words are pairs */
    int64_t terms;      /* head_dim in whole words */
    int64_t padded_dim; /* head_dim in whole vectors */
    int64_t row_words;  /* words of a token's row, in whole vectors */
    int64_t blocks;     /* blocks of a sequence */
};

struct sw_attention_call SW_ISA_NAME(sw_attention_call)(sw_dtype type, const struct sw_attention *shape);

/* Return the floats of a thread's own working memory, carved from the caller's scratch. */
int64_t SW_ISA_NAME(sw_attention_forward_floats)(const struct sw_attention_call *call);
int64_t SW_ISA_NAME(sw_attention_backward_floats)(const struct sw_attention_call *call, int threads);

/* A block of tokens: the first one, and how many there are. */
struct sw_block {
    int64_t first, count;
};

static inline struct sw_block sw_block_at(const struct sw_attention_call *call, int64_t index) {
    const int64_t first = index * SW_ATTENTION_BLOCK, rest = call->shape.seq - first;
    return (struct sw_block){.first = first, .count = rest < SW_ATTENTION_BLOCK ? rest : SW_ATTENTION_BLOCK};
}

/* Returns a block of keys, of which there are more than queries where there is a past. */
static inline struct sw_block sw_key_block_at(const struct sw_attention_call *call, int64_t index) {
    const int64_t first = index * SW_ATTENTION_BLOCK, rest = call->shape.past + call->shape.seq - first;
    return (struct sw_block){.first = first, .count = rest < SW_ATTENTION_BLOCK ? rest : SW_ATTENTION_BLOCK};
}

/* Returns a block of queries by their positions among the keys. */
static inline struct sw_block sw_positions_of(const struct sw_attention_call *call, struct sw_block queries) {
    return (struct sw_block){.first = call->shape.past + queries.first, .count = queries.count};
}

/* Returns count rounded up to what a small product wants of its columns (and so of its rows). */
static inline int64_t sw_padded(int64_t count) {
    return (count + SW_SMALL_PRODUCT_COLUMNS - 1) / SW_SMALL_PRODUCT_COLUMNS * SW_SMALL_PRODUCT_COLUMNS;
}

/* A head's rows in a tensor: element (token, i) is at first + token·stride + i. */
struct sw_head_rows {
    int64_t first, stride;
};

static inline struct sw_head_rows sw_query_rows(const struct sw_attention *shape, int64_t batch, int64_t head) {
    return (struct sw_head_rows){.first = batch * shape->seq * shape->q_stride + head * shape->head_dim,
                                 .stride = shape->q_stride};
}

static inline struct sw_head_rows sw_output_rows(const struct sw_attention *shape, int64_t batch, int64_t head) {
    return (struct sw_head_rows){.first = batch * shape->seq * shape->o_stride + head * shape->head_dim,
                                 .stride = shape->o_stride};
}

static inline struct sw_head_rows sw_key_rows(const struct sw_attention *shape, int64_t batch, int64_t kv_head) {
    return (struct sw_head_rows){.first =
                                     batch * (shape->past + shape->seq) * shape->k_stride + kv_head * shape->head_dim,
                                 .stride = shape->k_stride};
}

static inline struct sw_head_rows sw_value_rows(const struct sw_attention *shape, int64_t batch, int64_t kv_head) {
    return (struct sw_head_rows){.first =
                                     batch * (shape->past + shape->seq) * shape->v_stride + kv_head * shape->head_dim,
                                 .stride = shape->v_stride};
}

/* Returns the first key that a query, given by its position, sees: its window begins there, or its document. The result
 * is never less than an earlier query's. */
static inline int64_t sw_first_key(const struct sw_attention *shape, int64_t batch, int64_t position) {
    const int64_t in_window = shape->window > 0 ? sw_max_i64(0, position - shape->window + 1) : 0;
    const int64_t query = position - shape->past;
    return shape->document_start == NULL ? in_window
                                         : sw_max_i64(in_window, shape->document_start[batch * shape->seq + query]);
}

/* Returns the first block of keys that a block of queries, given by their positions, sees. */
static inline int64_t sw_first_key_block(const struct sw_attention *shape, int64_t batch, struct sw_block queries) {
    return sw_first_key(shape, batch, queries.first) / SW_ATTENTION_BLOCK;
}

/* Returns whether some of these queries see only the later keys of a block. */
static inline bool sw_cuts_block(const struct sw_attention *shape, int64_t batch, struct sw_block queries,
                                 struct sw_block keys) {
    return sw_first_key(shape, batch, queries.first + queries.count - 1) > keys.first;
}

/* Brings a block into fp32 [SW_ATTENTION_BLOCK, padded_dim], zeros around it up to whole vectors. */
void SW_ISA_NAME(sw_block_load)(const struct sw_attention_call *call, const void *tensor, struct sw_head_rows rows,
                                struct sw_block block, float *to);
/* Brings a block back into its tensor, without the padding. */
void SW_ISA_NAME(sw_block_store)(const struct sw_attention_call *call, const float *from, struct sw_head_rows rows,
                                 struct sw_block block, void *tensor);
/* Brings a block into words [SW_ATTENTION_BLOCK, row_words], the terms along a row, zeros around it. */
void SW_ISA_NAME(sw_block_words)(const struct sw_attention_call *call, const void *tensor, struct sw_head_rows rows,
                                 struct sw_block block, void *to);
/* Transposes such words into rows of SW_ATTENTION_BLOCK, a word of each token: to[i][token] = from[token][i]. */
void SW_ISA_NAME(sw_block_transpose)(const struct sw_attention_call *call, struct sw_block block, const void *from,
                                     void *to);
/* Returns words [tokens, padded_dim] whose terms are tokens: in `to`, or `from` itself where its words are single
 * numbers. */
const void *SW_ISA_NAME(sw_block_stack)(const struct sw_attention_call *call, struct sw_block block, const void *from,
                                        void *to);
/* Computes scores[key, query] = rows·transposed, of blocks of which some are on the diagonal. */
void SW_ISA_NAME(sw_block_scores)(const struct sw_attention_call *call, const void *rows, const void *transposed,
                                  int64_t keys, int64_t queries, bool diagonal, float *scores);
/* Sets scores[key][query] to value where the key comes after the query, whose position is given. */
void SW_ISA_NAME(sw_block_mask)(struct sw_block queries, struct sw_block keys, float value, float *scores);
/* Sets scores[key][query] to value where the key comes before the first that the query sees. */
void SW_ISA_NAME(sw_block_mask_before)(const struct sw_attention *shape, int64_t batch, struct sw_block queries,
                                       struct sw_block keys, float value, float *scores);

/* The two ops, which take the structs of their names. */
sw_status SW_ISA_NAME(sw_attention_forward)(struct sw_stream *stream, const void *args);
sw_status SW_ISA_NAME(sw_attention_backward)(struct sw_stream *stream, const void *args);
/* Does the forward op where a sequence has one query, as when a text is continued. */
sw_status SW_ISA_NAME(sw_attention_of_one)(struct sw_stream *stream, const struct sw_attention_forward *op);

#endif
