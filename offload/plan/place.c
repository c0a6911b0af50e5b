/* Chooses a placement within the budgets: the lowest that fits, what rises from it, and lengths of rings. */
#include "core/size.h"
#include "offload/plan/plan_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NEED_CHARS = 3 * SW_SIZE_CHARS, ITEMS_CHARS = 256, MOST_NAMES = 64, SHOWN_ITEMS = 3 };

/* Returns the size of a unit's state by which shares are counted; 0: the unit has no such state. */
static int64_t state_bytes(const struct sw_plan *plan, sw_state state, int64_t unit) {
    if (state == SW_ACTS)
        return sw_plan_keeps_input(plan, unit) ? sw_plan_input_bytes(plan, unit) : 0;
    return state == SW_WEIGHTS ? plan->spec.units->unit[unit].grains : sw_plan_trained_grains(plan, unit);
}

/* A unit's state among that of all units, by the sizes of state_bytes. */
struct portion {
    int64_t before_bytes, bytes, total_bytes;
};

/* Returns the tier of a state as the request says, or, where that leaves the choice, `automatic`. Gradients and
 * optimizer state that a frozen unit does not have count as on the device, so that nothing moves them. */
static sw_tier requested_tier(const struct sw_plan *plan, sw_state state, const struct portion *portion,
                              sw_tier automatic) {
    const struct sw_placement_request *request = &plan->spec.place;
    if (portion->bytes == 0 && (state == SW_GRADS || state == SW_OPTIMIZER))
        return SW_DEVICE;
    if (request->automatic[state])
        return automatic;
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
        const sw_tier tier = requested_tier(plan, state, &portion, automatic);
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
        plan->recompute[u] = sw_plan_trains(plan, u) ? recompute : SW_RECOMPUTE_NOTHING;
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
        items[at].bytes += plan->slot[i].bytes;
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
    const int64_t first = sw_min_i64(plan->spec.frozen_units, plan->spec.units->count - 2);
    const int64_t awaited = sw_plan_buckets(plan, first) + sw_plan_buckets(plan, first + 1);
    int64_t all = 0;
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
            most = sw_max_i64(most, sw_div_up(sw_plan_chunks(plan, u), sw_plan_group(plan)) + SW_DEVICE_RING_CHUNKS);
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
    if (fit && sw_plan_all_may_rise(plan->spec.rises))
        return SW_OK;
    SW_TRY(try_uniform(plan, lowest_all, most, &fit));
    if (!fit)
        SW_TRY(search_uniform(plan, most, lowest));
    return sw_plan_raise(plan, plan->spec.rises != NULL ? plan->spec.rises : &sw_rises_usual);
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

sw_status sw_plan_place(struct sw_plan *plan) {
    SW_TRY(place_with_secondary(plan));
    /* The rest of the host's budget goes to its rings: the drive can then work ahead of the arithmetic. */
    SW_TRY(grow_rings(plan, &plan->spec.ring_chunks, most_ring_chunks(plan)));
    SW_TRY(grow_rings(plan, &plan->stream_chunks, most_stream_chunks(plan)));
    return sw_plan_layout(plan);
}
