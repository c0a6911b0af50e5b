/* Answers questions about a plan. Every other file asks here and derives none of it by itself. */
#include "core/ranks/comm.h"
#include "core/size.h"
#include "offload/plan/plan_private.h"

#include <string.h>

int sw_plan_group_rank(const struct sw_plan *plan) {
    const int member = plan->spec.experts.ranks > 1 ? plan->spec.experts.rank : 0;
    return member * sw_plan_tensor_ranks(plan) + plan->spec.tensor.rank;
}

bool sw_plan_shares_experts(const struct sw_plan *plan, int64_t unit) {
    return plan->spec.units->unit[unit].shared_out;
}

bool sw_plan_joins_block(const struct sw_plan *plan, int64_t unit) {
    return sw_plan_shares_experts(plan, unit) && sw_plan_tensor_ranks(plan) == 1;
}

bool sw_plan_sends_rows(const struct sw_plan *plan, int64_t unit) {
    return unit + 1 < plan->spec.units->count && sw_plan_joins_block(plan, unit + 1);
}

int sw_plan_unit_rank(const struct sw_plan *plan, int64_t unit) {
    return plan->spec.experts.ranks > 1 && !sw_plan_shares_experts(plan, unit)
               ? sw_plan_job_rank(plan) / sw_plan_tensor_ranks(plan)
               : plan->spec.rank;
}

sw_among sw_plan_replicated_among(const struct sw_plan *plan, int64_t unit) {
    return sw_plan_expert_ranks(plan) > 1 && sw_plan_shares_experts(plan, unit) ? SW_AMONG_EXPERTS : SW_AMONG_TENSOR;
}

/* Experts are reduced in their group at once, over its tensor groups and within these. */
sw_among sw_plan_among(const struct sw_plan *plan, const struct sw_op *op) {
    const sw_among among = sw_ops[op->kind].among;
    if (among != SW_AMONG_TENSOR || op->sends)
        return op->sends ? SW_AMONG_SENDERS : among;
    return op->kind == SW_OP_GATHER_TENSOR ? SW_AMONG_TENSOR : sw_plan_replicated_among(plan, op->unit);
}

int64_t sw_plan_micro_rows(const struct sw_plan *plan) {
    return plan->spec.experts.ranks > 1 ? plan->spec.experts.rows : plan->spec.tensor.rows;
}

int sw_plan_job_ranks(const struct sw_plan *plan) {
    return sw_plan_ranks(plan) * sw_plan_group_ranks(plan) * sw_plan_stages(plan);
}

int sw_plan_job_rank(const struct sw_plan *plan) {
    const int stage = sw_plan_stages(plan) > 1 ? plan->spec.pipeline.stage : 0;
    return (stage * sw_plan_ranks(plan) + plan->spec.rank) * sw_plan_group_ranks(plan) + sw_plan_group_rank(plan);
}

int sw_plan_stage_of(const struct sw_plan *plan, int64_t unit) {
    const int stages = sw_plan_stages(plan), last = stages * sw_plan_turns(plan) - 1;
    int number = 0;
    while (number < last && unit >= plan->spec.pipeline.bound[number + 1])
        number++;
    return number % stages;
}

bool sw_stage_trains(const struct sw_plan_pipeline *pipeline, int stage, const struct sw_units *units) {
    const int numbers = pipeline->stages * (pipeline->turns > 1 ? pipeline->turns : 1);
    const bool table = units->tied && stage + 1 == pipeline->stages;
    bool any = table && units->unit[0].trained_grain < units->unit[0].grains;
    for (int number = stage; number < numbers; number += pipeline->stages)
        for (int64_t u = pipeline->bound[number]; u < pipeline->bound[number + 1]; u++)
            any |= units->unit[u].trained_grain < units->unit[u].grains;
    return any;
}

/* Returns the numbers of the turn in which this rank's stage computes a unit; NULL: there are no stages, or another
 * stage does. */
static const struct sw_stage_turn *turn_with(const struct sw_plan *plan, int64_t unit) {
    const int turn = sw_plan_stages(plan) > 1 ? sw_plan_turn_of(plan, unit) : -1;
    return turn >= 0 ? &plan->schedule->turn[turn] : NULL;
}

static bool is_received(const struct sw_plan *plan, int64_t unit) {
    return unit > 0 && unit == sw_plan_first_unit(plan, sw_max_i64(0, sw_plan_turn_of(plan, unit)));
}

int64_t sw_plan_groups_in_flight(const struct sw_plan *plan, int64_t unit) {
    const struct sw_stage_turn *turn = turn_with(plan, unit);
    return turn != NULL ? turn->in_flight : 1;
}

int64_t sw_plan_input_pieces(const struct sw_plan *plan, int64_t unit) {
    const struct sw_stage_turn *turn = turn_with(plan, unit);
    return turn != NULL && is_received(plan, unit) ? sw_plan_group(plan) * turn->inputs
                                                   : sw_plan_group(plan) * sw_plan_groups_in_flight(plan, unit);
}

int64_t sw_plan_received_pieces(const struct sw_plan *plan, int64_t unit) {
    const struct sw_stage_turn *turn = turn_with(plan, unit);
    return turn != NULL && is_received(plan, unit) ? sw_plan_group(plan) * turn->received : 0;
}

bool sw_plan_copies_table(const struct sw_plan *plan) {
    return sw_plan_stages(plan) > 1 && plan->spec.units->tied && sw_plan_trains(plan, 0);
}

/* Rank n · tensor ranks + t of an expert group has the same rows as rank t of its tensor group. */
struct sw_span sw_plan_rows_of(const struct sw_plan *plan, sw_among among, int number) {
    const int64_t rows = sw_plan_micro_rows(plan);
    const int tensor_ranks = among == SW_AMONG_SENDERS ? 1 : sw_plan_tensor_ranks(plan);
    struct sw_span at = sw_shard(rows, tensor_ranks, number % tensor_ranks);
    at.first_grain += number / tensor_ranks * rows;
    return at;
}

struct sw_span sw_plan_own_rows(const struct sw_plan *plan) {
    return sw_plan_rows_of(plan, SW_AMONG_TENSOR, plan->spec.tensor.rank);
}

bool sw_plan_all_gathers_weights(const struct sw_plan *plan, int64_t unit) {
    return sw_plan_is_sharded(plan, unit, SW_OPTIMIZER);
}

