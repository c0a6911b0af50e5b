/* The start of plans and benches that several ranks make together. A rank alone agrees with itself. */
#ifndef SW_JOB_PLANNED_RANKS_H
#define SW_JOB_PLANNED_RANKS_H

#include "job/machine/devices.h"
#include "job/machine/ranks.h"
#include "job/settings/settings.h"
#include "model/hf/config.h"

/* Watches the ranks, and writes this rank's identity and its share of the cores into the settings. */
sw_status sw_planned_begin_ranks(struct sw_ranks *ranks, struct sw_settings *settings);
/* Fails unless all ranks have the same resolved settings, model and kind of device. Budgets become the least of any
 * rank. From then on NCCL moves the memory of GPUs. */
sw_status sw_planned_agree(struct sw_ranks *ranks, struct sw_settings *settings, const struct sw_model_config *config,
                           const struct sw_devices *devices);

#endif
