/* The training loop. The next step begins while the update of the last one still runs, unless an evaluation, samples or
 * an export come between them.
 *
 * A step is begun before the one before is waited for, so that its forward pass overlaps that update. So everything
 * that decides whether a step begins is known one step early: ranks hear of a stop request one step later, and the time
 * limit counts on two or three more steps. Work that needs the new weights (evaluation, samples, export) drains the
 * lanes first; a second engine with a copy of the weights would avoid the pause but needs the memory.
 *
 * A failure outside the engine does not end the loop at once. The steps since the last commit are worth more than an
 * early error, so the loop stops as if asked to, saves, and then returns the failure.
 *
 * The log may lag behind a commit when a process is killed. Each commit carries the last steps as text, so a resume
 * writes the missing lines. */
#include "core/clock.h"
#include "core/confine.h"
#include "core/files/files.h"
#include "core/log.h"
#include "core/size.h"
#include "core/status.h"
#include "io/store/store.h"
#include "report/stages.h"
#include "run/expert_load.h"
#include "run/exports.h"
#include "run/folder/frozen.h"
#include "run/reference.h"
#include "run/samples.h"
#include "run/signals.h"
#include "run/steplog.h"
#include "run/trace_file.h"
#include "run/trainer.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct sw_run_names;

/* The files whose names are checked. The caller keeps all of them alive. */
struct sw_run_names_spec {
    const char *folder;
    const struct sw_confined *confined; /* the folder; NULL: it is not checked */
    const struct sw_store *store;
    const struct sw_frozen *frozen; /* NULL: the run has none */
    bool shared;                    /* this rank is responsible for run.json and the frozen weights */
};

struct sw_run_names {
    struct sw_run_names_spec spec;
    char path[SW_RUN_PATH_CHARS];  /* of run.json */
    char aside[SW_RUN_PATH_CHARS]; /* new name for a run.json that is not this run's */
    char *text;                    /* content that run.json must have; NULL: another rank is responsible for it */
    struct stat seen;              /* run.json when it was last compared with the text */
    char now[PATH_MAX];            /* the folder's current path, if it was moved */
};

