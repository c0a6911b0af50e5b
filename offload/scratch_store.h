/* A store for measuring: its files have no name as soon as they are made, so nothing of it outlives the process. */
#ifndef SW_OFFLOAD_SCRATCH_STORE_H
#define SW_OFFLOAD_SCRATCH_STORE_H

#include "io/store.h"

struct sw_scratch_store;

/* As sw_store_create, in a new folder inside each of the directories, which closing removes. */
sw_status sw_scratch_store_open(const struct sw_store_spec *spec, struct sw_scratch_store **out);
struct sw_store *sw_scratch_store_get(struct sw_scratch_store *scratch);
void sw_scratch_store_close(struct sw_scratch_store *scratch);

#endif
