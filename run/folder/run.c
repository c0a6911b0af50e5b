/* run.json: what a run is, which processes trained it, and where its stores are; its lock; and the opening of its
 * stores.
 *
 * run.json is always replaced as a whole, never edited in place, so a reader sees either the old run or the new one.
 * The lock is therefore on a file of its own.
 *
 * A folder may be copied, and both copies resumed. Each start of a run has an id; the commit carries the id and
 * run.json lists the ids. A store whose last start run.json does not list was trained through another copy, and is
 * refused instead of mixed.
 *
 * A field that older versions did not write has a value that means "unknown", so their runs still resume. */
#include "run/folder/run.h"

#include "core/confine.h"
#include "core/files/files.h"
#include "core/files/json_file.h"
#include "core/files/model_files.h"
#include "core/json.h"
#include "core/log.h"
#include "core/size.h"
#include "core/status.h"
#include "io/queue/file.h"
#include "job/settings/pipeline.h"
#include "model/hf/folder_contents.h"
#include "offload/plan/unit.h"
#include "text/documents/tokenize_files.h"
#include "text/model_text.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static sw_status lock(int file, const char *folder, const char *path) {
    struct stat info;
    if (fstat(file, &info) != 0 || !S_ISREG(info.st_mode))
        return sw_fail(SW_ERR_ARG, "%s is not a regular file: remove it", path);
    (void)fchmod(file, 0600);
    const sw_status status = sw_lock_take(file, folder);
    if (status != SW_ERR_IO)
        return status;
    sw_log_warn("%s: make sure yourself that no other process uses this run", sw_error_message(status));
    sw_error_clear();
    return SW_OK;
}

sw_status sw_run_lock(const char *folder, int *out) {
    char path[SW_RUN_PATH_CHARS];
    SW_TRY(sw_path_join(path, sizeof path, folder, SW_RUN_LOCK_NAME));
    const int file = sw_path_open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (file < 0)
        return sw_fail(SW_ERR_IO, "%s cannot be opened for writing: %s", path, strerror(errno));
    const sw_status status = lock(file, folder, path);
    if (status != SW_OK) {
        close(file);
        return status;
    }
    *out = file;
    return SW_OK;
}

/* Tells whether a process has locked the run. */
static bool run_is_locked(const char *folder) {
    char path[SW_RUN_PATH_CHARS];
    const int chars = snprintf(path, sizeof path, "%s/" SW_RUN_LOCK_NAME, folder);
    const int file =
        chars < (int)sizeof path ? sw_path_open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0) : -1;
    const bool locked = file >= 0 && sw_lock_is_held(file);
    if (file >= 0)
        close(file);
    return locked;
}

void sw_run_lock_remove(const char *folder) {
    char path[SW_RUN_PATH_CHARS];
    if (sw_path_join(path, sizeof path, folder, SW_RUN_LOCK_NAME) == SW_OK)
        sw_path_unlink(path);
}

static int find(const struct sw_run *run, const char *id) {
    for (int i = 0; i < run->starts.count; i++)
        if (strcmp(run->starts.items[i], id) == 0)
            return i;
    return -1;
}

sw_status sw_run_add_start(struct sw_run *run, const char *found, const char *id) {
    struct sw_option_list kept = {0};
    sw_status status = SW_OK;
    const int end = find(run, found) + 1, begin = end < SW_RUN_KEPT_STARTS ? 0 : end - SW_RUN_KEPT_STARTS + 1;
    for (int i = begin; status == SW_OK && i < end; i++)
        status = sw_option_list_add(&kept, run->starts.items[i]);
    if (status == SW_OK)
        status = sw_option_list_add(&kept, id);
    sw_option_list_release(&run->starts);
    run->starts = kept;
    return status;
}

int sw_run_start_age(const struct sw_run *run, const char *id) {
    const int found = find(run, id);
    return found < 0 ? -1 : run->starts.count - 1 - found;
}

const char *sw_run_last_start(const struct sw_run *run) {
    return run->starts.count > 0 ? run->starts.items[run->starts.count - 1] : "";
}

/* Refuses a store whose last commit was made by a start that run.json does not list. */
static sw_status run_check_start(const struct sw_run *run, const struct sw_store *store, const char *place) {
    const struct sw_store_commit *commit = sw_store_last_commit(store);
    json_t *root;
    SW_TRY(sw_json_try(commit->meta, strlen(commit->meta), &root));
    const char *start = json_string_value(json_object_get(root, "start"));
    const bool known = start == NULL || start[0] == '\0' || find(run, start) >= 0;
    json_decref(root);
    return known
               ? SW_OK
               : sw_fail(SW_ERR_ARG,
                         "the store in %s was trained up to step %lld by way of another copy of this run's folder, or "
                         "by a later one: go on with that one, or bring its run.json here",
                         place, (long long)commit->step);
}

/* Reads and writes the stores of a run in run.json. */

/* Appends a store, with one number, to the array. Returns the array; or NULL on failure, with the array released. */
static json_t *append(json_t *array, const struct sw_run_store *store, const char *name, int64_t number) {
    json_t *entry = json_pack("{s:s, s:I, s:o}", "id", store->id, name, (json_int_t)number, "places",
                              sw_option_list_to_json(&store->places));
    if (json_array_append_new(array, entry) == 0)
        return array;
    json_decref(array);
    return NULL;
}

json_t *sw_run_stores_to_json(const struct sw_run_store *stores, int64_t count) {
    json_t *array = json_array();
    for (int64_t i = 0; stores != NULL && array != NULL && i < count; i++)
        array = append(array, &stores[i], "local_rank", stores[i].local_rank);
    return array;
}

static json_t *run_orphans_to_json(const struct sw_run *run) {
    json_t *array = json_array();
    for (int64_t i = 0; array != NULL && i < run->orphan_count; i++)
        array = append(array, &run->orphans[i], "last_step", run->orphans[i].last_step);
    return array;
}

