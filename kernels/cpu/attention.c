#include "kernels/cpu/attention.h"

#include "kernels/cpu/pairs.h"
#include "kernels/cpu/tile.h"

struct sw_attention_call SW_ISA_NAME(sw_attention_call)(sw_dtype type, const struct sw_attention *shape) {
    const bool pairs = SW_FAST_PAIRS && type == SW_BF16;
    const int64_t terms = pairs ? sw_round_up(shape->head_dim, 2) : shape->head_dim;
    return (struct sw_attention_call){.type = type,
                                      .shape = *shape,
                                      .pairs = pairs,
                                      .terms = terms,
                                      .padded_dim = sw_padded(shape->head_dim),
                                      .row_words = sw_padded(pairs ? terms / 2 : terms),
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

/* Copies a row of bf16 numbers, and zeros behind it. The rows are too short to call the library for each. */
static void copy_row(int64_t count, int64_t width, const uint16_t *from, uint16_t *to) {
    int64_t i = 0;
    for (; i + SW_LANES <= count; i += SW_LANES)
        *(sw_vec_half_unaligned *)(to + i) = *(const sw_vec_half_unaligned *)(from + i);
    for (; i < width; i++)
        to[i] = i < count ? from[i] : 0;
}

void SW_ISA_NAME(sw_block_words)(const struct sw_attention_call *call, const void *tensor, struct sw_head_rows rows,
                                 struct sw_block block, void *to) {
    const int64_t width = 2 * call->row_words;
    if (!call->pairs) {
        SW_ISA_NAME(sw_block_load)(call, tensor, rows, block, to);
        return;
    }
    uint16_t *row = to;
    for (int64_t i = 0; i < block.count; i++, row += width)
        copy_row(call->shape.head_dim, width, (const uint16_t *)tensor + rows.first + (block.first + i) * rows.stride,
                 row);
    memset(row, 0, (size_t)((sw_padded(block.count) - block.count) * width) * sizeof *row);
}

/* Transposes by squares, so that both sides stay in the first-level cache. */
void SW_ISA_NAME(sw_block_transpose)(const struct sw_attention_call *call, struct sw_block block, const void *from,
                                     void *to) {
    enum { SQUARE = SW_SMALL_PRODUCT_COLUMNS };
    const sw_word *in = from;
    sw_word *out = to;
    for (int64_t token = 0; token < sw_padded(block.count); token += SQUARE) {
        for (int64_t i = 0; i < call->row_words; i += SQUARE) {
            for (int64_t row = 0; row < SQUARE; row++) {
                for (int64_t col = 0; col < SQUARE; col++)
                    out[(i + row) * SW_ATTENTION_BLOCK + token + col] = in[(token + col) * call->row_words + i + row];
            }
        }
    }
}

const void *SW_ISA_NAME(sw_block_stack)(const struct sw_attention_call *call, struct sw_block block, const void *from,
                                        void *to) {
    if (!call->pairs)
        return from;
    const int64_t row_elems = 2 * call->row_words;
    sw_word *out = to;
    for (int64_t token = 0; token < sw_padded(block.count); token += 2, out += call->padded_dim) {
        const uint16_t *first = (const uint16_t *)from + token * row_elems, *second = first + row_elems;
        for (int64_t i = 0; i < call->padded_dim; i += SW_LANES)
            sw_store_words(out + i, sw_pairs_of_rows(first + i, second + i));
    }
    return to;
}

void SW_ISA_NAME(sw_block_scores)(const struct sw_attention_call *call, const void *rows, const void *transposed,
                                  int64_t keys, int64_t queries, bool diagonal, float *scores) {
    SW_ISA_NAME(sw_small_product)
    (&(struct sw_small_product){.m = keys,
                                .n = queries,
                                .k = call->terms,
                                .pairs = call->pairs,
                                .a = rows,
                                .a_row = call->row_words,
                                .a_term = 1,
                                .b = transposed,
                                .b_row = SW_ATTENTION_BLOCK,
                                .c = scores,
                                .c_row = SW_ATTENTION_BLOCK,
                                .part = diagonal ? SW_PART_COLUMNS_FROM_ROW : SW_PART_ALL});
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
    const int64_t backward = SW_ISA_NAME(sw_attention_backward_floats)(&call, device->info.threads);
    return device->info.threads * sw_max_i64(forward, backward) * (int64_t)sizeof(float);
}

void SW_ISA_NAME(sw_cpu_add_attention)(struct sw_device_ops *ops) {
    ops->attention_scratch_bytes = attention_scratch_bytes;
    ops->op[SW_DEVICE_ATTENTION_FORWARD] = SW_ISA_NAME(sw_attention_forward);
    ops->op[SW_DEVICE_ATTENTION_BACKWARD] = SW_ISA_NAME(sw_attention_backward);
}
