#include "offload/simulate/update_price.h"

#include "core/size.h"
#include "offload/simulate/outline_price.h"

#include <math.h>
#include <stdlib.h>

/* The most plans, and about how many ops of theirs, that are made and simulated: a few seconds' work. EVENLY: the parts
 * of which shares are tried. */
enum { MOST_TRIED = 40, MOST_OPS = 1500000, EVENLY = 8 };
/* The part of a step that a mixture must save to be worth it: rates are not known more closely. */
#define LEAST_SAVED 0.005

struct search {
    struct sw_plan_spec spec; /* its update_on_device is the one that is tried */
    const struct sw_rates *rates;
    bool *streams;
    int tried;
    int64_t ops;
    struct sw_plan *best;
    double best_s;
};

bool sw_plan_has_update_choice(const struct sw_plan *plan) {
    bool any = false;
    for (int64_t u = 0; u < plan->spec.units->count; u++)
        any |= plan->spec.train && plan->placement[u].tier[SW_OPTIMIZER] != SW_DEVICE;
    return any;
}

/* Tells whether the plan's lanes alone take as long as the cheapest step so far, or its ops are too many. */
static sw_status cannot_win(const struct search *s, const struct sw_plan *plan, bool *out) {
    const struct sw_step_bound enough = {.step_s = s->best_s, .others_s = INFINITY};
    struct sw_step_bound bound;
    SW_TRY(sw_outline_bound(plan, s->rates, enough, &bound, out));
    *out = *out || sw_outline_is_too_long(plan, bound.ops);
    return SW_OK;
}

/* Simulates a plan. *out_s stays as it is where the plan cannot be the cheapest and is not priced `always`. */
static sw_status price(struct search *s, const struct sw_plan *plan, bool always, double *out_s) {
    struct sw_simulation step;
    int64_t ops;
    bool worse = false;
    if (!always)
        SW_TRY(cannot_win(s, plan, &worse));
    if (worse)
        return SW_OK;
    SW_TRY(sw_outline_simulate(plan, s->rates, &step, &ops));
    s->ops += ops;
    *out_s = step.step_s;
    return SW_OK;
}

/* Outlines and prices the plan of s->streams and keeps it where it is the cheapest. *out_s is infinite where it does
 * not fit, and, unless it is to be priced `always`, where it cannot be the cheapest. */
static sw_status try_streams(struct search *s, bool always, double *out_s) {
    struct sw_plan *plan;
    *out_s = INFINITY;
    s->tried++;
    sw_status status = sw_plan_outline(&s->spec, &plan);
    if (status == SW_ERR_BUDGET && s->best != NULL) {
        sw_error_clear();
        return SW_OK;
    }
    SW_TRY(status);
    status = price(s, plan, always, out_s);
    if (status != SW_OK || (s->best != NULL && *out_s >= s->best_s)) {
        sw_plan_destroy(plan);
        return status;
    }
    sw_plan_destroy(s->best);
    s->best = plan;
    s->best_s = *out_s;
    return SW_OK;
}

static void set_all(struct search *s, bool streams) {
    for (int64_t u = 0; u < s->spec.units->count; u++)
        s->streams[u] = streams;
}

static void turn(struct search *s, int64_t first, int64_t end) {
    for (int64_t u = first; u < end; u++)
        s->streams[u] = !s->streams[u];
}

/* Tries each share of the parameters on the device, evenly spread over the units, as both sides then work at once. */
static sw_status try_shares(struct search *s) {
    for (int64_t share = 1; share < EVENLY && s->ops < MOST_OPS; share++) {
        int64_t grains = 0, there = 0;
        double step_s;
        for (int64_t u = 0; u < s->spec.units->count; u++) {
            const int64_t own = s->spec.units->unit[u].grains;
            grains += own;
            s->streams[u] = EVENLY * (2 * there + own) <= 2 * share * grains;
            there += s->streams[u] ? own : 0;
        }
        SW_TRY(try_streams(s, false, &step_s));
    }
    return SW_OK;
}

/* Tries, from the best so far, runs of neighbours on the other side. */
static sw_status try_runs(struct search *s) {
    const int64_t units = s->spec.units->count;
    for (int64_t u = 0; u < units; u++)
        s->streams[u] = s->best->spec.update_on_device[u];
    for (int64_t span = sw_div_up(units, 2);; span = sw_div_up(span, 2)) {
        for (int64_t first = 0; first < units && s->tried < MOST_TRIED && s->ops < MOST_OPS; first += span) {
            const int64_t end = sw_min_i64(units, first + span);
            const double before_s = s->best_s;
            double step_s;
            turn(s, first, end);
            SW_TRY(try_streams(s, false, &step_s));
            if (!(s->best_s < before_s))
                turn(s, first, end);
        }
        if (span == 1)
            return SW_OK;
    }
}

/* Takes the plan with all updates on one side, whatever was found to be cheaper. */
static sw_status take_all(struct search *s, bool streams) {
    double step_s;
    sw_plan_destroy(s->best);
    s->best = NULL;
    set_all(s, streams);
    return try_streams(s, true, &step_s);
}

static sw_status search(struct search *s, struct sw_update_prices *out) {
    set_all(s, false);
    SW_TRY(try_streams(s, true, &out->host_s));
    if (!sw_plan_has_update_choice(s->best))
        return SW_OK;
    set_all(s, true);
    SW_TRY(try_streams(s, true, &out->device_s));
    SW_TRY(try_shares(s));
    SW_TRY(try_runs(s));
    const bool device = out->device_s < (1.0 - LEAST_SAVED) * out->host_s;
    if (s->best_s > (1.0 - LEAST_SAVED) * (device ? out->device_s : out->host_s))
        SW_TRY(take_all(s, device));
    out->chosen_s = s->best_s;
    out->known = true;
    return SW_OK;
}

/* Replaces the best plan, which is rank 0's, by that of another rank. */
static sw_status take_own(struct search *s, int rank) {
    struct sw_plan *own;
    for (int64_t u = 0; u < s->spec.units->count; u++)
        s->streams[u] = s->best->spec.update_on_device[u];
    s->spec.rank = rank;
    SW_TRY(sw_plan_outline(&s->spec, &own));
    sw_plan_destroy(s->best);
    s->best = own;
    return SW_OK;
}

sw_status sw_plan_outline_by_price(const struct sw_plan_spec *spec, const struct sw_rates *rates,
                                   struct sw_update_prices *out_prices, struct sw_plan **out) {
    struct search s = {.spec = *spec, .rates = rates};
    /* All ranks price the plan of the same one, so that they choose alike. */
    s.spec.rank = 0;
    *out_prices = (struct sw_update_prices){0};
    s.streams = calloc((size_t)spec->units->count, sizeof *s.streams);
    if (s.streams == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to price a plan");
    s.spec.update_on_device = s.streams;
    sw_status status = search(&s, out_prices);
    if (status == SW_OK && spec->rank > 0)
        status = take_own(&s, spec->rank);
    free(s.streams);
    if (status != SW_OK) {
        sw_plan_destroy(s.best);
        return status;
    }
    *out = s.best;
    return SW_OK;
}
