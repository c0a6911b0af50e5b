/* Answers of `plan` about sizes: the largest model for a machine. */
#ifndef SW_TRAIN_CLI_PLAN_SIZES_H
#define SW_TRAIN_CLI_PLAN_SIZES_H

#include "train/settings/settings.h"

/* Prints the largest models that train on the machine at --largest tokens/s or more: one of each family, or one of
 * --model's proportions. Text, or one object with --json. */
sw_status sw_plan_print_largest(const struct sw_settings *settings);

#endif
