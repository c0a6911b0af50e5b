/* The answer about a plan, in ten lines: that it fits and with what, what is written, and how long its steps take.
 * `plan` prints it on standard output, `train` and `resume` to the log. */
#ifndef SW_CLI_ANSWER_TEXT_H
#define SW_CLI_ANSWER_TEXT_H

#include "job/profile.h"
#include "job/settings/settings.h"
#include "job/store.h"
#include "model/model.h"
#include "offload/plan/plan.h"
#include "offload/simulate/simulate.h"

#include <stdio.h>

/* Everything is borrowed. */
struct sw_answer {
    const struct sw_settings *settings;
    const struct sw_model_config *config;
    const struct sw_plan *plan;
    struct sw_writes writes;
    int64_t steps; /* of the whole run, or the remaining ones; 0: there are none, or the plan is incomplete, so neither
                      writes nor times are printed */
    const struct sw_simulation *step; /* a step without a save; NULL: not predicted */
    double fast_s, slow_s;            /* bounds of step->step_s; 0: unknown */
    double save_s;                    /* time that saves add to training; 0: unknown */
    const char *machine;              /* the machine that the prediction is for */
    const char *file;                 /* the file that the prediction is based on; NULL: this machine's profile */
    const struct sw_profile_source *profile;
};

/* Prints that the plan fits, its memory, its disk and its writes. */
void sw_answer_print_plan(const struct sw_answer *answer, FILE *to);
/* Warns if tensor groups span nodes; expert groups may. in_nodes_s: step_s of the same plan with each group on one
 * node; 0: unknown. */
void sw_answer_warn_groups(const struct sw_settings *settings, double step_s, double in_nodes_s);
/* Warns about many passes over the training data. A last step that reaches into one more pass does not count. */
void sw_answer_warn_epochs(double epochs, int64_t steps);
/* Warns if a run writes over a tenth of what its drives, or else common ones, are rated to write. steps: those of the
 * run, or the remaining ones. The plan may be an outline. */
void sw_answer_warn_writes(const struct sw_settings *settings, const struct sw_plan *plan,
                           const struct sw_writes *writes, int64_t steps);
/* Warns that --optimizer-state 8bit would more than double the speed. narrow_s: its predicted step; 0: it would not, or
 * was not predicted. */
void sw_answer_warn_state(double step_s, double narrow_s);
/* Prints the time of a step and of all steps, and the basis of the prediction; or how to get a prediction. */
void sw_answer_print_times(const struct sw_answer *answer, FILE *to);

#endif
