/* The proof of a plan, by an algorithm that shares nothing with the one that derives waits: vector clocks over several
 * unrolled steps.
 *
 * clock[lane] of an op counts the ops of each lane that are certainly done when it starts. Ops are visited in an order
 * that the waits allow; if none can be visited next, the plan deadlocks. For every piece the last write and the latest
 * readers are kept: a read must come certainly after the last write and find the content that it expects; a write must
 * come certainly after the last write and all reads since. As each conflicting pair is compared when its second op is
 * visited, all are ordered.
 *
 * A program with redo ops is proven twice: with all of them, and without any, when what was speculated must be found
 * wherever the step after expects its update. */
#include "core/size.h"
#include "offload/plan/plan_private.h"

#include <stdlib.h>
#include <string.h>

/* Proves the operands of a program: each op has those that its kind needs, and each is exactly the bytes that the
 * op's unit, micro-batch, chunk or rank stands for. The rest of this file proves the accesses. */

struct extent {
    int64_t offset_bytes, bytes;
};

#define ROLE(name) (1u << SW_ROLE_##name)

/* Returns the roles by which an op of a block or the head has its input. With sequence parallelism that is normalised,
 * and a block's forward pass adds to the rows of this rank. A backward op needs none where only the rows of the norm
 * are recalled, or the normalised input only for the gradient of the first product's weights. Experts that a group
 * shares out add the residual, which their block has kept, or else their own input. */
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
    case SW_OP_SEND_ROWS:
    case SW_OP_RECALL_ROWS: return sw_plan_sends_rows(plan, op->unit) ? ROLE(TOKENS) : 0;
    case SW_OP_FORWARD_EXPERTS: return sw_plan_joins_block(plan, op->unit) ? ROLE(SAVED) : ROLE(INPUT);
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
    if ((head || op->kind == SW_OP_BACKWARD || op->kind == SW_OP_BACKWARD_NORM || op->kind == SW_OP_BACKWARD_EXPERTS) &&
        sw_plan_trains(plan, op->unit))
        roles |= ROLE(ACC);
    if (op->kind == SW_OP_BACKWARD && sw_plan_sends_rows(plan, op->unit))
        roles |= ROLE(NORM_GRAD);
    if ((op->kind == SW_OP_BACKWARD_LAST || op->kind == SW_OP_BACKWARD_FIRST) && plan->spec.cost[op->unit].adapted)
        roles |= ROLE(WEIGHTS);
    if ((op->kind == SW_OP_FORWARD || op->kind == SW_OP_BACKWARD) && plan->spec.units->unit[op->unit].base_grains > 0)
        roles |= ROLE(BASE);
    if (op->kind == SW_OP_BACKWARD && sw_plan_splits_backward(plan, op->unit))
        roles |= ROLE(PRODUCT_GRAD);
    if (group && (head || op->kind == SW_OP_COMPUTE_LOSS))
        roles |= ROLE(SOFTMAX);
    return roles;
}

/* Tells whether an op works only on this rank's grains and has none of them, and so no operands. */
static bool is_idle(const struct sw_op *op) {
    const bool of_rank =
        op->kind == SW_OP_QUANTIZE_WEIGHTS || op->kind == SW_OP_DEQUANTIZE_GRADIENTS || op->level == SW_LEVEL_ACROSS;
    return of_rank && op->grains == 0;
}

/* Returns the bytes of the chunks of earlier ranks in an op's bucket. */
static int64_t bytes_before(const struct sw_plan *plan, const struct sw_op *op, sw_content content, int rank) {
    return sw_plan_bucket_grains(plan, op->unit, op->chunk, rank) * sw_plan_grain_bytes(plan, content, op->unit);
}

static struct extent of_grains(const struct sw_plan *plan, const struct sw_access *access, struct sw_span at) {
    const int64_t start = sw_plan_slot_grain(plan, access->slot, access->content, access->unit);
    const struct sw_extent_bytes bytes = sw_slot_grains(&plan->slot[access->slot], at.first_grain - start, at.grains);
    return (struct extent){bytes.offset_bytes, bytes.bytes};
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
    return sw_plan_own_rows(plan).first_grain * sw_plan_row_bytes(plan);
}

