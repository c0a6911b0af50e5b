/* The ops of a model and of its update, with their contracts (some in ops.h); device.h includes this file.
 *
 * Every op takes a struct of arguments, which all devices read. A call fills the struct in place, by position or
 * by name: sw_add(stream, type, elems, a, b, y) is sw_add(stream, .type = type, .elems = elems, ...). sw_device_run
 * checks the arguments, runs the op, and keeps the stream's first error for sw_stream_synchronize. Shapes, AdamW's
 * settings and decay runs are the host's memory and are read before the call returns; all other pointers are the
 * device's. */
#ifndef SW_KERNELS_OPS_H
#define SW_KERNELS_OPS_H

#include "core/base_format.h"
#include "core/dtype.h"
#include "core/fp8.h"
#include "core/optimizer_format.h"
#include "core/quant.h"
#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

/* Ops that produce or consume numbers of fewer bits; ops.h includes this file. */

/* Quantizes grains (of type) into records, one after the other (core/quant.h). Both begin at a multiple of 16 bytes.
 * Every implementation has the bits of ref/quant.c. */
struct sw_quantize {
    sw_dtype type;
    sw_quant quant;
    int64_t grains;
    const void *from;
    void *to;
};
#define sw_quantize(stream, ...) sw_device_run(stream, SW_DEVICE_QUANTIZE, &(const struct sw_quantize){__VA_ARGS__})

/* to (of type) = round(the sum of the values of `ranks` sets of records), added in fp32 in the order of ranks; with one
 * rank, the values of its records. This rank's records are separate; those of the others, in their order, are
 * stride_bytes apart (NULL: there are no others). All begin at multiples of 16 bytes. Every implementation has the bits
 * of ref/quant.c, except for the payload of a NaN. */
struct sw_dequantize {
    sw_dtype type;
    sw_quant quant;
    int64_t grains;
    int rank, ranks;
    int64_t stride_bytes;
    const void *own, *others;
    void *to;
};
#define sw_dequantize(stream, ...)                                                                                     \
    sw_device_run(stream, SW_DEVICE_DEQUANTIZE, &(const struct sw_dequantize){__VA_ARGS__})

/* Encodes a matrix in 8 bits with one scale (core/fp8.h). codes: [rows, cols], or [cols, rows] with `transpose`. Every
 * implementation has the bits of ref/fp8.c. */
struct sw_encode_fp8 {
    sw_dtype type;
    sw_fp8 as;
    int64_t rows, cols;
    bool transpose;
    const void *from;
    uint8_t *codes;
    float *scale; /* [1 + SW_FP8_PARTS] the first receives the scale; the device may use the others */
};
#define sw_encode_fp8(stream, ...)                                                                                     \
    sw_device_run(stream, SW_DEVICE_ENCODE_FP8, &(const struct sw_encode_fp8){__VA_ARGS__})

/* to (of type) = the values of the codes, times *scale. */
struct sw_decode_fp8 {
    sw_dtype type;
    sw_fp8 as;
    int64_t elems;
    const uint8_t *codes;
    const float *scale;
    void *to;
};
#define sw_decode_fp8(stream, ...)                                                                                     \
    sw_device_run(stream, SW_DEVICE_DECODE_FP8, &(const struct sw_decode_fp8){__VA_ARGS__})

/* Makes the weights of a unit's grains from the masters in their records: SW_GRAIN_ELEMS bytes a grain, which hold its
 * elements in e4m3 with the grain's scale (core/fp8.h), or, from element wide_elem on, the first SW_WIDE_GRAIN_ELEMS
 * elements of a wide grain in `type`, of 16 bits. Every implementation has the bits of ref/fp8.c. */
struct sw_pack_weights {
    sw_dtype type;
    int64_t first_elem; /* a multiple of SW_GRAIN_ELEMS */
    int64_t grains;
    int64_t wide_elem; /* the first element of the unit's wide grains; without wide grains, the number of the unit's
                          elements */
    sw_optimizer_format format;
    const void *records;
    void *weights;
};
#define sw_pack_weights(stream, ...)                                                                                   \
    sw_device_run(stream, SW_DEVICE_PACK_WEIGHTS, &(const struct sw_pack_weights){__VA_ARGS__})

/* to (of type) = elements [first_elem, first_elem + elems) of a unit, before its wide grains, from weights in the
 * layout of sw_pack_weights. Loses nothing in bf16. */
struct sw_unpack_weights {
    sw_dtype type;
    int64_t first_elem, elems;
    const void *weights; /* of the unit's first grain */
    void *to;
};
#define sw_unpack_weights(stream, ...)                                                                                 \
    sw_device_run(stream, SW_DEVICE_UNPACK_WEIGHTS, &(const struct sw_unpack_weights){__VA_ARGS__})

/* Quantizes grains of a frozen base (of type) into records, one after the other (core/base_format.h), in int8 or nf4.
 * Both begin at a multiple of 16 bytes. Only host devices have this op. Every implementation has the bits of
 * ref/base_format.c. */
struct sw_quantize_base {
    sw_dtype type;
    sw_base_format format;
    int64_t grains;
    const void *from;
    void *records;
};
#define sw_quantize_base(stream, ...)                                                                                  \
    sw_device_run(stream, SW_DEVICE_QUANTIZE_BASE, &(const struct sw_quantize_base){__VA_ARGS__})

/* to (of type) = elements [first_elem, first_elem + elems) of a unit, from the records of its grains in any format.
 * Every implementation has the bits of ref/base_format.c, those of NaN included. */
struct sw_dequantize_base {
    sw_dtype type;
    sw_base_format format;
    int64_t first_elem, elems;
    const void *records; /* of the unit's first grain, at a multiple of 16 bytes */
    void *to;
};
#define sw_dequantize_base(stream, ...)                                                                                \
    sw_device_run(stream, SW_DEVICE_DEQUANTIZE_BASE, &(const struct sw_dequantize_base){__VA_ARGS__})

struct sw_device;
struct sw_stream;

