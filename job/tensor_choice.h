/* Chooses the size of tensor groups (--tensor auto): plans the training with each size that divides the ranks, the
 * heads and the key-value heads of the model, and takes the one with the least predicted step. Bits depend on the size,
 * so a run keeps it. */
#ifndef SW_JOB_TENSOR_CHOICE_H
#define SW_JOB_TENSOR_CHOICE_H

#include "core/status.h"
#include "job/settings/settings.h"

enum { SW_TENSOR_MOST_SIZES = 64, SW_TENSOR_REFUSAL_CHARS = 512, SW_TENSOR_CHOICE_CHARS = 1024 };

/* The price of a size of groups. */
struct sw_tensor_price {
    int64_t ranks;                         /* ranks of a group */
    double step_s;                         /* predicted seconds of a step; infinite where there is no plan */
    int64_t peak_bytes[SW_TIERS];          /* of device and host; 0 where there is no plan */
    const char *bottleneck;                /* as in struct sw_simulation; NULL where there is no plan */
    char refused[SW_TENSOR_REFUSAL_CHARS]; /* why there is no plan; "" where there is one */
};

struct sw_tensor_prices {
    struct sw_tensor_price size[SW_TENSOR_MOST_SIZES]; /* from the smallest on; filled on rank 0 alone */
    int count;                                         /* entries of size; 0: the size was not open */
    int chosen;                                        /* index of the size that was taken */
};

/* Tells whether the size of groups is to be chosen. */
bool sw_tensor_is_open(const struct sw_settings *settings);

/* Chooses the size for a job that has no model yet and whose settings were resolved as if each rank had whole layers:
 * sets settings->tensor, resolves what depends on it, groups the ranks, and fills job->tensor_prices. Rank 0 decides;
 * all ranks call it together. Where a described machine is planned for by a process alone, the job may get its model,
 * rates and chosen outline, too. SW_ERR_BUDGET or SW_ERR_ARG: no size has a plan. */
struct sw_job;
sw_status sw_tensor_choose(struct sw_job *job);

/* Writes the choice and its reason in one sentence. */
const char *sw_tensor_choice_text(const struct sw_tensor_prices *prices, char out[SW_TENSOR_CHOICE_CHARS]);

#endif
