#include "cli/plan_stages.h"

#include "cli/commands.h"
#include "core/size.h"
#include "job/settings/settings.h"

#include <math.h>
#include <stdio.h>

enum { INDENT = 2 };

sw_status sw_plan_stages_price(const struct sw_job *job, struct sw_plan_stages *out) {
    *out = (struct sw_plan_stages){0};
    if (sw_settings_stages(job->settings) == 1)
        return SW_OK;
    out->count = sw_settings_stages(job->settings);
    for (int64_t stage = 0; stage < out->count; stage++) {
        SW_TRY(sw_what_if_stage(job, stage, &out->stage[stage]));
        if (out->stage[stage].step.step_s > out->stage[out->slowest].step.step_s)
            out->slowest = stage;
    }
    return SW_OK;
}

const struct sw_simulation *sw_plan_stages_step(const struct sw_plan_stages *stages, const struct sw_job *job) {
    const struct sw_simulation *slowest = &stages->stage[stages->slowest].step;
    return stages->count > 0 && slowest->step_s > 0.0 ? slowest : &job->price.prediction.plain;
}

void sw_plan_stages_print(const struct sw_plan_stages *stages, const struct sw_job *job) {
    const struct sw_simulation *step = sw_plan_stages_step(stages, job);
    char ranks[SW_COUNT_CHARS], groups[SW_COUNT_CHARS];
    if (stages->count == 0)
        return;
    sw_command_print(0, INDENT,
                     "%lld stages of %s, through which %s of micro-batches pass: stage %lld, the slowest, waits for "
                     "%.0f%% of a step for the others; %.0f%% if stages were equal and only computed",
                     (long long)stages->count, sw_format_count(sw_settings_stage_ranks(job->settings), "rank", ranks),
                     sw_format_count(sw_plan_groups(job->plan), "group", groups), (long long)stages->slowest,
                     100.0 * step->bubble_s / step->step_s, 100.0 * sw_plan_equal_bubble(job->plan));
    if (sw_plan_ranks(job->plan) > 1)
        sw_command_print(0, INDENT,
                         "each rank adds up its micro-batches' gradients, whole at every --zero, and the ranks of a "
                         "stage exchange them once a step");
    printf("  stage%8s%11s%13s%13s%13s  %s\n", "layers", "step", "device", "host", "disk", "limited by");
    for (int64_t stage = 0; stage < stages->count; stage++) {
        const struct sw_stage_price *price = &stages->stage[stage];
        const bool known = isfinite(price->step.step_s);
        char device[SW_SIZE_CHARS], host[SW_SIZE_CHARS], disk[SW_SIZE_CHARS], time[SW_TIME_TEXT_CHARS];
        printf("  %5lld%8lld%11s%13s%13s%13s  %s\n", (long long)stage, (long long)price->layers,
               known ? sw_format_seconds(price->step.step_s, time) : "unknown",
               sw_format_size(price->peak_bytes[SW_DEVICE], device), sw_format_size(price->peak_bytes[SW_HOST], host),
               sw_format_size(price->disk_bytes, disk), known ? price->step.bottleneck : "");
    }
}

static json_t *stage_json(const struct sw_stage_price *price) {
    const bool known = isfinite(price->step.step_s);
    return json_pack("{s:I, s:o, s:o, s:o, s:{s:I, s:I, s:I}, s:I}", "layers", (json_int_t)price->layers, "step_s",
                     known ? json_real(price->step.step_s) : json_null(), "bubble_s",
                     known ? json_real(price->step.bubble_s) : json_null(), "bottleneck",
                     known ? json_string(price->step.bottleneck) : json_null(), "peak_bytes", "device",
                     (json_int_t)price->peak_bytes[SW_DEVICE], "host", (json_int_t)price->peak_bytes[SW_HOST], "nvme",
                     (json_int_t)price->peak_bytes[SW_NVME], "disk_bytes", (json_int_t)price->disk_bytes);
}

json_t *sw_plan_stages_json(const struct sw_plan_stages *stages, const struct sw_job *job) {
    const struct sw_simulation *step = sw_plan_stages_step(stages, job);
    if (stages->count == 0)
        return json_null();
    json_t *all = json_array();
    for (int64_t stage = 0; stage < stages->count; stage++)
        json_array_append_new(all, stage_json(&stages->stage[stage]));
    return json_pack("{s:I, s:I, s:f, s:f, s:f, s:o}", "ranks", (json_int_t)sw_settings_stage_ranks(job->settings),
                     "groups", (json_int_t)sw_plan_groups(job->plan), "step_s", step->step_s, "bubble",
                     step->bubble_s / step->step_s, "equal_bubble", sw_plan_equal_bubble(job->plan), "stages", all);
}
