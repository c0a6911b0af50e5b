/* Answers questions about a plan. Every other file asks here and derives none of it by itself. */
#include "core/size.h"
#include "offload/plan/plan_private.h"

#include <string.h>

int sw_plan_ranks(const struct sw_plan *plan) {
    return plan->spec.ranks > 1 ? plan->spec.ranks : 1;
}

int sw_plan_tensor_ranks(const struct sw_plan *plan) {
    return plan->spec.tensor.ranks > 1 ? plan->spec.tensor.ranks : 1;
}

int sw_plan_job_ranks(const struct sw_plan *plan) {
    return sw_plan_ranks(plan) * sw_plan_tensor_ranks(plan);
}

int sw_plan_job_rank(const struct sw_plan *plan) {
    return plan->spec.rank * sw_plan_tensor_ranks(plan) + plan->spec.tensor.rank;
}

struct sw_span sw_plan_rows_of(const struct sw_plan *plan, int tensor_rank) {
    return sw_shard(plan->spec.tensor.rows, sw_plan_tensor_ranks(plan), tensor_rank);
}

bool sw_plan_trains(const struct sw_plan *plan, int64_t unit) {
    return unit >= plan->spec.frozen_units;
}

int64_t sw_plan_group(const struct sw_plan *plan) {
    return sw_min_i64(plan->spec.group, plan->spec.micro_batches);
}

int64_t sw_plan_groups(const struct sw_plan *plan) {
    return sw_div_up(plan->spec.micro_batches, sw_plan_group(plan));
}

bool sw_plan_is_sharded(const struct sw_plan *plan, sw_state state) {
    static const int from_stage[SW_STATES] = {[SW_WEIGHTS] = SW_ZERO_WEIGHTS,
                                              [SW_GRADS] = SW_ZERO_OPTIMIZER,
                                              [SW_OPTIMIZER] = SW_ZERO_OPTIMIZER,
                                              [SW_ACTS] = SW_ZERO_WEIGHTS + 1};
    return sw_plan_ranks(plan) > 1 && plan->spec.zero >= from_stage[state];
}

bool sw_plan_has_whole_on_device(const struct sw_plan *plan, int64_t unit) {
    return plan->placement[unit].tier[SW_WEIGHTS] == SW_DEVICE && !sw_plan_is_sharded(plan, SW_WEIGHTS);
}

bool sw_plan_all_gathers_weights(const struct sw_plan *plan) {
    return sw_plan_is_sharded(plan, SW_OPTIMIZER);
}

bool sw_plan_keeps_whole_weights(const struct sw_plan *plan) {
    return sw_plan_all_gathers_weights(plan) && !sw_plan_is_sharded(plan, SW_WEIGHTS);
}

bool sw_plan_has_typed_slot(const struct sw_plan *plan, int64_t unit) {
    return plan->spec.units->fp8 && !sw_units_packs(plan->spec.units, unit);
}

/* The units that take turns in the same slots: how many they are, their slots, and the first unit behind the last. */
struct turns {
    int64_t units, slots, end;
};

static struct turns turns_of(const struct sw_plan *plan, int64_t unit) {
    const struct sw_units *units = plan->spec.units;
    const int64_t table = units->tied;
    if (!units->fp8)
        return (struct turns){.units = units->count - table, .slots = plan->spec.unit_slots, .end = units->count};
    return sw_plan_has_typed_slot(plan, unit)
               ? (struct turns){.units = 2 - table, .slots = 1, .end = units->count}
               : (struct turns){.units = units->count - 2, .slots = plan->spec.unit_slots, .end = units->count - 1};
}

/* A unit is gathered again in the backward pass, unless the device still holds it: the last blocks, and a tied table,
 * which has a slot of its own. The head runs once for each group of micro-batches, as all units do. */
bool sw_plan_keeps_secondary(const struct sw_plan *plan, int64_t unit) {
    const struct sw_plan_spec *spec = &plan->spec;
    const struct turns turns = turns_of(plan, unit);
    if (!spec->train || spec->secondary_ranks < 2 || !sw_plan_is_sharded(plan, SW_WEIGHTS) ||
        (unit == 0 && spec->units->tied) || turns.units <= turns.slots)
        return false;
    return sw_plan_groups(plan) > 1 || (unit > 0 && sw_plan_trains(plan, unit) && unit + turns.slots < turns.end);
}

bool sw_plan_reduces_groups(const struct sw_plan *plan) {
    return sw_plan_ranks(plan) > 1 && plan->spec.zero >= SW_ZERO_GRADS && sw_plan_groups(plan) > 1;
}

bool sw_plan_quantizes_weights(const struct sw_plan *plan) {
    return sw_plan_is_sharded(plan, SW_WEIGHTS) && plan->spec.gather != SW_QUANT_NONE;
}

bool sw_plan_quantizes_grads(const struct sw_plan *plan) {
    return sw_plan_is_sharded(plan, SW_GRADS) && plan->spec.reduce != SW_QUANT_NONE;
}

bool sw_plan_fetches_table(const struct sw_plan *plan) {
    return plan->spec.units->tied && !sw_plan_has_whole_on_device(plan, 0);
}

/* Rows are not gathered where the whole embedding is on the device anyway: an update there, or a gather from the ranks,
 * leaves it there. */
