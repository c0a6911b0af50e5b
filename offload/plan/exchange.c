/* The exchange between ranks: gradients become the shards of their sum, and shards of weights whole units.
 *
 * Gradients that live whole on the device (stages 0 and 1) are rounded there and reduced in place, a unit at once. All
 * others pass through buckets of constant size (the constant-size buffers of ZeRO-R): one has a chunk of every rank's
 * shard, so that all ranks send and receive as much. Quantized gradients always do. */
#include "core/size.h"
#include "offload/plan/builder.h"

static struct sw_what grads_of(int64_t unit, int64_t index, int version) {
    return (struct sw_what){.content = SW_CONTENT_GRADS, .unit = unit, .index = index, .version = version};
}

static int64_t round_bytes(const struct sw_builder *b, int64_t grains) {
    return grains * SW_GRAIN_ELEMS * (int64_t)sizeof(float) + sw_plan_typed_bytes(b->plan, grains);
}

/* Returns the bytes that this rank gives to others in a reduction: all but its own grains. */
static int64_t scattered_bytes(const struct sw_builder *b, int64_t grains, int64_t own_grains) {
    return sw_plan_typed_bytes(b->plan, grains - own_grains);
}

/* Quantizes this rank's shard of a unit's weights, gathers all ranks', and makes the whole unit of them, this rank's
 * part included, so that all ranks compute with the same weights. All three run on the comm lane: the compute lane
 * would wait for the update that makes the shard, and for the links, before it computed the unit before. */
static void gather_quantized(struct sw_builder *b, int64_t unit, int32_t from, int32_t to, struct sw_what weights) {
    const struct sw_chunk own = {unit, -1, sw_plan_shard(b->plan, unit)};
    const int32_t records = b->index->slot[SLOT_QUANT_WEIGHTS];
    struct sw_what quantized = {.content = SW_CONTENT_QUANT_WEIGHTS, .unit = unit, .version = SW_VERSION_OWN};
    sw_build_chunk_op(b, SW_OP_QUANTIZE_WEIGHTS, &own);
    if (own.at.grains > 0) {
        sw_build_read_grains(b, from, own.at, weights);
        sw_build_write_grains(b, records, own.at, quantized);
    }
    struct sw_op *op = sw_build_op(b, SW_OP_ALL_GATHER, unit, -1);
    op->content = quantized.content;
    op->bytes = sw_plan_gathered_bytes(b->plan, op);
    if (own.at.grains > 0)
        sw_build_read_grains(b, records, own.at, quantized);
    quantized.version = weights.version = 0;
    sw_build_write_unit(b, records, quantized);
    op = sw_build_op(b, SW_OP_DEQUANTIZE_WEIGHTS, unit, -1);
    op->grains = b->plan->spec.units->unit[unit].grains;
    sw_build_read_unit(b, records, quantized);
    sw_build_write_unit(b, to, weights);
}

/* Gathers the ranks' shards of a span of a unit, this rank's from slot `from`. */
static void gather_span(struct sw_builder *b, struct sw_what what, struct sw_span span, bool frozen, int32_t from,
                        int32_t to) {
    if (span.grains == 0)
        return;
    struct sw_op *op = sw_build_op(b, SW_OP_ALL_GATHER, what.unit, -1);
    op->content = what.content;
    op->frozen = frozen;
    op->bytes = sw_plan_gathered_bytes(b->plan, op);
    const struct sw_span own = sw_plan_share_of(b->plan, op, sw_plan_unit_rank(b->plan, what.unit));
    what.version = from != to ? 0 : SW_VERSION_OWN;
    if (own.grains > 0)
        sw_build_read_grains(b, from, own, what);
    what.version = 0;
    sw_build_write_grains(b, to, span, what);
}

void sw_build_all_gather(struct sw_builder *b, int64_t unit, int32_t from, int32_t to) {
    struct sw_what what = {.content = SW_CONTENT_WEIGHTS, .unit = unit, .age = b->state_age};
    what.version = from != to ? 0 : SW_VERSION_OWN;
    if (sw_plan_gathers_quantized(b->plan, unit))
        gather_quantized(b, unit, from, to, what);
    else
        gather_span(b, what, sw_plan_shared(b->plan, unit), false, from, to);
}

