/* Lays out the optimizer state of a run anew: in another format, or for other tensor groups. A unit's tensors then lie
 * elsewhere, in other units and in other stores, so state moves by tensors and not by grains. */
#include "core/size.h"
#include "kernels/moments.h"
#include "model/model.h"
#include "run/folder/run_stores.h"
#include "run/stores/rank_old_state.h"

#include <stdlib.h>
#include <string.h>

enum { WRITE_GRAINS = 16, IO_DEPTH = 32 };

struct converter {
    struct sw_ranks *ranks;
    struct sw_old_state *old;
    struct sw_units *to;
    struct sw_store_lane *lane;
    char *written; /* WRITE_GRAINS grains of new state */
    struct sw_wide_state made;
};

/* A new unit's grain that is made. */
struct making {
    struct converter *self;
    const struct sw_unit *unit;
};

/* Takes a run of elements of a tensor into the grain, from element `at` on. */
static sw_status take_run(void *context, int64_t tensor, int64_t whole, int64_t run, int64_t at) {
    const struct making *making = context;
    struct converter *self = making->self;
    const char *name = making->unit->tensor[tensor].name;
    for (int64_t done = 0, taken; done < run; done += taken)
        SW_TRY(sw_old_state_take(self->old, name, whole + done, run - done, &self->made, at + done, &taken));
    return SW_OK;
}

static sw_status make_grain(struct converter *self, int64_t unit, int64_t grain, char *out) {
    const struct sw_moment_rounding nearest = {.rounding = SW_ROUND_NEAREST};
    struct making making = {.self = self, .unit = &self->to->unit[unit]};
    memset(&self->made, 0, sizeof self->made);
    SW_TRY(sw_unit_walk(making.unit, grain * SW_GRAIN_ELEMS, SW_GRAIN_ELEMS, take_run, &making));
    sw_record_from_fp32(self->to->optimizer, grain >= making.unit->wide_grain, &nearest, self->made.master, out);
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

/* Returns the units of this rank's new store. */
static sw_status new_units(const struct sw_run *run, sw_optimizer_format format, struct sw_units **out) {
    const int tensor_ranks = (int)sw_settings_tensor_ranks(&run->settings);
    return tensor_ranks > 1
               ? sw_model_rank_units(&run->config, tensor_ranks, (int)sw_settings_tensor_rank(&run->settings),
                                     run->settings.tiles, format, out)
               : sw_model_units(&run->config, run->settings.tiles, format, out);
}

static sw_status prepare(struct converter *self, const struct sw_rank_conversion *given, struct sw_store *store) {
    void *written = NULL;
    SW_TRY(new_units(given->run, sw_store_optimizer(store), &self->to));
    if (!sw_run_store_is_of(store, self->to))
        return sw_fail(SW_ERR_INTERNAL, "the new store is of another model");
    const int64_t bytes = WRITE_GRAINS * sw_optimizer_grain_bytes(self->to->optimizer);
    if (posix_memalign(&written, SW_BUFFER_ALIGN_BYTES, (size_t)bytes) != 0)
        return sw_fail(SW_ERR_NOMEM, "no memory to lay out a store anew");
    self->written = written;
    SW_TRY(sw_old_state_open(given, &self->old));
    return sw_store_lane_open(store, IO_DEPTH, &self->lane);
}

static sw_status convert(struct converter *self, const struct sw_rank_conversion *given, struct sw_store *store) {
    SW_TRY(prepare(self, given, store));
    for (int64_t unit = 0; unit < self->to->count; unit++)
        SW_TRY(convert_unit(self, store, unit));
    *given->commit = *sw_old_state_commit(self->old);
    return SW_OK;
}

sw_status sw_rank_convert(const struct sw_rank_conversion *given, struct sw_store *store) {
    struct converter *self = calloc(1, sizeof *self);
    if (self == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to lay out a store anew");
    self->ranks = given->ranks;
    const sw_status status = convert(self, given, store);
    sw_store_lane_close(self->lane);
    sw_old_state_close(self->old);
    sw_units_destroy(self->to);
    free(self->written);
    free(self);
    return status;
}
