/* The table of ops: the name of each, where its operands are, what its arguments must satisfy and what it moves; and
 * the one function that runs them all. */
#include "kernels/ops.h"

#include "core/ranks/comm.h"
#include "core/size.h"
#include "kernels/device_ops.h"

#include <assert.h>
#include <math.h>
#include <stddef.h>

static double bytes_of(sw_dtype type, double typed_elems, double fp32_elems) {
    return typed_elems * (double)sw_dtype_bytes(type) + fp32_elems * (double)sizeof(float);
}

/* Returns the number of rows that an op is priced for. */
static double priced_rows(const struct sw_row_run *run, int64_t rows) {
    return (double)(run->first == NULL ? rows : run->likely);
}

static double layernorm_forward(const void *args) {
    const struct sw_layernorm_forward *op = args;
    assert(op->rows >= 0 && op->cols > 0 && op->epsilon >= 0.0f && op->mean != NULL && op->rstd != NULL);
    assert(op->x != NULL && op->gamma != NULL && op->beta != NULL && op->y != NULL);
    return bytes_of(op->type, 2.0 * (double)(op->rows * op->cols), 2.0 * (double)op->rows);
}

static double norm_backward_passes(bool add_to_dx) {
    return add_to_dx ? 4.0 : 3.0;
}

static double layernorm_backward(const void *args) {
    const struct sw_layernorm_backward *op = args;
    assert(op->rows >= 0 && op->cols > 0 && op->dx != op->dy && op->mean != NULL && op->rstd != NULL);
    assert(op->dy != NULL && op->x != NULL && op->gamma != NULL && op->dx != NULL);
    assert(op->gamma_acc != NULL && op->beta_acc != NULL);
    return bytes_of(op->type, norm_backward_passes(op->add_to_dx) * (double)(op->rows * op->cols),
                    2.0 * (double)op->rows);
}

static double rmsnorm_bytes(sw_dtype type, const struct sw_rmsnorm *shape, double passes) {
    assert(shape->rows >= 0 && shape->cols > 0 && shape->epsilon >= 0.0f);
    assert(shape->groups > 0 && shape->rows % shape->groups == 0);
    assert(shape->x_stride >= shape->groups * shape->cols && shape->y_stride >= shape->groups * shape->cols);
    return bytes_of(type, passes * (double)(shape->rows * shape->cols), (double)shape->rows);
}

static double rmsnorm_forward(const void *args) {
    const struct sw_rmsnorm_forward *op = args;
    assert(op->x != NULL && op->gamma != NULL && op->y != NULL && op->rstd != NULL);
    return rmsnorm_bytes(op->type, op->shape, 2.0);
}

static double rmsnorm_backward(const void *args) {
    const struct sw_rmsnorm_backward *op = args;
    assert(op->dy != NULL && op->x != NULL && op->gamma != NULL && op->rstd != NULL);
    assert(op->dx != NULL && op->gamma_acc != NULL && op->dx != op->dy);
    return rmsnorm_bytes(op->type, op->shape, norm_backward_passes(op->add_to_dx));
}

static double add_norm_forward(const void *args) {
    const struct sw_add_norm_forward *op = args;
    assert(op->rows >= 0 && op->cols > 0 && op->epsilon >= 0.0f && (op->beta == NULL) == (op->mean == NULL));
    assert(op->a != NULL && op->b != NULL && op->sum != NULL && op->gamma != NULL && op->rstd != NULL);
    assert(op->y != NULL && op->y != op->sum);
    return bytes_of(op->type, 4.0 * (double)(op->rows * op->cols), 2.0 * (double)op->rows);
}

static double rotate(const void *args) {
    const struct sw_rotate *op = args;
    const struct sw_rotation *shape = op->shape;
    assert(shape->batch >= 0 && shape->seq >= 0 && shape->heads > 0 && op->table != NULL && op->x != NULL);
    assert(shape->head_dim > 0 && shape->head_dim % 2 == 0 && shape->stride >= shape->heads * shape->head_dim);
    const double turned = (double)(shape->batch * shape->seq) * (double)(shape->heads * shape->head_dim);
    return bytes_of(op->type, 2.0 * turned, (double)(shape->seq * shape->head_dim));
}

float sw_alibi_slope(int64_t heads, int64_t head) {
    int64_t power = 1;
    while (2 * power <= heads)
        power *= 2;
    const int64_t steps = head < power ? 2 * (head + 1) : 2 * (head - power) + 1;
    return exp2f(-4.0f * (float)steps / (float)power);
}

