/* Declarations that the reader and the writer of adapters share. */
#ifndef SW_MODEL_PEFT_PRIVATE_H
#define SW_MODEL_PEFT_PRIVATE_H

#include "model/peft.h"
#include "offload/plan/unit.h"

#include <jansson.h>
#include <stdbool.h>

#define SW_PEFT_PREFIX "base_model.model."

/* Tells whether a tensor is a matrix that may have an adapter: a block's, and no adapter itself. */
bool sw_peft_is_matrix(const struct sw_units *units, int64_t unit, const struct sw_tensor *tensor);

/* Lists the adapted modules as shortly as PEFT can tell them from the others: by their last part, by their name within
 * the block, or by their whole name. `has` says whether a module is adapted. The caller releases
 * the list; NULL: there is no memory. */
json_t *sw_peft_targets(const struct sw_units *units, const struct sw_model_config *config,
                        bool (*has)(const void *context, const char *module), const void *context);

#endif
