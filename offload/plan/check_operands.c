/* Proves the operands of a program: each op has those that its kind needs, and each is exactly the bytes that the
 * op's unit, micro-batch, chunk or rank stands for. What the accesses claim is proven in check.c. */
#include "core/size.h"
#include "offload/plan/plan_private.h"

struct extent {
    int64_t offset_bytes, bytes;
};

#define ROLE(name) (1u << SW_ROLE_##name)

/* Returns the roles by which an op of a block or the head has its input. With sequence parallelism that is normalised,
 * and a block's forward pass adds to the rows of this rank. A backward op needs none where only the rows of the norm
 * are recalled, or the normalised input only for the gradient of the first product's weights. */
static unsigned input_of(const struct sw_plan *plan, const struct sw_op *op) {
    const bool sequence = sw_plan_is_sequence_parallel(plan);
    if (op->unit == 0)
        return 0;
    switch (op->kind) {
    case SW_OP_FORWARD: return sequence ? ROLE(INPUT) | ROLE(NORMED) : ROLE(INPUT);
    case SW_OP_BACKWARD:
        if (sequence)
            return sw_plan_recalls_normed(plan, op->unit) ? ROLE(NORMED) : 0;
        return sw_plan_recalls_rows(plan, op->unit) ? 0 : ROLE(INPUT);
    case SW_OP_BACKWARD_FIRST: return sequence ? ROLE(NORMED) : 0;
    case SW_OP_HEAD_LOGITS:
    case SW_OP_COMPUTE_LOSS:
    case SW_OP_COMPUTE_LOGITS:
    case SW_OP_FORWARD_BACKWARD_HEAD: return sequence ? ROLE(NORMED) : ROLE(INPUT);
    default: return 0;
    }
}

/* Returns the roles that an op needs: in a tensor group the head and the blocks leave the gradient at their norm, if
 * they have it, and blocks that at the result of their first product, if their backward pass is split. */
static unsigned needed_by(const struct sw_plan *plan, const struct sw_op *op) {
    const bool group = sw_plan_tensor_ranks(plan) > 1, head = op->kind == SW_OP_FORWARD_BACKWARD_HEAD;
    unsigned roles = sw_ops[op->kind].needs | input_of(plan, op);
    if (head || (op->kind == SW_OP_BACKWARD && op->unit > 0))
        roles |= group && !sw_plan_continues(plan, op->unit) ? ROLE(NORM_GRAD) : ROLE(OUTPUT_GRAD);
    if (op->kind == SW_OP_BACKWARD && sw_plan_splits_backward(plan, op->unit))
        roles |= ROLE(PRODUCT_GRAD);
    if (group && (head || op->kind == SW_OP_COMPUTE_LOSS))
        roles |= ROLE(SOFTMAX);
    return roles;
}

/* Tells whether an op that belongs to this rank's grains alone has none, and so no operands. */
static bool is_idle(const struct sw_op *op) {
    const bool of_rank =
        op->kind == SW_OP_QUANTIZE_WEIGHTS || op->kind == SW_OP_DEQUANTIZE_GRADIENTS || op->level == SW_LEVEL_ACROSS;
    return of_rank && op->grains == 0;
}

/* Returns the bytes of the chunks that lie in an op's bucket before the chunk of `rank`. */
static int64_t bytes_before(const struct sw_plan *plan, const struct sw_op *op, sw_content content, int rank) {
    return sw_plan_bucket_grains(plan, op->unit, op->chunk, rank) * sw_plan_grain_bytes(plan, content, op->unit);
}

static struct extent of_grains(const struct sw_slot *slot, struct sw_span at) {
    return (struct extent){(at.first_grain - slot->first_grain) * slot->grain_bytes, at.grains * slot->grain_bytes};
}

static struct extent of_piece(const struct sw_slot *slot, int64_t piece, int64_t offset_bytes, int64_t bytes) {
    const int64_t start = piece * slot->piece_bytes, end = sw_min_i64(start + slot->piece_bytes, slot->bytes);
    return (struct extent){start + offset_bytes, bytes > 0 ? bytes : end - start - offset_bytes};
}

/* Returns where this rank's rows of a unit's output begin in a piece on the device that has room for all. */
static int64_t own_rows_at(const struct sw_plan *plan, const struct sw_access *access) {
    const bool ring =
        access->slot == plan->index->slot[SLOT_OUTPUT_RING] || access->slot == plan->index->slot[SLOT_INPUT_BACK];
    if (!ring || !sw_plan_partitions_input(plan, access->unit + 1) || sw_plan_is_sequence_parallel(plan))
        return 0;
    return sw_plan_rows_of(plan, plan->spec.tensor.rank).first_grain * sw_plan_row_bytes(plan);
}

/* Returns where the op's grains begin in a piece. A chunk of a rank's shard lies in a bucket behind those of the ranks
 * before; square sums lie by grain in the piece of their unit. */
