/* A job: a model to be trained with these settings, ranks and devices, with its plan and its price. Every command that
 * plans or trains opens one by sw_job_open. A variation in memory, ranks, model or machine is a varied job
 * (sw_job_with), which shares everything that stays the same. Whoever opens a job reads its members and changes none.
 */
#ifndef SW_JOB_JOB_H
#define SW_JOB_JOB_H

#include "job/machine/gpu_trust.h"
#include "job/machine/ranks.h"
#include "job/profile.h"
#include "job/settings/places.h"
#include "job/settings_plan.h"
#include "job/store.h"
#include "offload/simulate/simulate.h"

/* Tell whether the size of tensor groups, the stages of a pipeline, or the experts of a unit are to be chosen
 * (job/sizes.h). */
bool sw_tensor_is_open(const struct sw_settings *settings);
bool sw_pipeline_is_open(const struct sw_settings *settings);
bool sw_expert_group_is_open(const struct sw_settings *settings);

/* The price of a size that --tensor auto, --pipeline auto or --expert-group auto compared. */
enum { SW_MOST_SIZES = 64, SW_SIZE_REFUSAL_CHARS = 512 };
struct sw_size_price {
    int64_t size;                        /* ranks of a tensor group, stages, or experts of a unit */
    double step_s;                       /* predicted seconds of a step; infinite: no plan */
    int64_t peak_bytes[SW_TIERS];        /* of device and host, the most of all stages; 0: no plan */
    const char *bottleneck;              /* as in struct sw_simulation; NULL: no plan */
    char refused[SW_SIZE_REFUSAL_CHARS]; /* why there is no plan; "": there is one */
};

struct sw_size_prices {
    struct sw_size_price size[SW_MOST_SIZES]; /* in the order in which they were tried; filled only on rank 0 */
    int count;                                /* entries of `size`; 0: the size was not open */
    int chosen;                               /* index of the size that was chosen */
};

/* The length of one pass over --data. */
struct sw_data_pass {
    int64_t tokens;       /* of the training part; 0: no data are given */
    int64_t windows;      /* windows of --seq tokens, counted as training counts them */
    int64_t sample_bytes; /* bytes read from the beginning of the text to estimate both; 0: both are counted exactly */
};

/* The plan of the same settings without --freeze. */
struct sw_unfrozen {
    bool fits;                    /* false: the members below are unknown */
    double step_s;                /* predicted; NAN: the rates of the drives are unknown */
    int64_t peak_bytes[SW_TIERS]; /* of device and host */
    int64_t disk_bytes, step_write_bytes;
};

/* The price of a step, and of the alternatives that were not chosen. */
struct sw_job_price {
    struct sw_search_prices choices; /* predicted times of the alternatives that settings left open */
    struct sw_prediction prediction;
    double fast_s, slow_s; /* bounds of prediction.plain.step_s on a described machine; 0: unknown */
    /* prediction.plain.step_s as if each tensor group were within one node; 0: it is, or its nodes have no prices */
    double groups_in_nodes_s;
    struct sw_writes writes;
    bool may_save; /* `save` is valid: not every step commits, and the drives' rates are known */
    struct sw_save_price save;
    struct sw_unfrozen unfrozen; /* valid if the plan has frozen units */
};

struct sw_job {
    struct sw_settings *settings; /* resolved; those of the opener, or `changed` in a varied job */
    struct sw_ranks *ranks;       /* ranks that open the job together; NULL: only this process */
    struct sw_model_config config;
    bool documents;           /* micro-batches come with the starts of documents */
    bool forward_only;        /* nothing is trained; the caller makes the plan */
    int64_t context;          /* tokens that the KV cache of forward passes holds; 0: no cache */
    char *in_place;           /* folder from which frozen weights on NVMe are read in place (model/hf/in_place.h), if it
                               * has them as they compute; NULL: the store has a copy */
    struct sw_data_pass data; /* one pass over --data, if a plan measures it */
    struct sw_places places;  /* where the store would be */
    struct sw_devices devices;
    bool is_described;         /* the device is only described, so nothing is measured */
    bool measures;             /* measure this machine now instead of taking its profile */
    struct sw_profile profile; /* of the machine; empty until this machine is asked for it, and always with --rates */
    struct sw_model *model;
    struct sw_plan *plan;                /* an outline until it is priced */
    struct sw_machine_rates rates;       /* of the model's units; empty until the job is priced */
    struct sw_size_prices tensor_prices; /* of the sizes of tensor groups that --tensor auto compared */
    struct sw_size_prices stage_prices;  /* of the stages that --pipeline auto compared */
    struct sw_size_prices expert_prices; /* of the units of experts that --expert-group auto compared */
    struct sw_job_price price;
    struct sw_price_memory *memory; /* prices of the steps that were simulated, for varied jobs too */
    const struct sw_job *of;        /* the job that this one varies; NULL: this one was opened */
    struct sw_settings changed;     /* settings of a varied job; borrows its texts */
};

