/* The edit of a run's settings at a resume. */
#ifndef SW_RUN_CHANGE_H
#define SW_RUN_CHANGE_H

#include "core/ranks/comm.h"
#include "run/folder/run.h"

/* An edit of the settings of a run that is resumed; apply NULL: no edit. */
struct sw_run_change {
    sw_status (*apply)(void *context, struct sw_settings *settings);
    void *context;
};

/* Applies the edit for a job of these ranks. A model that it names becomes the run's moved_model, because its weights
 * have to be checked first. */
sw_status sw_run_change(struct sw_run *run, const struct sw_ranks *ranks, const struct sw_run_change *change);

#endif
