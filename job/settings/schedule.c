#include "job/settings/schedule.h"

#include "core/size.h"
#include "core/text/text.h"
#include "job/settings/settings.h"

#include <assert.h>
#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

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

/* Returns the share of lr - min_lr that remains at a progress from 0 to 1 through the decay. */
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
        return s->min_lr; /* the curve's value may be rounded */
    const double progress = (double)(step - decay_start) / (double)(end - decay_start);
    return s->min_lr + (s->lr - s->min_lr) * decay_share(s->kind, progress);
}

enum { PATTERN_CHARS = 256 };
#define LARGEST_SCALE 1000.0

/* A pattern of tensors' names, and what they get. */
struct rule {
    const char *flag;
    char pattern[PATTERN_CHARS];
    double lr_scale; /* 0: no factor; the tensors get no weight decay */
};

static sw_status take_pattern(struct rule *rule, const char *text, size_t chars) {
    if (chars == 0 || chars >= sizeof rule->pattern)
        return sw_fail(SW_ERR_ARG, "%s '%s' needs a pattern of 1 to %d characters", rule->flag, text,
                       PATTERN_CHARS - 1);
    memcpy(rule->pattern, text, chars);
    rule->pattern[chars] = '\0';
    return SW_OK;
}

static sw_status parse_scale(const char *text, struct rule *out) {
    const char *equals = strrchr(text, '=');
    char *end;
    *out = (struct rule){.flag = "--lr-scale"};
    out->lr_scale = equals != NULL ? strtod(equals + 1, &end) : 0.0;
    if (equals == NULL || end == equals + 1 || *end != '\0' || !(out->lr_scale > 0.0 && out->lr_scale <= LARGEST_SCALE))
        return sw_fail(SW_ERR_ARG, "--lr-scale '%s' must be PATTERN=FACTOR, with a factor above 0 and up to %g", text,
                       LARGEST_SCALE);
    return take_pattern(out, text, (size_t)(equals - text));
}

static sw_status parse_no_decay(const char *text, struct rule *out) {
    *out = (struct rule){.flag = "--no-decay"};
    return take_pattern(out, text, strlen(text));
}

/* Returns the name that a pattern was probably meant to match: similar without the stars, or with that end. */
static const char *near_name(const struct rule *rule, const struct sw_units *units) {
    const char *typed = rule->pattern + strspn(rule->pattern, "*.");
    struct sw_nearest nearest = sw_nearest_begin(typed, strcspn(typed, "*"));
    const char *best = NULL;
    for (int64_t u = 0; u < units->count; u++) {
        for (int64_t t = 0; t < units->unit[u].tensor_count; t++) {
            const char *name = units->unit[u].tensor[t].name, *before = nearest.name;
            for (const char *end = name; end != NULL; end = strchr(end, '.') != NULL ? strchr(end, '.') + 1 : NULL)
                sw_nearest_consider(&nearest, end);
            best = nearest.name != before ? name : best;
        }
    }
    return best;
}

static sw_status refuse(const struct rule *rule, const struct sw_units *units) {
    const char *near = near_name(rule, units);
    if (near != NULL)
        return sw_fail(SW_ERR_ARG, "%s '%s' matches no tensor of the model; one that is near is %s", rule->flag,
                       rule->pattern, near);
    return sw_fail(SW_ERR_ARG, "%s '%s' matches no tensor of the model, whose tensors are named like %s and %s",
                   rule->flag, rule->pattern, units->unit[0].tensor[0].name, units->unit[1].tensor[0].name);
}

static sw_status apply(const struct rule *rule, struct sw_units *units) {
    int64_t matches = 0;
    for (int64_t u = 0; u < units->count; u++) {
        for (int64_t t = 0; t < units->unit[u].tensor_count; t++) {
            struct sw_tensor *tensor = &units->unit[u].tensor[t];
            if (fnmatch(rule->pattern, tensor->name, 0) != 0)
                continue;
            matches++;
            if (rule->lr_scale == 0.0)
                tensor->decay = false;
            else
                tensor->lr_scale = rule->lr_scale;
        }
    }
    return matches > 0 ? SW_OK : refuse(rule, units);
}

sw_status sw_tensor_rates_check(const struct sw_settings *settings) {
    struct rule rule;
    for (int i = 0; i < settings->lr_scale.count; i++)
        SW_TRY(parse_scale(settings->lr_scale.items[i], &rule));
    return SW_OK;
}

sw_status sw_tensor_rates_apply(const struct sw_settings *settings, struct sw_units *units) {
    struct rule rule;
    for (int i = 0; i < settings->no_decay.count; i++) {
        SW_TRY(parse_no_decay(settings->no_decay.items[i], &rule));
        SW_TRY(apply(&rule, units));
    }
    for (int i = 0; i < settings->lr_scale.count; i++) {
        SW_TRY(parse_scale(settings->lr_scale.items[i], &rule));
        SW_TRY(apply(&rule, units));
    }
    sw_units_join_runs(units);
    return SW_OK;
}
