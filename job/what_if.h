/* Varies a job to tell what would help it: other memory, drives, batch or formats of state; the least memory that
 * suffices; and smaller settings that would make a plan fit. */
#ifndef SW_JOB_WHAT_IF_H
#define SW_JOB_WHAT_IF_H

#include "core/status.h"
#include "job/job.h"
#include "job/settings/settings.h"

struct sw_what_if {
    const char *what;                   /* what is different; "": the caller knows */
    int64_t device_memory, host_memory; /* budgets in bytes */
    bool fits;                          /* false: the members below are not set */
    double tokens_per_s;                /* predicted; NAN: the drives' rates are unknown */
    struct sw_simulation step;          /* set with tokens_per_s */
    int64_t disk_bytes;
};

/* The largest number of changes that `plan --explain` tries: a drive, host memory, device memory and the batch, each
 * doubled; each other format of the optimizer state; and on one rank the other format of the gradients. */
enum { SW_HELPS = 4 + SW_OPTIMIZER_FORMATS - 1 + SW_GRADS_FORMATS - 1 };

/* Tells whether sw_what_helps takes only seconds. Plans of very many ops take longer. */
bool sw_what_helps_is_quick(const struct sw_job *job);
struct sw_helps {
    struct sw_what_if row[SW_HELPS];
    int count; /* rows that are set */
};
/* Makes each change by itself, plans, and predicts the step. The job must be priced. */
sw_status sw_what_helps(const struct sw_job *job, struct sw_helps *out);

/* Sets *out_step_s to the predicted step with --optimizer-state 8bit, if fp32 moments are on the drive and it would be
 * less than half of the plan's; else to 0. Does not try plans of very many ops, or those whose compute lane is too busy
 * for that. The job must be priced. */
sw_status sw_what_if_narrow(const struct sw_job *job, double *out_step_s);

/* The rows of sw_least_memory: the current budgets; the least device memory with the current host budget; the least
 * host memory with the current device budget; and both small at once. */
enum { SW_LEASTS = 4 };
/* Searches for the smallest budgets with which the model fits, each to a 256th, and predicts the step. The micro-batch
 * stays the plan's, for which the rates are known. The job must be priced, and fit its current budgets. */
sw_status sw_least_memory(const struct sw_job *job, struct sw_what_if out[SW_LEASTS]);

/* A stage of a pipeline: the predicted step, and memory and disk of each of its ranks. */
struct sw_stage_price {
    int64_t layers;
    struct sw_simulation step; /* as if all stages took as long; its step_s is NAN if the drives' rates are unknown */
    int64_t peak_bytes[SW_TIERS];
    int64_t disk_bytes;
};
/* Plans a stage of the job's pipeline and predicts its step. The job must be priced. A stage that does not fit is an
 * error that names it. */
sw_status sw_what_if_stage(const struct sw_job *job, int64_t stage, struct sw_stage_price *out);

/* Makes the outline of the job's plan (sw_plan_fit). If it does not fit, the error SW_ERR_BUDGET also names smaller
 * settings that were planned and fit. */
sw_status sw_job_fit_or_advise(struct sw_job *job);

/* Lowers an open micro-batch until a plan fits, before the job's model is made. Does nothing if none fits, or with
 * several ranks, whose memory may differ. */
void sw_job_lower_micro_batch(struct sw_job *job);

/* Refuses a plan whose store cannot be made in job->places, and changes nothing there. Refused places do not exist,
 * cannot be written, have no direct I/O, or have too little space (SW_ERR_SPACE; that error also names the format of
 * the optimizer state that fits). of_run: without --nvme the place is the run's folder, or where it will be made;
 * false: a run may be elsewhere, so only the space is checked. */
sw_status sw_job_check_drives(const struct sw_job *job, bool of_run);

#endif
