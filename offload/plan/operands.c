/* Says for every kind of op which of its accesses it uses as operands, and in which role. */
#include "core/size.h"
#include "io/store/store.h"
#include "offload/plan/plan_private.h"

enum { READ, WRITE, DIRECTIONS };

/* Roles by content and direction. An access without a role only orders the op. */
typedef unsigned char role_table[SW_CONTENTS][DIRECTIONS];

static const role_table roles[SW_OP_KINDS] = {
    [SW_OP_UPLOAD_TOKENS] = {[SW_CONTENT_TOKENS][WRITE] = SW_ROLE_TO},
    [SW_OP_FORWARD] = {[SW_CONTENT_WEIGHTS][READ] = SW_ROLE_WEIGHTS,
                       [SW_CONTENT_ROWS][READ] = SW_ROLE_ROWS,
                       [SW_CONTENT_TOKENS][READ] = SW_ROLE_TOKENS,
                       [SW_CONTENT_BLOCK_OUTPUT] = {SW_ROLE_INPUT, SW_ROLE_OUTPUT},
                       [SW_CONTENT_NORMED][READ] = SW_ROLE_NORMED,
                       [SW_CONTENT_SAVED][WRITE] = SW_ROLE_SAVED,
                       [SW_CONTENT_DERIVED][WRITE] = SW_ROLE_DERIVED,
                       [SW_CONTENT_WORK][WRITE] = SW_ROLE_WORK,
                       [SW_CONTENT_KV_CACHE][WRITE] = SW_ROLE_CACHE},
    [SW_OP_FORWARD_NORM] = {[SW_CONTENT_WEIGHTS][READ] = SW_ROLE_WEIGHTS,
                            [SW_CONTENT_BLOCK_OUTPUT][READ] = SW_ROLE_INPUT,
                            [SW_CONTENT_NORMED][WRITE] = SW_ROLE_OUTPUT,
                            [SW_CONTENT_WORK][WRITE] = SW_ROLE_WORK},
    [SW_OP_HEAD_LOGITS] = {[SW_CONTENT_WEIGHTS][READ] = SW_ROLE_WEIGHTS,
                           [SW_CONTENT_TOKENS][READ] = SW_ROLE_TOKENS,
                           [SW_CONTENT_BLOCK_OUTPUT][READ] = SW_ROLE_INPUT,
                           [SW_CONTENT_NORMED][READ] = SW_ROLE_NORMED,
                           [SW_CONTENT_SOFTMAX][WRITE] = SW_ROLE_SOFTMAX,
                           [SW_CONTENT_WORK][WRITE] = SW_ROLE_WORK},
    [SW_OP_BACKWARD_NORM] = {[SW_CONTENT_WEIGHTS][READ] = SW_ROLE_WEIGHTS,
                             [SW_CONTENT_BLOCK_OUTPUT][READ] = SW_ROLE_INPUT,
                             [SW_CONTENT_NORM_GRAD][READ] = SW_ROLE_NORM_GRAD,
                             [SW_CONTENT_BLOCK_OUTPUT_GRAD][WRITE] = SW_ROLE_OUTPUT_GRAD,
                             [SW_CONTENT_ACC][WRITE] = SW_ROLE_ACC,
                             [SW_CONTENT_WORK][WRITE] = SW_ROLE_WORK},
    [SW_OP_REDUCE_TENSOR] =
        {[SW_CONTENT_BLOCK_OUTPUT] = {SW_ROLE_FROM, SW_ROLE_TO}, [SW_CONTENT_NORM_GRAD] = {SW_ROLE_FROM, SW_ROLE_TO}},
    [SW_OP_GATHER_TENSOR] = {[SW_CONTENT_BLOCK_OUTPUT] = {SW_ROLE_FROM, SW_ROLE_TO},
                             [SW_CONTENT_BLOCK_OUTPUT_GRAD] = {SW_ROLE_FROM, SW_ROLE_TO},
                             [SW_CONTENT_NORMED] = {SW_ROLE_FROM, SW_ROLE_TO},
                             [SW_CONTENT_SOFTMAX] = {SW_ROLE_FROM, SW_ROLE_TO}},
    [SW_OP_SUM_REPLICATED] = {[SW_CONTENT_ACC] = {SW_ROLE_FROM, SW_ROLE_TO}},
    [SW_OP_COMPUTE_LOSS] = {[SW_CONTENT_SOFTMAX][READ] = SW_ROLE_SOFTMAX,
                            [SW_CONTENT_NORMED][READ] = SW_ROLE_NORMED,
                            [SW_CONTENT_WEIGHTS][READ] = SW_ROLE_WEIGHTS,
                            [SW_CONTENT_TOKENS][READ] = SW_ROLE_TOKENS,
                            [SW_CONTENT_BLOCK_OUTPUT][READ] = SW_ROLE_INPUT,
                            [SW_CONTENT_WORK][WRITE] = SW_ROLE_WORK},
    [SW_OP_COMPUTE_LOGITS] = {[SW_CONTENT_WEIGHTS][READ] = SW_ROLE_WEIGHTS,
                              [SW_CONTENT_TOKENS][READ] = SW_ROLE_TOKENS,
                              [SW_CONTENT_BLOCK_OUTPUT][READ] = SW_ROLE_INPUT,
                              [SW_CONTENT_NORMED][READ] = SW_ROLE_NORMED,
                              [SW_CONTENT_WORK][WRITE] = SW_ROLE_WORK},
    [SW_OP_ZERO_ACCUMULATOR] = {[SW_CONTENT_ACC][WRITE] = SW_ROLE_TO},
    [SW_OP_FORWARD_BACKWARD_HEAD] = {[SW_CONTENT_SOFTMAX][READ] = SW_ROLE_SOFTMAX,
                                     [SW_CONTENT_NORMED][READ] = SW_ROLE_NORMED,
                                     [SW_CONTENT_NORM_GRAD][WRITE] = SW_ROLE_NORM_GRAD,
                                     [SW_CONTENT_WEIGHTS][READ] = SW_ROLE_WEIGHTS,
                                     [SW_CONTENT_TOKENS][READ] = SW_ROLE_TOKENS,
                                     [SW_CONTENT_BLOCK_OUTPUT][READ] = SW_ROLE_INPUT,
                                     [SW_CONTENT_BLOCK_OUTPUT_GRAD][WRITE] = SW_ROLE_OUTPUT_GRAD,
                                     [SW_CONTENT_ACC][WRITE] = SW_ROLE_ACC,
                                     [SW_CONTENT_WORK][WRITE] = SW_ROLE_WORK},
    [SW_OP_BACKWARD] = {[SW_CONTENT_NORM_GRAD][WRITE] = SW_ROLE_NORM_GRAD,
                        [SW_CONTENT_PRODUCT_GRAD][WRITE] = SW_ROLE_PRODUCT_GRAD,
                        [SW_CONTENT_NORMED][READ] = SW_ROLE_NORMED,
                        [SW_CONTENT_WEIGHTS][READ] = SW_ROLE_WEIGHTS,
                        [SW_CONTENT_TOKENS][READ] = SW_ROLE_TOKENS,
                        [SW_CONTENT_BLOCK_OUTPUT][READ] = SW_ROLE_INPUT,
                        [SW_CONTENT_SAVED] = {SW_ROLE_SAVED, SW_ROLE_SAVED},
                        [SW_CONTENT_DERIVED] = {SW_ROLE_DERIVED, SW_ROLE_DERIVED},
                        [SW_CONTENT_BLOCK_OUTPUT_GRAD][READ] = SW_ROLE_OUTPUT_GRAD,
                        [SW_CONTENT_ACC][WRITE] = SW_ROLE_ACC,
                        [SW_CONTENT_WORK][WRITE] = SW_ROLE_WORK},
    [SW_OP_BACKWARD_LAST] = {[SW_CONTENT_SAVED][READ] = SW_ROLE_SAVED,
                             [SW_CONTENT_DERIVED][READ] = SW_ROLE_DERIVED,
                             [SW_CONTENT_BLOCK_OUTPUT_GRAD][READ] = SW_ROLE_OUTPUT_GRAD,
                             [SW_CONTENT_ACC][WRITE] = SW_ROLE_ACC,
                             [SW_CONTENT_WORK][WRITE] = SW_ROLE_WORK},
    [SW_OP_BACKWARD_FIRST] = {[SW_CONTENT_NORMED][READ] = SW_ROLE_NORMED,
                              [SW_CONTENT_DERIVED][READ] = SW_ROLE_DERIVED,
                              [SW_CONTENT_PRODUCT_GRAD][READ] = SW_ROLE_PRODUCT_GRAD,
                              [SW_CONTENT_ACC][WRITE] = SW_ROLE_ACC,
                              [SW_CONTENT_WORK][WRITE] = SW_ROLE_WORK},
    [SW_OP_ROUND_GRADIENTS] = {[SW_CONTENT_ACC][READ] = SW_ROLE_FROM,
                               [SW_CONTENT_GRADS][WRITE] = SW_ROLE_TO,
                               [SW_CONTENT_SQUARE_SUMS][WRITE] = SW_ROLE_SQUARE_SUMS},
    [SW_OP_ROUND_OWN_GRADIENTS] = {[SW_CONTENT_ACC][READ] = SW_ROLE_FROM, [SW_CONTENT_GRADS][WRITE] = SW_ROLE_TO},
    [SW_OP_REDUCE_GRADIENTS] =
        {[SW_CONTENT_GRADS] = {SW_ROLE_FROM, SW_ROLE_TO}, [SW_CONTENT_BUCKET_SUM][WRITE] = SW_ROLE_TO},
    [SW_OP_QUANTIZE_GRADIENTS] = {[SW_CONTENT_ACC][READ] = SW_ROLE_FROM,
                                  [SW_CONTENT_QUANT_GRADS][WRITE] = SW_ROLE_TO,
                                  [SW_CONTENT_NODE_SUM][READ] = SW_ROLE_FROM,
                                  [SW_CONTENT_NODE_QUANT][WRITE] = SW_ROLE_TO},
    [SW_OP_EXCHANGE_GRADIENTS] = {[SW_CONTENT_QUANT_GRADS][READ] = SW_ROLE_FROM,
                                  [SW_CONTENT_QUANT_PARTS][WRITE] = SW_ROLE_TO,
                                  [SW_CONTENT_NODE_QUANT][READ] = SW_ROLE_FROM,
                                  [SW_CONTENT_NODE_PARTS][WRITE] = SW_ROLE_TO},
    [SW_OP_DEQUANTIZE_GRADIENTS] = {[SW_CONTENT_QUANT_GRADS][READ] = SW_ROLE_GRADS,
                                    [SW_CONTENT_QUANT_PARTS][READ] = SW_ROLE_FROM,
                                    [SW_CONTENT_NODE_SUM][WRITE] = SW_ROLE_TO,
                                    [SW_CONTENT_NODE_QUANT][READ] = SW_ROLE_GRADS,
                                    [SW_CONTENT_NODE_PARTS][READ] = SW_ROLE_FROM,
                                    [SW_CONTENT_GRADS][WRITE] = SW_ROLE_TO,
                                    [SW_CONTENT_BUCKET_SUM][WRITE] = SW_ROLE_TO},
    [SW_OP_ADD_TO_ACCUMULATOR] = {[SW_CONTENT_BUCKET_SUM][READ] = SW_ROLE_FROM, [SW_CONTENT_ACC][WRITE] = SW_ROLE_TO},
    [SW_OP_SUM_SQUARES] =
        {[SW_CONTENT_GRADS][READ] = SW_ROLE_FROM, [SW_CONTENT_SQUARE_SUMS][WRITE] = SW_ROLE_SQUARE_SUMS},
    [SW_OP_ALL_GATHER] = {[SW_CONTENT_WEIGHTS] = {SW_ROLE_FROM, SW_ROLE_TO},
                          [SW_CONTENT_GRADS] = {SW_ROLE_FROM, SW_ROLE_TO},
                          [SW_CONTENT_QUANT_WEIGHTS] = {SW_ROLE_FROM, SW_ROLE_TO}},
    [SW_OP_QUANTIZE_WEIGHTS] =
        {[SW_CONTENT_WEIGHTS][READ] = SW_ROLE_FROM, [SW_CONTENT_QUANT_WEIGHTS][WRITE] = SW_ROLE_TO},
    [SW_OP_DEQUANTIZE_WEIGHTS] =
        {[SW_CONTENT_QUANT_WEIGHTS][READ] = SW_ROLE_FROM, [SW_CONTENT_WEIGHTS][WRITE] = SW_ROLE_TO},
    [SW_OP_KEEP_SECONDARY] = {[SW_CONTENT_WEIGHTS] = {SW_ROLE_FROM, SW_ROLE_TO}},
    [SW_OP_EXCHANGE_SUMMARY] = {[SW_CONTENT_SQUARE_SUMS][WRITE] = SW_ROLE_SQUARE_SUMS},
    [SW_OP_DOWNLOAD_SQUARE_SUMS] = {[SW_CONTENT_SQUARE_SUMS] = {SW_ROLE_FROM, SW_ROLE_TO}},
    [SW_OP_COMPUTE_NORM] = {[SW_CONTENT_SQUARE_SUMS][READ] = SW_ROLE_SQUARE_SUMS},
    [SW_OP_UPDATE_ON_HOST] = {[SW_CONTENT_GRADS][READ] = SW_ROLE_GRADS,
                              [SW_CONTENT_OPTIMIZER][WRITE] = SW_ROLE_OPTIMIZER,
                              [SW_CONTENT_WEIGHTS][WRITE] = SW_ROLE_WEIGHTS},
    [SW_OP_UPDATE_ON_DEVICE] = {[SW_CONTENT_GRADS][READ] = SW_ROLE_GRADS,
                                [SW_CONTENT_OPTIMIZER][WRITE] = SW_ROLE_OPTIMIZER,
                                [SW_CONTENT_WEIGHTS][WRITE] = SW_ROLE_WEIGHTS},
    [SW_OP_GATHER_ROWS] = {[SW_CONTENT_WEIGHTS][READ] = SW_ROLE_WEIGHTS, [SW_CONTENT_ROWS][WRITE] = SW_ROLE_ROWS},
};

