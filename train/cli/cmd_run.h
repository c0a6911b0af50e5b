/* The part of train and resume after the run is ready. */
#ifndef SW_TRAIN_CLI_CMD_RUN_H
#define SW_TRAIN_CLI_CMD_RUN_H

#include "train/run/trainer.h"

/* Trains, prints how it ended and how to continue. Returns the exit status. */
int sw_run_to_end(struct sw_ranks *ranks, struct sw_trainer *trainer);

#endif
