/* The flags of train, resume, plan and bench step, in one table. Parsing, --help, run.json, the manual and the
 * completions all follow from it. */
#include "core/files/files.h"
#include "core/json.h"
#include "job/machine/shipped_machines.h"
#include "job/settings/settings.h"
#include "model/hf/config.h"
#include "text/documents/chat_template.h"
#include "text/documents/text_reader.h"
#include "text/model_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Commands that share the table. */
enum { TRAIN = 1, RESUME = 2, PLAN = 4, STEP = 8, RUNS = TRAIN | RESUME, SHAPES = TRAIN | PLAN | STEP, ALL = 15 };

/* Headings in --help. Rows are in the order in which --help prints them: what most people need comes first. */
#define RUN "Run"
#define BATCH "Batch"
#define LEARNING "Optimizer and learning rate"
#define SAVING "Saving and evaluating"
#define MEMORY "Memory and drives"
#define RANKS "Ranks"
#define DEVICE "Device"
#define TUNING "Tuning"
#define PREDICTION "Prediction"
#define OUTPUT SW_OPTION_OUTPUT

/* AdamW with an epsilon that is 0 in fp32 divides 0 by 0 for a parameter that has had no gradient yet. */
#define LEAST_EPS 1e-30

#define FLAG(member) .kind = SW_OPTION_FLAG, .offset = offsetof(struct sw_settings, member)
#define TEXT(member) .kind = SW_OPTION_STRING, .offset = offsetof(struct sw_settings, member)
#define INT(member) .kind = SW_OPTION_INT, .offset = offsetof(struct sw_settings, member)
#define REAL(member) .kind = SW_OPTION_REAL, .offset = offsetof(struct sw_settings, member)
#define SIZE(member) .kind = SW_OPTION_SIZE, .offset = offsetof(struct sw_settings, member)
#define TIME(member) .kind = SW_OPTION_DURATION, .offset = offsetof(struct sw_settings, member)
#define EVERY(member) .kind = SW_OPTION_EVERY, .offset = offsetof(struct sw_settings, member)
#define CHOICE(member) .kind = SW_OPTION_CHOICE, .offset = offsetof(struct sw_settings, member)
#define LIST(member) .kind = SW_OPTION_LIST, .offset = offsetof(struct sw_settings, member)
#define MANY(member) .kind = SW_OPTION_MANY, .offset = offsetof(struct sw_settings, member)

