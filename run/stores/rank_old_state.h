/* The optimizer state of a run's old stores, read by the names of tensors: the stores of tensor groups have parts of
 * them, and units lie differently in each format. */
#ifndef SW_RUN_STORES_RANK_OLD_STATE_H
#define SW_RUN_STORES_RANK_OLD_STATE_H

#include "run/stores/rank_store_private.h"

#include <assert.h>

/* The state of a grain in fp32, in the form of a record. */
struct sw_wide_state {
    float master[SW_GRAIN_ELEMS], m[SW_GRAIN_ELEMS], v[SW_GRAIN_ELEMS];
};
static_assert(sizeof(struct sw_wide_state) == sizeof(float) * 3 * SW_GRAIN_ELEMS, "the parts follow each other");

struct sw_old_state;

/* Opens the old stores to be read, each at the conversion's step. The caller closes it; what is given is not needed
 * afterwards. SW_ERR_CORRUPT: a store is of another model, or lacks the step. */
sw_status sw_old_state_open(const struct sw_rank_conversion *given, struct sw_old_state **out);
void sw_old_state_close(struct sw_old_state *self);

/* Copies the state of elements [whole, whole + *out_count) of a whole tensor to element `to` of *out: at most `most`
 * elements, and at least one. Calls that go through a tensor in order are fast. */
sw_status sw_old_state_take(struct sw_old_state *self, const char *name, int64_t whole, int64_t most,
                            struct sw_wide_state *out, int64_t to, int64_t *out_count);

/* Returns the commit at which the stores are open. */
const struct sw_store_commit *sw_old_state_commit(const struct sw_old_state *self);

#endif
