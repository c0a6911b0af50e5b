/* Converts the optimizer state of a run from one format into another. The two formats lay out a unit's tensors
 * differently, so state moves by tensors and not by grains. */
#include "core/log.h"
#include "core/size.h"
#include "kernels/moments.h"
#include "train/folder/run_stores.h"
#include "train/model/model.h"
#include "train/stores/rank_store_private.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Grains of the old state are read many at once where they follow each other, and the last few are kept widened. */
enum { READ_GRAINS = 16, WRITE_GRAINS = 16, KEPT = 4, IO_DEPTH = 32 };

/* The state of a grain in fp32, in the form of a record. */
struct wide_state {
    float master[SW_GRAIN_ELEMS], m[SW_GRAIN_ELEMS], v[SW_GRAIN_ELEMS];
};
static_assert(sizeof(struct wide_state) == sizeof(float) * 3 * SW_GRAIN_ELEMS, "the parts follow each other");

/* A grain of the old state. */
struct kept {
    int64_t unit, grain; /* unit -1: none */
    struct wide_state state;
};

struct converter {
    struct sw_ranks *ranks;
    struct sw_units *from; /* laid out for the old state */
    struct sw_units *to;
    struct sw_store_set old;
    struct sw_store_lane **old_lane; /* one for each old store */
    struct sw_store_lane *lane;
    char *read, *written;                      /* READ_GRAINS grains of old state, and WRITE_GRAINS of new state */
    int64_t read_unit, read_first, read_count; /* grains in `read` */
    struct kept kept[KEPT];
    int next_kept;
    struct wide_state made;
};

/* Returns the old store that has a grain, or -1. */
static int holder_of(const struct converter *self, int64_t unit, int64_t grain) {
    for (int s = 0; s < self->old.count; s++) {
        const int64_t within = grain - sw_store_unit_first(self->old.store[s], unit);
        if (within >= 0 && within < sw_store_unit_grains(self->old.store[s], unit))
            return s;
    }
    return -1;
}

/* Reads a grain, and those behind it if the one before was read last. */
static sw_status read_grains(struct converter *self, int64_t unit, int64_t grain) {
    const bool follows = unit == self->read_unit && grain == self->read_first + self->read_count;
    const int s = holder_of(self, unit, grain);
    if (s < 0)
        return sw_fail(SW_ERR_CORRUPT, "no store of the run has grain %lld of unit %lld", (long long)grain,
                       (long long)unit);
    const struct sw_store *store = self->old.store[s];
    const struct sw_store_commit *commit = sw_store_last_commit(store);
    const int64_t end = sw_store_unit_first(store, unit) + sw_store_unit_grains(store, unit);
    const struct sw_store_transfer transfer = {.kind = SW_STORE_OPTIMIZER,
                                               .generation = commit->generation,
                                               .unit = unit,
                                               .first_grain = grain,
                                               .grains =
                                                   sw_min_i64(follows || grain == 0 ? READ_GRAINS : 1, end - grain),
                                               .buf = self->read,
                                               .step = commit->step};
    self->read_unit = -1;
    SW_TRY(sw_store_transfer(self->old_lane[s], &transfer));
    self->read_unit = unit;
    self->read_first = grain;
    self->read_count = transfer.grains;
    return SW_OK;
}

/* Returns in *out the old state of a grain. It is valid until the next call. */
static sw_status old_state(struct converter *self, int64_t unit, int64_t grain, const struct wide_state **out) {
    for (int k = 0; k < KEPT; k++)
        if (self->kept[k].unit == unit && self->kept[k].grain == grain) {
            *out = &self->kept[k].state;
            return SW_OK;
        }
    if (unit != self->read_unit || grain < self->read_first || grain >= self->read_first + self->read_count)
        SW_TRY(read_grains(self, unit, grain));
    struct kept *kept = &self->kept[self->next_kept];
    self->next_kept = (self->next_kept + 1) % KEPT;
    const char *record = self->read + (grain - self->read_first) * sw_optimizer_grain_bytes(self->from->optimizer);
    sw_record_to_fp32(self->from->optimizer, grain >= self->from->unit[unit].wide_grain, record, kept->state.master);
    kept->unit = unit;
    kept->grain = grain;
    *out = &kept->state;
    return SW_OK;
}

/* Copies `count` elements of the old state of a unit, from element `from` on, to element `to` of the grain that is
 * made. */
static sw_status take_elems(struct converter *self, int64_t unit, int64_t from, int64_t to, int64_t count) {
    for (int64_t run; count > 0; from += run, to += run, count -= run) {
        const int64_t within = from % SW_GRAIN_ELEMS;
        const struct wide_state *state;
        run = sw_min_i64(count, SW_GRAIN_ELEMS - within);
        SW_TRY(old_state(self, unit, from / SW_GRAIN_ELEMS, &state));
        memcpy(self->made.master + to, state->master + within, (size_t)run * sizeof(float));
        memcpy(self->made.m + to, state->m + within, (size_t)run * sizeof(float));
        memcpy(self->made.v + to, state->v + within, (size_t)run * sizeof(float));
    }
    return SW_OK;
}

