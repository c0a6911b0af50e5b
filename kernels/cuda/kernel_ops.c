#include "kernels/cuda/kernel_ops.h"

static sw_status layernorm_forward(struct sw_stream *stream, sw_dtype type, int64_t rows, int64_t cols, float epsilon,
                                   const void *x, const void *gamma, const void *beta, void *y, float *mean,
                                   float *rstd) {
    sw_cuda_layernorm_forward(sw_cuda_stream_handle(stream), type, rows, cols, epsilon, x, gamma, beta, y, mean, rstd);
    return sw_cuda_launched(stream, "layernorm_forward");
}

static sw_status layernorm_backward(struct sw_stream *stream, sw_dtype type, int64_t rows, int64_t cols, const void *dy,
                                    const void *x, const void *gamma, const float *mean, const float *rstd,
                                    bool add_to_dx, void *dx, float *gamma_acc, float *beta_acc) {
    sw_cuda_layernorm_backward(sw_cuda_stream_handle(stream), type, rows, cols, dy, x, gamma, mean, rstd, add_to_dx, dx,
                               gamma_acc, beta_acc);
    return sw_cuda_launched(stream, "layernorm_backward");
}

static sw_status rmsnorm_forward(struct sw_stream *stream, sw_dtype type, const struct sw_rmsnorm *shape, const void *x,
                                 const void *gamma, void *y, float *rstd) {
    sw_cuda_rmsnorm_forward(sw_cuda_stream_handle(stream), type, shape, x, gamma, y, rstd);
    return sw_cuda_launched(stream, "rmsnorm_forward");
}

static sw_status rmsnorm_backward(struct sw_stream *stream, sw_dtype type, const struct sw_rmsnorm *shape,
                                  const void *dy, const void *x, const void *gamma, const float *rstd, bool add_to_dx,
                                  void *dx, float *gamma_acc) {
    sw_cuda_rmsnorm_backward(sw_cuda_stream_handle(stream), type, shape, dy, x, gamma, rstd, add_to_dx, dx, gamma_acc);
    return sw_cuda_launched(stream, "rmsnorm_backward");
}

static sw_status add_norm_forward(struct sw_stream *stream, sw_dtype type, int64_t rows, int64_t cols, float epsilon,
                                  const void *a, const void *b, void *sum, const void *gamma, const void *beta, void *y,
                                  float *mean, float *rstd) {
    const cudaStream_t handle = sw_cuda_stream_handle(stream);
    if (mean == NULL)
        sw_cuda_add_rmsnorm_forward(handle, type, rows, cols, epsilon, a, b, sum, gamma, y, rstd);
    else
        sw_cuda_add_layernorm_forward(handle, type, rows, cols, epsilon, a, b, sum, gamma, beta, y, mean, rstd);
    return sw_cuda_launched(stream, "add_norm_forward");
}

static sw_status rotate(struct sw_stream *stream, sw_dtype type, const struct sw_rotation *shape, const float *table,
                        void *x) {
    sw_cuda_rotate(sw_cuda_stream_handle(stream), type, shape, table, x);
    return sw_cuda_launched(stream, "rotate");
}

/* Which attention a device takes for a shape. */
static bool by_warpgroups(const struct sw_device *device, const struct sw_attention *shape, sw_dtype type) {
    return device->info.warpgroups && sw_cuda_hopper_attention_serves(shape, type);
}

/* Tensors that do not begin at a multiple of 16 bytes are for products of warps. */
static bool are_aligned(const void *const *tensors, int count) {
    bool aligned = true;
    for (int i = 0; i < count; i++)
        aligned = aligned && (uintptr_t)tensors[i] % 16 == 0;
    return aligned;
}

static int64_t attention_scratch_bytes(const struct sw_device *device, const struct sw_attention *shape,
                                       sw_dtype type) {
    const int64_t warps = sw_cuda_attention_scratch_bytes(shape, type);
    if (!by_warpgroups(device, shape, type))
        return warps;
    const int64_t warpgroups = sw_cuda_hopper_attention_scratch_bytes(shape, type);
    return warpgroups > warps ? warpgroups : warps;
}

static sw_status attention_forward(struct sw_stream *stream, sw_dtype type, const struct sw_attention *shape,
                                   const void *q, const void *k, const void *v, void *o, float *log_sum_exp,
                                   void *scratch) {
    const void *const tensors[] = {q, k, v, o};
    const cudaStream_t handle = sw_cuda_stream_handle(stream);
    if (by_warpgroups(stream->device, shape, type) && are_aligned(tensors, sizeof tensors / sizeof tensors[0]))
        sw_cuda_hopper_attention_forward(handle, type, shape, q, k, v, o, log_sum_exp, scratch);
    else
        sw_cuda_attention_forward(handle, type, shape, q, k, v, o, log_sum_exp, scratch);
    return sw_cuda_launched(stream, "attention_forward");
}

