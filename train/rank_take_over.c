/* A run that goes on with another number of ranks. Its state is copied grain by grain from the stores that it has into
 * new ones, which then commit the same step. Stores can be open once at a time, so the ranks go round the old ones. */
#include "core/log.h"
#include "core/size.h"
#include "offload/shard.h"
#include "train/files.h"
#include "train/rank_store_private.h"
#include "train/run_stores.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BOX_GRAINS = 16, BOXES = 2, IO_DEPTH = 32 };

/* What a change of ranks goes through. */
struct change {
    const struct sw_rank_stores *self;
    struct sw_ranks *ranks;
    struct sw_run before; /* its stores only */
    struct sw_store *store;
    int64_t step;                   /* the newest that all old stores have */
    int64_t grains;                 /* copied so far */
    struct sw_store_commit *commit; /* of that step; NULL: not read yet */
};

static sw_status open_old(const struct change *change, int64_t owner, int64_t most_step, struct sw_store **out) {
    struct sw_places places;
    SW_TRY(sw_run_places(change->self->folder, &change->before, owner, NULL, &places));
    const sw_status status = sw_run_open_places(&places, &change->before, owner, most_step, out);
    sw_places_release(&places);
    return status == SW_OK ? SW_OK
                           : sw_fail_while(status, "taking over the store of rank %lld of %lld", (long long)owner,
                                           (long long)change->before.ranks);
}

/* Each old store is asked by one rank. */
static sw_status find_own_step(struct change *change) {
    change->step = SW_STORE_NEWEST;
    for (int64_t owner = sw_ranks_rank(change->ranks); owner < change->before.ranks;
         owner += sw_ranks_count(change->ranks)) {
        struct sw_store *old;
        SW_TRY(open_old(change, owner, SW_STORE_NEWEST, &old));
        change->step = sw_min_i64(change->step, sw_store_last_commit(old)->step);
        sw_store_close(old);
    }
    return SW_OK;
}

/* Whether a rank takes grains of an old store, or at least its commit. */
static bool needs(const struct change *change, int64_t owner) {
    const struct sw_run *before = &change->before;
    if (owner == sw_ranks_rank(change->ranks) % before->ranks)
        return true;
    for (int64_t unit = 0; !before->whole && unit < sw_store_unit_count(change->store); unit++) {
        const struct sw_span span =
            sw_shard(sw_store_unit_whole_grains(change->store, unit), (int)before->ranks, (int)owner);
        const int64_t first = sw_store_unit_first(change->store, unit);
        if (sw_min_i64(span.first_grain + span.grains, first + sw_store_unit_grains(change->store, unit)) >
            sw_max_i64(span.first_grain, first))
            return true;
    }
    return false;
}

/* Reads a box while the one before is written. */
static sw_status copy_run(struct sw_store_lane *from, struct sw_store_lane *to, const struct sw_store_transfer *run,
                          char *const boxes[BOXES], struct sw_ranks *ranks) {
    for (int64_t done = 0, turn = 0; done < run->grains; done += BOX_GRAINS, turn++) {
        struct sw_store_transfer box = *run;
        box.first_grain += done;
        box.grains = sw_min_i64(BOX_GRAINS, run->grains - done);
        box.buf = boxes[turn % BOXES];
        SW_TRY(sw_store_transfer(from, &box));
        while (sw_store_outstanding(to) > 0) {
            uint64_t tag;
            int count;
            SW_TRY(sw_store_reap(to, true, &tag, 1, &count));
        }
        box.write = true;
        box.generation = 0;
        SW_TRY(sw_store_submit(to, &box));
        sw_ranks_tick(ranks);
    }
    while (sw_store_outstanding(to) > 0) {
        uint64_t tag;
        int count;
        SW_TRY(sw_store_reap(to, true, &tag, 1, &count));
    }
    return SW_OK;
}

static sw_status copy_units(struct sw_store *from, struct sw_store *to, struct sw_store_lane *const lanes[2],
                            char *const boxes[BOXES], struct sw_ranks *ranks, int64_t *grains) {
    const struct sw_store_commit *commit = sw_store_last_commit(from);
    for (int64_t unit = 0; unit < sw_store_unit_count(to); unit++) {
        if (sw_store_unit_whole_grains(from, unit) != sw_store_unit_whole_grains(to, unit))
            return sw_fail(SW_ERR_CORRUPT, "the store belongs to another model than run.json");
        const int64_t first = sw_max_i64(sw_store_unit_first(from, unit), sw_store_unit_first(to, unit));
        const int64_t end = sw_min_i64(sw_store_unit_first(from, unit) + sw_store_unit_grains(from, unit),
                                       sw_store_unit_first(to, unit) + sw_store_unit_grains(to, unit));
        if (end <= first)
            continue;
        const struct sw_store_transfer run = {.generation = commit->generation,
                                              .unit = unit,
                                              .first_grain = first,
                                              .grains = end - first,
                                              .step = commit->step};
        SW_TRY(copy_run(lanes[0], lanes[1], &run, boxes, ranks));
        *grains += end - first;
    }
    return SW_OK;
}

