/* Brings weights to the device. */
#include "core/size.h"
#include "offload/plan/builder.h"

int32_t sw_build_unit_slot(struct sw_builder *b, int64_t unit) {
    if (unit == 0 && sw_plan_fetches_table(b->plan)) {
        b->table_held = true;
        return b->index->slot[SLOT_TABLE];
    }
    if (sw_plan_has_typed_slot(b->plan, unit)) {
        b->typed_slot_holds = unit;
        return b->index->slot[SLOT_TYPED_WEIGHTS];
    }
    const int32_t k = b->unit_slot_next++ % (int32_t)b->plan->spec.unit_slots;
    b->unit_slot_holds[k] = unit;
    return b->index->slot[SLOT_UNIT_WEIGHTS] + k;
}

/* Returns the device slot that already has a unit's weights of this step; -1: none has. */
static int32_t held(const struct sw_builder *b, int64_t unit) {
    if (sw_plan_has_whole_on_device(b->plan, unit))
        return b->index->of_unit[SLOT_WEIGHTS][unit];
    if (unit == 0 && sw_plan_fetches_table(b->plan))
        return b->table_held ? b->index->slot[SLOT_TABLE] : -1;
    if (b->typed_slot_holds == unit)
        return b->index->slot[SLOT_TYPED_WEIGHTS];
    for (int64_t k = 0; k < b->plan->spec.unit_slots; k++)
        if (b->unit_slot_holds[k] == unit)
            return b->index->slot[SLOT_UNIT_WEIGHTS] + k;
    return -1;
}

void sw_build_gather(struct sw_builder *b, const struct sw_chunk *chunk, struct sw_operand weights,
                     struct sw_what what) {
    sw_build_chunk_op(b, SW_OP_GATHER_ROWS, chunk);
    sw_build_read(b, weights, what);
    for (int64_t m = 0; m < b->plan->spec.micro_batches; m++) {
        const struct sw_operand rows = {.slot = b->index->slot[SLOT_ROWS], .piece = m};
        if (chunk->number > 0)
            sw_build_read(b, rows, (struct sw_what){SW_CONTENT_ROWS, 0, m, chunk->number, 0, 0});
        sw_build_write(b, rows, (struct sw_what){SW_CONTENT_ROWS, 0, m, chunk->number + 1, 0, 0});
    }
    b->rows_held = true;
}

struct sw_operand sw_build_rows(struct sw_builder *b, int64_t micro) {
    const struct sw_operand to = sw_build_ring(b, SLOT_ROWS_RING);
    const struct sw_what what = {SW_CONTENT_ROWS, 0, micro, sw_plan_chunks(b->plan, 0), 0, 0};
    sw_build_transfer(b, (struct sw_operand){.slot = b->index->slot[SLOT_ROWS], .piece = micro}, to, what, micro,
                      b->plan->spec.gathered_bytes);
    return to;
}

/* Returns where a chunk of weights is on the host: where it lives, or staged from NVMe. */
static struct sw_operand fetch_to_host(struct sw_builder *b, const struct sw_chunk *chunk, struct sw_what what) {
    const struct sw_operand home = {.slot = b->index->of_unit[SLOT_WEIGHTS][chunk->unit], .piece = SW_BY_GRAINS};
    if (b->plan->placement[chunk->unit].tier[SW_WEIGHTS] != SW_NVME)
        return home;
    const struct sw_operand staging = sw_build_ring(b, SLOT_WEIGHTS_IN);
    sw_build_move(b, home, staging, what, chunk, sw_build_weights_bytes(b, chunk));
    return staging;
}

static void gather_all(struct sw_builder *b) {
    const int64_t chunks = b->rows_held ? 0 : sw_plan_chunks(b->plan, 0);
    for (int64_t c = 0; c < chunks; c++) {
        const struct sw_chunk chunk = sw_build_chunk(b, SW_WEIGHTS, 0, c);
        const struct sw_what what = {SW_CONTENT_WEIGHTS, 0, c, 0, b->state_age, 0};
        sw_build_gather(b, &chunk, fetch_to_host(b, &chunk, what), what);
    }
}

/* Moves this rank's weights of a unit to the device, if they are not there; shards become whole. */
static void fetch(struct sw_builder *b, int64_t unit, int32_t slot) {
    if (sw_build_has_secondary(b, unit)) {
        sw_build_gather_secondary(b, unit, slot);
        return;
    }
    const bool sharded = sw_plan_is_sharded(b->plan, SW_WEIGHTS);
    const bool is_there = b->plan->placement[unit].tier[SW_WEIGHTS] == SW_DEVICE;
    for (int64_t c = 0; !is_there && c < sw_plan_state_chunks(b->plan, SW_WEIGHTS, unit); c++) {
        const struct sw_chunk chunk = sw_build_chunk(b, SW_WEIGHTS, unit, c);
        const struct sw_what what = {SW_CONTENT_WEIGHTS, unit, c, 0, b->state_age, 0};
        const struct sw_operand to = {.slot = slot, .piece = SW_BY_GRAINS, .own = sharded};
        sw_build_move(b, fetch_to_host(b, &chunk, what), to, what, &chunk, sw_build_weights_bytes(b, &chunk));
    }
    if (sharded)
        sw_build_all_gather(b, unit, is_there ? b->index->of_unit[SLOT_WEIGHTS][unit] : slot, slot);
}

int32_t sw_build_fetch(struct sw_builder *b, int64_t unit) {
    if (unit == 0 && sw_plan_gathers_rows(b->plan)) {
        gather_all(b);
        return -1;
    }
    int32_t slot = held(b, unit);
    if (slot >= 0)
        return slot;
    slot = sw_build_unit_slot(b, unit);
    fetch(b, unit, slot);
    return slot;
}
