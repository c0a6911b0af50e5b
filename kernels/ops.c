/* The wrappers of the model's ops and of the update: they check and dispatch. */
#include "core/size.h"
#include "kernels/device.h"
#include "kernels/device_ops.h"

#include <assert.h>

/* Keeps the first error for sw_stream_synchronize. */
static sw_status record(struct sw_stream *stream, sw_status status) {
    if (stream->first_error == SW_OK)
        stream->first_error = status;
    return status;
}

sw_status sw_layernorm_forward(struct sw_stream *stream, sw_dtype type, int64_t rows, int64_t cols, float epsilon,
                               const void *x, const void *gamma, const void *beta, void *y, float *mean, float *rstd) {
    assert(rows >= 0 && cols > 0 && epsilon >= 0.0f);
    assert(x != NULL && gamma != NULL && beta != NULL && y != NULL && mean != NULL && rstd != NULL);
    return record(stream, stream->device->ops.layernorm_forward(stream, type, rows, cols, epsilon, x, gamma, beta, y,
                                                                mean, rstd));
}

sw_status sw_layernorm_backward(struct sw_stream *stream, sw_dtype type, int64_t rows, int64_t cols, const void *dy,
                                const void *x, const void *gamma, const float *mean, const float *rstd, bool add_to_dx,
                                void *dx, float *gamma_acc, float *beta_acc) {
    assert(rows >= 0 && cols > 0 && dx != dy);
    assert(dy != NULL && x != NULL && gamma != NULL && mean != NULL && rstd != NULL && dx != NULL);
    assert(gamma_acc != NULL && beta_acc != NULL);
    return record(stream, stream->device->ops.layernorm_backward(stream, type, rows, cols, dy, x, gamma, mean, rstd,
                                                                 add_to_dx, dx, gamma_acc, beta_acc));
}

static void check_rmsnorm(const struct sw_rmsnorm *shape) {
    assert(shape->rows >= 0 && shape->cols > 0 && shape->epsilon >= 0.0f);
    assert(shape->groups > 0 && shape->rows % shape->groups == 0);
    assert(shape->x_stride >= shape->groups * shape->cols && shape->y_stride >= shape->groups * shape->cols);
    (void)shape;
}

sw_status sw_rmsnorm_forward(struct sw_stream *stream, sw_dtype type, const struct sw_rmsnorm *shape, const void *x,
                             const void *gamma, void *y, float *rstd) {
    check_rmsnorm(shape);
    assert(x != NULL && gamma != NULL && y != NULL && rstd != NULL);
    return record(stream, stream->device->ops.rmsnorm_forward(stream, type, shape, x, gamma, y, rstd));
}

sw_status sw_rmsnorm_backward(struct sw_stream *stream, sw_dtype type, const struct sw_rmsnorm *shape, const void *dy,
                              const void *x, const void *gamma, const float *rstd, bool add_to_dx, void *dx,
                              float *gamma_acc) {
    check_rmsnorm(shape);
    assert(dy != NULL && x != NULL && gamma != NULL && rstd != NULL && dx != NULL && gamma_acc != NULL && dx != dy);
    return record(stream, stream->device->ops.rmsnorm_backward(stream, type, shape, dy, x, gamma, rstd, add_to_dx, dx,
                                                               gamma_acc));
}

sw_status sw_add_norm_forward(struct sw_stream *stream, sw_dtype type, int64_t rows, int64_t cols, float epsilon,
                              const void *a, const void *b, void *sum, const void *gamma, const void *beta, void *y,
                              float *mean, float *rstd) {
    assert(rows >= 0 && cols > 0 && epsilon >= 0.0f && (beta == NULL) == (mean == NULL));
    assert(a != NULL && b != NULL && sum != NULL && gamma != NULL && y != NULL && y != sum && rstd != NULL);
    return record(stream, stream->device->ops.add_norm_forward(stream, type, rows, cols, epsilon, a, b, sum, gamma,
                                                               beta, y, mean, rstd));
}

sw_status sw_rotate(struct sw_stream *stream, sw_dtype type, const struct sw_rotation *shape, const float *table,
                    void *x) {
    assert(shape->batch >= 0 && shape->seq >= 0 && shape->heads > 0);
    assert(shape->head_dim > 0 && shape->head_dim % 2 == 0 && shape->stride >= shape->heads * shape->head_dim);
    assert(table != NULL && x != NULL);
    return record(stream, stream->device->ops.rotate(stream, type, shape, table, x));
}

