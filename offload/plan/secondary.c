/* The secondary shards of weights: kept from the first gather of a step, gathered within a part of a node from then on.
 */
#include "core/size.h"
#include "offload/plan/builder.h"

static struct sw_what weights_of(const struct sw_builder *b, int64_t unit) {
    return (struct sw_what){.content = SW_CONTENT_WEIGHTS, .unit = unit, .age = b->state_age};
}

static struct sw_operand by_grains(int32_t slot, bool own) {
    return (struct sw_operand){.slot = slot, .piece = SW_BY_GRAINS, .own = own};
}

/* Moves the secondary shard between a device slot and its home on the host. `out`: to the host. */
static void move_chunks(struct sw_builder *b, int64_t unit, int32_t slot, bool out) {
    const int64_t chunks = sw_div_up(sw_plan_secondary(b->plan, unit).grains, b->plan->spec.chunk_grains);
    const int32_t home = b->index->of_unit[SLOT_SECONDARY][unit];
    for (int64_t c = 0; c < chunks; c++) {
        const struct sw_chunk chunk = {unit, c, sw_plan_secondary_chunk(b->plan, unit, c)};
        const struct sw_operand from = by_grains(out ? slot : home, false), to = by_grains(out ? home : slot, !out);
        sw_build_move(b, from, to, weights_of(b, unit), &chunk, sw_build_weights_bytes(b, &chunk));
    }
}

void sw_build_keep_secondary(struct sw_builder *b, int64_t unit, int32_t slot) {
    const struct sw_span own = sw_plan_secondary(b->plan, unit);
    if (unit < b->secondary_units)
        return;
    b->secondary_units = unit + 1;
    if (b->plan->secondary_tier == SW_HOST) {
        move_chunks(b, unit, slot, true);
    } else if (own.grains > 0) {
        const struct sw_chunk shard = {unit, -1, own};
        struct sw_op *op = sw_build_chunk_op(b, SW_OP_KEEP_SECONDARY, &shard);
        op->content = SW_CONTENT_WEIGHTS;
        op->bytes = 2 * sw_plan_weights_bytes(b->plan, unit, own.grains);
        sw_build_read(b, by_grains(slot, false), weights_of(b, unit));
        sw_build_write(b, by_grains(b->index->of_unit[SLOT_SECONDARY][unit], false), weights_of(b, unit));
    }
}

bool sw_build_has_secondary(const struct sw_builder *b, int64_t unit) {
    return unit < b->secondary_units && sw_plan_keeps_secondary(b->plan, unit);
}

void sw_build_gather_secondary(struct sw_builder *b, int64_t unit, int32_t slot) {
    const struct sw_span own = sw_plan_secondary(b->plan, unit);
    const bool on_host = b->plan->secondary_tier == SW_HOST;
    struct sw_what what = weights_of(b, unit);
    if (on_host)
        move_chunks(b, unit, slot, false);
    struct sw_op *op = sw_build_op(b, SW_OP_ALL_GATHER, unit, -1);
    op->content = what.content;
    op->secondary = true;
    op->bytes = sw_plan_weights_bytes(b->plan, unit, own.grains) * (b->plan->spec.secondary_ranks - 1);
    what.version = on_host ? SW_VERSION_OWN : 0;
    if (own.grains > 0)
        sw_build_read_grains(b, on_host ? slot : b->index->of_unit[SLOT_SECONDARY][unit], own, what);
    what.version = 0;
    sw_build_write_unit(b, slot, what);
}
