/* Lays out the slots that a plan needs, each at its offset in its tier. */
#include "core/ranks/comm.h"
#include "core/size.h"
#include "io/store/store.h"
#include "offload/plan/plan_private.h"

#include <stdlib.h>
#include <string.h>

/* Block inputs beyond one group that the device keeps between two units, so that the next is computed while the last
 * leaves. */
enum { INPUT_SPARE = 2, UNUSED = -1 };
/* Pieces of the rings through which a tensor group exchanges: one is computed while the other is under way. */
enum { TENSOR_PIECES = 2 };
/* Pieces of a ring of normalised inputs, or of their rows on the way back: one micro-batch is being normalised,
 * another is being read, and the head, or a norm's backward pass, returns to a third. */
enum { NORMED_PIECES = 3 };

struct layout {
    struct sw_plan *plan;
    bool measures; /* adds up the bytes of slots and keeps none: a search measures thousands of layouts for each it
                      keeps */
    int32_t capacity;
    sw_status status;
};

/* One kind of slot. The layout says when a plan needs it, and of what size. */
struct slot_row {
    const char *name; /* as the table of a plan's memory shows it: kinds of one name are added up */
    sw_tier tier;     /* SW_TIERS: wherever the state is placed */
};
static const struct slot_row kinds[SLOT_KINDS] = {
    [SLOT_WEIGHTS] = {"weights", SW_TIERS},
    [SLOT_FROZEN] = {"weights", SW_TIERS},
    [SLOT_BASE] = {"base", SW_TIERS},
    [SLOT_GRADS] = {"grads", SW_TIERS},
    [SLOT_OPTIMIZER] = {"optimizer", SW_TIERS},
    [SLOT_SECONDARY] = {"secondary weights", SW_TIERS},
    [SLOT_SAVED_OPTIMIZER] = {"optimizer", SW_TIERS},
    [SLOT_ACC_SHARD] = {"accumulator", SW_DEVICE},
    [SLOT_ACC] = {"accumulator", SW_TIERS},
    [SLOT_INPUT] = {"block input", SW_TIERS},
    [SLOT_CACHE] = {"cache", SW_DEVICE},
    [SLOT_RECEIVED] = {"block input", SW_DEVICE},
    [SLOT_SAVED] = {"saved", SW_DEVICE},
    [SLOT_DERIVED] = {"derived", SW_DEVICE},
    [SLOT_UNIT_WEIGHTS] = {"weights of a unit", SW_DEVICE},
    [SLOT_UNIT_BASE] = {"base of a unit", SW_DEVICE},
    [SLOT_EXPERTS_WEIGHTS] = {"weights of experts", SW_DEVICE},
    [SLOT_EXPERTS_BASE] = {"base of experts", SW_DEVICE},
    [SLOT_TYPED_WEIGHTS] = {"weights of a unit", SW_DEVICE},
    [SLOT_TABLE] = {"table", SW_DEVICE},
    [SLOT_ROWS] = {"embedding rows", SW_HOST},
    [SLOT_ROWS_RING] = {"embedding rows", SW_DEVICE},
    [SLOT_SAVED_SHARED] = {"saved", SW_DEVICE},
    [SLOT_DERIVED_SHARED] = {"derived", SW_DEVICE},
    [SLOT_OUTPUT_RING] = {"block input ring", SW_DEVICE},
    [SLOT_INPUT_BACK] = {"block input ring", SW_DEVICE},
    [SLOT_INPUT_OUT] = {"block input ring", SW_HOST},
    [SLOT_INPUT_IN] = {"block input ring", SW_HOST},
    [SLOT_OUTPUT_GRAD] = {"block output gradient", SW_DEVICE},
    [SLOT_WHOLE_GRAD] = {"block output gradient ring", SW_DEVICE},
    [SLOT_NORM_GRAD] = {"norm gradient ring", SW_DEVICE},
    [SLOT_SOFTMAX] = {"softmax ring", SW_DEVICE},
    [SLOT_PRODUCT_GRAD] = {"product gradient", SW_DEVICE},
    [SLOT_NORMED] = {"normalised input ring", SW_DEVICE},
    [SLOT_TOKENS] = {"tokens", SW_DEVICE},
    [SLOT_TOKEN_STAGING] = {"tokens", SW_HOST},
    [SLOT_WORK] = {"work", SW_DEVICE},
    [SLOT_WORK_ACC] = {"accumulator", SW_DEVICE},
    [SLOT_OTHER_WORK_ACC] = {"accumulator", SW_DEVICE},
    [SLOT_EXPERTS_ACC] = {"accumulator", SW_DEVICE},
    [SLOT_OTHER_EXPERTS_ACC] = {"accumulator", SW_DEVICE},
    [SLOT_TABLE_ACC] = {"table accumulator", SW_DEVICE},
    [SLOT_ACC_OUT] = {"accumulator ring", SW_HOST},
    [SLOT_ACC_IN] = {"accumulator ring", SW_HOST},
    [SLOT_UPDATE_WORK] = {"update work", SW_HOST},
    [SLOT_SQUARE_SUMS_DEVICE] = {"sums", SW_DEVICE},
    [SLOT_SQUARE_SUMS_HOST] = {"sums", SW_HOST},
    [SLOT_NORM] = {"norm", SW_HOST},
    [SLOT_BUCKETS] = {"grads ring", SW_DEVICE},
    [SLOT_BUCKET_SUMS] = {"accumulator ring", SW_DEVICE},
    [SLOT_QUANT_WEIGHTS] = {"quantized weights", SW_DEVICE},
    [SLOT_QUANT_BUCKETS] = {"quantized grads ring", SW_DEVICE},
    [SLOT_QUANT_PARTS] = {"quantized grads ring", SW_DEVICE},
    [SLOT_NODE_SUMS] = {"accumulator ring", SW_DEVICE},
    [SLOT_NODE_QUANT] = {"quantized grads ring", SW_DEVICE},
    [SLOT_NODE_PARTS] = {"quantized grads ring", SW_DEVICE},
    [SLOT_REDUCED] = {"grads ring", SW_DEVICE},
    [SLOT_STAGING] = {"reduction staging", SW_DEVICE},
    [SLOT_SUMMARIES] = {"shared by ranks", SW_HOST},
    [SLOT_GRADS_DOWN] = {"grads ring", SW_DEVICE},
    [SLOT_GRADS_OUT] = {"grads ring", SW_HOST},
    [SLOT_GRADS_IN] = {"grads ring", SW_HOST},
    [SLOT_GRADS_UP] = {"grads ring", SW_DEVICE},
    [SLOT_OPTIMIZER_RING] = {"optimizer ring", SW_HOST},
    [SLOT_OPTIMIZER_UP] = {"optimizer ring", SW_DEVICE},
    [SLOT_WEIGHTS_RING] = {"weights ring", SW_HOST},
    [SLOT_WEIGHTS_IN] = {"weights ring", SW_HOST},
    [SLOT_ROUTING] = {"routing", SW_HOST},
    [SLOT_IN_PLACE] = {"reads in place", SW_HOST},
    [SLOT_WEIGHTS_DOWN] = {"weights ring", SW_DEVICE},
};

