/* Chooses what settings leave open, by predicted step time: how many micro-batches pass through a unit before the next
 * (--order auto), where updates run (--update auto), and where state lives (--place auto, --recompute auto). The bits
 * of the result are the same for every choice. */
#ifndef SW_JOB_PLAN_CHOICE_H
#define SW_JOB_PLAN_CHOICE_H

#include "job/machine/devices.h"
#include "job/rates.h"
#include "offload/simulate/search.h"

/* Makes the outline of the plan for these settings. If --order is open, takes the largest group that fits and sets
 * settings->group to it. */
sw_status sw_plan_fit(struct sw_settings *settings, const struct sw_model *model, struct sw_plan **out);

/* Tells whether rates shall decide about a plan. On a CPU device they do not, because host and device are the same
 * cores and memory; but rates from a file may describe another machine, and then decide. */
bool sw_plan_choice_is_open(const struct sw_settings *settings, const struct sw_devices *devices,
                            const struct sw_plan *plan);

/* Replaces an outline by the one with the least predicted step time. most_ops: SW_SEARCH_OPS or SW_SEARCH_QUICK_OPS. */
sw_status sw_plan_choose(struct sw_settings *settings, const struct sw_model *model, const struct sw_rates *rates,
                         int64_t most_ops, struct sw_search_prices *out_prices, struct sw_plan **plan);

#endif
