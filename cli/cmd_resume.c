#include "cli/cmd_run.h"
#include "cli/commands.h"

/* Returns the schedule's length where --schedule-steps is not given. A run that ends within its schedule and now goes
 * on beyond it takes the schedule along: steps at the end's rate, which is usually 0, would change nothing. A run that
 * was told to go on beyond its schedule keeps it. */
static int64_t steps_of_schedule(const struct sw_schedule *before, int64_t steps_before,
                                 const struct sw_settings *settings) {
    const bool goes_beyond = steps_before <= before->steps && settings->steps > before->steps;
    return goes_beyond && before->kind != SW_SCHEDULE_CONSTANT ? settings->steps : before->steps;
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
    return SW_OK;
}

static sw_status continue_run(struct sw_ranks *ranks, struct sw_settings *asked, const struct sw_arguments *arguments,
                              const volatile sig_atomic_t *stop, struct sw_trainer **out) {
    const sw_status status =
        sw_trainer_resume(asked->run, ranks, stop, apply_change, (void *)(uintptr_t)arguments, out);
    /* The flags were right by themselves: what does not go together is theirs and the run's. */
    return status == SW_ERR_USAGE ? SW_ERR_ARG : status;
}

int sw_command_resume(int argc, char **argv) {
    return sw_command_trains(&sw_resume_command, (struct sw_arguments){argc, argv}, continue_run);
}
