/* Reads the masters of all ranks' stores as one sequence of units, ahead of their use.
 *
 * Reads go into rings of buffers, one ring for every stream of units. With tiles, whole rows of a column-cut tensor
 * pass through all tiles of a half in turn; one ring would be thrown away at every change of unit, so each tile has its
 * own. A grain that was skipped or is asked for again restarts its ring: order is only a promise about speed. */
#include "run/folder/store_reader.h"

#include "core/arena.h"
#include "core/size.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* With one stream, the buffers are a window of 12 MiB. */
enum { IO_DEPTH = 32, BOXES = 8, BOX_GRAINS = 8, LEAST_BOXES = 2, REAP_BATCH = 64 };

/* A buffer of consecutive grains of a unit. */
struct box {
    char *records;
    int64_t unit, first_grain, grains; /* grains 0: the buffer is empty */
    int under_way;                     /* reads in flight: one for each store that holds some of the grains */
};

/* The reads of every `tiles`-th unit. Its buffers form a ring. */
struct stream {
    struct box *box;
    int64_t oldest;      /* index of the oldest buffer */
    int64_t unit, grain; /* the next grain to read, which follows the newest buffer */
};

struct sw_store_reader {
    struct sw_store_set stores;
    struct sw_store_lane **lane; /* one for each store */
    struct sw_arena *arena;
    const struct sw_units *units;     /* borrowed */
    int64_t grain_bytes;              /* bytes of a record in the stores */
    int64_t tiles, boxes, box_grains; /* number of streams, buffers per stream, grains per buffer */
    struct stream *stream;
    struct box *box; /* tiles * boxes entries, grouped by stream */
};

