/* Makes the plan that settings ask for. */
#ifndef SW_JOB_SETTINGS_PLAN_H
#define SW_JOB_SETTINGS_PLAN_H

#include "job/machine/devices.h"
#include "job/settings/settings.h"
#include "model/model.h"
#include "offload/simulate/search.h"

/* I/O requests that each lane of the store keeps in flight. */
enum { SW_STORE_IO_DEPTH = 32 };

/* Makes the outline of the plan (sw_plan_outline). Updates that --update leaves open run on the host, and
 * states that --place leaves open rise in the usual order. *out_lack (may be
 * NULL) is filled if the status is SW_ERR_BUDGET. */
sw_status sw_settings_outline(const struct sw_settings *settings, const struct sw_model *model,
                              struct sw_plan_lack *out_lack, struct sw_plan **out);
/* Makes the outline that is the cheapest by these rates in what is open (sw_plan_search). */
sw_status sw_settings_search(const struct sw_settings *settings, const struct sw_model *model,
                             const struct sw_search_open *open, const struct sw_rates *rates,
                             struct sw_search_prices *out_prices, struct sw_plan **out);
/* Completes an outline: makes its programs and checks them. */
sw_status sw_settings_complete_plan(struct sw_plan *plan);
/* Makes the complete plan, checked. */
sw_status sw_settings_plan(const struct sw_settings *settings, const struct sw_model *model, struct sw_plan **out);
/* Opens the devices that the settings name. */
sw_status sw_settings_open_devices(const struct sw_settings *settings, struct sw_devices *out);

#endif
