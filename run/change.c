/* The edit of a run's settings at a resume: what it names replaces what the run had, and what depends on that is open
 * again. */
#include "run/change.h"

#include "core/ranks/comm.h"
#include "core/status.h"
#include "job/settings/pipeline.h"
#include "model/model.h"

#include <stdlib.h>
#include <string.h>

/* Keeps the run's rounding unless the edit names one; fp32 state has none. */
static void keep_rounding(int before, int unnamed, struct sw_settings *settings) {
    if (settings->rounding == unnamed)
        settings->rounding = sw_settings_optimizer(settings) == SW_OPTIMIZER_FP32 ? SW_OPTION_ROUNDING_AUTO : before;
}

/* Returns the number of ranks, or groups, that have shared the state of one part of a run. */
static int64_t data_ranks_of(const struct sw_run *run) {
    return run->ranks / run->tensor_ranks / sw_split_stages(run->split);
}

/* Unsets the settings that depend on how ranks divide the work, if that changes. A run of one data rank has not chosen
 * its ZeRO stage; its stage was `zero_before`, until the edit could name one. Unsets the tiles if the new groups' parts
 * of a layer cannot be cut into that many. */
static void regroup(const struct sw_run *run, const struct sw_ranks *ranks, int64_t zero_before,
                    struct sw_settings *settings) {
    const bool other_stages = strcmp(run->split, sw_settings_split(settings)) != 0;
    const int64_t tensor_ranks = sw_settings_tensor_ranks(settings), zero = settings->zero;
    if (run->ranks != sw_ranks_count(ranks) || run->tensor_ranks != sw_settings_part_ranks(settings) ||
        run->expert_ranks != sw_settings_expert_ranks(settings) || other_stages) {
        sw_settings_regroup(settings, data_ranks_of(run));
        settings->zero = zero;
    } else if (zero == SW_OPTION_AUTO && data_ranks_of(run) == 1) {
        settings->zero = zero_before;
    }
    if (tensor_ranks > 1 && !sw_model_tiles_fit(&run->config, (int)tensor_ranks, settings->tiles))
        settings->tiles = 1;
}

/* The choice of the rows that the ranks of a tensor group keep; a run without groups leaves it open. */
struct rows_kept {
    int partition, sequence;
};

static struct rows_kept leave_rows_open(struct sw_settings *settings) {
    const struct rows_kept before = {settings->partition, settings->sequence};
    settings->partition = SW_PARTITION_AUTO;
    settings->sequence = SW_SEQUENCE_AUTO;
    return before;
}

/* Keeps the choice if there still are groups and the edit named nothing else. */
static void keep_rows(struct rows_kept before, struct sw_settings *settings) {
    if (sw_settings_tensor_ranks(settings) == 1)
        return;
    if (settings->partition == SW_PARTITION_AUTO)
        settings->partition = before.partition;
    if (settings->sequence == SW_SEQUENCE_AUTO)
        settings->sequence = before.sequence;
}

/* Gives all of a run to the optimizer that the edit names, or keeps those of before. The stores of two divisions
 * between optimizers have one name, so that one cannot be made beside the other. */
static sw_status name_optimizer(int before, char *before_for, int unnamed, struct sw_settings *settings) {
    struct sw_tuning *tuning = &settings->tuning;
    const bool named = tuning->optimizer != unnamed;
    const bool divides = named && before_for != NULL && tuning->optimizer == SW_TRAINS_MUON;
    if (!named)
        tuning->optimizer = before;
    if (!named || divides)
        tuning->optimizer_for = before_for;
    else
        free(before_for);
    return !divides
               ? SW_OK
               : sw_fail(SW_ERR_ARG,
                         "--optimizer muon cannot take the place of the run's --optimizer-for %s: leave it out, or "
                         "first resume with --optimizer adamw",
                         before_for);
}

/* Sets the number of stages, unless the edit named one, to that of the split that it named, or to the run's. */
static void name_stages(int64_t before, struct sw_settings *settings) {
    const bool splits = settings->pipeline == 0 && strcmp(settings->pipeline_split, "auto") != 0;
    if (splits)
        settings->pipeline = sw_split_stages(settings->pipeline_split);
    else if (settings->pipeline == 0 || sw_pipeline_is_open(settings))
        settings->pipeline = before;
}

