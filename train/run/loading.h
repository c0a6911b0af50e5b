/* A new run's weights on their way into it, and what is said of that. */
#ifndef SW_TRAIN_RUN_LOADING_H
#define SW_TRAIN_RUN_LOADING_H

#include "train/run/trainer.h"

/* Loads the trainer's source into its engine, commits that as step 0, and closes the source. */
sw_status sw_loading_run(struct sw_trainer *trainer);

#endif