/* A job to be opened. Everything is borrowed as long as the job lives. */
struct sw_job_spec {
    struct sw_settings *settings; /* as given; the job resolves them in place */
    struct sw_ranks *ranks;
    const struct sw_model_config *config; /* NULL: that of settings->model */
    const struct sw_profile *machine;     /* a described machine; NULL: settings->machine, or this machine */
    const char *folder; /* existing folder on the store's drive, if --nvme names none; NULL: sw_job_place comes later */
    bool measures;      /* as in struct sw_job */
    bool unplanned;     /* makes a model but no plan, because the caller varies the job or makes a plan */
    bool documents, forward_only; /* as in struct sw_job */
    int64_t context;              /* as in struct sw_job */
    /* The Hugging Face folder that training reads frozen weights from; NULL: there is none. They are read in place if
     * the store's places, which `agree` must have set, are on the folder's file system: on another one, the user has
     * chosen the store's drives for them. */
    const char *base;
    /* A job that computes: the GPU must have passed its self-test, and its products take the algorithms of this record,
     * which in training receives those of rank 0. NULL: the job only plans. */
    struct sw_algorithm_record *products;
    void *caller; /* given to the functions below, any of which may be NULL */
    /* Opens the data, once all settings but the steps are resolved, and resolves the steps. May set `documents` and
     * `data`. */
    sw_status (*open_data)(void *context, struct sw_job *job);
    /* Compares what must be equal on all ranks. NULL: compares model, precision and kind of device, and sets budgets to
     * the smallest of any rank. */
    sw_status (*agree)(void *context, struct sw_job *job);
    /* Called after the size of tensor groups or the experts of a unit were chosen, if one was open. */
    sw_status (*regroup)(void *context, struct sw_job *job);
};

/* Resolves the settings, opens the devices and the model, and makes the outline of the plan. All ranks call it
 * together, and fail together. The caller releases the job, even after a failure. */
sw_status sw_job_open(const struct sw_job_spec *spec, struct sw_job *out);
/* Releases everything except the settings. */
void sw_job_release(struct sw_job *job);

/* Makes units of the experts of the job's model, as the settings say. */
sw_status sw_job_group_experts(struct sw_job *job);

/* Marks the units of the job's own model whose frozen weights are read in place. */
void sw_job_mark_in_place(struct sw_job *job);

/* Returns the shape of the job's model. */
struct sw_model_shape sw_job_shape(const struct sw_job *job);

/* Sets where the store is: the places of --nvme, or a folder that exists. */
sw_status sw_job_place(struct sw_job *job, const char *folder);

/* The changes of a varied job. */
struct sw_job_change {
    struct sw_settings settings;          /* from sw_job_same, then edited; borrows its texts */
    double drives;                        /* factor of the drives' rates; 0 means 1 */
    bool resolves;                        /* resolve the settings again, as other ranks or another model require */
    const struct sw_model_config *config; /* NULL: the job's */
};

/* Returns an empty change. Order and chunk size are open again if the settings had left them open. */
struct sw_job_change sw_job_same(const struct sw_job *job);
/* Makes the outline of a varied job. It borrows everything that does not change: devices, profile, a model of the same
 * shape, and the rates of a priced job. The caller releases it before the original job, even after a failure.
 * SW_ERR_BUDGET: it does not fit. */
sw_status sw_job_with(const struct sw_job *job, const struct sw_job_change *change, struct sw_job *out);
/* Counts the rates of the job's model by the profile. */
sw_status sw_job_count_rates(struct sw_job *job);
/* Makes the open choices of the plan by the job's rates. The plan stays an outline. most_ops: SW_SEARCH_OPS or
 * SW_SEARCH_QUICK_OPS. */
sw_status sw_job_choose(struct sw_job *job, int64_t most_ops);
/* Returns the subject of a measurement of the job's machine. */
struct sw_rates_target sw_job_target(const struct sw_job *job);
/* Finds the profile of this machine for the job, or measures it. */
sw_status sw_job_find_profile(struct sw_job *job, const struct sw_profile_need *need);

/* Takes the rates of this machine's profile, of --rates or of --machine, or measures them; makes the open choices by
 * them; completes the plan and predicts its step. Several ranks measure at once, and all take the rates of rank 0. */
sw_status sw_job_predict(struct sw_job *job);

/* Makes the open choices at the start of training, by this machine's profile: replaces the outline, logs the choice,
 * then completes and checks the plan. If choices are open and no profile is kept, it measures one; if that fails, the
 * outline stays. folder: the run's. *out is the prediction of rank 0, if there is a profile; the caller releases it. */
sw_status sw_job_start(struct sw_job *job, const char *folder, struct sw_forecast *out);

/* Returns how many passes over the data the settings' steps are. Data must be given. */
double sw_job_epochs(const struct sw_job *job);
/* Returns the time that saves add, as a share of the time of plain steps. price.may_save must be set. */
double sw_job_save_share(const struct sw_job *job);
/* Returns the time of all steps and their saves, as far as they are known. */
double sw_job_run_s(const struct sw_job *job);
/* Returns the model's operations per trained token: 6 per parameter that it goes through, without attention's products
 * and recomputation. */
double sw_job_token_flops(const struct sw_job *job);
/* Writes the file of --rates again, with the rates measured since. Does nothing without --rates. */
sw_status sw_job_keep_rates(const struct sw_job *job);

#endif