/* Remembers the run.json of a run that is about to train. */
static sw_status run_names_open(const struct sw_run_names_spec *spec, struct sw_run_names **out) {
    struct sw_run_names *self = calloc(1, sizeof *self);
    *out = self;
    if (self == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to look at the names of the run's files");
    self->spec = *spec;
    if (!spec->shared)
        return SW_OK;
    SW_TRY(sw_path_join(self->path, sizeof self->path, spec->folder, "run.json"));
    SW_TRY(sw_path_join(self->aside, sizeof self->aside, spec->folder, "run.json.changed"));
    if (sw_path_lstat(self->path, &self->seen) != 0)
        return sw_fail(SW_ERR_IO, "%s cannot be examined: %s", self->path, strerror(errno));
    return sw_file_read_own_text(self->path, SW_RUN_JSON_LIMIT_BYTES, &self->text);
}

static void run_names_close(struct sw_run_names *self) {
    if (self == NULL)
        return;
    free(self->text);
    free(self);
}

static bool is_as_seen(const struct stat *now, const struct stat *seen) {
    return now->st_dev == seen->st_dev && now->st_ino == seen->st_ino && now->st_size == seen->st_size &&
           now->st_mtim.tv_sec == seen->st_mtim.tv_sec && now->st_mtim.tv_nsec == seen->st_mtim.tv_nsec &&
           now->st_ctim.tv_sec == seen->st_ctim.tv_sec && now->st_ctim.tv_nsec == seen->st_ctim.tv_nsec;
}

/* Finds out whether run.json holds the run's text. A file that cannot be read is an error; anything but a file of the
 * right length does not hold it. */
static sw_status is_whole(const struct sw_run_names *self, bool *out) {
    char *text = NULL;
    const sw_status status = sw_file_read_own_text(self->path, SW_RUN_JSON_LIMIT_BYTES, &text);
    *out = status == SW_OK && strcmp(text, self->text) == 0;
    free(text);
    if (status != SW_ERR_ARG)
        return status;
    sw_error_clear();
    return SW_OK;
}

/* Writes run.json again if it is gone or changed. A file that another program put there is kept under another name. */
static sw_status keep_json(struct sw_run_names *self) {
    struct stat now;
    bool whole = false;
    if (self->text == NULL)
        return SW_OK;
    const bool is_there = sw_path_lstat(self->path, &now) == 0;
    if (!is_there && errno != ENOENT && errno != ENOTDIR)
        return sw_fail(SW_ERR_IO, "%s cannot be examined: %s", self->path, strerror(errno));
    if (is_there && is_as_seen(&now, &self->seen))
        return SW_OK;
    if (is_there)
        SW_TRY(is_whole(self, &whole));
    if (whole) {
        self->seen = now;
        return SW_OK;
    }
    if (is_there && sw_path_rename(self->path, self->aside) != 0)
        return sw_fail(SW_ERR_IO, "%s was changed while the run trained, and cannot be moved aside: remove it",
                       self->path);
    SW_TRY(sw_file_replace(self->path, self->text, strlen(self->text), SW_FILE_PRIVATE));
    if (is_there)
        sw_log_warn("%s was changed while the run trained, and was written anew; the changed one is now %s", self->path,
                    self->aside);
    else
        sw_log_warn("%s was removed while the run trained, and was written anew", self->path);
    return SW_OK;
}

static sw_status keep_folder(struct sw_run_names *self) {
    const char *folder = self->spec.folder;
    if (self->spec.confined == NULL || sw_confine_holds(self->spec.confined, self->now))
        return SW_OK;
    if (self->now[0] != '\0')
        return sw_fail(SW_ERR_IO, "the run's folder %s was moved to %s while it trained", folder, self->now);
    return sw_fail(SW_ERR_IO, "the run's folder %s was removed, or its drive was unmounted, while it trained", folder);
}

/* Returns the path of the run's folder, which differs if the folder was moved; NULL: it has none. */
static const char *run_names_folder(struct sw_run_names *self) {
    const struct sw_run_names_spec *spec = &self->spec;
    if (spec->confined == NULL || sw_confine_holds(spec->confined, self->now))
        return spec->folder;
    return self->now[0] != '\0' ? self->now : NULL;
}

/* Makes sure that the names lead to the run's files. Restores, with a warning, what can be restored: the name of a file
 * that has another one, and the contents of run.json. SW_ERR_IO says what is gone. */
static sw_status run_names_keep(struct sw_run_names *self) {
    SW_TRY(keep_folder(self));
    SW_TRY(keep_json(self));
    SW_TRY(sw_store_keep_names(self->spec.store));
    return self->spec.shared ? sw_frozen_keep_name(self->spec.frozen) : SW_OK;
}

/* Does the same after the last commit, and also writes removed files again. */
static sw_status run_names_put_back(struct sw_run_names *self) {
    if (run_names_folder(self) == NULL)
        return keep_folder(self);
    SW_TRY(keep_json(self));
    SW_TRY(sw_store_put_back_names(self->spec.store));
    if (!self->spec.shared)
        return SW_OK;
    sw_frozen_look_for_base(self->spec.frozen);
    return sw_frozen_put_back_name(self->spec.frozen);
}

/* The evaluations of --eval-every, in this start and before. */
struct best_evaluation {
    int64_t step; /* step of the smallest loss; 0: none */
    double loss;
    int64_t since; /* evaluations since that step */
};

/* A training loop. Steps are numbered from 1. */
struct loop {
    struct sw_trainer *trainer;
    struct sw_steplog *log; /* NULL on ranks other than 0 */
    struct sw_schedule schedule;
    int64_t first_step, last_step;                /* first step of this start, and last step of the run */
    int64_t begun;                                /* last step that has begun */
    struct sw_run_step last[SW_RUN_RECENT_STEPS]; /* the steps that ended last, oldest first */
    sw_status failure;                            /* first failure outside the engine (keep_failure); SW_OK: none */
    char failure_text[SW_WATCH_TEXT_CHARS];       /* its message */
    struct sw_run_names *names;                   /* names of the run's files */
    int64_t looked_ns;                            /* time of the last check of these names */
    bool saved;                                   /* the final save has succeeded */
    int64_t evaluated, sampled;                   /* last steps for which the log has an evaluation, and samples */
    struct best_evaluation best;                  /* the same on all ranks */
    unsigned heard;               /* requests of all ranks that have arrived with the steps that ended */
    int64_t ended_ns;             /* time when the last step ended, or this loop began */
    int64_t bad_steps;            /* consecutive steps without finite loss or gradients, up to now */
    int64_t good_steps;           /* steps of this start with finite loss and gradients */
    int64_t empty_steps;          /* steps of this start in which no token has a loss */
    int64_t applied_steps;        /* steps of the whole run that changed the weights */
    double seconds_per_step;      /* smoothed over steps */
    double longest_pause_seconds; /* longest pause for an evaluation or export */
    bool out_of_time;             /* --time-limit ends the run */
    bool stopped_early;           /* --early-stop ends the run */
    int64_t nvme_bytes;           /* size of the store's files */
    int64_t saved_ns;             /* time when the last save began; with several ranks, rank 0's clock decides */
    int64_t save_step; /* first step that began after that save, which answers requests made in earlier steps */
    bool save_is_due;  /* the time between saves is over, and all ranks agree */
    struct sw_load_counts load;        /* of experts */
    bool saves[SW_ENGINE_STEPS_AHEAD]; /* indexed by step modulo the length: whether a begun step carries a save */
};

/* Functions shared by the steps of the training loop and by its beginning and end. */

/* The time between two checks of the names of the run's files. */
#define LOOK_NS INT64_C(1000000000)

/* Fills in this rank's sequences of a step, and counts what its loss is a mean over: the targets of all ranks that have
 * a loss after masks and documents, or the pairs of all ranks. */
static sw_status loop_fill_tokens(struct sw_trainer *trainer, int64_t step, int64_t *out_loss_tokens) {
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
            int32_t *const staged = sw_engine_tokens(trainer->engine, mine / batch);
            const struct sw_tokens tokens = sw_model_tokens(trainer->job.model, staged);
            if (settings->dpo)
                sw_model_reference(trainer->job.model, staged)[mine % batch] =
                    trainer->reference.of_training[sw_data_train_number(trainer->data, position)];
            SW_TRY(sw_data_train_window(trainer->data, position, sw_tokens_from(tokens, mine % batch * seq)));
        }
        if (settings->dpo)
            continue;
        SW_TRY(sw_data_train_targets(trainer->data, position, &targets));
        *out_loss_tokens += targets;
    }
    if (settings->dpo)
        *out_loss_tokens = all / 2;
    return SW_OK;
}