static void add_bytes(struct layout *layout, sw_tier tier, int64_t bytes) {
    layout->plan->tier_bytes[tier] += sw_round_up(bytes, SW_BUFFER_ALIGN_BYTES);
}

/* Adds a slot of a kind; unit: whose it is, of a kind that each unit has. The index keeps the first of several. */
static void add_slot(struct layout *layout, enum sw_slot_kind kind, int64_t unit, struct sw_slot slot) {
    struct sw_plan *plan = layout->plan;
    if (layout->status != SW_OK)
        return;
    slot.tier = kinds[kind].tier == SW_TIERS ? slot.tier : kinds[kind].tier;
    if (layout->measures) {
        add_bytes(layout, slot.tier, slot.bytes);
        return;
    }
    if (plan->slot_count == layout->capacity) {
        layout->capacity = layout->capacity * 2 + 64;
        struct sw_slot *grown = realloc(plan->slot, (size_t)layout->capacity * sizeof *grown);
        if (grown == NULL) {
            layout->status = sw_fail(SW_ERR_NOMEM, "no memory for the plan's slots");
            return;
        }
        plan->slot = grown;
    }
    int32_t *number = kind < SLOT_UNIT_KINDS ? &plan->index->of_unit[kind][unit] : &plan->index->slot[kind];
    *number = *number == UNUSED ? plan->slot_count : *number;
    slot.name = kinds[kind].name;
    slot.first_piece = plan->piece_count;
    slot.offset = plan->tier_bytes[slot.tier] - slot.lead_bytes;
    add_bytes(layout, slot.tier, sw_slot_bytes(&slot));
    plan->piece_count += slot.pieces;
    plan->slot[plan->slot_count++] = slot;
}

/* Returns a slot of equal pieces, each aligned as a buffer of its own. */
static struct sw_slot of_pieces(int64_t piece_bytes, int64_t pieces) {
    const int64_t stride = sw_round_up(piece_bytes, SW_BUFFER_ALIGN_BYTES);
    return (struct sw_slot){.unit = -1, .piece_bytes = stride, .bytes = stride * pieces, .pieces = (int32_t)pieces};
}

/* Adds a slot of equal pieces where it is needed. */
static void add_if(struct layout *layout, bool needed, enum sw_slot_kind kind, int64_t piece_bytes, int64_t pieces) {
    if (needed)
        add_slot(layout, kind, -1, of_pieces(piece_bytes, pieces));
}

/* Returns a slot for contiguous grains of a unit's state, in pieces of one chunk. A `content` other than none is there
 * from before the first step. */
static struct sw_slot of_grains(const struct layout *layout, int64_t unit, struct sw_span span, int64_t grain_bytes,
                                sw_content content) {
    const struct sw_plan_spec *spec = &layout->plan->spec;
    const int64_t grains = span.grains;
    return (struct sw_slot){.unit = (int32_t)unit,
                            .resident = content != SW_CONTENT_NONE,
                            .content = content,
                            .first_grain = span.first_grain,
                            .grain_bytes = grain_bytes,
                            .piece_bytes = spec->chunk_grains * grain_bytes,
                            .bytes = grains * grain_bytes,
                            .pieces = layout->measures ? 0 : (int32_t)sw_div_up(grains, spec->chunk_grains)};
}

/* Adds a slot on the device that has room for so many grains, of whichever unit. */
static void add_room(struct layout *layout, enum sw_slot_kind kind, int64_t grains, int64_t grain_bytes) {
    add_slot(layout, kind, -1, of_grains(layout, -1, (struct sw_span){.grains = grains}, grain_bytes, SW_CONTENT_NONE));
}

/* Returns the room for a rank's part of `all` grains, or cells, of a unit. A shard takes as much on every rank, so that
 * all ranks decide alike. */
static struct sw_span room_of(const struct layout *layout, int64_t unit, struct sw_span part, int64_t all) {
    if (part.grains < all)
        part.grains = sw_shard_most_grains(all, sw_plan_unit_ranks(layout->plan, unit));
    return part;
}

/* Returns the same for a rank's shard, or the whole, of what the ranks share out. */
static struct sw_span shard_room(const struct layout *layout, int64_t unit, struct sw_span part) {
    if (part.grains < sw_plan_shared(layout->plan, unit).grains)
        part.grains = sw_plan_most_shard_grains(layout->plan, unit);
    return part;
}

/* Returns the room for a unit's whole weights. */
static struct sw_span whole_room(const struct layout *layout, int64_t unit) {
    const int64_t lead = sw_plan_lead_grains(layout->plan, unit);
    const struct sw_span all = sw_plan_typed(layout->plan, unit);
    return (struct sw_span){.first_grain = all.first_grain - lead, .grains = all.grains + lead};
}

/* Returns the room for a unit's weights where they live, or for its trained ones if the frozen ones live apart. */
static struct sw_span home_room(const struct layout *layout, int64_t unit) {
    return sw_plan_splits_weights(layout->plan, unit) ? sw_plan_trained(layout->plan, unit) : whole_room(layout, unit);
}

static sw_tier tier_of(const struct layout *layout, sw_state state, int64_t unit) {
    return layout->plan->placement[unit].tier[state];
}

