/* A source of weights: a Hugging Face folder, a random start, or the store of a run. */
#ifndef SW_RUN_FOLDER_SOURCE_H
#define SW_RUN_FOLDER_SOURCE_H

#include "core/optimizer_format.h"
#include "core/status.h"
#include "job/settings/options.h"
#include "model/hf/checkpoint.h"
#include "model/hf/config.h"
#include "offload/engine/engine.h"
#include "run/folder/run.h"
#include "run/folder/state.h"

#include <stdbool.h>
#include <stdint.h>

struct sw_source;

struct sw_source_spec {
    const char *model; /* folder or preset */
    bool init;         /* random weights from `seed` */
    uint64_t seed;
    int64_t expert_group;          /* as for sw_model_group_experts */
    int64_t tiles;                 /* this and the members below as for sw_model_units */
    int expert_ranks;              /* members of the groups below that share out experts; 0 or 1: tensor groups */
    int tensor_ranks, tensor_rank; /* no effect where `tuning` freezes tensors: the units are then whole layers */
    sw_optimizer_format optimizer;
    const struct sw_tuning *tuning; /* NULL: all of the model is trained, or the adapter if there is one */
    const char *adapter;            /* folder of an adapter (peft.h), which `tuning` describes if given; NULL: none */
};

/* Opens a model folder or a preset. Checks everything and loads nothing yet. */
sw_status sw_source_open_model(const struct sw_source_spec *spec, struct sw_source **out);
/* Checks the weights of a model folder as sw_source_open_model does, if it has any. tuning: what training is to change,
 * which says in which form the folder must have the base. */
sw_status sw_source_check_weights(const char *model, const struct sw_tuning *tuning);
/* Opens the folder of a run; or else a model folder, for which nothing can have been moved, with an adapter unless that
 * is NULL. */
sw_status sw_source_open_any(const char *run_or_model, const struct sw_run_moved *moved, const char *adapter,
                             struct sw_source **out);
void sw_source_close(struct sw_source *source);

const struct sw_model_config *sw_source_config(const struct sw_source *source);
const struct sw_units *sw_source_units(const struct sw_source *source);
int64_t sw_source_tiles(const struct sw_source *source);
/* Lays the units of a source out again, with so many experts in a unit (sw_model_group_experts). It must be the first
 * to lay them out again, and not for a tensor group. */
sw_status sw_source_group_experts(struct sw_source *source, int64_t experts);
/* Tells whether a run was trained with tensor groups of this size and no expert groups, or whether the size is 1 and
 * the source no such run. */
bool sw_source_has_groups(const struct sw_source *source, int tensor_ranks);
/* Writes the groups that a run was trained with, as flags. */
enum { SW_GROUPS_CHARS = 64 };
const char *sw_source_groups_text(const struct sw_source *source, char out[SW_GROUPS_CHARS]);
/* Returns the tuning by which the units are laid out. */
const struct sw_tuning *sw_source_tuning(const struct sw_source *source);
/* Returns the folder or preset that the weights come from; for a run, that it was made from. */
const char *sw_source_model(const struct sw_source *source);
/* Returns the folder of the model's small files, such as the tokenizer's (run.h); NULL: there is none. */
const char *sw_source_folder(const struct sw_source *source);
/* Returns all that is known about these files, valid as long as the source. */
struct sw_run_model sw_source_small_files(const struct sw_source *source);

/* Returns the token that a run learned as the end of turns (run.h); its token is NULL if there is none. */
const struct sw_turn_end *sw_source_turn_end(const struct sw_source *source);

/* Returns the --bos that a run's texts were made with (SW_BOS_...); SW_BOS_AUTO for other sources. */
int sw_source_bos(const struct sw_source *source);

/* Returns the folders of a run's store, for temporary files. Block devices are left out. */
const struct sw_option_list *sw_source_drives(const struct sw_source *source);

/* Cuts every layer for a rank of a tensor group: from now on the source has that rank's units (sw_model_rank_units) and
 * their weights. Call it at most once, on a source of whole layers. */
sw_status sw_source_cut(struct sw_source *source, int ranks, int rank);

/* Returns the step of the commit that holds the weights, or -1 if they are not a run's. */
int64_t sw_source_step(const struct sw_source *source);

/* Returns whether the weights are read from a Hugging Face folder. */
bool sw_source_is_folder(const struct sw_source *source);

/* Returns the weights for the engine or an export. They are valid as long as the source. */
struct sw_load sw_source_load(struct sw_source *source);
int64_t sw_source_bytes_to_read(const struct sw_source *source); /* bytes of files to read; a store is not counted */
int64_t sw_source_bytes_read(const struct sw_source *source);    /* bytes of files read so far; 0 for random weights */

#endif
