/* Fills the store of a process from those of processes that had other parts of the tensors, or whole ones, element by
 * element: a tensor is the same in both, and lies elsewhere in their units. tensors.json lists where.
 *
 * Each of the former processes' layouts is made again from that list, as a handle without a store of its own. A grain
 * of the new store is put together from the records of theirs as fp32, and rounded to the format of both: moments that
 * are in 8 bits keep their bits where a block has the same elements before and after. */
#include "core/confine.h"
#include "core/size.h"
#include "kernels/moments.h"
#include "library/library_private.h"
#include "offload/plan/shard.h"

#include <stdlib.h>
#include <string.h>

/* READ_GRAINS: those read at once from a former process's store. */
enum { PARTS = SW_OPTIMIZER_VECTORS, READ_GRAINS = 8, WRITE_GRAINS = 16, IO_DEPTH = 32 };

/* The store of a former process, opened at its first use, and the grains that were read last. */
struct source {
    spillway *layout; /* of whole tensors one for all: that of source 0 */
    struct sw_store *store;
    struct sw_store_lane *lane;
    char *records; /* of grains [first, first+grains) of a unit */
    int64_t unit, first, grains;
};

struct conversion {
    spillway *self;
    const struct store_record *record;
    int64_t step;
    struct source *source; /* [record->set.ranks] */
    int64_t record_bytes;
    float *grain; /* a former grain as fp32 */
    float *made;  /* a new one */
    char *records;
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
        const int64_t count = rank < 0 ? json_integer_value(json_object_get(entry, "count")) : part.count;
        if (name == NULL || strlen(name) >= sizeof tensor->name || count < (rank < 0 ? 1 : 0))
            return sw_fail(SW_ERR_CORRUPT, "tensors.json in %s has an entry without a name or a count", self->folder);
        *tensor = (struct tensor){.count = sw_max_i64(1, count),
                                  .empty = count == 0,
                                  .whole = count,
                                  .first = part.first,
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

static sw_status make_layout(const struct conversion *c, int rank, spillway **out) {
    spillway *layout = calloc(1, sizeof *layout);
    *out = layout;
    if (layout == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the tensors of %s", c->self->folder);
    memcpy(layout->folder, c->self->folder, sizeof layout->folder);
    layout->options.state = c->self->options.state;
    SW_TRY(sw_library_take_listed(layout, c->record->listed, rank));
    return sw_library_lay_out(layout, true);
}

static const spillway *layout_of(const struct conversion *c, int rank) {
    return c->source[c->record->sharded ? rank : 0].layout;
}

static sw_status make_layouts(struct conversion *c) {
    const int count = c->record->sharded ? c->record->set.ranks : 1;
    for (int rank = 0; rank < count; rank++)
        SW_TRY(make_layout(c, rank, &c->source[rank].layout));
    for (int64_t t = 0; t < c->self->tensor_count; t++)
        if (c->self->tensor[t].kept >= layout_of(c, 0)->tensor_count)
            return sw_fail(SW_ERR_CORRUPT, "tensors.json in %s lacks '%s'", c->self->folder, c->self->tensor[t].name);
    return SW_OK;
}

/* Refuses a store that is not one of the listed tensors. */
static sw_status check_source(const struct conversion *c, int rank) {
    const struct sw_store *store = c->source[rank].store;
    const struct sw_units *units = layout_of(c, rank)->units;
    bool same = sw_store_unit_count(store) == units->count && sw_store_optimizer(store) == units->optimizer;
    for (int64_t u = 0; same && u < units->count; u++) {
        const struct sw_span shard = sw_shard(units->unit[u].grains, c->record->sharded ? 1 : c->record->set.ranks,
                                              c->record->sharded ? 0 : rank);
        same = sw_store_unit_whole_grains(store, u) == units->unit[u].grains &&
               sw_store_unit_first(store, u) == shard.first_grain && sw_store_unit_grains(store, u) == shard.grains;
    }
    return same ? SW_OK
                : sw_fail(SW_ERR_CORRUPT, "the store of process %d in %s and its tensors.json do not belong together",
                          rank, c->self->folder);
}

static sw_status open_source(const struct conversion *c, int rank) {
    struct source *source = &c->source[rank];
    void *records = NULL;
    if (source->lane != NULL)
        return SW_OK;
    SW_TRY(sw_library_open_part(c->self, &c->record->set, rank, c->step, &source->store));
    SW_TRY(check_source(c, rank));
    if (posix_memalign(&records, SW_BUFFER_ALIGN_BYTES, (size_t)(READ_GRAINS * c->record_bytes)) != 0)
        return sw_fail(SW_ERR_NOMEM, "no memory to read the store of process %d", rank);
    source->records = records;
    return sw_store_lane_open(source->store, IO_DEPTH, &source->lane);
}

/* Reads a former grain as fp32 into c->grain. */
static sw_status read_grain(const struct conversion *c, int rank, int64_t unit, int64_t grain) {
    struct source *source = &c->source[rank];
    const struct sw_units *units = layout_of(c, rank)->units;
    SW_TRY(open_source(c, rank));
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
                      source->records + (grain - source->first) * c->record_bytes, c->grain);
    return SW_OK;
}

/* Copies elements [from, from+count) of a tensor of a former process's layout to `out`, whose parts are SW_GRAIN_ELEMS
 * apart. rank: that process; of whole tensors each has some grains. */
static sw_status read_tensor(const struct conversion *c, int rank, int64_t number, int64_t from, int64_t count,
                             float *out) {
    const spillway *layout = layout_of(c, rank);
    const struct tensor *tensor = &layout->tensor[number];
    const int64_t grains = layout->units->unit[tensor->unit].grains;
    for (int64_t at = tensor->offset + from, end = at + count, next; at < end; at = next) {
        const int64_t grain = at / SW_GRAIN_ELEMS;
        next = sw_min_i64(end, (grain + 1) * SW_GRAIN_ELEMS);
        SW_TRY(read_grain(c, c->record->sharded ? rank : sw_shard_rank(grains, c->record->set.ranks, grain),
                          tensor->unit, grain));
        for (int part = 0; part < PARTS; part++)
            memcpy(out + part * SW_GRAIN_ELEMS + (at - tensor->offset - from),
                   c->grain + part * SW_GRAIN_ELEMS + at % SW_GRAIN_ELEMS, (size_t)(next - at) * sizeof *out);
    }
    return SW_OK;
}

/* Copies elements [first, first+count) of a whole tensor. */
static sw_status read_whole(const struct conversion *c, int64_t number, int64_t first, int64_t count, float *out) {
    if (!c->record->sharded)
        return read_tensor(c, 0, number, first, count, out);
    for (int rank = 0; rank < c->record->set.ranks; rank++) {
        const struct tensor *part = &c->source[rank].layout->tensor[number];
        const int64_t begin = sw_max_i64(first, part->first);
        const int64_t end = sw_min_i64(first + count, part->first + sw_library_elems(part));
        if (begin < end)
            SW_TRY(read_tensor(c, rank, number, begin - part->first, end - begin, out + (begin - first)));
    }
    return SW_OK;
}

/* Takes each tensor's count of missed steps, which all former processes have. */
static sw_status take_counts(const struct conversion *c) {
    const spillway *layout = layout_of(c, 0);
    const int64_t count = layout->tensor[layout->tensor_count].count;
    float *values = calloc((size_t)count, sizeof *values);
    float *room = calloc(PARTS * SW_GRAIN_ELEMS, sizeof *room);
    sw_status status = values != NULL && room != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory for counts of steps");
    for (int64_t at = 0, some; status == SW_OK && at < count; at += some) {
        some = sw_min_i64(SW_GRAIN_ELEMS, count - at);
        status = read_tensor(c, 0, layout->tensor_count, at, some, room);
        memcpy(values + at, room, (size_t)some * sizeof *values);
    }
    for (int64_t t = 0; status == SW_OK && t < c->self->tensor_count; t++)
        c->self->tensor[t].missed = sw_library_count_of(values, c->self->tensor[t].kept);
    free(values);
    free(room);
    return status;
}

/* Puts a grain of the new store together. The library's own tensor is left to sw_library_stamp. */
static sw_status make_grain(const struct conversion *c, int64_t unit, int64_t grain, char *record) {
    const spillway *self = c->self;
    const sw_optimizer_format format = self->units->optimizer;
    const bool wide = grain >= self->units->unit[unit].wide_grain;
    const struct sw_moment_rounding rounding = {
        .rounding = SW_ROUND_NEAREST, .unit = unit, .step = c->step, .first_elem = grain * SW_GRAIN_ELEMS};
    int64_t position = sw_library_first_run(self, unit, grain * SW_GRAIN_ELEMS);
    memset(c->made, 0, PARTS * SW_GRAIN_ELEMS * sizeof *c->made);
    for (struct library_run run; sw_library_run_at(self, unit, position, grain * SW_GRAIN_ELEMS, SW_GRAIN_ELEMS, &run);
         position++)
        if (run.tensor != &self->tensor[self->tensor_count] && !run.tensor->empty)
            SW_TRY(read_whole(c, run.tensor->kept, run.tensor->first + run.from, run.count, c->made + run.at));
    sw_record_from_fp32(format, wide, &rounding, c->made, record);
    if (format == SW_OPTIMIZER_8BIT && !wide)
        sw_record_recover_m(c->made + SW_GRAIN_ELEMS, record);
    return SW_OK;
}

static sw_status write_unit(const struct conversion *c, struct sw_store *store, struct sw_store_lane *lane,
                            int64_t unit) {
    const int64_t first = sw_store_unit_first(store, unit), end = first + sw_store_unit_grains(store, unit);
    for (int64_t at = first, some; at < end; at += some) {
        some = sw_min_i64(WRITE_GRAINS, end - at);
        for (int64_t g = 0; g < some; g++)
            SW_TRY(make_grain(c, unit, at + g, c->records + g * c->record_bytes));
        sw_library_stamp(c->self, unit, at * SW_GRAIN_ELEMS, some * SW_GRAIN_ELEMS, c->records);
        const struct sw_store_transfer transfer = {.kind = SW_STORE_OPTIMIZER,
                                                   .write = true,
                                                   .unit = unit,
                                                   .first_grain = at,
                                                   .grains = some,
                                                   .buf = c->records};
        SW_TRY(sw_store_transfer(lane, &transfer));
    }
    return SW_OK;
}

static sw_status write_units(const struct conversion *c, struct sw_store *store) {
    struct sw_store_lane *lane;
    sw_status status = SW_OK;
    SW_TRY(sw_store_lane_open(store, IO_DEPTH, &lane));
    for (int64_t u = 0; u < c->self->units->count && status == SW_OK; u++)
        status = write_unit(c, store, lane, u);
    sw_store_lane_close(lane);
    return status;
}

static sw_status make_room(struct conversion *c) {
    void *records = NULL;
    c->source = calloc((size_t)c->record->set.ranks, sizeof *c->source);
    c->grain = malloc(PARTS * SW_GRAIN_ELEMS * sizeof *c->grain);
    c->made = malloc(PARTS * SW_GRAIN_ELEMS * sizeof *c->made);
    if (posix_memalign(&records, SW_BUFFER_ALIGN_BYTES, (size_t)(WRITE_GRAINS * c->record_bytes)) == 0)
        c->records = records;
    return c->source != NULL && c->grain != NULL && c->made != NULL && c->records != NULL
               ? SW_OK
               : sw_fail(SW_ERR_NOMEM, "no memory to take over the stores of %d processes", c->record->set.ranks);
}

static void release(struct conversion *c) {
    for (int rank = 0; c->source != NULL && rank < c->record->set.ranks; rank++) {
        struct source *source = &c->source[rank];
        if (source->lane != NULL)
            sw_store_lane_close(source->lane);
        if (source->store != NULL)
            sw_store_close(source->store);
        free(source->records);
        close_layout(source->layout);
    }
    free(c->source);
    free(c->grain);
    free(c->made);
    free(c->records);
}

sw_status sw_library_convert(spillway *self, const struct store_record *record, int64_t step, struct sw_store *store,
                             char meta[SW_STORE_META_BYTES]) {
    struct conversion c = {
        .self = self, .record = record, .step = step, .record_bytes = sw_optimizer_grain_bytes(self->units->optimizer)};
    sw_status status = make_room(&c);
    if (status == SW_OK)
        status = make_layouts(&c);
    if (status == SW_OK)
        status = open_source(&c, 0);
    if (status == SW_OK)
        status = take_counts(&c);
    if (status == SW_OK)
        status = write_units(&c, store);
    if (status == SW_OK)
        memcpy(meta, sw_store_last_commit(c.source[0].store)->meta, SW_STORE_META_BYTES);
    release(&c);
    return status;
}
