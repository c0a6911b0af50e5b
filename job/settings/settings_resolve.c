/* Resolves settings that are "auto", for a model and a device. */
#include "core/log.h"
#include "core/machine.h"
#include "core/number.h"
#include "core/size.h"
#include "job/machine/devices.h"
#include "job/settings/settings.h"
#include "model/hf/config.h"
#include "model/model.h"

#include <math.h>

/* Tokens of a micro-batch, a step and a sequence, and the share of the schedule that warms up, where they are "auto".
 */
enum { AUTO_MICRO_BATCH_TOKENS = 4096, AUTO_BATCH_TOKENS = 16384, AUTO_SEQ = 1024, AUTO_WARMUP_SHARE = 10 };
enum { AUTO_STEPS = 1000, AUTO_MOST_WARMUP = 100 };
/* Learning rates where --lr is "auto". What loaded weights have learnt outlasts only small steps; random weights have
 * nothing to lose. */
#define AUTO_LR_LOADED 1e-5
#define AUTO_LR_RANDOM 3e-4
/* Grains of a chunk where --chunk-grains is "auto". A GPU gets larger ones, because short copies keep its link busy
 * only half of the time. AUTO_MOST_CHUNKS limits the chunks of a rank's part of the model, and with them the plan's
 * ops. */
enum { AUTO_CHUNK_GRAINS = 16, AUTO_GPU_CHUNK_GRAINS = 64, AUTO_MOST_CHUNKS = 16384 };
/* Limit of --epochs: a double counts steps exactly up to here. */
#define MOST_STEPS 0x1p53
/* Budgets of "auto" as shares of available memory. A CPU device has both tiers in host memory. */
#define AUTO_DEVICE_SHARE 0.6
#define AUTO_HOST_SHARE 0.2
/* Beside a GPU only the host tier is in host memory. */
#define AUTO_GPU_HOST_SHARE 0.8

static void resolve_shape(struct sw_settings *s, const struct sw_model_config *config) {
    const int64_t ranks = sw_settings_data_ranks(s);
    if (s->seq == SW_OPTION_AUTO)
        s->seq = sw_min_i64(AUTO_SEQ, config->max_positions);
    const bool batch_auto = s->batch_tokens == SW_OPTION_AUTO;
    s->micro_batch_open |= s->micro_batch == SW_OPTION_AUTO;
    if (s->micro_batch == SW_OPTION_AUTO) {
        const int64_t sequences = (batch_auto ? AUTO_BATCH_TOKENS : s->batch_tokens) / s->seq / ranks;
        s->micro_batch = sw_max_i64(1, sw_min_i64(sequences, AUTO_MICRO_BATCH_TOKENS / s->seq));
        while (!batch_auto && sequences > 0 && sequences % s->micro_batch != 0)
            s->micro_batch--;
    }
    const int64_t micro_tokens = s->micro_batch * s->seq * ranks;
    if (batch_auto)
        s->batch_tokens = micro_tokens * sw_max_i64(1, AUTO_BATCH_TOKENS / micro_tokens);
}

/* Lowers the micro-batch until each rank's sequences are a multiple of it. That changes the order of sums, but so does
 * the new number of ranks. */
static void fit_micro_batch(struct sw_settings *s) {
    const int64_t sequences = s->batch_tokens / s->seq / sw_settings_data_ranks(s), before = s->micro_batch;
    while (sequences > 0 && sequences % s->micro_batch != 0)
        s->micro_batch--;
    if (s->micro_batch != before)
        sw_log_info("micro-batches of %s instead of %lld, for %s", SW_COUNT(s->micro_batch, "sequence"),
                    (long long)before, SW_COUNT(sw_settings_ranks(s), "rank"));
}

void sw_settings_regroup(struct sw_settings *s, int64_t ranks_before) {
    s->regrouped = true;
    /* The stage has no effect with one rank, so the run has not chosen one. */
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

/* Checks that every data rank gets the same number of whole micro-batches. How many data ranks there are is not known
 * while the size of tensor groups is open. */
static sw_status check_batch(const struct sw_settings *s) {
    const int64_t ranks = sw_settings_data_ranks(s);
    const char *sharers = sw_settings_tensor_ranks(s) > 1 ? "groups of --tensor" : "ranks";
    int64_t micro_tokens;
    if (s->tensor == SW_OPTION_AUTO)
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
    SW_TRY(sw_model_units(config, s->tiles, sw_settings_optimizer(s), &units));
    for (int64_t u = 0; u < units->count; u++)
        grains += units->unit[u].grains;
    sw_units_destroy(units);
    s->chunk_grains = device->host_memory ? AUTO_CHUNK_GRAINS : AUTO_GPU_CHUNK_GRAINS;
    while (grains / sw_settings_ranks(s) / s->chunk_grains > AUTO_MOST_CHUNKS)
        s->chunk_grains *= 2;
    s->auto_chunk_grains = s->chunk_grains;
    return SW_OK;
}

static void resolve_lr(struct sw_settings *s) {
    s->lr_was_open |= s->lr == (double)SW_OPTION_AUTO;
    if (s->lr == (double)SW_OPTION_AUTO)
        s->lr = s->init ? AUTO_LR_RANDOM : AUTO_LR_LOADED;
}

sw_status sw_settings_resolve(struct sw_settings *s, const struct sw_model_config *config,
                              const struct sw_device_info *device) {
    int64_t frozen_units;
    if (s->tensor == SW_OPTION_AUTO && sw_settings_ranks(s) == 1)
        s->tensor = 1;
    SW_TRY(sw_settings_frozen_units(s, config, &frozen_units));
    resolve_lr(s);
    resolve_shape(s, config);
    if (s->regrouped)
        fit_micro_batch(s);
    if (s->seq > config->max_positions)
        return sw_fail(SW_ERR_ARG, "--seq %lld is longer than the model's %lld positions", (long long)s->seq,
                       (long long)config->max_positions);
    SW_TRY(sw_as_usage(check_batch(s)));
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
