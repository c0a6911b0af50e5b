#include "train/settings/settings.h"

#include "core/size.h"
#include "offload/plan/placement.h"
#include "train/devices/devices.h"
#include "train/hf/config.h"
#include "train/settings/places.h"

#include <stdlib.h>
#include <string.h>

/* An epsilon that is 0 in fp32 divides 0 by 0 where a parameter has had no gradient yet. */
#define LEAST_EPS 1e-30

#define AT(member) .offset = offsetof(struct sw_settings, member)

/* Flags that shape a step: train and plan share them. */
#define SHAPE_OPTIONS                                                                                                  \
    {.name = "--batch-tokens",                                                                                         \
     .kind = SW_OPTION_INT,                                                                                            \
     AT(batch_tokens),                                                                                                 \
     .initial = "auto",                                                                                                \
     .value = "tokens",                                                                                                \
     .what = "tokens of a step, of all ranks",                                                                         \
     .int_min = 1,                                                                                                     \
     .allow_auto = true},                                                                                              \
        {.name = "--seq",                                                                                              \
         .kind = SW_OPTION_INT,                                                                                        \
         AT(seq),                                                                                                      \
         .initial = "auto",                                                                                            \
         .value = "tokens",                                                                                            \
         .what = "tokens of a sequence",                                                                               \
         .int_min = 1,                                                                                                 \
         .int_max = 1 << 22,                                                                                           \
         .allow_auto = true},                                                                                          \
        {.name = "--micro-batch",                                                                                      \
         .kind = SW_OPTION_INT,                                                                                        \
         AT(micro_batch),                                                                                              \
         .initial = "auto",                                                                                            \
         .value = "N",                                                                                                 \
         .what = "sequences computed at once",                                                                         \
         .int_min = 1,                                                                                                 \
         .int_max = 1 << 20,                                                                                           \
         .allow_auto = true},                                                                                          \
        {.name = "--durability",                                                                                       \
         .kind = SW_OPTION_CHOICE,                                                                                     \
         AT(durability),                                                                                               \
         .initial = "step",                                                                                            \
         .choices = "step|none",                                                                                       \
         .what =                                                                                                       \
             "step: every commit survives kill -9 and power loss; none: only a clean end can be resumed, half the "    \
             "space, no flushes"},                                                                                     \
        {.name = "--precision",                                                                                        \
         .kind = SW_OPTION_CHOICE,                                                                                     \
         AT(precision),                                                                                                \
         .initial = "auto",                                                                                            \
         .choices = "auto|bf16|fp16|fp32|tf32",                                                                        \
         .what = "type of weights, gradients and activations; tf32: fp32, multiplied as TF32 by a GPU; auto: bf16 "    \
                 "where the device has it"},                                                                           \
        {.name = "--device",                                                                                           \
         .kind = SW_OPTION_CHOICE,                                                                                     \
         AT(device),                                                                                                   \
         .initial = "auto",                                                                                            \
         .choices = "auto|cpu|cuda",                                                                                   \
         .what = "what computes; auto: CUDA where there is one, else the CPU"},                                        \
        {.name = "--order",                                                                                            \
         .kind = SW_OPTION_STRING,                                                                                     \
         AT(order),                                                                                                    \
         .initial = "auto",                                                                                            \
         .value = "auto|layer|batch|N",                                                                                \
         .what = "micro-batches that go through a unit before the next unit: all (layer), one (batch), or N; auto: "   \
                 "all that fit, and on one rank by price on a GPU or with --rates"},                                   \
        {.name = "--tiles",                                                                                            \
         .kind = SW_OPTION_INT,                                                                                        \
         AT(tiles),                                                                                                    \
         .initial = "1",                                                                                               \
         .value = "N",                                                                                                 \
         .what =                                                                                                       \
             "cut attention and MLP of each block into N tiles each, fetched one at a time (for very wide layers)",    \
         .int_min = 1,                                                                                                 \
         .int_max = SW_CONFIG_MAX_WIDTH},                                                                              \
    {                                                                                                                  \
        .name = "--recompute", .kind = SW_OPTION_CHOICE, AT(recompute), .initial = "auto", .choices = "auto|all|none", \
        .what = "compute a block's intermediates again in the backward pass, or keep them"                             \
    }