bool sw_plan_keeps_whole_weights(const struct sw_plan *plan, int64_t unit) {
    return sw_plan_all_gathers_weights(plan, unit) && !sw_plan_is_sharded(plan, unit, SW_WEIGHTS);
}

bool sw_plan_has_typed_slot(const struct sw_plan *plan, int64_t unit) {
    const struct sw_units *units = plan->spec.units;
    return sw_units_narrow_blocks(units) && (unit == 0 || unit + 1 == units->count);
}

/* The units that take turns in the same slots: how many they are, their slots, and the first unit behind the last. */
struct turns {
    int64_t units, slots, end;
};

static struct turns turns_of(const struct sw_plan *plan, int64_t unit) {
    const struct sw_units *units = plan->spec.units;
    const int64_t table = units->tied;
    if (!sw_units_narrow_blocks(units))
        return (struct turns){.units = units->count - table, .slots = plan->spec.unit_slots, .end = units->count};
    return sw_plan_has_typed_slot(plan, unit)
               ? (struct turns){.units = 2 - table, .slots = 1, .end = units->count}
               : (struct turns){.units = units->count - 2, .slots = plan->spec.unit_slots, .end = units->count - 1};
}

/* Tells whether ranks that share weights gather a unit in several spans: its base, its frozen and its trained weights.
 */
static bool has_spans(const struct sw_plan *plan, int64_t unit) {
    return sw_plan_frozen(plan, unit).grains > 0 || plan->spec.units->unit[unit].base_grains > 0;
}

/* A unit is gathered again in the backward pass, unless the device still holds it: the last blocks, and a tied table,
 * which has a slot of its own. The head runs once for each group of micro-batches, as all units do. */
bool sw_plan_keeps_secondary(const struct sw_plan *plan, int64_t unit) {
    const struct sw_plan_spec *spec = &plan->spec;
    const struct turns turns = turns_of(plan, unit);
    if (!spec->train || spec->secondary_ranks < 2 || !sw_plan_is_sharded(plan, unit, SW_WEIGHTS) ||
        has_spans(plan, unit) || (unit == 0 && spec->units->tied) || turns.units <= turns.slots)
        return false;
    return sw_plan_groups(plan) > 1 || (unit > 0 && sw_plan_passes_back(plan, unit) && unit + turns.slots < turns.end);
}

bool sw_plan_reduces_groups(const struct sw_plan *plan, int64_t unit) {
    if (sw_plan_stages(plan) > 1)
        return false;
    return sw_plan_unit_ranks(plan, unit) > 1 && plan->spec.zero >= SW_ZERO_GRADS && sw_plan_groups(plan) > 1;
}

/* Jobs in which units have different sharers quantize nothing. */
bool sw_plan_quantizes_weights(const struct sw_plan *plan) {
    return sw_plan_is_sharded(plan, 0, SW_WEIGHTS) && plan->spec.gather != SW_QUANT_NONE;
}

bool sw_plan_gathers_quantized(const struct sw_plan *plan, int64_t unit) {
    return sw_plan_quantizes_weights(plan) && !has_spans(plan, unit);
}

bool sw_plan_quantizes_grads(const struct sw_plan *plan) {
    return sw_plan_is_sharded(plan, 0, SW_GRADS) && plan->spec.reduce != SW_QUANT_NONE;
}

bool sw_plan_fetches_table(const struct sw_plan *plan) {
    return plan->spec.units->tied && sw_plan_holds(plan, 0) && !sw_plan_has_whole_on_device(plan, 0);
}

/* Rows are not gathered where the whole embedding is on the device anyway: an update there, or a gather from the ranks,
 * leaves it there. */
bool sw_plan_gathers_rows(const struct sw_plan *plan) {
    const struct sw_plan_spec *spec = &plan->spec;
    const int64_t whole_bytes = spec->units->unit[0].elems * sw_dtype_bytes(spec->type);
    const sw_tier *tier = plan->placement[0].tier;
    const bool made_on_device = spec->train && sw_plan_trains(plan, 0) && tier[SW_OPTIMIZER] == SW_DEVICE;
    return spec->gathered_bytes > 0 && !spec->units->tied && sw_plan_ranks(plan) == 1 &&
           tier[SW_WEIGHTS] != SW_DEVICE && !made_on_device && sw_plan_frozen_chunks(plan, 0) == 0 &&
           spec->gathered_bytes <= whole_bytes / spec->micro_batches;
}

/* Returns how many grains of a span of a unit, its first ones, Muon updates. */
static int64_t muon_grains_of(const struct sw_unit *unit, struct sw_span span) {
    return sw_unit_has_muon(unit) ? sw_max_i64(0, sw_min_i64(unit->adamw_grain - span.first_grain, span.grains)) : 0;
}

int64_t sw_plan_muon_grains(const struct sw_plan *plan, int64_t unit, struct sw_span at) {
    return muon_grains_of(&plan->spec.units->unit[unit], at);
}

int64_t sw_plan_most_muon_grains(const struct sw_plan *plan) {
    int64_t most = 0;
    for (int64_t u = 0; plan->spec.train && u < plan->spec.units->count; u++) {
        const struct sw_unit *unit = &plan->spec.units->unit[u];
        const int ranks = sw_plan_is_sharded(plan, u, SW_OPTIMIZER) ? sw_plan_unit_ranks(plan, u) : 1;
        for (int rank = 0; rank < ranks && sw_unit_has_muon(unit); rank++)
            most = sw_max_i64(most, muon_grains_of(unit, sw_unit_shard(unit, u, ranks, rank)));
    }
    return most;
}

bool sw_plan_saves(const struct sw_plan *plan) {
    return plan->spec.train && !plan->commit_every_step && !plan->spec.one_generation;
}

/* Ranks speculate on nothing: whether it pays is each one's own measurement. */
bool sw_plan_may_speculate(const struct sw_plan *plan) {
    return plan->commit_every_step && sw_plan_job_ranks(plan) == 1;
}

bool sw_plan_has_program(const struct sw_plan *plan, sw_program_kind kind) {
    if (plan->spec.update_only)
        return kind == SW_PROGRAM_START || kind == SW_PROGRAM_FLUSH_UPDATE;
    switch (kind) {
    case SW_PROGRAM_LOSS: return true;
    case SW_PROGRAM_LOGITS: /* a pass of one token, as inference has them, has too few rows to share out */
        return sw_plan_stages(plan) == 1 && (plan->spec.train || !sw_plan_is_sequence_parallel(plan));
    case SW_PROGRAM_START:
    case SW_PROGRAM_UPDATE:
    case SW_PROGRAM_FLUSH_UPDATE: return plan->spec.train;
    case SW_PROGRAM_UPDATE_SAVE: return sw_plan_saves(plan);
    default: return sw_plan_may_speculate(plan);
    }
}

