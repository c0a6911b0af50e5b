#include "cli/plan_sizes.h"

#include "cli/commands.h"
#include "core/size.h"
#include "job/largest.h"
#include "job/what_if.h"
#include "model/model.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { INDENT = 2 };
/* The speed of --largest auto, in tokens per second: about ten million tokens per day. */
#define AUTO_LEAST_TOKENS_PER_S 100.0

static void print_row(const struct sw_largest *found) {
    char parameters[SW_COUNT_CHARS], disk[SW_SIZE_CHARS], rate[SW_COUNT_CHARS];
    if (found->config.layers == 0) {
        printf("%-9s none: %s\n", found->config.family, sw_size_limit_name(found->limit));
        return;
    }
    printf("%-9s %12s%7lld%7lld%9s%11s  %-8s %s\n", found->config.family,
           sw_format_large(found->parameters, parameters), (long long)found->config.hidden,
           (long long)found->config.layers, sw_format_rate(found->tokens_per_s, rate),
           sw_format_size(found->disk_bytes, disk), found->step.bottleneck, sw_size_limit_name(found->limit));
}

static json_t *row_json(const struct sw_largest *found) {
    const struct sw_model_config *c = &found->config;
    const char *limit = sw_size_limit_name(found->limit);
    if (c->layers == 0)
        return json_pack("{s:s, s:n, s:s}", "family", c->family, "parameters", "limit", limit);
    json_t *row =
        json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:s, s:s}", "family", c->family, "parameters",
                  (json_int_t)found->parameters, "disk_bytes", (json_int_t)found->disk_bytes, "layers",
                  (json_int_t)c->layers, "hidden", (json_int_t)c->hidden, "heads", (json_int_t)c->heads, "kv_heads",
                  (json_int_t)c->kv_heads, "ffn", (json_int_t)c->ffn, "step_s", found->step.step_s, "tokens_per_second",
                  found->tokens_per_s, "bottleneck", found->step.bottleneck, "limit", limit);
    if (c->experts > 0)
        json_object_update_new(row, json_pack("{s:I, s:I, s:I, s:I, s:I}", "active_parameters",
                                              (json_int_t)sw_model_active_parameters(c, NULL, found->parameters),
                                              "experts", (json_int_t)c->experts, "chosen_experts",
                                              (json_int_t)c->chosen_experts, "expert_ffn", (json_int_t)c->expert_ffn,
                                              "expert_group", (json_int_t)c->expert_group));
    return row;
}

static sw_status find_one(struct sw_sizing *sizing, const struct sw_model_config *base, double least, json_t *rows) {
    struct sw_largest found;
    SW_TRY(sw_sizing_find(sizing, base, least, &found));
    if (found.config.layers == 0)
        memcpy(found.config.family, base->family, sizeof found.config.family);
    if (rows != NULL)
        json_array_append_new(rows, row_json(&found));
    else
        print_row(&found);
    fflush(stdout);
    return SW_OK;
}

/* Searches each family, or only the proportions of `model` unless it is NULL. rows: receives the results; NULL: prints
 * them. */
static sw_status find_all(struct sw_sizing *sizing, const struct sw_model_config *model, double least, json_t *rows) {
    if (model != NULL)
        return find_one(sizing, model, least, rows);
    for (int i = 0; sw_proportions_at(i) != NULL; i++)
        SW_TRY(find_one(sizing, &sw_proportions_at(i)->config, least, rows));
    return SW_OK;
}

static void print_head(const struct sw_sizing *sizing, const struct sw_settings *settings, double least) {
    sw_command_print(0, INDENT,
                     "the largest models that train on %s at %.0f tokens/s or more, predicted, among those %s and "
                     "deeper ones of the width so found",
                     sw_sizing_device_name(sizing), least,
                     settings->model != NULL ? "with the proportions of --model"
                                             : "with the proportions of each family's largest");
    printf("%-9s %12s%7s%7s%9s%11s  %-8s %s\n", "family", "parameters", "hidden", "layers", "tokens/s", "disk",
           "busiest", "larger lack");
}

