/* Makes the plan that settings ask for, and chooses by predicted step time what they leave open: how many micro-batches
 * pass through a unit before the next (--order auto), where updates run (--update auto), and where state lives (--place
 * auto, --recompute auto). The bits of the result are the same for every choice. */
#ifndef SW_JOB_SETTINGS_PLAN_H
#define SW_JOB_SETTINGS_PLAN_H

#include "job/machine/devices.h"
#include "job/settings/settings.h"
#include "model/model.h"
#include "offload/simulate/search.h"

/* I/O requests that each lane of the store keeps in flight. */
enum { SW_STORE_IO_DEPTH = 32 };

/* Returns the shape of the model that these settings train. They must be resolved. */
struct sw_model_shape sw_settings_shape(const struct sw_settings *settings);

/* Makes the outline of the plan (sw_plan_outline). Updates that --update leaves open run on the host, and states that
 * --place leaves open rise in the usual order. *out_lack (may be NULL) is filled if the status is SW_ERR_BUDGET. */
sw_status sw_settings_outline(const struct sw_settings *settings, const struct sw_model *model,
                              struct sw_plan_lack *out_lack, struct sw_plan **out);
/* Completes an outline: makes its programs and checks them. */
sw_status sw_settings_complete_plan(struct sw_plan *plan);

/* Makes the outline of the plan for these settings. If --order is open, takes the largest group that fits and writes it
 * to settings->group. */
sw_status sw_plan_fit(struct sw_settings *settings, const struct sw_model *model, struct sw_plan **out);

/* Tells whether rates shall decide about a plan. On a CPU device they do not, because host and device are the same
 * cores and memory; but rates from a file may describe another machine, and then they do. */
bool sw_plan_choice_is_open(const struct sw_settings *settings, const struct sw_devices *devices,
                            const struct sw_plan *plan);

/* Replaces an outline by the one with the shortest predicted step. most_ops: SW_SEARCH_OPS or SW_SEARCH_QUICK_OPS.
 * memory: prices that searches share; may be NULL. */
sw_status sw_plan_choose(struct sw_settings *settings, const struct sw_model *model, const struct sw_rates *rates,
                         int64_t most_ops, struct sw_price_memory *memory, struct sw_search_prices *out_prices,
                         struct sw_plan **plan);

/* Opens the devices that the settings name. */
sw_status sw_settings_open_devices(const struct sw_settings *settings, struct sw_devices *out);

#endif
