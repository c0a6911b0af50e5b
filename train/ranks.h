/* Several ranks of a command. */
#ifndef SW_TRAIN_RANKS_H
#define SW_TRAIN_RANKS_H

#include <stdbool.h>

/* Whether this process is the only one of its job. Several would write one run at once: they are refused, by one
 * message, and *out_exit is the exit status. */
bool sw_command_is_alone(const char *command, int *out_exit);

#endif
