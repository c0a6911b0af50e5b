/* Functions that the files of rank_store.h share. */
#ifndef SW_RUN_STORES_RANK_STORE_PRIVATE_H
#define SW_RUN_STORES_RANK_STORE_PRIVATE_H

#include "run/stores/rank_store.h"

/* Returns where the store of this rank belongs. */
sw_status sw_rank_own_places(const struct sw_rank_stores *self, struct sw_places *out);
/* Creates the store of this rank in its places, with the folders and with this id. */
sw_status sw_rank_make(const struct sw_rank_stores *self, const char *id, struct sw_store **out);

/* Writes the stores of all ranks, as they are now, into self->run. */
sw_status sw_rank_record(const struct sw_rank_stores *self, const char *id, const struct sw_places *places);
/* Writes the stores of all ranks into self->run, each at its rank's own places. If `must_be_free`, refuses places that
 * have a store. */
sw_status sw_rank_record_own(const struct sw_rank_stores *self, const char *id, bool must_be_free);
/* Checks that the commits of one step are the same on all ranks. */
sw_status sw_rank_agree_on_commit(struct sw_ranks *ranks, const struct sw_store_commit *commit);

/* Adds the stores of `of` to the run's orphans, to be removed if they have no step later than last_step. */
sw_status sw_rank_add_orphans(const char *folder, const struct sw_run *of, int64_t last_step, struct sw_run *run);
/* Removes the stores of `of` from the run's orphans. */
void sw_rank_forget_orphans(struct sw_run *run, const struct sw_run *of);
/* Deletes the orphaned stores by their ids, and forgets those that are gone. The run's own stores must be open and
 * whole. All ranks call it together. */
sw_status sw_rank_remove_orphans(const struct sw_rank_stores *self);

/* Refuses a store that has a damaged grain in the commit at which it is open. */
sw_status sw_rank_check_whole(struct sw_ranks *ranks, struct sw_store *store);

/* Tells whether --nvme differs from run.json. */
bool sw_rank_has_new_places(const struct sw_run *run);

#endif