/* Flags that may differ from one start of a run to the next. */
#define BUDGET_OPTIONS                                                                                                 \
    {.name = "--device-memory",                                                                                        \
     .kind = SW_OPTION_SIZE,                                                                                           \
     AT(device_memory),                                                                                                \
     .initial = "auto",                                                                                                \
     .value = "SIZE",                                                                                                  \
     .what = "budget of the device tier, of each rank",                                                                \
     .allow_auto = true,                                                                                               \
     .own = true},                                                                                                     \
        {.name = "--host-memory",                                                                                      \
         .kind = SW_OPTION_SIZE,                                                                                       \
         AT(host_memory),                                                                                              \
         .initial = "auto",                                                                                            \
         .value = "SIZE",                                                                                              \
         .what =                                                                                                       \
             "budget of the host tier, of each rank; one that is named may exceed what the system calls available",    \
         .allow_auto = true,                                                                                           \
         .own = true},                                                                                                 \
        {.name = "--zero",                                                                                             \
         .kind = SW_OPTION_INT,                                                                                        \
         AT(zero),                                                                                                     \
         .initial = "auto",                                                                                            \
         .value = "STAGE",                                                                                             \
         .what = "what ranks share out (ZeRO): 0 nothing, 1 optimizer, 2 and gradients, 3 and weights; auto: 2 where " \
                 "each device can hold all weights, else 3",                                                           \
         .int_min = 0,                                                                                                 \
         .int_max = 3,                                                                                                 \
         .allow_auto = true},                                                                                          \
        {.name = "--speculate",                                                                                        \
         .kind = SW_OPTION_CHOICE,                                                                                     \
         AT(speculate),                                                                                                \
         .initial = "auto",                                                                                            \
         .choices = "never|auto|always",                                                                               \
         .what = "start updates in backward, redone where a step is clipped (optimizer all on NVMe); auto: where "     \
                 "few are and it is faster"},                                                                          \
        {.name = "--update",                                                                                           \
         .kind = SW_OPTION_CHOICE,                                                                                     \
         AT(update),                                                                                                   \
         .initial = "auto",                                                                                            \
         .choices = "auto|host|device",                                                                                \
         .what =                                                                                                       \
             "where updates run whose optimizer is not on the device; device: it streams through there in chunks; "    \
             "auto: by price, for each unit"},                                                                         \
        {.name = "--place",                                                                                            \
         .kind = SW_OPTION_STRING,                                                                                     \
         AT(place),                                                                                                    \
         .initial = "auto",                                                                                            \
         .value = "WHERE",                                                                                             \
         .what = "auto, or grads=T,optimizer=T with T one of device, host, nvme"},                                     \
        {.name = "--threads",                                                                                          \
         .kind = SW_OPTION_INT,                                                                                        \
         AT(threads),                                                                                                  \
         .initial = "auto",                                                                                            \
         .value = "N",                                                                                                 \
         .what = "threads of each rank on the CPU; auto: all cores, shared by the ranks of a machine",                 \
         .int_min = 1,                                                                                                 \
         .int_max = 4096,                                                                                              \
         .allow_auto = true,                                                                                           \
         .own = true},                                                                                                 \
        {.name = "--chunk-grains",                                                                                     \
         .kind = SW_OPTION_INT,                                                                                        \
         AT(chunk_grains),                                                                                             \
         .initial = "auto",                                                                                            \
         .value = "N",                                                                                                 \
         .what = "grains (16,384 parameters) of one transfer or update; auto: 16, and 64 where a GPU copies them, "    \
                 "doubled until a rank's part of the model has at most 16,384 chunks",                                 \
         .int_min = 1,                                                                                                 \
         .int_max = 65536,                                                                                             \
         .allow_auto = true},                                                                                          \
    {                                                                                                                  \
        .name = "--ring-chunks", .kind = SW_OPTION_INT, AT(ring_chunks), .initial = "auto", .value = "N",              \
        .what = "staging buffers of each kind; auto: 8, and up to 256 where the host's budget has room", .int_min = 1, \
        .int_max = 1024, .allow_auto = true                                                                            \
    }

