/* Puts the parts of tensor ranks together to whole layers, as weights for an engine or an export.
 *
 * Both sides are lists of named tensors whose elements keep their order in every cut. For a range of a whole tensor,
 * each rank is asked for its elements within the range, found by binary search, and they are copied into place. No
 * table of all cuts is needed, and any number of ranks and tiles can be read as any other number of tiles.
 *
 * Replicas are equal on all ranks, so the first rank's is taken. */
#include "run/folder/group_reader.h"

#include "core/arena.h"
#include "core/size.h"
#include "model/model.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Reads the masters of all ranks' stores as one sequence of units, ahead of their use.
 *
 * Reads go into rings of buffers, one ring for every stream of units. With tiles, whole rows of a column-cut tensor
 * pass through all tiles of a half in turn; one ring would be thrown away at every change of unit, so each tile has its
 * own. A grain that was skipped or is asked for again restarts its ring: order is only a promise about speed. */

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
        stream->grain = stream->unit < units ? self->units->unit[stream->unit].trained_grain : 0;
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

static sw_status prepare_grains(void *context, int64_t unit, int64_t first, int64_t count) {
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

static sw_status fill_grains(void *context, int64_t unit, int64_t first, int64_t count, float *out) {
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
    return (struct sw_load){.fill = fill_grains,
                            .prepare = prepare_grains,
                            .context = self,
                            .most_grains = (self->boxes - 1) * self->box_grains + 1};
}

int64_t sw_store_reader_bytes(const struct sw_store_reader *self) {
    int64_t bytes = 0;
    for (int s = 0; s < self->stores.count; s++)
        bytes += sw_store_counters(self->stores.store[s]).read_bytes;
    return bytes;
}

/* Grains put together at once, and the largest number of them read from one rank. */
enum { WINDOW_GRAINS = 32, WINDOW_ELEMS = WINDOW_GRAINS * SW_GRAIN_ELEMS };

/* One tensor rank. */
struct member {
    struct sw_group_part part;
    struct sw_units *units;         /* owned: the units of `part`; NULL: the caller owns them */
    struct sw_store_reader *reader; /* reads the stores that hold the masters; NULL: the masters come from elsewhere */
};

struct sw_group_reader {
    const struct sw_units *units; /* borrowed: the units as which the weights are read */
    int64_t layers;
    int ranks;
    struct member *member;
    float *window, *part; /* elements [first, first + count) of a whole unit; and one rank's share of a piece of them */
    int64_t unit, first, count;
};

static sw_status open_member(struct sw_group_reader *self, struct sw_store_set *stores, int rank,
                             const struct sw_run *run) {
    struct member *member = &self->member[rank];
    struct sw_store_set own = {0};
    SW_TRY(sw_model_rank_units(&run->config, self->ranks, rank, run->tiles, self->units->optimizer, &member->units));
    own.store = calloc((size_t)(stores->count / self->ranks), sizeof(struct sw_store *));
    if (own.store == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to read the stores");
    bool same = true;
    for (int s = rank; s < stores->count; s += self->ranks) {
        same = same && sw_run_store_is_of(stores->store[s], member->units);
        own.store[own.count++] = stores->store[s];
        stores->store[s] = NULL;
    }
    if (!same) {
        sw_store_set_close(&own);
        return sw_fail(SW_ERR_CORRUPT, "the stores were made for another model than run.json describes");
    }
    SW_TRY(sw_store_reader_open(&own, member->units, run->tiles, &member->reader));
    member->part = (struct sw_group_part){.units = member->units, .load = sw_store_reader_load(member->reader)};
    assert(member->part.load.most_grains > 1);
    return SW_OK;
}

static sw_status make(int64_t ranks, int64_t layers, const struct sw_units *units, struct sw_group_reader **out) {
    const size_t window_bytes = (size_t)WINDOW_ELEMS * sizeof(float);
    struct sw_group_reader *self = *out = calloc(1, sizeof *self);
    if (self == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to read the parts of a tensor group");
    *self = (struct sw_group_reader){.units = units, .layers = layers, .ranks = (int)ranks, .unit = -1};
    self->member = calloc((size_t)ranks, sizeof *self->member);
    self->window = malloc(window_bytes);
    self->part = malloc(window_bytes);
    if (self->member == NULL || self->window == NULL || self->part == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to read the parts of a tensor group");
    return SW_OK;
}

/* Gives an opened reader to the caller, or closes one whose opening failed. */
static sw_status hand_over(struct sw_group_reader *self, sw_status status, struct sw_group_reader **out) {
    if (status == SW_OK)
        *out = self;
    else
        sw_group_reader_close(self);
    return status;
}

sw_status sw_group_reader_open(struct sw_store_set *stores, const struct sw_run *run, const struct sw_units *units,
                               struct sw_group_reader **out) {
    struct sw_group_reader *self;
    sw_status status = make(run->tensor_ranks, run->config.layers, units, &self);
    assert(stores->count % run->tensor_ranks == 0);
    for (int rank = 0; status == SW_OK && rank < run->tensor_ranks; rank++)
        status = open_member(self, stores, rank, run);
    sw_store_set_close(stores); /* the stores that no member has taken */
    return hand_over(self, status, out);
}

sw_status sw_group_reader_join(const struct sw_group_part *parts, int ranks, int64_t layers,
                               const struct sw_units *units, struct sw_group_reader **out) {
    struct sw_group_reader *self;
    const sw_status status = make(ranks, layers, units, &self);
    for (int rank = 0; status == SW_OK && rank < ranks; rank++)
        self->member[rank].part = parts[rank];
    return hand_over(self, status, out);
}

void sw_group_reader_close(struct sw_group_reader *self) {
    if (self == NULL)
        return;
    for (int rank = 0; self->member != NULL && rank < self->ranks; rank++) {
        sw_store_reader_close(self->member[rank].reader);
        sw_units_destroy(self->member[rank].units);
    }
    free(self->member);
    free(self->window);
    free(self->part);
    free(self);
}

/* Consecutive units. */
struct run_of_units {
    int64_t first, end;
};

/* Returns which of `units` have a part of the reader's unit `unit`: those of the same layer. */
static struct run_of_units counterparts(const struct sw_group_reader *self, const struct sw_units *units,
                                        int64_t unit) {
    const int64_t head = self->units->count - 1;
    if (unit == 0)
        return (struct run_of_units){0, 1};
    if (unit == head)
        return (struct run_of_units){units->count - 1, units->count};
    const int64_t layer = (unit - 1) / ((head - 1) / self->layers), of_layer = (units->count - 2) / self->layers;
    return (struct run_of_units){1 + layer * of_layer, 1 + (layer + 1) * of_layer};
}

/* A tensor of a rank, and the unit that holds it. */
struct unit_tensor {
    int64_t unit;
    const struct sw_tensor *tensor;
};

/* Returns the first element of a part that is element `whole` of the whole tensor or a later one. Parts keep the order.
 */
static int64_t first_from(const struct sw_tensor *tensor, int64_t whole) {
    int64_t low = 0, high = tensor->elems, run;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (sw_tensor_to_whole(tensor, middle, &run) < whole)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Reads elements [low, high) of a rank's tensor, and copies each to its position in `out`, which begins at element
 * `whole` of the whole tensor. */
static sw_status take_piece(const struct sw_group_reader *self, const struct sw_load *load, struct unit_tensor at,
                            int64_t low, int64_t high, int64_t whole, float *out) {
    const int64_t first = at.tensor->offset + low;
    if (load->prepare != NULL)
        SW_TRY(load->prepare(load->context, at.unit, first, high - low));
    SW_TRY(load->fill(load->context, at.unit, first, high - low, self->part));
    for (int64_t e = low, run; e < high; e += run) {
        const int64_t to = sw_tensor_to_whole(at.tensor, e, &run) - whole;
        run = sw_min_i64(run, high - e);
        memcpy(out + to, self->part + (e - low), (size_t)run * sizeof *out);
    }
    return SW_OK;
}

/* Reads a rank's share of elements [whole, whole + count) of a tensor, in pieces small enough for its reader: tiles
 * share its memory. A piece that begins within a grain touches one grain more. */
static sw_status take_part(const struct sw_group_reader *self, const struct sw_load *load, struct unit_tensor at,
                           int64_t whole, int64_t count, float *out) {
    const int64_t low = first_from(at.tensor, whole), high = first_from(at.tensor, whole + count);
    const int64_t most = load->most_grains > 0 ? (load->most_grains - 1) * SW_GRAIN_ELEMS : WINDOW_ELEMS;
    for (int64_t e = low; e < high; e += most)
        SW_TRY(take_piece(self, load, at, e, sw_min_i64(e + most, high), whole, out));
    return SW_OK;
}

/* Puts together a rank's share of elements of a tensor. Several of its units may have parts. */
static sw_status take_parts(struct sw_group_reader *self, const struct sw_group_part *part, const char *name,
                            int64_t whole, int64_t run, float *out, bool *out_replicated) {
    const struct run_of_units of = counterparts(self, part->units, self->unit);
    for (int64_t u = of.first; u < of.end; u++) {
        const struct unit_tensor at = {u, sw_unit_find(&part->units->unit[u], name)};
        if (at.tensor == NULL)
            continue;
        SW_TRY(take_part(self, &part->load, at, whole, run, out));
        *out_replicated = at.tensor->part.replicated;
    }
    return SW_OK;
}

/* Puts together elements of one tensor. The first rank's replica stands for all. */
static sw_status take_run(void *context, int64_t tensor, int64_t whole, int64_t run, int64_t at) {
    struct sw_group_reader *self = context;
    const char *name = self->units->unit[self->unit].tensor[tensor].name;
    bool replicated = false;
    for (int rank = 0; rank < self->ranks && !replicated; rank++)
        SW_TRY(take_parts(self, &self->member[rank].part, name, whole, run, self->window + at, &replicated));
    return SW_OK;
}

static sw_status prepare(void *context, int64_t unit, int64_t first, int64_t count) {
    struct sw_group_reader *self = context;
    assert(count <= WINDOW_ELEMS);
    self->unit = unit;
    self->first = first;
    self->count = count;
    memset(self->window, 0, (size_t)count * sizeof *self->window);
    return sw_unit_walk(&self->units->unit[unit], first, count, take_run, self);
}

static sw_status fill(void *context, int64_t unit, int64_t first, int64_t count, float *out) {
    const struct sw_group_reader *self = context;
    assert(unit == self->unit && first >= self->first && first + count <= self->first + self->count);
    memcpy(out, self->window + (first - self->first), (size_t)count * sizeof *out);
    return SW_OK;
}

struct sw_load sw_group_reader_load(struct sw_group_reader *self) {
    return (struct sw_load){.fill = fill, .prepare = prepare, .context = self, .most_grains = WINDOW_GRAINS};
}

int64_t sw_group_reader_bytes(const struct sw_group_reader *self) {
    int64_t bytes = 0;
    for (int rank = 0; rank < self->ranks; rank++)
        bytes += self->member[rank].reader == NULL ? 0 : sw_store_reader_bytes(self->member[rank].reader);
    return bytes;
}
