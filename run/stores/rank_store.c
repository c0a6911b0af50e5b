/* This rank's store: opened at the step that all ranks have, or replaced if ranks or layout have changed.
 *
 * The stores of a run commit independently, so after a crash one rank may be a step ahead. All open at the newest step
 * that every store has; a later commit is dropped only after every rank has found its store whole at that step.
 * Dropping first would leave nothing if a store turned out damaged. */
#include "run/stores/rank_store.h"

#include "core/log.h"
#include "core/size.h"
#include "core/status.h"
#include "io/store/block.h"
#include "kernels/moments.h"
#include "model/model.h"
#include "offload/plan/shard.h"
#include "run/folder/run.h"
#include "run/folder/state.h"
#include "run/stores/rank_store_private.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Resumes a run with another number of ranks, with other tensor groups, or with another format of the optimizer state.
 * State goes from the old stores into new ones, which then commit the same step: grain by grain if only the shards
 * change, tensor by tensor if the layout does.
 *
 * Changing the old stores in place would need no second store, but a kill halfway would leave neither layout. Instead
 * run.json lists the new stores as orphans before they are made, and one atomic replacement of run.json swaps the two
 * sets: at every instant it names one whole set, and anything else is found and removed by its id at the next resume.
 */

/* A change of shards or of layout. */
struct change {
    const struct sw_rank_stores *self;
    struct sw_ranks *ranks;
    struct sw_run before, after; /* only their stores are filled in, and the old ones' model; the starts are borrowed */
    struct sw_store *store;
    int64_t step;                   /* newest step that all old stores have */
    int64_t newest;                 /* newest step in any of their commit records, including unfinished commits */
    char id[SW_STORE_ID_CHARS];     /* id of this rank's new store */
    bool announced;                 /* run.json lists the new stores as orphans until they become the run's */
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
    if (!before->whole && sw_tuning_freezes(&change->self->run->settings.tuning))
        return true; /* ranks share out what is trained, of which the stores do not say where it begins */
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

/* Fills this rank's new store from the old ones, which are only read.
 *
 * The new store is filled in its own order, grain by grain. If grains hold the same elements as before, their records
 * are copied as they are. Otherwise each run of elements of a grain is looked up by the tensor's name. Filling in the
 * order of the old stores would read each of them once, but would write grains in pieces.
 *
 * A conversion rounds moments to nearest: stochastic rounding belongs to a step, and a conversion is not one. */

enum { WRITE_GRAINS = 16, IO_DEPTH = 32 };

struct filler {
    struct change *change;
    struct sw_state_reader *old;
    int old_part;        /* the tensor rank whose records are copied */
    struct sw_units *to; /* units of the new layout; NULL: records are copied as they are */
    struct sw_store_lane *lane;
    char *written;                               /* room for WRITE_GRAINS grains of new state */
    float made[SW_STATE_PARTS * SW_GRAIN_ELEMS]; /* the state of a grain in fp32, laid out like a record */
};

/* A grain of the new layout while it is filled. */
struct making {
    struct filler *self;
    const struct sw_unit *unit;
};

/* Takes a run of elements of a tensor into the grain, starting at its element `at`. */
static sw_status take_run(void *context, int64_t tensor, int64_t whole, int64_t run, int64_t at) {
    const struct making *making = context;
    float *const made = making->self->made + at;
    float *const out[] = {made, made + SW_GRAIN_ELEMS, made + (int64_t)2 * SW_GRAIN_ELEMS};
    return sw_state_read(making->self->old, making->unit->tensor[tensor].name, whole, run, out);
}

static sw_status make_grain(struct filler *self, int64_t unit, int64_t grain, char *out) {
    const struct sw_moment_rounding nearest = {.rounding = SW_ROUND_NEAREST};
    struct making making = {.self = self, .unit = &self->to->unit[unit]};
    memset(&self->made, 0, sizeof self->made);
    SW_TRY(sw_unit_walk(making.unit, grain * SW_GRAIN_ELEMS, SW_GRAIN_ELEMS, take_run, &making));
    sw_record_from_fp32(self->to->optimizer, grain >= making.unit->wide_grain, &nearest, self->made, out);
    return SW_OK;
}

static sw_status make_grains(struct filler *self, int64_t unit, int64_t first, int64_t count) {
    const int64_t grain_bytes = sw_optimizer_grain_bytes(sw_store_optimizer(self->change->store));
    if (self->to == NULL)
        return sw_state_records(self->old, self->old_part, unit, first, count, self->written);
    for (int64_t g = 0; g < count; g++)
        SW_TRY(make_grain(self, unit, first + g, self->written + g * grain_bytes));
    return SW_OK;
}

static sw_status fill_unit(struct filler *self, int64_t unit) {
    const struct sw_store *store = self->change->store;
    const int64_t end = sw_store_unit_first(store, unit) + sw_store_unit_grains(store, unit);
    for (int64_t first = sw_store_unit_first(store, unit), count; first < end; first += count) {
        count = sw_min_i64(WRITE_GRAINS, end - first);
        SW_TRY(make_grains(self, unit, first, count));
        const struct sw_store_transfer transfer = {.write = true,
                                                   .kind = SW_STORE_OPTIMIZER,
                                                   .unit = unit,
                                                   .first_grain = first,
                                                   .grains = count,
                                                   .buf = self->written};
        SW_TRY(sw_store_transfer(self->lane, &transfer));
        sw_ranks_tick(self->change->ranks);
    }
    return SW_OK;
}

/* Returns the units of this rank's new store. */
static sw_status new_units(const struct sw_run *run, sw_optimizer_format format, struct sw_units **out) {
    const int tensor_ranks = (int)sw_settings_tensor_ranks(&run->settings);
    return tensor_ranks > 1
               ? sw_model_rank_units(&run->config, tensor_ranks, (int)sw_settings_tensor_rank(&run->settings),
                                     run->settings.tiles, format, out)
               : sw_model_units(&run->config, run->settings.tiles, format, NULL, out);
}

/* Checks that grains of an old store hold the same elements as those of the new one. */
static sw_status check_same(const struct sw_store *old, const struct sw_store *store) {
    bool same = sw_store_unit_count(old) == sw_store_unit_count(store);
    for (int64_t unit = 0; same && unit < sw_store_unit_count(store); unit++)
        same = sw_store_unit_whole_grains(old, unit) == sw_store_unit_whole_grains(store, unit);
    return same ? SW_OK : sw_fail(SW_ERR_CORRUPT, "the store belongs to another model than run.json");
}

/* Opens the old stores: all of them for a new layout, otherwise those that have grains of this rank. */
static sw_status open_all_old(struct filler *self, bool *wanted) {
    struct change *change = self->change;
    const struct sw_state_spec spec = {.folder = change->self->folder,
                                       .run = &change->before,
                                       .step = change->step,
                                       .wanted = self->to != NULL ? NULL : wanted};
    for (int64_t owner = 0; owner < change->before.ranks; owner++)
        wanted[owner] = needs(change, owner);
    SW_TRY(sw_state_open_stores(&spec, &self->old));
    const struct sw_store_set *old = sw_state_stores(self->old);
    for (int s = 0; self->to == NULL && s < old->count; s++)
        if (old->store[s] != NULL)
            SW_TRY(check_same(old->store[s], change->store));
    self->old_part = (int)(sw_ranks_rank(change->ranks) % change->before.tensor_ranks);
    return SW_OK;
}

static sw_status open_filler(struct filler *self, bool *wanted) {
    struct sw_store *store = self->change->store;
    void *written = NULL;
    const int64_t bytes = WRITE_GRAINS * sw_optimizer_grain_bytes(sw_store_optimizer(store));
    if (changes_layout(self->change)) {
        SW_TRY(new_units(self->change->self->run, sw_store_optimizer(store), &self->to));
        if (!sw_run_store_is_of(store, self->to))
            return sw_fail(SW_ERR_INTERNAL, "the new store is of another model");
    }
    if (posix_memalign(&written, SW_BUFFER_ALIGN_BYTES, (size_t)bytes) != 0)
        return sw_fail(SW_ERR_NOMEM, "no memory to lay out a store anew");
    self->written = written;
    SW_TRY(open_all_old(self, wanted));
    return sw_store_lane_open(store, IO_DEPTH, &self->lane);
}

static sw_status fill_all(struct filler *self, bool *wanted) {
    SW_TRY(open_filler(self, wanted));
    for (int64_t unit = 0; unit < sw_store_unit_count(self->change->store); unit++)
        SW_TRY(fill_unit(self, unit));
    *self->change->commit = *sw_state_commit(self->old);
    return SW_OK;
}

static sw_status fill_own(struct change *change) {
    struct filler *self = calloc(1, sizeof *self);
    bool *wanted = calloc((size_t)change->before.ranks, sizeof *wanted);
    sw_status status = sw_fail(SW_ERR_NOMEM, "no memory to lay out a store anew");
    if (self != NULL && wanted != NULL) {
        sw_error_clear();
        self->change = change;
        status = fill_all(self, wanted);
        sw_store_lane_close(self->lane);
        sw_state_close(self->old);
        sw_units_destroy(self->to);
        free(self->written);
    }
    free(wanted);
    free(self);
    return status;
}

static sw_status fill(struct change *change) {
    sw_ranks_enter(change->ranks,
                   changes_layout(change) ? "laying out the optimizer state anew"
                                          : "taking over the stores of other ranks",
                   change->step);
    const sw_status status = fill_own(change);
    sw_ranks_leave(change->ranks);
    SW_TRY(sw_ranks_agree_on_error(change->ranks, status));
    return sw_rank_agree_on_commit(change->ranks, change->commit);
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
    if (sw_tuning_freezes(&run->settings.tuning))
        return sw_fail(
            SW_ERR_UNSUPPORTED,
            "%s of a run with --freeze or --lora cannot change: its frozen weights lie as the run began; export it, "
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
    SW_TRY(fill(change));
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
                                     .config = run->config,
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

/* Creates new stores and fills them from those of the run. */
static sw_status rank_replace(const struct sw_rank_stores *self, struct sw_store **out) {
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

sw_status sw_rank_store_create(const struct sw_rank_stores *self, const char *id, struct sw_store **out) {
    SW_TRY(sw_ranks_agree_on_error(self->ranks, sw_rank_make(self, id, out)));
    return sw_rank_record_own(self, id, false);
}

void sw_rank_store_undo(const struct sw_rank_stores *self, struct sw_store *store) {
    const struct sw_store_owner owner = sw_settings_owner(&self->run->settings);
    struct sw_places places;
    sw_store_discard(store);
    if (sw_rank_own_places(self, &places) == SW_OK)
        sw_places_unmake(&places, &owner);
    sw_places_release(&places);
}

/* Returns where run.json has the store, unless --nvme is new. Ranks may have had places of their own, and the next
 * launcher may number the ranks of a machine differently. */
static sw_status find_places(const struct sw_rank_stores *self, struct sw_places *out) {
    struct sw_places wanted;
    SW_TRY(sw_rank_own_places(self, &wanted));
    if (sw_rank_has_new_places(self->run)) {
        *out = wanted;
        return SW_OK;
    }
    const sw_status status = sw_run_places(self->folder, self->run, sw_ranks_rank(self->ranks), NULL, out);
    for (int i = 0; status == SW_OK && i < out->count && i < wanted.count; i++)
        out->most_bytes[i] = wanted.most_bytes[i];
    sw_places_release(&wanted);
    return status;
}

static sw_status open_at(const struct sw_rank_stores *self, const struct sw_places *places, int64_t most_step,
                         struct sw_store **out) {
    sw_store_close(*out);
    *out = NULL;
    return sw_run_open_places(places, self->run, sw_ranks_rank(self->ranks), most_step, out);
}

/* Opens this rank's store at the step from which all ranks continue. Later commits are removed afterwards. */
static sw_status open_common(const struct sw_rank_stores *self, const struct sw_places *places, int64_t *out_newest,
                             struct sw_store **out) {
    struct sw_ranks *ranks = self->ranks;
    SW_TRY(sw_ranks_agree_on_error(ranks, open_at(self, places, SW_STORE_NEWEST, out)));
    const int64_t own = sw_store_last_commit(*out)->step;
    int64_t newest = own;
    SW_TRY(sw_ranks_least(ranks, &newest, 1));
    *out_newest = newest;
    const int64_t step = self->previous ? newest - 1 : newest;
    const sw_status status = sw_ranks_agree_on_error(ranks, own > step ? open_at(self, places, step, out) : SW_OK);
    if (status != SW_OK && self->previous)
        return sw_fail_while(status, "going back to the commit before step %lld", (long long)newest);
    if (status != SW_OK)
        return sw_fail_while(status, "going back to step %lld, the newest that every rank has", (long long)newest);
    return sw_rank_agree_on_commit(ranks, sw_store_last_commit(*out));
}

static sw_status open_own(const struct sw_rank_stores *self, const struct sw_places *places, struct sw_store **out) {
    struct sw_ranks *ranks = self->ranks;
    char id[SW_STORE_ID_CHARS];
    int64_t newest;
    SW_TRY(open_common(self, places, &newest, out));
    /* Every rank's store must be whole before any orphan, or a later commit of any rank, is dropped. */
    int64_t gives_up = sw_store_is_behind(*out) || self->run->orphan_count > 0;
    SW_TRY(sw_ranks_sum(ranks, &gives_up));
    SW_TRY(sw_ranks_agree_on_error(ranks, gives_up > 0 ? sw_rank_check_whole(ranks, *out) : SW_OK));
    SW_TRY(sw_ranks_agree_on_error(ranks, sw_store_go_back(*out)));
    if (self->previous && sw_ranks_rank(ranks) == 0)
        sw_log_info("dropped step %lld; the run continues from step %lld, which is whole", (long long)newest,
                    (long long)sw_store_last_commit(*out)->step);
    SW_TRY(sw_rank_record(self, sw_store_id(*out, id), places));
    return sw_rank_remove_orphans(self);
}

static sw_status open_existing(const struct sw_rank_stores *self, struct sw_store **out) {
    struct sw_places places = {0};
    sw_status status = sw_ranks_agree_on_error(self->ranks, find_places(self, &places));
    if (status == SW_OK)
        status = open_own(self, &places, out);
    sw_places_release(&places);
    return status;
}

static sw_status check_previous(const struct sw_rank_stores *self, bool same) {
    const int64_t flag = self->previous;
    const struct sw_comm_claim claim = {
        .what = "--previous", .remedy = "give it to every rank or to none", .value = &flag, .bytes = sizeof flag};
    SW_TRY(sw_ranks_agree(self->ranks, &claim, 1));
    if (!self->previous || same)
        return SW_OK;
    return sw_ranks_agree_on_error(
        self->ranks, sw_fail(SW_ERR_ARG,
                             "--previous goes back in the stores of the run's own %s: start as many, with the same "
                             "--zero, --tensor and --optimizer-state",
                             SW_COUNT(self->run->ranks, "rank")));
}

sw_status sw_rank_store_open(const struct sw_rank_stores *self, struct sw_store **out) {
    const struct sw_run *run = self->run;
    const struct sw_store_owner owner = sw_settings_owner(&run->settings);
    const bool same = run->ranks == owner.ranks && run->whole == owner.whole && run->optimizer == owner.optimizer &&
                      run->tensor_ranks == owner.tensor_ranks;
    *out = NULL;
    SW_TRY(check_previous(self, same));
    const sw_status status = same ? open_existing(self, out) : rank_replace(self, out);
    if (status != SW_OK) {
        sw_store_close(*out);
        *out = NULL;
    }
    return status;
}