/* How often mixed placements commit, and what the drives bear: what is written follows from both. */
#define WRITES_OPTIONS                                                                                                 \
    {.name = "--save-every",                                                                                           \
     .kind = SW_OPTION_EVERY,                                                                                          \
     AT(save_every),                                                                                                   \
     .initial = "100,10m",                                                                                             \
     .value = "steps|TIME",                                                                                            \
     .what =                                                                                                           \
         "steps (100), time (10m, 30s) or both (100,10m), whichever comes first, between commits where not all of "    \
         "the optimizer is on NVMe (else every step commits)"},                                                        \
    {                                                                                                                  \
        .name = "--endurance", .kind = SW_OPTION_REAL, AT(endurance), .initial = "0", .value = "TBW",                  \
        .what = "terabytes that the store's drives together are rated to have written, to show what part a run uses; " \
                "0: not known",                                                                                        \
        .real_min = 0, .real_max = 1e9                                                                                 \
    }

#define RUNNING_OPTIONS                                                                                                \
    {.name = "--nvme",                                                                                                 \
     .kind = SW_OPTION_LIST,                                                                                           \
     AT(nvme),                                                                                                         \
     .value = "DIR[:SIZE]",                                                                                            \
     .what = "folder for the store's file, or a block device for all of it, and what the store may take there; "       \
             "repeatable: striped, with as much in each, of each rank; {rank} and {local_rank} in it are the rank's "  \
             "numbers; "                                                                                               \
             "default: the run's own folder",                                                                          \
     .own = true},                                                                                                     \
        {.name = "--eval-every",                                                                                       \
         .kind = SW_OPTION_INT,                                                                                        \
         AT(eval_every),                                                                                               \
         .initial = "0",                                                                                               \
         .value = "steps",                                                                                             \
         .what = "steps between evaluations; 0: only at the end",                                                      \
         .int_min = 0},                                                                                                \
        WRITES_OPTIONS,                                                                                                \
        {.name = "--export-every",                                                                                     \
         .kind = SW_OPTION_INT,                                                                                        \
         AT(export_every),                                                                                             \
         .initial = "0",                                                                                               \
         .value = "steps",                                                                                             \
         .what = "steps between Hugging Face folders of the weights in DIR/exports; 0: none",                          \
         .int_min = 0},                                                                                                \
        {.name = "--keep",                                                                                             \
         .kind = SW_OPTION_INT,                                                                                        \
         AT(keep),                                                                                                     \
         .initial = "2",                                                                                               \
         .value = "K",                                                                                                 \
         .what = "exports to keep: the best by validation loss, or the newest",                                        \
         .int_min = 1,                                                                                                 \
         .int_max = 1000},                                                                                             \
        {.name = "--time-limit",                                                                                       \
         .kind = SW_OPTION_DURATION,                                                                                   \
         AT(time_limit),                                                                                               \
         .initial = "0",                                                                                               \
         .value = "TIME",                                                                                              \
         .what = "end in good time before this (90s, 15m, 2h); 0: none",                                               \
         .transient = true},                                                                                           \
        {.name = "--trace",                                                                                            \
         .kind = SW_OPTION_STRING,                                                                                     \
         AT(trace),                                                                                                    \
         .value = "FILE",                                                                                              \
         .what = "write what each lane did in the first steps, for Perfetto or chrome://tracing",                      \
         .transient = true},                                                                                           \
        {.name = "--rank-timeout",                                                                                     \
         .kind = SW_OPTION_DURATION,                                                                                   \
         AT(rank_timeout),                                                                                             \
         .initial = "60",                                                                                              \
         .value = "TIME",                                                                                              \
         .what = "a rank that gives no sign of life for so long, or does nothing while others wait for it, ends all",  \
         .int_min = 1},                                                                                                \
        {.name = "--allow-shared-gpu",                                                                                 \
         .kind = SW_OPTION_FLAG,                                                                                       \
         AT(allow_shared_gpu),                                                                                         \
         .what = "let several ranks of a machine compute on one GPU, which NVIDIA's NCCL refuses",                     \
         .transient = true},                                                                                           \
    {                                                                                                                  \
        .name = "--allow-buffered", .kind = SW_OPTION_FLAG, AT(allow_buffered),                                        \
        .what = "accept a file system without O_DIRECT, through the page cache"                                        \
    }