void sw_build_gather_frozen(struct sw_builder *b, int64_t unit, bool at_home, int32_t slot) {
    const struct sw_what weights = {.content = SW_CONTENT_WEIGHTS, .unit = unit, .age = b->state_age};
    const struct sw_what base = {.content = SW_CONTENT_BASE, .unit = unit};
    const struct sw_span cells = {.grains = sw_plan_base_cells(b->plan, unit)};
    const int32_t base_slot = sw_build_base_slot(b, unit, slot);
    gather_span(b, weights, sw_plan_frozen(b->plan, unit), true, at_home ? b->index->of_unit[SLOT_FROZEN][unit] : slot,
                slot);
    gather_span(b, base, cells, false, at_home ? sw_plan_base_home(b->plan, unit) : base_slot, base_slot);
}

/* Sums the squares of a chunk of this rank's shard. */
static void square_sums(struct sw_builder *b, const struct sw_chunk *chunk, struct sw_operand at, struct sw_what what) {
    struct sw_op *op = sw_build_chunk_op(b, SW_OP_SUM_SQUARES, chunk);
    op->bytes = sw_build_typed_bytes(b, chunk);
    sw_build_read(b, at, what);
    sw_build_note_square_sums(b, chunk->unit, chunk->number);
}

/* The square sums of a shard that stays on the device are not taken at once, because the compute lane would wait for
 * the exchange. Taken here, the exchange hides behind the next unit's backward pass. */
void sw_build_sums_of_shard(struct sw_builder *b) {
    const int64_t unit = b->sums_unit;
    if (unit < 0)
        return;
    const struct sw_operand home = {.slot = b->index->of_unit[SLOT_GRADS][unit], .piece = SW_BY_GRAINS};
    for (int64_t c = 0; c < sw_plan_shard_chunks(b->plan, unit); c++) {
        const int rank = sw_plan_unit_rank(b->plan, unit);
        const struct sw_chunk chunk = {unit, c, sw_plan_shard_chunk(b->plan, unit, rank, c)};
        square_sums(b, &chunk, home, grads_of(unit, c, 0));
    }
    sw_build_download_square_sums(b, unit);
    b->sums_unit = -1;
}

/* Reduces gradients that live whole on the device, in place. */
static void reduce_at_home(struct sw_builder *b, int64_t unit, int32_t acc, int64_t version) {
    const int32_t home = b->index->of_unit[SLOT_GRADS][unit];
    const struct sw_span own = sw_plan_shard(b->plan, unit);
    const bool whole = b->plan->spec.zero == SW_ZERO_NONE;
    const int reduced = whole ? SW_VERSION_OWN : 0;
    for (int64_t c = 0; c < sw_plan_trained_chunks(b->plan, unit); c++) {
        const struct sw_chunk chunk = {unit, c, sw_plan_trained_chunk(b->plan, unit, c)};
        struct sw_op *op = sw_build_chunk_op(b, SW_OP_ROUND_OWN_GRADIENTS, &chunk);
        op->bytes = round_bytes(b, chunk.at.grains);
        sw_build_read_grains(b, acc, chunk.at, (struct sw_what){SW_CONTENT_ACC, unit, c, version, 0, 0});
        sw_build_write_grains(b, home, chunk.at, grads_of(unit, c, SW_VERSION_LOCAL));
    }
    struct sw_op *op = sw_build_op(b, SW_OP_REDUCE_GRADIENTS, unit, -1);
    op->bytes = scattered_bytes(b, sw_plan_trained_grains(b->plan, unit), own.grains);
    sw_build_read_unit(b, home, grads_of(unit, 0, SW_VERSION_LOCAL));
    if (own.grains > 0)
        sw_build_write_grains(b, home, own, grads_of(unit, 0, reduced));
    if (!whole)
        return;
    op = sw_build_op(b, SW_OP_ALL_GATHER, unit, -1);
    op->content = SW_CONTENT_GRADS;
    op->bytes = sw_plan_gathered_bytes(b->plan, op);
    if (own.grains > 0)
        sw_build_read_grains(b, home, own, grads_of(unit, 0, reduced));
    sw_build_write_unit(b, home, grads_of(unit, 0, 0));
}

