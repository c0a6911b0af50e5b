#include "core/size.h"
#include "kernels/moments.h"
#include "kernels/ref/ref.h"
#include "kernels/tiling.h"

#include <math.h>

/* The definition of the update, operation by operation: each line below rounds exactly where it says, and every other
 * implementation gives the same bits. */
static void update_elem(const struct sw_adamw_scalars *s, const struct sw_decay_span *span, float gradient,
                        float *master, float *m, float *v) {
    const float g = gradient * s->grad_scale;
    *m = fmaf(s->one_minus_beta1, g - *m, *m);
    *v = fmaf(s->one_minus_beta2 * g, g, s->beta2 * *v);
    const float denominator = sqrtf(*v) / span->correction2_sqrt + s->eps;
    *master = fmaf(span->minus_step_size, *m / denominator, *master * span->factor);
}

/* A call, and its current grain. */
struct update {
    const struct sw_update_adamw *op;
    struct sw_adamw_scalars scalars;
    int64_t at; /* the grain's first element in the call */
};

static float gradient_at(const struct sw_update_adamw *op, int64_t at) {
    return op->grads_format == SW_GRADS_8BIT ? sw_grads_8bit_at(op->grads, at) : sw_dtype_load(op->type, op->grads, at);
}

/* Updates the elements [first, first + count) of a grain whose moments are in m and v. */
static void update_elems(const struct update *u, int64_t first, int64_t count, float *master, float *m, float *v) {
    const struct sw_update_adamw *op = u->op;
    for (int64_t i = 0; i < count && !op->adamw->skip; i++) {
        const int64_t at = u->at + first + i;
        const struct sw_decay_span span = sw_decay_span(&u->scalars, op->runs, op->run_count, op->first_elem + at);
        if (!span.left_out)
            update_elem(&u->scalars, &span, gradient_at(op, at), &master[i], &m[i], &v[i]);
    }
}

static void update_narrow(const struct update *u, const struct sw_record_parts *record) {
    const struct sw_update_adamw *op = u->op;
    const struct sw_moment_rounding how = {.rounding = op->rounding,
                                           .seed = op->seed,
                                           .unit = op->unit,
                                           .step = op->adamw->step,
                                           .first_elem = op->first_elem + u->at};
    for (int64_t at = 0; at < SW_GRAIN_ELEMS && !op->adamw->skip; at += SW_MOMENT_BLOCK_ELEMS) {
        float m[SW_MOMENT_BLOCK_ELEMS], v[SW_MOMENT_BLOCK_ELEMS];
        if (sw_decay_span(&u->scalars, op->runs, op->run_count, how.first_elem + at).left_out)
            continue;
        sw_moments_widen(op->format, record, at, m, v);
        update_elems(u, at, SW_MOMENT_BLOCK_ELEMS, record->master + at, m, v);
        sw_moments_round(op->format, &how, at, m, v, record);
    }
}

static void update_grain(const struct update *u) {
    const struct sw_update_adamw *op = u->op;
    const bool narrow = op->format != SW_OPTIMIZER_FP32, wide = narrow && op->first_elem + u->at >= op->wide_elem;
    char *at = (char *)op->records + u->at / SW_GRAIN_ELEMS * sw_update_record_bytes(op);
    const struct sw_record_parts record = sw_record_parts(op->format, wide, at);
    if (narrow && !wide)
        update_narrow(u, &record);
    else
        update_elems(u, 0, record.elems, record.master, (float *)record.m, (float *)record.v);
    for (int64_t i = 0; i < SW_GRAIN_ELEMS && op->weights != NULL; i++)
        sw_dtype_store(op->type, op->weights, u->at + i, i < record.elems ? record.master[i] : 0.0f);
}

static sw_status update_adamw(struct sw_stream *stream, const void *args) {
    struct update u = {.op = args};
    (void)stream;
    u.scalars = sw_adamw_scalars(u.op->adamw);
    for (; u.at < u.op->grains * SW_GRAIN_ELEMS; u.at += SW_GRAIN_ELEMS)
        update_grain(&u);
    return SW_OK;
}

void sw_ref_add_update(struct sw_device_ops *ops) {
    ops->op[SW_DEVICE_UPDATE_ADAMW] = update_adamw;
}

static double grain_sum(sw_dtype type, int64_t at, const void *grads) {
    double partial[SW_GRAIN_PARTIAL_SUMS] = {0};
    for (int64_t i = 0; i < SW_GRAIN_ELEMS; i++) {
        const double value = sw_dtype_load(type, grads, at + i);
        partial[i % SW_GRAIN_PARTIAL_SUMS] = fma(value, value, partial[i % SW_GRAIN_PARTIAL_SUMS]);
    }
    for (int64_t half = SW_GRAIN_PARTIAL_SUMS / 2; half >= 1; half /= 2) {
        for (int64_t i = 0; i < half; i++)
            partial[i] += partial[i + half];
    }
    return partial[0];
}

static sw_status square_sums(struct sw_stream *stream, const void *args) {
    const struct sw_square_sums *op = args;
    (void)stream;
    for (int64_t grain = 0; grain < op->elems / SW_GRAIN_ELEMS; grain++)
        op->sums[grain] = grain_sum(op->type, grain * SW_GRAIN_ELEMS, op->grads);
    return SW_OK;
}

static sw_status finish_8bit(struct sw_stream *stream, const struct sw_finish_gradient *op) {
    float values[SW_GRAIN_ELEMS];
    for (int64_t grain = 0; grain < op->elems / SW_GRAIN_ELEMS; grain++) {
        char *record = (char *)op->grads + grain * SW_GRADS_8BIT_GRAIN_BYTES;
        memset(record, 0, SW_GRADS_8BIT_GRAIN_BYTES);
        SW_TRY(sw_quantize(stream, SW_F32, SW_QUANT_INT8, 1, op->acc + grain * SW_GRAIN_ELEMS, record));
        for (int64_t i = 0; i < SW_GRAIN_ELEMS; i++)
            values[i] = sw_grads_8bit_at(record, i);
        op->sums[grain] = grain_sum(SW_F32, 0, values);
    }
    return SW_OK;
}

static sw_status finish_gradient(struct sw_stream *stream, const void *args) {
    const struct sw_finish_gradient *op = args;
    if (op->format == SW_GRADS_8BIT)
        return finish_8bit(stream, op);
    for (int64_t i = 0; i < op->elems; i++)
        sw_dtype_store(op->type, op->grads, i, op->acc[i]);
    return sw_square_sums(stream, op->type, op->elems, op->grads, op->sums);
}

/* A tile of rows is summed separately and then added, so that the accumulator rounds once per tile. */
static sw_status bias_gradient(struct sw_stream *stream, const void *args) {
    const struct sw_bias_gradient *op = args;
    (void)stream;
    for (int64_t first = 0; first < op->rows; first += SW_BIAS_TILE_ROWS) {
        const int64_t end = sw_min_i64(op->rows, first + SW_BIAS_TILE_ROWS);
        for (int64_t col = 0; col < op->cols; col++) {
            float sum = 0.0f;
            for (int64_t row = first; row < end; row++)
                sum += sw_dtype_load(op->type, op->dy, row * op->cols + col);
            op->acc[col] += sum;
        }
    }
    return SW_OK;
}

void sw_ref_add_gradient(struct sw_device_ops *ops) {
    ops->op[SW_DEVICE_BIAS_GRADIENT] = bias_gradient;
    ops->op[SW_DEVICE_FINISH_GRADIENT] = finish_gradient;
    ops->op[SW_DEVICE_SQUARE_SUMS] = square_sums;
}