static const struct sw_option train_options[] = {
    {.name = "--model",
     .kind = SW_OPTION_STRING,
     AT(model),
     .value = "M",
     .what = "Hugging Face folder, or a preset (see below)",
     .required = true},
    {.name = "--data",
     .kind = SW_OPTION_MANY,
     AT(data),
     .value = "FILE",
     .what = "text (.txt, .md: UTF-8, of which a byte is a token) or token files (.bin)",
     .required = true},
    {.name = "--tokens",
     .kind = SW_OPTION_CHOICE,
     AT(tokens),
     .initial = "auto",
     .choices = "auto|u16|u32",
     .what = "type of the tokens in .bin files; auto: u16 for vocabularies up to 65,536, else u32"},
    {.name = "--run",
     .kind = SW_OPTION_STRING,
     AT(run),
     .value = "DIR",
     .what = "folder of the run, new or empty",
     .required = true,
     .transient = true},
    {.name = "--steps",
     .kind = SW_OPTION_INT,
     AT(steps),
     .initial = "1000",
     .value = "N",
     .what = "optimizer steps",
     .int_min = 1},
    {.name = "--schedule-steps",
     .kind = SW_OPTION_INT,
     AT(schedule_steps),
     .initial = "auto",
     .value = "N",
     .what = "length of the schedule; auto: --steps",
     .int_min = 1,
     .allow_auto = true},
    SHAPE_OPTIONS,
    {.name = "--lr",
     .kind = SW_OPTION_REAL,
     AT(lr),
     .initial = "3e-4",
     .value = "RATE",
     .what = "highest learning rate",
     .real_min = 0,
     .real_max = 1e3},
    {.name = "--warmup",
     .kind = SW_OPTION_INT,
     AT(warmup),
     .initial = "auto",
     .value = "steps",
     .what = "linear warm-up; auto: a tenth of the schedule, at most 100",
     .int_min = 0,
     .allow_auto = true},
    {.name = "--schedule",
     .kind = SW_OPTION_CHOICE,
     AT(schedule),
     .initial = "cosine",
     .choices = "constant|linear|cosine|wsd",
     .what = "course of the learning rate after the warm-up"},
    {.name = "--decay-steps",
     .kind = SW_OPTION_INT,
     AT(decay_steps),
     .initial = "0",
     .value = "steps",
     .what = "wsd: the linear decay at the end",
     .int_min = 0},
    {.name = "--min-lr",
     .kind = SW_OPTION_REAL,
     AT(min_lr),
     .initial = "0",
     .value = "RATE",
     .what = "learning rate after the schedule, to which its last step comes close",
     .real_min = 0,
     .real_max = 1e3},
    {.name = "--weight-decay",
     .kind = SW_OPTION_REAL,
     AT(weight_decay),
     .initial = "0.1",
     .value = "X",
     .what = "AdamW, on tensors of two or more dimensions",
     .real_min = 0,
     .real_max = 1e3},
    {.name = "--beta1",
     .kind = SW_OPTION_REAL,
     AT(beta1),
     .initial = "0.9",
     .value = "X",
     .what = "AdamW",
     .real_min = 0,
     .real_max = 1,
     .below_max = true},
    {.name = "--beta2",
     .kind = SW_OPTION_REAL,
     AT(beta2),
     .initial = "0.95",
     .value = "X",
     .what = "AdamW",
     .real_min = 0,
     .real_max = 1,
     .below_max = true},
    {.name = "--eps",
     .kind = SW_OPTION_REAL,
     AT(eps),
     .initial = "1e-8",
     .value = "X",
     .what = "AdamW",
     .real_min = LEAST_EPS,
     .real_max = 1},
    {.name = "--clip",
     .kind = SW_OPTION_REAL,
     AT(clip),
     .initial = "1",
     .value = "NORM",
     .what = "largest gradient norm; 0: no clipping",
     .real_min = 0,
     .real_max = 1e30},
    {.name = "--seed",
     .kind = SW_OPTION_INT,
     AT(seed),
     .initial = "0",
     .value = "N",
     .what = "of the data's order and of --init",
     .int_min = 0},
    {.name = "--init", .kind = SW_OPTION_FLAG, AT(init), .what = "start from random weights"},
    {.name = "--reduce",
     .kind = SW_OPTION_CHOICE,
     AT(reduce),
     .initial = "ordered",
     .choices = "ordered|library",
     .what =
         "how gradients of ranks are added: in the order of the ranks, or as MPI or NCCL does, whose order and bits "
         "depend on the library"},
    {.name = "--val",
     .kind = SW_OPTION_STRING,
     AT(val),
     .initial = "0%",
     .value = "P%|FILE",
     .what = "validation data: the last part of the data, or a file"},
    BUDGET_OPTIONS,
    RUNNING_OPTIONS,
    {.name = "--allow-overwrite-device",
     .kind = SW_OPTION_FLAG,
     AT(allow_overwrite_device),
     .what = "use a block device of --nvme that holds something, which is lost",
     .transient = true},
};