/* Returns where the op's grains begin in a piece. In a bucket a rank's chunk follows the chunks of earlier ranks; a
 * unit's piece of square sums has one number per grain. */
static int64_t offset_in_piece(const struct sw_plan *plan, const struct sw_op *op, const struct sw_access *access) {
    if (access->content == SW_CONTENT_SQUARE_SUMS && op->unit < 0)
        return 0; /* all units' sums have one index */
    if (access->content == SW_CONTENT_SQUARE_SUMS)
        return (op->first_grain - sw_plan_trained(plan, op->unit).first_grain) * (int64_t)sizeof(double);
    if (access->content == SW_CONTENT_BLOCK_OUTPUT)
        return own_rows_at(plan, access);
    if (access->slot != plan->index->slot[SLOT_BUCKETS])
        return 0;
    const int rank = sw_plan_owner_of(plan, op->unit, op->first_grain);
    const struct sw_span at = sw_plan_shard_chunk(plan, op->unit, rank, op->chunk);
    return at.grains > 0 && at.first_grain == op->first_grain ? bytes_before(plan, op, access->content, rank) : 0;
}

static struct extent of_transfer(const struct sw_plan *plan, const struct sw_op *op, const struct sw_access *access) {
    const struct sw_slot *slot = &plan->slot[access->slot];
    if (slot->grain_bytes > 0)
        return of_grains(plan, access, (struct sw_span){op->first_grain, op->grains});
    return of_piece(slot, access->first, offset_in_piece(plan, op, access), op->bytes);
}

/* Returns the bytes of quantized gradients, or of a node's sums of them, that an op on a bucket uses. An exchange takes
 * everything that a rank sends at its level; an addition takes the rank's own part and the parts that it receives. */
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

/* Returns the bytes that an op on a bucket uses: all ranks' chunks, or, of a reduction's result, this rank's. */
static struct extent of_bucket(const struct sw_plan *plan, const struct sw_op *op, const struct sw_access *access,
                               int before) {
    const struct sw_slot *slot = &plan->slot[access->slot];
    const int rank = sw_plan_unit_rank(plan, op->unit);
    const struct sw_span own = sw_plan_shard_chunk(plan, op->unit, rank, op->chunk);
    const bool dequantizes = op->kind == SW_OP_DEQUANTIZE_GRADIENTS;
    const bool result = (dequantizes || op->kind == SW_OP_REDUCE_GRADIENTS) && access->write;
    const int64_t own_bytes = own.grains * sw_plan_grain_bytes(plan, access->content, op->unit);
    if (is_quantized(access->content))
        return of_quantized(plan, op, access);
    if (result && slot->grain_bytes > 0)
        return of_grains(plan, access, own);
    if (result && (op->wide || dequantizes))
        return of_piece(slot, access->first, 0, own_bytes);
    if (result)
        return of_piece(slot, access->first, bytes_before(plan, op, access->content, rank), own_bytes);
    const struct sw_span run = sw_plan_bucket_run(plan, op->unit, op->chunk, before);
    if (slot->grain_bytes > 0 && run.grains > 0)
        return of_grains(plan, access, run);
    const int ranks = sw_plan_unit_ranks(plan, op->unit);
    return of_piece(slot, access->first, 0, bytes_before(plan, op, access->content, ranks));
}

/* Returns the grains that an op on a whole unit uses: its weights or its gradients. Ranks that keep whole weights
 * gather only those that training changes. */
static struct sw_span all_of(const struct sw_plan *plan, const struct sw_op *op, const struct sw_access *access) {
    const struct sw_unit *unit = &plan->spec.units->unit[access->unit];
    const bool weights = access->content == SW_CONTENT_WEIGHTS || access->content == SW_CONTENT_QUANT_WEIGHTS;
    if (access->content == SW_CONTENT_BASE)
        return (struct sw_span){0, sw_units_base_cells(plan->spec.units, access->unit)};
    if (op->frozen)
        return (struct sw_span){unit->base_grains, unit->trained_grain - unit->base_grains};
    const bool trained = (!weights || op->kind == SW_OP_ALL_GATHER) && sw_plan_trains(plan, access->unit);
    const int64_t first = trained ? unit->trained_grain : unit->base_grains;
    return (struct sw_span){first, unit->grains - first};
}

