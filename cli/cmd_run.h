/* The part that train and resume share: everything but how the run is opened. */
#ifndef SW_CLI_CMD_RUN_H
#define SW_CLI_CMD_RUN_H

#include "run/trainer.h"

/* A command's arguments, behind its name. */
struct sw_arguments {
    int argc;
    char **argv;
};

/* Makes a run or continues one. `settings` hold the flags of the command line; the callee may move them. */
typedef sw_status (*sw_run_opener)(struct sw_ranks *ranks, struct sw_settings *settings,
                                   const struct sw_arguments *arguments, const volatile sig_atomic_t *stop,
                                   struct sw_trainer **out);

/* Runs a command that trains: joins the ranks, parses the flags, opens the run, trains, logs how it ended and how to
 * continue. Returns the exit status. */
int sw_command_trains(const struct sw_command_line *line, struct sw_arguments arguments, sw_run_opener open);

#endif
