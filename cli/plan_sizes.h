/* `plan` asked for sizes: the largest model for a machine, or the smallest machine for a model. */
#ifndef SW_CLI_PLAN_SIZES_H
#define SW_CLI_PLAN_SIZES_H

#include "job/job.h"

/* Prints the largest models that train on the machine at --largest tokens/s or more: one of each family, or one of
 * --model's proportions. Text, or one object with --json. */
sw_status sw_plan_print_largest(const struct sw_settings *settings);

/* Prints the least budgets with which the job's model trains, and its speed. The plan must be made and predicted. */
sw_status sw_plan_print_smallest(const struct sw_job *job);

#endif