sw_status sw_rank_copy(struct sw_store *from, struct sw_store *to, struct sw_ranks *ranks, int64_t *grains) {
    struct sw_store_lane *lanes[2] = {NULL, NULL};
    void *memory = NULL;
    sw_status status = SW_OK;
    if (sw_store_unit_count(from) != sw_store_unit_count(to))
        return sw_fail(SW_ERR_CORRUPT, "the store belongs to another model than run.json");
    if (posix_memalign(&memory, SW_BUFFER_ALIGN_BYTES, (size_t)BOXES * BOX_GRAINS * SW_RECORD_BYTES) != 0)
        return sw_fail(SW_ERR_NOMEM, "no memory to copy a store");
    char *const boxes[BOXES] = {memory, (char *)memory + (ptrdiff_t)BOX_GRAINS * SW_RECORD_BYTES};
    SW_TRY_GOTO(sw_store_lane_open(from, IO_DEPTH, &lanes[0]), end);
    SW_TRY_GOTO(sw_store_lane_open(to, IO_DEPTH, &lanes[1]), end);
    status = copy_units(from, to, lanes, boxes, ranks, grains);
end:
    sw_store_lane_close(lanes[0]);
    sw_store_lane_close(lanes[1]);
    free(memory);
    return status;
}

static sw_status take_from(struct change *change, int64_t owner) {
    struct sw_store *old;
    sw_status status = SW_OK;
    if (owner >= change->before.ranks || !needs(change, owner))
        return SW_OK;
    SW_TRY(open_old(change, owner, change->step, &old));
    if (sw_store_last_commit(old)->step != change->step)
        SW_TRY_GOTO(sw_fail(SW_ERR_CORRUPT,
                            "the store of rank %lld has no commit of step %lld, the newest of all ranks",
                            (long long)owner, (long long)change->step),
                    end);
    *change->commit = *sw_store_last_commit(old);
    status = sw_rank_copy(old, change->store, change->ranks, &change->grains);
end:
    sw_store_close(old);
    return status;
}

static sw_status check_complete(const struct change *change) {
    int64_t held = 0;
    for (int64_t unit = 0; unit < sw_store_unit_count(change->store); unit++)
        held += sw_store_unit_grains(change->store, unit);
    return change->grains == held
               ? SW_OK
               : sw_fail(SW_ERR_CORRUPT, "the stores of the run have %lld of the %lld grains that this rank needs",
                         (long long)change->grains, (long long)held);
}

/* In each turn no two ranks have the same old store. */
static sw_status fill(struct change *change) {
    const int64_t ranks = sw_ranks_count(change->ranks), rank = sw_ranks_rank(change->ranks);
    const int64_t turns = sw_max_i64(ranks, change->before.ranks);
    for (int64_t turn = 0; turn < turns; turn++) {
        sw_ranks_enter(change->ranks, "taking over the stores of other ranks", turn);
        const sw_status status = take_from(change, (rank + turn) % turns);
        sw_ranks_leave(change->ranks);
        SW_TRY(sw_ranks_gate(change->ranks, status));
    }
    SW_TRY(sw_rank_agree_on_commit(change->ranks, change->commit));
    return sw_ranks_gate(change->ranks, check_complete(change));
}

static sw_status write_run(const struct change *change) {
    return sw_ranks_first(change->ranks, sw_run_write(change->self->folder, change->self->run));
}

/* The run stays what it is, with the settings that it had. */
static sw_status write_left(const struct sw_rank_stores *self) {
    struct sw_run run = {0};
    SW_TRY(sw_run_read(self->folder, &run));
    sw_option_list_release(&run.left);
    run.left = self->run->left;
    const sw_status status = sw_run_write(self->folder, &run);
    run.left = (struct sw_option_list){0};
    sw_run_release(&run);
    return status;
}

