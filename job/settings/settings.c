/* Resolves and checks the settings of a run: what `auto` becomes, and which flags exclude each other.
 *
 * Resolution is a function of the flags, the model, the device and the memory, in that order, so `plan` and `train` on
 * one machine resolve alike. A resolved value is kept in run.json; a resume changes only what it names. With another
 * number of ranks the settings that depend on it become `auto` again, with old budgets as upper limits. */
#include "job/settings/settings.h"

#include "core/json.h"
#include "core/log.h"
#include "core/machine.h"
#include "core/ranks/comm.h"
#include "core/size.h"
#include "core/status.h"
#include "io/store/block.h"
#include "job/machine/devices.h"
#include "job/machine/ranks.h"
#include "job/settings/muon.h"
#include "job/settings/pipeline.h"
#include "job/settings/places.h"
#include "job/settings/schedule.h"
#include "model/freeze.h"
#include "model/hf/config.h"
#include "model/model.h"
#include "model/optimizer_for.h"
#include "model/peft.h"
#include "offload/plan/placement.h"

#include <ctype.h>
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Ranks and nodes of a job, how they quantize what they exchange, and what --zero-secondary requires of them. */

sw_quant sw_settings_gather(const struct sw_settings *settings) {
    return settings->gather == SW_GATHER_INT8 ? SW_QUANT_INT8 : SW_QUANT_NONE;
}

sw_quant sw_settings_reduce(const struct sw_settings *settings) {
    static const sw_quant quants[] = {[SW_REDUCE_ORDERED] = SW_QUANT_NONE,
                                      [SW_REDUCE_LIBRARY] = SW_QUANT_NONE,
                                      [SW_REDUCE_INT8] = SW_QUANT_INT8,
                                      [SW_REDUCE_INT4] = SW_QUANT_INT4};
    return quants[settings->reduce];
}

void sw_settings_take_ranks(struct sw_settings *settings, struct sw_ranks *ranks) {
    struct sw_comm *comm = sw_ranks_comm(ranks);
    settings->ranks = sw_ranks_count(ranks);
    settings->rank = sw_ranks_rank(ranks);
    settings->local_ranks = sw_ranks_local_count(ranks);
    settings->local_rank = sw_ranks_local_rank(ranks);
    settings->node_ranks = 1;
    settings->node_rank = 0;
    if (comm == NULL)
        return;
    sw_comm_set_node_ranks(comm, settings->ranks_per_node == SW_OPTION_AUTO ? 0 : (int)settings->ranks_per_node);
    const struct sw_comm_nodes *nodes = sw_comm_nodes(comm);
    settings->node_ranks = nodes->even ? nodes->ranks : SW_NODES_UNEVEN;
    settings->node_rank = nodes->rank;
    settings->nodes_mixed = !nodes->in_order;
}

/* Parses --zero-secondary into a number of ranks; 0: none, -1: the ranks of a node. */
static sw_status parse(const char *text, int64_t *out) {
    char *end;
    *out = 0;
    if (text == NULL || strcmp(text, SW_NO_SECONDARY) == 0)
        return SW_OK;
    *out = -1;
    if (strcmp(text, "node") == 0)
        return SW_OK;
    *out = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || *out < 1 || *out > SW_SETTINGS_MOST_RANKS)
        return sw_fail(SW_ERR_ARG, "--zero-secondary '%s' must be none, node or a number of ranks", text);
    return SW_OK;
}

/* Checks --zero-secondary as far as the flags alone allow. */
static sw_status settings_check_secondary(const struct sw_settings *s) {
    int64_t asked;
    SW_TRY(parse(s->zero_secondary, &asked));
    if (s->ranks_per_node > 0 && s->machine != NULL)
        return sw_fail(SW_ERR_ARG, "--nodes says where the ranks of a described machine are; leave out "
                                   "--ranks-per-node");
    /* A resume learns the stage of its run later. */
    if (asked != 0 && s->zero != SW_OPTION_AUTO && s->zero != SW_ZERO_WEIGHTS)
        return sw_fail(SW_ERR_ARG,
                       "--zero-secondary keeps a second shard of the weights that --zero 3 divides, and this is --zero "
                       "%lld; give --zero 3",
                       (long long)s->zero);
    return SW_OK;
}

sw_status sw_settings_check_quantized(const struct sw_settings *s) {
    const sw_quant gather = sw_settings_gather(s), reduce = sw_settings_reduce(s);
    const bool alone = sw_settings_ranks(s) == 1;
    if (!alone && s->grads_state != SW_GRADS_TYPED)
        return sw_fail(SW_ERR_ARG,
                       "--grads-state 8bit is for one rank, and this job has %lld; give --grads-state "
                       "compute, or --reduce int8 to exchange gradients in 8 bits",
                       (long long)sw_settings_ranks(s));
    if (alone && (gather != SW_QUANT_NONE || reduce != SW_QUANT_NONE))
        return sw_fail(SW_ERR_ARG, "one rank exchanges nothing that %s %s could quantize; give %s",
                       gather != SW_QUANT_NONE ? "--gather" : "--reduce",
                       sw_quant_name(gather != SW_QUANT_NONE ? gather : reduce),
                       gather != SW_QUANT_NONE ? "--gather exact" : "--reduce ordered");
    return SW_OK;
}

