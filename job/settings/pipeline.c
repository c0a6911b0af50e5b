#include "job/settings/pipeline.h"

#include "core/size.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Layers of each stage. */
struct split {
    int stages;
    int64_t layers[SW_MOST_STAGES];
};

int64_t sw_settings_stages(const struct sw_settings *settings) {
    return sw_max_i64(1, settings->pipeline);
}

int64_t sw_settings_stage_ranks(const struct sw_settings *settings) {
    return sw_max_i64(1, sw_settings_ranks(settings) / sw_settings_stages(settings));
}

int64_t sw_settings_stage(const struct sw_settings *settings) {
    return settings->rank / sw_settings_stage_ranks(settings);
}

const char *sw_settings_split(const struct sw_settings *settings) {
    return sw_settings_stages(settings) > 1 ? settings->pipeline_split : "";
}

int64_t sw_split_stages(const char *split) {
    int64_t stages = 1;
    for (const char *at = split; *at != '\0'; at++)
        stages += *at == ',';
    return stages;
}

sw_status sw_settings_set_split(const char *split, struct sw_settings *settings) {
    char *copy = strdup(split);
    if (copy == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the settings");
    free(settings->pipeline_split);
    settings->pipeline_split = copy;
    return SW_OK;
}

/* A varied job that tries other stages has no split yet. */
static bool is_auto(const struct sw_settings *settings) {
    return settings->pipeline_split == NULL || strcmp(settings->pipeline_split, "auto") == 0;
}

sw_status sw_settings_keep_split(const char *split, struct sw_settings *settings) {
    return is_auto(settings) && split[0] != '\0' ? sw_settings_set_split(split, settings) : SW_OK;
}

/* Parses "12,10,10". Returns false where that is no list of at most SW_MOST_STAGES numbers. */
static bool parse_split(const char *text, struct split *out) {
    *out = (struct split){0};
    for (;;) {
        char *end;
        const long long layers = strtoll(text, &end, 10);
        if (end == text || layers < 0 || layers > SW_MOST_LAYERS || out->stages == SW_MOST_STAGES)
            return false;
        out->layers[out->stages++] = layers;
        if (*end == '\0')
            return true;
        if (*end != ',')
            return false;
        text = end + 1;
    }
}

static sw_status read_split(const struct sw_settings *s, struct split *out) {
    return parse_split(s->pipeline_split, out)
               ? SW_OK
               : sw_fail(SW_ERR_ARG,
                         "--pipeline-split '%s' must be the number of layers of each stage, such as 12,10,10, or auto",
                         s->pipeline_split);
}

/* Checks a split without a number of stages: an edit of a run may leave that number to the split. */
static sw_status check_lone_split(const struct sw_settings *s) {
    struct split split;
    SW_TRY(read_split(s, &split));
    if (s->pipeline == SW_OPTION_AUTO)
        return sw_fail(SW_ERR_ARG,
                       "--pipeline auto chooses the stages and their layers, and --pipeline-split %s names "
                       "them; leave one of them out",
                       s->pipeline_split);
    if (split.stages == 1)
        return sw_fail(SW_ERR_ARG,
                       "--pipeline-split %s has one stage, and a pipeline has two or more; give the layers "
                       "of each, or leave it out",
                       s->pipeline_split);
    return s->pipeline == 0 ? SW_OK
                            : sw_fail(SW_ERR_ARG,
                                      "--pipeline-split %s has the layers of %d stages; give --pipeline %d "
                                      "too, or leave it out",
                                      s->pipeline_split, split.stages, split.stages);
}

/* Refuses flags that fix what --pipeline auto compares, or leave another size open. */
static sw_status check_open(const struct sw_settings *s) {
    if (s->tensor == SW_OPTION_AUTO || s->expert_group == SW_OPTION_AUTO)
        return sw_fail(SW_ERR_ARG, "--pipeline auto and %s auto are two choices; give one of them a number",
                       s->tensor == SW_OPTION_AUTO ? "--tensor" : "--expert-group");
    if (s->rates != NULL)
        return sw_fail(SW_ERR_ARG, "--rates has the rates of one plan's parts, and --pipeline auto compares several; "
                                   "give --pipeline N, or leave --rates out");
    if (s->largest != 0 || s->smallest_machine)
        return sw_fail(SW_ERR_ARG,
                       "--pipeline auto plans one model on one machine, and %s tries many; leave one of "
                       "them out",
                       s->largest != 0 ? "--largest" : "--smallest-machine");
    return SW_OK;
}

/* Refuses flags that need whole models, whole steps or other exchanges on one rank. */
sw_status sw_settings_check_pipeline(const struct sw_settings *s) {
    const struct {
        bool given;
        const char *flag;
    } flags[] = {
        {s->tensor == SW_OPTION_AUTO, "--tensor auto"},
        {s->experts > 1, "--experts"},
        {s->expert_group != 0, "--expert-group"},
        {s->tiles > 1, "--tiles"},
        {s->sequence == SW_SEQUENCE_YES, "--sequence-parallel yes"},
        {s->partition == SW_PARTITION_YES, "--partition-activations yes"},
        {sw_tuning_freezes(&s->tuning) || s->adapter != NULL, "--freeze, --lora or --adapter"},
        {s->precision == SW_PRECISION_FP8, "--precision fp8"},
        {s->gather != SW_GATHER_EXACT, "--gather int8"},
        {s->reduce != SW_REDUCE_ORDERED, "--reduce"},
        {s->grads_state != SW_GRADS_TYPED, "--grads-state 8bit"},
        {s->zero_secondary != NULL && strcmp(s->zero_secondary, SW_NO_SECONDARY) != 0, "--zero-secondary"},
        {s->dpo, "--dpo"},
        {s->sample_every > 0, "--sample-every"},
        {s->order != NULL && strcmp(s->order, "layer") == 0, "--order layer"},
        {s->largest != 0, "--largest"},
        {s->smallest_machine, "--smallest-machine"},
    };
    struct split split;
    if (s->pipeline == SW_OPTION_AUTO)
        SW_TRY(check_open(s));
    if (sw_settings_stages(s) == 1)
        return is_auto(s) ? SW_OK : check_lone_split(s);
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++)
        if (flags[i].given)
            return sw_fail(SW_ERR_ARG, "%s does not work with --pipeline %lld; leave one of them out", flags[i].flag,
                           (long long)s->pipeline);
    if (is_auto(s))
        return SW_OK;
    SW_TRY(read_split(s, &split));
    if (split.stages != s->pipeline)
        return sw_fail(SW_ERR_ARG, "--pipeline-split %s has %d numbers for the %lld stages of --pipeline",
                       s->pipeline_split, split.stages, (long long)s->pipeline);
    return SW_OK;
}

