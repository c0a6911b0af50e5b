/* The ends of the training loop: before the first step, the work that a killed process left undone; after the last, the
 * final save and the checks of the result. */
#include "core/log.h"
#include "core/number.h"
#include "run/commit_text.h"
#include "run/exports.h"
#include "run/loop_private.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Writes the log line of a step whose process committed it and was killed before it wrote the line. The times of the
 * step are not known. */
static sw_status restore_line(struct loop *loop, const struct sw_run_step *step) {
    const double lr = isfinite(step->lr) ? step->lr : sw_schedule_lr(&loop->trainer->past_schedule, step->step);
    return sw_steplog_restore(loop->log, (struct sw_step_record){
                                             .step = step->step,
                                             .loss = step->loss,
                                             .loss_tokens = step->loss_tokens,
                                             .grad_norm = step->grad_norm,
                                             .clipped = sw_loop_clips(loop, step->grad_norm, step->skipped),
                                             .lr = lr,
                                             .tokens = loop->trainer->run.settings.batch_tokens,
                                             .seconds = NAN,
                                             .tokens_per_second = NAN,
                                             .mfu = NAN,
                                             .skipped = step->skipped,
                                             .saved = true,
                                             .ranks = sw_ranks_count(loop->trainer->ranks),
                                             .zero = loop->trainer->plan->spec.zero,
                                             .eta_seconds = NAN,
                                         });
}

/* Returns the validation loss of a step that the log ends with; NAN: it has none, or another rank has the log. */
static double logged_loss(const struct loop *loop, int64_t step) {
    int64_t count;
    const struct sw_eval_record *evaluation = sw_steplog_evaluations(loop->log, &count);
    return count > 0 && evaluation[count - 1].step == step ? evaluation[count - 1].val_loss : (double)NAN;
}

/* Writes an export that may be missing. Only rank 0 needs the loss. */
static sw_status export_again(struct loop *loop, int64_t step, double loss) {
    bool has;
    SW_TRY(sw_exports_has(loop->trainer, step, &has));
    return has ? SW_OK : sw_loop_export(loop, step, loss);
}

sw_status sw_loop_catch_up(struct loop *loop) {
    const struct sw_run_position *position = &loop->trainer->position;
    for (int i = 0; i < SW_RUN_RECENT_STEPS; i++)
        if (position->recent[i].step > sw_steplog_last_step(loop->log))
            SW_TRY(restore_line(loop, &position->recent[i]));
    const bool evaluated = loop->evaluated >= position->step;
    double loss = logged_loss(loop, position->step);
    if ((sw_loop_evaluates_after(loop, position->step) || sw_loop_exports_after(loop, position->step)) && !evaluated &&
        sw_data_validation_windows(loop->trainer->data) > 0)
        SW_TRY(sw_loop_evaluate(loop, position->step, &loss));
    const bool exports = position->step > 0 && sw_loop_exports_after(loop, position->step);
    if (position->step > 0 && sw_loop_samples_after(loop, position->step))
        SW_TRY(sw_loop_sample(loop, position->step));
    return exports ? export_again(loop, position->step, loss) : SW_OK;
}

/* Saves the final state, under the names by which a resume finds it. */
static sw_status save(struct loop *loop) {
    struct sw_trainer *trainer = loop->trainer;
    if (loop->last[SW_RUN_RECENT_STEPS - 1].step > 0)
        sw_commit_text_flush_log(trainer, loop->last);
    sw_status status = sw_engine_save(trainer->engine);
    loop->saved = status == SW_OK;
    if (status == SW_OK)
        status = sw_loop_put_back_names(loop);
    if (status == SW_OK || loop->failure == SW_OK)
        return status;
    char text[SW_WATCH_TEXT_CHARS];
    snprintf(text, sizeof text, "%s", sw_error_message(status));
    sw_error_clear();
    return sw_fail(loop->failure, "%s; then saving failed too: %s", loop->failure_text, text);
}

/* Returns the failure that was kept on any rank. */
static sw_status kept_failure(const struct loop *loop) {
    return sw_ranks_agree_on_error(loop->trainer->ranks,
                                   loop->failure != SW_OK ? sw_fail(loop->failure, "%s", loop->failure_text) : SW_OK);
}

/* Returns the mean loss of the current weights on the tokens of a step, 0 where none has a loss. The engine must be
 * idle. */
