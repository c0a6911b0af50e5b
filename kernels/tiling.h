/* Sizes that decide the order of a sum. They are part of the arithmetic, so every implementation shares them. */
#ifndef SW_KERNELS_TILING_H
#define SW_KERNELS_TILING_H

#include "core/size.h"
#include "kernels/device.h"

enum {
    SW_BIAS_TILE_ROWS = 64,         /* rows of dy summed before they are added to the accumulator */
    SW_SOFTMAX_BLOCK_COLUMNS = 512, /* columns of logits between two updates of the running maximum */
    SW_GRAIN_PARTIAL_SUMS = 256     /* partial sums of squares of a grain */
};
static_assert(SW_GRAIN_ELEMS % SW_GRAIN_PARTIAL_SUMS == 0, "every partial sum takes the same number of elements");
static_assert((SW_GRAIN_PARTIAL_SUMS & (SW_GRAIN_PARTIAL_SUMS - 1)) == 0, "partial sums are added in halves");

/* Sizes for the gradients of keys and values of grouped-query attention on the CUDA device, which the described device
 * counts. */
enum {
    SW_PART_KEYS = 64, /* the most keys of a block */
    /* The lengths of causal blocks are spread evenly between none and the longest. Large GPUs run some 264 at once (two
       on each of 132 multiprocessors). With twice as many, longest first, the short ones fill the gaps that the long
       ones leave. More parts would only make more sums to write and add. */
    SW_ENOUGH_KEY_BLOCKS = 512
};

/* Returns the number of parts in which the query heads of a key head are summed; parts are added in the order of heads.
 * It is 1 if there are enough blocks without parts, otherwise the smallest number that makes enough, at most one per
 * query head. It depends only on batch, sequence and heads, never on the GPU, the window or documents, so the bits are
 * the same everywhere and the scratch is known in advance; the scratch holds the sums of less than twice
 * SW_ENOUGH_KEY_BLOCKS blocks, whatever the shape. */
static inline int64_t sw_attention_parts(const struct sw_attention *shape) {
    const int64_t group = shape->heads / shape->kv_heads;
    const int64_t blocks = ((shape->seq + SW_PART_KEYS - 1) / SW_PART_KEYS) * shape->kv_heads * shape->batch;
    return sw_min_i64(group, (SW_ENOUGH_KEY_BLOCKS + blocks - 1) / blocks);
}

/* Returns the fp32 elements of one part, for keys or for values. */
static inline int64_t sw_attention_part_elems(const struct sw_attention *shape) {
    return shape->batch * shape->seq * shape->kv_heads * shape->head_dim;
}

/* Returns the bytes that the backward pass keeps per query: sum(o·d_o), fp32. */
static inline int64_t sw_attention_delta_bytes(const struct sw_attention *shape) {
    return sw_round_up(shape->batch * shape->heads * shape->seq * (int64_t)sizeof(float), SW_BUFFER_ALIGN_BYTES);
}

/* Returns the scratch of a backward call: the value of each query, then the parts of keys' gradients and of values'. */
static inline int64_t sw_attention_parted_bytes(const struct sw_attention *shape) {
    const int64_t parts = sw_attention_parts(shape);
    return sw_attention_delta_bytes(shape) +
           (parts > 1 ? 2 * parts * sw_attention_part_elems(shape) * (int64_t)sizeof(float) : 0);
}

#endif
