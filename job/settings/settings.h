/* The settings of a run: the flags of train, resume, plan and bench step in one struct. run.json keeps them. */
#ifndef SW_JOB_SETTINGS_SETTINGS_H
#define SW_JOB_SETTINGS_SETTINGS_H

#include "core/dtype.h"
#include "core/status.h"
#include "job/settings/options.h"
#include "job/settings/schedule.h"
#include "model/freeze.h"
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
/* Characters of the longest --pipeline-split, and the most layers that one names. */
enum { SW_SPLIT_CHARS = 1280, SW_MOST_LAYERS = 99999 };
#define SW_NO_SECONDARY "none"
/* The recipe in the folder of a run. */
#define SW_RECIPE_NAME "recipe.yaml"
/* Bytes for the names of data files in run.json. The rest of the file may take as much again. */
#define SW_SETTINGS_MOST_NAME_BYTES ((size_t)8 << 20)

/* The largest --chunk-grains. */
enum { SW_MOST_CHUNK_GRAINS = 65536 };

/* The settings; settings_flags.c describes each flag. Where "auto" was given and is not resolved yet, a member is
 * SW_OPTION_AUTO. */
struct sw_settings {
    char *recipe;               /* file that flags were read from; NULL: none */
    char *model;                /* Hugging Face folder or preset; owned, like all texts and lists here */
    struct sw_option_list data; /* files of training data */
    char *run;                  /* folder of the run */
    bool dry_run;
    double epochs; /* passes over the training data that `steps` amounts to; 0: --steps was given */
    int64_t steps, schedule_steps, batch_tokens, seq;
    int64_t micro_batch;   /* sequences per micro-batch */
    bool micro_batch_open; /* not a flag: --micro-batch was auto, so a smaller one may be chosen */
    double lr, min_lr;
    bool lr_was_open;            /* not a flag: --lr was auto at this start */
    int64_t warmup, decay_steps; /* steps */
    int schedule;                /* sw_schedule_kind */
    bool min_lr_at_last;         /* not a flag: the last step has min_lr, as run.json of older runs says (schedule.h) */
    struct sw_option_list no_decay, lr_scale; /* patterns for tensors' names; those of lr_scale end in =FACTOR */
    double router_aux_loss, router_z_loss;    /* factors of the losses that a mixture of experts has for its routers */
    double weight_decay, beta1, beta2, eps, clip;
    int muon_scale;                /* sw_muon_scale */
    double muon_lr, muon_momentum; /* muon_lr: resolved as lr is */
    int optimizer_state;           /* sw_optimizer_format of the moments */
    int rounding;                  /* SW_OPTION_ROUNDING_..., of narrow moments */
    int grads_state;               /* sw_grads_format of rounded gradients */
    int64_t seed;
    int tokens;        /* type of the tokens in .bin files: SW_TOKENS_... */
    int loss;          /* which tokens of chats and completions have a loss: SW_LOSS_... */
    char *chat_format; /* name of a chat format, or "auto" for that of the model's chat template */
    char *field;       /* member of JSON objects that holds the text; NULL: decided by schema */
    bool skip_bad;     /* leave out JSON documents that are wrong */
    bool dpo;        /* the data are pairs of a chosen and a rejected reply; train by direct preference optimization */
    double dpo_beta; /* its β */
    int bos;         /* which token begins a text: SW_BOS_... */
    char *encoding;  /* of text; NULL: UTF-8 */
    bool lossy;      /* replace what is invalid in the encoding by U+FFFD */
    bool old_text;   /* not a flag: the run is older than the rules of SW_RUN_TEXT_VERSION (run.h) */
    bool padded_records; /* not a flag: an older version began the run, with SW_OPTIMIZER_MUON_BF16_PADDED */
    int precision;       /* SW_PRECISION_... */
    bool init;
    int device;                        /* sw_device_choice */
    int recompute, durability, update; /* SW_OPTION_RECOMPUTE_..., SW_DURABILITY_..., SW_UPDATE_... */
    int speculate;                     /* sw_speculation */
    char *order;
    int64_t group;              /* not a flag: group size chosen for --order auto; 0: all micro-batches */
    int64_t zero;               /* ZeRO stage, 0 to 3 */
    int64_t tiles;              /* tiles per half of a block; 1: blocks are not cut */
    int64_t expert_group;       /* neighbouring experts that are a unit; 0: they are in one unit with their block;
                                   SW_OPTION_AUTO counts as 0 until sw_expert_group_choose sets it */
    int64_t ranks, local_ranks; /* ranks of the job, and how many of them are on this machine; 0: one */
    int64_t nodes;              /* nodes of a described machine's ranks; only plan sets it */
    int partition;              /* SW_PARTITION_*: whether a tensor group's ranks partition the inputs that they keep */
    int sequence;               /* SW_SEQUENCE_*: whether a tensor group's ranks normalise only their own rows */
    int64_t tensor; /* size of tensor groups, whose ranks divide each layer; 0 or 1: no groups; SW_OPTION_AUTO counts as
                       1 until sw_tensor_choose sets it */
    int64_t experts;  /* size of expert groups, whose ranks share out the experts of each block; 0 or 1: no groups */
    int64_t pipeline; /* stages of consecutive ranks, each with some layers; 1: each rank has all layers; 0, in an edit
                         of a run: as many as pipeline_split has, or the run's; SW_OPTION_AUTO counts as 1 until
                         sw_pipeline_choose sets it */
    bool stages_save; /* not a flag: a stage has optimizer state elsewhere than on NVMe, so all commit by saves */
    int64_t pipeline_interleave; /* runs of layers that each stage has; 0 or 1: one */
    /* Layers of each stage, "12,10,10", and of interleaved stages turn by turn, "6,5,5+6,5,5"; "auto" until
     * sw_settings_resolve_pipeline. */
    char *pipeline_split;
    int64_t ranks_per_node;   /* ranks that count as a node; SW_OPTION_AUTO: the ranks of a machine */
    int64_t node_ranks;       /* not a flag: ranks of each node; 0: unknown, or SW_NODES_UNEVEN */
    int64_t node_rank;        /* not a flag: this rank's number within its node */
    bool nodes_mixed;         /* not a flag: the ranks of a node are not neighbours */
    char *zero_secondary;     /* --zero-secondary: "none", "node" or a number of ranks */
    int64_t rank, local_rank; /* this rank's number in the job and on this machine, from 0 */
    bool allow_shared_gpu;
    bool regrouped;                     /* the run was last trained by other ranks or tensor groups */
    int64_t most_memory[SW_TIERS];      /* ranks or tensor groups differ from those of the start before */
    int gather, reduce;                 /* upper limit of an "auto" budget, in bytes; 0: no limit */
    int64_t device_memory, host_memory; /* bytes */
    bool memory_named[SW_TIERS];        /* the command line names the tier's budget */
    struct sw_option_list nvme;
    char *place;
    char *val;
    struct sw_tuning tuning;                /* what is trained */
    char *adapter;                          /* folder of the adapter that a run begins with; NULL: none */
    int64_t eval_every, export_every, keep; /* steps, steps, exports */
    int64_t early_stop;                     /* evaluations without improvement that end the run; 0: never */
    int64_t sample_every, sample_tokens;    /* steps, tokens */
    struct sw_option_list sample_prompt;    /* empty: SW_SAMPLE_PROMPT */
    int64_t time_limit, rank_timeout;       /* seconds */
    struct sw_option_every save_every;
    int64_t threads, chunk_grains, ring_chunks;
    bool chunk_may_grow;       /* chunk_grains is the run's first value, which a resume may raise */
    int64_t auto_chunk_grains; /* chunk_grains as "auto" resolved it, which prices may raise; 0: it was given */
    char *trace, *rates;
    char *svg;        /* plan: file for an image of the predicted timeline; NULL: none */
    char *machine;    /* name or file of a described machine to plan for; NULL: this machine */
    double endurance; /* terabytes that the drives are rated to write; 0: unknown */
    bool allow_buffered, allow_overwrite_device;
    bool previous;  /* resume drops the last commit */
    int64_t rounds; /* bench step: measurements per kind of step */
    bool json;
    bool explain;          /* plan: print the plan after the answer */
    bool smallest_machine; /* plan: search for the smallest budgets */
    int64_t largest;       /* plan: tokens/s that the largest models must reach, or SW_OPTION_AUTO; 0: plan --model */
};

