/* The settings of a run: the flags of train, resume, plan and bench step in one struct. run.json keeps them. */
#ifndef SW_JOB_SETTINGS_SETTINGS_H
#define SW_JOB_SETTINGS_SETTINGS_H

#include "core/dtype.h"
#include "core/status.h"
#include "job/settings/options.h"
#include "job/settings/schedule.h"
#include "offload/plan/plan.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    SW_PRECISION_AUTO,
    SW_PRECISION_BF16,
    SW_PRECISION_FP16,
    SW_PRECISION_FP32,
    SW_PRECISION_TF32,
    SW_PRECISION_FP8
};
enum { SW_DURABILITY_STEP, SW_DURABILITY_NONE };
enum { SW_UPDATE_AUTO, SW_UPDATE_HOST, SW_UPDATE_DEVICE };
enum { SW_OPTION_RECOMPUTE_AUTO, SW_OPTION_RECOMPUTE_ALL, SW_OPTION_RECOMPUTE_NONE };
enum { SW_GATHER_EXACT, SW_GATHER_INT8 };
enum { SW_REDUCE_ORDERED, SW_REDUCE_LIBRARY, SW_REDUCE_INT8, SW_REDUCE_INT4 };
enum { SW_OPTION_ROUNDING_AUTO, SW_OPTION_ROUNDING_NEAREST, SW_OPTION_ROUNDING_STOCHASTIC };
enum { SW_SETTINGS_MOST_RANKS = 4096, SW_NODES_UNEVEN = -1 };
#define SW_NO_SECONDARY "none"
/* The recipe in the folder of a run. */
#define SW_RECIPE_NAME "recipe.yaml"
/* The names of data files that a run keeps. The rest of its run.json has as much room again. */
#define SW_SETTINGS_MOST_NAME_BYTES ((size_t)8 << 20)

/* The largest --chunk-grains. */
enum { SW_MOST_CHUNK_GRAINS = 65536 };

/* settings_flags.c describes each flag. A member holds SW_OPTION_AUTO where "auto" was given and is not resolved yet.
 */
