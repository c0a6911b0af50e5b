/* The ops of a step, in an order in which they could run one after the other. */
#include "core/size.h"
#include "offload/plan_private.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct builder {
    const struct sw_plan *plan;
    const struct sw_plan_index *index;
    struct sw_program *program;
    int32_t op_capacity, access_capacity;
    int32_t ring_next[6]; /* next piece of each ring, by enum ring */
    struct sw_op dropped; /* receives ops once memory ran out; the status says so */
    sw_status status;
};

enum ring { RING_DOWN, RING_OUT, RING_IN, RING_UP, RING_RECORDS, RING_WEIGHTS };

static bool grow(struct builder *b, void **array, int32_t count, int32_t *capacity, size_t size) {
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

static struct sw_op *add_op(struct builder *b, sw_op_kind kind, sw_lane lane, int64_t unit, int64_t micro,
                            int64_t chunk) {
    struct sw_program *program = b->program;
    if (!grow(b, (void **)&program->op, program->op_count, &b->op_capacity, sizeof *program->op))
        return &b->dropped;
    struct sw_op *op = &program->op[program->op_count++];
    *op = (struct sw_op){.kind = kind,
                         .lane = lane,
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

static void add_access(struct builder *b, struct sw_access access) {
    struct sw_program *program = b->program;
    assert(access.slot >= 0 && access.count > 0);
    if (!grow(b, (void **)&program->access, program->access_count, &b->access_capacity, sizeof *program->access))
        return;
    program->access[program->access_count++] = access;
    program->op[program->op_count - 1].access_count++;
}

/* One piece of a slot. */
static void touch(struct builder *b, bool write, int32_t slot, int64_t piece, sw_content content, int64_t unit,
                  int64_t index, int64_t stage, int age) {
    add_access(b, (struct sw_access){.slot = slot,
                                     .first = (int32_t)piece,
                                     .count = 1,
                                     .content = content,
                                     .unit = (int32_t)unit,
                                     .first_index = (int32_t)index,
                                     .stage = (int32_t)stage,
                                     .age = age,
                                     .write = write});
}

/* All chunks of a unit in a slot. */
static void touch_unit(struct builder *b, bool write, int32_t slot, sw_content content, int64_t unit, int64_t stage,
                       int age) {
    add_access(b, (struct sw_access){.slot = slot,
                                     .first = 0,
                                     .count = (int32_t)sw_plan_chunks(b->plan, unit),
                                     .content = content,
                                     .unit = (int32_t)unit,
                                     .first_index = 0,
                                     .stage = (int32_t)stage,
                                     .age = age,
                                     .write = write});
}

static int64_t next_piece(struct builder *b, enum ring ring) {
    return b->ring_next[ring]++ % b->plan->spec.ring_chunks;
}

static int64_t chunk_typed_bytes(const struct builder *b, const struct sw_op *op) {
    return op->grains * SW_GRAIN_ELEMS * sw_dtype_bytes(b->plan->spec.type);
}

/* On the compute lane: behind the uploads of the step before, tokens would hold the forward pass back until the update
 * has ended. */
static void emit_tokens(struct builder *b, int64_t micros) {
    struct sw_op *op = add_op(b, SW_OP_UPLOAD_TOKENS, SW_LANE_COMPUTE, -1, -1, -1);
    op->bytes = micros * b->plan->spec.token_bytes;
    for (int64_t m = 0; m < micros; m++)
        touch(b, true, b->index->tokens, m, SW_CONTENT_TOKENS, -1, m, 0, 0);
}

static void touch_saved(struct builder *b, bool write, int64_t unit, int64_t micro) {
    const bool own = b->index->saved[unit] >= 0;
    touch(b, write, own ? b->index->saved[unit] : b->index->saved_shared, own ? micro : 0, SW_CONTENT_SAVED, unit,
          micro, 0, 0);
}

static void touch_input(struct builder *b, int64_t unit, int64_t micro) {
    if (unit == 0)
        touch(b, false, b->index->tokens, micro, SW_CONTENT_TOKENS, -1, micro, 0, 0);
    else
        touch(b, false, b->index->boundary[unit - 1], micro, SW_CONTENT_BOUNDARY, unit - 1, micro, 0, 0);
}

static void touch_work(struct builder *b) {
    touch(b, true, b->index->work, 0, SW_CONTENT_WORK, -1, 0, 0, 0);
}

static void emit_forward(struct builder *b, int64_t micros) {
    const int64_t head = b->plan->spec.units->count - 1;
    for (int64_t u = 0; u < head; u++) {
        for (int64_t m = 0; m < micros; m++) {
            add_op(b, SW_OP_FORWARD, SW_LANE_COMPUTE, u, m, -1);
            touch_unit(b, false, b->index->weights[u], SW_CONTENT_WEIGHTS, u, 0, 1);
            touch_input(b, u, m);
            touch(b, true, b->index->boundary[u], m, SW_CONTENT_BOUNDARY, u, m, 0, 0);
            if (u > 0)
                touch_saved(b, true, u, m);
            touch_work(b);
        }
    }
}

/* What every form of the head reads. */
static void touch_head(struct builder *b, int64_t micro) {
    const struct sw_units *units = b->plan->spec.units;
    const int64_t head = units->count - 1;
    touch_unit(b, false, b->index->weights[head], SW_CONTENT_WEIGHTS, head, 0, 1);
    if (units->tied)
        touch_unit(b, false, b->index->weights[0], SW_CONTENT_WEIGHTS, 0, 0, 1);
    touch(b, false, b->index->tokens, micro, SW_CONTENT_TOKENS, -1, micro, 0, 0);
    touch_input(b, head, micro);
    touch_work(b);
}

static int32_t acc_slot(const struct builder *b, int64_t unit) {
    return unit == 0 && b->plan->spec.units->tied ? b->index->table_acc : b->index->acc;
}

static void emit_zero(struct builder *b, int64_t unit) {
    add_op(b, SW_OP_ZERO, SW_LANE_COMPUTE, unit, -1, -1);
    touch_unit(b, true, acc_slot(b, unit), SW_CONTENT_ACC, unit, 0, 0);
}

static void touch_accumulate(struct builder *b, int64_t unit, int64_t stage) {
    touch_unit(b, false, acc_slot(b, unit), SW_CONTENT_ACC, unit, stage, 0);
    touch_unit(b, true, acc_slot(b, unit), SW_CONTENT_ACC, unit, stage + 1, 0);
}

static void emit_head(struct builder *b) {
    const struct sw_units *units = b->plan->spec.units;
    const int64_t head = units->count - 1;
    if (units->tied)
        emit_zero(b, 0);
    emit_zero(b, head);
    for (int64_t m = 0; m < b->plan->spec.micro_batches; m++) {
        add_op(b, SW_OP_HEAD, SW_LANE_COMPUTE, head, m, -1);
        touch_head(b, m);
        touch_accumulate(b, head, m);
        if (units->tied)
            touch_accumulate(b, 0, m);
        touch(b, true, b->index->boundary_grad, m, SW_CONTENT_BOUNDARY_GRAD, head - 1, m, 0, 0);
    }
}

static void emit_backward(struct builder *b, int64_t unit, int64_t micro, int64_t stage) {
    add_op(b, SW_OP_BACKWARD, SW_LANE_COMPUTE, unit, micro, -1);
    touch_unit(b, false, b->index->weights[unit], SW_CONTENT_WEIGHTS, unit, 0, 1);
    touch_input(b, unit, micro);
    if (unit > 0)
        touch_saved(b, b->plan->recompute, unit, micro);
    touch(b, false, b->index->boundary_grad, micro, SW_CONTENT_BOUNDARY_GRAD, unit, micro, 0, 0);
    if (unit > 0)
        touch(b, true, b->index->boundary_grad, micro, SW_CONTENT_BOUNDARY_GRAD, unit - 1, micro, 0, 0);
    touch_accumulate(b, unit, stage);
    touch_work(b);
}

/* A finished gradient chunk goes to where gradients live. */
static void emit_finish_chunk(struct builder *b, int64_t unit, int64_t chunk, int64_t stage) {
    const sw_tier tier = b->plan->placement[unit].tier[SW_GRADS];
    const int64_t down = tier == SW_DEVICE ? -1 : next_piece(b, RING_DOWN);
    add_op(b, SW_OP_FINISH, SW_LANE_COMPUTE, unit, -1, chunk);
    touch(b, false, acc_slot(b, unit), chunk, SW_CONTENT_ACC, unit, chunk, stage, 0);
    touch(b, true, down < 0 ? b->index->grads[unit] : b->index->grads_down, down < 0 ? chunk : down, SW_CONTENT_GRADS,
          unit, chunk, 0, 0);
    touch(b, true, b->index->sums_device, unit, SW_CONTENT_SUMS, -1, unit, chunk + 1, 0);
    if (down < 0)
        return;
    const int64_t out = tier == SW_NVME ? next_piece(b, RING_OUT) : -1;
    struct sw_op *op = add_op(b, SW_OP_DOWNLOAD_GRADS, SW_LANE_DOWNLOAD, unit, -1, chunk);
    op->bytes = chunk_typed_bytes(b, op);
    touch(b, false, b->index->grads_down, down, SW_CONTENT_GRADS, unit, chunk, 0, 0);
    touch(b, true, out < 0 ? b->index->grads[unit] : b->index->grads_out, out < 0 ? chunk : out, SW_CONTENT_GRADS, unit,
          chunk, 0, 0);
    if (out < 0)
        return;
    op = add_op(b, SW_OP_WRITE_GRADS, SW_LANE_WRITE, unit, -1, chunk);
    op->bytes = chunk_typed_bytes(b, op);
    touch(b, false, b->index->grads_out, out, SW_CONTENT_GRADS, unit, chunk, 0, 0);
    touch(b, true, b->index->grads[unit], chunk, SW_CONTENT_GRADS, unit, chunk, 0, 0);
}

static void emit_finish(struct builder *b, int64_t unit) {
    const int64_t micros = b->plan->spec.micro_batches;
    const int64_t chunks = sw_plan_chunks(b->plan, unit);
    const int64_t stage = unit == 0 && b->plan->spec.units->tied ? 2 * micros : micros;
    for (int64_t c = 0; c < chunks; c++)
        emit_finish_chunk(b, unit, c, stage);
    struct sw_op *op = add_op(b, SW_OP_DOWNLOAD_SUMS, SW_LANE_DOWNLOAD, unit, -1, -1);
    op->bytes = b->plan->spec.units->unit[unit].grains * (int64_t)sizeof(double);
    touch(b, false, b->index->sums_device, unit, SW_CONTENT_SUMS, -1, unit, chunks, 0);
    touch(b, true, b->index->sums_host, unit, SW_CONTENT_SUMS, -1, unit, chunks, 0);
}

static void emit_norm(struct builder *b) {
    add_op(b, SW_OP_NORM, SW_LANE_UPDATE, -1, -1, -1);
    for (int64_t u = 0; u < b->plan->spec.units->count; u++)
        touch(b, false, b->index->sums_host, u, SW_CONTENT_SUMS, -1, u, sw_plan_chunks(b->plan, u), 0);
    touch(b, true, b->index->norm, 0, SW_CONTENT_NORM, -1, 0, 0, 0);
}

/* Where an update finds its gradient chunk. */
struct operand {
    int32_t slot;
    int64_t piece;
};

static struct operand emit_grads_to_host(struct builder *b, int64_t unit, int64_t chunk) {
    const sw_tier tier = b->plan->placement[unit].tier[SW_GRADS];
    if (tier == SW_HOST)
        return (struct operand){b->index->grads[unit], chunk};
    const struct operand to = {b->index->grads_in, next_piece(b, RING_IN)};
    const bool read = tier == SW_NVME;
    struct sw_op *op = add_op(b, read ? SW_OP_READ_GRADS : SW_OP_DOWNLOAD_GRADS, read ? SW_LANE_READ : SW_LANE_DOWNLOAD,
                              unit, -1, chunk);
    op->bytes = chunk_typed_bytes(b, op);
    touch(b, false, b->index->grads[unit], chunk, SW_CONTENT_GRADS, unit, chunk, 0, 0);
    touch(b, true, to.slot, to.piece, SW_CONTENT_GRADS, unit, chunk, 0, 0);
    return to;
}

static struct operand emit_grads_to_device(struct builder *b, int64_t unit, int64_t chunk) {
    if (b->plan->placement[unit].tier[SW_GRADS] == SW_DEVICE)
        return (struct operand){b->index->grads[unit], chunk};
    const struct operand from = emit_grads_to_host(b, unit, chunk);
    const struct operand to = {b->index->grads_up, next_piece(b, RING_UP)};
    struct sw_op *op = add_op(b, SW_OP_UPLOAD_GRADS, SW_LANE_UPLOAD, unit, -1, chunk);
    op->bytes = chunk_typed_bytes(b, op);
    touch(b, false, from.slot, from.piece, SW_CONTENT_GRADS, unit, chunk, 0, 0);
    touch(b, true, to.slot, to.piece, SW_CONTENT_GRADS, unit, chunk, 0, 0);
    return to;
}

static void emit_update_op(struct builder *b, sw_op_kind kind, sw_lane lane, int64_t unit, int64_t chunk,
                           struct operand grads, struct operand records, struct operand weights) {
    struct sw_op *op = add_op(b, kind, lane, unit, -1, chunk);
    op->bytes = op->grains * (2 * SW_RECORD_BYTES) + 2 * chunk_typed_bytes(b, op);
    touch(b, false, b->index->norm, 0, SW_CONTENT_NORM, -1, 0, 0, 0);
    touch(b, false, grads.slot, grads.piece, SW_CONTENT_GRADS, unit, chunk, 0, 0);
    touch(b, false, records.slot, records.piece, SW_CONTENT_OPTIMIZER, unit, chunk, 0, 1);
    touch(b, true, records.slot, records.piece, SW_CONTENT_OPTIMIZER, unit, chunk, 0, 0);
    touch(b, true, weights.slot, weights.piece, SW_CONTENT_WEIGHTS, unit, chunk, 0, 0);
}

static void emit_update_on_device(struct builder *b, int64_t unit, int64_t chunk) {
    const struct operand grads = emit_grads_to_device(b, unit, chunk);
    emit_update_op(b, SW_OP_UPDATE_ON_DEVICE, SW_LANE_COMPUTE, unit, chunk, grads,
                   (struct operand){b->index->optimizer[unit], chunk},
                   (struct operand){b->index->weights[unit], chunk});
}

static void emit_update_on_host(struct builder *b, int64_t unit, int64_t chunk) {
    const bool nvme = b->plan->placement[unit].tier[SW_OPTIMIZER] == SW_NVME;
    const struct operand grads = emit_grads_to_host(b, unit, chunk);
    struct operand records = {b->index->optimizer[unit], chunk};
    struct sw_op *op;
    if (nvme) {
        records = (struct operand){b->index->optimizer_ring, next_piece(b, RING_RECORDS)};
        op = add_op(b, SW_OP_READ_OPTIMIZER, SW_LANE_READ, unit, -1, chunk);
        op->bytes = op->grains * SW_RECORD_BYTES;
        touch(b, false, b->index->optimizer[unit], chunk, SW_CONTENT_OPTIMIZER, unit, chunk, 0, 1);
        touch(b, true, records.slot, records.piece, SW_CONTENT_OPTIMIZER, unit, chunk, 0, 1);
    }
    const struct operand weights = {b->index->weights_ring, next_piece(b, RING_WEIGHTS)};
    emit_update_op(b, SW_OP_UPDATE, SW_LANE_UPDATE, unit, chunk, grads, records, weights);
    op = add_op(b, SW_OP_UPLOAD_WEIGHTS, SW_LANE_UPLOAD, unit, -1, chunk);
    op->bytes = chunk_typed_bytes(b, op);
    touch(b, false, weights.slot, weights.piece, SW_CONTENT_WEIGHTS, unit, chunk, 0, 0);
    touch(b, true, b->index->weights[unit], chunk, SW_CONTENT_WEIGHTS, unit, chunk, 0, 0);
    if (!nvme)
        return;
    op = add_op(b, SW_OP_WRITE_OPTIMIZER, SW_LANE_WRITE, unit, -1, chunk);
    op->bytes = op->grains * SW_RECORD_BYTES;
    touch(b, false, records.slot, records.piece, SW_CONTENT_OPTIMIZER, unit, chunk, 0, 0);
    touch(b, true, b->index->optimizer[unit], chunk, SW_CONTENT_OPTIMIZER, unit, chunk, 0, 0);
}

/* In forward order, so that the next step's forward can begin with the first units' new weights. */
static void emit_updates(struct builder *b) {
    const struct sw_units *units = b->plan->spec.units;
    for (int64_t u = 0; u < units->count; u++) {
        const bool on_device = b->plan->placement[u].tier[SW_OPTIMIZER] == SW_DEVICE;
        for (int64_t c = 0; c < sw_plan_chunks(b->plan, u); c++) {
            if (on_device)
                emit_update_on_device(b, u, c);
            else
                emit_update_on_host(b, u, c);
        }
    }
}

/* Reading every grain on NVMe orders the commit after their writes, and the next step's writes after the commit. */
static void emit_commit(struct builder *b) {
    add_op(b, SW_OP_COMMIT, SW_LANE_WRITE, -1, -1, -1);
    for (int64_t u = 0; u < b->plan->spec.units->count; u++)
        touch_unit(b, false, b->index->optimizer[u], SW_CONTENT_OPTIMIZER, u, 0, 0);
}

static void emit_train(struct builder *b) {
    const struct sw_units *units = b->plan->spec.units;
    const int64_t micros = b->plan->spec.micro_batches;
    emit_tokens(b, micros);
    emit_forward(b, micros);
    emit_head(b);
    emit_finish(b, units->count - 1);
    for (int64_t u = units->count - 2; u >= 0; u--) {
        const bool table = u == 0 && units->tied;
        if (!table)
            emit_zero(b, u);
        for (int64_t m = 0; m < micros; m++)
            emit_backward(b, u, m, table ? micros + m : m);
        emit_finish(b, u);
    }
    emit_norm(b);
    emit_updates(b);
    if (b->plan->commit_every_step)
        emit_commit(b);
}

static void emit_inference(struct builder *b, sw_op_kind kind, int64_t micros) {
    emit_tokens(b, micros);
    emit_forward(b, micros);
    for (int64_t m = 0; m < micros; m++) {
        add_op(b, kind, SW_LANE_COMPUTE, b->plan->spec.units->count - 1, m, -1);
        touch_head(b, m);
    }
}

static sw_status index_lanes(struct sw_program *program) {
    for (int lane = 0; lane < SW_LANES; lane++) {
        program->lane_op[lane] = malloc((size_t)(program->lane_count[lane] + 1) * sizeof *program->lane_op[lane]);
        if (program->lane_op[lane] == NULL)
            return sw_fail(SW_ERR_NOMEM, "no memory for the plan's lanes");
    }
    for (int32_t i = 0; i < program->op_count; i++)
        program->lane_op[program->op[i].lane][program->op[i].position] = i;
    return SW_OK;
}

sw_status sw_plan_emit(const struct sw_plan *plan, sw_program_kind kind, struct sw_program *out) {
    *out = (struct sw_program){0};
    struct builder b = {.plan = plan, .index = plan->index, .program = out};
    switch (kind) {
    case SW_PROGRAM_TRAIN: emit_train(&b); break;
    case SW_PROGRAM_LOSS: emit_inference(&b, SW_OP_LOSS, plan->spec.micro_batches); break;
    case SW_PROGRAM_LOGITS: emit_inference(&b, SW_OP_LOGITS, 1); break;
    default: assert(!"unknown program");
    }
    SW_TRY(b.status);
    return index_lanes(out);
}

void sw_program_destroy(struct sw_program *program) {
    free(program->op);
    free(program->access);
    free(program->wait);
    for (int lane = 0; lane < SW_LANES; lane++)
        free(program->lane_op[lane]);
    *program = (struct sw_program){0};
}
