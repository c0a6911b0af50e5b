/* The state that a plan keeps in the store and never commits. The room for it is known before the store is made. */
#ifndef SW_OFFLOAD_ENGINE_SCRATCH_H
#define SW_OFFLOAD_ENGINE_SCRATCH_H

#include "io/store/store.h"
#include "offload/plan/plan.h"

/* Kinds of state, in the order in which the engine adds them to the store. */
struct sw_scratch {
    int count;
    struct sw_store_scratch kind[SW_STORE_KINDS];
    int64_t *grains; /* memory of all kinds' first grains and counts; owned */
};

/* Lists the scratch state of a plan. The caller releases it. */
sw_status sw_scratch_of(const struct sw_plan *plan, struct sw_scratch *out);
void sw_scratch_release(struct sw_scratch *scratch);

/* Returns a digest of all that decides the bytes of frozen weights as they lie in the store. frozen_digest: that of
 * their values. */
uint64_t sw_scratch_made_from(const struct sw_plan *plan, uint64_t frozen_digest);

#endif