bool sw_program_repeats(sw_program_kind kind) {
    return kind == SW_PROGRAM_UPDATE || kind == SW_PROGRAM_UPDATE_SAVE || kind == SW_PROGRAM_REDO_SPECULATE ||
           kind == SW_PROGRAM_LOSS || kind == SW_PROGRAM_LOGITS;
}

bool sw_plan_keeps_input(const struct sw_plan *plan, int64_t unit) {
    const bool inner = unit > 0 && unit + 1 < plan->spec.units->count;
    int64_t last = unit; /* the last of the units that share this input */
    if (!inner || plan->spec.cost[unit].shares_input || !sw_plan_computes(plan, unit))
        return false;
    while (last + 2 < plan->spec.units->count && plan->spec.cost[last + 1].shares_input)
        last++;
    return sw_plan_passes_back(plan, last);
}

int64_t sw_plan_backward_input(const struct sw_plan *plan, int64_t unit) {
    while (!sw_plan_keeps_input(plan, unit))
        unit--;
    return unit;
}

bool sw_plan_recalls_rows(const struct sw_plan *plan, int64_t unit) {
    return sw_plan_partitions_input(plan, unit) && !sw_plan_is_sequence_parallel(plan) &&
           sw_plan_keeps_input(plan, unit) && plan->recompute[unit] == SW_RECOMPUTE_NOTHING &&
           !sw_plan_shares_experts(plan, unit);
}

bool sw_plan_recalls_normed(const struct sw_plan *plan, int64_t unit) {
    return sw_plan_is_sequence_parallel(plan) && plan->recompute[unit] == SW_RECOMPUTE_UNIT;
}

int64_t sw_plan_row_bytes(const struct sw_plan *plan) {
    return plan->spec.cost[0].output_bytes / sw_plan_micro_rows(plan);
}

int64_t sw_plan_input_bytes(const struct sw_plan *plan, int64_t unit) {
    return sw_plan_partitions_input(plan, unit)
               ? sw_shard_most_grains(plan->spec.tensor.rows, plan->spec.tensor.ranks) * sw_plan_row_bytes(plan)
               : plan->spec.cost[unit - 1].output_bytes;
}

int64_t sw_plan_input_pages(const struct sw_plan *plan, int64_t unit) {
    return sw_div_up(sw_plan_input_bytes(plan, unit), SW_BUFFER_ALIGN_BYTES);
}

bool sw_plan_fits(const struct sw_plan *plan) {
    return plan->tier_bytes[SW_DEVICE] <= plan->spec.budget_bytes[SW_DEVICE] &&
           plan->tier_bytes[SW_HOST] <= plan->spec.budget_bytes[SW_HOST];
}

int32_t sw_plan_resident(const struct sw_plan *plan, sw_state state, int64_t unit) {
    const int32_t *const slots[SW_STATES] = {
        [SW_GRADS] = plan->index->of_unit[SLOT_GRADS], [SW_OPTIMIZER] = plan->index->of_unit[SLOT_OPTIMIZER]};
    if (slots[state] == NULL || plan->placement[unit].tier[state] == SW_NVME)
        return -1;
    return slots[state][unit];
}

static bool has_both_spans(const struct sw_plan *plan, int64_t unit) {
    return sw_plan_trains(plan, unit) && sw_plan_trained(plan, unit).first_grain > 0;
}

sw_tier sw_plan_tier_of_trained(const struct sw_plan *plan, int64_t unit) {
    const sw_tier tier = plan->placement[unit].tier[SW_WEIGHTS];
    return tier == SW_NVME && has_both_spans(plan, unit) ? plan->trained_tier : tier;
}

int64_t sw_plan_units_beside(const struct sw_plan *plan) {
    int64_t count = 0;
    for (int64_t u = 0; u < plan->spec.units->count; u++)
        count += plan->placement[u].tier[SW_WEIGHTS] == SW_NVME && has_both_spans(plan, u);
    return count;
}

bool sw_plan_splits_weights(const struct sw_plan *plan, int64_t unit) {
    return has_both_spans(plan, unit) &&
           (sw_plan_is_sharded(plan, unit, SW_WEIGHTS) ||
            sw_plan_tier_of_trained(plan, unit) != plan->placement[unit].tier[SW_WEIGHTS]);
}

int32_t sw_plan_weights_home(const struct sw_plan *plan, int64_t unit, int64_t grain) {
    const bool is_frozen = sw_plan_splits_weights(plan, unit) && grain < sw_plan_trained(plan, unit).first_grain;
    return plan->index->of_unit[is_frozen ? SLOT_FROZEN : SLOT_WEIGHTS][unit];
}

int32_t sw_plan_base_home(const struct sw_plan *plan, int64_t unit) {
    return plan->index->of_unit[SLOT_BASE][unit];
}

int32_t sw_plan_kept_input(const struct sw_plan *plan, int64_t unit) {
    return sw_plan_keeps_input(plan, unit) ? plan->index->of_unit[SLOT_INPUT][unit] : -1;
}

int32_t sw_plan_buffer(const struct sw_plan *plan, sw_buffer which) {
    const int32_t slots[SW_BUFFERS] = {
        [SW_BUFFER_TOKENS] = plan->index->slot[SLOT_TOKEN_STAGING],
        [SW_BUFFER_WORK] = plan->index->slot[SLOT_WORK],
        [SW_BUFFER_REDUCTIONS] = plan->index->slot[SLOT_STAGING],
        [SW_BUFFER_SUMMARIES] = plan->index->slot[SLOT_SUMMARIES],
        [SW_BUFFER_OPTIMIZER] = plan->index->slot[SLOT_OPTIMIZER_RING],
        [SW_BUFFER_WEIGHTS] = plan->index->slot[SLOT_WEIGHTS_RING],
        [SW_BUFFER_ROUTING] = plan->index->slot[SLOT_ROUTING],
        [SW_BUFFER_IN_PLACE] = plan->index->slot[SLOT_IN_PLACE],
    };
    return slots[which];
}

