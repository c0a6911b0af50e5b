#include "cli/answer_text.h"
#include "cli/commands.h"
#include "core/files/files.h"
#include "core/log.h"
#include "core/size.h"
#include "core/status.h"
#include "run/signals.h"
#include "run/trainer.h"

#include <math.h>
#include <unistd.h>

/* A command's arguments, without its name. */
struct sw_arguments {
    int argc;
    char **argv;
};

/* A function that creates or resumes a run. `settings` hold the flags of the command line; it may take them over. */
typedef sw_status (*sw_run_opener)(struct sw_ranks *ranks, struct sw_settings *settings,
                                   const struct sw_arguments *arguments, const volatile sig_atomic_t *stop,
                                   struct sw_trainer **out);

enum { BASELINE_VOCAB = 4096 };

static void say_data(const struct sw_trainer *trainer) {
    const struct sw_settings *settings = &trainer->run.settings;
    const int64_t windows_per_step = settings->batch_tokens / settings->seq;
    const double windows = (double)settings->steps * (double)windows_per_step;
    char text[SW_DATA_TEXT_CHARS], steps[SW_COUNT_CHARS];
    sw_log_info("data: %s; %s %s %.3g epochs", sw_data_text(trainer->data, text),
                sw_format_count(settings->steps, "step", steps), settings->steps == 1 ? "is" : "are",
                windows / (double)sw_data_train_windows(trainer->data));
    sw_answer_warn_epochs(windows / (double)sw_data_train_windows(trainer->data), settings->steps);
}

/* Returns what the remaining steps write. A resume does not make the store again. */
static struct sw_writes writes_of(const struct sw_trainer *trainer) {
    const struct sw_option_every *every = &trainer->run.settings.save_every;
    struct sw_writes writes =
        sw_writes_of(trainer->job.plan, sw_writes_save_steps(every, trainer->forecast.step.step_s));
    if (trainer->position.step > 0)
        writes.start_bytes = 0;
    return writes;
}

static void say_writes(const struct sw_trainer *trainer) {
    const struct sw_settings *settings = &trainer->run.settings;
    const struct sw_writes writes = writes_of(trainer);
    sw_answer_warn_writes(settings, trainer->job.plan, &writes, settings->steps - trainer->position.step);
}

/* Returns what plan would answer about the remaining steps. A --dry-run does not complete its plan. */
static struct sw_answer answer_of(const struct sw_trainer *trainer) {
    const struct sw_settings *settings = &trainer->run.settings;
    const struct sw_forecast *forecast = &trainer->forecast;
    const struct sw_device_info info = sw_devices_info(&trainer->job.devices);
    const bool known = forecast->step.step_s > 0.0;
    return (struct sw_answer){.settings = settings,
                              .config = &trainer->job.config,
                              .plan = trainer->job.plan,
                              .writes = writes_of(trainer),
                              .steps = settings->dry_run ? 0 : settings->steps - trainer->position.step,
                              .step = known ? &forecast->step : NULL,
                              .save_s = forecast->save_s,
                              .machine = info.model != NULL ? info.model : "this CPU",
                              .profile = &forecast->source};
}

static void say_answer(const struct sw_trainer *trainer) {
    const struct sw_answer answer = answer_of(trainer);
    char *text = NULL;
    size_t bytes;
    FILE *to = sw_log_is_quiet() ? NULL : open_memstream(&text, &bytes);
    if (to == NULL)
        return;
    sw_answer_print_plan(&answer, to);
    sw_answer_print_times(&answer, to);
    if (sw_text_stream_end(to, &text))
        sw_log_text(text);
    free(text);
}

/* Logs a schedule that changes in the middle of a run, so that the log explains the run. */
static void say_schedule(const struct sw_schedule *before, const struct sw_schedule *now) {
    if (before->steps == 0) /* the run begins */
        return;
    if (before->lr == now->lr && before->min_lr == now->min_lr && before->steps == now->steps)
        return;
    sw_log_info("the schedule from here on: --lr %g (was %g), --min-lr %g (was %g), --schedule-steps %lld (was %lld)",
                now->lr, before->lr, now->min_lr, before->min_lr, (long long)now->steps, (long long)before->steps);
}