/* Keeps the run's turns and split if there still are as many stages and the edit named nothing else. Other stages have
 * one turn, or those of the split that it named. */
static sw_status keep_stages(const struct sw_run *run, int unnamed, struct sw_settings *settings) {
    const bool same_stages = sw_split_stages(run->split) == sw_settings_stages(settings);
    const bool splits = strcmp(settings->pipeline_split, "auto") != 0;
    if (settings->pipeline_interleave == unnamed && splits)
        settings->pipeline_interleave = sw_split_turns(settings->pipeline_split);
    else if (settings->pipeline_interleave == unnamed)
        settings->pipeline_interleave = same_stages ? sw_split_turns(run->split) : 1;
    return same_stages && sw_split_turns(run->split) == sw_settings_turns(settings)
               ? sw_settings_keep_split(run->split, settings)
               : SW_OK;
}

/* Applies the edit, and notes what the user named now: only named budgets may exceed the available memory, and only an
 * unnamed chunk size may be raised. */
static sw_status apply_change(const struct sw_run_change *change, const struct sw_ranks *ranks, struct sw_run *run) {
    enum { UNNAMED = INT32_MIN };
    struct sw_settings *settings = &run->settings;
    enum { CHUNK_GRAINS, DEVICE_MEMORY, HOST_MEMORY, THREADS, NUMBERS };
    int64_t *const number[] = {[CHUNK_GRAINS] = &settings->chunk_grains,
                               [DEVICE_MEMORY] = &settings->device_memory,
                               [HOST_MEMORY] = &settings->host_memory,
                               [THREADS] = &settings->threads};
    int64_t before[NUMBERS], named[NUMBERS];
    const int rounding = settings->rounding;
    const int64_t zero = settings->zero;
    if (data_ranks_of(run) == 1)
        settings->zero = SW_OPTION_AUTO;
    for (int i = 0; i < NUMBERS; i++) {
        before[i] = *number[i];
        *number[i] = UNNAMED;
    }
    settings->rounding = UNNAMED;
    const int64_t stages = settings->pipeline;
    settings->pipeline = 0;
    SW_TRY(sw_settings_set_split("auto", settings));
    settings->pipeline_interleave = UNNAMED;
    const int optimizer = settings->tuning.optimizer;
    char *optimizer_for = (char *)settings->tuning.optimizer_for;
    if (optimizer_for != NULL)
        settings->tuning.optimizer = UNNAMED; /* counts as muon */
    settings->tuning.optimizer_for = NULL;
    const struct rows_kept rows = leave_rows_open(settings);
    sw_status status = change->apply != NULL ? change->apply(change->context, settings) : SW_OK;
    const sw_status named_one = name_optimizer(optimizer, optimizer_for, UNNAMED, settings);
    if (status == SW_OK)
        status = named_one;
    name_stages(stages, settings);
    if (status == SW_OK)
        status = keep_stages(run, UNNAMED, settings);
    if (sw_tensor_is_open(settings))
        settings->tensor = run->tensor_ranks / run->expert_ranks;
    for (int i = 0; i < NUMBERS; i++) {
        named[i] = *number[i];
        *number[i] = before[i];
    }
    keep_rows(rows, settings);
    regroup(run, ranks, zero, settings);
    for (int i = 0; i < NUMBERS; i++)
        if (named[i] != UNNAMED)
            *number[i] = named[i];
    keep_rounding(rounding, UNNAMED, settings);
    settings->chunk_may_grow = change->apply != NULL && named[CHUNK_GRAINS] == UNNAMED;
    settings->memory_named[SW_DEVICE] = named[DEVICE_MEMORY] != UNNAMED && named[DEVICE_MEMORY] != SW_OPTION_AUTO;
    settings->memory_named[SW_HOST] = named[HOST_MEMORY] != UNNAMED && named[HOST_MEMORY] != SW_OPTION_AUTO;
    return status;
}

sw_status sw_run_change(struct sw_run *run, const struct sw_ranks *ranks, const struct sw_run_change *change) {
    char *before = strdup(run->settings.model);
    if (before == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the settings");
    const sw_status status = apply_change(change, ranks, run);
    char *now = run->settings.model;
    run->settings.model = before;
    if (strcmp(now, before) == 0)
        free(now);
    else
        run->moved_model = now;
    return status;
}