typedef enum {
    SW_DEVICE_LAYERNORM_FORWARD,
    SW_DEVICE_LAYERNORM_BACKWARD,
    SW_DEVICE_RMSNORM_FORWARD,
    SW_DEVICE_RMSNORM_BACKWARD,
    SW_DEVICE_ADD_NORM_FORWARD,
    SW_DEVICE_ROTATE,
    SW_DEVICE_ATTENTION_FORWARD,
    SW_DEVICE_ATTENTION_BACKWARD,
    SW_DEVICE_SINK_FORWARD,
    SW_DEVICE_SINK_BACKWARD,
    SW_DEVICE_ACTIVATION_FORWARD,
    SW_DEVICE_ACTIVATION_BACKWARD,
    SW_DEVICE_GATED_FORWARD,
    SW_DEVICE_GATED_BACKWARD,
    SW_DEVICE_CLAMPED_FORWARD,
    SW_DEVICE_CLAMPED_BACKWARD,
    SW_DEVICE_ADD,
    SW_DEVICE_DROPOUT,
    SW_DEVICE_BIAS_GRADIENT,
    SW_DEVICE_EMBEDDING_FORWARD,
    SW_DEVICE_EMBEDDING_BACKWARD,
    SW_DEVICE_CROSS_ENTROPY,
    SW_DEVICE_SOFTMAX_PARTIAL,
    SW_DEVICE_SOFTMAX_COMBINE,
    SW_DEVICE_CROSS_ENTROPY_TILE,
    SW_DEVICE_SUM_LOSSES,
    SW_DEVICE_PREFERENCE,
    SW_DEVICE_FINISH_GRADIENT,
    SW_DEVICE_ROUND_GRADIENT,
    SW_DEVICE_SQUARE_SUMS,
    SW_DEVICE_CAST_FROM_F32,
    SW_DEVICE_CAST_TO_F32,
    SW_DEVICE_UPDATE_ADAMW,
    SW_DEVICE_QUANTIZE,
    SW_DEVICE_DEQUANTIZE,
    SW_DEVICE_ENCODE_FP8,
    SW_DEVICE_DECODE_FP8,
    SW_DEVICE_PACK_WEIGHTS,
    SW_DEVICE_UNPACK_WEIGHTS,
    SW_DEVICE_QUANTIZE_BASE, /* only host devices have it */
    SW_DEVICE_DEQUANTIZE_BASE,
    SW_DEVICE_ROUTE_FORWARD,
    SW_DEVICE_ROUTE_BACKWARD,
    SW_DEVICE_ORDER_BY_EXPERT,
    SW_DEVICE_TALLY_ROUTING,
    SW_DEVICE_PERMUTE_ROWS,
    SW_DEVICE_UNPERMUTE_ROWS,
    SW_DEVICE_SCALE_ROWS,
    SW_DEVICE_SCALE_ROWS_BACKWARD,
    SW_DEVICE_GROUPED_GEMM,
    SW_DEVICE_EXPERT_BIAS_FORWARD,
    SW_DEVICE_EXPERT_BIAS_BACKWARD,
    SW_DEVICE_RANK_SUM, /* takes struct sw_comm_sum of core/ranks/comm.h; only GPUs have it */
    SW_DEVICE_OPS
} sw_device_op;

/* Runs an op. `args` points to the op's own struct, so callers use the macro that follows that struct. */
sw_status sw_device_run(struct sw_stream *stream, sw_device_op op, const void *args);

/* y = (x - mean)·rstd·gamma + beta over rows of `cols`; mean and rstd (fp32, one a row) are written for the backward
 * pass. Statistics are fp32, with the variance from centred values. (torch.nn.LayerNorm) */
struct sw_layernorm_forward {
    sw_dtype type;
    int64_t rows, cols;
    float epsilon;
    const void *x, *gamma, *beta;
    void *y;
    float *mean, *rstd;
};
#define sw_layernorm_forward(stream, ...)                                                                              \
    sw_device_run(stream, SW_DEVICE_LAYERNORM_FORWARD, &(const struct sw_layernorm_forward){__VA_ARGS__})

/* dx (+)= the gradient at x: with add_to_dx it is added to the content of dx, as on the residual path. gamma_acc and
 * beta_acc, fp32, += their gradients, summed in row order whatever the threads. dx may not alias dy. */
struct sw_layernorm_backward {
    sw_dtype type;
    int64_t rows, cols;
    bool add_to_dx;
    const void *dy, *x, *gamma;
    const float *mean, *rstd;
    void *dx;
    float *gamma_acc, *beta_acc;
};
#define sw_layernorm_backward(stream, ...)                                                                             \
    sw_device_run(stream, SW_DEVICE_LAYERNORM_BACKWARD, &(const struct sw_layernorm_backward){__VA_ARGS__})

/* The rows of a root-mean-square norm. `groups` rows are neighbours, such as the heads of a token: row r of x begins at
 * (r / groups)·x_stride + (r % groups)·cols, and row r of y likewise with y_stride. */
struct sw_rmsnorm {
    int64_t rows, cols;
    int64_t groups;
    int64_t x_stride, y_stride; /* elements */
    float epsilon;
    float gamma_base; /* added to gamma in fp32: 1 where gamma is stored as its difference from 1 */
};
/* y = x·rstd·(gamma_base + gamma) with rstd = 1/sqrt(average(x²) + epsilon), fp32, one a row, kept for the backward
 * pass. (torch.nn.RMSNorm) */
struct sw_rmsnorm_forward {
    sw_dtype type;
    const struct sw_rmsnorm *shape;
    const void *x, *gamma;
    void *y;
    float *rstd;
};
#define sw_rmsnorm_forward(stream, ...)                                                                                \
    sw_device_run(stream, SW_DEVICE_RMSNORM_FORWARD, &(const struct sw_rmsnorm_forward){__VA_ARGS__})

/* Does for this norm what sw_layernorm_backward does. dy has the rows of y, dx has the rows of x. */
struct sw_rmsnorm_backward {
    sw_dtype type;
    const struct sw_rmsnorm *shape;
    bool add_to_dx;
    const void *dy, *x, *gamma;
    const float *rstd;
    void *dx;
    float *gamma_acc;
};
#define sw_rmsnorm_backward(stream, ...)                                                                               \
    sw_device_run(stream, SW_DEVICE_RMSNORM_BACKWARD, &(const struct sw_rmsnorm_backward){__VA_ARGS__})

/* sum = a + b as sw_add, and y is the norm of that sum: as sw_layernorm_forward, or, if beta and mean are NULL, as
 * sw_rmsnorm_forward with gamma_base. The bits are those of the two ops in turn, in one pass over memory. sum may be a
 * or b. */
struct sw_add_norm_forward {
    sw_dtype type;
    int64_t rows, cols;
    float epsilon;
    const void *a, *b;
    void *sum;
    const void *gamma, *beta;
    void *y;
    float *mean, *rstd;
    float gamma_base;
};
#define sw_add_norm_forward(stream, ...)                                                                               \
    sw_device_run(stream, SW_DEVICE_ADD_NORM_FORWARD, &(const struct sw_add_norm_forward){__VA_ARGS__})

