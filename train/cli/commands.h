/* The program's commands. Each gets the arguments after its name and returns the exit status (core/exit.h). */
#ifndef SW_TRAIN_CLI_COMMANDS_H
#define SW_TRAIN_CLI_COMMANDS_H

#include "core/exit.h"
#include "core/status.h"
#include "train/settings/options.h"

int sw_command_doctor(int argc, char **argv);
int sw_command_eval(int argc, char **argv);
int sw_command_export(int argc, char **argv);
int sw_command_generate(int argc, char **argv);
int sw_command_plan(int argc, char **argv);
int sw_command_resume(int argc, char **argv);
int sw_command_train(int argc, char **argv);
int sw_command_verify(int argc, char **argv);

/* Prints the error as one line and returns the exit status that belongs to it. */
int sw_command_fail(const char *command, sw_status status);

/* A whole command: parses into target (zero before, released after) and runs it. Returns the exit status. */
int sw_command_run(const struct sw_command_line *line, int argc, char **argv, void *target,
                   sw_status (*run)(const void *target));

/* Reads a run by an attempt, and by another where its training has written over what was being read
 * (SW_ERR_OVERTAKEN), but not for ever. Every attempt begins as the first did: end takes back what a failed one did. */
sw_status sw_command_read_run(sw_status (*attempt)(void *context), void (*end)(void *context), void *context);

/* Defaults and arguments into target. Returns true where the command goes on; else *out_exit is its exit status. */
bool sw_command_parse(const struct sw_command_line *line, int argc, char **argv, void *target, int *out_exit);

#endif
