/* A rank's parts of whole layers, whose base keeps the format of its checkpoint: values come from whole layers, records
 * from the checkpoint. */
#ifndef SW_RUN_FOLDER_STORED_PARTS_H
#define SW_RUN_FOLDER_STORED_PARTS_H

#include "core/status.h"
#include "offload/engine/engine.h"

struct sw_stored_parts;

/* Adds the records of the base of `units`, a rank's, to a load of these units' values, from the folder `base`. `load`
 * then reads through *out, which the caller closes after the last use. *out is NULL, and `load` stays as it is, if the
 * base has no such format. */
sw_status sw_stored_parts_open(const char *base, const struct sw_units *units, struct sw_load *load,
                               struct sw_stored_parts **out);
void sw_stored_parts_close(struct sw_stored_parts *self);

#endif
