#include "job/settings/pipeline.h"

#include "core/size.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Layers of each virtual stage: of each stage in its first turn, in its second, and so on. */
struct split {
    int count, row; /* numbers; and those before the first +, or all */
    int64_t layers[SW_MOST_VIRTUAL_STAGES];
};

int64_t sw_settings_stages(const struct sw_settings *settings) {
    return sw_max_i64(1, settings->pipeline);
}

int64_t sw_settings_turns(const struct sw_settings *settings) {
    return sw_settings_stages(settings) > 1 ? sw_max_i64(1, settings->pipeline_interleave) : 1;
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
    for (const char *at = split; *at != '\0' && *at != '+'; at++)
        stages += *at == ',';
    return stages;
}

int64_t sw_split_turns(const char *split) {
    int64_t turns = 1;
    for (const char *at = split; *at != '\0'; at++)
        turns += *at == '+';
    return turns;
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

/* Parses "12,10,10" or "6,5,5+6,5,5". Returns false where that is no list of at most SW_MOST_VIRTUAL_STAGES numbers, or
 * its rows differ in length. */
static bool parse_split(const char *text, struct split *out) {
    int in_row = 0;
    *out = (struct split){0};
    for (;;) {
        char *end;
        const long long layers = strtoll(text, &end, 10);
        if (end == text || layers < 0 || layers > SW_MOST_LAYERS || out->count == SW_MOST_VIRTUAL_STAGES)
            return false;
        out->layers[out->count++] = layers;
        in_row++;
        if (*end != ',' && out->row == 0)
            out->row = in_row;
        if (*end != ',' && out->row != in_row)
            return false;
        if (*end == '\0')
            return true;
        if (*end != ',' && *end != '+')
            return false;
        in_row = *end == '+' ? 0 : in_row;
        text = end + 1;
    }
}

/* Tells whether a split has the stages and turns of the settings; the turns' rows may follow each other without +. */
static bool is_of(const struct split *split, const struct sw_settings *settings) {
    const int64_t stages = sw_settings_stages(settings);
    return split->count == stages * sw_settings_turns(settings) && (split->row == split->count || split->row == stages);
}

/* Writes "2 stages of --pipeline", or of several turns "4 runs of layers of --pipeline 2 --pipeline-interleave 2". */
enum { PARTS_CHARS = 96 };
static const char *name_parts(const struct sw_settings *s, char out[PARTS_CHARS]) {
    const long long stages = sw_settings_stages(s), turns = sw_settings_turns(s);
    if (turns == 1)
        snprintf(out, PARTS_CHARS, "%lld stages of --pipeline", stages);
    else
        snprintf(out, PARTS_CHARS, "%lld runs of layers of --pipeline %lld --pipeline-interleave %lld", stages * turns,
                 stages, turns);
    return out;
}

static sw_status read_split(const struct sw_settings *s, struct split *out) {
    return parse_split(s->pipeline_split, out)
               ? SW_OK
               : sw_fail(SW_ERR_ARG,
                         "--pipeline-split '%s' must be the number of layers of each stage, such as 12,10,10, or "
                         "auto%s",
                         s->pipeline_split,
                         sw_settings_turns(s) > 1
                             ? "; with --pipeline-interleave of each stage in each turn, such as 6,5,5+6,5,5"
                             : "");
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
    if (split.row == 1)
        return sw_fail(SW_ERR_ARG,
                       "--pipeline-split %s has one stage, and a pipeline has two or more; give the layers "
                       "of each, or leave it out",
                       s->pipeline_split);
    return s->pipeline == 0 ? SW_OK
                            : sw_fail(SW_ERR_ARG,
                                      "--pipeline-split %s has the layers of %d stages; give --pipeline %d "
                                      "too, or leave it out",
                                      s->pipeline_split, split.row, split.row);
}

/* Refuses turns without stages, unless an edit of a run leaves the stages to the run, or they are to be chosen. */
static sw_status check_lone_turns(const struct sw_settings *s) {
    return s->pipeline != 1 || s->pipeline_interleave <= 1
               ? SW_OK
               : sw_fail(SW_ERR_ARG,
                         "--pipeline-interleave %lld gives each stage of a pipeline several runs of layers; give "
                         "--pipeline N too, or leave it out",
                         (long long)s->pipeline_interleave);
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
    char parts[PARTS_CHARS], row[SW_COUNT_CHARS];
    if (s->pipeline == SW_OPTION_AUTO)
        SW_TRY(check_open(s));
    SW_TRY(check_lone_turns(s));
    if (sw_settings_stages(s) == 1)
        return is_auto(s) ? SW_OK : check_lone_split(s);
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++)
        if (flags[i].given)
            return sw_fail(SW_ERR_ARG, "%s does not work with --pipeline %lld; leave one of them out", flags[i].flag,
                           (long long)s->pipeline);
    if (sw_settings_stages(s) * sw_settings_turns(s) > SW_MOST_VIRTUAL_STAGES)
        return sw_fail(SW_ERR_ARG,
                       "--pipeline %lld --pipeline-interleave %lld makes %lld runs of layers; at most %d work",
                       (long long)s->pipeline, (long long)s->pipeline_interleave,
                       (long long)(s->pipeline * s->pipeline_interleave), SW_MOST_VIRTUAL_STAGES);
    if (is_auto(s))
        return SW_OK;
    SW_TRY(read_split(s, &split));
    if (is_of(&split, s))
        return SW_OK;
    return split.row == split.count
               ? sw_fail(SW_ERR_ARG, "--pipeline-split %s has %d numbers for the %s", s->pipeline_split, split.count,
                         name_parts(s, parts))
               : sw_fail(SW_ERR_ARG, "--pipeline-split %s has %d turns of %s for the %s", s->pipeline_split,
                         split.count / split.row, sw_format_count(split.row, "stage", row), name_parts(s, parts));
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
 * inputs of fewer micro-batches. With turns each stage has a layer for each at least, but for the head's. */
static void divide(int64_t layers, int stages, int turns, double head, int64_t out[SW_MOST_STAGES]) {
    const int64_t others = stages - 1, fewest = turns > 1 ? turns - 1 : 0;
    const int64_t most = layers - (turns > 1 ? others * turns : others - 1);
    int64_t best = -1;
    double least = 0.0;
    for (int64_t last = fewest; last <= most; last++) {
        const double slowest = fmax(cost_of(last, true, head), (double)sw_div_up(layers - last, others));
        if (best < 0 || slowest <= least) {
            best = last;
            least = slowest;
        }
    }
    assert(best >= 0);
    const int64_t rest = layers - best;
    for (int64_t s = 0; s < others; s++)
        out[s] = rest / others + (others - s <= rest % others);
    out[others] = best;
}

/* Divides the layers among stages, and each stage's among its turns, of which later ones get one less; the last turn of
 * the last stage, with the head, may get none. */
static struct split split_layers(const struct sw_settings *settings, int64_t layers, double head) {
    const int stages = (int)sw_settings_stages(settings), turns = (int)sw_settings_turns(settings);
    struct split split = {.count = stages * turns, .row = stages};
    int64_t of_stage[SW_MOST_STAGES];
    divide(layers, stages, turns, head, of_stage);
    for (int k = 0; k < split.count; k++) {
        const int turn = k / stages;
        const int64_t all = of_stage[k % stages];
        split.layers[k] = all / turns + (turn < all % turns);
    }
    return split;
}

static sw_status set_split(struct sw_settings *settings, const struct split *split) {
    char text[SW_SPLIT_CHARS];
    const int64_t stages = sw_settings_stages(settings);
    int chars = 0;
    for (int k = 0; k < split->count && chars < SW_SPLIT_CHARS; k++) {
        const char *mark = k % stages == 0 ? "+" : ",";
        chars += snprintf(text + chars, (size_t)(SW_SPLIT_CHARS - chars), "%s%lld", k == 0 ? "" : mark,
                          (long long)split->layers[k]);
    }
    assert(chars < SW_SPLIT_CHARS);
    return sw_settings_set_split(text, settings);
}

/* Refuses a split of other layers than the model's, and runs without any but the first and the last. Writes the split
 * anew: stores are named by it, so that " 1,01" must not differ from "1,1". */
static sw_status check_split(struct sw_settings *settings, const struct sw_model_config *config) {
    struct split split;
    int64_t layers = 0;
    if (!parse_split(settings->pipeline_split, &split) || !is_of(&split, settings))
        return sw_settings_check_pipeline(settings);
    const int64_t stages = sw_settings_stages(settings);
    for (int k = 0; k < split.count; k++) {
        layers += split.layers[k];
        if (split.layers[k] == 0 && k > 0 && k + 1 < split.count)
            return sw_fail(SW_ERR_ARG,
                           "--pipeline-split %s leaves stage %lld without a layer%s, and only the first, which has the "
                           "embedding, and the last, which has the head, can do without",
                           settings->pipeline_split, (long long)(k % stages), split.count > stages ? " in a turn" : "");
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
    const int64_t stages = sw_settings_stages(settings), turns = sw_settings_turns(settings);
    if (stages == 1)
        return check_lone_turns(settings);
    if (config->experts > 0)
        return sw_fail(SW_ERR_UNSUPPORTED,
                       "--pipeline %lld is not supported for %s, whose blocks have experts; leave it out",
                       (long long)stages, config->family);
    if (stages > config->layers + 2)
        return sw_fail(
            SW_ERR_ARG,
            "--pipeline %lld is more than the model's %lld layers with embedding and head; give at most %lld",
            (long long)stages, (long long)config->layers, (long long)config->layers + 2);
    if (turns > 1 && is_auto(settings) && stages * turns - 1 > config->layers)
        return sw_fail(SW_ERR_ARG,
                       "--pipeline %lld --pipeline-interleave %lld makes %lld runs of layers, too many for the model's "
                       "%lld layers; give at most --pipeline-interleave %lld",
                       (long long)stages, (long long)turns, (long long)(stages * turns), (long long)config->layers,
                       (long long)sw_max_i64(1, (config->layers + 1) / stages));
    SW_TRY(check_micro_batches(stages, micros, group));
    if (is_auto(settings)) {
        const double head = head_flops(config) / layer_flops(settings, config);
        const struct split split = split_layers(settings, config->layers, head);
        SW_TRY(set_split(settings, &split));
    }
    return sw_as_usage(check_split(settings, config));
}

struct sw_plan_pipeline sw_settings_pipeline(const struct sw_settings *settings, int64_t units) {
    struct sw_plan_pipeline out = {.stages = (int)sw_settings_stages(settings),
                                   .stage = (int)sw_settings_stage(settings),
                                   .turns = (int)sw_settings_turns(settings)};
    struct split split;
    int64_t layers = 0, before = 0;
    if (out.stages == 1 || !parse_split(settings->pipeline_split, &split))
        return (struct sw_plan_pipeline){0};
    for (int k = 0; k < split.count; k++)
        layers += split.layers[k];
    /* In tensor groups a layer is two units. */
    const int64_t each = (units - 2) / sw_max_i64(1, layers);
    for (int k = 1; k < split.count; k++) {
        before += split.layers[k - 1];
        out.bound[k] = (int32_t)(1 + each * before);
    }
    out.bound[split.count] = (int32_t)units;
    return out;
}

sw_status sw_settings_check_trained(const struct sw_settings *settings, const struct sw_units *units) {
    const struct sw_plan_pipeline pipeline = sw_settings_pipeline(settings, units->count);
    for (int stage = 0; stage < pipeline.stages; stage++)
        if (!sw_stage_trains(&pipeline, stage, units))
            return sw_fail(SW_ERR_ARG,
                           "stage %d of --pipeline %lld, of --pipeline-split %s, has nothing to train, because all its "
                           "weights are frozen; give it other layers by --pipeline-split, or fewer stages",
                           stage, (long long)settings->pipeline, settings->pipeline_split);
    return SW_OK;
}

struct sw_layer_run sw_settings_layer_run(const struct sw_settings *settings, int64_t stage, int64_t turn) {
    const int64_t number = turn * sw_settings_stages(settings) + stage;
    struct sw_layer_run run = {0};
    struct split split;
    if (!parse_split(settings->pipeline_split, &split) || number >= split.count)
        return run;
    for (int64_t k = 0; k < number; k++)
        run.first += split.layers[k];
    run.layers = split.layers[number];
    return run;
}

int64_t sw_settings_layers_of(const struct sw_settings *settings, int64_t stage) {
    int64_t layers = 0;
    for (int64_t turn = 0; turn < sw_settings_turns(settings); turn++)
        layers += sw_settings_layer_run(settings, stage, turn).layers;
    return layers;
}