/* One member a line would make the table 500 lines long. */
/* clang-format off */
static const struct sw_option options[] = {
    {.name = "DIR", TEXT(run), .commands = RESUME, .group = RUN, .required = true, .transient = true,
     .what = "folder of the run"},
    {.name = "--model", TEXT(model), .commands = TRAIN, .group = RUN, .required = true, .value = "M",
     .what = "Hugging Face folder, or the name of a preset (listed below)"},
    {.name = "--model", TEXT(model), .commands = PLAN, .group = RUN, .value = "M",
     .what = "Hugging Face folder, or the name of a preset (listed below); required without --largest"},
    {.name = "--model", TEXT(model), .commands = STEP, .group = RUN, .initial = "gpt2-124m", .value = "M",
     .what = "Hugging Face folder, or the name of a preset (listed below); the weights are random"},
    {.name = "--model", TEXT(model), .commands = RESUME, .group = RUN, .value = "DIR",
     .what = "where the model with the frozen weights is now, if it moved; it must hold the same weights"},
    {.name = "--init", FLAG(init), .commands = TRAIN, .group = RUN,
     .what = "start from random weights instead of the folder's"},
    {.name = "--data", MANY(data), .commands = TRAIN, .group = RUN, .required = true, .value = "FILE",
     .what = "training data: token files (.bin); or chats and text (.jsonl, .json, .txt, .md, also packed, or a folder of "
             "them), which become tokens if the model has a tokenizer.json; without one, each byte of .txt and .md is a "
             "token"},
    {.name = "--data", MANY(data), .commands = PLAN, .group = RUN, .value = "FILE",
     .what = "training data as for train, to resolve --epochs; of text only the beginning is read, and its tokens "
             "are estimated"},
    {.name = "--data", MANY(data), .commands = RESUME, .group = RUN, .value = "FILE",
     .what = "where the training data is now, if it moved; it must hold the same tokens"},
    {.name = "--tokens", CHOICE(tokens), .commands = RUNS | PLAN, .group = RUN, .initial = "auto", .choices = "auto|u16|u32",
     .what = "type of the tokens in .bin files; auto: u16 for vocabularies up to 65,536, else u32"},
    {.name = "--loss", CHOICE(loss), .commands = TRAIN | PLAN, .group = RUN, .initial = "completions",
     .choices = SW_LOSS_CHOICES,
     .what = "tokens of chats and prompts that the model learns to write: the assistant's and the completions', or all"},
    {.name = "--chat-format", TEXT(chat_format), .commands = TRAIN | PLAN, .group = RUN, .initial = "auto", .value = "NAME",
     .what = "format of chats, one of those in tokenize --help; auto: the model's chat template"},
    {.name = "--field", TEXT(field), .commands = TRAIN | PLAN, .group = RUN, .value = "NAME",
     .what = "member of JSON objects with the text or the list of messages; without the flag, the schema tells"},
    {.name = "--skip-bad", FLAG(skip_bad), .commands = TRAIN | PLAN, .group = RUN,
     .what = "skip JSON documents that are wrong, and count them"},
    {.name = "--dpo", FLAG(dpo), .commands = TRAIN | PLAN, .group = RUN,
     .what = "direct preference optimization: the data are pairs of a chosen and a rejected reply, and the loss "
             "compares the model's preference with that of the starting weights"},
    {.name = "--dpo-beta", REAL(dpo_beta), .commands = TRAIN | PLAN, .group = RUN, .initial = "0.1", .value = "X",
     .real_min = 1e-6, .real_max = 1e6,
     .what = "β of --dpo: the larger, the closer the model stays to its starting weights"},
    {.name = "--bos", CHOICE(bos), .commands = TRAIN | PLAN, .group = RUN, .initial = "auto", .choices = SW_BOS_CHOICES,
     .what = "token that begins a document of text (tokenize --help); auto: as the model's tokenizer does"},
    {.name = "--encoding", TEXT(encoding), .commands = TRAIN | PLAN, .group = RUN, .value = "NAME",
     .what = "encoding of text that is not UTF-8, as iconv names it: latin-1, gbk, shift-jis, utf-16"},
    {.name = "--lossy", FLAG(lossy), .commands = TRAIN | PLAN, .group = RUN,
     .what = "replace bytes that are invalid in the encoding with U+FFFD and count them, instead of refusing the "
             "text"},
    {.name = "--val", TEXT(val), .commands = TRAIN | PLAN, .group = RUN, .initial = "0%", .value = "P%|FILE",
     .what = "validation data: the last P percent of the training data, or a file"},
    {.name = "--val", TEXT(val), .commands = RESUME, .group = RUN, .value = "FILE",
     .what = "where the validation file is now, if it moved; it must hold the same tokens"},
    {.name = "--run", TEXT(run), .commands = TRAIN, .group = RUN, .required = true, .transient = true, .value = "DIR",
     .what = "folder for the run: new, or empty"},
    {.name = "--steps", INT(steps), .commands = TRAIN | PLAN, .group = RUN, .initial = "auto", .value = "N",
     .int_min = 1, .allow_auto = true, .what = "optimizer steps of the run; auto: as --epochs says, else 1000"},
    {.name = "--epochs", REAL(epochs), .commands = TRAIN | PLAN, .group = RUN, .initial = "0", .value = "X", .real_min = 0,
     .real_max = 1e6, .what = "instead of --steps: passes of the run over its training data"},
    {.name = "--steps", INT(steps), .commands = RESUME, .group = RUN, .value = "N", .int_min = 1,
     .what = "optimizer steps of the run, counted from its start; the schedule keeps its length"},
    {.name = "--steps", INT(steps), .commands = STEP, .group = RUN, .initial = "4", .value = "N", .int_min = 1,
     .int_max = 10000, .what = "steps of each kind in a round"},
    {.name = "--rounds", INT(rounds), .commands = STEP, .group = RUN, .initial = "3", .value = "N", .int_min = 1,
     .int_max = 3, .what = "rounds; each measures every kind of step in turn"},
    {.name = "--time-limit", TIME(time_limit), .commands = RUNS, .group = RUN, .initial = "0", .value = "TIME",
     .transient = true, .what = "save and stop before this much time (90s, 15m, 2h) has passed; 0: no limit"},
    {.name = "--dry-run", FLAG(dry_run), .commands = TRAIN, .group = RUN, .transient = true,
     .what = "check flags, model, data and memory, say what would be trained, and write nothing"},
    {.name = "--seed", INT(seed), .commands = TRAIN, .group = RUN, .initial = "0", .value = "N", .int_min = 0,
     .what = "seed of the data's order and of --init"},
    {.name = "--recipe", TEXT(recipe), .commands = TRAIN | PLAN, .group = RUN, .transient = true, .recipe = true,
     .value = "FILE", .what = "YAML file of flags, one `name: value` a line; flags on the command line win"},
    {.name = "--previous", FLAG(previous), .commands = RESUME, .group = RUN, .transient = true,
     .what = "drop the last commit, which is damaged, and go on from the one before, if that is whole"},

    {.name = "--batch-tokens", INT(batch_tokens), .commands = SHAPES, .group = BATCH, .initial = "auto", .value = "N",
     .int_min = 1, .allow_auto = true, .what = "tokens of a step, over all ranks; auto: about 16,384"},
    {.name = "--seq", INT(seq), .commands = SHAPES, .group = BATCH, .initial = "auto", .value = "N", .int_min = 1,
     .int_max = 1 << 22, .allow_auto = true,
     .what = "tokens of a sequence; auto: 1024, or fewer if the model has fewer positions"},
    {.name = "--micro-batch", INT(micro_batch), .commands = SHAPES, .group = BATCH, .initial = "auto", .value = "N",
     .int_min = 1, .int_max = 1 << 20, .allow_auto = true,
     .what = "sequences that each rank computes at once; auto: as many as hold 4096 tokens, or fewer that fit the device "
             "of a single rank"},

    {.name = "--freeze", TEXT(tuning.freeze), .commands = TRAIN | PLAN, .group = LEARNING, .value = "NAMES",
     .what = "do not train the embedding, blocks, counted from 0, or the tensors that match a pattern: "
             "embedding,blocks:0-11 or '*.mlp.*'"},
    {.name = "--lora", INT(tuning.lora.rank), .commands = TRAIN | PLAN, .group = LEARNING, .value = "RANK", .int_min = 0,
     .int_max = SW_LORA_MOST_RANK,
     .what = "train LoRA adapters of this rank on the matrices of blocks, and freeze the model"},
    {.name = "--lora-alpha", REAL(tuning.lora.alpha), .commands = TRAIN | PLAN, .group = LEARNING, .value = "A",
     .real_min = 0, .real_max = 1e6, .what = "scale adapters by A / RANK; without it, A is twice the rank"},
    {.name = "--rslora", FLAG(tuning.lora.rank_stabilized), .commands = TRAIN | PLAN, .group = LEARNING,
     .what = "scale adapters by A / sqrt(RANK) instead"},
    {.name = "--lora-dropout", REAL(tuning.lora.dropout), .commands = TRAIN | PLAN, .group = LEARNING, .value = "P",
     .real_min = 0, .real_max = 1, .below_max = true,
     .what = "drop this fraction of each adapter's input in training; the rest is scaled up to keep the mean"},
    {.name = "--lora-targets", TEXT(tuning.lora.targets), .commands = TRAIN | PLAN, .group = LEARNING, .value = "MODULES",
     .what = "matrices that get adapters: all (without the flag), attention, mlp, experts, or modules: q_proj,v_proj or"
             " '*.mlp.*'"},
    {.name = "--modules-to-save", TEXT(tuning.lora.modules_to_save), .commands = TRAIN | PLAN, .group = LEARNING,
     .value = "MODULES", .what = "modules to train in full along with adapters: lm_head"},
    {.name = "--adapter", TEXT(adapter), .commands = TRAIN | PLAN, .group = LEARNING, .value = "FOLDER",
     .what = "start from the adapters in a folder that PEFT or `spillway export` wrote; the folder sets all of the"
             " above"},
    {.name = "--base-format", CHOICE(tuning.base), .commands = TRAIN | PLAN, .group = LEARNING, .initial = "compute",
     .choices = "compute|int8|nf4|fp8|mxfp4",
     .what = "keep the frozen matrices of blocks in the compute type, in 8 bits, or in 4 (NormalFloat, as QLoRA has them); "
             "fp8 and mxfp4: exactly as a checkpoint in such a format stores them"},
    {.name = "--lr", REAL(lr), .commands = TRAIN, .group = LEARNING, .initial = "auto", .value = "RATE", .real_min = 0,
     .real_max = 1e3, .allow_auto = true,
     .what = "peak learning rate, reached after the warm-up; auto: 1e-5 for loaded weights, 1e-4 with --lora, 3e-4"
             " with --init"},
    {.name = "--lr", REAL(lr), .commands = RESUME, .group = LEARNING, .value = "RATE", .real_min = 0, .real_max = 1e3,
     .what = "peak learning rate, reached after the warm-up"},
    {.name = "--warmup", INT(warmup), .commands = TRAIN, .group = LEARNING, .initial = "auto", .value = "STEPS",
     .int_min = 0, .allow_auto = true, .what = "steps of linear warm-up; auto: a tenth of the schedule, at most 100"},
    {.name = "--schedule", CHOICE(schedule), .commands = TRAIN, .group = LEARNING, .initial = "cosine",
     .choices = "constant|linear|cosine|wsd",
     .what = "learning rate after the warm-up; wsd: constant, then linear decay over --decay-steps"},
    {.name = "--schedule-steps", INT(schedule_steps), .commands = RUNS, .group = LEARNING, .initial = "auto",
     .value = "N", .int_min = 1, .allow_auto = true,
     .what = "steps until the schedule ends; auto: --steps; resuming with more --steps extends it"},
    {.name = "--decay-steps", INT(decay_steps), .commands = TRAIN, .group = LEARNING, .initial = "0", .value = "STEPS",
     .int_min = 0, .what = "steps of decay at the end of the schedule wsd"},
    {.name = "--min-lr", REAL(min_lr), .commands = RUNS, .group = LEARNING, .initial = "0", .value = "RATE",
     .real_min = 0, .real_max = 1e3, .what = "learning rate that the schedule falls to"},
    {.name = "--weight-decay", REAL(weight_decay), .commands = TRAIN, .group = LEARNING, .initial = "0.1", .value = "X",
     .real_min = 0, .real_max = 1e3,
     .what = "weight decay of AdamW, for tensors of two or more dimensions but biases of experts"},
    {.name = "--no-decay", LIST(no_decay), .commands = TRAIN, .group = LEARNING, .value = "PATTERN",
     .what = "no weight decay for tensors whose names match, such as '*wte.weight'; repeat for several; tensors of"
             " one dimension (norms, biases) and biases of experts never have any"},
    {.name = "--lr-scale", LIST(lr_scale), .commands = RUNS, .group = LEARNING, .value = "PATTERN=FACTOR",
     .what = "factor on the learning rate for tensors whose names match, such as '*wte.weight=0.1'; repeat for "
             "several: the last match counts"},
    {.name = "--router-aux-loss", REAL(router_aux_loss), .commands = SHAPES, .group = LEARNING, .initial = "auto",
     .value = "X", .real_min = 0, .real_max = 1e3, .allow_auto = true,
     .what = "for a mixture of experts: factor of the loss that balances the tokens of the experts; auto: "
             "router_aux_loss_coef of config.json if its output_router_logits is true, else 0"},
    {.name = "--router-z-loss", REAL(router_z_loss), .commands = SHAPES, .group = LEARNING, .initial = "0",
     .value = "X", .real_min = 0, .real_max = 1e3,
     .what = "for a mixture of experts: factor of the loss that keeps the routers' logits small"},
    {.name = "--clip", REAL(clip), .commands = TRAIN, .group = LEARNING, .initial = "1", .value = "NORM", .real_min = 0,
     .real_max = 1e30, .what = "scale gradients down whose norm is larger than this; 0: no clipping"},
    {.name = "--beta1", REAL(beta1), .commands = TRAIN, .group = LEARNING, .initial = "0.9", .value = "X",
     .real_min = 0, .real_max = 1, .below_max = true, .what = "AdamW: decay of the first moment per step"},
    {.name = "--beta2", REAL(beta2), .commands = TRAIN, .group = LEARNING, .initial = "0.95", .value = "X",
     .real_min = 0, .real_max = 1, .below_max = true, .what = "AdamW: decay of the second moment per step"},
    {.name = "--eps", REAL(eps), .commands = TRAIN, .group = LEARNING, .initial = "1e-8", .value = "X",
     .real_min = LEAST_EPS, .real_max = 1, .what = "AdamW: added to the root of the second moment"},
    {.name = "--optimizer", CHOICE(tuning.optimizer), .commands = ALL, .group = LEARNING, .initial = "adamw",
     .choices = "adamw|muon",
     .what = "muon: Muon updates the matrices of layers, with 8 bytes of state a parameter instead of 12, and AdamW "
             "embeddings, output table, norms, biases and vectors, of which the tables keep moments in bf16; at a resume, "
             "what changes its optimizer begins with fresh state"},
    {.name = "--optimizer-for", TEXT(tuning.optimizer_for), .commands = SHAPES, .group = LEARNING,
     .value = "PATTERN=NAME",
     .what = "optimizer of the matrices of layers whose names match, such as '*.mlp.*=muon'; several with commas "
             "between them: the last match counts"},
    {.name = "--muon-scale", CHOICE(muon_scale), .commands = ALL, .group = LEARNING, .initial = "moonshot",
     .choices = "moonshot|jordan",
     .what = "factor of Muon's update: 0.2·sqrt(max(outputs, inputs)), so that rates of AdamW suit it; or "
             "sqrt(max(1, outputs/inputs))"},
    {.name = "--muon-lr", REAL(muon_lr), .commands = ALL, .group = LEARNING, .initial = "auto", .value = "RATE",
     .real_min = 0, .real_max = 1e3, .allow_auto = true,
     .what = "peak learning rate of Muon, which follows the schedule of --lr; auto: --lr with the scale of moonshot, "
             "0.02 with that of jordan"},
    {.name = "--muon-momentum", REAL(muon_momentum), .commands = ALL, .group = LEARNING, .initial = "0.95",
     .value = "X", .real_min = 0, .real_max = 1, .below_max = true, .what = "Muon: decay of the momentum per step"},
    {.name = "--optimizer-state", CHOICE(optimizer_state), .commands = ALL, .group = LEARNING, .initial = "fp32",
     .choices = "fp32|bf16|8bit",
     .what = "type of AdamW's moments; narrow ones move fewer bytes over drives and links; master weights, norms "
             "and biases keep fp32; with Muon it is the type of the momenta, and tables have moments in bf16, or "
             "in 8bit for bf16 and 8bit"},
    {.name = "--rounding", CHOICE(rounding), .commands = ALL, .group = LEARNING, .initial = "auto",
     .choices = "auto|nearest|stochastic",
     .what = "rounding of bf16 and 8bit moments; auto: stochastic, with random numbers derived from --seed"},
    {.name = "--grads-state", CHOICE(grads_state), .commands = ALL, .group = LEARNING, .initial = "compute",
     .choices = "compute|8bit",
     .what = "type in which gradients wait for the update: that of --precision, or 8 bits with one scale per 256 "
             "values, for fewer bytes on drives and links; 8bit needs a single rank"},

    {.name = "--save-every", EVERY(save_every), .commands = RUNS | PLAN, .group = SAVING, .initial = "100,10m",
     .value = "N|TIME",
     .what = "steps (100), time (10m) or whichever comes first (100,10m) between commits; with all optimizer state"
             " on NVMe, every step commits"},
    {.name = "--eval-every", INT(eval_every), .commands = RUNS, .group = SAVING, .initial = "0", .value = "STEPS",
     .int_min = 0, .what = "steps between evaluations on --val; 0: only at the end"},
    {.name = "--early-stop", INT(early_stop), .commands = RUNS, .group = SAVING, .initial = "0", .value = "N",
     .int_min = 0,
     .what = "stop after N evaluations in a row (--eval-every) without a lower validation loss; each improvement "
             "is exported, so exports/ of the run has the best weights; 0: never"},
    {.name = "--sample-every", INT(sample_every), .commands = RUNS, .group = SAVING, .initial = "0", .value = "STEPS",
     .int_min = 0,
     .what = "steps between samples: each --sample-prompt, continued with the most likely tokens; also at the end;"
             " 0: none"},
    {.name = "--sample-prompt", LIST(sample_prompt), .commands = RUNS, .group = SAVING, .value = "TEXT",
     .what = "text for samples to continue; repeat for several; if the data are chats and the model has a chat "
             "template, it is a user's turn; default: Once upon a time"},
    {.name = "--sample-tokens", INT(sample_tokens), .commands = RUNS, .group = SAVING, .initial = "32", .value = "N",
     .int_min = 1, .int_max = 1024,
     .what = "most tokens of a sample; each costs the forward pass of a micro-batch"},
    {.name = "--export-every", INT(export_every), .commands = RUNS, .group = SAVING, .initial = "0", .value = "STEPS",
     .int_min = 0,
     .what = "steps between exports of the weights as Hugging Face folders, in exports/ of the run; 0: none"},
    {.name = "--keep", INT(keep), .commands = RUNS, .group = SAVING, .initial = "2", .value = "N", .int_min = 1,
     .int_max = 1000, .what = "exports to keep: those with the lowest validation loss, or without one the newest"},

    {.name = "--device-memory", SIZE(device_memory), .commands = ALL, .group = MEMORY, .initial = "auto",
     .value = "SIZE", .allow_auto = true, .own = true,
     .what = "device memory that each rank may use, such as 24GiB; auto: what the GPU has free; with a CPU as the "
             "device, 60% of available memory"},
    {.name = "--host-memory", SIZE(host_memory), .commands = ALL, .group = MEMORY, .initial = "auto", .value = "SIZE",
     .allow_auto = true, .own = true,
     .what = "host memory that each rank may use, even beyond what is available; auto: 80% of available memory, with "
             "a CPU as the device 20%"},
    {.name = "--nvme", LIST(nvme), .commands = RUNS, .group = MEMORY, .value = "DIR[:SIZE]", .own = true,
     .what = "folder for the store's file, or a block device to use whole, and the most space to take there; "
             "repeat to stripe over drives; {rank} and {local_rank} stand for the rank's numbers; default: the "
             "run's folder"},
    {.name = "--nvme", LIST(nvme), .commands = PLAN, .group = MEMORY, .value = "DIR[:SIZE]",
     .what = "folder on the drive to measure, and the most that the store may take there; repeat to stripe over "
             "drives; with --machine only the size counts; default: the current folder"},
    {.name = "--nvme", LIST(nvme), .commands = STEP, .group = MEMORY, .value = "DIR[:SIZE]",
     .what = "folder for the store's file, which is deleted at the end, and the most space to take there; repeat "
             "to stripe over drives; default: the current folder"},
    {.name = "--place", TEXT(place), .commands = ALL, .group = MEMORY, .initial = "auto", .value = "WHERE",
     .what = "where state lives, such as grads=host,optimizer=nvme; states: weights, grads, optimizer, acts; tiers: "
             "device, host, nvme, or shares as in device:20%/nvme; trained=host or nvme: the trained weights of layers "
             "whose frozen ones are on nvme"},
    {.name = "--durability", CHOICE(durability), .commands = SHAPES, .group = MEMORY, .initial = "step",
     .choices = "step|none",
     .what = "step: a commit survives kill -9 and power loss; none: only a clean end can be resumed, for half the "
             "space and no flushes"},
    {.name = "--endurance", REAL(endurance), .commands = RUNS | PLAN, .group = MEMORY, .initial = "0", .value = "TBW",
     .real_min = 0, .real_max = 1e9,
     .what = "terabytes that all drives of the store together are rated to write; shows the share that a run uses;"
             " 0: unknown"},
    {.name = "--allow-buffered", FLAG(allow_buffered), .commands = ALL, .group = MEMORY,
     .what = "accept a file system without O_DIRECT; data then goes through the page cache"},
    {.name = "--allow-overwrite-device", FLAG(allow_overwrite_device), .commands = TRAIN, .group = MEMORY,
     .transient = true, .what = "use a block device of --nvme that is not empty; what it holds is lost"},

    {.name = "--ranks", INT(ranks), .commands = PLAN, .group = RANKS, .initial = "1", .value = "N", .int_min = 1,
     .int_max = SW_SETTINGS_MOST_RANKS,
     .what = "plan one of N ranks, which need not be on this machine; budgets are of each rank"},
    {.name = "--nodes", INT(nodes), .commands = PLAN, .group = RANKS, .initial = "auto", .value = "N", .int_min = 1,
     .int_max = SW_SETTINGS_MOST_RANKS, .allow_auto = true,
     .what = "nodes over which the ranks of --machine spread evenly; auto: the fewest with enough GPUs"},
    {.name = "--zero", INT(zero), .commands = ALL, .group = RANKS, .initial = "auto", .value = "STAGE", .int_min = 0,
     .int_max = 3, .allow_auto = true,
     .what = "ZeRO stage, what ranks split: 0 nothing, 1 optimizer state, 2 also gradients, 3 also weights; auto: "
             "2 if each device can hold all weights, else 3"},
    {.name = "--tensor", INT(tensor), .commands = ALL, .group = RANKS, .initial = "1", .value = "N", .int_min = 1,
     .int_max = SW_SETTINGS_MOST_RANKS, .allow_auto = true,
     .what = "cut each layer into parts for groups of N neighbouring ranks, which compute the same sequences "
             "together; --zero then splits among the ranks with the same part; auto: the N with the shortest "
             "predicted step"},
    {.name = "--pipeline", INT(pipeline), .commands = TRAIN | PLAN, .group = RANKS, .initial = "1", .value = "N",
     .int_min = 1, .int_max = SW_MOST_STAGES, .allow_auto = true,
     .what = "give the layers to N stages of consecutive ranks, through which micro-batches pass one after the other; "
             "--tensor and --zero then are within each stage; auto: the N with the shortest predicted step"},
    {.name = "--pipeline", INT(pipeline), .commands = RESUME, .group = RANKS, .value = "N", .int_min = 1,
     .int_max = SW_MOST_STAGES, .allow_auto = true,
     .what = "give the layers to N stages of consecutive ranks, through which micro-batches pass one after the other; "
             "--tensor and --zero then are within each stage; without it, the stages of --pipeline-split, or the run's; "
             "auto: the run's"},
    {.name = "--pipeline-interleave", INT(pipeline_interleave), .commands = RUNS | PLAN, .group = RANKS,
     .initial = "1", .value = "V", .int_min = 1, .int_max = SW_MOST_VIRTUAL_STAGES / 2,
     .what = "give each stage of --pipeline V runs of layers in place of one, through which micro-batches pass in V "
             "turns: stages wait 1/V as long for each other, pass V times the bytes, and keep more micro-batches"},
    {.name = "--pipeline-split", TEXT(pipeline_split), .commands = RUNS | PLAN, .group = RANKS, .initial = "auto",
     .value = "A,B,...",
     .what = "the layers of each stage of --pipeline, with --pipeline-interleave of each stage in each turn; the "
             "first has the embedding too, and the last the head; auto: so that all take about as long"},
    {.name = "--experts", INT(experts), .commands = ALL, .group = RANKS, .initial = "1", .value = "N", .int_min = 1,
     .int_max = SW_SETTINGS_MOST_RANKS,
     .what = "share out the experts of each block in groups of N neighbouring ranks, or with --tensor of N tensor "
             "groups, which give each other the rows of their sequences; --zero then splits experts among the ranks "
             "with the same ones"},
    {.name = "--partition-activations", CHOICE(partition), .commands = ALL, .group = RANKS, .initial = "auto",
     .choices = "auto|yes|no",
     .what = "with --tensor, each rank keeps only its rows of a layer's input for the backward pass, and the group"
             " gathers them to recompute the layer; auto: if the devices lack room for whole inputs, or if rates "
             "are known and predict a faster step"},
    {.name = "--sequence-parallel", CHOICE(sequence), .commands = ALL, .group = RANKS, .initial = "auto",
     .choices = "auto|yes|no",
     .what = "with --tensor, each rank normalises and keeps only its rows of a layer's input, and the group "
             "gathers the normalised rows for each pass; auto: if --partition-activations is auto too and would be"
             " chosen"},
    {.name = "--zero-secondary", TEXT(zero_secondary), .commands = ALL, .group = RANKS, .initial = SW_NO_SECONDARY,
     .value = "none|node|N",
     .what = "with --zero 3, keep a second shard of the weights among the ranks of a node, or N of them: the "
             "backward pass gathers from it and not from other nodes; a rank's shard takes 1/N of the weights' "
             "bytes"},
    {.name = "--ranks-per-node", INT(ranks_per_node), .commands = ALL, .group = RANKS, .initial = "auto", .value = "N",
     .int_min = 1, .int_max = SW_SETTINGS_MOST_RANKS, .allow_auto = true,
     .what = "count every N ranks as a node, to try several nodes on one machine; auto: the ranks of a machine"},
    {.name = "--gather", CHOICE(gather), .commands = ALL, .group = RANKS, .initial = "exact", .choices = "exact|int8",
     .what = "how ranks gather weights with --zero 3; int8: in 8 bits with one scale per 256, half the bytes of "
             "bf16"},
    {.name = "--reduce", CHOICE(reduce), .commands = ALL, .group = RANKS, .initial = "ordered",
     .choices = "ordered|library|int8|int4",
     .what = "how the ranks' gradients are summed; ordered: in rank order, so that bits repeat; library: by MPI or"
             " NCCL; int8, int4: ordered, with gradients in 8 or 4 bits and one scale per 256 (--zero 1 to 3)"},
    {.name = "--rank-timeout", TIME(rank_timeout), .commands = RUNS, .group = RANKS, .initial = "60", .value = "TIME",
     .int_min = 1, .what = "end all ranks when one is silent for this long, or idle while others wait for it"},
    {.name = "--allow-shared-gpu", FLAG(allow_shared_gpu), .commands = RUNS, .group = RANKS, .transient = true,
     .what = "let several ranks compute on one GPU, which NVIDIA's NCCL refuses"},

    {.name = "--device", CHOICE(device), .commands = SHAPES, .group = DEVICE, .initial = "auto",
     .choices = "auto|cpu|cuda", .what = "device that computes; auto: the CUDA GPU, or the CPU where there is no GPU"},
    {.name = "--precision", CHOICE(precision), .commands = SHAPES, .group = DEVICE, .initial = "auto",
     .choices = "auto|bf16|fp16|fp32|tf32|fp8",
     .what = "type of weights, gradients and activations; tf32: fp32, which a GPU multiplies as TF32; fp8: bf16, "
             "but blocks multiply in 8 bits and their weights are stored and moved as one byte each; auto: bf16 if"
             " the device has it"},
    {.name = "--threads", INT(threads), .commands = ALL, .group = DEVICE, .initial = "auto", .value = "N", .int_min = 1,
     .int_max = 4096, .allow_auto = true, .own = true,
     .what = "CPU threads of each rank; auto: all cores, or as many as a cgroup's quota allows, divided among the ranks "
             "of the machine"},

    {.name = "--recompute", CHOICE(recompute), .commands = SHAPES, .group = TUNING, .initial = "auto",
     .choices = "auto|all|none",
     .what = "blocks whose intermediates the backward pass recomputes instead of keeping them; auto: as many as "
             "memory requires"},
    {.name = "--order", TEXT(order), .commands = SHAPES, .group = TUNING, .initial = "auto",
     .value = "auto|layer|batch|N",
     .what = "micro-batches that pass through a unit before the next unit is fetched: all (layer), one (batch), or N; "
             "auto: with several ranks all, in a pipeline one; on one rank all that fit or, with a GPU or --rates, "
             "the fastest"},
    {.name = "--update", CHOICE(update), .commands = ALL, .group = TUNING, .initial = "auto",
     .choices = "auto|host|device",
     .what = "where AdamW runs for optimizer state on host or NVMe; device: the state streams through the device "
             "in chunks; auto: the faster one for each unit; with Muon on a GPU, layers are always updated there"},
    {.name = "--speculate", CHOICE(speculate), .commands = ALL, .group = TUNING, .initial = "auto",
     .choices = "never|auto|always",
     .what = "start updates during the backward pass and redo them if the step is clipped (needs all optimizer "
             "state on NVMe); auto: if few steps are clipped and it is faster"},
    {.name = "--tiles", INT(tiles), .commands = SHAPES, .group = TUNING, .initial = "1", .value = "N", .int_min = 1,
     .int_max = SW_CONFIG_MAX_WIDTH,
     .what = "cut attention and MLP of each block into N tiles that are fetched one at a time, for layers too wide "
             "for the device"},
    {.name = "--expert-group", INT(expert_group), .commands = SHAPES, .group = TUNING, .initial = "0", .value = "N",
     .int_min = 0, .int_max = SW_MOST_EXPERTS, .allow_auto = true,
     .what = "place and fetch each N experts of a block apart from the rest of it, for mixtures of experts whose blocks "
             "are too large for the device; 0: with the block; auto: the N with the shortest predicted step"},
    {.name = "--chunk-grains", INT(chunk_grains), .commands = ALL, .group = TUNING, .initial = "auto", .value = "N",
     .int_min = 1, .int_max = SW_MOST_CHUNK_GRAINS, .allow_auto = true,
     .what = "grains (16,384 parameters each) of one transfer or update; auto: 16, with a GPU 64, more for very large "
             "models"},
    {.name = "--ring-chunks", INT(ring_chunks), .commands = ALL, .group = TUNING, .initial = "auto", .value = "N",
     .int_min = 1, .int_max = 1024, .allow_auto = true,
     .what = "staging buffers of each kind; auto: 8, or up to 256 if host memory allows"},

    {.name = "--rates", TEXT(rates), .commands = PLAN | STEP, .group = PREDICTION, .value = "FILE",
     .what = "file of measured rates to predict with, written if it does not exist; default: this machine's profile "
             "(bench step: measure each time)"},
    {.name = "--machine", TEXT(machine), .commands = PLAN, .group = PREDICTION, .value = "M",
     .what = "machine with a GPU to plan for, instead of this one: a name (listed below), or a file that describes one"},
    {.name = "--largest", INT(largest), .commands = PLAN, .group = PREDICTION, .value = "SPEED", .int_min = 1,
     .allow_auto = true,
     .what = "instead of a plan, the largest model of each family that trains at SPEED tokens/s or more, with the "
             "proportions of the family's largest; with --model, of its proportions; auto: 100 tokens/s"},
    {.name = "--smallest-machine", FLAG(smallest_machine), .commands = PLAN, .group = PREDICTION,
     .what = "instead of a plan, the least device and host memory with which the model trains on the machine, and "
             "how fast"},

    {.name = "--trace", TEXT(trace), .commands = RUNS | STEP, .group = OUTPUT, .transient = true, .value = "FILE",
     .what = "write the timeline of the first steps, for Perfetto or chrome://tracing"},
    {.name = "--trace", TEXT(trace), .commands = PLAN, .group = OUTPUT, .value = "FILE",
     .what = "write the predicted timeline of a few steps, for Perfetto or chrome://tracing"},
    {.name = "--svg", TEXT(svg), .commands = PLAN, .group = OUTPUT, .value = "FILE",
     .what = "draw the predicted timeline of a step: an SVG image"},
    {.name = "--explain", FLAG(explain), .commands = PLAN, .group = OUTPUT,
     .what = "print the plan behind the answer: memory, placement, what moves, what was compared, what would help"},
    {.name = "--json", FLAG(json), .commands = PLAN | STEP, .group = OUTPUT,
     .what = "print one JSON object on standard output"},
};
/* clang-format on */
#define TABLE .options = options, .option_count = sizeof options / sizeof options[0], .check = check_settings

