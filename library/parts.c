/* The tensors of a set of stores, put together from the parts that its processes have of them, or from their shards of
 * whole ones. tensors.json lists where these lie.
 *
 * Each process's layout is made again from that list, as a handle without a store of its own. Stores are opened for
 * reading at one step, and grains are read as fp32, some at once, because callers walk through tensors in order. */
#include "core/size.h"
#include "kernels/moments.h"
#include "library/library_private.h"
#include "offload/plan/shard.h"

#include <stdlib.h>
#include <string.h>

/* READ_GRAINS: those read at once from a process's store. */
enum { PARTS = SW_OPTIMIZER_VECTORS, READ_GRAINS = 8, IO_DEPTH = 32 };

/* The store of a process, and the grains that were read last. */
struct source {
    spillway *layout; /* of whole tensors one for all: that of source 0 */
    struct sw_store *store;
    struct sw_store_lane *lane;
    char *records; /* of grains [first, first+grains) of a unit */
    int64_t unit, first, grains;
};

struct library_parts {
    struct store_set set;
    bool sharded;
    int64_t step;
    int64_t record_bytes;
    struct source *source; /* [set.ranks] */
    float *grain;          /* one of a store as fp32 */
};

sw_status sw_library_take_listed(spillway *self, const json_t *tensors, int rank) {
    size_t i;
    json_t *entry;
    int64_t last_unit = 0;
    self->tensor = calloc(json_array_size(tensors) + 1, sizeof *self->tensor);
    self->order = calloc(json_array_size(tensors) + 2, sizeof *self->order);
    if (self->tensor == NULL || self->order == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the tensors of %s", self->folder);
    json_array_foreach(tensors, i, entry) {
        const char *name = json_string_value(json_object_get(entry, "name"));
        const int64_t unit = json_integer_value(json_object_get(entry, "unit"));
        last_unit = sw_max_i64(last_unit, unit);
        if (name != NULL && name[0] == '\0')
            continue;
        struct tensor *tensor = &self->tensor[self->tensor_count];
        const struct tensor_part part = sw_library_listed_part(entry, sw_max_i64(0, rank));
        const int64_t count = rank < 0 ? sw_library_listed_whole(entry) : part.count;
        if (name != NULL && count == 0 && rank < 0)
            return sw_fail(SW_ERR_UNSUPPORTED,
                           "the store in %s does not say where the parts of '%s' lie, which its processes registered "
                           "without a whole_count: only they can read it",
                           self->folder, name);
        if (name == NULL || strlen(name) >= sizeof tensor->name || count < (rank < 0 ? 1 : 0))
            return sw_fail(SW_ERR_CORRUPT, "tensors.json in %s has an entry without a name or a count", self->folder);
        *tensor = (struct tensor){.count = sw_max_i64(1, count),
                                  .empty = count == 0,
                                  .whole = count,
                                  .first = rank < 0 ? 0 : part.first,
                                  .most = sw_max_i64(1, count),
                                  .decay = true,
                                  .kept = self->tensor_count,
                                  .kept_unit = unit};
        memcpy(tensor->name, name, strlen(name) + 1);
        self->tensor_count++;
    }
    SW_TRY(sw_library_add_counts(self));
    self->tensor[self->tensor_count].kept_unit = last_unit;
    sw_library_order_as_added(self);
    return SW_OK;
}

static void close_layout(spillway *layout) {
    if (layout == NULL)
        return;
    sw_units_destroy(layout->units);
    free(layout->unit_first);
    free(layout->order);
    free(layout->tensor);
    free(layout);
}

static sw_status make_layout(const spillway *self, const struct store_record *record, int rank, spillway **out) {
    spillway *layout = calloc(1, sizeof *layout);
    *out = layout;
    if (layout == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the tensors of %s", self->folder);
    memcpy(layout->folder, self->folder, sizeof layout->folder);
    layout->options.state = (int)record->state;
    SW_TRY(sw_library_take_listed(layout, record->listed, rank));
    return sw_library_lay_out(layout, true);
}

static const spillway *layout_of(const struct library_parts *parts, int rank) {
    return parts->source[parts->sharded ? rank : 0].layout;
}

/* Refuses a store that is not one of the listed tensors. */
static sw_status check_source(const struct library_parts *parts, int rank) {
    const struct sw_store *store = parts->source[rank].store;
    const struct sw_units *units = layout_of(parts, rank)->units;
    bool same = sw_store_unit_count(store) == units->count && sw_store_optimizer(store) == units->optimizer;
    for (int64_t u = 0; same && u < units->count; u++) {
        const struct sw_span shard =
            sw_shard(units->unit[u].grains, parts->sharded ? 1 : parts->set.ranks, parts->sharded ? 0 : rank);
        same = sw_store_unit_whole_grains(store, u) == units->unit[u].grains &&
               sw_store_unit_first(store, u) == shard.first_grain && sw_store_unit_grains(store, u) == shard.grains;
    }
    return same ? SW_OK
                : sw_fail(SW_ERR_CORRUPT, "the store of process %d in %s and its tensors.json do not belong together",
                          rank, layout_of(parts, rank)->folder);
}

static sw_status open_source(const struct library_parts *parts, int rank) {
    struct source *source = &parts->source[rank];
    void *records = NULL;
    if (source->lane != NULL)
        return SW_OK;
    if (source->store == NULL)
        SW_TRY(sw_library_open_part(layout_of(parts, rank), &parts->set, rank, parts->step, &source->store));
    SW_TRY(check_source(parts, rank));
    if (sw_store_last_commit(source->store)->step != parts->step)
        return sw_fail(SW_ERR_CORRUPT, "the store of process %d in %s has no commit of step %lld, which others have",
                       rank, layout_of(parts, rank)->folder, (long long)parts->step);
    if (posix_memalign(&records, SW_BUFFER_ALIGN_BYTES, (size_t)(READ_GRAINS * parts->record_bytes)) != 0)
        return sw_fail(SW_ERR_NOMEM, "no memory to read the store of process %d", rank);
    source->records = records;
    return sw_store_lane_open(source->store, IO_DEPTH, &source->lane);
}

/* Reads a grain as fp32 into parts->grain. */
static sw_status read_grain(const struct library_parts *parts, int rank, int64_t unit, int64_t grain) {
    struct source *source = &parts->source[rank];
    const struct sw_units *units = layout_of(parts, rank)->units;
    SW_TRY(open_source(parts, rank));
    if (source->grains == 0 || source->unit != unit || grain < source->first ||
        grain >= source->first + source->grains) {
        const int64_t end = sw_store_unit_first(source->store, unit) + sw_store_unit_grains(source->store, unit);
        source->unit = unit;
        source->first = grain;
        source->grains = 0;
        const struct sw_store_transfer transfer = {.kind = SW_STORE_OPTIMIZER,
                                                   .generation = sw_store_last_commit(source->store)->generation,
                                                   .unit = unit,
                                                   .first_grain = grain,
                                                   .grains = sw_min_i64(READ_GRAINS, end - grain),
                                                   .buf = source->records};
        SW_TRY(sw_store_transfer(source->lane, &transfer));
        source->grains = transfer.grains;
    }
    sw_record_to_fp32(units->optimizer, grain >= units->unit[unit].wide_grain,
                      source->records + (grain - source->first) * parts->record_bytes, parts->grain);
    return SW_OK;
}

/* Copies elements [from, from+count) of a tensor of a process's layout to `out`, whose parts are SW_GRAIN_ELEMS
 * apart. rank: that process; of whole tensors each has some grains. */
static sw_status read_tensor(const struct library_parts *parts, int rank, int64_t number, int64_t from, int64_t count,
                             float *out) {
    const spillway *layout = layout_of(parts, rank);
    const struct tensor *tensor = &layout->tensor[number];
    const int64_t grains = layout->units->unit[tensor->unit].grains;
    for (int64_t at = tensor->offset + from, end = at + count, next; at < end; at = next) {
        const int64_t grain = at / SW_GRAIN_ELEMS;
        next = sw_min_i64(end, (grain + 1) * SW_GRAIN_ELEMS);
        SW_TRY(read_grain(parts, parts->sharded ? rank : sw_shard_rank(grains, parts->set.ranks, grain), tensor->unit,
                          grain));
        for (int part = 0; part < PARTS; part++)
            memcpy(out + part * SW_GRAIN_ELEMS + (at - tensor->offset - from),
                   parts->grain + part * SW_GRAIN_ELEMS + at % SW_GRAIN_ELEMS, (size_t)(next - at) * sizeof *out);
    }
    return SW_OK;
}

sw_status sw_library_parts_read(const struct library_parts *parts, int64_t number, int64_t first, int64_t count,
                                float *out) {
    if (!parts->sharded)
        return read_tensor(parts, 0, number, first, count, out);
    for (int rank = 0; rank < parts->set.ranks; rank++) {
        const struct tensor *part = &parts->source[rank].layout->tensor[number];
        const int64_t begin = sw_max_i64(first, part->first);
        const int64_t end = sw_min_i64(first + count, part->first + sw_library_elems(part));
        if (begin < end)
            SW_TRY(read_tensor(parts, rank, number, begin - part->first, end - begin, out + (begin - first)));
    }
    return SW_OK;
}

sw_status sw_library_parts_read_missed(const struct library_parts *parts, int64_t *out) {
    const spillway *layout = layout_of(parts, 0);
    const int64_t count = layout->tensor[layout->tensor_count].count;
    float *values = calloc((size_t)count, sizeof *values);
    float *room = calloc(PARTS * SW_GRAIN_ELEMS, sizeof *room);
    sw_status status = values != NULL && room != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory for counts of steps");
    for (int64_t at = 0, some; status == SW_OK && at < count; at += some) {
        some = sw_min_i64(SW_GRAIN_ELEMS, count - at);
        status = read_tensor(parts, 0, layout->tensor_count, at, some, room);
        memcpy(values + at, room, (size_t)some * sizeof *values);
    }
    for (int64_t t = 0; status == SW_OK && t < layout->tensor_count; t++)
        out[t] = sw_library_count_of(values, t);
    free(values);
    free(room);
    return status;
}

sw_status sw_library_parts_commit(const struct library_parts *parts, const struct sw_store_commit **out) {
    SW_TRY(open_source(parts, 0));
    *out = sw_store_last_commit(parts->source[0].store);
    return SW_OK;
}

int64_t sw_library_parts_tensors(const struct library_parts *parts) {
    return layout_of(parts, 0)->tensor_count;
}

static sw_status make(const spillway *self, const struct store_record *record, struct library_parts *parts) {
    parts->source = calloc((size_t)record->set.ranks, sizeof *parts->source);
    parts->grain = malloc(PARTS * SW_GRAIN_ELEMS * sizeof *parts->grain);
    if (parts->source == NULL || parts->grain == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to read the stores of %d processes", record->set.ranks);
    parts->set = record->set;
    const int layouts = record->sharded ? record->set.ranks : 1;
    for (int rank = 0; rank < layouts; rank++)
        SW_TRY(make_layout(self, record, rank, &parts->source[rank].layout));
    return SW_OK;
}

sw_status sw_library_parts_open(const spillway *self, const struct store_record *record, int64_t step,
                                struct library_parts **out) {
    struct library_parts *parts = calloc(1, sizeof *parts);
    if (parts == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to read the store in %s", self->folder);
    parts->sharded = record->sharded;
    parts->step = step;
    parts->record_bytes = sw_optimizer_grain_bytes(record->state);
    *out = parts;
    return make(self, record, parts);
}

void sw_library_parts_take_stores(const struct library_parts *parts, struct sw_store **stores) {
    for (int rank = 0; rank < parts->set.ranks; rank++) {
        parts->source[rank].store = stores[rank];
        stores[rank] = NULL;
    }
}

void sw_library_parts_close(struct library_parts *parts) {
    if (parts == NULL)
        return;
    for (int rank = 0; rank < parts->set.ranks; rank++) {
        struct source *source = &parts->source[rank];
        if (source->lane != NULL)
            sw_store_lane_close(source->lane);
        if (source->store != NULL)
            sw_store_close(source->store);
        free(source->records);
        close_layout(source->layout);
    }
    free(parts->source);
    free(parts->grain);
    free(parts);
}
