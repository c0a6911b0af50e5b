/* This rank's own store: where it goes, how it is made and checked there, and that its commit is the same as the other
 * ranks'. */
#include "core/confine.h"
#include "core/files/files.h"
#include "core/log.h"
#include "core/size.h"
#include "run/folder/run.h"
#include "run/stores/rank_store.h"
#include "run/stores/rank_store_private.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Checks that ranks of one machine share directories on purpose or not at all, and that the directories are free. */

/* The identity of a directory or block device, whatever its path. */
struct identity {
    int64_t device, number; /* a folder: its file system and inode; a block device: its number, twice */
    bool is_block;
};

struct list {
    int64_t node;
    int64_t count;
    struct identity place[SW_STORE_MAX_FILES];
};

static struct identity identify(const char *path) {
    struct stat info;
    if (stat(path, &info) != 0)
        return (struct identity){0};
    if (S_ISBLK(info.st_mode))
        return (struct identity){(int64_t)info.st_rdev, (int64_t)info.st_rdev, true};
    return (struct identity){(int64_t)info.st_dev, (int64_t)info.st_ino, false};
}

/* Returns the index of the same identity in the list, or -1. A path that does not exist yet equals no other. */
static int64_t find(const struct list *list, const struct identity *wanted) {
    for (int64_t i = 0; wanted->number != 0 && i < list->count; i++)
        if (list->place[i].device == wanted->device && list->place[i].number == wanted->number &&
            list->place[i].is_block == wanted->is_block)
            return i;
    return -1;
}

static sw_status check_pair(const struct list *own, const struct list *other, int64_t other_rank,
                            const struct sw_places *places) {
    int64_t shared = 0;
    const char *one = NULL;
    for (int64_t i = 0; i < own->count; i++) {
        if (find(other, &own->place[i]) < 0)
            continue;
        shared++;
        one = places->path[i];
        if (own->place[i].is_block)
            return sw_fail(SW_ERR_ARG,
                           "the block device %s is given to rank %lld too: give each rank devices of its own, as by "
                           "{local_rank} in --nvme",
                           one, (long long)other_rank);
    }
    if (shared == 0 || (shared == own->count && own->count == other->count))
        return SW_OK;
    return sw_fail(
        SW_ERR_ARG,
        "%s is in --nvme of rank %lld too, whose other folders are not those of this rank: give all ranks of a "
        "machine the same folders, or each rank its own",
        one, (long long)other_rank);
}

static sw_status describe(const struct sw_rank_stores *self, struct list *own, struct sw_places *places) {
    const struct sw_store_owner owner = sw_settings_owner(&self->run->settings);
    SW_TRY(sw_places_of(&self->run->settings.nvme, self->folder, &owner, places));
    own->count = places->count;
    for (int i = 0; i < places->count; i++)
        own->place[i] = identify(places->path[i]);
    return SW_OK;
}

static sw_status compare_places(const struct sw_rank_stores *self, const struct list *all,
                                const struct sw_places *places) {
    const int rank = sw_ranks_rank(self->ranks);
    for (int other = 0; other < rank; other++)
        if (all[other].node == all[rank].node)
            SW_TRY(check_pair(&all[rank], &all[other], other, places));
    return SW_OK;
}

sw_status sw_rank_places_agree(const struct sw_rank_stores *self) {
    struct sw_ranks *ranks = self->ranks;
    struct sw_places places = {0};
    if (sw_ranks_count(ranks) == 1)
        return SW_OK;
    struct list own = {.node = sw_comm_identity(sw_ranks_comm(ranks))->node};
    void *all = NULL;
    sw_status status = sw_ranks_agree_on_error(ranks, describe(self, &own, &places));
    if (status == SW_OK)
        status = sw_ranks_collect(ranks, "places of the stores", &own, sizeof own, &all);
    if (status == SW_OK)
        status = sw_ranks_agree_on_error(ranks, compare_places(self, all, &places));
    sw_places_release(&places);
    free(all);
    return status;
}