/* Rotary positions. Token t of sequence b is row b·seq+t of x, rows are `stride` elements apart, and each of the row's
 * `heads`, side by side, is turned in place: of the pair (x[i], x[i + head_dim/2]) the first becomes x[i]·c - x[i +
 * head_dim/2]·s and the second x[i + head_dim/2]·c + x[i]·s, with c = table[t][i] and s = table[t][i + head_dim/2],
 * fp32 [seq, head_dim]. `back` turns the other way, which takes gradients from the result to x. */
struct sw_rotation {
    int64_t batch, seq;
    int64_t heads, head_dim; /* head_dim is even */
    int64_t stride;
    bool back;
};
struct sw_rotate {
    sw_dtype type;
    const struct sw_rotation *shape;
    const float *table;
    void *x;
};
#define sw_rotate(stream, ...) sw_device_run(stream, SW_DEVICE_ROTATE, &(const struct sw_rotate){__VA_ARGS__})

/* Causal multi-head attention of `batch` sequences of `seq` tokens. Token t of sequence b is row b·seq+t of q, k, v, o,
 * whose rows are q_stride, k_stride, v_stride and o_stride elements apart; head h occupies columns [h·head_dim,
 * (h+1)·head_dim). Query head h uses key head h/(heads/kv_heads). softmax(scale·q·kᵀ)·v with fp32 sums, scale positive;
 * a device with matrix instructions may round probabilities and their gradients to `type` for them. A query sees itself
 * and the tokens before it, at most `window` in all where that is not 0, and none of another document: query t sees the
 * keys j <= t with j > t - window and j >= document_start[t]. log_sum_exp[batch, heads, seq] is kept for the backward
 * pass. Scores are never whole: memory is linear in seq.
 *
 * With `past`, forward only and without documents, the tokens are the last of longer sequences, whose keys and values
 * were computed before: a sequence of k and v has past + seq rows, and query t has position past + t among them.
 *
 * With head_stride the heads of q, k and v are that many elements apart, so that all three can lie in one row, head by
 * head. Those of o always follow each other. With alibi_heads the score of query t and key j is scale·q·kᵀ minus (t -
 * j) times the head's slope (ALiBi, Press et al., arXiv 2108.12409). A head's slope depends on its number among all
 * heads of the model, of which the call may have only some. Both need as many heads of keys as of queries. */
enum { SW_ATTENTION_MAX_HEAD_DIM = 256 };
struct sw_attention {
    int64_t batch, seq;
    int64_t past; /* keys before the first query of a sequence */
    int64_t heads, kv_heads, head_dim;
    int64_t q_stride, k_stride, v_stride, o_stride;
    int64_t head_stride; /* between the heads of a row of q, k or v; 0: head_dim */
    int64_t alibi_heads; /* heads of the whole model, if scores have biases by distance; 0: they have none */
    int64_t alibi_first; /* the number among these of the call's first head */
    int64_t window;      /* the most keys that a query sees; 0: no limit */
    float scale;
    const int32_t *document_start; /* [batch, seq], device memory: the first token of its sequence that a query may see;
                                      NULL: 0. Never decreases within a sequence, document_start[t] <= t */
};
static inline int64_t sw_attention_head_stride(const struct sw_attention *shape) {
    return shape->head_stride > 0 ? shape->head_stride : shape->head_dim;
}
/* Returns the slope of a head's biases in a model of so many heads. With a power of two they are the geometric sequence
 * that begins with 2^(-8/heads) and has this ratio. With another number the heads after the last power of two, n, take
 * every second slope of twice as many heads, as in the code of the paper. */
float sw_alibi_slope(int64_t heads, int64_t head);
/* Returns the scratch, device memory, that a forward or backward call needs. */
int64_t sw_attention_scratch_bytes(const struct sw_device *device, const struct sw_attention *shape, sw_dtype type);
struct sw_attention_forward {
    sw_dtype type;
    const struct sw_attention *shape;
    const void *q, *k, *v;
    void *o;
    float *log_sum_exp;
    void *scratch; /* NULL if the call needs none */
};
#define sw_attention_forward(stream, ...)                                                                              \
    sw_device_run(stream, SW_DEVICE_ATTENTION_FORWARD, &(const struct sw_attention_forward){__VA_ARGS__})

/* dq, dk, dv have the strides of q, k, v and are overwritten. (FlashAttention-2, algorithm 2) Where the device
 * multiplies the type itself, probabilities and the gradients of scores are rounded to it before the products that they
 * enter. */
struct sw_attention_backward {
    sw_dtype type;
    const struct sw_attention *shape;
    const void *q, *k, *v, *o, *d_o;
    const float *log_sum_exp;
    void *dq, *dk, *dv;
    void *scratch; /* NULL if the call needs none */
};
#define sw_attention_backward(stream, ...)                                                                             \
    sw_device_run(stream, SW_DEVICE_ATTENTION_BACKWARD, &(const struct sw_attention_backward){__VA_ARGS__})

/* Attention sinks (gpt-oss): a learnt logit of each head, which joins the softmax's denominator and no sum of values.
 * It is one more key of a value of 0, so this op makes it of the attention without it: o = o·exp(l - m) and log_sum_exp
 * = m, with l the value of log_sum_exp before and m = log(exp(l) + exp(sink[head])). sw_attention_backward takes what
 * this leaves and needs no more: the sink's probability meets a value of 0. Strides of the shape that are not o's, its
 * window and its past have no effect. */
struct sw_sink_forward {
    sw_dtype type;
    const struct sw_attention *shape;
    const void *sink; /* [heads] */
    void *o;
    float *log_sum_exp;
};
#define sw_sink_forward(stream, ...)                                                                                   \
    sw_device_run(stream, SW_DEVICE_SINK_FORWARD, &(const struct sw_sink_forward){__VA_ARGS__})

/* acc[head], fp32, -= the sum over sequences and tokens of exp(sink[head] - log_sum_exp)·(o·d_o), with the o and
 * log_sum_exp that sw_sink_forward left. d_o has the stride of o. The order of the sum depends on the shape only. */
struct sw_sink_backward {
    sw_dtype type;
    const struct sw_attention *shape;
    const void *sink, *o, *d_o;
    const float *log_sum_exp;
    float *acc;
};
#define sw_sink_backward(stream, ...)                                                                                  \
    sw_device_run(stream, SW_DEVICE_SINK_BACKWARD, &(const struct sw_sink_backward){__VA_ARGS__})

typedef enum { SW_GELU_TANH = 0, SW_GELU_ERF = 1, SW_RELU = 2, SW_SILU = 3 } sw_activation;
/* y = f(x). */
struct sw_activation_forward {
    sw_dtype type;
    sw_activation which;
    int64_t elems;
    const void *x;
    void *y;
};
#define sw_activation_forward(stream, ...)                                                                             \
    sw_device_run(stream, SW_DEVICE_ACTIVATION_FORWARD, &(const struct sw_activation_forward){__VA_ARGS__})

