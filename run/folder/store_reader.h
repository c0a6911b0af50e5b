/* Reads the master weights of a run's last commit from the stores of all ranks, as if they were one store. Reads ahead
 * to keep the drive's queue full. */
#ifndef SW_RUN_FOLDER_STORE_READER_H
#define SW_RUN_FOLDER_STORE_READER_H

#include "core/status.h"
#include "offload/engine/engine.h"
#include "run/folder/run.h"

#include <stdint.h>

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
