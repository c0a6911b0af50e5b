/* The least bytes that a training step can move, by lane: from the model's shape and where its state lives, without a
 * look at any plan.
 *
 * By layer, on one device: a block's weights that live elsewhere cross the link for the forward and for the backward
 * pass, the last block's and the head's once, because there the passes meet; a tied table once; of an untied one no
 * more than the rows that the step's tokens can name. Each gradient leaves the device once, each record is read and
 * written once, new weights feed the next forward pass without a detour. Boundaries that are not resident go out and
 * come back once; their gradients need not leave the device. Records whose update runs on the device, and that do not
 * live there, cross the link both ways. (Zero-Infinity, sections 4 and 5; see bench/step/README.md) */
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
    int64_t micro_batches, tokens, seq;
    const bool *update_on_device; /* one entry per unit, as in struct sw_plan; NULL: no unit does */
    bool speculated; /* updates run in the backward pass: the forward pass reads weights from where they live */
};

void sw_least_bytes(const struct sw_least_shape *shape, int64_t out[SW_LANES]);

#endif
