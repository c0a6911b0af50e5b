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

/* Parses the arguments again, over the settings of the run. */
static sw_status apply_change(void *context, struct sw_settings *settings) {
    const struct sw_arguments *arguments = context;
    const struct sw_schedule before = sw_settings_schedule(settings);
    bool help;
    SW_TRY(sw_options_parse(&sw_resume_command, arguments->argc, arguments->argv, settings, &help));
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
