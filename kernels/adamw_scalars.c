#include "kernels/adamw_scalars.h"

#include <math.h>

struct sw_adamw_scalars sw_adamw_scalars(const struct sw_adamw *adamw) {
    const double correction1 = 1.0 - pow(adamw->beta1, (double)adamw->step);
    const double correction2 = 1.0 - pow(adamw->beta2, (double)adamw->step);
    return (struct sw_adamw_scalars){
        .decay_factor = (float)(1.0 - adamw->lr * adamw->weight_decay),
        .one_minus_beta1 = (float)(1.0 - adamw->beta1),
        .beta2 = (float)adamw->beta2,
        .one_minus_beta2 = (float)(1.0 - adamw->beta2),
        .minus_step_size = (float)(-adamw->lr / correction1),
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
    if (low == run_count)
        return (struct sw_decay_span){.end = INT64_MAX, .factor = 1.0f};
    return (struct sw_decay_span){.end = runs[low].end, .factor = runs[low].decay ? scalars->decay_factor : 1.0f};
}
