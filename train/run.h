/* The folder of a run: run.json, the log, and where the store is. */
#ifndef SW_TRAIN_RUN_H
#define SW_TRAIN_RUN_H

#include "core/status.h"
#include "io/store.h"
#include "offload/engine.h"
#include "train/config.h"
#include "train/settings.h"

#include <stdint.h>

enum { SW_RUN_VERSION = 1, SW_RUN_PATH_CHARS = 4096 };

/* What run.json holds beside the settings. */
struct sw_run {
    struct sw_settings settings;
    struct sw_model_config config;
    uint64_t data_digest;
    char store_id[SW_STORE_ID_CHARS]; /* empty where run.json is of a version that did not keep it */
};

sw_status sw_run_write(const char *folder, const struct sw_run *run);
/* Fills run, which must be zero; the caller releases them with sw_options_release(&sw_train_command, ...). */
sw_status sw_run_read(const char *folder, struct sw_run *run);

/* Whether the folder has a run.json. */
bool sw_run_is_one(const char *folder);

/* Opens the store of a run that was read, and refuses one that is not this run's. It is where `moved` says, if that
 * names a place (it may be NULL), else where --nvme of the run's settings does, else in its own folder. */
sw_status sw_run_open_store(const char *folder, const struct sw_run *run, const struct sw_option_list *moved,
                            struct sw_store **out);

/* What the log says of a step, where every step commits: a process that dies between commit and log loses nothing. */
struct sw_run_step {
    int64_t step; /* 0: none */
    double loss, grad_norm;
    bool skipped;
};

/* What a commit's text says. */
enum { SW_RUN_RECENT_STEPS = SW_ENGINE_STEPS_AHEAD };
struct sw_run_position {
    int64_t step, applied_steps, skipped_steps;
    struct sw_loss_scale loss_scale;
    struct sw_run_step recent[SW_RUN_RECENT_STEPS]; /* the last ones, oldest first */
};
sw_status sw_run_position_write(const struct sw_run_position *position, uint64_t data_digest, char *text, size_t chars);
sw_status sw_run_position_read(const char *text, uint64_t expected_digest, struct sw_run_position *out);

#endif
