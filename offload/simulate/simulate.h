/* The simulator predicts how long a plan's steps take on a machine of given rates.
 *
 * Each lane starts its ops in order when their waits are met, as the engine's threads do. An op that runs by itself
 * takes its bytes or its arithmetic at the measured rate. Lanes that use one resource at the same time share it: the
 * cores, which on a CPU device compute, updates and copies all want, and the drive. When the ops at hand want more of a
 * resource than there is, all of them slow down in the same proportion.
 *
 * One stage of a pipeline is simulated, without waits for others; the time in which the pipeline fills and drains is
 * added to its step, as if all stages took as long as this one for a group of micro-batches. */
#ifndef SW_OFFLOAD_SIMULATE_SIMULATE_H
#define SW_OFFLOAD_SIMULATE_SIMULATE_H

#include "offload/engine/trace.h"
#include "offload/plan/plan.h"
#include "offload/simulate/rates.h"

struct sw_simulation {
    double step_s;                /* from the end of a step to the end of the next, once the pipeline is full */
    double bubble_s;              /* part of it in which a stage waits for other stages to fill and to drain */
    double lane_busy_s[SW_LANES]; /* one entry per lane: seconds of a step with an op of the lane under way */
    double cores_busy_s;          /* core-seconds of one step */
    double drive_busy_s;          /* seconds of a step in which the drive read or wrote */
    const char *bottleneck; /* the resource that is busy for the largest part of the step: a lane, "cores" or "drive" */
    double bottleneck_share; /* that part, from 0 to 1 */
};

/* Simulates steps of a program that can follow itself. redone: the redo of every step is needed. trace (may be NULL)
 * receives the predicted times. */
sw_status sw_simulate(const struct sw_plan *plan, sw_program_kind kind, bool redone, const struct sw_rates *rates,
                      struct sw_trace *trace, struct sw_simulation *out);

/* Simulates some steps by themselves, from a standstill to a standstill; *out counts all of them together. More than
 * one step needs a program that can follow itself. */
enum { SW_SIMULATE_MOST_STEPS = 6 };
sw_status sw_simulate_apart(const struct sw_plan *plan, sw_program_kind kind, int64_t steps,
                            const struct sw_rates *rates, struct sw_simulation *out);

/* Memory that simulations use one after the other. It begins as zeros. */
struct sw_simulate_room {
    void *ops, *events;
    int32_t op_capacity, event_capacity; /* entries */
};
void sw_simulate_room_destroy(struct sw_simulate_room *room);

/* Simulates, without a trace, the program of an outline, which is not one of the plan's and needs no index of lanes.
 * *out_busiest_s: the time of its busiest lane, a lower bound of the step. If that is enough_s or more, nothing is
 * simulated, and the step of *out is infinite. */
sw_status sw_simulate_program(const struct sw_plan *plan, const struct sw_program *program,
                              const struct sw_rates *rates, double enough_s, struct sw_simulate_room *room,
                              double *out_busiest_s, struct sw_simulation *out);

/* Returns the least seconds for which an op keeps its lane busy: by itself, and on a lane that was busy before. */
double sw_simulate_op(const struct sw_plan *plan, const struct sw_rates *rates, const struct sw_op *op);

/* A plan's steps in each way that they may run. */
struct sw_prediction {
    struct sw_simulation plain;      /* updates under the next forward pass */
    bool may_speculate;              /* the plan has two generations; the fields below are valid only then */
    struct sw_simulation speculated; /* updates in the backward pass, none redone */
    struct sw_simulation redone;     /* updates in the backward pass, all redone */
};
sw_status sw_predict(const struct sw_plan *plan, const struct sw_rates *rates, struct sw_prediction *out);

/* The price of a save, if not every step commits. */
struct sw_save_price {
    struct sw_simulation step; /* the step that carries the save */
    double cost_s;             /* by how much a save makes the training longer, on the steps around it too */
};
/* Prices a save in one of `every` steps. plain: the simulation of a step without a save. */
sw_status sw_predict_save(const struct sw_plan *plan, const struct sw_rates *rates, int64_t every,
                          const struct sw_simulation *plain, struct sw_save_price *out);

#endif
