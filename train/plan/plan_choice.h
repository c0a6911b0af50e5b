/* Chooses what settings leave open, by predicted step time: how many micro-batches pass through a unit before the next
 * (--order auto), and where updates run (--update auto). The bits of the result are the same for every choice. */
#ifndef SW_TRAIN_PLAN_PLAN_CHOICE_H
#define SW_TRAIN_PLAN_PLAN_CHOICE_H

#include "offload/simulate/update_price.h"
#include "train/plan/rates.h"

/* The most group sizes that are tried: all micro-batches, and the powers of four below. */
enum { SW_CHOICE_MOST_GROUPS = 34 };

/* The price of a group size: predicted seconds of a step, which are infinite if the plan does not fit or needs a drive
 * that was not measured. */
struct sw_group_price {
    int64_t group;
    double step_s;   /* with updates on the host; infinite if the group is ruled out, too */
    double least_s;  /* a lower bound for any place of the updates; set with step_s */
    double bound_s;  /* a lower bound of the step that rules the group out; infinite if it is not ruled out */
    double chosen_s; /* with each update where it is cheapest; infinite if that was not searched */
    bool searched;   /* chosen_s was searched */
    bool too_long;   /* ruled out: its plan would have more ops than SW_PLAN_MOST_OPS */
};

struct sw_plan_prices {
    struct sw_update_prices update;
    struct sw_group_price order[SW_CHOICE_MOST_GROUPS]; /* one entry per group size that was tried */
    int orders;                                         /* number of entries; 0: --order left no choice */
};

/* Makes the outline of the plan for these settings. If --order is open, takes the largest group that fits and sets
 * settings->group to it. */
sw_status sw_plan_fit(struct sw_settings *settings, const struct sw_model *model, struct sw_plan **out);

/* Tells whether rates shall decide about a plan. On a CPU device they do not, because host and device are the same
 * cores and an update on the device adds copies; but rates from a file may describe another machine, and then decide.
 */
bool sw_plan_choice_is_open(const struct sw_settings *settings, const struct sw_devices *devices,
                            const struct sw_plan *plan);

/* Replaces an outline by the one with the least predicted step time. */
sw_status sw_plan_choose(struct sw_settings *settings, const struct sw_model *model, const struct sw_rates *rates,
                         struct sw_plan_prices *out_prices, struct sw_plan **plan);

#endif
