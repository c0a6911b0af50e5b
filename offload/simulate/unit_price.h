/* The time of the ops that compute units, by the measured times of these. */
#ifndef SW_OFFLOAD_SIMULATE_UNIT_PRICE_H
#define SW_OFFLOAD_SIMULATE_UNIT_PRICE_H

#include "offload/plan/plan.h"
#include "offload/simulate/rates.h"

/* Returns the seconds of a forward or backward op, or of one of the head. */
double sw_unit_op_s(const struct sw_plan *plan, const struct sw_rates *rates, const struct sw_op *op);

#endif