/* Makes the new state of a grain from what the old state has of its tensors. */
static sw_status make_grain(struct converter *self, int64_t unit, int64_t grain, char *out) {
    const struct sw_unit *from = &self->from->unit[unit], *to = &self->to->unit[unit];
    const struct sw_moment_rounding nearest = {.rounding = SW_ROUND_NEAREST};
    const int64_t first = grain * SW_GRAIN_ELEMS;
    memset(&self->made, 0, sizeof self->made);
    for (int64_t t = 0; t < to->tensor_count; t++) {
        const struct sw_tensor *tensor = &to->tensor[t];
        const int64_t begin = sw_max_i64(first, tensor->offset);
        const int64_t end = sw_min_i64(first + SW_GRAIN_ELEMS, tensor->offset + tensor->elems);
        if (begin < end)
            SW_TRY(take_elems(self, unit, from->tensor[t].offset + begin - tensor->offset, begin - first, end - begin));
    }
    sw_record_from_fp32(self->to->optimizer, grain >= to->wide_grain, &nearest, self->made.master, out);
    return SW_OK;
}

static sw_status convert_unit(struct converter *self, struct sw_store *store, int64_t unit) {
    const int64_t end = sw_store_unit_first(store, unit) + sw_store_unit_grains(store, unit);
    const int64_t grain_bytes = sw_optimizer_grain_bytes(self->to->optimizer);
    for (int64_t first = sw_store_unit_first(store, unit), count; first < end; first += count) {
        count = sw_min_i64(WRITE_GRAINS, end - first);
        for (int64_t g = 0; g < count; g++)
            SW_TRY(make_grain(self, unit, first + g, self->written + g * grain_bytes));
        const struct sw_store_transfer transfer = {.write = true,
                                                   .kind = SW_STORE_OPTIMIZER,
                                                   .unit = unit,
                                                   .first_grain = first,
                                                   .grains = count,
                                                   .buf = self->written};
        SW_TRY(sw_store_transfer(self->lane, &transfer));
        sw_ranks_tick(self->ranks);
    }
    return SW_OK;
}

static sw_status open_old(const struct sw_rank_conversion *given, struct converter *self) {
    SW_TRY(sw_run_open_stores(given->folder, given->before, NULL, &self->old));
    self->old_lane = calloc((size_t)self->old.count, sizeof(struct sw_store_lane *));
    if (self->old_lane == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to convert a store");
    for (int s = 0; s < self->old.count; s++) {
        const struct sw_store *store = self->old.store[s];
        if (!sw_run_store_is_of(store, self->from))
            return sw_fail(SW_ERR_CORRUPT, "the store belongs to another model than run.json");
        if (sw_store_last_commit(store)->step != given->step)
            return sw_fail(SW_ERR_CORRUPT, "the stores of the run have no commit of step %lld, the newest of all ranks",
                           (long long)given->step);
        SW_TRY(sw_store_lane_open(self->old.store[s], IO_DEPTH, &self->old_lane[s]));
    }
    return SW_OK;
}

static sw_status take_memory(struct converter *self) {
    const int64_t read_bytes = READ_GRAINS * sw_optimizer_grain_bytes(self->from->optimizer);
    const int64_t written_bytes = WRITE_GRAINS * sw_optimizer_grain_bytes(self->to->optimizer);
    void *read = NULL, *written = NULL;
    const bool taken = posix_memalign(&read, SW_BUFFER_ALIGN_BYTES, (size_t)read_bytes) == 0 &&
                       posix_memalign(&written, SW_BUFFER_ALIGN_BYTES, (size_t)written_bytes) == 0;
    self->read = read;
    self->written = written;
    self->read_unit = -1;
    for (int k = 0; k < KEPT; k++)
        self->kept[k].unit = -1;
    return taken ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory to convert a store");
}

static void close_converter(struct converter *self) {
    sw_store_lane_close(self->lane);
    for (int s = 0; self->old_lane != NULL && s < self->old.count; s++)
        sw_store_lane_close(self->old_lane[s]);
    free(self->old_lane);
    sw_store_set_close(&self->old);
    sw_units_destroy(self->from);
    sw_units_destroy(self->to);
    free(self->read);
    free(self->written);
    free(self);
}

static sw_status convert(struct converter *self, const struct sw_rank_conversion *given, struct sw_store *store) {
    const struct sw_run *run = given->run;
    SW_TRY(sw_model_units(&run->config, run->settings.tiles, given->before->optimizer, &self->from));
    SW_TRY(sw_model_units(&run->config, run->settings.tiles, sw_store_optimizer(store), &self->to));
    if (!sw_run_store_is_of(store, self->to))
        return sw_fail(SW_ERR_INTERNAL, "the new store is of another model");
    SW_TRY(take_memory(self));
    SW_TRY(open_old(given, self));
    SW_TRY(sw_store_lane_open(store, IO_DEPTH, &self->lane));
    for (int64_t unit = 0; unit < self->to->count; unit++)
        SW_TRY(convert_unit(self, store, unit));
    *given->commit = *sw_store_last_commit(self->old.store[0]);
    return SW_OK;
}

sw_status sw_rank_convert(const struct sw_rank_conversion *given, struct sw_store *store) {
    struct converter *self = calloc(1, sizeof *self);
    if (self == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to convert a store");
    self->ranks = given->ranks;
    const sw_status status = convert(self, given, store);
    close_converter(self);
    return status;
}
