/* The launchers of the CUDA kernels, one for each op of kernels/ops.h and with its contract. A launcher only queues
 * kernels: it allocates nothing and waits for nothing, and the caller asks CUDA for the error of the launch. This
 * header needs none of CUDA's, so that C and the tests' emulation can include it. */
#ifndef SW_KERNELS_CUDA_LAUNCH_H
#define SW_KERNELS_CUDA_LAUNCH_H

#include "kernels/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* This repeats CUDA's own declaration of a stream. */
typedef struct CUstream_st *cudaStream_t;

/* Returns the cudaError_t with which launches would end because no code of the kernels is for this GPU; 0: there is. */
int sw_cuda_kernels_error(void);

/* Queues the kernels of an op, whose struct of ops.h `args` points to. */
typedef void sw_cuda_launcher(cudaStream_t stream, const void *args);
sw_cuda_launcher sw_cuda_layernorm_forward, sw_cuda_layernorm_backward, sw_cuda_rmsnorm_forward,
    sw_cuda_rmsnorm_backward, sw_cuda_rotate, sw_cuda_attention_forward, sw_cuda_attention_backward,
    sw_cuda_activation_forward, sw_cuda_activation_backward, sw_cuda_gated_forward, sw_cuda_gated_backward, sw_cuda_add,
    sw_cuda_bias_gradient, sw_cuda_embedding_forward, sw_cuda_embedding_backward, sw_cuda_cross_entropy,
    sw_cuda_softmax_partial, sw_cuda_softmax_combine, sw_cuda_cross_entropy_tile, sw_cuda_sum_losses,
    sw_cuda_preference, sw_cuda_finish_gradient, sw_cuda_square_sums, sw_cuda_cast_from_f32, sw_cuda_cast_to_f32,
    sw_cuda_update_adamw, sw_cuda_quantize, sw_cuda_dequantize, sw_cuda_rank_sum, sw_cuda_encode_fp8,
    sw_cuda_decode_fp8, sw_cuda_pack_weights, sw_cuda_unpack_weights, sw_cuda_dequantize_base, sw_cuda_dropout,
    sw_cuda_route_forward, sw_cuda_route_backward, sw_cuda_order_by_expert, sw_cuda_tally_routing, sw_cuda_permute_rows,
    sw_cuda_unpermute_rows, sw_cuda_scale_rows, sw_cuda_scale_rows_backward, sw_cuda_grouped_gemm, sw_cuda_sink_forward,
    sw_cuda_sink_backward, sw_cuda_clamped_forward, sw_cuda_clamped_backward, sw_cuda_expert_bias_forward,
    sw_cuda_expert_bias_backward;
/* Both take struct sw_add_norm_forward: the one with a mean, and the one without. */
sw_cuda_launcher sw_cuda_add_layernorm_forward, sw_cuda_add_rmsnorm_forward;

/* Queues the quantization of accumulators into kept gradients of SW_GRADS_8BIT. */
void sw_cuda_quantize_kept(cudaStream_t stream, int64_t grains, const float *acc, void *grads);

/* Returns the blocks of a grouped product's grid. */
int64_t sw_cuda_grouped_gemm_tiles(const struct sw_grouped_gemm *shape);

int64_t sw_cuda_attention_scratch_bytes(const struct sw_attention *shape, sw_dtype type);

/* Attention by warpgroup products, for GPUs of capability 9.0 only: the results of the two ops above, where `serves`
 * returns true for shape and type, and every tensor begins at a multiple of 16 bytes. Where the program was built
 * without that code it serves nothing. */
bool sw_cuda_hopper_attention_serves(const struct sw_attention *shape, sw_dtype type);
int64_t sw_cuda_hopper_attention_scratch_bytes(const struct sw_attention *shape, sw_dtype type);
sw_cuda_launcher sw_cuda_hopper_attention_forward, sw_cuda_hopper_attention_backward;

#ifdef __cplusplus
}
#endif
#endif
