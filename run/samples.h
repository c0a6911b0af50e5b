/* Continues fixed prompts with a run's current weights, by passes of the training engine. */
#ifndef SW_RUN_SAMPLES_H
#define SW_RUN_SAMPLES_H

#include "run/steplog.h"
#include "run/trainer.h"

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

#endif
