/* --freeze: the tensors of a model that training leaves alone.
 *
 * The text is a list of parts, with commas between them: "embedding"; "blocks:FIRST-LAST" or "blocks:NUMBER", counted
 * from 0; or a pattern of tensors' names in the checkpoint, as fnmatch has it: '*.mlp.*'. NULL freezes nothing. */
#ifndef SW_MODEL_FREEZE_H
#define SW_MODEL_FREEZE_H

#include "model/hf/config.h"
#include "offload/plan/unit.h"

/* Refuses a text that names nothing in any model. */
sw_status sw_freeze_check(const char *text);

/* Marks the tensors of a model's units that the text names, before the units are sealed. Blocks have block_units units
 * each. Refuses parts that name nothing in this model, and to freeze all of it. */
sw_status sw_freeze_tensors(const char *text, const struct sw_model_config *config, int64_t block_units,
                            struct sw_units *units);

#endif
