/* Processes that share a store. Each has a store of its own with its part of every unit, in "rank-R-of-N" of the
 * store's folder; a process alone has it in the folder itself. tensors.json names one whole set of stores at every
 * instant:
 *
 *                    start                  another number of processes
 *   listed           tensors.json, as not   tensors.json, as the orphan
 *                    started
 *   filled           from the caller        from the set before, grain by grain
 *   published        as started             as the set; the one before becomes the orphan, and is removed
 *
 * Stores commit one by one, so after a crash some may be one step ahead. All open at the newest step that each has, and
 * a later commit is dropped only once every store was opened there. */
#include "core/confine.h"
#include "core/files/files.h"
#include "core/ranks/comm.h"
#include "core/size.h"
#include "library/library_private.h"
#include "offload/plan/shard.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FILL_GRAINS = 16, IO_DEPTH = 32, RANK_DIGITS = 64 };

sw_status sw_library_open_comm(spillway *self) {
    const struct sw_comm_caller caller = {.rank = self->rank,
                                          .ranks = self->ranks,
                                          .gather = self->options.gather,
                                          .context = self->options.gather_context};
    return self->ranks > 1 ? sw_comm_open_caller(&caller, &self->comm) : SW_OK;
}

sw_status sw_library_agree(const spillway *self, sw_status status, const char *what) {
    int64_t worst = -(int64_t)status;
    if (self->comm == NULL || status == SW_ERR_STOPPED)
        return status;
    if (status != SW_OK) {
        /* The error stays the one of this process, whatever becomes of the others. */
        SW_HANDLES_ERRORS();
        (void)sw_comm_max(self->comm, what, &worst, 1);
        return status;
    }
    SW_TRY(sw_comm_max(self->comm, what, &worst, 1));
    if (worst == 0)
        return SW_OK;
    return sw_fail(worst == -SW_ERR_ARG ? SW_ERR_ARG : SW_ERR_STOPPED,
                   "another process of %s failed, and says why (%s)", self->folder, what);
}

/* Returns the least value of all processes. */
static sw_status take_least(const spillway *self, int64_t *value) {
    int64_t negative = -*value;
    if (self->comm == NULL)
        return SW_OK;
    SW_TRY(sw_comm_max(self->comm, "step", &negative, 1));
    *value = -negative;
    return SW_OK;
}

sw_status sw_library_check_alike(const spillway *self) {
    const struct spillway_options *o = &self->options;
    const int64_t options[] = {(int64_t)o->host_memory_bytes, o->state,       o->save_every, o->accumulate != 0,
                               o->missing_gradients,          o->sharded != 0};
    const int64_t chunk_grains = o->sharded ? 0 : self->plan->spec.chunk_grains;
    const int64_t plan[] = {self->plan->commit_every_step, chunk_grains};
    int64_t bytes = 0;
    if (self->comm == NULL)
        return SW_OK;
    for (int64_t t = 0; t < self->tensor_count; t++)
        bytes += (int64_t)strlen(self->tensor[t].name) + RANK_DIGITS;
    char *tensors = malloc((size_t)bytes + 1);
    if (tensors == NULL)
        return sw_library_agree(self, sw_fail(SW_ERR_NOMEM, "no memory to compare tensors"), "tensors");
    int64_t used = 0;
    for (int64_t t = 0; t < self->tensor_count; t++)
        used += snprintf(tensors + used, (size_t)(bytes + 1 - used), "%s %lld %d %d %d\n", self->tensor[t].name,
                         o->sharded ? 0 : (long long)self->tensor[t].count, (int)self->tensor[t].type,
                         self->tensor[t].decay, self->tensor[t].begins_unit);
    const struct sw_comm_claim claims[] = {
        {.what = "set of options", .remedy = "give all processes the same", .value = options, .bytes = sizeof options},
        {.what = "list of tensors",
         .remedy = "register the same ones in the same order in all processes",
         .value = tensors,
         .bytes = used},
        {.what = "placement",
         .remedy = "give all processes more host_memory_bytes",
         .value = plan,
         .bytes = sizeof plan}};
    const sw_status status = sw_comm_agree(self->comm, claims, (int)(sizeof claims / sizeof claims[0]));
    free(tensors);
    return status;
}

