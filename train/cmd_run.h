/* What train and resume share: signals, the run itself, and the last words. */
#ifndef SW_TRAIN_CMD_RUN_H
#define SW_TRAIN_CMD_RUN_H

#include "train/trainer.h"

/* The first SIGINT or SIGTERM sets what this returns: a run that is made ends at once, one that trains after the
 * current step. A second one ends the process. */
const volatile sig_atomic_t *sw_signals_catch(void);

/* Trains, says how it ended and how to go on. Returns the exit status. */
int sw_run_to_end(const char *command, struct sw_trainer *trainer);

#endif