/* Checks that `part` ranks can keep secondary shards together, each such set within a node. */
static sw_status check_part(const struct sw_settings *s, int64_t node, int64_t part) {
    const int64_t ranks = sw_settings_ranks(s);
    if (ranks == 1)
        return sw_fail(SW_ERR_ARG, "--zero-secondary is for several ranks, and this is one; start it with mpirun, or "
                                   "give --zero-secondary none");
    if (s->zero != SW_ZERO_WEIGHTS)
        return sw_fail(SW_ERR_ARG,
                       "--zero-secondary keeps a second shard of the weights that --zero 3 divides; give --zero 3");
    if (node == SW_NODES_UNEVEN)
        return sw_fail(SW_ERR_ARG,
                       "%lld ranks do not fill nodes evenly, which --zero-secondary needs; start as many "
                       "on each node, or give --zero-secondary none",
                       (long long)ranks);
    if (part < 0)
        return sw_fail(SW_ERR_ARG, "--zero-secondary node needs to know the ranks of a node; give --ranks-per-node, or "
                                   "--machine with --nodes");
    if (part == 1)
        return sw_fail(SW_ERR_ARG,
                       "--zero-secondary %s is one rank, which would keep all weights by itself; give it "
                       "two ranks or more, or use --zero 2",
                       s->zero_secondary);
    if (node > 0 ? node % part != 0 : ranks % part != 0)
        return sw_fail(SW_ERR_ARG, "--zero-secondary %lld does not divide the %lld ranks of %s", (long long)part,
                       (long long)(node > 0 ? node : ranks), node > 0 ? "a node" : "the job");
    return SW_OK;
}

sw_status sw_settings_secondary(const struct sw_settings *s, int *out_ranks) {
    const int64_t node = sw_settings_any_node_ranks(s);
    int64_t part;
    *out_ranks = 0;
    SW_TRY(parse(s->zero_secondary, &part));
    if (part == 0)
        return SW_OK;
    part = part < 0 && node > 0 ? node : part;
    SW_TRY(check_part(s, node, part));
    *out_ranks = (int)part;
    return SW_OK;
}

/* Refuses flags for tensor groups if there are no groups. */
static sw_status check_without_groups(const struct sw_settings *s) {
    const bool sequence = s->sequence == SW_SEQUENCE_YES;
    if (s->partition != SW_PARTITION_YES && !sequence)
        return SW_OK;
    return sw_fail(SW_ERR_ARG, "%s yes is for tensor groups; give --tensor N too, or leave it out",
                   sequence ? "--sequence-parallel" : "--partition-activations");
}

/* Refuses what --experts excludes beside what --tensor does. Experts send rows that are normalised whole. */
static sw_status check_experts(const struct sw_settings *s) {
    const struct {
        bool given;
        const char *flag;
    } flags[] = {
        {s->sequence == SW_SEQUENCE_YES && sw_settings_tensor_ranks(s) > 1, "--sequence-parallel yes"},
        {s->expert_group > 0, "--expert-group"},
    };
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++)
        if (flags[i].given)
            return sw_fail(SW_ERR_ARG, "%s does not work with --experts %lld; leave one of them out", flags[i].flag,
                           (long long)s->experts);
    return SW_OK;
}

/* Returns the flag that makes groups, and its value; --experts of both. */
static const char *group_flag(const struct sw_settings *s) {
    return sw_settings_shares_experts(s) ? "--experts" : "--tensor";
}

static long long group_value(const struct sw_settings *s) {
    return sw_settings_shares_experts(s) ? s->experts : s->tensor;
}

/* Refuses flags that --tensor or --experts excludes, whatever the number of ranks: each needs a whole layer or a whole
 * gradient on one rank, or has formats and shards of its own. */
static sw_status settings_check_tensor(const struct sw_settings *s) {
    const struct {
        bool given;
        const char *flag, *without;
    } flags[] = {
        {s->gather != SW_GATHER_EXACT, "--gather int8", "--gather exact"},
        {s->reduce == SW_REDUCE_LIBRARY, "--reduce library", "--reduce ordered"},
        {s->reduce == SW_REDUCE_INT8, "--reduce int8", "--reduce ordered"},
        {s->reduce == SW_REDUCE_INT4, "--reduce int4", "--reduce ordered"},
        {s->grads_state != SW_GRADS_TYPED, "--grads-state 8bit", "--grads-state compute"},
        {s->zero_secondary != NULL && strcmp(s->zero_secondary, SW_NO_SECONDARY) != 0, "--zero-secondary",
         "--zero-secondary " SW_NO_SECONDARY},
    };
    if (sw_settings_shares_experts(s))
        SW_TRY(check_experts(s));
    if (s->expert_group == SW_OPTION_AUTO && s->rates != NULL)
        return sw_fail(SW_ERR_ARG, "--rates has the rates of one model's parts, and --expert-group auto compares "
                                   "several; give --expert-group N, or leave --rates out");
    if (s->expert_group == SW_OPTION_AUTO && s->tensor == SW_OPTION_AUTO)
        return sw_fail(SW_ERR_ARG, "--tensor auto and --expert-group auto are two choices; give one of them a number");
    if (s->tensor == SW_OPTION_AUTO)
        return s->rates == NULL ? SW_OK
                                : sw_fail(SW_ERR_ARG, "--rates has the rates of one model's parts, and --tensor auto "
                                                      "compares several; give --tensor N, or leave --rates out");
    if (sw_settings_tensor_ranks(s) == 1)
        SW_TRY(check_without_groups(s));
    if (sw_settings_part_ranks(s) == 1)
        return SW_OK;
    if (s->sequence == SW_SEQUENCE_YES && s->partition == SW_PARTITION_NO)
        return sw_fail(SW_ERR_ARG, "--sequence-parallel yes keeps only a rank's own rows, which "
                                   "--partition-activations no excludes; leave one of them out");
    if (s->sequence == SW_SEQUENCE_YES && s->tiles > 1)
        return sw_fail(
            SW_ERR_ARG,
            "--sequence-parallel yes does not work with --tiles %lld, because the tiles of a layer hand on all "
            "rows; give --partition-activations yes instead, or --tiles 1",
            (long long)s->tiles);
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++)
        if (flags[i].given)
            return sw_fail(SW_ERR_ARG, "%s does not work with %s %lld; leave one of them out%s%s", flags[i].flag,
                           group_flag(s), group_value(s), flags[i].without != NULL ? ", or give " : "",
                           flags[i].without != NULL ? flags[i].without : "");
    return SW_OK;
}

