/* Handles the stores that a change of the number of ranks leaves behind: those that were replaced, and new ones of a
 * change that was cut off. */
#include "core/confine.h"
#include "core/files/files.h"
#include "core/log.h"
#include "run/folder/run_stores.h"
#include "run/stores/rank_store_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *from_folder(const char *folder, const char *path) {
    const size_t chars = strlen(folder);
    if (strncmp(path, folder, chars) != 0 || (path[chars] != '/' && path[chars] != '\0'))
        return path;
    return path[chars] == '\0' ? "." : path + chars + 1;
}

static sw_status leave_one(const char *folder, const struct sw_run *of, int64_t rank, int64_t last_step,
                           struct sw_run *run) {
    struct sw_places places;
    SW_TRY(sw_run_places(folder, of, rank, NULL, &places));
    struct sw_run_store *left = &run->left[run->left_count++];
    memcpy(left->id, of->store[rank].id, sizeof left->id);
    left->last_step = last_step;
    sw_status status = SW_OK;
    for (int i = 0; status == SW_OK && i < places.count; i++)
        status = sw_option_list_add(&left->places, from_folder(folder, places.path[i]));
    sw_places_release(&places);
    return status;
}

sw_status sw_rank_leave(const char *folder, const struct sw_run *of, int64_t last_step, struct sw_run *run) {
    struct sw_run_store *more = calloc((size_t)(run->left_count + of->ranks), sizeof *more);
    if (more == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the stores of %lld ranks", (long long)of->ranks);
    if (run->left_count > 0)
        memcpy(more, run->left, (size_t)run->left_count * sizeof *more);
    free(run->left);
    run->left = more;
    for (int64_t rank = 0; rank < of->ranks; rank++)
        SW_TRY(leave_one(folder, of, rank, last_step, run));
    return SW_OK;
}

static bool is_of(const struct sw_run_store *store, const struct sw_run *run) {
    for (int64_t rank = 0; rank < run->ranks; rank++)
        if (strcmp(store->id, run->store[rank].id) == 0)
            return true;
    return false;
}

static void forget_one(struct sw_run *run, int64_t index) {
    sw_option_list_release(&run->left[index].places);
    memmove(&run->left[index], &run->left[index + 1], (size_t)(--run->left_count - index) * sizeof run->left[0]);
}

void sw_rank_forget_left(struct sw_run *run, const struct sw_run *of) {
    for (int64_t i = run->left_count - 1; i >= 0; i--)
        if (is_of(&run->left[i], of))
            forget_one(run, i);
}

/* Removes the file of a store, and the folder that was made for it. */
static sw_status remove_at(const char *folder, const char *place, const struct sw_run_store *store) {
    char path[SW_RUN_PATH_CHARS];
    int rank, ranks;
    if (place[0] != '/' && sw_path_goes_up(place))
        return sw_fail(SW_ERR_ARG, "run.json of %s lists %s, which is not in the folder: remove that yourself", folder,
                       place);
    if (place[0] == '/')
        SW_TRY(sw_path_join(path, sizeof path, "", place + 1));
    else
        SW_TRY(sw_path_join(path, sizeof path, folder, place));
    SW_TRY(sw_store_remove(path, store->id, store->last_step));
    if (sscanf(strrchr(path, '/') + 1, "rank-%d-of-%d", &rank, &ranks) == 2)
        sw_folder_remove_empty(path);
    return SW_OK;
}

static sw_status remove_places(const char *folder, const struct sw_run_store *store) {
    for (int i = 0; i < store->places.count; i++)
        SW_TRY(remove_at(folder, store->places.items[i], store));
    return SW_OK;
}

/* Each rank removes the stores that it sees. Those on other machines are removed by the ranks there. */
sw_status sw_rank_remove_left(const struct sw_rank_stores *self) {
    struct sw_run *run = self->run;
    for (int64_t i = run->left_count - 1; i >= 0; i--) {
        const sw_status status = is_of(&run->left[i], run) ? SW_OK : remove_places(self->folder, &run->left[i]);
        int64_t failed = status != SW_OK;
        if (failed)
            sw_log_warn("a store that the run no longer needs cannot be removed: %s", sw_error_message(status));
        sw_error_clear();
        SW_TRY(sw_ranks_sum(self->ranks, &failed));
        if (failed == 0)
            forget_one(run, i);
    }
    return SW_OK;
}
