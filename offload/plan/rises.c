#include "offload/plan/rises.h"

#include "core/size.h"
#include "offload/plan/plan_private.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The most kinds of units remembered as not fitting: a model has few, each in a few placements. */
enum { MOST_KINDS = 32 };

const struct sw_rise_order sw_rises_usual = {
    .rise = {SW_RISE_WEIGHTS_TO_DEVICE, SW_RISE_ACCUMULATORS_TO_DEVICE, SW_RISE_ACTS_TO_DEVICE, SW_RISE_WEIGHTS_TO_HOST,
             SW_RISE_ACTS_TO_HOST, SW_RISE_OPTIMIZER_TO_HOST, SW_RISE_GRADS_TO_HOST, SW_RISE_GRADS_FROM_NVME,
             SW_RISE_INTERMEDIATES, SW_RISE_OPTIMIZER_TO_DEVICE, SW_RISE_GRADS_TO_DEVICE, SW_RISE_OPTIMIZER_ALONE},
    .share = {[SW_RISE_WEIGHTS_TO_DEVICE... SW_RISE_GRADS_TO_DEVICE] = 1.0, [SW_RISE_OPTIMIZER_ALONE] = 0.0},
};

/* Raises a unit's state to a tier, where the request leaves that open and the state lives lower. */
static void raise_state(struct sw_plan *plan, sw_state state, int64_t unit, sw_tier tier) {
    struct sw_unit_placement *at = &plan->placement[unit];
    if (!plan->spec.place.automatic[state] || at->tier[state] <= tier)
        return;
    at->tier[state] = tier;
    if (state == SW_GRADS && at->accumulator > tier)
        at->accumulator = tier;
}

static void raise_accumulator(struct sw_plan *plan, sw_state state, int64_t unit, sw_tier tier) {
    if (plan->spec.place.automatic[state] && plan->placement[unit].accumulator > tier)
        plan->placement[unit].accumulator = tier;
}

/* The gradients of an update on the host go there in the backward pass, so a home on the device gains them nothing. */
static void raise_where_updated_there(struct sw_plan *plan, sw_state state, int64_t unit, sw_tier tier) {
    if (sw_plan_updates_on_device(plan, unit))
        raise_state(plan, state, unit, tier);
}

static void raise_with_grads(struct sw_plan *plan, sw_state state, int64_t unit, sw_tier tier) {
    raise_state(plan, state, unit, tier);
    raise_where_updated_there(plan, SW_GRADS, unit, tier);
}

static void raise_from_nvme(struct sw_plan *plan, sw_state state, int64_t unit, sw_tier tier) {
    if (plan->placement[unit].tier[state] == SW_NVME)
        raise_state(plan, state, unit, tier);
}

/* A rise: what it raises, and where to. */
struct rise {
    const char *name;
    void (*raise)(struct sw_plan *plan, sw_state state, int64_t unit, sw_tier tier); /* NULL: intermediates */
    sw_state state;
    sw_tier tier;
};
static const struct rise rises[SW_RISES] = {
    [SW_RISE_WEIGHTS_TO_DEVICE] = {"weights to the device", raise_state, SW_WEIGHTS, SW_DEVICE},
    [SW_RISE_ACCUMULATORS_TO_DEVICE] = {"accumulators to the device", raise_accumulator, SW_GRADS, SW_DEVICE},
    [SW_RISE_ACTS_TO_DEVICE] = {"block inputs to the device", raise_state, SW_ACTS, SW_DEVICE},
    [SW_RISE_WEIGHTS_TO_HOST] = {"weights to the host", raise_state, SW_WEIGHTS, SW_HOST},
    [SW_RISE_ACTS_TO_HOST] = {"block inputs to the host", raise_state, SW_ACTS, SW_HOST},
    [SW_RISE_OPTIMIZER_TO_HOST] = {"optimizer state to the host", raise_state, SW_OPTIMIZER, SW_HOST},
    [SW_RISE_GRADS_TO_HOST] = {"gradients to the host", raise_state, SW_GRADS, SW_HOST},
    [SW_RISE_GRADS_FROM_NVME] = {"gradients from nvme to the device", raise_from_nvme, SW_GRADS, SW_DEVICE},
    [SW_RISE_INTERMEDIATES] = {"intermediates to the device", NULL, SW_ACTS, SW_DEVICE},
    [SW_RISE_OPTIMIZER_TO_DEVICE] = {"optimizer state to the device", raise_with_grads, SW_OPTIMIZER, SW_DEVICE},
    [SW_RISE_GRADS_TO_DEVICE] = {"gradients to the device", raise_where_updated_there, SW_GRADS, SW_DEVICE},
    [SW_RISE_OPTIMIZER_ALONE] = {"optimizer state alone to the device", raise_state, SW_OPTIMIZER, SW_DEVICE},
};

const char *sw_rise_name(sw_rise rise) {
    return rises[rise].name;
}

struct rising {
    struct sw_plan *plan;
    struct rise rise;
    int64_t left;                     /* units that may still rise */
    struct sw_unit_placement *before; /* one entry per unit: its placement before it was raised */
    int64_t *run;                     /* the run_count units that are raised together */
    int64_t run_count;
    /* One unit of each kind that has not fitted: none of that kind is tried again, as what fits after it takes more. */
    int64_t failed[MOST_KINDS];
    int failed_count;
};

