/* Runs the ops between ranks. */
#include "offload/engine/engine_private.h"

#include <string.h>

/* Returns a rank's part of the unit that an op works on: a chunk, for an op on a bucket, else the rank's shard. */
static struct sw_span span_of(const struct sw_engine *engine, const struct sw_op *op, int rank) {
    const struct sw_plan *plan = engine->plan;
    return op->bucket ? sw_plan_shard_chunk(plan, op->unit, rank, op->chunk) : sw_plan_shard_of(plan, op->unit, rank);
}

/* Returns where each rank's part begins, in grains times `scale`. Valid until the next call. */
static const int64_t *bounds_of(struct sw_engine *engine, const struct sw_op *op, int64_t scale) {
    int64_t *bounds = engine->bounds;
    bounds[0] = 0;
    for (int rank = 0; rank < sw_plan_ranks(engine->plan); rank++)
        bounds[rank + 1] = bounds[rank] + span_of(engine, op, rank).grains * scale;
    return bounds;
}

/* Rounds every rank's part of the gradient into the bucket, one after the other. */
static sw_status round_bucket(struct sw_engine *engine, struct lane *lane, const struct sw_op *op) {
    const struct sw_access *from = sw_engine_next_operand(engine, op, SW_ROLE_FROM, NULL);
    char *to = sw_engine_operand(engine, op, SW_ROLE_TO);
    for (int rank = 0; rank < sw_plan_ranks(engine->plan); rank++) {
        const struct sw_span at = span_of(engine, op, rank);
        if (at.grains == 0)
            continue;
        SW_TRY(sw_round_gradient(lane->stream, engine->plan->spec.type, at.grains * SW_GRAIN_ELEMS,
                                 sw_engine_grain(engine, from->slot, at.first_grain), to));
        to += sw_plan_typed_bytes(engine->plan, at.grains);
    }
    return SW_OK;
}

sw_status sw_engine_round(struct sw_engine *engine, struct lane *lane, const struct sw_op *op) {
    if (op->bucket)
        return round_bucket(engine, lane, op);
    return sw_round_gradient(lane->stream, engine->plan->spec.type, op->grains * SW_GRAIN_ELEMS,
                             sw_engine_operand(engine, op, SW_ROLE_FROM), sw_engine_operand(engine, op, SW_ROLE_TO));
}

/* Quantizes every rank's part of the gradient into the bucket, by its number within its node and then by node. */
static sw_status quantize_gradients(struct sw_engine *engine, struct lane *lane, const struct sw_op *op) {
    const struct sw_plan *plan = engine->plan;
    const struct sw_access *from = sw_engine_next_operand(engine, op, SW_ROLE_FROM, NULL);
    const int nodes = sw_plan_reduce_nodes(plan), node_ranks = sw_plan_reduce_node_ranks(plan);
    char *to = sw_engine_operand(engine, op, SW_ROLE_TO);
    for (int place = 0; place < sw_plan_ranks(plan); place++) {
        const struct sw_span at = span_of(engine, op, place % nodes * node_ranks + place / nodes);
        if (at.grains == 0)
            continue;
        SW_TRY(sw_quantize(lane->stream, SW_F32, plan->spec.reduce, at.grains,
                           sw_engine_grain(engine, from->slot, at.first_grain), to));
        to += at.grains * sw_plan_grain_bytes(plan, SW_CONTENT_QUANT_GRADS, op->unit);
    }
    return SW_OK;
}

/* Quantizes what a node has summed for the ranks of this one's number. */
static sw_status quantize_node_sum(struct sw_engine *engine, struct lane *lane, const struct sw_op *op) {
    return sw_quantize(lane->stream, SW_F32, engine->plan->spec.reduce, op->grains,
                       sw_engine_operand(engine, op, SW_ROLE_FROM), sw_engine_operand(engine, op, SW_ROLE_TO));
}

/* Returns where the parts begin that the ranks of a level exchange, in bytes. Valid until the next call. */
static const int64_t *bounds_of_level(struct sw_engine *engine, const struct sw_op *op) {
    const struct sw_plan *plan = engine->plan;
    const int node_ranks = sw_plan_reduce_node_ranks(plan), number = plan->spec.rank % node_ranks;
    const bool across = op->level == SW_LEVEL_ACROSS;
    const int ranks = across ? sw_plan_reduce_nodes(plan) : node_ranks;
    int64_t *bounds = engine->bounds;
    bounds[0] = 0;
    for (int r = 0; r < ranks; r++) {
        const int64_t grains = across ? span_of(engine, op, r * node_ranks + number).grains
                                      : sw_plan_part_grains(plan, op->unit, op->chunk, r);
        bounds[r + 1] = bounds[r] + grains * sw_quant_grain_bytes(plan->spec.reduce);
    }
    return bounds;
}

