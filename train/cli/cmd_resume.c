#include "core/log.h"
#include "core/size.h"
#include "train/cli/cmd_run.h"
#include "train/cli/commands.h"

#include <stdio.h>

static const char *steps_text(int64_t steps, char text[SW_SIZE_CHARS]) {
    if (steps == SW_OPTION_AUTO)
        return "auto";
    snprintf(text, SW_SIZE_CHARS, "%lld", (long long)steps);
    return text;
}

/* Logs a schedule that changes in the middle of a run, so that the log explains the run. */
static void say_schedule(const struct sw_schedule *before, const struct sw_settings *now) {
    char was[SW_SIZE_CHARS], is[SW_SIZE_CHARS];
    if (before->lr == now->lr && before->min_lr == now->min_lr && before->steps == now->schedule_steps)
        return;
    sw_log_info("the schedule from here on: --lr %g (was %g), --min-lr %g (was %g), --schedule-steps %s "
                "(was %s)",
                now->lr, before->lr, now->min_lr, before->min_lr, steps_text(now->schedule_steps, is),
                steps_text(before->steps, was));
}

/* Returns the schedule's length where --schedule-steps is not given. A run that ends within its schedule and now goes
 * on beyond it takes the schedule along: steps at the end's rate, which is usually 0, would change nothing. A run that
 * was told to go on beyond its schedule keeps it. */
static int64_t steps_of_schedule(const struct sw_schedule *before, int64_t steps_before,
                                 const struct sw_settings *settings) {
    const bool goes_beyond = steps_before <= before->steps && settings->steps > before->steps;
    if (!goes_beyond || before->kind == SW_SCHEDULE_CONSTANT)
        return before->steps;
    sw_log_info("the learning rate's schedule, which ended at step %lld, now ends with the run, at step %lld; "
                "--schedule-steps %lld keeps it as it was",
                (long long)before->steps, (long long)settings->steps, (long long)before->steps);
    return settings->steps;
}

/* Parses the arguments again, over the settings of the run. */
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
    say_schedule(&before, settings);
    return SW_OK;
}

static sw_status continue_run(struct sw_ranks *ranks, struct sw_settings *asked, const struct sw_arguments *arguments,
                              const volatile sig_atomic_t *stop, struct sw_trainer **out) {
    return sw_trainer_resume(asked->run, ranks, stop, apply_change, (void *)(uintptr_t)arguments, out);
}

int sw_command_resume(int argc, char **argv) {
    return sw_command_trains(&sw_resume_command, (struct sw_arguments){argc, argv}, continue_run);
}
