#include "kernels/cpu/attention.h"

#include "kernels/cpu/tile.h"

struct sw_attention_call SW_ISA_NAME(sw_attention_call)(sw_dtype type, const struct sw_attention *shape) {
    return (struct sw_attention_call){.type = type,
                                      .shape = *shape,
                                      .padded_dim = sw_padded(shape->head_dim),
                                      .blocks = sw_div_up(shape->seq, SW_ATTENTION_BLOCK)};
}

void SW_ISA_NAME(sw_block_load)(const struct sw_attention_call *call, const void *tensor, struct sw_head_rows rows,
                                struct sw_block block, float *to) {
    const int64_t dim = call->shape.head_dim, width = call->padded_dim;
    for (int64_t i = 0; i < block.count; i++) {
        const int64_t at = rows.first + (block.first + i) * rows.stride;
        sw_widen(call->type, tensor, at, dim, to + i * width);
        for (int64_t j = dim; j < width; j++)
            to[i * width + j] = 0.0f;
    }
    memset(to + block.count * width, 0, (size_t)((sw_padded(block.count) - block.count) * width) * sizeof *to);
}

void SW_ISA_NAME(sw_block_store)(const struct sw_attention_call *call, const float *from, struct sw_head_rows rows,
                                 struct sw_block block, void *tensor) {
    const int64_t dim = call->shape.head_dim;
    for (int64_t i = 0; i < block.count; i++) {
        const int64_t at = rows.first + (block.first + i) * rows.stride;
        sw_narrow(call->type, tensor, at, dim, from + i * call->padded_dim);
    }
}

/* In squares, so that both sides of the transposition stay in the first-level cache. */
void SW_ISA_NAME(sw_block_transpose)(const struct sw_attention_call *call, struct sw_block block, float factor,
                                     const float *from, float *to) {
    enum { SQUARE = SW_SMALL_PRODUCT_COLUMNS };
    for (int64_t token = 0; token < sw_padded(block.count); token += SQUARE) {
        for (int64_t i = 0; i < call->padded_dim; i += SQUARE) {
            for (int64_t row = 0; row < SQUARE; row++) {
                for (int64_t col = 0; col < SQUARE; col++)
                    to[(i + row) * SW_ATTENTION_BLOCK + token + col] =
                        factor * from[(token + col) * call->padded_dim + i + row];
            }
        }
    }
}

void SW_ISA_NAME(sw_block_mask)(struct sw_block queries, struct sw_block keys, float value, float *scores) {
    for (int64_t key = 0; key < sw_padded(keys.count); key++) {
        const int64_t end = sw_min_i64(keys.first + key - queries.first, SW_ATTENTION_BLOCK);
        for (int64_t query = 0; query < end; query++)
            scores[key * SW_ATTENTION_BLOCK + query] = value;
    }
}

void SW_ISA_NAME(sw_block_mask_before)(const struct sw_attention *shape, int64_t batch, struct sw_block queries,
                                       struct sw_block keys, float value, float *scores) {
    int64_t seeing = 0; /* queries that see the key: the first ones, and no fewer of a later key */
    for (int64_t key = 0; key < keys.count; key++) {
        while (seeing < queries.count && sw_first_key(shape, batch, queries.first + seeing) <= keys.first + key)
            seeing++;
        for (int64_t query = seeing; query < sw_padded(queries.count); query++)
            scores[key * SW_ATTENTION_BLOCK + query] = value;
    }
}

static int64_t attention_scratch_bytes(const struct sw_device *device, const struct sw_attention *shape,
                                       sw_dtype type) {
    const struct sw_attention_call call = SW_ISA_NAME(sw_attention_call)(type, shape);
    const int64_t forward = SW_ISA_NAME(sw_attention_forward_floats)(&call);
    const int64_t backward = SW_ISA_NAME(sw_attention_backward_floats)(&call);
    return device->info.threads * sw_max_i64(forward, backward) * (int64_t)sizeof(float);
}

void SW_ISA_NAME(sw_cpu_add_attention)(struct sw_device_ops *ops) {
    ops->attention_scratch_bytes = attention_scratch_bytes;
    ops->attention_forward = SW_ISA_NAME(sw_attention_forward);
    ops->attention_backward = SW_ISA_NAME(sw_attention_backward);
}
