/* The text of `plan`: the answer in ten lines, and with --explain the plan behind it. */
#ifndef SW_CLI_PLAN_TEXT_H
#define SW_CLI_PLAN_TEXT_H

#include "job/planned.h"

/* Prints that the plan fits and with what, how long a step and the run take, what is written, and the command that
 * trains so: the arguments of `plan` that `train` has, too. */
void sw_plan_answer_print(const struct sw_planned *planned, int argc, char *const *argv);

/* Prints where everything lives, what each lane moves, and what the choices were compared with. */
void sw_plan_explain(const struct sw_planned *planned);

/* Prints what would help. NULL: nothing was tried, because it would take long. */
struct sw_helps;
void sw_plan_print_helps(const struct sw_planned *planned, const struct sw_helps *helps);

/* Returns the bytes of the file that keeps the frozen weights, but for its header and sums. */
int64_t sw_plan_frozen_bytes(const struct sw_plan *plan);

#endif
