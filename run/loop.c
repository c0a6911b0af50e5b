/* The training loop. The next step begins while the update of the last one still runs, unless an evaluation,
 * samples or an export come between them. */
#include "core/clock.h"
#include "core/error_scope.h"
#include "core/files/files.h"
#include "core/log.h"
#include "core/number.h"
#include "core/size.h"
#include "run/commit_text.h"
#include "run/exports.h"
#include "run/loop_private.h"
#include "run/signals.h"
#include "run/trace_file.h"

#include <math.h>
#include <string.h>

#define NS_PER_S INT64_C(1000000000)

/* Requests of a rank during training, as bits. */
enum { REQUEST_STOP = 1, REQUEST_TIME = 2, REQUEST_SAVE = 4 };

/* Tells whether the time between saves is over. */
static bool save_time_is_over(const struct loop *loop) {
    const int64_t seconds = loop->trainer->run.settings.save_every.seconds;
    return sw_plan_saves(loop->trainer->plan) && seconds > 0 && sw_now_ns() - loop->saved_ns >= seconds * NS_PER_S;
}

/* Tells whether the state after this step is to be saved. False where every step commits. */
static bool saves_after(const struct loop *loop, int64_t step) {
    const int64_t every = loop->trainer->run.settings.save_every.steps;
    const bool counted = every > 0 && step % every == 0;
    return sw_plan_saves(loop->trainer->plan) && (counted || loop->save_is_due);
}

static void note_save(struct loop *loop, int64_t next_step) {
    loop->saved_ns = sw_now_ns();
    loop->save_step = next_step;
    loop->save_is_due = false;
}

/* Sets the answer to a signal that comes during this step. Several ranks agree on a stop one step later. */
static void expect_stop_after(const struct loop *loop, int64_t step) {
    const int64_t ended = sw_max_i64(loop->first_step - 1, loop->last[SW_RUN_RECENT_STEPS - 1].step);
    const int64_t last = sw_ranks_count(loop->trainer->ranks) > 1 ? sw_min_i64(step + 1, loop->last_step) : step;
    const double left_s = loop->seconds_per_step * (double)(last - ended);
    sw_signals_expect(last, left_s > 0.0 ? loop->ended_ns + (int64_t)(left_s * 1e9) : 0);
}

/* Begins a step. If its tokens cannot be read, loop->begun stays as it was. */
static sw_status begin_step(struct loop *loop, int64_t step) {
    const struct sw_settings *settings = &loop->trainer->run.settings;
    int64_t loss_tokens;
    expect_stop_after(loop, step);
    const sw_status filled = sw_loop_fill_tokens(loop->trainer, step, &loss_tokens);
    /* With several ranks, others may have begun this step already, so a failure here ends the job at once. */
    if (filled != SW_OK)
        return sw_ranks_count(loop->trainer->ranks) == 1 ? sw_loop_keep_failure(loop, filled) : filled;
    loop->save_is_due |= sw_ranks_count(loop->trainer->ranks) == 1 && save_time_is_over(loop);
    const struct sw_step_input input = {
        .kind = SW_STEP_TRAIN,
        .step = step,
        .adamw = {.lr = sw_schedule_lr(&loop->schedule, step),
                  .beta1 = settings->beta1,
                  .beta2 = settings->beta2,
                  .eps = settings->eps,
                  .weight_decay = settings->weight_decay},
        .clip = settings->clip,
        .loss_tokens = loss_tokens,
        .save = saves_after(loop, step - 1) && sw_engine_may_save(loop->trainer->engine),
    };
    loop->saves[step % SW_ENGINE_STEPS_AHEAD] = input.save;
    if (input.save)
        note_save(loop, step);
    SW_TRY(sw_engine_begin(loop->trainer->engine, &input));
    loop->begun = step;
    return SW_OK;
}

/* Returns a safe estimate of the final evaluation: half of the training time of as many tokens, though a third is
 * usual. Without validation data, the end evaluates the tokens of one step (loss_of_step). */
static double evaluation_seconds(const struct loop *loop) {
    const double step_tokens = (double)loop->trainer->run.settings.batch_tokens;
    const double tokens = fmax((double)sw_data_validation_tokens(loop->trainer->data), step_tokens);
    return 0.5 * loop->seconds_per_step * tokens / step_tokens;
}

