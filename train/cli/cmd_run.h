/* The part of train and resume after the run is ready. */
#ifndef SW_TRAIN_CLI_CMD_RUN_H
#define SW_TRAIN_CLI_CMD_RUN_H

#include "train/run/trainer.h"

/* Logs what a --dry-run has checked. Returns the exit status. */
int sw_run_say_checked(struct sw_ranks *ranks, const struct sw_trainer *trainer);
/* Trains, prints how it ended and how to continue. Returns the exit status. */
int sw_run_to_end(struct sw_ranks *ranks, struct sw_trainer *trainer);

#endif
