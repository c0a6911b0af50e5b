/* A source of weights (a Hugging Face folder, a random start, a run), and the parts of it that a tensor rank needs.
 *
 * Every source gives whole layers through the same two functions, prepare and fill, so the engine and exports do not
 * know where weights come from. A tensor rank puts a cut in front: it reads whole layers and keeps its own elements.
 * Each rank then reads everything, but no source needs to know of groups. */
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
#include "run/folder/frozen.h"
#include "run/folder/group_reader.h"
#include "run/folder/run.h"
#include "text/model_text.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct cut_reader_spec {
    struct sw_load load;          /* reads the masters of `whole`; what its context points to must outlive the reader */
    const struct sw_units *whole; /* whole layers, or tiles of them; must outlive the reader */
    const struct sw_units *cut;   /* this rank's parts (sw_model_rank_units); must outlive the reader */
};

/* Grains of the rank that are made at once, and grains of whole layers that are read at once. */
enum { MADE_GRAINS = 16, WINDOW_GRAINS = 16 };

struct cut_reader {
    struct cut_reader_spec spec;
    float *made;                /* elements [first, first + count) of a unit of the rank */
    int64_t unit, first, count; /* unit -1: `made` is empty */
    float *window;              /* elements [window_first, window_end) of a whole unit */
    /* window_elems: its size; window_unit -1: it is empty */
    int64_t window_elems, window_unit, window_first, window_end;
    const struct sw_tensor *tensor; /* the rank's tensor that was looked up last; NULL: none */
    int64_t tensor_unit;            /* first whole unit that has a piece of that tensor */
};

static void cut_reader_close(struct cut_reader *self) {
    if (self == NULL)
        return;
    free(self->window);
    free(self->made);
    free(self);
}

/* Opens a reader. The caller closes it, after the last use of what cut_reader_load returns. */
static sw_status cut_reader_open(const struct cut_reader_spec *spec, struct cut_reader **out) {
    struct cut_reader *self = calloc(1, sizeof *self);
    if (self != NULL) {
        const int64_t most = spec->load.most_grains > 0 ? spec->load.most_grains - 1 : WINDOW_GRAINS;
        self->spec = *spec;
        self->unit = self->window_unit = -1;
        /* A range that begins within a grain touches one grain more. */
        self->window_elems = sw_max_i64(1, sw_min_i64(most, WINDOW_GRAINS)) * SW_GRAIN_ELEMS;
        self->window = malloc((size_t)self->window_elems * sizeof *self->window);
        self->made = malloc((size_t)MADE_GRAINS * SW_GRAIN_ELEMS * sizeof *self->made);
    }
    if (self == NULL || self->window == NULL || self->made == NULL) {
        cut_reader_close(self);
        return sw_fail(SW_ERR_NOMEM, "no memory to cut layers into parts");
    }
    *out = self;
    return SW_OK;
}

/* Finds the first whole unit that has a piece of a tensor. */
static void look_up(struct cut_reader *self, const struct sw_tensor *tensor) {
    const struct sw_units *whole = self->spec.whole;
    if (self->tensor == tensor)
        return;
    self->tensor = tensor;
    self->tensor_unit = 0;
    while (self->tensor_unit < whole->count && sw_unit_find(&whole->unit[self->tensor_unit], tensor->name) == NULL)
        self->tensor_unit++;
}

/* Finds element `at_whole` of a tensor: its unit, its element number in that unit, and how many consecutive elements
 * follow from there. The pieces of a tensor are in consecutive units. */
static sw_status find(struct cut_reader *self, const struct sw_tensor *tensor, int64_t at_whole, int64_t *out_unit,
                      int64_t *out_elem, int64_t *out_run) {
    const struct sw_units *whole = self->spec.whole;
    look_up(self, tensor);
    for (int64_t unit = self->tensor_unit; unit < whole->count; unit++) {
        const struct sw_tensor *piece = sw_unit_find(&whole->unit[unit], tensor->name);
        const int64_t elem = piece != NULL ? sw_tensor_from_whole(piece, at_whole, out_run) : -1;
        if (elem < 0)
            continue;
        *out_unit = unit;
        *out_elem = piece->offset + elem;
        return SW_OK;
    }
    return sw_fail(SW_ERR_CORRUPT, "the model's weights lack element %lld of %s", (long long)at_whole, tensor->name);
}

/* Reads whole weights, starting at an element. */
static sw_status read_window(struct cut_reader *self, int64_t unit, int64_t elem) {
    const struct sw_load *load = &self->spec.load;
    const int64_t count = sw_min_i64(self->window_elems, self->spec.whole->unit[unit].elems - elem);
    self->window_unit = -1;
    if (load->prepare != NULL)
        SW_TRY(load->prepare(load->context, unit, elem, count));
    SW_TRY(load->fill(load->context, unit, elem, count, self->window));
    self->window_unit = unit;
    self->window_first = elem;
    self->window_end = elem + count;
    return SW_OK;
}