static void say_adapters(const struct sw_trainer *trainer) {
    const struct sw_lora *lora = &trainer->run.settings.tuning.lora;
    const struct sw_units *units = sw_trainer_whole_units(trainer);
    if (lora->rank > 0)
        sw_log_info("adapters: rank %lld, scale %.3g, of %s%s%s; %lld of %lld parameters are trained",
                    (long long)lora->rank, sw_lora_scale(lora), lora->targets != NULL ? lora->targets : SW_LORA_ALL,
                    lora->modules_to_save != NULL ? ", and trained whole: " : "",
                    lora->modules_to_save != NULL ? lora->modules_to_save : "",
                    (long long)(sw_units_parameters(units) - sw_units_frozen_parameters(units)),
                    (long long)sw_units_parameters(units));
}

static void say_start(const struct sw_trainer *trainer) {
    const struct sw_settings *settings = &trainer->run.settings;
    const struct sw_device_info info = sw_devices_info(&trainer->job.devices);
    say_answer(trainer);
    sw_answer_warn_groups(settings, 0.0, 0.0);
    sw_answer_warn_state(trainer->forecast.step.step_s, trainer->forecast.narrow_step_s);
    say_writes(trainer);
    sw_log_info("computed on %s (%s, %s); %s", info.name, info.isa, SW_COUNT(info.threads, "thread"),
                sw_plan_commits(trainer->job.plan));
    say_adapters(trainer);
    if (settings->tuning.freeze != NULL)
        sw_log_info("frozen: %s, %lld of the parameters", settings->tuning.freeze,
                    (long long)sw_units_frozen_parameters(sw_trainer_whole_units(trainer)));
    const int64_t in_place_bytes = sw_plan_in_place_bytes(trainer->job.plan);
    char size[SW_SIZE_CHARS];
    if (in_place_bytes > 0)
        sw_log_info("frozen weights: %s are read in place from %s, without a copy of them",
                    sw_format_size(in_place_bytes, size), trainer->job.in_place);
    if (settings->tuning.base != SW_BASE_TYPED)
        sw_log_info("the frozen matrices of blocks are kept in %s",
                    sw_base_format_name((sw_base_format)settings->tuning.base));
    if (sw_settings_ranks(settings) > 1)
        sw_log_info("%lld ranks, %s at ZeRO stage %d; memory and store are those of each",
                    (long long)sw_settings_ranks(settings), sw_comm_transport_name(sw_ranks_comm(trainer->ranks)),
                    trainer->job.plan->spec.zero);
    if (sw_settings_stages(settings) > 1)
        sw_log_info("pipeline: %lld stages of %s, with %s layers%s", (long long)sw_settings_stages(settings),
                    SW_COUNT(sw_settings_stage_ranks(settings), "rank"), settings->pipeline_split,
                    sw_settings_turns(settings) > 1 ? ", turn by turn" : "");
    if (sw_settings_stages(settings) > 1 && sw_plan_ranks(trainer->job.plan) > 1)
        sw_log_info(
            "each rank adds up its micro-batches' gradients, and the ranks of a stage exchange them once a step");
    if (trainer->job.plan->spec.secondary_ranks > 1)
        sw_log_info("a second shard of the weights is kept among every %d ranks, on the %s",
                    trainer->job.plan->spec.secondary_ranks, sw_tier_name(trainer->job.plan->secondary_tier));
    say_data(trainer);
    if (settings->lr_was_open)
        sw_log_info("learning rate: %g, as --lr auto is for %s; --lr sets another", settings->lr,
                    settings->init                   ? "random weights"
                    : settings->tuning.lora.rank > 0 ? "adapters"
                                                     : "loaded weights");
    if (settings->dry_run)
        return;
    sw_costs_say_kill(trainer);
    if (trainer->position.step > 0)
        sw_log_info("continuing after step %lld", (long long)trainer->position.step);
    const struct sw_schedule schedule = sw_settings_schedule(settings);
    say_schedule(&trainer->past_schedule, &schedule);
    if (settings->steps > settings->schedule_steps && sw_schedule_lr(&schedule, settings->steps) == 0.0)
        sw_log_warn(
            "the schedule ends with a learning rate of 0 at step %lld, so later steps change nothing; resume with "
            "a longer --schedule-steps or with --min-lr",
            (long long)settings->schedule_steps);
}