static bool has_failed(const struct rising *r, int64_t unit) {
    for (int k = 0; k < r->failed_count; k++)
        if (sw_plan_units_are_alike(r->plan, unit, r->failed[k]))
            return true;
    return false;
}

/* Raises up to `most` units from unit `first` on that are not there yet. Returns the unit after them. */
static int64_t raise_run(struct rising *r, int64_t first, int64_t most) {
    struct sw_unit_placement *const placement = r->plan->placement;
    int64_t u = first;
    most = sw_min_i64(most, r->left);
    r->run_count = 0;
    for (; u < r->plan->spec.units->count && r->run_count < most; u++) {
        if (has_failed(r, u))
            continue;
        r->before[u] = placement[u];
        r->rise.raise(r->plan, r->rise.state, u, r->rise.tier);
        if (memcmp(&r->before[u], &placement[u], sizeof placement[u]) != 0)
            r->run[r->run_count++] = u;
    }
    return u;
}

/* A layout takes as long as the model has units, so units are raised by runs: the next is twice as long where one fits,
 * else half as long. The first are all, as they may fit together where one alone does not: a state that is all on one
 * tier needs no rings to the others. */
static sw_status raise_runs(struct rising *r) {
    int64_t u = 0, most = r->plan->spec.units->count;
    for (;;) {
        const int64_t next = raise_run(r, u, most);
        if (r->run_count == 0)
            return SW_OK;
        SW_TRY(sw_plan_measure(r->plan));
        if (sw_plan_fits(r->plan)) {
            u = next;
            r->left -= r->run_count;
            most *= 2;
            continue;
        }
        for (int64_t i = 0; i < r->run_count; i++)
            r->plan->placement[r->run[i]] = r->before[r->run[i]];
        most = sw_max_i64(1, r->run_count / 2);
        if (r->run_count > 1)
            continue;
        if (r->failed_count < MOST_KINDS)
            r->failed[r->failed_count++] = r->run[0];
        u = next;
    }
}

/* Tells whether a unit has what a rise raises where it would raise it, or higher. */
static bool is_there(const struct sw_unit_placement *at, sw_rise which) {
    const struct rise *rise = &rises[which];
    return (which == SW_RISE_ACCUMULATORS_TO_DEVICE ? at->accumulator : at->tier[rise->state]) <= rise->tier;
}

/* Returns how many units may still rise of a share of all: those that are there count. */
static int64_t units_left(const struct sw_plan *plan, sw_rise which, double share) {
    const int64_t count = plan->spec.units->count;
    int64_t there = 0;
    if (share >= 1.0)
        return count;
    for (int64_t u = 0; u < count; u++)
        there += is_there(&plan->placement[u], which);
    return sw_max_i64(0, llround(share * (double)count) - there);
}

static sw_status raise_one(struct sw_plan *plan, sw_rise which, double share) {
    const size_t count = (size_t)plan->spec.units->count;
    struct rising r = {.plan = plan, .rise = rises[which]};
    if (which == SW_RISE_INTERMEDIATES)
        return plan->spec.recompute_auto ? sw_plan_keep_intermediates(plan, share) : SW_OK;
    r.left = units_left(plan, which, share);
    r.before = malloc(count * sizeof *r.before);
    r.run = malloc(count * sizeof *r.run);
    const sw_status status =
        r.before != NULL && r.run != NULL ? raise_runs(&r) : sw_fail(SW_ERR_NOMEM, "no memory for a plan");
    free(r.before);
    free(r.run);
    return status;
}

bool sw_plan_all_may_rise(const struct sw_rise_order *order) {
    bool all = true;
    for (int rise = 0; order != NULL && rise < SW_RISES; rise++)
        all &= order->share[rise] >= sw_rises_usual.share[rise];
    return all;
}

double sw_plan_risen_share(const struct sw_plan *plan, sw_rise rise) {
    const int64_t count = plan->spec.units->count;
    int64_t there = 0;
    for (int64_t u = 0; u < count; u++) {
        const struct sw_unit_placement *at = &plan->placement[u];
        if (rise == SW_RISE_INTERMEDIATES)
            there += SW_RECOMPUTE_UNIT - plan->recompute[u];
        else
            there += is_there(at, rise);
    }
    return (double)there / (double)(rise == SW_RISE_INTERMEDIATES ? (SW_RECOMPUTES - 1) * count : count);
}

sw_status sw_plan_raise(struct sw_plan *plan, const struct sw_rise_order *order) {
    for (int i = 0; i < SW_RISES; i++)
        SW_TRY(raise_one(plan, order->rise[i], order->share[order->rise[i]]));
    SW_TRY(raise_one(plan, SW_RISE_OPTIMIZER_TO_HOST, order->share[SW_RISE_OPTIMIZER_TO_HOST]));
    return raise_one(plan, SW_RISE_GRADS_TO_HOST, order->share[SW_RISE_GRADS_TO_HOST]);
}
