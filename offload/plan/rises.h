/* Rises: the ways in which a placement improves from the lowest one that fits. Each raises one thing, unit by unit in
 * forward order, as far as the budgets have room, so that what rises first takes the room of what rises after it. */
#ifndef SW_OFFLOAD_PLAN_RISES_H
#define SW_OFFLOAD_PLAN_RISES_H

typedef enum {
    SW_RISE_WEIGHTS_TO_DEVICE,
    SW_RISE_ACCUMULATORS_TO_DEVICE, /* those that lie between groups of micro-batches */
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
const char *sw_rise_name(sw_rise rise);

/* The order in which things rise. Optimizer and gradients rise to the host a second time after the last, as what went
 * to the device has left room there. */
struct sw_rise_order {
    sw_rise rise[SW_RISES]; /* each of them once */
    double share[SW_RISES]; /* by sw_rise: the most that may rise, as a share of the units; 1: as many as fit */
};

/* First what saves the most traffic for its bytes: weights (fetched twice for each group of micro-batches), the
 * accumulators that lie between groups (there and back for each), block inputs (once each way). What the device cannot
 * take goes to the host, optimizer state before gradients, of which the device then has those that would be left to the
 * drive; intermediates instead of recomputation come next, then optimizer state with its gradients. */
extern const struct sw_rise_order sw_rises_usual;

#endif
