#include "core/size.h"
#include "kernels/adamw_scalars.h"
#include "kernels/ref/ref.h"

#include <math.h>

/* The definition of the update, operation by operation: each line below rounds where it says, and every other
 * implementation gives the same bits. */
static void update_elem(const struct sw_adamw_scalars *s, const struct sw_decay_span *span, float gradient,
                        float *master, float *m, float *v) {
    const float g = gradient * s->grad_scale;
    *m = fmaf(s->one_minus_beta1, g - *m, *m);
    *v = fmaf(s->one_minus_beta2 * g, g, s->beta2 * *v);
    const float denominator = sqrtf(*v) / s->correction2_sqrt + s->eps;
    *master = fmaf(span->minus_step_size, *m / denominator, *master * span->factor);
}

static void update_grain(sw_dtype type, const struct sw_adamw_scalars *scalars, bool skip, int64_t unit_elem,
                         const struct sw_decay_run *runs, int64_t run_count, const void *grads, int64_t grads_at,
                         float *record, void *weights) {
    float *master = record, *m = master + SW_GRAIN_ELEMS, *v = m + SW_GRAIN_ELEMS;
    for (int64_t i = 0; i < SW_GRAIN_ELEMS; i++) {
        if (!skip) {
            const struct sw_decay_span span = sw_decay_span(scalars, runs, run_count, unit_elem + i);
            update_elem(scalars, &span, sw_dtype_load(type, grads, grads_at + i), &master[i], &m[i], &v[i]);
        }
        sw_dtype_store(type, weights, grads_at + i, master[i]);
    }
}

static sw_status update_adamw(struct sw_stream *stream, const void *args) {
    const struct sw_update_adamw *op = args;
    (void)stream;
    const struct sw_adamw_scalars scalars = sw_adamw_scalars(op->adamw);
    for (int64_t grain = 0; grain < op->grains; grain++) {
        const int64_t at = grain * SW_GRAIN_ELEMS;
        update_grain(op->type, &scalars, op->adamw->skip, op->first_elem + at, op->runs, op->run_count, op->grads, at,
                     (float *)op->records + SW_OPTIMIZER_VECTORS * at, op->weights);
    }
    return SW_OK;
}

void sw_ref_add_update(struct sw_device_ops *ops) {
    ops->op[SW_DEVICE_UPDATE_ADAMW] = update_adamw;
}