sw_status sw_plan_print_largest(const struct sw_settings *settings) {
    const double least = settings->largest == SW_OPTION_AUTO ? AUTO_LEAST_TOKENS_PER_S : (double)settings->largest;
    struct sw_model_config model;
    struct sw_sizing *sizing;
    if (settings->model != NULL)
        SW_TRY(sw_config_load(settings->model, &model));
    else if (settings->expert_group > 0)
        return sw_fail(SW_ERR_USAGE,
                       "--expert-group %lld does not divide the experts of every family that --largest compares; give "
                       "--model, or --expert-group auto",
                       (long long)settings->expert_group);
    SW_TRY(sw_sizing_open(settings, &sizing));
    json_t *rows = settings->json ? json_array() : NULL;
    if (!settings->json)
        print_head(sizing, settings, least);
    const sw_status status = find_all(sizing, settings->model != NULL ? &model : NULL, least, rows);
    sw_sizing_close(sizing);
    if (status == SW_OK && settings->json)
        return sw_command_print_json(json_pack("{s:f, s:o}", "least_tokens_per_second", least, "largest", rows));
    json_decref(rows);
    return status;
}

/* Writes a budget as its flag takes it. sw_least_memory rounds budgets to whole MiB, or to KiB if they are small. */
static const char *budget_to_text(int64_t bytes, char text[SW_SIZE_CHARS]) {
    const bool whole = bytes >= (INT64_C(64) << 20);
    snprintf(text, SW_SIZE_CHARS, "%lld%s", (long long)sw_div_up(bytes, INT64_C(1) << (whole ? 20 : 10)),
             whole ? "MiB" : "KiB");
    return text;
}

static void print_budgets(const struct sw_what_if *row) {
    char device[SW_SIZE_CHARS], host[SW_SIZE_CHARS], disk[SW_SIZE_CHARS], rate[SW_COUNT_CHARS];
    printf("%*s%-20s%12s%12s%12s", INDENT, "", row->what, budget_to_text(row->device_memory, device),
           budget_to_text(row->host_memory, host), row->fits ? sw_format_size(row->disk_bytes, disk) : "?");
    if (row->fits && isfinite(row->tokens_per_s))
        printf("%11s  %s\n", sw_format_rate(row->tokens_per_s, rate), row->step.bottleneck);
    else
        puts("          ?");
}

static json_t *budgets_json(const struct sw_what_if *row) {
    const bool known = row->fits && isfinite(row->tokens_per_s);
    return json_pack("{s:s, s:I, s:I, s:o, s:o, s:o, s:o}", "what", row->what, "device_memory",
                     (json_int_t)row->device_memory, "host_memory", (json_int_t)row->host_memory, "disk_bytes",
                     row->fits ? json_integer((json_int_t)row->disk_bytes) : json_null(), "step_s",
                     known ? json_real(row->step.step_s) : json_null(), "tokens_per_second",
                     known ? json_real(row->tokens_per_s) : json_null(), "bottleneck",
                     known ? json_string(row->step.bottleneck) : json_null());
}

sw_status sw_plan_print_smallest(const struct sw_job *p) {
    struct sw_what_if row[SW_LEASTS];
    SW_TRY(sw_least_memory(p, row));
    if (p->settings->json) {
        json_t *rows = json_array();
        for (int i = 0; i < SW_LEASTS; i++)
            json_array_append_new(rows, budgets_json(&row[i]));
        return sw_command_print_json(json_pack("{s:s, s:o}", "model", p->settings->model, "smallest", rows));
    }
    sw_command_print(0, INDENT,
                     "%s trains with these budgets of --device-memory and --host-memory and --micro-batch %lld, "
                     "predicted",
                     p->settings->model, (long long)p->settings->micro_batch);
    printf("%*s%-20s%12s%12s%12s%11s  %s\n", INDENT, "", "budgets", "device", "host", "disk", "tokens/s", "busiest");
    for (int i = 0; i < SW_LEASTS; i++)
        print_budgets(&row[i]);
    return SW_OK;
}
