/* Reads the master weights of a run with --tensor as those of whole layers, or of tiles of them. Each store, or rank,
 * has a shard of one tensor rank's parts. */
#ifndef SW_RUN_FOLDER_GROUP_READER_H
#define SW_RUN_FOLDER_GROUP_READER_H

#include "core/status.h"
#include "offload/engine/engine.h"
#include "run/folder/run.h"

#include <stdint.h>

struct sw_group_reader;

/* Opens a reader of a run that has tensor groups. It owns the stores, even after a failure. `units` must come from
 * sw_model_units for the run's model, with any number of tiles, and must outlive the reader. SW_ERR_CORRUPT: the stores
 * are of another model. */
sw_status sw_group_reader_open(struct sw_store_set *stores, const struct sw_run *run, const struct sw_units *units,
                               struct sw_group_reader **out);

/* The parts of one tensor rank: its units, and what reads their masters. */
struct sw_group_part {
    const struct sw_units *units;
    struct sw_load load; /* prepare may be NULL; most_grains 0: it reads any number at once */
};
/* Opens a reader of parts that come from elsewhere: one entry per tensor rank of a model with `layers` layers. Copies
 * the array; the units and the loads' contexts must outlive the reader. */
sw_status sw_group_reader_join(const struct sw_group_part *parts, int ranks, int64_t layers,
                               const struct sw_units *units, struct sw_group_reader **out);
void sw_group_reader_close(struct sw_group_reader *self);

/* Returns the weights for an engine or an export, valid as long as the reader. Only the elements prepared last can be
 * filled. */
struct sw_load sw_group_reader_load(struct sw_group_reader *self);

int64_t sw_group_reader_bytes(const struct sw_group_reader *self); /* bytes read so far */

/* Reads the master weights of a run's last commit from the stores of all ranks, as if they were one store. Reads ahead
 * to keep the drive's queue full. */
struct sw_store_reader;

/* Opens a reader. It owns the stores, even after a failure. `units` are those that the stores were made for, and must
 * outlive the reader. tiles: number of consecutive units read in parallel, because whole rows of a tensor cut by
 * columns pass through all of them; 1: one unit after the other. */
sw_status sw_store_reader_open(struct sw_store_set *stores, const struct sw_units *units, int64_t tiles,
                               struct sw_store_reader **out);
void sw_store_reader_close(struct sw_store_reader *self);

/* Returns the weights for an engine or an export, valid as long as the reader. Only prepared elements can be filled.
 * With tiles, each tile's elements must be asked for in order. */
struct sw_load sw_store_reader_load(struct sw_store_reader *self);

int64_t sw_store_reader_bytes(const struct sw_store_reader *self); /* bytes read so far */

#endif
