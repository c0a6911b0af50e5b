/* Resumes a run with another number of ranks, with other tensor groups, or with another format of the optimizer state.
 * State goes from the old stores into new ones, which then commit the same step: grain by grain if only the shards
 * change, tensor by tensor (rank_convert.c) if the layout does.
 *
 * Changing the old stores in place would need no second store, but a kill halfway would leave neither layout. Instead
 * run.json lists the new stores as orphans before they are made, and one atomic replacement of run.json swaps the two
 * sets: at every instant it names one whole set, and anything else is found and removed by its id at the next resume.
 *
 * A store can be open for writing only once, so ranks that copy grains take turns with the old stores. */
#include "core/log.h"
#include "core/size.h"
#include "io/store/block.h"
#include "offload/plan/shard.h"
#include "run/folder/run.h"
#include "run/stores/rank_store_private.h"

#include "core/status.h"

#include <stdlib.h>
#include <string.h>

/* A change of shards or of layout. */
struct change {
    const struct sw_rank_stores *self;
    struct sw_ranks *ranks;
    struct sw_run before, after; /* only their stores are filled in; the starts are borrowed */
    struct sw_store *store;
    int64_t step;                   /* newest step that all old stores have */
    int64_t newest;                 /* newest step in any of their commit records, including unfinished commits */
    char id[SW_STORE_ID_CHARS];     /* id of this rank's new store */
    bool announced;                 /* run.json lists the new stores as orphans until they become the run's */
    int64_t grains;                 /* grains copied so far */
    struct sw_store_commit *commit; /* commit of `step`; NULL: not read yet */
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

/* Each old store is checked by one rank. A run.json that does not list its stores has a single one. */
static sw_status find_own_step(struct change *change) {
    change->step = SW_STORE_NEWEST;
    change->newest = -1;
    for (int64_t owner = sw_ranks_rank(change->ranks); owner < change->before.ranks;
         owner += sw_ranks_count(change->ranks)) {
        struct sw_store *old;
        SW_TRY(open_old(change, owner, SW_STORE_NEWEST, &old));
        const int64_t step = sw_store_last_commit(old)->step;
        change->step = sw_min_i64(change->step, step);
        change->newest = sw_max_i64(change->newest, sw_store_newest_record(old));
        sw_store_id(old, change->before.store[owner].id);
        sw_store_close(old);
    }
    return SW_OK;
}

static sw_status find_step(struct change *change) {
    struct sw_ranks *ranks = change->ranks;
    struct sw_run_store *first = &change->before.store[0];
    SW_TRY(sw_ranks_agree_on_error(ranks, find_own_step(change)));
    SW_TRY(sw_ranks_spread(ranks, "identity of the store", first->id, sizeof first->id));
    int64_t steps[] = {change->step, -change->newest};
    SW_TRY(sw_ranks_least(ranks, steps, 2));
    change->step = steps[0];
    change->newest = -steps[1];
    return SW_OK;
}

static sw_status check_old(struct change *change) {
    for (int64_t owner = sw_ranks_rank(change->ranks); owner < change->before.ranks;
         owner += sw_ranks_count(change->ranks)) {
        struct sw_store *old;
        SW_TRY(open_old(change, owner, change->step, &old));
        const sw_status status = sw_rank_check_whole(change->ranks, old);
        sw_store_close(old);
        SW_TRY(status);
    }
    return SW_OK;
}

/* Removes orphans of an earlier change, once the run's own stores are found whole: if they are not, the orphans may be
 * the whole ones. */
static sw_status remove_orphans(struct change *change) {
    if (change->self->run->orphan_count == 0)
        return SW_OK;
    SW_TRY(sw_ranks_agree_on_error(change->ranks, check_old(change)));
    return sw_rank_remove_orphans(change->self);
}

/* Tells whether a rank needs grains of an old store, or at least its commit. */
static bool needs(const struct change *change, int64_t owner) {
    const struct sw_run *before = &change->before;
    const int64_t tensor_ranks = before->tensor_ranks;
    if (owner == sw_ranks_rank(change->ranks) % before->ranks)
        return true;
    if (owner % tensor_ranks != sw_ranks_rank(change->ranks) % tensor_ranks)
        return false; /* another part of every layer */
    for (int64_t unit = 0; !before->whole && unit < sw_store_unit_count(change->store); unit++) {
        const struct sw_span span = sw_shard(sw_store_unit_whole_grains(change->store, unit),
                                             (int)(before->ranks / tensor_ranks), (int)(owner / tensor_ranks));
        const int64_t first = sw_store_unit_first(change->store, unit);
        if (sw_min_i64(span.first_grain + span.grains, first + sw_store_unit_grains(change->store, unit)) >
            sw_max_i64(span.first_grain, first))
            return true;
    }
    return false;
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

static bool changes_format(const struct change *change) {
    return change->before.optimizer != sw_settings_optimizer(&change->self->run->settings);
}

static bool changes_groups(const struct change *change) {
    return change->before.tensor_ranks != sw_settings_tensor_ranks(&change->self->run->settings);
}

/* Tells whether grains hold other elements than before. */
static bool changes_layout(const struct change *change) {
    return changes_format(change) || changes_groups(change);
}

static sw_status convert(struct change *change) {
    const struct sw_rank_conversion conversion = {.folder = change->self->folder,
                                                  .run = change->self->run,
                                                  .before = &change->before,
                                                  .step = change->step,
                                                  .ranks = change->ranks,
                                                  .commit = change->commit};
    sw_ranks_enter(change->ranks, "laying out the optimizer state anew", change->step);
    const sw_status status = sw_rank_convert(&conversion, change->store);
    sw_ranks_leave(change->ranks);
    SW_TRY(sw_ranks_agree_on_error(change->ranks, status));
    return sw_rank_agree_on_commit(change->ranks, change->commit);
}

/* Takes turns: no two ranks have the same old store open in one turn. */
static sw_status fill(struct change *change) {
    const int64_t ranks = sw_ranks_count(change->ranks), rank = sw_ranks_rank(change->ranks);
    const int64_t turns = sw_max_i64(ranks, change->before.ranks);
    for (int64_t turn = 0; turn < turns; turn++) {
        sw_ranks_enter(change->ranks, "taking over the stores of other ranks", turn);
        const sw_status status = take_from(change, (rank + turn) % turns);
        sw_ranks_leave(change->ranks);
        SW_TRY(sw_ranks_agree_on_error(change->ranks, status));
    }
    SW_TRY(sw_rank_agree_on_commit(change->ranks, change->commit));
    return sw_ranks_agree_on_error(change->ranks, check_complete(change));
}

static sw_status write_run(const struct change *change) {
    return sw_ranks_first(change->ranks, sw_run_write(change->self->folder, change->self->run));
}

/* Writes run.json with the new orphans, and otherwise with the old stores and settings. */
static sw_status write_orphans(const struct sw_rank_stores *self) {
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

/* Lists the new stores in run.json before they are made, so that they are found whatever happens. */
static sw_status announce_new(struct change *change) {
    const struct sw_rank_stores *self = change->self;
    struct sw_run after = {.settings = self->run->settings};
    const struct sw_rank_stores like = {.ranks = self->ranks, .folder = self->folder, .run = &after};
    SW_TRY(sw_ranks_agree_on_error(change->ranks, sw_store_new_id(change->id)));
    sw_status status = sw_rank_record_own(&like, change->id, true);
    if (status == SW_OK)
        status =
            sw_ranks_agree_on_error(change->ranks, sw_rank_add_orphans(self->folder, &after, change->step, self->run));
    if (status == SW_OK)
        status = sw_ranks_first(change->ranks, write_orphans(self));
    change->after = after;
    change->after.settings = (struct sw_settings){0};
    change->announced = after.store != NULL;
    return status;
}

/* Makes the new stores the run's, which they are from the moment that run.json lists them as such. */
static sw_status replace(struct change *change) {
    const struct sw_rank_stores *self = change->self;
    SW_TRY(sw_rank_record_own(self, change->id, false));
    sw_rank_forget_orphans(self->run, &change->after);
    SW_TRY(sw_ranks_agree_on_error(change->ranks,
                                   sw_rank_add_orphans(self->folder, &change->before, change->newest, self->run)));
    SW_TRY(write_run(change));
    return sw_rank_remove_orphans(self);
}

/* Tells whether run.json already names the new stores, or cannot be read: then they must not be touched. */
static sw_status refuse_taken_up(const struct change *change) {
    struct sw_run run = {0};
    sw_status status = sw_run_read(change->self->folder, &run);
    if (status == SW_OK && strcmp(run.store[0].id, change->after.store[0].id) == 0)
        status = sw_fail(SW_ERR_BUSY, "the new stores are the run's");
    sw_run_release(&run);
    return status;
}

static sw_status remove_new(struct change *change) {
    const struct sw_rank_stores *self = change->self;
    const struct sw_store_owner owner = sw_settings_owner(&self->run->settings);
    struct sw_places places;
    sw_store_close(change->store);
    change->store = NULL;
    SW_TRY(sw_rank_own_places(self, &places));
    sw_status status = SW_OK;
    for (int i = 0; status == SW_OK && i < places.count; i++)
        status = sw_store_remove(places.path[i], change->id, change->step);
    if (status == SW_OK)
        sw_places_unmake(&places, &owner);
    sw_places_release(&places);
    return status;
}

static sw_status forget_new(const struct change *change) {
    sw_rank_forget_orphans(change->self->run, &change->after);
    sw_rank_forget_orphans(change->self->run, &change->before);
    return write_orphans(change->self);
}

/* Undoes the announcement if all ranks know of the failure. Otherwise another rank may be finishing the change, and the
 * next resume finds out which stores are the run's. Keeps the error of the failure. */
static void withdraw(struct change *change) {
    struct sw_ranks *ranks = change->ranks;
    const bool told = ranks->told;
    if (!change->announced || (sw_ranks_count(ranks) > 1 && !told))
        return;
    SW_HANDLES_ERRORS();
    sw_status status = sw_ranks_agree_on_error(ranks, refuse_taken_up(change));
    if (status == SW_OK)
        status = sw_ranks_agree_on_error(ranks, remove_new(change));
    if (status == SW_OK)
        (void)sw_ranks_first(ranks, forget_new(change));
    ranks->told = told;
}

/* Refuses a new layout that cannot be made, before anything is created. */
static sw_status check_layout(const struct change *change) {
    const struct sw_run *run = change->self->run;
    const char *flag = changes_groups(change) ? "--tensor" : "--optimizer-state";
    struct sw_places places;
    bool on_device = false;
    if (!changes_layout(change))
        return SW_OK;
    if (run->settings.freeze != NULL)
        return sw_fail(SW_ERR_UNSUPPORTED,
                       "%s of a run with --freeze cannot change: its frozen weights lie as the run began; export it, "
                       "and begin a new run from that",
                       flag);
    SW_TRY(sw_rank_own_places(change->self, &places));
    for (int i = 0; i < places.count; i++)
        on_device |= sw_block_is_one(places.path[i]);
    sw_places_release(&places);
    return on_device ? sw_fail(SW_ERR_UNSUPPORTED,
                               "%s cannot change on a block device, which has no room for a second store: resume with "
                               "--nvme of a folder",
                               flag)
                     : SW_OK;
}

/* Logs what changed, and what it cost: 8-bit moments have one scale per block of consecutive elements, and other
 * elements are consecutive now. */
static void say_changed(const struct change *change) {
    const sw_optimizer_format now = sw_settings_optimizer(&change->self->run->settings);
    if (sw_ranks_rank(change->ranks) != 0)
        return;
    if (changes_format(change))
        sw_log_info("converted the optimizer state of step %lld from %s to %s, once; moments are rounded to nearest",
                    (long long)change->step, sw_optimizer_format_name(sw_optimizer_records(change->before.optimizer)),
                    sw_optimizer_format_name(sw_optimizer_records(now)));
    if (changes_groups(change))
        sw_log_info("laid out the optimizer state of step %lld for --tensor %lld instead of %lld, once%s",
                    (long long)change->step, (long long)sw_settings_tensor_ranks(&change->self->run->settings),
                    (long long)change->before.tensor_ranks,
                    now == SW_OPTIMIZER_8BIT ? "; moments in 8 bits are rounded to nearest" : "");
}

static sw_status go_through(struct change *change) {
    struct sw_ranks *ranks = change->ranks;
    SW_TRY(sw_ranks_agree_on_error(ranks, check_layout(change)));
    SW_TRY(find_step(change));
    SW_TRY(remove_orphans(change));
    SW_TRY(announce_new(change));
    SW_TRY(sw_ranks_agree_on_error(ranks, sw_rank_make(change->self, change->id, &change->store)));
    SW_TRY(changes_layout(change) ? convert(change) : fill(change));
    SW_TRY(sw_ranks_agree_on_error(ranks, sw_store_commit(change->store, change->step, 0, change->commit->meta)));
    SW_TRY(replace(change));
    say_changed(change);
    return SW_OK;
}

static sw_status begin(struct change *change) {
    const struct sw_run *run = change->self->run;
    change->commit = calloc(1, sizeof *change->commit);
    struct sw_run_store *stores = calloc((size_t)run->ranks, sizeof *stores);
    change->before = (struct sw_run){.settings = {.allow_buffered = run->settings.allow_buffered},
                                     .ranks = run->ranks,
                                     .whole = run->whole,
                                     .optimizer = run->optimizer,
                                     .tensor_ranks = run->tensor_ranks,
                                     .tiles = run->tiles,
                                     .starts = run->starts};
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

/* Counts the old stores that this rank can reach. */
static sw_status count_seen(const struct change *change, int64_t *out) {
    for (int64_t rank = 0; rank < change->before.ranks; rank++) {
        struct sw_places places;
        SW_TRY(sw_run_places(change->self->folder, &change->before, rank, NULL, &places));
        for (int i = 0; i < places.count; i++)
            *out += sw_store_is_at(places.path[i]);
        sw_places_release(&places);
    }
    return SW_OK;
}

/* Tells whether a new --nvme means that the old stores were moved there. It may also only say where new stores belong.
 * It means a move if no rank sees an old store where run.json has it. */
static sw_status follow_move(struct change *change) {
    const struct sw_run *run = change->self->run;
    struct sw_run *before = &change->before;
    int64_t seen = 0;
    if (!sw_rank_has_new_places(run))
        return SW_OK;
    SW_TRY(sw_ranks_agree_on_error(change->ranks, count_seen(change, &seen)));
    SW_TRY(sw_ranks_sum(change->ranks, &seen));
    sw_status status = SW_OK;
    for (int64_t rank = 0; seen == 0 && status == SW_OK && rank < before->ranks; rank++) {
        struct sw_places places;
        status = sw_run_places(change->self->folder, before, rank, &run->settings.nvme, &places);
        sw_option_list_release(&before->store[rank].places);
        for (int i = 0; status == SW_OK && i < places.count; i++)
            status = sw_option_list_add(&before->store[rank].places, places.path[i]);
        sw_places_release(&places);
    }
    return sw_ranks_agree_on_error(change->ranks, status);
}

sw_status sw_rank_replace(const struct sw_rank_stores *self, struct sw_store **out) {
    struct change change = {.self = self, .ranks = self->ranks};
    sw_status status = sw_ranks_agree_on_error(change.ranks, begin(&change));
    if (status == SW_OK)
        status = follow_move(&change);
    if (status == SW_OK)
        status = go_through(&change);
    if (status != SW_OK)
        withdraw(&change);
    sw_run_stores_release(change.before.store, change.before.ranks);
    sw_run_stores_release(change.after.store, change.after.ranks);
    free(change.commit);
    *out = change.store;
    return status;
}
