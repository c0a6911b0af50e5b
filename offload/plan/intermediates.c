/* Chooses the intermediates that are kept for the backward pass: first those that take the longest to be computed again
 * for their bytes. */
#include "core/size.h"
#include "offload/plan/plan_private.h"

#include <math.h>
#include <stdlib.h>

/* Time is counted in bytes moved: most of what is derived is only written, by a backward pass that reads what it is
 * made of anyway, and products take as long for so many flops as moving a byte does. Devices differ in the latter, but
 * a block's products are so far above it that the order is the same on all. */
enum { DERIVE_PASSES = 1, FLOPS_OF_A_BYTE = 100, FLOPS_OF_A_SAVED_BYTE = 1000 };
/* The changes that each unit may make, from computing everything again to nothing. */
enum { MOST_CHANGES = SW_RECOMPUTES - 1 };

/* Returns the price of computing a unit's intermediates of one micro-batch again, in bytes moved. */
static double price(const struct sw_plan_spec *spec, int64_t unit, sw_recompute level) {
    const struct sw_unit_cost *cost = &spec->cost[unit];
    const double derive = DERIVE_PASSES * (double)cost->derived_bytes;
    const double flops =
        cost->forward_flops > 0.0 ? cost->forward_flops : FLOPS_OF_A_SAVED_BYTE * (double)cost->saved_bytes;
    if (level == SW_RECOMPUTE_NOTHING)
        return 0.0;
    return derive + (level == SW_RECOMPUTE_UNIT ? flops / FLOPS_OF_A_BYTE : 0.0);
}

static double kept_bytes(const struct sw_plan_spec *spec, int64_t unit, sw_recompute level) {
    const double saved = level <= SW_RECOMPUTE_DERIVED ? (double)spec->cost[unit].saved_bytes : 0.0;
    return saved + (level == SW_RECOMPUTE_NOTHING ? (double)spec->cost[unit].derived_bytes : 0.0);
}

/* A change of one unit to a level that computes less again. */
struct change {
    int64_t unit; /* -1: none */
    sw_recompute to;
    double worth; /* price saved per byte kept */
};

static struct change change_of(const struct sw_plan *plan, int64_t unit, sw_recompute to) {
    const struct sw_plan_spec *spec = &plan->spec;
    const sw_recompute now = plan->recompute[unit];
    const double bytes = kept_bytes(spec, unit, to) - kept_bytes(spec, unit, now);
    const double time = price(spec, unit, now) - price(spec, unit, to);
    return (struct change){unit, to, bytes > 0.0 ? time / bytes : 0.0};
}

static void keep_better(struct change *best, const struct sw_plan *plan, int64_t unit, sw_recompute to) {
    const struct change change = change_of(plan, unit, to);
    /* Among alike units the last one wins: the backward pass needs its intermediates soonest. */
    if (best->unit < 0 || change.worth >= best->worth)
        *best = change;
}

/* Returns the best of all changes to levels that have not been tried in vain. */
static struct change find_change(const struct sw_plan *plan, const sw_recompute *least) {
    struct change best = {.unit = -1};
    for (int64_t u = sw_max_i64(1, plan->spec.frozen_units); u + 1 < plan->spec.units->count; u++)
        for (int to = (int)least[u]; to < (int)plan->recompute[u]; to++)
            keep_better(&best, plan, u, (sw_recompute)to);
    return best;
}

/* Changes up to `most` units, from the best change's unit down, whose change is worth as much. Returns how many, and in
 * out_unit which. */
static int64_t change_run(struct sw_plan *plan, const sw_recompute *least, const struct change *best, int64_t most,
                          int64_t *out_unit) {
    const sw_recompute before = plan->recompute[best->unit];
    int64_t count = 0;
    for (int64_t u = best->unit; u > 0 && count < most; u--)
        if (plan->recompute[u] == before && least[u] <= best->to && change_of(plan, u, best->to).worth == best->worth) {
            plan->recompute[u] = best->to;
            out_unit[count++] = u;
        }
    return count;
}

/* A layout takes as long as the model has units, so changes of the same worth are tried by runs: the next is twice as
 * long where one fits, else half as long. */
static sw_status keep_by_runs(struct sw_plan *plan, int64_t changes, sw_recompute *least, int64_t *run) {
    int64_t most = 1;
    for (;;) {
        const struct change change = find_change(plan, least);
        most = sw_min_i64(most, changes);
        if (change.unit < 0 || changes <= 0)
            return SW_OK;
        const sw_recompute before = plan->recompute[change.unit];
        const int64_t count = change_run(plan, least, &change, most, run);
        SW_TRY(sw_plan_measure(plan));
        if (sw_plan_fits(plan)) {
            changes -= count;
            most *= 2;
            continue;
        }
        for (int64_t i = 0; i < count; i++)
            plan->recompute[run[i]] = before;
        most = sw_max_i64(1, count / 2);
        /* Units that are alike come one after the other, so where one has not fitted, none of them does. */
        for (int64_t u = 1; count == 1 && u + 1 < plan->spec.units->count; u++)
            if (sw_plan_units_are_alike(plan, u, change.unit))
                least[u] = change.to + 1;
    }
}

sw_status sw_plan_keep_intermediates(struct sw_plan *plan, double share) {
    const size_t count = (size_t)plan->spec.units->count;
    sw_recompute *least = calloc(count, sizeof *least);
    int64_t *run = malloc(count * sizeof *run);
    const int64_t changes = share >= 1.0 ? INT64_MAX : llround(share * (double)(MOST_CHANGES * count));
    const sw_status status = least != NULL && run != NULL ? keep_by_runs(plan, changes, least, run)
                                                          : sw_fail(SW_ERR_NOMEM, "no memory for the plan");
    free(least);
    free(run);
    return status;
}