/* dx = dy · f'(x). dx may be dy. `activated` receives f(x) in the same pass over memory, with the bits of the forward
 * op; NULL: f(x) is not wanted. */
struct sw_activation_backward {
    sw_dtype type;
    sw_activation which;
    int64_t elems;
    const void *x, *dy;
    void *dx, *activated;
};
#define sw_activation_backward(stream, ...)                                                                            \
    sw_device_run(stream, SW_DEVICE_ACTIVATION_BACKWARD, &(const struct sw_activation_backward){__VA_ARGS__})

/* Rows [*first, *end), with both numbers in device memory, such as two offsets of experts. NULL: all rows. An op
 * neither reads nor writes other rows. */
struct sw_row_run {
    const int32_t *first, *end;
    int64_t likely; /* the number of rows that prices count */
};
#define SW_ALL_ROWS ((struct sw_row_run){NULL, NULL, 0})

/* A row of x holds `cols` gates and then `cols` values; y[row][col] = f(gate)·value. */
struct sw_gated_forward {
    sw_dtype type;
    sw_activation which;
    int64_t rows, cols;
    const void *x;
    void *y;
    struct sw_row_run run;
};
#define sw_gated_forward(stream, ...)                                                                                  \
    sw_device_run(stream, SW_DEVICE_GATED_FORWARD, &(const struct sw_gated_forward){__VA_ARGS__})

/* Writes dx [rows, 2·cols] from dy [rows, cols], and y again into `activated` [rows, cols]; NULL: y is not wanted. */
struct sw_gated_backward {
    sw_dtype type;
    sw_activation which;
    int64_t rows, cols;
    const void *x, *dy;
    void *dx, *activated;
    struct sw_row_run run;
};
#define sw_gated_backward(stream, ...)                                                                                 \
    sw_device_run(stream, SW_DEVICE_GATED_BACKWARD, &(const struct sw_gated_backward){__VA_ARGS__})

/* The clamped gates of gpt-oss. A row of x holds `cols` pairs of a gate and its value, side by side. With g the lesser
 * of gate and SW_CLAMPED_MOST, and v the value brought within -SW_CLAMPED_MOST and SW_CLAMPED_MOST: y[row][col] =
 * g·sigmoid(SW_CLAMPED_SLOPE·g)·(v + 1). NaN stays NaN. */
#define SW_CLAMPED_SLOPE 1.702f
#define SW_CLAMPED_MOST 7.0f
struct sw_clamped_forward {
    sw_dtype type;
    int64_t rows, cols;
    const void *x;
    void *y;
    struct sw_row_run run;
};
#define sw_clamped_forward(stream, ...)                                                                                \
    sw_device_run(stream, SW_DEVICE_CLAMPED_FORWARD, &(const struct sw_clamped_forward){__VA_ARGS__})

/* Writes dx [rows, 2·cols], laid out like x, from dy [rows, cols]. What a clamp has changed gets no gradient. */
struct sw_clamped_backward {
    sw_dtype type;
    int64_t rows, cols;
    const void *x, *dy;
    void *dx;
    struct sw_row_run run;
};
#define sw_clamped_backward(stream, ...)                                                                               \
    sw_device_run(stream, SW_DEVICE_CLAMPED_BACKWARD, &(const struct sw_clamped_backward){__VA_ARGS__})

/* y = a + b; y may be a or b. */
struct sw_add {
    sw_dtype type;
    int64_t elems;
    const void *a, *b;
    void *y;
};
#define sw_add(stream, ...) sw_device_run(stream, SW_DEVICE_ADD, &(const struct sw_add){__VA_ARGS__})

/* y = x / (1 - rate) for the elements that are kept, and 0 for the others; y may be x. An element is kept if word p % 4
 * of sw_rng(seed, stream, p / 4) is at least sw_dropout_threshold, where p is its number. If x is the part of a matrix
 * that a rank of a tensor group has, its elements have their numbers in the whole matrix. The bits are the same on
 * every device, except for the payload of a NaN, so the mask need not be kept: the backward pass draws it again. */
struct sw_dropout {
    sw_dtype type;
    int64_t elems;
    double rate; /* at least 0 and below 1 */
    uint64_t seed, stream;
    const void *x;
    void *y;
    /* The part: `cols` columns, from first_col on, of each row of `width` columns. cols 0: x is whole. */
    int64_t cols, first_col, width;
};
#define sw_dropout(stream, ...) sw_device_run(stream, SW_DEVICE_DROPOUT, &(const struct sw_dropout){__VA_ARGS__})
static inline uint32_t sw_dropout_threshold(const struct sw_dropout *op) {
    return (uint32_t)(op->rate * 0x1p32);
}
/* Returns the number of element i of x. */
static inline int64_t sw_dropout_number(const struct sw_dropout *op, int64_t i) {
    return op->cols == 0 ? i : i / op->cols * op->width + op->first_col + i % op->cols;
}
/* Returns the factor of kept elements. */
static inline float sw_dropout_scale(const struct sw_dropout *op) {
    return (float)(1.0 / (1.0 - op->rate));
}

/* acc[cols] += the sum of the rows of dy, in row order within a fixed tiling that does not depend on threads. */
struct sw_bias_gradient {
    sw_dtype type;
    int64_t rows, cols;
    const void *dy;
    float *acc;
};
#define sw_bias_gradient(stream, ...)                                                                                  \
    sw_device_run(stream, SW_DEVICE_BIAS_GRADIENT, &(const struct sw_bias_gradient){__VA_ARGS__})

/* The rows of a table that exist here, [first, first + rows). All other rows count as zeros, and get no gradient. 0
 * rows: the whole table exists. */
struct sw_table_part {
    int64_t first, rows;
};
/* Returns the index of a row among those that exist here, or -1. */
static inline int64_t sw_table_row(struct sw_table_part part, int64_t row) {
    const int64_t at = row - part.first;
    return part.rows == 0 || (at >= 0 && at < part.rows) ? at : -1;
}

/* out[b·seq+t] = scale·table[tokens[b·seq+t]] + positions[t - document_start[b·seq+t]]: positions begin anew with each
 * document. document_start is as in struct sw_attention, NULL: 0. positions NULL: the model has none. */
struct sw_embedding_forward {
    sw_dtype type;
    int64_t batch, seq, cols;
    const int32_t *tokens, *document_start;
    const void *table, *positions;
    void *out;
    struct sw_table_part table_part, positions_part;
    float scale; /* 0 stands for 1 */
};
#define sw_embedding_forward(stream, ...)                                                                              \
    sw_device_run(stream, SW_DEVICE_EMBEDDING_FORWARD, &(const struct sw_embedding_forward){__VA_ARGS__})