struct sw_settings {
    char *recipe;               /* file that flags were read from; NULL: none */
    char *model;                /* Hugging Face folder or preset; owned, as all texts and lists here */
    struct sw_option_list data; /* files of training data */
    char *run;                  /* folder of the run */
    bool dry_run;
    double epochs; /* passes over the training data that `steps` amounts to; 0: --steps says it */
    int64_t steps, schedule_steps, batch_tokens, seq;
    int64_t micro_batch;   /* sequences */
    bool micro_batch_open; /* not a flag: --micro-batch was auto, so that a smaller one may be taken */
    double lr, min_lr;
    bool lr_was_open;            /* not a flag: --lr was auto at this start */
    int64_t warmup, decay_steps; /* steps */
    int schedule;                /* sw_schedule_kind */
    bool min_lr_at_last; /* not a flag: run.json of older runs says that the last step has min_lr (schedule.h) */
    struct sw_option_list no_decay, lr_scale; /* patterns of tensors' names; those of lr_scale with =FACTOR */
    double weight_decay, beta1, beta2, eps, clip;
    int optimizer_state; /* sw_optimizer_format of the moments */
    int rounding;        /* SW_OPTION_ROUNDING_...: of narrow moments */
    int grads_state;     /* sw_grads_format of rounded gradients */
    int64_t seed;
    int tokens;        /* type of the tokens in .bin files: SW_TOKENS_... */
    int loss;          /* tokens of chats and completions that have a loss: SW_LOSS_... */
    char *chat_format; /* a format's name, or "auto" for that of the model's chat template */
    char *field;       /* member of JSON objects that has the text; NULL: by schema */
    bool skip_bad;     /* JSON documents that are wrong are left out */
    int bos;           /* tokens that begin a text: SW_BOS_... */
    char *encoding;    /* of text; NULL: UTF-8 */
    bool lossy;        /* what the encoding does not have becomes U+FFFD */
    bool old_text;     /* not a flag: the run is older than the rules of SW_RUN_TEXT_VERSION (run.h) */
    int precision;     /* SW_PRECISION_... */
    bool init;
    int device;                        /* sw_device_choice */
    int recompute, durability, update; /* SW_OPTION_RECOMPUTE_..., SW_DURABILITY_..., SW_UPDATE_... */
    int speculate;                     /* sw_speculation */
    char *order;
    int64_t group;              /* not a flag: the group size that was chosen for --order auto; 0: all micro-batches */
    int64_t zero;               /* ZeRO stage, 0 to 3 */
    int64_t tiles;              /* tiles of each half of a block; 1: a block is not cut */
    int64_t ranks, local_ranks; /* ranks of the job, and of those the ranks on this machine; 0: one */
    int64_t nodes;              /* nodes of a described machine's ranks; plan alone sets it */
    int partition;              /* whether a tensor group's ranks partition the inputs that they keep, SW_PARTITION_* */
    int sequence;               /* whether a tensor group's ranks normalise their rows alone, SW_SEQUENCE_* */
    int64_t tensor;             /* ranks of a tensor group, which share out each layer; 0 or 1: there are no groups;
                                 * SW_OPTION_AUTO counts as 1 until sw_tensor_choose sets it */
    int64_t ranks_per_node;     /* ranks that count as a node; SW_OPTION_AUTO: those of a machine */
    int64_t node_ranks;         /* not a flag: ranks of each node; 0: not known, SW_NODES_UNEVEN */
    int64_t node_rank;          /* not a flag: this rank's number within its node */
    bool nodes_mixed;           /* not a flag: the ranks of a node are no neighbours */
    char *zero_secondary;       /* --zero-secondary: "none", "node" or a number of ranks */
    int64_t rank, local_rank;   /* this rank's number in the job and on this machine, from 0 */
    bool allow_shared_gpu;
    bool regrouped;                     /* the run was last trained by other ranks or tensor groups */
    int64_t most_memory[SW_TIERS];      /* bytes that a budget of "auto" may not exceed; 0: no limit */
    int gather, reduce;                 /* SW_GATHER_..., SW_REDUCE_... */
    int64_t device_memory, host_memory; /* bytes */
    bool memory_named[SW_TIERS];        /* the command line names the tier's budget */
    struct sw_option_list nvme;
    char *place;
    char *val;
    char *freeze;                           /* --freeze (settings.h); NULL: every unit is trained */
    int64_t eval_every, export_every, keep; /* steps, steps, exports */
    int64_t early_stop;                     /* evaluations without improvement that end the run; 0: none do */
    int64_t sample_every, sample_tokens;    /* steps, tokens */
    struct sw_option_list sample_prompt;    /* none: SW_SAMPLE_PROMPT */
    int64_t time_limit, rank_timeout;       /* seconds */
    struct sw_option_every save_every;
    int64_t threads, chunk_grains, ring_chunks;
    bool chunk_may_grow;       /* chunk_grains is the run's first value, which a resume may raise */
    int64_t auto_chunk_grains; /* chunk_grains as auto resolved it, which prices may raise; 0: it was given */
    char *trace, *rates;
    char *svg;        /* plan: file for the predicted timeline as an image; NULL: none */
    char *machine;    /* name or file of a described machine to plan for; NULL: plan for this machine */
    double endurance; /* terabytes that the drives are rated to write; 0: not known */
    bool allow_buffered, allow_overwrite_device;
    bool previous;  /* resume drops the last commit */
    int64_t rounds; /* bench step: how often it measures each kind of step */
    bool json;
    bool explain;          /* plan: print the plan behind the answer */
    bool smallest_machine; /* plan: search the least budgets */
    int64_t largest;       /* plan: tokens/s of the largest models; SW_OPTION_AUTO; 0: a plan of --model */
};

extern const struct sw_command_line sw_train_command;
extern const struct sw_command_line sw_resume_command; /* parses over the settings of the run */
extern const struct sw_command_line sw_plan_command;
extern const struct sw_command_line sw_bench_step_command;
/* Prints the presets of --model: more_help of commands that have the flag. */
void sw_settings_help_presets(FILE *to);

/* Checks what the table of flags cannot: combinations of flags, and values that are small languages of their own. */
sw_status sw_settings_check(const struct sw_settings *settings);

/* Notes which of the ranks this one is, and places them on nodes as --ranks-per-node says. */
struct sw_ranks;
void sw_settings_take_ranks(struct sw_settings *settings, struct sw_ranks *ranks);
/* Checks that so many ranks exchange what --gather and --reduce quantize, and that --grads-state 8bit is one rank's. */
sw_status sw_settings_check_quantized(const struct sw_settings *settings);
/* Returns the ranks that keep secondary shards of weights together, 0 without --zero-secondary, and the ranks of a node
 * by which bytes between nodes are counted, 0 where that is not known or nodes are uneven. */
sw_status sw_settings_secondary(const struct sw_settings *settings, int *out_ranks);
int sw_settings_node_ranks(const struct sw_settings *settings);
/* Returns the nodes within each of which quantized gradients are reduced first; 0: all ranks exchange them at once. */
int sw_settings_reduce_nodes(const struct sw_settings *settings);

/* The groups that --tensor makes. Job rank j has the number j % tensor in its group and belongs to the data rank
 * j / tensor. The data ranks share the sequences of a step; the ranks of a group compute the same sequences, each with
 * its part of every layer. ZeRO shares the state of a part among the ranks that have it, one of each group. */
int64_t sw_settings_tensor_ranks(const struct sw_settings *settings);
int64_t sw_settings_tensor_rank(const struct sw_settings *settings);
int64_t sw_settings_data_ranks(const struct sw_settings *settings);
int64_t sw_settings_data_rank(const struct sw_settings *settings);
/* Return how tensor groups lie on nodes: the fewest ranks that one has on a node, the ranks of a node that have the
 * same part of every layer, and the most nodes that a group spans. 0: nodes are not known. */