/* Copies a run of elements of a tensor to element `at` of the rank's unit. */
static sw_status take_run(void *context, int64_t tensor, int64_t whole, int64_t run, int64_t at) {
    struct cut_reader *self = context;
    const struct sw_tensor *of = &self->spec.cut->unit[self->unit].tensor[tensor];
    for (int64_t done = 0, count; done < run; done += count) {
        int64_t unit, elem;
        SW_TRY(find(self, of, whole + done, &unit, &elem, &count));
        if (unit != self->window_unit || elem < self->window_first || elem >= self->window_end)
            SW_TRY(read_window(self, unit, elem));
        count = sw_min_i64(sw_min_i64(count, run - done), self->window_end - elem);
        memcpy(self->made + at + done, self->window + (elem - self->window_first), (size_t)count * sizeof *self->made);
    }
    return SW_OK;
}

static sw_status prepare(void *context, int64_t unit, int64_t first, int64_t count) {
    struct cut_reader *self = context;
    assert(count <= (int64_t)MADE_GRAINS * SW_GRAIN_ELEMS);
    self->unit = unit;
    self->first = first;
    self->count = count;
    memset(self->made, 0, (size_t)count * sizeof *self->made);
    return sw_unit_walk(&self->spec.cut->unit[unit], first, count, take_run, self);
}

static sw_status fill(void *context, int64_t unit, int64_t first, int64_t count, float *out) {
    const struct cut_reader *self = context;
    assert(unit == self->unit && first >= self->first && first + count <= self->first + self->count);
    memcpy(out, self->made + (first - self->first), (size_t)count * sizeof *out);
    return SW_OK;
}

/* Returns the weights for an engine of the rank. Only the elements prepared last can be filled. */
static struct sw_load cut_reader_load(struct cut_reader *self) {
    return (struct sw_load){.fill = fill, .prepare = prepare, .context = self, .most_grains = MADE_GRAINS};
}

struct sw_source {
    struct sw_model_config config;
    struct sw_units *units;
    int64_t tiles;
    char *model;         /* folder or preset that the weights come from; for a run, that it was made from */
    char *folder;        /* folder of the model's small files; NULL: none */
    json_t *model_files; /* for a run: digests of its copies (run.h) */
    struct sw_option_list drives;
    struct sw_load load;
    struct sw_model_init init;        /* context of a random start */
    struct sw_checkpoint *checkpoint; /* NULL: the source is no Hugging Face folder */
    struct sw_store_reader *reader;   /* for a run without tensor groups; else NULL */
    struct sw_group_reader *group;    /* for a run with tensor groups; else NULL */
    struct sw_frozen *frozen;         /* for a run with frozen weights; else NULL */
    struct sw_tuning tuning;          /* what the units are laid out for; nothing if they were cut */
    struct sw_lora_init adapters;     /* context of adapters at their start */
    struct sw_peft *peft;             /* adapters of a folder; NULL: none */
    struct sw_turn_end turn_end;      /* for a run: the token that ends turns */
    int bos;                          /* SW_BOS_... */
    int64_t step;                     /* step of the run's commit; -1: the source is no run */
    struct sw_units *whole;           /* the units before sw_source_cut; NULL: nothing was cut */
    struct cut_reader *cut;           /* reads a rank's parts of them; NULL: nothing was cut */
};

