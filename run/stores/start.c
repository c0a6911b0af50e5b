#include "run/stores/start.h"

#include "core/confine.h"
#include "core/error_scope.h"
#include "core/files/files.h"
#include "core/files/model_files.h"
#include "core/log.h"
#include "run/folder/frozen.h"
#include "run/folder/run_lock.h"
#include "run/stores/rank_store_private.h"
#include "run/stores/start_left.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static sw_status path_of(const char *folder, char path[SW_RUN_PATH_CHARS]) {
    return sw_path_join(path, SW_RUN_PATH_CHARS, folder, SW_START_FILE_NAME);
}

static sw_status refuse_second(const char *folder) {
    sw_error_clear();
    return sw_fail(SW_ERR_BUSY, "another process is beginning a run in %s: wait for it, or name another folder",
                   folder);
}

sw_status sw_start_check(const char *folder) {
    struct sw_start_left left;
    SW_TRY(sw_start_left_read(folder, &left));
    const sw_status status =
        left.found ? sw_start_left_check(folder, &left) : sw_folder_must_be_free(folder, SW_RUN_LOCK_NAME);
    sw_start_left_release(&left);
    return status;
}

bool sw_start_is_unfinished(const char *folder) {
    char path[SW_RUN_PATH_CHARS];
    return path_of(folder, path) == SW_OK && sw_path_exists(path);
}

/* Removes files of a folder where they are there, in turn: each is gone for good before the next is removed. Returns
 * the file that cannot be removed, or NULL. */
static const char *remove_named(const char *folder, const char *const *names, char path[SW_RUN_PATH_CHARS]) {
    for (int i = 0; names[i] != NULL; i++) {
        const int chars = snprintf(path, SW_RUN_PATH_CHARS, "%s/%s", folder, names[i]);
        if (chars >= SW_RUN_PATH_CHARS || sw_file_flush_folder_of(path) != SW_OK ||
            (sw_path_unlink(path) != 0 && errno != ENOENT))
            return path;
    }
    return NULL;
}

/* Removes the files of a start, starting.json last, so that the next start finishes what cuts this off. Returns the
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

/* Removes the stores on one rank of each machine in turn, as machines may share drives. */
static sw_status remove_stores(struct sw_ranks *ranks, const char *folder, const struct sw_start_left *left) {
    struct sw_comm *comm = sw_ranks_comm(ranks);
    const struct sw_comm_identity alone = {.nodes = 1}, *place = comm != NULL ? sw_comm_identity(comm) : &alone;
    for (int node = 0; node < place->nodes; node++) {
        const bool own = place->node == node && place->local_rank == 0;
        SW_TRY(sw_ranks_agree_on_error(ranks, own ? sw_start_left_remove(folder, left) : SW_OK));
    }
    return SW_OK;
}

static sw_status clear(struct sw_ranks *ranks, const char *folder) {
    struct sw_start_left left = {0};
    sw_status status = sw_ranks_first(ranks, sw_start_check(folder));
    if (status == SW_OK)
        status = sw_ranks_agree_on_error(ranks, sw_start_left_read(folder, &left));
    if (status == SW_OK)
        status = remove_stores(ranks, folder, &left);
    if (status == SW_OK)
        status = sw_ranks_first(ranks, remove_rest(folder));
    sw_start_left_release(&left);
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

/* Creates starting.json exclusively before anything is written, so that of two starts one fails also on a file system
 * without locks. Another start may have finished since the folder was checked. */
static sw_status write_announcement(const struct sw_rank_stores *stores) {
    char path[SW_RUN_PATH_CHARS];
    SW_TRY(path_of(stores->folder, path));
    const int file = sw_path_open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file < 0)
        return errno == EEXIST ? refuse_second(stores->folder)
                               : sw_fail(SW_ERR_IO, "cannot make %s: %s", path, strerror(errno));
    sw_status status =
        sw_run_is_one(stores->folder) ? refuse_second(stores->folder) : sw_start_left_write(file, path, stores->run);
    close(file);
    /* Stores on other drives may survive a power loss, so the file that lists them must, too. */
    if (status == SW_OK)
        status = sw_file_flush_folder_of(path);
    if (status != SW_OK)
        sw_path_unlink(path);
    return status;
}

sw_status sw_start_announce(const struct sw_rank_stores *stores, struct sw_start *start) {
    SW_TRY(sw_ranks_agree_on_error(stores->ranks, sw_store_new_id(start->id)));
    SW_TRY(sw_rank_record_own(stores, start->id, true));
    SW_TRY(sw_ranks_first(stores->ranks, write_announcement(stores)));
    start->announced = true;
    return SW_OK;
}

static sw_status finish(const char *folder) {
    char path[SW_RUN_PATH_CHARS];
    SW_TRY(path_of(folder, path));
    if (sw_path_unlink(path) != 0 && errno != ENOENT)
        return sw_fail(SW_ERR_IO, "%s cannot be removed: %s", path, strerror(errno));
    /* If starting.json came back after a power loss, the next start would remove a store with trained state. */
    return sw_file_flush_folder_of(path);
}

sw_status sw_start_finish(struct sw_ranks *ranks, const char *folder, struct sw_start *start) {
    SW_TRY(sw_ranks_agree_on_error(ranks, SW_OK));
    SW_TRY(sw_ranks_first(ranks, finish(folder)));
    *start = (struct sw_start){0};
    return SW_OK;
}

void sw_start_undo(const struct sw_rank_stores *stores, struct sw_start *start) {
    SW_HANDLES_ERRORS(); /* the error of the start stays */
    char path[SW_RUN_PATH_CHARS];
    if (start->announced && !sw_start_left_has_stores(stores->folder, stores->run))
        (void)remove_files(stores->folder, path);
    *start = (struct sw_start){0};
}
