#include "offload/simulate/search.h"

#include "core/size.h"
#include "offload/plan/plan_private.h"
#include "offload/simulate/outline_price.h"
#include "offload/simulate/search_private.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The ops that take as long to simulate as an outline takes to be made, and as each unit's part of it. */
enum { OUTLINE_OPS = 8000, OUTLINE_UNIT_OPS = 40 };
/* Prices that are remembered: more plans than a search tries. */
enum { SEEN_CAPACITY = 8192, SEEN_MOST = SEEN_CAPACITY / 2 };

bool sw_plan_has_update_choice(const struct sw_plan *plan) {
    bool any = false;
    for (int64_t u = 0; u < plan->spec.units->count; u++)
        any |= plan->spec.train && plan->placement[u].tier[SW_OPTIMIZER] != SW_DEVICE;
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

void sw_search_copy(const struct sw_search *s, const struct sw_candidate *from, struct sw_candidate *to) {
    if (to->streams != from->streams)
        memcpy(to->streams, from->streams, (size_t)s->spec.units->count * sizeof *to->streams);
    to->rises = from->rises;
}

sw_status sw_search_begin(const struct sw_plan_spec *spec, const struct sw_rates *rates, int64_t most_ops,
                          struct sw_search *s) {
    *s = (struct sw_search){
        .spec = *spec, .rates = rates, .best_s = INFINITY, .usual_nvme_bytes = -1, .most_ops = most_ops};
    SW_TRY(begin_candidate(spec->units->count, &s->next));
    SW_TRY(begin_candidate(spec->units->count, &s->best));
    s->seen = calloc(SEEN_CAPACITY, sizeof *s->seen);
    if (s->seen == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to price a plan");
    if (spec->update_on_device != NULL)
        memcpy(s->next.streams, spec->update_on_device, (size_t)spec->units->count * sizeof *s->next.streams);
    /* All ranks price the plan of the same one, so that they choose alike. */
    s->spec.rank = 0;
    s->spec.update_on_device = s->next.streams;
    s->spec.rises = &s->next.rises;
    return sw_layout_peaks_create(&s->spec.peaks);
}

void sw_search_end(struct sw_search *s) {
    sw_plan_destroy(s->plan);
    free(s->next.streams);
    free(s->best.streams);
    free(s->seen);
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
    SW_TRY(sw_outline_simulate(plan, s->rates, always ? INFINITY : s->best_s, &found));
    s->ops += OUTLINE_OPS + s->spec.units->count * OUTLINE_UNIT_OPS + found.ops;
    s->simulated += found.simulated;
    out->exact = found.simulated;
    out->step_s = found.simulated ? found.step.step_s : found.least_s;
    return SW_OK;
}

/* Prices a plan, or finds its price where it was tried before. */
static sw_status find_price(struct sw_search *s, const struct sw_plan *plan, bool always, double *out_s) {
    const uint64_t hash = sw_plan_hash(plan);
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
    sw_search_copy(s, &s->next, &s->best);
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

sw_status sw_search_try(struct sw_search *s, bool always, double *out_s) {
    struct sw_plan *plan;
    *out_s = INFINITY;
    sw_status status = sw_plan_outline(&s->spec, &plan);
    if (status == SW_ERR_BUDGET && s->plan != NULL) {
        sw_error_clear();
        return SW_OK;
    }
    SW_TRY(status);
    if (!wastes_memory(s, plan))
        status = find_price(s, plan, always, out_s);
    if (status == SW_OK && (s->plan == NULL || *out_s < s->best_s))
        keep(s, plan, *out_s);
    else
        sw_plan_destroy(plan);
    return status;
}

sw_status sw_search_take(struct sw_search *s, const struct sw_candidate *candidate) {
    double step_s;
    sw_plan_destroy(s->plan);
    s->plan = NULL;
    s->best_s = INFINITY;
    sw_search_copy(s, candidate, &s->next);
    const sw_status status = sw_search_try(s, true, &step_s);
    if (status == SW_ERR_BUDGET)
        sw_error_clear();
    return status == SW_ERR_BUDGET ? SW_OK : status;
}
