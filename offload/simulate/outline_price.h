/* Prices an outline's step by given rates without making the whole plan, so that many outlines can be compared in
 * little memory and time. */
#ifndef SW_OFFLOAD_SIMULATE_OUTLINE_PRICE_H
#define SW_OFFLOAD_SIMULATE_OUTLINE_PRICE_H

#include "offload/simulate/simulate.h"

/* Lower bounds of a step's time: its lanes are busy for so long even if none waits for another. */
struct sw_step_bound {
    double step_s;   /* time of the busiest lane */
    double others_s; /* time of the busiest lane but the update lane */
    int64_t ops;     /* ops of the step's program that were priced */
};

/* Prices the ops of an outline's step, keeping none of them, until the busiest lanes reach the seconds of `enough`;
 * *out_slower tells whether they did, and *out has the times of the ops priced until then. */
sw_status sw_outline_bound(const struct sw_plan *plan, const struct sw_rates *rates, struct sw_step_bound enough,
                           struct sw_step_bound *out, bool *out_slower);

/* Returns the bytes that a lane moves in a step of an outline or of a plan. */
int64_t sw_outline_lane_bytes(const struct sw_plan *plan, sw_lane lane);

/* Tells whether a plan whose step has so many ops would have more than SW_PLAN_MOST_OPS in all its programs. */
bool sw_outline_is_too_long(const struct sw_plan *plan, int64_t ops);

/* The price of an outline's step. */
struct sw_outline_price {
    bool simulated;
    double least_s;            /* the time of the busiest lane, which the step does not undercut */
    struct sw_simulation step; /* valid if simulated, else its step_s is infinite */
    int64_t ops;
};

/* The steps that were simulated so far, by a hash of all that their prices depend on. Searches that compare plans of
 * one job meet many outlines again: a quick search and a full one, several stages, more memory. The caller destroys it.
 */
struct sw_price_memory;
sw_status sw_price_memory_create(struct sw_price_memory **out);
void sw_price_memory_destroy(struct sw_price_memory *memory);
/* Frees the room in which steps were simulated and keeps their prices. A search ends so, because the memory may live as
 * long as a training. memory: may be NULL. */
void sw_price_memory_drop_room(struct sw_price_memory *memory);

/* Makes the program of an outline's step, simulates it, unless its busiest lane takes as long as `enough_s` or its ops
 * are too many, and drops it. memory (may be NULL): spares that for steps that it knows, and changes no answer. */
sw_status sw_outline_simulate(const struct sw_plan *plan, const struct sw_rates *rates, double enough_s,
                              struct sw_price_memory *memory, struct sw_outline_price *out);

#endif
