#include "core/log.h"
#include "core/size.h"
#include "train/cli/cmd_ranks.h"
#include "train/cli/cmd_run.h"
#include "train/cli/commands.h"
#include "train/run/signals.h"

#include <stdio.h>

/* The arguments of resume, which are parsed over the settings of the run. */
struct change {
    int argc;
    char **argv;
};

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

static sw_status apply_change(void *context, struct sw_settings *settings) {
    const struct change *change = context;
    const struct sw_schedule before = sw_settings_schedule(settings);
    bool help;
    SW_TRY(sw_options_parse(&sw_resume_command, change->argc, change->argv, settings, &help));
    say_schedule(&before, settings);
    return SW_OK;
}

static int resume(struct sw_ranks *ranks, const struct sw_settings *asked, struct change *change) {
    struct sw_trainer *trainer = NULL;
    sw_status status = sw_ranks_begin_watch(ranks, asked->rank_timeout);
    if (status == SW_OK)
        status = sw_trainer_resume(asked->run, ranks, sw_signals_catch(sw_ranks_rank(ranks) == 0), apply_change, change,
                                   &trainer);
    if (status != SW_OK)
        return sw_command_fail_ranks(ranks, status);
    const int code = sw_run_to_end(ranks, trainer);
    sw_trainer_close(trainer);
    return code;
}

int sw_command_resume(int argc, char **argv) {
    struct sw_settings asked = {0};
    struct change change = {.argc = argc, .argv = argv};
    struct sw_ranks ranks;
    int code;
    if (!sw_command_begin(&ranks, "resume", &code))
        return code;
    if (sw_command_parse_ranks(&ranks, &sw_resume_command, argc, argv, &asked, &code))
        code = resume(&ranks, &asked, &change);
    sw_options_release(&sw_resume_command, &asked);
    sw_command_end(&ranks, code);
    return code;
}