int sw_settings_tensor_node_ranks(const struct sw_settings *settings);
int sw_settings_data_node_ranks(const struct sw_settings *settings);
int64_t sw_settings_tensor_nodes(const struct sw_settings *settings);
/* Tells whether ranks fill nodes in their order, each node with whole groups or each group with whole nodes. */
bool sw_settings_fills_nodes(const struct sw_settings *settings);
/* ZeRO-R's partitioned activations, in the order of the flag's choices. */
enum { SW_PARTITION_AUTO, SW_PARTITION_YES, SW_PARTITION_NO };
/* Sequence parallelism, likewise. */
enum { SW_SEQUENCE_AUTO, SW_SEQUENCE_YES, SW_SEQUENCE_NO };

/* Refuses a number of ranks that groups do not divide. */
sw_status sw_settings_check_tensor_ranks(const struct sw_settings *settings);
/* Groups the ranks as their settings say, in which all ranks have the same --tensor. */
sw_status sw_settings_group_ranks(const struct sw_settings *settings, struct sw_ranks *ranks);
/* Returns the parameters of the whole model. The units of a tensor group's rank have a part of them. */
int64_t sw_settings_parameters(const struct sw_settings *settings, const struct sw_units *units);

/* Prepares a resume with another number of ranks: threads and budgets become "auto" again, budgets with their old value
 * as the limit, and so does the ZeRO stage of a run that had one rank. */
void sw_settings_regroup(struct sw_settings *settings, int64_t ranks_before);

/* Resolves every "auto" that depends neither on the plan nor on the data, for a model and a device. */
struct sw_model_config;
struct sw_device_info;
sw_status sw_settings_resolve(struct sw_settings *settings, const struct sw_model_config *config,
                              const struct sw_device_info *device);
/* Resolves the steps, and the schedule that follows from them. epoch_windows: the windows of --seq tokens in the
 * training data, which only --epochs needs. */
sw_status sw_settings_resolve_steps(struct sw_settings *settings, int64_t epoch_windows);
/* Resolves budgets of "auto" for a machine with host_bytes of available memory. sw_settings_resolve does it for this
 * machine. */
void sw_settings_resolve_memory(struct sw_settings *settings, const struct sw_device_info *device, int64_t host_bytes);

/* Tells the device about TF32. Call it before anything is prepared on the device. */
struct sw_device;
sw_status sw_settings_prepare_device(const struct sw_settings *settings, struct sw_device *device);
/* Returns the value of --precision, once it is resolved. */
const char *sw_settings_precision_name(const struct sw_settings *settings);
sw_dtype sw_settings_type(const struct sw_settings *settings);
/* Tells whether the products of blocks are of operands in 8 bits, and their weights lie so (--precision fp8). */
bool sw_settings_fp8(const struct sw_settings *settings);
/* Return how ranks exchange weights and gradients. */
sw_quant sw_settings_gather(const struct sw_settings *settings);
sw_quant sw_settings_reduce(const struct sw_settings *settings);
sw_optimizer_format sw_settings_optimizer(const struct sw_settings *settings);
sw_rounding sw_settings_rounding(const struct sw_settings *settings);
int64_t sw_settings_ranks(const struct sw_settings *settings);
/* Returns the micro-batches that each data rank computes in a step. */
int64_t sw_settings_micro_batches(const struct sw_settings *settings);
bool sw_settings_order_is_auto(const struct sw_settings *settings);
/* Returns the group size: the micro-batches that pass through a unit before the next unit is fetched. */
sw_status sw_settings_group(const struct sw_settings *settings, int64_t *out);
/* Returns the leading units of a model that --freeze names. */
sw_status sw_settings_frozen_units(const struct sw_settings *settings, const struct sw_model_config *config,
                                   int64_t *out);
/* Returns which rank of which job a store belongs to (places.h). */
struct sw_store_owner;
struct sw_store_owner sw_settings_owner(const struct sw_settings *settings);
struct sw_schedule sw_settings_schedule(const struct sw_settings *settings);

/* Refuses paths that are not UTF-8, which run.json could not hold. */
sw_status sw_settings_check_names(const struct sw_settings *settings);
/* Makes all paths absolute, because a resume may start in another directory. */
sw_status sw_settings_make_paths_absolute(struct sw_settings *settings);

/* Returns the text of a recipe that repeats a run, which the caller frees: the flags that differ from their defaults.
 * given: the settings as JSON before anything was resolved (sw_options_to_json); settings: with absolute paths. */
sw_status sw_settings_recipe(const struct sw_settings *settings, json_t *given, char **out);

/* Splits --val, which is a percentage ("5%") or a file: *out_file is NULL for a percentage. */
sw_status sw_settings_validation(const struct sw_settings *settings, double *out_percent, const char **out_file);

#endif
