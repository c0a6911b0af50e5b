/* Chooses a placement within the budgets: the lowest that fits, what rises from it, and lengths of rings. */
#include "core/size.h"
#include "offload/plan/placement.h"
#include "offload/plan/plan_private.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const tier_names[SW_TIERS] = {"device", "host", "nvme"};
static const char *const state_names[SW_STATES] = {"weights", "grads", "optimizer", "acts"};

const char *sw_tier_name(sw_tier tier) {
    return tier_names[tier];
}

const char *sw_state_name(sw_state state) {
    return state_names[state];
}

static int find_name(const char *const *names, int count, const char *text, size_t length) {
    for (int i = 0; i < count; i++)
        if (strlen(names[i]) == length && strncmp(names[i], text, length) == 0)
            return i;
    return -1;
}

/* Parses "device" or "host:30%". A share of -1 means that none was given. */
static sw_status parse_part(const char *part, size_t length, int *out_tier, double *out_share) {
    const char *colon = memchr(part, ':', length);
    const size_t name_length = colon == NULL ? length : (size_t)(colon - part);
    *out_tier = find_name(tier_names, SW_TIERS, part, name_length);
    *out_share = -1.0;
    if (*out_tier < 0)
        return sw_fail(SW_ERR_ARG, "'%.*s' in --place is not a tier; tiers: device, host, nvme", (int)name_length,
                       part);
    if (colon == NULL)
        return SW_OK;
    char *end;
    const double percent = strtod(colon + 1, &end);
    if (end != part + length - 1 || *end != '%' || end == colon + 1 || !(percent >= 0.0 && percent <= 100.0))
        return sw_fail(SW_ERR_ARG, "'%.*s' in --place is not TIER:P%% with P from 0 to 100", (int)length, part);
    *out_share = percent / 100.0;
    return SW_OK;
}

/* Parses "nvme" or "device:20%/host:30%/nvme". */
static sw_status parse_shares(const char *value, size_t length, sw_state state, double share[SW_TIERS]) {
    const char *const end = value + length;
    double total = 0.0;
    bool named[SW_TIERS] = {false};
    int previous = -1;
    while (value <= end) {
        const char *slash = memchr(value, '/', (size_t)(end - value));
        const char *stop = slash == NULL ? end : slash;
        int tier;
        double part;
        SW_TRY(parse_part(value, (size_t)(stop - value), &tier, &part));
        if (named[tier] || tier < previous)
            return sw_fail(SW_ERR_ARG,
                           "--place names the tiers of %s twice or out of order; the order is device, host, nvme",
                           state_names[state]);
        if (part < 0.0 && slash != NULL)
            return sw_fail(SW_ERR_ARG, "only the last tier of %s in --place may go without a share",
                           state_names[state]);
        named[tier] = true;
        previous = tier;
        share[tier] = part < 0.0 ? fmax(0.0, 1.0 - total) : part;
        total += share[tier];
        value = stop + 1;
    }
    if (fabs(total - 1.0) > 1e-9)
        return sw_fail(SW_ERR_ARG, "the shares of %s in --place add up to %g%%, not to 100%%", state_names[state],
                       total * 100.0);
    return SW_OK;
}

/* Parses what follows "trained=". */
static sw_status parse_trained(const char *value, size_t length, sw_tier *out) {
    const int tier = find_name(tier_names, SW_TIERS, value, length);
    if (length == 4 && strncmp(value, "auto", 4) == 0)
        return SW_OK;
    if (tier != SW_HOST && tier != SW_NVME)
        return sw_fail(SW_ERR_ARG,
                       "trained=%.*s in --place is not trained=auto, host or nvme: where the trained weights live of "
                       "layers whose frozen ones are on nvme",
                       (int)length, value);
    *out = (sw_tier)tier;
    return SW_OK;
}