/* Tell whether an evaluation, samples or an export follow this step. With --early-stop an export follows each
 * evaluation that is the best so far, which is known only after the evaluation. */
static bool loop_evaluates_after(const struct loop *loop, int64_t step) {
    const int64_t every = loop->trainer->run.settings.eval_every;
    return every > 0 && step % every == 0 && sw_data_validation_windows(loop->trainer->data) > 0;
}

static bool loop_samples_after(const struct loop *loop, int64_t step) {
    const int64_t every = loop->trainer->run.settings.sample_every;
    return every > 0 && step % every == 0;
}

static bool loop_exports_after(const struct loop *loop, int64_t step) {
    const int64_t every = loop->trainer->run.settings.export_every;
    const bool is_best = loop->trainer->run.settings.early_stop > 0 && loop->best.step == step;
    return (every > 0 && step % every == 0) || (is_best && step > 0);
}

/* Tells whether a step's gradient was scaled down to --clip. */
static bool loop_clips(const struct loop *loop, double grad_norm, bool skipped) {
    const double clip = loop->trainer->run.settings.clip;
    return clip > 0.0 && grad_norm > clip && !skipped;
}

/* Counts an evaluation of --eval-every for --early-stop. A loss that is not finite is no improvement. */
static void loop_note_evaluation(struct loop *loop, int64_t step, double loss) {
    struct best_evaluation *best = &loop->best;
    best->since++;
    if (isfinite(loss) && (best->step == 0 || loss < best->loss))
        *best = (struct best_evaluation){.step = step, .loss = loss};
}

/* Keeps a failure until after the final save: a full disk, a failed export or unreadable data must not cost the steps
 * since the last commit. The failure ends the run like a stop request, and is returned after the save. A failure of the
 * engine is returned at once: nothing can be saved then. Later failures are dropped. */
static sw_status loop_keep_failure(struct loop *loop, sw_status status) {
    if (status == SW_OK || sw_engine_has_failed(loop->trainer->engine))
        return status;
    if (loop->failure == SW_OK)
        snprintf(loop->failure_text, sizeof loop->failure_text, "%s", sw_error_message(status));
    if (loop->failure == SW_OK)
        loop->failure = status;
    sw_ranks_forget_error(loop->trainer->ranks);
    return SW_OK;
}

/* Make sure that the names of the run's files still lead to them. The first runs between steps, once a second. The
 * second runs after the final save, on all ranks together, and writes removed files again; if that fails, loop->saved
 * becomes false. */
static sw_status loop_keep_names(struct loop *loop) {
    const int64_t now_ns = sw_now_ns();
    if (loop->failure != SW_OK || now_ns - loop->looked_ns < LOOK_NS)
        return SW_OK;
    loop->looked_ns = now_ns;
    sw_steplog_keep_name(loop->log);
    SW_TRY(run_names_keep(loop->names));
    return sw_reference_keep(loop->trainer);
}

