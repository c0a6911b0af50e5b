#include "offload/plan/builder.h"

#include "core/size.h"

#include <assert.h>
#include <stdlib.h>

/* Ops that are handed on at once. */
enum { TAKEN_OPS = 4096 };

sw_status sw_plan_refuse_ops(const struct sw_plan_spec *spec) {
    return sw_fail(
        SW_ERR_ARG,
        "a step of %lld micro-batch%s in chunks of %s takes more than the %d operations, or the memory, that "
        "a plan may have; a larger --micro-batch, a smaller --batch-tokens, a larger --chunk-grains or --order layer "
        "makes fewer",
        (long long)spec->micro_batches, spec->micro_batches == 1 ? "" : "es", SW_COUNT(spec->chunk_grains, "grain"),
        SW_PLAN_MOST_OPS);
}

/* Arrays grow faster up to so many entries, so that those of plans that are only compared are seldom copied. */
enum { QUICKLY = 1 << 16 };

static bool grow(struct sw_builder *b, void **array, int32_t count, int32_t *capacity, size_t size) {
    if (b->status != SW_OK || b->enough)
        return false;
    if (count < *capacity)
        return true;
    *capacity = *capacity < QUICKLY ? *capacity * 4 + 1024 : *capacity * 2;
    void *grown = realloc(*array, (size_t)*capacity * size);
    if (grown == NULL) {
        b->status = sw_fail(SW_ERR_NOMEM, "no memory for the plan's ops");
        return false;
    }
    *array = grown;
    return true;
}

struct sw_chunk sw_build_chunk(const struct sw_builder *b, sw_state state, int64_t unit, int64_t number) {
    return (struct sw_chunk){unit, number, sw_plan_state_chunk(b->plan, state, unit, number)};
}

void sw_build_hand_on(struct sw_builder *b) {
    if (!b->enough && !b->take(b->take_context, b->program->op, b->program->op_count))
        b->enough = true;
    b->program->op_count = b->program->access_count = 0;
}

void sw_build_pass_accesses(struct sw_builder *b) {
    struct sw_program *program = b->program;
    if (b->hazards == NULL || b->status != SW_OK || program->op_count == 0)
        return;
    b->status = sw_hazards_add(b->hazards, program->op_count - 1, program->access, program->access_count);
    b->passed_accesses += program->access_count;
    program->access_count = 0;
}

/* Returns the bytes of the program that is written down, of accesses that were passed on too. */
static int64_t bytes_so_far(const struct sw_builder *b) {
    return sw_program_bytes(b->program) + b->passed_accesses * (int64_t)sizeof *b->program->access;
}

struct sw_op *sw_build_op(struct sw_builder *b, sw_op_kind kind, int64_t unit, int64_t micro) {
    struct sw_program *program = b->program;
    const sw_lane lane = sw_ops[kind].lane;
    if (b->take != NULL && program->op_count == TAKEN_OPS)
        sw_build_hand_on(b);
    sw_build_pass_accesses(b);
    if (b->take == NULL && b->status == SW_OK &&
        (program->op_count == SW_PLAN_MOST_OPS || bytes_so_far(b) > b->most_bytes))
        b->status = sw_plan_refuse_ops(&b->plan->spec);
    if (!grow(b, (void **)&program->op, program->op_count, &b->op_capacity, sizeof *program->op))
        return &b->dropped;
    struct sw_op *op = &program->op[program->op_count++];
    *op = (struct sw_op){.kind = kind,
                         .lane = lane,
                         .redo = b->redo,
                         .unit = (int32_t)unit,
                         .micro = (int32_t)micro,
                         .chunk = -1,
                         .position = program->lane_count[lane]++,
                         .first_access = program->access_count};
    return op;
}

struct sw_op *sw_build_chunk_op(struct sw_builder *b, sw_op_kind kind, const struct sw_chunk *chunk) {
    struct sw_op *op = sw_build_op(b, kind, chunk->unit, -1);
    op->chunk = (int32_t)chunk->number;
    op->first_grain = chunk->at.first_grain;
    op->grains = chunk->at.grains;
    return op;
}