sw_status sw_settings_check_tensor_ranks(const struct sw_settings *s) {
    const int64_t ranks = sw_settings_ranks(s), group = sw_settings_part_ranks(s);
    const bool both = group > group_value(s);
    if (ranks % (group * sw_settings_stages(s)) != 0 && sw_settings_stages(s) > 1)
        return sw_fail(SW_ERR_ARG,
                       "--pipeline %lld%s needs a multiple of %lld ranks, and this job has %lld; start as many with "
                       "mpirun -n, plan for them with --ranks, or give another --pipeline",
                       (long long)s->pipeline, group > 1 ? " with --tensor" : "",
                       (long long)(group * sw_settings_stages(s)), (long long)ranks);
    char tensor[SW_COUNT_CHARS] = "";
    if (ranks % group == 0)
        return SW_OK;
    if (both)
        snprintf(tensor, sizeof tensor, " with --tensor %lld", (long long)s->tensor);
    return sw_fail(SW_ERR_ARG,
                   "%s %lld%s makes groups of %lld ranks, and this job has %lld; start a multiple of %lld with "
                   "mpirun -n, plan for one with --ranks, or give another %s%s",
                   group_flag(s), group_value(s), tensor, (long long)group, (long long)ranks, (long long)group,
                   group_flag(s), both ? " or --tensor" : "");
}

sw_status sw_settings_group_ranks(const struct sw_settings *settings, struct sw_ranks *ranks) {
    SW_TRY(sw_ranks_agree_on_error(ranks, sw_as_usage(sw_settings_check_tensor_ranks(settings))));
    if (sw_ranks_comm(ranks) != NULL)
        sw_comm_set_groups(sw_ranks_comm(ranks), (int)sw_settings_tensor_ranks(settings),
                           (int)sw_settings_expert_ranks(settings));
    if (sw_ranks_comm(ranks) != NULL)
        sw_comm_set_stages(sw_ranks_comm(ranks), (int)sw_settings_stages(settings));
    return SW_OK;
}

/* Returns the number of tensors like this one that the members of an expert group have: each has others, of its
 * experts, or its part of one tensor of all experts. */
static int64_t tensors_like(const struct sw_settings *settings, const struct sw_unit *unit,
                            const struct sw_tensor *tensor) {
    const bool joined = tensor->elems * sw_settings_tensor_ranks(settings) < sw_tensor_whole_elems(tensor);
    return unit->shared_out && !tensor->part.replicated && !joined ? settings->experts : 1;
}

/* The tiles of a rank's part of a tensor are in consecutive units. The tensor counts once. */
int64_t sw_settings_parameters_of(const struct sw_settings *settings, const struct sw_units *units, int64_t first,
                                  int64_t end) {
    const bool whole = sw_settings_part_ranks(settings) == 1;
    int64_t parameters = 0;
    for (int64_t u = first; u < end; u++)
        for (int64_t t = 0; t < units->unit[u].tensor_count; t++) {
            const struct sw_tensor *tensor = &units->unit[u].tensor[t];
            if (whole)
                parameters += tensor->elems;
            else if (u == first || sw_unit_find(&units->unit[u - 1], tensor->name) == NULL)
                parameters += sw_tensor_whole_elems(tensor) * tensors_like(settings, &units->unit[u], tensor);
        }
    return parameters;
}

int64_t sw_settings_parameters(const struct sw_settings *settings, const struct sw_units *units) {
    return sw_settings_parameters_of(settings, units, 0, units->count);
}

/* Parses --order into the number of micro-batches that pass through a unit before the next unit is fetched. */
static sw_status parse_order(const char *order, int64_t micros, int64_t *out) {
    const bool batch = strcmp(order, "batch") == 0;
    char *end;
    *out = micros;
    if (strcmp(order, "auto") == 0 || strcmp(order, "layer") == 0)
        return SW_OK;
    *out = batch ? 1 : strtoll(order, &end, 10);
    if (!batch && (end == order || *end != '\0' || *out < 1))
        return sw_fail(SW_ERR_ARG, "--order '%s' must be auto, layer, batch or a number of micro-batches", order);
    *out = sw_min_i64(*out, micros);
    return SW_OK;
}

/* A described machine (--machine) excludes flags about this machine, and only it has nodes. */
static sw_status check_machine(const struct sw_settings *settings) {
    const int64_t ranks = sw_settings_ranks(settings);
    if (settings->nodes > 0 && settings->machine == NULL)
        return sw_fail(SW_ERR_ARG, "--nodes says where the ranks of a described machine are; give --machine");
    if (settings->nodes > 0 && ranks % settings->nodes != 0)
        return sw_fail(SW_ERR_ARG, "--ranks %lld cannot be divided evenly among --nodes %lld", (long long)ranks,
                       (long long)settings->nodes);
    if (settings->machine == NULL)
        return SW_OK;
    if (settings->rates != NULL)
        return sw_fail(SW_ERR_ARG, "--machine and --rates both say how fast the machine is; give one of them");
    return settings->device == SW_DEVICE_CPU
               ? sw_fail(SW_ERR_ARG, "--machine describes a machine whose GPU computes; leave out --device cpu")
               : SW_OK;
}

