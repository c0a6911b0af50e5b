#include "train/run/exports.h"

#include "core/clock.h"
#include "core/confine.h"
#include "core/error_scope.h"
#include "core/log.h"
#include "core/size.h"
#include "train/files/json_file.h"
#include "train/folder/frozen.h"
#include "train/folder/run_model.h"
#include "train/hf/checkpoint.h"
#include "train/run/gathered_masters.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define INDEX_LIMIT_BYTES ((size_t)1 << 20)

struct export {
    int64_t step;
    double loss;   /* NAN: not known */
    bool unlisted; /* being written or removed: its folder is to be deleted, also after a kill */
};

struct exports {
    char folder[SW_RUN_PATH_CHARS];
    struct export kept[SW_EXPORTS_MOST + 1];
    int count;
};

static sw_status path_of(const struct exports *exports, int64_t step, char path[SW_RUN_PATH_CHARS]) {
    char name[32];
    snprintf(name, sizeof name, "step-%lld", (long long)step);
    return sw_path_join(path, SW_RUN_PATH_CHARS, exports->folder, name);
}

static sw_status parse_index(const json_t *root, const char *path, struct exports *exports) {
    size_t i;
    json_t *entry;
    json_array_foreach((json_t *)(uintptr_t)root, i, entry) {
        const json_t *loss = json_object_get(entry, "val_loss");
        if (exports->count < SW_EXPORTS_MOST)
            exports->kept[exports->count++] =
                (struct export){.step = json_integer_value(json_object_get(entry, "step")),
                                .loss = json_is_number(loss) ? json_number_value(loss) : NAN,
                                .unlisted = json_is_true(json_object_get(entry, "unlisted"))};
    }
    return json_is_array(root)
               ? SW_OK
               : sw_fail(SW_ERR_CORRUPT, "%s is not a list of exports; remove it to begin a new one", path);
}

static sw_status read_index(const char *run_folder, struct exports *exports) {
    char path[SW_RUN_PATH_CHARS];
    json_t *root;
    SW_TRY(sw_path_join(exports->folder, sizeof exports->folder, run_folder, "exports"));
    SW_TRY(sw_folder_make_own(exports->folder, 0700));
    SW_TRY(sw_path_join(path, sizeof path, exports->folder, "index.json"));
    if (!sw_path_exists(path))
        return SW_OK;
    SW_TRY(sw_json_read_own_file(path, INDEX_LIMIT_BYTES, SW_ERR_CORRUPT, &root));
    const sw_status status = parse_index(root, path, exports);
    json_decref(root);
    return status;
}

static sw_status write_index(const struct exports *exports) {
    char path[SW_RUN_PATH_CHARS];
    SW_TRY(sw_path_join(path, sizeof path, exports->folder, "index.json"));
    json_t *root = json_array();
    for (int i = 0; i < exports->count; i++) {
        const struct export *kept = &exports->kept[i];
        json_t *loss = isfinite(kept->loss) ? json_real(kept->loss) : json_null();
        json_t *entry = json_pack("{s:I, s:o}", "step", (json_int_t)kept->step, "val_loss", loss);
        if (kept->unlisted)
            json_object_set_new(entry, "unlisted", json_true());
        json_array_append_new(root, entry);
    }
    return sw_json_write_file(path, root, SW_FILE_PRIVATE);
}

/* Compares exports: a known loss is better than none, then the lower loss, then the newer export. */
static bool is_worse(const struct export *a, const struct export *b) {
    const bool known[] = {isfinite(a->loss), isfinite(b->loss)};
    if (known[0] != known[1])
        return known[1];
    if (known[0] && a->loss != b->loss)
        return a->loss > b->loss;
    return a->step < b->step;
}

static int count_listed(const struct exports *exports) {
    int count = 0;
    for (int i = 0; i < exports->count; i++)
        count += !exports->kept[i].unlisted;
    return count;
}

static void unlist_worst(struct exports *exports) {
    struct export *worst = NULL;
    for (int i = 0; i < exports->count; i++)
        if (!exports->kept[i].unlisted && (worst == NULL || is_worse(&exports->kept[i], worst)))
            worst = &exports->kept[i];
    if (worst != NULL)
        worst->unlisted = true;
}

static sw_status remove_one(const struct exports *exports, int64_t step) {
    char path[SW_RUN_PATH_CHARS], partial[SW_RUN_PATH_CHARS];
    SW_TRY(path_of(exports, step, path));
    if ((size_t)snprintf(partial, sizeof partial, "%s.partial", path) >= sizeof partial)
        return sw_fail(SW_ERR_ARG, "the path %s is too long", path);
    SW_TRY(sw_folder_remove(path));
    return sw_folder_remove(partial);
}

