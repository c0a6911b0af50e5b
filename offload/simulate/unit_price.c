#include "offload/simulate/unit_price.h"

#include <math.h>

/* A norm's forward pass goes over memory about so often: its input and its output. */
enum { NORM_PASSES = 2 };

/* Returns the time of a pass of a block or the head whose measured time includes its norm. With sequence parallelism
 * the norm is an op of its own, so its pass over all rows is taken off. */
static double without_norm_s(const struct sw_plan *plan, const struct sw_rates *rates, double seconds) {
    const double norm_bytes = NORM_PASSES * (double)plan->spec.output_bytes[0];
    return sw_plan_is_sequence_parallel(plan) ? fmax(0.0, seconds - norm_bytes / rates->finish.bytes_per_s) : seconds;
}

/* Returns the time of a backward op, which may leave two products to ops of their own. */
static double backward_s(const struct sw_plan *plan, const struct sw_rates *rates, int64_t unit) {
    const bool splits = sw_plan_splits_backward(plan, unit);
    const double products_s = splits ? rates->last_product_s[unit] + rates->first_product_s[unit] : 0.0;
    const double again_s[SW_RECOMPUTES] = {
        [SW_RECOMPUTE_DERIVED] = rates->derive_s[unit], [SW_RECOMPUTE_UNIT] = rates->recompute_s[unit]};
    return fmax(0.0, rates->backward_s[unit] - products_s) +
           without_norm_s(plan, rates, again_s[plan->recompute[unit]]);
}

/* Returns the time of the head, forward and backward. Beyond the forward pass it has two products of equal size, of
 * which a tied table that is frozen needs one. */
static double head_s(const struct sw_plan *plan, const struct sw_rates *rates, int64_t head) {
    const bool no_table_gradient = plan->spec.units->tied && !sw_plan_trains(plan, 0);
    return no_table_gradient ? 0.5 * (rates->forward_s[head] + rates->backward_s[head]) : rates->backward_s[head];
}

double sw_unit_op_s(const struct sw_plan *plan, const struct sw_rates *rates, const struct sw_op *op) {
    switch (op->kind) {
    case SW_OP_BACKWARD: return backward_s(plan, rates, op->unit);
    case SW_OP_BACKWARD_LAST: return rates->last_product_s[op->unit];
    case SW_OP_BACKWARD_FIRST: return rates->first_product_s[op->unit];
    case SW_OP_FORWARD_BACKWARD_HEAD: return without_norm_s(plan, rates, head_s(plan, rates, op->unit));
    case SW_OP_COMPUTE_LOSS: return sw_plan_tensor_ranks(plan) > 1 ? 0.0 : rates->forward_s[op->unit];
    default: return op->unit == 0 ? rates->forward_s[0] : without_norm_s(plan, rates, rates->forward_s[op->unit]);
    }
}