/* Bits per token that a useful model must beat; computed only for small vocabularies. */
struct baselines {
    bool known;
    double unigram_bits, bigram_bits;
};

static struct baselines say_baselines(const struct sw_trainer *trainer) {
    SW_HANDLES_ERRORS();
    struct baselines to_beat = {0};
    if (trainer->run.config.vocab > BASELINE_VOCAB || sw_data_validation_windows(trainer->data) == 0)
        return to_beat;
    to_beat.known = sw_data_baselines(trainer->data, &to_beat.unigram_bits, &to_beat.bigram_bits) == SW_OK;
    if (to_beat.known)
        sw_log_info("to beat on the validation part: unigram model %.4f, bigram model %.4f bits a token",
                    to_beat.unigram_bits, to_beat.bigram_bits);
    return to_beat;
}

static void say_result(const struct sw_trainer *trainer, const struct baselines *to_beat) {
    const double bits = trainer->validation_loss / log(2.0);
    if (!to_beat->known || !(bits > 0.0))
        return;
    sw_log_info("bits a token on the validation part: unigram %.4f, bigram %.4f, this model %.4f: %.4f %s the bigram",
                to_beat->unigram_bits, to_beat->bigram_bits, bits, fabs(to_beat->bigram_bits - bits),
                bits < to_beat->bigram_bits ? "below" : "above");
}

/* Logs how the run ended, equally on all ranks. Returns the exit status. */
static int say_end(const struct sw_trainer *trainer, sw_run_end end) {
    static const struct {
        const char *what, *flags; /* flags: for the resume that continues */
        int exit_status;
    } endings[] = {[SW_END_DONE] = {"all steps are done", " --steps N", SW_EXIT_DONE},
                   [SW_END_STOPPED] = {"stopped on request", "", SW_EXIT_INTERRUPTED},
                   [SW_END_TIME_LIMIT] = {"--time-limit is reached", "", SW_EXIT_TIME_LIMIT},
                   [SW_END_EARLY] = {"--early-stop has ended the run", " --early-stop 0", SW_EXIT_DONE}};
    sw_log_info("%s; everything is saved; `spillway resume %s%s` continues", endings[end].what, trainer->folder,
                endings[end].flags);
    return endings[end].exit_status;
}

/* Logs what a --dry-run has checked. */
static int say_checked(const struct sw_ranks *ranks, const struct sw_trainer *trainer) {
    if (sw_ranks_rank(ranks) == 0) {
        say_start(trainer);
        sw_log_info("all of it fits%s; nothing was written, as --dry-run asks",
                    access(trainer->folder, F_OK) == 0 ? "" : ", and the run's folder will be made");
    }
    return SW_EXIT_DONE;
}

static int train_to_end(struct sw_ranks *ranks, struct sw_trainer *trainer) {
    sw_run_end end;
    if (sw_ranks_rank(ranks) == 0)
        say_start(trainer);
    const struct baselines to_beat = say_baselines(trainer);
    const sw_status status = sw_trainer_run(trainer, &end);
    if (status == SW_ERR_NOT_FINITE) {
        if (sw_ranks_rank(ranks) == 0)
            sw_command_fail(ranks->command, status);
        return SW_EXIT_NOT_FINITE;
    }
    if (status != SW_OK)
        return sw_command_fail_ranks(ranks, status);
    say_result(trainer, &to_beat);
    sw_costs_say_end(trainer);
    return say_end(trainer, end);
}

