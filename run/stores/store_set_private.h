/* Functions that the files of store_set.h share. */
#ifndef SW_RUN_STORES_STORE_SET_PRIVATE_H
#define SW_RUN_STORES_STORE_SET_PRIVATE_H

#include "run/stores/store_set.h"

/* Returns where the store of this rank belongs. */
sw_status sw_store_set_places(const struct sw_store_set *self, struct sw_places *out);

/* Writes the stores of all ranks into a run: this rank's id and places, and those that the others give. */
sw_status sw_store_set_record(const struct sw_store_set *self, const char *id, const struct sw_places *places,
                              struct sw_run *into);

/* Frees the descriptions of the new set and of the one that it replaces. */
void sw_store_set_release(struct sw_store_set *self);

#endif
