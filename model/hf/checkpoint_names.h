/* The names of a checkpoint's tensors, without what wrappers such as torch.compile put before them. */
#ifndef SW_MODEL_HF_CHECKPOINT_NAMES_H
#define SW_MODEL_HF_CHECKPOINT_NAMES_H

#include "core/status.h"
#include "io/safetensors/safetensors.h"

struct sw_checkpoint_names;

/* Reads the names. `root` is what the family puts before the names of its body ("model."), which a file may lack or
 * have twice. A wrapper's prefix is left out, and said in a line of the log, where all tensors have it. Refuses tensors
 * that are no plain weights (an adapter's, quantized ones, those of a vision tower), prefixes that only some tensors
 * have, and two names that become one. Borrows `tensors`. */
sw_status sw_checkpoint_names_create(const struct sw_safetensors *tensors, const char *folder, const char *root,
                                     struct sw_checkpoint_names **out);
void sw_checkpoint_names_destroy(struct sw_checkpoint_names *names);

/* Returns the tensor that a family calls `name`, or NULL. */
const struct sw_safetensor *sw_checkpoint_names_find(const struct sw_checkpoint_names *names, const char *name);
/* Returns the name of the file's tensor `index` as the family has it, without the root. */
const char *sw_checkpoint_names_at(const struct sw_checkpoint_names *names, int64_t index);
/* Returns a family's name without the root. */
const char *sw_checkpoint_names_bare(const struct sw_checkpoint_names *names, const char *name);

#endif
