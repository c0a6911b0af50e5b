#include "kernels/adamw_scalars.h"

#include <math.h>

static float decay_factor_of(double lr, double weight_decay) {
    return (float)(1.0 - lr * weight_decay);
}

static float minus_step_size_of(double lr, double correction1) {
    return (float)(-lr / correction1);
}

struct sw_adamw_scalars sw_adamw_scalars(const struct sw_adamw *adamw) {
    const double correction1 = 1.0 - pow(adamw->beta1, (double)adamw->step);
    const double correction2 = 1.0 - pow(adamw->beta2, (double)adamw->step);
    return (struct sw_adamw_scalars){
        .lr = adamw->lr,
        .weight_decay = adamw->weight_decay,
        .correction1 = correction1,
        .decay_factor = decay_factor_of(adamw->lr, adamw->weight_decay),
        .one_minus_beta1 = (float)(1.0 - adamw->beta1),
        .beta2 = (float)adamw->beta2,
        .one_minus_beta2 = (float)(1.0 - adamw->beta2),
        .minus_step_size = minus_step_size_of(adamw->lr, correction1),
        .correction2_sqrt = (float)sqrt(correction2),
        .eps = (float)adamw->eps,
        .grad_scale = adamw->grad_scale,
    };
}

struct sw_decay_span sw_decay_span(const struct sw_adamw_scalars *scalars, const struct sw_decay_run *runs,
                                   int64_t run_count, int64_t elem) {
    int64_t low = 0, high = run_count;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (runs[middle].end <= elem)
            low = middle + 1;
        else
            high = middle;
    }
    struct sw_decay_span span = {.end = INT64_MAX, .factor = 1.0f, .minus_step_size = scalars->minus_step_size};
    if (low == run_count)
        return span;
    const struct sw_decay_run *run = &runs[low];
    const double lr = run->lr_scale * scalars->lr;
    span.end = run->end;
    if (run->decay)
        span.factor = run->lr_scale == 0.0 ? scalars->decay_factor : decay_factor_of(lr, scalars->weight_decay);
    if (run->lr_scale != 0.0)
        span.minus_step_size = minus_step_size_of(lr, scalars->correction1);
    return span;
}
