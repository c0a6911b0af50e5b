#include "job/settings/schedule.h"

#include "core/number.h"
#include "core/size.h"

#include <assert.h>
#include <math.h>

static sw_status check_rates(const struct sw_schedule *schedule) {
    if (!isfinite(schedule->lr) || schedule->lr < 0)
        return sw_fail(SW_ERR_ARG, "the learning rate is %g; give a number of at least 0", schedule->lr);
    if (!isfinite(schedule->min_lr) || schedule->min_lr < 0)
        return sw_fail(SW_ERR_ARG, "the least learning rate is %g; give a number of at least 0", schedule->min_lr);
    if (schedule->kind != SW_SCHEDULE_CONSTANT && schedule->min_lr > schedule->lr)
        return sw_fail(SW_ERR_ARG,
                       "the least learning rate %g is above the learning rate %g; lower --min-lr or raise --lr",
                       schedule->min_lr, schedule->lr);
    return SW_OK;
}

sw_status sw_schedule_check(const struct sw_schedule *schedule) {
    SW_TRY(check_rates(schedule));
    const long long steps = schedule->steps, warmup = schedule->warmup_steps, decay = schedule->decay_steps;
    if (steps < 1)
        return sw_fail(SW_ERR_ARG, "a schedule of %lld steps is too short; give at least 1", steps);
    if (warmup < 0 || warmup > steps)
        return sw_fail(SW_ERR_ARG, "a warm-up of %s does not fit in %s; give 0 to %lld", SW_COUNT(warmup, "step"),
                       SW_COUNT(steps, "step"), steps);
    if (schedule->kind == SW_SCHEDULE_WSD && (decay < 0 || decay > steps - warmup))
        return sw_fail(SW_ERR_ARG, "a decay of %s does not fit in %s after a warm-up of %lld; give 0 to %lld",
                       SW_COUNT(decay, "step"), SW_COUNT(steps, "step"), warmup, steps - warmup);
    return SW_OK;
}

/* Returns the share of lr - min_lr that is left at a progress from 0 to 1 through the decay. */
static double decay_share(sw_schedule_kind kind, double progress) {
    return kind == SW_SCHEDULE_COSINE ? 0.5 * (1.0 + cos(M_PI * progress)) : 1.0 - progress;
}

double sw_schedule_lr(const struct sw_schedule *schedule, int64_t step) {
    assert(step >= 1);
    const struct sw_schedule *s = schedule;
    if (step < s->warmup_steps)
        return s->lr * (double)step / (double)s->warmup_steps;
    if (s->kind == SW_SCHEDULE_CONSTANT)
        return s->lr;
    if (step > s->steps)
        return s->min_lr;
    /* Without warm-up the first step has the full rate. */
    const int64_t decay_start = s->kind == SW_SCHEDULE_WSD ? s->steps - s->decay_steps : sw_max_i64(s->warmup_steps, 1);
    if (step <= decay_start)
        return s->lr;
    const int64_t end = s->min_at_last ? s->steps : s->steps + 1;
    if (step == end)
        return s->min_lr; /* The curve may round to another value. */
    const double progress = (double)(step - decay_start) / (double)(end - decay_start);
    return s->min_lr + (s->lr - s->min_lr) * decay_share(s->kind, progress);
}