bool sw_plan_units_are_alike(const struct sw_plan *plan, int64_t a, int64_t b) {
    const struct sw_plan_spec *spec = &plan->spec;
    const int64_t head = spec->units->count - 1;
    if (a == b)
        return true;
    if (a == 0 || b == 0 || a == head || b == head)
        return false;
    const bool kept = sw_plan_keeps_input(plan, a);
    return sw_plan_trains(plan, a) == sw_plan_trains(plan, b) &&
           sw_plan_computes(plan, a) == sw_plan_computes(plan, b) &&
           sw_plan_input_pieces(plan, a) == sw_plan_input_pieces(plan, b) &&
           sw_plan_received_pieces(plan, a) == sw_plan_received_pieces(plan, b) &&
           sw_plan_groups_in_flight(plan, a) == sw_plan_groups_in_flight(plan, b) &&
           sw_plan_passes_back(plan, a) == sw_plan_passes_back(plan, b) &&
           sw_plan_trained(plan, a).first_grain == sw_plan_trained(plan, b).first_grain &&
           sw_plan_continues(plan, a) == sw_plan_continues(plan, b) &&
           sw_plan_shares_experts(plan, a) == sw_plan_shares_experts(plan, b) &&
           spec->units->unit[a].grains == spec->units->unit[b].grains &&
           spec->units->unit[a].base_grains == spec->units->unit[b].base_grains &&
           spec->units->unit[a].adamw_grain == spec->units->unit[b].adamw_grain &&
           sw_plan_shard(plan, a).grains == sw_plan_shard(plan, b).grains && sw_plan_keeps_input(plan, b) == kept &&
           (!kept || spec->cost[a - 1].output_bytes == spec->cost[b - 1].output_bytes) &&
           spec->cost[a].saved_bytes == spec->cost[b].saved_bytes &&
           spec->cost[a].derived_bytes == spec->cost[b].derived_bytes && plan->recompute[a] == plan->recompute[b] &&
           spec->update_on_device[a] == spec->update_on_device[b] &&
           memcmp(&plan->placement[a], &plan->placement[b], sizeof plan->placement[a]) == 0;
}

bool sw_plan_reads_in_place(const struct sw_plan *plan, int64_t unit) {
    return plan->spec.train && plan->spec.units->unit[unit].in_place &&
           plan->placement[unit].tier[SW_WEIGHTS] == SW_NVME && sw_plan_own_frozen(plan, unit).grains > 0;
}

int64_t sw_plan_in_place_bytes(const struct sw_plan *plan) {
    int64_t bytes = 0;
    for (int64_t u = 0; u < plan->spec.units->count; u++)
        if (sw_plan_reads_in_place(plan, u))
            bytes += sw_plan_weights_bytes(plan, u, sw_plan_own_frozen(plan, u).grains);
    return bytes;
}

bool sw_plan_uses_nvme(const struct sw_plan *plan) {
    for (int64_t u = 0; u < plan->spec.units->count; u++)
        for (int state = 0; state < SW_STATES; state++)
            if (plan->placement[u].tier[state] == SW_NVME)
                return true;
    return false;
}

/* Divides units into shards and chunks. */

/* Messages above about 1 MiB a peer bring nothing. */
#define STAGING_BYTES (8 * SW_MIB)

int64_t sw_plan_staging_bytes(int ranks) {
    return sw_max_i64(STAGING_BYTES, sw_comm_least_staging_bytes(ranks));
}

static int64_t unit_grains(const struct sw_plan *plan, int64_t unit) {
    return plan->spec.units->unit[unit].grains;
}

int64_t sw_plan_frozen_chunks(const struct sw_plan *plan, int64_t unit) {
    return sw_div_up(sw_plan_frozen(plan, unit).grains, plan->spec.chunk_grains);
}

bool sw_plan_chunk_is_frozen(const struct sw_plan *plan, int64_t unit, int64_t index) {
    return !sw_plan_trains(plan, unit) || index < sw_plan_frozen_chunks(plan, unit);
}

int64_t sw_plan_slot_grain(const struct sw_plan *plan, int32_t slot, sw_content content, int64_t unit) {
    const bool weights = content == SW_CONTENT_WEIGHTS || content == SW_CONTENT_QUANT_WEIGHTS;
    if (plan->slot[slot].unit >= 0)
        return plan->slot[slot].first_grain;
    if (content == SW_CONTENT_BASE)
        return 0;
    return weights ? sw_plan_typed(plan, unit).first_grain - sw_plan_lead_grains(plan, unit)
                   : sw_plan_trained(plan, unit).first_grain;
}

int64_t sw_plan_weights_bytes(const struct sw_plan *plan, int64_t unit, int64_t grains) {
    return grains * sw_units_weights_bytes(plan->spec.units, unit, plan->spec.type);
}

int64_t sw_plan_optimizer_bytes(const struct sw_plan *plan, int64_t grains) {
    return grains * sw_optimizer_grain_bytes(plan->spec.units->optimizer);
}

struct sw_records sw_plan_records(const struct sw_plan *plan, int64_t unit) {
    return sw_records(plan->spec.units->optimizer,
                      muon_grains_of(&plan->spec.units->unit[unit], sw_plan_span(plan, SW_OPTIMIZER, unit)));
}

int64_t sw_plan_record_distance(const struct sw_plan *plan, int64_t unit, int64_t from, int64_t to) {
    const int64_t first = sw_plan_span(plan, SW_OPTIMIZER, unit).first_grain;
    const struct sw_records records = sw_plan_records(plan, unit);
    return sw_record_at(&records, to - first) - sw_record_at(&records, from - first);
}

int64_t sw_plan_records_bytes(const struct sw_plan *plan, int64_t unit, struct sw_span at) {
    if (!sw_optimizer_is_packed(plan->spec.units->optimizer))
        return sw_plan_optimizer_bytes(plan, at.grains);
    const struct sw_records records = sw_plan_records(plan, unit);
    return sw_records_bytes(&records, at.first_grain - sw_plan_span(plan, SW_OPTIMIZER, unit).first_grain, at.grains);
}

int64_t sw_plan_content_bytes(const struct sw_plan *plan, sw_content content, int64_t unit, struct sw_span at) {
    return content == SW_CONTENT_OPTIMIZER ? sw_plan_records_bytes(plan, unit, at)
                                           : at.grains * sw_plan_grain_bytes(plan, content, unit);
}

