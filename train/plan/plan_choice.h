/* Chooses what settings leave open, by predicted step time: how many micro-batches pass through a unit before the next
 * (--order auto), where updates run (--update auto), and where state lives (--place auto, --recompute auto). The bits
 * of the result are the same for every choice. */
#ifndef SW_TRAIN_PLAN_PLAN_CHOICE_H
#define SW_TRAIN_PLAN_PLAN_CHOICE_H

#include "offload/simulate/search.h"
#include "train/devices/ranks.h"
#include "train/plan/forecast.h"
#include "train/plan/rates.h"

/* Makes the outline of the plan for these settings. If --order is open, takes the largest group that fits and sets
 * settings->group to it. */
sw_status sw_plan_fit(struct sw_settings *settings, const struct sw_model *model, struct sw_plan **out);

/* Tells whether rates have something to decide about a plan. */
bool sw_plan_choice_is_open(const struct sw_settings *settings, const struct sw_plan *plan);

/* Replaces an outline by the one with the least predicted step time. */
sw_status sw_plan_choose(struct sw_settings *settings, const struct sw_model *model, const struct sw_rates *rates,
                         struct sw_search_prices *out_prices, struct sw_plan **plan);

/* A start of training, for which a plan is chosen. */
struct sw_plan_start {
    struct sw_settings *settings;
    struct sw_model *model;
    const struct sw_devices *devices;
    const char *folder; /* the run's */
    struct sw_ranks *ranks;
};

/* Chooses at the start of training: measures this machine if something is open, replaces the outline and logs the
 * choice; then completes the plan and checks it. If measuring fails, the outline stays. Rank 0 measures for all ranks.
 * *out is what rank 0 predicts by these rates; the caller releases it. */
sw_status sw_plan_choose_at_start(const struct sw_plan_start *start, struct sw_plan **plan, struct sw_forecast *out);

#endif
