/* The folder of a run: run.json, the log, and where the store is. */
#ifndef SW_TRAIN_FOLDER_RUN_H
#define SW_TRAIN_FOLDER_RUN_H

#include "core/status.h"
#include "io/store/store.h"
#include "offload/engine/engine.h"
#include "train/devices/algorithms.h"
#include "train/hf/config.h"
#include "train/settings/options.h"
#include "train/settings/settings.h"

#include <stdint.h>

enum { SW_RUN_VERSION = 1, SW_RUN_PATH_CHARS = 4096 };

/* A rank's store. */
struct sw_run_store {
    char id[SW_STORE_ID_CHARS]; /* empty where run.json is of a version that did not keep it */
    int64_t local_rank;
    struct sw_option_list places; /* of its files; none: in the folder of the run, by the owner's name (places.h) */
    int64_t last_step; /* of a store that is left: the newest step that it may hold and be removed with; else 0 */
};

/* What run.json holds beside the settings. */
struct sw_run {
    struct sw_settings settings;
    struct sw_model_config config;
    uint64_t data_digest;
    struct sw_option_list beside; /* files beside those of the data (sw_data_beside); empty in older versions */
    int64_t ranks;                /* that the run's stores are of */
    bool whole;                   /* each holds the whole optimizer */
    struct sw_run_store *store;   /* of every rank; NULL before they have been made */
    struct sw_option_list nvme;   /* as run.json has it, whatever the settings have become since */
    /* Stores that are not the run's any more, or not yet: a resume removes them, by their ids, once its own are open.
     * Their places are relative to the folder of the run where they lie in it. */
    struct sw_run_store *left;
    int64_t left_count;
    struct sw_option_list starts;        /* ids of the processes that trained the run, the newest last (run_starts.h) */
    struct sw_algorithm_record products; /* the algorithms of its GPU's matrix products; empty on a CPU */
};

sw_status sw_run_write(const char *folder, const struct sw_run *run);
/* Fills run, which must be zero; the caller releases it, also after a failure. */
sw_status sw_run_read(const char *folder, struct sw_run *run);
void sw_run_release(struct sw_run *run);
void sw_run_stores_release(struct sw_run_store *store, int64_t ranks);

/* Whether the folder has a run.json. */
bool sw_run_is_one(const char *folder);

/* What the log says of a step, where every step commits: a process that dies between commit and log loses nothing. */
struct sw_run_step {
    int64_t step; /* 0: none */
    double loss, grad_norm;
    bool skipped;
};

/* What a commit's text says. */
enum { SW_RUN_RECENT_STEPS = 32 }; /* the log is flushed in time for these to restore what it may lack */
struct sw_run_position {
    int64_t step, applied_steps, skipped_steps;
    struct sw_loss_scale loss_scale;
    char
        start[SW_STORE_ID_CHARS]; /* of the process that committed (run_starts.h); empty in commits of older versions */
    struct sw_run_step recent[SW_RUN_RECENT_STEPS]; /* the last ones, oldest first */
};
sw_status sw_run_position_write(const struct sw_run_position *position, uint64_t data_digest, char *text, size_t chars);
sw_status sw_run_position_read(const char *text, uint64_t expected_digest, struct sw_run_position *out);

#endif