int64_t sw_plan_state_bytes(const struct sw_plan *plan, int64_t unit) {
    return sw_plan_records_bytes(plan, unit, sw_plan_span(plan, SW_OPTIMIZER, unit));
}

/* Returns how many ranks share a unit's optimizer state. */
static int sharers_of(const struct sw_plan *plan, int64_t unit) {
    return sw_plan_is_sharded(plan, unit, SW_OPTIMIZER) ? sw_plan_unit_ranks(plan, unit) : 1;
}

int64_t sw_plan_most_chunk_bytes(const struct sw_plan *plan) {
    const struct sw_units *units = plan->spec.units;
    const int64_t chunk = plan->spec.chunk_grains;
    int64_t most = 0;
    for (int64_t u = 0; u < units->count; u++)
        for (int rank = 0; units->unit[u].trained_grain < units->unit[u].grains && rank < sharers_of(plan, u); rank++) {
            const struct sw_span shard = sw_unit_shard(&units->unit[u], u, sharers_of(plan, u), rank);
            const struct sw_records records = sw_records(units->optimizer, muon_grains_of(&units->unit[u], shard));
            const int64_t first = sw_min_i64(chunk, shard.grains), next = sw_min_i64(chunk, shard.grains - first);
            most = sw_max_i64(most, sw_records_bytes(&records, 0, first));
            most = sw_max_i64(most, sw_records_bytes(&records, first, next));
        }
    return most;
}

int64_t sw_plan_least_saved_bytes(const struct sw_plan *plan, int64_t unit) {
    const struct sw_units *units = plan->spec.units;
    const bool saves = sw_optimizer_is_packed(units->optimizer) && sw_unit_has_muon(&units->unit[unit]);
    int64_t least = saves ? INT64_MAX : 0;
    /* A rank that saves nothing ends the search: of many ranks most have no matrix of a unit. */
    for (int rank = 0; least > 0 && rank < sharers_of(plan, unit); rank++) {
        const struct sw_span shard = sw_unit_shard(&units->unit[unit], unit, sharers_of(plan, unit), rank);
        const struct sw_records records = sw_records(units->optimizer, muon_grains_of(&units->unit[unit], shard));
        least = sw_min_i64(least, sw_records_saved(&records));
    }
    return least;
}

/* Returns a rank's shard of a span of a unit that has no matrices of Muon. */
static struct sw_span shard_of(const struct sw_plan *plan, int64_t unit, struct sw_span all, int rank) {
    struct sw_span shard = sw_shard(all.grains, sw_plan_unit_ranks(plan, unit), rank);
    shard.first_grain += all.first_grain;
    return shard;
}

struct sw_span sw_plan_shard_anywhere(const struct sw_plan *plan, int64_t unit, int rank) {
    return sw_unit_shard(&plan->spec.units->unit[unit], unit, sw_plan_unit_ranks(plan, unit), rank);
}

struct sw_span sw_plan_shard_of(const struct sw_plan *plan, int64_t unit, int rank) {
    return sw_plan_holds(plan, unit) ? sw_plan_shard_anywhere(plan, unit, rank) : (struct sw_span){0};
}

int64_t sw_plan_most_shard_grains(const struct sw_plan *plan, int64_t unit) {
    return sw_unit_most_shard_grains(&plan->spec.units->unit[unit], unit, sw_plan_unit_ranks(plan, unit));
}

int sw_plan_owner_of(const struct sw_plan *plan, int64_t unit, int64_t grain) {
    const struct sw_unit *of = &plan->spec.units->unit[unit];
    const int64_t first = sw_plan_shard_anywhere(plan, unit, 0).first_grain;
    const int ranks = sw_plan_unit_ranks(plan, unit);
    int rank = 0;
    if (!sw_unit_has_muon(of))
        return sw_shard_rank(of->grains - first, ranks, grain - first);
    while (rank + 1 < ranks && sw_plan_shard_anywhere(plan, unit, rank + 1).first_grain <= grain)
        rank++;
    return rank;
}

static struct sw_span all_cells(const struct sw_plan *plan, int64_t unit) {
    return (struct sw_span){.grains = sw_plan_base_cells(plan, unit)};
}

struct sw_span sw_plan_frozen_shard(const struct sw_plan *plan, int64_t unit) {
    return sw_plan_is_sharded(plan, unit, SW_WEIGHTS)
               ? shard_of(plan, unit, sw_plan_frozen(plan, unit), sw_plan_unit_rank(plan, unit))
               : (struct sw_span){0};
}

struct sw_span sw_plan_base_span(const struct sw_plan *plan, int64_t unit) {
    const struct sw_span all = all_cells(plan, unit);
    return sw_plan_is_sharded(plan, unit, SW_WEIGHTS) ? shard_of(plan, unit, all, sw_plan_unit_rank(plan, unit)) : all;
}

struct sw_span sw_plan_share_of(const struct sw_plan *plan, const struct sw_op *op, int rank) {
    if (op->bucket)
        return sw_plan_shard_chunk(plan, op->unit, rank, op->chunk);
    if (op->content == SW_CONTENT_BASE)
        return shard_of(plan, op->unit, all_cells(plan, op->unit), rank);
    return op->frozen ? shard_of(plan, op->unit, sw_plan_frozen(plan, op->unit), rank)
                      : sw_plan_shard_of(plan, op->unit, rank);
}

struct sw_span sw_plan_shard(const struct sw_plan *plan, int64_t unit) {
    return sw_plan_shard_of(plan, unit, sw_plan_unit_rank(plan, unit));
}

struct sw_span sw_plan_span(const struct sw_plan *plan, sw_state state, int64_t unit) {
    const bool trained = state == SW_GRADS || state == SW_OPTIMIZER;
    if (trained && !sw_plan_trains(plan, unit))
        return (struct sw_span){0};
    if (sw_plan_is_sharded(plan, unit, state))
        return sw_plan_shard(plan, unit);
    return trained ? sw_plan_trained(plan, unit) : sw_plan_typed(plan, unit);
}

struct sw_span sw_plan_own_frozen(const struct sw_plan *plan, int64_t unit) {
    const struct sw_span shard = sw_plan_frozen_shard(plan, unit), span = sw_plan_span(plan, SW_WEIGHTS, unit);
    const int64_t end = sw_min_i64(span.first_grain + span.grains, plan->spec.units->unit[unit].trained_grain);
    if (shard.grains > 0)
        return shard;
    return (struct sw_span){.first_grain = span.first_grain, .grains = sw_max_i64(0, end - span.first_grain)};
}

