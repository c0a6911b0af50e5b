/* Where updates run where --update leaves it open: by the prices of this machine, where there is something to win. */
#ifndef SW_TRAIN_UPDATE_CHOICE_H
#define SW_TRAIN_UPDATE_CHOICE_H

#include "offload/update_price.h"
#include "train/ranks.h"
#include "train/rates.h"

/* Whether rates are to decide about a plan that settings gave. On a CPU they are not: the cores are the same for both
 * sides, and the device's adds copies. But rates from a file may be those of another machine. */
bool sw_update_choice_is_open(const struct sw_settings *settings, const struct sw_devices *devices,
                              const struct sw_plan *plan);

/* Replaces a plan by the one that is cheapest by these rates. */
sw_status sw_update_choose(const struct sw_settings *settings, const struct sw_model *model,
                           const struct sw_rates *rates, struct sw_update_prices *out_prices, struct sw_plan **plan);

/* At the start of training: measures and chooses, where it is open, and says what came of it. Where the rates cannot be
 * had, updates stay on the host. `folder` is the run's. Of several ranks the first measures for all. */
sw_status sw_update_choose_at_start(const struct sw_settings *settings, struct sw_model *model,
                                    const struct sw_devices *devices, const char *folder, struct sw_ranks *ranks,
                                    struct sw_plan **plan);

#endif