/* Removes the folders of unlisted exports. The index names a folder before it is removed and forgets it afterwards, so
 * that the next start finishes what a kill cut off. A folder that cannot be removed does not end the training. */
static sw_status remove_unlisted(struct exports *exports) {
    const int before = exports->count;
    int kept = 0;
    for (int i = 0; i < before; i++) {
        SW_HANDLES_ERRORS();
        const sw_status status = exports->kept[i].unlisted ? remove_one(exports, exports->kept[i].step) : SW_OK;
        if (status != SW_OK)
            sw_log_warn("an old export cannot be removed: %s", sw_error_message(status));
        if (!exports->kept[i].unlisted || status != SW_OK)
            exports->kept[kept++] = exports->kept[i];
    }
    exports->count = kept;
    return kept < before ? write_index(exports) : SW_OK;
}

sw_status sw_exports_tidy(const char *run_folder) {
    char path[SW_RUN_PATH_CHARS];
    SW_TRY(sw_path_join(path, sizeof path, run_folder, "exports/index.json"));
    if (!sw_path_exists(path))
        return SW_OK;
    struct exports exports = {0};
    SW_TRY(read_index(run_folder, &exports));
    return remove_unlisted(&exports);
}

static sw_status write_weights(struct sw_trainer *trainer, struct sw_gathered_masters *masters, const char *path) {
    const struct sw_checkpoint_format format = {
        .type = SW_F32, .shard_bytes = SW_CHECKPOINT_SHARD_BYTES, .turn_end = trainer->run.turn_end};
    const struct sw_load trained = sw_gathered_masters_load(masters);
    const struct sw_load from = sw_frozen_load(trainer->frozen, &trained);
    return sw_checkpoint_write(path, &trainer->run.config, sw_gathered_masters_units(masters), &format, &from,
                               trainer->model_folder);
}

static bool has(const struct exports *exports, int64_t step) {
    for (int i = 0; i < exports->count; i++)
        if (exports->kept[i].step == step && !exports->kept[i].unlisted)
            return true;
    return false;
}

static bool list_has(struct sw_trainer *trainer, int64_t step) {
    SW_HANDLES_ERRORS();
    struct exports exports = {0};
    const bool found = read_index(trainer->folder, &exports) == SW_OK && has(&exports, step);
    return found;
}

sw_status sw_exports_has(struct sw_trainer *trainer, int64_t step, bool *out) {
    *out = sw_ranks_rank(trainer->ranks) == 0 && list_has(trainer, step);
    return sw_ranks_spread(trainer->ranks, "whether there is an export", out, sizeof *out);
}

static sw_status write_export(struct sw_trainer *trainer, struct sw_gathered_masters *masters, int64_t step,
                              double validation_loss) {
    struct exports exports = {0};
    char path[SW_RUN_PATH_CHARS], lack[SW_RUN_MODEL_CHARS];
    const int64_t begin_ns = sw_now_ns();
    SW_TRY(read_index(trainer->folder, &exports));
    SW_TRY(path_of(&exports, step, path));
    if (has(&exports, step))
        return SW_OK; /* an export from before a kill has the same bits */
    SW_TRY(remove_unlisted(&exports));
    struct export *added = &exports.kept[exports.count++];
    *added = (struct export){.step = step, .loss = validation_loss, .unlisted = true};
    SW_TRY(write_index(&exports));
    SW_TRY(write_weights(trainer, masters, path));
    added->unlisted = false;
    while (count_listed(&exports) > trainer->run.settings.keep)
        unlist_worst(&exports);
    SW_TRY(write_index(&exports));
    const struct sw_run_model from = {trainer->run.settings.model, trainer->model_folder, trainer->run.model_files};
    sw_log_info("wrote %s in %.3g s%s", path, (double)(sw_now_ns() - begin_ns) * 1e-9,
                sw_run_model_lack(path, &from, lack));
    return remove_unlisted(&exports);
}

/* Writes an export: rank 0 writes the files and asks the other ranks for grains that it does not have. */
sw_status sw_exports_write(struct sw_trainer *trainer, int64_t step, double validation_loss) {
    struct sw_gathered_masters *masters;
    SW_TRY(sw_engine_settle(trainer->engine));
    SW_TRY(sw_gathered_masters_open(trainer, &masters));
    sw_status status = SW_OK;
    sw_ranks_relax_timeout(trainer->ranks, true);
    if (sw_ranks_rank(trainer->ranks) == 0) {
        status = write_export(trainer, masters, step, validation_loss);
        sw_gathered_masters_end(masters);
    } else {
        status = sw_gathered_masters_follow(masters);
    }
    sw_gathered_masters_close(masters);
    status = sw_ranks_agree_on_error(trainer->ranks, status);
    sw_ranks_relax_timeout(trainer->ranks, false);
    return status;
}