/* Reads a list of strings; it is empty if the object does not have it. */
static sw_status run_list_from_json(const json_t *object, const char *name, const char *path,
                                    struct sw_option_list *out) {
    const json_t *list = json_object_get(object, name);
    const size_t count = list == NULL || json_is_array(list) ? json_array_size(list) : 1;
    for (size_t i = 0; i < count; i++) {
        const char *item = json_string_value(json_array_get(list, i));
        if (item == NULL)
            return sw_fail(SW_ERR_CORRUPT, "%s: '%s' is not a list of strings; restore the file", path, name);
        SW_TRY(sw_option_list_add(out, item));
    }
    return SW_OK;
}

static sw_status store_from_json(const json_t *entry, const char *path, struct sw_run_store *out) {
    const char *id = json_string_value(json_object_get(entry, "id"));
    const json_t *local_rank = json_object_get(entry, "local_rank"), *places = json_object_get(entry, "places");
    if (id == NULL || !json_is_integer(local_rank) || !json_is_array(places) || strlen(id) >= SW_STORE_ID_CHARS)
        return sw_fail(SW_ERR_CORRUPT, "%s does not give the id, local_rank and places of each store; restore the file",
                       path);
    snprintf(out->id, sizeof out->id, "%s", id);
    out->local_rank = json_integer_value(local_rank);
    return run_list_from_json(entry, "places", path, &out->places);
}

/* Reads the list of orphaned stores. Skips those of old versions, which wrote only a path: another run's store may be
 * there now. */
