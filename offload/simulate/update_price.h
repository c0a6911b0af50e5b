/* Chooses by price where updates run. The host's cores read and write the optimizer where it lives; the device is
 * faster, but the optimizer then crosses the link both ways, unless it lives there. Plans for both and for mixtures are
 * simulated with a machine's rates, and the cheapest stays. Bits are the same for all. */
#ifndef SW_OFFLOAD_SIMULATE_UPDATE_PRICE_H
#define SW_OFFLOAD_SIMULATE_UPDATE_PRICE_H

#include "offload/plan/plan.h"
#include "offload/simulate/rates.h"

/* Seconds of a step that updates under the next forward pass. */
struct sw_update_prices {
    bool known;      /* there was a choice, and it was priced; else all are 0 */
    double host_s;   /* every update on the host, except where the optimizer lives on the device */
    double device_s; /* every update on the device; infinite where its chunks do not fit there */
    double chosen_s; /* the plan that was chosen */
};

/* Tells whether some unit's update can run on either side. */
bool sw_plan_has_update_choice(const struct sw_plan *plan);

/* Does the same as sw_plan_outline with the cheapest update_on_device; that of the specification is ignored. */
sw_status sw_plan_outline_by_price(const struct sw_plan_spec *spec, const struct sw_rates *rates,
                                   struct sw_update_prices *out_prices, struct sw_plan **out);

#endif