static void check_attention(const struct sw_attention *shape) {
    const int64_t step = sw_attention_head_stride(shape), head_dim = shape->head_dim;
    assert(shape->batch > 0 && shape->seq > 0 && shape->past >= 0 && shape->heads > 0 && shape->kv_heads > 0);
    assert(shape->head_dim > 0 && shape->head_dim <= SW_ATTENTION_MAX_HEAD_DIM);
    assert(shape->heads % shape->kv_heads == 0);
    assert(step >= head_dim && shape->o_stride >= shape->heads * head_dim);
    assert(shape->q_stride >= (shape->heads - 1) * step + head_dim);
    assert(shape->k_stride >= (shape->kv_heads - 1) * step + head_dim);
    assert(shape->v_stride >= (shape->kv_heads - 1) * step + head_dim);
    assert(shape->heads == shape->kv_heads || (step == head_dim && shape->alibi_heads == 0));
    assert(shape->alibi_heads == 0 ||
           (shape->alibi_first >= 0 && shape->alibi_first + shape->heads <= shape->alibi_heads));
    assert(shape->window >= 0 && shape->scale > 0.0f);
}

/* Returns the bytes of this many passes over tensors with the layout of queries and of keys. */
static double attention_bytes(sw_dtype type, const struct sw_attention *shape, double query_passes, double key_passes) {
    const double along_queries = query_passes * (double)(shape->seq * shape->heads);
    const double along_keys = key_passes * (double)((shape->past + shape->seq) * shape->kv_heads);
    return bytes_of(type, (double)(shape->batch * shape->head_dim) * (along_queries + along_keys), 0.0);
}

static double attention_forward(const void *args) {
    const struct sw_attention_forward *op = args;
    check_attention(op->shape);
    assert(op->q != NULL && op->k != NULL && op->v != NULL && op->o != NULL && op->log_sum_exp != NULL);
    return attention_bytes(op->type, op->shape, 2.0, 2.0);
}

static double attention_backward(const void *args) {
    const struct sw_attention_backward *op = args;
    check_attention(op->shape);
    assert(op->shape->past == 0 && op->o != NULL && op->d_o != NULL && op->log_sum_exp != NULL);
    assert(op->q != NULL && op->k != NULL && op->v != NULL && op->dq != NULL && op->dk != NULL && op->dv != NULL);
    return attention_bytes(op->type, op->shape, 4.0, 4.0);
}

static double sink_elems(const struct sw_attention *shape) {
    assert(shape->batch > 0 && shape->seq > 0 && shape->heads > 0 && shape->head_dim > 0);
    assert(shape->o_stride >= shape->heads * shape->head_dim);
    return (double)(shape->batch * shape->seq) * (double)(shape->heads * shape->head_dim);
}

static double sink_forward(const void *args) {
    const struct sw_sink_forward *op = args;
    assert(op->sink != NULL && op->o != NULL && op->log_sum_exp != NULL);
    return bytes_of(op->type, 2.0 * sink_elems(op->shape), 0.0);
}

static double sink_backward(const void *args) {
    const struct sw_sink_backward *op = args;
    assert(op->sink != NULL && op->o != NULL && op->d_o != NULL && op->log_sum_exp != NULL && op->acc != NULL);
    return bytes_of(op->type, 2.0 * sink_elems(op->shape), 0.0);
}

static double activation_forward(const void *args) {
    const struct sw_activation_forward *op = args;
    assert(op->elems >= 0 && op->x != NULL && op->y != NULL);
    return bytes_of(op->type, 2.0 * (double)op->elems, 0.0);
}

static double activation_backward(const void *args) {
    const struct sw_activation_backward *op = args;
    assert(op->elems >= 0 && op->x != NULL && op->dy != NULL && op->dx != NULL);
    assert(op->activated == NULL || (op->activated != op->x && op->activated != op->dy && op->activated != op->dx));
    return bytes_of(op->type, (op->activated == NULL ? 3.0 : 4.0) * (double)op->elems, 0.0);
}

static double gated_forward(const void *args) {
    const struct sw_gated_forward *op = args;
    assert(op->rows >= 0 && op->cols > 0 && op->x != NULL && op->y != NULL && op->x != op->y);
    return bytes_of(op->type, 3.0 * priced_rows(&op->run, op->rows) * (double)op->cols, 0.0);
}

static double gated_backward(const void *args) {
    const struct sw_gated_backward *op = args;
    assert(op->rows >= 0 && op->cols > 0 && op->x != NULL && op->dy != NULL && op->dx != NULL && op->dx != op->dy);
    assert(op->activated == NULL || (op->activated != op->x && op->activated != op->dy && op->activated != op->dx));
    return bytes_of(op->type, (op->activated == NULL ? 5.0 : 6.0) * priced_rows(&op->run, op->rows) * (double)op->cols,
                    0.0);
}