/* table_acc[tokens[i]] += scale·d_out[i] in order of i, and positions_acc in the same way (NULL: the model has no
 * positions). The bits do not depend on the run. */
struct sw_embedding_backward {
    sw_dtype type;
    int64_t batch, seq, cols;
    const int32_t *tokens, *document_start;
    const void *d_out;
    float *table_acc, *positions_acc;
    struct sw_table_part table_part, positions_part;
    float scale; /* 0 stands for 1 */
};
static inline float sw_embedding_scale(float scale) {
    return scale == 0.0f ? 1.0f : scale;
}
#define sw_embedding_backward(stream, ...)                                                                             \
    sw_device_run(stream, SW_DEVICE_EMBEDDING_BACKWARD, &(const struct sw_embedding_backward){__VA_ARGS__})

/* Mixtures of experts. A router gives each token a logit per expert, and the token's row goes to the `chosen` experts
 * with the largest logits, one per slot. Slot s of row t is pair t·chosen + s. Rows of pairs are sorted by expert, so
 * that the rows of an expert are neighbours and a grouped product multiplies them by that expert's matrix. */
enum { SW_MOST_EXPERTS = 1024, SW_MOST_CHOSEN = 32 };

/* softmax_first: the weights of the chosen experts are their probabilities by the softmax over all experts, and with
 * `normalised` these are divided by their sum. Otherwise the softmax is over the chosen logits alone, which gives the
 * same values as `normalised`. */
struct sw_routing {
    int64_t rows, experts, chosen;
    bool softmax_first, normalised;
};
/* Returns whether the softmax of a routing is over all experts, and not over the chosen ones. */
static inline bool sw_routing_spans_all(const struct sw_routing *shape) {
    return shape->softmax_first && !shape->normalised;
}

/* Chooses the experts of each row, the largest logit first; of equal logits the smaller index is first, and NaN comes
 * after every number. So the experts of a row always exist and differ. The weights of a row that has NaN or +infinity
 * are NaN. */
struct sw_route_forward {
    sw_dtype type;
    const struct sw_routing *shape;
    const void *logits; /* [rows, experts] */
    int32_t *expert;    /* [rows, chosen] */
    float *weight;      /* [rows, chosen] */
};
#define sw_route_forward(stream, ...)                                                                                  \
    sw_device_run(stream, SW_DEVICE_ROUTE_FORWARD, &(const struct sw_route_forward){__VA_ARGS__})

/* d_logits [rows, experts] = the gradient at the logits, from the chosen experts and the gradient at their weights. The
 * choice itself has no gradient. Where the weights are NaN, so is the gradient at the chosen logits.
 *
 * With p the softmax over all experts and l the logarithm of its denominator, two losses add to it: balance times the
 * gradient of the sum of count[e]·p[e], and z times that of l². A row with NaN or +infinity then gets NaN everywhere.
 */
struct sw_route_backward {
    sw_dtype type;
    const struct sw_routing *shape;
    const void *logits;
    const int32_t *expert;
    const float *d_weight;
    void *d_logits;
    const double *count; /* [experts]; NULL: there is no such loss, and balance is 0 */
    double balance, z;
};
#define sw_route_backward(stream, ...)                                                                                 \
    sw_device_run(stream, SW_DEVICE_ROUTE_BACKWARD, &(const struct sw_route_backward){__VA_ARGS__})

/* Sorts the pairs by expert, and those of an expert by their number. The sorted pairs of expert e have the places
 * [offset[e], offset[e + 1]); source is the pair of each place, and place is the place of each pair. */
struct sw_order_by_expert {
    int64_t rows, experts, chosen;
    const int32_t *expert; /* [rows, chosen], each in [0, experts) */
    int32_t *offset;       /* [experts + 1] */
    int32_t *source;       /* [rows·chosen] */
    int32_t *place;        /* [rows·chosen] */
};
#define sw_order_by_expert(stream, ...)                                                                                \
    sw_device_run(stream, SW_DEVICE_ORDER_BY_EXPERT, &(const struct sw_order_by_expert){__VA_ARGS__})

/* Adds what a layer's router did with the rows of a micro-batch to sums over layers, and to sums over a step.
 *
 * routed[e] counts the rows that layer sends to expert e in a step. count[e] counts those that all layers send to it in
 * a micro-batch, and sum[e] is the sum of the softmax over all experts, at e, over the same rows and layers;
 * sum[experts] is that of the squared logarithm of the softmax's denominator. After the last layer, with n =
 * rows·layers and in fp64, losses[0] += experts·(the sum over e of count[e]·sum[e]) / n² (transformers'
 * load_balancing_loss_func), and losses[1] += sum[experts] / n (the z-loss of Zoph et al., arXiv 2202.08906). There is
 * at least one row then.
 *
 * Sums over rows are fp32 within SW_TALLY_ROWS rows, in their order, and then fp64 in the order of these blocks. */
enum { SW_TALLY_ROWS = 128 };
struct sw_tally_routing {
    sw_dtype type;
    const struct sw_routing *shape;
    int64_t layers;
    bool first_layer, last_layer; /* the first sets count and sum; the last computes losses */
    bool first_micro;             /* the first micro-batch of a step: sets `routed`, and `losses` */
    const void *logits;
    const int32_t *offset; /* from sw_order_by_expert */
    double *routed;        /* [experts] */
    double *count;         /* [experts]; NULL: the losses are not wanted, and the operands below are NULL, too */
    double *sum;           /* [experts + 1] */
    double *losses;        /* [2] */
    float *scratch;        /* sw_tally_scratch_bytes */
};
static inline int64_t sw_tally_scratch_bytes(const struct sw_routing *shape) {
    const int64_t blocks = (shape->rows + SW_TALLY_ROWS - 1) / SW_TALLY_ROWS;
    return blocks * (shape->experts + 1) * (int64_t)sizeof(float);
}
/* Computes the losses from the sums of all layers: the last part of the op on host devices. */
static inline void sw_tally_losses(const struct sw_tally_routing *op) {
    const int64_t experts = op->shape->experts;
    const double rows = (double)op->shape->rows * (double)op->layers;
    double balance = 0.0;
    for (int64_t e = 0; e < experts; e++)
        balance += op->count[e] * op->sum[e];
    op->losses[0] = (op->first_micro ? 0.0 : op->losses[0]) + (double)experts * balance / (rows * rows);
    op->losses[1] = (op->first_micro ? 0.0 : op->losses[1]) + op->sum[experts] / rows;
}
#define sw_tally_routing(stream, ...)                                                                                  \
    sw_device_run(stream, SW_DEVICE_TALLY_ROUTING, &(const struct sw_tally_routing){__VA_ARGS__})

