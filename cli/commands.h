/* The program's commands. Each gets the arguments after its name and returns the exit status (core/status.h). */
#ifndef SW_CLI_COMMANDS_H
#define SW_CLI_COMMANDS_H

#include "core/status.h"
#include "job/machine/ranks.h"
#include "job/settings/options.h"

#include <stdio.h>

int sw_command_doctor(int argc, char **argv);
int sw_command_eval(int argc, char **argv);
int sw_command_export(int argc, char **argv);
int sw_command_generate(int argc, char **argv);
int sw_command_inspect(int argc, char **argv);
int sw_command_plan(int argc, char **argv);
int sw_command_report(int argc, char **argv);
int sw_command_resume(int argc, char **argv);
int sw_command_tensors(int argc, char **argv);
int sw_command_tokenize(int argc, char **argv);
int sw_command_train(int argc, char **argv);
int sw_command_verify(int argc, char **argv);

/* Prints the error as one line on standard error and returns its exit status: SW_EXIT_USAGE for SW_ERR_USAGE, else
 * SW_EXIT_FAILED. */
int sw_command_fail(const char *command, sw_status status);

/* Runs a whole command: parses the arguments into target (zeroed before, released after) and calls run. Returns the
 * exit status. */
int sw_command_run(const struct sw_command_line *line, int argc, char **argv, void *target,
                   sw_status (*run)(const void *target));

/* Prints a sentence of a report in the columns of its stream (sw_log_columns): the first line begins at `column`,
 * further ones at `indent`. The caller has already printed the columns before it. */
__attribute__((format(printf, 4, 5))) void sw_command_print_to(FILE *to, int column, int indent, const char *format,
                                                               ...);
/* Does the same on standard output. */
#define sw_command_print(column, indent, ...) sw_command_print_to(stdout, column, indent, __VA_ARGS__)

/* Prints the object of --json on standard output and releases it. NULL fails for lack of memory. */
sw_status sw_command_print_json(json_t *object);

/* Reads a run by calling `attempt`, up to a limit again while it fails with SW_ERR_OVERTAKEN, because training has
 * overwritten what was being read. `end` undoes a failed attempt, so that the next one starts like the first. */
sw_status sw_command_read_run(sw_status (*attempt)(void *context), void (*end)(void *context), void *context);

/* Commands that several ranks run together: they start the same way on all ranks, and an error is printed once. */

/* Finds the other ranks and checks that they run the same program and command. Returns false, with the exit status in
 * *out_exit, on failure. */
bool sw_command_begin(struct sw_ranks *ranks, const char *command, int *out_exit);
/* Fills target with the defaults and the arguments. Returns true if the command should run; otherwise *out_exit is its
 * exit status. If the arguments of any rank are wrong, every rank ends. */
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