/* A run of a slot's bytes, from the slot's start. */
struct extent {
    int64_t offset_bytes, bytes;
};

/* Adds an access to `count` pieces from place->piece on. Hazards need no more of it than these, and whether and how it
 * writes. */
static void add_access(struct sw_builder *b, bool write, const struct sw_operand *place, int64_t count,
                       const struct sw_what *what, struct extent extent) {
    struct sw_program *program = b->program;
    assert(place->slot >= 0 && count > 0 && place->piece + count <= b->plan->slot[place->slot].pieces);
    if (!grow(b, (void **)&program->access, program->access_count, &b->access_capacity, sizeof *program->access))
        return;
    struct sw_op *op = &program->op[program->op_count - 1];
    struct sw_access *access = &program->access[program->access_count++];
    access->slot = place->slot;
    access->first = (int32_t)place->piece;
    access->count = (int32_t)count;
    access->write = write;
    access->generation = what->generation;
    op->access_count++;
    if (b->hazards != NULL)
        return;
    access->offset_bytes = extent.offset_bytes;
    access->bytes = extent.bytes;
    access->content = what->content;
    access->unit = (int32_t)what->unit;
    access->first_index = (int32_t)what->index;
    access->version = (int32_t)what->version | (place->own ? SW_VERSION_OWN : 0);
    access->age = (int8_t)what->age;
    access->role = sw_role_of(op, access);
}

/* Returns the bytes of a piece that an op uses. A unit's piece of square sums has one
 * number per grain; a piece of another content holds only the op's grains. */
static struct extent extent_of(const struct sw_builder *b, const struct sw_op *op, const struct sw_operand *place,
                               sw_content content) {
    const struct sw_slot *slot = &b->plan->slot[place->slot];
    const int64_t start = place->piece * slot->piece_bytes;
    struct extent extent = {start + place->offset_bytes, place->bytes};
    if (content == SW_CONTENT_SQUARE_SUMS && op->unit >= 0)
        extent.offset_bytes += (op->first_grain - sw_plan_trained(b->plan, op->unit).first_grain) *
                               sw_plan_grain_bytes(b->plan, content, op->unit);
    if (extent.bytes == 0 && op->grains > 0)
        extent.bytes = sw_plan_content_bytes(b->plan, content, op->unit, (struct sw_span){op->first_grain, op->grains});
    if (extent.bytes == 0)
        extent.bytes = sw_min_i64(start + slot->piece_bytes, slot->bytes) - extent.offset_bytes;
    return extent;
}

/* The pieces of a slot that hold some grains, the first of which begins first_grain grains into the slot. */
struct pieces {
    int64_t first_grain, first, count;
};

/* Returns the pieces that hold some grains of a unit's state. There are several where the grains are more than a chunk,
 * or where the slot's chunks begin elsewhere. */
static struct pieces pieces_of(const struct sw_builder *b, int32_t slot, struct sw_span at,
                               const struct sw_what *what) {
    const int64_t chunk_grains = b->plan->spec.chunk_grains;
    const int64_t first = at.first_grain - sw_plan_slot_grain(b->plan, slot, what->content, what->unit);
    const int64_t piece = first / chunk_grains, end = first + at.grains;
    /* Most accesses are to one chunk. To see that takes less time than a division. */
    const int64_t last = end <= (piece + 1) * chunk_grains ? piece : (end - 1) / chunk_grains;
    assert(at.grains > 0 && b->plan->slot[slot].grain_bytes > 0);
    return (struct pieces){.first_grain = first, .first = piece, .count = last - piece + 1};
}

/* Adds an access to the pieces of a unit's state that hold some grains. */
static void access_grains(struct sw_builder *b, bool write, int32_t slot, struct sw_span at, const struct sw_what *what,
                          bool own) {
    const struct pieces pieces = pieces_of(b, slot, at, what);
    const struct sw_extent_bytes bytes = sw_slot_grains(&b->plan->slot[slot], pieces.first_grain, at.grains);
    struct sw_what by_piece = *what;
    by_piece.index = b->plan->slot[slot].first_index + pieces.first;
    add_access(b, write, &(struct sw_operand){.slot = slot, .piece = pieces.first, .own = own}, pieces.count, &by_piece,
               (struct extent){bytes.offset_bytes, bytes.bytes});
}

