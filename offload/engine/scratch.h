/* What a plan keeps in the store without ever committing it: the room for it is known before the store is made. */
#ifndef SW_OFFLOAD_ENGINE_SCRATCH_H
#define SW_OFFLOAD_ENGINE_SCRATCH_H

#include "io/store/store.h"
#include "offload/plan/plan.h"

/* In the order in which the engine adds them. */
struct sw_scratch {
    int count;
    struct sw_store_scratch kind[SW_STORE_KINDS];
    int64_t *grains; /* of all kinds, first ones and counts */
};

sw_status sw_scratch_of(const struct sw_plan *plan, struct sw_scratch *out);
void sw_scratch_release(struct sw_scratch *scratch);

#endif
