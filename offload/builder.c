#include "offload/builder.h"

#include "core/size.h"

#include <assert.h>
#include <stdlib.h>

static bool grow(struct sw_builder *b, void **array, int32_t count, int32_t *capacity, size_t size) {
    if (b->status != SW_OK)
        return false;
    if (count < *capacity)
        return true;
    *capacity = *capacity * 2 + 256;
    void *grown = realloc(*array, (size_t)*capacity * size);
    if (grown == NULL) {
        b->status = sw_fail(SW_ERR_NOMEM, "no memory for the plan's ops");
        return false;
    }
    *array = grown;
    return true;
}

struct sw_op *sw_build_op(struct sw_builder *b, sw_op_kind kind, sw_lane lane, int64_t unit, int64_t micro,
                          int64_t chunk) {
    struct sw_program *program = b->program;
    if (!grow(b, (void **)&program->op, program->op_count, &b->op_capacity, sizeof *program->op))
        return &b->dropped;
    struct sw_op *op = &program->op[program->op_count++];
    *op = (struct sw_op){.kind = kind,
                         .lane = lane,
                         .redo = b->redo,
                         .unit = (int32_t)unit,
                         .micro = (int32_t)micro,
                         .chunk = (int32_t)chunk,
                         .position = program->lane_count[lane]++,
                         .first_access = program->access_count};
    if (chunk >= 0) {
        op->first_grain = chunk * b->plan->spec.chunk_grains;
        op->grains = sw_plan_chunk_grains(b->plan, unit, chunk);
    }
    return op;
}

static void add_access(struct sw_builder *b, bool write, struct sw_place place, int64_t count, struct sw_what what) {
    struct sw_program *program = b->program;
    assert(place.slot >= 0 && count > 0 && place.piece + count <= b->plan->slot[place.slot].pieces);
    if (!grow(b, (void **)&program->access, program->access_count, &b->access_capacity, sizeof *program->access))
        return;
    program->access[program->access_count++] = (struct sw_access){.slot = place.slot,
                                                                  .first = (int32_t)place.piece,
                                                                  .count = (int32_t)count,
                                                                  .content = what.content,
                                                                  .unit = (int32_t)what.unit,
                                                                  .first_index = (int32_t)what.index,
                                                                  .stage = (int32_t)what.stage,
                                                                  .age = what.age,
                                                                  .write = write,
                                                                  .generation = what.generation};
    program->op[program->op_count - 1].access_count++;
}

void sw_build_read(struct sw_builder *b, struct sw_place place, struct sw_what what) {
    add_access(b, false, place, 1, what);
}

void sw_build_write(struct sw_builder *b, struct sw_place place, struct sw_what what) {
    add_access(b, true, place, 1, what);
}

void sw_build_read_unit(struct sw_builder *b, int32_t slot, struct sw_what what) {
    add_access(b, false, (struct sw_place){slot, 0}, sw_plan_chunks(b->plan, what.unit), what);
}

void sw_build_write_unit(struct sw_builder *b, int32_t slot, struct sw_what what) {
    add_access(b, true, (struct sw_place){slot, 0}, sw_plan_chunks(b->plan, what.unit), what);
}

struct sw_place sw_build_ring(struct sw_builder *b, enum sw_ring ring) {
    const struct sw_plan_index *index = b->index;
    const int32_t slots[RINGS] = {
        [RING_GRADS_DOWN] = index->grads_down,     [RING_GRADS_OUT] = index->grads_out,
        [RING_GRADS_IN] = index->grads_in,         [RING_GRADS_UP] = index->grads_up,
        [RING_RECORDS] = index->optimizer_ring,    [RING_RECORDS_UP] = index->optimizer_up,
        [RING_WEIGHTS] = index->weights_ring,      [RING_WEIGHTS_IN] = index->weights_in,
        [RING_WEIGHTS_DOWN] = index->weights_down, [RING_ROWS] = index->rows_ring,
        [RING_BOUNDARY] = index->boundary_ring,    [RING_BOUNDARY_BACK] = index->boundary_back,
        [RING_BOUNDARY_OUT] = index->boundary_out, [RING_BOUNDARY_IN] = index->boundary_in,
        [RING_ACC_OUT] = index->acc_out,           [RING_ACC_IN] = index->acc_in,
    };
    assert(slots[ring] >= 0);
    return (struct sw_place){slots[ring], b->ring_next[ring]++ % b->plan->slot[slots[ring]].pieces};
}

/* The op that moves bytes from one tier to another. */
static const struct {
    sw_tier from, to;
    sw_op_kind kind;
    sw_lane lane;
} moves[] = {
    {SW_HOST, SW_DEVICE, SW_OP_UPLOAD, SW_LANE_UPLOAD},
    {SW_DEVICE, SW_HOST, SW_OP_DOWNLOAD, SW_LANE_DOWNLOAD},
    {SW_NVME, SW_HOST, SW_OP_READ, SW_LANE_READ},
    {SW_HOST, SW_NVME, SW_OP_WRITE, SW_LANE_WRITE},
};

void sw_build_transfer(struct sw_builder *b, struct sw_place from, struct sw_place to, struct sw_what what,
                       int64_t micro, int64_t bytes) {
    size_t m = 0;
    while (m < sizeof moves / sizeof moves[0] &&
           (moves[m].from != b->plan->slot[from.slot].tier || moves[m].to != b->plan->slot[to.slot].tier))
        m++;
    assert(m < sizeof moves / sizeof moves[0]);
    struct sw_op *op = sw_build_op(b, moves[m].kind, moves[m].lane, what.unit, micro, micro < 0 ? what.index : -1);
    op->content = what.content;
    op->bytes = bytes;
    /* A generation is a place on NVMe; what was read from it or goes to it is the same content. */
    struct sw_what on_host = what;
    on_host.generation = SW_GENERATION_NONE;
    sw_build_read(b, from, b->plan->slot[from.slot].tier == SW_NVME ? what : on_host);
    sw_build_write(b, to, b->plan->slot[to.slot].tier == SW_NVME ? what : on_host);
    if (b->redo)
        sw_build_read_norm(b);
}

int64_t sw_build_typed_bytes(const struct sw_builder *b, int64_t unit, int64_t chunk) {
    return sw_plan_chunk_grains(b->plan, unit, chunk) * SW_GRAIN_ELEMS * sw_dtype_bytes(b->plan->spec.type);
}