/* Tells whether the rows that this rank gets of its tensor group's outputs, where tensor groups share out experts, go
 * to their place in a piece with all rows: not if the rank keeps these rows alone. */
static bool has_room_for_all(const struct sw_plan *plan, const struct sw_op *op, const struct sw_access *access) {
    const bool kept = access->slot == plan->index->of_unit[SLOT_INPUT][op->unit + 1];
    return sw_plan_shares_experts(plan, op->unit) && !sw_plan_joins_block(plan, op->unit) &&
           !(kept && sw_plan_partitions_inputs(plan));
}

static struct extent of_op(const struct sw_plan *plan, const struct sw_op *op, const struct sw_access *access) {
    const struct sw_slot *slot = &plan->slot[access->slot];
    const bool exchange = op->kind == SW_OP_REDUCE_GRADIENTS || op->kind == SW_OP_ALL_GATHER;
    const bool shard = exchange && (op->kind == SW_OP_REDUCE_GRADIENTS) == access->write;
    if (op->grains > 0 && slot->grain_bytes > 0)
        return of_grains(plan, access, (struct sw_span){op->first_grain, op->grains});
    if (op->grains > 0)
        return of_piece(
            slot, access->first, offset_in_piece(plan, op, access),
            sw_plan_content_bytes(plan, access->content, op->unit, (struct sw_span){op->first_grain, op->grains}));
    if (shard)
        return of_grains(plan, access,
                         op->secondary ? sw_plan_secondary(plan, op->unit)
                                       : sw_plan_share_of(plan, op, sw_plan_unit_rank(plan, op->unit)));
    if (slot->grain_bytes > 0)
        return of_grains(plan, access, all_of(plan, op, access));
    if (op->kind == SW_OP_BACKWARD_NORM && access->role == SW_ROLE_INPUT && sw_plan_recalls_rows(plan, op->unit))
        return of_piece(slot, access->first, own_rows_at(plan, access), 0);
    if (op->kind == SW_OP_REDUCE_TENSOR && access->write && access->content == SW_CONTENT_BLOCK_OUTPUT &&
        has_room_for_all(plan, op, access))
        return of_piece(slot, access->first, sw_plan_own_rows(plan).first_grain * sw_plan_row_bytes(plan), 0);
    return of_piece(slot, access->first, 0, 0);
}

/* Returns the bytes that an operand must name. before: operands of the same role that the op has before this one. */
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

/* Tells whether training changes the content of an op's grains. */
static bool is_of_training(const struct sw_op *op) {
    switch (op->kind) {
    case SW_OP_ZERO_ACCUMULATOR:
    case SW_OP_ROUND_GRADIENTS:
    case SW_OP_ROUND_OWN_GRADIENTS:
    case SW_OP_ADD_TO_ACCUMULATOR:
    case SW_OP_SUM_SQUARES:
    case SW_OP_DOWNLOAD_SQUARE_SUMS:
    case SW_OP_TAKE_GRADIENTS:
    case SW_OP_GIVE_WEIGHTS:
    case SW_OP_UPDATE_ON_HOST:
    case SW_OP_UPDATE_ON_DEVICE: return op->grains > 0;
    default:
        return op->grains > 0 && sw_ops[op->kind].transfers &&
               (op->content == SW_CONTENT_GRADS || op->content == SW_CONTENT_OPTIMIZER ||
                op->content == SW_CONTENT_ACC);
    }
}

/* Proves that an op which belongs to training has grains of its unit's trained span alone. */
static sw_status check_span(const struct sw_plan *plan, const struct sw_op *op) {
    const struct sw_unit *unit = op->unit >= 0 ? &plan->spec.units->unit[op->unit] : NULL;
    if (unit == NULL || !is_of_training(op) ||
        (sw_plan_trains(plan, op->unit) && op->first_grain >= unit->trained_grain &&
         op->first_grain + op->grains <= unit->grains))
        return SW_OK;
    return sw_fail(SW_ERR_INTERNAL, "plan check: %s of unit %d works on frozen grains", sw_op_name(op->kind), op->unit);
}

static bool is_home_of_weights(const struct sw_plan *plan, int32_t slot) {
    const int64_t unit = plan->slot[slot].unit;
    return unit >= 0 &&
           (slot == plan->index->of_unit[SLOT_WEIGHTS][unit] || slot == plan->index->of_unit[SLOT_FROZEN][unit]);
}

