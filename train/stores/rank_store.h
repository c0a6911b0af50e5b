/* The store of this rank, as one of all ranks' stores: made, opened at the step that all have, and where the run had
 * another number of ranks, filled from their stores. All calls are of all ranks at once. */
#ifndef SW_TRAIN_STORES_RANK_STORE_H
#define SW_TRAIN_STORES_RANK_STORE_H

#include "core/status.h"
#include "io/store/store.h"
#include "train/devices/ranks.h"
#include "train/folder/run.h"
#include "train/settings/places.h"

struct sw_rank_stores {
    struct sw_ranks *ranks;
    const char *folder; /* of the run */
    struct sw_run *run; /* its stores are those of its run.json, and then those of these ranks */
    bool previous;      /* the last commit, which is damaged, is to be given up for the one before */
    /* Makes this rank's new store of this identity, which holds its part of every unit. */
    sw_status (*make)(void *context, const struct sw_places *places, const char *id, struct sw_store **out);
    void *context;
};

/* A new run's, with this identity. On failure nothing is left of it. */
sw_status sw_rank_store_create(const struct sw_rank_stores *self, const char *id, struct sw_store **out);
/* Takes back what creation has made, unless something has been committed to it. Closes the store, which may be NULL. */
void sw_rank_store_undo(const struct sw_rank_stores *self, struct sw_store *store);

/* A run's that goes on, at the newest step that every rank has, or with `previous` at the one before, once all grains
 * of that are found whole: a step writes over them, so that they are only where the run ended before the step after its
 * last commit had begun to write. Later commits are removed; nothing is changed where the step is not whole. Stores of
 * another number of ranks are taken over: new ones get their state and its commit, then run.json names them, then the
 * old ones are removed. Whenever that is cut off, run.json names stores that are whole, and the next resume removes the
 * others. Where that fails, the new ones are removed again. Nothing is removed but by its identity, and not before the
 * run's own stores are open, with every grain whole. */
sw_status sw_rank_store_open(const struct sw_rank_stores *self, struct sw_store **out);

/* Refuses a folder of the run that is not one and the same, with one run.json or none, for all ranks. */
sw_status sw_rank_agree_on_folder(struct sw_ranks *ranks, const char *folder);

/* Refuses places that ranks of one machine share by mistake: a block device of two ranks, or lists of folders that are
 * neither equal nor apart. */
sw_status sw_rank_places_agree(const struct sw_rank_stores *self);

#endif
