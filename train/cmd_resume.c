#include "train/cmd_run.h"
#include "train/commands.h"

#include <string.h>

/* The flags of resume, applied over the settings that the run began with. */
struct change {
    int argc;
    char **argv;
};

static sw_status apply_change(void *context, struct sw_settings *settings) {
    const struct change *change = context;
    bool help;
    return sw_options_parse(&sw_resume_command, change->argc, change->argv, settings, &help);
}

int sw_command_resume(int argc, char **argv) {
    struct sw_settings asked = {0};
    struct change change = {.argc = argc, .argv = argv};
    struct sw_trainer *trainer = NULL;
    int code;
    if (!sw_command_parse(&sw_resume_command, argc, argv, &asked, &code)) {
        sw_options_release(&sw_resume_command, &asked);
        return code;
    }
    sw_signals_catch();
    const sw_status status = sw_trainer_resume(asked.run, apply_change, &change, &trainer);
    if (status != SW_OK) {
        code = sw_command_fail("resume", status);
    } else {
        code = sw_run_to_end("resume", trainer);
        sw_trainer_close(trainer);
    }
    sw_options_release(&sw_resume_command, &asked);
    return code;
}
