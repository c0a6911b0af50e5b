/* Varies a job to tell what would help it: other memory, drives, batch or formats of state, the least memory that is
 * enough, and the smaller settings with which a plan that does not fit would. */
#ifndef SW_JOB_WHAT_IF_H
#define SW_JOB_WHAT_IF_H

#include "job/job.h"

struct sw_what_if {
    const char *what;                   /* what is different; "" where the caller knows */
    int64_t device_memory, host_memory; /* budgets in bytes */
    bool fits;                          /* false: the members below are not set */
    double tokens_per_s;                /* predicted; NAN where the drives' rates are not known */
    struct sw_simulation step;          /* set with tokens_per_s */
    int64_t disk_bytes;
};

/* The most changes that `plan --explain` tries: a drive, host memory, device memory and the batch, each doubled, each
 * other format of the optimizer state, and on one rank the other format of the gradients. */
enum { SW_HELPS = 4 + SW_OPTIMIZER_FORMATS - 1 + SW_GRADS_FORMATS - 1 };

/* Tells whether sw_what_helps takes only seconds: plans of very many ops take longer. */
bool sw_what_helps_is_quick(const struct sw_job *job);
struct sw_helps {
    struct sw_what_if row[SW_HELPS];
    int count; /* rows that are set */
};
/* Plans with each change alone and predicts its step. The job was priced. */
sw_status sw_what_helps(const struct sw_job *job, struct sw_helps *out);

/* Sets *out_step_s to the predicted step with --optimizer-state 8bit, if moments in fp32 are on the drive and it would
 * be less than half of the plan's; else to 0. Plans of very many ops, and those whose compute lane is too busy for
 * that, are not tried. The job was priced. */
sw_status sw_what_if_narrow(const struct sw_job *job, double *out_step_s);

/* The rows of sw_least_memory: the budgets as they are; the least device memory beside the host's budget; the least
 * host memory beside the device's; and both small at once. */
enum { SW_LEASTS = 4 };
/* Searches the least budgets with which the model fits with the plan's micro-batch, for which the rates are known, each
 * to a 256th, and predicts the step with them. The job was priced, and fits the budgets as they are. */
sw_status sw_least_memory(const struct sw_job *job, struct sw_what_if out[SW_LEASTS]);

/* Makes the outline of the job's plan (sw_plan_fit). If it does not fit, the error SW_ERR_BUDGET also names smaller
 * settings that were planned and fit. */
sw_status sw_job_fit_or_advise(struct sw_job *job);

/* Lowers a micro-batch that was left open until a plan fits, before the job's model is made. Does nothing where none
 * fits, and for several ranks, whose memory may differ. */
void sw_job_lower_micro_batch(struct sw_job *job);

/* Refuses a plan whose store cannot be made in job->places, of which nothing is changed: places that do not exist,
 * cannot be written in, have no direct I/O, or, as SW_ERR_SPACE, have too little room; that error also names the format
 * of the optimizer state that fits. of_run: without --nvme the place is the run's folder, or where that will be made;
 * false: a run may be elsewhere, and only the room is looked at. */
sw_status sw_job_check_drives(const struct sw_job *job, bool of_run);

#endif
