/* The stages of a pipeline, as `plan` prints them. */
#ifndef SW_CLI_PLAN_STAGES_H
#define SW_CLI_PLAN_STAGES_H

#include "job/what_if.h"

#include <jansson.h>

struct sw_plan_stages {
    int64_t count; /* 0: there is no pipeline */
    struct sw_stage_price stage[SW_MOST_STAGES];
    int64_t slowest;
};

/* Plans all stages of the job, which must be priced. */
sw_status sw_plan_stages_price(const struct sw_job *job, struct sw_plan_stages *out);
/* Returns the step of the slowest stage, for which the others wait; without a pipeline the job's. */
const struct sw_simulation *sw_plan_stages_step(const struct sw_plan_stages *stages, const struct sw_job *job);
/* Prints a table of the stages, and how long they wait for each other; nothing without a pipeline. */
void sw_plan_stages_print(const struct sw_plan_stages *stages, const struct sw_job *job);
/* Returns the same, or null. */
json_t *sw_plan_stages_json(const struct sw_plan_stages *stages, const struct sw_job *job);

#endif
