#include "kernels/cuda/kernel_ops.h"

#include <assert.h>

static void add_norm_forward(cudaStream_t stream, const void *args) {
    const struct sw_add_norm_forward *op = args;
    (op->mean == NULL ? sw_cuda_add_rmsnorm_forward : sw_cuda_add_layernorm_forward)(stream, args);
}

/* NULL: only host devices have the op. */
static sw_cuda_launcher *const launchers[SW_DEVICE_OPS] = {
    [SW_DEVICE_LAYERNORM_FORWARD] = sw_cuda_layernorm_forward,
    [SW_DEVICE_LAYERNORM_BACKWARD] = sw_cuda_layernorm_backward,
    [SW_DEVICE_RMSNORM_FORWARD] = sw_cuda_rmsnorm_forward,
    [SW_DEVICE_RMSNORM_BACKWARD] = sw_cuda_rmsnorm_backward,
    [SW_DEVICE_ADD_NORM_FORWARD] = add_norm_forward,
    [SW_DEVICE_ROTATE] = sw_cuda_rotate,
    [SW_DEVICE_ATTENTION_FORWARD] = sw_cuda_attention_forward,
    [SW_DEVICE_ATTENTION_BACKWARD] = sw_cuda_attention_backward,
    [SW_DEVICE_SINK_FORWARD] = sw_cuda_sink_forward,
    [SW_DEVICE_SINK_BACKWARD] = sw_cuda_sink_backward,
    [SW_DEVICE_ACTIVATION_FORWARD] = sw_cuda_activation_forward,
    [SW_DEVICE_ACTIVATION_BACKWARD] = sw_cuda_activation_backward,
    [SW_DEVICE_GATED_FORWARD] = sw_cuda_gated_forward,
    [SW_DEVICE_GATED_BACKWARD] = sw_cuda_gated_backward,
    [SW_DEVICE_CLAMPED_FORWARD] = sw_cuda_clamped_forward,
    [SW_DEVICE_CLAMPED_BACKWARD] = sw_cuda_clamped_backward,
    [SW_DEVICE_ADD] = sw_cuda_add,
    [SW_DEVICE_DROPOUT] = sw_cuda_dropout,
    [SW_DEVICE_BIAS_GRADIENT] = sw_cuda_bias_gradient,
    [SW_DEVICE_EMBEDDING_FORWARD] = sw_cuda_embedding_forward,
    [SW_DEVICE_EMBEDDING_BACKWARD] = sw_cuda_embedding_backward,
    [SW_DEVICE_CROSS_ENTROPY] = sw_cuda_cross_entropy,
    [SW_DEVICE_SOFTMAX_PARTIAL] = sw_cuda_softmax_partial,
    [SW_DEVICE_SOFTMAX_COMBINE] = sw_cuda_softmax_combine,
    [SW_DEVICE_CROSS_ENTROPY_TILE] = sw_cuda_cross_entropy_tile,
    [SW_DEVICE_SUM_LOSSES] = sw_cuda_sum_losses,
    [SW_DEVICE_PREFERENCE] = sw_cuda_preference,
    [SW_DEVICE_FINISH_GRADIENT] = sw_cuda_finish_gradient,
    [SW_DEVICE_ROUND_GRADIENT] = sw_cuda_cast_from_f32,
    [SW_DEVICE_SQUARE_SUMS] = sw_cuda_square_sums,
    [SW_DEVICE_CAST_FROM_F32] = sw_cuda_cast_from_f32,
    [SW_DEVICE_CAST_TO_F32] = sw_cuda_cast_to_f32,
    [SW_DEVICE_UPDATE_ADAMW] = sw_cuda_update_adamw,
    [SW_DEVICE_QUANTIZE] = sw_cuda_quantize,
    [SW_DEVICE_DEQUANTIZE] = sw_cuda_dequantize,
    [SW_DEVICE_ENCODE_FP8] = sw_cuda_encode_fp8,
    [SW_DEVICE_DECODE_FP8] = sw_cuda_decode_fp8,
    [SW_DEVICE_PACK_WEIGHTS] = sw_cuda_pack_weights,
    [SW_DEVICE_UNPACK_WEIGHTS] = sw_cuda_unpack_weights,
    [SW_DEVICE_DEQUANTIZE_BASE] = sw_cuda_dequantize_base,
    [SW_DEVICE_ROUTE_FORWARD] = sw_cuda_route_forward,
    [SW_DEVICE_ROUTE_BACKWARD] = sw_cuda_route_backward,
    [SW_DEVICE_ORDER_BY_EXPERT] = sw_cuda_order_by_expert,
    [SW_DEVICE_TALLY_ROUTING] = sw_cuda_tally_routing,
    [SW_DEVICE_PERMUTE_ROWS] = sw_cuda_permute_rows,
    [SW_DEVICE_UNPERMUTE_ROWS] = sw_cuda_unpermute_rows,
    [SW_DEVICE_SCALE_ROWS] = sw_cuda_scale_rows,
    [SW_DEVICE_SCALE_ROWS_BACKWARD] = sw_cuda_scale_rows_backward,
    [SW_DEVICE_GROUPED_GEMM] = sw_cuda_grouped_gemm,
    [SW_DEVICE_EXPERT_BIAS_FORWARD] = sw_cuda_expert_bias_forward,
    [SW_DEVICE_EXPERT_BIAS_BACKWARD] = sw_cuda_expert_bias_backward,
    [SW_DEVICE_RANK_SUM] = sw_cuda_rank_sum,
};