/* y[i] = x[source[i] / chosen]: copies rows of tokens, x [rows, cols], to the places of their pairs, y [rows·chosen,
 * cols]. */
struct sw_permute_rows {
    sw_dtype type;
    int64_t rows, cols, chosen;
    const int32_t *source;
    const void *x;
    void *y;
    struct sw_row_run run; /* the rows of y to write */
};
#define sw_permute_rows(stream, ...)                                                                                   \
    sw_device_run(stream, SW_DEVICE_PERMUTE_ROWS, &(const struct sw_permute_rows){__VA_ARGS__})

/* y[t] = round(addend[t] + the sum of x[place[t·chosen + s]] over slots s), added in fp32 in the order of places, which
 * is that of experts. falling: from the last place to the first, and then the addend. x has rows·chosen rows, y and
 * addend have `rows`. addend NULL: 0. y may be the addend. Every implementation has the same bits, except for the
 * payload of a NaN.
 *
 * A sum may be cut between two places, so that a call adds the rows of one run of x: it then begins with `before`, and
 * its sum goes to `after` instead of y. NULL: it begins or ends there. Both are fp32 and may be the same. Only the call
 * that begins a rising sum, or ends a falling one, has an addend. The bits are those of one call for all rows. */
struct sw_unpermute_rows {
    sw_dtype type;
    int64_t rows, cols, chosen;
    const int32_t *place;
    const void *x, *addend;
    void *y; /* NULL: `after` takes its place */
    const float *before;
    float *after;
    struct sw_row_run run; /* the rows of x to add */
    bool falling;
};
#define sw_unpermute_rows(stream, ...)                                                                                 \
    sw_device_run(stream, SW_DEVICE_UNPERMUTE_ROWS, &(const struct sw_unpermute_rows){__VA_ARGS__})

/* y[i] = round(weight[source[i]]·x[i]) for the rows of all pairs in the order of places; y may be x. */
struct sw_scale_rows {
    sw_dtype type;
    int64_t rows, cols; /* rows: the number of pairs */
    const int32_t *source;
    const float *weight; /* by pair */
    const void *x;
    void *y;
    struct sw_row_run run;
};
#define sw_scale_rows(stream, ...)                                                                                     \
    sw_device_run(stream, SW_DEVICE_SCALE_ROWS, &(const struct sw_scale_rows){__VA_ARGS__})

/* dx[i] = round(weight[source[i]]·dy[i]), and d_weight[source[i]] = the sum of dy[i]·x[i] over columns in fp32, in an
 * order that depends on `cols` only. dx may be dy. */
struct sw_scale_rows_backward {
    sw_dtype type;
    int64_t rows, cols; /* rows: the number of pairs */
    const int32_t *source;
    const float *weight; /* by pair */
    const void *x, *dy;
    void *dx;
    float *d_weight; /* by pair */
    struct sw_row_run run;
};
#define sw_scale_rows_backward(stream, ...)                                                                            \
    sw_device_run(stream, SW_DEVICE_SCALE_ROWS_BACKWARD, &(const struct sw_scale_rows_backward){__VA_ARGS__})

/* Products of rows that are sorted by expert, each with the matrix of its expert. The rows of expert e are [offset[e],
 * offset[e + 1]) of a and c; other rows are neither read nor written.
 *
 * c[i] = a[i]·B_e + bias_e (+ c[i] where accumulate), with a [.., k] and c [.., n]; B_e is stored [k,n], or [n,k] with
 * transpose_b. Matrix and bias of expert e begin e·matrix_stride and e·bias_stride elements after those of the first.
 * Types are as in struct sw_gemm, and accumulate excludes a bias. a_stride and c_stride are the elements from one row
 * of a, and of c, to the next; 0: rows follow each other without a gap. Gaps are neither read nor written.
 *
 * weight_gradient: C_e [n,k] += the sum of a[i]ᵀ·b[i] over the rows of e, with a [.., n] of type `in`, b [.., k] of
 * type `in`, and C_e, fp32, e·matrix_stride elements after that of the first expert. An expert without rows keeps its
 * C_e. Neither accumulate, which is always so, nor c_stride is set.
 *
 * Sums are fp32. The result for an expert depends on its own operands only, to the bit: a call for a run of experts,
 * with `offset` at the first of them, gives what a call for all gives. It does not depend on the threads either. */
struct sw_grouped_gemm {
    int64_t experts;
    int64_t rows; /* the most rows that all experts may have in total */
    int64_t n, k;
    bool weight_gradient;
    bool transpose_b;
    bool bias;
    bool accumulate;
    sw_dtype in, out; /* out: SW_F32 for a weight gradient */
    int64_t matrix_stride, bias_stride;
    int64_t a_stride, c_stride;
    int64_t likely_rows; /* the number of rows that prices count; 0: `rows` */
};
/* Return the elements from one row of a, and of c, to the next. */
static inline int64_t sw_grouped_a_stride(const struct sw_grouped_gemm *shape) {
    return shape->a_stride > 0 ? shape->a_stride : shape->weight_gradient ? shape->n : shape->k;
}
static inline int64_t sw_grouped_c_stride(const struct sw_grouped_gemm *shape) {
    return shape->c_stride > 0 ? shape->c_stride : shape->n;
}
static inline int64_t sw_priced_rows(const struct sw_grouped_gemm *shape) {
    return shape->likely_rows > 0 ? shape->likely_rows : shape->rows;
}
struct sw_grouped_product {
    const struct sw_grouped_gemm *shape;
    const int32_t *offset; /* [experts + 1], never falling */
    const void *a, *b;
    const void *bias; /* NULL: the shape has none */
    void *c;
    void *scratch; /* as much as the preparation asked for */
};
#define sw_grouped_gemm(stream, ...)                                                                                   \
    sw_device_run(stream, SW_DEVICE_GROUPED_GEMM, &(const struct sw_grouped_product){__VA_ARGS__})
/* Prepares a shape before the first step, or refuses one that the device cannot multiply. *out_scratch_bytes: the
 * scratch that a call needs, device memory aligned to SW_BUFFER_ALIGN_BYTES. Not thread-safe. */
sw_status sw_device_prepare_grouped_gemm(struct sw_device *device, const struct sw_grouped_gemm *shape,
                                         int64_t *out_scratch_bytes);

