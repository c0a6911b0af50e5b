/* Checks that the places of the ranks of one machine are shared on purpose or apart, and that they are free. */
#include "core/confine.h"
#include "core/files/files.h"
#include "run/stores/rank_store_private.h"

#include <stdlib.h>
#include <sys/stat.h>

/* The identity of a place, whatever its path. */
struct identity {
    int64_t device, number; /* a folder's file system and inode; a block device's number, twice */
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

/* Returns the index of the same place in the list, or -1. A place that does not exist yet equals no other. */
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

static sw_status compare(const struct sw_rank_stores *self, const struct list *all, const struct sw_places *places) {
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
        status = sw_ranks_agree_on_error(ranks, compare(self, all, &places));
    sw_places_release(&places);
    free(all);
    return status;
}

sw_status sw_rank_refuse_taken(const struct sw_places *places) {
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
