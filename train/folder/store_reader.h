/* Reads the master weights of a run's last commit from the stores of all ranks, as if they were one store. Reads ahead,
 * so that the queue of the drive is full. */
#ifndef SW_TRAIN_FOLDER_STORE_READER_H
#define SW_TRAIN_FOLDER_STORE_READER_H

#include "core/status.h"
#include "train/folder/run_stores.h"

#include <stdint.h>

struct sw_store_reader;

/* Opens a reader. It owns the stores, also after a failure. tiles: consecutive units that are read side by side,
 * because whole rows of a tensor that is cut by columns pass through all of them; 1: one unit after the other. */
sw_status sw_store_reader_open(struct sw_store_set *stores, int64_t tiles, struct sw_store_reader **out);
void sw_store_reader_close(struct sw_store_reader *self);

/* Returns how many grains can be prepared at once, at least. */
int64_t sw_store_reader_most_grains(const struct sw_store_reader *self);

/* Prepare and fill elements as struct sw_load asks (engine.h). With tiles, each keeps its own order of elements. Only
 * prepared elements can be filled. */
sw_status sw_store_reader_prepare(struct sw_store_reader *self, int64_t unit, int64_t first, int64_t count);
sw_status sw_store_reader_fill(const struct sw_store_reader *self, int64_t unit, int64_t first, int64_t count,
                               float *out);

int64_t sw_store_reader_bytes(const struct sw_store_reader *self); /* bytes read so far */

#endif
