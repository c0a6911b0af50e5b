/* The stages that --pipeline makes: consecutive ranks of equal number, each stage with a run of the model's layers, or
 * with --pipeline-interleave several, the first with the embedding too and the last with the head. Job rank j is in
 * stage j / (ranks / stages). */
#ifndef SW_JOB_SETTINGS_PIPELINE_H
#define SW_JOB_SETTINGS_PIPELINE_H

#include "job/settings/settings.h"
#include "model/hf/config.h"
#include "model/model.h"

/* Refuses flags and numbers that no pipeline goes with, whatever the model. */
sw_status sw_settings_check_pipeline(const struct sw_settings *settings);

/* Replaces --pipeline-split auto by the layers of each stage, so that the slowest stage is as fast as can be, and
 * checks a split that was given, the model, and that the micro-batches of a data rank, in groups of so many, are
 * enough. */
sw_status sw_settings_resolve_pipeline(struct sw_settings *settings, const struct sw_model_config *config,
                                       int64_t micros, int64_t group);

/* Returns the stages of a resolved split, for a model of so many units, and this rank's stage. */
struct sw_plan_pipeline sw_settings_pipeline(const struct sw_settings *settings, int64_t units);

/* Refuses a resolved split in which a stage has nothing to train, because its units are frozen. */
sw_status sw_settings_check_trained(const struct sw_settings *settings, const struct sw_units *units);

/* Returns the layers that a stage of a resolved split has in a turn, and in all of them. */
struct sw_layer_run {
    int64_t first, layers;
};
struct sw_layer_run sw_settings_layer_run(const struct sw_settings *settings, int64_t stage, int64_t turn);
int64_t sw_settings_layers_of(const struct sw_settings *settings, int64_t stage);

/* Returns the split as stores are named by it: the layers of each stage; "" without a pipeline. */
const char *sw_settings_split(const struct sw_settings *settings);

/* Returns the stages, and the turns of each, of a split as stores are named by it. */
int64_t sw_split_stages(const char *split);
int64_t sw_split_turns(const char *split);

/* Sets the split, "auto" too; and sets it unless it is "" or the settings have one that is not auto. */
sw_status sw_settings_set_split(const char *split, struct sw_settings *settings);
sw_status sw_settings_keep_split(const char *split, struct sw_settings *settings);

#endif
