/* The model's inside: where activations lie in the saved and work areas, and the matrix products of a block. */
#ifndef SW_TRAIN_MODEL_PRIVATE_H
#define SW_TRAIN_MODEL_PRIVATE_H

#include "train/model.h"

/* Tensors of a block, in order of their place in the unit. */
enum block_tensor {
    NORM1_SCALE,
    NORM1_BIAS,
    QKV_WEIGHT,
    QKV_BIAS,
    PROJECTION_WEIGHT,
    PROJECTION_BIAS,
    NORM2_SCALE,
    NORM2_BIAS,
    UP_WEIGHT,
    UP_BIAS,
    DOWN_WEIGHT,
    DOWN_BIAS,
    BLOCK_TENSORS
};
enum embedding_tensor { TOKEN_TABLE, POSITION_TABLE };
enum head_tensor { FINAL_NORM_SCALE, FINAL_NORM_BIAS, OUTPUT_TABLE };

/* Byte offsets of a block's intermediates in the saved area. */
struct saved_layout {
    int64_t norm1_mean, norm1_rstd, norm1_out, qkv, log_sum_exp, attention_out;
    int64_t residual, norm2_mean, norm2_rstd, norm2_out, up, activated;
    int64_t bytes;
};

/* Byte offsets in the work area; block and head use it in turn. */
struct work_layout {
    int64_t wide;                                      /* rows × max(ffn, 3·hidden) */
    int64_t narrow;                                    /* rows × hidden */
    int64_t scratch;                                   /* of matrix products and attention */
    int64_t norm_out, norm_mean, norm_rstd, norm_grad; /* head, rows × hidden or rows */
    int64_t logits, logits_grad, losses;               /* head, tile × vocab or tile */
    int64_t bytes;
};

/* The products of a block: y = x·W + b, dx = dy·Wᵀ, dW += xᵀ·dy. */
struct linear {
    struct sw_gemm forward, input_gradient, weight_gradient;
};
enum linear_name { LINEAR_QKV, LINEAR_PROJECTION, LINEAR_UP, LINEAR_DOWN, LINEARS };

/* The products of the head for a tile of rows: logits = h·Tᵀ, dh = dlogits·T, dT += dlogitsᵀ·h. */
struct head_products {
    struct sw_gemm logits, input_gradient, table_gradient;
};

struct sw_model {
    struct sw_model_config config;
    struct sw_model_shape shape;
    struct sw_device *device;
    struct sw_units *units;
    int64_t rows;                      /* batch · seq */
    int64_t tile_rows, last_tile_rows; /* the head's tiles */
    struct sw_attention attention;
    struct saved_layout saved;
    struct work_layout work;
    struct linear linear[LINEARS];
    struct head_products tile, last_tile, row;
    int64_t scratch_bytes;
};

/* Address of a tensor in a unit's flat vector of a type. */
static inline const void *tensor_at(const struct sw_model *model, const struct sw_unit_call *call, int tensor) {
    const int64_t offset = model->units->unit[call->unit].tensor[tensor].offset;
    return (const char *)call->weights + offset * sw_dtype_bytes(model->shape.type);
}

static inline float *acc_at(const struct sw_model *model, const struct sw_unit_call *call, int tensor) {
    return call->acc + model->units->unit[call->unit].tensor[tensor].offset;
}

static inline void *area_at(void *area, int64_t offset_bytes) {
    return (char *)area + offset_bytes;
}

sw_status sw_block_forward(struct sw_model *model, const struct sw_unit_call *call);
sw_status sw_block_backward(struct sw_model *model, const struct sw_unit_call *call);
sw_status sw_embedding_unit_forward(struct sw_model *model, const struct sw_unit_call *call);
sw_status sw_embedding_unit_backward(struct sw_model *model, const struct sw_unit_call *call);
sw_status sw_head_train(struct sw_model *model, const struct sw_unit_call *call);
sw_status sw_head_loss(struct sw_model *model, const struct sw_unit_call *call);
sw_status sw_head_logits(struct sw_model *model, const struct sw_unit_call *call);

#endif