struct sw_span sw_plan_own_trained(const struct sw_plan *plan, int64_t unit) {
    const struct sw_span span = sw_plan_span(plan, SW_WEIGHTS, unit);
    const int64_t first = sw_max_i64(span.first_grain, plan->spec.units->unit[unit].trained_grain);
    return (struct sw_span){.first_grain = first, .grains = sw_max_i64(0, span.first_grain + span.grains - first)};
}

struct sw_span sw_plan_kept(const struct sw_plan *plan, sw_state state, int64_t unit, sw_tier tier) {
    const bool before_reduction = state == SW_GRADS && tier == SW_DEVICE && plan->spec.zero < SW_ZERO_GRADS;
    return before_reduction ? sw_plan_trained(plan, unit) : sw_plan_span(plan, state, unit);
}

/* Returns a chunk of a span, which has no grains where the span ends before. */
static struct sw_span chunk_of(const struct sw_plan *plan, struct sw_span span, int64_t chunk) {
    const int64_t first = sw_min_i64(chunk * plan->spec.chunk_grains, span.grains);
    return (struct sw_span){.first_grain = span.first_grain + first,
                            .grains = sw_min_i64(plan->spec.chunk_grains, span.grains - first)};
}

int64_t sw_plan_chunks(const struct sw_plan *plan, int64_t unit) {
    return sw_plan_frozen_chunks(plan, unit) +
           sw_div_up(sw_plan_typed(plan, unit).grains - sw_plan_frozen(plan, unit).grains, plan->spec.chunk_grains);
}

/* The first chunk of a unit with both spans is short where the frozen one is no multiple of chunks, so that the trained
 * one begins with a chunk. */
struct sw_span sw_plan_unit_chunk(const struct sw_plan *plan, int64_t unit, int64_t chunk) {
    const int64_t lead = sw_plan_lead_grains(plan, unit);
    const struct sw_span all = sw_plan_typed(plan, unit);
    const struct sw_span at =
        chunk_of(plan, (struct sw_span){.first_grain = all.first_grain - lead, .grains = all.grains + lead}, chunk);
    const int64_t before = sw_max_i64(0, all.first_grain - at.first_grain);
    return (struct sw_span){.first_grain = at.first_grain + before, .grains = at.grains - before};
}

int64_t sw_plan_base_cells(const struct sw_plan *plan, int64_t unit) {
    return sw_plan_holds(plan, unit) ? sw_units_base_cells(plan->spec.units, unit) : 0;
}

int64_t sw_plan_base_chunks(const struct sw_plan *plan, int64_t unit) {
    return sw_div_up(sw_plan_base_span(plan, unit).grains, plan->spec.chunk_grains);
}

struct sw_span sw_plan_base_chunk(const struct sw_plan *plan, int64_t unit, int64_t chunk) {
    return chunk_of(plan, sw_plan_base_span(plan, unit), chunk);
}

int64_t sw_plan_own_frozen_chunks(const struct sw_plan *plan, int64_t unit) {
    return sw_plan_is_sharded(plan, unit, SW_WEIGHTS)
               ? sw_div_up(sw_plan_frozen_shard(plan, unit).grains, plan->spec.chunk_grains)
               : sw_plan_frozen_chunks(plan, unit);
}

struct sw_span sw_plan_own_frozen_chunk(const struct sw_plan *plan, int64_t unit, int64_t chunk) {
    return sw_plan_is_sharded(plan, unit, SW_WEIGHTS) ? chunk_of(plan, sw_plan_frozen_shard(plan, unit), chunk)
                                                      : sw_plan_unit_chunk(plan, unit, chunk);
}

int64_t sw_plan_trained_chunks(const struct sw_plan *plan, int64_t unit) {
    return sw_div_up(sw_plan_trained_grains(plan, unit), plan->spec.chunk_grains);
}

struct sw_span sw_plan_trained_chunk(const struct sw_plan *plan, int64_t unit, int64_t chunk) {
    return chunk_of(plan, sw_plan_trained(plan, unit), chunk);
}

/* Tells whether a state's chunks are those of whole weights. */
static bool is_whole_weights(const struct sw_plan *plan, int64_t unit, sw_state state) {
    return state == SW_WEIGHTS && !sw_plan_is_sharded(plan, unit, SW_WEIGHTS);
}

int64_t sw_plan_state_chunks(const struct sw_plan *plan, sw_state state, int64_t unit) {
    return is_whole_weights(plan, unit, state)
               ? sw_plan_chunks(plan, unit)
               : sw_div_up(sw_plan_span(plan, state, unit).grains, plan->spec.chunk_grains);
}

struct sw_span sw_plan_state_chunk(const struct sw_plan *plan, sw_state state, int64_t unit, int64_t chunk) {
    return is_whole_weights(plan, unit, state) ? sw_plan_unit_chunk(plan, unit, chunk)
                                               : chunk_of(plan, sw_plan_span(plan, state, unit), chunk);
}

int64_t sw_plan_shard_chunks(const struct sw_plan *plan, int64_t unit) {
    return sw_div_up(sw_plan_shard(plan, unit).grains, plan->spec.chunk_grains);
}

struct sw_span sw_plan_shard_chunk(const struct sw_plan *plan, int64_t unit, int rank, int64_t chunk) {
    return chunk_of(plan, sw_plan_shard_of(plan, unit, rank), chunk);
}

int64_t sw_plan_buckets(const struct sw_plan *plan, int64_t unit) {
    return sw_plan_trains(plan, unit) ? sw_div_up(sw_plan_most_shard_grains(plan, unit), plan->spec.chunk_grains) : 0;
}

int64_t sw_plan_bucket_grains(const struct sw_plan *plan, int64_t unit, int64_t number, int rank) {
    const int ranks = sw_plan_unit_ranks(plan, unit);
    const int64_t longer = sw_min_i64(rank, sw_plan_trained_grains(plan, unit) % ranks);
    int64_t grains = 0;
    if (sw_unit_has_muon(&plan->spec.units->unit[unit])) {
        for (int before = 0; before < rank; before++)
            grains += sw_plan_shard_chunk(plan, unit, before, number).grains;
        return grains;
    }
    return longer * sw_plan_shard_chunk(plan, unit, 0, number).grains +
           (rank - longer) * sw_plan_shard_chunk(plan, unit, ranks - 1, number).grains;
}