static double clamped_forward(const void *args) {
    const struct sw_clamped_forward *op = args;
    assert(op->rows >= 0 && op->cols > 0 && op->x != NULL && op->y != NULL && op->x != op->y);
    return bytes_of(op->type, 3.0 * priced_rows(&op->run, op->rows) * (double)op->cols, 0.0);
}

static double clamped_backward(const void *args) {
    const struct sw_clamped_backward *op = args;
    assert(op->rows >= 0 && op->cols > 0 && op->x != NULL && op->dy != NULL && op->dx != NULL && op->dx != op->dy);
    return bytes_of(op->type, 5.0 * priced_rows(&op->run, op->rows) * (double)op->cols, 0.0);
}

static double add(const void *args) {
    const struct sw_add *op = args;
    assert(op->elems >= 0 && op->a != NULL && op->b != NULL && op->y != NULL);
    return bytes_of(op->type, 3.0 * (double)op->elems, 0.0);
}

static double dropout(const void *args) {
    const struct sw_dropout *op = args;
    assert(op->elems >= 0 && op->rate >= 0.0 && op->rate < 1.0 && op->x != NULL && op->y != NULL);
    assert(op->cols == 0 ||
           (op->cols > 0 && op->elems % op->cols == 0 && op->first_col >= 0 && op->first_col + op->cols <= op->width));
    return bytes_of(op->type, 2.0 * (double)op->elems, 0.0);
}

static double bias_gradient(const void *args) {
    const struct sw_bias_gradient *op = args;
    assert(op->rows >= 0 && op->cols > 0 && op->dy != NULL && op->acc != NULL);
    return bytes_of(op->type, (double)(op->rows * op->cols), 2.0 * (double)op->cols);
}

static double embedding_forward(const void *args) {
    const struct sw_embedding_forward *op = args;
    const double elems = (double)(op->batch * op->seq) * (double)op->cols;
    assert(op->batch >= 0 && op->seq >= 0 && op->cols > 0 && op->tokens != NULL && op->table != NULL);
    assert(op->out != NULL);
    return bytes_of(op->type, (op->positions == NULL ? 2.0 : 3.0) * elems, 0.0);
}

static double embedding_backward(const void *args) {
    const struct sw_embedding_backward *op = args;
    const double elems = (double)(op->batch * op->seq) * (double)op->cols;
    const double of_positions = op->positions_acc == NULL ? 0.0 : 2.0 * (double)(op->seq * op->cols);
    assert(op->batch >= 0 && op->seq >= 0 && op->cols > 0 && op->tokens != NULL && op->d_out != NULL);
    assert(op->table_acc != NULL);
    return bytes_of(op->type, elems, 2.0 * elems + of_positions);
}

static double cross_entropy(const void *args) {
    const struct sw_cross_entropy *op = args;
    const double elems = (double)(op->rows * op->vocab);
    assert(op->rows >= 0 && op->vocab > 0 && op->vocab <= INT32_MAX && op->stride >= op->vocab);
    assert(op->logits != NULL && op->targets != NULL && op->loss != NULL);
    return bytes_of(op->type, op->d_logits == NULL ? 0.0 : elems, elems);
}

static double softmax_partial(const void *args) {
    const struct sw_softmax_partial *op = args;
    assert(op->rows >= 0 && op->tile_cols > 0 && op->stride >= op->tile_cols && op->first_col >= 0);
    assert(op->logits != NULL && op->targets != NULL);
    assert(op->max != NULL && op->sum != NULL && op->target_logit != NULL);
    return bytes_of(SW_F32, 0.0, (double)(op->rows * op->tile_cols));
}

static double softmax_combine(const void *args) {
    const struct sw_softmax_combine *op = args;
    assert(op->rows >= 0 && op->parts > 0 && op->row_stride >= op->rows && op->part_stride >= 3 * op->row_stride);
    assert(op->part != NULL && op->max != NULL && op->sum != NULL && op->target_logit != NULL);
    return bytes_of(SW_F32, 0.0, (double)(3 * op->rows * (op->parts + 1)));
}

static double cross_entropy_tile(const void *args) {
    const struct sw_cross_entropy_tile *op = args;
    const double elems = op->d_logits == NULL ? 0.0 : (double)(op->rows * op->tile_cols);
    assert(op->rows >= 0 && op->tile_cols > 0 && op->stride >= op->tile_cols && op->first_col >= 0);
    assert(op->targets != NULL && op->max != NULL && op->sum != NULL && op->target_logit != NULL);
    assert(op->logits != NULL || op->d_logits == NULL);
    return bytes_of(op->type, elems, elems);
}

