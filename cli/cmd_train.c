#include "cli/cmd_run.h"
#include "cli/commands.h"

static sw_status make_run(struct sw_ranks *ranks, struct sw_settings *settings, const struct sw_arguments *arguments,
                          const volatile sig_atomic_t *stop, struct sw_trainer **out) {
    (void)arguments;
    return sw_trainer_create(settings, ranks, stop, out);
}

int sw_command_train(int argc, char **argv) {
    return sw_command_trains(&sw_train_command, (struct sw_arguments){argc, argv}, make_run);
}
