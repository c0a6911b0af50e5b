/* What the parts of rank_store.h share. */
#ifndef SW_TRAIN_RANK_STORE_PRIVATE_H
#define SW_TRAIN_RANK_STORE_PRIVATE_H

#include "train/rank_store.h"

/* Where this rank's store is to be. */
sw_status sw_rank_own_places(const struct sw_rank_stores *self, struct sw_places *out);
/* Makes it there, with its folders. */
sw_status sw_rank_make(const struct sw_rank_stores *self, struct sw_store **out);

/* Takes the stores of all ranks, as they are now, into the run. Empty: it has no identity yet. */
sw_status sw_rank_record(const struct sw_rank_stores *self, const char *id, const struct sw_places *places);
/* Refuses ranks whose commits of a step tell of different things. */
sw_status sw_rank_agree_on_commit(struct sw_ranks *ranks, const struct sw_store_commit *commit);

/* Refuses places where a store is: what is made there is to be removed again, whatever happens, and must not be another
 * run's. */
sw_status sw_rank_refuse_taken(const struct sw_places *places);

/* Notes the stores of a run as those that are left behind (struct sw_run). */
sw_status sw_rank_leave(const char *folder, const struct sw_run *of, struct sw_option_list *left);
/* Removes them, as far as this rank sees them, and forgets them. */
sw_status sw_rank_remove_left(const struct sw_rank_stores *self);

/* Fills new stores from those that the run has. */
sw_status sw_rank_take_over(const struct sw_rank_stores *self, struct sw_store **out);
/* The copying of it: of every unit the grains that both have. */
sw_status sw_rank_copy(struct sw_store *from, struct sw_store *to, struct sw_ranks *ranks, int64_t *grains);

#endif
