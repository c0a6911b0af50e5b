/* The store that a plan needs: its records and its scratch, in the places of --nvme. */
#ifndef SW_TRAIN_STORES_NEW_STORE_H
#define SW_TRAIN_STORES_NEW_STORE_H

#include "io/store/store.h"
#include "offload/plan/plan.h"
#include "train/settings/places.h"

struct sw_new_store {
    const struct sw_plan *plan;
    const struct sw_places *places;
    const char *id;                                       /* as struct sw_store_spec has it */
    bool allow_buffered, allow_overwrite_device, unnamed; /* so too */
};

/* Refuses limits of --nvme that are less than the store needs; touches nothing. */
sw_status sw_new_store_check(const struct sw_new_store *wanted);
sw_status sw_new_store_create(const struct sw_new_store *wanted, sw_store_progress progress, void *context,
                              struct sw_store **out);

#endif