static double sum_losses(const void *args) {
    const struct sw_sum_losses *op = args;
    assert(op->rows >= 0 && op->losses != NULL && op->total != NULL);
    return bytes_of(SW_F32, 0.0, (double)op->rows);
}

static double preference(const void *args) {
    const struct sw_preference *op = args;
    const double rows = (double)(2 * op->pairs * op->seq);
    assert(op->pairs >= 0 && op->seq > 0 && op->losses != NULL && op->reference != NULL && op->sums != NULL);
    return bytes_of(SW_F32, 0.0, op->row_scale == NULL ? rows : 2.0 * rows);
}

/* Returns the bytes of kept gradients. */
static double kept_bytes(sw_grads_format format, sw_dtype type, int64_t grains) {
    return (double)(grains * sw_grads_grain_bytes(format, sw_dtype_bytes(type)));
}

static double finish_gradient(const void *args) {
    const struct sw_finish_gradient *op = args;
    assert(op->elems >= 0 && op->elems % SW_GRAIN_ELEMS == 0);
    assert(op->acc != NULL && op->grads != NULL && op->sums != NULL);
    return bytes_of(op->type, 0.0, (double)op->elems) + kept_bytes(op->format, op->type, op->elems / SW_GRAIN_ELEMS);
}

static double cast_from_f32(const void *args) {
    const struct sw_cast_from_f32 *op = args;
    assert(op->elems >= 0 && op->from != NULL && op->to != NULL);
    assert(op->run.first == NULL || (op->cols > 0 && op->elems % op->cols == 0));
    const double elems = op->run.first == NULL ? (double)op->elems : (double)(op->run.likely * op->cols);
    return bytes_of(op->type, elems, elems);
}

static double round_gradient(const void *args) {
    const struct sw_cast_from_f32 *op = args;
    assert(op->elems % SW_GRAIN_ELEMS == 0 && op->run.first == NULL);
    return cast_from_f32(args);
}

static double square_sums(const void *args) {
    const struct sw_square_sums *op = args;
    assert(op->elems >= 0 && op->elems % SW_GRAIN_ELEMS == 0 && op->grads != NULL && op->sums != NULL);
    return bytes_of(op->type, (double)op->elems, 0.0);
}

static double cast_to_f32(const void *args) {
    const struct sw_cast_to_f32 *op = args;
    assert(op->elems >= 0 && op->from != NULL && op->to != NULL);
    return bytes_of(op->type, (double)op->elems, (double)op->elems);
}

static double update_adamw(const void *args) {
    const struct sw_update_adamw *op = args;
    const double elems = (double)(op->grains * SW_GRAIN_ELEMS);
    assert(op->adamw != NULL && (op->adamw->skip || (op->adamw->step >= 1 && op->grads != NULL)));
    assert(op->first_elem >= 0 && op->first_elem % SW_GRAIN_ELEMS == 0 && op->grains >= 0 && op->run_count >= 0);
    assert((op->runs != NULL || op->run_count == 0) && op->records != NULL);
    assert(op->format == SW_OPTIMIZER_FP32 || op->wide_elem % SW_GRAIN_ELEMS == 0);
    return bytes_of(op->type, op->weights != NULL ? elems : 0.0, 0.0) +
           kept_bytes(op->grads_format, op->type, op->grains) + 2.0 * (double)(op->grains * sw_update_record_bytes(op));
}

static bool is_aligned(const void *operand) {
    return (uintptr_t)operand % 16 == 0;
}

static double record_bytes(sw_quant quant, int64_t grains) {
    assert(quant != SW_QUANT_NONE && grains >= 0);
    return (double)(grains * sw_quant_grain_bytes(quant));
}

static double quantize(const void *args) {
    const struct sw_quantize *op = args;
    assert(op->from != NULL && op->to != NULL && is_aligned(op->from) && is_aligned(op->to));
    return bytes_of(op->type, (double)(op->grains * SW_GRAIN_ELEMS), 0.0) + record_bytes(op->quant, op->grains);
}

static double dequantize(const void *args) {
    const struct sw_dequantize *op = args;
    assert(op->ranks >= 1 && op->rank >= 0 && op->rank < op->ranks && op->stride_bytes % 16 == 0);
    assert(op->own != NULL && op->to != NULL && (op->others != NULL || op->ranks == 1));
    assert(is_aligned(op->own) && is_aligned(op->others) && is_aligned(op->to));
    return bytes_of(op->type, (double)(op->grains * SW_GRAIN_ELEMS), 0.0) +
           op->ranks * record_bytes(op->quant, op->grains);
}

