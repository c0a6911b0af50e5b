/* What train and resume share: signals, the run itself, and the last words. */
#ifndef SW_TRAIN_CMD_RUN_H
#define SW_TRAIN_CMD_RUN_H

#include "train/trainer.h"

/* The first SIGINT, SIGTERM or SIGUSR1 sets what this returns, and says so if `speaks`: a run that is made ends at
 * once, one that trains after the current step. A second SIGINT or SIGTERM ends the process. SIGUSR1 is what mpirun
 * forwards and batch systems send ahead of a job's end. */
const volatile sig_atomic_t *sw_signals_catch(bool speaks);

/* Trains, says how it ended and how to go on. Returns the exit status. */
int sw_run_to_end(struct sw_ranks *ranks, struct sw_trainer *trainer);

#endif
