/* Weights on their way to the device. */
#include "core/size.h"
#include "offload/builder.h"

int32_t sw_build_unit_slot(struct sw_builder *b, int64_t unit) {
    if (unit == 0 && sw_plan_table_streams(b->plan)) {
        b->table_held = true;
        return b->index->table_slot;
    }
    const int32_t k = b->unit_slot_next++ % (int32_t)b->plan->spec.unit_slots;
    b->unit_slot_holds[k] = unit;
    return b->index->unit_slot[k];
}

/* Where a unit's weights of this step already are on the device, or -1. */
static int32_t held(const struct sw_builder *b, int64_t unit) {
    if (b->plan->placement[unit].tier[SW_WEIGHTS] == SW_DEVICE)
        return b->index->weights[unit];
    if (unit == 0 && sw_plan_table_streams(b->plan))
        return b->table_held ? b->index->table_slot : -1;
    for (int64_t k = 0; k < b->plan->spec.unit_slots; k++)
        if (b->unit_slot_holds[k] == unit)
            return b->index->unit_slot[k];
    return -1;
}

int32_t sw_build_fetch(struct sw_builder *b, int64_t unit) {
    int32_t slot = held(b, unit);
    if (slot >= 0)
        return slot;
    slot = sw_build_unit_slot(b, unit);
    const bool nvme = b->plan->placement[unit].tier[SW_WEIGHTS] == SW_NVME;
    for (int64_t c = 0; c < sw_plan_chunks(b->plan, unit); c++) {
        const struct sw_what what = {SW_CONTENT_WEIGHTS, unit, c, 0, b->state_age, 0};
        const int64_t bytes = sw_build_typed_bytes(b, unit, c);
        struct sw_place from = {b->index->weights[unit], c};
        if (nvme) {
            const struct sw_place stage = sw_build_ring(b, RING_WEIGHTS_IN);
            sw_build_transfer(b, from, stage, what, -1, bytes);
            from = stage;
        }
        sw_build_transfer(b, from, (struct sw_place){slot, c}, what, -1, bytes);
    }
    return slot;
}