static sw_status parse_item(const char *item, size_t length, struct sw_placement_request *out,
                            bool seen[SW_STATES + 1]) {
    static const char trained[] = "trained";
    const char *equals = memchr(item, '=', length);
    const size_t name_length = equals == NULL ? length : (size_t)(equals - item);
    if (equals != NULL && name_length == sizeof trained - 1 && strncmp(item, trained, name_length) == 0) {
        if (seen[SW_STATES])
            return sw_fail(SW_ERR_ARG, "--place names %s twice", trained);
        seen[SW_STATES] = true;
        return parse_trained(equals + 1, length - name_length - 1, &out->trained);
    }
    const int state = find_name(state_names, SW_STATES, item, name_length);
    if (equals == NULL || state < 0)
        return sw_fail(SW_ERR_ARG,
                       "'%.*s' in --place is not STATE=TIER; states: weights, grads, optimizer, acts, trained",
                       (int)length, item);
    if (seen[state])
        return sw_fail(SW_ERR_ARG, "--place names %s twice", state_names[state]);
    seen[state] = true;
    const char *value = equals + 1;
    const size_t value_length = length - name_length - 1;
    if (value_length == 4 && strncmp(value, "auto", 4) == 0)
        return SW_OK;
    out->automatic[state] = false;
    return parse_shares(value, value_length, (sw_state)state, out->share[state]);
}

sw_status sw_placement_parse(const char *text, struct sw_placement_request *out) {
    bool seen[SW_STATES + 1] = {false};
    *out = (struct sw_placement_request){0};
    for (int s = 0; s < SW_STATES; s++)
        out->automatic[s] = true;
    if (strcmp(text, "auto") == 0)
        return SW_OK;
    const char *item = text;
    for (;;) {
        const size_t length = strcspn(item, ",");
        SW_TRY(parse_item(item, length, out, seen));
        if (item[length] == '\0')
            return SW_OK;
        item += length + 1;
    }
}

sw_tier sw_placement_of(const double share[SW_TIERS], int64_t before_bytes, int64_t bytes, int64_t total_bytes) {
    const double middle = ((double)before_bytes + 0.5 * (double)bytes) / (double)total_bytes;
    double end = 0.0;
    for (int tier = SW_DEVICE; tier < SW_NVME; tier++) {
        end += share[tier];
        if (middle < end)
            return (sw_tier)tier;
    }
    /* Rounding may leave the middle of the last unit just beyond shares that add up to one. */
    if (share[SW_NVME] > 0.0)
        return SW_NVME;
    return share[SW_HOST] > 0.0 ? SW_HOST : SW_DEVICE;
}

/* Chooses the intermediates that are kept for the backward pass: first those that take the longest to be computed again
 * for their bytes. */

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
    for (int64_t u = sw_max_i64(1, plan->first_trained); u + 1 < plan->spec.units->count; u++)
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

/* Lowers what units compute again, from everything to as little as fits; of all changes this share at most. */
static sw_status plan_keep_intermediates(struct sw_plan *plan, double share) {
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
    void (*raise)(struct sw_plan *plan, sw_state state, int64_t unit, sw_tier tier); /* NULL: intermediates */
    sw_state state;
    sw_tier tier;
};
static const struct rise rises[SW_RISES] = {
    [SW_RISE_WEIGHTS_TO_DEVICE] = {raise_state, SW_WEIGHTS, SW_DEVICE},
    [SW_RISE_ACCUMULATORS_TO_DEVICE] = {raise_accumulator, SW_GRADS, SW_DEVICE},
    [SW_RISE_ACTS_TO_DEVICE] = {raise_state, SW_ACTS, SW_DEVICE},
    [SW_RISE_WEIGHTS_TO_HOST] = {raise_state, SW_WEIGHTS, SW_HOST},
    [SW_RISE_ACTS_TO_HOST] = {raise_state, SW_ACTS, SW_HOST},
    [SW_RISE_OPTIMIZER_TO_HOST] = {raise_state, SW_OPTIMIZER, SW_HOST},
    [SW_RISE_GRADS_TO_HOST] = {raise_state, SW_GRADS, SW_HOST},
    [SW_RISE_GRADS_FROM_NVME] = {raise_from_nvme, SW_GRADS, SW_DEVICE},
    [SW_RISE_INTERMEDIATES] = {NULL, SW_ACTS, SW_DEVICE},
    [SW_RISE_OPTIMIZER_TO_DEVICE] = {raise_with_grads, SW_OPTIMIZER, SW_DEVICE},
    [SW_RISE_GRADS_TO_DEVICE] = {raise_where_updated_there, SW_GRADS, SW_DEVICE},
    [SW_RISE_OPTIMIZER_ALONE] = {raise_state, SW_OPTIMIZER, SW_DEVICE},
};

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
        return plan->spec.recompute_auto ? plan_keep_intermediates(plan, share) : SW_OK;
    r.left = units_left(plan, which, share);
    r.before = malloc(count * sizeof *r.before);
    r.run = malloc(count * sizeof *r.run);
    const sw_status status =
        r.before != NULL && r.run != NULL ? raise_runs(&r) : sw_fail(SW_ERR_NOMEM, "no memory for a plan");
    free(r.before);
    free(r.run);
    return status;
}