static sw_status check_settings(const void *settings) {
    return sw_settings_check(settings);
}

/* Checks what train and plan require of the data and of the run's length. */
static sw_status check_data(const struct sw_settings *settings) {
    if (settings->epochs > 0.0 && settings->steps != SW_OPTION_AUTO)
        return sw_fail(SW_ERR_ARG, "--epochs and --steps both say how long the run is; give one of them");
    SW_TRY(sw_chat_format_check(settings->chat_format));
    return sw_text_coding_check(settings->encoding);
}

/* Refuses data flags with which plan cannot work. */
static sw_status check_plan_data(const struct sw_settings *settings) {
    if (settings->epochs > 0.0 && settings->data.count == 0)
        return sw_fail(SW_ERR_ARG,
                       "--epochs counts passes over data; give them with --data, or the length with --steps");
    if (settings->data.count > 0 && settings->largest != 0)
        return sw_fail(SW_ERR_ARG, "--data says how long one model trains, and --largest plans many; leave out one of "
                                   "them");
    return check_data(settings);
}

static sw_status check_plan(const void *target) {
    const struct sw_settings *settings = target;
    const bool largest = settings->largest != 0;
    if (settings->model == NULL && !largest)
        return sw_fail(SW_ERR_ARG, "--model is required, but for --largest");
    if (largest && settings->smallest_machine)
        return sw_fail(SW_ERR_ARG, "--largest and --smallest-machine are two questions; leave out one of them");
    if ((largest || settings->smallest_machine) && (settings->trace != NULL || settings->svg != NULL))
        return sw_fail(SW_ERR_ARG, "%s shows one plan, and %s makes many; leave out one of them",
                       settings->trace != NULL ? "--trace" : "--svg", largest ? "--largest" : "--smallest-machine");
    if (largest && settings->rates != NULL)
        return sw_fail(SW_ERR_ARG,
                       "--rates has the rates of one model, and --largest plans many; leave out one of them");
    if (largest && settings->tensor == SW_OPTION_AUTO)
        return sw_fail(SW_ERR_ARG, "--largest plans many models with whole layers, and --tensor auto compares groups; "
                                   "leave out one of them");
    if (largest && sw_settings_part_ranks(settings) > 1)
        return sw_fail(SW_ERR_ARG,
                       "--largest plans many models, of which %s %lld cannot cut all; leave out one of them",
                       sw_settings_shares_experts(settings) ? "--experts" : "--tensor",
                       (long long)(sw_settings_shares_experts(settings) ? settings->experts : settings->tensor));
    if (largest && settings->adapter != NULL)
        return sw_fail(SW_ERR_ARG, "--adapter is of one model, and --largest plans many; give --lora RANK instead");
    if (largest && settings->tuning.freeze != NULL)
        return sw_fail(SW_ERR_ARG,
                       "--freeze names units of one model, and --largest plans many; leave out one of them");
    SW_TRY(check_plan_data(settings));
    return sw_settings_check(settings);
}