static sw_status loop_put_back_names(struct loop *loop) {
    struct sw_ranks *ranks = loop->trainer->ranks;
    sw_ranks_relax_timeout(ranks, true);
    sw_status status = run_names_put_back(loop->names);
    if (status == SW_OK)
        status = sw_reference_keep(loop->trainer);
    sw_steplog_keep_name(loop->log);
    status = sw_ranks_agree_on_error(ranks, status);
    sw_ranks_relax_timeout(ranks, false);
    loop->saved = loop->saved && status == SW_OK;
    return status == SW_OK ? sw_ranks_agree_on_error(ranks, run_names_keep(loop->names)) : status;
}

static double seconds_since(int64_t begin_ns) {
    return (double)(sw_now_ns() - begin_ns) * 1e-9;
}

/* Evaluates the whole validation part. The engine must be idle. */
static sw_status loop_validate(struct sw_trainer *trainer, struct sw_evaluated *out) {
    const struct sw_settings *settings = &trainer->run.settings;
    const struct sw_evaluation evaluation = {.engine = trainer->engine,
                                             .model = trainer->job.model,
                                             .data = trainer->data,
                                             .batch = settings->micro_batch,
                                             .seq = settings->seq,
                                             .micro_batches = sw_settings_micro_batches(settings),
                                             .max_tokens = INT64_MAX,
                                             .tensor_ranks = sw_settings_tensor_ranks(settings),
                                             .stages = sw_settings_stages(settings),
                                             .ranks = trainer->ranks,
                                             .reference = settings->dpo ? trainer->reference.of_validation : NULL};
    return sw_evaluate(&evaluation, out);
}

/* Evaluates and logs the loss. *out_loss is unchanged if the evaluation fails. The engine must be idle. */
static sw_status loop_evaluate(struct loop *loop, int64_t step, double *out_loss) {
    const int64_t begin_ns = sw_now_ns();
    struct sw_eval_record record = {.step = step};
    struct sw_evaluated found;
    SW_TRY(loop_validate(loop->trainer, &found));
    *out_loss = record.val_loss = loop->trainer->validation_loss = found.loss;
    record.val_tokens = found.tokens;
    record.rewards = found.rewards;
    record.seconds = seconds_since(begin_ns);
    sw_costs_note_pause(&loop->trainer->costs, SW_PAUSE_EVALUATION, record.seconds);
    if (loop_evaluates_after(loop, step) && step > loop->evaluated)
        loop_note_evaluation(loop, step, record.val_loss);
    loop->trainer->log_decides = true;
    return sw_steplog_evaluation(loop->log, record);
}

/* Logs samples after a step, unless the log has them. The engine must be idle. */
static sw_status loop_sample(struct loop *loop, int64_t step) {
    const int64_t begin_ns = sw_now_ns();
    if (loop->sampled >= step)
        return SW_OK;
    loop->trainer->log_decides = true;
    SW_TRY(sw_samples_write(loop->trainer->samples, loop->trainer, loop->log, step));
    sw_costs_note_pause(&loop->trainer->costs, SW_PAUSE_SAMPLES, seconds_since(begin_ns));
    return SW_OK;
}

/* Exports and logs the weights after a step. loss: of the validation data; NAN: none. The engine must be idle. */
static sw_status loop_export(struct loop *loop, int64_t step, double loss) {
    const int64_t begin_ns = sw_now_ns();
    SW_TRY(sw_exports_write(loop->trainer, step, loss));
    sw_costs_note_pause(&loop->trainer->costs, SW_PAUSE_EXPORT, seconds_since(begin_ns));
    loop->trainer->log_decides = true;
    return sw_steplog_export(loop->log, step, seconds_since(begin_ns));
}

/* The ends of the training loop: before the first step, the work that a killed process left undone; after the last, the
 * final save and the checks of the result. */

/* Writes the log line of a step that was committed by a process killed before it wrote the line. The times of the step
 * are unknown. */
static sw_status restore_line(struct loop *loop, const struct sw_run_step *step) {
    const double lr = isfinite(step->lr) ? step->lr : sw_schedule_lr(&loop->trainer->past_schedule, step->step);
    return sw_steplog_restore(loop->log, (struct sw_step_record){
                                             .step = step->step,
                                             .loss = step->loss,
                                             .loss_tokens = step->loss_tokens,
                                             .grad_norm = step->grad_norm,
                                             .clipped = loop_clips(loop, step->grad_norm, step->skipped),
                                             .lr = lr,
                                             .tokens = loop->trainer->run.settings.batch_tokens,
                                             .seconds = NAN,
                                             .tokens_per_second = NAN,
                                             .mfu = NAN,
                                             .skipped = step->skipped,
                                             .rewards = step->rewards,
                                             .saved = true,
                                             .ranks = sw_ranks_count(loop->trainer->ranks),
                                             .zero = loop->trainer->job.plan->spec.zero,
                                             .eta_seconds = NAN,
                                         });
}