static double encode_fp8(const void *args) {
    const struct sw_encode_fp8 *op = args;
    const double elems = (double)op->rows * (double)op->cols;
    assert(op->rows >= 0 && op->cols > 0 && op->as != SW_FP8_NONE);
    assert(op->from != NULL && op->codes != NULL && op->scale != NULL);
    /* The largest magnitude must be known before the first code. */
    return bytes_of(op->type, 2.0 * elems, 0.0) + elems;
}

static double decode_fp8(const void *args) {
    const struct sw_decode_fp8 *op = args;
    assert(op->elems >= 0 && op->as != SW_FP8_NONE);
    assert(op->codes != NULL && op->scale != NULL && op->to != NULL);
    return bytes_of(op->type, (double)op->elems, 0.0) + (double)op->elems;
}

static double pack_weights(const void *args) {
    const struct sw_pack_weights *op = args;
    const double elems = (double)(op->grains * SW_GRAIN_ELEMS);
    assert(op->type != SW_F32 && op->grains >= 0 && op->first_elem >= 0 && op->first_elem % SW_GRAIN_ELEMS == 0);
    assert(op->wide_elem % SW_GRAIN_ELEMS == 0 && op->records != NULL && op->weights != NULL);
    return bytes_of(op->type, 0.0, elems) + elems;
}

static double unpack_weights(const void *args) {
    const struct sw_unpack_weights *op = args;
    assert(op->first_elem >= 0 && op->elems >= 0 && op->weights != NULL && op->to != NULL);
    return bytes_of(op->type, (double)op->elems, 0.0) + (double)op->elems;
}

/* Returns the bytes of elements in a frozen base's format. */
static double base_bytes(sw_base_format format, int64_t elems) {
    assert(format != SW_BASE_TYPED && elems >= 0);
    return (double)elems * (double)sw_base_grain_bytes(format) / (double)SW_GRAIN_ELEMS;
}

static double quantize_base(const void *args) {
    const struct sw_quantize_base *op = args;
    const int64_t elems = op->grains * SW_GRAIN_ELEMS;
    assert(op->from != NULL && op->records != NULL && is_aligned(op->from) && is_aligned(op->records));
    assert(sw_base_stored_elems(op->format) == 0);
    return bytes_of(op->type, (double)elems, 0.0) + base_bytes(op->format, elems);
}

static double dequantize_base(const void *args) {
    const struct sw_dequantize_base *op = args;
    assert(op->first_elem >= 0 && op->records != NULL && op->to != NULL && is_aligned(op->records));
    return bytes_of(op->type, (double)op->elems, 0.0) + base_bytes(op->format, op->elems);
}

static double routing_bytes(sw_dtype type, const struct sw_routing *shape, double passes) {
    assert(shape->rows >= 0 && shape->experts > 0 && shape->experts <= SW_MOST_EXPERTS);
    assert(shape->chosen > 0 && shape->chosen <= SW_MOST_CHOSEN && shape->chosen <= shape->experts);
    return bytes_of(type, passes * (double)(shape->rows * shape->experts), 2.0 * (double)(shape->rows * shape->chosen));
}

static double route_forward(const void *args) {
    const struct sw_route_forward *op = args;
    assert(op->logits != NULL && op->expert != NULL && op->weight != NULL);
    return routing_bytes(op->type, op->shape, 1.0);
}

static double route_backward(const void *args) {
    const struct sw_route_backward *op = args;
    assert(op->logits != NULL && op->expert != NULL && op->d_weight != NULL && op->d_logits != NULL);
    assert(op->count != NULL || op->balance == 0.0);
    return routing_bytes(op->type, op->shape, 2.0);
}

static double order_by_expert(const void *args) {
    const struct sw_order_by_expert *op = args;
    assert(op->rows >= 0 && op->experts > 0 && op->experts <= SW_MOST_EXPERTS);
    assert(op->chosen > 0 && op->chosen <= SW_MOST_CHOSEN && op->rows * op->chosen <= INT32_MAX);
    assert(op->expert != NULL && op->offset != NULL && op->source != NULL && op->place != NULL);
    return bytes_of(SW_F32, 0.0, 3.0 * (double)(op->rows * op->chosen) + (double)(op->experts + 1));
}

static double tally_routing(const void *args) {
    const struct sw_tally_routing *op = args;
    const double experts = (double)op->shape->experts;
    const bool has_losses = op->count != NULL;
    assert(op->layers > 0 && op->logits != NULL && op->offset != NULL && op->routed != NULL);
    assert((op->sum != NULL) == has_losses && (op->losses != NULL) == has_losses);
    assert((op->scratch != NULL) == has_losses);
    return routing_bytes(op->type, op->shape, has_losses ? 2.0 : 0.0) + 8.0 * experts;
}

