/* Runs the exchanges of a tensor group, in place but for a rank's rows that lie in a slot of their own. */
#include "offload/engine/engine_private.h"

/* The piece that an op makes whole, or takes apart. */
static void *piece_of(const struct sw_engine *engine, const struct sw_op *op) {
    return sw_engine_operand(engine, op, op->kind == SW_OP_REDUCE_TENSOR ? SW_ROLE_FROM : SW_ROLE_TO);
}

/* Returns where this rank's rows are, or go, if not to their place in the piece; else NULL. */
static void *rows_apart(const struct sw_engine *engine, const struct sw_op *op) {
    const struct sw_access *from = sw_engine_next_operand(engine, op, SW_ROLE_FROM, NULL);
    const struct sw_access *to = sw_engine_next_operand(engine, op, SW_ROLE_TO, NULL);
    if (from->slot == to->slot)
        return NULL;
    return sw_engine_address(engine, op->kind == SW_OP_REDUCE_TENSOR ? to : from);
}

/* Returns where each rank's rows begin, in `scale` for each row; a pass of fewer tokens than a micro-batch has has
 * fewer rows. Valid until the next call. */
static const int64_t *row_bounds(struct sw_engine *engine, int64_t pass_tokens, int64_t scale) {
    const int ranks = sw_plan_tensor_ranks(engine->plan);
    const int64_t rows = pass_tokens > 0 ? pass_tokens : engine->plan->spec.tensor.rows;
    int64_t *bounds = engine->bounds;
    bounds[0] = 0;
    for (int rank = 0; rank < ranks; rank++)
        bounds[rank + 1] = bounds[rank] + sw_shard(rows, ranks, rank).grains * scale;
    return bounds;
}

/* Sums a vector of the group's ranks; each gets its part. */
static sw_status reduce(struct sw_engine *engine, const struct sw_op *op, void *data, const int64_t *bounds,
                        sw_dtype type) {
    void *apart = rows_apart(engine, op);
    const struct sw_comm_reduce reduce = {
        .what = sw_op_name(op->kind),
        .index = op->unit,
        .from = data,
        .bounds = bounds,
        .to = apart != NULL ? apart : (char *)data + bounds[engine->plan->spec.tensor.rank] * sw_dtype_bytes(type),
        .type = type,
        .to_type = type,
        .scope = SW_SCOPE_TENSOR,
    };
    struct sw_comm_request *request;
    SW_TRY(sw_comm_reduce_scatter(engine->spec.comm, &reduce, &request));
    return sw_lane_end_collective(&engine->lane[SW_LANE_COMM], request);
}

static sw_status gather(struct sw_engine *engine, const struct sw_op *op, void *data, const int64_t *bounds_bytes) {
    const struct sw_comm_gather gather = {.what = sw_op_name(op->kind),
                                          .index = op->unit,
                                          .data = data,
                                          .own = rows_apart(engine, op),
                                          .bounds_bytes = bounds_bytes,
                                          .scope = SW_SCOPE_TENSOR};
    struct sw_comm_request *request;
    SW_TRY(sw_comm_all_gather(engine->spec.comm, &gather, &request));
    return sw_lane_end_collective(&engine->lane[SW_LANE_COMM], request);
}

static sw_status gather_softmax(struct sw_engine *engine, const struct sw_op *op) {
    for (int rank = 0; rank <= sw_plan_tensor_ranks(engine->plan); rank++)
        engine->bounds[rank] = rank * engine->plan->spec.tensor.softmax_bytes;
    return gather(engine, op, piece_of(engine, op), engine->bounds);
}

/* Sums the fp32 accumulators of what every rank has, and gives the sums to all. */
static sw_status sum_replicated(struct sw_engine *engine, const struct sw_op *op) {
    const struct sw_plan *plan = engine->plan;
    const int ranks = sw_plan_tensor_ranks(plan);
    float *acc = (float *)piece_of(engine, op) + plan->spec.units->unit[op->unit].replicated_grain * SW_GRAIN_ELEMS;
    int64_t *bounds = engine->bounds;
    for (int rank = 0; rank < ranks; rank++) {
        const struct sw_span at = sw_plan_replicated_of(plan, op->unit, rank);
        bounds[rank] = at.first_grain;
        bounds[rank + 1] = at.first_grain + at.grains;
    }
    SW_TRY(reduce(engine, op, acc, bounds, SW_F32));
    for (int rank = 0; rank <= ranks; rank++)
        bounds[rank] *= (int64_t)sizeof(float);
    return gather(engine, op, acc, bounds);
}

sw_status sw_engine_run_tensor(struct sw_engine *engine, const struct sw_op *op, const struct step_context *context) {
    const sw_dtype type = engine->plan->spec.type;
    const int64_t tokens = context->input.count;
    const int64_t bytes = sw_plan_row_bytes(engine->plan);
    if (op->kind == SW_OP_SUM_REPLICATED)
        return sum_replicated(engine, op);
    if (op->kind == SW_OP_REDUCE_TENSOR)
        return reduce(engine, op, piece_of(engine, op), row_bounds(engine, tokens, bytes / sw_dtype_bytes(type)), type);
    if (op->content == SW_CONTENT_SOFTMAX)
        return gather_softmax(engine, op);
    return gather(engine, op, piece_of(engine, op), row_bounds(engine, tokens, bytes));
}