static sw_status check_bench_step(const void *target) {
    const struct sw_settings *settings = target;
    if (settings->tensor == SW_OPTION_AUTO)
        return sw_fail(SW_ERR_ARG, "bench step measures whole layers, and --tensor auto may cut them; leave it out");
    if (settings->expert_group == SW_OPTION_AUTO)
        return sw_fail(SW_ERR_ARG, "bench step measures one plan, and --expert-group auto compares several; give "
                                   "--expert-group N");
    if (sw_settings_part_ranks(settings) > 1)
        return sw_fail(SW_ERR_ARG, "bench step measures whole layers, and %s %lld cuts them; leave it out",
                       sw_settings_shares_experts(settings) ? "--experts" : "--tensor",
                       (long long)(sw_settings_shares_experts(settings) ? settings->experts : settings->tensor));
    return sw_settings_check(settings);
}

static sw_status check_train(const void *target) {
    const struct sw_settings *settings = target;
    SW_TRY(check_data(settings));
    return sw_settings_check(settings);
}

void sw_settings_help_presets(FILE *to) {
    fputs("\nPresets:\n", to);
    for (int i = 0; sw_preset_at(i) != NULL; i++)
        fprintf(to, "  %-13s %s\n", sw_preset_at(i)->name, sw_preset_at(i)->what);
}

