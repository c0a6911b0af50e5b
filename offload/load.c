/* The initial state into the tiers: masters from outside, moments of zero. Boxes of grains go round in the staging
 * rings: while the drive takes some, the cores make the next. */
#include "core/size.h"
#include "offload/engine_private.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* A box is small enough that its grains stay in the caches from the first to the last thing done to them, and large
 * enough that every core has one of its grains. */
enum { MOST_BOXES = 64, LEAST_BOXES = 16, BOX_GRAINS = 8, REAP_BATCH = 64 };
static_assert(2 * MOST_BOXES <= SW_STORE_LANE_TRANSFERS, "a box is written in two transfers at most");

#define MASTER_BYTES (SW_GRAIN_ELEMS * (int64_t)sizeof(float))

struct box {
    float *records; /* the moments are zero, once and for all */
    char *weights;
    int writes; /* of it, under way */
};

struct loader {
    struct sw_engine *engine;
    const struct sw_load *load;
    struct box box[MOST_BOXES];
    int64_t box_count, box_grains, next;
    int threads;
    sw_status *status; /* of each grain of a box */
    int64_t done_grains, total_grains;
};

/* Grains of a unit that share a box. */
struct run {
    int64_t unit, first_grain, grains;
};

static int64_t typed_grain_bytes(const struct sw_plan *plan) {
    return SW_GRAIN_ELEMS * sw_dtype_bytes(plan->spec.type);
}

static int64_t ring_grains(const struct sw_plan *plan, int32_t slot, int64_t grain_bytes) {
    return plan->slot[slot].bytes / grain_bytes;
}

/* Divides the two rings into boxes. A ring of one chunk is still several boxes. */
static sw_status make_boxes(struct loader *self) {
    const struct sw_engine *engine = self->engine;
    const struct sw_plan *plan = engine->plan;
    const int64_t typed_bytes = typed_grain_bytes(plan);
    char *records = sw_engine_piece(engine, plan->index->optimizer_ring, 0);
    char *weights = sw_engine_piece(engine, plan->index->weights_ring, 0);
    const int64_t room = sw_min_i64(ring_grains(plan, plan->index->optimizer_ring, SW_RECORD_BYTES),
                                    ring_grains(plan, plan->index->weights_ring, typed_bytes));
    self->threads = sw_device_info(engine->spec.host).threads;
    int64_t most = sw_max_i64(BOX_GRAINS, self->threads);
    if (self->load->most_grains > 0)
        most = sw_min_i64(most, self->load->most_grains);
    self->box_grains = sw_max_i64(1, sw_min_i64(most, room / LEAST_BOXES));
    self->box_count = sw_min_i64(MOST_BOXES, room / self->box_grains);
    memset(records, 0, (size_t)(self->box_count * self->box_grains * SW_RECORD_BYTES));
    for (int64_t b = 0; b < self->box_count; b++) {
        const int64_t at = b * self->box_grains;
        self->box[b] =
            (struct box){.records = (float *)(records + at * SW_RECORD_BYTES), .weights = weights + at * typed_bytes};
    }
    self->status = calloc((size_t)self->box_grains, sizeof *self->status);
    return self->status != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory to load");
}

static sw_status reap(struct loader *self, bool wait) {
    uint64_t tags[REAP_BATCH];
    int count;
    if (self->engine->setup_lane == NULL)
        return SW_OK;
    SW_TRY(sw_store_reap(self->engine->setup_lane, wait, tags, REAP_BATCH, &count));
    for (int i = 0; i < count; i++)
        self->box[tags[i]].writes--;
    return SW_OK;
}

static sw_status take_box(struct loader *self, struct box **out) {
    *out = &self->box[self->next];
    self->next = (self->next + 1) % self->box_count;
    SW_TRY(reap(self, false));
    while ((*out)->writes > 0)
        SW_TRY(reap(self, true));
    return SW_OK;
}

static sw_status fill_grain(const struct loader *self, const struct run *run, int64_t g, float *records) {
    return self->load->fill(self->load->context, run->unit, (run->first_grain + g) * SW_GRAIN_ELEMS, SW_GRAIN_ELEMS,
                            records + g * (int64_t)SW_RECORD_STREAMS * SW_GRAIN_ELEMS);
}

/* An error's text stays with the thread that met it, so the owner meets the first one again. */
static sw_status fill_box(const struct loader *self, const struct run *run, const struct box *box) {
    const struct sw_load *load = self->load;
    if (load->prepare != NULL)
        SW_TRY(
            load->prepare(load->context, run->unit, run->first_grain * SW_GRAIN_ELEMS, run->grains * SW_GRAIN_ELEMS));
#pragma omp parallel for num_threads(self->threads) schedule(static) if (run->grains > 1)
    for (int64_t g = 0; g < run->grains; g++) {
        self->status[g] = fill_grain(self, run, g, box->records);
        if (self->status[g] != SW_OK)
            sw_error_clear();
    }
    for (int64_t g = 0; g < run->grains; g++)
        if (self->status[g] != SW_OK)
            return fill_grain(self, run, g, box->records);
    return SW_OK;
}