static sw_status attention_backward(struct sw_stream *stream, sw_dtype type, const struct sw_attention *shape,
                                    const void *q, const void *k, const void *v, const void *o, const void *d_o,
                                    const float *log_sum_exp, void *dq, void *dk, void *dv, void *scratch) {
    const void *const tensors[] = {q, k, v, o, d_o, dq, dk, dv, scratch};
    const cudaStream_t handle = sw_cuda_stream_handle(stream);
    if (by_warpgroups(stream->device, shape, type) && are_aligned(tensors, sizeof tensors / sizeof tensors[0]))
        sw_cuda_hopper_attention_backward(handle, type, shape, q, k, v, o, d_o, log_sum_exp, dq, dk, dv, scratch);
    else
        sw_cuda_attention_backward(handle, type, shape, q, k, v, o, d_o, log_sum_exp, dq, dk, dv, scratch);
    return sw_cuda_launched(stream, "attention_backward");
}

static sw_status activation_forward(struct sw_stream *stream, sw_dtype type, sw_activation which, int64_t elems,
                                    const void *x, void *y) {
    sw_cuda_activation_forward(sw_cuda_stream_handle(stream), type, which, elems, x, y);
    return sw_cuda_launched(stream, "activation_forward");
}

static sw_status activation_backward(struct sw_stream *stream, sw_dtype type, sw_activation which, int64_t elems,
                                     const void *x, const void *dy, void *dx, void *activated) {
    sw_cuda_activation_backward(sw_cuda_stream_handle(stream), type, which, elems, x, dy, dx, activated);
    return sw_cuda_launched(stream, "activation_backward");
}

static sw_status gated_forward(struct sw_stream *stream, sw_dtype type, sw_activation which, int64_t rows, int64_t cols,
                               const void *x, void *y) {
    sw_cuda_gated_forward(sw_cuda_stream_handle(stream), type, which, rows, cols, x, y);
    return sw_cuda_launched(stream, "gated_forward");
}

static sw_status gated_backward(struct sw_stream *stream, sw_dtype type, sw_activation which, int64_t rows,
                                int64_t cols, const void *x, const void *dy, void *dx, void *activated) {
    sw_cuda_gated_backward(sw_cuda_stream_handle(stream), type, which, rows, cols, x, dy, dx, activated);
    return sw_cuda_launched(stream, "gated_backward");
}

static sw_status add(struct sw_stream *stream, sw_dtype type, int64_t elems, const void *a, const void *b, void *y) {
    sw_cuda_add(sw_cuda_stream_handle(stream), type, elems, a, b, y);
    return sw_cuda_launched(stream, "add");
}

static sw_status bias_gradient(struct sw_stream *stream, sw_dtype type, int64_t rows, int64_t cols, const void *dy,
                               float *acc) {
    sw_cuda_bias_gradient(sw_cuda_stream_handle(stream), type, rows, cols, dy, acc);
    return sw_cuda_launched(stream, "bias_gradient");
}

static sw_status cast_from_f32(struct sw_stream *stream, sw_dtype type, int64_t elems, const float *from, void *to) {
    sw_cuda_cast_from_f32(sw_cuda_stream_handle(stream), type, elems, from, to);
    return sw_cuda_launched(stream, "cast_from_f32");
}

static sw_status cast_to_f32(struct sw_stream *stream, sw_dtype type, int64_t elems, const void *from, float *to) {
    sw_cuda_cast_to_f32(sw_cuda_stream_handle(stream), type, elems, from, to);
    return sw_cuda_launched(stream, "cast_to_f32");
}

static sw_status embedding_forward(struct sw_stream *stream, sw_dtype type, int64_t batch, int64_t seq, int64_t cols,
                                   const int32_t *tokens, const int32_t *document_start, const void *table,
                                   const void *positions, void *out) {
    sw_cuda_embedding_forward(sw_cuda_stream_handle(stream), type, batch, seq, cols, tokens, document_start, table,
                              positions, out);
    return sw_cuda_launched(stream, "embedding_forward");
}

static sw_status embedding_backward(struct sw_stream *stream, sw_dtype type, int64_t batch, int64_t seq, int64_t cols,
                                    const int32_t *tokens, const int32_t *document_start, const void *d_out,
                                    float *table_acc, float *positions_acc) {
    sw_cuda_embedding_backward(sw_cuda_stream_handle(stream), type, batch, seq, cols, tokens, document_start, d_out,
                               table_acc, positions_acc);
    return sw_cuda_launched(stream, "embedding_backward");
}

