/* Reads tensors as a checkpoint has them, whichever units hold their parts. */
#ifndef SW_MODEL_HF_WHOLE_TENSOR_H
#define SW_MODEL_HF_WHOLE_TENSOR_H

#include "core/status.h"
#include "offload/engine/engine.h"
#include "offload/plan/unit.h"

#include <stdbool.h>
#include <stdint.h>

/* A whole tensor of the checkpoint. Its parts are in consecutive units. */
struct sw_whole_tensor {
    int64_t first_unit, parts;
    const struct sw_tensor **part; /* its part in each of these units; owned, with room for all units */
};

/* Makes room for the parts of any tensor of these units. The caller releases it. */
sw_status sw_whole_tensor_make(const struct sw_units *units, struct sw_whole_tensor *out);
void sw_whole_tensor_release(struct sw_whole_tensor *whole);

/* Tells whether this is the first part of a whole tensor, or all of it. */
bool sw_tensor_is_first_part(const struct sw_tensor *tensor);
/* Lists the parts of the tensor whose first part is `first`, a tensor of that unit. */
void sw_whole_tensor_gather(const struct sw_units *units, int64_t unit, const struct sw_tensor *first,
                            struct sw_whole_tensor *out);
/* Lists the parts of the tensor of that name. Returns whether the units have it. */
bool sw_whole_tensor_find(const struct sw_units *units, const char *name, struct sw_whole_tensor *out);

/* Reads elements [first, first+count) of the whole tensor. */
sw_status sw_whole_tensor_read(const struct sw_whole_tensor *whole, const struct sw_load *from, int64_t first,
                               int64_t count, float *out);

#endif