static void check_attention(const struct sw_attention *shape) {
    assert(shape->batch > 0 && shape->seq > 0 && shape->past >= 0 && shape->heads > 0 && shape->kv_heads > 0);
    assert(shape->head_dim > 0 && shape->head_dim <= SW_ATTENTION_MAX_HEAD_DIM);
    assert(shape->heads % shape->kv_heads == 0);
    assert(shape->q_stride >= shape->heads * shape->head_dim && shape->o_stride >= shape->heads * shape->head_dim);
    assert(shape->k_stride >= shape->kv_heads * shape->head_dim &&
           shape->v_stride >= shape->kv_heads * shape->head_dim);
    assert(shape->window >= 0 && shape->scale > 0.0f);
    (void)shape;
}

int64_t sw_attention_scratch_bytes(const struct sw_device *device, const struct sw_attention *shape, sw_dtype type) {
    check_attention(shape);
    const int64_t bytes = device->ops.attention_scratch_bytes(device, shape, type);
    return sw_round_up(bytes, SW_BUFFER_ALIGN_BYTES);
}

sw_status sw_attention_forward(struct sw_stream *stream, sw_dtype type, const struct sw_attention *shape, const void *q,
                               const void *k, const void *v, void *o, float *log_sum_exp, void *scratch) {
    check_attention(shape);
    assert(q != NULL && k != NULL && v != NULL && o != NULL && log_sum_exp != NULL);
    return record(stream, stream->device->ops.attention_forward(stream, type, shape, q, k, v, o, log_sum_exp, scratch));
}

sw_status sw_attention_backward(struct sw_stream *stream, sw_dtype type, const struct sw_attention *shape,
                                const void *q, const void *k, const void *v, const void *o, const void *d_o,
                                const float *log_sum_exp, void *dq, void *dk, void *dv, void *scratch) {
    check_attention(shape);
    assert(shape->past == 0);
    assert(q != NULL && k != NULL && v != NULL && o != NULL && d_o != NULL && log_sum_exp != NULL);
    assert(dq != NULL && dk != NULL && dv != NULL);
    return record(stream, stream->device->ops.attention_backward(stream, type, shape, q, k, v, o, d_o, log_sum_exp, dq,
                                                                 dk, dv, scratch));
}

sw_status sw_activation_forward(struct sw_stream *stream, sw_dtype type, sw_activation which, int64_t elems,
                                const void *x, void *y) {
    assert(elems >= 0 && x != NULL && y != NULL);
    return record(stream, stream->device->ops.activation_forward(stream, type, which, elems, x, y));
}

sw_status sw_activation_backward(struct sw_stream *stream, sw_dtype type, sw_activation which, int64_t elems,
                                 const void *x, const void *dy, void *dx, void *activated) {
    assert(elems >= 0 && x != NULL && dy != NULL && dx != NULL);
    assert(activated == NULL || (activated != x && activated != dy && activated != dx));
    return record(stream, stream->device->ops.activation_backward(stream, type, which, elems, x, dy, dx, activated));
}

sw_status sw_gated_forward(struct sw_stream *stream, sw_dtype type, sw_activation which, int64_t rows, int64_t cols,
                           const void *x, void *y) {
    assert(rows >= 0 && cols > 0 && x != NULL && y != NULL && x != y);
    return record(stream, stream->device->ops.gated_forward(stream, type, which, rows, cols, x, y));
}

sw_status sw_gated_backward(struct sw_stream *stream, sw_dtype type, sw_activation which, int64_t rows, int64_t cols,
                            const void *x, const void *dy, void *dx, void *activated) {
    assert(rows >= 0 && cols > 0 && x != NULL && dy != NULL && dx != NULL && dx != dy);
    assert(activated == NULL || (activated != x && activated != dy && activated != dx));
    return record(stream, stream->device->ops.gated_backward(stream, type, which, rows, cols, x, dy, dx, activated));
}

sw_status sw_add(struct sw_stream *stream, sw_dtype type, int64_t elems, const void *a, const void *b, void *y) {
    assert(elems >= 0 && a != NULL && b != NULL && y != NULL);
    return record(stream, stream->device->ops.add(stream, type, elems, a, b, y));
}

sw_status sw_bias_gradient(struct sw_stream *stream, sw_dtype type, int64_t rows, int64_t cols, const void *dy,
                           float *acc) {
    assert(rows >= 0 && cols > 0 && dy != NULL && acc != NULL);
    return record(stream, stream->device->ops.bias_gradient(stream, type, rows, cols, dy, acc));
}

sw_status sw_embedding_forward(struct sw_stream *stream, sw_dtype type, int64_t batch, int64_t seq, int64_t cols,
                               const int32_t *tokens, const int32_t *document_start, const void *table,
                               const void *positions, void *out) {
    assert(batch >= 0 && seq >= 0 && cols > 0 && tokens != NULL && table != NULL && out != NULL);
    return record(stream, stream->device->ops.embedding_forward(stream, type, batch, seq, cols, tokens, document_start,
                                                                table, positions, out));
}

