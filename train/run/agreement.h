/* What the ranks of a run must have alike before anything is made of it. Alone, all of this is true. */
#ifndef SW_TRAIN_RUN_AGREEMENT_H
#define SW_TRAIN_RUN_AGREEMENT_H

#include "train/devices/ranks.h"
#include "train/run/trainer.h"

/* The flags, but for those that each rank may have of its own. The first that differs is named. */
sw_status sw_agree_on_settings(struct sw_ranks *ranks, const struct sw_settings *settings);

/* The run's folder, model, weights and data, and the kind of device that computes. The budgets become the least that
 * any rank has, since all obey one plan. */
sw_status sw_agree_on_inputs(struct sw_trainer *trainer);

/* On what they will do together: ranks that differ in it would wait for each other for ever. */
sw_status sw_agree_on_plan(struct sw_trainer *trainer);

#endif
