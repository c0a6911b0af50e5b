/* Which slots a plan needs, and where in its tier each lies. */
#include "core/size.h"
#include "offload/plan_private.h"

#include <stdlib.h>

struct layout {
    struct sw_plan *plan;
    int32_t capacity;
    sw_status status;
};

static int32_t add_slot(struct layout *layout, struct sw_slot slot) {
    struct sw_plan *plan = layout->plan;
    if (layout->status != SW_OK)
        return -1;
    if (plan->slot_count == layout->capacity) {
        layout->capacity = layout->capacity * 2 + 64;
        struct sw_slot *grown = realloc(plan->slot, (size_t)layout->capacity * sizeof *grown);
        if (grown == NULL) {
            layout->status = sw_fail(SW_ERR_NOMEM, "no memory for the plan's slots");
            return -1;
        }
        plan->slot = grown;
    }
    slot.first_piece = plan->piece_count;
    slot.offset = plan->tier_bytes[slot.tier];
    plan->tier_bytes[slot.tier] += sw_round_up(slot.bytes, SW_BUFFER_ALIGN_BYTES);
    plan->piece_count += slot.pieces;
    plan->slot[plan->slot_count] = slot;
    return plan->slot_count++;
}

/* A slot of equal pieces, each aligned as a buffer of its own. */
static int32_t add_pieces(struct layout *layout, const char *name, sw_tier tier, int64_t piece_bytes, int64_t pieces) {
    const int64_t stride = sw_round_up(piece_bytes, SW_BUFFER_ALIGN_BYTES);
    return add_slot(layout, (struct sw_slot){.name = name,
                                             .tier = tier,
                                             .unit = -1,
                                             .piece_bytes = stride,
                                             .bytes = stride * pieces,
                                             .pieces = (int32_t)pieces});
}

/* A unit's state, contiguous, in pieces of one chunk. */
static int32_t add_resident(struct layout *layout, const char *name, sw_tier tier, int64_t unit, int64_t grain_bytes,
                            sw_content content) {
    const struct sw_plan *plan = layout->plan;
    const int64_t grains = plan->spec.units->unit[unit].grains;
    return add_slot(layout, (struct sw_slot){.name = name,
                                             .tier = tier,
                                             .unit = (int32_t)unit,
                                             .resident = content != SW_CONTENT_GRADS,
                                             .content = content,
                                             .piece_bytes = plan->spec.chunk_grains * grain_bytes,
                                             .bytes = grains * grain_bytes,
                                             .pieces = (int32_t)sw_plan_chunks(plan, unit)});
}

static int32_t add_accumulator(struct layout *layout, const char *name, int64_t grains) {
    const int64_t grain_bytes = SW_GRAIN_ELEMS * (int64_t)sizeof(float);
    const int64_t chunk_grains = layout->plan->spec.chunk_grains;
    return add_slot(layout, (struct sw_slot){.name = name,
                                             .tier = SW_DEVICE,
                                             .unit = -1,
                                             .piece_bytes = chunk_grains * grain_bytes,
                                             .bytes = grains * grain_bytes,
                                             .pieces = (int32_t)sw_div_up(grains, chunk_grains)});
}

static sw_status allocate_index(struct sw_plan *plan) {
    const size_t count = (size_t)plan->spec.units->count;
    struct sw_plan_index *index = plan->index;
    int32_t **arrays[] = {&index->weights, &index->grads, &index->optimizer, &index->boundary, &index->saved};
    for (size_t a = 0; a < sizeof arrays / sizeof arrays[0]; a++) {
        if (*arrays[a] == NULL)
            *arrays[a] = malloc(count * sizeof **arrays[a]);
        if (*arrays[a] == NULL)
            return sw_fail(SW_ERR_NOMEM, "no memory for the plan's index");
        for (size_t u = 0; u < count; u++)
            (*arrays[a])[u] = -1;
    }
    return SW_OK;
}

static void lay_activations(struct layout *layout) {
    struct sw_plan *plan = layout->plan;
    struct sw_plan_index *index = plan->index;
    const struct sw_plan_spec *spec = &plan->spec;
    const int64_t head = spec->units->count - 1;
    for (int64_t u = 0; u < head; u++)
        index->boundary[u] = add_pieces(layout, "boundary", SW_DEVICE, spec->boundary_bytes, spec->micro_batches);
    const bool keep = spec->train && !plan->recompute;
    for (int64_t u = 1; keep && u < head; u++)
        index->saved[u] = add_pieces(layout, "saved", SW_DEVICE, spec->saved_bytes, spec->micro_batches);
    index->saved_shared = keep ? -1 : add_pieces(layout, "saved", SW_DEVICE, spec->saved_bytes, 1);
    index->boundary_grad =
        spec->train ? add_pieces(layout, "boundary gradient", SW_DEVICE, spec->boundary_bytes, spec->micro_batches)
                    : -1;
    index->tokens = add_pieces(layout, "tokens", SW_DEVICE, spec->token_bytes, spec->micro_batches);
    /* Two steps' tokens: the next step's are written while this one's may still be on their way. */
    index->token_stage = add_pieces(layout, "tokens", SW_HOST, spec->token_bytes, 2 * spec->micro_batches);
    index->work = add_pieces(layout, "work", SW_DEVICE, spec->work_bytes, 1);
}

