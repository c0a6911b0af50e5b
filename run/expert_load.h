/* How many tokens the routers of a mixture of experts send to each expert: a summary of each step, and now and then the
 * counts of all. */
#ifndef SW_RUN_EXPERT_LOAD_H
#define SW_RUN_EXPERT_LOAD_H

#include "run/steplog.h"

/* The counts since they were last written. */
struct sw_load_counts {
    int64_t layers, experts, steps;
    double *tokens; /* [layers, experts], owned; NULL: no step was counted yet */
};

/* Adds the counts of the step that was waited for last, and fills in what its line says of them. Without experts it
 * only says that nothing was counted. */
sw_status sw_load_add(struct sw_load_counts *counts, const struct sw_trainer *trainer, struct sw_step_record *record);
/* Writes the counts to the log and begins anew: after every SW_LOAD_STEPS steps, and with `all` whenever there are
 * some. */
enum { SW_LOAD_STEPS = 100 };
sw_status sw_load_write(struct sw_load_counts *counts, struct sw_steplog *log, int64_t step, bool all);
void sw_load_release(struct sw_load_counts *counts);

#endif