bool sw_plan_gathers_rows(const struct sw_plan *plan) {
    const struct sw_plan_spec *spec = &plan->spec;
    const int64_t whole_bytes = spec->units->unit[0].elems * sw_dtype_bytes(spec->type);
    const sw_tier *tier = plan->placement[0].tier;
    const bool made_on_device = spec->train && sw_plan_trains(plan, 0) && tier[SW_OPTIMIZER] == SW_DEVICE;
    return spec->gathered_bytes > 0 && !spec->units->tied && sw_plan_ranks(plan) == 1 &&
           tier[SW_WEIGHTS] != SW_DEVICE && !made_on_device &&
           spec->gathered_bytes <= whole_bytes / spec->micro_batches;
}

bool sw_plan_updates_on_device(const struct sw_plan *plan, int64_t unit) {
    return sw_plan_trains(plan, unit) &&
           (plan->placement[unit].tier[SW_OPTIMIZER] == SW_DEVICE || plan->spec.update_on_device[unit]);
}

bool sw_plan_streams_optimizer(const struct sw_plan *plan, int64_t unit) {
    return sw_plan_updates_on_device(plan, unit) && plan->placement[unit].tier[SW_OPTIMIZER] != SW_DEVICE;
}

bool sw_plan_saves(const struct sw_plan *plan) {
    return plan->spec.train && !plan->commit_every_step && !plan->spec.one_generation;
}

/* Ranks speculate on nothing: whether it pays is each one's own measurement. */
bool sw_plan_may_speculate(const struct sw_plan *plan) {
    return plan->commit_every_step && sw_plan_job_ranks(plan) == 1;
}

bool sw_plan_has_program(const struct sw_plan *plan, sw_program_kind kind) {
    switch (kind) {
    case SW_PROGRAM_LOSS: return true;
    case SW_PROGRAM_LOGITS: /* a pass of one token, as inference has them, has too few rows to share out */
        return plan->spec.train || !sw_plan_is_sequence_parallel(plan);
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
    return inner && sw_plan_trains(plan, unit) && !plan->spec.cost[unit].shares_input;
}

int64_t sw_plan_backward_input(const struct sw_plan *plan, int64_t unit) {
    while (!sw_plan_keeps_input(plan, unit))
        unit--;
    return unit;
}

bool sw_plan_partitions_inputs(const struct sw_plan *plan) {
    return sw_plan_is_sequence_parallel(plan) || (sw_plan_tensor_ranks(plan) > 1 && plan->spec.tensor.partition_inputs);
}

bool sw_plan_continues(const struct sw_plan *plan, int64_t unit) {
    return sw_plan_tensor_ranks(plan) > 1 && plan->spec.cost[unit].continues;
}

bool sw_plan_partitions_input(const struct sw_plan *plan, int64_t unit) {
    return sw_plan_partitions_inputs(plan) && !sw_plan_continues(plan, unit);
}

bool sw_plan_is_sequence_parallel(const struct sw_plan *plan) {
    return sw_plan_tensor_ranks(plan) > 1 && plan->spec.tensor.sequence;
}

bool sw_plan_recalls_rows(const struct sw_plan *plan, int64_t unit) {
    return sw_plan_partitions_input(plan, unit) && !sw_plan_is_sequence_parallel(plan) &&
           sw_plan_keeps_input(plan, unit) && plan->recompute[unit] == SW_RECOMPUTE_NOTHING;
}

bool sw_plan_splits_backward(const struct sw_plan *plan, int64_t unit) {
    return sw_plan_tensor_ranks(plan) > 1 && plan->spec.tensor.product_bytes > 0 && unit > 0 &&
           unit + 1 < plan->spec.units->count;
}

bool sw_plan_recalls_normed(const struct sw_plan *plan, int64_t unit) {
    return sw_plan_is_sequence_parallel(plan) && plan->recompute[unit] == SW_RECOMPUTE_UNIT;
}

int64_t sw_plan_row_bytes(const struct sw_plan *plan) {
    return plan->spec.cost[0].output_bytes / plan->spec.tensor.rows;
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
    const int32_t *const slots[SW_STATES] = {[SW_WEIGHTS] = plan->index->of_unit[SLOT_WEIGHTS],
                                             [SW_GRADS] = plan->index->of_unit[SLOT_GRADS],
                                             [SW_OPTIMIZER] = plan->index->of_unit[SLOT_OPTIMIZER]};
    if (slots[state] == NULL || plan->placement[unit].tier[state] == SW_NVME)
        return -1;
    return slots[state][unit];
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
           sw_plan_continues(plan, a) == sw_plan_continues(plan, b) &&
           spec->units->unit[a].grains == spec->units->unit[b].grains && sw_plan_keeps_input(plan, b) == kept &&
           (!kept || spec->cost[a - 1].output_bytes == spec->cost[b - 1].output_bytes) &&
           spec->cost[a].saved_bytes == spec->cost[b].saved_bytes &&
           spec->cost[a].derived_bytes == spec->cost[b].derived_bytes && plan->recompute[a] == plan->recompute[b] &&
           spec->update_on_device[a] == spec->update_on_device[b] &&
           memcmp(&plan->placement[a], &plan->placement[b], sizeof plan->placement[a]) == 0;
}

bool sw_plan_uses_nvme(const struct sw_plan *plan) {
    for (int64_t u = 0; u < plan->spec.units->count; u++)
        for (int state = 0; state < SW_STATES; state++)
            if (plan->placement[u].tier[state] == SW_NVME)
                return true;
    return false;
}
