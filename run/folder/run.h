/* The folder of a run: reads and writes run.json, which says what the run is and where its stores are. */
#ifndef SW_RUN_FOLDER_RUN_H
#define SW_RUN_FOLDER_RUN_H

#include "core/files/json_file.h"
#include "core/status.h"
#include "io/store/store.h"
#include "job/machine/gpu_trust.h"
#include "job/settings/options.h"
#include "job/settings/places.h"
#include "job/settings/settings.h"
#include "model/hf/checkpoint.h"
#include "model/hf/config.h"
#include "offload/engine/engine.h"
#include "run/data/text_data.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

enum { SW_RUN_VERSION = 1, SW_RUN_PATH_CHARS = 4096 };
#define SW_RUN_JSON_LIMIT_BYTES SW_JSON_MOST_WRITTEN_BYTES

/* The store of one rank. */
struct sw_run_store {
    char id[SW_STORE_ID_CHARS]; /* empty: an older version wrote run.json */
    int64_t local_rank;
    struct sw_option_list places; /* where its files are; empty: in the run's folder, by the owner's name (places.h) */
    int64_t last_step;            /* for an orphan: remove it only if its newest step is at most this; else 0 */
};

/* The contents of run.json. */
struct sw_run {
    struct sw_settings settings;
    struct sw_model_config config;
    uint64_t data_digest;
    uint64_t frozen_digest; /* digest of the frozen weights (frozen.h); 0: every tensor is trained, or the digest is not
                               known yet */
    /* Where the folder of settings.model is now, for a run with a base (frozen.h). run.json does not have it. NULL:
     * where settings.model says. */
    char *moved_model;
    /* Companion files of the data (sw_data_beside); empty if an older version wrote run.json. */
    struct sw_option_list beside;
    /* A token that the run learns as an end, and that the model's files do not name; else zero. */
    struct sw_turn_end turn_end;
    struct sw_text_sources texts; /* the text that the data are tokens of */
    int64_t ranks;                /* number of ranks, each with one store */
    bool whole;                   /* each store holds the whole optimizer state (--zero 0) */
    /* Layout of the stores, which a resume may change by --optimizer-state, --tensor, --experts and --pipeline: the
     * format of the optimizer state, the size of groups whose ranks have parts of the state (1: none), the members of
     * such a group that share out experts (1: it is a tensor group), and the tiles per half of a block. */
    sw_optimizer_format optimizer;
    /* --optimizer and --optimizer-for as in run.json; the settings may have changed since. */
    int trains;
    char *optimizer_for;
    int64_t tensor_ranks, expert_ranks, tiles;
    char split[SW_SPLIT_CHARS]; /* layers of each pipeline stage (--pipeline-split); "": there is no pipeline */
    bool joined;                /* by an older version, whose groups have experts in one unit with their block */
    struct sw_run_store *store; /* `ranks` entries; NULL until the stores are made */
    struct sw_option_list nvme; /* --nvme as in run.json; the settings may have changed since */
    /* Orphans: stores that the run has superseded, or not yet adopted. A resume removes them by their ids, once the
     * run's own stores are open. Places within the run's folder are relative to it. */
    struct sw_run_store *orphans;
    int64_t orphan_count;
    uint64_t
        reference_digest; /* of what the starting weights say of pairs (run/reference.h); 0: not computed, or no pairs
                           */
    struct sw_option_list starts;        /* ids of the processes that trained the run, newest last */
    struct sw_algorithm_record products; /* algorithms of the GPU's matrix products; empty on a CPU */
    json_t *model_files;                 /* digests of the run's copies of the model's files (run.h); NULL: no copies */
    json_t *machine, *prediction; /* of the newest start, only for reports; NULL: an older version wrote run.json */
};

sw_status sw_run_write(const char *folder, const struct sw_run *run);
/* Reads run.json into run, which must be zero. The caller releases it, even after a failure. */
sw_status sw_run_read(const char *folder, struct sw_run *run);
/* Sets run->moved_model to a copy of `model`, which may be NULL. */
sw_status sw_run_move_model(struct sw_run *run, const char *model);
void sw_run_release(struct sw_run *run);
void sw_run_stores_release(struct sw_run_store *store, int64_t ranks);

/* Tells whether the folder has a run.json. */
bool sw_run_is_one(const char *folder);

/* The rewards of pairs (arXiv 2305.18290), as means: β times by how much the log-probability of a reply grew since the
 * start of the run. */
struct sw_rewards {
    int64_t pairs; /* 0: there are none, and the rest is undefined */
    double chosen, rejected, margin;
    double accuracy; /* share of the pairs whose chosen reply has the higher reward */
};

/* The part of a step's log line that a commit keeps, so that a process that is killed between commit and log loses
 * nothing. */
struct sw_run_step {
    int64_t step;           /* 0: none */
    double loss, grad_norm; /* NaN: unknown, as an older version committed the step */
    double lr;              /* tokens with a loss; -1: unknown */
    int64_t loss_tokens;    /* tokens with a loss; -1: not known */
    bool skipped;
    struct sw_rewards rewards;
};

/* The version of the rules by which text becomes tokens. Data of older runs are made again by the old rules: no token
 * at a document's beginning, U+FFFD for what is not UTF-8, and only the end token of config.json. */
enum { SW_RUN_TEXT_VERSION = 1 };

/* Steps that a commit keeps for the log. The log is flushed before more than these could be lost. */
enum { SW_RUN_RECENT_STEPS = 32 };
/* The position of a run, which each commit keeps as text. */
struct sw_run_position {
    int64_t step, applied_steps, skipped_steps;
    struct sw_loss_scale loss_scale;
    char start[SW_STORE_ID_CHARS];                  /* id of the process that committed; empty in old commits */
    struct sw_run_step recent[SW_RUN_RECENT_STEPS]; /* the last steps, oldest first; step 0: none */
};
sw_status sw_run_position_write(const struct sw_run_position *position, uint64_t data_digest, char *text, size_t chars);
sw_status sw_run_position_read(const char *text, uint64_t expected_digest, struct sw_run_position *out);

