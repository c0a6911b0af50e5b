/* This rank's store at a resume: opened at the step that all ranks have, or replaced if ranks or layout have changed.
 *
 * The stores of a run commit independently, so after a crash one rank may be a step ahead. All open at the newest step
 * that every store has; a later commit is dropped only after every rank has found its store whole at that step.
 * Dropping first would leave nothing if a store turned out damaged.
 *
 * Another number of ranks, other tensor groups or another format of the optimizer state need a new set of stores
 * (store_set.c). State goes from the old stores into the new ones, which then commit the same step. */
#include "core/log.h"
#include "core/size.h"
#include "core/status.h"
#include "io/store/block.h"
#include "kernels/moments.h"
#include "model/model.h"
#include "offload/plan/shard.h"
#include "run/folder/run.h"
#include "run/folder/state.h"
#include "run/stores/orphans.h"
#include "run/stores/store_set.h"
#include "run/stores/store_set_private.h"

#include <stdlib.h>
#include <string.h>

/* Tells whether --nvme differs from run.json. */
static bool has_new_places(const struct sw_run *run) {
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

/* Refuses a store that has a damaged grain in the commit at which it is open. */
static sw_status check_whole(struct sw_ranks *ranks, struct sw_store *store) {
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

/* Checks that the commits of one step are the same on all ranks. */
static sw_status agree_on_commit(struct sw_ranks *ranks, const struct sw_store_commit *commit) {
    const struct sw_comm_claim claim = {.what = "commit",
                                        .remedy = "give each rank the store that the run has of it",
                                        .value = commit->meta,
                                        .bytes = (int64_t)strlen(commit->meta)};
    return sw_ranks_agree(ranks, &claim, 1);
}

/* Replaces the stores of a run. */

static sw_status open_old(const struct sw_store_set *set, int64_t owner, int64_t most_step, struct sw_store **out) {
    struct sw_places places;
    SW_TRY(sw_run_places(set->folder, &set->old, owner, NULL, &places));
    const sw_status status = sw_run_open_places(&places, &set->old, owner, most_step, out);
    sw_places_release(&places);
    return status == SW_OK ? SW_OK
                           : sw_fail_while(status, "taking over the store of rank %lld of %lld", (long long)owner,
                                           (long long)set->old.ranks);
}

/* Each old store is checked by one rank. A run.json that does not list its stores has a single one. */
static sw_status find_own_step(struct sw_store_set *set) {
    set->step = SW_STORE_NEWEST;
    set->newest = -1;
    for (int64_t owner = sw_ranks_rank(set->ranks); owner < set->old.ranks; owner += sw_ranks_count(set->ranks)) {
        struct sw_store *old;
        SW_TRY(open_old(set, owner, SW_STORE_NEWEST, &old));
        const int64_t step = sw_store_last_commit(old)->step;
        set->step = sw_min_i64(set->step, step);
        set->newest = sw_max_i64(set->newest, sw_store_newest_record(old));
        sw_store_id(old, set->old.store[owner].id);
        sw_store_close(old);
    }
    return SW_OK;
}

static sw_status find_step(struct sw_store_set *set) {
    struct sw_ranks *ranks = set->ranks;
    struct sw_run_store *first = &set->old.store[0];
    SW_TRY(sw_ranks_agree_on_error(ranks, find_own_step(set)));
    SW_TRY(sw_ranks_spread(ranks, "identity of the store", first->id, sizeof first->id));
    int64_t steps[] = {set->step, -set->newest};
    SW_TRY(sw_ranks_least(ranks, steps, 2));
    set->step = steps[0];
    set->newest = -steps[1];
    return SW_OK;
}

static sw_status check_old(struct sw_store_set *set) {
    for (int64_t owner = sw_ranks_rank(set->ranks); owner < set->old.ranks; owner += sw_ranks_count(set->ranks)) {
        struct sw_store *old;
        SW_TRY(open_old(set, owner, set->step, &old));
        const sw_status status = check_whole(set->ranks, old);
        sw_store_close(old);
        SW_TRY(status);
    }
    return SW_OK;
}

/* Removes orphans of an earlier change, once the run's own stores are found whole: if they are not, the orphans may be
 * the whole ones. */
static sw_status remove_orphans(struct sw_store_set *set) {
    if (set->run->orphan_count == 0)
        return SW_OK;
    SW_TRY(sw_ranks_agree_on_error(set->ranks, check_old(set)));
    return sw_orphans_remove(set->ranks, set->folder, set->run);
}

/* Tells whether a rank needs grains of an old store, or at least its commit. */
static bool needs(const struct sw_store_set *set, const struct sw_store *store, int64_t owner) {
    const struct sw_run *before = &set->old;
    const int64_t tensor_ranks = before->tensor_ranks;
    if (owner == sw_ranks_rank(set->ranks) % before->ranks || (before->expert_ranks > 1 && !before->joined) ||
        before->split[0] != '\0')
        return true; /* all ranks share what has no experts; the stores of stages say themselves what they have */
    if (owner % tensor_ranks != sw_ranks_rank(set->ranks) % tensor_ranks)
        return false; /* another part of every layer */
    if (!before->whole && (sw_tuning_freezes(&set->run->settings.tuning) || sw_optimizer_has_muon(before->optimizer)))
        return true; /* the stores do not say where what is trained begins, or where Muon's matrices end */
    for (int64_t unit = 0; !before->whole && unit < sw_store_unit_count(store); unit++) {
        const struct sw_span span = sw_shard(sw_store_unit_whole_grains(store, unit),
                                             (int)(before->ranks / tensor_ranks), (int)(owner / tensor_ranks));
        const int64_t first = sw_store_unit_first(store, unit);
        if (sw_min_i64(span.first_grain + span.grains, first + sw_store_unit_grains(store, unit)) >
            sw_max_i64(span.first_grain, first))
            return true;
    }
    return false;
}

static bool changes_format(const struct sw_store_set *set) {
    return set->old.optimizer != sw_settings_optimizer(&set->run->settings);
}

static bool changes_optimizer(const struct sw_store_set *set) {
    return sw_optimizer_has_muon(set->old.optimizer) !=
           sw_optimizer_has_muon(sw_settings_optimizer(&set->run->settings));
}

static bool changes_groups(const struct sw_store_set *set) {
    const struct sw_settings *now = &set->run->settings;
    return set->old.tensor_ranks != sw_settings_part_ranks(now) ||
           set->old.expert_ranks != sw_settings_expert_ranks(now) || set->old.joined;
}

/* Tells whether the groups are those of an older version, and change in nothing else. */
static bool takes_apart(const struct sw_store_set *set) {
    const struct sw_settings *now = &set->run->settings;
    return set->old.joined && set->old.expert_ranks == sw_settings_expert_ranks(now) &&
           set->old.tensor_ranks == sw_settings_part_ranks(now);
}

/* Tells whether grains hold other elements than before. */
static bool changes_layout(const struct sw_store_set *set) {
    return changes_format(set) || changes_groups(set);
}

/* Fills this rank's new store from the old ones, which are only read.
 *
 * The new store is filled in its own order, grain by grain. If grains hold the same elements as before, their records
 * are copied as they are. Otherwise each run of elements of a grain is looked up by the tensor's name. Filling in the
 * order of the old stores would read each of them once, but would write grains in pieces.
 *
 * A conversion rounds moments to nearest: stochastic rounding belongs to a step, and a conversion is not one. */

enum { WRITE_GRAINS = SW_RECORD_GROUP, IO_DEPTH = 32 };

struct filler {
    const struct sw_store_set *set;
    struct sw_store *store; /* the new store */
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

/* Clears moments of a tensor that another optimizer updates from now on. One that AdamW has had no second moment of has
 * none; only Muon leaves a momentum beside it. */
static void begin_afresh(const struct making *making, int64_t tensor, int64_t run, float *m, const float *v) {
    const bool before = sw_optimizer_has_muon(making->self->set->old.optimizer);
    const bool now = sw_optimizer_has_muon(making->self->to->optimizer);
    for (int64_t i = 0; before && !now && i < run; i++)
        m[i] = v[i] == 0.0f ? 0.0f : m[i];
    if (!before && now && making->unit->tensor[tensor].muon_count > 0)
        memset(m, 0, (size_t)run * sizeof *m);
}

/* Takes a run of elements of a tensor into the grain, starting at its element `at`. */
static sw_status take_run(void *context, int64_t tensor, int64_t whole, int64_t run, int64_t at) {
    const struct making *making = context;
    float *const made = making->self->made + at;
    float *const out[] = {made, made + SW_GRAIN_ELEMS, made + (int64_t)2 * SW_GRAIN_ELEMS};
    SW_TRY(sw_state_read(making->self->old, making->unit->tensor[tensor].name, whole, run, out));
    begin_afresh(making, tensor, run, out[1], out[2]);
    return SW_OK;
}

static sw_status make_grain(struct filler *self, int64_t unit, int64_t grain, char *out) {
    const struct sw_moment_rounding nearest = {.rounding = SW_ROUND_NEAREST};
    struct making making = {.self = self, .unit = &self->to->unit[unit]};
    memset(&self->made, 0, sizeof self->made);
    SW_TRY(sw_unit_walk(making.unit, grain * SW_GRAIN_ELEMS, SW_GRAIN_ELEMS, take_run, &making));
    if (sw_optimizer_has_muon(self->to->optimizer) && grain < making.unit->adamw_grain)
        sw_muon_record_from_fp32(self->to->optimizer, &nearest, self->made, out);
    else
        sw_record_from_fp32(self->to->optimizer, grain >= making.unit->wide_grain, &nearest, self->made, out);
    return SW_OK;
}

static sw_status make_grains(struct filler *self, int64_t unit, int64_t first, int64_t count) {
    const struct sw_records layout = sw_store_records(self->store, unit);
    const int64_t from = first - sw_store_unit_first(self->store, unit);
    for (int64_t g = 0; g < count; g++) {
        char *out = self->written + sw_record_at(&layout, from + g) - sw_record_at(&layout, from);
        SW_TRY(self->to == NULL ? sw_state_records(self->old, self->old_part, unit, first + g, 1, out)
                                : make_grain(self, unit, first + g, out));
    }
    return SW_OK;
}

static sw_status fill_unit(struct filler *self, int64_t unit) {
    const struct sw_store *store = self->store;
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
        sw_ranks_tick(self->set->ranks);
    }
    return SW_OK;
}

/* Returns the units of this rank's new store. */
static sw_status new_units(const struct sw_run *run, sw_optimizer_format format, struct sw_units **out) {
    const struct sw_model_group group = {.ranks = (int)sw_settings_part_ranks(&run->settings),
                                         .rank = (int)sw_settings_part_rank(&run->settings),
                                         .experts = (int)sw_settings_expert_ranks(&run->settings)};
    return sw_model_group_units(&run->config, &group, run->settings.tiles, format, &run->settings.tuning, out);
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
    const struct sw_store_set *set = self->set;
    const struct sw_state_spec spec = {
        .folder = set->folder, .run = &set->old, .step = set->step, .wanted = self->to != NULL ? NULL : wanted};
    for (int64_t owner = 0; owner < set->old.ranks; owner++)
        wanted[owner] = needs(set, self->store, owner);
    SW_TRY(sw_state_open_stores(&spec, &self->old));
    const struct sw_open_stores *old = sw_state_stores(self->old);
    for (int s = 0; self->to == NULL && s < old->count; s++)
        if (old->store[s] != NULL)
            SW_TRY(check_same(old->store[s], self->store));
    self->old_part = (int)(sw_ranks_rank(set->ranks) % set->old.tensor_ranks);
    return SW_OK;
}

static sw_status open_filler(struct filler *self, bool *wanted) {
    struct sw_store *store = self->store;
    void *written = NULL;
    const int64_t bytes = WRITE_GRAINS * sw_optimizer_grain_bytes(sw_store_optimizer(store));
    if (changes_layout(self->set)) {
        SW_TRY(new_units(self->set->run, sw_store_optimizer(store), &self->to));
        if (!sw_run_store_is_of(store, self->to))
            return sw_fail(SW_ERR_INTERNAL, "the new store is of another model");
    }
    if (posix_memalign(&written, SW_BUFFER_ALIGN_BYTES, (size_t)bytes) != 0)
        return sw_fail(SW_ERR_NOMEM, "no memory to lay out a store anew");
    self->written = memset(written, 0, (size_t)bytes);
    SW_TRY(open_all_old(self, wanted));
    return sw_store_lane_open(store, IO_DEPTH, &self->lane);
}

static sw_status fill_all(struct filler *self, bool *wanted, struct sw_store_commit *commit) {
    SW_TRY(open_filler(self, wanted));
    for (int64_t unit = 0; unit < sw_store_unit_count(self->store); unit++)
        SW_TRY(fill_unit(self, unit));
    *commit = *sw_state_commit(self->old);
    return SW_OK;
}

static sw_status fill_own(const struct sw_store_set *set, struct sw_store *store, struct sw_store_commit *commit) {
    struct filler *self = calloc(1, sizeof *self);
    bool *wanted = calloc((size_t)set->old.ranks, sizeof *wanted);
    sw_status status = SW_OK;
    if (self == NULL || wanted == NULL) {
        status = sw_fail(SW_ERR_NOMEM, "no memory to lay out a store anew");
    } else {
        self->set = set;
        self->store = store;
        status = fill_all(self, wanted, commit);
        sw_store_lane_close(self->lane);
        sw_state_close(self->old);
        sw_units_destroy(self->to);
        free(self->written);
    }
    free(wanted);
    free(self);
    return status;
}

/* Fills this rank's new store. *commit: the commit that the state is of. */
static sw_status fill(const struct sw_store_set *set, struct sw_store *store, struct sw_store_commit *commit) {
    sw_ranks_enter(set->ranks,
                   changes_layout(set) ? "laying out the optimizer state anew"
                                       : "taking over the stores of other ranks",
                   set->step);
    const sw_status status = fill_own(set, store, commit);
    sw_ranks_leave(set->ranks);
    SW_TRY(sw_ranks_agree_on_error(set->ranks, status));
    return agree_on_commit(set->ranks, commit);
}

/* Tells whether frozen weights lie otherwise in whole layers, or tiles of them, than they did (frozen.h). */
static bool moves_frozen(const struct sw_store_set *set) {
    return changes_format(set) || set->old.tiles != set->run->settings.tiles;
}

static bool changes_experts(const struct sw_store_set *set) {
    return set->old.joined || set->old.expert_ranks != sw_settings_expert_ranks(&set->run->settings);
}

/* Writes which groups change, and how. */
enum { GROUPS_CHARS = 96 };
static const char *changes_text(const struct sw_store_set *set, char out[GROUPS_CHARS]) {
    const struct sw_settings *now = &set->run->settings;
    const int64_t old_tensor = set->old.tensor_ranks / set->old.expert_ranks, tensor = sw_settings_tensor_ranks(now);
    int chars = 0;
    if (changes_experts(set))
        chars = snprintf(out, GROUPS_CHARS, "--experts %lld instead of %lld", (long long)sw_settings_expert_ranks(now),
                         (long long)set->old.expert_ranks);
    if (old_tensor != tensor)
        snprintf(out + chars, (size_t)(GROUPS_CHARS - chars), "%s--tensor %lld instead of %lld",
                 chars > 0 ? " and " : "", (long long)tensor, (long long)old_tensor);
    return out;
}

/* Refuses a new layout that cannot be made, before anything is created. */
static sw_status check_layout(const struct sw_store_set *set) {
    const struct sw_run *run = set->run;
    const char *flag = changes_optimizer(set) ? "--optimizer"
                       : changes_format(set)  ? "--optimizer-state"
                       : changes_experts(set) ? "--experts"
                                              : "--tensor";
    struct sw_places places;
    bool on_device = false;
    if (!changes_layout(set))
        return SW_OK;
    if (sw_tuning_freezes(&run->settings.tuning) && moves_frozen(set))
        return sw_fail(SW_ERR_UNSUPPORTED,
                       "%s of a run with --freeze or --lora cannot change%s: its frozen weights lie as the run began; "
                       "export it, and begin a new run from that",
                       flag, changes_groups(set) ? " with its --tiles" : "");
    SW_TRY(sw_store_set_places(set, &places));
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
static void say_changed(const struct sw_store_set *set) {
    const sw_optimizer_format now = sw_settings_optimizer(&set->run->settings);
    char groups[GROUPS_CHARS];
    if (changes_optimizer(set))
        sw_log_info("from step %lld on %s, with fresh state", (long long)set->step + 1,
                    sw_optimizer_has_muon(now) ? "Muon updates matrices of layers"
                                               : "AdamW updates also what Muon did");
    else if (changes_format(set))
        sw_log_info("converted the optimizer state of step %lld from %s to %s, once; moments are rounded to nearest",
                    (long long)set->step, sw_optimizer_shown_name(set->old.optimizer), sw_optimizer_shown_name(now));
    if (takes_apart(set))
        sw_log_info("laid out the optimizer state of step %lld anew, once: all ranks share that of layers without "
                    "experts%s",
                    (long long)set->step, now == SW_OPTIMIZER_8BIT ? "; moments in 8 bits are rounded to nearest" : "");
    else if (changes_groups(set))
        sw_log_info("laid out the optimizer state of step %lld for %s, once%s", (long long)set->step,
                    changes_text(set, groups),
                    now == SW_OPTIMIZER_8BIT ? "; moments in 8 bits are rounded to nearest" : "");
    const sw_base_format base = (sw_base_format)set->run->settings.tuning.base;
    if (changes_groups(set) && base != SW_BASE_TYPED && sw_base_stored_elems(base) == 0)
        sw_log_info("the base's parts are rounded anew (--base-format), so losses go on a little differently");
}

static sw_status go_through(struct sw_store_set *set, struct sw_store_commit *commit, struct sw_store **out) {
    struct sw_ranks *ranks = set->ranks;
    SW_TRY(sw_ranks_agree_on_error(ranks, check_layout(set)));
    SW_TRY(find_step(set));
    SW_TRY(remove_orphans(set));
    SW_TRY(sw_store_set_begin(set, out));
    SW_TRY(fill(set, *out, commit));
    SW_TRY(sw_ranks_agree_on_error(ranks, sw_store_commit(*out, set->step, 0, commit->meta)));
    SW_TRY(sw_store_set_publish(set));
    say_changed(set);
    return SW_OK;
}

/* Copies what run.json says of the stores, which the new ones replace. */
static sw_status take_old(struct sw_store_set *set) {
    const struct sw_run *run = set->run;
    struct sw_run_store *stores = calloc((size_t)run->ranks, sizeof *stores);
    if (stores == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the stores of %lld ranks", (long long)run->ranks);
    set->old =
        (struct sw_run){.settings = {.allow_buffered = run->settings.allow_buffered, .tuning = run->settings.tuning},
                        .ranks = run->ranks,
                        .whole = run->whole,
                        .optimizer = run->optimizer,
                        .tensor_ranks = run->tensor_ranks,
                        .expert_ranks = run->expert_ranks,
                        .joined = run->joined,
                        .tiles = run->tiles,
                        .config = run->config,
                        .starts = run->starts,
                        .store = stores};
    set->old.settings.tuning.optimizer = run->trains;
    set->old.settings.tuning.optimizer_for = run->optimizer_for;
    memcpy(set->old.split, run->split, sizeof run->split);
    for (int64_t rank = 0; rank < run->ranks; rank++) {
        memcpy(stores[rank].id, run->store[rank].id, sizeof stores[rank].id);
        stores[rank].local_rank = run->store[rank].local_rank;
        for (int i = 0; i < run->store[rank].places.count; i++)
            SW_TRY(sw_option_list_add(&stores[rank].places, run->store[rank].places.items[i]));
    }
    return SW_OK;
}

/* Counts the places of old stores that this rank can reach. */
static sw_status count_place(void *seen, int64_t rank, const char *place) {
    (void)rank;
    *(int64_t *)seen += sw_store_is_at(place);
    return SW_OK;
}

/* Tells whether a new --nvme means that the old stores were moved there. It may also only say where new stores belong.
 * It means a move if no rank sees an old store where run.json has it. */
static sw_status follow_move(struct sw_store_set *set) {
    const struct sw_run *run = set->run;
    struct sw_run *before = &set->old;
    int64_t seen = 0;
    if (!has_new_places(run))
        return SW_OK;
    SW_TRY(sw_ranks_agree_on_error(set->ranks, sw_stores_visit(set->folder, &set->old, count_place, &seen)));
    SW_TRY(sw_ranks_sum(set->ranks, &seen));
    sw_status status = SW_OK;
    for (int64_t rank = 0; seen == 0 && status == SW_OK && rank < before->ranks; rank++) {
        struct sw_places places;
        status = sw_run_places(set->folder, before, rank, &run->settings.nvme, &places);
        sw_option_list_release(&before->store[rank].places);
        for (int i = 0; status == SW_OK && i < places.count; i++)
            status = sw_option_list_add(&before->store[rank].places, places.path[i]);
        sw_places_release(&places);
    }
    return sw_ranks_agree_on_error(set->ranks, status);
}

/* Creates new stores and fills them from those of the run. */
static sw_status replace(struct sw_store_set *set, struct sw_store **out) {
    struct sw_store_commit *commit = calloc(1, sizeof *commit);
    sw_status status =
        commit != NULL ? take_old(set) : sw_fail(SW_ERR_NOMEM, "no memory to replace the stores of a run");
    status = sw_ranks_agree_on_error(set->ranks, status);
    if (status == SW_OK)
        status = follow_move(set);
    if (status == SW_OK)
        status = go_through(set, commit, out);
    if (status != SW_OK) {
        sw_store_set_withdraw(set, *out);
        *out = NULL;
    }
    sw_store_set_release(set);
    free(commit);
    return status;
}

/* Returns where run.json has the store, unless --nvme is new. Ranks may have had places of their own, and the next
 * launcher may number the ranks of a machine differently. */
static sw_status find_places(const struct sw_store_set *self, struct sw_places *out) {
    struct sw_places wanted;
    SW_TRY(sw_store_set_places(self, &wanted));
    if (has_new_places(self->run)) {
        *out = wanted;
        return SW_OK;
    }
    const sw_status status = sw_run_places(self->folder, self->run, sw_ranks_rank(self->ranks), NULL, out);
    for (int i = 0; status == SW_OK && i < out->count && i < wanted.count; i++)
        out->most_bytes[i] = wanted.most_bytes[i];
    sw_places_release(&wanted);
    return status;
}

static sw_status open_at(const struct sw_store_set *self, const struct sw_places *places, int64_t most_step,
                         struct sw_store **out) {
    sw_store_close(*out);
    *out = NULL;
    return sw_run_open_places(places, self->run, sw_ranks_rank(self->ranks), most_step, out);
}

/* Opens this rank's store at the step from which all ranks continue. Later commits are removed afterwards. */
static sw_status open_common(const struct sw_store_set *self, const struct sw_places *places, int64_t *out_newest,
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
    return agree_on_commit(ranks, sw_store_last_commit(*out));
}

static sw_status open_own(const struct sw_store_set *self, const struct sw_places *places, struct sw_store **out) {
    struct sw_ranks *ranks = self->ranks;
    char id[SW_STORE_ID_CHARS];
    int64_t newest;
    SW_TRY(open_common(self, places, &newest, out));
    /* Every rank's store must be whole before any orphan, or a later commit of any rank, is dropped. */
    int64_t gives_up = sw_store_is_behind(*out) || self->run->orphan_count > 0;
    SW_TRY(sw_ranks_sum(ranks, &gives_up));
    SW_TRY(sw_ranks_agree_on_error(ranks, gives_up > 0 ? check_whole(ranks, *out) : SW_OK));
    SW_TRY(sw_ranks_agree_on_error(ranks, sw_store_go_back(*out)));
    if (self->previous)
        sw_log_info("dropped step %lld; the run continues from step %lld, which is whole", (long long)newest,
                    (long long)sw_store_last_commit(*out)->step);
    SW_TRY(sw_store_set_record(self, sw_store_id(*out, id), places, self->run));
    return sw_orphans_remove(ranks, self->folder, self->run);
}

static sw_status open_existing(const struct sw_store_set *self, struct sw_store **out) {
    struct sw_places places = {0};
    sw_status status = sw_ranks_agree_on_error(self->ranks, find_places(self, &places));
    if (status == SW_OK)
        status = open_own(self, &places, out);
    sw_places_release(&places);
    return status;
}

static sw_status check_previous(const struct sw_store_set *self, bool same) {
    const int64_t flag = self->previous;
    const struct sw_comm_claim claim = {
        .what = "--previous", .remedy = "give it to every rank or to none", .value = &flag, .bytes = sizeof flag};
    SW_TRY(sw_ranks_agree(self->ranks, &claim, 1));
    if (!self->previous || same)
        return SW_OK;
    return sw_ranks_agree_on_error(
        self->ranks, sw_fail(SW_ERR_ARG,
                             "--previous goes back in the stores of the run's own %s: start as many, with the same "
                             "--zero, --tensor, --pipeline and --optimizer-state",
                             SW_COUNT(self->run->ranks, "rank")));
}

sw_status sw_store_set_open(struct sw_store_set *self, struct sw_store **out) {
    const struct sw_run *run = self->run;
    const struct sw_store_owner owner = sw_settings_owner(&run->settings);
    const bool same = run->ranks == owner.ranks && run->whole == owner.whole && run->optimizer == owner.optimizer &&
                      run->tensor_ranks == owner.tensor_ranks && run->expert_ranks == owner.expert_ranks &&
                      run->joined == owner.joined && strcmp(run->split, owner.split) == 0;
    *out = NULL;
    SW_TRY(check_previous(self, same));
    return same ? open_existing(self, out) : replace(self, out);
}
