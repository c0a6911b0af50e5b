/* The masters of a run's last commit, of all ranks' stores as if they were one, read ahead of their use with the
 * drive's queue full. */
#ifndef SW_TRAIN_FOLDER_STORE_READER_H
#define SW_TRAIN_FOLDER_STORE_READER_H

#include "core/status.h"
#include "train/folder/run_stores.h"

#include <stdint.h>

struct sw_store_reader;

/* Takes the stores over, also after a failure. tiles: units that follow each other and are read side by side, because
 * whole rows of a tensor that is cut by columns pass through all of them; 1: one after the other. */
sw_status sw_store_reader_open(struct sw_store_set *stores, int64_t tiles, struct sw_store_reader **out);
void sw_store_reader_close(struct sw_store_reader *self);

/* Elements that can be ready at once, at least. */
int64_t sw_store_reader_most_grains(const struct sw_store_reader *self);

/* As sw_load has them (engine.h), with the order of every tile's elements their own. What is filled must be ready. */
sw_status sw_store_reader_prepare(struct sw_store_reader *self, int64_t unit, int64_t first, int64_t count);
sw_status sw_store_reader_fill(const struct sw_store_reader *self, int64_t unit, int64_t first, int64_t count,
                               float *out);

int64_t sw_store_reader_bytes(const struct sw_store_reader *self); /* that were read */

#endif