/* The lock on a run, in addition to the locks on its stores. A process that writes to the run holds it from before it
 * reads run.json until it ends. The lock has a file of its own, because run.json is replaced. */
#define SW_RUN_LOCK_NAME "run.lock"

/* Locks the folder of a run. *out is a descriptor that the caller closes. SW_ERR_BUSY: another process has the lock. */
sw_status sw_run_lock(const char *folder, int *out);
/* Removes the lock file, after a start that made no run. */
void sw_run_lock_remove(const char *folder);

/* Adds a start. `found` is the id of the start that made the last commit, or empty. Drops the starts after it, which
 * never committed. */
sw_status sw_run_add_start(struct sw_run *run, const char *found, const char *id);
/* Returns how many later starts the run lists, 0 for the newest; -1: the start is not one of the run's. A run forgets a
 * start when SW_RUN_KEPT_STARTS later ones have committed. */
enum { SW_RUN_KEPT_STARTS = 16 };
int sw_run_start_age(const struct sw_run *run, const char *id);
/* Returns the id of the newest start, or an empty text. */
const char *sw_run_last_start(const struct sw_run *run);

/* Returns where a rank's store is: in the places of `moved`, unless it is NULL or empty, else where run.json says. */
sw_status sw_run_places(const char *folder, const struct sw_run *run, int64_t rank, const struct sw_option_list *moved,
                        struct sw_places *out);

/* Opens a rank's store in these places for training. Refuses a store of another run. */
sw_status sw_run_open_places(const struct sw_places *places, const struct sw_run *run, int64_t rank, int64_t most_step,
                             struct sw_store **out);

/* Tells whether a store holds the units of this model. */
struct sw_units;
bool sw_run_store_is_of(const struct sw_store *store, const struct sw_units *units);

/* The stores of a run, opened for reading (sw_store_open_to_read) at the newest step that every one of them has. */
struct sw_open_stores {
    int count;
    struct sw_store **store; /* `count` entries; NULL: that store was not wanted */
};
struct sw_stores_choice {
    const struct sw_option_list *moved; /* places of the stores; NULL or empty: where run.json says */
    const bool *wanted;                 /* one entry per store: whether to open it; NULL: all */
    int64_t most_step;                  /* SW_STORE_NEWEST, or the latest step to open */
};
sw_status sw_run_open_stores(const char *folder, const struct sw_run *run, const struct sw_stores_choice *choice,
                             struct sw_open_stores *out);
/* Reads run.json and opens its stores. run must be zero; the caller always releases it. Any failure while another
 * process trains the run is SW_ERR_OVERTAKEN. */
sw_status sw_run_open_to_read(const char *folder, const struct sw_option_list *moved, struct sw_run *run,
                              struct sw_open_stores *out);
void sw_open_stores_close(struct sw_open_stores *set);

/* Convert the stores of a run to and from run.json. */
json_t *sw_run_stores_to_json(const struct sw_run_store *stores, int64_t count);
/* Adds the layout of the stores to run.json: their format, unless it is fp32, and that experts have units of their own.
 */
void sw_run_layout_to_json(const struct sw_run *run, json_t *root);
sw_status sw_run_stores_from_json(const json_t *root, const char *path, struct sw_run *run);

/* The small files of the model that a run was made with: tokenizer, chat template, configuration. A run keeps copies in
 * its folder, so that it can resume, generate and export after it was moved, or after the model's folder was changed or
 * removed. Runs of older versions have no copies and read the model's folder. */

/* Copies the files of `model`, if that is a folder, before run.json is written. Leaves out files that may not be copied
 * (sw_model_file_look), with a warning. Copies nothing if one of those is part of the tokenizer: half a tokenizer would
 * be another one. *out, which run.json keeps, maps each copy's name to its digest; NULL: nothing was copied. */
sw_status sw_run_keep_model(const char *folder, const char *model, json_t **out);
/* Compares the copies with their digests (NULL: none are expected). Returns a new list of the damaged or missing ones,
 * each with its `file` and a `reason`; NULL: no memory. */
json_t *sw_run_damaged_copies(const char *folder, const json_t *digests);

/* Finds the folder of a model's small files: the run's, if it has any of them, else `model`, if that is a folder.
 * folder NULL: there is no run yet. *out must be NULL or an earlier result, which is freed; it becomes the new path,
 * which the caller frees, or NULL if there is no such folder. Refuses links among the copies. */
sw_status sw_run_model_folder(const char *folder, const char *model, char **out);
/* Returns the folder that a run reads frozen weights from, if it does; NULL: random weights, or those of another run.
 */
const char *sw_run_base(const struct sw_run *run);
/* Finds the folder of the tokenizer of a run, or of a model if it is not a run. The caller frees *out. */
sw_status sw_run_or_model_folder(const char *run_or_model, char **out);

/* The small files of the model that an export was made from. */
struct sw_run_model {
    const char *model;     /* folder or preset that the weights come from */
    const char *folder;    /* folder of the small files (sw_run_model_folder); NULL: none */
    const json_t *digests; /* digests of a run's copies; NULL: no copies */
};
/* Returns the end of the message "wrote EXPORT...": which copies the export lacks, or why it has no tokenizer.json;
 * empty if it lacks nothing. */
enum { SW_RUN_MODEL_CHARS = 8192 };
const char *sw_run_model_lack(const char *export, const struct sw_run_model *from, char text[SW_RUN_MODEL_CHARS]);

#endif
