/* What train and resume share: signals, the run itself, and the last words. */
#ifndef SW_TRAIN_CMD_RUN_H
#define SW_TRAIN_CMD_RUN_H

#include "train/trainer.h"

/* The first SIGINT or SIGTERM asks the run to end after the current step, a second one ends the process at once. */
void sw_signals_catch(void);

/* Trains, says how it ended and how to go on. Returns the exit status. */
int sw_run_to_end(const char *command, struct sw_trainer *trainer);

#endif