extern const struct sw_command_line sw_train_command;
extern const struct sw_command_line sw_resume_command; /* parses over the settings of the run */
extern const struct sw_command_line sw_plan_command;
extern const struct sw_command_line sw_bench_step_command;
/* Prints the presets of --model: more_help of commands that have the flag. */
void sw_settings_help_presets(FILE *to);

/* Checks what the table of flags cannot: combinations of flags, and values that are small languages of their own. */
sw_status sw_settings_check(const struct sw_settings *settings);

/* Writes this rank's identity into the settings, and places the ranks on nodes as --ranks-per-node says. */
struct sw_ranks;
void sw_settings_take_ranks(struct sw_settings *settings, struct sw_ranks *ranks);
/* Checks that enough ranks exchange what --gather and --reduce quantize, and that --grads-state 8bit has a single rank.
 */
sw_status sw_settings_check_quantized(const struct sw_settings *settings);
/* Return the number of ranks that keep secondary shards of weights together (0: no --zero-secondary), and the ranks per
 * node by which bytes between nodes are counted (0: unknown, or nodes are uneven). */
sw_status sw_settings_secondary(const struct sw_settings *settings, int *out_ranks);
int sw_settings_node_ranks(const struct sw_settings *settings);
/* Returns the ranks per node, of this job's nodes or of those that a plan's flags name; 0: they name none;
 * SW_NODES_UNEVEN: nodes differ. */
