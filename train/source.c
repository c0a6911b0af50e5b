#include "train/source.h"

#include "core/arena.h"
#include "core/size.h"
#include "io/store.h"
#include "train/checkpoint.h"
#include "train/files.h"
#include "train/model.h"
#include "train/run.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { SOURCE_IO_DEPTH = 8 };

/* A store read grain by grain. Whole rows of a tensor that is cut by columns pass through all its tiles, so that the
 * last grain of each is kept; they are units that follow each other. */
struct store_reader {
    struct sw_store *store;
    struct sw_store_lane *lane;
    struct sw_arena *arena;
    int64_t tiles;
    struct kept_grain {
        float *record;
        int64_t unit, grain; /* unit -1: none */
    } * kept;                /* by unit modulo tiles */
};

struct sw_source {
    struct sw_model_config config;
    struct sw_units *units;
    int64_t tiles;
    char *folder;
    struct sw_checkpoint *checkpoint;
    bool random;
    struct sw_model_init init;
    struct store_reader reader;
};

static sw_status make(struct sw_source **out) {
    *out = calloc(1, sizeof **out);
    return *out == NULL ? sw_fail(SW_ERR_NOMEM, "no memory to open the model") : SW_OK;
}

static bool is_folder(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static sw_status open_model(struct sw_source *source, const char *model, bool init, uint64_t seed, int64_t tiles) {
    source->tiles = tiles;
    SW_TRY(sw_config_load(model, &source->config));
    SW_TRY(sw_model_units(&source->config, tiles, &source->units));
    if (is_folder(model)) {
        source->folder = strdup(model);
        if (source->folder == NULL)
            return sw_fail(SW_ERR_NOMEM, "no memory to open the model");
    }
    if (init) {
        source->random = true;
        source->init = (struct sw_model_init){.config = &source->config, .units = source->units, .seed = seed};
        return SW_OK;
    }
    if (source->folder == NULL)
        return sw_fail(SW_ERR_ARG, "'%s' describes a model but holds no weights; add --init to start from random ones",
                       model);
    return sw_checkpoint_open(source->folder, source->units, &source->checkpoint);
}

sw_status sw_source_open_model(const char *model, bool init, uint64_t seed, int64_t tiles, struct sw_source **out) {
    struct sw_source *source = NULL;
    SW_TRY(make(&source));
    const sw_status status = open_model(source, model, init, seed, tiles);
    if (status != SW_OK) {
        sw_source_close(source);
        return status;
    }
    *out = source;
    return SW_OK;
}

static sw_status keep_grains(struct store_reader *reader, int64_t tiles) {
    const int64_t bytes = tiles * SW_RECORD_BYTES;
    void *records;
    reader->tiles = tiles;
    reader->kept = calloc((size_t)tiles, sizeof *reader->kept);
    if (reader->kept == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to read the store");
    SW_TRY(sw_arena_create("reader", bytes, false, NULL, &reader->arena));
    SW_TRY(sw_arena_take(reader->arena, bytes, &records));
    for (int64_t k = 0; k < tiles; k++)
        reader->kept[k] = (struct kept_grain){.record = (float *)((char *)records + k * SW_RECORD_BYTES), .unit = -1};
    return sw_store_add_buffer(reader->store, records, bytes);
}

static sw_status open_reader(struct sw_source *source, const char *folder, const struct sw_run *run,
                             const struct sw_option_list *nvme) {
    struct store_reader *reader = &source->reader;
    SW_TRY(sw_run_open_store(folder, run, nvme, &reader->store));
    if (sw_store_unit_count(reader->store) != source->units->count)
        return sw_fail(SW_ERR_CORRUPT, "the store of %s belongs to another model than its run.json", folder);
    SW_TRY(keep_grains(reader, source->tiles));
    return sw_store_lane_open(reader->store, SOURCE_IO_DEPTH, &reader->lane);
}

static sw_status open_run(struct sw_source *source, const char *folder, const struct sw_option_list *nvme) {
    struct sw_run run = {0};
    sw_status status = sw_run_read(folder, &run);
    source->config = run.config;
    source->tiles = run.settings.tiles;
    if (status == SW_OK)
        status = sw_model_units(&source->config, source->tiles, &source->units);
    if (status == SW_OK)
        status = open_reader(source, folder, &run, nvme);
    /* Tokenizer files lie where the run's model came from, if that is still there. */
    if (status == SW_OK && run.settings.model != NULL && is_folder(run.settings.model))
        source->folder = strdup(run.settings.model);
    sw_options_release(&sw_train_command, &run.settings);
    return status;
}

sw_status sw_source_open_any(const char *run_or_model, const struct sw_option_list *nvme, struct sw_source **out) {
    if (!sw_run_is_one(run_or_model) && nvme->count > 0)
        return sw_fail(SW_ERR_ARG, "%s is not the folder of a run, so that there is no store for --nvme to name",
                       run_or_model);
    if (!sw_run_is_one(run_or_model))
        return sw_source_open_model(run_or_model, false, 0, 1, out);
    struct sw_source *source = NULL;
    SW_TRY(make(&source));
    const sw_status status = open_run(source, run_or_model, nvme);
    if (status != SW_OK) {
        sw_source_close(source);
        return status;
    }
    *out = source;
    return SW_OK;
}

void sw_source_close(struct sw_source *source) {
    if (source == NULL)
        return;
    sw_checkpoint_close(source->checkpoint);
    if (source->reader.lane != NULL)
        sw_store_lane_close(source->reader.lane);
    if (source->reader.store != NULL)
        sw_store_close(source->reader.store);
    sw_arena_destroy(source->reader.arena);
    free(source->reader.kept);
    sw_units_destroy(source->units);
    free(source->folder);
    free(source);
}

const struct sw_model_config *sw_source_config(const struct sw_source *source) {
    return &source->config;
}

const struct sw_units *sw_source_units(const struct sw_source *source) {
    return source->units;
}

int64_t sw_source_tiles(const struct sw_source *source) {
    return source->tiles;
}

const char *sw_source_folder(const struct sw_source *source) {
    return source->folder;
}

static sw_status load_grain(struct store_reader *reader, int64_t unit, int64_t grain, const float **out) {
    struct kept_grain *kept = &reader->kept[unit % reader->tiles];
    *out = kept->record;
    if (kept->unit == unit && kept->grain == grain)
        return SW_OK;
    const struct sw_store_commit *commit = sw_store_last_commit(reader->store);
    const struct sw_store_transfer transfer = {.kind = SW_STORE_OPTIMIZER,
                                               .generation = commit->generation,
                                               .unit = unit,
                                               .first_grain = grain,
                                               .grains = 1,
                                               .buf = kept->record,
                                               .step = commit->step};
    kept->unit = -1;
    SW_TRY(sw_store_transfer(reader->lane, &transfer));
    kept->unit = unit;
    kept->grain = grain;
    return SW_OK;
}

static sw_status fill_from_store(struct store_reader *reader, int64_t unit, int64_t first, int64_t count, float *out) {
    while (count > 0) {
        const int64_t within = first % SW_GRAIN_ELEMS;
        const int64_t run = sw_min_i64(count, SW_GRAIN_ELEMS - within);
        const float *record;
        SW_TRY(load_grain(reader, unit, first / SW_GRAIN_ELEMS, &record));
        memcpy(out, record + within, (size_t)run * sizeof *out);
        first += run;
        count -= run;
        out += run;
    }
    return SW_OK;
}

sw_status sw_source_fill(void *context, int64_t unit, int64_t first, int64_t count, float *out) {
    struct sw_source *source = context;
    if (source->reader.lane != NULL)
        return fill_from_store(&source->reader, unit, first, count, out);
    return source->random ? sw_model_fill_random(&source->init, unit, first, count, out)
                          : sw_checkpoint_fill(source->checkpoint, unit, first, count, out);
}
