/* Loads the weights of a new run, and logs how long that takes. */
#ifndef SW_RUN_LOADING_H
#define SW_RUN_LOADING_H

#include "run/trainer.h"

/* Loads the trainer's source into its engine, commits the weights as step 0, and closes the source. */
sw_status sw_loading_run(struct sw_trainer *trainer);

#endif
