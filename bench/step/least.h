/* The least bytes that a training step can move, by lane: from the model's shape and where its state lives, without a
 * look at any plan.
 *
 * These hold for a step by layer on one device:
 * - A block's weights that live elsewhere cross the link for the forward and for the backward pass. The last block's
 * and the head's cross it once, because there the passes meet.
 * - A tied embedding table crosses once. An untied one needs no more than the rows that the step's tokens can name.
 * - Each gradient leaves the device once. Optimizer state, as its format has it, is read once and written once. New
 * weights feed the next forward pass without a detour.
 * - Block inputs that do not stay on the device leave it and come back once. Their gradients need not leave it.
 * - Optimizer state that lives elsewhere but is updated on the device crosses the link both ways.
 * ZeRO-Infinity (arXiv 2104.07857, sections 4 and 5) counts by the same items. */
#ifndef SW_BENCH_STEP_LEAST_H
#define SW_BENCH_STEP_LEAST_H

#include "core/dtype.h"
#include "offload/plan/placement.h"
#include "offload/plan/plan.h"
#include "offload/plan/unit.h"

struct sw_least_shape {
    const struct sw_units *units;
    const struct sw_unit_placement *placement; /* one entry per unit */
    const int64_t *output_bytes;               /* one entry per unit, bytes of its output per micro-batch */
    const bool *shares_input; /* `[u]`: unit u's backward pass reads the kept input of an earlier unit */
    sw_dtype type;
    sw_grads_format grads; /* form of rounded gradients */
    int64_t micro_batches, tokens, seq;
    const bool *update_on_device; /* one entry per unit, as in struct sw_plan; NULL: no unit does */
    bool speculated; /* updates run in the backward pass: the forward pass reads weights from where they live */
};

void sw_least_bytes(const struct sw_least_shape *shape, int64_t out[SW_LANES]);

#endif