sw_status sw_library_share_counts(spillway *self) {
    if (!self->options.sharded)
        return SW_OK;
    const int64_t bytes = self->tensor_count * (int64_t)sizeof *self->shard_count;
    self->shard_count = calloc((size_t)self->ranks, (size_t)bytes);
    const bool found = self->shard_count != NULL;
    SW_TRY(sw_library_agree(self, found ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory to compare tensors"), "tensors"));
    for (int64_t t = 0; t < self->tensor_count; t++)
        self->shard_count[self->rank * self->tensor_count + t] = sw_library_elems(&self->tensor[t]);
    return self->comm != NULL ? sw_comm_share_records(self->comm, "tensors", self->shard_count, bytes) : SW_OK;
}

sw_status sw_library_join_squares(void *context, double *total) {
    const spillway *self = context;
    return sw_comm_sum_doubles(self->comm, "norm", total, 1);
}

sw_status sw_library_place(const spillway *self, int ranks, int rank, char place[LIBRARY_PATH_CHARS]) {
    char name[RANK_DIGITS];
    if (ranks == 1) {
        memcpy(place, self->folder, strlen(self->folder) + 1);
        return SW_OK;
    }
    snprintf(name, sizeof name, "rank-%d-of-%d", rank, ranks);
    return sw_path_join(place, LIBRARY_PATH_CHARS, self->folder, name);
}

sw_status sw_library_new_id(const spillway *self, char id[SW_STORE_ID_CHARS]) {
    SW_TRY(sw_library_agree(self, sw_store_new_id(id), "identity"));
    if (self->comm == NULL)
        return SW_OK;
    char *ids = calloc((size_t)self->ranks, SW_STORE_ID_CHARS);
    sw_status status = ids != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory for %d processes", self->ranks);
    status = sw_library_agree(self, status, "identity");
    if (status == SW_OK) {
        memcpy(ids + (size_t)self->rank * SW_STORE_ID_CHARS, id, SW_STORE_ID_CHARS);
        status = sw_comm_share_records(self->comm, "identity", ids, SW_STORE_ID_CHARS);
    }
    if (status == SW_OK)
        memcpy(id, ids, SW_STORE_ID_CHARS);
    free(ids);
    return status;
}

/* Refuses folders that only have the same name, each on a drive of another machine. */
static sw_status see_record(const spillway *self) {
    char path[LIBRARY_PATH_CHARS];
    bool found;
    SW_TRY(sw_path_join(path, sizeof path, self->folder, "tensors.json"));
    SW_TRY(sw_path_find(path, &found));
    return found ? SW_OK
                 : sw_fail(SW_ERR_ARG,
                           "process %d does not find the %s that process 0 wrote: name a folder that all "
                           "processes share",
                           self->rank, path);
}

sw_status sw_library_share_record(const spillway *self, const struct store_record *record) {
    SW_TRY(sw_library_agree(self, self->rank == 0 ? sw_library_write_record(self, record) : SW_OK, "tensors.json"));
    return sw_library_agree(self, see_record(self), "folder");
}

sw_status sw_library_check_found(const spillway *self, const struct store_record *record, bool found) {
    struct {
        int64_t found, started, ranks;
        char id[SW_STORE_ID_CHARS];
    } store;
    memset(&store, 0, sizeof store);
    if (self->comm == NULL)
        return SW_OK;
    if (found) {
        store.found = 1;
        store.started = record->started;
        store.ranks = record->set.ranks;
        snprintf(store.id, sizeof store.id, "%s", record->set.id);
    }
    const struct sw_comm_claim claim = {.what = "store in its folder",
                                        .remedy = "name a folder that all processes share",
                                        .value = &store,
                                        .bytes = sizeof store};
    return sw_comm_agree(self->comm, &claim, 1);
}

static sw_status remove_at(const spillway *self, const struct store_set *set, int rank, int64_t last_step) {
    char place[LIBRARY_PATH_CHARS];
    bool found;
    SW_TRY(sw_library_place(self, set->ranks, rank, place));
    SW_TRY(sw_path_find(place, &found));
    if (!found)
        return SW_OK;
    SW_TRY(sw_store_remove(place, set->id, last_step));
    /* A folder that holds anything else stays. */
    if (set->ranks > 1)
        (void)rmdir(place);
    return SW_OK;
}

sw_status sw_library_remove_set(const spillway *self, const struct store_set *set, int64_t last_step) {
    sw_status status = SW_OK;
    for (int rank = self->rank; rank < set->ranks && status == SW_OK; rank += self->ranks)
        status = remove_at(self, set, rank, last_step);
    return sw_library_agree(self, status, "removal");
}

/* The layout of this process's store: its shards of the units. */
struct shards {
    int64_t *first, *grains, *whole;
};

static sw_status take_shards(const spillway *self, struct shards *out) {
    const int64_t count = self->units->count;
    out->first = calloc((size_t)count * 3, sizeof *out->first);
    if (out->first == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the store's layout");
    out->grains = out->first + count;
    out->whole = out->grains + count;
    for (int64_t u = 0; u < count; u++) {
        const struct sw_span shard = sw_shard(self->units->unit[u].grains, self->sharers, self->sharer);
        out->first[u] = shard.first_grain;
        out->grains[u] = shard.grains;
        out->whole[u] = self->units->unit[u].grains;
    }
    return SW_OK;
}

static sw_status create_store(spillway *self, const struct store_set *set, struct sw_store **out) {
    char place[LIBRARY_PATH_CHARS];
    const char *folder = place;
    struct shards shards;
    SW_TRY(sw_library_place(self, set->ranks, self->rank, place));
    SW_TRY(sw_folder_make(place, 0700));
    SW_TRY(take_shards(self, &shards));
    const struct sw_store_spec spec = {.directories = &folder,
                                       .directory_count = 1,
                                       .unit_grains = shards.grains,
                                       .unit_first = shards.first,
                                       .unit_whole_grains = shards.whole,
                                       .unit_count = self->units->count,
                                       .optimizer = self->units->optimizer,
                                       .allow_buffered = self->options.allow_buffered != 0,
                                       .id = set->id};
    const sw_status status = sw_store_create(&spec, NULL, NULL, out);
    free(shards.first);
    return status;
}

sw_status sw_library_create_store(spillway *self, const struct store_set *set, struct sw_store **out) {
    return sw_library_agree(self, create_store(self, set, out), "creation");
}

/* Opens a store of a set, for reading only if `reads`. */
static sw_status open_at(const spillway *self, const struct store_set *set, int rank, int64_t most_step, bool reads,
                         struct sw_store **out) {
    char place[LIBRARY_PATH_CHARS], id[SW_STORE_ID_CHARS];
    const char *folder = place;
    *out = NULL;
    SW_TRY(sw_library_place(self, set->ranks, rank, place));
    SW_TRY(reads ? sw_store_open_to_read(&folder, 1, most_step, out)
                 : sw_store_open(&folder, 1, self->options.allow_buffered != 0, most_step, out));
    return strcmp(sw_store_id(*out, id), set->id) == 0
               ? SW_OK
               : sw_fail(SW_ERR_CORRUPT, "the store in %s is not the one that tensors.json lists", place);
}

sw_status sw_library_open_part(const spillway *self, const struct store_set *set, int rank, int64_t most_step,
                               struct sw_store **out) {
    return open_at(self, set, rank, most_step, true, out);
}

sw_status sw_library_open_store(spillway *self, const struct store_set *set) {
    SW_TRY(sw_library_agree(self, open_at(self, set, self->rank, SW_STORE_NEWEST, false, &self->store), "opening"));
    const int64_t own = sw_store_last_commit(self->store)->step;
    int64_t step = own;
    SW_TRY(take_least(self, &step));
    sw_status status = SW_OK;
    if (own > step) {
        sw_store_close(self->store);
        status = open_at(self, set, self->rank, step, false, &self->store);
    }
    SW_TRY(sw_library_agree(self, status, "opening"));
    return sw_library_agree(self, sw_store_go_back(self->store), "opening");
}

/* Finds the newest step that all stores of a set have. */
static sw_status find_step(const spillway *self, const struct store_set *set, int64_t *step) {
    sw_status status = SW_OK;
    *step = SW_STORE_NEWEST;
    for (int rank = self->rank; rank < set->ranks && status == SW_OK; rank += self->ranks) {
        struct sw_store *store = NULL;
        status = open_at(self, set, rank, SW_STORE_NEWEST, true, &store);
        if (status == SW_OK)
            *step = sw_min_i64(*step, sw_store_last_commit(store)->step);
        if (store != NULL)
            sw_store_close(store);
    }
    SW_TRY(sw_library_agree(self, status, "step"));
    return take_least(self, step);
}

/* Copies the records of the grains that both stores have. */
static sw_status copy_grains(struct sw_store_lane *from, struct sw_store_lane *to, int generation, int64_t unit,
                             struct sw_span span, void *records) {
    for (int64_t g = span.first_grain; g < span.first_grain + span.grains; g += FILL_GRAINS) {
        struct sw_store_transfer transfer = {.kind = SW_STORE_OPTIMIZER,
                                             .generation = generation,
                                             .unit = unit,
                                             .first_grain = g,
                                             .grains = sw_min_i64(FILL_GRAINS, span.first_grain + span.grains - g),
                                             .buf = records};
        SW_TRY(sw_store_transfer(from, &transfer));
        transfer.write = true;
        transfer.generation = 0;
        SW_TRY(sw_store_transfer(to, &transfer));
    }
    return SW_OK;
}

static struct sw_span intersect(const struct sw_store *a, const struct sw_store *b, int64_t unit) {
    const int64_t first = sw_max_i64(sw_store_unit_first(a, unit), sw_store_unit_first(b, unit));
    const int64_t end = sw_min_i64(sw_store_unit_first(a, unit) + sw_store_unit_grains(a, unit),
                                   sw_store_unit_first(b, unit) + sw_store_unit_grains(b, unit));
    return (struct sw_span){.first_grain = first, .grains = sw_max_i64(0, end - first)};
}

static sw_status check_same(const struct sw_store *a, const struct sw_store *b) {
    bool same = sw_store_unit_count(a) == sw_store_unit_count(b) && sw_store_optimizer(a) == sw_store_optimizer(b);
    for (int64_t u = 0; same && u < sw_store_unit_count(a); u++)
        same = sw_store_unit_whole_grains(a, u) == sw_store_unit_whole_grains(b, u);
    return same ? SW_OK : sw_fail(SW_ERR_CORRUPT, "a store of another process is of other tensors");
}

/* Copies what an old store has of the new one's grains. */
static sw_status copy_from(const struct sw_store *old, struct sw_store_lane *from, const struct sw_store *store,
                           struct sw_store_lane *to, void *records) {
    SW_TRY(check_same(old, store));
    for (int64_t u = 0; u < sw_store_unit_count(store); u++)
        SW_TRY(copy_grains(from, to, sw_store_last_commit(old)->generation, u, intersect(old, store, u), records));
    return SW_OK;
}

/* Fills a new store from all stores of the set, at a step. meta: receives the text of that step's commit. */
static sw_status fill(const spillway *self, const struct store_set *set, int64_t step, struct sw_store *store,
                      char meta[SW_STORE_META_BYTES]) {
    struct sw_store_lane *to = NULL, *from = NULL;
    struct sw_store *old = NULL;
    void *records = NULL;
    sw_status status = SW_OK;
    const int64_t bytes = FILL_GRAINS * sw_optimizer_grain_bytes(self->units->optimizer);
    if (posix_memalign(&records, SW_BUFFER_ALIGN_BYTES, (size_t)bytes) != 0)
        return sw_fail(SW_ERR_NOMEM, "no memory to fill the store of process %d", self->rank);
    SW_TRY_GOTO(sw_store_lane_open(store, IO_DEPTH, &to), done);
    for (int rank = 0; rank < set->ranks; rank++) {
        SW_TRY_GOTO(open_at(self, set, rank, step, true, &old), done);
        SW_TRY_GOTO(sw_store_lane_open(old, IO_DEPTH, &from), done);
        SW_TRY_GOTO(copy_from(old, from, store, to, records), done);
        memcpy(meta, sw_store_last_commit(old)->meta, SW_STORE_META_BYTES);
        sw_store_lane_close(from);
        sw_store_close(old);
        from = NULL;
        old = NULL;
    }
done:
    if (from != NULL)
        sw_store_lane_close(from);
    if (old != NULL)
        sw_store_close(old);
    if (to != NULL)
        sw_store_lane_close(to);
    free(records);
    return status;
}

/* Creates this process's store of the new set, with the state of the old one at its newest step. */
static sw_status make_from(spillway *self, const struct store_set *made, const struct store_set *old, int64_t step) {
    struct sw_store *store = NULL;
    char *meta = malloc(SW_STORE_META_BYTES);
    sw_status status = sw_library_agree(
        self, meta != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory to change the processes of a store"), "memory");
    if (status == SW_OK)
        status = sw_library_create_store(self, made, &store);
    if (status == SW_OK) {
        status = fill(self, old, step, store, meta);
        if (status == SW_OK)
            status = sw_store_commit(store, step, 0, meta);
        status = sw_library_agree(self, status, "taking over the stores of other processes");
    }
    if (store != NULL)
        sw_store_close(store);
    free(meta);
    return status;
}

sw_status sw_library_replace_set(spillway *self, struct store_record *record) {
    struct store_record next = *record;
    int64_t step;
    SW_TRY(find_step(self, &record->set, &step));
    next.orphan.ranks = self->ranks;
    SW_TRY(sw_library_new_id(self, next.orphan.id));
    SW_TRY(sw_library_share_record(self, &next));
    const struct store_set made = next.orphan;
    SW_TRY(make_from(self, &made, &record->set, step));
    next.orphan = record->set;
    next.set = made;
    SW_TRY(sw_library_share_record(self, &next));
    SW_TRY(sw_library_remove_set(self, &next.orphan, SW_STORE_NEWEST));
    next.orphan = (struct store_set){0};
    *record = next;
    return sw_library_share_record(self, &next);
}

/* The weights. */

/* Returns chunk `number` of a process's shard of a unit, in elements. */
static void chunk_of(const spillway *self, int64_t unit, int rank, int64_t number, int64_t *first, int64_t *count) {
    const struct sw_span at = sw_plan_shard_chunk(self->plan, unit, rank, number);
    *first = at.first_grain * SW_GRAIN_ELEMS;
    *count = at.grains * SW_GRAIN_ELEMS;
}

static sw_status gather_chunk(spillway *self, int64_t unit, int64_t number, int64_t *bounds) {
    struct sw_comm_request *request;
    int64_t first, count;
    for (int rank = 0; rank < self->ranks; rank++) {
        chunk_of(self, unit, rank, number, &first, &count);
        bounds[rank + 1] = bounds[rank] + sw_library_packed_bytes(self, unit, first, count);
    }
    chunk_of(self, unit, self->rank, number, &first, &count);
    SW_TRY(sw_library_pack(self, unit, first, count, self->gathered + bounds[self->rank]));
    const struct sw_comm_gather gather = {
        .what = "weights", .index = unit, .data = self->gathered, .bounds_bytes = bounds, .scope = SW_SCOPE_ALL};
    SW_TRY(sw_comm_all_gather(self->comm, &gather, &request));
    SW_TRY(sw_comm_wait(request));
    for (int rank = 0; rank < self->ranks; rank++) {
        chunk_of(self, unit, rank, number, &first, &count);
        if (rank != self->rank)
            SW_TRY(sw_library_unpack(self, unit, first, count, self->gathered + bounds[rank]));
    }
    return SW_OK;
}

/* Returns room for where each process's part begins; NULL: no memory. */
static int64_t *new_bounds(const spillway *self) {
    return calloc((size_t)self->ranks + 1, sizeof(int64_t));
}

sw_status sw_library_gather_weights(spillway *self) {
    sw_status status = SW_OK;
    if (self->sharers == 1)
        return SW_OK;
    int64_t *bounds = new_bounds(self);
    if (bounds == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for %d processes", self->ranks);
    for (int64_t u = 0; u < self->units->count && status == SW_OK; u++)
        for (int64_t c = 0; c < sw_plan_buckets(self->plan, u) && status == SW_OK; c++)
            status = gather_chunk(self, u, c, bounds);
    free(bounds);
    return status;
}

sw_status sw_library_gather_elements(const spillway *self, int64_t unit, int64_t first, int64_t count, float *out) {
    struct sw_comm_request *request;
    if (self->sharers == 1)
        return SW_OK;
    int64_t *bounds = new_bounds(self);
    if (bounds == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for %d processes", self->ranks);
    for (int rank = 0; rank < self->ranks; rank++) {
        const struct sw_span shard = sw_shard(self->units->unit[unit].grains, self->ranks, rank);
        const int64_t end = (shard.first_grain + shard.grains) * SW_GRAIN_ELEMS - first;
        bounds[rank + 1] = sw_min_i64(count, sw_max_i64(0, end)) * (int64_t)sizeof *out;
    }
    const struct sw_comm_gather gather = {
        .what = "state", .index = unit, .data = out, .bounds_bytes = bounds, .scope = SW_SCOPE_ALL};
    sw_status status = sw_comm_all_gather(self->comm, &gather, &request);
    if (status == SW_OK)
        status = sw_comm_wait(request);
    free(bounds);
    return status;
}
