/* The answer about a plan, in ten lines: that it fits and with what, what is written, and how long its steps take.
 * `plan` prints it on standard output, `train` and `resume` where they log. */
#ifndef SW_CLI_ANSWER_TEXT_H
#define SW_CLI_ANSWER_TEXT_H

#include "job/profile.h"
#include "job/settings/settings.h"
#include "job/store.h"
#include "offload/plan/plan.h"
#include "offload/simulate/simulate.h"

#include <stdio.h>

/* Everything is borrowed. */
struct sw_answer {
    const struct sw_settings *settings;
    const struct sw_plan *plan;
    struct sw_writes writes;
    int64_t steps; /* of the whole run, or those left of it; 0: there are none, or the plan is not complete, so neither
                      writes nor times are printed */
    const struct sw_simulation *step; /* a step without a save; NULL: not predicted */
    double fast_s, slow_s;            /* bounds of step->step_s; 0: not known */
    double save_s;                    /* by how much a save makes the training longer; 0: not known */
    const char *machine;              /* what the step is predicted for */
    const char *file;                 /* what it is predicted by; NULL: this machine's profile */
    const struct sw_profile_source *profile;
};

/* Prints that the plan fits, its memory, its disk and its writes. */
void sw_answer_print_plan(const struct sw_answer *answer, FILE *to);
/* Warns where tensor groups span nodes. in_nodes_s: the step_s of the same plan with each group on one node; 0: not
 * known. */
void sw_answer_warn_groups(const struct sw_settings *settings, double step_s, double in_nodes_s);
/* Warns of many passes over the training data. A last step that reaches into one more does not count. */
void sw_answer_warn_epochs(double epochs, int64_t steps);
/* Warns where a run writes over a tenth of what its drives, or else common ones, are rated to write. steps: of the run,
 * or those left of it. The plan may be an outline. */
void sw_answer_warn_writes(const struct sw_settings *settings, const struct sw_plan *plan,
                           const struct sw_writes *writes, int64_t steps);
/* Warns that --optimizer-state 8bit would more than double the speed. narrow_s: its predicted step; 0: it would not, or
 * is not predicted. */
void sw_answer_warn_state(double step_s, double narrow_s);
/* Prints the time of a step and of all steps, and by what they are predicted; or how a prediction is to be had. */
void sw_answer_print_times(const struct sw_answer *answer, FILE *to);

#endif