/* The biases of experts whose results the router's weights scale. For the rows of expert e, [offset[e], offset[e + 1]):
 * y[i] = round(y[i] + weight[source[i]]·bias_e), the sum in fp32. The bias of expert e begins e·bias_stride elements
 * after that of the first. Other rows of y are neither read nor written. */
struct sw_expert_bias_forward {
    sw_dtype type;
    int64_t experts, rows, cols; /* rows: the most that all experts may have in total */
    int64_t bias_stride;
    int64_t likely_rows;   /* the number of rows that prices count; 0: `rows` */
    const int32_t *offset; /* [experts + 1] */
    const int32_t *source;
    const float *weight; /* by pair */
    const void *bias;
    void *y;
};
#define sw_expert_bias_forward(stream, ...)                                                                            \
    sw_device_run(stream, SW_DEVICE_EXPERT_BIAS_FORWARD, &(const struct sw_expert_bias_forward){__VA_ARGS__})

/* acc_e, fp32, += the sum of weight[source[i]]·dy[i] over the rows of e, in their order within a fixed tiling; weight
 * NULL: of dy[i]. d_weight[source[i]] += the sum over columns of dy[i]·bias_e in fp32, in an order that depends on
 * `cols` only. acc or d_weight NULL: that sum is not wanted; bias may be NULL with d_weight. The accumulators of
 * experts are bias_stride elements apart, like the biases. */
struct sw_expert_bias_backward {
    sw_dtype type;
    int64_t experts, rows, cols;
    int64_t bias_stride;
    int64_t likely_rows;
    const int32_t *offset, *source;
    const float *weight;
    const void *bias, *dy;
    float *acc, *d_weight;
};
#define sw_expert_bias_backward(stream, ...)                                                                           \
    sw_device_run(stream, SW_DEVICE_EXPERT_BIAS_BACKWARD, &(const struct sw_expert_bias_backward){__VA_ARGS__})

/* For each row: loss[row] = logsumexp(logits) - logits[target], or 0 where target < 0; and d_logits (of `type`; NULL:
 * no gradient is wanted) = scale·(softmax(logits) - onehot(target)), or 0 where target < 0. logits: fp32 [rows, vocab].
 * `stride` is the distance in elements between rows of logits, and of d_logits, at least `vocab`; the gap after a row's
 * columns is neither read nor written. */
struct sw_cross_entropy {
    sw_dtype type;
    int64_t rows, vocab, stride;
    float scale; /* of the gradient */
    const float *logits;
    const int32_t *targets;
    float *loss;
    void *d_logits;
    const float *row_scale; /* another factor of the gradient, one entry per row; NULL: 1 */
};
#define sw_cross_entropy(stream, ...)                                                                                  \
    sw_device_run(stream, SW_DEVICE_CROSS_ENTROPY, &(const struct sw_cross_entropy){__VA_ARGS__})

/* The next two ops are the two passes of cross-entropy over tiles of the vocabulary, so that logits are never whole. A
 * tile holds the columns [first_col, first_col + tile_cols) of every row: logits is [rows, tile_cols], with rows
 * `stride` elements apart, as in sw_cross_entropy.
 *
 * The first pass takes each tile into the running maximum, the sum of exp(logit - max) and the target's logit of every
 * row (0 until its column came). A tile with first_col begin_col starts them; the others follow, in the order of
 * columns.
 * A row without a target (< 0) keeps 0, 1 and 0. Tiles are taken in blocks of SW_SOFTMAX_BLOCK_COLUMNS (512), so on one
 * device every tiling by multiples of it gives the bits of sw_cross_entropy; "ref" sums whole tiles in fp64 instead. */
struct sw_softmax_partial {
    int64_t rows, tile_cols, stride, first_col;
    const float *logits;
    const int32_t *targets;
    float *max, *sum, *target_logit;
    int64_t begin_col; /* the first column that there is */
};
#define sw_softmax_partial(stream, ...)                                                                                \
    sw_device_run(stream, SW_DEVICE_SOFTMAX_PARTIAL, &(const struct sw_softmax_partial){__VA_ARGS__})

/* For columns cut into parts whose first passes ran separately: max, sum and target_logit of all columns, added up in
 * the order of parts. Part p's max of row r is part[p·part_stride + r]; its sum is row_stride further, and its
 * target_logit 2·row_stride further. */
struct sw_softmax_combine {
    int64_t rows, parts, part_stride, row_stride;
    const float *part;
    float *max, *sum, *target_logit;
};
#define sw_softmax_combine(stream, ...)                                                                                \
    sw_device_run(stream, SW_DEVICE_SOFTMAX_COMBINE, &(const struct sw_softmax_combine){__VA_ARGS__})

/* The second pass reads what the first has found, in any order of tiles: loss = log(sum) + max - target_logit where
 * first_col is 0 and loss is not NULL; d_logits (of `type`, laid out like logits; NULL to leave out, and then logits
 * may be NULL) = scale·(exp(logit - max)/sum - onehot(target)). Both are 0 where target < 0. */
struct sw_cross_entropy_tile {
    sw_dtype type;
    int64_t rows, tile_cols, stride, first_col;
    float scale; /* of the gradient */
    const float *logits;
    const int32_t *targets;
    const float *max, *sum, *target_logit;
    float *loss;
    void *d_logits;
    const float *row_scale; /* another factor of the gradient, one entry per row; NULL: 1 */
};
#define sw_cross_entropy_tile(stream, ...)                                                                             \
    sw_device_run(stream, SW_DEVICE_CROSS_ENTROPY_TILE, &(const struct sw_cross_entropy_tile){__VA_ARGS__})

/* *total += the sum of `rows` losses in fp64, in an order that depends on `rows` only. */
struct sw_sum_losses {
    int64_t rows;
    const float *losses;
    double *total;
};
#define sw_sum_losses(stream, ...)                                                                                     \
    sw_device_run(stream, SW_DEVICE_SUM_LOSSES, &(const struct sw_sum_losses){__VA_ARGS__})

/* Direct preference optimization (Rafailov et al., arXiv 2305.18290): from the losses of `pairs` pairs of sequences,
 * chosen then rejected, each of `seq` rows, what a pair's loss -log σ(β·margin) needs. Per sequence s, sums[s] = the
 * sum of its rows' losses in fp64, in an order that depends on `seq` only. The log-probability of a sequence is
 * -sums[s], and margin = (-sums[chosen] - reference[chosen]) - (-sums[rejected] - reference[rejected]). row_scale
 * (NULL: it is not wanted) is the derivative of the pair's loss by each row's loss: β·σ(-β·margin) for rows of the
 * chosen sequence, and that negated for rows of the rejected one. A pair whose chosen sequence has a reference of NaN
 * is none: its row_scale is 0. */
