/* Loads the initial state into the tiers: masters from outside, moments of zero, which all formats write as zeros; the
 * masters of a wide grain's padding, where its moments lie, are zero too. Boxes of grains go round in the
 * staging rings, so that the drive takes some while the cores make the next. */
#include "core/dtype.h"
#include "core/size.h"
#include "core/team.h"
#include "offload/engine/engine_private.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Boxes are small and few, so that grains stay in the caches from the first to the last thing done to them; together
 * they fill a queue, and each has some grains for every thread. */
enum { BOXES = 8, BOX_GRAINS = 8, THREAD_GRAINS = 2 };
static_assert(2 * BOXES <= SW_STORE_LANE_TRANSFERS, "a box is written in two transfers at most");

/* Few enough elements that a device of many threads rounds them on the calling thread alone. */
enum { ROUNDED_AT_ONCE = SW_GRAIN_ELEMS / 2 };

#define MASTER_BYTES (SW_GRAIN_ELEMS * (int64_t)sizeof(float))

/* Grains of a unit on their way. */
struct box {
    char *records;     /* optimizer state of the grains; its moments stay zero */
    char *weights;     /* room for the rounded weights */
    char *rounded;     /* where these weights are made: `weights`, or their home in host memory */
    char *home;        /* where the team copies the optimizer state to, in host memory; NULL: nowhere */
    sw_status *status; /* one entry per grain */
    int64_t unit, first_grain, grains;
    int writes; /* transfers of the box that are under way */
};

