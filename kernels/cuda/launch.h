/* The launchers of the CUDA kernels, one for each op of kernels/device.h and with its arguments and contract. A
 * launcher only queues kernels: it allocates nothing and waits for nothing, and the caller asks CUDA for the error of
 * the launch. Shapes, AdamW's settings and decay runs are read on the host before the launcher returns; all other
 * pointers are device memory. Needs no CUDA header, so that C and the tests' emulation can include it. */
#ifndef SW_KERNELS_CUDA_LAUNCH_H
#define SW_KERNELS_CUDA_LAUNCH_H

#include "kernels/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* CUDA's own declaration of a stream, repeated. */
typedef struct CUstream_st *cudaStream_t;

/* The error, a cudaError_t, with which launches would end as there is no code of the kernels for this GPU; 0: there is.
 */
int sw_cuda_kernels_error(void);

void sw_cuda_layernorm_forward(cudaStream_t stream, sw_dtype type, int64_t rows, int64_t cols, float epsilon,
                               const void *x, const void *gamma, const void *beta, void *y, float *mean, float *rstd);
void sw_cuda_layernorm_backward(cudaStream_t stream, sw_dtype type, int64_t rows, int64_t cols, const void *dy,
                                const void *x, const void *gamma, const float *mean, const float *rstd, bool add_to_dx,
                                void *dx, float *gamma_acc, float *beta_acc);
void sw_cuda_rmsnorm_forward(cudaStream_t stream, sw_dtype type, const struct sw_rmsnorm *shape, const void *x,
                             const void *gamma, void *y, float *rstd);
void sw_cuda_rmsnorm_backward(cudaStream_t stream, sw_dtype type, const struct sw_rmsnorm *shape, const void *dy,
                              const void *x, const void *gamma, const float *rstd, bool add_to_dx, void *dx,
                              float *gamma_acc);
void sw_cuda_add_layernorm_forward(cudaStream_t stream, sw_dtype type, int64_t rows, int64_t cols, float epsilon,
                                   const void *a, const void *b, void *sum, const void *gamma, const void *beta,
                                   void *y, float *mean, float *rstd);
void sw_cuda_add_rmsnorm_forward(cudaStream_t stream, sw_dtype type, int64_t rows, int64_t cols, float epsilon,
                                 const void *a, const void *b, void *sum, const void *gamma, void *y, float *rstd);
void sw_cuda_rotate(cudaStream_t stream, sw_dtype type, const struct sw_rotation *shape, const float *table, void *x);

int64_t sw_cuda_attention_scratch_bytes(const struct sw_attention *shape, sw_dtype type);
void sw_cuda_attention_forward(cudaStream_t stream, sw_dtype type, const struct sw_attention *shape, const void *q,
                               const void *k, const void *v, void *o, float *log_sum_exp, void *scratch);
void sw_cuda_attention_backward(cudaStream_t stream, sw_dtype type, const struct sw_attention *shape, const void *q,
                                const void *k, const void *v, const void *o, const void *d_o, const float *log_sum_exp,
                                void *dq, void *dk, void *dv, void *scratch);

/* Attention by warpgroup products, for GPUs of capability 9.0 only: what the ops above compute, where `serves` says
 * that shape and type allow it and every tensor begins at a multiple of 16 bytes. Where the program was built without
 * that code it serves nothing. */
bool sw_cuda_hopper_attention_serves(const struct sw_attention *shape, sw_dtype type);
int64_t sw_cuda_hopper_attention_scratch_bytes(const struct sw_attention *shape, sw_dtype type);
void sw_cuda_hopper_attention_forward(cudaStream_t stream, sw_dtype type, const struct sw_attention *shape,
                                      const void *q, const void *k, const void *v, void *o, float *log_sum_exp,
                                      void *scratch);
void sw_cuda_hopper_attention_backward(cudaStream_t stream, sw_dtype type, const struct sw_attention *shape,
                                       const void *q, const void *k, const void *v, const void *o, const void *d_o,
                                       const float *log_sum_exp, void *dq, void *dk, void *dv, void *scratch);

void sw_cuda_activation_forward(cudaStream_t stream, sw_dtype type, sw_activation which, int64_t elems, const void *x,
                                void *y);
void sw_cuda_activation_backward(cudaStream_t stream, sw_dtype type, sw_activation which, int64_t elems, const void *x,
                                 const void *dy, void *dx, void *activated);
void sw_cuda_gated_forward(cudaStream_t stream, sw_dtype type, sw_activation which, int64_t rows, int64_t cols,
                           const void *x, void *y);
void sw_cuda_gated_backward(cudaStream_t stream, sw_dtype type, sw_activation which, int64_t rows, int64_t cols,
                            const void *x, const void *dy, void *dx, void *activated);
void sw_cuda_add(cudaStream_t stream, sw_dtype type, int64_t elems, const void *a, const void *b, void *y);
void sw_cuda_cast_from_f32(cudaStream_t stream, sw_dtype type, int64_t elems, const float *from, void *to);
void sw_cuda_cast_to_f32(cudaStream_t stream, sw_dtype type, int64_t elems, const void *from, float *to);
void sw_cuda_bias_gradient(cudaStream_t stream, sw_dtype type, int64_t rows, int64_t cols, const void *dy, float *acc);

void sw_cuda_embedding_forward(cudaStream_t stream, sw_dtype type, int64_t batch, int64_t seq, int64_t cols,
                               const int32_t *tokens, const int32_t *document_start, const void *table,
                               const void *positions, void *out);
void sw_cuda_embedding_backward(cudaStream_t stream, sw_dtype type, int64_t batch, int64_t seq, int64_t cols,
                                const int32_t *tokens, const int32_t *document_start, const void *d_out,
                                float *table_acc, float *positions_acc);

void sw_cuda_cross_entropy(cudaStream_t stream, sw_dtype type, int64_t rows, int64_t vocab, const float *logits,
                           const int32_t *targets, float scale, float *loss, void *d_logits);
void sw_cuda_softmax_partial(cudaStream_t stream, int64_t rows, int64_t tile_cols, int64_t first_col,
                             const float *logits, const int32_t *targets, float *max, float *sum, float *target_logit);
void sw_cuda_cross_entropy_tile(cudaStream_t stream, sw_dtype type, int64_t rows, int64_t tile_cols, int64_t first_col,
                                const float *logits, const int32_t *targets, float scale, const float *max,
                                const float *sum, const float *target_logit, float *loss, void *d_logits);

void sw_cuda_sum_losses(cudaStream_t stream, int64_t rows, const float *losses, double *total);

void sw_cuda_finish_gradient(cudaStream_t stream, sw_dtype type, int64_t elems, const float *acc, void *grads,
                             double *sums);
void sw_cuda_square_sums(cudaStream_t stream, sw_dtype type, int64_t elems, const void *grads, double *sums);
void sw_cuda_update_adamw(cudaStream_t stream, sw_dtype type, const struct sw_adamw *adamw, int64_t first_elem,
                          int64_t grains, const struct sw_decay_run *runs, int64_t run_count, const void *grads,
                          float *records, void *weights);

struct sw_comm_sum;
void sw_cuda_rank_sum(cudaStream_t stream, const struct sw_comm_sum *sum);

#ifdef __cplusplus
}
#endif
#endif
