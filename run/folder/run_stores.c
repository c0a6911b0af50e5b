#include "run/folder/run_stores.h"

#include "core/confine.h"
#include "core/log.h"
#include "core/size.h"
#include "offload/plan/unit.h"
#include "run/folder/run_lock.h"
#include "run/folder/run_starts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LOST_CHARS = 32 };

/* Warns of commit records that are damaged: a step that is or may be lost must be reported. */
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
    SW_TRY(sw_run_check_start(run, store, places->path[0]));
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

static sw_status open_set(const char *folder, const struct sw_run *run, const struct sw_option_list *moved,
                          struct sw_store_set *out) {
    int64_t step = SW_STORE_NEWEST;
    for (int64_t rank = 0; rank < run->ranks; rank++) {
        SW_TRY(open_one(folder, run, rank, moved, SW_STORE_NEWEST, &out->store[rank]));
        step = sw_min_i64(step, sw_store_last_commit(out->store[rank])->step);
    }
    for (int64_t rank = 0; rank < run->ranks; rank++) {
        if (sw_store_last_commit(out->store[rank])->step == step)
            continue;
        sw_store_close(out->store[rank]);
        out->store[rank] = NULL;
        SW_TRY(open_one(folder, run, rank, moved, step, &out->store[rank]));
        if (sw_store_last_commit(out->store[rank])->step != step)
            return sw_fail(SW_ERR_CORRUPT, "the store of rank %lld has no commit of step %lld, the newest of all ranks",
                           (long long)rank, (long long)step);
    }
    return SW_OK;
}

sw_status sw_run_open_stores(const char *folder, const struct sw_run *run, const struct sw_option_list *moved,
                             struct sw_store_set *out) {
    *out =
        (struct sw_store_set){.count = (int)run->ranks, .store = calloc((size_t)run->ranks, sizeof(struct sw_store *))};
    const sw_status status = out->store == NULL
                                 ? sw_fail(SW_ERR_NOMEM, "no memory to open %lld stores", (long long)run->ranks)
                                 : open_set(folder, run, moved, out);
    if (status != SW_OK)
        sw_store_set_close(out);
    return status;
}

sw_status sw_run_open_to_read(const char *folder, const struct sw_option_list *moved, struct sw_run *run,
                              struct sw_store_set *out) {
    struct sw_confined *confined = NULL;
    sw_status status = sw_confine(folder, &confined);
    if (status == SW_OK)
        status = sw_run_read(folder, run);
    if (status == SW_OK)
        status = sw_run_open_stores(folder, run, moved, out);
    sw_confine_end(confined);
    return status != SW_OK && sw_run_is_locked(folder) ? SW_ERR_OVERTAKEN : status;
}

bool sw_run_store_is_of(const struct sw_store *store, const struct sw_units *units) {
    bool same = sw_store_unit_count(store) == units->count;
    for (int64_t unit = 0; same && unit < units->count; unit++)
        same = sw_store_unit_whole_grains(store, unit) == units->unit[unit].grains;
    return same;
}

void sw_store_set_close(struct sw_store_set *set) {
    for (int i = 0; set->store != NULL && i < set->count; i++)
        sw_store_close(set->store[i]);
    free(set->store);
    *set = (struct sw_store_set){0};
}
