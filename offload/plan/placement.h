/* Placement: for each unit and state the tier where it lives. Decided here, obeyed by the plan. */
#ifndef SW_OFFLOAD_PLAN_PLACEMENT_H
#define SW_OFFLOAD_PLAN_PLACEMENT_H

#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum { SW_DEVICE = 0, SW_HOST = 1, SW_NVME = 2, SW_TIERS = 3 } sw_tier;
typedef enum { SW_WEIGHTS = 0, SW_GRADS = 1, SW_OPTIMIZER = 2, SW_ACTS = 3, SW_STATES = 4 } sw_state;

const char *sw_tier_name(sw_tier tier);
const char *sw_state_name(sw_state state);

/* The placement that the user asked for: for each state auto, or shares of its bytes on the tiers, units in forward
 * order: the first units up to share[SW_DEVICE] of the state's bytes on the device, the next up to share[SW_HOST] on
 * the host, the rest on NVMe. Shares add up to 1; a unit is never cut. */
struct sw_placement_request {
    bool automatic[SW_STATES];
    double share[SW_STATES][SW_TIERS];
    /* Where trained weights live whose units have frozen weights on NVMe: SW_HOST or SW_NVME. SW_DEVICE leaves it open:
     * the host, if it has room for all of them. */
    sw_tier trained;
};

/* Parses "auto", "grads=host,optimizer=nvme", "weights=nvme,trained=host" or "optimizer=device:20%/host:30%/nvme" (the
 * last without a share takes the rest; states not named are auto). */
sw_status sw_placement_parse(const char *text, struct sw_placement_request *out);

/* Returns the tier in whose share the middle of a unit falls, which begins at `before_bytes` of `total_bytes`. */
sw_tier sw_placement_of(const double share[SW_TIERS], int64_t before_bytes, int64_t bytes, int64_t total_bytes);

struct sw_unit_placement {
    sw_tier tier[SW_STATES];
    sw_tier accumulator; /* between groups of micro-batches: where its gradients will live, or on the device */
};

/* Rises: the ways in which a placement improves from the lowest one that fits. Each raises one thing, unit by unit in
 * forward order, as far as the budgets have room, so that what rises first takes the room of what rises after it. */
typedef enum {
    SW_RISE_WEIGHTS_TO_DEVICE,
    SW_RISE_ACCUMULATORS_TO_DEVICE, /* accumulators kept between groups of micro-batches */
    SW_RISE_ACTS_TO_DEVICE,
    SW_RISE_WEIGHTS_TO_HOST,
    SW_RISE_ACTS_TO_HOST,
    SW_RISE_OPTIMIZER_TO_HOST,
    SW_RISE_GRADS_TO_HOST,
    SW_RISE_GRADS_FROM_NVME,     /* to the device, those that the host had no room for */
    SW_RISE_INTERMEDIATES,       /* kept on the device instead of computed again */
    SW_RISE_OPTIMIZER_TO_DEVICE, /* with its gradients where the update runs there */
    SW_RISE_GRADS_TO_DEVICE,     /* where their update runs there */
    SW_RISE_OPTIMIZER_ALONE,     /* to the device, while its gradients stay where they are */
    SW_RISES
} sw_rise;

/* The order in which things rise. Optimizer and gradients rise to the host a second time after the last, as what went
 * to the device has left room there. */
struct sw_rise_order {
    sw_rise rise[SW_RISES]; /* each of them once */
    double share[SW_RISES]; /* by sw_rise: the most that may rise, as a share of the units; 1: as many as fit */
};

/* First what saves the most traffic for its bytes: weights (fetched twice for each group of micro-batches), the
 * accumulators that lie between groups (there and back for each), block inputs (once each way). State that the device
 * cannot take goes to the host, optimizer state before gradients; gradients left to the drive then go to the device;
 * intermediates instead of recomputation come next, then optimizer state with its gradients. */
extern const struct sw_rise_order sw_rises_usual;

#endif
