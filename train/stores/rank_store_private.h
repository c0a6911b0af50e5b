/* What the parts of rank_store.h share. */
#ifndef SW_TRAIN_STORES_RANK_STORE_PRIVATE_H
#define SW_TRAIN_STORES_RANK_STORE_PRIVATE_H

#include "train/stores/rank_store.h"

/* Where this rank's store is to be. */
sw_status sw_rank_own_places(const struct sw_rank_stores *self, struct sw_places *out);
/* Makes it there, with its folders and this identity. */
sw_status sw_rank_make(const struct sw_rank_stores *self, const char *id, struct sw_store **out);

/* Takes the stores of all ranks, as they are now, into the run. */
sw_status sw_rank_record(const struct sw_rank_stores *self, const char *id, const struct sw_places *places);
/* Refuses ranks whose commits of a step tell of different things. */
sw_status sw_rank_agree_on_commit(struct sw_ranks *ranks, const struct sw_store_commit *commit);

/* Refuses places where a store is: what is made there is to be removed again, whatever happens, and must not be another
 * run's. */
sw_status sw_rank_refuse_taken(const struct sw_places *places);

/* Notes the stores of one run as left behind by another (struct sw_run), none with a later step than last_step. */
sw_status sw_rank_leave(const char *folder, const struct sw_run *of, int64_t last_step, struct sw_run *run);
/* Takes them from the list again. */
void sw_rank_forget_left(struct sw_run *run, const struct sw_run *of);
/* Removes the stores that are left behind, by their identities, and forgets those that are gone. The run's own are open
 * and whole. All ranks. */
sw_status sw_rank_remove_left(const struct sw_rank_stores *self);

/* Refuses a store of which a grain of the commit that it is open at is bad. */
sw_status sw_rank_check_whole(struct sw_ranks *ranks, struct sw_store *store);

/* Whether --nvme says something else than run.json. */
bool sw_rank_has_new_places(const struct sw_run *run);

/* Fills new stores from those that the run has. */
sw_status sw_rank_take_over(const struct sw_rank_stores *self, struct sw_store **out);
/* Copies of every unit the grains that both stores hold, and adds their count to *grains. */
sw_status sw_rank_copy(struct sw_store *from, struct sw_store *to, struct sw_ranks *ranks, int64_t *grains);

#endif
