/* The model's inside: where activations lie in the saved and work areas, and the matrix products of a block. */
#ifndef SW_TRAIN_MODEL_MODEL_PRIVATE_H
#define SW_TRAIN_MODEL_MODEL_PRIVATE_H

#include "train/hf/family.h"
#include "train/model/model.h"

enum embedding_tensor { TOKEN_TABLE, POSITION_TABLE };

/* The kinds of units between embedding and head: a block, or a tile of one of its halves. Each has a range of the
 * block's tensors. */
enum block_kind { BLOCK_WHOLE, ATTENTION_FIRST, ATTENTION_NEXT, MLP_FIRST, MLP_NEXT, BLOCK_KINDS };
struct sw_block_range {
    int first, end;
};
struct sw_block_range sw_block_range(enum block_kind kind);
/* Pieces of a block's tensor that a model of this configuration has; 0: it has none. */
int sw_block_pieces(const struct sw_model_config *config, enum sw_block_tensor tensor);

struct sw_tile {
    enum block_kind kind;
    int64_t layer, index;
    bool first, last; /* of its half */
};
struct sw_tile sw_tile_of(int64_t tiles, int64_t unit);

/* Byte offsets of the intermediates of a unit in the saved area, and in the derived one those that need no matrix
 * product to be made of them. */
struct saved_layout {
    int64_t qkv, log_sum_exp, attention_out, residual, up;
    int64_t saved_bytes;
    int64_t norm1_mean, norm1_rstd, norm1_out, q_rstd, k_rstd, heads, norm2_mean, norm2_rstd, norm2_out, activated;
    int64_t derived_bytes;
};

/* Byte offsets in the work area; block and head use it in turn. */
struct work_layout {
    int64_t wide;                                      /* rows × the widest result of a block's product */
    int64_t narrow;                                    /* rows × the larger of hidden and query */
    int64_t inner;                                     /* rows × inner layer, where it is gated */
    int64_t heads;                                     /* rows × query and key, where these are normalised */
    int64_t rotation;                                  /* the table of rotary positions */
    int64_t scratch;                                   /* of matrix products and attention */
    int64_t norm_out, norm_mean, norm_rstd, norm_grad; /* head, rows × hidden or rows */
    int64_t logits;                                    /* head, as many rows of a tile as have them at once */
    int64_t logits_grad, losses;                       /* head, one tile, or its rows */
    int64_t loss;                                      /* head, the sum of all rows' losses, fp64 */
    int64_t largest, sums, target_logits;              /* head whose vocabulary is cut: rows of a tile */
    int64_t hidden_grad;                               /* likewise × hidden, fp32 */
    int64_t bytes;
};

/* The products of a block: y = x·W + b (or without b), dx = dy·Wᵀ, dW += xᵀ·dy; where W is stored [out, in],
 * y = x·Wᵀ + b, dx = dy·W, dW += dyᵀ·x. */
struct linear {
    struct sw_gemm forward, forward_plain, input_gradient, weight_gradient;
};
enum linear_name { LINEAR_QKV, LINEAR_PROJECTION, LINEAR_UP, LINEAR_DOWN, LINEARS };

/* The head's tiles of rows and of the vocabulary; the last of each may be smaller. Where the vocabulary is not cut, a
 * tile has all of it, and only the gradient of its logits is kept for all rows: logits are of so many at a time. */
struct head_tiles {
    int64_t rows, cols;
    int64_t logits_rows;
    bool cut;
};
/* For a model whose rows, configuration and device are known. */
struct head_tiles sw_head_tiles(const struct sw_model *model);

/* The products of a tile of the head: logits = h·Tᵀ, dh = dlogits·T, dT += dlogitsᵀ·h. Where the vocabulary is cut, dh
 * is a sum over its tiles, in fp32. */
struct head_products {
    struct sw_gemm logits, input_gradient, table_gradient;
};

/* Columns of a tile's activations: queries; keys, and values likewise; all three; the inner layer, and what makes it.
 */