/* Tells whether one more step and the evaluation at the end would pass --time-limit. */
static bool time_is_up(const struct loop *loop) {
    const int64_t limit = loop->trainer->run.settings.time_limit;
    const double pause = fmax(loop->longest_pause_seconds, evaluation_seconds(loop));
    const double elapsed = (double)(sw_now_ns() - loop->trainer->start_ns) * 1e-9;
    /* With several ranks, each hears of a request one step later. */
    const double steps = sw_ranks_count(loop->trainer->ranks) > 1 ? 3.0 : 2.0;
    return limit > 0 && elapsed + steps * loop->seconds_per_step + pause > (double)limit;
}

/* Returns the requests that count now. Several ranks must begin the same steps, so a request of any rank counts once
 * all have heard of it. */
static unsigned requests_of(const struct loop *loop) {
    const bool stops = *loop->trainer->stop || loop->failure != SW_OK;
    const unsigned own = (stops ? REQUEST_STOP : 0) | (time_is_up(loop) ? REQUEST_TIME : 0);
    if (sw_ranks_count(loop->trainer->ranks) == 1)
        return own;
    const bool asks = sw_ranks_rank(loop->trainer->ranks) == 0 && !loop->save_is_due && save_time_is_over(loop);
    sw_engine_request(loop->trainer->engine, own | (asks ? REQUEST_SAVE : 0));
    return loop->heard;
}

static bool may_begin(struct loop *loop, int64_t step) {
    const int64_t early_stop = loop->trainer->run.settings.early_stop;
    loop->stopped_early = early_stop > 0 && loop->best.since >= early_stop;
    if (step > loop->last_step || loop->bad_steps >= SW_BAD_STEPS_LIMIT || loop->stopped_early)
        return false;
    const unsigned requests = requests_of(loop);
    loop->out_of_time = loop->out_of_time || (requests & REQUEST_TIME) != 0;
    return (requests & REQUEST_STOP) == 0 && !loop->out_of_time;
}

static struct sw_step_record record_of(const struct loop *loop, const struct sw_step_result *result) {
    const struct sw_trainer *trainer = loop->trainer;
    const int64_t tokens = trainer->run.settings.batch_tokens;
    const double *busy = result->busy_seconds;
    const int64_t *bytes = result->lane_bytes;
    return (struct sw_step_record){
        .step = result->step,
        .loss = sw_step_mean_loss(result),
        .loss_tokens = result->loss_tokens,
        .grad_norm = result->grad_norm,
        .clipped = sw_loop_clips(loop, result->grad_norm, result->skipped),
        .lr = sw_schedule_lr(&loop->schedule, result->step),
        .tokens = tokens,
        .seconds = result->seconds,
        .tokens_per_second = (double)tokens / result->seconds,
        .mfu = NAN,
        .skipped = result->skipped,
        .saved = trainer->plan->commit_every_step || loop->saves[result->step % SW_ENGINE_STEPS_AHEAD],
        .carries_save = loop->saves[result->step % SW_ENGINE_STEPS_AHEAD],
        .ranks = sw_ranks_count(trainer->ranks),
        .zero = trainer->plan->spec.zero,
        .eta_seconds = loop->seconds_per_step * (double)(loop->last_step - result->step),
        .lanes = {.compute = busy[SW_LANE_COMPUTE],
                  .upload = busy[SW_LANE_UPLOAD],
                  .download = busy[SW_LANE_DOWNLOAD],
                  .read = busy[SW_LANE_READ],
                  .write = busy[SW_LANE_WRITE],
                  .update = busy[SW_LANE_UPDATE],
                  .comm = busy[SW_LANE_COMM]},
        .bytes = {.nvme_read = bytes[SW_LANE_READ],
                  .nvme_write = bytes[SW_LANE_WRITE],
                  .upload = bytes[SW_LANE_UPLOAD],
                  .download = bytes[SW_LANE_DOWNLOAD],
                  .comm = bytes[SW_LANE_COMM]},
        .peak = {.device = trainer->plan->tier_bytes[SW_DEVICE],
                 .host = trainer->plan->tier_bytes[SW_HOST],
                 .nvme = loop->nvme_bytes},
    };
}

static void remember(struct loop *loop, const struct sw_step_result *result) {
    memmove(loop->last, loop->last + 1, sizeof loop->last - sizeof loop->last[0]);
    loop->last[SW_RUN_RECENT_STEPS - 1] = sw_commit_text_step(result, sw_schedule_lr(&loop->schedule, result->step));
}

/* Hands down the text of a step's commit. The log has the step's line before. */
static sw_status describe(struct loop *loop, const struct sw_step_result *result) {
    const int64_t step = result->step;
    const bool saved = loop->begun > step && loop->saves[(step + 1) % SW_ENGINE_STEPS_AHEAD];
    if (loop->trainer->plan->commit_every_step || saved)
        sw_commit_text_flush_log(loop->trainer, loop->last);
    return sw_commit_text_hand(loop->trainer, result, loop->last);
}