/* Returns the floating-point operations of a layer and of the head for one token, as sw_model_flops_per_token counts
 * them for a whole model. */
static double head_flops(const struct sw_model_config *config) {
    return 6.0 * (double)config->vocab * (double)config->hidden;
}

static double layer_flops(const struct sw_settings *settings, const struct sw_model_config *config) {
    return (sw_model_flops_per_token(config, settings->seq) - head_flops(config)) / (double)config->layers;
}

/* Returns how long a stage takes, in units of a layer. The embedding takes next to nothing. */
static double cost_of(int64_t layers, bool last, double head) {
    return (double)layers + (last ? head : 0.0);
}

/* Divides the layers so that the slowest stage is as fast as can be: the last stage, which has the head, gets as many
 * as make it no slower than others, and the rest is even. Among the others the later ones get one more: they keep the
 * inputs of fewer micro-batches. */
static struct split divide(int stages, int64_t layers, double head) {
    struct split best = {0};
    double least = 0.0;
    for (int64_t last = 0; last <= layers - (stages - 2); last++) {
        struct split split = {.stages = stages};
        const int64_t rest = layers - last, others = stages - 1;
        double slowest = cost_of(last, true, head);
        for (int s = 0; s < others; s++) {
            split.layers[s] = rest / others + (others - s <= rest % others);
            slowest = split.layers[s] > slowest ? (double)split.layers[s] : slowest;
        }
        split.layers[others] = last;
        if (best.stages == 0 || slowest <= least) {
            best = split;
            least = slowest;
        }
    }
    return best;
}

static sw_status set_split(struct sw_settings *settings, const struct split *split) {
    char text[SW_SPLIT_CHARS];
    int chars = 0;
    for (int s = 0; s < split->stages && chars < SW_SPLIT_CHARS; s++)
        chars += snprintf(text + chars, (size_t)(SW_SPLIT_CHARS - chars), "%s%lld", s > 0 ? "," : "",
                          (long long)split->layers[s]);
    assert(chars < SW_SPLIT_CHARS);
    return sw_settings_set_split(text, settings);
}

