#include "offload/simulate/search.h"

#include "core/size.h"
#include "offload/plan/plan_private.h"
#include "offload/simulate/outline_price.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* The share of a step that a change must save to be worth it: rates are not known more precisely. */
#define SW_SEARCH_LEAST_SAVED 0.005

/* About how many ops of plans one round of placing updates may simulate. */
enum { SW_SEARCH_MOST_UPDATE_OPS = 1500000 };

/* A candidate: every choice of a plan that the specification leaves open. */
struct sw_candidate {
    bool *streams; /* one entry per unit: its update runs on the device */
    struct sw_rise_order rises;
};

/* Prices of plans that were tried, by a hash of the plan, so that none is simulated twice. */
struct sw_seen {
    uint64_t hash; /* 0: a free entry */
    double step_s; /* a lower bound if it is not exact */
    bool exact;
};

/* Outlines of candidates that were tried, by a hash of the candidate and of the chunk size, so that none is made twice:
 * about half of all candidates come again, from other climbs. */
struct outlined {
    uint64_t candidate; /* 0: a free entry */
    uint64_t plan;      /* hash of the outline; 0: it does not fit or wastes memory (wastes_memory) */
};

/* The search within one group size, that of the specification. */
struct sw_search {
    struct sw_plan_spec spec; /* its update_on_device and rises are those of `next` */
    const struct sw_rates *rates;
    struct sw_price_memory *memory;
    struct sw_candidate next; /* the candidate to try next */
    struct sw_candidate best; /* the candidate of `plan` */
    struct sw_plan *plan;     /* the cheapest so far of this climb; NULL: none yet */
    double best_s;
    struct sw_seen *seen;
    struct outlined *outlined;
    int64_t outlines; /* entries of `outlined` that are taken */
    int64_t tried, simulated, ops;
    int64_t usual_nvme_bytes; /* bytes on NVMe of the first plan tried; -1: none was tried yet */
    int64_t most_ops;         /* the search ends when it has simulated so many */
};

/* Searches the order and the extent of rises, from the best so far, until no change gains. */
struct sw_climb {
    bool orders_first; /* changes of the order come before those of shares, which leads to other summits */
    bool pairs;        /* also by changes of two things at a time */
};

/* The ops that take as long to simulate as an outline takes to be made, and as each unit's part of it. */
enum { OUTLINE_OPS = 8000, OUTLINE_UNIT_OPS = 40 };
/* Prices that are remembered: more plans than a search tries. */
enum { SEEN_CAPACITY = 8192, SEEN_MOST = SEEN_CAPACITY / 2 };
/* Candidates that are remembered. */
enum { OUTLINED_CAPACITY = 16384, OUTLINED_MOST = OUTLINED_CAPACITY / 2 };

bool sw_plan_has_update_choice(const struct sw_plan *plan) {
    bool any = false;
    for (int64_t u = 0; u < plan->spec.units->count; u++)
        any |= plan->spec.train && plan->placement[u].tier[SW_OPTIMIZER] != SW_DEVICE &&
               !sw_plan_updates_muon_on_gpu(plan, u);
    return any;
}

bool sw_plan_has_placement_choice(const struct sw_plan *plan) {
    bool any = false;
    for (int64_t u = 0; u < plan->spec.units->count; u++) {
        for (int state = 0; state < SW_STATES; state++)
            any |= plan->spec.place.automatic[state] && plan->placement[u].tier[state] != SW_DEVICE;
        any |= plan->spec.recompute_auto && plan->recompute[u] != SW_RECOMPUTE_NOTHING;
    }
    return plan->spec.train && any;
}

static sw_status begin_candidate(int64_t units, struct sw_candidate *out) {
    out->streams = calloc((size_t)units, sizeof *out->streams);
    out->rises = sw_rises_usual;
    return out->streams != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory to price a plan");
}

/* Copies a candidate's arrays. */
static void search_copy(const struct sw_search *s, const struct sw_candidate *from, struct sw_candidate *to) {
    if (to->streams != from->streams)
        memcpy(to->streams, from->streams, (size_t)s->spec.units->count * sizeof *to->streams);
    to->rises = from->rises;
}

