/* A command that several ranks run together: it begins alike on all of them, and what goes wrong is said once. */
#ifndef SW_TRAIN_CLI_CMD_RANKS_H
#define SW_TRAIN_CLI_CMD_RANKS_H

#include "train/cli/commands.h"
#include "train/devices/ranks.h"

/* Finds the other ranks and sees that they run the same program and command. false: *out_exit is the exit status. */
bool sw_command_begin(struct sw_ranks *ranks, const char *command, int *out_exit);
/* As sw_command_parse. Every rank ends where any has wrong arguments. */
bool sw_command_parse_ranks(struct sw_ranks *ranks, const struct sw_command_line *line, int argc, char **argv,
                            void *target, int *out_exit);
/* Says an error once, whichever ranks have it, and returns the exit status. The job is over. */
int sw_command_fail_ranks(struct sw_ranks *ranks, sw_status status);
/* The last call on every rank, whatever its exit status. */
void sw_command_end(struct sw_ranks *ranks, int exit_status);

/* Whether this process is the only one of its job. Commands that ranks cannot share refuse several by one message, and
 * *out_exit is the exit status. */
bool sw_command_is_alone(const char *command, int *out_exit);

#endif