static sw_status cross_entropy(struct sw_stream *stream, sw_dtype type, int64_t rows, int64_t vocab,
                               const float *logits, const int32_t *targets, float scale, float *loss, void *d_logits) {
    sw_cuda_cross_entropy(sw_cuda_stream_handle(stream), type, rows, vocab, logits, targets, scale, loss, d_logits);
    return sw_cuda_launched(stream, "cross_entropy");
}

static sw_status softmax_partial(struct sw_stream *stream, int64_t rows, int64_t tile_cols, int64_t first_col,
                                 const float *logits, const int32_t *targets, float *max, float *sum,
                                 float *target_logit) {
    sw_cuda_softmax_partial(sw_cuda_stream_handle(stream), rows, tile_cols, first_col, logits, targets, max, sum,
                            target_logit);
    return sw_cuda_launched(stream, "softmax_partial");
}

static sw_status cross_entropy_tile(struct sw_stream *stream, sw_dtype type, int64_t rows, int64_t tile_cols,
                                    int64_t first_col, const float *logits, const int32_t *targets, float scale,
                                    const float *max, const float *sum, const float *target_logit, float *loss,
                                    void *d_logits) {
    sw_cuda_cross_entropy_tile(sw_cuda_stream_handle(stream), type, rows, tile_cols, first_col, logits, targets, scale,
                               max, sum, target_logit, loss, d_logits);
    return sw_cuda_launched(stream, "cross_entropy_tile");
}

static sw_status sum_losses(struct sw_stream *stream, int64_t rows, const float *losses, double *total) {
    sw_cuda_sum_losses(sw_cuda_stream_handle(stream), rows, losses, total);
    return sw_cuda_launched(stream, "sum_losses");
}

static sw_status finish_gradient(struct sw_stream *stream, sw_dtype type, int64_t elems, const float *acc, void *grads,
                                 double *sums) {
    sw_cuda_finish_gradient(sw_cuda_stream_handle(stream), type, elems, acc, grads, sums);
    return sw_cuda_launched(stream, "finish_gradient");
}

static sw_status square_sums(struct sw_stream *stream, sw_dtype type, int64_t elems, const void *grads, double *sums) {
    sw_cuda_square_sums(sw_cuda_stream_handle(stream), type, elems, grads, sums);
    return sw_cuda_launched(stream, "square_sums");
}

static sw_status update_adamw(struct sw_stream *stream, sw_dtype type, const struct sw_adamw *adamw, int64_t first_elem,
                              int64_t grains, const struct sw_decay_run *runs, int64_t run_count, const void *grads,
                              float *records, void *weights) {
    sw_cuda_update_adamw(sw_cuda_stream_handle(stream), type, adamw, first_elem, grains, runs, run_count, grads,
                         records, weights);
    return sw_cuda_launched(stream, "update_adamw");
}

static sw_status rank_sum(struct sw_stream *stream, const struct sw_comm_sum *sum) {
    sw_cuda_rank_sum(sw_cuda_stream_handle(stream), sum);
    return sw_cuda_launched(stream, "rank_sum");
}

void sw_cuda_add_kernels(struct sw_device_ops *ops) {
    ops->layernorm_forward = layernorm_forward;
    ops->layernorm_backward = layernorm_backward;
    ops->rmsnorm_forward = rmsnorm_forward;
    ops->rmsnorm_backward = rmsnorm_backward;
    ops->add_norm_forward = add_norm_forward;
    ops->rotate = rotate;
    ops->attention_scratch_bytes = attention_scratch_bytes;
    ops->attention_forward = attention_forward;
    ops->attention_backward = attention_backward;
    ops->activation_forward = activation_forward;
    ops->activation_backward = activation_backward;
    ops->gated_forward = gated_forward;
    ops->gated_backward = gated_backward;
    ops->add = add;
    ops->bias_gradient = bias_gradient;
    ops->embedding_forward = embedding_forward;
    ops->embedding_backward = embedding_backward;
    ops->cross_entropy = cross_entropy;
    ops->softmax_partial = softmax_partial;
    ops->cross_entropy_tile = cross_entropy_tile;
    ops->sum_losses = sum_losses;
    ops->finish_gradient = finish_gradient;
    ops->square_sums = square_sums;
    ops->update_adamw = update_adamw;
    ops->rank_sum = rank_sum;
    ops->cast_from_f32 = cast_from_f32;
    ops->cast_to_f32 = cast_to_f32;
}
