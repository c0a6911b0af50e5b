/* Counts the cost of each op of device.h: its bytes when every operand crosses memory once, and its products. */
#include "core/size.h"
#include "kernels/described/described.h"
#include "kernels/tiling.h"

#include <math.h>

static sw_status count_bytes(struct sw_stream *stream, double bytes) {
    return sw_described_count(stream, 0.0, 1.0, bytes);
}

/* An op that passes over so many typed and fp32 elements. */
static sw_status count_elems(struct sw_stream *stream, sw_dtype type, double typed, double floats) {
    return count_bytes(stream, typed * (double)sw_dtype_bytes(type) + floats * (double)sizeof(float));
}

static const struct sw_device_description *description_of(const struct sw_stream *stream) {
    return &((const struct sw_described *)stream->device->backend)->what;
}

static sw_status prepare_gemm(struct sw_device *device, struct sw_gemm_entry *entry) {
    (void)device;
    entry->scratch_bytes = SW_GPU_GEMM_SCRATCH_BYTES;
    return SW_OK;
}

static void use_tf32(struct sw_device *device) {
    struct sw_described *described = device->backend;
    described->what.product_flops_per_s[SW_F32] = described->what.tf32_flops_per_s;
}

static void release_gemm(struct sw_device *device, struct sw_gemm_entry *entry) {
    (void)device;
    (void)entry;
}

static sw_status gemm(struct sw_stream *stream, struct sw_gemm_entry *entry, const void *a, const void *b,
                      const void *bias, const void *addend, void *c, void *scratch) {
    (void)a, (void)b, (void)bias, (void)c, (void)scratch;
    const struct sw_gemm *s = &entry->shape;
    const double m = (double)s->m, n = (double)s->n, k = (double)s->k;
    const double out_passes = s->accumulate || addend != NULL ? 2.0 : 1.0;
    const double bytes =
        (m * k + k * n) * (double)sw_dtype_bytes(s->in) + out_passes * m * n * (double)sw_dtype_bytes(s->out);
    return sw_described_count(stream, 2.0 * m * n * k, description_of(stream)->product_flops_per_s[s->in], bytes);
}

static sw_status layernorm_forward(struct sw_stream *stream, sw_dtype type, int64_t rows, int64_t cols, float epsilon,
                                   const void *x, const void *gamma, const void *beta, void *y, float *mean,
                                   float *rstd) {
    (void)epsilon, (void)x, (void)gamma, (void)beta, (void)y, (void)mean, (void)rstd;
    return count_elems(stream, type, 2.0 * (double)(rows * cols), 2.0 * (double)rows);
}

static double norm_backward_passes(bool add_to_dx) {
    return add_to_dx ? 4.0 : 3.0;
}

static sw_status layernorm_backward(struct sw_stream *stream, sw_dtype type, int64_t rows, int64_t cols, const void *dy,
                                    const void *x, const void *gamma, const float *mean, const float *rstd,
                                    bool add_to_dx, void *dx, float *gamma_acc, float *beta_acc) {
    (void)dy, (void)x, (void)gamma, (void)mean, (void)rstd, (void)dx, (void)gamma_acc, (void)beta_acc;
    return count_elems(stream, type, norm_backward_passes(add_to_dx) * (double)(rows * cols), 2.0 * (double)rows);
}

static sw_status rmsnorm_forward(struct sw_stream *stream, sw_dtype type, const struct sw_rmsnorm *shape, const void *x,
                                 const void *gamma, void *y, float *rstd) {
    (void)x, (void)gamma, (void)y, (void)rstd;
    return count_elems(stream, type, 2.0 * (double)(shape->rows * shape->cols), (double)shape->rows);
}

static sw_status rmsnorm_backward(struct sw_stream *stream, sw_dtype type, const struct sw_rmsnorm *shape,
                                  const void *dy, const void *x, const void *gamma, const float *rstd, bool add_to_dx,
                                  void *dx, float *gamma_acc) {
    (void)dy, (void)x, (void)gamma, (void)rstd, (void)dx, (void)gamma_acc;
    return count_elems(stream, type, norm_backward_passes(add_to_dx) * (double)(shape->rows * shape->cols),
                       (double)shape->rows);
}

static sw_status add_norm_forward(struct sw_stream *stream, sw_dtype type, int64_t rows, int64_t cols, float epsilon,
                                  const void *a, const void *b, void *sum, const void *gamma, const void *beta, void *y,
                                  float *mean, float *rstd) {
    (void)epsilon, (void)a, (void)b, (void)sum, (void)gamma, (void)beta, (void)y, (void)mean, (void)rstd;
    return count_elems(stream, type, 4.0 * (double)(rows * cols), 2.0 * (double)rows);
}

