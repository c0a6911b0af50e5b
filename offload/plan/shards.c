/* Divides units into shards and chunks. */
#include "core/ranks/comm.h"
#include "core/size.h"
#include "offload/plan/plan_private.h"

/* Messages above about 1 MiB a peer bring nothing. */
#define STAGING_BYTES (8 * SW_MIB)

int64_t sw_plan_staging_bytes(int ranks) {
    return sw_max_i64(STAGING_BYTES, sw_comm_least_staging_bytes(ranks));
}

static int64_t unit_grains(const struct sw_plan *plan, int64_t unit) {
    return plan->spec.units->unit[unit].grains;
}

int64_t sw_plan_trained_grains(const struct sw_plan *plan, int64_t unit) {
    return sw_plan_trains(plan, unit) ? unit_grains(plan, unit) : 0;
}

int64_t sw_plan_typed_bytes(const struct sw_plan *plan, int64_t grains) {
    return grains * SW_GRAIN_ELEMS * sw_dtype_bytes(plan->spec.type);
}

int64_t sw_plan_weights_bytes(const struct sw_plan *plan, int64_t unit, int64_t grains) {
    return grains * sw_units_weights_bytes(plan->spec.units, unit, plan->spec.type);
}

int64_t sw_plan_optimizer_bytes(const struct sw_plan *plan, int64_t grains) {
    return grains * sw_optimizer_grain_bytes(plan->spec.units->optimizer);
}

struct sw_span sw_plan_shard_of(const struct sw_plan *plan, int64_t unit, int rank) {
    return sw_shard(unit_grains(plan, unit), sw_plan_ranks(plan), rank);
}

struct sw_span sw_plan_shard(const struct sw_plan *plan, int64_t unit) {
    return sw_plan_shard_of(plan, unit, plan->spec.rank);
}

struct sw_span sw_plan_span(const struct sw_plan *plan, sw_state state, int64_t unit) {
    if ((state == SW_GRADS || state == SW_OPTIMIZER) && !sw_plan_trains(plan, unit))
        return (struct sw_span){0};
    return sw_plan_is_sharded(plan, state) ? sw_plan_shard(plan, unit)
                                           : (struct sw_span){.grains = unit_grains(plan, unit)};
}

struct sw_span sw_plan_kept(const struct sw_plan *plan, sw_state state, int64_t unit, sw_tier tier) {
    const bool before_reduction = state == SW_GRADS && tier == SW_DEVICE && plan->spec.zero < SW_ZERO_GRADS;
    return before_reduction ? (struct sw_span){.grains = sw_plan_trained_grains(plan, unit)}
                            : sw_plan_span(plan, state, unit);
}

/* Returns a chunk of a span, which has no grains where the span ends before. */
static struct sw_span chunk_of(const struct sw_plan *plan, struct sw_span span, int64_t chunk) {
    const int64_t first = sw_min_i64(chunk * plan->spec.chunk_grains, span.grains);
    return (struct sw_span){.first_grain = span.first_grain + first,
                            .grains = sw_min_i64(plan->spec.chunk_grains, span.grains - first)};
}

int64_t sw_plan_chunks(const struct sw_plan *plan, int64_t unit) {
    return sw_div_up(unit_grains(plan, unit), plan->spec.chunk_grains);
}

struct sw_span sw_plan_unit_chunk(const struct sw_plan *plan, int64_t unit, int64_t chunk) {
    return chunk_of(plan, (struct sw_span){.grains = unit_grains(plan, unit)}, chunk);
}

int64_t sw_plan_state_chunks(const struct sw_plan *plan, sw_state state, int64_t unit) {
    return sw_div_up(sw_plan_span(plan, state, unit).grains, plan->spec.chunk_grains);
}

struct sw_span sw_plan_state_chunk(const struct sw_plan *plan, sw_state state, int64_t unit, int64_t chunk) {
    return chunk_of(plan, sw_plan_span(plan, state, unit), chunk);
}

int64_t sw_plan_shard_chunks(const struct sw_plan *plan, int64_t unit) {
    return sw_div_up(sw_plan_shard(plan, unit).grains, plan->spec.chunk_grains);
}

struct sw_span sw_plan_shard_chunk(const struct sw_plan *plan, int64_t unit, int rank, int64_t chunk) {
    return chunk_of(plan, sw_plan_shard_of(plan, unit, rank), chunk);
}

int64_t sw_plan_buckets(const struct sw_plan *plan, int64_t unit) {
    return sw_div_up(sw_shard_most_grains(sw_plan_trained_grains(plan, unit), sw_plan_ranks(plan)),
                     plan->spec.chunk_grains);
}

int64_t sw_plan_bucket_grains(const struct sw_plan *plan, int64_t unit, int64_t number, int rank) {
    const int ranks = sw_plan_ranks(plan);
    const int64_t longer = sw_min_i64(rank, unit_grains(plan, unit) % ranks);
    return longer * sw_plan_shard_chunk(plan, unit, 0, number).grains +
           (rank - longer) * sw_plan_shard_chunk(plan, unit, ranks - 1, number).grains;
}