static void lay_accumulators(struct layout *layout) {
    struct sw_plan_index *index = layout->plan->index;
    const struct sw_units *units = layout->plan->spec.units;
    int64_t most_grains = 0, all_most = 0;
    for (int64_t u = 0; u < units->count; u++) {
        all_most = sw_max_i64(all_most, units->unit[u].grains);
        if (u != 0 || !units->tied)
            most_grains = sw_max_i64(most_grains, units->unit[u].grains);
    }
    index->acc = add_accumulator(layout, "accumulator", most_grains);
    index->table_acc = units->tied ? add_accumulator(layout, "table accumulator", units->unit[0].grains) : -1;
    const int64_t sums_bytes = all_most * (int64_t)sizeof(double);
    index->sums_device = add_pieces(layout, "sums", SW_DEVICE, sums_bytes, units->count);
    index->sums_host = add_pieces(layout, "sums", SW_HOST, sums_bytes, units->count);
    index->norm = add_pieces(layout, "norm", SW_HOST, sizeof(double), 1);
}

/* Loading and saving pass through these rings too, so they always exist. */
static void lay_staging(struct layout *layout, int64_t record_pieces, int64_t weight_pieces) {
    const struct sw_plan_spec *spec = &layout->plan->spec;
    const int64_t typed_bytes = spec->chunk_grains * SW_GRAIN_ELEMS * sw_dtype_bytes(spec->type);
    layout->plan->index->weights_ring = add_pieces(layout, "weights ring", SW_HOST, typed_bytes, weight_pieces);
    layout->plan->index->optimizer_ring =
        add_pieces(layout, "optimizer ring", SW_HOST, spec->chunk_grains * SW_RECORD_BYTES, record_pieces);
}

/* A ring exists where some unit sends chunks that way. */
static void lay_rings(struct layout *layout) {
    struct sw_plan *plan = layout->plan;
    struct sw_plan_index *index = plan->index;
    const struct sw_plan_spec *spec = &plan->spec;
    bool down = false, out = false, in = false, up = false, records = false, weights = false;
    for (int64_t u = 0; u < spec->units->count; u++) {
        const sw_tier grads = plan->placement[u].tier[SW_GRADS];
        const sw_tier optimizer = plan->placement[u].tier[SW_OPTIMIZER];
        down |= grads != SW_DEVICE;
        out |= grads == SW_NVME;
        in |= grads == SW_NVME || (grads == SW_DEVICE && optimizer != SW_DEVICE);
        up |= grads != SW_DEVICE && optimizer == SW_DEVICE;
        records |= optimizer == SW_NVME;
        weights |= optimizer != SW_DEVICE;
    }
    const int64_t chunk_elems = spec->chunk_grains * SW_GRAIN_ELEMS;
    const int64_t typed = chunk_elems * sw_dtype_bytes(spec->type);
    const int64_t ring = spec->ring_chunks;
    index->grads_down = down ? add_pieces(layout, "grads ring", SW_DEVICE, typed, ring) : -1;
    index->grads_up = up ? add_pieces(layout, "grads ring", SW_DEVICE, typed, ring) : -1;
    index->grads_out = out ? add_pieces(layout, "grads ring", SW_HOST, typed, ring) : -1;
    index->grads_in = in ? add_pieces(layout, "grads ring", SW_HOST, typed, ring) : -1;
    lay_staging(layout, records ? ring : 1, weights ? ring : 1);
}

sw_status sw_plan_layout(struct sw_plan *plan) {
    struct sw_plan_index *index = plan->index;
    struct layout layout = {.plan = plan};
    const struct sw_plan_spec *spec = &plan->spec;
    plan->slot_count = 0;
    plan->piece_count = 0;
    free(plan->slot);
    plan->slot = NULL;
    for (int t = 0; t < SW_TIERS; t++)
        plan->tier_bytes[t] = 0;
    SW_TRY(allocate_index(plan));
    const int64_t typed_grain = SW_GRAIN_ELEMS * sw_dtype_bytes(spec->type);
    for (int64_t u = 0; u < spec->units->count; u++) {
        const struct sw_unit_placement *at = &plan->placement[u];
        index->weights[u] = add_resident(&layout, "weights", at->tier[SW_WEIGHTS], u, typed_grain, SW_CONTENT_WEIGHTS);
        if (!spec->train)
            continue;
        index->grads[u] = add_resident(&layout, "grads", at->tier[SW_GRADS], u, typed_grain, SW_CONTENT_GRADS);
        index->optimizer[u] =
            add_resident(&layout, "optimizer", at->tier[SW_OPTIMIZER], u, SW_RECORD_BYTES, SW_CONTENT_OPTIMIZER);
    }
    lay_activations(&layout);
    if (spec->train) {
        lay_accumulators(&layout);
        lay_rings(&layout);
    } else {
        index->acc = index->table_acc = index->sums_device = index->sums_host = index->norm = -1;
        index->grads_down = index->grads_up = index->grads_out = index->grads_in = -1;
        lay_staging(&layout, 1, 1);
    }
    return layout.status;
}
