/* The state of a run, read by the names of tensors from whatever layout it lies in.
 *
 * Every layout is a list of named tensors, cut into parts whose elements keep their order. So one way of reading serves
 * all: a run of elements is looked up by the tensor's name among the parts of all tensor ranks and units. No table of
 * all cuts is needed, and any layout can be read as any other.
 *
 * Three layers do this. `records` reads the grains of one tensor rank's stores ahead of their use. `part` gives the
 * values of one tensor rank through windows of some grains: runs may be short, and a window is checked, read and
 * widened once. The reader finds the part of each run. Where the layout that is asked for is the one that is there,
 * masters go from the records straight to the caller.
 *
 * State passes through fp32, so any format can be read as any other with one rounding. */
#include "run/folder/state.h"

#include "core/arena.h"
#include "core/size.h"
#include "kernels/moments.h"
#include "model/model.h"
#include "run/folder/frozen.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static sw_status fail_memory(void) {
    return sw_fail(SW_ERR_NOMEM, "no memory to read the state of a run");
}

/* Reads the records of one tensor rank's stores as one sequence of units, ahead of their use.
 *
 * Reads go into rings of buffers, one ring for every stream of units. With tiles, whole rows of a column-cut tensor
 * pass through all tiles of a half in turn; one ring would be thrown away at every change of unit, so each tile has its
 * own. A grain that was skipped or is asked for again restarts its ring: order is only a promise about speed. */

/* With one stream, the buffers are a window of 12 MiB, or as large as the units, if these are smaller. */
enum { IO_DEPTH = 32, BOXES = 8, BOX_GRAINS = 8, LEAST_BOXES = 2, REAP_BATCH = 64 };

/* A buffer of consecutive grains of a unit. */
struct box {
    char *records;
    int64_t unit, first_grain, grains; /* grains 0: the buffer is empty */
    const struct sw_store *store;      /* of its first grain, and of all if records are packed */
    int under_way;                     /* reads in flight: one for each store that holds some of the grains */
};

/* The reads of every `tiles`-th unit. Its buffers form a ring. */
struct stream {
    struct box *box;
    int64_t oldest;      /* index of the oldest buffer */
    int64_t unit, grain; /* the next grain to read, which follows the newest buffer */
};

struct records {
    struct sw_store **store; /* `stores` entries, borrowed */
    bool *own;               /* of each store: it is of this rank's; others are read for units that all ranks share */
    struct sw_store_lane **lane;
    int stores;
    struct sw_arena *arena;
    int64_t grain_bytes;              /* bytes of the largest record in the stores */
    int64_t group;                    /* sw_records_group: above 1 a buffer has grains of one store */
    int64_t tiles, boxes, box_grains; /* number of streams, buffers per stream, grains per buffer */
    struct stream *stream;
    struct box *box; /* tiles * boxes entries, grouped by stream */
};

/* Returns the grains of a unit up to the last that some store holds. */
static int64_t held_grains(const struct records *self, int64_t unit) {
    int64_t end = 0;
    for (int s = 0; s < self->stores; s++)
        end = sw_max_i64(end, sw_store_unit_first(self->store[s], unit) + sw_store_unit_grains(self->store[s], unit));
    return end;
}

static void size_boxes(struct records *self) {
    const int64_t units = sw_store_unit_count(self->store[0]);
    int64_t largest = 1, needed = 0;
    for (int64_t unit = 0; unit < units; unit++)
        largest = sw_max_i64(largest, held_grains(self, unit));
    self->box_grains = sw_min_i64(sw_round_up(sw_max_i64(1, BOX_GRAINS / self->tiles), self->group), largest);
    for (int64_t unit = 0; unit < units; unit++)
        needed += sw_div_up(held_grains(self, unit), self->box_grains);
    self->boxes = sw_max_i64(LEAST_BOXES, sw_min_i64(BOXES / self->tiles, needed));
}

static sw_status make_boxes(struct records *self) {
    const int64_t box_bytes = sw_round_up(self->box_grains * self->grain_bytes, SW_BUFFER_ALIGN_BYTES);
    const int64_t bytes = self->tiles * self->boxes * box_bytes;
    void *memory;
    self->stream = calloc((size_t)self->tiles, sizeof *self->stream);
    self->box = calloc((size_t)(self->tiles * self->boxes), sizeof *self->box);
    if (self->stream == NULL || self->box == NULL)
        return fail_memory();
    SW_TRY(sw_arena_create("reader", bytes, false, NULL, &self->arena));
    SW_TRY(sw_arena_take(self->arena, bytes, &memory));
    for (int64_t b = 0; b < self->tiles * self->boxes; b++)
        self->box[b].records = (char *)memory + b * box_bytes;
    for (int64_t k = 0; k < self->tiles; k++)
        self->stream[k].box = self->box + k * self->boxes;
    for (int s = 0; s < self->stores; s++)
        SW_TRY(sw_store_add_buffer(self->store[s], memory, bytes));
    return SW_OK;
}

