/* The flags of the commands that read a run or a Hugging Face folder: eval, generate, export, tensors and
 * verify. */
#ifndef SW_CLI_READ_OPTIONS_H
#define SW_CLI_READ_OPTIONS_H

#include "job/machine/ranks.h"
#include "job/settings/options.h"
#include "run/folder/source.h"
#include "run/inference/inference.h"

/* A member is set only by commands that have its flag, and is SW_OPTION_AUTO if "auto" was given. */
struct sw_read_options {
    char *from;                 /* folder of a run or a Hugging Face folder */
    struct sw_option_list nvme; /* current places of the run's store; empty: where the run has it */
    char *model;                /* current folder of the model that the run reads; NULL: where the run has it */
    char *adapter;              /* folder of an adapter of the model (model/peft.h); NULL: none */
    struct sw_inference_options inference;
    bool json;
    /* Eval. */
    char *data;
    int64_t seq, most_tokens, micro_batch;
    int token_type;    /* SW_TOKENS_... */
    int loss;          /* SW_LOSS_... */
    char *chat_format; /* of eval and generate */
    char *encoding;    /* of text; NULL: UTF-8 */
    char *field;       /* of JSON objects; NULL: by schema */
    bool lossy, skip_bad;
    int bos; /* of eval and generate: SW_BOS_... */
    /* Generate: one of prompt, prompt_file and token_file is given, or chat. */
    char *prompt, *prompt_file, *token_file;
    bool chat;
    char *system;
    int64_t max_tokens, top_k, seed;
    double temperature, top_p, min_p, repetition_penalty;
    /* Export. */
    char *to;
    bool merge; /* write the whole model, with its adapters merged into it */
    int type;   /* index in f32, bf16, f16 */
    int64_t shard_bytes;
    /* Tensors. */
    char *name;   /* NULL: they are listed */
    int part;     /* SW_STATE_... */
    char *array;  /* the file to write; "-": standard output */
    int64_t step; /* the step that the last commit must have; SW_OPTION_AUTO: any */
};

extern const struct sw_command_line sw_eval_command, sw_generate_command, sw_export_command, sw_tensors_command,
    sw_verify_command;

/* Runs a whole command on all ranks together, as sw_command_run does on one: parses the arguments, starts the watch and
 * calls `run`. Returns the exit status. */
int sw_read_on_ranks(const struct sw_command_line *line, int argc, char **argv,
                     sw_status (*run)(struct sw_ranks *ranks, const struct sw_read_options *given));

/* Returns in *out the size of tensor groups: that of --tensor, or automatic_ranks. SW_ERR_ARG: the ranks cannot form
 * such groups. */
sw_status sw_read_groups(struct sw_ranks *ranks, const struct sw_inference_options *options, int automatic_ranks,
                         int *out);

/* Returns the --bos that was given; for auto, the one that the source's texts were made with. */
int sw_read_bos(const struct sw_read_options *given, const struct sw_source *source);

/* Checks that all ranks have opened the same step of a run that may be training. SW_ERR_OVERTAKEN: they have not. All
 * ranks call it together. */
sw_status sw_read_same_step(struct sw_ranks *ranks, const struct sw_source *source);

#endif
