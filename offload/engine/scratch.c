#include "offload/engine/scratch.h"

#include "core/size.h"

#include <stdlib.h>

/* A state that the store may keep as scratch. */
struct kept {
    sw_state state;
    sw_store_kind kind;
    int64_t grain_bytes;
    bool by_span; /* the store keeps only this rank's part of each unit */
};

enum { KINDS = 5 };

static int64_t grains_of(const struct sw_plan *plan, const struct kept *kept, int64_t unit) {
    const bool table = unit == 0 && plan->spec.units->tied;
    const struct sw_unit_placement *at = &plan->placement[unit];
    if ((kept->kind == SW_STORE_ACCUMULATORS ? at->accumulator : at->tier[kept->state]) != SW_NVME)
        return 0;
    switch (kept->kind) {
    case SW_STORE_ACTS:
        return sw_plan_keeps_input(plan, unit) ? sw_plan_group(plan) * sw_plan_input_pages(plan, unit) : 0;
    case SW_STORE_ACCUMULATORS:
        return sw_plan_groups(plan) > 1 && !sw_plan_reduces_groups(plan) && !table ? plan->spec.units->unit[unit].grains
                                                                                   : 0;
    case SW_STORE_BASE: return sw_units_base_cells(plan->spec.units, unit);
    default: return plan->spec.units->unit[unit].grains;
    }
}

static struct sw_span span_of(const struct sw_plan *plan, const struct kept *kept, int64_t unit) {
    const int64_t grains = grains_of(plan, kept, unit);
    if (grains == 0 || !kept->by_span)
        return (struct sw_span){.grains = grains};
    switch (kept->kind) {
    case SW_STORE_BASE: return sw_plan_base_span(plan, unit);
    case SW_STORE_WEIGHTS: return sw_plan_stored_weights(plan, unit);
    default: return sw_plan_span(plan, kept->state, unit);
    }
}

sw_status sw_scratch_of(const struct sw_plan *plan, struct sw_scratch *out) {
    const int64_t units = plan->spec.units->count;
    const struct kept kept[KINDS] = {
        {SW_GRADS, SW_STORE_GRADS, sw_plan_grain_bytes(plan, SW_CONTENT_GRADS, 0), true},
        {SW_WEIGHTS, SW_STORE_WEIGHTS, sw_units_stored_bytes(plan->spec.units, plan->spec.type), true},
        {SW_ACTS, SW_STORE_ACTS, SW_BUFFER_ALIGN_BYTES, false},
        {SW_GRADS, SW_STORE_ACCUMULATORS, SW_GRAIN_ELEMS * (int64_t)sizeof(float), false},
        {SW_WEIGHTS, SW_STORE_BASE, SW_BASE_CELL_BYTES, true},
    };
    *out = (struct sw_scratch){.grains = calloc((size_t)2 * KINDS * (size_t)units, sizeof *out->grains)};
    if (out->grains == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the store's layout");
    for (int k = 0; k < KINDS; k++) {
        if (!plan->spec.train && kept[k].state != SW_WEIGHTS)
            continue;
        int64_t *first = out->grains + 2 * (int64_t)out->count * units, *grains = first + units;
        bool any = false;
        for (int64_t u = 0; u < units; u++) {
            const struct sw_span span = span_of(plan, &kept[k], u);
            const int64_t each =
                kept[k].kind == SW_STORE_WEIGHTS ? sw_units_stored_grains(plan->spec.units, u, plan->spec.type) : 1;
            first[u] = span.first_grain * each;
            grains[u] = span.grains * each;
            any |= grains[u] > 0;
        }
        if (any)
            out->kind[out->count++] = (struct sw_store_scratch){
                .kind = kept[k].kind, .unit_first = first, .unit_grains = grains, .grain_bytes = kept[k].grain_bytes};
    }
    return SW_OK;
}

void sw_scratch_release(struct sw_scratch *scratch) {
    free(scratch->grains);
    *scratch = (struct sw_scratch){0};
}