sw_role sw_role_of(const struct sw_op *op, const struct sw_access *access) {
    /* A redo reads the norm only to know whether it is needed. */
    if (sw_op_is_transfer(op->kind) && access->content != SW_CONTENT_NORM)
        return access->write ? SW_ROLE_TO : SW_ROLE_FROM;
    const sw_role role = (sw_role)roles[op->kind][access->content][access->write ? WRITE : READ];
    /* The head of a tied model also uses the embedding's weights and accumulator. */
    const bool other = op->kind <= SW_OP_FORWARD_BACKWARD_HEAD && access->unit != op->unit;
    if (other && role == SW_ROLE_WEIGHTS)
        return SW_ROLE_TABLE;
    return other && role == SW_ROLE_ACC ? SW_ROLE_TABLE_ACC : role;
}

int64_t sw_plan_grain_bytes(const struct sw_plan *plan, sw_content content, int64_t unit) {
    switch (content) {
    case SW_CONTENT_WEIGHTS: return sw_plan_weights_bytes(plan, unit, 1);
    case SW_CONTENT_GRADS: return sw_grads_grain_bytes(plan->spec.grads, sw_dtype_bytes(plan->spec.type));
    case SW_CONTENT_ACC:
    case SW_CONTENT_NODE_SUM:
    case SW_CONTENT_BUCKET_SUM: return SW_GRAIN_ELEMS * (int64_t)sizeof(float);
    case SW_CONTENT_QUANT_WEIGHTS: return sw_quant_grain_bytes(plan->spec.gather);
    case SW_CONTENT_NODE_QUANT:
    case SW_CONTENT_NODE_PARTS:
    case SW_CONTENT_QUANT_GRADS:
    case SW_CONTENT_QUANT_PARTS: return sw_quant_grain_bytes(plan->spec.reduce);
    case SW_CONTENT_SQUARE_SUMS: return sizeof(double);
    case SW_CONTENT_OPTIMIZER: return sw_plan_optimizer_bytes(plan, 1);
    default: return 0;
    }
}