/* A chunk of every rank's shard, one after the other in a piece of a ring. */
struct bucket {
    int64_t unit, number;
    int64_t grains;             /* grains of all ranks' chunks together */
    sw_content content;         /* gradients, or quantized ones */
    struct sw_chunk own;        /* this rank's chunk, which may have no grains */
    struct sw_operand at, mine; /* the bucket, and this rank's chunk in it */
};

static struct sw_what local_of(const struct bucket *bucket) {
    struct sw_what what = grads_of(bucket->unit, bucket->number, SW_VERSION_LOCAL);
    what.content = bucket->content;
    return what;
}

/* Returns the level at which gradients are exchanged first. */
static sw_level first_level(const struct sw_builder *b) {
    return sw_plan_reduce_nodes(b->plan) > 1 ? SW_LEVEL_NODE : SW_LEVEL_ALL;
}

/* Fills a bucket with this rank's gradients, rounded or quantized. */
static struct bucket fill_bucket(struct sw_builder *b, int64_t unit, int64_t number, int32_t acc, int64_t version) {
    const bool quant = sw_plan_quantizes_grads(b->plan);
    const int ranks = sw_plan_unit_ranks(b->plan, unit), rank = sw_plan_unit_rank(b->plan, unit);
    struct bucket bucket = {.unit = unit,
                            .number = number,
                            .grains = sw_plan_bucket_grains(b->plan, unit, number, ranks),
                            .own = {unit, number, sw_plan_shard_chunk(b->plan, unit, rank, number)},
                            .content = quant ? SW_CONTENT_QUANT_GRADS : SW_CONTENT_GRADS,
                            .at = sw_build_ring(b, quant ? SLOT_QUANT_BUCKETS : SLOT_BUCKETS)};
    const int64_t grain_bytes = sw_plan_grain_bytes(b->plan, bucket.content, unit);
    struct sw_op *op = sw_build_op(b, quant ? SW_OP_QUANTIZE_GRADIENTS : SW_OP_ROUND_OWN_GRADIENTS, unit, -1);
    op->chunk = (int32_t)number;
    op->bucket = true;
    bucket.mine = bucket.at;
    bucket.mine.offset_bytes = sw_plan_bucket_grains(b->plan, unit, number, rank) * grain_bytes;
    op->level = quant ? first_level(b) : SW_LEVEL_ALL;
    struct sw_span at;
    for (int64_t run = 0; (at = sw_plan_bucket_run(b->plan, unit, number, run)).grains > 0; run++)
        sw_build_read_grains(b, acc, at, (struct sw_what){SW_CONTENT_ACC, unit, 0, version, 0, 0});
    bucket.at.bytes = bucket.grains * grain_bytes;
    bucket.mine.bytes = bucket.own.at.grains * grain_bytes;
    op->bytes = bucket.grains * (SW_GRAIN_ELEMS * (int64_t)sizeof(float) + grain_bytes);
    sw_build_write(b, bucket.at, local_of(&bucket));
    return bucket;
}

/* Begins an op that leaves this rank's part of a bucket. */
static struct sw_op *own_op(struct sw_builder *b, sw_op_kind kind, const struct bucket *bucket) {
    struct sw_op *op = sw_build_chunk_op(b, kind, &bucket->own);
    op->bucket = true;
    return op;
}

/* One level of the exchange of a bucket: `all` are this rank's sums for every rank of the level, `mine` is its own part
 * of them, and `parts` receives the other ranks' sums for this rank. */
struct exchange {
    sw_level level;
    sw_content content, parts_content;
    struct sw_operand all, mine, parts;
    int64_t all_grains, mine_grains;
    int ranks; /* how many ranks exchange at this level */
};

/* Exchanges quantized chunks and begins the sum of this rank's part, which runs on the comm lane as the sum of a
 * reduction does: the compute lane need not wait for the links. Returns the op, to which the caller adds where the sum
 * goes. */
