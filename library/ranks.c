/* Processes that share a store. Each has a store of its own with its part of every unit, in "rank-R-of-N" of the
 * store's folder; a process alone has it in the folder itself. tensors.json names one whole set of stores at every
 * instant:
 *
 *                    start                  another number of processes
 *   listed           tensors.json, as not   tensors.json, as the orphan
 *                    started
 *   filled           from the caller        from the set before, grain by grain, or, where processes have other parts
 *                                           of the tensors than before, element by element (convert.c)
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

enum { RANK_DIGITS = 64 };

/* Refuses, in all processes, what they claim differently. */
static sw_status claim(spillway *self, const struct sw_comm_claim *claims, int count) {
    if (self->comm == NULL)
        return SW_OK;
    const sw_status status = sw_comm_agree(self->comm, claims, count);
    self->agreed = status == SW_ERR_ARG;
    return status;
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

sw_status sw_library_check_plans(spillway *self) {
    const int64_t chunk_grains = self->options.sharded ? 0 : self->plan->spec.chunk_grains;
    const int64_t plan[] = {self->plan->commit_every_step, chunk_grains};
    const struct sw_comm_claim placement = {.what = "placement",
                                            .remedy = "give all processes more host_memory_bytes",
                                            .value = plan,
                                            .bytes = sizeof plan};
    return claim(self, &placement, 1);
}

sw_status sw_library_check_alike(spillway *self) {
    const struct spillway_options *o = &self->options;
    const int64_t options[] = {(int64_t)o->host_memory_bytes, o->state,       o->save_every, o->accumulate != 0,
                               o->missing_gradients,          o->sharded != 0};
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
                         (long long)self->tensor[t].whole, (int)self->tensor[t].type, self->tensor[t].decay,
                         self->tensor[t].begins_unit);
    const struct sw_comm_claim claims[] = {
        {.what = "set of options", .remedy = "give all processes the same", .value = options, .bytes = sizeof options},
        {.what = "list of tensors",
         .remedy = "register the same ones in the same order in all processes",
         .value = tensors,
         .bytes = used}};
    const sw_status status = claim(self, claims, (int)(sizeof claims / sizeof claims[0]));
    free(tensors);
    return status;
}

/* Returns the process, sought from `rank` on and around, whose part of a tensor begins at an element; -1: none. */
static int find_part(const spillway *self, int64_t tensor, int64_t first, int rank) {
    for (int i = 0; i < self->ranks; i++) {
        const int at = (rank + i) % self->ranks;
        const struct tensor_part *part = &self->part[at * self->tensor_count + tensor];
        if (part->count > 0 && part->first == first)
            return at;
    }
    return -1;
}

/* Refuses parts with gaps between them, or that share elements. */
static sw_status check_parts(const spillway *self, int64_t t) {
    const int64_t whole = self->tensor[t].whole;
    int64_t sum = 0, end = 0;
    for (int rank = 0; rank < self->ranks; rank++)
        sum += self->part[rank * self->tensor_count + t].count;
    for (int rank = sum == whole ? find_part(self, t, 0, 0) : -1; rank >= 0 && end < whole;
         rank = find_part(self, t, end, rank))
        end += self->part[rank * self->tensor_count + t].count;
    return whole == 0 || (sum == whole && end == whole)
               ? SW_OK
               : sw_fail(SW_ERR_ARG,
                         "the parts that %d processes have of '%s' are not the %lld elements of its whole_count: each "
                         "element is in one of them",
                         self->ranks, self->tensor[t].name, (long long)whole);
}

sw_status sw_library_share_parts(spillway *self) {
    if (!self->options.sharded)
        return SW_OK;
    const int64_t count = self->tensor_count, bytes = count * (int64_t)sizeof *self->part;
    self->part = calloc((size_t)self->ranks, (size_t)bytes);
    const bool found = self->part != NULL;
    SW_TRY(sw_library_agree(self, found ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory to compare tensors"), "tensors"));
    for (int64_t t = 0; t < count; t++)
        self->part[self->rank * count + t] =
            (struct tensor_part){sw_library_elems(&self->tensor[t]), self->tensor[t].first};
    if (self->comm != NULL)
        SW_TRY(sw_comm_share_records(self->comm, "tensors", self->part, bytes));
    for (int64_t t = 0; t < count; t++) {
        /* All processes find the same. */
        self->agreed = true;
        SW_TRY(check_parts(self, t));
        self->agreed = false;
        for (int rank = 0; rank < self->ranks; rank++)
            self->tensor[t].most = sw_max_i64(self->tensor[t].most, self->part[rank * count + t].count);
    }
    return SW_OK;
}

sw_status sw_library_join_squares(void *context, double *total) {
    const spillway *self = context;
    return sw_comm_sum_doubles(self->comm, "norm", total, 1);
}

/* Writes the folder of a process's store. */
static sw_status place_of(const spillway *self, const struct store_set *set, int rank, char place[LIBRARY_PATH_CHARS]) {
    char name[RANK_DIGITS];
    if (set->ranks == 1 && !set->other) {
        memcpy(place, self->folder, strlen(self->folder) + 1);
        return SW_OK;
    }
    snprintf(name, sizeof name, "rank-%d-of-%d%s", rank, set->ranks, set->other ? "-b" : "");
    return sw_path_join(place, LIBRARY_PATH_CHARS, self->folder, name);
}

sw_status sw_library_new_id(spillway *self, char id[SW_STORE_ID_CHARS]) {
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

sw_status sw_library_share_record(spillway *self, const struct store_record *record) {
    SW_TRY(sw_library_agree(self, self->rank == 0 ? sw_library_write_record(self, record) : SW_OK, "tensors.json"));
    return sw_library_agree(self, see_record(self), "folder");
}

sw_status sw_library_check_found(spillway *self, const struct store_record *record, bool found) {
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
    const struct sw_comm_claim of_store = {.what = "store in its folder",
                                           .remedy = "name a folder that all processes share",
                                           .value = &store,
                                           .bytes = sizeof store};
    return claim(self, &of_store, 1);
}

static sw_status remove_at(const spillway *self, const struct store_set *set, int rank, int64_t last_step) {
    char place[LIBRARY_PATH_CHARS];
    bool found;
    SW_TRY(place_of(self, set, rank, place));
    SW_TRY(sw_path_find(place, &found));
    if (!found)
        return SW_OK;
    SW_TRY(sw_store_remove(place, set->id, last_step));
    /* A folder that holds anything else stays. */
    if (strcmp(place, self->folder) != 0)
        (void)rmdir(place);
    return SW_OK;
}

sw_status sw_library_remove_set(spillway *self, const struct store_set *set, int64_t last_step) {
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
    SW_TRY(place_of(self, set, self->rank, place));
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
    SW_TRY(place_of(self, set, rank, place));
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

sw_status sw_library_find_step(spillway *self, const struct store_set *set, int64_t *step) {
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
