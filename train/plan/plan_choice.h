/* Chooses what settings leave open, by predicted step time: how many micro-batches pass through a unit before the next
 * (--order auto), where updates run (--update auto), and where state lives (--place auto, --recompute auto). The bits
 * of the result are the same for every choice. */
#ifndef SW_TRAIN_PLAN_PLAN_CHOICE_H
#define SW_TRAIN_PLAN_PLAN_CHOICE_H

#include "offload/simulate/search.h"
#include "train/devices/devices.h"
#include "train/plan/rates.h"

/* Makes the outline of the plan for these settings. If --order is open, takes the largest group that fits and sets
 * settings->group to it. */
sw_status sw_plan_fit(struct sw_settings *settings, const struct sw_model *model, struct sw_plan **out);

/* Tells whether rates have something to decide about a plan. */
bool sw_plan_choice_is_open(const struct sw_settings *settings, const struct sw_plan *plan);

/* Tells whether a start of training measures this machine for what is open, if nothing is kept. With a CPU as the
 * device it does not, as host and device are the same cores and memory, so that less is to be gained. */
bool sw_plan_choice_pays(const struct sw_settings *settings, const struct sw_devices *devices);

/* Replaces an outline by the one with the least predicted step time. */
sw_status sw_plan_choose(struct sw_settings *settings, const struct sw_model *model, const struct sw_rates *rates,
                         struct sw_search_prices *out_prices, struct sw_plan **plan);

#endif
