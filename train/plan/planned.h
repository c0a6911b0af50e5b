/* From settings to a plan and its price, without a run: what `plan` shows and `bench step` measures. */
#ifndef SW_TRAIN_PLAN_PLANNED_H
#define SW_TRAIN_PLAN_PLANNED_H

#include "offload/simulate/simulate.h"
#include "train/plan/described.h"
#include "train/plan/plan_choice.h"
#include "train/plan/rates.h"
#include "train/plan/settings_plan.h"
#include "train/settings/places.h"
#include "train/stores/writes.h"

struct sw_planned {
    struct sw_settings settings;           /* filled before sw_planned_open, which resolves them */
    struct sw_ranks *ranks;                /* that plan and measure together; NULL: this process alone */
    struct sw_places places;               /* of the store: those of --nvme, or the current folder */
    struct sw_described_machine described; /* where settings.machine names one */
    struct sw_model_config config;
    struct sw_devices devices;
    struct sw_model *model;
    struct sw_plan *plan;
    struct sw_machine_rates rates;
    struct sw_plan_prices prices; /* of what settings left open */
    struct sw_prediction prediction;
    struct sw_writes writes;
    bool may_save; /* not every step commits, and the drives' rates are known */
    struct sw_save_price save;
};

/* Device and model. */
sw_status sw_planned_open(struct sw_planned *planned);
/* And the plan's outline. */
sw_status sw_planned_make(struct sw_planned *planned);

/* Measures the rates, or reads them where --rates says, chooses by them what is open, completes the
 * plan and predicts its step. Ranks measure at once, and all take
 * those of rank 0. */
sw_status sw_planned_predict(struct sw_planned *planned);

/* Writes the rates again where --rates says, with what was measured since. */
sw_status sw_planned_keep_rates(const struct sw_planned *planned);

/* Whether anything of the plan is on NVMe. */
bool sw_plan_uses_nvme(const struct sw_plan *plan);

/* Everything but the settings. */
void sw_planned_release(struct sw_planned *planned);

#endif
