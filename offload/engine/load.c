/* Loads the initial state into the tiers: masters from outside, moments of zero, which all formats write as zeros; the
 * masters of a wide grain's padding, where its moments lie, are zero too. Boxes of grains go round in the
 * staging rings, so that the drive takes some while the cores make the next. The records of a base that lives on a
 * drive are collected in cells, because records do not end where pages do. */
#include "core/dtype.h"
#include "core/size.h"
#include "core/team.h"
#include "offload/engine/engine_private.h"
#include "offload/engine/scratch.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Boxes are small and few, so that grains stay in the caches from the first to the last thing done to them; together
 * they fill a queue, and each has some grains for every thread. */
enum { BOXES = 8, BOX_GRAINS = 8, THREAD_GRAINS = 2 };
/* Cells are written from two buffers in turn, so many at once. */
enum { CELL_BUFFERS = 2, CELLS_AT_ONCE = 32 };
/* The runs of grains in which a unit is loaded. */
enum { RUNS = 3 };
static_assert(2 * BOXES + CELL_BUFFERS <= SW_STORE_LANE_TRANSFERS, "a box is written in two transfers at most");

/* Few enough elements that a device of many threads rounds them on the calling thread alone. */
enum { ROUNDED_AT_ONCE = SW_GRAIN_ELEMS / 2, COMPARED_AT_ONCE = 2048 };

#define MASTER_BYTES (SW_GRAIN_ELEMS * (int64_t)sizeof(float))

/* Grains of a unit on their way. */
struct box {
    char *records;     /* optimizer state of the grains; its moments stay zero */
    char *weights;     /* room for the rounded weights */
    char *rounded;     /* where these weights are made: `weights`, or their home in host memory */
    char *home;        /* where the team copies the optimizer state to, in host memory; NULL: nowhere */
    sw_status *status; /* one entry per grain */
    int64_t unit, first_grain, grains;
    struct sw_records layout; /* how its records lie, and the number of its first grain in that */
    int64_t first_record;
    int writes; /* transfers of the box that are under way */
};

/* Cells of a unit's base on their way to a drive. */
struct cells {
    char *buffer[CELL_BUFFERS]; /* in the engine's memory of cells; NULL: no base is on a drive */
    int writes[CELL_BUFFERS];   /* transfers from the buffer that are under way */
    int filled;                 /* the buffer that takes the next record */
    int64_t first_cell, bytes;  /* of that buffer: its first cell in the unit, and the bytes it has taken */
};

struct loader {
    struct sw_engine *engine;
    const struct sw_load *load;
    bool frozen_only;            /* loads no weights that training changes */
    struct sw_span (*run)[RUNS]; /* one entry per unit */
    struct sw_team *team;
    struct sw_stream **stream; /* one per grain of a box */
    struct box box[BOXES];
    struct cells cells;
    sw_status *status; /* memory of all boxes' statuses */
    int64_t box_count, box_grains, next;
    struct box *filled; /* the box that was filled last and is not on its way yet; NULL: none */
    int64_t done_grains, total_grains;
};

/* Returns the room of a grain's weights in a box, whatever its unit. */
static int64_t typed_grain_bytes(const struct sw_plan *plan) {
    return sw_plan_typed_bytes(plan, 1);
}

static int64_t ring_grains(const struct sw_plan *plan, int32_t slot, int64_t grain_bytes) {
    return plan->slot[slot].bytes / grain_bytes;
}

