/* A plan's forecast of its steps when training begins. run.json keeps it, so that a report can compare it with the
 * measured steps. */
#ifndef SW_JOB_FORECAST_H
#define SW_JOB_FORECAST_H

#include "job/profile.h"
#include "job/settings/options.h"
#include "offload/simulate/simulate.h"

#include <jansson.h>

struct sw_forecast {
    struct sw_simulation step; /* a step without a save; step_s 0: there were no rates to predict it */
    double least_s, most_s;    /* fewest and most seconds of a step, over all ways in which it may run; 0: unknown */
    double save_s;             /* seconds that a save adds to training; 0: unknown, or there are no saves */
    double narrow_step_s;      /* step.step_s with --optimizer-state 8bit, if that is less than half; else 0 */
    struct sw_profile_source source;
    char *timeline; /* timeline of the step as JSON (offload/engine/trace.h), owned; NULL: none */
};

/* Predicts the steps of a complete plan. The caller releases the forecast, even after a failure. */
sw_status sw_forecast_make(const struct sw_plan *plan, const struct sw_rates *rates,
                           const struct sw_option_every *save_every, struct sw_forecast *out);
void sw_forecast_release(struct sw_forecast *forecast);

/* Returns the object "prediction" of run.json; the caller owns it. first_step: the first step of this start.
 * step_tokens: tokens of a step, over all ranks. */
json_t *sw_forecast_to_json(const struct sw_forecast *forecast, const struct sw_plan *plan, int64_t first_step,
                            int64_t step_tokens);

#endif