/* Prints a machine by its name and the sentences about it. */
static void print_machine(const struct sw_shipped_machine *machine, FILE *to) {
    enum { NAME_COLUMNS = 11 };
    fprintf(to, "  %-8s ", machine->name);
    sw_print_wrapped(machine->about, NAME_COLUMNS, NAME_COLUMNS, to);
    fputc('\n', to);
}

static void print_presets_and_machines(FILE *to) {
    sw_settings_help_presets(to);
    fputs("\nMachines:\n", to);
    for (const struct sw_shipped_machine *machine = sw_shipped_machines; machine->name != NULL; machine++)
        print_machine(machine, to);
}

static void print_presets_and_exits(FILE *to) {
    sw_settings_help_presets(to);
    sw_options_help_exits(to);
}

const struct sw_command_line sw_train_command = {
    .command = "train",
    .bit = TRAIN,
    .summary = "Trains a model from its weights, or from random ones with --init.",
    .options = options,
    .option_count = sizeof options / sizeof options[0],
    .check = check_train,
    .more_help = print_presets_and_exits,
    .examples = {"spillway train --model model --data text.bin --run runs/a --steps 1000",
                 "spillway train --model gpt2-tiny --init --data text.txt --run runs/b --val 2%",
                 "spillway train --model model --data text.bin --run runs/c \\\n"
                 "      --place optimizer=nvme --host-memory 2GiB --time-limit 2h"}};
