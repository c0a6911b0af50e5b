/* The plan that the settings of a run give for its model. */
#ifndef SW_TRAIN_PLAN_SETTINGS_PLAN_H
#define SW_TRAIN_PLAN_SETTINGS_PLAN_H

#include "offload/simulate/update_price.h"
#include "train/devices/devices.h"
#include "train/model/model.h"
#include "train/settings/settings.h"

/* Requests that a lane of the store keeps in flight. */
enum { SW_STORE_IO_DEPTH = 32 };

/* The outline of the plan that settings give for a model (sw_plan_outline). Updates whose place they leave open are on
 * the host. out_lack (NULL: of no interest) is filled with SW_ERR_BUDGET. */
sw_status sw_settings_outline(const struct sw_settings *settings, const struct sw_model *model,
                              struct sw_plan_lack *out_lack, struct sw_plan **out);
/* The same with every update where it is cheapest by these rates. */
sw_status sw_settings_outline_by_price(const struct sw_settings *settings, const struct sw_model *model,
                                       const struct sw_rates *rates, struct sw_update_prices *out_prices,
                                       struct sw_plan **out);
/* Makes the programs of an outline and checks them. */
sw_status sw_settings_complete_plan(struct sw_plan *plan);
/* Both: the plan that settings give, checked. */
sw_status sw_settings_plan(const struct sw_settings *settings, const struct sw_model *model, struct sw_plan **out);
/* The devices that settings name. */
sw_status sw_settings_open_devices(const struct sw_settings *settings, struct sw_devices *out);

#endif
