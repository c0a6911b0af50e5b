/* Functions that the steps of the training loop and its ends share. */
#include "core/clock.h"
#include "core/size.h"
#include "run/eval.h"
#include "run/exports.h"
#include "run/loop_private.h"
#include "run/samples.h"

#include <math.h>
#include <stdio.h>

/* The time between two looks at the names of the run's files. */
#define LOOK_NS INT64_C(1000000000)

sw_status sw_loop_fill_tokens(struct sw_trainer *trainer, int64_t step, int64_t *out_loss_tokens) {
    const struct sw_settings *settings = &trainer->run.settings;
    const int64_t micros = sw_settings_micro_batches(settings), batch = settings->micro_batch, seq = settings->seq;
    const int64_t own = micros * batch, all = own * sw_settings_data_ranks(settings);
    const int64_t first = sw_settings_data_rank(settings) * own;
    *out_loss_tokens = 0;
    for (int64_t s = 0; s < all; s++) {
        const uint64_t position = (uint64_t)((step - 1) * all + s);
        const int64_t mine = s - first;
        int64_t targets;
        if (mine >= 0 && mine < own) {
            const struct sw_tokens tokens =
                sw_model_tokens(trainer->model, sw_engine_tokens(trainer->engine, mine / batch));
            SW_TRY(sw_data_train_window(trainer->data, position, sw_tokens_from(tokens, mine % batch * seq)));
        }
        SW_TRY(sw_data_train_targets(trainer->data, position, &targets));
        *out_loss_tokens += targets;
    }
    return SW_OK;
}

bool sw_loop_evaluates_after(const struct loop *loop, int64_t step) {
    const int64_t every = loop->trainer->run.settings.eval_every;
    return every > 0 && step % every == 0 && sw_data_validation_windows(loop->trainer->data) > 0;
}

bool sw_loop_samples_after(const struct loop *loop, int64_t step) {
    const int64_t every = loop->trainer->run.settings.sample_every;
    return every > 0 && step % every == 0;
}

bool sw_loop_exports_after(const struct loop *loop, int64_t step) {
    const int64_t every = loop->trainer->run.settings.export_every;
    const bool is_best = loop->trainer->run.settings.early_stop > 0 && loop->best.step == step;
    return (every > 0 && step % every == 0) || (is_best && step > 0);
}

bool sw_loop_clips(const struct loop *loop, double grad_norm, bool skipped) {
    const double clip = loop->trainer->run.settings.clip;
    return clip > 0.0 && grad_norm > clip && !skipped;
}

void sw_loop_note_evaluation(struct loop *loop, int64_t step, double loss) {
    struct best_evaluation *best = &loop->best;
    best->since++;
    if (isfinite(loss) && (best->step == 0 || loss < best->loss))
        *best = (struct best_evaluation){.step = step, .loss = loss};
}

sw_status sw_loop_keep_failure(struct loop *loop, sw_status status) {
    if (status == SW_OK || sw_engine_has_failed(loop->trainer->engine))
        return status;
    if (loop->failure == SW_OK)
        snprintf(loop->failure_text, sizeof loop->failure_text, "%s", sw_error_message(status));
    if (loop->failure == SW_OK)
        loop->failure = status;
    sw_ranks_forget_error(loop->trainer->ranks);
    return SW_OK;
}

sw_status sw_loop_keep_names(struct loop *loop) {
    const int64_t now_ns = sw_now_ns();
    if (loop->failure != SW_OK || now_ns - loop->looked_ns < LOOK_NS)
        return SW_OK;
    loop->looked_ns = now_ns;
    sw_steplog_keep_name(loop->log);
    return sw_run_names_keep(loop->names);
}

sw_status sw_loop_put_back_names(struct loop *loop) {
    struct sw_ranks *ranks = loop->trainer->ranks;
    sw_ranks_relax_timeout(ranks, true);
    sw_status status = sw_run_names_put_back(loop->names);
    sw_steplog_keep_name(loop->log);
    status = sw_ranks_agree_on_error(ranks, status);
    sw_ranks_relax_timeout(ranks, false);
    loop->saved = loop->saved && status == SW_OK;
    return status == SW_OK ? sw_ranks_agree_on_error(ranks, sw_run_names_keep(loop->names)) : status;
}

static double seconds_since(int64_t begin_ns) {
    return (double)(sw_now_ns() - begin_ns) * 1e-9;
}

sw_status sw_loop_validate(struct sw_trainer *trainer, double *out_loss, int64_t *out_tokens) {
    const struct sw_settings *settings = &trainer->run.settings;
    const struct sw_evaluation evaluation = {.engine = trainer->engine,
                                             .model = trainer->model,
                                             .data = trainer->data,
                                             .batch = settings->micro_batch,
                                             .seq = settings->seq,
                                             .micro_batches = sw_settings_micro_batches(settings),
                                             .max_tokens = INT64_MAX,
                                             .tensor_ranks = sw_settings_tensor_ranks(settings),
                                             .ranks = trainer->ranks};
    return sw_evaluate(&evaluation, out_loss, out_tokens);
}

sw_status sw_loop_evaluate(struct loop *loop, int64_t step, double *out_loss) {
    const int64_t begin_ns = sw_now_ns();
    struct sw_eval_record record = {.step = step};
    SW_TRY(sw_loop_validate(loop->trainer, out_loss, &record.val_tokens));
    record.val_loss = loop->trainer->validation_loss = *out_loss;
    record.seconds = seconds_since(begin_ns);
    sw_costs_note_pause(&loop->trainer->costs, SW_PAUSE_EVALUATION, record.seconds);
    if (sw_loop_evaluates_after(loop, step) && step > loop->evaluated)
        sw_loop_note_evaluation(loop, step, record.val_loss);
    loop->trainer->log_decides = true;
    return sw_steplog_evaluation(loop->log, record);
}

sw_status sw_loop_sample(struct loop *loop, int64_t step) {
    const int64_t begin_ns = sw_now_ns();
    if (loop->sampled >= step)
        return SW_OK;
    loop->trainer->log_decides = true;
    SW_TRY(sw_samples_write(loop->trainer->samples, loop->trainer, loop->log, step));
    sw_costs_note_pause(&loop->trainer->costs, SW_PAUSE_SAMPLES, seconds_since(begin_ns));
    return SW_OK;
}

sw_status sw_loop_export(struct loop *loop, int64_t step, double loss) {
    const int64_t begin_ns = sw_now_ns();
    SW_TRY(sw_exports_write(loop->trainer, step, loss));
    sw_costs_note_pause(&loop->trainer->costs, SW_PAUSE_EXPORT, seconds_since(begin_ns));
    loop->trainer->log_decides = true;
    return sw_steplog_export(loop->log, step, seconds_since(begin_ns));
}