static const struct sw_option resume_options[] = {
    {.name = "DIR",
     .kind = SW_OPTION_STRING,
     AT(run),
     .what = "folder of the run",
     .required = true,
     .transient = true},
    {.name = "--steps",
     .kind = SW_OPTION_INT,
     AT(steps),
     .value = "N",
     .what = "total steps; the schedule keeps its length",
     .int_min = 1},
    {.name = "--data",
     .kind = SW_OPTION_MANY,
     AT(data),
     .value = "FILE",
     .what = "where the run's data are now; they must be the same tokens"},
    {.name = "--val",
     .kind = SW_OPTION_STRING,
     AT(val),
     .value = "FILE",
     .what = "where the run's validation file is now; it must be the same tokens"},
    {.name = "--schedule-steps",
     .kind = SW_OPTION_INT,
     AT(schedule_steps),
     .value = "N",
     .what = "another length of the schedule, for the steps to come; auto: --steps",
     .int_min = 1,
     .allow_auto = true},
    {.name = "--lr",
     .kind = SW_OPTION_REAL,
     AT(lr),
     .value = "RATE",
     .what = "another highest learning rate, for the steps to come",
     .real_min = 0,
     .real_max = 1e3},
    {.name = "--min-lr",
     .kind = SW_OPTION_REAL,
     AT(min_lr),
     .value = "RATE",
     .what = "another learning rate at the end, for the steps to come",
     .real_min = 0,
     .real_max = 1e3},
    {.name = "--tokens",
     .kind = SW_OPTION_CHOICE,
     AT(tokens),
     .choices = "auto|u16|u32",
     .what = "type of the tokens in .bin files; auto: u16 for vocabularies up to 65,536, else u32"},
    {.name = "--previous",
     .kind = SW_OPTION_FLAG,
     AT(previous),
     .what = "give up the last commit, which is damaged, and go on from the one before if that is still whole",
     .transient = true},
    BUDGET_OPTIONS,
    RUNNING_OPTIONS,
};

/* Flags of what predicts a step. */
#define PREDICTION_OPTIONS                                                                                             \
    {.name = "--allow-buffered",                                                                                       \
     .kind = SW_OPTION_FLAG,                                                                                           \
     AT(allow_buffered),                                                                                               \
     .what = "accept a file system without O_DIRECT, through the page cache"},                                         \
    {                                                                                                                  \
        .name = "--rates", .kind = SW_OPTION_STRING, AT(rates), .value = "FILE",                                       \
        .what =                                                                                                        \
            "rates to predict with; measured and written where the file is not there yet; default: measured each time" \
    }

static const struct sw_option plan_options[] = {
    {.name = "--model",
     .kind = SW_OPTION_STRING,
     AT(model),
     .value = "M",
     .what = "Hugging Face folder, its config.json, or a preset (see below)",
     .required = true},
    {.name = "--ranks",
     .kind = SW_OPTION_INT,
     AT(ranks),
     .initial = "1",
     .value = "N",
     .what = "plan for a rank of so many, which need not be here; budgets are those of each",
     .int_min = 1,
     .int_max = SW_SETTINGS_MOST_RANKS},
    SHAPE_OPTIONS,
    BUDGET_OPTIONS,
    {.name = "--steps",
     .kind = SW_OPTION_INT,
     AT(steps),
     .initial = "1000",
     .value = "N",
     .what = "optimizer steps, for what the whole run writes",
     .int_min = 1},
    WRITES_OPTIONS,
    {.name = "--nvme",
     .kind = SW_OPTION_LIST,
     AT(nvme),
     .value = "DIR[:SIZE]",
     .what = "folder on the drive that is measured, and what the store may take there; repeatable: striped; default: "
             "the current folder; with --machine only what the store may take counts"},
    PREDICTION_OPTIONS,
    {.name = "--machine",
     .kind = SW_OPTION_STRING,
     AT(machine),
     .value = "FILE",
     .what = "description of a machine with a GPU, which need not be here, to plan and predict for (bench/machines)"},
    {.name = "--trace",
     .kind = SW_OPTION_STRING,
     AT(trace),
     .value = "FILE",
     .what = "write the predicted course of some steps, for Perfetto or chrome://tracing"},
    {.name = "--json", .kind = SW_OPTION_FLAG, AT(json), .what = "one object on standard output"},
};