static sw_status search_begin(const struct sw_plan_spec *spec, const struct sw_rates *rates,
                              const struct sw_search_open *open, struct sw_search *s) {
    *s = (struct sw_search){.spec = *spec,
                            .rates = rates,
                            .memory = open->memory,
                            .best_s = INFINITY,
                            .usual_nvme_bytes = -1,
                            .most_ops = open->most_ops};
    SW_TRY(begin_candidate(spec->units->count, &s->next));
    SW_TRY(begin_candidate(spec->units->count, &s->best));
    s->seen = calloc(SEEN_CAPACITY, sizeof *s->seen);
    s->outlined = calloc(OUTLINED_CAPACITY, sizeof *s->outlined);
    if (s->seen == NULL || s->outlined == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to price a plan");
    if (spec->update_on_device != NULL)
        memcpy(s->next.streams, spec->update_on_device, (size_t)spec->units->count * sizeof *s->next.streams);
    /* All ranks price the plan of the same one, so that they choose alike. */
    s->spec.rank = s->spec.experts.rank = 0;
    s->spec.update_on_device = s->next.streams;
    s->spec.rises = &s->next.rises;
    return sw_layout_peaks_create(&s->spec.peaks);
}

static void search_end(struct sw_search *s) {
    sw_plan_destroy(s->plan);
    free(s->next.streams);
    free(s->best.streams);
    free(s->seen);
    free(s->outlined);
    sw_layout_peaks_destroy(s->spec.peaks);
}

/* Returns the entry of a plan, which is free if the plan was not tried yet; NULL where no more are remembered. */
static struct sw_seen *entry_of(struct sw_search *s, uint64_t hash) {
    int64_t at = (int64_t)(hash % SEEN_CAPACITY);
    while (s->seen[at].hash != 0 && s->seen[at].hash != hash)
        at = (at + 1) % SEEN_CAPACITY;
    return s->seen[at].hash == hash || s->tried < SEEN_MOST ? &s->seen[at] : NULL;
}

/* Prices a plan exactly, unless it cannot be the cheapest and is not priced `always`. */
static sw_status price(struct sw_search *s, const struct sw_plan *plan, bool always, struct sw_seen *out) {
    struct sw_outline_price found;
    out->step_s = INFINITY;
    if (sw_plan_uses_nvme(plan) && !(s->rates->read.bytes_per_s > 0.0))
        return SW_OK;
    SW_TRY(sw_outline_simulate(plan, s->rates, always ? INFINITY : s->best_s, s->memory, &found));
    s->ops += OUTLINE_OPS + s->spec.units->count * OUTLINE_UNIT_OPS + found.ops;
    s->simulated += found.simulated;
    out->exact = found.simulated;
    out->step_s = found.simulated ? found.step.step_s : found.least_s;
    return SW_OK;
}

/* Prices a plan of this hash, or finds its price if it was tried before. */
static sw_status find_price(struct sw_search *s, const struct sw_plan *plan, uint64_t hash, bool always,
                            double *out_s) {
    struct sw_seen *entry = entry_of(s, hash), none;
    if (entry == NULL)
        none = (struct sw_seen){0}, entry = &none;
    if (entry->hash == 0)
        *entry = (struct sw_seen){.hash = hash};
    const bool known = entry->step_s > 0.0;
    s->tried += !known;
    if (!known || (!entry->exact && (always || entry->step_s < s->best_s)))
        SW_TRY(price(s, plan, always, entry));
    *out_s = entry->exact ? entry->step_s : INFINITY;
    return SW_OK;
}

static void keep(struct sw_search *s, struct sw_plan *plan, double step_s) {
    sw_plan_destroy(s->plan);
    s->plan = plan;
    s->best_s = step_s;
    search_copy(s, &s->next, &s->best);
}

/* Tells whether a plan leaves more on the drive than the usual one though the host has room for it: a drive wears, and
 * a little time that a simulation sees in it is not worth that. */
static bool wastes_memory(struct sw_search *s, const struct sw_plan *plan) {
    const int64_t bytes = plan->tier_bytes[SW_NVME];
    if (s->usual_nvme_bytes < 0)
        s->usual_nvme_bytes = bytes;
    const int64_t more = bytes - s->usual_nvme_bytes;
    return more > 0 && plan->tier_bytes[SW_HOST] + more <= plan->spec.budget_bytes[SW_HOST];
}

/* Returns a hash of `next` and of the chunk size; never 0. */
static uint64_t hash_next(const struct sw_search *s) {
    const size_t streams = (size_t)s->spec.units->count * sizeof *s->next.streams;
    const uint64_t seed = XXH3_64bits_withSeed(&s->next.rises, sizeof s->next.rises, (uint64_t)s->spec.chunk_grains);
    return XXH3_64bits_withSeed(s->next.streams, streams, seed) | 1;
}

/* Returns the entry of a candidate, which is free if it was not outlined yet. */
static struct outlined *outline_of(const struct sw_search *s, uint64_t candidate) {
    struct outlined *at = &s->outlined[candidate % OUTLINED_CAPACITY];
    while (at->candidate != 0 && at->candidate != candidate)
        at = at == &s->outlined[OUTLINED_CAPACITY - 1] ? s->outlined : at + 1;
    return at;
}

/* Remembers the outline of a candidate. plan: as in struct outlined. */
static void remember_outline(struct sw_search *s, uint64_t candidate, uint64_t plan) {
    struct outlined *at = outline_of(s, candidate);
    if (at->candidate == 0 && s->outlines < OUTLINED_MOST) {
        *at = (struct outlined){.candidate = candidate, .plan = plan};
        s->outlines++;
    }
}

/* Tells whether `next` was tried before and what is remembered of it shows that it is not the cheapest; *out_s is then
 * that which search_try returns. */
static bool is_known_to_lose(struct sw_search *s, uint64_t candidate, bool always, double *out_s) {
    const struct outlined *outlined = outline_of(s, candidate);
    if (outlined->candidate == 0 || s->plan == NULL)
        return false;
    if (outlined->plan == 0)
        return true;
    const struct sw_seen *seen = entry_of(s, outlined->plan);
    if (seen == NULL || seen->hash == 0 || !(seen->step_s >= s->best_s) || (always && !seen->exact))
        return false;
    *out_s = seen->exact ? seen->step_s : INFINITY;
    return true;
}

/* Outlines and prices `next` and keeps it if it is the cheapest. *out_s is infinite if it does not fit, or, unless it
 * is to be priced `always`, if it cannot be the cheapest. */
static sw_status search_try(struct sw_search *s, bool always, double *out_s) {
    struct sw_plan *plan;
    const uint64_t candidate = hash_next(s);
    *out_s = INFINITY;
    if (is_known_to_lose(s, candidate, always, out_s))
        return SW_OK;
    sw_status status = sw_plan_outline(&s->spec, &plan);
    if (status == SW_ERR_BUDGET && s->plan != NULL) {
        remember_outline(s, candidate, 0);
        sw_error_clear();
        return SW_OK;
    }
    SW_TRY(status);
    const uint64_t hash = wastes_memory(s, plan) ? 0 : sw_plan_hash(plan);
    remember_outline(s, candidate, hash);
    if (hash != 0)
        status = find_price(s, plan, hash, always, out_s);
    if (status == SW_OK && (s->plan == NULL || *out_s < s->best_s))
        keep(s, plan, *out_s);
    else
        sw_plan_destroy(plan);
    return status;
}

/* Begins a climb anew from a candidate, which replaces the best; if it does not fit, there is no best. */
static sw_status search_take(struct sw_search *s, const struct sw_candidate *candidate) {
    double step_s;
    sw_plan_destroy(s->plan);
    s->plan = NULL;
    s->best_s = INFINITY;
    search_copy(s, candidate, &s->next);
    const sw_status status = search_try(s, true, &step_s);
    if (status == SW_ERR_BUDGET)
        sw_error_clear();
    return status == SW_ERR_BUDGET ? SW_OK : status;
}

/* Searches where updates run: shares of both sides, and runs of neighbours. */

/* The parts of which shares are tried, and the most runs of neighbours. */
enum { EVENLY = 8, MOST_RUNS = 32 };

/* Sets `next` to the best, with all updates on one side. */
static void search_stream_all(struct sw_search *s, bool streams) {
    search_copy(s, &s->best, &s->next);
    for (int64_t u = 0; u < s->spec.units->count; u++)
        s->next.streams[u] = streams;
}

/* Tries each share of the parameters on the device, evenly spread over the units, as both sides then work at once. */
static sw_status try_update_shares(struct sw_search *s, int64_t most_ops) {
    search_copy(s, &s->best, &s->next);
    for (int64_t share = 0; share <= EVENLY && s->ops < most_ops; share++) {
        int64_t grains = 0, there = 0;
        double step_s;
        for (int64_t u = 0; u < s->spec.units->count; u++) {
            const int64_t own = s->spec.units->unit[u].grains;
            grains += own;
            s->next.streams[u] = EVENLY * (2 * there + own) <= 2 * share * grains;
            there += s->next.streams[u] ? own : 0;
        }
        SW_TRY(search_try(s, false, &step_s));
    }
    return SW_OK;
}

static void turn(struct sw_search *s, int64_t first, int64_t end) {
    for (int64_t u = first; u < end; u++)
        s->next.streams[u] = !s->next.streams[u];
}

/* Tries, from the best so far, runs of neighbours on the other side. */
static sw_status try_runs(struct sw_search *s, int64_t most_ops) {
    const int64_t units = s->spec.units->count;
    int64_t tried = 0;
    for (int64_t span = sw_div_up(units, 2);; span = sw_div_up(span, 2)) {
        for (int64_t first = 0; first < units && tried < MOST_RUNS && s->ops < most_ops; first += span, tried++) {
            double step_s;
            search_copy(s, &s->best, &s->next);
            turn(s, first, sw_min_i64(units, first + span));
            SW_TRY(search_try(s, false, &step_s));
        }
        if (span == 1)
            return SW_OK;
    }
}

/* Searches where updates run, from the best so far. */
static sw_status search_updates(struct sw_search *s) {
    const int64_t most_ops = sw_min_i64(s->most_ops, s->ops + SW_SEARCH_MOST_UPDATE_OPS);
    SW_TRY(try_update_shares(s, most_ops));
    return try_runs(s, most_ops);
}

/* Searches the order and the extent of rises: from the best so far, changes of one thing at a time, until none is
 * cheaper. */

/* The parts of a share that pairs of changes give up. */
enum { PARTS = 2 };

/* Moves a rise forward to another position. */
static void promote(struct sw_rise_order *order, int from, int to) {
    const sw_rise rise = order->rise[from];
    memmove(&order->rise[to + 1], &order->rise[to], (size_t)(from - to) * sizeof order->rise[0]);
    order->rise[to] = rise;
}

/* Tries the best with one change, and tells whether it is better. */
static sw_status try_next(struct sw_search *s, bool *out_better) {
    const double before_s = s->best_s;
    double step_s;
    SW_TRY(search_try(s, false, &step_s));
    *out_better |= s->best_s < before_s;
    return SW_OK;
}

static bool may_go_on(const struct sw_search *s) {
    return s->ops < s->most_ops;
}

/* Tries each rise with less and with more units. */
static sw_status try_risen_shares(struct sw_search *s, bool *out_better) {
    const double unit = 1.0 / (double)s->spec.units->count;
    for (int rise = 0; rise < SW_RISES; rise++) {
        const double share = sw_plan_risen_share(s->plan, (sw_rise)rise);
        const double tried[] = {1.0, 0.0, share / 2, share - unit, share + unit};
        for (size_t i = 0; i < sizeof tried / sizeof tried[0] && may_go_on(s); i++) {
            if (tried[i] < 0.0 || tried[i] > 1.0)
                continue;
            search_copy(s, &s->best, &s->next);
            s->next.rises.share[rise] = tried[i];
            SW_TRY(try_next(s, out_better));
        }
    }
    return SW_OK;
}

/* Tries each rise earlier than it is. */
static sw_status try_orders(struct sw_search *s, bool *out_better) {
    for (int from = 1; from < SW_RISES; from++)
        for (int to = 0; to < from && may_go_on(s); to++) {
            search_copy(s, &s->best, &s->next);
            promote(&s->next.rises, from, to);
            SW_TRY(try_next(s, out_better));
        }
    return SW_OK;
}

/* Tries to give the room of some units of one rise to another; either change by itself may gain nothing. */
static sw_status try_pairs(struct sw_search *s, bool *out_better) {
    for (int less = 0; less < SW_RISES; less++)
        for (int first = 0; first < SW_RISES; first++)
            for (int parts = 0; parts < PARTS && may_go_on(s); parts++) {
                if (s->best.rises.rise[first] == (sw_rise)less)
                    continue;
                search_copy(s, &s->best, &s->next);
                s->next.rises.share[less] = sw_plan_risen_share(s->plan, (sw_rise)less) * parts / PARTS;
                s->next.rises.share[s->next.rises.rise[first]] = 1.0;
                promote(&s->next.rises, first, 0);
                SW_TRY(try_next(s, out_better));
            }
    return SW_OK;
}

static sw_status search_placement(struct sw_search *s, struct sw_climb how) {
    bool better = true;
    while (better && may_go_on(s)) {
        better = false;
        if (how.orders_first)
            SW_TRY(try_orders(s, &better));
        SW_TRY(try_risen_shares(s, &better));
        if (!how.orders_first)
            SW_TRY(try_orders(s, &better));
        if (!better && how.pairs)
            SW_TRY(try_pairs(s, &better));
    }
    return SW_OK;
}

/* Searches within each group size that may win, and between them. */

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
    search_stream_all(s, device);
    return search_take(s, &s->next);
}

