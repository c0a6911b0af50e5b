/* The state of a run, read by the names of tensors from whatever layout it lies in: one store or those of several
 * ranks, tensor groups, tiles, any format of the optimizer state, and frozen weights in a file of the run or in a
 * model's folder. Weights that come from elsewhere are read in the same way. */
#ifndef SW_RUN_FOLDER_STATE_H
#define SW_RUN_FOLDER_STATE_H

#include "core/status.h"
#include "io/store/store.h"
#include "offload/engine/engine.h"
#include "run/folder/run.h"

#include <stdbool.h>
#include <stdint.h>

struct sw_state_reader;
struct sw_frozen;

/* Where files of a run are that were moved since it trained. */
struct sw_run_moved {
    const struct sw_option_list *nvme; /* places of its store; empty: where run.json says */
    const char *model;                 /* folder of its base (frozen.h); NULL: where run.json says */
};

/* Opens a run at the newest step that all its stores have. Reads run.json into `run`, which must be zero and which the
 * caller releases, even after a failure. SW_ERR_OVERTAKEN: as sw_run_open_to_read. */
sw_status sw_state_open_run(const char *folder, const struct sw_run_moved *moved, struct sw_run *run,
                            struct sw_state_reader **out);

struct sw_state_spec {
    const char *folder;
    const struct sw_run *run; /* has the model, the stores and their layout; nothing in it is frozen */
    int64_t step;             /* the commit to read; SW_STORE_NEWEST: the newest that every wanted store has */
    const bool *wanted;       /* one entry per store: whether to open it; NULL: all */
};
/* Opens stores of a run. SW_ERR_CORRUPT: one lacks the step. */
sw_status sw_state_open_stores(const struct sw_state_spec *spec, struct sw_state_reader **out);

/* Opens a reader of open stores of ranks that have the whole of each layer. It owns the stores, even after a failure.
 * The units must outlive it. tiles: number of consecutive units that halves of a block are cut into. */
sw_status sw_state_take_stores(struct sw_open_stores *stores, const struct sw_units *units, int64_t tiles,
                               struct sw_state_reader **out);

/* The weights of one tensor rank, which come from elsewhere. */
struct sw_state_part {
    const struct sw_units *units;
    int64_t tiles;       /* number of consecutive units that halves of a block are cut into */
    struct sw_load load; /* prepare may be NULL */
};
/* Opens a reader of parts: one entry per tensor rank. Copies the array; the units and the loads' contexts must outlive
 * the reader. */
sw_status sw_state_join(const struct sw_state_part *parts, int count, struct sw_state_reader **out);

void sw_state_close(struct sw_state_reader *self);

/* The parts of the state of an element. */
enum { SW_STATE_MASTER, SW_STATE_M, SW_STATE_V, SW_STATE_PARTS };

/* Reads elements [first, first + count) of a whole tensor in fp32: each part that is not NULL in `out`, to out[part][0]
 * and on. Only trained elements of stores have moments. Calls that walk through a tensor in order are fast.
 * SW_ERR_CORRUPT: the state lacks an element, or a store is of another model. */
sw_status sw_state_read(struct sw_state_reader *self, const char *tensor, int64_t first, int64_t count,
                        float *const out[SW_STATE_PARTS]);

/* Returns the masters for an engine or an export that has these units, which must outlive the reader: any tiles, or the
 * units of any tensor rank. Valid until the next call and as long as the reader. Only the elements prepared last can be
 * filled. */
sw_status sw_state_load(struct sw_state_reader *self, const struct sw_units *units, struct sw_load *out);

/* Copies the records of consecutive grains of a unit of tensor rank `part`, as they are stored, to places
 * sw_optimizer_grain_bytes apart. Needs no model.
 * SW_ERR_CORRUPT: the stores lack a grain. */
sw_status sw_state_records(struct sw_state_reader *self, int part, int64_t unit, int64_t first, int64_t count,
                           char *out);

/* Returns the commit that is read from stores. */
const struct sw_store_commit *sw_state_commit(const struct sw_state_reader *self);
/* Return a run's stores, the units of its model with whole layers, and its frozen weights; NULL: it has none. All
 * belong to the reader. */
const struct sw_open_stores *sw_state_stores(const struct sw_state_reader *self);
const struct sw_units *sw_state_units(const struct sw_state_reader *self);
struct sw_frozen *sw_state_frozen(const struct sw_state_reader *self);

int64_t sw_state_bytes_read(const struct sw_state_reader *self); /* bytes read from stores so far */

#endif
