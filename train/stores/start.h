/* The start of a new run, for as long as it may be cut off. Before its first store is made, starting.json in the run's
 * folder says of every rank's store its identity and its places, as run.json will; it goes when every rank has its
 * first commit. So what lies in a folder that has one is of a start that never ended, and holds nothing that was
 * trained: the next start removes it, there and in the directories of --nvme. Whoever begins a run, or clears what a
 * start has left, holds the lock on the run (run_lock.h). */
#ifndef SW_TRAIN_STORES_START_H
#define SW_TRAIN_STORES_START_H

#include "train/stores/rank_store.h"

struct sw_start {
    char id[SW_STORE_ID_CHARS]; /* that this rank's store is to have */
    bool announced;
};

/* Refuses a folder that holds anything but what an unfinished start has left. Touches nothing. */
sw_status sw_start_check(const char *folder);
/* Tells whether a start in this folder was cut off, or is under way. */
bool sw_start_is_unfinished(const char *folder);
/* Removes what such a start has left. All ranks. */
sw_status sw_start_clear(struct sw_ranks *ranks, const char *folder);
/* Refuses places that are taken, then says what will be made in them. All ranks. */
sw_status sw_start_announce(const struct sw_rank_stores *stores, struct sw_start *start);
/* The run is there to be resumed: starting.json goes, if there is one. All ranks. */
sw_status sw_start_finish(struct sw_ranks *ranks, const char *folder, struct sw_start *start);
/* The start has failed, and this rank's store is gone. Whoever sees no other's any more removes the rest. */
void sw_start_undo(const struct sw_rank_stores *stores, struct sw_start *start);

#endif
