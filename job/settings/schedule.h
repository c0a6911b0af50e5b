/* The learning rate as a function of the step, and factors for it by tensor name. The curves are those of PyTorch's
 * CosineAnnealingLR and LinearLR and of transformers' get_cosine_schedule_with_warmup and its linear counterpart: they
 * reach min_lr one step after the last, so that every step trains. The warm-up's first step has lr/warmup, where
 * transformers' first step has a rate of 0. */
#ifndef SW_JOB_SETTINGS_SCHEDULE_H
#define SW_JOB_SETTINGS_SCHEDULE_H

#include "core/status.h"
#include "offload/plan/unit.h"

#include <stdbool.h>
#include <stdint.h>

/* --schedule, in the order of its choices. */
typedef enum { SW_SCHEDULE_CONSTANT, SW_SCHEDULE_LINEAR, SW_SCHEDULE_COSINE, SW_SCHEDULE_WSD } sw_schedule_kind;

struct sw_schedule {
    sw_schedule_kind kind;
    double lr, min_lr;
    int64_t warmup_steps; /* the rate rises linearly from lr/warmup at step 1 to lr at step warmup */
    int64_t steps;        /* length of the schedule; later steps have min_lr */
    int64_t decay_steps;  /* wsd: steps of linear decay at the end */
    bool min_at_last;     /* the last step of the schedule has min_lr, as in runs of older versions */
};

/* Checks ranges: steps >= 1, 0 <= min_lr <= lr, warm-up and decay within the steps. */
sw_status sw_schedule_check(const struct sw_schedule *schedule);
/* Returns the rate of a step, counted from 1. Steps after the schedule have min_lr (constant: lr). */
double sw_schedule_lr(const struct sw_schedule *schedule, int64_t step);

struct sw_settings;
/* Checks the form of each value of --lr-scale: PATTERN=FACTOR. */
sw_status sw_tensor_rates_check(const struct sw_settings *settings);

/* Sets the tensors' factors and decay by the flags. A pattern is a glob for whole names, as in fnmatch. Of several
 * factors for a tensor the last counts. Refuses a pattern that matches no name, and suggests a similar one. There must
 * be no plan of the units yet. */
sw_status sw_tensor_rates_apply(const struct sw_settings *settings, struct sw_units *units);

#endif