/* Opens the lanes of the stores, once all who read these have added their buffers. */
static sw_status records_begin(struct records *self) {
    for (int s = 0; s < self->stores; s++)
        SW_TRY(sw_store_lane_open(self->store[s], IO_DEPTH, &self->lane[s]));
    return SW_OK;
}

static void records_close(struct records *self) {
    if (self == NULL)
        return;
    for (int s = 0; self->lane != NULL && s < self->stores; s++)
        sw_store_lane_close(self->lane[s]);
    free(self->lane);
    free(self->own);
    free(self->store);
    sw_arena_destroy(self->arena);
    free(self->stream);
    free(self->box);
    free(self);
}

/* Opens every `ranks`-th store of a set, which has some of them; the first is that of tensor rank `rank`. spread > 0:
 * units without experts are spread over every spread-th store, which the ranks below it read. */
static sw_status records_open(const struct sw_open_stores *set, int rank, int ranks, int64_t tiles, int spread,
                              struct records **out) {
    struct records *self = *out = calloc(1, sizeof *self);
    if (self == NULL)
        return fail_memory();
    self->store = calloc((size_t)set->count, sizeof(struct sw_store *));
    self->lane = calloc((size_t)set->count, sizeof(struct sw_store_lane *));
    self->own = calloc((size_t)set->count, sizeof *self->own);
    if (self->store == NULL || self->lane == NULL || self->own == NULL)
        return fail_memory();
    for (int s = 0; s < set->count; s++) {
        const bool own = s % ranks == rank;
        if (set->store[s] == NULL || !(own || (rank < spread && s % spread == rank)))
            continue;
        self->own[self->stores] = own;
        self->store[self->stores++] = set->store[s];
    }
    assert(self->stores > 0);
    self->grain_bytes = sw_optimizer_grain_bytes(sw_store_optimizer(self->store[0]));
    self->group = sw_records_group(sw_store_optimizer(self->store[0]));
    self->tiles = tiles;
    size_boxes(self);
    return make_boxes(self);
}

/* Returns how many grains can be ready at once. */
static int64_t most_grains(const struct records *self) {
    /* Buffers of packed records end with their store, after a grain at least. */
    return self->group > 1 ? self->boxes : (self->boxes - 1) * self->box_grains + 1;
}

static bool holds(const struct box *box, int64_t unit, int64_t grain) {
    return box->unit == unit && grain >= box->first_grain && grain < box->first_grain + box->grains;
}

static struct box *box_at(const struct records *self, const struct stream *stream, int64_t index) {
    return &stream->box[(stream->oldest + index) % self->boxes];
}

/* Returns which buffer of a stream, counted from the oldest, holds this grain; or -1. */
static int64_t find(const struct records *self, const struct stream *stream, int64_t unit, int64_t grain) {
    for (int64_t i = 0; i < self->boxes; i++)
        if (holds(box_at(self, stream, i), unit, grain))
            return i;
    return -1;
}

static sw_status reap(struct records *self, struct sw_store_lane *lane) {
    uint64_t tags[REAP_BATCH];
    int count;
    SW_TRY(sw_store_reap(lane, true, tags, REAP_BATCH, &count));
    for (int i = 0; i < count; i++)
        self->box[tags[i]].under_way--;
    return SW_OK;
}

static sw_status await(struct records *self, const struct box *box) {
    for (int64_t s = 0; box->under_way > 0; s = (s + 1) % self->stores)
        SW_TRY(reap(self, self->lane[s]));
    return SW_OK;
}

/* Tells whether ranks of a group have parts of a unit, where each block is two units. */
static bool is_shared_out(const struct sw_store *store, int64_t unit) {
    return unit > 0 && unit + 1 < sw_store_unit_count(store) && unit % 2 == 0;
}

/* Returns the store that holds a grain, or -1. */
static int64_t holder_of(const struct records *self, int64_t unit, int64_t grain) {
    for (int s = 0; s < self->stores; s++) {
        const bool reads = self->own[s] || !is_shared_out(self->store[s], unit);
        const int64_t within = grain - sw_store_unit_first(self->store[s], unit);
        if (reads && within >= 0 && within < sw_store_unit_grains(self->store[s], unit))
            return s;
    }
    return -1;
}