static sw_status orphans_from_json(const json_t *array, const char *path, struct sw_run *run) {
    const size_t count = array == NULL || json_is_array(array) ? json_array_size(array) : 1;
    run->orphans = calloc(count + 1, sizeof *run->orphans);
    if (run->orphans == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to read %s", path);
    for (size_t i = 0; i < count; i++) {
        const json_t *entry = json_array_get(array, i), *places = json_object_get(entry, "places");
        const json_t *last_step = json_object_get(entry, "last_step");
        const char *id = json_string_value(json_object_get(entry, "id"));
        if (json_is_string(entry)) {
            sw_log_warn(
                "%s lists %.200s as no longer needed, but not the id of its store, so it stays; remove it if it "
                "is this run's",
                path, json_string_value(entry));
            continue;
        }
        if (id == NULL || strlen(id) != SW_STORE_ID_CHARS - 1 || !json_is_integer(last_step) || !json_is_array(places))
            return sw_fail(SW_ERR_CORRUPT,
                           "%s does not give the id, last_step and places of each store that is left behind", path);
        struct sw_run_store *orphan = &run->orphans[run->orphan_count++];
        memcpy(orphan->id, id, SW_STORE_ID_CHARS);
        orphan->last_step = json_integer_value(last_step);
        SW_TRY(run_list_from_json(entry, "places", path, &orphan->places));
    }
    return SW_OK;
}

/* Reads the store of a run.json from a version with a single store per run. */
static sw_status take_only_store(const json_t *root, struct sw_run *run) {
    const char *id = json_string_value(json_object_get(root, "store_id"));
    snprintf(run->store->id, sizeof run->store->id, "%s", id != NULL ? id : "");
    struct sw_places places;
    if (run->settings.nvme.count == 0)
        return SW_OK;
    SW_TRY(sw_places_of(&run->settings.nvme, "", NULL, &places));
    sw_status status = SW_OK;
    for (int i = 0; status == SW_OK && i < places.count; i++)
        status = sw_option_list_add(&run->store->places, places.path[i]);
    sw_places_release(&places);
    return status;
}

static sw_status make_stores(int64_t ranks, struct sw_run *run) {
    run->store = calloc((size_t)ranks, sizeof *run->store);
    if (run->store == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the stores of %lld ranks", (long long)ranks);
    run->ranks = ranks;
    return SW_OK;
}

void sw_run_layout_to_json(const struct sw_run *run, json_t *root) {
    if (run->optimizer != SW_OPTIMIZER_FP32)
        json_object_set_new(root, "optimizer", json_string(sw_optimizer_format_name(run->optimizer)));
    if (run->expert_ranks > 1 && !run->joined)
        json_object_set_new(root, "experts_apart", json_true());
}

static sw_status optimizer_from_json(const json_t *root, const char *path, struct sw_run *run) {
    const json_t *name = json_object_get(root, "optimizer");
    run->optimizer = SW_OPTIMIZER_FP32;
    for (int format = 0; name != NULL && format < SW_OPTIMIZER_LAYOUTS; format++)
        if (json_is_string(name) &&
            strcmp(json_string_value(name), sw_optimizer_format_name((sw_optimizer_format)format)) == 0)
            run->optimizer = (sw_optimizer_format)format;
    return name == NULL || run->optimizer != SW_OPTIMIZER_FP32
               ? SW_OK
               : sw_fail(SW_ERR_CORRUPT, "%s names a format of its stores that does not exist; restore the file", path);
}

sw_status sw_run_stores_from_json(const json_t *root, const char *path, struct sw_run *run) {
    const json_t *stores = json_object_get(root, "stores"), *count = json_object_get(root, "ranks");
    run->tensor_ranks = sw_settings_part_ranks(&run->settings);
    run->expert_ranks = sw_settings_expert_ranks(&run->settings);
    snprintf(run->split, sizeof run->split, "%s", sw_settings_split(&run->settings));
    run->joined = run->expert_ranks > 1 && !json_is_true(json_object_get(root, "experts_apart"));
    run->tiles = run->settings.tiles;
    if (stores == NULL && count == NULL) {
        SW_TRY(make_stores(1, run));
        return take_only_store(root, run);
    }
    const json_int_t ranks = json_integer_value(count);
    if (ranks < 1 || ranks > SW_SETTINGS_MOST_RANKS || json_array_size(stores) != (size_t)ranks)
        return sw_fail(SW_ERR_CORRUPT, "%s does not give the number of ranks of its stores; restore the file", path);
    if (ranks % run->tensor_ranks != 0)
        return sw_fail(SW_ERR_CORRUPT, "%s gives %lld stores for groups of %lld ranks; restore the file", path,
                       (long long)ranks, (long long)run->tensor_ranks);
    SW_TRY(make_stores(ranks, run));
    run->whole = json_is_true(json_object_get(root, "whole"));
    SW_TRY(optimizer_from_json(root, path, run));
    for (int64_t rank = 0; rank < ranks; rank++)
        SW_TRY(store_from_json(json_array_get(stores, (size_t)rank), path, &run->store[rank]));
    SW_TRY(run_list_from_json(root, "starts", path, &run->starts));
    return orphans_from_json(json_object_get(root, "left"), path, run);
}

void sw_run_stores_release(struct sw_run_store *store, int64_t ranks) {
    for (int64_t rank = 0; store != NULL && rank < ranks; rank++)
        sw_option_list_release(&store[rank].places);
    free(store);
}

enum { LOST_CHARS = 32 };

/* Warns about damaged commit records: a step that is or may be lost must be reported. */
static void warn_of_bad_records(const struct sw_store *store) {
    static const char *const meanings[] = {
        [SW_STORE_RECORD_HARMLESS] = "it is that of an earlier commit, or of one that never finished",
        [SW_STORE_RECORD_LOST] = "its commit had finished, and it has been damaged since",
        [SW_STORE_RECORD_UNSURE] = "its commit never finished, or it has been damaged since"};
    const struct sw_store_bad_record *bad;
    const int count = sw_store_bad_records(store, &bad);
    const long long opened = (long long)sw_store_last_commit(store)->step;
    for (int i = 0; i < count; i++) {
        char lost[LOST_CHARS] = "a later step";
        if (bad[i].step >= 0)
            snprintf(lost, sizeof lost, "step %lld", (long long)bad[i].step);
        if (bad[i].loss == SW_STORE_RECORD_HARMLESS)
            sw_log_info(
                "%s: a commit record at offset %lld is not whole: %s; nothing is lost, step %lld is whole, and the "
                "next commit replaces it",
                bad[i].path, (long long)bad[i].offset_bytes, meanings[bad[i].loss], opened);
        else
            sw_log_warn(
                "%s: a commit record at offset %lld is damaged: %s %s lost: %s; the store is opened at step %lld",
                bad[i].path, (long long)bad[i].offset_bytes, lost,
                bad[i].loss == SW_STORE_RECORD_LOST ? "is" : "may be", meanings[bad[i].loss], opened);
    }
}

sw_status sw_run_places(const char *folder, const struct sw_run *run, int64_t rank, const struct sw_option_list *moved,
                        struct sw_places *out) {
    const struct sw_run_store *store = &run->store[rank];
    const struct sw_store_owner owner = {.rank = rank,
                                         .ranks = run->ranks,
                                         .local_rank = store->local_rank,
                                         .tensor_ranks = run->tensor_ranks,
                                         .expert_ranks = run->expert_ranks,
                                         .split = run->split,
                                         .joined = run->joined,
                                         .whole = run->whole,
                                         .optimizer = run->optimizer};
    static const struct sw_option_list none = {0};
    if (moved != NULL && moved->count > 0)
        return sw_places_of_rank(moved, folder, &owner, out);
    return store->places.count == 0 ? sw_places_of_rank(&none, folder, &owner, out)
                                    : sw_places_exactly(&store->places, out);
}

static sw_status check_id(const struct sw_store *store, const struct sw_places *places, const struct sw_run *run,
                          int64_t rank) {
    char id[SW_STORE_ID_CHARS];
    const char *wanted = run->store[rank].id;
    if (wanted[0] == '\0' || strcmp(sw_store_id(store, id), wanted) == 0)
        return SW_OK;
    for (int64_t other = 0; other < run->ranks; other++)
        if (strcmp(id, run->store[other].id) == 0)
            return sw_fail(SW_ERR_ARG, "the store in %s is that of rank %lld, not of rank %lld", places->path[0],
                           (long long)other, (long long)rank);
    return sw_fail(SW_ERR_ARG, "the store in %s is another run's: name the place of this run's by --nvme",
                   places->path[0]);
}

static sw_status check_opened(struct sw_store *store, const struct sw_places *places, const struct sw_run *run,
                              int64_t rank) {
    for (int i = 0; i < places->count; i++)
        SW_TRY(sw_store_limit(store, places->path[i], places->most_bytes[i]));
    SW_TRY(check_id(store, places, run, rank));
    if (sw_store_optimizer(store) != run->optimizer)
        return sw_fail(
            SW_ERR_CORRUPT,
            "the store in %s holds optimizer state of %s, but run.json says %s: restore the file that belongs "
            "to the other",
            places->path[0], sw_optimizer_format_name(sw_store_optimizer(store)),
            sw_optimizer_format_name(run->optimizer));
    SW_TRY(run_check_start(run, store, places->path[0]));
    warn_of_bad_records(store);
    return SW_OK;
}

static sw_status keep_checked(struct sw_store *store, const struct sw_places *places, const struct sw_run *run,
                              int64_t rank, struct sw_store **out) {
    const sw_status status = check_opened(store, places, run, rank);
    if (status != SW_OK)
        sw_store_close(store);
    else
        *out = store;
    return status;
}

sw_status sw_run_open_places(const struct sw_places *places, const struct sw_run *run, int64_t rank, int64_t most_step,
                             struct sw_store **out) {
    struct sw_store *store;
    SW_TRY(sw_store_open(places->path, places->count, run->settings.allow_buffered, most_step, &store));
    return keep_checked(store, places, run, rank, out);
}

static sw_status open_to_read(const struct sw_places *places, const struct sw_run *run, int64_t rank, int64_t most_step,
                              struct sw_store **out) {
    struct sw_store *store;
    SW_TRY(sw_store_open_to_read(places->path, places->count, most_step, &store));
    return keep_checked(store, places, run, rank, out);
}

static sw_status open_one(const char *folder, const struct sw_run *run, int64_t rank,
                          const struct sw_option_list *moved, int64_t most_step, struct sw_store **out) {
    struct sw_places places;
    SW_TRY(sw_run_places(folder, run, rank, moved, &places));
    const sw_status status = open_to_read(&places, run, rank, most_step, out);
    sw_places_release(&places);
    return status == SW_OK || run->ranks == 1 ? status
                                              : sw_fail_while(status, "opening the store of rank %lld of %lld",
                                                              (long long)rank, (long long)run->ranks);
}

static sw_status open_set(const char *folder, const struct sw_run *run, const struct sw_stores_choice *choice,
                          struct sw_open_stores *out) {
    int64_t step = choice->most_step;
    for (int64_t rank = 0; rank < run->ranks; rank++) {
        if (choice->wanted != NULL && !choice->wanted[rank])
            continue;
        SW_TRY(open_one(folder, run, rank, choice->moved, choice->most_step, &out->store[rank]));
        step = sw_min_i64(step, sw_store_last_commit(out->store[rank])->step);
    }
    for (int64_t rank = 0; rank < run->ranks; rank++) {
        if (out->store[rank] == NULL || sw_store_last_commit(out->store[rank])->step == step)
            continue;
        sw_store_close(out->store[rank]);
        out->store[rank] = NULL;
        SW_TRY(open_one(folder, run, rank, choice->moved, step, &out->store[rank]));
        if (sw_store_last_commit(out->store[rank])->step != step)
            return sw_fail(SW_ERR_CORRUPT, "the store of rank %lld has no commit of step %lld, the newest of all ranks",
                           (long long)rank, (long long)step);
    }
    return SW_OK;
}

sw_status sw_run_open_stores(const char *folder, const struct sw_run *run, const struct sw_stores_choice *choice,
                             struct sw_open_stores *out) {
    *out = (struct sw_open_stores){.count = (int)run->ranks,
                                   .store = calloc((size_t)run->ranks, sizeof(struct sw_store *))};
    const sw_status status = out->store == NULL
                                 ? sw_fail(SW_ERR_NOMEM, "no memory to open %lld stores", (long long)run->ranks)
                                 : open_set(folder, run, choice, out);
    if (status != SW_OK)
        sw_open_stores_close(out);
    return status;
}

sw_status sw_run_open_to_read(const char *folder, const struct sw_option_list *moved, struct sw_run *run,
                              struct sw_open_stores *out) {
    struct sw_confined *confined = NULL;
    sw_status status = sw_confine(folder, &confined);
    if (status == SW_OK)
        status = sw_run_read(folder, run);
    const struct sw_stores_choice newest = {.moved = moved, .most_step = SW_STORE_NEWEST};
    if (status == SW_OK)
        status = sw_run_open_stores(folder, run, &newest, out);
    sw_confine_end(confined);
    return status != SW_OK && run_is_locked(folder) ? SW_ERR_OVERTAKEN : status;
}

bool sw_run_store_is_of(const struct sw_store *store, const struct sw_units *units) {
    bool same = sw_store_unit_count(store) == units->count;
    for (int64_t unit = 0; same && unit < units->count; unit++)
        same = sw_store_unit_whole_grains(store, unit) == units->unit[unit].grains;
    return same;
}

void sw_open_stores_close(struct sw_open_stores *set) {
    for (int i = 0; set->store != NULL && i < set->count; i++)
        sw_store_close(set->store[i]);
    free(set->store);
    *set = (struct sw_open_stores){0};
}

#define MOST_STEPS (1LL << 53)
/* Version 2 of the learning rate's curve. In version 1, and in files without a version, the last step has min_lr. A run
 * keeps its curve. */
enum { SCHEDULE_VERSION = 2 };
enum { DIGEST_CHARS = 24, REAL_CHARS = 32, RECENT_CHARS = 224, REWARDS_CHARS = 160 };

static void digest_text(uint64_t digest, char text[DIGEST_CHARS]) {
    snprintf(text, DIGEST_CHARS, "%016" PRIx64, digest);
}

/* Writes what names of text stood for, if that is known. */
static void put_files(json_t *root, const char *name, const struct sw_text_files *files) {
    char digest[DIGEST_CHARS], content[DIGEST_CHARS];
    digest_text(files->digest, digest);
    digest_text(files->content, content);
    if (files->count > 0)
        json_object_set_new(root, name,
                            json_pack("{s:I, s:I, s:s, s:s, s:I}", "count", (json_int_t)files->count, "bytes",
                                      (json_int_t)files->bytes, "digest", digest, "content", content, "modified_ns",
                                      (json_int_t)files->modified_ns));
}

sw_status sw_run_write(const char *folder, const struct sw_run *run) {
    json_t *settings = NULL, *model = NULL;
    char *config = NULL, path[SW_RUN_PATH_CHARS], digest[DIGEST_CHARS];
    digest_text(run->data_digest, digest);
    SW_TRY(sw_path_join(path, sizeof path, folder, "run.json"));
    SW_TRY(sw_config_to_json(&run->config, &config));
    sw_status status = sw_json_try(config, strlen(config), &model);
    if (status == SW_OK)
        status = sw_options_to_json(&sw_train_command, &run->settings, &settings);
    json_t *root = json_pack(
        "{s:i, s:s, s:i, s:i, s:o, s:o, s:s, s:I, s:b, s:o, s:o, s:o, s:o, s:o, s:o}", "version", SW_RUN_VERSION,
        "spillway", SW_VERSION, "schedule_version", run->settings.min_lr_at_last ? 1 : SCHEDULE_VERSION, "text_version",
        run->settings.old_text ? 0 : SW_RUN_TEXT_VERSION, "settings", settings, "config", model, "data_digest", digest,
        "ranks", (json_int_t)run->ranks, "whole", run->whole, "stores", sw_run_stores_to_json(run->store, run->ranks),
        "left", run_orphans_to_json(run), "starts", sw_option_list_to_json(&run->starts), "beside",
        sw_option_list_to_json(&run->beside), "data_text", sw_option_list_to_json(&run->texts.data), "val_text",
        sw_option_list_to_json(&run->texts.val));
    free(config);
    put_files(root, "data_files", &run->texts.data_files);
    put_files(root, "val_files", &run->texts.val_files);
    /* Nothing is added to or by what there is no memory for, nor by a member that is NULL. */
    sw_run_layout_to_json(run, root);
    json_object_set_new(root, "turn_end",
                        json_pack("{s:i, s:s}", "id", (int)run->turn_end.id, "token", run->turn_end.token));
    digest_text(run->frozen_digest, digest);
    if (run->frozen_digest != 0)
        json_object_set_new(root, "frozen_digest", json_string(digest));
    digest_text(run->reference_digest, digest);
    if (run->reference_digest != 0)
        json_object_set_new(root, "reference_digest", json_string(digest));
    if (run->products.library != 0)
        json_object_set_new(root, "products", sw_algorithm_record_to_json(&run->products));
    json_object_set(root, "model_files", run->model_files);
    json_object_set(root, "machine", run->machine);
    json_object_set(root, "prediction", run->prediction);
    if (status == SW_OK)
        return sw_json_write_checked_file(path, root, SW_FILE_PRIVATE);
    json_decref(root);
    return status;
}

static sw_status read_config(const json_t *object, const char *path, struct sw_model_config *out) {
    char *text = sw_json_text(object, 0);
    if (text == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to read %s", path);
    const sw_status status = sw_config_parse(text, path, out);
    free(text);
    return status;
}

/* Reads the digest of frozen weights, if the run has them. */
static sw_status read_frozen(const json_t *root, const char *path, struct sw_run *run) {
    const char *digest = json_string_value(json_object_get(root, "frozen_digest"));
    const bool read = digest != NULL && sscanf(digest, "%" SCNx64, &run->frozen_digest) == 1;
    return read || !sw_tuning_freezes(&run->settings.tuning)
               ? SW_OK
               : sw_fail(SW_ERR_CORRUPT, "%s lacks the frozen_digest of its frozen weights; restore the file", path);
}

/* Reads the digest of the reference, which a run without pairs lacks, and one that was killed before it was computed.
 */
static void read_reference(const json_t *root, struct sw_run *run) {
    const char *digest = json_string_value(json_object_get(root, "reference_digest"));
    if (digest == NULL || sscanf(digest, "%" SCNx64, &run->reference_digest) != 1)
        run->reference_digest = 0;
}

/* Reads the token that ends turns. Older runs, and runs that do not learn one, have none. */
static sw_status read_turn_end(const json_t *root, struct sw_run *run) {
    const json_t *end = json_object_get(root, "turn_end"), *id = json_object_get(end, "id");
    const char *token = json_string_value(json_object_get(end, "token"));
    if (token == NULL || !json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > INT32_MAX)
        return SW_OK;
    run->turn_end = (struct sw_turn_end){.id = (int32_t)json_integer_value(id), .token = strdup(token)};
    return run->turn_end.token != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory to read run.json");
}

/* Reads what names of text stood for; unknown in older runs. */
static void read_files(const json_t *root, const char *name, struct sw_text_files *out) {
    const json_t *files = json_object_get(root, name);
    const char *digest = json_string_value(json_object_get(files, "digest"));
    const char *content = json_string_value(json_object_get(files, "content"));
    const json_int_t count = json_integer_value(json_object_get(files, "count"));
    const json_int_t bytes = json_integer_value(json_object_get(files, "bytes"));
    if (digest != NULL && count > 0 && bytes >= 0 && sscanf(digest, "%" SCNx64, &out->digest) == 1) {
        out->count = count;
        out->bytes = bytes;
        out->modified_ns = json_integer_value(json_object_get(files, "modified_ns"));
        if (content == NULL || sscanf(content, "%" SCNx64, &out->content) != 1)
            out->content = 0;
    }
}

static sw_status parse_run(const json_t *root, const char *path, struct sw_run *run) {
    const json_int_t version = json_integer_value(json_object_get(root, "version"));
    const json_t *settings = json_object_get(root, "settings"), *config = json_object_get(root, "config");
    const char *digest = json_string_value(json_object_get(root, "data_digest"));
    if (version != SW_RUN_VERSION)
        return sw_fail(SW_ERR_UNSUPPORTED, "%s has version %lld; this program reads version %d", path,
                       (long long)version, SW_RUN_VERSION);
    if (!json_is_object(settings) || !json_is_object(config) || digest == NULL ||
        sscanf(digest, "%" SCNx64, &run->data_digest) != 1)
        return sw_fail(SW_ERR_CORRUPT, "%s lacks settings, config or data_digest; restore the file", path);
    SW_TRY(sw_options_from_json(&sw_train_command, settings, path, &run->settings));
    run->settings.min_lr_at_last = json_integer_value(json_object_get(root, "schedule_version")) < SCHEDULE_VERSION;
    run->settings.old_text = json_integer_value(json_object_get(root, "text_version")) < SW_RUN_TEXT_VERSION;
    for (int i = 0; i < run->settings.nvme.count; i++)
        SW_TRY(sw_option_list_add(&run->nvme, run->settings.nvme.items[i]));
    run->trains = run->settings.tuning.optimizer;
    if (run->settings.tuning.optimizer_for != NULL &&
        (run->optimizer_for = strdup(run->settings.tuning.optimizer_for)) == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the settings of %s", path);
    SW_TRY(run_list_from_json(root, "beside", path, &run->beside));
    SW_TRY(run_list_from_json(root, "data_text", path, &run->texts.data));
    SW_TRY(run_list_from_json(root, "val_text", path, &run->texts.val));
    read_files(root, "data_files", &run->texts.data_files);
    read_files(root, "val_files", &run->texts.val_files);
    SW_TRY(read_turn_end(root, run));
    SW_TRY(read_frozen(root, path, run));
    read_reference(root, run);
    SW_TRY(sw_run_stores_from_json(root, path, run));
    run->settings.padded_records = run->optimizer == SW_OPTIMIZER_MUON_BF16_PADDED;
    if (sw_settings_optimizer(&run->settings) != run->optimizer)
        return sw_fail(SW_ERR_CORRUPT,
                       "%s says that the optimizer state is %s and that its stores hold %s; restore the file", path,
                       sw_optimizer_format_name(sw_settings_optimizer(&run->settings)),
                       sw_optimizer_format_name(run->optimizer));
    run->model_files = json_incref(json_object_get(root, "model_files"));
    run->machine = json_incref(json_object_get(root, "machine"));
    run->prediction = json_incref(json_object_get(root, "prediction"));
    SW_TRY(sw_algorithm_record_from_json(json_object_get(root, "products"), path, &run->products));
    SW_TRY(read_config(config, path, &run->config));
    return sw_model_group_experts(&run->config, run->settings.expert_group);
}

sw_status sw_run_read(const char *folder, struct sw_run *run) {
    char path[SW_RUN_PATH_CHARS];
    json_t *root;
    SW_TRY(sw_path_join(path, sizeof path, folder, "run.json"));
    if (!sw_run_is_one(folder))
        return sw_fail(
            SW_ERR_ARG,
            "%s is not the folder of a run: it has no run.json (if the run ended before its first commit, start "
            "it again with train)",
            folder);
    if (access(path, R_OK) != 0 && errno == EACCES)
        return sw_fail(SW_ERR_ARG, "%s cannot be read (%s); if it belongs to another user, ask for permission", path,
                       strerror(EACCES));
    SW_TRY(sw_options_defaults(&sw_train_command, &run->settings));
    SW_TRY(sw_json_read_checked_file(path, SW_RUN_JSON_LIMIT_BYTES, SW_ERR_CORRUPT, &root));
    const sw_status status = parse_run(root, path, run);
    json_decref(root);
    return status;
}

sw_status sw_run_move_model(struct sw_run *run, const char *model) {
    char *copy = model != NULL ? strdup(model) : NULL;
    if (model == NULL)
        return SW_OK;
    if (copy == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the name of the model");
    free(run->optimizer_for);
    free(run->moved_model);
    run->moved_model = copy;
    return SW_OK;
}

void sw_run_release(struct sw_run *run) {
    sw_options_release(&sw_train_command, &run->settings);
    sw_run_stores_release(run->store, run->ranks);
    sw_option_list_release(&run->nvme);
    sw_option_list_release(&run->beside);
    free(run->moved_model);
    free(run->turn_end.token);
    sw_option_list_release(&run->texts.data);
    sw_option_list_release(&run->texts.val);
    sw_run_stores_release(run->orphans, run->orphan_count);
    sw_option_list_release(&run->starts);
    sw_algorithm_record_release(&run->products);
    json_decref(run->model_files);
    json_decref(run->machine);
    json_decref(run->prediction);
    *run = (struct sw_run){0};
}

bool sw_run_is_one(const char *folder) {
    SW_HANDLES_ERRORS();
    char path[SW_RUN_PATH_CHARS];
    if (sw_path_join(path, sizeof path, folder, "run.json") != SW_OK)
        return false;
    /* A folder that this user may not search counts as a run here; reading it reports the reason. */
    return sw_path_exists(path) || errno == EACCES;
}

/* JSON has only finite numbers; others are written as null. */
static const char *real_text(double value, char text[REAL_CHARS]) {
    snprintf(text, REAL_CHARS, isfinite(value) ? "%.17g" : "null", value);
    return text;
}

/* Writes the rewards of a step as members of its object; nothing if there are none. */
static const char *rewards_text(const struct sw_rewards *rewards, char text[REWARDS_CHARS]) {
    char chosen[REAL_CHARS], rejected[REAL_CHARS], accuracy[REAL_CHARS];
    text[0] = '\0';
    if (rewards->pairs > 0)
        snprintf(text, REWARDS_CHARS, ", \"rewards\": [%lld, %s, %s, %s]", (long long)rewards->pairs,
                 real_text(rewards->chosen, chosen), real_text(rewards->rejected, rejected),
                 real_text(rewards->accuracy, accuracy));
    return text;
}

sw_status sw_run_position_write(const struct sw_run_position *position, uint64_t data_digest, char *text,
                                size_t chars) {
    char digest[DIGEST_CHARS], recent[SW_RUN_RECENT_STEPS * (RECENT_CHARS + REWARDS_CHARS)] = "", loss[REAL_CHARS],
                                                                            norm[REAL_CHARS], lr[REAL_CHARS];
    char rewards[REWARDS_CHARS];
    size_t length = 0;
    digest_text(data_digest, digest);
    for (int i = 0; i < SW_RUN_RECENT_STEPS; i++) {
        const struct sw_run_step *step = &position->recent[i];
        if (step->step > 0)
            length += (size_t)snprintf(recent + length, RECENT_CHARS + REWARDS_CHARS,
                                       "%s{\"step\": %lld, \"loss\": %s, \"loss_tokens\": %lld, \"grad_norm\": %s, "
                                       "\"lr\": %s, \"skipped\": %s%s}",
                                       length > 0 ? ", " : "", (long long)step->step, real_text(step->loss, loss),
                                       (long long)step->loss_tokens, real_text(step->grad_norm, norm),
                                       real_text(step->lr, lr), step->skipped ? "true" : "false",
                                       rewards_text(&step->rewards, rewards));
    }
    const int used = snprintf(text, chars,
                              "{\"step\": %lld, \"applied_steps\": %lld, \"skipped_steps\": %lld, "
                              "\"loss_scale\": %.17g, \"good_steps\": %lld, \"recent\": [%s], "
                              "\"start\": \"%s\", \"data_digest\": \"%s\"}",
                              (long long)position->step, (long long)position->applied_steps,
                              (long long)position->skipped_steps, position->loss_scale.scale,
                              (long long)position->loss_scale.good_steps, recent, position->start, digest);
    return used < 0 || (size_t)used >= chars ? sw_fail(SW_ERR_INTERNAL, "the commit's text is too long") : SW_OK;
}

static double real_or_nan(const json_t *value) {
    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

static void read_rewards(const json_t *rewards, struct sw_rewards *out) {
    *out = (struct sw_rewards){.pairs = json_integer_value(json_array_get(rewards, 0)),
                               .chosen = real_or_nan(json_array_get(rewards, 1)),
                               .rejected = real_or_nan(json_array_get(rewards, 2)),
                               .accuracy = real_or_nan(json_array_get(rewards, 3))};
    out->margin = out->chosen - out->rejected;
}

static sw_status read_recent(const json_t *recent, struct sw_run_position *out) {
    for (size_t i = 0; i < SW_RUN_RECENT_STEPS && i < json_array_size(recent); i++) {
        const json_t *step = json_array_get(recent, i);
        const json_t *loss_tokens = json_object_get(step, "loss_tokens");
        out->recent[i] = (struct sw_run_step){.step = json_integer_value(json_object_get(step, "step")),
                                              .loss = real_or_nan(json_object_get(step, "loss")),
                                              .loss_tokens = loss_tokens != NULL ? json_integer_value(loss_tokens) : -1,
                                              .grad_norm = real_or_nan(json_object_get(step, "grad_norm")),
                                              .lr = real_or_nan(json_object_get(step, "lr")),
                                              .skipped = json_is_true(json_object_get(step, "skipped"))};
        read_rewards(json_object_get(step, "rewards"), &out->recent[i].rewards);
        if (out->recent[i].step < 0 || out->recent[i].step > out->step)
            return sw_fail(SW_ERR_CORRUPT, "the store's commit of step %lld holds the position of step %lld",
                           (long long)out->step, (long long)out->recent[i].step);
    }
    return SW_OK;
}

/* Steps are also kept as doubles, which must hold them exactly. */
static bool is_count(long long value) {
    return value >= 0 && value <= MOST_STEPS;
}

sw_status sw_run_position_read(const char *text, uint64_t expected_digest, struct sw_run_position *out) {
    json_t *root, *recent;
    SW_TRY(sw_json_try(text, strlen(text), &root));
    long long step, applied, skipped, good_steps;
    double scale;
    const char *digest, *start = json_string_value(json_object_get(root, "start"));
    uint64_t value = 0;
    sw_status status = SW_OK;
    if (json_unpack(root, "{s:I, s:I, s:I, s:F, s:I, s:o, s:s}", "step", &step, "applied_steps", &applied,
                    "skipped_steps", &skipped, "loss_scale", &scale, "good_steps", &good_steps, "recent", &recent,
                    "data_digest", &digest) != 0 ||
        sscanf(digest, "%" SCNx64, &value) != 1)
        status = sw_json_lacked_memory()
                     ? sw_fail(SW_ERR_NOMEM, "no memory to read the position of the run")
                     : sw_fail(SW_ERR_CORRUPT, "the store's commit does not hold the position of the run");
    else if (!is_count(step) || !is_count(applied) || !is_count(skipped) || !is_count(good_steps) || !isfinite(scale) ||
             scale <= 0.0)
        status =
            sw_fail(SW_ERR_CORRUPT,
                    "the store's commit holds an impossible position: step %lld, of which %lld were applied and %lld "
                    "skipped, with the loss scale %g",
                    step, applied, skipped, scale);
    else if (value != expected_digest)
        status = sw_fail(SW_ERR_ARG, "the store belongs to a run on other data");
    if (status == SW_OK) {
        *out = (struct sw_run_position){.step = step,
                                        .applied_steps = applied,
                                        .skipped_steps = skipped,
                                        .loss_scale = {.scale = scale, .good_steps = good_steps}};
        if (start != NULL)
            snprintf(out->start, sizeof out->start, "%s", start);
        status = read_recent(recent, out);
    }
    json_decref(root);
    return status;
}

enum { LOST_FILES_CHARS = 512 };

static bool is_folder(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* Warns about files that may not be copied. Returns whether the others are of use without them. */
static bool can_be_kept(const char *model) {
    struct sw_model_file file;
    bool is_whole = true;
    for (int i = 0; sw_model_file_names[i] != NULL; i++) {
        const char *name = sw_model_file_names[i];
        sw_model_file_look(model, name, &file);
        if (!file.is_there || file.refused[0] == '\0')
            continue;
        is_whole &= i >= SW_MODEL_TEXT_FILES;
        if (i < SW_MODEL_TEXT_FILES)
            sw_log_warn("the run keeps no copies of the tokenizer and the configuration, and needs %s as long as it is "
                        "used: %s is not copied, as %s",
                        model, name, file.refused);
        else
            sw_log_warn("the run keeps no copy of %s/%s, as %s", model, name, file.refused);
    }
    return is_whole;
}

/* Writes the digest of a file in run.json's form. */
static sw_status digest_of(const char *path, char text[DIGEST_CHARS]) {
    XXH3_state_t *hash = XXH3_createState();
    if (hash == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to read %s", path);
    XXH3_64bits_reset(hash);
    const sw_status status = sw_digest_file(hash, path);
    snprintf(text, DIGEST_CHARS, "%016" PRIx64, XXH3_64bits_digest(hash));
    XXH3_freeState(hash);
    return status;
}

static sw_status copy_files(const char *model, const char *to, json_t *digests) {
    struct sw_model_file file;
    char path[PATH_MAX], digest[DIGEST_CHARS];
    for (int i = 0; sw_model_file_names[i] != NULL; i++) {
        sw_model_file_look(model, sw_model_file_names[i], &file);
        if (!file.is_there || file.refused[0] != '\0')
            continue;
        SW_TRY(sw_path_join(path, sizeof path, to, sw_model_file_names[i]));
        SW_TRY(sw_file_copy(file.path, path, SW_FILE_PRIVATE));
        SW_TRY(digest_of(path, digest));
        if (json_object_set_new(digests, sw_model_file_names[i], json_string(digest)) != 0)
            return sw_fail(SW_ERR_NOMEM, "no memory for the files of the model");
    }
    return json_object_size(digests) > 0 ? sw_file_flush_folder_of(path) : SW_OK;
}

sw_status sw_run_keep_model(const char *folder, const char *model, json_t **out) {
    *out = NULL;
    if (!is_folder(model) || !can_be_kept(model))
        return SW_OK;
    *out = json_object();
    return copy_files(model, folder, *out);
}

enum { DAMAGE_CHARS = 96 };

/* Returns what is wrong with a copy, perhaps in text[]; NULL: nothing. */
static const char *damage_of(const char *path, const char *digest, char text[DAMAGE_CHARS]) {
    SW_HANDLES_ERRORS();
    char found[DIGEST_CHARS];
    struct stat info;
    if (sw_path_lstat(path, &info) != 0)
        return "missing";
    if (!S_ISREG(info.st_mode))
        return "no regular file";
    if (digest_of(path, found) != SW_OK) {
        snprintf(text, DAMAGE_CHARS, "cannot be read: %s", strerror(errno));
        return text;
    }
    return digest != NULL && strcmp(found, digest) == 0 ? NULL : "wrong checksum";
}

json_t *sw_run_damaged_copies(const char *folder, const json_t *digests) {
    json_t *list = json_array();
    for (int i = 0; sw_model_file_names[i] != NULL && list != NULL; i++) {
        const json_t *digest = json_object_get(digests, sw_model_file_names[i]);
        char path[PATH_MAX], text[DAMAGE_CHARS];
        if (digest == NULL || snprintf(path, sizeof path, "%s/%s", folder, sw_model_file_names[i]) >= PATH_MAX)
            continue;
        const char *damage = damage_of(path, json_string_value(digest), text);
        if (damage != NULL &&
            json_array_append_new(list, json_pack("{s:s, s:s}", "file", path, "reason", damage)) != 0) {
            json_decref(list);
            list = NULL;
        }
    }
    return list;
}

/* Finds out whether a run's folder has copies. Refuses links among them: the folder may come from somebody else. */
static sw_status look_for_copies(const char *folder, bool *out_any) {
    char path[PATH_MAX];
    struct stat info;
    *out_any = false;
    for (int i = 0; sw_model_file_names[i] != NULL; i++) {
        SW_TRY(sw_path_join(path, sizeof path, folder, sw_model_file_names[i]));
        if (sw_path_lstat(path, &info) != 0)
            continue;
        if (S_ISLNK(info.st_mode))
            return sw_fail(SW_ERR_ARG, "%s is a link, which is not followed in the folder of a run: put the file there",
                           path);
        *out_any = true;
    }
    return SW_OK;
}

sw_status sw_run_model_folder(const char *folder, const char *model, char **out) {
    bool has_copies = false;
    if (folder != NULL)
        SW_TRY(look_for_copies(folder, &has_copies));
    const char *found = has_copies ? folder : is_folder(model) ? model : NULL;
    char *copy = found != NULL ? strdup(found) : NULL;
    free(*out);
    *out = copy;
    return copy != NULL || found == NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory to open the model");
}

const char *sw_run_base(const struct sw_run *run) {
    const char *model = run->moved_model != NULL ? run->moved_model : run->settings.model;
    return !run->settings.init && model != NULL && sw_folder_has_weights(model) ? model : NULL;
}

sw_status sw_run_or_model_folder(const char *run_or_model, char **out) {
    struct sw_run run = {0};
    *out = NULL;
    if (!sw_run_is_one(run_or_model)) {
        *out = strdup(run_or_model);
        return *out != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory to open the model");
    }
    sw_status status = sw_run_read(run_or_model, &run);
    if (status == SW_OK)
        status = sw_run_model_folder(run_or_model, run.settings.model, out);
    if (status == SW_OK && *out == NULL)
        status = sw_fail(SW_ERR_ARG, "the run %s keeps no tokenizer, and the folder of its model %s is not there",
                         run_or_model, run.settings.model);
    sw_run_release(&run);
    return status;
}

/* Lists the copies that an export does not have. */
static void list_lost(const char *export, const json_t *digests, char *text, size_t chars) {
    size_t used = 0;
    for (int i = 0; sw_model_file_names[i] != NULL; i++) {
        char path[PATH_MAX];
        const bool is_copied = json_object_get(digests, sw_model_file_names[i]) != NULL;
        if (is_copied && snprintf(path, sizeof path, "%s/%s", export, sw_model_file_names[i]) < PATH_MAX &&
            !sw_path_exists(path))
            used += (size_t)snprintf(text + used, chars - used, "%s%s", used > 0 ? ", " : "", sw_model_file_names[i]);
    }
}

const char *sw_run_model_lack(const char *export, const struct sw_run_model *from, char text[SW_RUN_MODEL_CHARS]) {
    char lost[LOST_FILES_CHARS] = "";
    list_lost(export, from->digests, lost, sizeof lost);
    text[0] = '\0';
    if (lost[0] != '\0')
        snprintf(text, SW_RUN_MODEL_CHARS, ", without %s: restore what the run's folder lacks from any copy of it",
                 lost);
    else if (sw_model_text_is_there(export))
        return text;
    else if (sw_model_text_is_there(from->folder))
        snprintf(text, SW_RUN_MODEL_CHARS, ", without tokenizer.json: that of %s was not copied", from->folder);
    else if (from->folder != NULL || from->model[0] != '/' || sw_path_exists(from->model))
        snprintf(text, SW_RUN_MODEL_CHARS, ", without tokenizer.json: %s has none",
                 from->folder != NULL ? from->folder : from->model);
    else
        snprintf(text, SW_RUN_MODEL_CHARS,
                 ", without tokenizer.json and other files of %s, which is gone: copy them there if you have them",
                 from->model);
    return text;
}