static sw_status make_boxes(struct sw_store_reader *self) {
    const int64_t bytes = self->tiles * self->boxes * self->box_grains * self->grain_bytes;
    void *records;
    self->stream = calloc((size_t)self->tiles, sizeof *self->stream);
    self->box = calloc((size_t)(self->tiles * self->boxes), sizeof *self->box);
    if (self->stream == NULL || self->box == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to read the store");
    SW_TRY(sw_arena_create("reader", bytes, false, NULL, &self->arena));
    SW_TRY(sw_arena_take(self->arena, bytes, &records));
    for (int64_t b = 0; b < self->tiles * self->boxes; b++)
        self->box[b].records = (char *)records + b * self->box_grains * self->grain_bytes;
    for (int64_t k = 0; k < self->tiles; k++)
        self->stream[k].box = self->box + k * self->boxes;
    for (int s = 0; s < self->stores.count; s++)
        SW_TRY(sw_store_add_buffer(self->stores.store[s], records, bytes));
    return SW_OK;
}

static sw_status open_lanes(struct sw_store_reader *self) {
    assert(self->stores.count > 0);
    self->lane = calloc((size_t)self->stores.count, sizeof(struct sw_store_lane *));
    if (self->lane == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to read the store");
    for (int s = 0; s < self->stores.count; s++)
        SW_TRY(sw_store_lane_open(self->stores.store[s], IO_DEPTH, &self->lane[s]));
    return SW_OK;
}

sw_status sw_store_reader_open(struct sw_store_set *stores, const struct sw_units *units, int64_t tiles,
                               struct sw_store_reader **out) {
    struct sw_store_reader *self = calloc(1, sizeof *self);
    if (self == NULL) {
        sw_store_set_close(stores);
        return sw_fail(SW_ERR_NOMEM, "no memory to read the store");
    }
    *self = (struct sw_store_reader){.stores = *stores,
                                     .units = units,
                                     .grain_bytes = sw_optimizer_grain_bytes(units->optimizer),
                                     .tiles = tiles,
                                     .boxes = sw_max_i64(LEAST_BOXES, BOXES / tiles),
                                     .box_grains = sw_max_i64(1, BOX_GRAINS / tiles)};
    *stores = (struct sw_store_set){0};
    sw_status status = make_boxes(self);
    if (status == SW_OK)
        status = open_lanes(self);
    if (status != SW_OK) {
        sw_store_reader_close(self);
        return status;
    }
    *out = self;
    return SW_OK;
}

void sw_store_reader_close(struct sw_store_reader *self) {
    if (self == NULL)
        return;
    for (int s = 0; self->lane != NULL && s < self->stores.count; s++)
        sw_store_lane_close(self->lane[s]);
    free(self->lane);
    sw_store_set_close(&self->stores);
    sw_arena_destroy(self->arena);
    free(self->stream);
    free(self->box);
    free(self);
}

static bool holds(const struct box *box, int64_t unit, int64_t grain) {
    return box->unit == unit && grain >= box->first_grain && grain < box->first_grain + box->grains;
}

static struct box *box_at(const struct sw_store_reader *self, const struct stream *stream, int64_t index) {
    return &stream->box[(stream->oldest + index) % self->boxes];
}

/* Returns which buffer of a stream, counted from the oldest, holds this grain; or -1. */
static int64_t find(const struct sw_store_reader *self, const struct stream *stream, int64_t unit, int64_t grain) {
    for (int64_t i = 0; i < self->boxes; i++)
        if (holds(box_at(self, stream, i), unit, grain))
            return i;
    return -1;
}

static sw_status reap(struct sw_store_reader *self, struct sw_store_lane *lane) {
    uint64_t tags[REAP_BATCH];
    int count;
    SW_TRY(sw_store_reap(lane, true, tags, REAP_BATCH, &count));
    for (int i = 0; i < count; i++)
        self->box[tags[i]].under_way--;
    return SW_OK;
}

static sw_status await(struct sw_store_reader *self, const struct box *box) {
    for (int64_t s = 0; box->under_way > 0; s = (s + 1) % self->stores.count)
        SW_TRY(reap(self, self->lane[s]));
    return SW_OK;
}

/* Returns the store that holds a grain, or -1. */
static int64_t holder_of(const struct sw_store_reader *self, int64_t unit, int64_t grain) {
    for (int s = 0; s < self->stores.count; s++) {
        const int64_t within = grain - sw_store_unit_first(self->stores.store[s], unit);
        if (within >= 0 && within < sw_store_unit_grains(self->stores.store[s], unit))
            return s;
    }
    return -1;
}

/* Begins to read grains into a buffer, starting at `grain`, as far as one store holds them. *out_end: the first grain
 * it did not read. */
static sw_status read_piece(struct sw_store_reader *self, struct box *box, int64_t grain, int64_t *out_end) {
    const int64_t s = holder_of(self, box->unit, grain);
    if (s < 0)
        return sw_fail(SW_ERR_CORRUPT, "no store of the run has grain %lld of unit %lld", (long long)grain,
                       (long long)box->unit);
    const struct sw_store *store = self->stores.store[s];
    const struct sw_store_commit *commit = sw_store_last_commit(store);
    const int64_t held_end = sw_store_unit_first(store, box->unit) + sw_store_unit_grains(store, box->unit);
    *out_end = sw_min_i64(box->first_grain + box->grains, held_end);
    while (sw_store_outstanding(self->lane[s]) == SW_STORE_LANE_TRANSFERS)
        SW_TRY(reap(self, self->lane[s]));
    const struct sw_store_transfer transfer = {.kind = SW_STORE_OPTIMIZER,
                                               .generation = commit->generation,
                                               .unit = box->unit,
                                               .first_grain = grain,
                                               .grains = *out_end - grain,
                                               .buf = box->records + (grain - box->first_grain) * self->grain_bytes,
                                               .step = commit->step,
                                               .tag = (uint64_t)(box - self->box)};
    SW_TRY(sw_store_submit(self->lane[s], &transfer));
    box->under_way++;
    return SW_OK;
}

/* Reads the next grains of the stream into its oldest buffer, which becomes the newest. */
static sw_status renew(struct sw_store_reader *self, struct stream *stream) {
    struct box *box = box_at(self, stream, 0);
    const struct sw_store *any = self->stores.store[0];
    const int64_t units = sw_store_unit_count(any);
    SW_TRY(await(self, box));
    stream->oldest = (stream->oldest + 1) % self->boxes;
    while (stream->unit < units && stream->grain >= sw_store_unit_whole_grains(any, stream->unit)) {
        stream->unit += self->tiles;
        stream->grain = 0;
    }
    box->grains = 0;
    if (stream->unit >= units)
        return SW_OK;
    box->unit = stream->unit;
    box->first_grain = stream->grain;
    box->grains = sw_min_i64(self->box_grains, sw_store_unit_whole_grains(any, stream->unit) - stream->grain);
    stream->grain += box->grains;
    for (int64_t grain = box->first_grain; grain < stream->grain;)
        SW_TRY(read_piece(self, box, grain, &grain));
    return SW_OK;
}

/* Drops the grains before this one. If no buffer holds the grain, the stream starts again there. */
static sw_status go_to(struct sw_store_reader *self, struct stream *stream, int64_t unit, int64_t grain) {
    int64_t over = find(self, stream, unit, grain);
    if (over < 0) {
        stream->unit = unit;
        stream->grain = grain;
        over = self->boxes;
    }
    for (int64_t i = 0; i < over; i++)
        SW_TRY(renew(self, stream));
    return SW_OK;
}

static sw_status prepare(void *context, int64_t unit, int64_t first, int64_t count) {
    struct sw_store_reader *self = context;
    struct stream *stream = &self->stream[unit % self->tiles];
    const int64_t last = (first + count - 1) / SW_GRAIN_ELEMS;
    SW_TRY(go_to(self, stream, unit, first / SW_GRAIN_ELEMS));
    const int64_t end = find(self, stream, unit, last);
    assert(end >= 0);
    for (int64_t i = 0; i <= end; i++)
        SW_TRY(await(self, box_at(self, stream, i)));
    return SW_OK;
}

/* Copies `run` masters of a grain, starting at its element `within`. The padding of a wide grain becomes zeros. */
static void copy_masters(const struct sw_unit *unit, int64_t grain, const char *record, int64_t within, int64_t run,
                         float *out) {
    const int64_t used = grain >= unit->wide_grain ? SW_WIDE_GRAIN_ELEMS : SW_GRAIN_ELEMS;
    const int64_t copied = sw_max_i64(0, sw_min_i64(run, used - within));
    memcpy(out, (const float *)record + within, (size_t)copied * sizeof *out);
    memset(out + copied, 0, (size_t)(run - copied) * sizeof *out);
}

static sw_status fill(void *context, int64_t unit, int64_t first, int64_t count, float *out) {
    const struct sw_store_reader *self = context;
    const struct stream *stream = &self->stream[unit % self->tiles];
    while (count > 0) {
        const int64_t grain = first / SW_GRAIN_ELEMS, within = first % SW_GRAIN_ELEMS;
        const int64_t run = sw_min_i64(count, SW_GRAIN_ELEMS - within);
        const int64_t at = find(self, stream, unit, grain);
        assert(at >= 0);
        const struct box *box = box_at(self, stream, at);
        copy_masters(&self->units->unit[unit], grain, box->records + (grain - box->first_grain) * self->grain_bytes,
                     within, run, out);
        first += run;
        count -= run;
        out += run;
    }
    return SW_OK;
}

struct sw_load sw_store_reader_load(struct sw_store_reader *self) {
    return (struct sw_load){
        .fill = fill, .prepare = prepare, .context = self, .most_grains = (self->boxes - 1) * self->box_grains + 1};
}

int64_t sw_store_reader_bytes(const struct sw_store_reader *self) {
    int64_t bytes = 0;
    for (int s = 0; s < self->stores.count; s++)
        bytes += sw_store_counters(self->stores.store[s]).read_bytes;
    return bytes;
}