static double permute_rows(const void *args) {
    const struct sw_permute_rows *op = args;
    const double pairs = priced_rows(&op->run, op->rows * op->chosen);
    assert(op->rows >= 0 && op->cols > 0 && op->chosen > 0 && op->source != NULL && op->x != NULL && op->y != NULL);
    return bytes_of(op->type, ((double)op->rows + pairs) * (double)op->cols, pairs);
}

static double unpermute_rows(const void *args) {
    const struct sw_unpermute_rows *op = args;
    const double pairs = priced_rows(&op->run, op->rows * op->chosen), elems = (double)(op->rows * op->cols);
    const double typed = (op->addend != NULL ? elems : 0.0) + (op->y != NULL ? elems : 0.0);
    const double sums = (op->before != NULL ? elems : 0.0) + (op->after != NULL ? elems : 0.0);
    assert(op->rows >= 0 && op->cols > 0 && op->chosen >= 0 && op->chosen <= SW_MOST_CHOSEN);
    assert(op->place != NULL && op->x != NULL && (op->y == NULL) != (op->after == NULL));
    assert(op->before == NULL || op->addend == NULL || op->falling);
    return bytes_of(op->type, typed + pairs * (double)op->cols, sums + (double)(op->rows * op->chosen));
}

static double scale_rows(const void *args) {
    const struct sw_scale_rows *op = args;
    assert(op->rows >= 0 && op->cols > 0 && op->source != NULL && op->weight != NULL);
    assert(op->x != NULL && op->y != NULL);
    const double rows = priced_rows(&op->run, op->rows);
    return bytes_of(op->type, 2.0 * rows * (double)op->cols, 2.0 * rows);
}

static double scale_rows_backward(const void *args) {
    const struct sw_scale_rows_backward *op = args;
    assert(op->rows >= 0 && op->cols > 0 && op->source != NULL && op->weight != NULL && op->d_weight != NULL);
    assert(op->x != NULL && op->dy != NULL && op->dx != NULL && op->x != op->dx);
    const double rows = priced_rows(&op->run, op->rows);
    return bytes_of(op->type, 3.0 * rows * (double)op->cols, 3.0 * rows);
}

static void check_grouped(const struct sw_grouped_gemm *shape) {
    const bool gradient = shape->weight_gradient;
    assert(shape->experts > 0 && shape->experts <= SW_MOST_EXPERTS && shape->rows >= 0 && shape->n > 0 && shape->k > 0);
    assert(shape->matrix_stride >= shape->n * shape->k || shape->experts == 1);
    assert(!shape->bias || (shape->out == shape->in && (shape->bias_stride >= shape->n || shape->experts == 1)));
    assert(gradient ? shape->out == SW_F32 && !shape->bias && !shape->transpose_b && !shape->accumulate
                    : shape->out == shape->in || shape->out == SW_F32);
    assert(!(shape->bias && shape->accumulate) && (shape->c_stride == 0 || (!gradient && shape->c_stride >= shape->n)));
    assert(shape->a_stride == 0 || shape->a_stride >= (gradient ? shape->n : shape->k));
    (void)gradient;
}

/* Returns the bytes that a grouped product moves if each expert has rows. */
static double grouped_gemm(const void *args) {
    const struct sw_grouped_product *op = args;
    const struct sw_grouped_gemm *s = op->shape;
    const double rows = (double)sw_priced_rows(s), n = (double)s->n, k = (double)s->k,
                 matrices = (double)s->experts * n * k;
    check_grouped(s);
    assert(op->offset != NULL && op->a != NULL && op->b != NULL && op->c != NULL && (op->bias != NULL) == s->bias);
    if (s->weight_gradient)
        return bytes_of(s->in, rows * (n + k), 2.0 * matrices);
    return bytes_of(s->in, rows * k + matrices, 0.0) + bytes_of(s->out, rows * n * (s->accumulate ? 2.0 : 1.0), 0.0);
}

/* Returns the bytes of passes over the rows of experts with biases. */
static double biased_bytes(sw_dtype type, int64_t rows, int64_t likely_rows, int64_t cols, double passes) {
    assert(rows >= 0 && cols > 0);
    return bytes_of(type, passes * (double)(likely_rows > 0 ? likely_rows : rows) * (double)cols, 0.0);
}

