/* Which intermediates are kept for the backward pass: by price, those first that take the longest to be computed again
 * for the bytes that they hold. */
#include "offload/plan/plan_private.h"

#include <stdlib.h>

/* Time is counted in bytes moved: most of what is derived is only written, by a backward pass that reads what it is
 * made of anyway, and products take as long for so many flops as moving a byte does. Devices differ in the latter, but
 * a block's products are so far above it that the order is the same on all. */
enum { DERIVE_PASSES = 1, FLOPS_OF_A_BYTE = 100, FLOPS_OF_A_SAVED_BYTE = 1000 };

/* What computing again takes, of one micro-batch. */
static double price(const struct sw_plan_spec *spec, int64_t unit, sw_recompute level) {
    const double derive = DERIVE_PASSES * (double)spec->derived_bytes[unit];
    const double flops = spec->forward_flops != NULL ? spec->forward_flops[unit]
                                                     : FLOPS_OF_A_SAVED_BYTE * (double)spec->saved_bytes[unit];
    if (level == SW_RECOMPUTE_NOTHING)
        return 0.0;
    return derive + (level == SW_RECOMPUTE_UNIT ? flops / FLOPS_OF_A_BYTE : 0.0);
}

static double kept_bytes(const struct sw_plan_spec *spec, int64_t unit, sw_recompute level) {
    const double saved = level <= SW_RECOMPUTE_DERIVED ? (double)spec->saved_bytes[unit] : 0.0;
    return saved + (level == SW_RECOMPUTE_NOTHING ? (double)spec->derived_bytes[unit] : 0.0);
}

/* A unit that is to compute less again. */
struct change {
    int64_t unit; /* -1: none */
    sw_recompute to;
    double worth; /* time for each byte that it keeps */
};

static void keep_better(struct change *best, const struct sw_plan *plan, int64_t unit, sw_recompute to) {
    const struct sw_plan_spec *spec = &plan->spec;
    const sw_recompute now = plan->recompute[unit];
    const double bytes = kept_bytes(spec, unit, to) - kept_bytes(spec, unit, now);
    const double time = price(spec, unit, now) - price(spec, unit, to);
    const double worth = bytes > 0.0 ? time / bytes : 0.0;
    /* Of units that are alike the last: what it keeps is needed soonest. */
    if (best->unit < 0 || worth >= best->worth)
        *best = (struct change){unit, to, worth};
}

/* The best of all changes to a level that has not been tried in vain. */
static struct change find_change(const struct sw_plan *plan, const sw_recompute *least) {
    struct change best = {.unit = -1};
    for (int64_t u = 1; u + 1 < plan->spec.units->count; u++)
        for (int to = (int)least[u]; to < (int)plan->recompute[u]; to++)
            keep_better(&best, plan, u, (sw_recompute)to);
    return best;
}

sw_status sw_plan_keep_intermediates(struct sw_plan *plan) {
    sw_recompute *least = calloc((size_t)plan->spec.units->count, sizeof *least);
    if (least == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the plan");
    sw_status status = SW_OK;
    for (;;) {
        const struct change change = find_change(plan, least);
        if (change.unit < 0 || status != SW_OK)
            break;
        const sw_recompute before = plan->recompute[change.unit];
        plan->recompute[change.unit] = change.to;
        status = sw_plan_layout(plan);
        if (sw_plan_fits(plan))
            continue;
        plan->recompute[change.unit] = before;
        least[change.unit] = change.to + 1;
    }
    free(least);
    SW_TRY(status);
    return sw_plan_layout(plan);
}