struct loader {
    struct sw_engine *engine;
    const struct sw_load *load;
    bool frozen_only; /* loads no weights that training changes */
    struct sw_team *team;
    struct sw_stream **stream; /* one per grain of a box */
    struct box box[BOXES];
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
    char *records = sw_engine_piece(engine, sw_plan_buffer(plan, SW_BUFFER_OPTIMIZER), 0);
    char *weights = sw_engine_piece(engine, sw_plan_buffer(plan, SW_BUFFER_WEIGHTS), 0);
    const int64_t room = sw_min_i64(ring_grains(plan, sw_plan_buffer(plan, SW_BUFFER_OPTIMIZER), state_bytes),
                                    ring_grains(plan, sw_plan_buffer(plan, SW_BUFFER_WEIGHTS), typed_bytes));
    int64_t most = sw_max_i64(BOX_GRAINS, (int64_t)THREAD_GRAINS * threads);
    if (self->load->most_grains > 0)
        most = sw_min_i64(most, self->load->most_grains);
    self->box_grains = sw_max_i64(1, sw_min_i64(most, room / BOXES));
    self->box_count = sw_min_i64(BOXES, room / self->box_grains);
    self->status = calloc((size_t)(self->box_count * self->box_grains), sizeof *self->status);
    if (self->status == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to load");
    memset(records, 0, (size_t)(self->box_count * self->box_grains * state_bytes));
    for (int64_t b = 0; b < self->box_count; b++) {
        const int64_t at = b * self->box_grains;
        self->box[b] = (struct box){
            .records = records + at * state_bytes, .weights = weights + at * typed_bytes, .status = self->status + at};
    }
    return SW_OK;
}

static sw_status reap(struct loader *self, bool wait) {
    uint64_t tags[2 * BOXES];
    int count;
    if (self->engine->setup_lane == NULL)
        return SW_OK;
    SW_TRY(sw_store_reap(self->engine->setup_lane, wait, tags, 2 * BOXES, &count));
    for (int i = 0; i < count; i++)
        self->box[tags[i]].writes--;
    return SW_OK;
}

static sw_status write(struct loader *self, struct box *box, sw_store_kind kind, void *buf) {
    const bool records = kind == SW_STORE_OPTIMIZER;
    const int64_t each =
        records ? 1 : sw_units_stored_grains(self->engine->plan->spec.units, box->unit, self->engine->plan->spec.type);
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

static sw_status put_weights(struct loader *self, struct box *box) {
    struct sw_engine *engine = self->engine;
    const struct sw_plan *plan = engine->plan;
    const int64_t bytes = sw_plan_weights_bytes(plan, box->unit, box->grains);
    const int32_t slot = sw_plan_resident(plan, SW_WEIGHTS, box->unit);
    switch (plan->placement[box->unit].tier[SW_WEIGHTS]) {
    case SW_NVME: return write(self, box, SW_STORE_WEIGHTS, box->rounded);
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
    return sw_engine_put(engine, slot, home_of(engine, slot, box), box->records,
                         sw_plan_optimizer_bytes(engine->plan, box->grains));
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

/* Returns the grains of a unit that are loaded. A unit with a frozen and a trained span has whole weights here. */
static struct sw_span loaded_span(const struct loader *self, int64_t unit) {
    const struct sw_plan *plan = self->engine->plan;
    if (self->frozen_only && sw_plan_trains(plan, unit))
        return (struct sw_span){.grains = sw_plan_trained(plan, unit).first_grain};
    return sw_plan_span(plan, SW_WEIGHTS, unit);
}

static int64_t box_end(const struct loader *self, const struct box *box) {
    const struct sw_plan *plan = self->engine->plan;
    const struct sw_span all = loaded_span(self, box->unit);
    const struct sw_span own = sw_plan_span(plan, SW_OPTIMIZER, box->unit);
    const int64_t bounds[] = {own.first_grain, own.first_grain + own.grains};
    int64_t end = sw_min_i64(box->first_grain + self->box_grains, all.first_grain + all.grains);
    for (int i = 0; i < 2; i++)
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

static sw_status fill_grain(const struct fill *fill, int64_t g) {
    const struct box *box = fill->box;
    const struct sw_load *load = fill->loader->load;
    const struct sw_plan *plan = fill->loader->engine->plan;
    const int64_t state_bytes = sw_plan_optimizer_bytes(plan, 1);
    float *master = (float *)(box->records + g * state_bytes);
    char *rounded = box->rounded + sw_plan_weights_bytes(plan, box->unit, g);
    struct sw_stream *stream = fill->loader->stream[g];
    SW_TRY(load->fill(load->context, box->unit, (box->first_grain + g) * SW_GRAIN_ELEMS, SW_GRAIN_ELEMS, master));
    const bool packs = sw_units_packs(plan->spec.units, box->unit);
    if (packs)
        SW_TRY(sw_engine_pack(fill->loader->engine, stream, box->unit, (struct sw_span){box->first_grain + g, 1},
                              master, rounded));
    for (int64_t at = 0; at < SW_GRAIN_ELEMS && !packs; at += ROUNDED_AT_ONCE)
        SW_TRY(sw_cast_from_f32(stream, .type = plan->spec.type, .elems = ROUNDED_AT_ONCE, .from = master + at,
                                .to = rounded + at * sw_dtype_bytes(plan->spec.type)));
    SW_TRY(sw_stream_synchronize(stream));
    if (box->home != NULL)
        memcpy(box->home + g * state_bytes, master, (size_t)state_bytes);
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

/* Lets the team fill a box while the one before is sent on. */
static sw_status fill_box(struct loader *self, struct box *box) {
    const struct sw_load *load = self->load;
    const struct sw_plan *plan = self->engine->plan;
    const bool on_host = plan->placement[box->unit].tier[SW_WEIGHTS] == SW_HOST;
    struct fill fill = {.loader = self, .box = box};
    box->rounded = on_host ? home_of(self->engine, sw_plan_resident(plan, SW_WEIGHTS, box->unit), box) : box->weights;
    box->home = home_of_records(self->engine, box);
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

static sw_status load_units(struct loader *self) {
    const int64_t units = self->engine->plan->spec.units->count;
    for (int64_t u = 0; u < units; u++)
        self->total_grains += loaded_span(self, u).grains;
    for (int64_t u = 0; u < units; u++) {
        const struct sw_span all = loaded_span(self, u);
        for (int64_t first = all.first_grain; first < all.first_grain + all.grains;) {
            struct box *box;
            /* Others may wait for a rank that has more to load. */
            sw_watch_enter(self->engine->spec.watch, 1 + SW_LANE_UPDATE, "loading", u);
            SW_TRY(take_box(self, &box));
            box->unit = u;
            box->first_grain = first;
            first = box_end(self, box);
            box->grains = first - box->first_grain;
            SW_TRY(fill_box(self, box));
        }
    }
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
    sw_status status = make_boxes(&self, threads);
    if (status == SW_OK)
        status = open_streams(&self);
    if (status == SW_OK)
        status = sw_team_open(threads, &self.team);
    if (status == SW_OK)
        status = load_units(&self);
    sw_team_close(self.team);
    close_streams(&self);
    free(self.status);
    return status;
}

sw_status sw_engine_load_frozen(struct sw_engine *engine, const struct sw_load *load) {
    bool frozen = false;
    for (int64_t u = 0; u < engine->plan->spec.units->count; u++)
        frozen |= !sw_plan_trains(engine->plan, u) || sw_plan_trained(engine->plan, u).first_grain > 0;
    return frozen ? load_weights(engine, load, true) : SW_OK;
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
