/* The store of this rank, as one of the stores of all ranks: created; opened at the step that all have; or filled from
 * the run's stores if ranks or layout have changed. All ranks call each function together. */
#ifndef SW_RUN_STORES_RANK_STORE_H
#define SW_RUN_STORES_RANK_STORE_H

#include "core/status.h"
#include "io/store/store.h"
#include "job/machine/ranks.h"
#include "job/settings/places.h"
#include "run/folder/run.h"

struct sw_rank_stores {
    struct sw_ranks *ranks;
    const char *folder; /* folder of the run */
    struct sw_run *run; /* on entry it lists the stores of run.json, on return those of these ranks */
    bool previous;      /* drop the last commit, which is damaged, and continue from the one before */
    /* Creates this rank's new store with this id, to hold this rank's part of every unit. */
    sw_status (*make)(void *context, const struct sw_places *places, const char *id, struct sw_store **out);
    void *context;
};

/* Creates the store of a new run, with this id. A failure leaves nothing behind. */
sw_status sw_rank_store_create(const struct sw_rank_stores *self, const char *id, struct sw_store **out);
/* Removes a store that sw_rank_store_create made, unless it has a commit, and closes it. store may be NULL. */
void sw_rank_store_undo(const struct sw_rank_stores *self, struct sw_store *store);

/* Opens the store of a run that is resumed, at the newest step that every rank has. With `previous` it opens the step
 * before that, if all grains of that step are whole; the next step overwrites them, so they are whole only if the run
 * ended before the step after its last commit began to write. Later commits are then removed. If the step is not whole,
 * nothing changes.
 *
 * Stores of another number of ranks, of other tensor groups or of another format are replaced. The new stores get the
 * state of the old ones and commit; then run.json names the new ones; then the old ones are removed. If that is
 * interrupted, run.json still names whole stores, and the next resume removes the others. If it fails, the new stores
 * are removed. A store is removed only by its id, and only after the run's own stores are open with every grain whole.
 */
sw_status sw_rank_store_open(const struct sw_rank_stores *self, struct sw_store **out);

/* Checks that all ranks see the same folder of the run, with the same run.json or none. */
sw_status sw_rank_agree_on_folder(struct sw_ranks *ranks, const char *folder);

/* Refuses places that ranks of one machine share by mistake: a block device of two ranks, or lists of folders that
 * overlap without being equal. */
sw_status sw_rank_places_agree(const struct sw_rank_stores *self);

#endif
