/* The accumulators that the backward pass adds to: zeroed or brought at the start of a group of micro-batches, and at
 * its end rounded, reduced, or taken back to where they live. */
#include "offload/plan/builder.h"

static struct sw_what acc_of(int64_t unit, int64_t index, int64_t version) {
    return (struct sw_what){SW_CONTENT_ACC, unit, index, version, 0, 0};
}

bool sw_build_is_table(const struct sw_builder *b, int64_t unit) {
    return unit == 0 && b->plan->spec.units->tied;
}

static void emit_acc_transfer(struct sw_builder *b, int64_t unit, struct sw_accumulator acc, bool in) {
    const int32_t home = b->index->of_unit[SLOT_ACC][unit];
    const bool nvme = b->plan->slot[home].tier == SW_NVME;
    for (int64_t c = 0; c < sw_plan_chunks(b->plan, unit); c++) {
        const struct sw_chunk chunk = {unit, c, sw_plan_unit_chunk(b->plan, unit, c)};
        const int64_t bytes = chunk.at.grains * SW_GRAIN_ELEMS * (int64_t)sizeof(float);
        const struct sw_what what = acc_of(unit, c, acc.version);
        const struct sw_operand on_device = {.slot = acc.slot, .piece = SW_BY_GRAINS};
        const struct sw_operand at_home = {.slot = home, .piece = SW_BY_GRAINS};
        const struct sw_operand on_host = nvme ? sw_build_ring(b, in ? SLOT_ACC_IN : SLOT_ACC_OUT) : at_home;
        if (in && nvme)
            sw_build_move(b, at_home, on_host, what, &chunk, bytes);
        sw_build_move(b, in ? on_host : on_device, in ? on_device : on_host, what, &chunk, bytes);
        if (!in && nvme)
            sw_build_move(b, on_host, at_home, what, &chunk, bytes);
    }
}

struct sw_accumulator sw_build_begin_acc(struct sw_builder *b, int64_t unit, const struct sw_group *group,
                                         int per_micro) {
    const int32_t home = b->index->of_unit[SLOT_ACC][unit];
    const bool on_device = home >= 0 && b->plan->slot[home].tier == SW_DEVICE;
    const bool anew = group->first == 0 || sw_plan_reduces_groups(b->plan);
    struct sw_accumulator acc = {.slot = home, .version = anew ? 0 : per_micro * group->first};
    if (sw_build_is_table(b, unit))
        acc.slot = b->index->slot[SLOT_TABLE_ACC];
    else if (!on_device)
        acc.slot =
            b->index->slot[SLOT_WORK_ACC + (b->index->slot[SLOT_OTHER_WORK_ACC] < 0 ? 0 : b->work_acc_next++ % 2)];
    if (anew) {
        struct sw_op *op = sw_build_op(b, SW_OP_ZERO_ACCUMULATOR, unit, -1);
        op->grains = b->plan->spec.units->unit[unit].grains;
        sw_build_write_unit(b, acc.slot, acc_of(unit, 0, 0));
    } else if (!on_device && !sw_build_is_table(b, unit)) {
        emit_acc_transfer(b, unit, acc, true);
    }
    return acc;
}

void sw_build_accumulate(struct sw_builder *b, int64_t unit, struct sw_accumulator *acc) {
    sw_build_read_unit(b, acc->slot, acc_of(unit, 0, acc->version));
    sw_build_write_unit(b, acc->slot, acc_of(unit, 0, acc->version + 1));
    acc->version++;
}

/* Adds up what the ranks of a tensor group have of the gradients of replicated tensors, of which each has its rows' or
 * its heads' part, before anything else becomes of them: afterwards all ranks have the same. */
static void sum_replicated(struct sw_builder *b, int64_t unit, struct sw_accumulator *acc) {
    const struct sw_span own = sw_plan_replicated_of(b->plan, unit, b->plan->spec.tensor.rank);
    const int64_t elems = sw_plan_replicated_elems(b->plan, unit);
    if (sw_plan_tensor_ranks(b->plan) == 1 || elems == 0)
        return;
    struct sw_op *op = sw_build_op(b, SW_OP_SUM_REPLICATED, unit, -1);
    op->bytes = (elems - own.grains) * (int64_t)sizeof(float) + sw_plan_gathered_bytes(b->plan, op);
    sw_build_accumulate(b, unit, acc);
}

void sw_build_end_acc(struct sw_builder *b, int64_t unit, const struct sw_group *group, struct sw_accumulator acc) {
    const int32_t home = b->index->of_unit[SLOT_ACC][unit];
    const bool last = group->first + group->count == b->plan->spec.micro_batches;
    if (last || sw_plan_reduces_groups(b->plan))
        sum_replicated(b, unit, &acc);
    if (sw_plan_reduces_groups(b->plan)) {
        const int64_t before = group->first / sw_plan_group(b->plan);
        sw_build_reduce_group(b, unit, acc.slot, acc.version, before);
        if (last)
            sw_build_round_gradients(b, unit, b->index->of_unit[SLOT_ACC_SHARD][unit], before + 1, false);
        return;
    }
    if (last)
        sw_build_round_gradients(b, unit, acc.slot, acc.version, group->speculate);
    else if (!sw_build_is_table(b, unit) && b->plan->slot[home].tier != SW_DEVICE)
        emit_acc_transfer(b, unit, acc, false);
}