/* Moves a stream to the next grain of its units that some store holds. */
static void skip_holes(const struct records *self, struct stream *stream) {
    const int64_t units = sw_store_unit_count(self->store[0]);
    while (stream->unit < units && holder_of(self, stream->unit, stream->grain) < 0) {
        int64_t next = INT64_MAX;
        for (int s = 0; s < self->stores; s++) {
            const int64_t first = sw_store_unit_first(self->store[s], stream->unit);
            if (first > stream->grain && sw_store_unit_grains(self->store[s], stream->unit) > 0)
                next = sw_min_i64(next, first);
        }
        stream->unit += next == INT64_MAX ? self->tiles : 0;
        stream->grain = next == INT64_MAX ? 0 : next;
    }
}

/* Begins to read grains into a buffer, starting at `grain`, as far as store s holds them and the buffer has room.
 * *out_end: the first grain it did not read. */
static sw_status read_piece(struct records *self, int64_t s, struct box *box, int64_t grain, int64_t *out_end) {
    const struct sw_store *store = self->store[s];
    const struct sw_store_commit *commit = sw_store_last_commit(store);
    const int64_t held_end = sw_store_unit_first(store, box->unit) + sw_store_unit_grains(store, box->unit);
    *out_end = sw_min_i64(box->first_grain + self->box_grains, held_end);
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
static sw_status renew(struct records *self, struct stream *stream) {
    struct box *box = box_at(self, stream, 0);
    SW_TRY(await(self, box));
    stream->oldest = (stream->oldest + 1) % self->boxes;
    box->grains = 0;
    skip_holes(self, stream);
    if (stream->unit >= sw_store_unit_count(self->store[0]))
        return SW_OK;
    const struct sw_store *first = self->store[holder_of(self, stream->unit, stream->grain)];
    box->unit = stream->unit;
    box->store = first;
    stream->grain -= (stream->grain - sw_store_unit_first(first, box->unit)) % self->group;
    box->first_grain = stream->grain;
    for (int64_t s = holder_of(self, box->unit, stream->grain); s >= 0 && box->grains < self->box_grains;
         s = holder_of(self, box->unit, stream->grain)) {
        if (self->group > 1 && self->store[s] != first)
            break;
        SW_TRY(read_piece(self, s, box, stream->grain, &stream->grain));
        box->grains = stream->grain - box->first_grain;
    }
    return SW_OK;
}

/* Makes grains [first, end) of a unit ready, and drops those before them. If no buffer holds the first, the stream
 * starts again there. */
static sw_status make_ready(struct records *self, int64_t unit, int64_t first, int64_t end) {
    struct stream *stream = &self->stream[unit % self->tiles];
    int64_t over = find(self, stream, unit, first), last = -1;
    if (over < 0) {
        stream->unit = unit;
        stream->grain = first;
        over = self->boxes;
    }
    for (int64_t i = 0; i < over; i++)
        SW_TRY(renew(self, stream));
    for (int64_t grain = first; grain < end; grain++) {
        last = find(self, stream, unit, grain);
        if (last < 0)
            return sw_fail(SW_ERR_CORRUPT, "no store of the run has grain %lld of unit %lld", (long long)grain,
                           (long long)unit);
    }
    for (int64_t i = 0; i <= last; i++)
        SW_TRY(await(self, box_at(self, stream, i)));
    return SW_OK;
}

/* Returns the record of a grain that is ready. */
static const char *record_of(const struct records *self, int64_t unit, int64_t grain) {
    const struct stream *stream = &self->stream[unit % self->tiles];
    const int64_t at = find(self, stream, unit, grain);
    assert(at >= 0);
    const struct box *box = box_at(self, stream, at);
    if (self->group == 1)
        return box->records + (grain - box->first_grain) * self->grain_bytes;
    const struct sw_records layout = sw_store_records(box->store, unit);
    const int64_t first = sw_store_unit_first(box->store, unit);
    return box->records + sw_record_at(&layout, grain - first) - sw_record_at(&layout, box->first_grain - first);
}

/* Returns the bytes of the record of a grain that is ready. */
static int64_t record_bytes(const struct records *self, int64_t unit, int64_t grain) {
    const struct stream *stream = &self->stream[unit % self->tiles];
    const struct sw_store *store = box_at(self, stream, find(self, stream, unit, grain))->store;
    const struct sw_records layout = sw_store_records(store, unit);
    return sw_record_bytes(&layout, grain - sw_store_unit_first(store, unit));
}

/* The values of one tensor rank. */

/* Grains that a part's windows have in all. */
enum { WINDOW_GRAINS = 16 };

/* The values of consecutive grains of a unit: for each grain, one vector of masters, or masters and both moments. */
struct window {
    int64_t unit, first, grains; /* unit -1: the window is empty */
    float *values;
};

struct part {
    const struct sw_units *units; /* NULL: only records are read */
    struct sw_units *made;        /* owned: the units of a tensor rank; NULL: they are borrowed */
    struct records *records;      /* NULL: not open yet, or the weights come from elsewhere */
    struct sw_load load;          /* reads masters */
    int64_t tiles, most_grains;   /* number of windows, one for every tiles-th unit; grains of each */
    struct window *window;        /* NULL: none are made */
};

static sw_status prepare_masters(void *context, int64_t unit, int64_t first, int64_t count) {
    const struct part *part = context;
    return make_ready(part->records, unit, first / SW_GRAIN_ELEMS, (first + count - 1) / SW_GRAIN_ELEMS + 1);
}

/* Copies masters. The padding of a wide grain becomes zeros. */
static sw_status fill_masters(void *context, int64_t unit, int64_t first, int64_t count, float *out) {
    const struct part *part = context;
    while (count > 0) {
        const int64_t grain = first / SW_GRAIN_ELEMS, within = first % SW_GRAIN_ELEMS;
        const int64_t run = sw_min_i64(count, SW_GRAIN_ELEMS - within);
        const int64_t used = grain >= part->units->unit[unit].wide_grain ? SW_WIDE_GRAIN_ELEMS : SW_GRAIN_ELEMS;
        const int64_t copied = sw_max_i64(0, sw_min_i64(run, used - within));
        memcpy(out, (const float *)(const void *)record_of(part->records, unit, grain) + within,
               (size_t)copied * sizeof *out);
        memset(out + copied, 0, (size_t)(run - copied) * sizeof *out);
        first += run;
        count -= run;
        out += run;
    }
    return SW_OK;
}

static void drop_windows(struct part *part) {
    for (int64_t k = 0; part->window != NULL && k < part->tiles; k++)
        free(part->window[k].values);
    free(part->window);
    part->window = NULL;
}

static sw_status make_windows(struct part *part, int vectors) {
    drop_windows(part);
    part->most_grains = sw_max_i64(1, WINDOW_GRAINS / part->tiles);
    if (part->load.most_grains > 0)
        part->most_grains = sw_min_i64(part->most_grains, part->load.most_grains);
    part->window = calloc((size_t)part->tiles, sizeof *part->window);
    if (part->window == NULL)
        return fail_memory();
    for (int64_t k = 0; k < part->tiles; k++) {
        part->window[k].unit = -1;
        part->window[k].values = malloc((size_t)(part->most_grains * vectors * SW_GRAIN_ELEMS) * sizeof(float));
        if (part->window[k].values == NULL)
            return fail_memory();
    }
    return SW_OK;
}

/* Widens the state of a grain, which is trained: others have no record. A grain of Muon has a momentum in the place of
 * its first moment, and no second one. */
static void widen(const struct part *part, int64_t unit, int64_t grain, float *out) {
    const struct sw_unit *of = &part->units->unit[unit];
    assert(part->records != NULL && grain >= of->trained_grain);
    const char *record = record_of(part->records, unit, grain);
    if (sw_optimizer_has_muon(part->units->optimizer) && grain < of->adamw_grain) {
        sw_muon_record_to_fp32(part->units->optimizer, record, out);
        return;
    }
    sw_record_to_fp32(part->units->optimizer, grain >= of->wide_grain, record, out);
}

/* Reads a grain, and those that follow it if the grain before was read last. */
static sw_status move_window(const struct part *part, struct window *window, int vectors, int64_t unit, int64_t grain) {
    const struct sw_load *load = &part->load;
    const bool follows = unit == window->unit && grain == window->first + window->grains;
    const int64_t grains = sw_min_i64(follows ? part->most_grains : 1, part->units->unit[unit].grains - grain);
    const int64_t first = grain * SW_GRAIN_ELEMS, count = grains * SW_GRAIN_ELEMS;
    window->unit = -1;
    if (load->prepare != NULL)
        SW_TRY(load->prepare(load->context, unit, first, count));
    if (vectors == 1)
        SW_TRY(load->fill(load->context, unit, first, count, window->values));
    for (int64_t g = 0; vectors > 1 && g < grains; g++)
        widen(part, unit, grain + g, window->values + g * vectors * SW_GRAIN_ELEMS);
    *window = (struct window){.unit = unit, .first = grain, .grains = grains, .values = window->values};
    return SW_OK;
}

/* Returns in *out the values of a grain, valid until the next call. */
static sw_status values_of(const struct part *part, int vectors, int64_t unit, int64_t grain, const float **out) {
    struct window *window = &part->window[unit % part->tiles];
    if (unit != window->unit || grain < window->first || grain >= window->first + window->grains)
        SW_TRY(move_window(part, window, vectors, unit, grain));
    *out = window->values + (grain - window->first) * vectors * SW_GRAIN_ELEMS;
    return SW_OK;
}

/* The parts of all tensor ranks, and their tensors. */

/* The elements of a tensor that a part has in one unit. */
struct piece {
    const struct part *part;
    int64_t unit;
    const struct sw_tensor *tensor;
};

/* Grains of the units that are asked for, made at once. */
enum { MADE_GRAINS = 32 };

struct sw_state_reader {
    char folder[SW_RUN_PATH_CHARS];
    struct sw_open_stores stores; /* some may be NULL; count 0: the weights come from elsewhere */
    struct sw_model_config config;
    sw_optimizer_format optimizer;
    struct sw_units *units;  /* owned: those of a run, with whole layers; NULL: they are not made, or borrowed */
    struct sw_tuning tuning; /* what the units of parts are laid out for */
    struct sw_frozen *frozen;
    int parts;
    int expert_ranks;    /* members of a group that share out experts; 1: the parts are of a tensor group */
    bool joined;         /* these have the experts in one unit with their block (struct sw_run) */
    struct part *part;   /* one entry per tensor rank */
    struct part whole;   /* the frozen weights of a run with tensor groups; units NULL: there are none */
    struct piece *piece; /* pieces of all parts, by the names of their tensors; NULL: not listed yet */
    int64_t pieces;
    int vectors;                    /* those that the windows have; 0: there are no windows */
    int64_t first_piece, end_piece; /* pieces of the tensor that was looked up last; equal: none */
    int64_t hit;                    /* the one of these that was read last */
    /* The units that are asked for, and elements [first, first + count) of one of them. */
    const struct sw_units *target;
    float *made;
    int64_t unit, first, count;
};

static sw_status make(int parts, int64_t tiles, struct sw_state_reader **out) {
    struct sw_state_reader *self = *out = calloc(1, sizeof *self);
    if (self == NULL)
        return fail_memory();
    self->part = calloc((size_t)parts, sizeof *self->part);
    if (self->part == NULL)
        return fail_memory();
    self->parts = parts;
    for (int p = 0; p < parts; p++)
        self->part[p].tiles = tiles;
    return SW_OK;
}

void sw_state_close(struct sw_state_reader *self) {
    if (self == NULL)
        return;
    for (int p = 0; p < self->parts; p++) {
        drop_windows(&self->part[p]);
        records_close(self->part[p].records);
        sw_units_destroy(self->part[p].made);
    }
    free(self->part);
    free(self->piece);
    free(self->made);
    drop_windows(&self->whole);
    sw_frozen_close(self->frozen);
    sw_units_destroy(self->units);
    sw_tuning_release(&self->tuning);
    sw_open_stores_close(&self->stores);
    free(self);
}

/* Gives an opened reader to the caller, or closes one whose opening failed. */
static sw_status hand_over(struct sw_state_reader *self, sw_status status, struct sw_state_reader **out) {
    if (status == SW_OK)
        *out = self;
    else
        sw_state_close(self);
    return status;
}

/* Makes the reader of a run's stores, which it takes even after a failure. */
static sw_status make_of_run(const char *folder, const struct sw_run *run, struct sw_open_stores *stores,
                             struct sw_state_reader **out) {
    const sw_status status = make((int)run->tensor_ranks, run->tiles, out);
    if (status != SW_OK) {
        sw_open_stores_close(stores);
        return status;
    }
    (*out)->stores = *stores;
    *stores = (struct sw_open_stores){0};
    (*out)->config = run->config;
    (*out)->optimizer = run->optimizer;
    (*out)->expert_ranks = (int)sw_max_i64(1, run->expert_ranks);
    (*out)->joined = run->joined;
    snprintf((*out)->folder, sizeof(*out)->folder, "%s", folder);
    return sw_tuning_copy(&run->settings.tuning, &(*out)->tuning);
}

static sw_status open_run(const char *folder, const struct sw_run_moved *moved, struct sw_run *run,
                          struct sw_state_reader **out) {
    struct sw_open_stores stores = {0};
    SW_TRY(sw_run_open_to_read(folder, moved->nvme, run, &stores));
    SW_TRY(make_of_run(folder, run, &stores, out));
    SW_TRY(sw_run_move_model(run, moved->model));
    SW_TRY(sw_model_units(&run->config, run->tiles, run->optimizer, &run->settings.tuning, &(*out)->units));
    return sw_frozen_open(folder, run, (*out)->units, &(*out)->frozen);
}

sw_status sw_state_open_run(const char *folder, const struct sw_run_moved *moved, struct sw_run *run,
                            struct sw_state_reader **out) {
    struct sw_state_reader *self = NULL;
    const sw_status status = open_run(folder, moved, run, &self);
    return hand_over(self, status, out);
}

static sw_status open_stores(const struct sw_state_spec *spec, struct sw_state_reader **out) {
    const struct sw_stores_choice choice = {.wanted = spec->wanted, .most_step = spec->step};
    struct sw_open_stores stores = {0};
    SW_TRY(sw_run_open_stores(spec->folder, spec->run, &choice, &stores));
    SW_TRY(make_of_run(spec->folder, spec->run, &stores, out));
    return spec->step == SW_STORE_NEWEST || sw_state_commit(*out)->step == spec->step
               ? SW_OK
               : sw_fail(SW_ERR_CORRUPT, "the stores of the run have no commit of step %lld, the newest of all ranks",
                         (long long)spec->step);
}

sw_status sw_state_open_stores(const struct sw_state_spec *spec, struct sw_state_reader **out) {
    struct sw_state_reader *self = NULL;
    const sw_status status = open_stores(spec, &self);
    return hand_over(self, status, out);
}

sw_status sw_state_take_stores(struct sw_open_stores *stores, const struct sw_units *units, int64_t tiles,
                               struct sw_state_reader **out) {
    struct sw_state_reader *self = NULL;
    const struct sw_run run = {.tensor_ranks = 1, .tiles = tiles, .optimizer = units->optimizer};
    const sw_status status = make_of_run("the run", &run, stores, &self);
    if (status == SW_OK)
        self->part[0].units = units;
    return hand_over(self, status, out);
}

sw_status sw_state_join(const struct sw_state_part *parts, int count, struct sw_state_reader **out) {
    struct sw_state_reader *self = NULL;
    const sw_status status = make(count, 1, &self);
    for (int p = 0; status == SW_OK && p < count; p++)
        self->part[p] = (struct part){.units = parts[p].units, .load = parts[p].load, .tiles = parts[p].tiles};
    return hand_over(self, status, out);
}

/* Returns the size of the tensor groups whose parts units without experts have, if these are spread over the stores of
 * several parts; else 0. */
static int spread_of(const struct sw_state_reader *self) {
    return self->expert_ranks > 1 && !self->joined ? self->parts / self->expert_ranks : 0;
}

/* Opens the records of a part, and of all parts if these read the same stores. */
static sw_status open_records(struct sw_state_reader *self, int p) {
    const int spread = spread_of(self), first = spread > 0 ? 0 : p, end = spread > 0 ? self->parts : p + 1;
    if (self->part[p].records != NULL)
        return SW_OK;
    for (int q = first; q < end; q++)
        SW_TRY(records_open(&self->stores, q, self->parts, self->part[q].tiles, spread, &self->part[q].records));
    for (int q = first; q < end; q++)
        SW_TRY(records_begin(self->part[q].records));
    return SW_OK;
}

/* Lays out the units of a part, unless the caller has given them. */
static sw_status make_units(struct sw_state_reader *self, int p) {
    struct part *part = &self->part[p];
    if (self->parts > 1) {
        const struct sw_model_group group = {
            .ranks = self->parts, .rank = p, .experts = self->expert_ranks, .joined = self->joined};
        SW_TRY(sw_model_group_units(&self->config, &group, part->tiles, self->optimizer, &self->tuning, &part->made));
        part->units = part->made;
        return SW_OK;
    }
    if (self->units == NULL)
        SW_TRY(sw_model_units(&self->config, part->tiles, self->optimizer, &self->tuning, &self->units));
    part->units = self->units;
    return SW_OK;
}

static sw_status open_part(struct sw_state_reader *self, int p) {
    struct part *part = &self->part[p];
    if (part->units == NULL)
        SW_TRY(make_units(self, p));
    for (int s = p; s < self->stores.count; s += self->parts)
        if (self->stores.store[s] != NULL && !sw_run_store_is_of(self->stores.store[s], part->units))
            return sw_fail(SW_ERR_CORRUPT, "the store of %s was made for another model than its run.json describes",
                           self->folder);
    SW_TRY(open_records(self, p));
    const struct sw_load masters = {
        .fill = fill_masters, .prepare = prepare_masters, .context = part, .most_grains = most_grains(part->records)};
    if (self->parts == 1)
        return sw_frozen_load(self->frozen, &masters, &part->load);
    part->load = masters;
    return SW_OK;
}

/* Frozen weights are kept as those of whole layers (frozen.h), whatever a tensor rank has of them. */
static sw_status open_whole(struct sw_state_reader *self) {
    self->whole.tiles = self->part[0].tiles;
    self->whole.units = self->units;
    return sw_frozen_load(self->frozen, &(struct sw_load){0}, &self->whole.load);
}

/* Opens the parts that come from stores, once. */
static sw_status open_parts(struct sw_state_reader *self) {
    for (int p = 0; p < self->parts; p++)
        if (self->part[p].load.fill == NULL)
            SW_TRY(open_part(self, p));
    return self->parts > 1 && self->frozen != NULL && self->whole.units == NULL ? open_whole(self) : SW_OK;
}

/* Orders pieces by name; pieces of one tensor by tensor rank and unit. */
static int compare_pieces(const void *a, const void *b) {
    const struct piece *one = a, *other = b;
    const int names = strcmp(one->tensor->name, other->tensor->name);
    if (names != 0)
        return names;
    if (one->part != other->part)
        return one->part < other->part ? -1 : 1;
    return one->unit < other->unit ? -1 : one->unit > other->unit;
}

/* Tells whether a part reads no units but those of experts: another has the same parts of the others. */
static bool has_experts_alone(const struct sw_state_reader *self, const struct part *part) {
    const int spread = spread_of(self);
    return spread > 0 && part != &self->whole && part - self->part >= spread;
}

/* Adds the tensors of a part. frozen: those that are frozen, else the others; NULL: all of them. */
static void add_pieces(struct sw_state_reader *self, const struct part *part, const bool *frozen) {
    for (int64_t unit = 0; unit < part->units->count; unit++) {
        const struct sw_unit *from = &part->units->unit[unit];
        const bool left_out = has_experts_alone(self, part) && !from->shared_out;
        for (int64_t t = 0; !left_out && t < from->tensor_count; t++)
            if (frozen == NULL || from->tensor[t].frozen == *frozen)
                self->piece[self->pieces++] = (struct piece){part, unit, &from->tensor[t]};
    }
}

static int64_t tensors_of(const struct sw_units *units) {
    int64_t count = 0;
    for (int64_t unit = 0; units != NULL && unit < units->count; unit++)
        count += units->unit[unit].tensor_count;
    return count;
}

static sw_status list_pieces(struct sw_state_reader *self) {
    static const bool yes = true, no = false;
    const bool apart = self->whole.units != NULL;
    int64_t most = tensors_of(self->whole.units);
    for (int p = 0; p < self->parts; p++)
        most += tensors_of(self->part[p].units);
    self->piece = calloc((size_t)most, sizeof *self->piece);
    if (self->piece == NULL)
        return fail_memory();
    for (int p = 0; p < self->parts; p++)
        add_pieces(self, &self->part[p], apart ? &no : NULL);
    if (apart)
        add_pieces(self, &self->whole, &yes);
    qsort(self->piece, (size_t)self->pieces, sizeof *self->piece, compare_pieces);
    return SW_OK;
}

static bool is_of(const struct sw_state_reader *self, int64_t piece, const char *tensor) {
    return piece < self->pieces && strcmp(self->piece[piece].tensor->name, tensor) == 0;
}

/* Finds the pieces of a tensor, unless they are those found last. */
static void look_up(struct sw_state_reader *self, const char *tensor) {
    int64_t low = 0, high = self->pieces;
    if (self->end_piece > self->first_piece && is_of(self, self->first_piece, tensor))
        return;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (strcmp(self->piece[middle].tensor->name, tensor) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    self->first_piece = self->end_piece = self->hit = low;
    while (is_of(self, self->end_piece, tensor))
        self->end_piece++;
}

/* Finds a piece of the tensor looked up that has its element `whole`. *elem is the element in the piece; from there,
 * *run elements are consecutive in both. Any replica will do: they are equal. NULL: no piece has the element. */
static const struct piece *find_piece(struct sw_state_reader *self, int64_t whole, int64_t *elem, int64_t *run) {
    const int64_t count = self->end_piece - self->first_piece;
    for (int64_t i = 0; i < count; i++) {
        const int64_t at = self->first_piece + (self->hit - self->first_piece + i) % count;
        *elem = sw_tensor_from_whole(self->piece[at].tensor, whole, run);
        if (*elem < 0)
            continue;
        self->hit = at;
        return &self->piece[at];
    }
    return NULL;
}

/* Copies elements of a piece, from its element `elem` on, to element `to` of each part of the state. */
static sw_status take(const struct sw_state_reader *self, const struct piece *piece, int64_t elem, int64_t count,
                      float *const out[SW_STATE_PARTS], int64_t to) {
    const float *values;
    for (int64_t done = 0, run; done < count; done += run) {
        const int64_t at = piece->tensor->offset + elem + done, within = at % SW_GRAIN_ELEMS;
        run = sw_min_i64(count - done, SW_GRAIN_ELEMS - within);
        SW_TRY(values_of(piece->part, self->vectors, piece->unit, at / SW_GRAIN_ELEMS, &values));
        for (int v = 0; v < self->vectors; v++)
            if (out[v] != NULL)
                memcpy(out[v] + to + done, values + (int64_t)v * SW_GRAIN_ELEMS + within, (size_t)run * sizeof(float));
    }
    return SW_OK;
}

/* Makes the windows and the list of tensors, once. */
static sw_status get_ready(struct sw_state_reader *self, int vectors) {
    if (self->vectors >= vectors)
        return SW_OK;
    SW_TRY(open_parts(self));
    if (self->piece == NULL)
        SW_TRY(list_pieces(self));
    for (int p = 0; p < self->parts; p++)
        SW_TRY(make_windows(&self->part[p], vectors));
    if (self->whole.units != NULL)
        SW_TRY(make_windows(&self->whole, vectors));
    self->vectors = vectors;
    return SW_OK;
}

sw_status sw_state_read(struct sw_state_reader *self, const char *tensor, int64_t first, int64_t count,
                        float *const out[SW_STATE_PARTS]) {
    SW_TRY(get_ready(self, out[SW_STATE_M] != NULL || out[SW_STATE_V] != NULL ? SW_STATE_PARTS : 1));
    look_up(self, tensor);
    for (int64_t done = 0, run; done < count; done += run) {
        int64_t elem;
        const struct piece *piece = find_piece(self, first + done, &elem, &run);
        if (piece == NULL)
            return sw_fail(SW_ERR_CORRUPT, "the weights lack element %lld of %s", (long long)(first + done), tensor);
        run = sw_min_i64(run, count - done);
        SW_TRY(take(self, piece, elem, run, out, done));
    }
    return SW_OK;
}

static sw_status make_run(void *context, int64_t tensor, int64_t whole, int64_t run, int64_t at) {
    struct sw_state_reader *self = context;
    float *const out[SW_STATE_PARTS] = {self->made + at};
    return sw_state_read(self, self->target->unit[self->unit].tensor[tensor].name, whole, run, out);
}

static sw_status prepare_target(void *context, int64_t unit, int64_t first, int64_t count) {
    struct sw_state_reader *self = context;
    assert(count <= (int64_t)MADE_GRAINS * SW_GRAIN_ELEMS);
    self->unit = unit;
    self->first = first;
    self->count = count;
    memset(self->made, 0, (size_t)count * sizeof *self->made);
    return sw_unit_walk(&self->target->unit[unit], first, count, make_run, self);
}

static sw_status fill_target(void *context, int64_t unit, int64_t first, int64_t count, float *out) {
    const struct sw_state_reader *self = context;
    assert(unit == self->unit && first >= self->first && first + count <= self->first + self->count);
    memcpy(out, self->made + (first - self->first), (size_t)count * sizeof *out);
    return SW_OK;
}

sw_status sw_state_load(struct sw_state_reader *self, const struct sw_units *units, struct sw_load *out) {
    SW_TRY(open_parts(self));
    *out = self->part[0].load;
    if (self->parts == 1 && units == self->part[0].units)
        return SW_OK;
    if (self->made == NULL)
        self->made = malloc((size_t)MADE_GRAINS * SW_GRAIN_ELEMS * sizeof *self->made);
    if (self->made == NULL)
        return fail_memory();
    self->target = units;
    *out =
        (struct sw_load){.fill = fill_target, .prepare = prepare_target, .context = self, .most_grains = MADE_GRAINS};
    return SW_OK;
}

sw_status sw_state_records(struct sw_state_reader *self, int part, int64_t unit, int64_t first, int64_t count,
                           char *out) {
    SW_TRY(open_records(self, part));
    const int spread = spread_of(self);
    const bool of_several = spread > 0 && !is_shared_out(self->part[part].records->store[0], unit);
    struct records *records = self->part[of_several ? part % spread : part].records;
    for (int64_t done = 0, now; done < count; done += now) {
        now = sw_min_i64(count - done, most_grains(records));
        SW_TRY(make_ready(records, unit, first + done, first + done + now));
        for (int64_t g = done; g < done + now; g++)
            memcpy(out + g * records->grain_bytes, record_of(records, unit, first + g),
                   (size_t)record_bytes(records, unit, first + g));
    }
    return SW_OK;
}

const struct sw_store_commit *sw_state_commit(const struct sw_state_reader *self) {
    int s = 0;
    while (self->stores.store[s] == NULL)
        s++;
    return sw_store_last_commit(self->stores.store[s]);
}

const struct sw_open_stores *sw_state_stores(const struct sw_state_reader *self) {
    return &self->stores;
}

const struct sw_units *sw_state_units(const struct sw_state_reader *self) {
    return self->units;
}

struct sw_frozen *sw_state_frozen(const struct sw_state_reader *self) {
    return self->frozen;
}

int64_t sw_state_bytes_read(const struct sw_state_reader *self) {
    int64_t bytes = 0;
    for (int s = 0; s < self->stores.count; s++)
        bytes += self->stores.store[s] == NULL ? 0 : sw_store_counters(self->stores.store[s]).read_bytes;
    return bytes;
}