struct sw_span sw_plan_bucket_run(const struct sw_plan *plan, int64_t unit, int64_t number, int64_t run) {
    const int ranks = sw_plan_unit_ranks(plan, unit);
    if (sw_plan_buckets(plan, unit) == 1)
        return run == 0 ? sw_plan_trained(plan, unit) : (struct sw_span){0};
    if (!sw_unit_has_muon(&plan->spec.units->unit[unit]))
        return run < ranks ? sw_plan_shard_chunk(plan, unit, (int)run, number) : (struct sw_span){0};
    for (int rank = 0; rank < ranks; rank++) {
        const struct sw_span at = sw_plan_shard_chunk(plan, unit, rank, number);
        if (at.grains > 0 && run-- == 0)
            return at;
    }
    return (struct sw_span){0};
}

int64_t sw_plan_replicated_elems(const struct sw_plan *plan, int64_t unit) {
    return plan->spec.units->unit[unit].replicated_elems;
}

struct sw_span sw_plan_replicated_of(const struct sw_plan *plan, int64_t unit, int number) {
    return sw_shard(sw_plan_replicated_elems(plan, unit), sw_plan_members(plan, sw_plan_replicated_among(plan, unit)),
                    number);
}

struct sw_span sw_plan_secondary_of(const struct sw_plan *plan, int64_t unit, int number) {
    return sw_shard(unit_grains(plan, unit), plan->spec.secondary_ranks, number);
}

struct sw_span sw_plan_secondary(const struct sw_plan *plan, int64_t unit) {
    return sw_plan_secondary_of(plan, unit, plan->spec.secondary_rank);
}

struct sw_span sw_plan_secondary_chunk(const struct sw_plan *plan, int64_t unit, int64_t chunk) {
    return chunk_of(plan, sw_plan_secondary(plan, unit), chunk);
}

int64_t sw_plan_secondary_bytes(const struct sw_plan *plan) {
    int64_t bytes = 0;
    for (int64_t u = 0; u < plan->spec.units->count; u++)
        bytes += plan->index->of_unit[SLOT_SECONDARY][u] >= 0
                     ? plan->slot[plan->index->of_unit[SLOT_SECONDARY][u]].bytes
                     : 0;
    return bytes;
}

int sw_plan_reduce_nodes(const struct sw_plan *plan) {
    return sw_plan_quantizes_grads(plan) && plan->spec.reduce_nodes > 1 ? plan->spec.reduce_nodes : 1;
}

int sw_plan_reduce_node_ranks(const struct sw_plan *plan) {
    return sw_plan_ranks(plan) / sw_plan_reduce_nodes(plan);
}

/* Returns the grains of a number's chunks on the nodes before one. */
static int64_t part_up_to(const struct sw_plan *plan, int64_t unit, int64_t bucket, int number, int node) {
    int64_t grains = 0;
    for (int n = 0; n < node; n++)
        grains += sw_plan_shard_chunk(plan, unit, n * sw_plan_reduce_node_ranks(plan) + number, bucket).grains;
    return grains;
}

int64_t sw_plan_part_grains(const struct sw_plan *plan, int64_t unit, int64_t bucket, int number) {
    return part_up_to(plan, unit, bucket, number, sw_plan_reduce_nodes(plan));
}

int64_t sw_plan_part_before(const struct sw_plan *plan, int64_t unit, int64_t bucket, int number) {
    int64_t grains = 0;
    if (sw_plan_reduce_nodes(plan) == 1)
        return sw_plan_bucket_grains(plan, unit, bucket, number);
    for (int before = 0; before < number; before++)
        grains += sw_plan_part_grains(plan, unit, bucket, before);
    return grains;
}

int64_t sw_plan_node_before(const struct sw_plan *plan, int64_t unit, int64_t bucket, int node) {
    return part_up_to(plan, unit, bucket, plan->spec.rank % sw_plan_reduce_node_ranks(plan), node);
}

/* Returns the most sums of squares that a rank of a stage has of the units that the stage computes. */
static int64_t sums_of_stage(const struct sw_plan *plan, int stage) {
    int64_t sums = 0;
    for (int64_t u = 0; u < plan->spec.units->count; u++)
        if (sw_plan_stage_of(plan, u) == stage)
            sums += sw_plan_trained_anywhere(plan, u).grains > 0 ? sw_plan_most_shard_grains(plan, u) : 0;
    return sums;
}

int64_t sw_plan_summary_bytes(const struct sw_plan *plan, bool sums) {
    int64_t doubles = SW_SUMMARY_SQUARE_SUMS, most = 0;
    for (int stage = 0; sums && stage < sw_plan_stages(plan); stage++)
        most = sw_max_i64(most, sums_of_stage(plan, stage));
    doubles += most;
    doubles += plan->spec.tally;
    doubles += plan->spec.pair_sequences > 0 ? SW_PAIR_SUMS - 1 : 0;
    doubles += sw_plan_stages(plan) > 1;
    return doubles * (int64_t)sizeof(double);
}

double sw_plan_equal_bubble(const struct sw_plan *plan) {
    const double before = (double)sw_plan_stages(plan) - 1.0;
    return before / ((double)(sw_plan_groups(plan) * sw_plan_turns(plan)) + before);
}

int64_t sw_plan_losses(const struct sw_plan *plan) {
    return sw_max_i64(1, plan->spec.pair_sequences);
}

int64_t sw_plan_grain_bytes(const struct sw_plan *plan, sw_content content, int64_t unit) {
    switch (content) {
    case SW_CONTENT_WEIGHTS: return sw_plan_weights_bytes(plan, unit, 1);
    case SW_CONTENT_BASE: return SW_BASE_CELL_BYTES;
    case SW_CONTENT_GRADS: return sw_grads_grain_bytes(plan->spec.grads, sw_dtype_bytes(plan->spec.type));
    case SW_CONTENT_ACC:
    case SW_CONTENT_NODE_SUM:
    case SW_CONTENT_BUCKET_SUM: return SW_GRAIN_ELEMS * (int64_t)sizeof(float);
    case SW_CONTENT_QUANT_WEIGHTS: return sw_quant_grain_bytes(plan->spec.gather);
    case SW_CONTENT_NODE_QUANT:
    case SW_CONTENT_NODE_PARTS:
    case SW_CONTENT_QUANT_GRADS:
    case SW_CONTENT_QUANT_PARTS: return sw_quant_grain_bytes(plan->spec.reduce);
    case SW_CONTENT_SQUARE_SUMS: return sizeof(double);
    case SW_CONTENT_OPTIMIZER: return sw_plan_optimizer_bytes(plan, 1);
    default: return 0;
    }
}

