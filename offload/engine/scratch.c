#include "offload/engine/scratch.h"

#include "core/files/files.h"
#include "core/size.h"

#include <stdlib.h>
#include <string.h>

/* A state that the store may keep as scratch. */
struct kept {
    sw_state state;
    sw_store_kind kind;
    int64_t grain_bytes;
    bool by_span; /* the store keeps only this rank's part of each unit */
};

/* The kinds of frozen weights come first, so that they stay where they are while other state moves. */
enum { KINDS = 7, FROZEN_KINDS = 3 };

static sw_tier tier_of(const struct sw_plan *plan, const struct kept *kept, int64_t unit) {
    const struct sw_unit_placement *at = &plan->placement[unit];
    if (kept->kind == SW_STORE_WEIGHTS)
        return sw_plan_tier_of_trained(plan, unit);
    return kept->kind == SW_STORE_ACCUMULATORS ? at->accumulator : at->tier[kept->state];
}

static int64_t grains_of(const struct sw_plan *plan, const struct kept *kept, int64_t unit) {
    const bool table = unit == 0 && plan->spec.units->tied;
    if (tier_of(plan, kept, unit) != SW_NVME)
        return 0;
    switch (kept->kind) {
    case SW_STORE_ACTS:
        return sw_plan_keeps_input(plan, unit) ? sw_plan_input_pieces(plan, unit) * sw_plan_input_pages(plan, unit) : 0;
    case SW_STORE_ACCUMULATORS:
        return sw_plan_groups(plan) > 1 && !sw_plan_reduces_groups(plan, unit) && !table
                   ? plan->spec.units->unit[unit].grains
                   : 0;
    case SW_STORE_BASE: return sw_units_base_cells(plan->spec.units, unit);
    default: return plan->spec.units->unit[unit].grains;
    }
}

/* Returns the grains of a unit that the store keeps as this kind. Frozen and trained weights are of two kinds. */
static struct sw_span span_of(const struct sw_plan *plan, const struct kept *kept, int64_t unit) {
    const int64_t grains = grains_of(plan, kept, unit);
    if (grains == 0 || !kept->by_span)
        return (struct sw_span){.grains = grains};
    switch (kept->kind) {
    case SW_STORE_BASE: return sw_plan_base_span(plan, unit);
    case SW_STORE_FROZEN:
        return sw_plan_reads_in_place(plan, unit) ? (struct sw_span){0} : sw_plan_own_frozen(plan, unit);
    case SW_STORE_IN_PLACE:
        return sw_plan_reads_in_place(plan, unit) ? sw_plan_own_frozen(plan, unit) : (struct sw_span){0};
    case SW_STORE_WEIGHTS: return sw_plan_own_trained(plan, unit);
    default: return sw_plan_span(plan, kept->state, unit);
    }
}

/* Adds a kind, unless no unit has grains of it. Returns their number. */
static int64_t add_kind(const struct sw_plan *plan, const struct kept *kept, struct sw_scratch *out) {
    const struct sw_units *units = plan->spec.units;
    int64_t *first = out->grains + 2 * (int64_t)out->count * units->count, *grains = first + units->count, all = 0;
    for (int64_t u = 0; u < units->count; u++) {
        const struct sw_span span = span_of(plan, kept, u);
        const bool weights = kept->state == SW_WEIGHTS && kept->kind != SW_STORE_BASE;
        const int64_t each = weights ? sw_units_stored_grains(units, u, plan->spec.type) : 1;
        first[u] = span.first_grain * each;
        grains[u] = span.grains * each;
        all += grains[u];
    }
    if (all > 0)
        out->kind[out->count++] = (struct sw_store_scratch){
            .kind = kept->kind, .unit_first = first, .unit_grains = grains, .grain_bytes = kept->grain_bytes};
    return all;
}

/* Puts the pages for the checksums of so many frozen grains before the other kinds. */
static void add_sums(const struct sw_plan *plan, int64_t frozen_grains, struct sw_scratch *out) {
    const int64_t units = plan->spec.units->count;
    int64_t *first = out->grains + 2 * (int64_t)KINDS * units, *grains = first + units;
    grains[0] = sw_store_kept_pages(frozen_grains);
    memmove(out->kind + 1, out->kind, (size_t)out->count * sizeof *out->kind);
    out->count++;
    out->kind[0] = (struct sw_store_scratch){
        .kind = SW_STORE_KEPT_SUMS, .unit_first = first, .unit_grains = grains, .grain_bytes = SW_BUFFER_ALIGN_BYTES};
}

sw_status sw_scratch_of(const struct sw_plan *plan, struct sw_scratch *out) {
    const int64_t stored_bytes = sw_units_stored_bytes(plan->spec.units, plan->spec.type);
    int64_t frozen_grains = 0;
    const struct kept kept[KINDS] = {
        {SW_WEIGHTS, SW_STORE_BASE, SW_BASE_CELL_BYTES, true},
        {SW_WEIGHTS, SW_STORE_IN_PLACE, stored_bytes, true},
        {SW_WEIGHTS, SW_STORE_FROZEN, stored_bytes, true},
        {SW_GRADS, SW_STORE_GRADS, sw_plan_grain_bytes(plan, SW_CONTENT_GRADS, 0), true},
        {SW_WEIGHTS, SW_STORE_WEIGHTS, stored_bytes, true},
        {SW_ACTS, SW_STORE_ACTS, SW_BUFFER_ALIGN_BYTES, false},
        {SW_GRADS, SW_STORE_ACCUMULATORS, SW_GRAIN_ELEMS * (int64_t)sizeof(float), false},
    };
    *out = (struct sw_scratch){
        .grains = calloc((size_t)2 * (KINDS + 1) * (size_t)plan->spec.units->count, sizeof *out->grains)};
    if (out->grains == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the store's layout");
    for (int k = 0; k < KINDS; k++) {
        const int64_t grains = plan->spec.train || kept[k].state == SW_WEIGHTS ? add_kind(plan, &kept[k], out) : 0;
        frozen_grains += k < FROZEN_KINDS ? grains : 0;
    }
    if (plan->spec.train && frozen_grains > 0)
        add_sums(plan, frozen_grains, out);
    return SW_OK;
}

void sw_scratch_release(struct sw_scratch *scratch) {
    free(scratch->grains);
    *scratch = (struct sw_scratch){0};
}

uint64_t sw_scratch_made_from(const struct sw_plan *plan, uint64_t frozen_digest) {
    enum { ARITHMETIC = 1 }; /* goes up when a format gets other bytes for the same weights */
    const struct sw_units *units = plan->spec.units;
    uint64_t digest = frozen_digest;
    for (int64_t u = 0; u < units->count; u++) {
        const struct sw_unit *unit = &units->unit[u];
        const int64_t parts[] = {(int64_t)digest, ARITHMETIC,          plan->spec.type,   units->base,     units->fp8,
                                 unit->grains,    unit->trained_grain, unit->base_grains, unit->wide_grain};
        digest = sw_checksum(parts, sizeof parts);
    }
    return digest;
}