/* Tells whether an order holds nothing back. */
static bool plan_all_may_rise(const struct sw_rise_order *order) {
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

/* Raises, in an order, what the request leaves open, as far as the budgets have room (place.c). */
static sw_status plan_raise(struct sw_plan *plan, const struct sw_rise_order *order) {
    for (int i = 0; i < SW_RISES; i++)
        SW_TRY(raise_one(plan, order->rise[i], order->share[order->rise[i]]));
    SW_TRY(raise_one(plan, SW_RISE_OPTIMIZER_TO_HOST, order->share[SW_RISE_OPTIMIZER_TO_HOST]));
    return raise_one(plan, SW_RISE_GRADS_TO_HOST, order->share[SW_RISE_GRADS_TO_HOST]);
}

enum { NEED_CHARS = 3 * SW_SIZE_CHARS, ITEMS_CHARS = 256, MOST_NAMES = 64, SHOWN_ITEMS = 3 };

/* Returns the size of a unit's state by which shares are counted; 0: the unit has no such state. Grains are of one
 * size, but where some are quantized. */
static int64_t state_bytes(const struct sw_plan *plan, sw_state state, int64_t unit) {
    if (state == SW_ACTS)
        return sw_plan_keeps_input(plan, unit) ? sw_plan_input_bytes(plan, unit) : 0;
    if (state == SW_WEIGHTS && plan->spec.units->base != SW_BASE_TYPED)
        return sw_plan_typed_bytes(plan, sw_plan_typed(plan, unit).grains) +
               sw_plan_base_cells(plan, unit) * SW_BASE_CELL_BYTES;
    return state == SW_WEIGHTS ? sw_plan_typed(plan, unit).grains : sw_plan_trained_grains(plan, unit);
}

/* A unit's state among that of all units, by the sizes of state_bytes. */
struct portion {
    int64_t before_bytes, bytes, total_bytes;
};

/* Returns the tier of a state as the request says, or, where that leaves the choice, `automatic`. State that the plan
 * does not keep counts as on the device, so that nothing moves it: gradients and optimizer state of a frozen unit, and
 * all but the optimizer state where the caller has the rest. That one is never on the device, which has no budget
 * then. So does all state of units that other stages have. */
static sw_tier requested_tier(const struct sw_plan *plan, sw_state state, int64_t unit, const struct portion *portion,
                              sw_tier automatic) {
    const struct sw_placement_request *request = &plan->spec.place;
    const bool is_kept = sw_plan_holds(plan, unit) && (!plan->spec.update_only || state == SW_OPTIMIZER);
    if (!is_kept || (portion->bytes == 0 && (state == SW_GRADS || state == SW_OPTIMIZER)))
        return SW_DEVICE;
    if (request->automatic[state])
        return plan->spec.update_only && automatic == SW_DEVICE ? SW_HOST : automatic;
    return portion->total_bytes == 0
               ? SW_DEVICE
               : sw_placement_of(request->share[state], portion->before_bytes, portion->bytes, portion->total_bytes);
}

/* Places a state as the request says, or, where that leaves the choice, all on one tier. */
static void place_state(struct sw_plan *plan, sw_state state, sw_tier automatic) {
    struct portion portion = {0};
    for (int64_t u = 0; u < plan->spec.units->count; u++)
        portion.total_bytes += state_bytes(plan, state, u);
    for (int64_t u = 0; u < plan->spec.units->count; u++) {
        portion.bytes = state_bytes(plan, state, u);
        const sw_tier tier = requested_tier(plan, state, u, &portion, automatic);
        plan->placement[u].tier[state] = tier;
        if (state == SW_GRADS)
            plan->placement[u].accumulator = tier;
        portion.before_bytes += portion.bytes;
    }
}

/* Puts the states that the request leaves open on these tiers, each whole. */
static sw_status try_uniform(struct sw_plan *plan, const sw_tier automatic[SW_STATES], sw_recompute recompute,
                             bool *out_fits) {
    for (int state = 0; state < SW_STATES; state++)
        place_state(plan, (sw_state)state, automatic[state]);
    for (int64_t u = 1; u + 1 < plan->spec.units->count; u++)
        plan->recompute[u] =
            sw_plan_passes_back(plan, u) && sw_plan_computes(plan, u) ? recompute : SW_RECOMPUTE_NOTHING;
    SW_TRY(sw_plan_measure(plan));
    *out_fits = sw_plan_fits(plan);
    return SW_OK;
}

/* Returns the unit, KiB or MiB, in which a size is named and rounded up, so that what the message asks for is enough.
 */
static int64_t unit_of_size(int64_t bytes) {
    return bytes < 64 * SW_MIB ? SW_KIB : SW_MIB;
}

/* The needs of a placement for which at least one budget is too small. */
struct need {
    int64_t bytes[SW_NVME]; /* device and host */
    int64_t missing_bytes[SW_NVME];
    int short_budgets; /* 0: none known yet */
};

/* Keeps the lesser of two needs: the one that asks for a change of fewer budgets, then for fewer bytes. Returns whether
 * that is this plan's need. */
static bool keep_lesser(struct need *least, const struct sw_plan *plan) {
    struct need need = {0};
    for (int tier = SW_DEVICE; tier < SW_NVME; tier++) {
        const int64_t bytes = plan->tier_bytes[tier], budget = plan->spec.budget_bytes[tier];
        need.bytes[tier] = sw_round_up(bytes, unit_of_size(bytes));
        need.missing_bytes[tier] = bytes <= budget ? 0 : need.bytes[tier] - budget;
        need.short_budgets += need.missing_bytes[tier] > 0;
    }
    const int64_t missing = need.missing_bytes[SW_DEVICE] + need.missing_bytes[SW_HOST];
    const int64_t least_missing = least->missing_bytes[SW_DEVICE] + least->missing_bytes[SW_HOST];
    if (least->short_budgets != 0 && need.short_budgets >= least->short_budgets &&
        (need.short_budgets > least->short_budgets || missing >= least_missing))
        return false;
    *least = need;
    return true;
}

/* Writes "--host-memory 96MiB (the budget is 64 MiB)", or nothing for a budget that suffices. */
static void describe_need(const struct sw_plan *plan, const struct need *need, sw_tier tier, char text[NEED_CHARS]) {
    static const char *const flags[SW_NVME] = {"--device-memory", "--host-memory"};
    const int64_t bytes = need->bytes[tier], unit = unit_of_size(bytes);
    char budget[SW_SIZE_CHARS];
    text[0] = '\0';
    if (need->missing_bytes[tier] > 0)
        snprintf(text, NEED_CHARS, "%s %lld%s (the budget is %s)", flags[tier], (long long)(bytes / unit),
                 unit == SW_KIB ? "KiB" : "MiB", sw_format_size(plan->spec.budget_bytes[tier], budget));
}

struct item {
    const char *name;
    int64_t bytes;
};

static int by_bytes(const void *a, const void *b) {
    const struct item *left = a, *right = b;
    return left->bytes < right->bytes ? 1 : -(left->bytes > right->bytes);
}

/* Writes what takes the most of a tier, slots of one name together: ", most of it for work 320.00 MiB, weights 96.00
 * MiB". */
static void describe_largest(const struct sw_plan *plan, sw_tier tier, char text[ITEMS_CHARS]) {
    struct item items[MOST_NAMES] = {{0}};
    int count = 0, chars = 0;
    for (int32_t i = 0; i < plan->slot_count; i++) {
        int at = 0;
        while (at < count && strcmp(items[at].name, plan->slot[i].name) != 0)
            at++;
        if (plan->slot[i].tier != tier || at == MOST_NAMES)
            continue;
        count = at == count ? count + 1 : count;
        items[at].name = plan->slot[i].name;
        items[at].bytes += sw_slot_bytes(&plan->slot[i]);
    }
    qsort(items, (size_t)count, sizeof items[0], by_bytes);
    text[0] = '\0';
    for (int i = 0; i < count && i < SHOWN_ITEMS && chars < ITEMS_CHARS; i++) {
        char size[SW_SIZE_CHARS];
        chars += snprintf(text + chars, (size_t)(ITEMS_CHARS - chars), "%s%s %s", i == 0 ? ", most of it for " : ", ",
                          items[i].name, sw_format_size(items[i].bytes, size));
    }
}

/* Returns the refusal of a plan that is laid out in the way that needs the least. */
static sw_status refuse_budget(const struct sw_plan *plan, const struct need *need) {
    if (plan->spec.lack != NULL)
        *plan->spec.lack = (struct sw_plan_lack){
            .short_budgets = need->short_budgets,
            .missing_bytes = need->missing_bytes[SW_DEVICE] + need->missing_bytes[SW_HOST],
        };
    char device[NEED_CHARS], host[NEED_CHARS], largest[ITEMS_CHARS];
    describe_need(plan, need, SW_DEVICE, device);
    describe_need(plan, need, SW_HOST, host);
    describe_largest(plan, need->missing_bytes[SW_DEVICE] > 0 ? SW_DEVICE : SW_HOST, largest);
    return sw_fail(SW_ERR_BUDGET, "the model does not fit: this placement needs at least %s%s%s%s", device,
                   need->short_budgets == SW_NVME ? " and " : "", host, largest);
}

/* Tries one of the ways to put each open state on one of so many tiers. */
static sw_status try_way(struct sw_plan *plan, int way, int tiers, sw_recompute recompute, bool *out_fit) {
    const sw_tier automatic[SW_STATES] = {
        [SW_WEIGHTS] = (sw_tier)(way / (tiers * tiers * tiers)),
        [SW_ACTS] = (sw_tier)(way / (tiers * tiers) % tiers),
        [SW_GRADS] = (sw_tier)(way / tiers % tiers),
        [SW_OPTIMIZER] = (sw_tier)(way % tiers),
    };
    return try_uniform(plan, automatic, recompute, out_fit);
}

/* Tries every way to put each open state on one tier, from the slowest to the fastest. Near the least budgets these
 * differ by more than what they hold: a ring may be larger than a small unit, and a state that is all on the device
 * needs none. Leaves the first that fits in the plan; where none does, names the least that would. */
static sw_status search_uniform(struct sw_plan *plan, sw_recompute recompute, sw_tier lowest) {
    struct need least = {0};
    const int tiers = (int)lowest + 1;
    int least_way = 0;
    bool fit;
    for (int way = tiers * tiers * tiers * tiers - 1; way >= 0; way--) {
        SW_TRY(try_way(plan, way, tiers, recompute, &fit));
        if (fit)
            return SW_OK;
        if (keep_lesser(&least, plan))
            least_way = way;
    }
    SW_TRY(try_way(plan, least_way, tiers, recompute, &fit));
    SW_TRY(sw_plan_layout(plan));
    return refuse_budget(plan, &least);
}

/* Returns the most useful length of host rings. The forward pass waits for the updates of the first two trained units,
 * whose gradients came last: with rings as long as these units, their optimizer state is read under the backward pass,
 * and written when the forward pass has begun. */
static int64_t most_ring_chunks(const struct sw_plan *plan) {
    const int64_t from = sw_max_i64(plan->first_trained, sw_plan_first_unit(plan, 0));
    const int64_t first = sw_max_i64(0, sw_min_i64(from, plan->spec.units->count - 2));
    int64_t second = sw_min_i64(first + 1, plan->spec.units->count - 1), all = 0;
    while (second + 1 < plan->spec.units->count && !sw_plan_trains(plan, second))
        second++;
    const int64_t awaited = sw_plan_buckets(plan, first) + sw_plan_buckets(plan, second);
    for (int64_t u = 0; u < plan->spec.units->count; u++)
        all += sw_plan_buckets(plan, u);
    const int64_t useful = sw_max_i64(SW_RING_CHUNKS_USEFUL, awaited + SW_RING_CHUNKS_BEHIND);
    return sw_min_i64(all, sw_min_i64(SW_RING_CHUNKS_MOST, useful));
}

/* Returns the most chunks that stream through the device between two micro-batches: with room for these, the link need
 * not wait for the arithmetic. */
static int64_t most_stream_chunks(const struct sw_plan *plan) {
    int64_t most = 0;
    for (int64_t u = 0; u < plan->spec.units->count; u++)
        if (plan->spec.train && sw_plan_streams_optimizer(plan, u))
            most = sw_max_i64(most,
                              sw_div_up(sw_plan_trained_chunks(plan, u), sw_plan_group(plan)) + SW_DEVICE_RING_CHUNKS);
    return sw_min_i64(SW_RING_CHUNKS_MOST, most);
}

/* Doubles the chunks of rings while the budgets have room. */
static sw_status grow_rings(struct sw_plan *plan, int64_t *chunks, int64_t most) {
    while (plan->spec.ring_auto && *chunks < most) {
        const int64_t before = *chunks;
        *chunks = sw_min_i64(2 * before, most);
        SW_TRY(sw_plan_measure(plan));
        if (sw_plan_fits(plan))
            continue;
        *chunks = before;
        break;
    }
    return SW_OK;
}

/* Puts everything on the device if it fits, else everything as low as it may go, and then raises what fits. */
static sw_status place_states(struct sw_plan *plan) {
    const bool choose = plan->spec.recompute_auto;
    const sw_recompute least = choose ? SW_RECOMPUTE_NOTHING : plan->spec.recompute;
    const sw_recompute most = choose ? SW_RECOMPUTE_UNIT : plan->spec.recompute;
    const sw_tier lowest = plan->spec.train || plan->spec.scratch_store ? SW_NVME : SW_HOST;
    const sw_tier highest_all[SW_STATES] = {SW_DEVICE, SW_DEVICE, SW_DEVICE, SW_DEVICE};
    const sw_tier lowest_all[SW_STATES] = {lowest, lowest, lowest, lowest};
    bool fit;
    SW_TRY(try_uniform(plan, highest_all, least, &fit));
    if (fit && plan_all_may_rise(plan->spec.rises))
        return SW_OK;
    SW_TRY(try_uniform(plan, lowest_all, most, &fit));
    if (!fit)
        SW_TRY(search_uniform(plan, most, lowest));
    return plan_raise(plan, plan->spec.rises != NULL ? plan->spec.rises : &sw_rises_usual);
}

/* Secondary shards are on the device, or on the host where nothing fits with them there. */
static sw_status place_with_secondary(struct sw_plan *plan) {
    plan->secondary_tier = SW_DEVICE;
    const sw_status status = place_states(plan);
    if (status != SW_ERR_BUDGET || plan->spec.secondary_ranks < 2)
        return status;
    sw_error_clear();
    plan->secondary_tier = SW_HOST;
    return place_states(plan);
}

/* Trained weights that may live on the host do, if anything fits so: they are few, and each byte of them saves the
 * drive a write and two reads in each step, which no other state does. */
static sw_status place_with_trained(struct sw_plan *plan) {
    const sw_tier wanted = plan->spec.place.trained;
    plan->trained_tier = wanted == SW_NVME ? SW_NVME : SW_HOST;
    const sw_status status = place_with_secondary(plan);
    bool apart = false;
    for (int64_t u = 0; u < plan->spec.units->count; u++)
        apart |= sw_plan_trains(plan, u) && sw_plan_trained(plan, u).first_grain > 0;
    if (status != SW_ERR_BUDGET || wanted != SW_DEVICE || !apart)
        return status;
    sw_error_clear();
    plan->trained_tier = SW_NVME;
    return place_with_secondary(plan);
}

sw_status sw_plan_place(struct sw_plan *plan) {
    SW_TRY(place_with_trained(plan));
    /* The rest of the host's budget goes to its rings: the drive can then work ahead of the arithmetic. */
    SW_TRY(grow_rings(plan, &plan->spec.ring_chunks, most_ring_chunks(plan)));
    SW_TRY(grow_rings(plan, &plan->stream_chunks, most_stream_chunks(plan)));
    return sw_plan_layout(plan);
}
