#include "train/store_reader.h"

#include "core/arena.h"
#include "core/size.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* A window of 12 MiB where units are read one after the other. */
enum { IO_DEPTH = 32, BOXES = 8, BOX_GRAINS = 8, LEAST_BOXES = 2, REAP_BATCH = 64 };

/* Consecutive grains of a unit. */
struct box {
    char *records;
    int64_t unit, first_grain, grains; /* no grains: empty */
    bool under_way;
};

/* What is read of every tiles-th unit: boxes go round, the oldest first. */
struct stream {
    struct box *box;
    int64_t oldest;
    int64_t unit, grain; /* behind the newest box */
};

struct sw_store_reader {
    struct sw_store *store;
    struct sw_store_lane *lane;
    struct sw_arena *arena;
    int64_t tiles, boxes, box_grains; /* streams; of each the boxes, of each the most grains */
    struct stream *stream;
    struct box *box; /* of all streams */
};

static sw_status make_boxes(struct sw_store_reader *self) {
    const int64_t bytes = self->tiles * self->boxes * self->box_grains * SW_RECORD_BYTES;
    void *records;
    self->stream = calloc((size_t)self->tiles, sizeof *self->stream);
    self->box = calloc((size_t)(self->tiles * self->boxes), sizeof *self->box);
    if (self->stream == NULL || self->box == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to read the store");
    SW_TRY(sw_arena_create("reader", bytes, false, NULL, &self->arena));
    SW_TRY(sw_arena_take(self->arena, bytes, &records));
    for (int64_t b = 0; b < self->tiles * self->boxes; b++)
        self->box[b].records = (char *)records + b * self->box_grains * SW_RECORD_BYTES;
    for (int64_t k = 0; k < self->tiles; k++)
        self->stream[k].box = self->box + k * self->boxes;
    return sw_store_add_buffer(self->store, records, bytes);
}

sw_status sw_store_reader_open(struct sw_store *store, int64_t tiles, struct sw_store_reader **out) {
    struct sw_store_reader *self = calloc(1, sizeof *self);
    if (self == NULL) {
        sw_store_close(store);
        return sw_fail(SW_ERR_NOMEM, "no memory to read the store");
    }
    *self = (struct sw_store_reader){.store = store,
                                     .tiles = tiles,
                                     .boxes = sw_max_i64(LEAST_BOXES, BOXES / tiles),
                                     .box_grains = sw_max_i64(1, BOX_GRAINS / tiles)};
    sw_status status = make_boxes(self);
    if (status == SW_OK)
        status = sw_store_lane_open(store, IO_DEPTH, &self->lane);
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
    if (self->lane != NULL)
        sw_store_lane_close(self->lane);
    sw_store_close(self->store);
    sw_arena_destroy(self->arena);
    free(self->stream);
    free(self->box);
    free(self);
}

int64_t sw_store_reader_most_grains(const struct sw_store_reader *self) {
    return (self->boxes - 1) * self->box_grains + 1;
}

static bool holds(const struct box *box, int64_t unit, int64_t grain) {
    return box->unit == unit && grain >= box->first_grain && grain < box->first_grain + box->grains;
}

static struct box *box_at(const struct sw_store_reader *self, const struct stream *stream, int64_t index) {
    return &stream->box[(stream->oldest + index) % self->boxes];
}

/* The stream's box with this grain, counted from the oldest, or -1. */
static int64_t find(const struct sw_store_reader *self, const struct stream *stream, int64_t unit, int64_t grain) {
    for (int64_t i = 0; i < self->boxes; i++)
        if (holds(box_at(self, stream, i), unit, grain))
            return i;
    return -1;
}

static sw_status reap(struct sw_store_reader *self) {
    uint64_t tags[REAP_BATCH];
    int count;
    SW_TRY(sw_store_reap(self->lane, true, tags, REAP_BATCH, &count));
    for (int i = 0; i < count; i++)
        self->box[tags[i]].under_way = false;
    return SW_OK;
}

static sw_status await(struct sw_store_reader *self, const struct box *box) {
    while (box->under_way)
        SW_TRY(reap(self));
    return SW_OK;
}

/* Reads what is next in the stream into its oldest box, which thereby is the newest. */
static sw_status renew(struct sw_store_reader *self, struct stream *stream) {
    struct box *box = box_at(self, stream, 0);
    const struct sw_store_commit *commit = sw_store_last_commit(self->store);
    const int64_t units = sw_store_unit_count(self->store);
    SW_TRY(await(self, box));
    while (sw_store_outstanding(self->lane) == SW_STORE_LANE_TRANSFERS)
        SW_TRY(reap(self));
    stream->oldest = (stream->oldest + 1) % self->boxes;
    while (stream->unit < units && stream->grain >= sw_store_unit_grains(self->store, stream->unit)) {
        stream->unit += self->tiles;
        stream->grain = 0;
    }
    box->grains = 0;
    if (stream->unit >= units)
        return SW_OK;
    box->unit = stream->unit;
    box->first_grain = stream->grain;
    box->grains = sw_min_i64(self->box_grains, sw_store_unit_grains(self->store, stream->unit) - stream->grain);
    box->under_way = true;
    stream->grain += box->grains;
    const struct sw_store_transfer transfer = {.kind = SW_STORE_OPTIMIZER,
                                               .generation = commit->generation,
                                               .unit = box->unit,
                                               .first_grain = box->first_grain,
                                               .grains = box->grains,
                                               .buf = box->records,
                                               .step = commit->step,
                                               .tag = (uint64_t)(box - self->box)};
    return sw_store_submit(self->lane, &transfer);
}

/* What is before the grain is over; where the stream does not have it, it begins there anew. */
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

sw_status sw_store_reader_prepare(struct sw_store_reader *self, int64_t unit, int64_t first, int64_t count) {
    struct stream *stream = &self->stream[unit % self->tiles];
    const int64_t last = (first + count - 1) / SW_GRAIN_ELEMS;
    SW_TRY(go_to(self, stream, unit, first / SW_GRAIN_ELEMS));
    const int64_t end = find(self, stream, unit, last);
    assert(end >= 0);
    for (int64_t i = 0; i <= end; i++)
        SW_TRY(await(self, box_at(self, stream, i)));
    return SW_OK;
}

sw_status sw_store_reader_fill(const struct sw_store_reader *self, int64_t unit, int64_t first, int64_t count,
                               float *out) {
    const struct stream *stream = &self->stream[unit % self->tiles];
    while (count > 0) {
        const int64_t grain = first / SW_GRAIN_ELEMS, within = first % SW_GRAIN_ELEMS;
        const int64_t run = sw_min_i64(count, SW_GRAIN_ELEMS - within);
        const int64_t at = find(self, stream, unit, grain);
        assert(at >= 0);
        const struct box *box = box_at(self, stream, at);
        const char *record = box->records + (grain - box->first_grain) * SW_RECORD_BYTES;
        memcpy(out, (const float *)record + within, (size_t)run * sizeof *out);
        first += run;
        count -= run;
        out += run;
    }
    return SW_OK;
}

int64_t sw_store_reader_bytes(const struct sw_store_reader *self) {
    return sw_store_counters(self->store).read_bytes;
}