void sw_build_any_access(struct sw_builder *b, bool write, const struct sw_operand *place, const struct sw_what *what) {
    if (b->status != SW_OK || b->enough)
        return;
    const struct sw_op *op = &b->program->op[b->program->op_count - 1];
    if (place->piece == SW_BY_GRAINS)
        access_grains(b, write, place->slot, (struct sw_span){op->first_grain, op->grains}, what, place->own);
    else
        add_access(b, write, place, 1, what,
                   b->hazards != NULL ? (struct extent){0} : extent_of(b, op, place, what->content));
}

void sw_build_access_grains(struct sw_builder *b, bool write, int32_t slot, struct sw_span at,
                            const struct sw_what *what) {
    if (b->status == SW_OK && !b->enough)
        access_grains(b, write, slot, at, what, false);
}

void sw_build_note_square_sums(struct sw_builder *b, int64_t unit, int64_t chunk) {
    sw_build_write(b, (struct sw_operand){.slot = b->index->slot[SLOT_SQUARE_SUMS_DEVICE], .piece = unit},
                   (struct sw_what){SW_CONTENT_SQUARE_SUMS, -1, unit, chunk + 1, 0, 0});
}

/* Returns all that a unit has of a content. */
static struct sw_span all_of(const struct sw_builder *b, struct sw_what what) {
    const bool weights = what.content == SW_CONTENT_WEIGHTS || what.content == SW_CONTENT_QUANT_WEIGHTS;
    if (what.content == SW_CONTENT_BASE)
        return (struct sw_span){.grains = sw_plan_base_cells(b->plan, what.unit)};
    return weights ? sw_plan_typed(b->plan, what.unit) : sw_plan_trained(b->plan, what.unit);
}

static const struct sw_whole *find_whole(struct sw_builder *b, int32_t slot, const struct sw_what *what) {
    struct sw_whole *whole = &b->whole[slot % SW_WHOLES];
    if (whole->slot == slot && whole->unit == what->unit && whole->content == what->content)
        return whole;
    const struct pieces pieces = pieces_of(b, slot, all_of(b, *what), what);
    *whole = (struct sw_whole){.slot = slot,
                               .unit = (int32_t)what->unit,
                               .content = what->content,
                               .first = (int32_t)pieces.first,
                               .count = (int32_t)pieces.count};
    return whole;
}

void sw_build_access_unit(struct sw_builder *b, bool write, int32_t slot, const struct sw_what *what) {
    if (b->hazards != NULL) {
        const struct sw_whole *whole = find_whole(b, slot, what);
        if (sw_build_passed(b, write, slot, whole->first, whole->count, what->generation))
            return;
    }
    sw_build_access_grains(b, write, slot, all_of(b, *what), what);
}

struct sw_operand sw_build_ring(struct sw_builder *b, enum sw_slot_kind ring) {
    const int32_t slot = b->index->slot[ring];
    assert(slot >= 0);
    return (struct sw_operand){.slot = slot, .piece = b->ring_next[ring]++ % b->plan->slot[slot].pieces};
}

/* The op that moves bytes from one tier to another. */
static const struct {
    sw_tier from, to;
    sw_op_kind kind;
} moves[] = {
    {SW_HOST, SW_DEVICE, SW_OP_UPLOAD},
    {SW_DEVICE, SW_HOST, SW_OP_DOWNLOAD},
    {SW_NVME, SW_HOST, SW_OP_READ},
    {SW_HOST, SW_NVME, SW_OP_WRITE},
};

