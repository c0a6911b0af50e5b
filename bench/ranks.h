/* What benches that several ranks run together do before they measure. Alone all of it is true. */
#ifndef SW_BENCH_RANKS_H
#define SW_BENCH_RANKS_H

#include "train/devices/devices.h"
#include "train/devices/ranks.h"
#include "train/hf/config.h"
#include "train/settings/settings.h"

/* Watches the ranks, and gives the settings this rank's place and its share of the cores. */
sw_status sw_bench_begin_ranks(struct sw_ranks *ranks, struct sw_settings *settings);
/* Resolved settings, the model and the kind of device are alike; budgets become the least that any rank has. NCCL then
 * moves what GPUs hold. */
sw_status sw_bench_agree(struct sw_ranks *ranks, struct sw_settings *settings, const struct sw_model_config *config,
                         const struct sw_devices *devices);

#endif
