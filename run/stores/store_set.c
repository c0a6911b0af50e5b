/* A set of stores, one for each rank: where each rank's store goes, how a new set is made, published and taken back,
 * and how stores that are not the run's are removed.
 *
 * A new set takes gigabytes, perhaps on several machines. So it is listed, durably, before any of its stores is made,
 * and the next start or resume finds and removes what was made, by id, without a guess. A new run has no run.json yet
 * and lists its set in starting.json (start.h); a resume lists it among the orphans in run.json.
 *
 * Changing old stores in place would need no second set, but a kill halfway would leave neither layout. Instead one
 * atomic replacement of run.json swaps the two sets: at every instant it names one whole set, and anything else is
 * found and removed at the next resume. */
#include "run/stores/store_set.h"

#include "core/confine.h"
#include "core/files/files.h"
#include "core/size.h"
#include "run/stores/orphans.h"
#include "run/stores/start.h"
#include "run/stores/store_set_private.h"

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

static sw_status describe(const struct sw_store_set *self, struct list *own, struct sw_places *places) {
    const struct sw_store_owner owner = sw_settings_owner(&self->run->settings);
    SW_TRY(sw_places_of(&self->run->settings.nvme, self->folder, &owner, places));
    own->count = places->count;
    for (int i = 0; i < places->count; i++)
        own->place[i] = identify(places->path[i]);
    return SW_OK;
}

static sw_status compare_places(const struct sw_store_set *self, const struct list *all,
                                const struct sw_places *places) {
    const int rank = sw_ranks_rank(self->ranks);
    for (int other = 0; other < rank; other++)
        if (all[other].node == all[rank].node)
            SW_TRY(check_pair(&all[rank], &all[other], other, places));
    return SW_OK;
}

