/* A source of weights (a Hugging Face folder, a random start, a run), and the parts of it that a tensor rank needs.
 *
 * Every source is a reader of state (state.h), so the engine and exports do not know where weights come from. A tensor
 * rank asks the reader for its own units. Each rank then reads everything, but no source needs to know of groups. */
#include "run/folder/source.h"

#include "core/files/files.h"
#include "core/size.h"
#include "core/status.h"
#include "job/settings/places.h"
#include "model/hf/checkpoint.h"
#include "model/hf/folder_contents.h"
#include "model/model.h"
#include "model/peft.h"
#include "offload/engine/engine.h"
#include "offload/plan/unit.h"
#include "run/folder/run.h"
#include "run/folder/state.h"
#include "run/folder/stored_parts.h"
#include "text/model_text.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct sw_source {
    struct sw_model_config config;
    const struct sw_units *units; /* those of a run belong to `state` */
    struct sw_units *made, *cut;  /* owned: the units of a model, and those of a tensor rank; NULL: there are none */
    int64_t tiles;
    char *model;         /* folder or preset that the weights come from; for a run, that it was made from */
    char *folder;        /* folder of the model's small files; NULL: none */
    json_t *model_files; /* for a run: digests of its copies (run.h) */
    struct sw_option_list drives;
    struct sw_load load;
    struct sw_model_init init;        /* context of a random start */
    struct sw_checkpoint *checkpoint; /* NULL: the source is no Hugging Face folder */
    struct sw_state_reader *state;    /* reads the weights */
    char *base;                       /* for a run, folder of its frozen weights; NULL: none */
    struct sw_stored_parts *codes;    /* the base's codes for units that are not the run's; NULL: none */
    struct sw_tuning tuning;          /* what the units are laid out for */
    struct sw_lora_init adapters;     /* context of adapters at their start */
    struct sw_peft *peft;             /* adapters of a folder; NULL: none */
    struct sw_turn_end turn_end;      /* for a run: the token that ends turns */
    int bos;                          /* SW_BOS_... */
    int part_ranks;                   /* size of the run's groups of --tensor or --experts; 1 for other sources */
    int expert_ranks;                 /* members of these that share out experts; 1: tensor groups */
    int64_t step;                     /* step of the run's commit; -1: the source is no run */
};

