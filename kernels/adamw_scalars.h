/* The scalars of an AdamW step, computed in double as Python does, then rounded to fp32, as PyTorch rounds a scalar
 * before it meets an fp32 tensor. Every implementation of the update starts from these. */
#ifndef SW_KERNELS_ADAMW_SCALARS_H
#define SW_KERNELS_ADAMW_SCALARS_H

#include "kernels/device.h"

struct sw_adamw_scalars {
    double lr, weight_decay, correction1; /* of the step, for runs with a learning rate of their own */
    float decay_factor;                   /* 1 - lr·weight_decay */
    float one_minus_beta1;
    float beta2;
    float one_minus_beta2;
    float minus_step_size;  /* -lr/(1-beta1^t) */
    float correction2_sqrt; /* sqrt(1-beta2^t) */
    float eps;
    float grad_scale;
};

struct sw_adamw_scalars sw_adamw_scalars(const struct sw_adamw *adamw);

/* The decay factor and the step size of some elements, which end before element `end` of the unit. */
struct sw_decay_span {
    int64_t end;
    float factor, minus_step_size;
};
/* Returns the span that holds elem; after the last run nothing decays. A run's scale counts as if the step had the
 * scaled learning rate. */
struct sw_decay_span sw_decay_span(const struct sw_adamw_scalars *scalars, const struct sw_decay_run *runs,
                                   int64_t run_count, int64_t elem);

#endif