/* Checks what --dpo requires of other flags. */
static sw_status check_dpo(const struct sw_settings *settings) {
    if (!settings->dpo)
        return SW_OK;
    if (settings->micro_batch != SW_OPTION_AUTO && settings->micro_batch % 2 != 0)
        return sw_fail(SW_ERR_ARG,
                       "--micro-batch %lld cannot hold the two sequences of each pair of --dpo; give an even number",
                       (long long)settings->micro_batch);
    if (settings->field != NULL)
        return sw_fail(SW_ERR_ARG, "--field names a text or a list of messages, and --dpo reads 'prompt', 'chosen' and "
                                   "'rejected'; leave one of them out");
    if (settings->loss != 0) /* SW_LOSS_COMPLETIONS */
        return sw_fail(SW_ERR_ARG, "--dpo compares replies without their prompts; leave out --loss all");
    return SW_OK;
}

/* Checks what is trained. An --adapter that has not been read yet may have any rank. */
static sw_status check_tuning(const struct sw_settings *s) {
    struct sw_tuning tuning = s->tuning;
    if (s->adapter != NULL && tuning.lora.rank == 0)
        tuning.lora.rank = 1;
    if (s->init && sw_base_stored_elems((sw_base_format)tuning.base) > 0)
        return sw_fail(
            SW_ERR_ARG,
            "--base-format %s keeps weights as a checkpoint stores them, and --init has no checkpoint; leave "
            "one of them out",
            sw_base_format_name((sw_base_format)tuning.base));
    return sw_tuning_check(&tuning);
}

sw_status sw_settings_check(const struct sw_settings *settings) {
    int64_t group;
    SW_TRY(sw_optimizer_for_check(settings->tuning.optimizer_for));
    SW_TRY(sw_settings_check_muon(settings));
    SW_TRY(check_dpo(settings));
    SW_TRY(check_machine(settings));
    SW_TRY(settings_check_secondary(settings));
    SW_TRY(settings_check_tensor(settings));
    SW_TRY(sw_settings_check_pipeline(settings));
    if (settings->order != NULL) /* resume has no --order */
        SW_TRY(parse_order(settings->order, 1, &group));
    SW_TRY(sw_tensor_rates_check(settings));
    SW_TRY(sw_places_check(&settings->nvme));
    if (settings->rounding == SW_OPTION_ROUNDING_STOCHASTIC && settings->optimizer_state == SW_OPTIMIZER_FP32 &&
        !sw_settings_use_muon(settings))
        return sw_fail(SW_ERR_ARG, "--rounding stochastic is for narrow moments, and --optimizer-state fp32 rounds "
                                   "none; leave it out, or give --optimizer-state bf16 or 8bit");
    if (sw_settings_fp8(settings) && settings->gather != SW_GATHER_EXACT)
        return sw_fail(SW_ERR_ARG,
                       "--gather int8 does not go with --precision fp8, whose weights already cross links as "
                       "one byte each; leave it out");
    if (sw_settings_fp8(settings) && settings->tuning.base != SW_BASE_TYPED)
        return sw_fail(
            SW_ERR_ARG,
            "--base-format %s does not go with --precision fp8, whose weights lie in 8 bits already; leave one "
            "of them out",
            sw_base_format_name((sw_base_format)settings->tuning.base));
    struct sw_placement_request place;
    SW_TRY(sw_placement_parse(settings->place, &place));
    SW_TRY(check_tuning(settings));
    double percent;
    const char *file;
    return settings->val == NULL ? SW_OK : sw_settings_validation(settings, &percent, &file);
}

sw_dtype sw_settings_type(const struct sw_settings *settings) {
    static const sw_dtype types[] = {
        [SW_PRECISION_AUTO] = SW_F32, [SW_PRECISION_BF16] = SW_BF16, [SW_PRECISION_FP16] = SW_F16,
        [SW_PRECISION_FP32] = SW_F32, [SW_PRECISION_TF32] = SW_F32,  [SW_PRECISION_FP8] = SW_BF16};
    return types[settings->precision];
}

bool sw_settings_fp8(const struct sw_settings *settings) {
    return settings->precision == SW_PRECISION_FP8;
}

sw_optimizer_format sw_settings_optimizer(const struct sw_settings *settings) {
    static const sw_optimizer_format with_muon[SW_OPTIMIZER_FORMATS] = {[SW_OPTIMIZER_FP32] = SW_OPTIMIZER_MUON,
                                                                        [SW_OPTIMIZER_BF16] = SW_OPTIMIZER_MUON_BF16,
                                                                        [SW_OPTIMIZER_8BIT] = SW_OPTIMIZER_MUON_8BIT};
    if (sw_settings_use_muon(settings) && settings->padded_records && settings->optimizer_state == SW_OPTIMIZER_BF16)
        return SW_OPTIMIZER_MUON_BF16_PADDED;
    if (sw_settings_use_muon(settings))
        return with_muon[settings->optimizer_state];
    if (sw_settings_fp8(settings) && settings->optimizer_state == SW_OPTIMIZER_FP32)
        return SW_OPTIMIZER_FP32_APART;
    return (sw_optimizer_format)settings->optimizer_state;
}

