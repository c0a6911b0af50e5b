/* Chooses the size of tensor groups (--tensor auto). Plans the training with each size that divides the ranks, the
 * heads and the key-value heads of the model, and takes the one with the shortest predicted step. Bits depend on the
 * size, so a run keeps it. */
#ifndef SW_JOB_TENSOR_CHOICE_H
#define SW_JOB_TENSOR_CHOICE_H

#include "core/status.h"
#include "job/settings/settings.h"

enum { SW_TENSOR_MOST_SIZES = 64, SW_TENSOR_REFUSAL_CHARS = 512, SW_TENSOR_CHOICE_CHARS = 1024 };

/* The price of a size of groups. */
struct sw_tensor_price {
    int64_t ranks;                         /* ranks of a group */
    double step_s;                         /* predicted seconds of a step; infinite: no plan */
    int64_t peak_bytes[SW_TIERS];          /* of device and host; 0: no plan */
    const char *bottleneck;                /* as in struct sw_simulation; NULL: no plan */
    char refused[SW_TENSOR_REFUSAL_CHARS]; /* why there is no plan; "": there is one */
};

struct sw_tensor_prices {
    struct sw_tensor_price size[SW_TENSOR_MOST_SIZES]; /* in ascending order; filled only on rank 0 */
    int count;                                         /* entries of `size`; 0: the size was not open */
    int chosen;                                        /* index of the size that was chosen */
};

/* Tells whether the size of groups is to be chosen. */
bool sw_tensor_is_open(const struct sw_settings *settings);

/* Chooses the size for a job that has no model yet, and whose settings were resolved as if each rank had whole layers.
 * Sets settings->tensor, resolves what depends on it, groups the ranks, and fills job->tensor_prices. Rank 0 decides;
 * all ranks call it together. If a single process plans for a described machine, the job may also get its model, rates
 * and chosen outline. SW_ERR_BUDGET or SW_ERR_ARG: no size has a plan. */
struct sw_job;
sw_status sw_tensor_choose(struct sw_job *job);

/* Writes the choice and its reason in one sentence. */
const char *sw_tensor_choice_text(const struct sw_tensor_prices *prices, char out[SW_TENSOR_CHOICE_CHARS]);

#endif