int64_t sw_settings_any_node_ranks(const struct sw_settings *settings);
/* Returns the number of nodes within which quantized gradients are reduced first; 0: all ranks exchange them at once.
 */
int sw_settings_reduce_nodes(const struct sw_settings *settings);

/* The stages that --pipeline makes (pipeline.h): their number, at least 1, the runs of layers that each has, at least
 * 1, the ranks of each, and this rank's stage. */
int64_t sw_settings_stages(const struct sw_settings *settings);
int64_t sw_settings_turns(const struct sw_settings *settings);
int64_t sw_settings_stage_ranks(const struct sw_settings *settings);
int64_t sw_settings_stage(const struct sw_settings *settings);
/* The groups that --tensor makes, in each stage. Rank j of a stage has the number j % tensor in its group and belongs
 * to the data rank j / tensor. The data ranks divide the sequences of a step; the ranks of a group compute the same
 * sequences, each with its part of every layer. ZeRO divides the state of a part among the ranks that have that part,
 * one in each group. */
int64_t sw_settings_tensor_ranks(const struct sw_settings *settings);
int64_t sw_settings_tensor_rank(const struct sw_settings *settings);
int64_t sw_settings_data_ranks(const struct sw_settings *settings);
int64_t sw_settings_data_rank(const struct sw_settings *settings);
/* The groups that --experts makes, of as many neighbouring tensor groups: the members, each of which is a data rank.
 * Return their number, 1 without --experts, and that of this rank's member in its group. */
int64_t sw_settings_expert_ranks(const struct sw_settings *settings);
int64_t sw_settings_expert_rank(const struct sw_settings *settings);
/* The groups that --tensor or --experts makes, or both together: ranks of a group have parts of the state. Return their
 * size, this rank's number in its group, and the ranks that share the state of one part with this one's number among
 * them. */
int64_t sw_settings_part_ranks(const struct sw_settings *settings);
int64_t sw_settings_part_rank(const struct sw_settings *settings);
int64_t sw_settings_state_ranks(const struct sw_settings *settings);
int64_t sw_settings_state_rank(const struct sw_settings *settings);
/* Returns the most ranks that share the state of anything: with --experts one rank of each tensor group shares what has
 * no experts. */
int64_t sw_settings_most_state_ranks(const struct sw_settings *settings);
/* Tells whether there are groups of --experts. */
bool sw_settings_shares_experts(const struct sw_settings *settings);
/* Return the node topology of groups: the fewest ranks that a tensor group, or a group of parts, has on one node; the
 * ranks of a node that have the same part of every layer; and the largest number of nodes that a tensor group is on. 0:
 * nodes are unknown. */
int sw_settings_tensor_node_ranks(const struct sw_settings *settings);
int sw_settings_part_node_ranks(const struct sw_settings *settings);
int sw_settings_data_node_ranks(const struct sw_settings *settings);
int64_t sw_settings_tensor_nodes(const struct sw_settings *settings);
/* Tells whether ranks fill nodes in order, each node with whole groups or each group with whole nodes. */
bool sw_settings_fills_nodes(const struct sw_settings *settings);
/* ZeRO-R's partitioned activations, in the order of the flag's choices. */
enum { SW_PARTITION_AUTO, SW_PARTITION_YES, SW_PARTITION_NO };
/* Sequence parallelism, in the order of the flag's choices. */
enum { SW_SEQUENCE_AUTO, SW_SEQUENCE_YES, SW_SEQUENCE_NO };

