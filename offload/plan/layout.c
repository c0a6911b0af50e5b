/* Lays out the slots that a plan needs, each at its offset in its tier. */
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
/* Pieces of a ring of normalised inputs, or of their rows on the way back: the norm of one micro-batch runs ahead of
 * what reads that of another, and the head, or a norm's backward pass, comes back to that of a third. */
enum { NORMED_PIECES = 3 };

struct layout {
    struct sw_plan *plan;
    int32_t capacity;
    sw_status status;
};

static int32_t add_slot(struct layout *layout, struct sw_slot slot) {
    struct sw_plan *plan = layout->plan;
    if (layout->status != SW_OK)
        return UNUSED;
    if (plan->slot_count == layout->capacity) {
        layout->capacity = layout->capacity * 2 + 64;
        struct sw_slot *grown = realloc(plan->slot, (size_t)layout->capacity * sizeof *grown);
        if (grown == NULL) {
            layout->status = sw_fail(SW_ERR_NOMEM, "no memory for the plan's slots");
            return UNUSED;
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

/* Adds a slot of equal pieces, each aligned as a buffer of its own. */
static int32_t add_pieces(struct layout *layout, const char *name, sw_tier tier, int64_t piece_bytes, int64_t pieces) {
    const int64_t stride = sw_round_up(piece_bytes, SW_BUFFER_ALIGN_BYTES);
    return add_slot(layout, (struct sw_slot){.name = name,
                                             .tier = tier,
                                             .unit = -1,
                                             .piece_bytes = stride,
                                             .bytes = stride * pieces,
                                             .pieces = (int32_t)pieces});
}

/* Adds a slot of equal pieces where it is needed, else none. */
static int32_t add_if(struct layout *layout, bool needed, const char *name, sw_tier tier, int64_t piece_bytes,
                      int64_t pieces) {
    return needed ? add_pieces(layout, name, tier, piece_bytes, pieces) : UNUSED;
}

/* Adds a slot for contiguous grains of a unit's state, in pieces of one chunk. A shard takes as much on every rank, so
 * that all ranks decide alike. A `content` other than none is there from before the first step. */
static int32_t add_grains(struct layout *layout, const char *name, sw_tier tier, int64_t unit, struct sw_span span,
                          int64_t grain_bytes, sw_content content) {
    const struct sw_plan_spec *spec = &layout->plan->spec;
    const bool shard = unit >= 0 && span.grains < spec->units->unit[unit].grains;
    const int64_t grains =
        shard ? sw_shard_most_grains(spec->units->unit[unit].grains, sw_plan_ranks(layout->plan)) : span.grains;
    return add_slot(layout, (struct sw_slot){.name = name,
                                             .tier = tier,
                                             .unit = (int32_t)unit,
                                             .resident = content != SW_CONTENT_NONE,
                                             .content = content,
                                             .first_grain = span.first_grain,
                                             .grain_bytes = grain_bytes,
                                             .piece_bytes = spec->chunk_grains * grain_bytes,
                                             .bytes = grains * grain_bytes,
                                             .pieces = (int32_t)sw_div_up(grains, spec->chunk_grains)});
}

static int32_t add_unit(struct layout *layout, const char *name, sw_tier tier, int64_t unit, int64_t grains,
                        int64_t grain_bytes, sw_content content) {
    return add_grains(layout, name, tier, unit, (struct sw_span){.grains = grains}, grain_bytes, content);
}

/* Adds a slot for this rank's part of a unit's state. */
static int32_t add_state(struct layout *layout, sw_state state, sw_tier tier, int64_t unit, int64_t grain_bytes,
                         sw_content content) {
    return add_grains(layout, sw_state_name(state), tier, unit, sw_plan_kept(layout->plan, state, unit, tier),
                      grain_bytes, content);
}

static sw_status allocate_index(struct sw_plan *plan) {
    const size_t count = (size_t)plan->spec.units->count;
    struct sw_plan_index *index = plan->index;
    int32_t **arrays[] = {&index->acc_shard,       &index->weights, &index->grads,    &index->optimizer,
                          &index->saved_optimizer, &index->acc,     &index->input,    &index->saved,
                          &index->derived,         &index->cache,   &index->secondary};
    const size_t array_count = sizeof arrays / sizeof arrays[0];
    if (index->arrays == NULL)
        index->arrays = malloc(array_count * count * sizeof *index->arrays);
    if (index->arrays == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the plan's index");
    for (size_t i = 0; i < array_count * count; i++)
        index->arrays[i] = UNUSED;
    for (size_t a = 0; a < array_count; a++)
        *arrays[a] = index->arrays + a * count;
    return SW_OK;
}

static sw_tier tier_of(const struct layout *layout, sw_state state, int64_t unit) {
    return layout->plan->placement[unit].tier[state];
}

static void lay_weights(struct layout *layout) {
    struct sw_plan *plan = layout->plan;
    struct sw_plan_index *index = plan->index;
    const struct sw_units *units = plan->spec.units;
    int64_t largest = 0, largest_typed = 0;
    for (int64_t u = 0; u < units->count; u++) {
        const sw_tier tier = tier_of(layout, SW_WEIGHTS, u);
        int64_t *most = sw_plan_has_typed_slot(plan, u) ? &largest_typed : &largest;
        index->weights[u] =
            add_state(layout, SW_WEIGHTS, tier, u, sw_plan_weights_bytes(plan, u, 1), SW_CONTENT_WEIGHTS);
        if (!sw_plan_has_whole_on_device(plan, u) && !(u == 0 && (units->tied || sw_plan_gathers_rows(plan))))
            *most = sw_max_i64(*most, units->unit[u].grains);
    }
    const int64_t grain_bytes = sw_units_stored_bytes(plan->spec.units, plan->spec.type),
                  typed_bytes = sw_plan_typed_bytes(plan, 1);
    for (int64_t k = 0; k < UNIT_SLOTS_MAX; k++)
        index->unit_slot[k] =
            largest > 0 && k < plan->spec.unit_slots
                ? add_unit(layout, "weights of a unit", SW_DEVICE, -1, largest, grain_bytes, SW_CONTENT_NONE)
                : UNUSED;
    index->typed_slot = largest_typed > 0 ? add_unit(layout, "weights of a unit", SW_DEVICE, -1, largest_typed,
                                                     typed_bytes, SW_CONTENT_NONE)
                                          : UNUSED;
    int64_t most_grains = 0;
    for (int64_t u = 0; sw_plan_quantizes_weights(plan) && u < units->count; u++)
        most_grains = sw_max_i64(most_grains, units->unit[u].grains);
    index->quant_weights = most_grains == 0 ? UNUSED
                                            : add_unit(layout, "quantized weights", SW_DEVICE, -1, most_grains,
                                                       sw_quant_grain_bytes(plan->spec.gather), SW_CONTENT_NONE);
    const bool gathers = sw_plan_gathers_rows(plan);
    index->rows =
        add_if(layout, gathers, "embedding rows", SW_HOST, plan->spec.gathered_bytes, plan->spec.micro_batches);
    index->rows_ring = add_if(layout, gathers, "embedding rows", SW_DEVICE, plan->spec.gathered_bytes, INPUT_SPARE);
    /* With two generations the table stays: a speculated update leaves it there for the next step. */
    index->table_slot =
        sw_plan_fetches_table(plan)
            ? add_unit(layout, "table", SW_DEVICE, 0, units->unit[0].grains, typed_bytes,
                       plan->commit_every_step && sw_plan_trains(plan, 0) ? SW_CONTENT_WEIGHTS : SW_CONTENT_NONE)
            : UNUSED;
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
        plan->index->secondary[u] =
            add_slot(layout, (struct sw_slot){.name = "secondary weights",
                                              .tier = plan->secondary_tier,
                                              .unit = (int32_t)u,
                                              .first_grain = sw_plan_secondary(plan, u).first_grain,
                                              .grain_bytes = grain_bytes,
                                              .piece_bytes = chunk * grain_bytes,
                                              .bytes = grains * grain_bytes,
                                              .pieces = (int32_t)sw_div_up(grains, chunk)});
    }
}

static int64_t largest(const int64_t *bytes, int64_t first, int64_t end) {
    int64_t most = 0;
    for (int64_t u = first; u < end; u++)
        most = sw_max_i64(most, bytes[u]);
    return most;
}

/* Adds the rings of what a tensor group exchanges, and what its backward ops leave for each other. piece_bytes: of all
 * rows of a micro-batch. No more micro-batches are normalised ahead than a group has. */
static void lay_tensor_rings(struct layout *layout, int64_t piece_bytes) {
    const struct sw_plan *plan = layout->plan;
    struct sw_plan_index *index = plan->index;
    const int tensor_ranks = sw_plan_tensor_ranks(plan);
    const bool group = tensor_ranks > 1, sequence = sw_plan_is_sequence_parallel(plan);
    const int64_t micros = sw_plan_group(plan);
    index->whole_grad = add_if(layout, plan->spec.train && sequence, "block output gradient ring", SW_DEVICE,
                               piece_bytes, sw_min_i64(TENSOR_PIECES, micros));
    index->normed =
        add_if(layout, sequence, "normalised input ring", SW_DEVICE, piece_bytes, sw_min_i64(NORMED_PIECES, micros));
    index->norm_grad =
        add_if(layout, group && plan->spec.train, "norm gradient ring", SW_DEVICE, piece_bytes, TENSOR_PIECES);
    index->product_grad = add_if(layout, group && plan->spec.train && plan->spec.tensor.product_bytes > 0,
                                 "product gradient", SW_DEVICE, plan->spec.tensor.product_bytes, 1);
    index->softmax =
        add_if(layout, group, "softmax ring", SW_DEVICE, tensor_ranks * plan->spec.tensor.softmax_bytes, TENSOR_PIECES);
}

static void lay_block_inputs(struct layout *layout) {
    struct sw_plan *plan = layout->plan;
    struct sw_plan_index *index = plan->index;
    const struct sw_plan_spec *spec = &plan->spec;
    const int64_t group = sw_plan_group(plan), head = spec->units->count - 1;
    const bool sequence = sw_plan_is_sequence_parallel(plan);
    /* A piece of a slot that units share: whole, and of an input, which may be a rank's rows. */
    const int64_t whole = largest(spec->output_bytes, 0, head), bytes = sequence ? sw_plan_input_bytes(plan, 1) : whole;
    bool ring = !spec->train, away = false, nvme = false;
    for (int64_t u = 1; spec->train && u < head; u++) {
        const sw_tier tier = tier_of(layout, SW_ACTS, u);
        const bool kept = sw_plan_keeps_input(plan, u), apart = sw_plan_partitions_input(plan, u) && !sequence;
        ring |= !kept || tier != SW_DEVICE || apart;
        away |= kept && (tier != SW_DEVICE || apart);
        nvme |= kept && tier == SW_NVME;
        index->input[u] = add_if(layout, kept, "block input", tier, kept ? sw_plan_input_bytes(plan, u) : 0, group);
        if (index->input[u] >= 0)
            plan->slot[index->input[u]].unit = (int32_t)u;
    }
    /* The head's inputs are used at once; they need a home only where no ring carries them. */
    index->input[head] =
        ring ? UNUSED
             : add_pieces(layout, "block input", SW_DEVICE, sequence ? bytes : spec->output_bytes[head - 1], group);
    index->output_ring = add_if(layout, ring, "block input ring", SW_DEVICE, bytes, group + INPUT_SPARE);
    index->input_back =
        add_if(layout, away, "block input ring", SW_DEVICE, bytes, sequence ? NORMED_PIECES : INPUT_SPARE);
    index->input_out = add_if(layout, nvme, "block input ring", SW_HOST, bytes, INPUT_SPARE);
    index->input_in = add_if(layout, nvme, "block input ring", SW_HOST, bytes, INPUT_SPARE);
    index->output_grad = add_if(layout, spec->train, "block output gradient", SW_DEVICE, bytes, group);
    lay_tensor_rings(layout, spec->output_bytes[0]);
}

/* Adds slots for a kind of intermediates: one for each unit that computes no more than `most` again, and one that the
 * other units share, frozen ones among them, which is returned. */
static int32_t lay_intermediates(struct layout *layout, const char *name, const int64_t *bytes, sw_recompute most,
                                 int32_t *slots) {
    const struct sw_plan *plan = layout->plan;
    int64_t shared = 0;
    for (int64_t u = 1; u + 1 < plan->spec.units->count; u++) {
        if (plan->spec.train && sw_plan_trains(plan, u) && plan->recompute[u] <= most)
            slots[u] = add_if(layout, bytes[u] > 0, name, SW_DEVICE, bytes[u], sw_plan_group(plan));
        else
            shared = sw_max_i64(shared, bytes[u]);
    }
    return add_if(layout, shared > 0, name, SW_DEVICE, shared, 1);
}

static void lay_activations(struct layout *layout) {
    struct sw_plan *plan = layout->plan;
    struct sw_plan_index *index = plan->index;
    const struct sw_plan_spec *spec = &plan->spec;
    index->saved_shared = lay_intermediates(layout, "saved", spec->saved_bytes, SW_RECOMPUTE_DERIVED, index->saved);
    index->derived_shared =
        lay_intermediates(layout, "derived", spec->derived_bytes, SW_RECOMPUTE_NOTHING, index->derived);
    index->tokens = add_pieces(layout, "tokens", SW_DEVICE, spec->token_bytes, spec->micro_batches);
    /* Two steps' tokens: the next step's are written while this one's may still be on their way. */
    index->token_staging = add_pieces(layout, "tokens", SW_HOST, spec->token_bytes, 2 * spec->micro_batches);
    index->work = add_pieces(layout, "work", SW_DEVICE, spec->work_bytes, 1);
}

static void lay_caches(struct layout *layout) {
    const struct sw_plan_spec *spec = &layout->plan->spec;
    for (int64_t u = 0; spec->cache_bytes != NULL && u < spec->units->count; u++) {
        const int64_t bytes = sw_round_up(spec->cache_bytes[u], SW_BUFFER_ALIGN_BYTES);
        if (bytes > 0)
            layout->plan->index->cache[u] = add_slot(layout, (struct sw_slot){.name = "cache",
                                                                              .tier = SW_DEVICE,
                                                                              .unit = (int32_t)u,
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
    struct sw_plan_index *index = plan->index;
    const struct sw_units *units = plan->spec.units;
    const int64_t grain_bytes = SW_GRAIN_ELEMS * (int64_t)sizeof(float);
    const bool sharded = sw_plan_reduces_groups(plan), groups = sw_plan_groups(plan) > 1 && !sharded;
    int64_t working = 0;
    bool nvme = false;
    for (int64_t u = plan->spec.frozen_units; u < units->count; u++) {
        if (sharded)
            index->acc_shard[u] =
                add_grains(layout, "accumulator", SW_DEVICE, u, sw_plan_shard(plan, u), grain_bytes, SW_CONTENT_NONE);
        if (u == 0 && units->tied)
            continue;
        const sw_tier tier = plan->placement[u].accumulator;
        if (groups)
            index->acc[u] =
                add_unit(layout, "accumulator", tier, u, units->unit[u].grains, grain_bytes, SW_CONTENT_NONE);
        if (!groups || tier != SW_DEVICE)
            working = sw_max_i64(working, units->unit[u].grains);
        nvme |= groups && tier == SW_NVME;
    }
    for (int k = 0; k < 2; k++)
        index->work_acc[k] = working > 0 && (groups || k == 0)
                                 ? add_unit(layout, "accumulator", SW_DEVICE, -1, working, grain_bytes, SW_CONTENT_NONE)
                                 : UNUSED;
    index->table_acc =
        units->tied && sw_plan_trains(plan, 0)
            ? add_unit(layout, "table accumulator", SW_DEVICE, -1, units->unit[0].grains, grain_bytes, SW_CONTENT_NONE)
            : UNUSED;
    const int64_t chunk_bytes = plan->spec.chunk_grains * grain_bytes;
    index->acc_out = add_if(layout, nvme, "accumulator ring", SW_HOST, chunk_bytes, plan->spec.ring_chunks);
    index->acc_in = add_if(layout, nvme, "accumulator ring", SW_HOST, chunk_bytes, plan->spec.ring_chunks);
}

static void lay_sums(struct layout *layout) {
    struct sw_plan_index *index = layout->plan->index;
    const struct sw_units *units = layout->plan->spec.units;
    int64_t most_grains = 0;
    for (int64_t u = 0; u < units->count; u++)
        most_grains = sw_max_i64(most_grains, sw_plan_trained_grains(layout->plan, u));
    const int64_t bytes = most_grains * (int64_t)sizeof(double);
    index->square_sums_device = add_pieces(layout, "sums", SW_DEVICE, bytes, units->count);
    index->square_sums_host = add_pieces(layout, "sums", SW_HOST, bytes, units->count);
    index->norm = add_slot(layout, (struct sw_slot){.name = "norm",
                                                    .tier = SW_HOST,
                                                    .unit = -1,
                                                    .resident = true,
                                                    .content = SW_CONTENT_NORM,
                                                    .piece_bytes = SW_BUFFER_ALIGN_BYTES,
                                                    .bytes = SW_BUFFER_ALIGN_BYTES,
                                                    .pieces = 1});
}

/* Adds the slots that any exchange between ranks needs. The summaries of all ranks lie one after the other. */
static void lay_ranks(struct layout *layout) {
    const struct sw_plan *plan = layout->plan;
    const int ranks = sw_plan_job_ranks(plan);
    const int64_t summary_bytes = sw_plan_summary_bytes(plan, plan->spec.train);
    plan->index->staging = add_if(layout, ranks > 1, "reduction staging", SW_DEVICE, sw_plan_staging_bytes(ranks), 1);
    plan->index->summaries = add_if(layout, ranks > 1, "shared by ranks", SW_HOST, ranks * summary_bytes, 1);
}

/* Adds the slots through which ranks exchange gradients. */
static void lay_exchange(struct layout *layout) {
    struct sw_plan *plan = layout->plan;
    struct sw_plan_index *index = plan->index;
    const int ranks = sw_plan_ranks(plan);
    const int64_t typed = plan->spec.chunk_grains * SW_GRAIN_ELEMS * sw_dtype_bytes(plan->spec.type);
    const bool quant = sw_plan_quantizes_grads(plan);
    const int64_t records = plan->spec.chunk_grains * sw_quant_grain_bytes(plan->spec.reduce);
    bool away = false;
    for (int64_t u = plan->spec.frozen_units; u < plan->spec.units->count; u++)
        away |= tier_of(layout, SW_GRADS, u) != SW_DEVICE;
    const bool buckets = ranks > 1 && !quant && (plan->spec.zero >= SW_ZERO_GRADS || away);
    index->buckets = add_if(layout, buckets, "grads ring", SW_DEVICE, ranks * typed, SW_BUCKETS);
    index->quant_buckets = add_if(layout, quant, "quantized grads ring", SW_DEVICE, ranks * records, SW_BUCKETS);
    index->quant_parts = add_if(layout, quant, "quantized grads ring", SW_DEVICE, (ranks - 1) * records, SW_BUCKETS);
    const int nodes = sw_plan_reduce_nodes(plan);
    index->node_sums = add_if(layout, nodes > 1, "accumulator ring", SW_DEVICE,
                              nodes * plan->spec.chunk_grains * SW_GRAIN_ELEMS * (int64_t)sizeof(float), SW_BUCKETS);
    index->node_quant = add_if(layout, nodes > 1, "quantized grads ring", SW_DEVICE, nodes * records, SW_BUCKETS);
    index->node_parts = add_if(layout, nodes > 1, "quantized grads ring", SW_DEVICE, (nodes - 1) * records, SW_BUCKETS);
    index->reduced =
        add_if(layout, quant && away && !sw_plan_reduces_groups(plan), "grads ring", SW_DEVICE, typed, SW_BUCKETS);
    index->bucket_sums = add_if(layout, sw_plan_reduces_groups(plan), "accumulator ring", SW_DEVICE,
                                plan->spec.chunk_grains * SW_GRAIN_ELEMS * (int64_t)sizeof(float), SW_BUCKETS);
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
        const sw_tier weights = tier_of(layout, SW_WEIGHTS, u);
        const bool on_device = sw_plan_updates_on_device(layout->plan, u);
        t.grads_down |=
            grads != SW_DEVICE && (sw_plan_ranks(layout->plan) == 1 || sw_plan_reduces_groups(layout->plan));
        t.grads_out |= grads == SW_NVME;
        t.grads_in |= grads == SW_NVME || (grads == SW_DEVICE && !on_device);
        t.grads_up |= grads != SW_DEVICE && on_device;
        t.optimizer |= optimizer == SW_NVME || (optimizer == SW_DEVICE && sw_plan_saves(layout->plan));
        t.optimizer_up |= sw_plan_streams_optimizer(layout->plan, u);
        const bool joins = sw_plan_keeps_whole_weights(layout->plan);
        t.weights |= (!on_device && (weights != SW_HOST || joins)) || weights == SW_NVME;
        t.weights_down |= on_device && weights != SW_DEVICE && !joins;
    }
    return t;
}

static void lay_rings(struct layout *layout) {
    struct sw_plan_index *index = layout->plan->index;
    const struct sw_plan_spec *spec = &layout->plan->spec;
    const struct traffic t = traffic_of(layout);
    const int64_t typed = spec->chunk_grains * SW_GRAIN_ELEMS * sw_dtype_bytes(spec->type);
    const int64_t grads = spec->chunk_grains * sw_plan_grain_bytes(layout->plan, SW_CONTENT_GRADS, 0);
    const int64_t optimizer = sw_plan_optimizer_bytes(layout->plan, spec->chunk_grains);
    const int64_t ring = spec->ring_chunks, device_ring = sw_min_i64(ring, SW_DEVICE_RING_CHUNKS);
    index->grads_down = add_if(layout, t.grads_down, "grads ring", SW_DEVICE, grads, device_ring);
    index->grads_up = add_if(layout, t.grads_up, "grads ring", SW_DEVICE, grads,
                             t.optimizer_up ? layout->plan->stream_chunks : device_ring);
    index->weights_down = add_if(layout, t.weights_down, "weights ring", SW_DEVICE, typed, device_ring);
    index->optimizer_up =
        add_if(layout, t.optimizer_up, "optimizer ring", SW_DEVICE, optimizer, layout->plan->stream_chunks);
    index->grads_out = add_if(layout, t.grads_out, "grads ring", SW_HOST, grads, ring);
    index->grads_in = add_if(layout, t.grads_in, "grads ring", SW_HOST, grads, ring);
    index->weights_in = add_if(layout, t.weights_in, "weights ring", SW_HOST, typed, ring);
    /* Loading and saving pass through these two, so they always exist. */
    index->weights_ring = add_pieces(layout, "weights ring", SW_HOST, typed, t.weights ? ring : 1);
    index->optimizer_ring = add_pieces(layout, "optimizer ring", SW_HOST, optimizer, t.optimizer ? ring : 1);
}

/* Adds the slots of a unit's optimizer state: two generations where every step commits; else one, which the plan
 * updates in place, and the engine knows which generation it is. */
static void lay_optimizer(struct layout *layout, int64_t unit) {
    struct sw_plan *plan = layout->plan;
    const int generations = plan->commit_every_step ? SW_STORE_GENERATIONS : 1;
    const int64_t grain_bytes = sw_plan_optimizer_bytes(plan, 1);
    for (int g = 0; g < generations; g++) {
        const int32_t slot = add_state(layout, SW_OPTIMIZER, tier_of(layout, SW_OPTIMIZER, unit), unit, grain_bytes,
                                       SW_CONTENT_OPTIMIZER);
        if (g == 0)
            plan->index->optimizer[unit] = slot;
    }
    if (sw_plan_saves(plan) && tier_of(layout, SW_OPTIMIZER, unit) != SW_NVME)
        plan->index->saved_optimizer[unit] =
            add_state(layout, SW_OPTIMIZER, SW_NVME, unit, grain_bytes, SW_CONTENT_NONE);
}

static void lay_gradients(struct layout *layout) {
    struct sw_plan_index *index = layout->plan->index;
    const struct sw_units *units = layout->plan->spec.units;
    const int64_t grain_bytes = sw_plan_grain_bytes(layout->plan, SW_CONTENT_GRADS, 0);
    for (int64_t u = layout->plan->spec.frozen_units; u < units->count; u++) {
        index->grads[u] = add_state(layout, SW_GRADS, tier_of(layout, SW_GRADS, u), u, grain_bytes, SW_CONTENT_GRADS);
        lay_optimizer(layout, u);
    }
}

/* Tells whether the whole optimizer is on NVMe, in two generations. */
static bool commits_every_step(const struct sw_plan *plan) {
    bool all = plan->spec.train && !plan->spec.one_generation;
    for (int64_t u = plan->spec.frozen_units; u < plan->spec.units->count; u++)
        all &= plan->placement[u].tier[SW_OPTIMIZER] == SW_NVME;
    return all;
}

sw_status sw_plan_layout(struct sw_plan *plan) {
    struct sw_plan_index *index = plan->index;
    struct layout layout = {.plan = plan};
    plan->slot_count = 0;
    plan->piece_count = 0;
    free(plan->slot);
    plan->slot = NULL;
    for (int t = 0; t < SW_TIERS; t++)
        plan->tier_bytes[t] = 0;
    SW_TRY(allocate_index(plan));
    plan->commit_every_step = commits_every_step(plan);
    lay_weights(&layout);
    lay_secondary(&layout);
    lay_block_inputs(&layout);
    lay_activations(&layout);
    lay_caches(&layout);
    index->work_acc[0] = index->work_acc[1] = index->table_acc = index->acc_out = index->acc_in = UNUSED;
    index->square_sums_device = index->square_sums_host = index->norm = UNUSED;
    index->buckets = index->bucket_sums = UNUSED;
    index->quant_buckets = index->quant_parts = index->reduced = UNUSED;
    index->node_sums = index->node_quant = index->node_parts = UNUSED;
    if (plan->spec.train) {
        lay_gradients(&layout);
        lay_accumulators(&layout);
        lay_sums(&layout);
        lay_exchange(&layout);
    }
    lay_ranks(&layout);
    lay_rings(&layout);
    return layout.status;
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
    uint64_t hash = mix(0, (uint64_t)plan->spec.chunk_grains);
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
    if (all == NULL)
        return sw_plan_layout(plan);
    const uint64_t hash = mix(mix(sw_plan_hash(plan), plan->secondary_tier), (uint64_t)plan->spec.rank) | 1;
    struct peaks *peaks = &all->known[hash % PEAKS_CAPACITY];
    while (peaks->hash != 0 && peaks->hash != hash)
        peaks = peaks == &all->known[PEAKS_CAPACITY - 1] ? all->known : peaks + 1;
    if (peaks->hash == hash) {
        memcpy(plan->tier_bytes, peaks->tier_bytes, sizeof plan->tier_bytes);
        plan->commit_every_step = commits_every_step(plan);
        return SW_OK;
    }
    SW_TRY(sw_plan_layout(plan));
    if (all->count == PEAKS_MOST)
        return SW_OK;
    all->count++;
    peaks->hash = hash;
    memcpy(peaks->tier_bytes, plan->tier_bytes, sizeof peaks->tier_bytes);
    return SW_OK;
}