static const struct sw_option step_options[] = {
    {.name = "--model",
     .kind = SW_OPTION_STRING,
     AT(model),
     .initial = "gpt2-124m",
     .value = "M",
     .what = "Hugging Face folder, its config.json, or a preset (see below); weights are random"},
    SHAPE_OPTIONS,
    BUDGET_OPTIONS,
    {.name = "--nvme",
     .kind = SW_OPTION_LIST,
     AT(nvme),
     .value = "DIR[:SIZE]",
     .what = "folder for the store's file, which is deleted again, and what it may take there; repeatable: striped; "
             "default: the current folder"},
    PREDICTION_OPTIONS,
    {.name = "--steps",
     .kind = SW_OPTION_INT,
     AT(steps),
     .initial = "4",
     .value = "N",
     .what = "steps of each kind in a round",
     .int_min = 1,
     .int_max = 10000},
    {.name = "--rounds",
     .kind = SW_OPTION_INT,
     AT(rounds),
     .initial = "3",
     .value = "N",
     .what = "rounds, in each of which every kind of step is measured in turn",
     .int_min = 1,
     .int_max = 3},
    {.name = "--trace",
     .kind = SW_OPTION_STRING,
     AT(trace),
     .value = "FILE",
     .what = "write the course of the first steps as placed, for Perfetto or chrome://tracing"},
    {.name = "--json", .kind = SW_OPTION_FLAG, AT(json), .what = "one object on standard output"},
};

/* Micro-batches that go through a unit before the next unit. */
static sw_status parse_order(const char *order, int64_t micros, int64_t *out) {
    const bool batch = strcmp(order, "batch") == 0;
    char *end;
    *out = micros;
    if (strcmp(order, "auto") == 0 || strcmp(order, "layer") == 0)
        return SW_OK;
    *out = batch ? 1 : strtoll(order, &end, 10);
    if (!batch && (end == order || *end != '\0' || *out < 1))
        return sw_fail(SW_ERR_ARG, "--order '%s' is none of auto, layer, batch and a number of micro-batches", order);
    *out = sw_min_i64(*out, micros);
    return SW_OK;
}

static sw_status check_settings(const void *settings) {
    return sw_settings_check(settings);
}

static void print_presets(FILE *to) {
    fputs("\npresets:\n", to);
    for (int i = 0; sw_preset_at(i) != NULL; i++)
        fprintf(to, "  %-12s %s\n", sw_preset_at(i)->name, sw_preset_at(i)->what);
}

static void print_presets_and_exits(FILE *to) {
    print_presets(to);
    sw_options_help_exits(to);
}

#define COUNT(table) ((int)(sizeof(table) / sizeof(table)[0]))
const struct sw_command_line sw_train_command = {.command = "train",
                                                 .summary = "train a model from its weights, or from random ones",
                                                 .options = train_options,
                                                 .option_count = COUNT(train_options),
                                                 .check = check_settings,
                                                 .more_help = print_presets_and_exits};
const struct sw_command_line sw_resume_command = {.command = "resume",
                                                  .summary = "go on with a run from its last commit",
                                                  .options = resume_options,
                                                  .option_count = COUNT(resume_options),
                                                  .check = check_settings,
                                                  .more_help = sw_options_help_exits,
                                                  .goes_on = true};
const struct sw_command_line sw_plan_command = {.command = "plan",
                                                .summary =
                                                    "show where everything would live and what a step would move",
                                                .options = plan_options,
                                                .option_count = COUNT(plan_options),
                                                .check = check_settings,
                                                .more_help = print_presets};

const struct sw_command_line sw_bench_step_command = {
    .command = "bench step",
    .summary = "measure a training step as placed, beside one that is resident, its own I/O alone, and the least bytes",
    .options = step_options,
    .option_count = COUNT(step_options),
    .check = check_settings,
    .more_help = print_presets};