const struct sw_command_line sw_resume_command = {
    .command = "resume",
    .bit = RESUME,
    .summary = "Continues a run from its last commit. Flags that are given replace those of the run.",
    TABLE,
    .more_help = sw_options_help_exits,
    .goes_on = true,
    .examples = {"spillway resume runs/a", "spillway resume runs/a --steps 2000",
                 "spillway resume runs/b --place optimizer=host --save-every 30m"}};
const struct sw_command_line sw_plan_command = {
    .command = "plan",
    .bit = PLAN,
    .summary = "Shows where a model's state would live, what a step would move, and how long it would take.",
    .options = options,
    .option_count = sizeof options / sizeof options[0],
    .check = check_plan,
    .more_help = print_presets_and_machines,
    .examples = {"spillway plan --model qwen2.5-7b --machine rtx4090",
                 "spillway plan --model gpt2-tiny --rates rates.json --trace plan.trace.json",
                 "spillway plan --model gpt2-tiny --ranks 8 --zero 3 --json"}};
const struct sw_command_line sw_bench_step_command = {
    .command = "bench step",
    .bit = STEP,
    .summary = "Measures a training step as placed, against a step with all state in memory, the step's I/O alone, and "
               "the least bytes that it can move.",
    .options = options,
    .option_count = sizeof options / sizeof options[0],
    .check = check_bench_step,
    .more_help = sw_settings_help_presets,
    .examples = {"spillway bench step --model gpt2-124m --place optimizer=nvme",
                 "spillway bench step --model model --nvme . --steps 8",
                 "spillway bench step --model gpt2-tiny --rates rates.json --json"}};

