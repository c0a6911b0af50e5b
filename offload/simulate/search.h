/* Searches for the plan with the least simulated step: how many micro-batches pass through a unit before the next,
 * where updates run, and which states get the fast tiers. The bits of a step are the same for every choice.
 *
 * Updates: the host's cores read and write the optimizer where it lives; the device is faster, but the optimizer
 * then crosses the link both ways, unless it lives there. Placement: what rises first, and how far
 * (offload/plan/placement.h). Plans are outlined, bounded by the work of each lane, and simulated if they may win. */
#ifndef SW_OFFLOAD_SIMULATE_SEARCH_H
#define SW_OFFLOAD_SIMULATE_SEARCH_H

#include "offload/plan/plan.h"
#include "offload/simulate/rates.h"

/* The most group sizes that are tried. */
enum { SW_SEARCH_MOST_GROUPS = 34 };

/* About how many ops of plans a search simulates: a few seconds' work, or less than one second if many plans are asked
 * for. */
enum { SW_SEARCH_OPS = 9000000, SW_SEARCH_QUICK_OPS = 1500000 };

/* The choices that are open. */
struct sw_search_open {
    int64_t group[SW_SEARCH_MOST_GROUPS]; /* sizes to try instead of the specification's */
    int groups;                           /* entries of group; 0: the specification's only */
    bool updates;                         /* where updates run: the specification's update_on_device is ignored */
    bool placement;                       /* the order and shares of rises: the specification's `rises` is ignored */
    int64_t most_ops;                     /* SW_SEARCH_*OPS */
    int64_t chunk_factor; /* chunks may be as large as the specification's times this power of two; 0: they are given */
    struct sw_price_memory *memory; /* prices that searches share (outline_price.h); NULL: shared with none */
};

/* The price of a group size: predicted seconds of a step, which are infinite if the plan does not fit or needs a drive
 * that was not measured. */
struct sw_group_price {
    int64_t group;
    double step_s;   /* with updates on the host; infinite if the group is ruled out, too */
    double least_s;  /* a lower bound for any place of the updates; set with step_s */
    double bound_s;  /* a lower bound of the step that rules the group out; infinite if it is not ruled out */
    double chosen_s; /* with the cheapest choice of everything that is open; infinite if that was not searched */
    bool searched;   /* chosen_s was searched */
    bool too_long;   /* ruled out: its plan would have more ops than SW_PLAN_MOST_OPS */
};

/* Seconds of a step that updates under the next forward pass, in the order that was chosen. */
struct sw_update_prices {
    bool known;      /* there was a choice, and it was priced; else all are 0 */
    double host_s;   /* every update on the host, except where the optimizer lives on the device */
    double device_s; /* every update on the device; infinite if its chunks do not fit there */
    double chosen_s; /* the plan that was chosen */
};

/* The gain of the search for a placement, in the order that was chosen. */
struct sw_placement_price {
    bool known;               /* there was a choice, and it was priced; else all are 0 */
    double usual_s;           /* a step with the usual order of rises */
    double chosen_s;          /* the plan that was chosen */
    int64_t tried, simulated; /* different plans that were tried, and how many of them no bound ruled out */
};

struct sw_search_prices {
    struct sw_update_prices update;
    struct sw_placement_price placement;
    struct sw_group_price order[SW_SEARCH_MOST_GROUPS]; /* one entry per group size that was tried */
    int orders;                                         /* number of entries; 0: the order was not open */
};

/* Tells whether some unit's update can run on either side. */
bool sw_plan_has_update_choice(const struct sw_plan *plan);
/* Tells whether the budgets keep some state whose tier is open out of the fastest tier. */
bool sw_plan_has_placement_choice(const struct sw_plan *plan);

/* Makes the outline of a plan (sw_plan_outline) with the cheapest of everything that is open. out: the caller destroys
 * it. */
sw_status sw_plan_search(const struct sw_plan_spec *spec, const struct sw_search_open *open,
                         const struct sw_rates *rates, struct sw_search_prices *out_prices, struct sw_plan **out);

#endif
