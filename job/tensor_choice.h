/* Chooses the size of tensor groups (--tensor auto): plans the training with each size that divides the ranks, the
 * heads and the key-value heads of the model, and takes the one with the least predicted step. Bits depend on the size,
 * so a run keeps it. */
#ifndef SW_JOB_TENSOR_CHOICE_H
#define SW_JOB_TENSOR_CHOICE_H

#include "job/described.h"
#include "job/machine/ranks.h"
#include "model/hf/config.h"

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

/* A training whose groups are to be chosen. Everything is borrowed. */
struct sw_tensor_question {
    struct sw_settings *settings; /* resolved, as if each rank had whole layers */
    const struct sw_model_config *config;
    const struct sw_devices *devices;
    const struct sw_described_machine *machine; /* NULL: this machine, by its profile */
    const char *folder;                         /* an existing folder on the drive of the store */
    bool documents;                             /* as in struct sw_model_shape */
    struct sw_ranks *ranks;
};

/* Tells whether the size of groups is to be chosen. */
bool sw_tensor_is_open(const struct sw_settings *settings);

/* Sets settings->tensor, resolves what depends on it, and groups the ranks. Rank 0 decides; all ranks call it together.
 * SW_ERR_BUDGET or SW_ERR_ARG: no size has a plan. */
sw_status sw_tensor_choose(const struct sw_tensor_question *question, struct sw_tensor_prices *out);

/* Writes the choice and its reason in one sentence. */
const char *sw_tensor_choice_text(const struct sw_tensor_prices *prices, char out[SW_TENSOR_CHOICE_CHARS]);

#endif
