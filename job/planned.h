/* Makes a plan from settings and predicts its step, without a run: for `plan` and `bench step`. */
#ifndef SW_JOB_PLANNED_H
#define SW_JOB_PLANNED_H

#include "job/data_pass.h"
#include "job/described.h"
#include "job/plan_choice.h"
#include "job/profile_rates.h"
#include "job/rates.h"
#include "job/settings/places.h"
#include "job/settings_plan.h"
#include "job/tensor_choice.h"
#include "job/writes.h"
#include "offload/simulate/simulate.h"

/* The plan of the same settings without --freeze. */
struct sw_unfrozen {
    bool fits;                    /* false: nothing below is known */
    double step_s;                /* predicted; NAN where the rates of the drives are not known */
    int64_t peak_bytes[SW_TIERS]; /* of device and host */
    int64_t disk_bytes, step_write_bytes;
};

struct sw_planned {
    struct sw_settings settings;         /* the caller fills them; sw_planned_open resolves them */
    bool measures;                       /* set by the caller: measure this machine now, rather than take its profile */
    sw_data_pass_measured *measure_data; /* set by the caller, where settings may have data */
    struct sw_ranks *ranks;              /* ranks that plan and measure together; NULL: this process alone */
    struct sw_places places;             /* where the store would be: --nvme, or the current folder */
    struct sw_described_machine described; /* valid if settings.machine is not NULL */
    struct sw_model_config config;
    struct sw_data_pass data; /* one pass over --data */
    struct sw_devices devices;
    struct sw_model *model;
    struct sw_plan *plan;
    struct sw_machine_rates rates;
    struct sw_profile_source source;       /* the profile that the rates are from, if any */
    struct sw_search_prices prices;        /* predicted times of the choices that settings left open */
    struct sw_tensor_prices tensor_prices; /* predicted times of the sizes of tensor groups that --tensor left open */
    struct sw_prediction prediction;
    double fast_s, slow_s; /* bounds of prediction.plain.step_s on a described machine; 0: not known */
    /* prediction.plain.step_s as if each tensor group lay within one node; 0: it does, or its nodes have no prices */
    double groups_in_nodes_s;
    struct sw_writes writes;
    bool may_save; /* save is valid: not every step commits, and the drives' rates are known */
    struct sw_save_price save;
    struct sw_unfrozen unfrozen; /* valid if the plan has frozen units */
};

/* Returns the shape of the model, once the settings are resolved. */
struct sw_model_shape sw_planned_shape(const struct sw_planned *planned);

/* Resolves the settings, in which --tensor is not auto, and opens the device and the model. */
sw_status sw_planned_open(struct sw_planned *planned);
/* Does the same, chooses the size of tensor groups where it is open, and makes the outline of the plan. */
sw_status sw_planned_make(struct sw_planned *planned);

/* Takes the rates of this machine's profile, of --rates, or of --machine, or measures them; chooses by them what is
 * open; completes the plan and predicts its step. Several ranks measure at once, and all take the rates of rank 0. */
sw_status sw_planned_predict(struct sw_planned *planned);

/* Returns the time that saves add, as a share of the steps without one. may_save is set. */
double sw_planned_save_share(const struct sw_planned *planned);

/* Returns the time of all steps with their saves, as far as these are known. */
double sw_planned_run_s(const struct sw_planned *planned);

/* Returns the model's operations of a token in training: 6 for each parameter, without attention's products and without
 * what is computed again. */
double sw_planned_token_flops(const struct sw_planned *planned);

/* Finds the profile of this machine, or measures it again. The model was opened, and the caller releases the profile.
 */
sw_status sw_planned_profile(const struct sw_planned *planned, const struct sw_profile_need *need,
                             struct sw_profile *out);

/* Writes the file of --rates again, with the rates that were measured since. Does nothing without --rates. */
sw_status sw_planned_keep_rates(const struct sw_planned *planned);

/* Releases everything but the settings. */
void sw_planned_release(struct sw_planned *planned);

#endif
