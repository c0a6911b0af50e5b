/* Runs one unit of a model at a time, on random weights and in memory of its own, to measure it. */
#ifndef SW_MODEL_UNIT_RUN_H
#define SW_MODEL_UNIT_RUN_H

#include "model/model.h"

/* The passes of a unit. The head's backward pass computes loss and gradient at once, as in training. RECOMPUTE makes
 * all intermediates of a block before its backward pass, DERIVE only the derived ones. BACKWARD_DERIVING is a backward
 * pass after DERIVE, which makes the activated values itself. LAST_PRODUCT and FIRST_PRODUCT compute what a block's
 * backward pass leaves out in a tensor group; other models do not have them. */
typedef enum {
    SW_UNIT_FORWARD,
    SW_UNIT_BACKWARD,
    SW_UNIT_RECOMPUTE,
    SW_UNIT_DERIVE,
    SW_UNIT_BACKWARD_DERIVING,
    SW_UNIT_LAST_PRODUCT,
    SW_UNIT_FIRST_PRODUCT,
    SW_UNIT_PASSES
} sw_unit_pass;

struct sw_unit_run;

/* Returns the bytes of device memory that a runner takes, in addition to the model's. */
int64_t sw_unit_run_bytes(struct sw_model *model);
/* Opens a runner for any unit of the model. Model and device must outlive it; the caller closes it. */
sw_status sw_unit_run_open(struct sw_model *model, struct sw_device *device, struct sw_unit_run **out);
void sw_unit_run_close(struct sw_unit_run *run);

/* Chooses the unit of the next passes, and makes its weights. */
sw_status sw_unit_run_choose(struct sw_unit_run *run, int64_t unit);
/* Tells whether the model belongs to a tensor group, whose blocks have the passes LAST_PRODUCT and FIRST_PRODUCT. */
bool sw_unit_run_has_products(const struct sw_unit_run *run);
/* Runs a pass and waits for its end. The other passes of a block need an earlier forward pass of that block. */
sw_status sw_unit_run_pass(struct sw_unit_run *run, sw_unit_pass pass);

#endif
