/* Fills the store of a process from those of processes that had other parts of the tensors, or whole ones, element by
 * element: a tensor is the same in both, and lies elsewhere in their units (parts.c).
 *
 * A grain of the new store is put together from the records of theirs as fp32, and rounded to the format of both:
 * moments that are in 8 bits keep their bits where a block has the same elements before and after. */
#include "core/size.h"
#include "kernels/moments.h"
#include "library/library_private.h"

#include <stdlib.h>
#include <string.h>

enum { VECTORS = SW_OPTIMIZER_VECTORS, WRITE_GRAINS = 16, IO_DEPTH = 32 };

struct conversion {
    spillway *self;
    struct library_parts *parts; /* of the former processes */
    int64_t step, record_bytes;
    float *made; /* a new grain as fp32 */
    char *records;
};

/* Takes each tensor's count of missed steps, which all former processes have. */
static sw_status take_counts(const struct conversion *c) {
    const int64_t count = sw_library_parts_tensors(c->parts);
    int64_t *missed = calloc((size_t)count + 1, sizeof *missed);
    sw_status status = missed != NULL ? sw_library_parts_read_missed(c->parts, missed)
                                      : sw_fail(SW_ERR_NOMEM, "no memory for counts of steps");
    for (int64_t t = 0; status == SW_OK && t < c->self->tensor_count; t++) {
        struct tensor *tensor = &c->self->tensor[t];
        if (tensor->kept < count)
            tensor->missed = missed[tensor->kept];
        else
            status = sw_fail(SW_ERR_CORRUPT, "tensors.json in %s lacks '%s'", c->self->folder, tensor->name);
    }
    free(missed);
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
    memset(c->made, 0, VECTORS * SW_GRAIN_ELEMS * sizeof *c->made);
    for (struct library_run run; sw_library_run_at(self, unit, position, grain * SW_GRAIN_ELEMS, SW_GRAIN_ELEMS, &run);
         position++)
        if (run.tensor != &self->tensor[self->tensor_count] && !run.tensor->empty)
            SW_TRY(sw_library_parts_read(c->parts, run.tensor->kept, run.tensor->first + run.from, run.count,
                                         c->made + run.at));
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
    c->made = malloc(VECTORS * SW_GRAIN_ELEMS * sizeof *c->made);
    if (posix_memalign(&records, SW_BUFFER_ALIGN_BYTES, (size_t)(WRITE_GRAINS * c->record_bytes)) == 0)
        c->records = records;
    return c->made != NULL && c->records != NULL
               ? SW_OK
               : sw_fail(SW_ERR_NOMEM, "no memory to fill the store of process %d", c->self->rank);
}

sw_status sw_library_convert(spillway *self, const struct store_record *record, int64_t step, struct sw_store *store,
                             char meta[SW_STORE_META_BYTES]) {
    struct conversion c = {
        .self = self, .step = step, .record_bytes = sw_optimizer_grain_bytes(self->units->optimizer)};
    const struct sw_store_commit *commit;
    sw_status status = make_room(&c);
    if (status == SW_OK)
        status = sw_library_parts_open(self, record, step, &c.parts);
    if (status == SW_OK)
        status = take_counts(&c);
    if (status == SW_OK)
        status = write_units(&c, store);
    if (status == SW_OK)
        status = sw_library_parts_commit(c.parts, &commit);
    if (status == SW_OK)
        memcpy(meta, commit->meta, SW_STORE_META_BYTES);
    sw_library_parts_close(c.parts);
    free(c.made);
    free(c.records);
    return status;
}
