/* Continues fixed prompts with a run's current weights, by passes of the training engine. */
#ifndef SW_RUN_SAMPLES_H
#define SW_RUN_SAMPLES_H

#include "core/status.h"
#include "job/machine/ranks.h"
#include "model/model.h"
#include "offload/engine/engine.h"
#include "run/data/data.h"
#include "run/steplog.h"
#include "run/trainer.h"

#include <stdint.h>

/* The prompt if --sample-prompt gives none. */
#define SW_SAMPLE_PROMPT "Once upon a time"

struct sw_samples;

/* Prepares the prompts of the settings, and refuses a run that has no tokenizer for them. *out is NULL if the settings
 * ask for no samples. All ranks call it together; only rank 0 reads the tokenizer. A prompt is the beginning of a text.
 * It is a user's turn if the data are chats and spillway knows the chat template of the model's folder. */
sw_status sw_samples_open(const struct sw_trainer *trainer, struct sw_samples **out);
void sw_samples_close(struct sw_samples *samples);

/* Continues each prompt by the most likely tokens, up to --sample-tokens, the end of the text or --seq, and logs the
 * texts after `step`. A stop request ends it without a line. All ranks call it together, with idle engines. */
sw_status sw_samples_write(struct sw_samples *samples, struct sw_trainer *trainer, struct sw_steplog *log,
                           int64_t step);

/* Computes the loss on the validation part of the data, by forward passes only. */
struct sw_evaluation {
    struct sw_engine *engine; /* idle */
    const struct sw_model *model;
    struct sw_data *data;
    int64_t batch, seq, micro_batches; /* shape of the engine's plan; batch: sequences of a micro-batch */
    int64_t max_tokens;                /* stop after this many predicted tokens; INT64_MAX: predict all */
    struct sw_ranks *ranks;            /* each data rank evaluates its share of the data; all get the result */
    int64_t tensor_ranks;              /* neighbouring ranks that form one data rank; 0 or 1: each rank is one */
    int64_t stages;                    /* pipeline stages of as many ranks each; 0 or 1: there is none */
    const double *reference;           /* pairs: log-probabilities of the windows by the reference; NULL: no pairs */
};

struct sw_evaluated {
    double loss;               /* mean in nats per predicted token, or of the losses of pairs; NaN: there is none */
    int64_t tokens;            /* predicted tokens */
    struct sw_rewards rewards; /* of pairs */
};

sw_status sw_evaluate(const struct sw_evaluation *evaluation, struct sw_evaluated *out);

/* Makes a sequence of `seq` tokens none of which has a loss. */
void sw_evaluation_clear(struct sw_tokens window, int64_t seq);

/* Returns the rewards of a step's pairs. */
struct sw_rewards sw_rewards_of(const double pair_sums[SW_PAIR_SUMS], int64_t pairs);

#endif