/* Counts the bytes that ops of the comm lane give to other ranks, and those of them that go to other nodes. */

/* The ranks among which an op exchanges, this one's number among them, and those on this rank's node; node 0: not
 * known. */
struct among {
    int ranks, rank, node;
};

/* Returns the ranks of a group; of the senders, as many are on a node as tensor groups, or parts of these, are. */
static struct among group_of(const struct sw_plan *plan, sw_among among) {
    const int tensor_node = sw_plan_tensor_ranks(plan) > 1 ? plan->spec.tensor.node_ranks : 1;
    const int group_node = plan->spec.experts.ranks > 1 ? plan->spec.experts.node_ranks : tensor_node;
    const int tensor_rank = plan->spec.tensor.rank, expert_ranks = sw_plan_expert_ranks(plan);
    switch (among) {
    case SW_AMONG_SENDERS:
        return (struct among){expert_ranks, expert_ranks > 1 ? plan->spec.experts.rank : 0,
                              tensor_node > 0 ? group_node / tensor_node : 0};
    case SW_AMONG_EXPERTS: return (struct among){sw_plan_group_ranks(plan), sw_plan_group_rank(plan), group_node};
    default: return (struct among){sw_plan_tensor_ranks(plan), tensor_rank, tensor_node};
    }
}

int sw_plan_members(const struct sw_plan *plan, sw_among among) {
    return group_of(plan, among).ranks;
}

int sw_plan_member(const struct sw_plan *plan, sw_among among) {
    return group_of(plan, among).rank;
}

/* Returns the ranks that are with one rank of each of some groups: the groups' ranks, or one of each. */
static struct among over_groups(const struct sw_plan *plan, struct among group) {
    return (struct among){group.ranks * sw_plan_ranks(plan), plan->spec.rank * group.ranks + group.rank,
                          group.ranks > 1 ? group.node * plan->spec.node_ranks : plan->spec.node_ranks};
}

static struct among among_of(const struct sw_plan *plan, const struct sw_op *op) {
    static const struct among replica = {.ranks = 1};
    const sw_among among = sw_plan_among(plan, op);
    if (among == SW_AMONG_LINK)
        return (struct among){.ranks = 2};
    if (among == SW_AMONG_JOB) {
        struct among job = over_groups(plan, group_of(plan, SW_AMONG_EXPERTS));
        job.ranks = sw_plan_job_ranks(plan);
        job.rank = sw_plan_job_rank(plan);
        return job;
    }
    if (among != SW_AMONG_DATA)
        return group_of(plan, among);
    const bool is_replica = sw_plan_expert_ranks(plan) == 1 || sw_plan_shares_experts(plan, op->unit);
    return over_groups(plan, is_replica ? replica : group_of(plan, SW_AMONG_SENDERS));
}

static int64_t replicated_bytes(const struct sw_plan *plan, const struct sw_op *op) {
    return sw_plan_replicated_elems(plan, op->unit) * (int64_t)sizeof(float);
}

/* Returns the bytes that the gather of an op takes from one of its ranks. */
static int64_t share_bytes(const struct sw_plan *plan, const struct sw_op *op, int number) {
    if (op->kind == SW_OP_SUM_REPLICATED)
        return sw_plan_replicated_of(plan, op->unit, number).grains * (int64_t)sizeof(float);
    if (op->kind == SW_OP_GATHER_TENSOR)
        return op->content == SW_CONTENT_SOFTMAX
                   ? plan->spec.tensor.softmax_bytes
                   : sw_plan_rows_of(plan, sw_plan_among(plan, op), number).grains * sw_plan_row_bytes(plan);
    return sw_plan_share_of(plan, op, number).grains * sw_plan_grain_bytes(plan, op->content, op->unit);
}

/* Tells whether an op gathers in two levels, as core/ranks/comm.c does. */
static bool gathers_in_levels(const struct sw_plan *plan, const struct sw_op *op, struct among among) {
    return sw_ops[op->kind].gathers && plan->spec.fills_nodes && !op->secondary && among.node > 1 &&
           among.node < among.ranks;
}

/* Over two levels a rank gives its share to its counterparts on other nodes, and the shares that it then has to the
 * others of its node. */
int64_t sw_plan_gathered_bytes(const struct sw_plan *plan, const struct sw_op *op) {
    const struct among among = among_of(plan, op);
    const int64_t own = share_bytes(plan, op, among.rank);
    if (!gathers_in_levels(plan, op, among))
        return own * (among.ranks - 1);
    int64_t bytes = own * (among.ranks / among.node - 1);
    for (int number = among.rank % among.node; number < among.ranks; number += among.node)
        bytes += share_bytes(plan, op, number) * (among.node - 1);
    return bytes;
}

/* Returns the bytes of an op that go to other nodes. But for gathers in two levels every other rank is given as much,
 * and in reductions about as much, as shares differ by a grain or a row. */
int64_t sw_plan_between_bytes(const struct sw_plan *plan, const struct sw_op *op) {
    const struct among among = among_of(plan, op);
    if (op->level != SW_LEVEL_ALL)
        return op->level == SW_LEVEL_ACROSS ? op->bytes : 0;
    if (op->secondary || among.node == 0 || among.node >= among.ranks)
        return 0;
    int64_t straight = op->bytes, across = 0;
    if (gathers_in_levels(plan, op, among)) {
        const int64_t own = share_bytes(plan, op, among.rank);
        across = own * (among.ranks / among.node - 1);
        straight = op->kind == SW_OP_SUM_REPLICATED ? replicated_bytes(plan, op) - own : 0;
    }
    return across + straight * (among.ranks - among.node) / (among.ranks - 1);
}

struct sw_plan_sent sw_plan_sent_bytes(const struct sw_plan *plan) {
    const struct sw_program *program = &plan->program[SW_PROGRAM_UPDATE];
    struct sw_plan_sent sent = {0};
    for (int32_t i = 0; i < program->lane_count[SW_LANE_COMM]; i++) {
        const struct sw_op *op = &program->op[program->lane_op[SW_LANE_COMM][i]];
        sent.bytes += op->bytes;
        sent.between_bytes += sw_plan_between_bytes(plan, op);
    }
    return sent;
}
