/* Advice about a plan that does not fit. */
#ifndef SW_JOB_PLAN_ADVICE_H
#define SW_JOB_PLAN_ADVICE_H

#include "job/plan_choice.h"
#include "job/settings/places.h"
#include "model/model.h"

/* Makes the outline of the plan for these settings (sw_plan_fit). If it does not fit, the error SW_ERR_BUDGET also
 * names smaller settings that were planned and fit. shape and device are those that the model was made with. */
sw_status sw_plan_fit_or_advise(struct sw_settings *settings, const struct sw_model *model,
                                const struct sw_model_shape *shape, struct sw_device *device, struct sw_plan **out);

/* Where the store of a plan shall be. Everything is borrowed. */
struct sw_plan_drives {
    const struct sw_settings *settings;
    const struct sw_places *places; /* --nvme, or a folder that exists on the drive of the run's */
    bool of_run;                    /* without --nvme: the place is the run's folder, or where that will be made; false:
                                       a run may be elsewhere, and only the room is looked at */
};

/* Refuses a plan whose store cannot be made on this machine's drives, of which nothing is changed: places that do not
 * exist, cannot be written in, have no direct I/O, or, as SW_ERR_SPACE, have too little room; that error also names the
 * format of the optimizer state that fits. shape and device are those that the model was made with. */
sw_status sw_plan_check_drives(const struct sw_plan *plan, const struct sw_plan_drives *where,
                               const struct sw_model *model, const struct sw_model_shape *shape,
                               struct sw_device *device);

/* Lowers a micro-batch that was left open until a plan fits, before the model of this shape is made. Does nothing where
 * none fits, and for several ranks, whose memory may differ. */
void sw_plan_lower_micro_batch(struct sw_settings *settings, const struct sw_model_config *config,
                               const struct sw_model_shape *shape, struct sw_device *device);

#endif
