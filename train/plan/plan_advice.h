/* Advice about a plan that does not fit. */
#ifndef SW_TRAIN_PLAN_PLAN_ADVICE_H
#define SW_TRAIN_PLAN_PLAN_ADVICE_H

#include "train/model/model.h"
#include "train/plan/plan_choice.h"

/* Makes the outline of the plan for these settings (sw_plan_fit). If it does not fit, the error SW_ERR_BUDGET also
 * names smaller settings that were planned and fit. shape and device are those that the model was made with. */
sw_status sw_plan_fit_or_advise(struct sw_settings *settings, const struct sw_model *model,
                                const struct sw_model_shape *shape, struct sw_device *device, struct sw_plan **out);

/* Lowers a micro-batch that was left open until a plan fits, before the model of this shape is made. Does nothing where
 * none fits, and for several ranks, whose memory may differ. */
void sw_plan_lower_micro_batch(struct sw_settings *settings, const struct sw_model_config *config,
                               const struct sw_model_shape *shape, struct sw_device *device);

#endif