static sw_status exchange_gradients(struct sw_engine *engine, const struct sw_op *op) {
    static const sw_comm_scope scopes[] = {
        [SW_LEVEL_ALL] = SW_SCOPE_ALL, [SW_LEVEL_NODE] = SW_SCOPE_NODE, [SW_LEVEL_ACROSS] = SW_SCOPE_ACROSS};
    void *from = sw_engine_operand(engine, op, SW_ROLE_FROM), *to = sw_engine_operand(engine, op, SW_ROLE_TO);
    const struct sw_comm_exchange exchange = {.what = "exchange",
                                              .index = op->unit,
                                              .data = from,
                                              .bounds_bytes = bounds_of_level(engine, op),
                                              .to = to != NULL ? to : from, /* without a part it receives nothing */
                                              .scope = scopes[op->level]};
    struct sw_comm_request *request;
    SW_TRY(sw_comm_exchange(engine->spec.comm, &exchange, &request));
    return sw_lane_end_collective(&engine->lane[SW_LANE_COMM], request);
}

static sw_status dequantize_gradients(struct sw_engine *engine, struct lane *lane, const struct sw_op *op) {
    const struct sw_plan_spec *spec = &engine->plan->spec;
    const int node_ranks = sw_plan_reduce_node_ranks(engine->plan);
    const bool across = op->level == SW_LEVEL_ACROSS, wide = op->wide || op->level == SW_LEVEL_NODE;
    const struct sw_dequantize args = {.type = wide ? SW_F32 : spec->type,
                                       .quant = spec->reduce,
                                       .grains = op->grains,
                                       .rank = across ? spec->rank / node_ranks : spec->rank % node_ranks,
                                       .ranks = across ? sw_plan_reduce_nodes(engine->plan) : node_ranks,
                                       .stride_bytes = op->grains * sw_quant_grain_bytes(spec->reduce),
                                       .own = sw_engine_operand(engine, op, SW_ROLE_GRADS),
                                       .others = sw_engine_operand(engine, op, SW_ROLE_FROM),
                                       .to = sw_engine_operand(engine, op, SW_ROLE_TO)};
    return sw_device_run(lane->stream, SW_DEVICE_DEQUANTIZE, &args);
}

static sw_status quantize_weights(struct sw_engine *engine, struct lane *lane, const struct sw_op *op) {
    return sw_quantize(lane->stream, engine->plan->spec.type, engine->plan->spec.gather, op->grains,
                       sw_engine_operand(engine, op, SW_ROLE_FROM), sw_engine_operand(engine, op, SW_ROLE_TO));
}

static sw_status dequantize_weights(struct sw_engine *engine, struct lane *lane, const struct sw_op *op) {
    return sw_dequantize(lane->stream, .type = engine->plan->spec.type, .quant = engine->plan->spec.gather,
                         .grains = op->grains, .ranks = 1, .own = sw_engine_operand(engine, op, SW_ROLE_FROM),
                         .to = sw_engine_operand(engine, op, SW_ROLE_TO));
}

sw_status sw_engine_run_quantized(struct sw_engine *engine, struct lane *lane, const struct sw_op *op) {
    switch (op->kind) {
    case SW_OP_EXCHANGE_GRADIENTS: return exchange_gradients(engine, op);
    case SW_OP_QUANTIZE_GRADIENTS:
        if (op->level != SW_LEVEL_ACROSS)
            return quantize_gradients(engine, lane, op);
        break;
    default: break;
    }
    if (op->grains == 0) /* this rank has none of the unit, or of the bucket */
        return SW_OK;
    switch (op->kind) {
    case SW_OP_QUANTIZE_GRADIENTS: return quantize_node_sum(engine, lane, op);
    case SW_OP_DEQUANTIZE_GRADIENTS: return dequantize_gradients(engine, lane, op);
    case SW_OP_QUANTIZE_WEIGHTS: return quantize_weights(engine, lane, op);
    default: return dequantize_weights(engine, lane, op);
    }
}

sw_status sw_engine_reduce(struct sw_engine *engine, const struct sw_op *op) {
    const int64_t *bounds = bounds_of(engine, op, SW_GRAIN_ELEMS);
    void *from = sw_engine_operand(engine, op, SW_ROLE_FROM), *to = sw_engine_operand(engine, op, SW_ROLE_TO);
    const struct sw_comm_reduce reduce = {.what = "reduce",
                                          .index = op->unit,
                                          .from = from,
                                          .bounds = bounds,
                                          .to = to != NULL ? to : from, /* a rank without a part receives nothing */
                                          .type = engine->plan->spec.type,
                                          .to_type = op->wide ? SW_F32 : engine->plan->spec.type,
                                          .scope = SW_SCOPE_DATA};
    struct sw_comm_request *request;
    SW_TRY(sw_comm_reduce_scatter(engine->spec.comm, &reduce, &request));
    return sw_lane_end_collective(&engine->lane[SW_LANE_COMM], request);
}

