/* Searches within each group size that may win, and between them. */
#include "core/size.h"
#include "offload/plan/plan_private.h"
#include "offload/simulate/outline_price.h"
#include "offload/simulate/search_private.h"

#include <math.h>
#include <stdlib.h>

/* A group that is slower than the best by more than this share is not searched. */
#define MOST_MADE_UP 0.08

/* The most times that updates and placement are searched by turns. */
enum { MOST_TURNS = 3 };

/* A group's cheapest plan. */
struct found {
    struct sw_plan *plan;
    double step_s;
    struct sw_update_prices update;
    struct sw_placement_price placement;
};

/* Takes the cheaper side for all updates, unless a mixture saves something. */
static sw_status settle_updates(struct sw_search *s, const struct sw_update_prices *prices) {
    const bool device = prices->device_s < (1.0 - SW_SEARCH_LEAST_SAVED) * prices->host_s;
    if (!(s->best_s > (1.0 - SW_SEARCH_LEAST_SAVED) * (device ? prices->device_s : prices->host_s)))
        return SW_OK;
    sw_search_stream_all(s, device);
    return sw_search_take(s, &s->next);
}

static sw_status place_updates(struct sw_search *s, struct found *out) {
    sw_search_stream_all(s, true);
    SW_TRY(sw_search_try(s, true, &out->update.device_s));
    SW_TRY(sw_search_updates(s));
    out->update.known = true;
    return settle_updates(s, &out->update);
}

/* The candidates from which climbs begin, beside the usual one: bits of the rises that hold back
 * all their units, or, where they usually do, hold back none. */
enum { AS_THE_BEST, ALL_ON_HOST, ALL_ON_DEVICE, SIDES };
#define TURN(rise) (1 << (rise))
static const int starts[] = {
    0,
    TURN(SW_RISE_WEIGHTS_TO_HOST) | TURN(SW_RISE_ACTS_TO_HOST) | TURN(SW_RISE_GRADS_TO_HOST),
    TURN(SW_RISE_OPTIMIZER_TO_DEVICE) | TURN(SW_RISE_GRADS_TO_DEVICE),
    TURN(SW_RISE_OPTIMIZER_TO_DEVICE) | TURN(SW_RISE_GRADS_TO_DEVICE) | TURN(SW_RISE_OPTIMIZER_ALONE) |
        TURN(SW_RISE_GRADS_FROM_NVME),
    TURN(SW_RISE_WEIGHTS_TO_DEVICE),
    TURN(SW_RISE_WEIGHTS_TO_DEVICE) | TURN(SW_RISE_ACCUMULATORS_TO_DEVICE) | TURN(SW_RISE_ACTS_TO_DEVICE),
    TURN(SW_RISE_WEIGHTS_TO_HOST) | TURN(SW_RISE_ACTS_TO_HOST) | TURN(SW_RISE_ACCUMULATORS_TO_DEVICE),
    TURN(SW_RISE_INTERMEDIATES),
};

/* Climbs from the candidate that was taken: placement and updates by turns, until neither gains. */
static sw_status climb(struct sw_search *s, bool updates, struct sw_climb how) {
    double before_s = INFINITY;
    for (int turn = 0; turn < MOST_TURNS && s->best_s < before_s; turn++) {
        before_s = s->best_s;
        SW_TRY(sw_search_placement(s, how));
        if (updates && s->best_s < before_s)
            SW_TRY(sw_search_updates(s));
    }
    return SW_OK;
}

/* The best of several climbs. */
struct summit {
    struct sw_candidate candidate;
    double step_s;
};

static void keep_better(const struct sw_search *s, struct summit *best) {
    if (!(s->best_s < best->step_s * (1.0 - SW_SEARCH_LEAST_SAVED)))
        return;
    best->step_s = s->best_s;
    sw_search_copy(s, &s->best, &best->candidate);
}