struct widths {
    int64_t q, kv, qkv, ffn, up;
};

struct sw_model {
    struct sw_model_config config;
    struct sw_model_shape shape;
    struct sw_device *device;
    struct sw_units *units;
    int64_t rows;                  /* batch · seq */
    int64_t tiles;                 /* of each half of a block; 1: not cut */
    struct widths widths;          /* of a tile */
    struct sw_attention attention; /* of a tile; the window is a layer's */
    float *rotation;               /* the table of rotary positions; NULL: none */
    struct sw_model *of_one;       /* the same for passes of one token, which has this one's table; NULL: none */
    struct head_tiles head;
    struct saved_layout saved[BLOCK_KINDS];
    struct work_layout work;
    struct linear linear[LINEARS]; /* of a tile */
    int64_t scratch_bytes;
    int64_t *output_bytes, *saved_bytes, *derived_bytes, *cache_bytes; /* of each unit ... */
    bool *shares_input;                                                /* ... likewise */
};

/* The parts of a micro-batch's tokens, one after the other; without documents the last is left out. */
enum token_part { TOKEN_INPUTS, TOKEN_TARGETS, TOKEN_DOCUMENT_START, TOKEN_PARTS };

static inline int64_t sw_token_parts(const struct sw_model *model) {
    return model->shape.documents ? TOKEN_PARTS : TOKEN_DOCUMENT_START;
}

static inline const int32_t *sw_token_part(const struct sw_model *model, const struct sw_unit_call *call,
                                           enum token_part part) {
    return part < sw_token_parts(model) ? call->tokens + part * model->rows : NULL;
}

/* Address of a tensor in a unit's flat vector of a type. */
static inline const void *tensor_at(const struct sw_model *model, const struct sw_unit_call *call, int tensor) {
    const int64_t offset = model->units->unit[call->unit].tensor[tensor].offset;
    return (const char *)call->weights + offset * sw_dtype_bytes(model->shape.type);
}

static inline float *acc_at(const struct sw_model *model, const struct sw_unit_call *call, int tensor) {
    return call->acc + model->units->unit[call->unit].tensor[tensor].offset;
}

/* The number of a block's tensor in a unit that may have only some of them; -1 where it has not this one. */
int sw_block_tensor_in(const struct sw_model *model, int64_t unit, enum sw_block_tensor tensor);

/* NULL in an area that a unit has no use for. */
static inline void *area_at(void *area, int64_t offset_bytes) {
    return area == NULL ? NULL : (char *)area + offset_bytes;
}

/* Products, attention and areas of the shapes that a model has. Needs the units. */
sw_status sw_model_prepare(struct sw_model *model);
struct sw_unit_sizes {
    int64_t output_bytes, saved_bytes, derived_bytes, cache_bytes;
    bool shares_input;
};
struct sw_unit_sizes sw_model_unit_sizes(const struct sw_model *model, int64_t unit);
struct head_products sw_head_products(const struct sw_model *model, int64_t rows, int64_t cols);

/* Between two tiles of one half goes the residual with what was added so far and, behind it, the half's normalised
 * input; backward the gradients of both. The backward pass of a tile needs only the latter, so what the first one hands
 * on serves all others. */
int64_t sw_norm_offset(const struct sw_model *model);

/* The most tokens that a query comes after, itself counted. */
static inline int64_t sw_most_keys(const struct sw_model *model) {
    return model->shape.context > 0 ? model->shape.context : model->shape.seq;
}

/* The cache of a unit that attends: keys of all places, each head beside the other, and from here on values likewise.
 */
int64_t sw_cache_values_offset(const struct sw_model *model);

/* Addresses of a unit's intermediates. */
struct saved {
    float *norm1_mean, *norm1_rstd, *q_rstd, *k_rstd, *log_sum_exp, *norm2_mean, *norm2_rstd;
    char *norm1_out, *qkv, *heads, *attention_out, *residual, *norm2_out, *up, *activated;
};
struct saved sw_saved_of(const struct sw_model *model, const struct sw_unit_call *call);

