/* Random models and the plans for them, and copies of plans that a test may change. */
#ifndef SW_TESTS_OFFLOAD_PLANS_H
#define SW_TESTS_OFFLOAD_PLANS_H

#include "offload/plan/plan_private.h"

/* Random numbers of a test case, a function of its seed, and the sizes of its units, which a plan refers to. */
enum { PLANS_MOST_UNITS = 64 };
struct plans_random {
    uint64_t seed, counter;
    struct sw_unit_cost cost[PLANS_MOST_UNITS];
    bool update_on_device[PLANS_MOST_UNITS];
};
/* Uniform in [least, most]. */
int64_t plans_draw(struct plans_random *random, int64_t least, int64_t most);

/* A specification with random units (the caller destroys them), sizes, placement, group and recompute, and budgets
 * without limit. `most_grains` bounds a unit. `random` must outlive the plan. */
struct sw_plan_spec plans_random_spec(struct plans_random *random, int64_t most_units, int64_t most_grains,
                                      struct sw_units **out_units);

/* Makes all weights those of the compute type. */
void plans_drop_base(struct sw_units *units);
/* Makes all of every unit trained. */
void plans_train_all(struct sw_units *units);

/* Gives about half of the units frozen grains beside trained ones, and in half of the plans blocks a base. */
void plans_draw_spans(const struct plans_random *random, struct sw_units *units);
/* Gives blocks matrices of Muon. */
void plans_draw_matrices(const struct plans_random *random, struct sw_units *units);

/* Takes the KV caches away, as a specification of training has none. */
void plans_drop_caches(struct plans_random *random);

/* Makes a random specification one of a rank of a tensor group, of 2 to `most` ranks: units get replicated grains at
 * their end, and outputs of one size, but for those that another unit continues. */
void plans_draw_tensor(struct plans_random *random, int most, struct sw_units *units, struct sw_plan_spec *spec);
/* Makes it one of a rank of an expert group, whose members have rows of their own: of ranks, or in half of the plans
 * of tensor groups. Returns false if its units are not blocks of two. */
bool plans_draw_experts(struct plans_random *random, int most, struct sw_units *units, struct sw_plan_spec *spec);

/* After a refusal: sets the budgets that its message names to what it names, each of which must be more than was there.
 * A budget that it does not name stays. */
void plans_read_needs(struct sw_plan_spec *spec, bool named[SW_NVME], uint64_t seed);

/* Returns how much of what an op of the comm lane gives to others goes to other nodes, by counting the ranks there, of
 * a job with groups whose ranks fill nodes of so many. A gather gives its share to one rank of each. */
int64_t plans_bytes_apart(const struct sw_plan *plan, const struct sw_op *op, int node_ranks);

/* Tells whether a program gets the waits that it has if none of its accesses is kept, as in a plan that is only
 * compared. */
bool plans_have_same_waits(const struct sw_plan *plan, sw_program_kind kind);

/* A deep copy of a plan's programs and slots; the rest is shared with the original, which must outlive it. */
struct plans_copy {
    struct sw_plan plan;
};
void plans_copy_make(const struct sw_plan *from, struct plans_copy *out);
void plans_copy_free(struct plans_copy *copy);

#endif