struct sw_preference {
    int64_t pairs, seq;
    double beta;
    const float *losses;     /* [2·pairs, seq] */
    const double *reference; /* [2·pairs]: log-probabilities of the sequences by the reference model */
    double *sums;            /* [2·pairs] */
    float *row_scale;        /* [2·pairs, seq] */
};
#define sw_preference(stream, ...)                                                                                     \
    sw_device_run(stream, SW_DEVICE_PREFERENCE, &(const struct sw_preference){__VA_ARGS__})

/* Ends a gradient: grads (of type) = round(acc), and sums[g] = the sum of squares of grain g of the rounded values in
 * fp64. In SW_GRADS_8BIT grads receives records instead, and what these stand for are the rounded values. elems is a
 * multiple of SW_GRAIN_ELEMS. The order of a grain's sum is part of the contract: 256 partial sums, element i to
 * partial i mod 256 by fused multiply-add in index order, then halves added pairwise (128, 64, ... 1). */
struct sw_finish_gradient {
    sw_dtype type;
    int64_t elems;
    const float *acc;
    void *grads; /* sw_grads_grain_bytes(format) a grain */
    double *sums;
    sw_grads_format format;
};
#define sw_finish_gradient(stream, ...)                                                                                \
    sw_device_run(stream, SW_DEVICE_FINISH_GRADIENT, &(const struct sw_finish_gradient){__VA_ARGS__})

/* to (of type) = round(scale·from), where the product is rounded to fp32 first. With `run`, of the rows of that run
 * only, each of `cols` elements; `elems` is then that of all rows. */
struct sw_cast_from_f32 {
    sw_dtype type;
    int64_t elems;
    const float *from;
    void *to;
    struct sw_row_run run;
    int64_t cols; /* 0 without a run */
    float scale;  /* 0 stands for 1 */
};
static inline float sw_cast_scale(const struct sw_cast_from_f32 *op) {
    return op->scale == 0.0f ? 1.0f : op->scale;
}
#define sw_cast_from_f32(stream, ...)                                                                                  \
    sw_device_run(stream, SW_DEVICE_CAST_FROM_F32, &(const struct sw_cast_from_f32){__VA_ARGS__})

/* sw_finish_gradient in two halves, for gradients that ranks sum in between: the rounded values of whole grains, with
 * the bits of sw_cast_from_f32, and the sums of squares of what `grads` holds. */
#define sw_round_gradient(stream, ...)                                                                                 \
    sw_device_run(stream, SW_DEVICE_ROUND_GRADIENT, &(const struct sw_cast_from_f32){__VA_ARGS__})
struct sw_square_sums {
    sw_dtype type;
    int64_t elems;
    const void *grads;
    double *sums;
};
#define sw_square_sums(stream, ...)                                                                                    \
    sw_device_run(stream, SW_DEVICE_SQUARE_SUMS, &(const struct sw_square_sums){__VA_ARGS__})

/* to = from (of type), which loses nothing. */
struct sw_cast_to_f32 {
    sw_dtype type;
    int64_t elems;
    const void *from;
    float *to;
};
#define sw_cast_to_f32(stream, ...)                                                                                    \
    sw_device_run(stream, SW_DEVICE_CAST_TO_F32, &(const struct sw_cast_to_f32){__VA_ARGS__})

/* AdamW as torch.optim.AdamW (decoupled weight decay, no amsgrad), fused with unscaling, clipping and rounding:
 *   g = grad·grad_scale;  p -= lr·decay·p;  m += (1-beta1)·(g-m);  v = beta2·v + (1-beta2)·g·g;
 *   p -= (lr/(1-beta1^t))·m / (sqrt(v)/sqrt(1-beta2^t) + eps)
 * in fp32 with the fused multiply-adds written out in ref/update.c, which every implementation reproduces bit by bit.
 */
struct sw_adamw {
    double lr, beta1, beta2, eps, weight_decay; /* doubles, as Python's: 1 - beta2 loses five digits in fp32 */
    float grad_scale;                           /* the clip coefficient over the loss scale */
    int64_t step;                               /* t, from 1 */
    bool skip; /* the step is skipped: the state stays as it is and the weights are rounded again */
};
/* A run of elements with the same weight decay, learning rate and t; runs cover [0, elems) of a unit in order. */
struct sw_decay_run {
    int64_t end; /* first element after the run */
    bool decay;
    double lr_scale; /* factor of the learning rate; 0 stands for 1 */
    int64_t step;    /* t of these elements; 0: that of the step */
    bool left_out;   /* their state stays as it is, bit by bit, and their weights are rounded again */
};
/* Updates `grains` grains of a unit from its element first_elem on. Moments that are kept in less than fp32 are
 * widened, updated in fp32 as above, and rounded back (kernels/moments.h); the master weights come from the moments
 * before they are rounded. The random words of a rounding are those of seed, unit, step and element, so that neither
 * chunks nor threads change a bit. The members from `format` to
 * wide_elem stay 0 where the format is fp32. In another format at
 * most 64 runs may end within SW_MOMENT_BLOCK_ELEMS elements, and a block of moments with a scale is left out as a
 * whole: in grains that are not wide, runs that are left out have whole blocks. */
struct sw_update_adamw {
    sw_dtype type; /* of grads and weights */
    const struct sw_adamw *adamw;
    int64_t first_elem; /* a multiple of SW_GRAIN_ELEMS */
    int64_t grains;
    const struct sw_decay_run *runs; /* [run_count], of the whole unit */
    int64_t run_count;
    const void *grads; /* [grains·SW_GRAIN_ELEMS], or records as grads_format says; NULL if the step is skipped */
    void *records;     /* the optimizer state, a record for each grain (core/optimizer_format.h) */
    void *weights;     /* [grains·SW_GRAIN_ELEMS] receives the rounded master weights; NULL: they are not wanted */
    sw_optimizer_format format;
    sw_rounding rounding;
    uint64_t seed;     /* of stochastic rounding */
    int64_t unit;      /* the number of the unit, for stochastic rounding */
    int64_t wide_elem; /* the first element of the unit's wide grains; without wide grains, the number of the unit's
                          elements */
    sw_grads_format grads_format;
    int64_t record_bytes; /* from one record to the next; 0: sw_optimizer_grain_bytes(format) */
};
static inline int64_t sw_update_record_bytes(const struct sw_update_adamw *op) {
    return op->record_bytes > 0 ? op->record_bytes : sw_optimizer_grain_bytes(op->format);
}
#define sw_update_adamw(stream, ...)                                                                                   \
    sw_device_run(stream, SW_DEVICE_UPDATE_ADAMW, &(const struct sw_update_adamw){__VA_ARGS__})

#endif