/* Refuses a split of other layers than the model's, and stages without any but the first and the last. Writes the split
 * anew: stores are named by it, so that " 1,01" must not differ from "1,1". */
static sw_status check_split(struct sw_settings *settings, const struct sw_model_config *config) {
    struct split split;
    int64_t layers = 0;
    if (!parse_split(settings->pipeline_split, &split) || split.stages != settings->pipeline)
        return sw_settings_check_pipeline(settings);
    for (int s = 0; s < split.stages; s++) {
        layers += split.layers[s];
        if (split.layers[s] == 0 && s > 0 && s + 1 < split.stages)
            return sw_fail(SW_ERR_ARG,
                           "--pipeline-split %s leaves stage %d without a layer, and only the first, which has the "
                           "embedding, and the last, which has the head, can do without",
                           settings->pipeline_split, s);
    }
    if (layers != config->layers)
        return sw_fail(SW_ERR_ARG, "--pipeline-split %s has %lld layers, and the model has %lld",
                       settings->pipeline_split, (long long)layers, (long long)config->layers);
    return set_split(settings, &split);
}

/* Refuses fewer groups of micro-batches than stages, which would leave stages without work at all times. */
static sw_status check_micro_batches(int64_t stages, int64_t micros, int64_t group) {
    if (sw_div_up(micros, group) >= stages)
        return SW_OK;
    if (group > 1)
        return sw_fail(
            SW_ERR_ARG,
            "--order %lld makes %lld groups of %lld micro-batches, fewer than the %lld stages of --pipeline; "
            "give --order batch, or a larger --batch-tokens",
            (long long)group, (long long)sw_div_up(micros, group), (long long)micros, (long long)stages);
    return sw_fail(SW_ERR_ARG,
                   "a step has %lld micro-batch%s for each data rank, fewer than the %lld stages of --pipeline; give a "
                   "larger --batch-tokens, or a smaller --micro-batch",
                   (long long)micros, micros == 1 ? "" : "es", (long long)stages);
}

sw_status sw_settings_resolve_pipeline(struct sw_settings *settings, const struct sw_model_config *config,
                                       int64_t micros, int64_t group) {
    const int64_t stages = sw_settings_stages(settings);
    if (stages == 1)
        return SW_OK;
    if (config->experts > 0)
        return sw_fail(SW_ERR_UNSUPPORTED,
                       "--pipeline %lld is not supported for %s, whose blocks have experts; leave it out",
                       (long long)stages, config->family);
    if (stages > config->layers + 2)
        return sw_fail(
            SW_ERR_ARG,
            "--pipeline %lld is more than the model's %lld layers with embedding and head; give at most %lld",
            (long long)stages, (long long)config->layers, (long long)config->layers + 2);
    SW_TRY(check_micro_batches(stages, micros, group));
    if (is_auto(settings)) {
        const double head = head_flops(config) / layer_flops(settings, config);
        const struct split split = divide((int)stages, config->layers, head);
        SW_TRY(set_split(settings, &split));
    }
    return sw_as_usage(check_split(settings, config));
}

struct sw_plan_pipeline sw_settings_pipeline(const struct sw_settings *settings, int64_t units) {
    struct sw_plan_pipeline out = {.stages = (int)sw_settings_stages(settings),
                                   .stage = (int)sw_settings_stage(settings)};
    struct split split;
    int64_t layers = 0, before = 0;
    if (out.stages == 1 || !parse_split(settings->pipeline_split, &split))
        return (struct sw_plan_pipeline){0};
    for (int s = 0; s < split.stages; s++)
        layers += split.layers[s];
    /* In tensor groups a layer is two units. */
    const int64_t each = (units - 2) / sw_max_i64(1, layers);
    for (int s = 1; s < split.stages; s++) {
        before += split.layers[s - 1];
        out.bound[s] = (int32_t)(1 + each * before);
    }
    out.bound[split.stages] = (int32_t)units;
    return out;
}

int64_t sw_settings_layers_of(const struct sw_settings *settings, int64_t stage) {
    struct split split;
    return parse_split(settings->pipeline_split, &split) && stage < split.stages ? split.layers[stage] : 0;
}