/* Refuses places that have a store: anything made there may have to be removed, and must not be another run's. */
static sw_status rank_refuse_taken(const struct sw_places *places) {
    char path[SW_RUN_PATH_CHARS];
    bool found;
    for (int i = 0; i < places->count; i++) {
        SW_TRY(sw_path_join(path, sizeof path, places->path[i], SW_STORE_FILE_NAME));
        SW_TRY(sw_path_find(path, &found));
        if (found)
            return sw_fail(SW_ERR_ARG,
                           "%s exists already: resume the run that it belongs to, choose another directory by --nvme, "
                           "or remove it",
                           path);
    }
    return SW_OK;
}

/* Checks that all ranks see the same folder of a run. */

/* How a rank sees the folder. */
struct sight {
    int64_t has_folder, has_run;
    uint64_t digest; /* digest of run.json */
};

static sw_status look(const char *folder, struct sight *out) {
    char *text;
    out->has_folder = sw_path_exists(folder);
    out->has_run = sw_run_is_one(folder);
    if (!out->has_run)
        return SW_OK;
    char path[SW_RUN_PATH_CHARS];
    SW_TRY(sw_path_join(path, sizeof path, folder, "run.json"));
    SW_TRY(sw_file_read_own_text(path, SW_RUN_JSON_LIMIT_BYTES, &text));
    out->digest = sw_checksum(text, (int64_t)strlen(text));
    free(text);
    return SW_OK;
}

static sw_status compare_sights(const struct sight *own, const struct sight *first, const char *folder) {
    if (memcmp(own, first, sizeof *own) == 0)
        return SW_OK;
    return sw_fail(SW_ERR_ARG,
                   "the folder %s is not the one that rank 0 sees; put the run on a file system that all ranks "
                   "share",
                   folder);
}

sw_status sw_rank_agree_on_folder(struct sw_ranks *ranks, const char *folder) {
    struct sight own = {0};
    void *all;
    if (sw_ranks_count(ranks) == 1)
        return SW_OK;
    SW_TRY(sw_ranks_agree_on_error(ranks, look(folder, &own)));
    SW_TRY(sw_ranks_collect(ranks, "folder of the run", &own, sizeof own, &all));
    const sw_status status = sw_ranks_agree_on_error(ranks, compare_sights(&own, all, folder));
    free(all);
    return status;
}

/* Gathers the stores of all ranks for run.json. */

/* A rank's store, encoded for the other ranks: this head, then its places as strings that end in 0. */
struct told {
    char id[SW_STORE_ID_CHARS];
    int64_t local_rank, places;
    char text[];
};

static int64_t text_bytes(const struct sw_places *places) {
    int64_t bytes = 0;
    for (int i = 0; i < places->count; i++)
        bytes += (int64_t)strlen(places->path[i]) + 1;
    return bytes;
}

static void tell(const struct sw_rank_stores *self, const char *id, const struct sw_places *places, struct told *own) {
    const struct sw_store_owner owner = sw_settings_owner(&self->run->settings);
    assert(own != NULL);
    snprintf(own->id, sizeof own->id, "%s", id);
    own->local_rank = owner.local_rank;
    own->places = places->count;
    char *at = own->text;
    for (int i = 0; i < places->count; i++) {
        const size_t bytes = strlen(places->path[i]) + 1;
        memcpy(at, places->path[i], bytes);
        at += bytes;
    }
}

/* Without --nvme the store moves together with the run's folder, so no places are kept. */
static bool lies_in_folder(const struct sw_rank_stores *self, const struct sw_places *places) {
    const size_t chars = strlen(self->folder);
    return self->run->settings.nvme.count == 0 && places->count == 1 &&
           strncmp(places->path[0], self->folder, chars) == 0;
}

