/* One unit of a model at a time, alone, in memory of its own and on random weights: for measuring what it takes. */
#ifndef SW_TRAIN_MODEL_UNIT_RUN_H
#define SW_TRAIN_MODEL_UNIT_RUN_H

#include "train/model/model.h"

/* The head's backward pass is its loss and its gradient at once, as in training. What goes before the backward pass of
 * a block where its intermediates are not kept: making all of them again, or the derived ones; and the backward pass
 * after that, which makes the activated values. */
typedef enum {
    SW_UNIT_FORWARD,
    SW_UNIT_BACKWARD,
    SW_UNIT_RECOMPUTE,
    SW_UNIT_DERIVE,
    SW_UNIT_BACKWARD_DERIVING,
    SW_UNIT_PASSES
} sw_unit_pass;

struct sw_unit_run;

/* The memory that a run takes, besides the model's. */
int64_t sw_unit_run_bytes(struct sw_model *model);
/* Memory for any unit of the model. Model and device must outlive it; the caller closes it. */
sw_status sw_unit_run_open(struct sw_model *model, struct sw_device *device, struct sw_unit_run **out);
void sw_unit_run_close(struct sw_unit_run *run);

/* Chooses the unit that passes are of, and makes its weights. */
sw_status sw_unit_run_choose(struct sw_unit_run *run, int64_t unit);
/* Runs a pass and waits for its end. All others need the forward pass of the same unit before them. */
sw_status sw_unit_run_pass(struct sw_unit_run *run, sw_unit_pass pass);

#endif