static sw_status loss_of_step(struct loop *loop, int64_t step, double *out_loss) {
    struct sw_trainer *trainer = loop->trainer;
    struct sw_step_input input = {.kind = SW_STEP_LOSS};
    struct sw_step_result result;
    SW_TRY(sw_ranks_agree_on_error(trainer->ranks, sw_loop_fill_tokens(trainer, step, &input.loss_tokens)));
    SW_TRY(sw_engine_begin(trainer->engine, &input));
    SW_TRY(sw_engine_wait(trainer->engine, &result));
    *out_loss = result.loss_tokens > 0 ? sw_step_mean_loss(&result) : result.loss_sum;
    return SW_OK;
}

/* Fails if too many steps were not finite. The state is saved already. */
static sw_status refuse_bad_steps(const struct loop *loop, int64_t step) {
    if (loop->bad_steps >= SW_BAD_STEPS_LIMIT)
        return sw_fail(
            SW_ERR_NOT_FINITE,
            "loss or gradients were not finite in %d steps in a row; the run stopped after step %lld, and the state "
            "before these steps is saved; check the data, --lr, --warmup and --precision",
            SW_BAD_STEPS_LIMIT, (long long)step);
    if (step >= loop->first_step && (loop->good_steps == 0 || loop->applied_steps == 0))
        return sw_fail(
            SW_ERR_NOT_FINITE,
            "loss or gradients were not finite in any step from %lld to %lld, so nothing was learned; check the "
            "initial weights, the data, --lr and --precision",
            (long long)loop->first_step, (long long)step);
    return SW_OK;
}

static sw_status refuse_bad_weights(int64_t step, double loss) {
    return isfinite(loss) ? SW_OK
                          : sw_fail(SW_ERR_NOT_FINITE,
                                    "the weights after step %lld, which is saved, give no finite loss: they have "
                                    "diverged; start a new run with a lower --lr or a longer --warmup",
                                    (long long)step);
}

/* Says how many steps of this start trained on nothing. */
static void say_empty(const struct loop *loop, int64_t step) {
    if (loop->empty_steps > 0 && loop->log != NULL)
        sw_log_warn("%lld of %s had no token with a loss and learnt nothing", (long long)loop->empty_steps,
                    SW_COUNT(step - loop->first_step + 1, "step"));
}

static sw_run_end end_of(const struct loop *loop, int64_t step) {
    if (step >= loop->last_step)
        return SW_END_DONE;
    if (loop->stopped_early)
        return SW_END_EARLY;
    return loop->out_of_time ? SW_END_TIME_LIMIT : SW_END_STOPPED;
}

/* Says which step --early-stop has kept. It keeps nothing of a run that was trained without it. */
static sw_status say_best(const struct loop *loop) {
    const struct best_evaluation *best = &loop->best;
    bool has;
    if (loop->trainer->run.settings.early_stop == 0 || best->step == 0)
        return SW_OK;
    SW_TRY(sw_exports_has(loop->trainer, best->step, &has));
    if (has)
        sw_log_info("the validation loss was least after step %lld, %.4f: its weights are in %s/exports/step-%lld",
                    (long long)best->step, best->loss, loop->trainer->folder, (long long)best->step);
    else
        sw_log_info("the validation loss was least after step %lld, %.4f, of whose weights there is no export",
                    (long long)best->step, best->loss);
    return SW_OK;
}

sw_status sw_loop_finish(struct loop *loop, int64_t step, sw_run_end *out_end) {
    double loss = loop->trainer->validation_loss;
    say_empty(loop, step);
    SW_TRY(save(loop));
    SW_TRY(kept_failure(loop));
    SW_TRY(refuse_bad_steps(loop, step));
    *out_end = end_of(loop, step);
    SW_TRY(say_best(loop));
    const bool evaluated = sw_loop_evaluates_after(loop, step) || sw_loop_exports_after(loop, step);
    const bool validates = sw_data_validation_windows(loop->trainer->data) > 0;
    /* A user who stops a run waits for it, so the weights are checked only if the last steps were bad. */
    if (*out_end == SW_END_STOPPED && loop->bad_steps == 0)
        return SW_OK;
    if (validates && !evaluated)
        SW_TRY(sw_loop_evaluate(loop, step, &loss));
    else if (!validates && step >= loop->first_step)
        SW_TRY(loss_of_step(loop, step, &loss));
    if (loop->trainer->samples != NULL && !sw_loop_samples_after(loop, step))
        SW_TRY(sw_loop_sample(loop, step));
    return refuse_bad_weights(step, loss);
}
