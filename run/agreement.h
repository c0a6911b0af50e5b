/* Checks that the ranks of a run agree, before anything is created. With one rank nothing is checked. */
#ifndef SW_RUN_AGREEMENT_H
#define SW_RUN_AGREEMENT_H

#include "job/machine/ranks.h"
#include "run/trainer.h"

/* Compares all flags except those that each rank may choose for itself. The error names the first that differs. */
sw_status sw_agree_on_settings(struct sw_ranks *ranks, const struct sw_settings *settings);

/* Compares the run's folder, model, weights, data and kind of device. Sets each budget to the smallest of all ranks,
 * since all obey one plan. */
sw_status sw_agree_on_inputs(struct sw_trainer *trainer);

/* Compares the collectives of the plans. Ranks with different collectives would wait for each other for ever. */
sw_status sw_agree_on_plan(struct sw_trainer *trainer);

#endif
