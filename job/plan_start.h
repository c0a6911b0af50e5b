/* Finds the plan of a start of training: measures what its choice needs, chooses, completes the plan and predicts its
 * steps. */
#ifndef SW_JOB_PLAN_START_H
#define SW_JOB_PLAN_START_H

#include "job/forecast.h"
#include "job/machine/ranks.h"
#include "job/plan_choice.h"

/* A start of training, for which a plan is chosen. */
struct sw_plan_start {
    struct sw_settings *settings;
    struct sw_model *model;
    const struct sw_devices *devices;
    const char *folder; /* the run's */
    struct sw_ranks *ranks;
};

/* Chooses at the start of training, by this machine's profile: replaces the outline and logs the choice, then completes
 * the plan and checks it. Measures the profile if none is kept and something is open; if that fails, the outline stays.
 * *out is what rank 0 predicts, if there is a profile; the caller releases it. */
sw_status sw_plan_choose_at_start(const struct sw_plan_start *start, struct sw_plan **plan, struct sw_forecast *out);

#endif