/* Returns the index in `moves` of the op that moves a piece between two slots. */
static size_t find_move(const struct sw_builder *b, int32_t from, int32_t to) {
    size_t m = 0;
    while (m < sizeof moves / sizeof moves[0] &&
           (moves[m].from != b->plan->slot[from].tier || moves[m].to != b->plan->slot[to].tier))
        m++;
    assert(m < sizeof moves / sizeof moves[0]);
    return m;
}

/* Adds an access of a move to hazards, as sw_build_passed does. A search makes a hundred million moves: operands and
 * contents are read where they are, because a processor that copies a structure waits for its members to be stored. */
static bool pass_move(struct sw_builder *b, bool write, const struct sw_operand *at, const struct sw_what *what,
                      sw_generation generation) {
    if (b->hazards == NULL || b->status != SW_OK)
        return false;
    if (at->piece != SW_BY_GRAINS)
        return sw_build_passed(b, write, at->slot, at->piece, 1, generation);
    const struct sw_op *op = &b->program->op[b->program->op_count - 1];
    const struct pieces pieces = pieces_of(b, at->slot, (struct sw_span){op->first_grain, op->grains}, what);
    return sw_build_passed(b, write, at->slot, pieces.first, (int32_t)pieces.count, generation);
}

/* Adds to the last op that it moves bytes from or to an operand. A generation is a place on NVMe; what was read from it
 * or goes to it is the same content. */
static void access_move(struct sw_builder *b, bool write, const struct sw_operand *at, const struct sw_what *what,
                        int64_t bytes) {
    const sw_generation generation = b->plan->slot[at->slot].tier == SW_NVME ? what->generation : SW_GENERATION_NONE;
    if (pass_move(b, write, at, what, generation))
        return;
    struct sw_operand moved = *at;
    struct sw_what held = *what;
    moved.bytes = bytes;
    held.generation = generation;
    sw_build_any_access(b, write, &moved, &held);
}

static void describe_move(struct sw_builder *b, struct sw_op *op, const struct sw_operand *from,
                          const struct sw_operand *to, const struct sw_what *what, int64_t bytes) {
    op->content = what->content;
    op->bytes = bytes;
    access_move(b, false, from, what, bytes);
    access_move(b, true, to, what, bytes);
    if (b->redo)
        sw_build_read_norm(b);
}

void sw_build_transfer(struct sw_builder *b, struct sw_operand from, struct sw_operand to, struct sw_what what,
                       int64_t micro, int64_t bytes) {
    const size_t m = find_move(b, from.slot, to.slot);
    struct sw_op *op = sw_build_op(b, moves[m].kind, what.unit, micro);
    if (what.content == SW_CONTENT_BLOCK_OUTPUT && (moves[m].from == SW_NVME || moves[m].to == SW_NVME)) {
        /* The store counts an input of a unit in pages, those of one micro-batch after those of another. */
        const struct sw_operand home = moves[m].from == SW_NVME ? from : to;
        op->grains = sw_plan_input_pages(b->plan, b->plan->slot[home.slot].unit);
        op->first_grain = home.piece * op->grains;
    }
    describe_move(b, op, &from, &to, &what, bytes);
}

void sw_build_move(struct sw_builder *b, const struct sw_operand *from, const struct sw_operand *to,
                   const struct sw_what *what, const struct sw_chunk *chunk, int64_t bytes) {
    const size_t m = find_move(b, from->slot, to->slot);
    struct sw_op *op = sw_build_chunk_op(b, moves[m].kind, chunk);
    op->routed = b->routing_unit >= 0 && b->plan->spec.cost[chunk->unit].routed;
    const bool routed = op->routed;
    describe_move(b, op, from, to, what, bytes);
    if (routed)
        sw_build_read(b, (struct sw_operand){.slot = b->index->slot[SLOT_ROUTING]},
                      (struct sw_what){.content = SW_CONTENT_ROUTING, .unit = b->routing_unit});
}

int64_t sw_build_grads_bytes(const struct sw_builder *b, const struct sw_chunk *chunk) {
    return chunk->at.grains * sw_plan_grain_bytes(b->plan, SW_CONTENT_GRADS, chunk->unit);
}