static struct sw_op *exchange(struct sw_builder *b, const struct bucket *bucket, struct exchange *x) {
    const int64_t grain_bytes = sw_plan_grain_bytes(b->plan, x->content, bucket->unit);
    const struct sw_what own = {
        .content = x->content, .unit = bucket->unit, .index = bucket->number, .version = SW_VERSION_LOCAL};
    struct sw_what theirs = own;
    theirs.content = x->parts_content;
    struct sw_op *op = own_op(b, SW_OP_EXCHANGE_GRADIENTS, bucket);
    op->level = x->level;
    op->grains = x->all_grains;
    op->bytes = (x->all_grains - x->mine_grains) * grain_bytes;
    x->all.bytes = x->all_grains * grain_bytes;
    x->mine.bytes = x->mine_grains * grain_bytes;
    x->parts.bytes = (x->ranks - 1) * x->mine_grains * grain_bytes;
    if (x->all_grains > 0)
        sw_build_read(b, x->all, own);
    if (x->mine_grains > 0)
        sw_build_write(b, x->parts, theirs);
    op = own_op(b, SW_OP_DEQUANTIZE_GRADIENTS, bucket);
    op->level = x->level;
    op->grains = x->mine_grains;
    if (x->mine_grains > 0) {
        sw_build_read(b, x->mine, own);
        sw_build_read(b, x->parts, theirs);
    }
    return op;
}

/* Quantizes a node's sums for the ranks that have this rank's number in their nodes. Returns the quantized sums. */
static struct sw_operand quantize_node_sum(struct sw_builder *b, const struct bucket *bucket, struct sw_operand sums,
                                           int64_t grains) {
    struct sw_operand to = sw_build_ring(b, SLOT_NODE_QUANT);
    struct sw_what what = {.content = SW_CONTENT_NODE_SUM, .unit = bucket->unit, .index = bucket->number};
    what.version = SW_VERSION_LOCAL;
    struct sw_op *op = own_op(b, SW_OP_QUANTIZE_NODE_SUM, bucket);
    op->level = SW_LEVEL_ACROSS;
    op->grains = grains;
    to.bytes = grains * sw_plan_grain_bytes(b->plan, SW_CONTENT_NODE_QUANT, bucket->unit);
    if (grains > 0) {
        sw_build_read(b, sums, what);
        what.content = SW_CONTENT_NODE_QUANT;
        sw_build_write(b, to, what);
    }
    return to;
}

/* Reduces a quantized bucket over all ranks at once, or within each node and then between nodes. Returns the last op,
 * to which the caller adds where the sum goes. */
static struct sw_op *reduce_quantized(struct sw_builder *b, const struct bucket *bucket) {
    const struct sw_plan *plan = b->plan;
    const int nodes = sw_plan_reduce_nodes(plan), node_ranks = sw_plan_reduce_node_ranks(plan);
    const int number = plan->spec.rank % node_ranks, node = plan->spec.rank / node_ranks;
    const int64_t grain_bytes = sw_plan_grain_bytes(plan, bucket->content, bucket->unit);
    const int64_t part = sw_plan_part_grains(plan, bucket->unit, bucket->number, number);
    struct exchange x = {.level = first_level(b),
                         .content = SW_CONTENT_QUANT_GRADS,
                         .parts_content = SW_CONTENT_QUANT_PARTS,
                         .all = bucket->at,
                         .mine = bucket->at,
                         .parts = sw_build_ring(b, SLOT_QUANT_PARTS),
                         .all_grains = bucket->grains,
                         .mine_grains = part,
                         .ranks = node_ranks};
    x.mine.offset_bytes = sw_plan_part_before(plan, bucket->unit, bucket->number, number) * grain_bytes;
    struct sw_op *op = exchange(b, bucket, &x);
    if (nodes == 1)
        return op;
    struct sw_operand sums = sw_build_ring(b, SLOT_NODE_SUMS);
    sums.bytes = part * sw_plan_grain_bytes(plan, SW_CONTENT_NODE_SUM, bucket->unit);
    if (part > 0)
        sw_build_write(b, sums,
                       (struct sw_what){.content = SW_CONTENT_NODE_SUM,
                                        .unit = bucket->unit,
                                        .index = bucket->number,
                                        .version = SW_VERSION_LOCAL});
    x = (struct exchange){.level = SW_LEVEL_ACROSS,
                          .content = SW_CONTENT_NODE_QUANT,
                          .parts_content = SW_CONTENT_NODE_PARTS,
                          .all = quantize_node_sum(b, bucket, sums, part),
                          .parts = sw_build_ring(b, SLOT_NODE_PARTS),
                          .all_grains = part,
                          .mine_grains = bucket->own.at.grains,
                          .ranks = nodes};
    x.mine = x.all;
    x.mine.offset_bytes = sw_plan_node_before(plan, bucket->unit, bucket->number, node) * grain_bytes;
    return exchange(b, bucket, &x);
}

