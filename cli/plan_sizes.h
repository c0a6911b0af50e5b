/* Answers of `plan` about sizes: the largest model for a machine, and the smallest machine for a model. */
#ifndef SW_CLI_PLAN_SIZES_H
#define SW_CLI_PLAN_SIZES_H

#include "job/settings/settings.h"

/* Prints the largest models that train on the machine at --largest tokens/s or more: one of each family, or one of
 * --model's proportions. Text, or one object with --json. */
sw_status sw_plan_print_largest(const struct sw_settings *settings);

/* Prints the least budgets with which the model trains, and how fast. The plan was made and predicted. */
struct sw_planned;
sw_status sw_plan_print_smallest(const struct sw_planned *planned);

#endif
