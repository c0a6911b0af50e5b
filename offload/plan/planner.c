/* Makes a plan. */
#include "offload/plan/plan.h"

#include "core/size.h"
#include "offload/plan/plan_private.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

const char *sw_recompute_name(sw_recompute level) {
    static const char *const names[SW_RECOMPUTES] = {"none", "derived", "all"};
    return names[level];
}

/* Returns the passes of a program over all units, each of which is an op of every unit and micro-batch. */
static int passes_of(sw_program_kind kind) {
    switch (kind) {
    case SW_PROGRAM_FLUSH_UPDATE:
    case SW_PROGRAM_FLUSH_REDO:
    case SW_PROGRAM_LOGITS: return 0;
    case SW_PROGRAM_LOSS: return 1;
    default: return 2; /* forward and backward */
    }
}

/* Tells whether the passes alone are too many ops, so that a plan that cannot be is refused before it takes memory. */
static bool passes_are_too_many(const struct sw_plan *plan) {
    int64_t passes = 0;
    if (plan->spec.update_only)
        return false;
    for (int p = 0; p < SW_PROGRAMS; p++)
        passes += sw_plan_has_program(plan, (sw_program_kind)p) ? passes_of((sw_program_kind)p) : 0;
    return plan->spec.micro_batches > SW_PLAN_MOST_OPS / ((plan->spec.units->count - 1) * passes);
}

sw_status sw_plan_complete(struct sw_plan *plan) {
    int64_t ops = 0;
    if (passes_are_too_many(plan))
        return sw_plan_refuse_ops(&plan->spec);
    for (int p = 0; p < SW_PROGRAMS; p++) {
        struct sw_program *program = &plan->program[p];
        if (!sw_plan_has_program(plan, (sw_program_kind)p) || program->op_count > 0)
            continue;
        SW_TRY(sw_plan_emit(plan, (sw_program_kind)p, program));
        ops += program->op_count;
        if (ops > SW_PLAN_MOST_OPS)
            return sw_plan_refuse_ops(&plan->spec);
        SW_TRY(sw_plan_derive_waits(plan, program));
    }
    return SW_OK;
}