static sw_status write(struct loader *self, const struct run *run, struct box *box, sw_store_kind kind, void *buf) {
    const bool records = kind == SW_STORE_OPTIMIZER;
    const struct sw_store_transfer transfer = {.write = true,
                                               .kind = kind,
                                               .generation = records ? sw_engine_working(self->engine) : 0,
                                               .unit = run->unit,
                                               .first_grain = run->first_grain,
                                               .grains = run->grains,
                                               .buf = buf,
                                               .tag = (uint64_t)(box - self->box),
                                               .zeros_from_bytes = records ? MASTER_BYTES : 0};
    SW_TRY(sw_store_submit(self->engine->setup_lane, &transfer));
    box->writes++;
    return SW_OK;
}

/* Where grains of a unit's state live on device or host. */
static char *home_of(const struct sw_engine *engine, int32_t slot, const struct run *run, int64_t grain_bytes) {
    return (char *)sw_engine_piece(engine, slot, 0) + run->first_grain * grain_bytes;
}

static sw_status put_on_device(struct sw_engine *engine, void *to, const void *from, int64_t bytes) {
    SW_TRY(sw_copy_to_device(engine->setup_stream, to, from, bytes));
    return sw_stream_synchronize(engine->setup_stream);
}

/* Rounded masters to where the unit's weights live. A skipped update changes nothing and rounds the masters. */
static sw_status put_weights(struct loader *self, const struct run *run, struct box *box) {
    struct sw_engine *engine = self->engine;
    const struct sw_plan *plan = engine->plan;
    const struct sw_unit *unit = &plan->spec.units->unit[run->unit];
    const sw_tier tier = plan->placement[run->unit].tier[SW_WEIGHTS];
    const int64_t grain_bytes = typed_grain_bytes(plan);
    char *home = tier == SW_NVME ? NULL : home_of(engine, plan->index->weights[run->unit], run, grain_bytes);
    char *rounded = tier == SW_HOST ? home : box->weights;
    const struct sw_adamw round_only = {.skip = true, .grad_scale = 1.0f, .step = 1};
    SW_TRY(sw_update_adamw(engine->host_stream, plan->spec.type, &round_only, run->first_grain * SW_GRAIN_ELEMS,
                           run->grains, unit->run, unit->run_count, rounded, box->records, rounded));
    SW_TRY(sw_stream_synchronize(engine->host_stream));
    if (tier == SW_NVME)
        return write(self, run, box, SW_STORE_WEIGHTS, rounded);
    return tier == SW_HOST ? SW_OK : put_on_device(engine, home, rounded, run->grains * grain_bytes);
}

/* Records to the store, which commits them, and to where the unit's optimizer lives if that is elsewhere. */
static sw_status put_records(struct loader *self, const struct run *run, struct box *box) {
    struct sw_engine *engine = self->engine;
    const int32_t slot = sw_plan_resident(engine->plan, SW_OPTIMIZER, run->unit);
    const int64_t bytes = run->grains * SW_RECORD_BYTES;
    if (engine->spec.store != NULL)
        SW_TRY(write(self, run, box, SW_STORE_OPTIMIZER, box->records));
    if (slot < 0)
        return SW_OK;
    char *home = home_of(engine, slot, run, SW_RECORD_BYTES);
    if (engine->plan->slot[slot].tier != SW_HOST)
        return put_on_device(engine, home, box->records, bytes);
    memcpy(home, box->records, (size_t)bytes);
    return SW_OK;
}

static sw_status load_run(struct loader *self, const struct run *run) {
    struct box *box;
    SW_TRY(take_box(self, &box));
    SW_TRY(fill_box(self, run, box));
    SW_TRY(put_weights(self, run, box));
    if (self->engine->plan->spec.train)
        SW_TRY(put_records(self, run, box));
    self->done_grains += run->grains;
    if (self->load->progress != NULL)
        self->load->progress(self->load->progress_context, self->done_grains, self->total_grains);
    return SW_OK;
}

static sw_status load_units(struct loader *self) {
    const struct sw_units *units = self->engine->plan->spec.units;
    for (int64_t u = 0; u < units->count; u++)
        self->total_grains += units->unit[u].grains;
    for (int64_t u = 0; u < units->count; u++) {
        struct run run = {.unit = u};
        for (; run.first_grain < units->unit[u].grains; run.first_grain += run.grains) {
            run.grains = sw_min_i64(self->box_grains, units->unit[u].grains - run.first_grain);
            SW_TRY(load_run(self, &run));
        }
    }
    while (self->engine->setup_lane != NULL && sw_store_outstanding(self->engine->setup_lane) > 0)
        SW_TRY(reap(self, true));
    return SW_OK;
}

sw_status sw_engine_load(struct sw_engine *engine, const struct sw_load *load) {
    assert(engine->begun == engine->waited);
    struct loader self = {.engine = engine, .load = load};
    sw_status status = make_boxes(&self);
    if (status == SW_OK)
        status = load_units(&self);
    free(self.status);
    if (status != SW_OK || !engine->plan->spec.train)
        return status;
    engine->step = 0;
    engine->working_is_newer = true;
    return engine->spec.store == NULL ? SW_OK : sw_engine_commit(engine);
}
