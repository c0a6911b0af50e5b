/* Shards: which grains of a unit each rank has. Ranks split every unit evenly, in their order, so that all links and
 * drives carry the same; the first ranks have one grain more where it does not come out even, the last may have none.
 */
#ifndef SW_OFFLOAD_PLAN_SHARD_H
#define SW_OFFLOAD_PLAN_SHARD_H

#include <stdint.h>

/* Grains [first_grain, first_grain + grains) of a unit. */
struct sw_span {
    int64_t first_grain, grains;
};

/* Returns a rank's shard of a unit. */
static inline struct sw_span sw_shard(int64_t unit_grains, int ranks, int rank) {
    if (ranks == 1) /* most often, and a division takes long */
        return (struct sw_span){.grains = unit_grains};
    const int64_t each = unit_grains / ranks, rest = unit_grains % ranks;
    return (struct sw_span){.first_grain = each * rank + (rank < rest ? rank : rest), .grains = each + (rank < rest)};
}

/* Returns the rank that has a grain of a unit; for a grain that the unit has not, some rank or none. */
static inline int sw_shard_rank(int64_t unit_grains, int ranks, int64_t grain) {
    const int64_t each = unit_grains / ranks, rest = unit_grains % ranks, longer = rest * (each + 1);
    return (int)(grain < longer || each == 0 ? grain / (each + 1) : rest + (grain - longer) / each);
}

/* Returns the grains of the largest shard. */
static inline int64_t sw_shard_most_grains(int64_t unit_grains, int ranks) {
    return (unit_grains + ranks - 1) / ranks;
}

#endif
