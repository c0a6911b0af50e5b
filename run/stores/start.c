/* The start of a new run, and what an interrupted start left behind.
 *
 * A start writes gigabytes of stores, perhaps on several machines, before there is a run.json. starting.json is written
 * and flushed first and lists everything the start will create, so a start that is killed can be undone by the next one
 * without a guess. It is created exclusively: of two starts in one folder one fails, even on a file system without
 * locks. Removing by directory contents alone was no option, since the --nvme folders may hold other runs. */
#include "run/stores/start.h"

#include "core/confine.h"
#include "core/files/files.h"
#include "core/files/model_files.h"
#include "core/json.h"
#include "core/log.h"
#include "core/status.h"
#include "io/store/block.h"
#include "run/folder/frozen.h"
#include "run/folder/run.h"
#include "run/stores/orphans.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { START_VERSION = 1 };
#define START_LIMIT_BYTES ((size_t)16 << 20)

static sw_status write_and_flush(int file, const char *path, const char *text) {
    SW_TRY(sw_file_write_all(file, path, text, strlen(text)));
    return fsync(file) == 0 ? SW_OK : sw_fail(SW_ERR_IO, "cannot flush %s: %s", path, strerror(errno));
}

sw_status sw_unfinished_start_write(int file, const char *path, const struct sw_run *run) {
    const int64_t experts = sw_max_i64(1, run->expert_ranks);
    json_t *root = json_pack("{s:i, s:I, s:I, s:b, s:o}", "spillway_start", START_VERSION, "ranks",
                             (json_int_t)run->ranks, "tensor", (json_int_t)(run->tensor_ranks / experts), "whole",
                             run->whole, "stores", sw_run_stores_to_json(run->store, run->ranks));
    if (experts > 1)
        json_object_set_new(root, "experts", json_integer(experts));
    if (run->split[0] != '\0')
        json_object_set_new(root, "pipeline", json_string(run->split));
    sw_run_layout_to_json(run, root);
    char *text = root == NULL ? NULL : sw_json_checked_text(root);
    const sw_status status =
        text == NULL ? sw_fail(SW_ERR_NOMEM, "no memory to write %s", path) : write_and_flush(file, path, text);
    free(text);
    json_decref(root);
    return status;
}

/* The names of the ranks' folders contain the size of groups. Older versions did not write it. */
static int64_t read_group(const json_t *root, const char *name) {
    const json_int_t ranks = json_integer_value(json_object_get(root, name));
    return ranks > 1 && ranks <= SW_SETTINGS_MOST_RANKS ? ranks : 1;
}

/* An incomplete file was never flushed, and nothing is created before the flush. */
static sw_status parse(const char *text, const char *path, struct sw_unfinished_start *out) {
    json_t *root;
    SW_TRY(sw_json_try(text, strlen(text), &root));
    if (root == NULL)
        return SW_OK;
    sw_status status;
    out->run.settings.tensor = read_group(root, "tensor");
    out->run.settings.experts = read_group(root, "experts");
    const char *split = json_string_value(json_object_get(root, "pipeline"));
    if (!sw_json_is_as_written(text, root))
        status = sw_fail(SW_ERR_CORRUPT,
                         "%s does not match its checksum, so what an unfinished start has left is not known: name "
                         "another folder, or remove this one",
                         path);
    else if (json_integer_value(json_object_get(root, "spillway_start")) != START_VERSION ||
             json_object_get(root, "ranks") == NULL)
        status = sw_fail(SW_ERR_UNSUPPORTED,
                         "%s is not of a start that this program knows: name another folder, or remove this one", path);
    else
        status = sw_run_stores_from_json(root, path, &out->run);
    if (split != NULL)
        snprintf(out->run.split, sizeof out->run.split, "%s", split);
    out->whole = status == SW_OK;
    json_decref(root);
    return status;
}

sw_status sw_unfinished_start_read(const char *folder, struct sw_unfinished_start *out) {
    char path[SW_RUN_PATH_CHARS], *text;
    *out = (struct sw_unfinished_start){0};
    SW_TRY(sw_path_join(path, sizeof path, folder, SW_START_FILE_NAME));
    out->found = sw_path_exists(path);
    if (!out->found)
        return SW_OK;
    SW_TRY(sw_file_read_own_text(path, START_LIMIT_BYTES, &text));
    const sw_status status = parse(text, path, out);
    free(text);
    return status;
}

void sw_unfinished_start_release(struct sw_unfinished_start *unfinished) {
    sw_run_release(&unfinished->run);
    *unfinished = (struct sw_unfinished_start){0};
}

