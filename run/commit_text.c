#include "run/commit_text.h"

#include "core/error_scope.h"
#include "core/files/files.h"
#include "core/log.h"
#include "run/folder/run_starts.h"
#include "run/steplog.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

double sw_step_mean_loss(const struct sw_step_result *result) {
    return result->loss_tokens > 0 ? result->loss_sum / (double)result->loss_tokens : (double)NAN;
}

struct sw_run_step sw_commit_text_step(const struct sw_step_result *result, double lr) {
    return (struct sw_run_step){.step = result->step,
                                .loss = sw_step_mean_loss(result),
                                .loss_tokens = result->loss_tokens,
                                .grad_norm = result->grad_norm,
                                .lr = lr,
                                .skipped = result->skipped};
}

/* Tells whether the text of this commit has everything in the log that may not be on the drive yet. It has steps only:
 * lines of evaluations, by which --early-stop goes, of samples and of exports must be on the drive before the commit.
 */
static bool restores_log(const struct sw_trainer *trainer, const struct sw_run_step recent[SW_RUN_RECENT_STEPS]) {
    const int64_t step = recent[SW_RUN_RECENT_STEPS - 1].step;
    const int64_t lacking = step - trainer->log_flushed + SW_ENGINE_STEPS_AHEAD;
    bool restores = !trainer->log_decides && trainer->log_flushed > 0 && lacking <= SW_RUN_RECENT_STEPS;
    for (int64_t i = 0; restores && i < lacking; i++)
        restores = recent[SW_RUN_RECENT_STEPS - 1 - i].step == step - i;
    return restores;
}

void sw_commit_text_flush_log(struct sw_trainer *trainer, const struct sw_run_step recent[SW_RUN_RECENT_STEPS]) {
    SW_HANDLES_ERRORS();
    char path[SW_RUN_PATH_CHARS];
    if (sw_ranks_rank(trainer->ranks) != 0 || trainer->log_fails || restores_log(trainer, recent))
        return;
    const sw_status status = sw_path_join(path, sizeof path, trainer->folder, "log.jsonl");
    trainer->log_fails = status != SW_OK || sw_steplog_flush(path) != SW_OK;
    trainer->log_flushed = recent[SW_RUN_RECENT_STEPS - 1].step;
    trainer->log_decides = false;
    if (trainer->log_fails)
        sw_log_warn("after a power loss the log may lack steps: %s", sw_error_message(SW_ERR_IO));
}

sw_status sw_commit_text_hand(struct sw_trainer *trainer, const struct sw_step_result *result,
                              const struct sw_run_step recent[SW_RUN_RECENT_STEPS]) {
    char text[SW_STORE_META_BYTES];
    struct sw_run_position position = {.step = result->step,
                                       .applied_steps = result->applied_steps,
                                       .skipped_steps = result->skipped_steps,
                                       .loss_scale = result->next_scale};
    snprintf(position.start, sizeof position.start, "%s", sw_run_last_start(&trainer->run));
    memcpy(position.recent, recent, sizeof position.recent);
    SW_TRY(sw_run_position_write(&position, trainer->run.data_digest, text, sizeof text));
    sw_engine_describe(trainer->engine, result->step, text);
    return SW_OK;
}

sw_status sw_commit_text_begin(struct sw_trainer *trainer) {
    const struct sw_run_step none[SW_RUN_RECENT_STEPS] = {{0}};
    const bool scaled = sw_settings_type(&trainer->run.settings) == SW_F16;
    const struct sw_step_result start = {.next_scale = {.scale = scaled ? SW_FP16_INITIAL_SCALE : 1.0}};
    return sw_commit_text_hand(trainer, &start, none);
}