static sw_status place_updates(struct sw_search *s, struct found *out) {
    search_stream_all(s, true);
    SW_TRY(search_try(s, true, &out->update.device_s));
    SW_TRY(search_updates(s));
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
        SW_TRY(search_placement(s, how));
        if (updates && s->best_s < before_s)
            SW_TRY(search_updates(s));
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
    search_copy(s, &s->best, &best->candidate);
}

static sw_status climb_from(struct sw_search *s, int start, bool updates, struct sw_climb how, struct summit *best) {
    struct sw_candidate from = {.streams = s->next.streams, .rises = sw_rises_usual};
    for (int rise = 0; rise < SW_RISES; rise++)
        if (start & TURN(rise))
            from.rises.share[rise] = 1.0 - from.rises.share[rise];
    SW_TRY(search_take(s, &from));
    if (s->plan == NULL)
        return SW_OK;
    SW_TRY(climb(s, updates, how));
    keep_better(s, best);
    return SW_OK;
}

/* Sets the updates of the candidate to try next: as in the best, or all on one side. */
static void set_side(struct sw_search *s, const struct summit *best, int side) {
    search_copy(s, &best->candidate, &s->next);
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
    SW_TRY(search_take(s, &best->candidate));
    SW_TRY(climb(s, updates, (struct sw_climb){.pairs = true}));
    keep_better(s, best);
    return search_take(s, &best->candidate);
}