/* The recipe that repeats a run. */

enum { FEWEST_DIGITS = 6, MOST_DIGITS = 17 };

/* Writes a value as JSON, which is YAML too. Numbers get the fewest digits that give the same double. */
static char *value_text(const json_t *value) {
    char *text = NULL;
    if (!json_is_real(value))
        return sw_json_text(value, JSON_ENCODE_ANY);
    for (int digits = FEWEST_DIGITS; digits <= MOST_DIGITS; digits++) {
        free(text);
        if (asprintf(&text, "%.*g", digits, json_real_value(value)) < 0)
            return NULL;
        if (strtod(text, NULL) == json_real_value(value))
            break;
    }
    return text;
}

static void print_pair(FILE *to, const char *key, const json_t *value) {
    char *text = value_text(value);
    for (const char *at = key; *at != '\0'; at++)
        fputc(*at == '_' ? '-' : *at, to);
    fprintf(to, ": %s\n", text != NULL ? text : "~");
    free(text);
}

static bool is_among(const char *key, const char *const *keys) {
    for (; *keys != NULL; keys++)
        if (strcmp(key, *keys) == 0)
            return true;
    return false;
}

/* Returns a new value with absolute paths in place of a name, or of each name of a list, if it is a file or a pattern.
 */
static json_t *absolute(const json_t *value) {
    char *path = json_is_string(value) ? sw_path_absolute(json_string_value(value)) : NULL;
    json_t *made = path != NULL ? json_string(path) : json_deep_copy(value);
    for (size_t i = 0; i < json_array_size(made); i++)
        json_array_set_new(made, i, absolute(json_array_get(value, i)));
    free(path);
    return made;
}