static int64_t offset_in_piece(const struct sw_plan *plan, const struct sw_op *op, const struct sw_access *access) {
    if (access->content == SW_CONTENT_SQUARE_SUMS)
        return op->first_grain * (int64_t)sizeof(double);
    if (access->content == SW_CONTENT_BLOCK_OUTPUT)
        return own_rows_at(plan, access);
    if (access->slot != plan->index->slot[SLOT_BUCKETS])
        return 0;
    const int rank = sw_shard_rank(plan->spec.units->unit[op->unit].grains, sw_plan_ranks(plan), op->first_grain);
    const struct sw_span at = sw_plan_shard_chunk(plan, op->unit, rank, op->chunk);
    return at.grains > 0 && at.first_grain == op->first_grain ? bytes_before(plan, op, access->content, rank) : 0;
}

static struct extent of_transfer(const struct sw_plan *plan, const struct sw_op *op, const struct sw_access *access) {
    const struct sw_slot *slot = &plan->slot[access->slot];
    if (slot->grain_bytes > 0)
        return of_grains(slot, (struct sw_span){op->first_grain, op->grains});
    return of_piece(slot, access->first, offset_in_piece(plan, op, access), op->bytes);
}

/* Returns where quantized gradients, or a node's sums of them, lie for an op on a bucket. Ops that exchange take all
 * that a rank has for others of its level, and those that add its own and what others have for it. */
static struct extent of_quantized(const struct sw_plan *plan, const struct sw_op *op, const struct sw_access *access) {
    const int nodes = sw_plan_reduce_nodes(plan), node_ranks = sw_plan_reduce_node_ranks(plan);
    const int number = plan->spec.rank % node_ranks, node = plan->spec.rank / node_ranks;
    const bool adds = op->kind == SW_OP_DEQUANTIZE_GRADIENTS && !access->write;
    const int64_t part = sw_plan_part_grains(plan, op->unit, op->chunk, number);
    const int64_t own = sw_plan_shard_chunk(plan, op->unit, plan->spec.rank, op->chunk).grains;
    int64_t first = 0, grains = part;
    if (access->content == SW_CONTENT_QUANT_GRADS) {
        first = adds ? sw_plan_part_before(plan, op->unit, op->chunk, number) : 0;
        grains = adds ? part : sw_plan_bucket_grains(plan, op->unit, op->chunk, sw_plan_ranks(plan));
    }
    if (access->content == SW_CONTENT_NODE_QUANT && adds) {
        first = sw_plan_node_before(plan, op->unit, op->chunk, node);
        grains = own;
    }
    if (access->content == SW_CONTENT_QUANT_PARTS)
        grains = (node_ranks - 1) * part;
    if (access->content == SW_CONTENT_NODE_PARTS)
        grains = (nodes - 1) * own;
    const int64_t grain_bytes = sw_plan_grain_bytes(plan, access->content, op->unit);
    return of_piece(&plan->slot[access->slot], access->first, first * grain_bytes, grains * grain_bytes);
}

static bool is_quantized(sw_content content) {
    return content == SW_CONTENT_QUANT_GRADS || content == SW_CONTENT_QUANT_PARTS || content == SW_CONTENT_NODE_SUM ||
           content == SW_CONTENT_NODE_QUANT || content == SW_CONTENT_NODE_PARTS;
}

/* Returns the operand of an op on a bucket, which reads and writes all ranks' chunks of it, and of which a reduction
 * leaves this rank's. */
static struct extent of_bucket(const struct sw_plan *plan, const struct sw_op *op, const struct sw_access *access,
                               int before) {
    const struct sw_slot *slot = &plan->slot[access->slot];
    const struct sw_span own = sw_plan_shard_chunk(plan, op->unit, plan->spec.rank, op->chunk);
    const bool dequantizes = op->kind == SW_OP_DEQUANTIZE_GRADIENTS;
    const bool result = (dequantizes || op->kind == SW_OP_REDUCE_GRADIENTS) && access->write;
    const int64_t own_bytes = own.grains * sw_plan_grain_bytes(plan, access->content, op->unit);
    if (is_quantized(access->content))
        return of_quantized(plan, op, access);
    if (result && slot->grain_bytes > 0)
        return of_grains(slot, own);
    if (result && (op->wide || dequantizes))
        return of_piece(slot, access->first, 0, own_bytes);
    if (result)
        return of_piece(slot, access->first, bytes_before(plan, op, access->content, plan->spec.rank), own_bytes);
    const struct sw_span run = sw_plan_bucket_run(plan, op->unit, op->chunk, before);
    if (slot->grain_bytes > 0 && run.grains > 0)
        return of_grains(slot, run);
    return of_piece(slot, access->first, 0, bytes_before(plan, op, access->content, sw_plan_ranks(plan)));
}