/* Returns where the secondary shard of each rank of a part of a node begins, in bytes. Valid until the next call. */
static const int64_t *secondary_bounds(struct sw_engine *engine, const struct sw_op *op) {
    const struct sw_plan *plan = engine->plan;
    int64_t *bounds = engine->bounds;
    bounds[0] = 0;
    for (int number = 0; number < plan->spec.secondary_ranks; number++)
        bounds[number + 1] =
            bounds[number] + sw_plan_weights_bytes(plan, op->unit, sw_plan_secondary_of(plan, op->unit, number).grains);
    return bounds;
}

/* Gathers a whole unit, or all chunks of a bucket. This rank's part may lie in a slot of its own. */
sw_status sw_engine_all_gather(struct sw_engine *engine, const struct sw_op *op) {
    const struct sw_access *from = sw_engine_next_operand(engine, op, SW_ROLE_FROM, NULL);
    const struct sw_access *to = sw_engine_next_operand(engine, op, SW_ROLE_TO, NULL);
    const bool apart = from != NULL && from->slot != to->slot;
    const struct sw_comm_gather gather = {
        .what = "all-gather",
        .index = op->unit,
        .data = sw_engine_address(engine, to),
        .own = apart ? sw_engine_address(engine, from) : NULL,
        .bounds_bytes = op->secondary ? secondary_bounds(engine, op)
                                      : bounds_of(engine, op, sw_plan_grain_bytes(engine->plan, op->content, op->unit)),
        .scope = op->secondary ? SW_SCOPE_PART : SW_SCOPE_DATA,
    };
    struct sw_comm_request *request;
    SW_TRY(sw_comm_all_gather(engine->spec.comm, &gather, &request));
    return sw_lane_end_collective(&engine->lane[SW_LANE_COMM], request);
}

/* Copies the square sums of this rank's shards to its summary. */
static void note_sums(struct sw_engine *engine, const struct sw_op *op, double *record) {
    const struct sw_access *of_unit = NULL;
    while ((of_unit = sw_engine_next_operand(engine, op, SW_ROLE_SQUARE_SUMS, of_unit)) != NULL) {
        const struct sw_span at = sw_plan_shard_of(engine->plan, of_unit->first_index, engine->plan->spec.rank);
        const double *sums = (const double *)sw_engine_address(engine, of_unit) + at.first_grain;
        memcpy(record, sums, (size_t)at.grains * sizeof *sums);
        record += at.grains;
    }
}

/* Takes the square sums of a rank's shards from its summary. The ranks of a tensor group come one after the other: the
 * first sets the sum of a grain and the others add theirs, but for grains that are the same on all of them. */
static void take_sums(struct sw_engine *engine, const struct sw_op *op, int job_rank, const double *record) {
    const int tensor_ranks = sw_plan_tensor_ranks(engine->plan);
    const bool adds = job_rank % tensor_ranks > 0;
    const struct sw_access *of_unit = NULL;
    while ((of_unit = sw_engine_next_operand(engine, op, SW_ROLE_SQUARE_SUMS, of_unit)) != NULL) {
        const struct sw_unit *unit = &engine->plan->spec.units->unit[of_unit->first_index];
        const struct sw_span at = sw_plan_shard_of(engine->plan, of_unit->first_index, job_rank / tensor_ranks);
        double *sums = (double *)sw_engine_address(engine, of_unit) + at.first_grain;
        for (int64_t g = 0; g < at.grains; g++)
            if (!adds)
                sums[g] = record[g];
            else if (!sw_unit_grain_copies(unit, at.first_grain + g))
                sums[g] += record[g];
        record += at.grains;
    }
}

sw_status sw_engine_exchange_summary(struct sw_engine *engine, const struct sw_op *op, struct step_context *context) {
    const struct sw_plan *plan = engine->plan;
    const bool sums = op->content == SW_CONTENT_SQUARE_SUMS;
    const int64_t bytes = sw_plan_summary_bytes(plan, sums), doubles = bytes / (int64_t)sizeof(double);
    double *records = sw_engine_piece(engine, sw_plan_buffer(plan, SW_BUFFER_SUMMARIES), 0),
           *mine = records + sw_plan_job_rank(plan) * doubles;
    mine[SW_SUMMARY_LOSS] = sw_engine_own_loss(engine, context);
    mine[SW_SUMMARY_REQUESTS] = (double)atomic_load(&engine->requests);
    if (sums)
        note_sums(engine, op, mine + SW_SUMMARY_SQUARE_SUMS);
    SW_TRY(sw_comm_share_records(engine->spec.comm, "share", records, bytes));
    unsigned requests = 0;
    context->shared_loss = 0.0;
    for (int rank = 0; rank < sw_plan_job_ranks(plan); rank++) {
        const double *record = records + rank * doubles;
        /* The ranks of a tensor group have the same loss. */
        context->shared_loss += rank % sw_plan_tensor_ranks(plan) == 0 ? record[SW_SUMMARY_LOSS] : 0.0;
        requests |= (unsigned)record[SW_SUMMARY_REQUESTS];
        if (sums)
            take_sums(engine, op, rank, record + SW_SUMMARY_SQUARE_SUMS);
    }
    context->result.requests = requests;
    return SW_OK;
}