/* Refuses a number of ranks that the group size does not divide. */
sw_status sw_settings_check_tensor_ranks(const struct sw_settings *settings);
/* Groups the ranks as their settings say. --tensor must be the same on all ranks. */
sw_status sw_settings_group_ranks(const struct sw_settings *settings, struct sw_ranks *ranks);
/* Returns the parameters of the whole model, of which the units of a rank of a group have only a part. */
int64_t sw_settings_parameters(const struct sw_settings *settings, const struct sw_units *units);
/* Returns those of units [first, end). */
int64_t sw_settings_parameters_of(const struct sw_settings *settings, const struct sw_units *units, int64_t first,
                                  int64_t end);

/* Prepares a resume with another number of ranks: threads and budgets become "auto" again, with the old budgets as
 * limits, and so does the ZeRO stage of a run that had one rank. */
void sw_settings_regroup(struct sw_settings *settings, int64_t ranks_before);

/* Resolves every "auto" that depends neither on the plan nor on the data, for a model and a device. */
struct sw_model_config;
struct sw_device_info;
sw_status sw_settings_resolve(struct sw_settings *settings, const struct sw_model_config *config,
                              const struct sw_device_info *device);
/* Resolves the steps, and the schedule that follows from them. epoch_windows: windows of --seq tokens in the training
 * data; only --epochs needs it. */
sw_status sw_settings_resolve_steps(struct sw_settings *settings, int64_t epoch_windows);
/* Resolves "auto" budgets for a machine with host_bytes of available memory. sw_settings_resolve does it for this
 * machine. */
void sw_settings_resolve_memory(struct sw_settings *settings, const struct sw_device_info *device, int64_t host_bytes);

/* Tells the device whether to use TF32. Call it before anything is prepared on the device. */
struct sw_device;
sw_status sw_settings_prepare_device(const struct sw_settings *settings, struct sw_device *device);
/* Returns the value of --precision, which must be resolved. */
const char *sw_settings_precision_name(const struct sw_settings *settings);
sw_dtype sw_settings_type(const struct sw_settings *settings);
/* Tells whether blocks multiply 8-bit operands and store their weights in 8 bits (--precision fp8). */
bool sw_settings_fp8(const struct sw_settings *settings);
/* Return how ranks exchange weights and gradients. */
sw_quant sw_settings_gather(const struct sw_settings *settings);
sw_quant sw_settings_reduce(const struct sw_settings *settings);
sw_optimizer_format sw_settings_optimizer(const struct sw_settings *settings);
/* Returns Muon's rate of a step in which AdamW's is `lr`. */
double sw_settings_muon_lr(const struct sw_settings *settings, double lr);
sw_rounding sw_settings_rounding(const struct sw_settings *settings);
static inline int64_t sw_settings_ranks(const struct sw_settings *settings) {
    return settings->ranks > 1 ? settings->ranks : 1;
}
/* Returns the micro-batches that each data rank computes in a step. */
int64_t sw_settings_micro_batches(const struct sw_settings *settings);
bool sw_settings_order_is_auto(const struct sw_settings *settings);
/* Returns the group size: how many micro-batches pass through a unit before the next unit is fetched. */
sw_status sw_settings_group(const struct sw_settings *settings, int64_t *out);
/* Returns which rank of which job a store belongs to (places.h). */
struct sw_store_owner;
struct sw_store_owner sw_settings_owner(const struct sw_settings *settings);
struct sw_schedule sw_settings_schedule(const struct sw_settings *settings);

/* Sets the adapters of a run to those of --adapter, if it is given. Refuses other flags of adapters that differ from
 * it. */
sw_status sw_settings_take_adapter(struct sw_settings *settings, const struct sw_model_config *config);

/* Refuses paths that are not UTF-8: run.json could not hold them. */
sw_status sw_settings_check_names(const struct sw_settings *settings);
/* Makes all paths absolute, because a resume may start in another directory. */
sw_status sw_settings_make_paths_absolute(struct sw_settings *settings);

/* Returns the text of a recipe that repeats a run; the caller frees it. The recipe has the flags that differ from their
 * defaults. given: the settings as JSON before anything was resolved (sw_options_to_json); settings: with absolute
 * paths. */
sw_status sw_settings_recipe(const struct sw_settings *settings, json_t *given, char **out);

/* Splits --val into a percentage ("5%") or a file. *out_file is NULL for a percentage. */
sw_status sw_settings_validation(const struct sw_settings *settings, double *out_percent, const char **out_file);

#endif