/* Copies a spec's arrays, which have one entry per unit, into one block of the plan. */
static sw_status keep_spec_arrays(struct sw_plan *plan) {
    struct sw_plan_spec *spec = &plan->spec;
    const size_t count = (size_t)spec->units->count, cost_bytes = count * sizeof *spec->cost;
    char *block = plan->spec_arrays = calloc(count, sizeof *spec->cost + sizeof *spec->update_on_device);
    if (block == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for a plan");
    memcpy(block, spec->cost, cost_bytes);
    if (spec->update_on_device != NULL)
        memcpy(block + cost_bytes, spec->update_on_device, count * sizeof *spec->update_on_device);
    bool *on_device = (bool *)(block + cost_bytes);
    for (size_t u = 0; u < count; u++)
        on_device[u] |= sw_plan_updates_muon_on_gpu(plan, (int64_t)u);
    spec->cost = (const struct sw_unit_cost *)(const void *)block;
    spec->update_on_device = on_device;
    return SW_OK;
}

static sw_status make_arrays(struct sw_plan *plan) {
    const size_t count = (size_t)plan->spec.units->count;
    plan->placement = calloc(count, sizeof *plan->placement);
    plan->recompute = calloc(count, sizeof *plan->recompute);
    plan->index = calloc(1, sizeof *plan->index);
    if (plan->placement == NULL || plan->recompute == NULL || plan->index == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for a plan");
    return sw_plan_stages(plan) > 1
               ? sw_stage_schedule_create(&plan->spec.pipeline, sw_plan_groups(plan), &plan->schedule)
               : SW_OK;
}

/* Whoever fills in a spec refuses what the exchanges of a tensor group are not written for. */
static void check_tensor(const struct sw_plan_spec *spec) {
    const struct sw_plan_tensor *tensor = &spec->tensor;
    assert(tensor->ranks >= 0 && tensor->rank >= 0 && (tensor->rank < tensor->ranks || tensor->ranks == 0));
    assert(tensor->ranks <= 1 ||
           (spec->gathered_bytes == 0 && tensor->rows >= tensor->ranks && tensor->softmax_bytes > 0 &&
            (tensor->product_bytes > 0 || !tensor->sequence || !spec->train)));
    assert(tensor->ranks <= 1 || (spec->gather == SW_QUANT_NONE && spec->reduce == SW_QUANT_NONE &&
                                  spec->secondary_ranks < 2 && spec->grads == SW_GRADS_TYPED));
    for (int64_t u = 0; tensor->ranks > 1 && u < spec->units->count; u++)
        assert(!spec->cost[u].continues ||
               (!tensor->sequence && tensor->product_bytes == 0 && u > 1 && u + 1 < spec->units->count));
}

/* In a job with expert groups each block is two units, the second of which has its experts, and no input of its own
 * unless there are tensor groups too. */
static void check_experts(const struct sw_plan_spec *spec) {
    const struct sw_plan_experts *experts = &spec->experts;
    const bool grouped = experts->ranks > 1;
    const bool apart = spec->tensor.ranks > 1;
    assert(!grouped || (spec->gathered_bytes == 0 && experts->rank >= 0 && experts->rank < experts->ranks));
    assert(!grouped || !apart || (!spec->tensor.sequence && experts->rows == spec->tensor.rows));
    assert(!grouped || (spec->gather == SW_QUANT_NONE && spec->reduce == SW_QUANT_NONE && spec->secondary_ranks < 2 &&
                        spec->grads == SW_GRADS_TYPED));
    for (int64_t u = 0; u < spec->units->count; u++) {
        const bool of_block = u > 0 && u + 1 < spec->units->count;
        const bool shared_out = spec->units->unit[u].shared_out;
        assert(!shared_out || (grouped && of_block && u > 1 && !spec->units->unit[u - 1].shared_out));
        assert(!grouped || !of_block || shared_out || spec->units->unit[u + 1].shared_out);
        assert(!shared_out || (spec->cost[u].shares_input == !apart && spec->cost[u].saved_bytes == 0 &&
                               spec->cost[u].derived_bytes == 0));
    }
}

/* Tensors that the ranks of a tensor group add up are trained, and only blocks have a base. Whoever fills in a spec
 * refuses others. */
static void check_parts(const struct sw_plan_spec *spec) {
    for (int64_t u = 0; u < spec->units->count; u++) {
        const struct sw_unit *unit = &spec->units->unit[u];
        assert(unit->trained_grain <= unit->replicated_grain || unit->trained_grain == unit->grains);
        assert(unit->trained_grain == 0 || unit->trained_grain == unit->grains || !spec->units->fp8);
        assert(unit->base_grains <= unit->trained_grain);
        assert(unit->base_grains == 0 ||
               (spec->units->base != SW_BASE_TYPED && !spec->units->fp8 && u > 0 && u + 1 < spec->units->count));
    }
}

/* Whoever fills in a spec refuses what stages are not written for. Each virtual stage but the first and the last
 * computes a block at least; these have the embedding and the head. */
static void check_pipeline(const struct sw_plan_spec *spec) {
    const struct sw_plan_pipeline *pipeline = &spec->pipeline;
    if (pipeline->stages <= 1)
        return;
    const int turns = pipeline->turns > 1 ? pipeline->turns : 1, count = pipeline->stages * turns;
    assert(pipeline->stages <= SW_MOST_STAGES && pipeline->stage >= 0 && pipeline->stage < pipeline->stages);
    assert(turns <= SW_MOST_VIRTUAL_STAGES && count <= SW_MOST_VIRTUAL_STAGES);
    assert(turns == 1 || sw_div_up(spec->micro_batches, spec->group) >= pipeline->stages);
    assert(pipeline->bound[0] == 0 && pipeline->bound[count] == spec->units->count);
    for (int k = 0; k < count; k++)
        assert(pipeline->bound[k] < pipeline->bound[k + 1]);
    assert(spec->train && !spec->update_only && spec->experts.ranks <= 1 && spec->secondary_ranks < 2);
    assert(spec->gather == SW_QUANT_NONE && spec->reduce == SW_QUANT_NONE && spec->grads == SW_GRADS_TYPED);
    assert(!spec->tensor.sequence && !spec->tensor.partition_inputs && spec->gathered_bytes == 0 && spec->tally == 0);
    assert(!spec->units->fp8 && spec->pair_sequences == 0);
    for (int64_t u = 0; u < spec->units->count; u++)
        assert(!spec->cost[u].shares_input && !spec->cost[u].continues);
    for (int s = 0; s < pipeline->stages; s++)
        assert(sw_stage_trains(pipeline, s, spec->units));
}

/* Pieces of rings of such chunks, if they fit: a transfer each way, the update, and one that waits for it. */
enum { MUON_RING_CHUNKS = 4 };

/* Makes chunks as large as Muon's matrices of a unit, and whole groups of records, and rings with fewer of them if they
 * grew. Rings grow where the budget has room. Returns whether they have fewer. */
static bool take_muon_chunks(struct sw_plan_spec *spec, int64_t grains) {
    const bool larger = grains > spec->chunk_grains;
    spec->chunk_grains = sw_round_up(sw_max_i64(spec->chunk_grains, grains), sw_records_group(spec->units->optimizer));
    if (larger && spec->ring_auto)
        spec->ring_chunks = sw_min_i64(spec->ring_chunks, MUON_RING_CHUNKS);
    return larger && spec->ring_auto;
}

/* Places state. If nothing fits and rings are large because of Muon's chunks, they have half as many. */
static sw_status place(struct sw_plan *plan, bool large_rings) {
    for (;;) {
        plan->stream_chunks = sw_min_i64(plan->spec.ring_chunks, SW_DEVICE_RING_CHUNKS);
        const sw_status status = sw_plan_place(plan);
        if (status != SW_ERR_BUDGET || !large_rings || plan->spec.ring_chunks == 1)
            return status;
        sw_error_clear();
        plan->spec.ring_chunks /= 2;
    }
}

sw_status sw_plan_outline(const struct sw_plan_spec *spec, struct sw_plan **out) {
    assert(!spec->units->fp8 || spec->gather == SW_QUANT_NONE);
    assert(spec->micro_batches >= 1 && spec->chunk_grains >= 1 && spec->ring_chunks >= 1);
    assert(spec->update_only || (spec->units->count >= 3 && !spec->cost[1].shares_input));
    assert(!spec->update_only ||
           (spec->train && (spec->ranks <= 1 || spec->zero == SW_ZERO_WEIGHTS) && spec->tensor.ranks <= 1 &&
            spec->experts.ranks <= 1 && spec->update_on_device == NULL));
    assert(spec->group >= 1 && spec->unit_slots >= 2 && spec->unit_slots <= UNIT_SLOTS_MAX);
    if (!spec->train && !spec->scratch_store && !spec->place.automatic[SW_WEIGHTS] &&
        spec->place.share[SW_WEIGHTS][SW_NVME] > 0.0)
        return sw_fail(
            SW_ERR_UNSUPPORTED,
            "without training, weights live on the device or the host, not on nvme where no store is for them");
    assert(spec->ranks >= 0 && spec->rank >= 0 && (spec->rank < spec->ranks || spec->ranks == 0));
    assert(spec->secondary_ranks < 2 || (spec->zero == SW_ZERO_WEIGHTS && spec->ranks % spec->secondary_ranks == 0 &&
                                         spec->secondary_rank >= 0 && spec->secondary_rank < spec->secondary_ranks));
    assert(spec->zero >= SW_ZERO_NONE && spec->zero <= SW_ZERO_WEIGHTS &&
           (spec->train || spec->ranks <= 1 || spec->zero == SW_ZERO_NONE));
    assert(spec->reduce_nodes <= 1 || spec->ranks % spec->reduce_nodes == 0);
    check_tensor(spec);
    check_experts(spec);
    check_parts(spec);
    check_pipeline(spec);
    /* Each unit computes each micro-batch. */
    if (spec->micro_batches > SW_PLAN_MOST_OPS / spec->units->count)
        return sw_plan_refuse_ops(spec);
    sw_status status = SW_OK;
    struct sw_plan *plan = calloc(1, sizeof *plan);
    if (plan == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for a plan");
    plan->spec = *spec;
    const bool large_rings = take_muon_chunks(&plan->spec, sw_plan_most_muon_grains(plan));
    while (spec->train && plan->first_trained < spec->units->count &&
           sw_plan_trained_anywhere(plan, plan->first_trained).grains == 0)
        plan->first_trained++;
    assert(plan->first_trained < spec->units->count);
    /* A block and the experts that its ranks share out compute together. */
    plan->first_trained -= sw_plan_joins_block(plan, plan->first_trained);
    SW_TRY_GOTO(keep_spec_arrays(plan), fail);
    SW_TRY_GOTO(make_arrays(plan), fail);
    SW_TRY_GOTO(place(plan, large_rings), fail);
    plan->spec.lack = NULL; /* an answer to the caller, which the plan does not keep */
    plan->spec.rises = NULL;
    plan->spec.peaks = NULL;
    *out = plan;
    return SW_OK;
fail:
    sw_plan_destroy(plan);
    return status;
}

sw_status sw_plan_create(const struct sw_plan_spec *spec, struct sw_plan **out) {
    struct sw_plan *plan = NULL;
    SW_TRY(sw_plan_outline(spec, &plan));
    assert(plan != NULL);
    const sw_status status = sw_plan_complete(plan);
    if (status == SW_OK)
        *out = plan;
    else
        sw_plan_destroy(plan);
    return status;
}

void sw_plan_destroy(struct sw_plan *plan) {
    if (plan == NULL)
        return;
    for (int p = 0; p < SW_PROGRAMS; p++)
        sw_program_destroy(&plan->program[p]);
    if (plan->index != NULL)
        free(plan->index->arrays);
    free(plan->index);
    sw_stage_schedule_destroy(plan->schedule);
    free(plan->slot);
    free(plan->recompute);
    free(plan->spec_arrays);
    free(plan->placement);
    free(plan);
}