static bool is_among(const char *name, const char *const *names) {
    for (int i = 0; names[i] != NULL; i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

/* Tells whether a name is that of one of the ranks' folders. */
static bool is_of_rank(const char *name, const struct sw_run *run) {
    char wanted[SW_OWNER_FOLDER_CHARS];
    long long rank;
    if (sscanf(name, "rank-%lld-of-", &rank) != 1 || rank < 0 || rank >= run->ranks)
        return false;
    const struct sw_store_owner owner = {.rank = rank,
                                         .ranks = run->ranks,
                                         .tensor_ranks = run->tensor_ranks,
                                         .expert_ranks = run->expert_ranks,
                                         .split = run->split,
                                         .joined = run->joined,
                                         .whole = run->whole,
                                         .optimizer = run->optimizer};
    sw_places_folder_name(&owner, wanted);
    return strcmp(name, wanted) == 0;
}

/* Checks that a folder holds only these names and, unless `ranks` is NULL, the run's copies of the model's files and
 * folders of its ranks that hold only a store. */
static sw_status check_names(const char *folder, const char *const *names, const struct sw_run *ranks) {
    static const char *const in_rank[] = {SW_STORE_FILE_NAME, NULL};
    char path[SW_RUN_PATH_CHARS];
    sw_status status = SW_OK;
    DIR *directory = sw_folder_list(folder);
    if (directory == NULL)
        return sw_fail(SW_ERR_ARG, "%s cannot be used as a folder: %s", folder, strerror(errno));
    for (const struct dirent *entry = readdir(directory); status == SW_OK && entry != NULL;
         entry = readdir(directory)) {
        const char *name = entry->d_name;
        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || is_among(name, names) ||
            (ranks != NULL && is_among(name, sw_model_file_names)))
            continue;
        if (ranks == NULL || !is_of_rank(name, ranks))
            status = sw_fail(SW_ERR_ARG,
                             "the folder %s is not empty: beside what an unfinished start has left there is %s; move "
                             "that away, or name a new folder",
                             folder, name);
        else if ((status = sw_path_join(path, sizeof path, folder, name)) == SW_OK)
            status = check_names(path, in_rank, NULL);
    }
    closedir(directory);
    return status;
}

sw_status sw_unfinished_start_check(const char *folder, const struct sw_unfinished_start *unfinished) {
    static const char *const alone[] = {SW_START_FILE_NAME, SW_RUN_LOCK_NAME, NULL};
    static const char *const made[] = {SW_START_FILE_NAME,
                                       SW_RUN_LOCK_NAME,
                                       SW_STORE_FILE_NAME,
                                       SW_FROZEN_NAME,
                                       "run.json",
                                       "run.json.partial",
                                       SW_RECIPE_NAME,
                                       (SW_RECIPE_NAME ".partial"),
                                       NULL};
    return unfinished->whole ? check_names(folder, made, &unfinished->run) : check_names(folder, alone, NULL);
}

static sw_status remove_store(void *context, int64_t rank, const char *place) {
    const struct sw_run *run = context;
    return sw_stores_remove_at(place, run->store[rank].id, 0); /* the first commit is that of step 0 */
}

/* A search for remains: `found` tells whether this machine sees any file of the run's stores, or a rank's folder that
 * is not empty. */
struct rest {
    const struct sw_run *run;
    bool found;
};

/* A rank that was killed may have made its folder but no store yet; only other ranks can remove that folder. */
static sw_status look(void *context, int64_t rank, const char *place) {
    (void)rank;
    struct rest *rest = context;
    bool is_device;
    SW_TRY(sw_block_find(place, &is_device));
    const char *slash = strrchr(place, '/');
    const bool of_rank = slash != NULL && is_of_rank(slash + 1, rest->run);
    if (of_rank)
        (void)sw_folder_remove_empty(place); /* a folder that stays is found next */
    rest->found = rest->found || (!is_device && (of_rank ? sw_path_exists(place) : sw_store_is_at(place)));
    return SW_OK;
}

static bool unfinished_start_has_stores(const char *folder, const struct sw_run *run) {
    struct rest rest = {.run = run};
    return sw_stores_visit(folder, run, look, &rest) != SW_OK || rest.found;
}

static sw_status path_of(const char *folder, char path[SW_RUN_PATH_CHARS]) {
    return sw_path_join(path, SW_RUN_PATH_CHARS, folder, SW_START_FILE_NAME);
}

static sw_status refuse_second(const char *folder) {
    sw_error_clear();
    return sw_fail(SW_ERR_BUSY, "another process is beginning a run in %s: wait for it, or name another folder",
                   folder);
}

sw_status sw_start_check(const char *folder) {
    struct sw_unfinished_start unfinished;
    SW_TRY(sw_unfinished_start_read(folder, &unfinished));
    const sw_status status = unfinished.found ? sw_unfinished_start_check(folder, &unfinished)
                                              : sw_folder_must_be_free(folder, SW_RUN_LOCK_NAME);
    sw_unfinished_start_release(&unfinished);
    return status;
}

bool sw_start_is_unfinished(const char *folder) {
    char path[SW_RUN_PATH_CHARS];
    return path_of(folder, path) == SW_OK && sw_path_exists(path);
}

/* Removes files of a folder, if they exist, in order: each is durably gone before the next is removed. Returns the file
 * that cannot be removed, or NULL. */
static const char *remove_named(const char *folder, const char *const *names, char path[SW_RUN_PATH_CHARS]) {
    for (int i = 0; names[i] != NULL; i++) {
        const int chars = snprintf(path, SW_RUN_PATH_CHARS, "%s/%s", folder, names[i]);
        if (chars >= SW_RUN_PATH_CHARS || sw_file_flush_folder_of(path) != SW_OK ||
            (sw_path_unlink(path) != 0 && errno != ENOENT))
            return path;
    }
    return NULL;
}

/* Removes the files of a start, starting.json last, so that the next start finishes an interrupted removal. Returns the
 * file that cannot be removed, or NULL. */
static const char *remove_files(const char *folder, char path[SW_RUN_PATH_CHARS]) {
    static const char *const names[] = {"run.json.partial", "run.json",     (SW_RECIPE_NAME ".partial"),
                                        SW_RECIPE_NAME,     SW_FROZEN_NAME, NULL};
    static const char *const last[] = {SW_START_FILE_NAME, NULL};
    const char *left = remove_named(folder, names, path);
    if (left == NULL)
        left = remove_named(folder, sw_model_file_names, path);
    return left != NULL ? left : remove_named(folder, last, path);
}

static sw_status remove_rest(const char *folder) {
    char path[SW_RUN_PATH_CHARS];
    return remove_files(folder, path) == NULL
               ? SW_OK
               : sw_fail(SW_ERR_IO, "%s, which an unfinished start has left, cannot be removed: %s", path,
                         strerror(errno));
}

/* Removes the stores and their folders, on one rank of each machine, one machine after the other: machines may share
 * drives. */
static sw_status remove_stores(struct sw_ranks *ranks, const char *folder,
                               const struct sw_unfinished_start *unfinished) {
    struct sw_comm *comm = sw_ranks_comm(ranks);
    const struct sw_comm_identity alone = {.nodes = 1}, *place = comm != NULL ? sw_comm_identity(comm) : &alone;
    for (int node = 0; node < place->nodes; node++) {
        const bool own = place->node == node && place->local_rank == 0;
        SW_TRY(sw_ranks_agree_on_error(
            ranks, own ? sw_stores_visit(folder, &unfinished->run, remove_store, (void *)&unfinished->run) : SW_OK));
    }
    return SW_OK;
}

static sw_status clear(struct sw_ranks *ranks, const char *folder) {
    struct sw_unfinished_start unfinished = {0};
    sw_status status = sw_ranks_first(ranks, sw_start_check(folder));
    if (status == SW_OK)
        status = sw_ranks_agree_on_error(ranks, sw_unfinished_start_read(folder, &unfinished));
    if (status == SW_OK)
        status = remove_stores(ranks, folder, &unfinished);
    if (status == SW_OK)
        status = sw_ranks_first(ranks, remove_rest(folder));
    sw_unfinished_start_release(&unfinished);
    return status;
}

sw_status sw_start_clear(struct sw_ranks *ranks, const char *folder) {
    char path[SW_RUN_PATH_CHARS];
    SW_TRY(sw_ranks_agree_on_error(ranks, path_of(folder, path)));
    bool found = sw_path_exists(path);
    SW_TRY(sw_ranks_spread(ranks, "what an unfinished start has left", &found, sizeof found));
    if (!found)
        return SW_OK;
    sw_log_info("%s has what a start left that was cut off before its first commit: the run is begun again", folder);
    return clear(ranks, folder);
}

/* Creates starting.json exclusively before anything else is written, so that of two starts one fails even on a file
 * system without locks. Another start may have finished since the folder was checked. */
sw_status sw_start_announce(const char *folder, const struct sw_run *run) {
    char path[SW_RUN_PATH_CHARS];
    SW_TRY(path_of(folder, path));
    const int file = sw_path_open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file < 0)
        return errno == EEXIST ? refuse_second(folder)
                               : sw_fail(SW_ERR_IO, "cannot make %s: %s", path, strerror(errno));
    sw_status status = sw_run_is_one(folder) ? refuse_second(folder) : sw_unfinished_start_write(file, path, run);
    close(file);
    /* Stores on other drives may survive a power loss, so the file that lists them must survive too. */
    if (status == SW_OK)
        status = sw_file_flush_folder_of(path);
    if (status != SW_OK)
        sw_path_unlink(path);
    return status;
}

static sw_status finish(const char *folder) {
    char path[SW_RUN_PATH_CHARS];
    SW_TRY(path_of(folder, path));
    if (sw_path_unlink(path) != 0 && errno != ENOENT)
        return sw_fail(SW_ERR_IO, "%s cannot be removed: %s", path, strerror(errno));
    /* If starting.json came back after a power loss, the next start would remove a store with trained state. */
    return sw_file_flush_folder_of(path);
}

sw_status sw_start_finish(struct sw_ranks *ranks, const char *folder) {
    SW_TRY(sw_ranks_agree_on_error(ranks, SW_OK));
    return sw_ranks_first(ranks, finish(folder));
}

void sw_start_undo(const char *folder, const struct sw_run *run) {
    SW_HANDLES_ERRORS(); /* the error of the start stays */
    char path[SW_RUN_PATH_CHARS];
    if (!unfinished_start_has_stores(folder, run))
        (void)remove_files(folder, path);
}