static sw_status climb_from(struct sw_search *s, int start, bool updates, struct sw_climb how, struct summit *best) {
    struct sw_candidate from = {.streams = s->next.streams, .rises = sw_rises_usual};
    for (int rise = 0; rise < SW_RISES; rise++)
        if (start & TURN(rise))
            from.rises.share[rise] = 1.0 - from.rises.share[rise];
    SW_TRY(sw_search_take(s, &from));
    if (s->plan == NULL)
        return SW_OK;
    SW_TRY(climb(s, updates, how));
    keep_better(s, best);
    return SW_OK;
}

/* Sets the updates of the candidate that is tried next: those of the best, or all on one side. */
static void set_side(struct sw_search *s, const struct summit *best, int side) {
    sw_search_copy(s, &best->candidate, &s->next);
    for (int64_t u = 0; side != AS_THE_BEST && u < s->spec.units->count; u++)
        s->next.streams[u] = side == ALL_ON_DEVICE;
}

static sw_status climb_all(struct sw_search *s, bool updates, struct summit *best) {
    SW_TRY(climb(s, updates, (struct sw_climb){0}));
    keep_better(s, best);
    for (int side = AS_THE_BEST; side < (updates ? SIDES : ALL_ON_HOST); side++)
        for (size_t i = 0; i < sizeof starts / sizeof starts[0] && s->ops < s->most_ops; i++) {
            set_side(s, best, side);
            SW_TRY(climb_from(s, starts[i], updates, (struct sw_climb){.orders_first = i % 2 == 0}, best));
        }
    SW_TRY(sw_search_take(s, &best->candidate));
    SW_TRY(climb(s, updates, (struct sw_climb){.pairs = true}));
    keep_better(s, best);
    return sw_search_take(s, &best->candidate);
}