/* Counts a step without any token that has a loss, and says once why there is one. Its weights still move: AdamW's
 * momentum and weight decay go on. */
static void note_empty(struct loop *loop, const struct sw_step_result *result) {
    if (result->loss_tokens > 0 || loop->empty_steps++ > 0 || loop->log == NULL)
        return;
    sw_log_warn(
        "step %lld has no token with a loss and learns nothing: its sequences of %lld tokens hold prompts alone, "
        "whose completions were cut off or lie in other sequences; a longer --seq keeps them together, and "
        "larger --batch-tokens mix more sequences into a step",
        (long long)result->step, (long long)loop->trainer->run.settings.seq);
}

static sw_status end_step(struct loop *loop, int64_t step) {
    struct sw_step_result result;
    SW_TRY(sw_engine_wait(loop->trainer->engine, &result));
    const bool first = step == loop->first_step;
    loop->ended_ns = sw_now_ns();
    loop->applied_steps = result.applied_steps;
    loop->seconds_per_step = first ? result.seconds : 0.9 * loop->seconds_per_step + 0.1 * result.seconds;
    /* Overflows are expected while the loss scale is still above 1: they are how it comes down. */
    const bool bad = (result.skipped && result.loss_scale <= 1.0) || !isfinite(result.loss_sum);
    loop->bad_steps = bad ? loop->bad_steps + 1 : 0;
    loop->good_steps += !bad;
    note_empty(loop, &result);
    loop->heard |= result.requests;
    loop->save_is_due |= (result.requests & REQUEST_SAVE) != 0 && step >= loop->save_step;
    remember(loop, &result);
    if (loop->trainer->timeline != NULL)
        sw_timeline_file_after(loop->trainer->timeline, loop->trainer->folder, sw_engine_trace(loop->trainer->engine),
                               step);
    const struct sw_step_record record = record_of(loop, &result);
    const bool plain =
        sw_costs_note(&loop->trainer->costs, record.carries_save, record.seconds, record.bytes.nvme_write);
    SW_TRY(sw_loop_keep_failure(loop, sw_steplog_step(loop->log, record)));
    SW_TRY(sw_loop_keep_failure(loop, sw_loop_keep_names(loop)));
    if (plain)
        sw_departure_after(loop->trainer, record.seconds, result.busy_seconds);
    return describe(loop, &result);
}

/* Evaluates, samples, exports and saves between two steps, as far as they are due. */
static sw_status pause_after(struct loop *loop, int64_t step) {
    const int64_t start_ns = sw_now_ns();
    loop->trainer->costs.paused = true;
    double loss = NAN;
    if (sw_data_validation_windows(loop->trainer->data) > 0 &&
        (sw_loop_evaluates_after(loop, step) || sw_loop_exports_after(loop, step)))
        SW_TRY(sw_loop_keep_failure(loop, sw_loop_evaluate(loop, step, &loss)));
    if (sw_loop_samples_after(loop, step))
        SW_TRY(sw_loop_keep_failure(loop, sw_loop_sample(loop, step)));
    if (sw_loop_exports_after(loop, step))
        SW_TRY(sw_loop_keep_failure(loop, sw_loop_export(loop, step, loss)));
    /* Both wait for the update, so the next step cannot carry the save and it is made here. */
    if (saves_after(loop, step)) {
        note_save(loop, step + 1);
        sw_commit_text_flush_log(loop->trainer, loop->last);
        SW_TRY(sw_engine_save(loop->trainer->engine));
    }
    loop->longest_pause_seconds = fmax(loop->longest_pause_seconds, (double)(sw_now_ns() - start_ns) * 1e-9);
    return SW_OK;
}

static sw_status run_steps(struct loop *loop, int64_t *out_step) {
    int64_t step = loop->first_step - 1;
    SW_TRY(sw_loop_catch_up(loop));
    for (;;) {
        if (loop->begun == step && may_begin(loop, step + 1))
            SW_TRY(begin_step(loop, step + 1));
        if (loop->begun == step)
            break;
        step++;
        const bool pauses = sw_loop_evaluates_after(loop, step) || sw_loop_samples_after(loop, step) ||
                            sw_loop_exports_after(loop, step);
        if (!pauses && may_begin(loop, step + 1))
            SW_TRY(begin_step(loop, step + 1));
        SW_TRY(end_step(loop, step));
        if (pauses)
            SW_TRY(pause_after(loop, step));
    }
    *out_step = step;
    return SW_OK;
}

