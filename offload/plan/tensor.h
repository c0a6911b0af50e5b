/* Tensor groups: how a plan's specification describes them, and what can be asked of a plan for one. */
#ifndef SW_OFFLOAD_PLAN_TENSOR_H
#define SW_OFFLOAD_PLAN_TENSOR_H

#include "offload/plan/shard.h"

#include <stdbool.h>
#include <stdint.h>

struct sw_plan;

/* The tensor group of a rank (Shoeybi et al., arXiv 1909.08053): ranks that compute the same micro-batches, each with
 * its part of every unit's matrices. What a unit adds up to is reduced to the rows of each rank and gathered again, so
 * that every rank has all of it (the order of sums is that of the ranks). Norms and the biases behind a sum are on
 * every rank. */
struct sw_plan_tensor {
    int ranks, rank;       /* 0 or 1 ranks: there is no group */
    int node_ranks;        /* the fewest ranks that the group has on a node; 0: all of it is on one node */
    int64_t rows;          /* of a micro-batch, which the ranks share out (sw_shard); at least as many as ranks */
    int64_t softmax_bytes; /* what one rank tells the others of its part of the vocabulary, for a micro-batch */
    int64_t product_bytes; /* gradient at the result of a block's first product, for a micro-batch; 0: backward passes
                              are not split, as those of halves in tiles, or the plan does not train */
    /* Each rank keeps its rows of the inputs that are kept for the backward pass, on whatever tier, and the group
     * gathers those of units that are computed again: ZeRO-R's Pa, and Pa+cpu where they are not on the device
     * (Rajbhandari et al. 2020, section 6.1). */
    bool partition_inputs;
    /* Sequence parallelism (Korthikanti et al., arXiv 2205.05198): a rank has but its rows of what units add up to, and
     * keeps them for the backward pass. It normalises these rows, and the group gathers the normalised input of every
     * unit, in both passes. */
    bool sequence;
};

/* Returns the ranks of a tensor group, at least 1; those of the whole job; and this one's number in the job. */
int sw_plan_tensor_ranks(const struct sw_plan *plan);
int sw_plan_job_ranks(const struct sw_plan *plan);
int sw_plan_job_rank(const struct sw_plan *plan);
/* Returns the rows of a micro-batch that a rank of the tensor group reduces and gathers. */
struct sw_span sw_plan_rows_of(const struct sw_plan *plan, int tensor_rank);
/* Returns the elements of a unit that every rank of a tensor group has, at the unit's end, and those of them that a
 * rank adds up, counted from the first of them. */
int64_t sw_plan_replicated_elems(const struct sw_plan *plan, int64_t unit);
struct sw_span sw_plan_replicated_of(const struct sw_plan *plan, int64_t unit, int tensor_rank);
/* Tells whether a unit of a tensor group continues the sum that the unit before began. A rank's output of the latter is
 * its own and is not exchanged: the group adds the sums up behind the last unit that continues them, and in the
 * backward pass the gradient at their norm, at the unit that began them, which alone has the norm. */
bool sw_plan_continues(const struct sw_plan *plan, int64_t unit);
/* Tells whether each rank of a tensor group keeps its rows alone of a unit's input, or of any unit's. What continues a
 * sum keeps its input whole, because that is the rank's own. */
bool sw_plan_partitions_input(const struct sw_plan *plan, int64_t unit);
bool sw_plan_partitions_inputs(const struct sw_plan *plan);
/* Tells whether a unit's backward pass needs no more of a partitioned input than this rank's rows, for the norm, where
 * that comes after it: nothing of the unit is computed again. The group then does not gather the input. */
bool sw_plan_recalls_rows(const struct sw_plan *plan, int64_t unit);
/* Tells whether the backward pass of a unit leaves the gradients of its products' weights to ops of their own, beside
 * which the group exchanges the gradient at its norm: a block's in a group, if it is not in tiles. */
bool sw_plan_splits_backward(const struct sw_plan *plan, int64_t unit);
/* Tells whether a unit's backward op needs the normalised input, which with sequence parallelism the plan keeps apart:
 * its matrix products are computed again. Else only the gradient of the first product's weights does. */
bool sw_plan_recalls_normed(const struct sw_plan *plan, int64_t unit);
/* Tells whether each rank of a tensor group normalises its rows alone; then it also keeps no others. */
bool sw_plan_is_sequence_parallel(const struct sw_plan *plan);
/* Returns the bytes of a row of a micro-batch, of which every unit's output has as many; in a tensor group. */
int64_t sw_plan_row_bytes(const struct sw_plan *plan);

#endif
