/* Parts that train and resume share: the run itself, and the last words. */
#ifndef SW_TRAIN_CLI_CMD_RUN_H
#define SW_TRAIN_CLI_CMD_RUN_H

#include "train/run/trainer.h"

/* Trains, says how it ended and how to go on. Returns the exit status. */
int sw_run_to_end(struct sw_ranks *ranks, struct sw_trainer *trainer);

#endif