static sw_status write_trace(const struct loop *loop, int64_t last_step) {
    const char *path = loop->trainer->run.settings.trace;
    if (path == NULL)
        return SW_OK;
    const struct sw_trace *trace = sw_engine_trace(loop->trainer->engine);
    SW_TRY(sw_trace_file_write(path, trace));
    sw_log_info("wrote the trace %s: the first %lld of %s since the start", path, (long long)sw_trace_steps(trace),
                SW_COUNT(last_step - loop->first_step + 1, "step"));
    return SW_OK;
}

static sw_status open_names(struct loop *loop) {
    const struct sw_trainer *trainer = loop->trainer;
    const struct sw_run_names_spec spec = {.folder = trainer->folder,
                                           .confined = trainer->confined,
                                           .store = trainer->store,
                                           .frozen = trainer->frozen,
                                           .shared = sw_ranks_rank(trainer->ranks) == 0};
    return sw_run_names_open(&spec, &loop->names);
}

/* Opens the log on rank 0. */
static sw_status open_log(struct loop *loop) {
    const struct sw_trainer *trainer = loop->trainer;
    char path[SW_RUN_PATH_CHARS];
    SW_TRY(sw_path_join(path, sizeof path, trainer->folder, "log.jsonl"));
    SW_TRY(sw_steplog_open(path, trainer->position.step, trainer->run.settings.steps, &loop->log));
    loop->evaluated = sw_steplog_last_evaluation(loop->log);
    loop->sampled = sw_steplog_last_sample(loop->log);
    int64_t count;
    const struct sw_eval_record *evaluation = sw_steplog_evaluations(loop->log, &count);
    for (int64_t i = 0; i < count; i++)
        if (sw_loop_evaluates_after(loop, evaluation[i].step))
            sw_loop_note_evaluation(loop, evaluation[i].step, evaluation[i].val_loss);
    return SW_OK;
}

/* Removes what a kill left of files that this start may have no reason to write. */
static void remove_unfinished(const char *folder) {
    static const char *const names[] = {"timeline.json.partial", "exports/index.json.partial"};
    char path[SW_RUN_PATH_CHARS];
    SW_HANDLES_ERRORS();
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (sw_path_join(path, sizeof path, folder, names[i]) == SW_OK)
            (void)sw_path_unlink(path);
}

static sw_status run(struct loop *loop, sw_run_end *out_end) {
    struct sw_ranks *ranks = loop->trainer->ranks;
    int64_t step;
    SW_TRY(sw_ranks_agree_on_error(ranks, open_names(loop)));
    SW_TRY(sw_ranks_first(ranks, open_log(loop)));
    if (sw_ranks_rank(ranks) == 0)
        remove_unfinished(loop->trainer->folder);
    SW_TRY(sw_ranks_first(ranks, sw_exports_tidy(loop->trainer, loop->log)));
    SW_TRY(sw_ranks_spread(ranks, "log", &loop->evaluated, sizeof loop->evaluated));
    SW_TRY(sw_ranks_spread(ranks, "log", &loop->sampled, sizeof loop->sampled));
    SW_TRY(sw_ranks_spread(ranks, "log", &loop->best, sizeof loop->best));
    SW_TRY(run_steps(loop, &step));
    sw_status status = sw_loop_finish(loop, step, out_end);
    if (status == SW_OK && sw_ranks_rank(ranks) == 0)
        status = write_trace(loop, step);
    if (status == SW_OK)
        status = sw_loop_put_back_names(loop);
    const char *folder = sw_run_names_folder(loop->names);
    if (status == SW_OK || status == SW_ERR_NOT_FINITE || !loop->saved || folder == NULL)
        return status;
    return sw_fail_while(status, "training; step %lld is saved, and `spillway resume %s` continues after it",
                         (long long)step, folder);
}

sw_status sw_trainer_run(struct sw_trainer *trainer, sw_run_end *out_end) {
    const struct sw_settings *settings = &trainer->run.settings;
    struct loop loop = {
        .trainer = trainer,
        .schedule = sw_settings_schedule(settings),
        .first_step = trainer->position.step + 1,
        .last_step = settings->steps,
        .begun = trainer->position.step,
        .ended_ns = sw_now_ns(),
        .saved_ns = sw_now_ns(),
        .nvme_bytes = sw_store_file_bytes(trainer->store),
    };
    sw_ranks_relax_timeout(trainer->ranks, false);
    const sw_status status = run(&loop, out_end);
    const sw_status closed = sw_steplog_close(loop.log);
    sw_run_names_close(loop.names);
    return status != SW_OK ? status : closed;
}