/* Before they are made, so that whatever happens they are found again. */
static sw_status announce_new(struct change *change) {
    const struct sw_rank_stores *self = change->self;
    struct sw_run after = {.settings = self->run->settings};
    const struct sw_rank_stores like = {.ranks = self->ranks, .folder = self->folder, .run = &after};
    struct sw_places places;
    sw_status status = sw_ranks_gate(change->ranks, sw_rank_own_places(self, &places));
    if (status == SW_OK)
        status = sw_ranks_gate(change->ranks, sw_rank_refuse_taken(&places));
    if (status == SW_OK)
        status = sw_rank_record(&like, "", &places);
    sw_places_release(&places);
    if (status == SW_OK)
        status = sw_ranks_gate(change->ranks, sw_rank_leave(self->folder, &after, &self->run->left));
    sw_run_stores_release(after.store, after.ranks);
    SW_TRY(status);
    return sw_ranks_first(change->ranks, write_left(self));
}

/* The new stores are the run's from the moment that run.json says so. */
static sw_status replace(struct change *change) {
    const struct sw_rank_stores *self = change->self;
    struct sw_places places;
    char id[SW_STORE_ID_CHARS];
    sw_status status = sw_ranks_gate(change->ranks, sw_rank_own_places(self, &places));
    if (status == SW_OK)
        status = sw_rank_record(self, sw_store_id(change->store, id), &places);
    sw_places_release(&places);
    SW_TRY(status);
    sw_option_list_release(&self->run->left);
    SW_TRY(sw_ranks_gate(change->ranks, sw_rank_leave(self->folder, &change->before, &self->run->left)));
    SW_TRY(write_run(change));
    return sw_ranks_gate(change->ranks, sw_rank_remove_left(self));
}

static sw_status go_through(struct change *change) {
    struct sw_ranks *ranks = change->ranks;
    SW_TRY(sw_ranks_gate(ranks, find_own_step(change)));
    SW_TRY(sw_ranks_least(ranks, &change->step, 1));
    SW_TRY(announce_new(change));
    SW_TRY(sw_ranks_gate(ranks, sw_rank_make(change->self, &change->store)));
    SW_TRY(fill(change));
    SW_TRY(sw_ranks_gate(ranks, sw_store_commit(change->store, change->step, 0, change->commit->meta)));
    return replace(change);
}

static sw_status begin(struct change *change) {
    const struct sw_run *run = change->self->run;
    change->commit = calloc(1, sizeof *change->commit);
    struct sw_run_store *stores = calloc((size_t)run->ranks, sizeof *stores);
    change->before = (struct sw_run){
        .settings = {.allow_buffered = run->settings.allow_buffered}, .ranks = run->ranks, .whole = run->whole};
    change->before.store = stores;
    if (change->commit == NULL || stores == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the stores of %lld ranks", (long long)run->ranks);
    for (int64_t rank = 0; rank < run->ranks; rank++) {
        memcpy(stores[rank].id, run->store[rank].id, sizeof stores[rank].id);
        stores[rank].local_rank = run->store[rank].local_rank;
        for (int i = 0; i < run->store[rank].places.count; i++)
            SW_TRY(sw_option_list_add(&stores[rank].places, run->store[rank].places.items[i]));
    }
    return SW_OK;
}

sw_status sw_rank_take_over(const struct sw_rank_stores *self, struct sw_store **out) {
    struct change change = {.self = self, .ranks = self->ranks};
    sw_status status = sw_ranks_gate(change.ranks, begin(&change));
    if (status == SW_OK)
        status = go_through(&change);
    sw_run_stores_release(change.before.store, change.before.ranks);
    free(change.commit);
    *out = change.store;
    return status;
}

/* As far as this rank sees it: what lies on another machine is removed by the ranks there. */
static sw_status remove_one(const char *folder, const char *left) {
    char path[SW_RUN_PATH_CHARS];
    if (left[0] == '/')
        SW_TRY(sw_path_join(path, sizeof path, "", left + 1));
    else
        SW_TRY(sw_path_join(path, sizeof path, folder, left));
    SW_TRY(sw_store_remove(path));
    /* A folder that was made for it. */
    const char *name = strrchr(path, '/') + 1;
    int rank, ranks;
    if (sscanf(name, "rank-%d-of-%d", &rank, &ranks) == 2)
        rmdir(path);
    return SW_OK;
}

sw_status sw_rank_remove_left(const struct sw_rank_stores *self) {
    for (int i = 0; i < self->run->left.count; i++) {
        const sw_status status = remove_one(self->folder, self->run->left.items[i]);
        if (status != SW_OK)
            sw_log_warn("%s, which the run no longer needs, is not removed: %s", self->run->left.items[i],
                        sw_error_message(status));
        sw_error_clear();
    }
    sw_option_list_release(&self->run->left);
    return SW_OK;
}
