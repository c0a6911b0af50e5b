/* A job: a model that is to be trained by these settings, ranks and devices, with its plan and its price. Every command
 * that plans or trains opens one by sw_job_open; what differs from it in memory, ranks, model or machine is a varied
 * job (sw_job_with), which shares all that stays the same. Whoever opened a job reads its members and changes none. */
#ifndef SW_JOB_JOB_H
#define SW_JOB_JOB_H

#include "job/forecast.h"
#include "job/machine/gpu_trust.h"
#include "job/machine/ranks.h"
#include "job/profile.h"
#include "job/settings/places.h"
#include "job/settings_plan.h"
#include "job/store.h"
#include "job/tensor_choice.h"
#include "offload/simulate/simulate.h"

/* How long one pass over --data is. */
struct sw_data_pass {
    int64_t tokens;       /* of the training part; 0: no data are given */
    int64_t windows;      /* of --seq tokens, as training counts them */
    int64_t sample_bytes; /* the first bytes of the text, from which both are estimated; 0: both are counted */
};

/* The plan of the same settings without --freeze. */
struct sw_unfrozen {
    bool fits;                    /* false: nothing below is known */
    double step_s;                /* predicted; NAN where the rates of the drives are not known */
    int64_t peak_bytes[SW_TIERS]; /* of device and host */
    int64_t disk_bytes, step_write_bytes;
};

/* The price of a step, and of the choices that were not taken. */
struct sw_job_price {
    struct sw_search_prices choices; /* predicted times of the choices that settings left open */
    struct sw_prediction prediction;
    double fast_s, slow_s; /* bounds of prediction.plain.step_s on a described machine; 0: not known */
    /* prediction.plain.step_s as if each tensor group lay within one node; 0: it does, or its nodes have no prices */
    double groups_in_nodes_s;
    struct sw_writes writes;
    bool may_save; /* save is valid: not every step commits, and the drives' rates are known */
    struct sw_save_price save;
    struct sw_unfrozen unfrozen; /* valid if the plan has frozen units */
};

struct sw_job {
    struct sw_settings *settings; /* resolved; the opener's, or `changed` of a varied job */
    struct sw_ranks *ranks;       /* ranks that open the job together; NULL: this process alone */
    struct sw_model_config config;
    bool documents;           /* micro-batches come with the starts of documents */
    bool forward_only;        /* there is no training; the caller makes the plan */
    int64_t context;          /* tokens that the KV cache of forward passes holds; 0: there is none */
    struct sw_data_pass data; /* one pass over --data, where a plan measures it */
    struct sw_places places;  /* where the store would be */
    struct sw_devices devices;
    bool is_described;         /* the device is a described one, and nothing is measured */
    bool measures;             /* measure this machine now, rather than take its profile */
    struct sw_profile profile; /* of the machine; empty as long as this one is not asked for it, and with --rates */
    struct sw_model *model;
    struct sw_plan *plan;                  /* an outline until it is priced */
    struct sw_machine_rates rates;         /* of the model's units; empty until the job is priced */
    struct sw_tensor_prices tensor_prices; /* predicted times of the sizes of tensor groups that --tensor left open */
    struct sw_job_price price;
    const struct sw_job *of;    /* the job that this one varies; NULL: it was opened */
    struct sw_settings changed; /* a varied job's; borrows its texts */
};

/* A job to be opened. Everything is borrowed for as long as the job. */
struct sw_job_spec {
    struct sw_settings *settings; /* as they were given; the job resolves them, in place */
    struct sw_ranks *ranks;
    const struct sw_model_config *config; /* NULL: that of settings->model */
    const struct sw_profile *machine;     /* a described one; NULL: that of settings->machine, or this machine */
    const char *folder; /* an existing folder on the drive of the store, for --nvme that names none; NULL: sw_job_place
                           says it later */
    bool measures;      /* as in struct sw_job */
    bool unplanned;     /* the job has a model and no plan, because the caller varies it or makes one */
    bool documents, forward_only; /* as in struct sw_job */
    int64_t context;              /* as in struct sw_job */
    /* A job that computes: the GPU must have passed its self-test, and its products take the algorithms of this record,
     * which in training then has those of rank 0. NULL: a job that only plans. */
    struct sw_algorithm_record *products;
    void *caller; /* given to the functions below, any of which may be NULL */
    /* Opens the data once the settings are resolved but for the steps, and resolves the steps. May set `documents` and
     * `data`. */
    sw_status (*open_data)(void *context, struct sw_job *job);
    /* Compares with the other ranks what all must have alike. NULL: model, precision and kind of device, and budgets
     * become the least of any rank. */
    sw_status (*agree)(void *context, struct sw_job *job);
    /* Follows the choice of the size of tensor groups, where it was open. */
    sw_status (*regroup)(void *context, struct sw_job *job);
};

