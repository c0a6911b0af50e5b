/* Frozen weights that training reads from the files of a Hugging Face folder whenever it needs them, without a copy.
 * This is possible for a unit whose frozen tensors the folder has as they compute: in the compute type, and each in one
 * run of bytes. */
#ifndef SW_MODEL_HF_IN_PLACE_H
#define SW_MODEL_HF_IN_PLACE_H

#include "core/dtype.h"
#include "core/status.h"
#include "io/store/store.h"
#include "offload/plan/unit.h"

#include <stdbool.h>

/* Tells whether the folder's weights are on the same file system as each of these places. */
bool sw_in_place_is_on(const char *folder, const char *const *places, int count);

/* Sets in_place of such units. type: the compute type. Marks none if the folder cannot be opened for these units. */
void sw_in_place_mark(const char *folder, sw_dtype type, struct sw_units *units);

struct sw_in_place;

/* Opens the files of the marked units. `units` must outlive *out. */
sw_status sw_in_place_open(const char *folder, sw_dtype type, const struct sw_units *units, struct sw_in_place **out);
void sw_in_place_close(struct sw_in_place *self);
/* Returns the files and where they have the weights, valid until the close. self NULL: NULL. */
const struct sw_store_files *sw_in_place_files(const struct sw_in_place *self);

#endif