static sw_status hear(const struct told *told, struct sw_run_store *out) {
    const char *at = told->text;
    assert(out != NULL);
    snprintf(out->id, sizeof out->id, "%s", told->id);
    out->local_rank = told->local_rank;
    for (int64_t i = 0; i < told->places; i++) {
        SW_TRY(sw_option_list_add(&out->places, at));
        at += strlen(at) + 1;
    }
    return SW_OK;
}

static sw_status share(const struct sw_rank_stores *self, const char *id, const struct sw_places *places,
                       struct sw_run_store *out) {
    const int64_t count = sw_ranks_count(self->ranks);
    int64_t negative = -sw_round_up((int64_t)sizeof(struct told) + text_bytes(places), (int64_t)sizeof(int64_t));
    SW_TRY(sw_ranks_least(self->ranks, &negative, 1));
    const int64_t bytes = -negative;
    struct told *own = calloc(1, (size_t)bytes);
    void *all = NULL;
    sw_status status = own != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory for the stores of all ranks");
    SW_TRY_GOTO(sw_ranks_agree_on_error(self->ranks, status), end);
    tell(self, id, places, own);
    SW_TRY_GOTO(sw_ranks_collect(self->ranks, "stores", own, bytes, &all), end);
    for (int64_t r = 0; status == SW_OK && r < count; r++)
        status = hear((const struct told *)((const char *)all + r * bytes), &out[r]);
end:
    free(own);
    free(all);
    return status;
}

sw_status sw_rank_record(const struct sw_rank_stores *self, const char *id, const struct sw_places *places) {
    static const struct sw_places in_folder = {0};
    const struct sw_store_owner owner = sw_settings_owner(&self->run->settings);
    struct sw_run_store *stores = calloc((size_t)owner.ranks, sizeof *stores);
    sw_status status = stores != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory for all stores");
    status = sw_ranks_agree_on_error(self->ranks, status);
    if (status == SW_OK)
        status = share(self, id, lies_in_folder(self, places) ? &in_folder : places, stores);
    status = sw_ranks_agree_on_error(self->ranks, status);
    if (status != SW_OK) {
        sw_run_stores_release(stores, owner.ranks);
        return status;
    }
    sw_run_stores_release(self->run->store, self->run->ranks);
    self->run->store = stores;
    self->run->ranks = owner.ranks;
    self->run->whole = owner.whole;
    self->run->optimizer = owner.optimizer;
    self->run->tensor_ranks = owner.tensor_ranks;
    self->run->tiles = self->run->settings.tiles;
    return SW_OK;
}

sw_status sw_rank_record_own(const struct sw_rank_stores *self, const char *id, bool must_be_free) {
    struct sw_places places;
    sw_status status = sw_ranks_agree_on_error(self->ranks, sw_rank_own_places(self, &places));
    if (status == SW_OK && must_be_free)
        status = sw_ranks_agree_on_error(self->ranks, rank_refuse_taken(&places));
    if (status == SW_OK)
        status = sw_rank_record(self, id, &places);
    sw_places_release(&places);
    return status;
}

/* Handles orphaned stores: those that a change of ranks or layout has superseded, and new ones of a change that was
 * interrupted. */

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
    struct sw_run_store *orphan = &run->orphans[run->orphan_count++];
    memcpy(orphan->id, of->store[rank].id, sizeof orphan->id);
    orphan->last_step = last_step;
    sw_status status = SW_OK;
    for (int i = 0; status == SW_OK && i < places.count; i++)
        status = sw_option_list_add(&orphan->places, from_folder(folder, places.path[i]));
    sw_places_release(&places);
    return status;
}