/* Begins the reduction of a bucket, whose result the caller adds. */
static struct sw_op *begin_reduce(struct sw_builder *b, const struct bucket *bucket) {
    if (bucket->content == SW_CONTENT_QUANT_GRADS)
        return reduce_quantized(b, bucket);
    struct sw_op *op = own_op(b, SW_OP_REDUCE_GRADIENTS, bucket);
    op->bytes = scattered_bytes(b, bucket->grains, bucket->own.at.grains);
    sw_build_read(b, bucket->at, local_of(bucket));
    return op;
}

/* Moves a chunk to where the gradients live, which is not the device. */
static void take_home(struct sw_builder *b, const struct sw_chunk *chunk, struct sw_operand from) {
    const struct sw_operand home = {.slot = b->index->of_unit[SLOT_GRADS][chunk->unit], .piece = SW_BY_GRAINS};
    const bool nvme = b->plan->slot[home.slot].tier == SW_NVME;
    const struct sw_operand on_host = nvme ? sw_build_ring(b, SLOT_GRADS_OUT) : home;
    const struct sw_what what = grads_of(chunk->unit, chunk->number, 0);
    sw_build_move(b, &from, &on_host, &what, chunk, sw_build_typed_bytes(b, chunk));
    if (nvme)
        sw_build_move(b, &on_host, &home, &what, chunk, sw_build_typed_bytes(b, chunk));
}

/* Gathers all ranks' chunks of a reduced bucket and moves them to where the gradients live. */
static void take_all_home(struct sw_builder *b, const struct bucket *bucket) {
    struct sw_op *op = sw_build_op(b, SW_OP_ALL_GATHER, bucket->unit, -1);
    op->chunk = (int32_t)bucket->number;
    op->bucket = true;
    op->content = SW_CONTENT_GRADS;
    op->bytes = sw_plan_gathered_bytes(b->plan, op);
    sw_build_read(b, bucket->at, grads_of(bucket->unit, bucket->number, SW_VERSION_OWN));
    sw_build_write(b, bucket->at, grads_of(bucket->unit, bucket->number, 0));
    struct sw_operand from = bucket->at;
    for (int rank = 0; rank < sw_plan_unit_ranks(b->plan, bucket->unit); rank++) {
        const struct sw_chunk chunk = {bucket->unit, bucket->number,
                                       sw_plan_shard_chunk(b->plan, bucket->unit, rank, bucket->number)};
        if (chunk.at.grains > 0)
            take_home(b, &chunk, from);
        from.offset_bytes += sw_build_typed_bytes(b, &chunk);
    }
}

/* Returns where a bucket's reduction leaves this rank's chunk: where gradients live, if that is here, or else for those
 * that are not quantized their place in the bucket. */
static struct sw_operand reduced_place(struct sw_builder *b, const struct bucket *bucket) {
    const int32_t home = b->index->of_unit[SLOT_GRADS][bucket->unit];
    if (b->plan->slot[home].tier == SW_DEVICE)
        return (struct sw_operand){.slot = home, .piece = SW_BY_GRAINS};
    if (bucket->content != SW_CONTENT_QUANT_GRADS)
        return bucket->mine;
    struct sw_operand place = sw_build_ring(b, SLOT_REDUCED);
    place.bytes = sw_build_typed_bytes(b, &bucket->own);
    return place;
}