/* Searches the placement, and again the updates if the placement has changed. */
static sw_status place_states(struct sw_search *s, bool updates, struct found *out) {
    struct summit best = {.step_s = s->best_s};
    out->placement = (struct sw_placement_price){.known = true, .usual_s = s->best_s};
    best.candidate.streams = calloc((size_t)s->spec.units->count, sizeof *best.candidate.streams);
    if (best.candidate.streams == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to price a plan");
    search_copy(s, &s->best, &best.candidate);
    const sw_status status = climb_all(s, updates, &best);
    free(best.candidate.streams);
    return status;
}

static sw_status search_all(struct sw_search *s, const struct sw_search_open *open, struct found *out) {
    SW_TRY(search_try(s, true, &out->update.host_s));
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

/* Makes the outline of this rank; the search was about rank 0's. */
static sw_status take_own(struct sw_search *s, const struct sw_plan_spec *own_spec) {
    struct sw_plan *own;
    search_copy(s, &s->best, &s->next);
    s->spec.rank = own_spec->rank;
    s->spec.experts.rank = own_spec->experts.rank;
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
        search_copy(s, &s->best, &s->next);
        SW_TRY(search_try(s, false, &step_s));
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
            search_stream_all(s, false);
        status = search_all(s, open, out);
    }
    return status == SW_OK ? refine_chunks(s, given, out) : status;
}

/* Finds the cheapest plan of one group size. The caller destroys it. */
static sw_status search_group(const struct sw_plan_spec *spec, const struct sw_search_open *open,
                              const struct sw_rates *rates, struct found *out) {
    struct sw_search s;
    *out = (struct found){0};
    sw_status status = search_begin(spec, rates, open, &s);
    if (status == SW_OK)
        status = search_chunks(&s, open, out);
    if (status == SW_OK && (spec->rank > 0 || spec->experts.rank > 0))
        status = take_own(&s, spec);
    if (status == SW_OK) {
        out->plan = s.plan;
        s.plan = NULL;
    }
    search_end(&s);
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
 * takes too long, or its plan would have too many ops. */
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
    SW_TRY(sw_outline_simulate(plan, c->rates, INFINITY, c->open->memory, &found));
    price->step_s = found.step.step_s;
    price->least_s = busiest_other_lane(&found.step);
    return SW_OK;
}

/* Prices a group with the usual placement and its updates on the host. */
static sw_status price_group(struct choice *c, int group) {
    struct sw_group_price *price = &c->price[group];
    struct sw_plan_spec spec = c->spec;
    struct sw_plan *plan;
    spec.rank = spec.experts.rank = 0;
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
    sw_price_memory_drop_room(open->memory);
    if (status != SW_OK) {
        sw_plan_destroy(c.found.plan);
        return status;
    }
    out_prices->update = c.found.update;
    out_prices->placement = c.found.placement;
    *out = c.found.plan;
    return SW_OK;
}
