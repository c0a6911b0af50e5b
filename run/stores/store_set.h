/* The set of a run's stores, one for each rank. A set is made, published in run.json, and retires the set before it, in
 * one transaction. It may be interrupted at any instant:
 *
 *                     start of a run                    other ranks or another layout at a resume
 *   listed            starting.json (start.h)           run.json, among the orphans
 *   filled            by the engine's loading           from the old set
 *   published         by the end of starting.json       by run.json
 *   retires           nothing                           the old set
 *
 * All ranks call each function together. */
#ifndef SW_RUN_STORES_STORE_SET_H
#define SW_RUN_STORES_STORE_SET_H

#include "core/status.h"
#include "io/store/store.h"
#include "job/machine/ranks.h"
#include "job/settings/places.h"
#include "run/folder/run.h"

#include <stdbool.h>
#include <stdint.h>

struct sw_store_set {
    struct sw_ranks *ranks;
    const char *folder; /* folder of the run */
    struct sw_run *run; /* its settings are those of these ranks; it lists the stores of run.json, in the end those of
                           these ranks */
    bool previous;      /* drop the last commit, which is damaged, and continue from the one before */
    /* Creates this rank's new store with this id, to hold this rank's part of every unit. */
    sw_status (*make)(void *context, const struct sw_places *places, const char *id, struct sw_store **out);
    void *context;
    /* The functions below set the rest, which begins as zeros. */
    struct sw_run made;         /* a new set that replaces another: only its stores are filled in */
    struct sw_run old;          /* the set that it replaces, with its layout and model; ranks 0: none. Borrows starts */
    int64_t step, newest;       /* the newest step that all old stores have, and that any commit record of them has */
    char id[SW_STORE_ID_CHARS]; /* id of this rank's new store */
    bool announced;             /* the new set is listed, so it must be published or taken back */
};

/* Begins a new set: lists it where the next start or resume finds it, and creates this rank's store. The set of a new
 * run is put into self->run. Refuses places that have a store. Whatever it returns, it ends by sw_store_set_publish,
 * once the set has a commit, or by sw_store_set_withdraw. */
sw_status sw_store_set_begin(struct sw_store_set *self, struct sw_store **out);

/* Opens the store of a run that is resumed, at the newest step that every rank has. With `previous` it opens the step
 * before that, if all grains of that step are whole; the next step overwrites them, so they are whole only if the run
 * ended before the step after its last commit began to write. Later commits are then removed. If the step is not whole,
 * nothing changes.
 *
 * Stores of another number of ranks, of other tensor groups or of another format are replaced. The new stores get the
 * state of the old ones and commit; then run.json names the new ones; then the old ones are removed. If that is
 * interrupted, run.json still names whole stores, and the next resume removes the others. If it fails, the new stores
 * are removed. A store is removed only by its id, and only after the run's own stores are open with every grain whole.
 *
 * The caller closes *out, which may be NULL, after a failure too. */
sw_status sw_store_set_open(struct sw_store_set *self, struct sw_store **out);

/* Makes a new set, which has a commit, the run's, and removes the set before it. */
sw_status sw_store_set_publish(struct sw_store_set *self);
/* Closes the store, which may be NULL, and removes a new set that failed. A start removes no store that has a commit.
 */
void sw_store_set_withdraw(struct sw_store_set *self, struct sw_store *store);

/* Checks that all ranks see the same folder of the run, with the same run.json or none. */
sw_status sw_store_set_folder_agrees(struct sw_ranks *ranks, const char *folder);

/* Refuses places that ranks of one machine share by mistake: a block device of two ranks, or lists of folders that
 * overlap without being equal. */
sw_status sw_store_set_places_agree(const struct sw_store_set *self);

#endif