static double expert_bias_forward(const void *args) {
    const struct sw_expert_bias_forward *op = args;
    assert(op->experts > 0 && op->experts <= SW_MOST_EXPERTS && (op->bias_stride >= op->cols || op->experts == 1));
    assert(op->offset != NULL && op->source != NULL && op->weight != NULL && op->bias != NULL && op->y != NULL);
    return biased_bytes(op->type, op->rows, op->likely_rows, op->cols, 2.0);
}

static double expert_bias_backward(const void *args) {
    const struct sw_expert_bias_backward *op = args;
    assert(op->experts > 0 && op->experts <= SW_MOST_EXPERTS && (op->bias_stride >= op->cols || op->experts == 1));
    assert(op->offset != NULL && op->dy != NULL && (op->acc != NULL || op->d_weight != NULL));
    assert(op->source != NULL || (op->weight == NULL && op->d_weight == NULL));
    assert(op->bias != NULL || op->d_weight == NULL);
    return biased_bytes(op->type, op->rows, op->likely_rows, op->cols,
                        (op->acc != NULL ? 1.0 : 0.0) + (op->d_weight != NULL ? 1.0 : 0.0));
}

static double rank_sum(const void *args) {
    const struct sw_comm_sum *op = args;
    assert(op->elems >= 0 && op->own != NULL && op->others != NULL && op->to != NULL);
    return bytes_of(op->type, (double)(op->ranks * op->elems), 0.0) + bytes_of(op->to_type, (double)op->elems, 0.0);
}

/* The row of an op whose operands are the fields from `first` to `last` of its struct. */
#define ROW_OF(op, args, first, last)                                                                                  \
    {                                                                                                                  \
        .name = #op, .check = (op), .args_bytes = sizeof(struct args), .operands_at = offsetof(struct args, first),    \
        .operands = 1 + (offsetof(struct args, last) - offsetof(struct args, first)) / sizeof(void *)                  \
    }
#define ROW(op, first, last) ROW_OF(op, sw_##op, first, last)

