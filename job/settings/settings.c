#include "job/settings/settings.h"

#include "core/size.h"
#include "job/machine/devices.h"
#include "job/settings/freeze.h"
#include "job/settings/places.h"
#include "job/settings/tensor_rates.h"
#include "model/hf/config.h"
#include "offload/plan/placement.h"

#include <stdlib.h>
#include <string.h>

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

/* A described machine (--machine) excludes flags that are about this one, and only it has nodes. */
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

sw_status sw_settings_check(const struct sw_settings *settings) {
    int64_t group;
    SW_TRY(check_machine(settings));
    SW_TRY(sw_settings_check_secondary(settings));
    SW_TRY(sw_settings_check_tensor(settings));
    if (settings->order != NULL) /* resume has no --order */
        SW_TRY(parse_order(settings->order, 1, &group));
    SW_TRY(sw_tensor_rates_check(settings));
    SW_TRY(sw_places_check(&settings->nvme));
    if (settings->rounding == SW_OPTION_ROUNDING_STOCHASTIC && settings->optimizer_state == SW_OPTIMIZER_FP32)
        return sw_fail(SW_ERR_ARG, "--rounding stochastic is for narrow moments, and --optimizer-state fp32 rounds "
                                   "none; leave it out, or give --optimizer-state bf16 or 8bit");
    if (sw_settings_fp8(settings) && settings->gather != SW_GATHER_EXACT)
        return sw_fail(SW_ERR_ARG,
                       "--gather int8 does not go with --precision fp8, whose weights already cross links as "
                       "one byte each; leave it out");
    struct sw_placement_request place;
    SW_TRY(sw_placement_parse(settings->place, &place));
    struct sw_freeze freeze;
    SW_TRY(sw_freeze_parse(settings->freeze, &freeze));
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
    if (sw_settings_fp8(settings) && settings->optimizer_state == SW_OPTIMIZER_FP32)
        return SW_OPTIMIZER_FP32_APART;
    return (sw_optimizer_format)settings->optimizer_state;
}

/* A narrow second moment that is rounded to nearest stops falling: what a step takes from it is less than half of what
 * tells two of its values apart. */
sw_rounding sw_settings_rounding(const struct sw_settings *settings) {
    const bool narrow = settings->optimizer_state != SW_OPTIMIZER_FP32;
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
                                   .tensor_ranks = sw_settings_tensor_ranks(settings),
                                   .whole = sw_settings_data_ranks(settings) > 1 && settings->zero == 0,
                                   .optimizer = sw_settings_optimizer(settings)};
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

sw_status sw_settings_frozen_units(const struct sw_settings *settings, const struct sw_model_config *config,
                                   int64_t *out) {
    return sw_freeze_units(settings->freeze, config->layers, settings->tiles == 1 ? 1 : 2 * settings->tiles, out);
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