/* A narrow second moment that is rounded to nearest stops falling: a step takes less from it than half the distance
 * between two of its values. */
sw_rounding sw_settings_rounding(const struct sw_settings *settings) {
    const bool narrow = settings->optimizer_state != SW_OPTIMIZER_FP32 || sw_settings_use_muon(settings);
    return narrow && settings->rounding != SW_OPTION_ROUNDING_NEAREST ? SW_ROUND_STOCHASTIC : SW_ROUND_NEAREST;
}

const char *sw_settings_precision_name(const struct sw_settings *settings) {
    return settings->precision == SW_PRECISION_TF32  ? "tf32"
           : settings->precision == SW_PRECISION_FP8 ? "fp8"
                                                     : sw_dtype_name(sw_settings_type(settings));
}

sw_status sw_settings_prepare_device(const struct sw_settings *settings, struct sw_device *device) {
    switch (settings->precision) {
    case SW_PRECISION_TF32: return sw_device_use_tf32(device);
    case SW_PRECISION_FP8: return sw_device_use_fp8(device);
    default: return SW_OK;
    }
}

int64_t sw_settings_micro_batches(const struct sw_settings *settings) {
    return settings->batch_tokens / (settings->micro_batch * settings->seq * sw_settings_data_ranks(settings));
}

struct sw_store_owner sw_settings_owner(const struct sw_settings *settings) {
    return (struct sw_store_owner){.rank = settings->rank,
                                   .ranks = sw_settings_ranks(settings),
                                   .local_rank = settings->local_rank,
                                   .tensor_ranks = sw_settings_part_ranks(settings),
                                   .expert_ranks = sw_settings_expert_ranks(settings),
                                   .split = sw_settings_split(settings),
                                   .whole = sw_settings_most_state_ranks(settings) > 1 && settings->zero == 0,
                                   .optimizer = sw_settings_optimizer(settings)};
}

bool sw_settings_order_is_auto(const struct sw_settings *settings) {
    return strcmp(settings->order, "auto") == 0;
}

sw_status sw_settings_group(const struct sw_settings *settings, int64_t *out) {
    SW_TRY(parse_order(settings->order, sw_settings_micro_batches(settings), out));
    if (sw_settings_order_is_auto(settings) && settings->group > 0)
        *out = sw_min_i64(*out, settings->group);
    if (sw_settings_order_is_auto(settings) && sw_settings_stages(settings) > 1)
        *out = 1; /* so that stages wait least for each other */
    return SW_OK;
}