static sw_status rotate(struct sw_stream *stream, sw_dtype type, const struct sw_rotation *shape, const float *table,
                        void *x) {
    (void)table, (void)x;
    const double turned = (double)(shape->batch * shape->seq) * (double)(shape->heads * shape->head_dim);
    return count_elems(stream, type, 2.0 * turned, (double)(shape->seq * shape->head_dim));
}

static int64_t attention_scratch_bytes(const struct sw_device *device, const struct sw_attention *shape,
                                       sw_dtype type) {
    (void)device, (void)type;
    return sw_attention_parted_bytes(shape);
}

/* Keys that the queries of a sequence see together, documents apart. */
static double pairs_of(const struct sw_attention *s) {
    const double seq = (double)s->seq, all = (double)(s->past + s->seq);
    const double causal = seq * (double)s->past + seq * (seq + 1.0) / 2.0;
    if (s->window == 0 || s->window >= s->past + s->seq)
        return causal;
    const double unseen = all - (double)s->window;
    const double before = s->past > s->window ? (double)(s->past - s->window) : 0.0;
    return causal - unseen * (unseen + 1.0) / 2.0 + before * (before + 1.0) / 2.0;
}

/* The cost of one pass of attention: products of each query with the keys that it sees, and how often it crosses what
 * lies along queries and along keys. */
struct attention_cost {
    double flops_per_s, products, query_passes, key_passes;
};

/* A tile of queries is multiplied by whole tiles of keys, so that the mask's edge costs half a tile for each query. */
static sw_status count_attention(struct sw_stream *stream, sw_dtype type, const struct sw_attention *s,
                                 struct attention_cost cost) {
    const struct sw_device_description *what = description_of(stream);
    const double rate = fmin(what->product_flops_per_s[type], cost.flops_per_s);
    const double pairs = pairs_of(s) + (double)s->seq * (double)what->attention_tile_rows / 2.0;
    const double flops = cost.products * 2.0 * (double)(s->batch * s->heads * s->head_dim) * pairs;
    const double along_queries = cost.query_passes * (double)(s->seq * s->heads);
    const double along_keys = cost.key_passes * (double)((s->past + s->seq) * s->kv_heads);
    const double elems = (double)(s->batch * s->head_dim) * (along_queries + along_keys);
    return sw_described_count(stream, flops, rate, elems * (double)sw_dtype_bytes(type));
}

static sw_status attention_forward(struct sw_stream *stream, sw_dtype type, const struct sw_attention *shape,
                                   const void *q, const void *k, const void *v, void *o, float *log_sum_exp,
                                   void *scratch) {
    (void)q, (void)k, (void)v, (void)o, (void)log_sum_exp, (void)scratch;
    return count_attention(stream, type, shape,
                           (struct attention_cost){
                               .flops_per_s = description_of(stream)->attention_forward_flops_per_s,
                               .products = 2.0,
                               .query_passes = 2.0,
                               .key_passes = 2.0,
                           });
}

static sw_status attention_backward(struct sw_stream *stream, sw_dtype type, const struct sw_attention *shape,
                                    const void *q, const void *k, const void *v, const void *o, const void *d_o,
                                    const float *log_sum_exp, void *dq, void *dk, void *dv, void *scratch) {
    (void)q, (void)k, (void)v, (void)o, (void)d_o, (void)log_sum_exp, (void)dq, (void)dk, (void)dv, (void)scratch;
    return count_attention(stream, type, shape,
                           (struct attention_cost){
                               .flops_per_s = description_of(stream)->attention_backward_flops_per_s,
                               .products = 5.0,
                               .query_passes = 4.0,
                               .key_passes = 4.0,
                           });
}

static sw_status activation_forward(struct sw_stream *stream, sw_dtype type, sw_activation which, int64_t elems,
                                    const void *x, void *y) {
    (void)which, (void)x, (void)y;
    return count_elems(stream, type, 2.0 * (double)elems, 0.0);
}

static sw_status activation_backward(struct sw_stream *stream, sw_dtype type, sw_activation which, int64_t elems,
                                     const void *x, const void *dy, void *dx, void *activated) {
    (void)which, (void)x, (void)dy, (void)dx;
    return count_elems(stream, type, (activated == NULL ? 3.0 : 4.0) * (double)elems, 0.0);
}

static sw_status gated_forward(struct sw_stream *stream, sw_dtype type, sw_activation which, int64_t rows, int64_t cols,
                               const void *x, void *y) {
    (void)which, (void)x, (void)y;
    return count_elems(stream, type, 3.0 * (double)(rows * cols), 0.0);
}

static sw_status gated_backward(struct sw_stream *stream, sw_dtype type, sw_activation which, int64_t rows,
                                int64_t cols, const void *x, const void *dy, void *dx, void *activated) {
    (void)which, (void)x, (void)dy, (void)dx;
    return count_elems(stream, type, (activated == NULL ? 5.0 : 6.0) * (double)(rows * cols), 0.0);
}

