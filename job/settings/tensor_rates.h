/* Weight decay and learning rate by the names of tensors: --no-decay and --lr-scale. */
#ifndef SW_JOB_SETTINGS_TENSOR_RATES_H
#define SW_JOB_SETTINGS_TENSOR_RATES_H

#include "job/settings/settings.h"
#include "offload/plan/unit.h"

/* Checks the form of each value of --lr-scale: PATTERN=FACTOR. */
sw_status sw_tensor_rates_check(const struct sw_settings *settings);

/* Gives the tensors of the units what the flags say. A pattern is a glob over whole names, as of fnmatch. Of several
 * factors for a tensor the last counts. Refuses a pattern that no name matches, and names what is near. The units are
 * in no plan yet. */
sw_status sw_tensor_rates_apply(const struct sw_settings *settings, struct sw_units *units);

#endif