/* A norm over rows of the hidden size, as the configuration has it. Means and biases are a LayerNorm's. */
struct sw_norm_call {
    int64_t rows;
    const void *scale, *bias;
    float *scale_acc, *bias_acc; /* of the backward pass */
    float *mean, *rstd;
};
sw_status sw_model_norm_forward(const struct sw_model *model, struct sw_stream *stream, const struct sw_norm_call *norm,
                                const void *x, void *y);
sw_status sw_model_norm_backward(const struct sw_model *model, struct sw_stream *stream,
                                 const struct sw_norm_call *norm, const void *dy, const void *x, bool add_to_dx,
                                 void *dx);

/* Helpers that a block and its tiles share. */
sw_status sw_norm_forward(const struct sw_model *model, const struct sw_unit_call *call, enum sw_block_tensor scale,
                          const void *x, void *y, float *mean, float *rstd);
/* Adds to call->grad. */
sw_status sw_norm_backward(const struct sw_model *model, const struct sw_unit_call *call, enum sw_block_tensor scale,
                           const void *dy, const void *x, float *mean, float *rstd);
/* From the normalised input to what the half's last product multiplies; and that product. */
sw_status sw_attend_forward(const struct sw_model *model, const struct sw_unit_call *call, const void *n,
                            const struct saved *s);
sw_status sw_mlp_forward(const struct sw_model *model, const struct sw_unit_call *call, const void *n,
                         const struct saved *s);
/* The part of the former that needs no matrix product, of the derived intermediates alone. */
sw_status sw_attend_derive(const struct sw_model *model, const struct sw_unit_call *call, const struct saved *s);
/* addend: the residual that the product comes to, NULL where it comes to none. */
sw_status sw_linear_forward(const struct sw_model *model, const struct sw_unit_call *call, enum linear_name name,
                            enum sw_block_tensor weight, const void *x, const void *addend, void *y);
/* From call->grad at the half's output to the gradient at its normalised input. */
sw_status sw_attend_backward(const struct sw_model *model, const struct sw_unit_call *call, const void *n,
                             const struct saved *s, void *dn);
/* Makes the activated values where the call computes intermediates again. */
sw_status sw_mlp_backward(const struct sw_model *model, const struct sw_unit_call *call, const void *n,
                          const struct saved *s, void *dn);

sw_status sw_tile_forward(struct sw_model *model, const struct sw_unit_call *call);
sw_status sw_tile_recompute(struct sw_model *model, const struct sw_unit_call *call);
sw_status sw_tile_backward(struct sw_model *model, const struct sw_unit_call *call);
sw_status sw_block_forward(struct sw_model *model, const struct sw_unit_call *call);
sw_status sw_block_recompute(struct sw_model *model, const struct sw_unit_call *call);
sw_status sw_block_backward(struct sw_model *model, const struct sw_unit_call *call);
sw_status sw_embedding_unit_forward(struct sw_model *model, const struct sw_unit_call *call);
/* Rows gathered for a micro-batch, byte offsets: the tokens' rows of the table in their order, the rows of the
 * positions 0 to seq - 1, and the numbers of the former, by which a gathered table is looked up as a whole one is. */
struct gathered_layout {
    int64_t positions, numbers;
    int64_t bytes;
};
struct gathered_layout sw_gathered_layout(const struct sw_model *model);
void sw_embedding_gather(struct sw_model *model, const struct sw_gather_call *call);
sw_status sw_embedding_unit_backward(struct sw_model *model, const struct sw_unit_call *call);
sw_status sw_head_train(struct sw_model *model, const struct sw_unit_call *call);
sw_status sw_head_loss(struct sw_model *model, const struct sw_unit_call *call);
sw_status sw_head_logits(struct sw_model *model, const struct sw_unit_call *call);

#endif