struct sw_schedule sw_settings_schedule(const struct sw_settings *settings) {
    return (struct sw_schedule){.kind = (sw_schedule_kind)settings->schedule,
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

/* Resolves settings that are "auto", for a model and a device. */

/* Tokens of a micro-batch, of a step and of a sequence, and one over the warm-up's share of the schedule, if they are
 * "auto". */
enum { AUTO_MICRO_BATCH_TOKENS = 4096, AUTO_BATCH_TOKENS = 16384, AUTO_SEQ = 1024, AUTO_WARMUP_SHARE = 10 };
enum { AUTO_STEPS = 1000, AUTO_MOST_WARMUP = 100 };
/* Learning rates if --lr is "auto". Only small steps preserve what loaded weights have learned; random weights have
 * nothing to lose. */
#define AUTO_LR_LOADED 1e-5
#define AUTO_LR_RANDOM 3e-4
#define AUTO_LR_ADAPTERS 1e-4
/* Grains of a chunk if --chunk-grains is "auto". A GPU gets larger ones: short copies keep its link busy only half of
 * the time. AUTO_MOST_CHUNKS limits the chunks of a rank's part of the model, and so the plan's ops. */
enum { AUTO_CHUNK_GRAINS = 16, AUTO_GPU_CHUNK_GRAINS = 64, AUTO_MOST_CHUNKS = 16384 };
/* Limit of --epochs: up to here a double counts steps exactly. */
#define MOST_STEPS 0x1p53
/* Budgets of "auto" as shares of available memory. A CPU device has both tiers in host memory. */
#define AUTO_DEVICE_SHARE 0.6
#define AUTO_HOST_SHARE 0.2
/* With a GPU, only the host tier is in host memory. */
#define AUTO_GPU_HOST_SHARE 0.8

static void resolve_shape(struct sw_settings *s, const struct sw_model_config *config) {
    const int64_t ranks = sw_settings_data_ranks(s);
    if (s->seq == SW_OPTION_AUTO)
        s->seq = sw_min_i64(AUTO_SEQ, config->max_positions);
    const bool batch_auto = s->batch_tokens == SW_OPTION_AUTO;
    s->micro_batch_open |= s->micro_batch == SW_OPTION_AUTO;
    if (s->micro_batch == SW_OPTION_AUTO) {
        const int64_t sequences = (batch_auto ? AUTO_BATCH_TOKENS : s->batch_tokens) / s->seq / ranks;
        s->micro_batch = sw_max_i64(1, sw_min_i64(sequences / sw_settings_stages(s), AUTO_MICRO_BATCH_TOKENS / s->seq));
        while (!batch_auto && sequences > 0 && sequences % s->micro_batch != 0)
            s->micro_batch--;
        /* The sequences of --dpo come in pairs. */
        if (s->dpo)
            s->micro_batch = sw_max_i64(2, s->micro_batch / 2 * 2);
        while (s->dpo && !batch_auto && s->micro_batch > 2 && sequences % s->micro_batch != 0)
            s->micro_batch -= 2;
    }
    const int64_t micro_tokens = s->micro_batch * s->seq * ranks;
    if (batch_auto)
        s->batch_tokens = micro_tokens * sw_max_i64(sw_settings_stages(s), AUTO_BATCH_TOKENS / micro_tokens);
}

/* Lowers the micro-batch until each rank's sequences are a multiple of it. That changes the order of sums, but so does
 * the new number of ranks. */
static void fit_micro_batch(struct sw_settings *s) {
    const int64_t sequences = s->batch_tokens / s->seq / sw_settings_data_ranks(s), before = s->micro_batch;
    const int64_t step = s->dpo ? 2 : 1;
    while (s->micro_batch > step && sequences > 0 && sequences % s->micro_batch != 0)
        s->micro_batch -= step;
    if (s->micro_batch != before)
        sw_log_info("micro-batches of %s instead of %lld, for %s", SW_COUNT(s->micro_batch, "sequence"),
                    (long long)before, SW_COUNT(sw_settings_ranks(s), "rank"));
}

void sw_settings_regroup(struct sw_settings *s, int64_t ranks_before) {
    s->regrouped = true;
    /* The stage has no effect with one rank, so the run did not choose it. */
    if (ranks_before <= 1)
        s->zero = SW_OPTION_AUTO;
    s->most_memory[SW_DEVICE] = s->device_memory;
    s->most_memory[SW_HOST] = s->host_memory;
    s->threads = s->device_memory = s->host_memory = SW_OPTION_AUTO;
}

static void limit_to(int64_t most_bytes, int64_t *bytes) {
    if (most_bytes > 0)
        *bytes = sw_min_i64(*bytes, most_bytes);
}

/* Checks that every data rank gets the same number of whole micro-batches. Skipped while the size of tensor groups or
 * the number of stages is open, because the number of data ranks is unknown. */
static sw_status check_batch(const struct sw_settings *s) {
    const int64_t ranks = sw_settings_data_ranks(s);
    const char *sharers = sw_settings_tensor_ranks(s) > 1 ? "groups of --tensor" : "ranks";
    int64_t micro_tokens;
    if (s->tensor == SW_OPTION_AUTO || s->pipeline == SW_OPTION_AUTO)
        return SW_OK;
    const bool counts =
        sw_mul_i64(s->micro_batch, s->seq, &micro_tokens) && sw_mul_i64(micro_tokens, ranks, &micro_tokens);
    if (counts && s->batch_tokens % micro_tokens == 0)
        return SW_OK;
    if (s->regrouped)
        return sw_fail(
            SW_ERR_ARG,
            "%lld %s cannot share the %lld sequences of this run's steps evenly; resume with a number of them that "
            "divides these",
            (long long)ranks, sharers, (long long)(s->batch_tokens / s->seq));
    if (ranks == 1 || !counts)
        return sw_fail(SW_ERR_ARG, "--batch-tokens %lld is not a multiple of --micro-batch %lld times --seq %lld",
                       (long long)s->batch_tokens, (long long)s->micro_batch, (long long)s->seq);
    return sw_fail(SW_ERR_ARG,
                   "--batch-tokens %lld is not a multiple of --micro-batch %lld times --seq %lld for each of %lld "
                   "%s; use %lld, another --micro-batch or another number of ranks",
                   (long long)s->batch_tokens, (long long)s->micro_batch, (long long)s->seq, (long long)ranks, sharers,
                   (long long)(sw_div_up(s->batch_tokens, micro_tokens) * micro_tokens));
}

void sw_settings_resolve_memory(struct sw_settings *s, const struct sw_device_info *device, int64_t host_bytes) {
    const double share = (double)host_bytes / (double)sw_max_i64(1, s->local_ranks);
    if (s->device_memory == SW_OPTION_AUTO) {
        s->device_memory = device->host_memory ? (int64_t)(AUTO_DEVICE_SHARE * share) : sw_devices_gpu_budget(device);
        limit_to(s->most_memory[SW_DEVICE], &s->device_memory);
    }
    if (s->host_memory == SW_OPTION_AUTO) {
        s->host_memory = (int64_t)((device->host_memory ? AUTO_HOST_SHARE : AUTO_GPU_HOST_SHARE) * share);
        limit_to(s->most_memory[SW_HOST], &s->host_memory);
    }
}

static sw_status resolve_memory(struct sw_settings *s, const struct sw_device_info *device) {
    if (s->device_memory != SW_OPTION_AUTO && s->host_memory != SW_OPTION_AUTO)
        return SW_OK;
    struct sw_machine machine;
    SW_TRY(sw_machine_read(&machine));
    sw_settings_resolve_memory(s, device, machine.available_bytes);
    return SW_OK;
}

static sw_status resolve_chunk(struct sw_settings *s, const struct sw_model_config *config,
                               const struct sw_device_info *device) {
    struct sw_units *units;
    int64_t grains = 0;
    if (s->chunk_grains != SW_OPTION_AUTO)
        return SW_OK;
    SW_TRY(sw_model_units(config, s->tiles, sw_settings_optimizer(s), NULL, &units));
    for (int64_t u = 0; u < units->count; u++)
        grains += units->unit[u].grains;
    sw_units_destroy(units);
    s->chunk_grains = device->host_memory ? AUTO_CHUNK_GRAINS : AUTO_GPU_CHUNK_GRAINS;
    while (grains / sw_settings_ranks(s) / s->chunk_grains > AUTO_MOST_CHUNKS)
        s->chunk_grains *= 2;
    s->auto_chunk_grains = s->chunk_grains;
    return SW_OK;
}

/* Refuses a --freeze or --lora that does not go with the model. */
static sw_status check_frozen(const struct sw_settings *s, const struct sw_model_config *config) {
    struct sw_units *units;
    if (!sw_tuning_freezes(&s->tuning))
        return SW_OK;
    SW_TRY(sw_model_units(config, s->tiles, sw_settings_optimizer(s), &s->tuning, &units));
    sw_units_destroy(units);
    return SW_OK;
}

static void resolve_lr(struct sw_settings *s) {
    s->lr_was_open |= s->lr == (double)SW_OPTION_AUTO;
    if (s->lr == (double)SW_OPTION_AUTO)
        s->lr = s->init ? AUTO_LR_RANDOM : s->tuning.lora.rank > 0 ? AUTO_LR_ADAPTERS : AUTO_LR_LOADED;
}

/* Refuses losses of routers where there are none. */
static sw_status resolve_router(struct sw_settings *s, const struct sw_model_config *config) {
    const bool is_open = s->router_aux_loss == (double)SW_OPTION_AUTO;
    if (is_open)
        s->router_aux_loss = config->balances_experts ? config->router_aux_loss : 0.0;
    const bool has_loss = s->router_aux_loss != 0.0 || s->router_z_loss != 0.0;
    if (has_loss && config->experts == 0)
        return sw_fail(SW_ERR_ARG,
                       "--router-aux-loss and --router-z-loss are for mixtures of experts, and a %s model has no "
                       "router; leave them out",
                       config->family);
    if (has_loss && s->dpo)
        return sw_fail(SW_ERR_UNSUPPORTED, "--dpo has no losses of routers%s; %s",
                       is_open ? ", and config.json asks for one by 'output_router_logits'" : "",
                       is_open ? "give --router-aux-loss 0" : "leave out --router-aux-loss and --router-z-loss");
    return SW_OK;
}

sw_status sw_settings_resolve(struct sw_settings *s, const struct sw_model_config *config,
                              const struct sw_device_info *device) {
    int64_t group;
    if (s->tensor == SW_OPTION_AUTO && sw_settings_ranks(s) == 1)
        s->tensor = 1;
    if (s->pipeline == SW_OPTION_AUTO && sw_settings_ranks(s) == 1)
        s->pipeline = s->pipeline_interleave = 1;
    SW_TRY(check_frozen(s, config));
    resolve_lr(s);
    SW_TRY(sw_as_usage(sw_settings_resolve_muon(s, device)));
    SW_TRY(resolve_router(s, config));
    resolve_shape(s, config);
    if (s->regrouped)
        fit_micro_batch(s);
    if (s->seq > config->max_positions)
        return sw_fail(SW_ERR_ARG, "--seq %lld is longer than the model's %lld positions", (long long)s->seq,
                       (long long)config->max_positions);
    SW_TRY(sw_as_usage(check_batch(s)));
    SW_TRY(sw_settings_group(s, &group));
    SW_TRY(sw_settings_resolve_pipeline(s, config, sw_settings_micro_batches(s), group));
    if (s->precision == SW_PRECISION_AUTO)
        s->precision = device->bf16_fast ? SW_PRECISION_BF16 : SW_PRECISION_FP32;
    SW_TRY(resolve_chunk(s, config, device));
    s->threads = device->threads;
    s->device = device->host_memory ? SW_DEVICE_CPU : SW_DEVICE_CUDA;
    return resolve_memory(s, device);
}

/* The last step of --epochs may reach into the next pass, because steps are whole. */
static sw_status steps_of_epochs(const struct sw_settings *s, int64_t epoch_windows, int64_t *out) {
    const int64_t step_windows = s->batch_tokens / s->seq;
    const double steps = ceil(s->epochs * (double)epoch_windows / (double)step_windows);
    if (!(steps >= 1.0 && steps < MOST_STEPS))
        return sw_fail(SW_ERR_ARG, "--epochs %g of this data would be %.3g steps of --batch-tokens %lld", s->epochs,
                       steps, (long long)s->batch_tokens);
    *out = (int64_t)steps;
    return SW_OK;
}

sw_status sw_settings_resolve_steps(struct sw_settings *s, int64_t epoch_windows) {
    if (s->steps == SW_OPTION_AUTO && s->epochs > 0.0)
        SW_TRY(steps_of_epochs(s, epoch_windows, &s->steps));
    else if (s->steps == SW_OPTION_AUTO)
        s->steps = AUTO_STEPS;
    if (s->schedule_steps == SW_OPTION_AUTO)
        s->schedule_steps = s->steps;
    if (s->warmup == SW_OPTION_AUTO)
        s->warmup = sw_min_i64(AUTO_MOST_WARMUP, s->schedule_steps / AUTO_WARMUP_SHARE);
    return SW_OK;
}

/* A name that contains {rank} is not a file yet, so it only gets the current folder as prefix. A link to a drive stays
 * a link, because the drive may have another name after a reboot. */
static sw_status make_absolute(char **path) {
    if (**path == '/' && sw_block_is_one(*path))
        return SW_OK;
    char *absolute = realpath(*path, NULL);
    if (absolute == NULL && errno == ENOMEM)
        return sw_fail(SW_ERR_NOMEM, "no memory for the path %s", *path);
    if (absolute == NULL && **path != '/' && strchr(*path, '{') != NULL) {
        char *here = getcwd(NULL, 0);
        if (here == NULL || asprintf(&absolute, "%s/%s", here, *path) < 0)
            absolute = NULL;
        free(here);
        if (absolute == NULL)
            return sw_fail(SW_ERR_NOMEM, "no memory for the path %s", *path);
    }
    if (absolute == NULL)
        return SW_OK;
    free(*path);
    *path = absolute;
    return SW_OK;
}

/* Makes DIR in "DIR:SIZE" absolute. If the new name itself ends like a limit, a slash after it keeps it a name. */
static sw_status make_place_absolute(char **place) {
    const int chars = sw_place_path_chars(*place);
    char *path = strndup(*place, (size_t)chars), *joined = NULL;
    const sw_status status = path != NULL ? make_absolute(&path) : SW_ERR_NOMEM;
    const bool ambiguous = status == SW_OK && !sw_block_is_one(path) && sw_place_ends_like_limit(path);
    if (status != SW_OK || asprintf(&joined, "%s%s%s", path, ambiguous ? "/" : "", *place + chars) < 0) {
        free(path);
        return sw_fail(SW_ERR_NOMEM, "no memory for the place of the store");
    }
    free(path);
    free(*place);
    *place = joined;
    return SW_OK;
}

/* Refuses names that are not UTF-8: run.json is UTF-8 and could not hold them. */
static sw_status check_name(const char *flag, const char *name) {
    json_t *text = json_string(name);
    if (text == NULL && sw_json_lacked_memory())
        return sw_fail(SW_ERR_NOMEM, "no memory for the name %s", name);
    if (text == NULL)
        return sw_fail(SW_ERR_ARG,
                       "%s %s: the name, with the folders before it, is not UTF-8 and cannot be kept in run.json: "
                       "rename it, or use another",
                       flag, name);
    json_decref(text);
    return SW_OK;
}

/* Refuses more names than run.json and recipe.yaml may have. Each counts with the other characters of its line. */
static sw_status check_room(const struct sw_option_list *data) {
    enum { BESIDE_NAME_BYTES = 32 };
    size_t bytes = 0;
    for (int i = 0; i < data->count; i++)
        bytes += strlen(data->items[i]) + BESIDE_NAME_BYTES;
    return bytes <= SW_SETTINGS_MOST_NAME_BYTES
               ? SW_OK
               : sw_fail(SW_ERR_ARG,
                         "the names of the %d files of --data take %zu bytes, and a run keeps at most %zu: give the "
                         "folder that they are in if they are text for a tokenizer, else fewer and larger files",
                         data->count, bytes, SW_SETTINGS_MOST_NAME_BYTES);
}

/* Tells whether a list that a flag gave, if any, is that of the adapter. */
static bool agrees(const char *given, const char *found) {
    return given == NULL || (found != NULL && strcmp(given, found) == 0);
}

/* Refuses flags whose values differ from the adapter's. */
static sw_status check_agreement(const struct sw_lora *given, const struct sw_lora *found, const char *folder) {
    const struct {
        bool agrees;
        const char *flag;
    } flags[] = {{given->rank == 0 || given->rank == found->rank, "--lora"},
                 {given->alpha == 0.0 || given->alpha == found->alpha, "--lora-alpha"},
                 {!given->rank_stabilized || found->rank_stabilized, "--rslora"},
                 {given->dropout == 0.0 || given->dropout == found->dropout, "--lora-dropout"},
                 {agrees(given->targets, found->targets), "--lora-targets"},
                 {agrees(given->modules_to_save, found->modules_to_save), "--modules-to-save"}};
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++)
        if (!flags[i].agrees)
            return sw_fail(SW_ERR_ARG, "%s differs from the adapter in %s, with which the run begins; leave it out",
                           flags[i].flag, folder);
    return SW_OK;
}

sw_status sw_settings_take_adapter(struct sw_settings *settings, const struct sw_model_config *config) {
    struct sw_tuning tuning = settings->tuning, taken = {0};
    struct sw_peft *peft;
    if (settings->adapter == NULL)
        return SW_OK;
    SW_TRY(sw_peft_open(settings->adapter, config, &peft));
    tuning.lora = *sw_peft_lora(peft);
    sw_status status = check_agreement(&settings->tuning.lora, &tuning.lora, settings->adapter);
    if (status == SW_OK)
        status = sw_tuning_copy(&tuning, &taken);
    sw_peft_close(peft);
    SW_TRY(status);
    sw_tuning_release(&settings->tuning);
    settings->tuning = taken;
    return sw_tuning_check(&settings->tuning);
}

sw_status sw_settings_check_names(const struct sw_settings *settings) {
    SW_TRY(check_room(&settings->data));
    SW_TRY(check_name("--model", settings->model));
    if (settings->adapter != NULL)
        SW_TRY(check_name("--adapter", settings->adapter));
    for (int i = 0; i < settings->data.count; i++)
        SW_TRY(check_name("--data", settings->data.items[i]));
    for (int i = 0; i < settings->nvme.count; i++)
        SW_TRY(check_name("--nvme", settings->nvme.items[i]));
    return settings->val != NULL ? check_name("--val", settings->val) : SW_OK;
}

sw_status sw_settings_make_paths_absolute(struct sw_settings *settings) {
    SW_TRY(make_absolute(&settings->model));
    if (settings->adapter != NULL)
        SW_TRY(make_absolute(&settings->adapter));
    for (int i = 0; i < settings->data.count; i++)
        SW_TRY(make_absolute(&settings->data.items[i]));
    for (int i = 0; i < settings->nvme.count; i++)
        SW_TRY(make_place_absolute(&settings->nvme.items[i]));
    double percent;
    const char *file;
    SW_TRY(sw_settings_validation(settings, &percent, &file));
    if (file != NULL)
        SW_TRY(make_absolute(&settings->val));
    return sw_settings_check_names(settings);
}