/* What is described is not asked of this machine. */
static sw_status check_machine(const struct sw_settings *settings) {
    if (settings->machine == NULL)
        return SW_OK;
    if (settings->rates != NULL)
        return sw_fail(SW_ERR_ARG, "--machine and --rates both say how fast a machine is; give one of them");
    return settings->device == SW_DEVICE_CPU
               ? sw_fail(SW_ERR_ARG, "--machine describes one whose GPU computes; leave --device cpu out")
               : SW_OK;
}

sw_status sw_settings_check(const struct sw_settings *settings) {
    int64_t group;
    SW_TRY(check_machine(settings));
    if (settings->order != NULL) /* resume has none of its own */
        SW_TRY(parse_order(settings->order, 1, &group));
    struct sw_placement_request place;
    SW_TRY(sw_placement_parse(settings->place, &place));
    double percent;
    const char *file;
    return settings->val == NULL ? SW_OK : sw_settings_validation(settings, &percent, &file);
}

sw_dtype sw_settings_type(const struct sw_settings *settings) {
    static const sw_dtype types[] = {[SW_PRECISION_AUTO] = SW_F32,
                                     [SW_PRECISION_BF16] = SW_BF16,
                                     [SW_PRECISION_FP16] = SW_F16,
                                     [SW_PRECISION_FP32] = SW_F32,
                                     [SW_PRECISION_TF32] = SW_F32};
    return types[settings->precision];
}

const char *sw_settings_precision_name(const struct sw_settings *settings) {
    return settings->precision == SW_PRECISION_TF32 ? "tf32" : sw_dtype_name(sw_settings_type(settings));
}

sw_status sw_settings_prepare_device(const struct sw_settings *settings, struct sw_device *device) {
    return settings->precision == SW_PRECISION_TF32 ? sw_device_use_tf32(device) : SW_OK;
}

int64_t sw_settings_micro_batches(const struct sw_settings *settings) {
    return settings->batch_tokens / (settings->micro_batch * settings->seq * sw_settings_ranks(settings));
}

struct sw_store_owner sw_settings_owner(const struct sw_settings *settings) {
    return (struct sw_store_owner){.rank = settings->rank,
                                   .ranks = sw_settings_ranks(settings),
                                   .local_rank = settings->local_rank,
                                   .whole = sw_settings_ranks(settings) > 1 && settings->zero == 0};
}

int64_t sw_settings_ranks(const struct sw_settings *settings) {
    return sw_max_i64(1, settings->ranks);
}

bool sw_settings_order_is_auto(const struct sw_settings *settings) {
    return strcmp(settings->order, "auto") == 0;
}

sw_status sw_settings_group(const struct sw_settings *settings, int64_t *out) {
    SW_TRY(parse_order(settings->order, sw_settings_micro_batches(settings), out));
    if (sw_settings_order_is_auto(settings) && settings->group > 0)
        *out = sw_min_i64(*out, settings->group);
    return SW_OK;
}

struct sw_schedule sw_settings_schedule(const struct sw_settings *settings) {
    static const sw_schedule_kind kinds[] = {SW_SCHEDULE_CONSTANT, SW_SCHEDULE_LINEAR, SW_SCHEDULE_COSINE,
                                             SW_SCHEDULE_WSD};
    return (struct sw_schedule){.kind = kinds[settings->schedule],
                                .lr = settings->lr,
                                .min_lr = settings->min_lr,
                                .warmup_steps = settings->warmup,
                                .steps = settings->schedule_steps,
                                .decay_steps = settings->decay_steps,
                                .min_at_last = settings->min_lr_at_last};
}

sw_status sw_settings_validation(const struct sw_settings *settings, double *out_percent, const char **out_file) {
    const size_t length = strlen(settings->val);
    *out_percent = 0.0;
    *out_file = NULL;
    if (length == 0 || settings->val[length - 1] != '%') {
        *out_file = settings->val;
        return SW_OK;
    }
    char *end;
    *out_percent = strtod(settings->val, &end);
    if (end != settings->val + length - 1 || end == settings->val || !(*out_percent >= 0.0 && *out_percent <= 50.0))
        return sw_fail(SW_ERR_ARG, "--val '%s' is neither a percentage from 0%% to 50%% nor a file", settings->val);
    return SW_OK;
}