static sw_status make(struct sw_source **out) {
    *out = calloc(1, sizeof **out);
    if (*out == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to open the model");
    (*out)->step = -1;
    (*out)->part_ranks = (*out)->expert_ranks = 1;
    return SW_OK;
}

/* Gives an opened source to the caller, or closes one whose opening failed. */
static sw_status hand_over(struct sw_source *source, sw_status status, struct sw_source **out) {
    if (status == SW_OK)
        *out = source;
    else
        sw_source_close(source);
    return status;
}

static bool is_folder(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* Adds the weights of adapters to those of the model, which has none: those of the folder, or their first values. */
static sw_status add_adapters(struct sw_source *source, const struct sw_source_spec *spec) {
    if (source->peft != NULL)
        return sw_peft_load(source->peft, source->units, &source->load, &source->load);
    if (source->tuning.lora.rank == 0)
        return SW_OK;
    source->adapters = (struct sw_lora_init){.units = source->units, .seed = spec->seed, .base = source->load};
    source->load = sw_lora_load(&source->adapters);
    return SW_OK;
}

/* Finds out what of the model is trained. */
static sw_status open_tuning(struct sw_source *source, const struct sw_source_spec *spec) {
    struct sw_tuning tuning = {0};
    if (spec->adapter != NULL) {
        SW_TRY(sw_peft_open(spec->adapter, &source->config, &source->peft));
        tuning.lora = *sw_peft_lora(source->peft);
    }
    return sw_tuning_copy(spec->tuning != NULL ? spec->tuning : &tuning, &source->tuning);
}

/* Frozen weights are checked as those of whole layers (frozen.h), so they are cut later. */
static sw_status open_units(struct sw_source *source, const struct sw_source_spec *spec) {
    if (spec->tensor_ranks <= 1 || sw_tuning_freezes(&source->tuning))
        SW_TRY(sw_model_units(&source->config, spec->tiles, spec->optimizer, &source->tuning, &source->made));
    else
        SW_TRY(sw_model_group_units(&source->config,
                                    &(struct sw_model_group){.ranks = spec->tensor_ranks,
                                                             .rank = spec->tensor_rank,
                                                             .experts = spec->expert_ranks},
                                    spec->tiles, spec->optimizer, &source->tuning, &source->made));
    source->units = source->made;
    return SW_OK;
}

/* Makes the reader of a model's weights. */
static sw_status read_model(struct sw_source *source, const struct sw_source_spec *spec) {
    SW_TRY(add_adapters(source, spec));
    const struct sw_state_part part = {.units = source->units, .tiles = source->tiles, .load = source->load};
    return sw_state_join(&part, 1, &source->state);
}

static sw_status open_model(struct sw_source *source, const struct sw_source_spec *spec) {
    const char *model = spec->model;
    source->tiles = spec->tiles;
    SW_TRY(sw_config_load(model, &source->config));
    SW_TRY(sw_model_group_experts(&source->config, spec->expert_group));
    SW_TRY(open_tuning(source, spec));
    SW_TRY(open_units(source, spec));
    SW_TRY(sw_run_model_folder(NULL, model, &source->folder));
    source->model = strdup(model);
    if (source->model == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to open the model");
    if (spec->init) {
        source->init = (struct sw_model_init){.config = &source->config, .units = source->units, .seed = spec->seed};
        source->load = (struct sw_load){.fill = sw_model_fill_random, .context = &source->init};
        return read_model(source, spec);
    }
    if (source->folder == NULL)
        return sw_fail(SW_ERR_ARG, "'%s' describes a model but holds no weights; add --init to start from random ones",
                       model);
    SW_TRY(sw_checkpoint_open(source->folder, source->units, &source->checkpoint));
    source->load = (struct sw_load){.fill = sw_checkpoint_fill,
                                    .prepare = sw_checkpoint_prepare,
                                    .record = sw_checkpoint_record,
                                    .context = source->checkpoint};
    return read_model(source, spec);
}

sw_status sw_source_open_model(const struct sw_source_spec *spec, struct sw_source **out) {
    struct sw_source *source = NULL;
    SW_TRY(make(&source));
    return hand_over(source, open_model(source, spec), out);
}

sw_status sw_source_check_weights(const char *model, const struct sw_tuning *tuning) {
    struct sw_source *source = NULL;
    if (!is_folder(model) || !sw_folder_has_weights(model))
        return SW_OK;
    SW_TRY(sw_source_open_model(&(struct sw_source_spec){.model = model, .tiles = 1, .tuning = tuning}, &source));
    sw_source_close(source);
    return SW_OK;
}

/* Lists the folders of the run's first store, wherever it is now. */
static sw_status list_drives(struct sw_source *source, const char *folder, const struct sw_run *run,
                             const struct sw_option_list *nvme) {
    struct sw_places places;
    SW_TRY(sw_run_places(folder, run, 0, nvme, &places));
    sw_status status = SW_OK;
    for (int i = 0; status == SW_OK && i < places.count; i++)
        status = is_folder(places.path[i]) ? sw_option_list_add(&source->drives, places.path[i]) : SW_OK;
    sw_places_release(&places);
    return status;
}

/* Makes the load of the source's units, which need not be the run's: a base that keeps its checkpoint's codes has them
 * from there, as the state has values alone. */
static sw_status load_units(struct sw_source *source) {
    sw_stored_parts_close(source->codes);
    source->codes = NULL;
    SW_TRY(sw_state_load(source->state, source->units, &source->load));
    return source->load.record != NULL
               ? SW_OK
               : sw_stored_parts_open(source->base, source->units, &source->load, &source->codes);
}

/* Takes over what a run says of its weights. */
static sw_status describe_run(struct sw_source *source, const char *folder, const struct sw_run_moved *moved,
                              struct sw_run *run) {
    source->config = run->config;
    source->tiles = run->tiles;
    source->part_ranks = (int)run->tensor_ranks;
    source->expert_ranks = (int)run->expert_ranks;
    source->units = sw_state_units(source->state);
    source->step = sw_state_commit(source->state)->step;
    SW_TRY(sw_tuning_copy(&run->settings.tuning, &source->tuning));
    if (sw_run_base(run) != NULL && (source->base = strdup(sw_run_base(run))) == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to open the model");
    SW_TRY(load_units(source));
    SW_TRY(list_drives(source, folder, run, moved->nvme));
    SW_TRY(sw_run_model_folder(folder, run->moved_model != NULL ? run->moved_model : run->settings.model,
                               &source->folder));
    source->model = run->settings.model;
    source->model_files = run->model_files;
    run->settings.model = NULL;
    run->model_files = NULL;
    source->bos = run->settings.old_text ? SW_BOS_NO : run->settings.bos;
    source->turn_end = run->turn_end;
    run->turn_end.token = NULL;
    return SW_OK;
}

static sw_status open_run(struct sw_source *source, const char *folder, const struct sw_run_moved *moved) {
    struct sw_run run = {0};
    sw_status status = sw_state_open_run(folder, moved, &run, &source->state);
    if (status == SW_OK)
        status = describe_run(source, folder, moved, &run);
    sw_run_release(&run);
    return status;
}

sw_status sw_source_open_any(const char *run_or_model, const struct sw_run_moved *moved, const char *adapter,
                             struct sw_source **out) {
    if (sw_run_is_one(run_or_model) && adapter != NULL)
        return sw_fail(SW_ERR_ARG,
                       "%s is the folder of a run, which has its own weights; leave out --adapter, or give "
                       "the adapter's model",
                       run_or_model);
    if (!sw_run_is_one(run_or_model) && moved->nvme->count > 0)
        return sw_fail(SW_ERR_ARG, "%s is not the folder of a run, so it has no store; leave out --nvme", run_or_model);
    if (!sw_run_is_one(run_or_model) && moved->model != NULL)
        return sw_fail(SW_ERR_ARG, "%s is not the folder of a run, so it is the model itself; leave out --model",
                       run_or_model);
    if (!sw_run_is_one(run_or_model))
        return sw_source_open_model(&(struct sw_source_spec){.model = run_or_model, .adapter = adapter, .tiles = 1},
                                    out);
    struct sw_source *source = NULL;
    SW_TRY(make(&source));
    return hand_over(source, open_run(source, run_or_model, moved), out);
}

void sw_source_close(struct sw_source *source) {
    if (source == NULL)
        return;
    sw_stored_parts_close(source->codes);
    sw_state_close(source->state);
    sw_peft_close(source->peft);
    sw_checkpoint_close(source->checkpoint);
    sw_units_destroy(source->made);
    sw_units_destroy(source->cut);
    sw_tuning_release(&source->tuning);
    sw_option_list_release(&source->drives);
    free(source->turn_end.token);
    json_decref(source->model_files);
    free(source->base);
    free(source->model);
    free(source->folder);
    free(source);
}

sw_status sw_source_cut(struct sw_source *source, int ranks, int rank) {
    const int64_t tiles = sw_model_tiles_fit(&source->config, ranks, source->tiles) ? source->tiles : 1;
    assert(source->cut == NULL && rank >= 0 && rank < ranks);
    source->config.expert_group = 0; /* a rank has a part of every expert */
    SW_TRY(sw_model_rank_units(&source->config, ranks, rank, tiles, source->units->optimizer, &source->tuning,
                               &source->cut));
    source->units = source->cut;
    source->tiles = tiles;
    return load_units(source);
}

sw_status sw_source_group_experts(struct sw_source *source, int64_t experts) {
    assert(source->cut == NULL);
    SW_TRY(sw_model_group_experts(&source->config, experts));
    SW_TRY(sw_model_units(&source->config, source->tiles, source->units->optimizer, &source->tuning, &source->cut));
    source->units = source->cut;
    return load_units(source);
}

int64_t sw_source_step(const struct sw_source *source) {
    return source->step;
}

const struct sw_model_config *sw_source_config(const struct sw_source *source) {
    return &source->config;
}

bool sw_source_has_groups(const struct sw_source *source, int tensor_ranks) {
    return source->expert_ranks == 1 && source->part_ranks == tensor_ranks;
}

const char *sw_source_groups_text(const struct sw_source *source, char out[SW_GROUPS_CHARS]) {
    const int experts = source->expert_ranks, tensor = source->part_ranks / experts;
    if (experts > 1 && tensor > 1)
        snprintf(out, SW_GROUPS_CHARS, "--experts %d with --tensor %d", experts, tensor);
    else
        snprintf(out, SW_GROUPS_CHARS, "%s %d", experts > 1 ? "--experts" : "--tensor", source->part_ranks);
    return out;
}

const struct sw_tuning *sw_source_tuning(const struct sw_source *source) {
    return &source->tuning;
}

const struct sw_units *sw_source_units(const struct sw_source *source) {
    return source->units;
}

int64_t sw_source_tiles(const struct sw_source *source) {
    return source->tiles;
}

const struct sw_option_list *sw_source_drives(const struct sw_source *source) {
    return &source->drives;
}

struct sw_run_model sw_source_small_files(const struct sw_source *source) {
    return (struct sw_run_model){source->model, source->folder, source->model_files};
}

const char *sw_source_model(const struct sw_source *source) {
    return source->model;
}

const char *sw_source_folder(const struct sw_source *source) {
    return source->folder;
}

const struct sw_turn_end *sw_source_turn_end(const struct sw_source *source) {
    return &source->turn_end;
}

int sw_source_bos(const struct sw_source *source) {
    return source->bos;
}

bool sw_source_is_folder(const struct sw_source *source) {
    return source->checkpoint != NULL;
}

struct sw_load sw_source_load(struct sw_source *source) {
    return source->load;
}

int64_t sw_source_bytes_read(const struct sw_source *source) {
    return source->checkpoint != NULL ? sw_checkpoint_bytes_read(source->checkpoint)
                                      : sw_state_bytes_read(source->state);
}

int64_t sw_source_bytes_to_read(const struct sw_source *source) {
    return source->checkpoint == NULL ? 0 : sw_checkpoint_bytes(source->checkpoint);
}
