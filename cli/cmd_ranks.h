/* Commands that several ranks run together: they start the same way on all ranks, and an error is printed once. */
#ifndef SW_CLI_CMD_RANKS_H
#define SW_CLI_CMD_RANKS_H

#include "cli/commands.h"
#include "job/machine/ranks.h"

/* Finds the other ranks and checks that they run the same program and command. Returns false, with the exit status in
 * *out_exit, on failure. */
bool sw_command_begin(struct sw_ranks *ranks, const char *command, int *out_exit);
/* Does what sw_command_parse does. If the arguments of any rank are wrong, every rank ends. */
bool sw_command_parse_ranks(struct sw_ranks *ranks, const struct sw_command_line *line, int argc, char **argv,
                            void *target, int *out_exit);
/* Prints an error once, whichever ranks have it, and returns the exit status. The job is over. */
int sw_command_fail_ranks(struct sw_ranks *ranks, sw_status status);
/* Ends the command: the last call on every rank, whatever the exit status. */
void sw_command_end(struct sw_ranks *ranks, int exit_status);

/* Tells whether this process is the only one of its job. If not, prints one message that ranks cannot share the
 * command, and sets *out_exit. */
bool sw_command_is_alone(const char *command, int *out_exit);

#endif