/* Returns the validation loss of a step if the log ends with it; NAN: it has none, or another rank has the log. */
static double logged_loss(const struct loop *loop, int64_t step) {
    int64_t count;
    const struct sw_eval_record *evaluation = sw_steplog_evaluations(loop->log, &count);
    return count > 0 && evaluation[count - 1].step == step ? evaluation[count - 1].val_loss : (double)NAN;
}

/* Writes an export that may be missing. Only rank 0 needs the loss. */
static sw_status export_again(struct loop *loop, int64_t step, double loss) {
    bool has;
    SW_TRY(sw_exports_has(loop->trainer, step, &has));
    return has ? SW_OK : loop_export(loop, step, loss);
}

/* Does what a killed process should have done after the last commit: log lines, an evaluation, samples, an export. */
static sw_status loop_catch_up(struct loop *loop) {
    const struct sw_run_position *position = &loop->trainer->position;
    for (int i = 0; i < SW_RUN_RECENT_STEPS; i++)
        if (position->recent[i].step > sw_steplog_last_step(loop->log))
            SW_TRY(restore_line(loop, &position->recent[i]));
    const bool evaluated = loop->evaluated >= position->step;
    double loss = logged_loss(loop, position->step);
    if ((loop_evaluates_after(loop, position->step) || loop_exports_after(loop, position->step)) && !evaluated &&
        sw_data_validation_windows(loop->trainer->data) > 0)
        SW_TRY(loop_evaluate(loop, position->step, &loss));
    const bool exports = position->step > 0 && loop_exports_after(loop, position->step);
    if (position->step > 0 && loop_samples_after(loop, position->step))
        SW_TRY(loop_sample(loop, position->step));
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
        status = loop_put_back_names(loop);
    if (status == SW_OK || loop->failure == SW_OK)
        return status;
    char text[SW_WATCH_TEXT_CHARS];
    snprintf(text, sizeof text, "%s", sw_error_message(status));
    sw_error_clear();
    return sw_fail(loop->failure, "%s; then saving failed too: %s", loop->failure_text, text);
}

/* Returns the failure that any rank has kept. */
static sw_status kept_failure(const struct loop *loop) {
    return sw_ranks_agree_on_error(loop->trainer->ranks,
                                   loop->failure != SW_OK ? sw_fail(loop->failure, "%s", loop->failure_text) : SW_OK);
}

/* Returns the mean loss of the current weights on the tokens of a step; 0: none has a loss. The engine must be idle. */
static sw_status loss_of_step(struct loop *loop, int64_t step, double *out_loss) {
    struct sw_trainer *trainer = loop->trainer;
    struct sw_step_input input = {.kind = SW_STEP_LOSS};
    struct sw_step_result result;
    SW_TRY(sw_ranks_agree_on_error(trainer->ranks, loop_fill_tokens(trainer, step, &input.loss_tokens)));
    SW_TRY(sw_engine_begin(trainer->engine, &input));
    SW_TRY(sw_engine_wait(trainer->engine, &result));
    *out_loss = result.loss_tokens > 0 ? sw_step_mean_loss(&result) : result.loss_sum;
    return SW_OK;
}

/* Fails if too many steps were not finite. The state is already saved. */
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

/* Says how many steps of this start learned nothing. */
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

/* Says which step --early-stop has kept. Says nothing of a run that was trained without --early-stop. */
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

/* Saves the state after the last step, and checks that the run has learned something: evaluates it, and fails if too
 * many steps, or the final weights, were not finite. */
static sw_status loop_finish(struct loop *loop, int64_t step, sw_run_end *out_end) {
    double loss = loop->trainer->validation_loss;
    say_empty(loop, step);
    SW_TRY(save(loop));
    SW_TRY(kept_failure(loop));
    SW_TRY(refuse_bad_steps(loop, step));
    *out_end = end_of(loop, step);
    SW_TRY(say_best(loop));
    const bool evaluated = loop_evaluates_after(loop, step) || loop_exports_after(loop, step);
    const bool validates = sw_data_validation_windows(loop->trainer->data) > 0;
    /* A user who stops a run waits for it to end, so the weights are checked only if the last steps were bad. */
    if (*out_end == SW_END_STOPPED && loop->bad_steps == 0)
        return SW_OK;
    if (validates && !evaluated)
        SW_TRY(loop_evaluate(loop, step, &loss));
    else if (!validates && step >= loop->first_step)
        SW_TRY(loss_of_step(loop, step, &loss));
    if (loop->trainer->samples != NULL && !loop_samples_after(loop, step))
        SW_TRY(loop_sample(loop, step));
    return refuse_bad_weights(step, loss);
}