/* Returns whether a device computes attention of a shape by products of warpgroups. */
static bool by_warpgroups(const struct sw_device *device, const struct sw_attention *shape, sw_dtype type) {
    return device->info.warpgroups && sw_cuda_hopper_attention_serves(shape, type);
}

static int64_t attention_scratch_bytes(const struct sw_device *device, const struct sw_attention *shape,
                                       sw_dtype type) {
    const int64_t warps = sw_cuda_attention_scratch_bytes(shape, type);
    if (!by_warpgroups(device, shape, type))
        return warps;
    const int64_t warpgroups = sw_cuda_hopper_attention_scratch_bytes(shape, type);
    return warpgroups > warps ? warpgroups : warps;
}

/* Tensors that do not begin at a multiple of 16 bytes are for products of warps. */
static bool are_aligned(const void *const *tensors, int count) {
    bool aligned = true;
    for (int i = 0; i < count; i++)
        aligned = aligned && (uintptr_t)tensors[i] % 16 == 0;
    return aligned;
}

static sw_cuda_launcher *attention_forward(const struct sw_device *device, const struct sw_attention_forward *op) {
    const void *const tensors[] = {op->q, op->k, op->v, op->o};
    return by_warpgroups(device, op->shape, op->type) && are_aligned(tensors, sizeof tensors / sizeof tensors[0])
               ? sw_cuda_hopper_attention_forward
               : sw_cuda_attention_forward;
}

static sw_cuda_launcher *attention_backward(const struct sw_device *device, const struct sw_attention_backward *op) {
    const void *const tensors[] = {op->q, op->k, op->v, op->o, op->d_o, op->dq, op->dk, op->dv, op->scratch};
    return by_warpgroups(device, op->shape, op->type) && are_aligned(tensors, sizeof tensors / sizeof tensors[0])
               ? sw_cuda_hopper_attention_backward
               : sw_cuda_attention_backward;
}

/* Grids count tiles in 31 bits. */
static sw_status prepare_grouped_gemm(struct sw_device *device, const struct sw_grouped_gemm *shape,
                                      int64_t *out_scratch_bytes) {
    (void)device;
    *out_scratch_bytes = 0;
    if (sw_cuda_grouped_gemm_tiles(shape) <= INT32_MAX)
        return SW_OK;
    return sw_fail(SW_ERR_UNSUPPORTED, "a product of experts of %lld x %lld x %lld is too large for a GPU's grid",
                   (long long)shape->rows, (long long)shape->n, (long long)shape->k);
}

static sw_status run(struct sw_stream *stream, sw_device_op op, const void *args) {
    sw_cuda_launcher *launch = launchers[op];
    if (op == SW_DEVICE_ATTENTION_FORWARD)
        launch = attention_forward(stream->device, args);
    if (op == SW_DEVICE_ATTENTION_BACKWARD)
        launch = attention_backward(stream->device, args);
    assert(launch != NULL);
    launch(sw_cuda_stream_handle(stream), args);
    return sw_cuda_launched(stream, sw_device_op_row(op)->name);
}

void sw_cuda_add_kernels(struct sw_device_ops *ops) {
    ops->attention_scratch_bytes = attention_scratch_bytes;
    ops->prepare_grouped_gemm = prepare_grouped_gemm;
    ops->update_muon = sw_cuda_update_muon;
    ops->run = run;
}