/* Searches the placement, and the updates again where it has changed. */
static sw_status place_states(struct sw_search *s, bool updates, struct found *out) {
    struct summit best = {.step_s = s->best_s};
    out->placement = (struct sw_placement_price){.known = true, .usual_s = s->best_s};
    best.candidate.streams = calloc((size_t)s->spec.units->count, sizeof *best.candidate.streams);
    if (best.candidate.streams == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to price a plan");
    sw_search_copy(s, &s->best, &best.candidate);
    const sw_status status = climb_all(s, updates, &best);
    free(best.candidate.streams);
    return status;
}

static sw_status search_all(struct sw_search *s, const struct sw_search_open *open, struct found *out) {
    SW_TRY(sw_search_try(s, true, &out->update.host_s));
    const bool updates = open->updates && sw_plan_has_update_choice(s->plan);
    if (updates)
        SW_TRY(place_updates(s, out));
    if (open->placement)
        SW_TRY(place_states(s, open->updates, out));
    if (!updates)
        out->update = (struct sw_update_prices){0};
    out->step_s = out->placement.chosen_s = s->best_s;
    out->update.chosen_s = updates ? s->best_s : 0.0;
    out->placement.tried = s->tried;
    out->placement.simulated = s->simulated;
    return SW_OK;
}

/* Makes the outline of this rank, as the search was that of rank 0's. */
static sw_status take_own(struct sw_search *s, int rank) {
    struct sw_plan *own;
    sw_search_copy(s, &s->best, &s->next);
    s->spec.rank = rank;
    SW_TRY(sw_plan_outline(&s->spec, &own));
    sw_plan_destroy(s->plan);
    s->plan = own;
    return SW_OK;
}

/* Prices what was found with smaller chunks, too, down to those of the specification. */
static sw_status refine_chunks(struct sw_search *s, int64_t least_grains, struct found *out) {
    int64_t best_grains = s->spec.chunk_grains;
    while (s->spec.chunk_grains > least_grains) {
        const double before_s = s->best_s;
        double step_s;
        s->spec.chunk_grains /= 2;
        sw_search_copy(s, &s->best, &s->next);
        SW_TRY(sw_search_try(s, false, &step_s));
        if (s->best_s < before_s)
            best_grains = s->spec.chunk_grains;
    }
    s->spec.chunk_grains = best_grains;
    out->step_s = out->placement.chosen_s = s->best_s;
    out->update.chosen_s = out->update.known ? s->best_s : 0.0;
    return SW_OK;
}

/* Searches with the largest chunks of which a plan fits, as their plans have the fewest ops, then refines them. */
static sw_status search_chunks(struct sw_search *s, const struct sw_search_open *open, struct found *out) {
    const int64_t given = s->spec.chunk_grains;
    sw_status status = SW_ERR_BUDGET;
    for (int64_t factor = sw_max_i64(1, open->chunk_factor); status == SW_ERR_BUDGET && factor >= 1; factor /= 2) {
        sw_error_clear();
        s->spec.chunk_grains = given * factor;
        if (open->updates)
            sw_search_stream_all(s, false);
        status = search_all(s, open, out);
    }
    return status == SW_OK ? refine_chunks(s, given, out) : status;
}

/* Finds the cheapest plan of one group size. The caller destroys it. */
static sw_status search_group(const struct sw_plan_spec *spec, const struct sw_search_open *open,
                              const struct sw_rates *rates, struct found *out) {
    struct sw_search s;
    *out = (struct found){0};
    sw_status status = sw_search_begin(spec, rates, open->most_ops, &s);
    if (status == SW_OK)
        status = search_chunks(&s, open, out);
    if (status == SW_OK && spec->rank > 0)
        status = take_own(&s, spec->rank);
    if (status == SW_OK) {
        out->plan = s.plan;
        s.plan = NULL;
    }
    sw_search_end(&s);
    return status;
}

/* The cheapest group so far, and those that it is compared with. */
struct choice {
    struct sw_plan_spec spec; /* its group is set to the one that is tried */
    const struct sw_search_open *open;
    const struct sw_rates *rates;
    struct sw_group_price *price; /* `count` entries */
    int count, best;
    double best_s;
    double nearest_s; /* the least step_s of all groups */
    struct found found;
};

/* Returns the busiest time of the other lanes, which moving updates does not shorten. */
static double busiest_other_lane(const struct sw_simulation *step) {
    double most = 0.0;
    for (int lane = 0; lane < SW_LANES; lane++)
        if (lane != SW_LANE_UPDATE)
            most = fmax(most, step->lane_busy_s[lane]);
    return most;
}

/* Tells whether a group can neither be the cheapest as it is nor be worth a search (next_to_search), because one lane
 * alone takes too long, or its plan would have too many ops. */
static sw_status rule_out(const struct choice *c, const struct sw_plan *plan, struct sw_group_price *price, bool *out) {
    const struct sw_step_bound enough = {.step_s = c->nearest_s * (1.0 + MOST_MADE_UP),
                                         .others_s = c->nearest_s * (1.0 - SW_SEARCH_LEAST_SAVED)};
    struct sw_step_bound bound;
    SW_TRY(sw_outline_bound(plan, c->rates, enough, &bound, out));
    price->too_long = !*out && sw_outline_is_too_long(plan, bound.ops);
    if (*out)
        price->bound_s = bound.step_s;
    *out = *out || price->too_long;
    return SW_OK;
}

static sw_status price_outline(const struct choice *c, const struct sw_plan *plan, struct sw_group_price *price) {
    struct sw_outline_price found;
    bool ruled_out;
    if (sw_plan_uses_nvme(plan) && !(c->rates->read.bytes_per_s > 0.0))
        return SW_OK;
    SW_TRY(rule_out(c, plan, price, &ruled_out));
    if (ruled_out)
        return SW_OK;
    SW_TRY(sw_outline_simulate(plan, c->rates, INFINITY, &found));
    price->step_s = found.step.step_s;
    price->least_s = busiest_other_lane(&found.step);
    return SW_OK;
}

/* Prices a group with the usual placement and its updates on the host. */
static sw_status price_group(struct choice *c, int group) {
    struct sw_group_price *price = &c->price[group];
    struct sw_plan_spec spec = c->spec;
    struct sw_plan *plan;
    spec.rank = 0;
    spec.group = price->group;
    if (c->open->updates)
        spec.update_on_device = NULL;
    sw_status status = sw_plan_outline(&spec, &plan);
    if (status == SW_ERR_BUDGET) {
        sw_error_clear();
        return SW_OK;
    }
    SW_TRY(status);
    /* A group that fits is better than none, even if its plan has too many ops. */
    if (c->best < 0)
        c->best = group;
    status = price_outline(c, plan, price);
    if (status == SW_OK && price->step_s < c->nearest_s * (1.0 - SW_SEARCH_LEAST_SAVED)) {
        c->best = group;
        c->nearest_s = price->step_s;
    }
    sw_plan_destroy(plan);
    return status;
}

static sw_status price_groups(struct choice *c) {
    c->nearest_s = INFINITY;
    c->best = c->count > 1 ? -1 : 0;
    for (int i = 0; i < c->count; i++) {
        c->price[i] = (struct sw_group_price){.group = c->open->groups > 0 ? c->open->group[i] : c->spec.group,
                                              .step_s = INFINITY,
                                              .least_s = INFINITY,
                                              .bound_s = INFINITY,
                                              .chosen_s = INFINITY};
        if (c->count > 1)
            SW_TRY(price_group(c, i));
    }
    c->best = c->best < 0 ? 0 : c->best;
    return SW_OK;
}

/* Returns the next group to search: the best one first, then those that may become faster, least lower bound first; -1
 * after the last. */
static int next_to_search(const struct choice *c) {
    int next = -1;
    if (!c->price[c->best].searched)
        return c->best;
    for (int i = 0; i < c->count; i++)
        if (!c->price[i].searched && c->price[i].least_s < c->best_s * (1.0 - SW_SEARCH_LEAST_SAVED) &&
            c->price[i].step_s < c->nearest_s * (1.0 + MOST_MADE_UP) &&
            (next < 0 || c->price[i].least_s < c->price[next].least_s))
            next = i;
    return next;
}

static sw_status search_groups(struct choice *c) {
    c->best_s = INFINITY;
    for (int i = next_to_search(c); i >= 0; i = next_to_search(c)) {
        struct found found;
        c->price[i].searched = true;
        c->spec.group = c->price[i].group;
        SW_TRY(search_group(&c->spec, c->open, c->rates, &found));
        c->price[i].chosen_s = found.step_s;
        if (c->found.plan != NULL && !(found.step_s < c->best_s * (1.0 - SW_SEARCH_LEAST_SAVED))) {
            sw_plan_destroy(found.plan);
            continue;
        }
        sw_plan_destroy(c->found.plan);
        c->found = found;
        c->best = i;
        c->best_s = found.step_s;
    }
    return SW_OK;
}

sw_status sw_plan_search(const struct sw_plan_spec *spec, const struct sw_search_open *open,
                         const struct sw_rates *rates, struct sw_search_prices *out_prices, struct sw_plan **out) {
    *out_prices = (struct sw_search_prices){.orders = open->groups};
    struct choice c = {.spec = *spec,
                       .open = open,
                       .rates = rates,
                       .price = out_prices->order,
                       .count = open->groups > 0 ? open->groups : 1};
    sw_status status = price_groups(&c);
    if (status == SW_OK)
        status = search_groups(&c);
    if (status != SW_OK) {
        sw_plan_destroy(c.found.plan);
        return status;
    }
    out_prices->update = c.found.update;
    out_prices->placement = c.found.placement;
    *out = c.found.plan;
    return SW_OK;
}
