/* What a run is told: the flags of train, plan and resume in one struct, kept in run.json. */
#ifndef SW_TRAIN_SETTINGS_SETTINGS_H
#define SW_TRAIN_SETTINGS_SETTINGS_H

#include "core/dtype.h"
#include "core/status.h"
#include "offload/plan/plan.h"
#include "train/settings/options.h"
#include "train/settings/schedule.h"

#include <stdbool.h>
#include <stdint.h>

enum { SW_PRECISION_AUTO, SW_PRECISION_BF16, SW_PRECISION_FP16, SW_PRECISION_FP32, SW_PRECISION_TF32 };
enum { SW_DURABILITY_STEP, SW_DURABILITY_NONE };
enum { SW_UPDATE_AUTO, SW_UPDATE_HOST, SW_UPDATE_DEVICE };
enum { SW_RECOMPUTE_AUTO, SW_RECOMPUTE_ALL, SW_RECOMPUTE_NONE };
enum { SW_REDUCE_ORDERED, SW_REDUCE_LIBRARY };
enum { SW_SETTINGS_MOST_RANKS = 4096 };

/* Members hold SW_OPTION_AUTO where "auto" was given and not yet resolved. */
struct sw_settings {
    char *model;
    struct sw_option_list data;
    char *run;
    int64_t steps, schedule_steps, batch_tokens, seq, micro_batch;
    double lr, min_lr;
    int64_t warmup, decay_steps;
    int schedule;
    bool min_lr_at_last; /* of the schedule (schedule.h), as run.json has it */
    double weight_decay, beta1, beta2, eps, clip;
    int64_t seed;
    int tokens; /* of .bin files: SW_TOKENS_... */
    int precision;
    bool init;
    int device, recompute, durability, speculate, update;
    char *order;
    int64_t group; /* micro-batches of one where the order is auto and was chosen; 0: all */
    int64_t zero, tiles;
    int64_t ranks, local_ranks; /* of the job, and of those the ones on this machine; 0: one */
    int64_t rank, local_rank;   /* this one's number in each */
    bool allow_shared_gpu;
    bool regrouped;                /* the run has been that of another number of ranks */
    int64_t most_memory[SW_TIERS]; /* 0: no more than the budgets say */
    int reduce;
    int64_t device_memory, host_memory;
    bool memory_named[SW_TIERS]; /* the command line names the tier's budget */
    struct sw_option_list nvme;
    char *place;
    char *val;
    int64_t eval_every, export_every, keep, time_limit, rank_timeout;
    struct sw_option_every save_every;
    int64_t threads, chunk_grains, ring_chunks;
    char *trace, *rates;
    char *machine;    /* file of a described one to plan for; NULL: this */
    double endurance; /* terabytes that the drives are rated for; 0: not known */
    bool allow_buffered, allow_overwrite_device;
    bool previous;  /* of a resume: give up the last commit */
    int64_t rounds; /* of bench step */
    bool json;
};

extern const struct sw_command_line sw_train_command;
extern const struct sw_command_line sw_resume_command; /* over the settings of the run */
extern const struct sw_command_line sw_plan_command;
extern const struct sw_command_line sw_bench_step_command;

/* Checks what the table cannot: combinations, and what this version does not do. */
sw_status sw_settings_check(const struct sw_settings *settings);

/* What a run has resolved for another number of ranks is open again: cores, and budgets up to what they were. */
void sw_settings_regroup(struct sw_settings *settings, int64_t ranks_before);

/* Resolves every "auto" that does not depend on the plan, for a model and a device. */
struct sw_model_config;
struct sw_device_info;
sw_status sw_settings_resolve(struct sw_settings *settings, const struct sw_model_config *config,
                              const struct sw_device_info *device);
/* Budgets that are open, of a machine with so much memory: sw_settings_resolve takes this one's. */
void sw_settings_resolve_memory(struct sw_settings *settings, const struct sw_device_info *device, int64_t host_bytes);

/* What a device has to know of the precision, before anything is prepared on it. */
struct sw_device;
sw_status sw_settings_prepare_device(const struct sw_settings *settings, struct sw_device *device);
/* As its flag has it, once resolved. */
const char *sw_settings_precision_name(const struct sw_settings *settings);
sw_dtype sw_settings_type(const struct sw_settings *settings);
int64_t sw_settings_ranks(const struct sw_settings *settings);
/* Micro-batches of a step, of each rank. */
int64_t sw_settings_micro_batches(const struct sw_settings *settings);
bool sw_settings_order_is_auto(const struct sw_settings *settings);
/* Micro-batches that go through a unit before the next unit, by --order or as was chosen. */
sw_status sw_settings_group(const struct sw_settings *settings, int64_t *out);
/* Whose store this rank's is (places.h). */
struct sw_store_owner;
struct sw_store_owner sw_settings_owner(const struct sw_settings *settings);
struct sw_schedule sw_settings_schedule(const struct sw_settings *settings);

/* Paths in run.json must still be right from another directory. */
sw_status sw_settings_make_paths_absolute(struct sw_settings *settings);

/* --val is a percentage ("5%") or a file. */
sw_status sw_settings_validation(const struct sw_settings *settings, double *out_percent, const char **out_file);

#endif