static sw_status make(struct sw_source **out) {
    *out = calloc(1, sizeof **out);
    if (*out == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to open the model");
    (*out)->step = -1;
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

static sw_status open_units(struct sw_source *source, const struct sw_source_spec *spec) {
    if (spec->tensor_ranks <= 1)
        return sw_model_units(&source->config, spec->tiles, spec->optimizer, &source->tuning, &source->units);
    return sw_model_rank_units(&source->config, spec->tensor_ranks, spec->tensor_rank, spec->tiles, spec->optimizer,
                               &source->units);
}

static sw_status open_model(struct sw_source *source, const struct sw_source_spec *spec) {
    const char *model = spec->model;
    source->tiles = spec->tiles;
    SW_TRY(sw_config_load(model, &source->config));
    SW_TRY(open_tuning(source, spec));
    SW_TRY(open_units(source, spec));
    SW_TRY(sw_run_model_folder(NULL, model, &source->folder));
    source->model = strdup(model);
    if (source->model == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to open the model");
    if (spec->init) {
        source->init = (struct sw_model_init){.config = &source->config, .units = source->units, .seed = spec->seed};
        source->load = (struct sw_load){.fill = sw_model_fill_random, .context = &source->init};
        return add_adapters(source, spec);
    }
    if (source->folder == NULL)
        return sw_fail(SW_ERR_ARG, "'%s' describes a model but holds no weights; add --init to start from random ones",
                       model);
    SW_TRY(sw_checkpoint_open(source->folder, source->units, &source->checkpoint));
    source->load =
        (struct sw_load){.fill = sw_checkpoint_fill, .prepare = sw_checkpoint_prepare, .context = source->checkpoint};
    return add_adapters(source, spec);
}

sw_status sw_source_open_model(const struct sw_source_spec *spec, struct sw_source **out) {
    struct sw_source *source = NULL;
    SW_TRY(make(&source));
    return hand_over(source, open_model(source, spec), out);
}

sw_status sw_source_check_weights(const char *model) {
    struct sw_source *source = NULL;
    if (!is_folder(model) || !sw_folder_has_weights(model))
        return SW_OK;
    SW_TRY(sw_source_open_model(&(struct sw_source_spec){.model = model, .tiles = 1}, &source));
    sw_source_close(source);
    return SW_OK;
}

/* Opens a reader of the stores. It owns them, even after a failure. */
static sw_status open_reader(struct sw_source *source, const char *folder, const struct sw_run *run,
                             struct sw_store_set *stores) {
    bool same = true;
    if (run->tensor_ranks > 1) {
        SW_TRY(sw_group_reader_open(stores, run, source->units, &source->group));
        source->load = sw_group_reader_load(source->group);
        return SW_OK;
    }
    for (int s = 0; same && s < stores->count; s++)
        same = sw_run_store_is_of(stores->store[s], source->units);
    if (!same) {
        sw_store_set_close(stores);
        return sw_fail(SW_ERR_CORRUPT, "the store of %s was made for another model than its run.json describes",
                       folder);
    }
    SW_TRY(sw_store_reader_open(stores, source->units, source->tiles, &source->reader));
    source->load = sw_store_reader_load(source->reader);
    return SW_OK;
}

/* Adds the frozen weights, which no store has. */
static sw_status add_frozen(struct sw_source *source, const char *folder, const struct sw_run *run) {
    const struct sw_load trained = source->load;
    SW_TRY(sw_frozen_open(folder, run, source->units, &source->frozen));
    return sw_frozen_load(source->frozen, &trained, &source->load);
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

static sw_status open_run(struct sw_source *source, const char *folder, const struct sw_run_moved *moved) {
    struct sw_run run = {0};
    struct sw_store_set stores = {0};
    sw_status status = sw_run_open_to_read(folder, moved->nvme, &run, &stores);
    if (status == SW_OK)
        status = sw_run_move_model(&run, moved->model);
    source->config = run.config;
    source->tiles = run.tiles;
    if (status == SW_OK) {
        source->step = sw_store_last_commit(stores.store[0])->step;
        status = sw_model_units(&source->config, source->tiles, run.optimizer, &run.settings.tuning, &source->units);
    }
    if (status == SW_OK)
        status = sw_tuning_copy(&run.settings.tuning, &source->tuning);
    if (status == SW_OK)
        status = open_reader(source, folder, &run, &stores);
    else
        sw_store_set_close(&stores);
    if (status == SW_OK)
        status = add_frozen(source, folder, &run);
    if (status == SW_OK)
        status = list_drives(source, folder, &run, moved->nvme);
    if (status == SW_OK)
        status = sw_run_model_folder(folder, run.moved_model != NULL ? run.moved_model : run.settings.model,
                                     &source->folder);
    source->model = run.settings.model;
    source->model_files = run.model_files;
    run.settings.model = NULL;
    run.model_files = NULL;
    source->bos = run.settings.old_text ? SW_BOS_NO : run.settings.bos;
    source->turn_end = run.turn_end;
    run.turn_end.token = NULL;
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
    cut_reader_close(source->cut);
    sw_peft_close(source->peft);
    sw_checkpoint_close(source->checkpoint);
    sw_store_reader_close(source->reader);
    sw_group_reader_close(source->group);
    sw_frozen_close(source->frozen);
    sw_units_destroy(source->units);
    sw_units_destroy(source->whole);
    sw_tuning_release(&source->tuning);
    sw_option_list_release(&source->drives);
    free(source->turn_end.token);
    json_decref(source->model_files);
    free(source->model);
    free(source->folder);
    free(source);
}

sw_status sw_source_cut(struct sw_source *source, int ranks, int rank) {
    const int64_t tiles = sw_model_tiles_fit(&source->config, ranks, source->tiles) ? source->tiles : 1;
    struct sw_units *units;
    assert(source->cut == NULL && rank >= 0 && rank < ranks);
    if (source->tuning.lora.rank > 0)
        return sw_fail(SW_ERR_UNSUPPORTED, "the layers of a run with --lora cannot be cut; leave out --tensor");
    SW_TRY(sw_model_rank_units(&source->config, ranks, rank, tiles, source->units->optimizer, &units));
    source->whole = source->units;
    source->units = units;
    sw_tuning_release(&source->tuning);
    source->tiles = tiles;
    SW_TRY(cut_reader_open(
        &(struct cut_reader_spec){.load = source->load, .whole = source->whole, .cut = source->units}, &source->cut));
    source->load = cut_reader_load(source->cut);
    return SW_OK;
}

int64_t sw_source_step(const struct sw_source *source) {
    return source->step;
}

const struct sw_model_config *sw_source_config(const struct sw_source *source) {
    return &source->config;
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
    if (source->reader != NULL)
        return sw_store_reader_bytes(source->reader);
    if (source->group != NULL)
        return sw_group_reader_bytes(source->group);
    return source->checkpoint == NULL ? 0 : sw_checkpoint_bytes_read(source->checkpoint);
}

int64_t sw_source_bytes_to_read(const struct sw_source *source) {
    return source->checkpoint == NULL ? 0 : sw_checkpoint_bytes(source->checkpoint);
}
