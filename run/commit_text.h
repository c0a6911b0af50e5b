/* The text that a commit keeps: where the run is, and the numbers of its last steps, which its log may lack. */
#ifndef SW_RUN_COMMIT_TEXT_H
#define SW_RUN_COMMIT_TEXT_H

#include "run/trainer.h"

/* Returns the mean loss of a step, in nats a token; NaN where no token of it has a loss. */
double sw_step_mean_loss(const struct sw_step_result *result);
/* Returns the part of a finished training step, made with this learning rate, that a commit keeps. */
struct sw_run_step sw_commit_text_step(const struct sw_step_result *result, double lr);

/* Hands the engine the text of step 0. */
sw_status sw_commit_text_begin(struct sw_trainer *trainer);
/* Hands the engine the text of a training step that was waited for. recent: the last steps, this one last. */
sw_status sw_commit_text_hand(struct sw_trainer *trainer, const struct sw_step_result *result,
                              const struct sw_run_step recent[SW_RUN_RECENT_STEPS]);

/* Flushes the log before the commit of a step that it ends with, so that no resume finds a commit whose steps the log
 * lacks. It is called before the text of a step that commits is handed, and before sw_engine_save. A log that cannot be
 * flushed is no reason to stop training. */
void sw_commit_text_flush_log(struct sw_trainer *trainer, const struct sw_run_step recent[SW_RUN_RECENT_STEPS]);

#endif
