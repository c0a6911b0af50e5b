/* Orphaned stores, and the places of all stores of a run. */
#include "run/stores/orphans.h"

#include "core/confine.h"
#include "core/files/files.h"
#include "core/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

sw_status sw_stores_visit(const char *folder, const struct sw_run *run, sw_place_visitor visit, void *context) {
    for (int64_t rank = 0; rank < run->ranks; rank++) {
        struct sw_places places;
        SW_TRY(sw_run_places(folder, run, rank, NULL, &places));
        sw_status status = SW_OK;
        for (int i = 0; status == SW_OK && i < places.count; i++)
            status = visit(context, rank, places.path[i]);
        sw_places_release(&places);
        SW_TRY(status);
    }
    return SW_OK;
}

sw_status sw_stores_remove_at(const char *place, const char *id, int64_t last_step) {
    int rank, ranks;
    SW_TRY(sw_store_remove(place, id, last_step));
    const char *slash = strrchr(place, '/');
    return slash != NULL && sscanf(slash, "/rank-%d-of-%d", &rank, &ranks) == 2 ? sw_folder_remove_empty(place) : SW_OK;
}

static const char *from_folder(const char *folder, const char *path) {
    const size_t chars = strlen(folder);
    if (strncmp(path, folder, chars) != 0 || (path[chars] != '/' && path[chars] != '\0'))
        return path;
    return path[chars] == '\0' ? "." : path + chars + 1;
}

/* Stores that become orphans of a run, from number `first` on. */
struct leaving {
    const char *folder;
    struct sw_run *run;
    int64_t first;
};

static sw_status leave_place(void *context, int64_t rank, const char *place) {
    const struct leaving *leaving = context;
    return sw_option_list_add(&leaving->run->orphans[leaving->first + rank].places,
                              from_folder(leaving->folder, place));
}

sw_status sw_orphans_add(const char *folder, const struct sw_run *of, int64_t last_step, struct sw_run *run) {
    struct leaving leaving = {.folder = folder, .run = run, .first = run->orphan_count};
    struct sw_run_store *more = calloc((size_t)(run->orphan_count + of->ranks), sizeof *more);
    if (more == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the stores of %lld ranks", (long long)of->ranks);
    if (run->orphan_count > 0)
        memcpy(more, run->orphans, (size_t)run->orphan_count * sizeof *more);
    free(run->orphans);
    run->orphans = more;
    for (int64_t rank = 0; rank < of->ranks; rank++) {
        struct sw_run_store *orphan = &run->orphans[run->orphan_count++];
        memcpy(orphan->id, of->store[rank].id, sizeof orphan->id);
        orphan->last_step = last_step;
    }
    return sw_stores_visit(folder, of, leave_place, &leaving);
}

static bool is_of(const struct sw_run_store *store, const struct sw_run *run) {
    for (int64_t rank = 0; rank < run->ranks; rank++)
        if (strcmp(store->id, run->store[rank].id) == 0)
            return true;
    return false;
}

static void forget_one(struct sw_run *run, int64_t index) {
    sw_option_list_release(&run->orphans[index].places);
    memmove(&run->orphans[index], &run->orphans[index + 1],
            (size_t)(--run->orphan_count - index) * sizeof run->orphans[0]);
}

void sw_orphans_forget(struct sw_run *run, const struct sw_run *of) {
    for (int64_t i = run->orphan_count - 1; i >= 0; i--)
        if (is_of(&run->orphans[i], of))
            forget_one(run, i);
}

static sw_status remove_orphan(const char *folder, const struct sw_run_store *store) {
    char path[SW_RUN_PATH_CHARS];
    for (int i = 0; i < store->places.count; i++) {
        const char *place = store->places.items[i];
        if (place[0] != '/' && sw_path_goes_up(place))
            return sw_fail(SW_ERR_ARG, "run.json of %s lists %s, which is not in the folder: remove that yourself",
                           folder, place);
        if (place[0] == '/')
            SW_TRY(sw_path_join(path, sizeof path, "", place + 1));
        else
            SW_TRY(sw_path_join(path, sizeof path, folder, place));
        SW_TRY(sw_stores_remove_at(path, store->id, store->last_step));
    }
    return SW_OK;
}

/* Each rank removes the orphans it can reach. Those on other machines are removed by the ranks there. */
sw_status sw_orphans_remove(struct sw_ranks *ranks, const char *folder, struct sw_run *run) {
    for (int64_t i = run->orphan_count - 1; i >= 0; i--) {
        const sw_status status = is_of(&run->orphans[i], run) ? SW_OK : remove_orphan(folder, &run->orphans[i]);
        int64_t failed = status != SW_OK;
        if (failed)
            sw_log_warn("a store that the run no longer needs cannot be removed: %s", sw_error_message(status));
        sw_error_clear();
        SW_TRY(sw_ranks_sum(ranks, &failed));
        if (failed == 0)
            forget_one(run, i);
    }
    return SW_OK;
}
