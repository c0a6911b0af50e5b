/* --freeze: the leading units of a model that are not trained. */
#ifndef SW_JOB_SETTINGS_FREEZE_H
#define SW_JOB_SETTINGS_FREEZE_H

#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

struct sw_freeze {
    bool embedding; /* wherever anything is frozen, the embedding is */
    int64_t blocks; /* the first blocks that are frozen too */
};

/* Parses "embedding" or "embedding,blocks:0-11"; NULL freezes nothing. Refuses everything but the embedding with or
 * without the first blocks, because gradients would have to pass through frozen units to trained ones below them. */
sw_status sw_freeze_parse(const char *text, struct sw_freeze *out);

/* Returns in *out the number of leading units that --freeze names, of a model with so many blocks, each of which has
 * block_units units. Refuses blocks that the model does not have. */
sw_status sw_freeze_units(const char *text, int64_t layers, int64_t block_units, int64_t *out);

#endif