/* Adds a slot for this rank's part of a unit's state. */
static void add_state(struct layout *layout, enum sw_slot_kind kind, sw_state state, sw_tier tier, int64_t unit,
                      int64_t grain_bytes, sw_content content) {
    const struct sw_plan *plan = layout->plan;
    const bool whole = state == SW_WEIGHTS && !sw_plan_is_sharded(plan, unit, SW_WEIGHTS);
    const struct sw_span room =
        whole ? home_room(layout, unit) : shard_room(layout, unit, sw_plan_kept(plan, state, unit, tier));
    if (room.grains == 0) /* weights of a unit that is all base */
        return;
    if (layout->measures) {
        add_bytes(layout, tier, room.grains * grain_bytes);
        return;
    }
    struct sw_slot slot = of_grains(layout, unit, room, grain_bytes, content);
    slot.tier = tier;
    if (state == SW_WEIGHTS && sw_plan_splits_weights(plan, unit))
        slot.first_index = (int32_t)sw_plan_frozen_chunks(plan, unit);
    add_slot(layout, kind, unit, slot);
}

/* Does the same for optimizer state. In memory all ranks take as much as the one whose records save the least. */
static void add_records(struct layout *layout, enum sw_slot_kind kind, sw_tier tier, int64_t unit, sw_content content) {
    const struct sw_plan *plan = layout->plan;
    const struct sw_records records = sw_plan_records(plan, unit);
    const struct sw_span room = shard_room(layout, unit, sw_plan_kept(plan, SW_OPTIMIZER, unit, tier));
    const int64_t bytes = sw_round_up(room.grains * records.grain_bytes, SW_BUFFER_ALIGN_BYTES);
    const int64_t saved_bytes = sw_records_saved(&records);
    const int64_t least_bytes = tier == SW_NVME ? saved_bytes : sw_plan_least_saved_bytes(plan, unit);
    if (room.grains == 0)
        return;
    if (layout->measures) {
        add_bytes(layout, tier, bytes - least_bytes);
        return;
    }
    struct sw_slot slot = of_grains(layout, unit, room, records.grain_bytes, content);
    slot.tier = tier;
    slot.bytes = bytes;
    slot.lead_bytes = saved_bytes;
    add_slot(layout, kind, unit, slot);
    add_bytes(layout, tier, saved_bytes - least_bytes);
}

/* Adds the homes of this rank's frozen weights that do not live with the trained ones of their unit. */
static void lay_frozen(struct layout *layout) {
    const struct sw_plan *plan = layout->plan;
    for (int64_t u = 0; u < plan->spec.units->count; u++) {
        const int64_t all = sw_plan_frozen(plan, u).grains;
        if (all == 0 || !sw_plan_splits_weights(plan, u))
            continue;
        struct sw_span room = room_of(layout, u, sw_plan_frozen_shard(plan, u), all);
        if (!sw_plan_is_sharded(plan, u, SW_WEIGHTS)) {
            room = whole_room(layout, u);
            room.grains -= sw_plan_trained_grains(plan, u);
        }
        struct sw_slot slot = of_grains(layout, u, room, sw_plan_weights_bytes(plan, u, 1), SW_CONTENT_WEIGHTS);
        slot.tier = tier_of(layout, SW_WEIGHTS, u);
        add_slot(layout, SLOT_FROZEN, u, slot);
    }
}