static struct extent of_op(const struct sw_plan *plan, const struct sw_op *op, const struct sw_access *access) {
    const struct sw_slot *slot = &plan->slot[access->slot];
    const bool exchange = op->kind == SW_OP_REDUCE_GRADIENTS || op->kind == SW_OP_ALL_GATHER;
    const bool shard = exchange && (op->kind == SW_OP_REDUCE_GRADIENTS) == access->write;
    if (op->grains > 0 && slot->grain_bytes > 0)
        return of_grains(slot, (struct sw_span){op->first_grain, op->grains});
    if (op->grains > 0)
        return of_piece(slot, access->first, offset_in_piece(plan, op, access),
                        op->grains * sw_plan_grain_bytes(plan, access->content, op->unit));
    if (shard)
        return of_grains(slot, op->secondary ? sw_plan_secondary(plan, op->unit) : sw_plan_shard(plan, op->unit));
    if (slot->grain_bytes > 0)
        return (struct extent){0, plan->spec.units->unit[access->unit].grains * slot->grain_bytes};
    if (op->kind == SW_OP_BACKWARD_NORM && access->role == SW_ROLE_INPUT && sw_plan_recalls_rows(plan, op->unit))
        return of_piece(slot, access->first, own_rows_at(plan, access), 0);
    return of_piece(slot, access->first, 0, 0);
}

/* Returns where an operand must lie. before: operands of the same role that the op has before this one. */
static struct extent expected(const struct sw_plan *plan, const struct sw_op *op, const struct sw_access *access,
                              int before) {
    switch (op->kind) {
    case SW_OP_DOWNLOAD_SQUARE_SUMS:
    case SW_OP_UPLOAD:
    case SW_OP_DOWNLOAD:
    case SW_OP_READ:
    case SW_OP_WRITE: return of_transfer(plan, op, access);
    default: return op->bucket ? of_bucket(plan, op, access, before) : of_op(plan, op, access);
    }
}

static sw_status refuse(const struct sw_plan *plan, const struct sw_op *op, const struct sw_access *access,
                        const char *what) {
    return sw_fail(
        SW_ERR_INTERNAL, "plan check: %s of unit %d micro %d chunk %d has an operand in slot %d (%s) that %s",
        sw_op_name(op->kind), op->unit, op->micro, op->chunk, access->slot, plan->slot[access->slot].name, what);
}

static sw_status check_operand(const struct sw_plan *plan, const struct sw_op *op, const struct sw_access *access,
                               int before) {
    const struct sw_slot *slot = &plan->slot[access->slot];
    const int64_t end = sw_min_i64((int64_t)(access->first + access->count) * slot->piece_bytes, slot->bytes);
    if (access->offset_bytes < access->first * slot->piece_bytes || access->offset_bytes + access->bytes > end)
        return refuse(plan, op, access, "is not within the pieces of its access");
    const struct extent extent = expected(plan, op, access, before);
    if (access->offset_bytes != extent.offset_bytes || access->bytes != extent.bytes)
        return refuse(plan, op, access, "is not where its content lies");
    return SW_OK;
}

static sw_status check_op(const struct sw_plan *plan, const struct sw_program *program, const struct sw_op *op) {
    int32_t last_index[SW_ROLES] = {0};
    int count[SW_ROLES] = {0};
    unsigned seen = 0;
    for (int32_t a = op->first_access; a < op->first_access + op->access_count; a++) {
        const struct sw_access *access = &program->access[a];
        const unsigned bit = 1u << access->role;
        if (access->slot < 0 || access->slot >= plan->slot_count || access->content >= SW_CONTENTS)
            return sw_fail(SW_ERR_INTERNAL, "plan check: %s of unit %d uses slot %d, which the plan has not",
                           sw_op_name(op->kind), op->unit, access->slot);
        if (access->role != sw_role_of(op, access))
            return refuse(plan, op, access, "has another role than its content");
        if (access->role == SW_ROLE_NONE)
            continue;
        /* The engine takes operands of micro-batches and units by their index; those of runs of grains come in order.
         */
        const bool again = count[access->role] > 0, rises = access->first_index > last_index[access->role];
        const bool by_runs = op->kind == SW_OP_ROUND_OWN_GRADIENTS || op->kind == SW_OP_QUANTIZE_GRADIENTS;
        if (again && ((sw_ops[op->kind].repeats & bit) == 0 || (!by_runs && !rises)))
            return refuse(plan, op, access, "has the role of another");
        seen |= bit;
        last_index[access->role] = access->first_index;
        SW_TRY(check_operand(plan, op, access, count[access->role]++));
    }
    if (!is_idle(op) && (needed_by(plan, op) & ~seen) != 0)
        return sw_fail(SW_ERR_INTERNAL, "plan check: %s of unit %d lacks an operand", sw_op_name(op->kind), op->unit);
    return SW_OK;
}

sw_status sw_program_check_operands(const struct sw_plan *plan, const struct sw_program *program) {
    for (int32_t i = 0; i < program->op_count; i++)
        SW_TRY(check_op(plan, program, &program->op[i]));
    return SW_OK;
}