#define NS_PER_S INT64_C(1000000000)

/* Requests that a rank sends with its steps, as bits. */
enum { REQUEST_STOP = 1, REQUEST_TIME = 2, REQUEST_SAVE = 4 };

/* Tells whether the time between saves is over. */
static bool save_time_is_over(const struct loop *loop) {
    const int64_t seconds = loop->trainer->run.settings.save_every.seconds;
    return sw_plan_saves(loop->trainer->job.plan) && seconds > 0 && sw_now_ns() - loop->saved_ns >= seconds * NS_PER_S;
}

/* Tells whether the state after this step is to be saved. Always false if every step commits. */
static bool saves_after(const struct loop *loop, int64_t step) {
    const int64_t every = loop->trainer->run.settings.save_every.steps;
    const bool counted = every > 0 && step % every == 0;
    return sw_plan_saves(loop->trainer->job.plan) && (counted || loop->save_is_due);
}

static void note_save(struct loop *loop, int64_t next_step) {
    loop->saved_ns = sw_now_ns();
    loop->save_step = next_step;
    loop->save_is_due = false;
}

/* Sets what a signal during this step is answered with. Several ranks agree on a stop one step later. */
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
    assert(step == loop->begun + 1 && step <= loop->last_step);
    expect_stop_after(loop, step);
    const sw_status filled = loop_fill_tokens(loop->trainer, step, &loss_tokens);
    /* With several ranks, others may have begun this step, so a failure here ends the job at once. */
    if (filled != SW_OK)
        return sw_ranks_count(loop->trainer->ranks) == 1 ? loop_keep_failure(loop, filled) : filled;
    loop->save_is_due |= sw_ranks_count(loop->trainer->ranks) == 1 && save_time_is_over(loop);
    const struct sw_step_input input = {
        .kind = SW_STEP_TRAIN,
        .step = step,
        .adamw = {.lr = sw_schedule_lr(&loop->schedule, step),
                  .beta1 = settings->beta1,
                  .beta2 = settings->beta2,
                  .eps = settings->eps,
                  .weight_decay = settings->weight_decay},
        .muon = {.lr = sw_settings_muon_lr(settings, sw_schedule_lr(&loop->schedule, step)),
                 .momentum = settings->muon_momentum,
                 .weight_decay = settings->weight_decay,
                 .scale = (sw_muon_scale)settings->muon_scale},
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

/* Returns a safe estimate of the final evaluation's time: half of the training time of as many tokens, though a third
 * is usual. Without validation data, the end evaluates the tokens of one step (loss_of_step). */
static double evaluation_seconds(const struct loop *loop) {
    const double step_tokens = (double)loop->trainer->run.settings.batch_tokens;
    const double tokens = fmax((double)sw_data_validation_tokens(loop->trainer->data), step_tokens);
    return 0.5 * loop->seconds_per_step * tokens / step_tokens;
}

/* Tells whether one more step and the final evaluation would exceed --time-limit. */
static bool time_is_up(const struct loop *loop) {
    const int64_t limit = loop->trainer->run.settings.time_limit;
    const double pause = fmax(loop->longest_pause_seconds, evaluation_seconds(loop));
    const double elapsed = (double)(sw_now_ns() - loop->trainer->start_ns) * 1e-9;
    /* With several ranks, each hears of a request one step later. */
    const double steps = sw_ranks_count(loop->trainer->ranks) > 1 ? 3.0 : 2.0;
    return limit > 0 && elapsed + steps * loop->seconds_per_step + pause > (double)limit;
}

/* Returns the requests that count now. Several ranks must begin the same steps, so the request of one rank counts only
 * once all have heard of it. */
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

/* Notes for how long the stages of a pipeline waited in a step. */
static void note_stages(const struct sw_plan *plan, const struct sw_step_result *result,
                        struct sw_step_record *record) {
    if (sw_plan_stages(plan) == 1)
        return;
    record->pipeline.stages = sw_plan_stages(plan);
    record->pipeline.interleave = sw_plan_turns(plan);
    record->pipeline.groups = sw_plan_groups(plan);
    record->pipeline.idle = fmax(0.0, 1.0 - result->mean_compute_seconds / result->seconds);
    record->pipeline.most_idle = fmax(0.0, 1.0 - result->least_compute_seconds / result->seconds);
    record->pipeline.formula = sw_plan_equal_bubble(plan);
}

static struct sw_step_record record_of(const struct loop *loop, const struct sw_step_result *result) {
    const struct sw_trainer *trainer = loop->trainer;
    const int64_t tokens = trainer->run.settings.batch_tokens;
    const double *busy = result->busy_seconds;
    const int64_t *bytes = result->lane_bytes;
    return (struct sw_step_record){
        .step = result->step,
        .loss = sw_step_mean_loss(result),
        .loss_tokens = trainer->run.settings.dpo ? -1 : result->loss_tokens,
        .rewards = sw_rewards_of(result->pair_sums, trainer->run.settings.dpo ? result->loss_tokens : 0),
        .grad_norm = result->grad_norm,
        .clipped = loop_clips(loop, result->grad_norm, result->skipped),
        .lr = sw_schedule_lr(&loop->schedule, result->step),
        .tokens = tokens,
        .seconds = result->seconds,
        .tokens_per_second = (double)tokens / result->seconds,
        .mfu = NAN,
        .skipped = result->skipped,
        .saved = trainer->job.plan->commit_every_step || loop->saves[result->step % SW_ENGINE_STEPS_AHEAD],
        .carries_save = loop->saves[result->step % SW_ENGINE_STEPS_AHEAD],
        .ranks = sw_ranks_count(trainer->ranks),
        .zero = trainer->job.plan->spec.zero,
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
        .peak = {.device = trainer->job.plan->tier_bytes[SW_DEVICE],
                 .host = trainer->job.plan->tier_bytes[SW_HOST],
                 .nvme = loop->nvme_bytes},
    };
}

static void remember(struct loop *loop, const struct sw_step_result *result) {
    memmove(loop->last, loop->last + 1, sizeof loop->last - sizeof loop->last[0]);
    struct sw_run_step step = sw_commit_text_step(result, sw_schedule_lr(&loop->schedule, result->step));
    if (loop->trainer->run.settings.dpo) {
        step.rewards = sw_rewards_of(result->pair_sums, result->loss_tokens);
        step.loss_tokens = -1;
    }
    loop->last[SW_RUN_RECENT_STEPS - 1] = step;
}

/* Hands the engine the text of a step's commit. The log already has the step's line. */
static sw_status describe(struct loop *loop, const struct sw_step_result *result) {
    const int64_t step = result->step;
    const bool saved = loop->begun > step && loop->saves[(step + 1) % SW_ENGINE_STEPS_AHEAD];
    if (loop->trainer->job.plan->commit_every_step || saved)
        sw_commit_text_flush_log(loop->trainer, loop->last);
    return sw_commit_text_hand(loop->trainer, result, loop->last);
}

/* Counts a step in which no token has a loss, and says once why that happens. Its weights still move: AdamW's momentum
 * and weight decay go on. */
static void note_empty(struct loop *loop, const struct sw_step_result *result) {
    if (result->loss_tokens > 0 || loop->empty_steps++ > 0 || loop->log == NULL)
        return;
    sw_log_warn("step %lld has no token with a loss and learns nothing: its sequences of %lld tokens hold only "
                "prompts, whose completions were cut off or are in other sequences; a longer --seq keeps them "
                "together, and larger --batch-tokens mix more sequences into a step",
                (long long)result->step, (long long)loop->trainer->run.settings.seq);
}

static sw_status end_step(struct loop *loop, int64_t step) {
    struct sw_step_result result;
    assert(step <= loop->begun);
    SW_TRY(sw_engine_wait(loop->trainer->engine, &result));
    assert(result.step == step);
    const bool first = step == loop->first_step;
    loop->ended_ns = sw_now_ns();
    loop->applied_steps = result.applied_steps;
    loop->seconds_per_step = first ? result.seconds : 0.9 * loop->seconds_per_step + 0.1 * result.seconds;
    /* Overflows are expected while the loss scale is above 1: they are how it comes down. */
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
    struct sw_step_record record = record_of(loop, &result);
    note_stages(loop->trainer->job.plan, &result, &record);
    SW_TRY(loop_keep_failure(loop, sw_load_add(&loop->load, loop->trainer, &record)));
    const bool plain =
        sw_costs_note(&loop->trainer->costs, record.carries_save, record.seconds, record.bytes.nvme_write);
    SW_TRY(loop_keep_failure(loop, sw_steplog_step(loop->log, record)));
    SW_TRY(loop_keep_failure(loop, sw_load_write(&loop->load, loop->log, step, false)));
    SW_TRY(loop_keep_failure(loop, loop_keep_names(loop)));
    if (plain)
        sw_departure_after(loop->trainer, record.seconds, result.busy_seconds);
    return describe(loop, &result);
}

/* Evaluates, samples, exports and saves between two steps, whichever are due. */
static sw_status pause_after(struct loop *loop, int64_t step) {
    const int64_t start_ns = sw_now_ns();
    loop->trainer->costs.paused = true;
    double loss = NAN;
    if (sw_data_validation_windows(loop->trainer->data) > 0 &&
        (loop_evaluates_after(loop, step) || loop_exports_after(loop, step)))
        SW_TRY(loop_keep_failure(loop, loop_evaluate(loop, step, &loss)));
    if (loop_samples_after(loop, step))
        SW_TRY(loop_keep_failure(loop, loop_sample(loop, step)));
    if (loop_exports_after(loop, step))
        SW_TRY(loop_keep_failure(loop, loop_export(loop, step, loss)));
    /* Both wait for the update, so the next step cannot carry the save; it is made here. */
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
    SW_TRY(loop_catch_up(loop));
    for (;;) {
        if (loop->begun == step && may_begin(loop, step + 1))
            SW_TRY(begin_step(loop, step + 1));
        if (loop->begun == step)
            break;
        step++;
        const bool pauses =
            loop_evaluates_after(loop, step) || loop_samples_after(loop, step) || loop_exports_after(loop, step);
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
    return run_names_open(&spec, &loop->names);
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
        if (loop_evaluates_after(loop, evaluation[i].step))
            loop_note_evaluation(loop, evaluation[i].step, evaluation[i].val_loss);
    return SW_OK;
}

static void remove_named(const char *folder, const char *name) {
    char path[SW_RUN_PATH_CHARS];
    if (sw_path_join(path, sizeof path, folder, name) == SW_OK)
        (void)sw_path_unlink(path);
}

/* Removes unfinished files that a kill left and that this start may have no reason to write, and the timelines of
 * pipeline stages that there are no more. */
static void remove_unfinished(const char *folder, int stages) {
    static const char *const names[] = {"exports/index.json.partial", SW_REFERENCE_UNFINISHED_NAME,
                                        SW_REFERENCE_UNFINISHED_NAME ".partial"};
    char name[SW_TIMELINE_NAME_CHARS], unfinished[SW_TIMELINE_NAME_CHARS + 8];
    SW_HANDLES_ERRORS();
    for (int stage = 0; stage < SW_MOST_STAGES; stage++) {
        snprintf(unfinished, sizeof unfinished, "%s.partial", sw_timeline_name(stage, name));
        remove_named(folder, unfinished);
        if (stage >= stages)
            remove_named(folder, name);
    }
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        remove_named(folder, names[i]);
}

static sw_status run(struct loop *loop, sw_run_end *out_end) {
    struct sw_ranks *ranks = loop->trainer->ranks;
    int64_t step;
    SW_TRY(sw_reference_prepare(loop->trainer)); /* it may change run.json */
    SW_TRY(sw_ranks_agree_on_error(ranks, open_names(loop)));
    SW_TRY(sw_ranks_first(ranks, open_log(loop)));
    if (sw_ranks_rank(ranks) == 0)
        remove_unfinished(loop->trainer->folder, sw_plan_stages(loop->trainer->job.plan));
    SW_TRY(sw_ranks_first(ranks, sw_exports_tidy(loop->trainer, loop->log)));
    SW_TRY(sw_ranks_spread(ranks, "log", &loop->evaluated, sizeof loop->evaluated));
    SW_TRY(sw_ranks_spread(ranks, "log", &loop->sampled, sizeof loop->sampled));
    SW_TRY(sw_ranks_spread(ranks, "log", &loop->best, sizeof loop->best));
    SW_TRY(run_steps(loop, &step));
    SW_TRY(loop_keep_failure(loop, sw_load_write(&loop->load, loop->log, step, true)));
    sw_status status = loop_finish(loop, step, out_end);
    if (status == SW_OK && sw_ranks_rank(ranks) == 0)
        status = write_trace(loop, step);
    if (status == SW_OK)
        status = loop_put_back_names(loop);
    const char *folder = run_names_folder(loop->names);
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
    sw_load_release(&loop.load);
    run_names_close(loop.names);
    return status != SW_OK ? status : closed;
}