/* Prints everything as it was given, "auto" included, with three exceptions. Paths become absolute; those of the
 * settings already are, but text may have been replaced by its tokens there. The learning rate is the run's: another
 * version might choose another. The size of tensor groups, the stages with their turns and layers and the experts of a
 * unit are the run's: bits depend on them, and other measurements might choose others. */
static void print_pairs(FILE *to, json_t *given, const json_t *now, const json_t *defaults) {
    static const char *const resolved[] = {
        "lr", "model", "nvme", "tensor", "expert_group", "pipeline", "pipeline_interleave", "pipeline_split", NULL};
    static const char *const texts[] = {"data", "val", NULL};
    const char *key;
    json_t *value;
    json_object_foreach(given, key, value) {
        json_t *kept = is_among(key, texts) ? absolute(value) : json_incref(value);
        const json_t *shown = is_among(key, resolved) ? json_object_get(now, key) : kept;
        if (!json_equal(shown, json_object_get(defaults, key)))
            print_pair(to, key, shown);
        json_decref(kept);
    }
}

sw_status sw_settings_recipe(const struct sw_settings *settings, json_t *given, char **out) {
    struct sw_settings initial = {0};
    json_t *now = NULL, *defaults = NULL;
    size_t bytes;
    FILE *to = NULL;
    sw_status status = sw_options_defaults(&sw_train_command, &initial);
    *out = NULL;
    if (status == SW_OK)
        status = sw_options_to_json(&sw_train_command, &initial, &defaults);
    if (status == SW_OK)
        status = sw_options_to_json(&sw_train_command, settings, &now);
    if (status == SW_OK && (to = open_memstream(out, &bytes)) == NULL)
        status = sw_fail(SW_ERR_NOMEM, "no memory to write a recipe");
    if (status == SW_OK) {
        fputs("# spillway train --recipe THIS_FILE --run NEW_FOLDER repeats the run.\n", to);
        print_pairs(to, given, now, defaults);
        if (!sw_text_stream_end(to, out))
            status = sw_fail(SW_ERR_NOMEM, "no memory to write a recipe");
    }
    json_decref(now);
    json_decref(defaults);
    sw_options_release(&sw_train_command, &initial);
    return status;
}