int64_t sw_build_typed_bytes(const struct sw_builder *b, const struct sw_chunk *chunk) {
    return sw_plan_typed_bytes(b->plan, chunk->at.grains);
}

int64_t sw_build_weights_bytes(const struct sw_builder *b, const struct sw_chunk *chunk) {
    return sw_plan_weights_bytes(b->plan, chunk->unit, chunk->at.grains);
}

float sw_build_forward_flops(const struct sw_builder *b, int64_t unit) {
    return (float)b->plan->spec.cost[unit].forward_flops;
}

int64_t sw_build_head_of(const struct sw_builder *b) {
    return b->plan->spec.units->count - 1;
}

void sw_build_read_tokens(struct sw_builder *b, int64_t micro) {
    sw_build_in_order(b, false, (struct sw_operand){.slot = b->index->slot[SLOT_TOKENS], .piece = micro},
                      (struct sw_what){SW_CONTENT_TOKENS, -1, micro, 0, 0, 0});
}

int32_t sw_build_first_slot(const struct sw_builder *b, int64_t unit) {
    return b->index->slot[sw_plan_joins_block(b->plan, unit) ? SLOT_EXPERTS_WEIGHTS : SLOT_UNIT_WEIGHTS];
}

int32_t sw_build_base_slot(const struct sw_builder *b, int64_t unit, int32_t slot) {
    return sw_plan_has_whole_on_device(b->plan, unit)
               ? b->index->of_unit[SLOT_BASE][unit]
               : b->index->slot[sw_plan_joins_block(b->plan, unit) ? SLOT_EXPERTS_BASE : SLOT_UNIT_BASE] + slot -
                     sw_build_first_slot(b, unit);
}

void sw_build_read_weights(struct sw_builder *b, int64_t unit, int32_t slot) {
    if (sw_plan_typed(b->plan, unit).grains > 0)
        sw_build_read_unit(b, slot, (struct sw_what){SW_CONTENT_WEIGHTS, unit, 0, 0, b->state_age, 0});
    if (sw_plan_base_cells(b->plan, unit) > 0)
        sw_build_read_unit(b, sw_build_base_slot(b, unit, slot),
                           (struct sw_what){.content = SW_CONTENT_BASE, .unit = unit});
}

void sw_build_touch_work(struct sw_builder *b) {
    sw_build_write(b, (struct sw_operand){.slot = b->index->slot[SLOT_WORK]},
                   (struct sw_what){SW_CONTENT_WORK, -1, 0, 0, 0, 0});
    b->works = true;
}

struct sw_what sw_build_output_of(int64_t unit, int64_t micro) {
    return (struct sw_what){SW_CONTENT_BLOCK_OUTPUT, unit, micro, 0, 0, 0};
}

void sw_build_read_norm(struct sw_builder *b) {
    sw_build_read(b, (struct sw_operand){.slot = b->index->slot[SLOT_NORM]},
                  (struct sw_what){SW_CONTENT_NORM, -1, 0, 0, 1, 0});
}

void sw_build_download_square_sums(struct sw_builder *b, int64_t unit) {
    const int64_t chunks = sw_plan_shard_chunks(b->plan, unit);
    if (chunks == 0)
        return;
    struct sw_op *op = sw_build_op(b, SW_OP_DOWNLOAD_SQUARE_SUMS, unit, -1);
    const struct sw_what sums = {SW_CONTENT_SQUARE_SUMS, -1, unit, chunks, 0, 0};
    const struct sw_span own = sw_plan_shard(b->plan, unit);
    op->first_grain = own.first_grain;
    op->grains = own.grains;
    op->bytes = own.grains * sw_plan_grain_bytes(b->plan, SW_CONTENT_SQUARE_SUMS, unit);
    sw_build_read(b, (struct sw_operand){.slot = b->index->slot[SLOT_SQUARE_SUMS_DEVICE], .piece = unit}, sums);
    sw_build_write(b, (struct sw_operand){.slot = b->index->slot[SLOT_SQUARE_SUMS_HOST], .piece = unit}, sums);
}