struct sw_span sw_plan_bucket_run(const struct sw_plan *plan, int64_t unit, int64_t number, int64_t run) {
    const int ranks = sw_plan_ranks(plan);
    if (sw_plan_buckets(plan, unit) == 1)
        return (struct sw_span){.grains = run == 0 ? unit_grains(plan, unit) : 0};
    return run < ranks ? sw_plan_shard_chunk(plan, unit, (int)run, number) : (struct sw_span){0};
}

int64_t sw_plan_replicated_elems(const struct sw_plan *plan, int64_t unit) {
    return plan->spec.units->unit[unit].replicated_elems;
}

struct sw_span sw_plan_replicated_of(const struct sw_plan *plan, int64_t unit, int tensor_rank) {
    return sw_shard(sw_plan_replicated_elems(plan, unit), sw_plan_tensor_ranks(plan), tensor_rank);
}

struct sw_span sw_plan_secondary_of(const struct sw_plan *plan, int64_t unit, int number) {
    return sw_shard(unit_grains(plan, unit), plan->spec.secondary_ranks, number);
}

struct sw_span sw_plan_secondary(const struct sw_plan *plan, int64_t unit) {
    return sw_plan_secondary_of(plan, unit, plan->spec.secondary_rank);
}

struct sw_span sw_plan_secondary_chunk(const struct sw_plan *plan, int64_t unit, int64_t chunk) {
    return chunk_of(plan, sw_plan_secondary(plan, unit), chunk);
}

int64_t sw_plan_secondary_bytes(const struct sw_plan *plan) {
    int64_t bytes = 0;
    for (int64_t u = 0; u < plan->spec.units->count; u++)
        bytes += plan->index->of_unit[SLOT_SECONDARY][u] >= 0
                     ? plan->slot[plan->index->of_unit[SLOT_SECONDARY][u]].bytes
                     : 0;
    return bytes;
}

int sw_plan_reduce_nodes(const struct sw_plan *plan) {
    return sw_plan_quantizes_grads(plan) && plan->spec.reduce_nodes > 1 ? plan->spec.reduce_nodes : 1;
}

int sw_plan_reduce_node_ranks(const struct sw_plan *plan) {
    return sw_plan_ranks(plan) / sw_plan_reduce_nodes(plan);
}

/* Returns the grains of a number's chunks on the nodes before one. */
static int64_t part_up_to(const struct sw_plan *plan, int64_t unit, int64_t bucket, int number, int node) {
    int64_t grains = 0;
    for (int n = 0; n < node; n++)
        grains += sw_plan_shard_chunk(plan, unit, n * sw_plan_reduce_node_ranks(plan) + number, bucket).grains;
    return grains;
}

int64_t sw_plan_part_grains(const struct sw_plan *plan, int64_t unit, int64_t bucket, int number) {
    return part_up_to(plan, unit, bucket, number, sw_plan_reduce_nodes(plan));
}

int64_t sw_plan_part_before(const struct sw_plan *plan, int64_t unit, int64_t bucket, int number) {
    int64_t grains = 0;
    if (sw_plan_reduce_nodes(plan) == 1)
        return sw_plan_bucket_grains(plan, unit, bucket, number);
    for (int before = 0; before < number; before++)
        grains += sw_plan_part_grains(plan, unit, bucket, before);
    return grains;
}

int64_t sw_plan_node_before(const struct sw_plan *plan, int64_t unit, int64_t bucket, int node) {
    return part_up_to(plan, unit, bucket, plan->spec.rank % sw_plan_reduce_node_ranks(plan), node);
}

int64_t sw_plan_summary_bytes(const struct sw_plan *plan, bool sums) {
    int64_t doubles = SW_SUMMARY_SQUARE_SUMS;
    for (int64_t u = 0; sums && u < plan->spec.units->count; u++)
        doubles += sw_shard_most_grains(sw_plan_trained_grains(plan, u), sw_plan_ranks(plan));
    return doubles * (int64_t)sizeof(double);
}

int64_t sw_plan_grain_bytes(const struct sw_plan *plan, sw_content content, int64_t unit) {
    switch (content) {
    case SW_CONTENT_WEIGHTS: return sw_plan_weights_bytes(plan, unit, 1);
    case SW_CONTENT_GRADS: return sw_grads_grain_bytes(plan->spec.grads, sw_dtype_bytes(plan->spec.type));
    case SW_CONTENT_ACC:
    case SW_CONTENT_NODE_SUM:
    case SW_CONTENT_BUCKET_SUM: return SW_GRAIN_ELEMS * (int64_t)sizeof(float);
    case SW_CONTENT_QUANT_WEIGHTS: return sw_quant_grain_bytes(plan->spec.gather);
    case SW_CONTENT_NODE_QUANT:
    case SW_CONTENT_NODE_PARTS:
    case SW_CONTENT_QUANT_GRADS:
    case SW_CONTENT_QUANT_PARTS: return sw_quant_grain_bytes(plan->spec.reduce);
    case SW_CONTENT_SQUARE_SUMS: return sizeof(double);
    case SW_CONTENT_OPTIMIZER: return sw_plan_optimizer_bytes(plan, 1);
    default: return 0;
    }
}
