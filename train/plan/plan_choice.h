/* What settings leave open and prices decide, where there is something to win: how many micro-batches go through a unit
 * before the next (--order auto), and where updates run (--update auto). Bits are the same for all. */
#ifndef SW_TRAIN_PLAN_PLAN_CHOICE_H
#define SW_TRAIN_PLAN_PLAN_CHOICE_H

#include "offload/simulate/update_price.h"
#include "train/devices/ranks.h"
#include "train/plan/rates.h"

/* Groups of micro-batches that were tried: all, and powers of four below. */
enum { SW_CHOICE_MOST_GROUPS = 34 };

struct sw_plan_prices {
    struct sw_update_prices update;
    /* None where the order was not open. */
    struct {
        int64_t group;
        double step_s;   /* with updates on the host; infinite where it does not fit or is ruled out */
        double bound_s;  /* what the step cannot be below, where that rules it out; else infinite */
        bool too_long;   /* its plan would have more ops than SW_PLAN_MOST_OPS */
        double chosen_s; /* with updates where they are the cheapest; infinite where that was not looked for */
    } order[SW_CHOICE_MOST_GROUPS];
    int orders;
};

/* The outline of the plan that settings give. Where the order is open, of the largest group that fits, which the
 * settings then have. */
sw_status sw_plan_fit(struct sw_settings *settings, const struct sw_model *model, struct sw_plan **out);

/* Whether rates are to decide about a plan that settings gave. On a CPU they are not: the cores are the same for both
 * sides, and the device's adds copies. But rates from a file may be those of another machine. */
bool sw_plan_choice_is_open(const struct sw_settings *settings, const struct sw_devices *devices,
                            const struct sw_plan *plan);

/* Replaces an outline by the one that is cheapest by these rates. */
sw_status sw_plan_choose(struct sw_settings *settings, const struct sw_model *model, const struct sw_rates *rates,
                         struct sw_plan_prices *out_prices, struct sw_plan **plan);

/* At the start of training: measures and chooses, where it is open, and says what came of it; then completes the plan
 * and checks it. Where the rates cannot be had, the outline stays as it was. `folder` is the run's. Of several ranks
 * the first measures for all. out_step_s: the predicted seconds of a step; 0 where nothing was priced. */
sw_status sw_plan_choose_at_start(struct sw_settings *settings, struct sw_model *model,
                                  const struct sw_devices *devices, const char *folder, struct sw_ranks *ranks,
                                  struct sw_plan **plan, double *out_step_s);

#endif