sw_status sw_embedding_backward(struct sw_stream *stream, sw_dtype type, int64_t batch, int64_t seq, int64_t cols,
                                const int32_t *tokens, const int32_t *document_start, const void *d_out,
                                float *table_acc, float *positions_acc) {
    assert(batch >= 0 && seq >= 0 && cols > 0 && tokens != NULL && d_out != NULL && table_acc != NULL);
    return record(stream, stream->device->ops.embedding_backward(stream, type, batch, seq, cols, tokens, document_start,
                                                                 d_out, table_acc, positions_acc));
}

sw_status sw_cross_entropy(struct sw_stream *stream, sw_dtype type, int64_t rows, int64_t vocab, const float *logits,
                           const int32_t *targets, float scale, float *loss, void *d_logits) {
    assert(rows >= 0 && vocab > 0 && vocab <= INT32_MAX && logits != NULL && targets != NULL && loss != NULL);
    return record(stream,
                  stream->device->ops.cross_entropy(stream, type, rows, vocab, logits, targets, scale, loss, d_logits));
}

sw_status sw_softmax_partial(struct sw_stream *stream, int64_t rows, int64_t tile_cols, int64_t first_col,
                             const float *logits, const int32_t *targets, float *max, float *sum, float *target_logit) {
    assert(rows >= 0 && tile_cols > 0 && first_col >= 0 && logits != NULL && targets != NULL);
    assert(max != NULL && sum != NULL && target_logit != NULL);
    return record(stream, stream->device->ops.softmax_partial(stream, rows, tile_cols, first_col, logits, targets, max,
                                                              sum, target_logit));
}

sw_status sw_cross_entropy_tile(struct sw_stream *stream, sw_dtype type, int64_t rows, int64_t tile_cols,
                                int64_t first_col, const float *logits, const int32_t *targets, float scale,
                                const float *max, const float *sum, const float *target_logit, float *loss,
                                void *d_logits) {
    assert(rows >= 0 && tile_cols > 0 && first_col >= 0 && targets != NULL && (logits != NULL || d_logits == NULL));
    assert(max != NULL && sum != NULL && target_logit != NULL);
    return record(stream,
                  stream->device->ops.cross_entropy_tile(stream, type, rows, tile_cols, first_col, logits, targets,
                                                         scale, max, sum, target_logit, loss, d_logits));
}

sw_status sw_sum_losses(struct sw_stream *stream, int64_t rows, const float *losses, double *total) {
    assert(rows >= 0 && losses != NULL && total != NULL);
    return record(stream, stream->device->ops.sum_losses(stream, rows, losses, total));
}

sw_status sw_finish_gradient(struct sw_stream *stream, sw_dtype type, int64_t elems, const float *acc, void *grads,
                             double *sums) {
    assert(elems >= 0 && elems % SW_GRAIN_ELEMS == 0 && acc != NULL && grads != NULL && sums != NULL);
    return record(stream, stream->device->ops.finish_gradient(stream, type, elems, acc, grads, sums));
}

sw_status sw_round_gradient(struct sw_stream *stream, sw_dtype type, int64_t elems, const float *acc, void *grads) {
    assert(elems >= 0 && elems % SW_GRAIN_ELEMS == 0 && acc != NULL && grads != NULL);
    return record(stream, stream->device->ops.cast_from_f32(stream, type, elems, acc, grads));
}

sw_status sw_square_sums(struct sw_stream *stream, sw_dtype type, int64_t elems, const void *grads, double *sums) {
    assert(elems >= 0 && elems % SW_GRAIN_ELEMS == 0 && grads != NULL && sums != NULL);
    return record(stream, stream->device->ops.square_sums(stream, type, elems, grads, sums));
}

sw_status sw_cast_from_f32(struct sw_stream *stream, sw_dtype type, int64_t elems, const float *from, void *to) {
    assert(elems >= 0 && from != NULL && to != NULL);
    return record(stream, stream->device->ops.cast_from_f32(stream, type, elems, from, to));
}

sw_status sw_update_adamw(struct sw_stream *stream, sw_dtype type, const struct sw_adamw *adamw, int64_t first_elem,
                          int64_t grains, const struct sw_decay_run *runs, int64_t run_count, const void *grads,
                          float *records, void *weights) {
    assert(adamw != NULL && (adamw->skip || adamw->step >= 1) && grains >= 0 && run_count >= 0);
    assert(first_elem >= 0 && first_elem % SW_GRAIN_ELEMS == 0);
    assert((runs != NULL || run_count == 0) && (grads != NULL || adamw->skip) && records != NULL && weights != NULL);
    return record(stream, stream->device->ops.update_adamw(stream, type, adamw, first_elem, grains, runs, run_count,
                                                           grads, records, weights));
}