/* Tells whether a piece of a slot holds grains of both spans of a unit, which the proof would take for one content.
 * Where the spans have homes of their own, each home holds one; all other slots hold the whole weights. */
static bool mixes_spans(const struct sw_plan *plan, const struct sw_access *access) {
    const struct sw_slot *slot = &plan->slot[access->slot];
    if (access->content != SW_CONTENT_WEIGHTS || slot->grain_bytes == 0 || !sw_plan_trains(plan, access->unit))
        return false;
    const int64_t trained = plan->spec.units->unit[access->unit].trained_grain;
    if (sw_plan_splits_weights(plan, access->unit) && is_home_of_weights(plan, access->slot)) {
        const int64_t first = slot->first_grain + access->offset_bytes / slot->grain_bytes;
        const bool frozen = access->first_index < sw_plan_frozen_chunks(plan, access->unit);
        return frozen ? first + access->bytes / slot->grain_bytes > trained : first < trained;
    }
    const int64_t border = of_grains(plan, access, (struct sw_span){trained, 1}).offset_bytes;
    return trained > 0 &&
           (border % slot->piece_bytes != 0 || border / slot->piece_bytes != sw_plan_frozen_chunks(plan, access->unit));
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
    if (mixes_spans(plan, access))
        return refuse(plan, op, access, "has frozen and trained grains in one piece");
    return SW_OK;
}

