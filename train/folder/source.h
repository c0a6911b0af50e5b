/* Where weights come from: a Hugging Face folder, a random start, or a run's store. */
#ifndef SW_TRAIN_FOLDER_SOURCE_H
#define SW_TRAIN_FOLDER_SOURCE_H

#include "core/status.h"
#include "offload/engine/engine.h"
#include "train/hf/config.h"
#include "train/settings/options.h"

#include <stdbool.h>
#include <stdint.h>

struct sw_source;

/* model: folder or preset. init: random weights from seed. tiles: of sw_model_units. Everything is checked, nothing is
 * loaded yet. */
sw_status sw_source_open_model(const char *model, bool init, uint64_t seed, int64_t tiles, struct sw_source **out);
/* A run's folder, whose store is where nvme says, if that names a place; or else as above without init. */
sw_status sw_source_open_any(const char *run_or_model, const struct sw_option_list *nvme, struct sw_source **out);
void sw_source_close(struct sw_source *source);

const struct sw_model_config *sw_source_config(const struct sw_source *source);
const struct sw_units *sw_source_units(const struct sw_source *source);
int64_t sw_source_tiles(const struct sw_source *source);
/* The Hugging Face folder behind it, for files to carry over; NULL where there is none. */
const char *sw_source_folder(const struct sw_source *source);

/* The folders of a run's store, for files that are gone at the end: not those that are block devices. */
const struct sw_option_list *sw_source_drives(const struct sw_source *source);

/* A sw_fill_function; context is the source. */
sw_status sw_source_fill(void *context, int64_t unit, int64_t first, int64_t count, float *out);
/* The weights, for the engine or an export. Valid as long as the source. */
struct sw_load sw_source_load(struct sw_source *source);
int64_t sw_source_bytes_to_read(const struct sw_source *source); /* of files other than a store */
int64_t sw_source_bytes_read(const struct sw_source *source);    /* so far, of files; 0 of random weights */

#endif