/* Makes an index of no slots. */
static sw_status clear_index(struct sw_plan *plan) {
    struct sw_plan_index *index = plan->index;
    const int64_t count = plan->spec.units->count;
    if (index->arrays == NULL)
        index->arrays = malloc((size_t)(SLOT_UNIT_KINDS * count) * sizeof *index->arrays);
    if (index->arrays == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the plan's index");
    for (int64_t i = 0; i < SLOT_UNIT_KINDS * count; i++)
        index->arrays[i] = UNUSED;
    for (int kind = 0; kind < SLOT_UNIT_KINDS; kind++)
        index->of_unit[kind] = index->arrays + kind * count;
    for (int kind = 0; kind < SLOT_KINDS; kind++)
        index->slot[kind] = UNUSED;
    return SW_OK;
}

/* Adds the homes of bases, and slots for those that are not whole on the device. */
static void lay_bases(struct layout *layout) {
    const struct sw_plan *plan = layout->plan;
    int64_t most_cells = 0, most_of_experts = 0;
    for (int64_t u = 0; u < plan->spec.units->count; u++) {
        const int64_t cells = sw_plan_base_cells(plan, u);
        int64_t *most = sw_plan_joins_block(plan, u) ? &most_of_experts : &most_cells;
        struct sw_slot slot = of_grains(layout, u, room_of(layout, u, sw_plan_base_span(plan, u), cells),
                                        SW_BASE_CELL_BYTES, SW_CONTENT_BASE);
        slot.tier = tier_of(layout, SW_WEIGHTS, u);
        if (cells == 0)
            continue;
        add_slot(layout, SLOT_BASE, u, slot);
        if (!sw_plan_has_whole_on_device(plan, u))
            *most = sw_max_i64(*most, cells);
    }
    for (int64_t k = 0; most_cells > 0 && k < plan->spec.unit_slots; k++)
        add_room(layout, SLOT_UNIT_BASE, most_cells, SW_BASE_CELL_BYTES);
    for (int64_t k = 0; most_of_experts > 0 && k < plan->spec.unit_slots; k++)
        add_room(layout, SLOT_EXPERTS_BASE, most_of_experts, SW_BASE_CELL_BYTES);
}

static void lay_weights(struct layout *layout) {
    struct sw_plan *plan = layout->plan;
    const struct sw_units *units = plan->spec.units;
    int64_t largest = 0, largest_typed = 0, largest_experts = 0;
    for (int64_t u = 0; u < units->count; u++) {
        if (!sw_plan_holds(plan, u))
            continue;
        int64_t *most = sw_plan_has_typed_slot(plan, u) ? &largest_typed : &largest;
        most = sw_plan_joins_block(plan, u) ? &largest_experts : most;
        add_state(layout, SLOT_WEIGHTS, SW_WEIGHTS, sw_plan_tier_of_trained(plan, u), u,
                  sw_plan_weights_bytes(plan, u, 1), SW_CONTENT_WEIGHTS);
        if (!sw_plan_has_whole_on_device(plan, u) && !(u == 0 && (units->tied || sw_plan_gathers_rows(plan))))
            *most = sw_max_i64(*most, sw_max_i64(1, whole_room(layout, u).grains));
    }
    const int64_t typed_bytes = sw_plan_typed_bytes(plan, 1);
    for (int64_t k = 0; largest > 0 && k < plan->spec.unit_slots; k++)
        add_room(layout, SLOT_UNIT_WEIGHTS, largest, sw_units_stored_bytes(units, plan->spec.type));
    for (int64_t k = 0; largest_experts > 0 && k < plan->spec.unit_slots; k++)
        add_room(layout, SLOT_EXPERTS_WEIGHTS, largest_experts, sw_units_stored_bytes(units, plan->spec.type));
    if (largest_typed > 0)
        add_room(layout, SLOT_TYPED_WEIGHTS, largest_typed, typed_bytes);
    int64_t most_grains = 0;
    for (int64_t u = 0; u < units->count; u++)
        if (sw_plan_gathers_quantized(plan, u))
            most_grains = sw_max_i64(most_grains, units->unit[u].grains);
    if (most_grains > 0)
        add_room(layout, SLOT_QUANT_WEIGHTS, most_grains, sw_quant_grain_bytes(plan->spec.gather));
    const bool gathers = sw_plan_gathers_rows(plan);
    add_if(layout, gathers, SLOT_ROWS, plan->spec.gathered_bytes, plan->spec.micro_batches);
    add_if(layout, gathers, SLOT_ROWS_RING, plan->spec.gathered_bytes, INPUT_SPARE);
    /* With two generations the table stays: a speculated update leaves it there for the next step. */
    const bool stays = plan->commit_every_step && sw_plan_trains(plan, 0);
    if (sw_plan_fetches_table(plan))
        add_slot(
            layout, SLOT_TABLE, -1,
            of_grains(layout, 0, whole_room(layout, 0), typed_bytes, stays ? SW_CONTENT_WEIGHTS : SW_CONTENT_NONE));
}

/* Adds the slots of secondary shards. One takes as much on every rank. */
static void lay_secondary(struct layout *layout) {
    struct sw_plan *plan = layout->plan;
    const int64_t chunk = plan->spec.chunk_grains;
    for (int64_t u = 0; u < plan->spec.units->count; u++) {
        const int64_t grain_bytes = sw_plan_weights_bytes(plan, u, 1);
        if (!sw_plan_keeps_secondary(plan, u))
            continue;
        const int64_t grains = sw_shard_most_grains(plan->spec.units->unit[u].grains, plan->spec.secondary_ranks);
        add_slot(layout, SLOT_SECONDARY, u,
                 (struct sw_slot){.tier = plan->secondary_tier,
                                  .unit = (int32_t)u,
                                  .first_grain = sw_plan_secondary(plan, u).first_grain,
                                  .grain_bytes = grain_bytes,
                                  .piece_bytes = chunk * grain_bytes,
                                  .bytes = grains * grain_bytes,
                                  .pieces = (int32_t)sw_div_up(grains, chunk)});
    }
}

/* Returns the bytes of the largest output. */
static int64_t largest_output(const struct sw_plan_spec *spec) {
    int64_t most = 0;
    for (int64_t u = 0; u + 1 < spec->units->count; u++)
        most = sw_max_i64(most, spec->cost[u].output_bytes);
    return most;
}

/* Adds the rings through which a tensor group exchanges, and the slots that its backward ops hand to each other.
 * piece_bytes: bytes of all rows of a micro-batch. No more micro-batches are normalised ahead than a group has. An
 * expert group has one piece of each. */
static void lay_tensor_rings(struct layout *layout, int64_t piece_bytes) {
    const struct sw_plan *plan = layout->plan;
    const int tensor_ranks = sw_plan_tensor_ranks(plan);
    const bool group = tensor_ranks > 1, sequence = sw_plan_is_sequence_parallel(plan);
    const int64_t micros = sw_plan_group(plan), experts_bytes = sw_plan_expert_ranks(plan) * piece_bytes;
    const bool experts = sw_plan_expert_ranks(plan) > 1, groups = group && plan->spec.train;
    add_if(layout, experts, SLOT_WHOLE_GRAD, experts_bytes, 1);
    add_if(layout, experts, SLOT_NORMED, experts_bytes, 1);
    add_if(layout, experts || groups, SLOT_NORM_GRAD, experts_bytes, groups ? TENSOR_PIECES : 1);
    add_if(layout, plan->spec.train && sequence, SLOT_WHOLE_GRAD, piece_bytes, sw_min_i64(TENSOR_PIECES, micros));
    add_if(layout, sequence, SLOT_NORMED, piece_bytes, sw_min_i64(NORMED_PIECES, micros));
    add_if(layout, group && plan->spec.train && plan->spec.tensor.product_bytes > 0, SLOT_PRODUCT_GRAD,
           plan->spec.tensor.product_bytes, 1);
    add_if(layout, group, SLOT_SOFTMAX, tensor_ranks * plan->spec.tensor.softmax_bytes, TENSOR_PIECES);
}

static void lay_block_inputs(struct layout *layout) {
    struct sw_plan *plan = layout->plan;
    const struct sw_plan_spec *spec = &plan->spec;
    const int64_t group = sw_plan_group(plan), head = spec->units->count - 1;
    const bool sequence = sw_plan_is_sequence_parallel(plan);
    /* A piece of a slot that units share: whole, and of an input, which may be a rank's rows. */
    const int64_t whole = largest_output(spec), bytes = sequence ? sw_plan_input_bytes(plan, 1) : whole;
    const bool ends = sw_plan_computes(plan, head);
    /* Outputs for the next stage have no home here. */
    bool ring = !spec->train || !ends || sw_plan_turns(plan) > 1, away = false, nvme = false;
    for (int64_t u = 1; spec->train && u < head; u++) {
        const sw_tier tier = tier_of(layout, SW_ACTS, u);
        if (!sw_plan_computes(plan, u))
            continue;
        if (sw_plan_joins_block(plan, u)) /* their input is what ranks have sent */
            continue;
        const bool kept = sw_plan_keeps_input(plan, u), apart = sw_plan_partitions_input(plan, u) && !sequence;
        ring |= !kept || tier != SW_DEVICE || apart;
        away |= kept && (tier != SW_DEVICE || apart);
        nvme |= kept && tier == SW_NVME;
        if ((!kept || tier != SW_DEVICE) && sw_plan_received_pieces(plan, u) > 0)
            add_slot(layout, SLOT_RECEIVED, u,
                     of_pieces(sw_plan_input_bytes(plan, u), sw_plan_received_pieces(plan, u)));
        if (!kept)
            continue;
        struct sw_slot slot = of_pieces(sw_plan_input_bytes(plan, u), sw_plan_input_pieces(plan, u));
        slot.tier = tier;
        slot.unit = (int32_t)u;
        add_slot(layout, SLOT_INPUT, u, slot);
    }
    /* The head's inputs are used at once, except behind the last of several turns; they need a home only where no ring
     * carries them. */
    if (!ring || (ends && sw_plan_turns(plan) > 1))
        add_slot(layout, SLOT_INPUT, head,
                 of_pieces(sequence ? bytes : spec->cost[head - 1].output_bytes, sw_plan_input_pieces(plan, head)));
    add_if(layout, ring, SLOT_OUTPUT_RING, bytes, group + INPUT_SPARE);
    add_if(layout, away, SLOT_INPUT_BACK, bytes, sequence ? NORMED_PIECES : INPUT_SPARE);
    add_if(layout, nvme, SLOT_INPUT_OUT, bytes, INPUT_SPARE);
    add_if(layout, nvme, SLOT_INPUT_IN, bytes, INPUT_SPARE);
    add_if(layout, spec->train, SLOT_OUTPUT_GRAD, bytes, group * (plan->schedule != NULL ? plan->schedule->grads : 1));
    lay_tensor_rings(layout, spec->cost[0].output_bytes);
}

/* Adds slots for intermediates, derived or saved: one for each unit that computes no more than `most` again, and one
 * that the other units share, frozen ones among them. */
static void lay_intermediates(struct layout *layout, bool derived, sw_recompute most) {
    const struct sw_plan *plan = layout->plan;
    int64_t shared_bytes = 0;
    for (int64_t u = 1; u + 1 < plan->spec.units->count; u++) {
        const struct sw_unit_cost *cost = &plan->spec.cost[u];
        if (!sw_plan_computes(plan, u))
            continue;
        const int64_t bytes = derived ? cost->derived_bytes : cost->saved_bytes;
        const bool keeps = plan->spec.train && sw_plan_passes_back(plan, u) && plan->recompute[u] <= most;
        if (keeps && bytes > 0)
            add_slot(layout, derived ? SLOT_DERIVED : SLOT_SAVED, u,
                     of_pieces(bytes, sw_plan_groups_in_flight(plan, u) * sw_plan_group(plan)));
        else if (!keeps)
            shared_bytes = sw_max_i64(shared_bytes, bytes);
    }
    add_if(layout, shared_bytes > 0, derived ? SLOT_DERIVED_SHARED : SLOT_SAVED_SHARED, shared_bytes, 1);
}

/* Returns the scratch that Muon's updates on the device, or on the host, need. */
static int64_t muon_bytes(const struct layout *layout, bool on_device) {
    const struct sw_plan *plan = layout->plan;
    for (int64_t u = 0; plan->spec.train && u < plan->spec.units->count; u++)
        if (sw_unit_has_muon(&plan->spec.units->unit[u]) && sw_plan_updates_on_device(plan, u) == on_device)
            return plan->spec.muon_gpu_bytes > 0 ? plan->spec.muon_gpu_bytes
                                                 : sw_units_muon_scratch_bytes(plan->spec.units);
    return 0;
}

static void lay_activations(struct layout *layout) {
    const struct sw_plan_spec *spec = &layout->plan->spec;
    lay_intermediates(layout, false, SW_RECOMPUTE_DERIVED);
    lay_intermediates(layout, true, SW_RECOMPUTE_NOTHING);
    add_if(layout, true, SLOT_TOKENS, spec->token_bytes, spec->micro_batches);
    /* Two steps' tokens: the next step's are written while this one's may still be on their way. */
    add_if(layout, true, SLOT_TOKEN_STAGING, spec->token_bytes, 2 * spec->micro_batches);
    add_if(layout, true, SLOT_WORK, sw_round_up(spec->work_bytes, SW_BUFFER_ALIGN_BYTES) + muon_bytes(layout, true), 1);
}

/* Returns the most grains, or cells, that a piece of a ring holds: a chunk, or the largest unit if that is less, so
 * that the rings of a small model are small. */
static int64_t ring_grains(const struct sw_plan *plan) {
    int64_t most = 1;
    for (int64_t u = 0; u < plan->spec.units->count; u++)
        most = sw_max_i64(most, plan->spec.units->unit[u].grains);
    return sw_min_i64(plan->spec.chunk_grains, most);
}

/* Adds room for the routing where inference fetches the weights of some experts. */
static void lay_routing(struct layout *layout) {
    const struct sw_plan *plan = layout->plan;
    int64_t most_bytes = 0;
    bool fetches = false;
    for (int64_t u = 0; !plan->spec.train && u < plan->spec.units->count; u++) {
        most_bytes = sw_max_i64(most_bytes, plan->spec.cost[u].routing_bytes);
        fetches |= plan->spec.cost[u].routed && !sw_plan_has_whole_on_device(plan, u);
    }
    add_if(layout, fetches, SLOT_ROUTING, most_bytes, 1);
}

static void lay_caches(struct layout *layout) {
    const struct sw_plan_spec *spec = &layout->plan->spec;
    for (int64_t u = 0; u < spec->units->count; u++) {
        const int64_t bytes = sw_round_up(spec->cost[u].cache_bytes, SW_BUFFER_ALIGN_BYTES);
        if (bytes > 0)
            add_slot(layout, SLOT_CACHE, u,
                     (struct sw_slot){.unit = (int32_t)u,
                                      .resident = true,
                                      .content = SW_CONTENT_KV_CACHE,
                                      .piece_bytes = bytes,
                                      .bytes = bytes,
                                      .pieces = 1});
    }
}

/* Adds the slots of accumulators. A tied table's accumulator stays on the device between groups. */
static void lay_accumulators(struct layout *layout) {
    struct sw_plan *plan = layout->plan;
    const struct sw_units *units = plan->spec.units;
    const int64_t grain_bytes = SW_GRAIN_ELEMS * (int64_t)sizeof(float);
    struct {
        int64_t grains;
        bool waits; /* for another to leave the device */
    } working[2] = {{0},
                    {0}}; /* of experts that a group shares out, which take turns with their block, and of others */
    bool nvme = false;
    for (int64_t u = plan->first_trained; u < units->count; u++) {
        const struct sw_span trained = sw_plan_trained(plan, u);
        const bool sharded = sw_plan_reduces_groups(plan, u), groups = sw_plan_groups(plan) > 1 && !sharded;
        const int experts = sw_plan_joins_block(plan, u);
        if (trained.grains == 0)
            continue;
        if (sharded)
            add_slot(layout, SLOT_ACC_SHARD, u,
                     of_grains(layout, u, shard_room(layout, u, sw_plan_shard(plan, u)), grain_bytes, SW_CONTENT_NONE));
        if (u == 0 && units->tied)
            continue;
        const sw_tier tier = plan->placement[u].accumulator;
        if (groups) {
            struct sw_slot home = of_grains(layout, u, trained, grain_bytes, SW_CONTENT_NONE);
            home.tier = tier;
            add_slot(layout, SLOT_ACC, u, home);
        }
        if (!groups || tier != SW_DEVICE)
            working[experts].grains = sw_max_i64(working[experts].grains, trained.grains);
        working[experts].waits |= groups;
        nvme |= groups && tier == SW_NVME;
    }
    for (int experts = 0; experts < 2; experts++) {
        const int64_t grains = working[experts].grains;
        if (grains > 0)
            add_room(layout, experts ? SLOT_EXPERTS_ACC : SLOT_WORK_ACC, grains, grain_bytes);
        if (grains > 0 && working[experts].waits)
            add_room(layout, experts ? SLOT_OTHER_EXPERTS_ACC : SLOT_OTHER_WORK_ACC, grains, grain_bytes);
    }
    if (units->tied && sw_plan_trains(plan, 0))
        add_room(layout, SLOT_TABLE_ACC, sw_plan_trained_grains(plan, 0), grain_bytes);
    const int64_t chunk_bytes = ring_grains(plan) * grain_bytes;
    add_if(layout, nvme, SLOT_ACC_OUT, chunk_bytes, plan->spec.ring_chunks);
    add_if(layout, nvme, SLOT_ACC_IN, chunk_bytes, plan->spec.ring_chunks);
}

static void lay_sums(struct layout *layout) {
    const struct sw_units *units = layout->plan->spec.units;
    int64_t most_grains = 0, most_anywhere = 0;
    for (int64_t u = 0; u < units->count; u++) {
        most_grains = sw_max_i64(most_grains, sw_plan_trained_grains(layout->plan, u));
        most_anywhere = sw_max_i64(most_anywhere, sw_plan_trained_anywhere(layout->plan, u).grains);
    }
    add_if(layout, !layout->plan->spec.update_only, SLOT_SQUARE_SUMS_DEVICE, most_grains * (int64_t)sizeof(double),
           units->count);
    add_if(layout, true, SLOT_SQUARE_SUMS_HOST, most_anywhere * (int64_t)sizeof(double), units->count);
    add_slot(layout, SLOT_NORM, -1,
             (struct sw_slot){.unit = -1,
                              .resident = true,
                              .content = SW_CONTENT_NORM,
                              .piece_bytes = SW_BUFFER_ALIGN_BYTES,
                              .bytes = SW_BUFFER_ALIGN_BYTES,
                              .pieces = 1});
}

/* Returns the memory that lets the plan's largest reduction of gradients or rows pass in one round, if that is less
 * than what large messages need. A small model would otherwise clear mebibytes per rank that it never uses. Replicated
 * elements are few, and take more rounds if they do not fit. */
static int64_t staging_bytes(const struct sw_plan *plan) {
    const int ranks = sw_plan_job_ranks(plan);
    const struct sw_units *units = plan->spec.units;
    int64_t share = 0; /* most elements of one rank in one reduction, and of the frozen weights that are loaded */
    for (int64_t u = 0; u < units->count; u++) {
        const int64_t even = sw_shard_most_grains(units->unit[u].grains, sw_plan_unit_ranks(plan, u));
        share = sw_max_i64(share, SW_GRAIN_ELEMS * sw_max_i64(even, sw_plan_most_shard_grains(plan, u)));
    }
    if (sw_plan_group_ranks(plan) > 1)
        share = sw_max_i64(share, plan->spec.cost[0].output_bytes / sw_dtype_bytes(plan->spec.type));
    const int64_t pieces = sw_div_up(share, SW_COMM_PIECE_ELEMS);
    return sw_min_i64(sw_plan_staging_bytes(ranks), pieces * sw_comm_least_staging_bytes(ranks));
}

/* Adds the slots that any exchange between ranks needs. The summaries of all ranks lie one after the other. */
static void lay_ranks(struct layout *layout) {
    const struct sw_plan *plan = layout->plan;
    const int ranks = sw_plan_job_ranks(plan);
    const int64_t summary_bytes = sw_plan_summary_bytes(plan, plan->spec.train);
    add_if(layout, ranks > 1, SLOT_STAGING, staging_bytes(plan), 1);
    add_if(layout, ranks > 1, SLOT_SUMMARIES, ranks * summary_bytes, 1);
}

/* Returns the most grains of a bucket. Where matrices of Muon make large chunks, many ranks have none of a unit. */
static int64_t most_bucket_grains(const struct sw_plan *plan, int ranks) {
    int64_t most = 0;
    if (sw_plan_most_muon_grains(plan) == 0)
        return ranks * ring_grains(plan);
    for (int64_t u = plan->first_trained; u < plan->spec.units->count; u++)
        if (sw_plan_trains(plan, u))
            most = sw_max_i64(most, sw_plan_bucket_grains(plan, u, 0, sw_plan_unit_ranks(plan, u)));
    return most;
}

/* Adds the slots through which ranks exchange gradients. */
static void lay_exchange(struct layout *layout) {
    struct sw_plan *plan = layout->plan;
    /* With expert groups, all ranks share the embedding: more than share any experts. */
    const int ranks = sw_plan_unit_ranks(plan, 0);
    bool by_groups = false;
    const int64_t chunk = ring_grains(plan), wide = chunk * SW_GRAIN_ELEMS * (int64_t)sizeof(float);
    const int64_t typed = chunk * SW_GRAIN_ELEMS * sw_dtype_bytes(plan->spec.type);
    const bool quant = sw_plan_quantizes_grads(plan);
    const int64_t records = chunk * sw_quant_grain_bytes(plan->spec.reduce);
    bool away = false;
    for (int64_t u = plan->first_trained; u < plan->spec.units->count; u++) {
        away |= sw_plan_trains(plan, u) && tier_of(layout, SW_GRADS, u) != SW_DEVICE;
        by_groups |= sw_plan_trains(plan, u) && sw_plan_reduces_groups(plan, u);
    }
    const bool buckets = ranks > 1 && !quant && (plan->spec.zero >= SW_ZERO_GRADS || away);
    const int64_t bucket_grains = buckets || quant ? most_bucket_grains(plan, ranks) : 0;
    add_if(layout, buckets, SLOT_BUCKETS, sw_plan_typed_bytes(plan, bucket_grains), SW_BUCKETS);
    add_if(layout, quant, SLOT_QUANT_BUCKETS, bucket_grains * sw_quant_grain_bytes(plan->spec.reduce), SW_BUCKETS);
    add_if(layout, quant, SLOT_QUANT_PARTS, (ranks - 1) * records, SW_BUCKETS);
    const int nodes = sw_plan_reduce_nodes(plan);
    add_if(layout, nodes > 1, SLOT_NODE_SUMS, nodes * wide, SW_BUCKETS);
    add_if(layout, nodes > 1, SLOT_NODE_QUANT, nodes * records, SW_BUCKETS);
    add_if(layout, nodes > 1, SLOT_NODE_PARTS, (nodes - 1) * records, SW_BUCKETS);
    add_if(layout, quant && away && !by_groups, SLOT_REDUCED, typed, SW_BUCKETS);
    add_if(layout, by_groups, SLOT_BUCKET_SUMS, wide, SW_BUCKETS);
}

/* Tells which ways chunks of any unit go. */
struct traffic {
    bool grads_down, grads_out, grads_in, grads_up;
    bool optimizer, optimizer_up, weights, weights_in, weights_down;
};

static struct traffic traffic_of(const struct layout *layout) {
    struct traffic t = {0};
    for (int64_t u = 0; u < layout->plan->spec.units->count; u++) {
        t.weights_in |= tier_of(layout, SW_WEIGHTS, u) == SW_NVME;
        if (!layout->plan->spec.train || !sw_plan_trains(layout->plan, u))
            continue;
        const sw_tier grads = tier_of(layout, SW_GRADS, u), optimizer = tier_of(layout, SW_OPTIMIZER, u);
        const sw_tier weights = sw_plan_tier_of_trained(layout->plan, u);
        const bool on_device = sw_plan_updates_on_device(layout->plan, u);
        t.grads_down |=
            grads != SW_DEVICE && (sw_plan_unit_ranks(layout->plan, u) == 1 || sw_plan_reduces_groups(layout->plan, u));
        t.grads_out |= grads == SW_NVME;
        t.grads_in |= grads == SW_NVME || (grads == SW_DEVICE && !on_device);
        t.grads_up |= grads != SW_DEVICE && on_device;
        t.optimizer |= optimizer == SW_NVME || (optimizer == SW_DEVICE && sw_plan_saves(layout->plan));
        t.optimizer_up |= sw_plan_streams_optimizer(layout->plan, u);
        const bool joins = sw_plan_keeps_whole_weights(layout->plan, u);
        t.weights |= (!on_device && (weights != SW_HOST || joins)) || weights == SW_NVME;
        t.weights_down |= on_device && weights != SW_DEVICE && !joins;
    }
    return t;
}

/* Returns the room for a chunk of records. Packed ones are loaded in runs that begin and end at pages. */
static int64_t records_room(const struct sw_plan *plan, int64_t grains) {
    const int64_t group = sw_min_i64(grains, sw_records_group(plan->spec.units->optimizer));
    return sw_optimizer_is_packed(plan->spec.units->optimizer)
               ? sw_max_i64(sw_plan_most_chunk_bytes(plan), sw_plan_optimizer_bytes(plan, group))
               : sw_plan_optimizer_bytes(plan, grains);
}

static void lay_rings(struct layout *layout) {
    const struct sw_plan_spec *spec = &layout->plan->spec;
    const struct traffic t = traffic_of(layout);
    const int64_t chunk = ring_grains(layout->plan);
    const int64_t typed = chunk * SW_GRAIN_ELEMS * sw_dtype_bytes(spec->type);
    const int64_t grads = chunk * sw_plan_grain_bytes(layout->plan, SW_CONTENT_GRADS, 0);
    const int64_t optimizer = records_room(layout->plan, chunk);
    const int64_t ring = spec->ring_chunks, device_ring = sw_min_i64(ring, SW_DEVICE_RING_CHUNKS);
    add_if(layout, t.grads_down, SLOT_GRADS_DOWN, grads, device_ring);
    add_if(layout, t.grads_up, SLOT_GRADS_UP, grads, t.optimizer_up ? layout->plan->stream_chunks : device_ring);
    add_if(layout, t.weights_down, SLOT_WEIGHTS_DOWN, typed, device_ring);
    add_if(layout, t.optimizer_up, SLOT_OPTIMIZER_UP, optimizer, layout->plan->stream_chunks);
    add_if(layout, t.grads_out, SLOT_GRADS_OUT, grads, ring);
    add_if(layout, t.grads_in, SLOT_GRADS_IN, grads, ring);
    add_if(layout, t.weights_in, SLOT_WEIGHTS_IN, typed, ring);
    add_if(layout, sw_plan_in_place_bytes(layout->plan) > 0, SLOT_IN_PLACE, sw_store_room_bytes(typed),
           SW_STORE_IN_PLACE_READS);
    add_if(layout, muon_bytes(layout, false) > 0, SLOT_UPDATE_WORK, muon_bytes(layout, false), 1);
    /* Loading and saving pass through these two, so they always exist. */
    add_if(layout, true, SLOT_WEIGHTS_RING, typed, t.weights ? ring : 1);
    add_if(layout, true, SLOT_OPTIMIZER_RING, optimizer, t.optimizer ? ring : 1);
}

/* Adds the slots of a unit's optimizer state: two generations where every step commits; else one, which the plan
 * updates in place, and the engine knows which generation it is. */
static void lay_optimizer(struct layout *layout, int64_t unit) {
    struct sw_plan *plan = layout->plan;
    const int generations = plan->commit_every_step ? SW_STORE_GENERATIONS : 1;
    const sw_tier tier = tier_of(layout, SW_OPTIMIZER, unit);
    for (int g = 0; g < generations; g++)
        add_records(layout, SLOT_OPTIMIZER, tier, unit, SW_CONTENT_OPTIMIZER);
    if (sw_plan_saves(plan) && tier != SW_NVME)
        add_records(layout, SLOT_SAVED_OPTIMIZER, SW_NVME, unit, SW_CONTENT_NONE);
}

static void lay_gradients(struct layout *layout) {
    const struct sw_units *units = layout->plan->spec.units;
    const int64_t grain_bytes = sw_plan_grain_bytes(layout->plan, SW_CONTENT_GRADS, 0);
    for (int64_t u = layout->plan->first_trained; u < units->count; u++) {
        if (!sw_plan_trains(layout->plan, u))
            continue;
        if (!layout->plan->spec.update_only)
            add_state(layout, SLOT_GRADS, SW_GRADS, tier_of(layout, SW_GRADS, u), u, grain_bytes, SW_CONTENT_GRADS);
        lay_optimizer(layout, u);
    }
}

/* Tells whether the whole optimizer is on NVMe, in two generations. */
static bool commits_every_step(const struct sw_plan *plan) {
    bool all = plan->spec.train && !plan->spec.one_generation && !plan->spec.commits_by_saves;
    for (int64_t u = plan->first_trained; u < plan->spec.units->count; u++)
        all &= !sw_plan_trains(plan, u) || plan->placement[u].tier[SW_OPTIMIZER] == SW_NVME;
    return all;
}

/* Lays out the slots of weights and of passes. */
static void lay_passes(struct layout *layout) {
    lay_weights(layout);
    lay_frozen(layout);
    lay_bases(layout);
    lay_secondary(layout);
    lay_block_inputs(layout);
    lay_activations(layout);
    lay_caches(layout);
    lay_routing(layout);
}

/* Lays out all slots, and sets tier_bytes. */
static sw_status lay_all(struct layout *layout) {
    struct sw_plan *plan = layout->plan;
    for (int t = 0; t < SW_TIERS; t++)
        plan->tier_bytes[t] = 0;
    plan->commit_every_step = commits_every_step(plan);
    if (!plan->spec.update_only)
        lay_passes(layout);
    if (plan->spec.train) {
        lay_gradients(layout);
        lay_sums(layout);
        if (!plan->spec.update_only) {
            lay_accumulators(layout);
            lay_exchange(layout);
        }
    }
    lay_ranks(layout);
    lay_rings(layout);
    return layout->status;
}

sw_status sw_plan_layout(struct sw_plan *plan) {
    struct layout layout = {.plan = plan};
    plan->slot_count = 0;
    plan->piece_count = 0;
    free(plan->slot);
    plan->slot = NULL;
    SW_TRY(clear_index(plan));
    return lay_all(&layout);
}

/* Peaks that are remembered: more than the layouts of a search. */
enum { PEAKS_CAPACITY = 1 << 15, PEAKS_MOST = PEAKS_CAPACITY / 2 };

/* The peaks of a layout, by a hash of all that it depends on. */
struct peaks {
    uint64_t hash; /* 0: a free entry */
    int64_t tier_bytes[SW_TIERS];
};

struct sw_layout_peaks {
    struct peaks known[PEAKS_CAPACITY];
    int count;
};

sw_status sw_layout_peaks_create(struct sw_layout_peaks **out) {
    *out = calloc(1, sizeof **out);
    return *out != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory to compare plans");
}

void sw_layout_peaks_destroy(struct sw_layout_peaks *peaks) {
    free(peaks);
}

static uint64_t mix(uint64_t hash, uint64_t word) {
    hash = (hash ^ word) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ hash >> 32;
}

uint64_t sw_plan_hash(const struct sw_plan *plan) {
    uint64_t hash = mix(plan->trained_tier, (uint64_t)plan->spec.chunk_grains);
    hash = mix(hash, (uint64_t)plan->spec.ring_chunks);
    hash = mix(hash, (uint64_t)plan->stream_chunks);
    for (int64_t u = 0; u < plan->spec.units->count; u++) {
        const struct sw_unit_placement *at = &plan->placement[u];
        uint64_t word = sw_plan_updates_on_device(plan, u);
        for (int state = 0; state < SW_STATES; state++)
            word = word * SW_TIERS + at->tier[state];
        word = (word * SW_TIERS + at->accumulator) * SW_RECOMPUTES + plan->recompute[u];
        hash = mix(hash, word);
    }
    return hash != 0 ? hash : 1;
}

sw_status sw_plan_measure(struct sw_plan *plan) {
    struct sw_layout_peaks *all = plan->spec.peaks;
    struct layout layout = {.plan = plan, .measures = true};
    if (all == NULL)
        return lay_all(&layout);
    const uint64_t hash = mix(mix(sw_plan_hash(plan), plan->secondary_tier), (uint64_t)sw_plan_job_rank(plan)) | 1;
    struct peaks *peaks = &all->known[hash % PEAKS_CAPACITY];
    while (peaks->hash != 0 && peaks->hash != hash)
        peaks = peaks == &all->known[PEAKS_CAPACITY - 1] ? all->known : peaks + 1;
    if (peaks->hash == hash) {
        memcpy(plan->tier_bytes, peaks->tier_bytes, sizeof plan->tier_bytes);
        plan->commit_every_step = commits_every_step(plan);
        return SW_OK;
    }
    SW_TRY(lay_all(&layout));
    if (all->count == PEAKS_MOST)
        return SW_OK;
    all->count++;
    peaks->hash = hash;
    memcpy(peaks->tier_bytes, plan->tier_bytes, sizeof peaks->tier_bytes);
    return SW_OK;
}