static sw_status check_op(const struct sw_plan *plan, const struct sw_program *program, const struct sw_op *op) {
    int32_t last_index[SW_ROLES] = {0};
    int count[SW_ROLES] = {0};
    unsigned seen = 0;
    SW_TRY(check_span(plan, op));
    for (int32_t a = op->first_access; a < op->first_access + op->access_count; a++) {
        const struct sw_access *access = &program->access[a];
        const unsigned bit = 1u << access->role;
        if (access->slot < 0 || access->slot >= plan->slot_count || access->content >= SW_CONTENTS)
            return sw_fail(SW_ERR_INTERNAL, "plan check: %s of unit %d uses slot %d, which the plan has not",
                           sw_op_name(op->kind), op->unit, access->slot);
        if (access->unit >= plan->spec.units->count)
            return refuse(plan, op, access, "belongs to a unit that the model has not");
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

/* Proves that every op has the operands that its kind needs, each in its role and exactly where the access says that
 * the content lies (check.c). */
static sw_status program_check_operands(const struct sw_plan *plan, const struct sw_program *program) {
    for (int32_t i = 0; i < program->op_count; i++)
        SW_TRY(check_op(plan, program, &program->op[i]));
    return SW_OK;
}

/* Enough that generations swap roles both ways and back. */
enum { CHECK_STEPS = 4 };

struct clock {
    int32_t done[SW_LANES];
};

struct piece_view {
    sw_content content;
    int32_t unit, index, version;
    int32_t made_in_step; /* -1: before the first step */
    sw_lane writer_lane;
    int32_t writer;           /* done count of the last write's lane; 0: none */
    int32_t reader[SW_LANES]; /* done count of each lane's last read since; 0: none */
};

struct checker {
    const struct sw_plan *plan;
    const struct sw_program *program;
    struct piece_view *piece;
    struct clock *done_clock[SW_LANES]; /* [lane][k]: the ops known to be done when op k of the lane is done */
    int steps;                          /* steps to unroll */
    bool redoes;                        /* redo ops run; else what was speculated stands */
    int32_t next[SW_LANES];             /* ops of each lane that were visited */
    bool remade[SW_CONTENTS];           /* the program makes this content anew in each step */
};

static sw_status violation(const struct sw_op *op, int step, const struct checker *c, const struct sw_access *access,
                           int32_t piece, const char *what) {
    const struct piece_view *view = &c->piece[c->plan->slot[sw_access_slot(access, step)].first_piece + piece];
    return sw_fail(SW_ERR_INTERNAL,
                   "plan check: %s of unit %d micro %d chunk %d in step %d %ss piece %d of slot %d (%s) %s; expects %s "
                   "(unit %d, index %d, version %d), holds %s (unit %d, index %d, version %d)",
                   sw_op_name(op->kind), op->unit, op->micro, op->chunk, step, access->write ? "write" : "read", piece,
                   access->slot, c->plan->slot[access->slot].name, what, sw_content_name(access->content), access->unit,
                   access->first_index + piece - access->first, access->version, sw_content_name(view->content),
                   view->unit, view->index, view->version);
}

static void merge(struct clock *into, const struct clock *from) {
    for (int lane = 0; lane < SW_LANES; lane++)
        if (from->done[lane] > into->done[lane])
            into->done[lane] = from->done[lane];
}

/* Tells whether no step makes a content, by its index. */
static bool is_frozen(const struct checker *c, sw_content content, int32_t unit, int32_t index) {
    return content == SW_CONTENT_BASE ||
           (content == SW_CONTENT_WEIGHTS && sw_plan_chunk_is_frozen(c->plan, unit, index));
}

/* Tells whether an op changes what is frozen: it computes weights, or writes them where the unit's live. */
static bool changes_frozen(const struct checker *c, const struct sw_op *op, const struct sw_access *access,
                           int32_t index) {
    const bool updates = op->kind == SW_OP_UPDATE_ON_HOST || op->kind == SW_OP_UPDATE_ON_DEVICE;
    return access->write && is_frozen(c, access->content, access->unit, index) &&
           (updates || is_home_of_weights(c->plan, access->slot) ||
            access->slot == c->plan->index->of_unit[SLOT_BASE][access->unit]);
}

/* Returns the step in which an access's content was made; -1, before the first, where no step makes it anew. */
static int made_in(const struct checker *c, const struct sw_access *access, int32_t index, int step) {
    if (is_frozen(c, access->content, access->unit, index))
        return -1;
    return access->age > 0 && !c->remade[access->content] ? -1 : step - access->age;
}

static bool is_state(sw_content content) {
    return content == SW_CONTENT_WEIGHTS || content == SW_CONTENT_OPTIMIZER;
}

/* Returns the content that an access expects or leaves. A speculation that stands counts as made by the next step. */
static struct piece_view meant(const struct checker *c, const struct sw_access *access, int32_t index, int step) {
    const bool stands = !c->redoes && is_state(access->content) && (access->version & SW_VERSION_SPECULATIVE) != 0;
    return (struct piece_view){.content = access->content,
                               .unit = access->unit,
                               .index = index,
                               .version = stands ? access->version & ~SW_VERSION_SPECULATIVE : access->version,
                               .made_in_step = made_in(c, access, index, step) + stands};
}

static bool holds(const struct piece_view *view, const struct piece_view *expected) {
    return view->content == expected->content && view->unit == expected->unit && view->index == expected->index &&
           view->version == expected->version && view->made_in_step == expected->made_in_step;
}

/* Tells whether an op of a lane can access memory of a tier: each lane reads one tier and writes one. The norm and the
 * routing belong to no tier, a commit moves nothing, and the summary that ranks exchange is host memory and waits for
 * the commit. */
static bool reaches(const struct sw_op *op, const struct sw_access *access, sw_tier tier) {
    static const struct {
        sw_tier read, write;
    } sides[SW_LANES] = {
        [SW_LANE_COMPUTE] = {SW_DEVICE, SW_DEVICE}, [SW_LANE_UPLOAD] = {SW_HOST, SW_DEVICE},
        [SW_LANE_DOWNLOAD] = {SW_DEVICE, SW_HOST},  [SW_LANE_READ] = {SW_NVME, SW_HOST},
        [SW_LANE_WRITE] = {SW_HOST, SW_NVME},       [SW_LANE_UPDATE] = {SW_HOST, SW_HOST},
        [SW_LANE_COMM] = {SW_DEVICE, SW_DEVICE},
    };
    if (access->content == SW_CONTENT_NORM || access->content == SW_CONTENT_ROUTING || op->kind == SW_OP_COMMIT ||
        op->kind == SW_OP_EXCHANGE_SUMMARY)
        return true;
    return tier == (access->write ? sides[op->lane].write : sides[op->lane].read);
}

/* Tells whether an op may deal in an access's content as far as quantized content goes. */
static bool deals_in_quant(const struct sw_op *op, const struct sw_access *access) {
    switch (access->content) {
    case SW_CONTENT_QUANT_WEIGHTS:
        return op->kind == SW_OP_ALL_GATHER ||
               op->kind == (access->write ? SW_OP_QUANTIZE_WEIGHTS : SW_OP_DEQUANTIZE_WEIGHTS);
    case SW_CONTENT_QUANT_GRADS:
        return op->level != SW_LEVEL_ACROSS &&
               (access->write ? op->kind == SW_OP_QUANTIZE_GRADIENTS
                              : op->kind == SW_OP_EXCHANGE_GRADIENTS || op->kind == SW_OP_DEQUANTIZE_GRADIENTS);
    case SW_CONTENT_NODE_QUANT:
        return op->level == SW_LEVEL_ACROSS &&
               (access->write ? op->kind == SW_OP_QUANTIZE_NODE_SUM
                              : op->kind == SW_OP_EXCHANGE_GRADIENTS || op->kind == SW_OP_DEQUANTIZE_GRADIENTS);
    case SW_CONTENT_QUANT_PARTS:
    case SW_CONTENT_NODE_PARTS:
        return (op->level == SW_LEVEL_ACROSS) == (access->content == SW_CONTENT_NODE_PARTS) &&
               op->kind == (access->write ? SW_OP_EXCHANGE_GRADIENTS : SW_OP_DEQUANTIZE_GRADIENTS);
    case SW_CONTENT_NODE_SUM:
        return access->write ? op->kind == SW_OP_DEQUANTIZE_GRADIENTS && op->level == SW_LEVEL_NODE
                             : op->kind == SW_OP_QUANTIZE_NODE_SUM && op->level == SW_LEVEL_ACROSS;
    default: return true;
    }
}

/* Tells whether an op may deal in an access's content as far as sums of gradients go: these are fp32 and gradients are
 * not, and few ops know the difference. If all accesses to a piece named the wrong one, the pieces would agree. */
static bool deals_in(const struct sw_op *op, const struct sw_access *access) {
    const bool sums = op->kind == SW_OP_REDUCE_GRADIENTS || op->kind == SW_OP_DEQUANTIZE_GRADIENTS;
    const bool leaves_sum = sums && op->wide && access->write;
    const bool takes_sum = op->kind == SW_OP_ADD_TO_ACCUMULATOR && access->content != SW_CONTENT_ACC;
    return (access->content == SW_CONTENT_BUCKET_SUM) == (leaves_sum || takes_sum);
}

static sw_status check_access(struct checker *c, const struct sw_op *op, const struct sw_access *access, int step,
                              const struct clock *start, int32_t own) {
    const int32_t number = sw_access_slot(access, step);
    const struct sw_slot *slot = &c->plan->slot[number];
    if (number < 0 || number >= c->plan->slot_count || access->first < 0 ||
        access->first + access->count > slot->pieces)
        return sw_fail(SW_ERR_INTERNAL, "plan check: %s of unit %d uses pieces outside slot %d", sw_op_name(op->kind),
                       op->unit, access->slot);
    if (!reaches(op, access, slot->tier))
        return sw_fail(SW_ERR_INTERNAL,
                       "plan check: %s of unit %d, on the lane %s, cannot %s the %s tier's slot %d (%s)",
                       sw_op_name(op->kind), op->unit, sw_lane_name(op->lane), access->write ? "write" : "read",
                       sw_tier_name(slot->tier), number, slot->name);
    if (!deals_in(op, access) || !deals_in_quant(op, access))
        return sw_fail(SW_ERR_INTERNAL, "plan check: %s of unit %d cannot %s %s", sw_op_name(op->kind), op->unit,
                       access->write ? "leave" : "take", sw_content_name(access->content));
    for (int32_t k = access->first; k < access->first + access->count; k++) {
        struct piece_view what = meant(c, access, access->first_index + k - access->first, step);
        what.writer_lane = op->lane;
        what.writer = own;
        if (changes_frozen(c, op, access, what.index))
            return violation(op, step, c, access, k, "that is frozen");
        struct piece_view *view = &c->piece[slot->first_piece + k];
        /* An op needs no order with its own accesses. */
        const bool own_write = view->writer == own && view->writer_lane == op->lane;
        if (!own_write && start->done[view->writer_lane] < view->writer)
            return violation(op, step, c, access, k, "without waiting for its last write");
        if (!access->write) {
            if (!holds(view, &what))
                return violation(op, step, c, access, k, "that has other content");
            view->reader[op->lane] = own;
            continue;
        }
        for (int lane = 0; lane < SW_LANES; lane++)
            if (start->done[lane] < view->reader[lane] && !(lane == (int)op->lane && view->reader[lane] == own))
                return violation(op, step, c, access, k, "that is still being read");
        *view = what;
    }
    return SW_OK;
}

/* Returns in *out the clock at which the lane's next op starts; false: an op that it waits for is not visited yet. */
static bool start_clock(const struct checker *c, sw_lane lane, struct clock *out) {
    const struct sw_program *program = c->program;
    const int32_t number = c->next[lane], per_step = program->lane_count[lane];
    const struct sw_op *op = &program->op[program->lane_op[lane][number % per_step]];
    const int step = number / per_step;
    *out = (struct clock){0};
    if (number > 0 && !sw_lane_is_io(lane))
        merge(out, &c->done_clock[lane][number - 1]);
    for (int32_t w = 0; w < op->wait_count; w++) {
        const struct sw_wait *wait = &program->wait[op->first_wait + w];
        const int target_step = step - wait->steps_back;
        if (target_step < 0)
            continue;
        const int32_t target = target_step * program->lane_count[wait->lane] + wait->position;
        if (target >= c->next[wait->lane])
            return false;
        merge(out, &c->done_clock[wait->lane][target]);
    }
    return true;
}

static sw_status visit(struct checker *c, sw_lane lane, const struct clock *start) {
    const struct sw_program *program = c->program;
    const int32_t number = c->next[lane], per_step = program->lane_count[lane];
    const struct sw_op *op = &program->op[program->lane_op[lane][number % per_step]];
    const struct sw_access *access = &program->access[op->first_access];
    for (int32_t a = 0; (c->redoes || !op->redo) && a < op->access_count; a++)
        SW_TRY(check_access(c, op, &access[a], number / per_step, start, number + 1));
    struct clock *done = &c->done_clock[lane][number];
    *done = *start;
    if (number > 0)
        merge(done, &c->done_clock[lane][number - 1]);
    done->done[lane] = number + 1;
    c->next[lane]++;
    return SW_OK;
}

static sw_status visit_all(struct checker *c) {
    for (;;) {
        bool moved = false, left = false;
        for (int lane = 0; lane < SW_LANES; lane++) {
            const int32_t total = c->steps * c->program->lane_count[lane];
            struct clock start;
            while (c->next[lane] < total && start_clock(c, (sw_lane)lane, &start)) {
                SW_TRY(visit(c, (sw_lane)lane, &start));
                moved = true;
            }
            left |= c->next[lane] < total;
        }
        if (!left)
            return SW_OK;
        if (!moved)
            return sw_fail(SW_ERR_INTERNAL, "plan check: the lanes wait for each other in a circle");
    }
}

/* Returns the step in which a resident's content was made: -1, before the first, unless the first finds a speculation
 * that stands in the weights and in the generation that it commits. */
static int resident_made_in(const struct checker *c, int32_t slot, int32_t index) {
    const struct sw_slot *resident = &c->plan->slot[slot];
    const bool committed =
        resident->content == SW_CONTENT_OPTIMIZER && slot == c->plan->index->of_unit[SLOT_OPTIMIZER][resident->unit];
    const bool remade =
        resident->content == SW_CONTENT_WEIGHTS && !is_frozen(c, resident->content, resident->unit, index);
    return !c->redoes && (remade || committed) ? 0 : -1;
}

static void view_residents(struct checker *c) {
    for (int32_t s = 0; s < c->plan->slot_count; s++) {
        const struct sw_slot *slot = &c->plan->slot[s];
        for (int32_t k = 0; slot->resident && k < slot->pieces; k++)
            c->piece[slot->first_piece + k] =
                (struct piece_view){.content = slot->content,
                                    .unit = slot->unit,
                                    .index = slot->first_index + k,
                                    .made_in_step = resident_made_in(c, s, slot->first_index + k)};
    }
    for (int32_t i = 0; i < c->program->op_count; i++) {
        const struct sw_op *op = &c->program->op[i];
        for (int32_t a = op->first_access; a < op->first_access + op->access_count; a++)
            if (c->program->access[a].write && c->program->access[a].age == 0)
                c->remade[c->program->access[a].content] = true;
    }
}

static sw_status check_execution(const struct sw_plan *plan, const struct sw_program *program, int steps, bool redoes) {
    struct checker c = {.plan = plan, .program = program, .steps = steps, .redoes = redoes};
    sw_status status = SW_OK;
    c.piece = calloc((size_t)plan->piece_count + 1, sizeof *c.piece);
    bool allocated = c.piece != NULL;
    for (int lane = 0; lane < SW_LANES; lane++) {
        const size_t count = (size_t)program->lane_count[lane] * CHECK_STEPS + 1;
        c.done_clock[lane] = calloc(count, sizeof *c.done_clock[lane]);
        allocated = allocated && c.done_clock[lane] != NULL;
    }
    if (allocated) {
        view_residents(&c);
        status = visit_all(&c);
    } else {
        status = sw_fail(SW_ERR_NOMEM, "no memory to check the plan");
    }
    for (int lane = 0; lane < SW_LANES; lane++)
        free(c.done_clock[lane]);
    free(c.piece);
    return status;
}

sw_status sw_program_check(const struct sw_plan *plan, const struct sw_program *program, bool repeats) {
    const int steps = repeats ? CHECK_STEPS : 1;
    bool has_redo = false;
    for (int32_t i = 0; i < program->op_count; i++)
        has_redo |= program->op[i].redo;
    SW_TRY(check_execution(plan, program, steps, true));
    return has_redo ? check_execution(plan, program, steps, false) : SW_OK;
}

static int by_place(const void *left, const void *right) {
    const struct sw_slot *a = left, *b = right;
    if (a->tier != b->tier)
        return a->tier < b->tier ? -1 : 1;
    const int64_t first = a->offset + a->lead_bytes, second = b->offset + b->lead_bytes;
    return (first > second) - (first < second);
}

static sw_status check_slots(const struct sw_plan *plan) {
    struct sw_slot *sorted = malloc((size_t)(plan->slot_count + 1) * sizeof *sorted);
    if (sorted == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to check the plan");
    memcpy(sorted, plan->slot, (size_t)plan->slot_count * sizeof *sorted);
    qsort(sorted, (size_t)plan->slot_count, sizeof *sorted, by_place);
    sw_status status = SW_OK;
    for (int32_t s = 0; s < plan->slot_count && status == SW_OK; s++) {
        const struct sw_slot *slot = &sorted[s];
        const bool last = s + 1 == plan->slot_count || sorted[s + 1].tier != slot->tier;
        const int64_t begin = slot->offset + slot->lead_bytes, end = slot->offset + slot->bytes;
        if (slot->bytes <= (slot->pieces - 1) * slot->piece_bytes || slot->bytes > slot->pieces * slot->piece_bytes)
            status =
                sw_fail(SW_ERR_INTERNAL, "plan check: the pieces of slot '%s' do not make up its bytes", slot->name);
        else if (begin < 0 ||
                 end > (last ? plan->tier_bytes[slot->tier] : sorted[s + 1].offset + sorted[s + 1].lead_bytes))
            status =
                sw_fail(SW_ERR_INTERNAL, "plan check: slot '%s' overlaps another or the end of its tier", slot->name);
    }
    free(sorted);
    return status;
}

sw_status sw_plan_check(const struct sw_plan *plan) {
    SW_TRY(check_slots(plan));
    for (int t = SW_DEVICE; t <= SW_HOST; t++)
        if (plan->tier_bytes[t] > plan->spec.budget_bytes[t])
            return sw_fail(SW_ERR_INTERNAL, "plan check: the %s tier exceeds its budget", sw_tier_name((sw_tier)t));
    for (int p = 0; p < SW_PROGRAMS; p++)
        SW_TRY(program_check_operands(plan, &plan->program[p]));
    for (int p = 0; p < SW_PROGRAMS; p++)
        if (plan->program[p].op_count > 0)
            SW_TRY(sw_program_check(plan, &plan->program[p], sw_program_repeats((sw_program_kind)p)));
    return SW_OK;
}
