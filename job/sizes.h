/* Chooses a size that settings leave open, by the predicted step: the size of tensor groups (--tensor auto), the stages
 * of a pipeline (--pipeline auto), and the experts of a unit (--expert-group auto). A run keeps its sizes, because bits
 * depend on the first, and the norm's last digit on the second. */
#ifndef SW_JOB_SIZES_H
#define SW_JOB_SIZES_H

#include "job/job.h"

/* Chooses the size of tensor groups for a job that has no model yet, and whose settings were resolved as if each rank
 * had whole layers. Compares each size that divides the ranks, the heads and the key-value heads of the model. Sets
 * settings->tensor, resolves what depends on it, groups the ranks, and fills job->tensor_prices. Rank 0 decides; all
 * ranks call it together. If a single process plans for a described machine, the job may also get its model, rates and
 * chosen outline. SW_ERR_BUDGET or SW_ERR_ARG: no size has a plan. */
sw_status sw_tensor_choose(struct sw_job *job);

/* Chooses the stages of a pipeline, under the conditions of sw_tensor_choose. Compares each number that divides the
 * ranks and is at most two more than the model's layers, at the given size of tensor groups: the step of the slowest
 * stage, with its waits for the others. Sets settings->pipeline, resolves what depends on it, groups the ranks, and
 * fills job->stage_prices. */
sw_status sw_pipeline_choose(struct sw_job *job);

/* Chooses how many neighbouring experts are a unit, under the conditions of sw_tensor_choose. Compares whole blocks and
 * the divisors of the model's experts, from the largest down, until times rise twice in a row. Whole blocks are the
 * only choice for a model without experts, and in groups of ranks, which cut blocks themselves. Sets
 * settings->expert_group, groups the experts of job->config, and fills job->expert_prices. */
sw_status sw_expert_group_choose(struct sw_job *job);

/* Writes a choice and its reason in one sentence. flag: the one that was "auto". */
enum { SW_SIZE_CHOICE_CHARS = 1024 };
const char *sw_size_choice_text(const char *flag, const struct sw_size_prices *prices, char out[SW_SIZE_CHOICE_CHARS]);

#endif