static int open_and_train(struct sw_ranks *ranks, struct sw_settings *settings, const struct sw_arguments *arguments,
                          sw_run_opener open) {
    struct sw_trainer *trainer = NULL;
    sw_status status = sw_ranks_begin_watch(ranks, settings->rank_timeout);
    if (status == SW_OK)
        status = open(ranks, settings, arguments, sw_signals_catch(sw_ranks_rank(ranks) == 0), &trainer);
    if (status != SW_OK)
        return sw_command_fail_ranks(ranks, status);
    const int code = trainer->run.settings.dry_run ? say_checked(ranks, trainer) : train_to_end(ranks, trainer);
    sw_trainer_close(trainer);
    return code;
}

/* Runs a command that trains: joins the ranks, parses the flags, opens the run, trains, logs how it ended and how to
 * continue. Returns the exit status. */
static int command_trains(const struct sw_command_line *line, struct sw_arguments arguments, sw_run_opener open) {
    struct sw_settings settings = {0};
    struct sw_ranks ranks;
    int code;
    if (!sw_command_begin(&ranks, line->command, &code))
        return code;
    if (sw_command_parse_ranks(&ranks, line, arguments.argc, arguments.argv, &settings, &code))
        code = open_and_train(&ranks, &settings, &arguments, open);
    sw_options_release(line, &settings);
    sw_command_end(&ranks, code);
    return code;
}

static sw_status make_run(struct sw_ranks *ranks, struct sw_settings *settings, const struct sw_arguments *arguments,
                          const volatile sig_atomic_t *stop, struct sw_trainer **out) {
    (void)arguments;
    return sw_trainer_create(settings, ranks, stop, out);
}

int sw_command_train(int argc, char **argv) {
    return command_trains(&sw_train_command, (struct sw_arguments){argc, argv}, make_run);
}

/* Returns the schedule's length if --schedule-steps is not given. If a run was to end within its schedule and now
 * continues beyond it, the schedule grows too: steps at its final rate, usually 0, would change nothing. A run that was
 * told to continue beyond its schedule keeps it. */
static int64_t steps_of_schedule(const struct sw_schedule *before, int64_t steps_before,
                                 const struct sw_settings *settings) {
    const bool goes_beyond = steps_before <= before->steps && settings->steps > before->steps;
    return goes_beyond && before->kind != SW_SCHEDULE_CONSTANT ? settings->steps : before->steps;
}

/* Parses the arguments again, on top of the run's settings. */
static sw_status apply_change(void *context, struct sw_settings *settings) {
    enum { NOT_GIVEN = 0 };
    const struct sw_arguments *arguments = context;
    const struct sw_schedule before = sw_settings_schedule(settings);
    const int64_t steps_before = settings->steps;
    bool help;
    settings->schedule_steps = NOT_GIVEN;
    SW_TRY(sw_options_parse(&sw_resume_command, arguments->argc, arguments->argv, settings, &help));
    if (settings->schedule_steps == NOT_GIVEN)
        settings->schedule_steps = steps_of_schedule(&before, steps_before, settings);
    return SW_OK;
}

static sw_status continue_run(struct sw_ranks *ranks, struct sw_settings *asked, const struct sw_arguments *arguments,
                              const volatile sig_atomic_t *stop, struct sw_trainer **out) {
    const sw_status status =
        sw_trainer_resume(asked->run, ranks, stop, apply_change, (void *)(uintptr_t)arguments, out);
    /* The flags were right by themselves: the conflict is between them and the run. */
    return status == SW_ERR_USAGE ? SW_ERR_ARG : status;
}

int sw_command_resume(int argc, char **argv) {
    return command_trains(&sw_resume_command, (struct sw_arguments){argc, argv}, continue_run);
}