sw_status sw_rank_add_orphans(const char *folder, const struct sw_run *of, int64_t last_step, struct sw_run *run) {
    struct sw_run_store *more = calloc((size_t)(run->orphan_count + of->ranks), sizeof *more);
    if (more == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the stores of %lld ranks", (long long)of->ranks);
    if (run->orphan_count > 0)
        memcpy(more, run->orphans, (size_t)run->orphan_count * sizeof *more);
    free(run->orphans);
    run->orphans = more;
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
    sw_option_list_release(&run->orphans[index].places);
    memmove(&run->orphans[index], &run->orphans[index + 1],
            (size_t)(--run->orphan_count - index) * sizeof run->orphans[0]);
}

void sw_rank_forget_orphans(struct sw_run *run, const struct sw_run *of) {
    for (int64_t i = run->orphan_count - 1; i >= 0; i--)
        if (is_of(&run->orphans[i], of))
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

/* Each rank removes the orphans it can reach. Those on other machines are removed by the ranks there. */
sw_status sw_rank_remove_orphans(const struct sw_rank_stores *self) {
    struct sw_run *run = self->run;
    for (int64_t i = run->orphan_count - 1; i >= 0; i--) {
        const sw_status status = is_of(&run->orphans[i], run) ? SW_OK : remove_places(self->folder, &run->orphans[i]);
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

sw_status sw_rank_own_places(const struct sw_rank_stores *self, struct sw_places *out) {
    const struct sw_store_owner owner = sw_settings_owner(&self->run->settings);
    return sw_places_of_rank(&self->run->settings.nvme, self->folder, &owner, out);
}

static sw_status make_in(const struct sw_rank_stores *self, const struct sw_places *places, const char *id,
                         struct sw_store **out) {
    const struct sw_store_owner owner = sw_settings_owner(&self->run->settings);
    sw_status status = sw_places_make(places, &owner);
    if (status == SW_OK)
        status = self->make(self->context, places, id, out);
    if (status != SW_OK)
        sw_places_unmake(places, &owner);
    return status;
}

sw_status sw_rank_make(const struct sw_rank_stores *self, const char *id, struct sw_store **out) {
    struct sw_places places;
    SW_TRY(sw_rank_own_places(self, &places));
    const sw_status status = make_in(self, &places, id, out);
    sw_places_release(&places);
    return status;
}

bool sw_rank_has_new_places(const struct sw_run *run) {
    const struct sw_option_list *before = &run->nvme, *now = &run->settings.nvme;
    bool same = before->count == now->count;
    for (int i = 0; same && i < before->count; i++)
        same = strcmp(before->items[i], now->items[i]) == 0;
    return !same;
}

static void tick(void *ranks, int64_t done_bytes, int64_t total_bytes) {
    (void)done_bytes;
    (void)total_bytes;
    sw_ranks_tick(ranks);
}

sw_status sw_rank_check_whole(struct sw_ranks *ranks, struct sw_store *store) {
    int64_t grains, bad;
    const long long step = (long long)sw_store_last_commit(store)->step;
    const struct sw_store_verifier verifier = {.progress = tick, .context = ranks};
    sw_ranks_enter(ranks, "verifying step", step);
    const sw_status status = sw_store_verify(store, &verifier, &grains, &bad);
    sw_ranks_leave(ranks);
    SW_TRY(status);
    return bad == 0 ? SW_OK
                    : sw_fail(SW_ERR_CORRUPT,
                              "step %lld is not whole: %lld of its %s %s bad, or a later step has been written "
                              "over them; nothing was changed, and what other steps and stores the run has is kept: go "
                              "back to an export or another copy",
                              step, (long long)bad, SW_COUNT(grains, "grain"), bad == 1 ? "is" : "are");
}

sw_status sw_rank_agree_on_commit(struct sw_ranks *ranks, const struct sw_store_commit *commit) {
    const struct sw_comm_claim claim = {.what = "commit",
                                        .remedy = "give each rank the store that the run has of it",
                                        .value = commit->meta,
                                        .bytes = (int64_t)strlen(commit->meta)};
    return sw_ranks_agree(ranks, &claim, 1);
}