/* Divides the two rings into boxes. A ring of one chunk is still several boxes. */
static sw_status make_boxes(struct loader *self, int threads) {
    const struct sw_engine *engine = self->engine;
    const struct sw_plan *plan = engine->plan;
    const int64_t typed_bytes = typed_grain_bytes(plan), state_bytes = sw_plan_optimizer_bytes(plan, 1);
    const int64_t group = sw_records_group(plan->spec.units->optimizer);
    const int64_t ring_bytes = plan->slot[sw_plan_buffer(plan, SW_BUFFER_OPTIMIZER)].bytes;
    char *records = sw_engine_piece(engine, sw_plan_buffer(plan, SW_BUFFER_OPTIMIZER), 0);
    char *weights = sw_engine_piece(engine, sw_plan_buffer(plan, SW_BUFFER_WEIGHTS), 0);
    const int64_t room = sw_min_i64(ring_grains(plan, sw_plan_buffer(plan, SW_BUFFER_OPTIMIZER), state_bytes),
                                    ring_grains(plan, sw_plan_buffer(plan, SW_BUFFER_WEIGHTS), typed_bytes));
    int64_t most = sw_max_i64(BOX_GRAINS, (int64_t)THREAD_GRAINS * threads);
    if (self->load->most_grains > 0)
        most = sw_min_i64(most, self->load->most_grains);
    self->box_grains = sw_max_i64(1, sw_min_i64(most, room / BOXES));
    if (group > 1) /* a box begins and ends at a page; where the ring has less room, a unit has no more grains */
        self->box_grains = sw_min_i64(sw_round_up(self->box_grains, group), room);
    const int64_t box_bytes = sw_round_up(self->box_grains * state_bytes, SW_BUFFER_ALIGN_BYTES);
    self->box_count = sw_min_i64(BOXES, sw_min_i64(room / self->box_grains, ring_bytes / box_bytes));
    self->status = calloc((size_t)(self->box_count * self->box_grains), sizeof *self->status);
    if (self->status == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to load");
    memset(records, 0, (size_t)(self->box_count * box_bytes));
    for (int64_t b = 0; b < self->box_count; b++) {
        const int64_t at = b * self->box_grains;
        self->box[b] = (struct box){
            .records = records + b * box_bytes, .weights = weights + at * typed_bytes, .status = self->status + at};
    }
    return SW_OK;
}

/* A transfer's tag is the number of its box or, behind the boxes, of its buffer of cells. */
static sw_status reap(struct loader *self, bool wait) {
    uint64_t tags[2 * BOXES + CELL_BUFFERS];
    int count;
    if (self->engine->setup_lane == NULL)
        return SW_OK;
    SW_TRY(sw_store_reap(self->engine->setup_lane, wait, tags, 2 * BOXES + CELL_BUFFERS, &count));
    for (int i = 0; i < count; i++)
        (*(tags[i] < BOXES ? &self->box[tags[i]].writes : &self->cells.writes[tags[i] - BOXES]))--;
    return SW_OK;
}

static sw_status write(struct loader *self, struct box *box, sw_store_kind kind, void *buf) {
    const struct sw_plan *plan = self->engine->plan;
    const bool records = kind == SW_STORE_OPTIMIZER;
    const int64_t each = records ? 1 : sw_units_stored_grains(plan->spec.units, box->unit, plan->spec.type);
    const struct sw_store_transfer transfer = {.write = true,
                                               .kind = kind,
                                               .generation = records ? sw_engine_working(self->engine) : 0,
                                               .unit = box->unit,
                                               .first_grain = box->first_grain * each,
                                               .grains = box->grains * each,
                                               .buf = buf,
                                               .tag = (uint64_t)(box - self->box),
                                               .zeros_from_bytes = records ? MASTER_BYTES : 0};
    SW_TRY(sw_store_submit(self->engine->setup_lane, &transfer));
    box->writes++;
    return SW_OK;
}

/* Returns where the box's grains live in a slot on device or host. */
static char *home_of(const struct sw_engine *engine, int32_t slot, const struct box *box) {
    return sw_engine_grain(engine, slot, box->first_grain);
}

/* Tells whether the grains of a box belong to the base. Boxes end where it ends. */
static bool is_base(const struct sw_plan *plan, const struct box *box) {
    return box->first_grain < plan->spec.units->unit[box->unit].base_grains;
}

static int64_t record_bytes(const struct sw_plan *plan) {
    return sw_base_grain_bytes(plan->spec.units->base);
}

/* The bytes of a box's records that this rank keeps: they begin `skip` bytes into the records, and lie `at` bytes into
 * the all_bytes that the rank has of the base. A record may lie in the cells of two ranks. */
struct kept_bytes {
    int64_t skip, bytes, at, all_bytes;
};

static struct kept_bytes kept_of(const struct sw_plan *plan, const struct box *box) {
    const struct sw_span cells = sw_plan_base_span(plan, box->unit);
    const int64_t from = cells.first_grain * SW_BASE_CELL_BYTES;
    const int64_t to =
        sw_min_i64(from + cells.grains * SW_BASE_CELL_BYTES, sw_units_base_bytes(plan->spec.units, box->unit));
    const int64_t first = box->first_grain * record_bytes(plan), begin = sw_max_i64(first, from);
    const int64_t end = sw_min_i64(first + box->grains * record_bytes(plan), to);
    return (struct kept_bytes){begin - first, end - begin, begin - from, to - from};
}

/* Returns where what this rank keeps of the records of a box lives on device or host. */
static char *home_of_base(const struct sw_engine *engine, const struct box *box) {
    return (char *)sw_engine_piece(engine, sw_plan_base_home(engine->plan, box->unit), 0) +
           kept_of(engine->plan, box).at;
}

/* Tells whether this rank keeps all records of a box. */
static bool keeps_all(const struct sw_plan *plan, const struct box *box) {
    return kept_of(plan, box).bytes == box->grains * record_bytes(plan);
}

static void free_cells(struct sw_engine *engine) {
    free(engine->cells);
    engine->cells = NULL;
}

static sw_status open_cells(struct loader *self) {
    const struct sw_plan *plan = self->engine->plan;
    bool any = false;
    for (int64_t u = 0; u < plan->spec.units->count; u++)
        any |= sw_units_base_cells(plan->spec.units, u) > 0 && plan->placement[u].tier[SW_WEIGHTS] == SW_NVME;
    if (!any)
        return SW_OK;
    const size_t bytes = CELLS_AT_ONCE * SW_BASE_CELL_BYTES;
    free_cells(self->engine);
    self->engine->cells = aligned_alloc(SW_BUFFER_ALIGN_BYTES, CELL_BUFFERS * bytes);
    if (self->engine->cells == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to load");
    for (size_t i = 0; i < CELL_BUFFERS; i++)
        self->cells.buffer[i] = (char *)self->engine->cells + i * bytes;
    return SW_OK;
}

/* Writes the cells that have been filled, the last with zeros behind its records, and takes the other buffer. */
static sw_status write_cells(struct loader *self, int64_t unit) {
    struct cells *cells = &self->cells;
    const int64_t count = sw_div_up(cells->bytes, SW_BASE_CELL_BYTES);
    char *buffer = cells->buffer[cells->filled];
    memset(buffer + cells->bytes, 0, (size_t)(count * SW_BASE_CELL_BYTES - cells->bytes));
    const struct sw_store_transfer transfer = {.write = true,
                                               .kind = SW_STORE_BASE,
                                               .unit = unit,
                                               .first_grain = cells->first_cell,
                                               .grains = count,
                                               .buf = buffer,
                                               .tag = (uint64_t)(BOXES + cells->filled)};
    SW_TRY(sw_store_submit(self->engine->setup_lane, &transfer));
    cells->writes[cells->filled]++;
    cells->filled = (cells->filled + 1) % CELL_BUFFERS;
    cells->first_cell += count;
    cells->bytes = 0;
    while (cells->writes[cells->filled] > 0)
        SW_TRY(reap(self, true));
    return SW_OK;
}

/* Adds the records of a box to the cells. Boxes come in order. */
static sw_status add_to_cells(struct loader *self, const struct box *box) {
    struct cells *cells = &self->cells;
    const struct sw_plan *plan = self->engine->plan;
    const struct kept_bytes kept = kept_of(plan, box);
    if (kept.at == 0) {
        cells->first_cell = sw_plan_base_span(plan, box->unit).first_grain;
        cells->bytes = 0;
    }
    for (int64_t at = 0, run; at < kept.bytes; at += run) {
        run = sw_min_i64(kept.bytes - at, CELLS_AT_ONCE * SW_BASE_CELL_BYTES - cells->bytes);
        memcpy(cells->buffer[cells->filled] + cells->bytes, box->rounded + kept.skip + at, (size_t)run);
        cells->bytes += run;
        if (cells->bytes == CELLS_AT_ONCE * SW_BASE_CELL_BYTES)
            SW_TRY(write_cells(self, box->unit));
    }
    const bool ends = kept.at + kept.bytes == kept.all_bytes;
    return ends && cells->bytes > 0 ? write_cells(self, box->unit) : SW_OK;
}

static sw_status put_base(struct loader *self, const struct box *box) {
    struct sw_engine *engine = self->engine;
    const struct kept_bytes kept = kept_of(engine->plan, box);
    if (engine->plan->placement[box->unit].tier[SW_WEIGHTS] == SW_NVME)
        return add_to_cells(self, box);
    if (box->rounded != box->weights) /* made at home */
        return SW_OK;
    return sw_engine_put(engine, sw_plan_base_home(engine->plan, box->unit), home_of_base(engine, box),
                         box->rounded + kept.skip, kept.bytes);
}

static sw_status put_weights(struct loader *self, struct box *box) {
    struct sw_engine *engine = self->engine;
    const struct sw_plan *plan = engine->plan;
    if (is_base(plan, box))
        return put_base(self, box);
    if (plan->spec.update_only) /* the caller has them */
        return SW_OK;
    const int64_t bytes = sw_plan_weights_bytes(plan, box->unit, box->grains);
    const int32_t slot = sw_plan_weights_home(plan, box->unit, box->first_grain);
    switch (plan->slot[slot].tier) {
    case SW_NVME: return write(self, box, sw_engine_kind_of_weights(engine, box->unit, box->first_grain), box->rounded);
    case SW_DEVICE: return sw_engine_put(engine, slot, home_of(engine, slot, box), box->rounded, bytes);
    default: return SW_OK; /* made at home */
    }
}

/* Sends optimizer state to the store, which commits it, and to the device if the unit's optimizer lives there. */
static sw_status put_records(struct loader *self, struct box *box) {
    struct sw_engine *engine = self->engine;
    const int32_t slot = sw_plan_resident(engine->plan, SW_OPTIMIZER, box->unit);
    if (engine->spec.store != NULL)
        SW_TRY(write(self, box, SW_STORE_OPTIMIZER, box->records));
    if (slot < 0 || engine->plan->slot[slot].tier == SW_HOST)
        return SW_OK;
    return sw_engine_put(
        engine, slot, home_of(engine, slot, box), box->records,
        sw_plan_records_bytes(engine->plan, box->unit, (struct sw_span){box->first_grain, box->grains}));
}

/* Tells whether this rank keeps the optimizer state of a box. Boxes end where its shard begins or ends. */
static bool is_own(const struct sw_plan *plan, const struct box *box) {
    const struct sw_span own = sw_plan_span(plan, SW_OPTIMIZER, box->unit);
    return box->first_grain >= own.first_grain && box->first_grain < own.first_grain + own.grains;
}

/* Returns where the team copies a box's optimizer state to. One thread could not copy the state of a large model to the
 * host's tier as fast as the others make it. */
static char *home_of_records(const struct sw_engine *engine, const struct box *box) {
    const int32_t slot = sw_plan_resident(engine->plan, SW_OPTIMIZER, box->unit);
    const bool there = engine->plan->spec.train && slot >= 0 && is_own(engine->plan, box);
    return there && engine->plan->slot[slot].tier == SW_HOST ? home_of(engine, slot, box) : NULL;
}

/* Returns the grains of a unit's base whose records lie in this rank's cells. */
static struct sw_span loaded_base(const struct sw_plan *plan, int64_t unit) {
    const struct sw_span cells = sw_plan_base_span(plan, unit);
    if (cells.grains == 0)
        return (struct sw_span){0};
    const int64_t from = cells.first_grain * SW_BASE_CELL_BYTES, to = from + cells.grains * SW_BASE_CELL_BYTES;
    const int64_t first = from / record_bytes(plan);
    const int64_t end = sw_min_i64(sw_div_up(to, record_bytes(plan)), plan->spec.units->unit[unit].base_grains);
    return (struct sw_span){.first_grain = first, .grains = end - first};
}

/* Tells whether the store still has all that this rank keeps there of a unit's frozen weights. */
static bool store_has_frozen(const struct sw_engine *engine, int64_t unit) {
    const struct sw_plan *plan = engine->plan;
    const struct sw_store *store = engine->spec.store;
    const struct sw_span cells = sw_plan_base_span(plan, unit), frozen = sw_plan_own_frozen(plan, unit);
    const int64_t each = sw_units_stored_grains(plan->spec.units, unit, plan->spec.type);
    if (plan->placement[unit].tier[SW_WEIGHTS] != SW_NVME)
        return false;
    return (cells.grains == 0 || sw_store_has(store, SW_STORE_BASE, unit, cells.first_grain, cells.grains)) &&
           (frozen.grains == 0 || sw_store_has(store, sw_engine_kind_of_weights(engine, unit, frozen.first_grain), unit,
                                               frozen.first_grain * each, frozen.grains * each));
}

/* Finds the runs of a unit's grains that are loaded: its base, this rank's frozen weights, its trained ones. */
static void find_runs(const struct sw_engine *engine, bool frozen_only, int64_t unit, struct sw_span run[RUNS]) {
    const struct sw_plan *plan = engine->plan;
    const bool there = frozen_only && store_has_frozen(engine, unit);
    run[0] = there ? (struct sw_span){0} : loaded_base(plan, unit);
    run[1] = there ? (struct sw_span){0} : sw_plan_own_frozen(plan, unit);
    run[2] = frozen_only ? (struct sw_span){0} : sw_plan_own_trained(plan, unit);
}

static int64_t box_end(const struct loader *self, const struct box *box, struct sw_span all) {
    const struct sw_span own = sw_plan_span(self->engine->plan, SW_OPTIMIZER, box->unit);
    const int64_t bounds[] = {own.first_grain, own.first_grain + own.grains};
    int64_t end = sw_min_i64(box->first_grain + self->box_grains, all.first_grain + all.grains);
    for (size_t i = 0; i < sizeof bounds / sizeof bounds[0]; i++)
        if (bounds[i] > box->first_grain)
            end = sw_min_i64(end, bounds[i]);
    return end;
}

/* Sends on the box that was filled before. */
static sw_status send_filled(struct loader *self) {
    struct box *box = self->filled;
    self->filled = NULL;
    if (box == NULL)
        return SW_OK;
    SW_TRY(put_weights(self, box));
    if (self->engine->plan->spec.train && is_own(self->engine->plan, box))
        SW_TRY(put_records(self, box));
    self->done_grains += box->grains;
    return self->load->progress == NULL
               ? SW_OK
               : self->load->progress(self->load->progress_context, self->done_grains, self->total_grains);
}

/* Returns the next box in *out, once its last contents are written. */
static sw_status take_box(struct loader *self, struct box **out) {
    *out = &self->box[self->next];
    self->next = (self->next + 1) % self->box_count;
    if (*out == self->filled)
        SW_TRY(send_filled(self));
    SW_TRY(reap(self, false));
    while ((*out)->writes > 0)
        SW_TRY(reap(self, true));
    return SW_OK;
}

/* A job of the team makes one grain's masters and weights, and copies its optimizer state to its home. */
struct fill {
    const struct loader *loader;
    const struct box *box;
};

/* Returns the name of the tensor that an element of a unit belongs to; padding is zero, so it is asked for none. */
static const char *tensor_of(const struct sw_unit *unit, int64_t elem) {
    for (int64_t t = 0; t < unit->tensor_count; t++)
        if (elem >= unit->tensor[t].offset && elem < unit->tensor[t].offset + unit->tensor[t].elems)
            return unit->tensor[t].name;
    return unit->name;
}

/* Makes the record of one grain of a base. One infinity or NaN would make all of it NaN. */
static sw_status quantize_grain(const struct fill *fill, int64_t g, const float *master) {
    const struct box *box = fill->box;
    const struct sw_units *units = fill->loader->engine->plan->spec.units;
    for (int64_t e = 0; e < SW_GRAIN_ELEMS; e++)
        if (!isfinite(master[e]))
            return sw_fail(SW_ERR_ARG,
                           "%s has a weight that is not a finite number, which --base-format cannot keep; leave that "
                           "flag out, or mend the weights",
                           tensor_of(&units->unit[box->unit], (box->first_grain + g) * SW_GRAIN_ELEMS + e));
    return sw_quantize_base(fill->loader->stream[g], .type = SW_F32, .format = units->base, .grains = 1, .from = master,
                            .records = box->rounded + g * sw_base_grain_bytes(units->base));
}

/* Takes the record of one grain from the source. Its values must be the filled weights: these were checked, if the
 * source has checksums, and the record was not. */
static sw_status take_record(const struct fill *fill, int64_t g, const float *master) {
    const struct box *box = fill->box;
    const struct sw_load *load = fill->loader->load;
    const struct sw_units *units = fill->loader->engine->plan->spec.units;
    const char *name = sw_base_format_name(units->base);
    char *record = box->rounded + g * sw_base_grain_bytes(units->base);
    struct sw_stream *stream = fill->loader->stream[g];
    float values[COMPARED_AT_ONCE];
    if (load->record == NULL)
        return sw_fail(SW_ERR_UNSUPPORTED,
                       "--base-format %s keeps weights as a checkpoint stores them, and these come in another form; "
                       "leave it out, or take int8 or nf4",
                       name);
    SW_TRY(load->record(load->context, box->unit, box->first_grain + g, record));
    for (int64_t at = 0; at < SW_GRAIN_ELEMS; at += COMPARED_AT_ONCE) {
        SW_TRY(sw_dequantize_base(stream, .type = SW_F32, .format = units->base, .first_elem = at,
                                  .elems = COMPARED_AT_ONCE, .records = record, .to = values));
        SW_TRY(sw_stream_synchronize(stream));
        if (memcmp(values, master + at, sizeof values) != 0)
            return sw_fail(SW_ERR_CORRUPT, "the weights of %s in %s changed while they were loaded",
                           tensor_of(&units->unit[box->unit], (box->first_grain + g) * SW_GRAIN_ELEMS + at), name);
    }
    return SW_OK;
}

static sw_status fill_grain(const struct fill *fill, int64_t g) {
    const struct box *box = fill->box;
    const struct sw_load *load = fill->loader->load;
    const struct sw_plan *plan = fill->loader->engine->plan;
    const int64_t at_bytes =
        sw_record_at(&box->layout, box->first_record + g) - sw_record_at(&box->layout, box->first_record);
    const int64_t state_bytes = sw_record_bytes(&box->layout, box->first_record + g);
    float *master = (float *)(void *)(box->records + at_bytes);
    const bool base = is_base(plan, box);
    char *rounded = base ? NULL : box->rounded + sw_plan_weights_bytes(plan, box->unit, g);
    struct sw_stream *stream = fill->loader->stream[g];
    if (sw_optimizer_is_packed(plan->spec.units->optimizer)) /* a box had other records before */
        memset(box->records + at_bytes + MASTER_BYTES, 0, (size_t)(state_bytes - MASTER_BYTES));
    SW_TRY(load->fill(load->context, box->unit, (box->first_grain + g) * SW_GRAIN_ELEMS, SW_GRAIN_ELEMS, master));
    const bool packs = sw_units_packs(plan->spec.units, box->unit);
    const bool stored = sw_base_stored_elems(plan->spec.units->base) > 0;
    if (base)
        SW_TRY(stored ? take_record(fill, g, master) : quantize_grain(fill, g, master));
    if (packs)
        SW_TRY(sw_engine_pack(fill->loader->engine, stream, box->unit, (struct sw_span){box->first_grain + g, 1},
                              master, rounded));
    for (int64_t at = 0; at < SW_GRAIN_ELEMS && !packs && !base; at += ROUNDED_AT_ONCE)
        SW_TRY(sw_cast_from_f32(stream, .type = plan->spec.type, .elems = ROUNDED_AT_ONCE, .from = master + at,
                                .to = rounded + at * sw_dtype_bytes(plan->spec.type)));
    SW_TRY(sw_stream_synchronize(stream));
    if (box->home != NULL)
        memcpy(box->home + at_bytes, master, (size_t)state_bytes);
    return SW_OK;
}

/* An error's text stays with the thread that met it; the owner meets the first one again. */
static void try_grain(void *context, int64_t g, int thread) {
    (void)thread;
    const struct fill *fill = context;
    fill->box->status[g] = fill_grain(fill, g);
    if (fill->box->status[g] != SW_OK)
        sw_error_clear();
}

static sw_status first_error(const struct fill *fill) {
    for (int64_t g = 0; g < fill->box->grains; g++)
        if (fill->box->status[g] != SW_OK)
            return fill_grain(fill, g);
    return SW_OK;
}

/* Returns where the weights of a box are made: in its own room, or where they live in host memory. */
static char *rounded_of(const struct sw_engine *engine, const struct box *box) {
    const struct sw_plan *plan = engine->plan;
    const int32_t slot = is_base(plan, box) ? sw_plan_base_home(plan, box->unit)
                                            : sw_plan_weights_home(plan, box->unit, box->first_grain);
    if (plan->slot[slot].tier == SW_HOST && !is_base(plan, box))
        return home_of(engine, slot, box);
    if (plan->slot[slot].tier == SW_HOST && keeps_all(plan, box))
        return home_of_base(engine, box);
    return box->weights;
}

/* Lets the team fill a box while the one before is sent on. */
static sw_status fill_box(struct loader *self, struct box *box) {
    const struct sw_load *load = self->load;
    const struct sw_plan *plan = self->engine->plan;
    struct fill fill = {.loader = self, .box = box};
    box->rounded = plan->spec.update_only ? box->weights : rounded_of(self->engine, box);
    box->home = home_of_records(self->engine, box);
    box->layout = sw_records(plan->spec.units->optimizer, 0);
    box->first_record = 0;
    if (is_own(plan, box)) {
        box->layout = sw_plan_records(plan, box->unit);
        box->first_record = box->first_grain - sw_plan_span(plan, SW_OPTIMIZER, box->unit).first_grain;
    }
    if (load->prepare != NULL)
        SW_TRY(
            load->prepare(load->context, box->unit, box->first_grain * SW_GRAIN_ELEMS, box->grains * SW_GRAIN_ELEMS));
    sw_team_begin(self->team, try_grain, &fill, box->grains);
    const sw_status sent = send_filled(self);
    sw_team_finish(self->team);
    SW_TRY(sent);
    self->filled = box;
    return first_error(&fill);
}

static sw_status load_run(struct loader *self, int64_t unit, struct sw_span all) {
    for (int64_t first = all.first_grain; first < all.first_grain + all.grains;) {
        struct box *box;
        /* Others may wait for a rank that has more to load. */
        sw_watch_enter(self->engine->spec.watch, 1 + SW_LANE_UPDATE, "loading", unit);
        SW_TRY(take_box(self, &box));
        box->unit = unit;
        box->first_grain = first;
        first = box_end(self, box, all);
        box->grains = first - box->first_grain;
        SW_TRY(fill_box(self, box));
    }
    return SW_OK;
}

/* Finds all runs before the first is loaded, as the store then has ever more. */
static sw_status find_all_runs(struct loader *self) {
    const int64_t units = self->engine->plan->spec.units->count;
    self->run = calloc((size_t)units, sizeof *self->run);
    if (self->run == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to load");
    for (int64_t u = 0; u < units; u++) {
        find_runs(self->engine, self->frozen_only, u, self->run[u]);
        for (int number = 0; number < RUNS; number++)
            self->total_grains += self->run[u][number].grains;
    }
    return SW_OK;
}

static sw_status load_units(struct loader *self) {
    const int64_t units = self->engine->plan->spec.units->count;
    for (int64_t u = 0; u < units; u++)
        for (int number = 0; number < RUNS; number++)
            SW_TRY(load_run(self, u, self->run[u][number]));
    sw_watch_leave(self->engine->spec.watch, 1 + SW_LANE_UPDATE);
    SW_TRY(send_filled(self));
    while (self->engine->setup_lane != NULL && sw_store_outstanding(self->engine->setup_lane) > 0)
        SW_TRY(reap(self, true));
    return SW_OK;
}

static sw_status open_streams(struct loader *self) {
    self->stream = calloc((size_t)self->box_grains, sizeof(struct sw_stream *));
    if (self->stream == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to load");
    for (int64_t g = 0; g < self->box_grains; g++)
        SW_TRY(sw_stream_open(self->engine->spec.host, &self->stream[g]));
    return SW_OK;
}

static void close_streams(struct loader *self) {
    for (int64_t g = 0; self->stream != NULL && g < self->box_grains; g++)
        if (self->stream[g] != NULL)
            sw_stream_close(self->stream[g]);
    free(self->stream);
}

/* Loads all weights, or those that are frozen. */
static sw_status load_weights(struct sw_engine *engine, const struct sw_load *load, bool frozen_only) {
    assert(engine->begun == engine->waited);
    const int threads = sw_device_info(engine->spec.host).threads;
    struct loader self = {.engine = engine, .load = load, .frozen_only = frozen_only};
    sw_status status = find_all_runs(&self);
    if (status == SW_OK)
        status = make_boxes(&self, threads);
    if (status == SW_OK)
        status = open_cells(&self);
    if (status == SW_OK)
        status = open_streams(&self);
    if (status == SW_OK)
        status = sw_team_open(threads, &self.team);
    if (status == SW_OK)
        status = load_units(&self);
    sw_team_close(self.team);
    close_streams(&self);
    if (status == SW_OK) /* else the drive may still read them: closing the engine waits for it */
        free_cells(engine);
    free(self.status);
    free(self.run);
    return status;
}

int64_t sw_engine_frozen_grains_to_load(const struct sw_engine *engine) {
    int64_t grains = 0;
    for (int64_t u = 0; u < engine->plan->spec.units->count; u++) {
        struct sw_span run[RUNS];
        find_runs(engine, true, u, run);
        for (int number = 0; number < RUNS; number++)
            grains += run[number].grains;
    }
    return grains;
}

sw_status sw_engine_load_frozen(struct sw_engine *engine, const struct sw_load *load) {
    if (sw_engine_frozen_grains_to_load(engine) == 0)
        return SW_OK;
    SW_TRY(load_weights(engine, load, true));
    return sw_engine_keep_frozen(engine, engine->spec.frozen_digest);
}

sw_status sw_engine_keep_frozen(struct sw_engine *engine, uint64_t frozen_digest) {
    return frozen_digest != 0 ? sw_store_keep(engine->spec.store, sw_scratch_made_from(engine->plan, frozen_digest))
                              : SW_OK;
}

sw_status sw_engine_load(struct sw_engine *engine, const struct sw_load *load) {
    SW_TRY(load_weights(engine, load, false));
    if (load->loaded != NULL)
        SW_TRY(load->loaded(load->progress_context));
    if (!engine->plan->spec.train)
        return SW_OK;
    engine->step = 0;
    engine->working_is_newer = true;
    return engine->spec.store == NULL ? SW_OK : sw_engine_commit(engine);
}