/* Resolves the settings, opens the devices and the model, and makes the outline of the plan. Ranks call it together,
 * and fail together. The caller releases the job, also after a failure. */
sw_status sw_job_open(const struct sw_job_spec *spec, struct sw_job *out);
/* Releases everything but the settings. */
void sw_job_release(struct sw_job *job);

/* Returns the shape of the job's model. */
struct sw_model_shape sw_job_shape(const struct sw_job *job);

/* Says where the store is, as --nvme names it or in a folder that exists. */
sw_status sw_job_place(struct sw_job *job, const char *folder);

/* The difference of a varied job. */
struct sw_job_change {
    struct sw_settings settings;          /* from sw_job_same, and then edited; borrows its texts */
    double drives;                        /* factor of the drives' rates; 0: 1 */
    bool resolves;                        /* the settings are resolved again, as other ranks or another model ask for */
    const struct sw_model_config *config; /* NULL: the job's */
};

/* Returns no change. Order and size of chunks are open again where the settings had left them open. */
struct sw_job_change sw_job_same(const struct sw_job *job);
/* Makes the outline of a varied job. It borrows all that does not change: devices, profile, the model of a shape that
 * stays, and the rates of a job that was priced. The caller releases it before the job, also after a failure.
 * SW_ERR_BUDGET: it does not fit. */
sw_status sw_job_with(const struct sw_job *job, const struct sw_job_change *change, struct sw_job *out);
/* Counts the rates of the job's model by the profile. */
sw_status sw_job_count_rates(struct sw_job *job);
/* Chooses by the job's rates what is open in the plan, which stays an outline. most_ops: SW_SEARCH_OPS or
 * SW_SEARCH_QUICK_OPS. */
sw_status sw_job_choose(struct sw_job *job, int64_t most_ops);
/* Returns what a measurement of the job's machine is about. */
struct sw_rates_target sw_job_target(const struct sw_job *job);
/* Finds the profile of this machine for the job, or measures it. */
sw_status sw_job_find_profile(struct sw_job *job, const struct sw_profile_need *need);

/* Takes the rates of this machine's profile, of --rates, or of --machine, or measures them; chooses by them what is
 * open; completes the plan and predicts its step. Several ranks measure at once, and all take the rates of rank 0. */
sw_status sw_job_predict(struct sw_job *job);

/* Chooses at the start of training, by this machine's profile: replaces the outline and logs the choice, then completes
 * the plan and checks it. Measures the profile if none is kept and something is open; if that fails, the outline stays.
 * folder: the run's. *out is what rank 0 predicts, if there is a profile; the caller releases it. */
sw_status sw_job_start(struct sw_job *job, const char *folder, struct sw_forecast *out);

/* Returns the passes over the data that the steps of the settings are. Data are given. */
double sw_job_epochs(const struct sw_job *job);
/* Returns the time that saves add, as a share of the steps without one. price.may_save is set. */
double sw_job_save_share(const struct sw_job *job);
/* Returns the time of all steps with their saves, as far as these are known. */
double sw_job_run_s(const struct sw_job *job);
/* Returns the model's operations of a token in training: 6 for each parameter, without attention's products and without
 * what is computed again. */
double sw_job_token_flops(const struct sw_job *job);
/* Writes the file of --rates again, with the rates that were measured since. Does nothing without --rates. */
sw_status sw_job_keep_rates(const struct sw_job *job);

#endif