static void reduce_bucket(struct sw_builder *b, struct bucket *bucket) {
    const bool whole = b->plan->spec.zero == SW_ZERO_NONE, mine = bucket->own.at.grains > 0;
    const int32_t home = b->index->of_unit[SLOT_GRADS][bucket->unit];
    const bool lives_here = b->plan->slot[home].tier == SW_DEVICE;
    const bool in_bucket = !lives_here && bucket->content == SW_CONTENT_GRADS;
    const struct sw_what reduced = grads_of(bucket->unit, bucket->number, whole ? SW_VERSION_OWN : 0);
    begin_reduce(b, bucket);
    const struct sw_operand to = reduced_place(b, bucket);
    if (mine || in_bucket)
        sw_build_write(b, to, reduced);
    if (mine && !lives_here)
        square_sums(b, &bucket->own, to, reduced);
    if (whole)
        take_all_home(b, bucket);
    else if (mine && !lives_here)
        take_home(b, &bucket->own, to);
}

static struct sw_what shard_acc_of(int64_t unit, int64_t chunk, int64_t groups) {
    return (struct sw_what){.content = SW_CONTENT_ACC, .unit = unit, .index = chunk, .version = groups};
}

/* Reduces a bucket and adds this rank's chunk of the sum to the accumulator of its shard. */
static void accumulate_bucket(struct sw_builder *b, const struct bucket *bucket, int64_t groups_before) {
    const struct sw_chunk *own = &bucket->own;
    struct sw_operand sum = sw_build_ring(b, SLOT_BUCKET_SUMS);
    const struct sw_operand to = {.slot = b->index->of_unit[SLOT_ACC_SHARD][bucket->unit], .piece = SW_BY_GRAINS};
    const struct sw_what reduced = {.content = SW_CONTENT_BUCKET_SUM, .unit = bucket->unit, .index = bucket->number};
    struct sw_op *op = begin_reduce(b, bucket);
    op->wide = true;
    sum.bytes = own->at.grains * sw_plan_grain_bytes(b->plan, SW_CONTENT_BUCKET_SUM, bucket->unit);
    if (own->at.grains > 0 || bucket->content == SW_CONTENT_GRADS)
        sw_build_write(b, sum, reduced);
    if (own->at.grains == 0)
        return;
    op = sw_build_chunk_op(b, SW_OP_ADD_TO_ACCUMULATOR, own);
    op->bytes = 3 * own->at.grains * SW_GRAIN_ELEMS * (int64_t)sizeof(float);
    sw_build_read(b, sum, reduced);
    sw_build_read(b, to, shard_acc_of(own->unit, own->number, groups_before));
    sw_build_write(b, to, shard_acc_of(own->unit, own->number, groups_before + 1));
}

void sw_build_reduce_group(struct sw_builder *b, int64_t unit, int32_t acc, int64_t version, int64_t groups_before) {
    const struct sw_chunk shard = {unit, -1, sw_plan_shard(b->plan, unit)};
    if (groups_before == 0 && shard.at.grains > 0) {
        sw_build_chunk_op(b, SW_OP_ZERO_ACCUMULATOR, &shard);
        sw_build_write(b, (struct sw_operand){.slot = b->index->of_unit[SLOT_ACC_SHARD][unit], .piece = SW_BY_GRAINS},
                       shard_acc_of(unit, 0, 0));
    }
    for (int64_t c = 0; c < sw_plan_buckets(b->plan, unit); c++) {
        const struct bucket bucket = fill_bucket(b, unit, c, acc, version);
        accumulate_bucket(b, &bucket, groups_before);
    }
}

void sw_build_reduce(struct sw_builder *b, int64_t unit, int32_t acc, int64_t version) {
    const bool here = b->plan->placement[unit].tier[SW_GRADS] == SW_DEVICE;
    sw_build_sums_of_shard(b);
    if (here)
        b->sums_unit = unit;
    if (here && b->plan->spec.zero < SW_ZERO_GRADS && !sw_plan_quantizes_grads(b->plan)) {
        reduce_at_home(b, unit, acc, version);
        return;
    }
    for (int64_t c = 0; c < sw_plan_buckets(b->plan, unit); c++) {
        struct bucket bucket = fill_bucket(b, unit, c, acc, version);
        reduce_bucket(b, &bucket);
    }
    if (!here)
        sw_build_download_square_sums(b, unit);
}

/* The secondary shards of weights: kept from the first gather of a step, gathered within a part of a node from then on.
 */

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
        const struct sw_what what = weights_of(b, unit);
        sw_build_move(b, &from, &to, &what, &chunk, sw_build_weights_bytes(b, &chunk));
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