static sw_status add(struct sw_stream *stream, sw_dtype type, int64_t elems, const void *a, const void *b, void *y) {
    (void)a, (void)b, (void)y;
    return count_elems(stream, type, 3.0 * (double)elems, 0.0);
}

static sw_status bias_gradient(struct sw_stream *stream, sw_dtype type, int64_t rows, int64_t cols, const void *dy,
                               float *acc) {
    (void)dy, (void)acc;
    return count_elems(stream, type, (double)(rows * cols), 2.0 * (double)cols);
}

static sw_status embedding_forward(struct sw_stream *stream, sw_dtype type, int64_t batch, int64_t seq, int64_t cols,
                                   const int32_t *tokens, const int32_t *document_start, const void *table,
                                   const void *positions, void *out) {
    (void)tokens, (void)document_start, (void)table, (void)out;
    return count_elems(stream, type, (positions == NULL ? 2.0 : 3.0) * (double)(batch * seq) * (double)cols, 0.0);
}

static sw_status embedding_backward(struct sw_stream *stream, sw_dtype type, int64_t batch, int64_t seq, int64_t cols,
                                    const int32_t *tokens, const int32_t *document_start, const void *d_out,
                                    float *table_acc, float *positions_acc) {
    (void)tokens, (void)document_start, (void)d_out, (void)table_acc;
    const double elems = (double)(batch * seq) * (double)cols;
    const double of_positions = positions_acc == NULL ? 0.0 : 2.0 * (double)(seq * cols);
    return count_elems(stream, type, elems, 2.0 * elems + of_positions);
}

static sw_status cross_entropy(struct sw_stream *stream, sw_dtype type, int64_t rows, int64_t vocab,
                               const float *logits, const int32_t *targets, float scale, float *loss, void *d_logits) {
    (void)logits, (void)targets, (void)scale, (void)loss;
    const double elems = (double)(rows * vocab);
    return count_elems(stream, type, d_logits == NULL ? 0.0 : elems, elems);
}

static sw_status softmax_partial(struct sw_stream *stream, int64_t rows, int64_t tile_cols, int64_t first_col,
                                 const float *logits, const int32_t *targets, float *max, float *sum,
                                 float *target_logit) {
    (void)first_col, (void)logits, (void)targets, (void)max, (void)sum, (void)target_logit;
    return count_elems(stream, SW_F32, 0.0, (double)(rows * tile_cols));
}

static sw_status cross_entropy_tile(struct sw_stream *stream, sw_dtype type, int64_t rows, int64_t tile_cols,
                                    int64_t first_col, const float *logits, const int32_t *targets, float scale,
                                    const float *max, const float *sum, const float *target_logit, float *loss,
                                    void *d_logits) {
    (void)first_col, (void)logits, (void)targets, (void)scale, (void)max, (void)sum, (void)target_logit, (void)loss;
    const double elems = d_logits == NULL ? 0.0 : (double)(rows * tile_cols);
    return count_elems(stream, type, elems, elems);
}

static sw_status sum_losses(struct sw_stream *stream, int64_t rows, const float *losses, double *total) {
    (void)losses, (void)total;
    return count_elems(stream, SW_F32, 0.0, (double)rows);
}

static sw_status finish_gradient(struct sw_stream *stream, sw_dtype type, int64_t elems, const float *acc, void *grads,
                                 double *sums) {
    (void)acc, (void)grads, (void)sums;
    return count_elems(stream, type, (double)elems, (double)elems);
}

static sw_status square_sums(struct sw_stream *stream, sw_dtype type, int64_t elems, const void *grads, double *sums) {
    (void)grads, (void)sums;
    return count_elems(stream, type, (double)elems, 0.0);
}

static sw_status cast_from_f32(struct sw_stream *stream, sw_dtype type, int64_t elems, const float *from, void *to) {
    (void)from, (void)to;
    return count_elems(stream, type, (double)elems, (double)elems);
}

static sw_status update_adamw(struct sw_stream *stream, sw_dtype type, const struct sw_adamw *adamw, int64_t first_elem,
                              int64_t grains, const struct sw_decay_run *runs, int64_t run_count, const void *grads,
                              float *records, void *weights) {
    (void)adamw, (void)first_elem, (void)runs, (void)run_count, (void)grads, (void)records, (void)weights;
    const double elems = (double)(grains * SW_GRAIN_ELEMS);
    return count_elems(stream, type, 2.0 * elems, 6.0 * elems);
}

void sw_described_add_ops(struct sw_device_ops *ops) {
    ops->use_tf32 = use_tf32;
    ops->prepare_gemm = prepare_gemm;
    ops->release_gemm = release_gemm;
    ops->gemm = gemm;
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
    ops->cast_from_f32 = cast_from_f32;
    ops->update_adamw = update_adamw;
}