sw_status sw_store_set_places_agree(const struct sw_store_set *self) {
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
static sw_status refuse_taken(const struct sw_places *places) {
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

sw_status sw_store_set_folder_agrees(struct sw_ranks *ranks, const char *folder) {
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

static void tell(const struct sw_store_set *self, const char *id, const struct sw_places *places, struct told *own) {
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
static bool lies_in_folder(const struct sw_store_set *self, const struct sw_places *places) {
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

static sw_status share(const struct sw_store_set *self, const char *id, const struct sw_places *places,
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

sw_status sw_store_set_places(const struct sw_store_set *self, struct sw_places *out) {
    const struct sw_store_owner owner = sw_settings_owner(&self->run->settings);
    return sw_places_of_rank(&self->run->settings.nvme, self->folder, &owner, out);
}

sw_status sw_store_set_record(const struct sw_store_set *self, const char *id, const struct sw_places *places,
                              struct sw_run *into) {
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
    sw_run_stores_release(into->store, into->ranks);
    into->store = stores;
    into->ranks = owner.ranks;
    into->whole = owner.whole;
    into->optimizer = owner.optimizer;
    into->tensor_ranks = owner.tensor_ranks;
    into->expert_ranks = owner.expert_ranks;
    snprintf(into->split, sizeof into->split, "%s", owner.split);
    into->joined = owner.joined;
    into->tiles = self->run->settings.tiles;
    return SW_OK;
}

/* Writes the new stores of all ranks into a run, each at its rank's own places. If `must_be_free`, refuses places that
 * have a store. */
static sw_status record_new(const struct sw_store_set *self, bool must_be_free, struct sw_run *into) {
    struct sw_places places;
    sw_status status = sw_ranks_agree_on_error(self->ranks, sw_store_set_places(self, &places));
    if (status == SW_OK && must_be_free)
        status = sw_ranks_agree_on_error(self->ranks, refuse_taken(&places));
    if (status == SW_OK)
        status = sw_store_set_record(self, self->id, &places, into);
    sw_places_release(&places);
    return status;
}

/* Makes a new set, and publishes it. */

static bool replaces(const struct sw_store_set *self) {
    return self->old.ranks > 0;
}

/* Creates the store of this rank in its places, with the folders. After a failure, these go with the set. */
static sw_status make_own(const struct sw_store_set *self, struct sw_store **out) {
    const struct sw_store_owner owner = sw_settings_owner(&self->run->settings);
    struct sw_places places;
    SW_TRY(sw_store_set_places(self, &places));
    sw_status status = sw_places_make(&places, &owner);
    if (status == SW_OK)
        status = self->make(self->context, &places, self->id, out);
    sw_places_release(&places);
    return status;
}

/* Writes run.json with the new orphans, and otherwise with the old stores and settings. */
static sw_status write_orphans(const struct sw_store_set *self) {
    struct sw_run run = {0};
    sw_status status = sw_run_read(self->folder, &run);
    if (status == SW_OK) {
        sw_run_stores_release(run.orphans, run.orphan_count);
        run.orphans = self->run->orphans;
        run.orphan_count = self->run->orphan_count;
        status = sw_run_write(self->folder, &run);
        run.orphans = NULL;
        run.orphan_count = 0;
    }
    sw_run_release(&run);
    return status;
}

sw_status sw_store_set_begin(struct sw_store_set *self, struct sw_store **out) {
    struct sw_ranks *ranks = self->ranks;
    SW_TRY(sw_ranks_agree_on_error(ranks, sw_store_new_id(self->id)));
    SW_TRY(record_new(self, true, replaces(self) ? &self->made : self->run));
    /* A resume that fails takes back the announcement even if it may not have been written. */
    self->announced = replaces(self);
    if (replaces(self))
        SW_TRY(sw_ranks_agree_on_error(ranks, sw_orphans_add(self->folder, &self->made, self->step, self->run)));
    SW_TRY(sw_ranks_first(ranks, replaces(self) ? write_orphans(self) : sw_start_announce(self->folder, self->run)));
    self->announced = true;
    return sw_ranks_agree_on_error(ranks, make_own(self, out));
}

sw_status sw_store_set_publish(struct sw_store_set *self) {
    struct sw_ranks *ranks = self->ranks;
    if (!replaces(self))
        return sw_start_finish(ranks, self->folder);
    SW_TRY(record_new(self, false, self->run));
    sw_orphans_forget(self->run, &self->made);
    SW_TRY(sw_ranks_agree_on_error(ranks, sw_orphans_add(self->folder, &self->old, self->newest, self->run)));
    SW_TRY(sw_ranks_first(ranks, sw_run_write(self->folder, self->run)));
    return sw_orphans_remove(ranks, self->folder, self->run);
}

/* Takes back a new set. */

/* Tells whether run.json already names the new stores, or cannot be read: then they must not be touched. */
static sw_status refuse_taken_up(const struct sw_store_set *self) {
    struct sw_run run = {0};
    sw_status status = sw_run_read(self->folder, &run);
    if (status == SW_OK && strcmp(run.store[0].id, self->made.store[0].id) == 0)
        status = sw_fail(SW_ERR_BUSY, "the new stores are the run's");
    sw_run_release(&run);
    return status;
}

static sw_status remove_own(const struct sw_store_set *self) {
    struct sw_places places;
    SW_TRY(sw_store_set_places(self, &places));
    sw_status status = SW_OK;
    for (int i = 0; status == SW_OK && i < places.count; i++)
        status = sw_stores_remove_at(places.path[i], self->id, self->step);
    sw_places_release(&places);
    return status;
}

static sw_status forget_new(const struct sw_store_set *self) {
    sw_orphans_forget(self->run, &self->made);
    sw_orphans_forget(self->run, &self->old);
    return write_orphans(self);
}

/* Takes back a replacement if all ranks know of the failure. Otherwise another rank may be finishing it, and the next
 * resume finds out which stores are the run's. */
static void withdraw_replacement(const struct sw_store_set *self) {
    struct sw_ranks *ranks = self->ranks;
    const bool told = ranks->told;
    if (!self->announced || (sw_ranks_count(ranks) > 1 && !told))
        return;
    sw_status status = sw_ranks_agree_on_error(ranks, refuse_taken_up(self));
    if (status == SW_OK)
        status = sw_ranks_agree_on_error(ranks, remove_own(self));
    if (status == SW_OK)
        (void)sw_ranks_first(ranks, forget_new(self));
    ranks->told = told;
}

/* Takes back a start. The rank that sees no other store any more removes everything else. */
static void withdraw_start(const struct sw_store_set *self, struct sw_store *store) {
    if (!self->announced)
        return;
    sw_store_discard(store);
    sw_start_undo(self->folder, self->run);
}

void sw_store_set_withdraw(struct sw_store_set *self, struct sw_store *store) {
    SW_HANDLES_ERRORS(); /* the error of the failure stays */
    if (replaces(self)) {
        sw_store_close(store);
        withdraw_replacement(self);
    } else {
        withdraw_start(self, store);
    }
    self->announced = false;
}

void sw_store_set_release(struct sw_store_set *self) {
    sw_run_stores_release(self->made.store, self->made.ranks);
    sw_run_stores_release(self->old.store, self->old.ranks);
    self->made = self->old = (struct sw_run){0};
}