static const struct sw_device_op_row table[SW_DEVICE_OPS] = {
    [SW_DEVICE_LAYERNORM_FORWARD] = ROW(layernorm_forward, x, rstd),
    [SW_DEVICE_LAYERNORM_BACKWARD] = ROW(layernorm_backward, dy, beta_acc),
    [SW_DEVICE_RMSNORM_FORWARD] = ROW(rmsnorm_forward, x, rstd),
    [SW_DEVICE_RMSNORM_BACKWARD] = ROW(rmsnorm_backward, dy, gamma_acc),
    [SW_DEVICE_ADD_NORM_FORWARD] = ROW(add_norm_forward, a, rstd),
    [SW_DEVICE_ROTATE] = ROW(rotate, table, x),
    [SW_DEVICE_ATTENTION_FORWARD] = ROW(attention_forward, q, scratch),
    [SW_DEVICE_ATTENTION_BACKWARD] = ROW(attention_backward, q, scratch),
    [SW_DEVICE_SINK_FORWARD] = ROW(sink_forward, sink, log_sum_exp),
    [SW_DEVICE_SINK_BACKWARD] = ROW(sink_backward, sink, acc),
    [SW_DEVICE_ACTIVATION_FORWARD] = ROW(activation_forward, x, y),
    [SW_DEVICE_ACTIVATION_BACKWARD] = ROW(activation_backward, x, activated),
    [SW_DEVICE_GATED_FORWARD] = ROW(gated_forward, x, run.end),
    [SW_DEVICE_GATED_BACKWARD] = ROW(gated_backward, x, run.end),
    [SW_DEVICE_CLAMPED_FORWARD] = ROW(clamped_forward, x, run.end),
    [SW_DEVICE_CLAMPED_BACKWARD] = ROW(clamped_backward, x, run.end),
    [SW_DEVICE_ADD] = ROW(add, a, y),
    [SW_DEVICE_DROPOUT] = ROW(dropout, x, y),
    [SW_DEVICE_BIAS_GRADIENT] = ROW(bias_gradient, dy, acc),
    [SW_DEVICE_EMBEDDING_FORWARD] = ROW(embedding_forward, tokens, out),
    [SW_DEVICE_EMBEDDING_BACKWARD] = ROW(embedding_backward, tokens, positions_acc),
    [SW_DEVICE_CROSS_ENTROPY] = ROW(cross_entropy, logits, row_scale),
    [SW_DEVICE_SOFTMAX_PARTIAL] = ROW(softmax_partial, logits, target_logit),
    [SW_DEVICE_SOFTMAX_COMBINE] = ROW(softmax_combine, part, target_logit),
    [SW_DEVICE_CROSS_ENTROPY_TILE] = ROW(cross_entropy_tile, logits, row_scale),
    [SW_DEVICE_SUM_LOSSES] = ROW(sum_losses, losses, total),
    [SW_DEVICE_PREFERENCE] = ROW(preference, losses, row_scale),
    [SW_DEVICE_FINISH_GRADIENT] = ROW(finish_gradient, acc, sums),
    [SW_DEVICE_ROUND_GRADIENT] = ROW_OF(round_gradient, sw_cast_from_f32, from, run.end),
    [SW_DEVICE_SQUARE_SUMS] = ROW(square_sums, grads, sums),
    [SW_DEVICE_CAST_FROM_F32] = ROW(cast_from_f32, from, run.end),
    [SW_DEVICE_CAST_TO_F32] = ROW(cast_to_f32, from, to),
    [SW_DEVICE_UPDATE_ADAMW] = ROW(update_adamw, grads, weights),
    [SW_DEVICE_QUANTIZE] = ROW(quantize, from, to),
    [SW_DEVICE_DEQUANTIZE] = ROW(dequantize, own, to),
    [SW_DEVICE_ENCODE_FP8] = ROW(encode_fp8, from, scale),
    [SW_DEVICE_DECODE_FP8] = ROW(decode_fp8, codes, to),
    [SW_DEVICE_PACK_WEIGHTS] = ROW(pack_weights, records, weights),
    [SW_DEVICE_UNPACK_WEIGHTS] = ROW(unpack_weights, weights, to),
    [SW_DEVICE_QUANTIZE_BASE] = ROW(quantize_base, from, records),
    [SW_DEVICE_DEQUANTIZE_BASE] = ROW(dequantize_base, records, to),
    [SW_DEVICE_ROUTE_FORWARD] = ROW(route_forward, logits, weight),
    [SW_DEVICE_ROUTE_BACKWARD] = ROW(route_backward, logits, count),
    [SW_DEVICE_ORDER_BY_EXPERT] = ROW(order_by_expert, expert, place),
    [SW_DEVICE_TALLY_ROUTING] = ROW(tally_routing, logits, scratch),
    [SW_DEVICE_PERMUTE_ROWS] = ROW(permute_rows, source, run.end),
    [SW_DEVICE_UNPERMUTE_ROWS] = ROW(unpermute_rows, place, run.end),
    [SW_DEVICE_SCALE_ROWS] = ROW(scale_rows, source, run.end),
    [SW_DEVICE_SCALE_ROWS_BACKWARD] = ROW(scale_rows_backward, source, run.end),
    [SW_DEVICE_GROUPED_GEMM] = ROW_OF(grouped_gemm, sw_grouped_product, offset, scratch),
    [SW_DEVICE_EXPERT_BIAS_FORWARD] = ROW(expert_bias_forward, offset, y),
    [SW_DEVICE_EXPERT_BIAS_BACKWARD] = ROW(expert_bias_backward, offset, d_weight),
    [SW_DEVICE_RANK_SUM] = ROW_OF(rank_sum, sw_comm_sum, own, to),
};

const struct sw_device_op_row *sw_device_op_row(sw_device_op op) {
    return &table[op];
}

sw_status sw_device_run(struct sw_stream *stream, sw_device_op op, const void *args) {
    (void)table[op].check(args);
    const sw_status status = stream->device->ops.run(stream, op, args);
    if (stream->first_error == SW_OK)
        stream->first_error = status;
    return status;
}

int64_t sw_attention_scratch_bytes(const struct sw_device *device, const struct sw_attention *shape, sw_dtype type) {
    check_attention(shape);
    return sw_round_up(device->ops.attention_scratch_bytes(device, shape, type), SW_BUFFER_ALIGN_BYTES);
}

sw_status sw_device_prepare_grouped_gemm(struct sw_device *device, const struct sw_grouped_gemm *shape,
                                         int64_t *out_scratch_bytes) {
    assert(device != NULL && out_scratch_bytes != NULL);
    check_grouped(shape);
    if (shape->rows > SW_GEMM_MOST_SIDE || shape->n > SW_GEMM_MOST_SIDE || shape->k > SW_GEMM_MOST_SIDE)
        return sw_fail(SW_ERR_UNSUPPORTED,
                       "a product of experts of %lld x %lld x %lld is too large, no side may exceed %lld: a smaller "
                       "micro-batch or sequence has fewer rows",
                       (long long)shape->rows, (long long)shape->n, (long long)shape->k, (long long)SW_GEMM_MOST_SIDE);
    SW_TRY(device->ops.prepare_grouped_gemm(device, shape, out_scratch_bytes));
    *out_scratch_bytes = sw_round_up(*out_scratch_bytes, SW_BUFFER_ALIGN_BYTES);
    return SW_OK;
}
