#include "cli/plan_stages.h"

#include "cli/commands.h"
#include "core/size.h"
#include "job/settings/pipeline.h"
#include "job/settings/settings.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

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

/* Returns which layers a stage has, counted from 0: "0-3", of several turns "0-1 4-5", or "none". */
enum { LAYERS_CHARS = 16 * SW_MOST_VIRTUAL_STAGES };
static const char *name_layers(const struct sw_job *job, int64_t stage, char out[LAYERS_CHARS]) {
    int chars = 0;
    for (int64_t turn = 0; turn < sw_settings_turns(job->settings); turn++) {
        const struct sw_layer_run run = sw_settings_layer_run(job->settings, stage, turn);
        const long long first = run.first, last = run.first + run.layers - 1;
        const char *gap = chars > 0 ? " " : "";
        if (run.layers == 1)
            chars += snprintf(out + chars, (size_t)(LAYERS_CHARS - chars), "%s%lld", gap, first);
        else if (run.layers > 1)
            chars += snprintf(out + chars, (size_t)(LAYERS_CHARS - chars), "%s%lld-%lld", gap, first, last);
    }
    if (chars == 0)
        snprintf(out, LAYERS_CHARS, "none");
    return out;
}

/* Prints a row for each stage. Layers have a column if it fits 80 columns of text, else lines of their own. */
static void print_table(const struct sw_plan_stages *stages, const struct sw_job *job) {
    enum { GAP = 2, MOST_LAYERS_WIDTH = 15 };
    char layers[LAYERS_CHARS];
    int width = (int)strlen("layers") + GAP;
    for (int64_t stage = 0; stage < stages->count; stage++)
        width = (int)sw_max_i64(width, (int64_t)strlen(name_layers(job, stage, layers)) + GAP);
    const bool is_column = width <= MOST_LAYERS_WIDTH;
    width = is_column ? width : 0;
    printf("  stage%*s%10s%12s%12s%12s  %s\n", width, is_column ? "layers" : "", "step", "device", "host", "disk",
           "limited by");
    for (int64_t stage = 0; stage < stages->count; stage++) {
        const struct sw_stage_price *price = &stages->stage[stage];
        const bool known = isfinite(price->step.step_s);
        char device[SW_SIZE_CHARS], host[SW_SIZE_CHARS], disk[SW_SIZE_CHARS], time[SW_TIME_TEXT_CHARS];
        printf("  %5lld%*s%10s%12s%12s%12s  %s\n", (long long)stage, width,
               is_column ? name_layers(job, stage, layers) : "",
               known ? sw_format_seconds(price->step.step_s, time) : "unknown",
               sw_format_size(price->peak_bytes[SW_DEVICE], device), sw_format_size(price->peak_bytes[SW_HOST], host),
               sw_format_size(price->disk_bytes, disk), known ? price->step.bottleneck : "");
    }
    for (int64_t stage = 0; !is_column && stage < stages->count; stage++) {
        printf("%*s", INDENT, "");
        sw_command_print(INDENT, 2 * INDENT, "layers of stage %lld: %s", (long long)stage,
                         name_layers(job, stage, layers));
    }
}

void sw_plan_stages_print(const struct sw_plan_stages *stages, const struct sw_job *job) {
    const struct sw_simulation *step = sw_plan_stages_step(stages, job);
    const long long turns = sw_settings_turns(job->settings);
    char ranks[SW_COUNT_CHARS], groups[SW_COUNT_CHARS], in_turns[32] = "";
    if (stages->count == 0)
        return;
    if (turns > 1)
        snprintf(in_turns, sizeof in_turns, " in %lld turns", turns);
    sw_command_print(0, INDENT,
                     "%lld stages of %s, through which %s of micro-batches pass%s: stage %lld, the slowest, waits for "
                     "%.0f%% of a step for the others; %.0f%% if stages were equal and only computed",
                     (long long)stages->count, sw_format_count(sw_settings_stage_ranks(job->settings), "rank", ranks),
                     sw_format_count(sw_plan_groups(job->plan), "group", groups), in_turns, (long long)stages->slowest,
                     100.0 * step->bubble_s / step->step_s, 100.0 * sw_plan_equal_bubble(job->plan));
    if (sw_plan_ranks(job->plan) > 1)
        sw_command_print(0, INDENT,
                         "each rank adds up its micro-batches' gradients, whole at every --zero, and the ranks of a "
                         "stage exchange them once a step");
    print_table(stages, job);
}

static json_t *stage_json(const struct sw_job *job, int64_t stage, const struct sw_stage_price *price) {
    const bool known = isfinite(price->step.step_s);
    json_t *runs = json_array();
    for (int64_t turn = 0; turn < sw_settings_turns(job->settings); turn++) {
        const struct sw_layer_run run = sw_settings_layer_run(job->settings, stage, turn);
        json_array_append_new(
            runs, json_pack("{s:I, s:I}", "first", (json_int_t)run.first, "layers", (json_int_t)run.layers));
    }
    return json_pack("{s:I, s:o, s:o, s:o, s:o, s:{s:I, s:I, s:I}, s:I}", "layers", (json_int_t)price->layers, "runs",
                     runs, "step_s", known ? json_real(price->step.step_s) : json_null(), "bubble_s",
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
        json_array_append_new(all, stage_json(job, stage, &stages->stage[stage]));
    return json_pack("{s:I, s:I, s:I, s:f, s:f, s:f, s:o}", "ranks", (json_int_t)sw_settings_stage_ranks(job->settings),
                     "interleave", (json_int_t)sw_settings_turns(job->settings), "groups",
                     (json_int_t)sw_plan_groups(job->plan), "step_s", step->step_s, "bubble",
                     step->bubble_s / step->step_s, "equal_bubble", sw_plan_equal_bubble(job->plan), "stages", all);
}
