/* The loops and products of the Muon update, element by element. */
#include "kernels/muon.h"
#include "core/quant.h"
#include "core/size.h"
#include "kernels/moments.h"
#include "kernels/ref/ref.h"

#include <math.h>

static struct sw_record_parts record_of(const struct sw_update_muon *op, int64_t at) {
    char *records = op->records;
    return sw_muon_record_parts(op->format, records + at / SW_GRAIN_ELEMS * sw_optimizer_muon_bytes(op->format));
}

static float *master_of(const struct sw_update_muon *op, int64_t at) {
    return record_of(op, at).master + at % SW_GRAIN_ELEMS;
}

/* Returns a momentum moved towards the gradient of its element. */
static float approach(const struct sw_update_muon *op, int64_t at, float m) {
    const float grad =
        op->grads_format == SW_GRADS_8BIT ? sw_grads_8bit_at(op->grads, at) : sw_dtype_load(op->type, op->grads, at);
    return fmaf((float)(1.0 - op->muon->momentum), grad * op->muon->grad_scale - m, m);
}

static void momentum(const struct sw_update_muon *op, int64_t at, int64_t count) {
    const struct sw_moment_rounding how = {.rounding = op->rounding,
                                           .seed = op->seed,
                                           .unit = op->unit,
                                           .step = op->step,
                                           .first_elem = op->first_elem + at / SW_GRAIN_ELEMS * SW_GRAIN_ELEMS};
    const struct sw_record_parts record = record_of(op, at);
    const sw_optimizer_format form = sw_optimizer_momentum(op->format);
    for (int64_t end = at + count; at < end; at += SW_MOMENT_BLOCK_ELEMS) {
        float m[SW_MOMENT_BLOCK_ELEMS];
        sw_momentum_widen(form, &record, at % SW_GRAIN_ELEMS, m);
        for (int64_t i = 0; i < SW_MOMENT_BLOCK_ELEMS; i++)
            m[i] = approach(op, at + i, m[i]);
        sw_momentum_round(form, &how, at % SW_GRAIN_ELEMS, m, &record);
    }
}

/* Takes each element from its block, however often that is widened: a matrix may go through a block by columns. */
static void update(const struct sw_update_muon *op, int64_t at, int64_t count, float *to) {
    float m[SW_MOMENT_BLOCK_ELEMS];
    int64_t block = -1;
    for (int64_t i = at; i < at + count; i++) {
        const struct sw_record_parts record = record_of(op, i);
        const int64_t elem = i % SW_MOMENT_BLOCK_ELEMS;
        if (i - elem != block)
            sw_momentum_widen(sw_optimizer_momentum(op->format), &record, i % SW_GRAIN_ELEMS - elem, m);
        block = i - elem;
        to[i - at] = approach(op, i, m[elem]);
    }
}

static double square_sum(int64_t cols, const float *row) {
    double sums[SW_MUON_SUMS] = {0.0}, total = 0.0;
    for (int64_t i = 0; i < cols; i++)
        sums[i % SW_MUON_SUMS] += (double)row[i] * (double)row[i]; /* the product is exact */
    for (int i = 0; i < SW_MUON_SUMS; i++)
        total += sums[i];
    return total;
}

static void scale(int64_t cols, const float *from, double factor, sw_bf16 *to) {
    for (int64_t i = 0; i < sw_muon_stride(cols); i++)
        to[i] = i < cols ? sw_muon_round((float)((double)from[i] * factor)) : 0;
}

/* Returns the sum of the terms of an element of a product. */
static float sum_of(const struct sw_muon_product *p, int64_t row, int64_t col) {
    const int64_t stride = sw_muon_stride(p->terms), right_stride = sw_muon_stride(p->cols);
    float sum = 0.0f;
    for (int64_t i = 0; i < sw_round_up(p->terms, 2); i++) {
        const int64_t k = i ^ 1; /* of each pair the second term first */
        const sw_bf16 right = p->right == NULL ? p->left[col * stride + k] : p->right[k * right_stride + col];
        sum = fmaf(sw_bf16_to_f32(p->left[row * stride + k]), sw_bf16_to_f32(right), sum);
    }
    return sum;
}

static float element_of(const struct sw_muon_product *p, int64_t row, int64_t col) {
    const bool own = row == col && p->right_diagonal != NULL;
    float sum = sum_of(p, row, col), right = 0.0f;
    if (p->right != NULL)
        right = own ? p->right_diagonal[row] : sw_bf16_to_f32(p->right[row * sw_muon_stride(p->cols) + col]);
    if (p->left_diagonal != NULL)
        sum = fmaf(p->left_diagonal[row], right, sum);
    if (p->right_diagonal != NULL && !own)
        sum = fmaf(sw_bf16_to_f32(p->left[row * sw_muon_stride(p->terms) + col]), p->right_diagonal[col], sum);
    return fmaf(p->factor, sum, p->right_factor * right);
}

static void product(struct sw_stream *stream, const struct sw_muon_product *p) {
    const int64_t stride = sw_muon_stride(p->cols);
    (void)stream;
    for (int64_t row = 0; row < p->rows; row++)
        for (int64_t col = 0; col < stride; col++) {
            const int64_t at = row * stride + col;
            const bool copied = p->to_diagonal != NULL && col < row;
            const float value = col < p->cols && !copied ? element_of(p, row, col) : 0.0f;
            if (p->to == NULL)
                p->to_fp32[at] = value;
            else if (copied)
                p->to[at] = p->to[col * stride + row];
            else
                p->to[at] = p->to_diagonal != NULL && col == row ? 0 : sw_muon_round(value);
            if (p->to_diagonal != NULL && col == row)
                p->to_diagonal[row] = value + p->identity;
        }
}

static void descend(const struct sw_update_muon *op, int64_t at, int64_t count, const float *x, float decay,
                    float minus_step) {
    for (int64_t i = 0; i < count; i++) {
        float *master = master_of(op, at + i);
        *master = fmaf(minus_step, x[i], *master * decay);
    }
}

static void weights(const struct sw_update_muon *op, int64_t at, int64_t count) {
    for (int64_t i = at; i < at + count; i++)
        sw_dtype_store(op->type, op->weights, i, *master_of(op, i));
}

static void share(struct sw_stream *stream, int64_t elems, int64_t items, sw_muon_items run, const void *context) {
    (void)stream;
    (void)elems;
    run(context, 0, items, 0);
}

static sw_status update_muon(struct sw_stream *stream, const struct sw_update_muon *args) {
    const struct sw_muon_loops loops = {.momentum = momentum,
                                        .update = update,
                                        .square_sum = square_sum,
                                        .scale = scale,
                                        .product = product,
                                        .descend = descend,
                                        .weights = weights,
                                        .share = share};
    sw_muon_update(stream, &loops, args);
    return SW_OK;
}

void sw_ref_add_muon(struct sw_device_ops *ops) {
    ops->update_muon = update_muon;
}
