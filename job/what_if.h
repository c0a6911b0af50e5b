/* Plans the same training again with another machine or batch, by the planner's own code: what would help, and how
 * little memory is enough. */
#ifndef SW_JOB_WHAT_IF_H
#define SW_JOB_WHAT_IF_H

#include "job/planned.h"

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
bool sw_what_helps_is_quick(const struct sw_planned *planned);
struct sw_helps {
    struct sw_what_if row[SW_HELPS];
    int count; /* rows that are set */
};
/* Plans with each change alone and predicts its step. The plan was made and predicted. */
sw_status sw_what_helps(const struct sw_planned *planned, struct sw_helps *out);

/* Sets *out_step_s to the predicted step with --optimizer-state 8bit, if moments in fp32 are on the drive and it would
 * be less than half of the plan's; else to 0. Plans of very many ops, and those whose compute lane is too busy for
 * that, are not tried. The plan was made and predicted. */
sw_status sw_what_if_narrow(const struct sw_planned *planned, double *out_step_s);

/* The rows of sw_least_memory: the budgets as they are; the least device memory beside the host's budget; the least
 * host memory beside the device's; and both small at once. */
enum { SW_LEASTS = 4 };
/* Searches the least budgets with which the model fits with the plan's micro-batch, for which the rates are known, each
 * to a 256th, and predicts the step with them. The plan was made and predicted, and fits the budgets as they are. */
sw_status sw_least_memory(const struct sw_planned *planned, struct sw_what_if out[SW_LEASTS]);

#endif
