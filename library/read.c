/* Reads state of tensors, on whichever tier and in whichever process it lives. */
#include "core/size.h"
#include "kernels/moments.h"
#include "library/library_private.h"

#include <stdlib.h>
#include <string.h>

/* Elements of a part of a tensor's state, and where to copy them. */
struct wanted {
    const struct tensor *tensor;
    int part;
    int64_t first, count;
    float *out;
};

/* Copies what is wanted of one grain's record. whole: room for the record as fp32. */
static void copy_part(const spillway *self, const struct wanted *wanted, int64_t grain, const void *record,
                      float *whole) {
    const struct sw_unit *unit = &self->units->unit[wanted->tensor->unit];
    const int64_t first = wanted->tensor->offset + wanted->first, begin = grain * SW_GRAIN_ELEMS;
    const int64_t from = sw_max_i64(begin, first);
    const int64_t to = sw_min_i64(begin + SW_GRAIN_ELEMS, first + wanted->count);
    sw_record_to_fp32(self->units->optimizer, grain >= unit->wide_grain, record, whole);
    memcpy(wanted->out + (from - first), whole + wanted->part * SW_GRAIN_ELEMS + (from - begin),
           (size_t)(to - from) * sizeof *whole);
}

/* Reads chunk by chunk, because the drive is read by whole chunks. records: room for a chunk. */
static sw_status read_chunks(spillway *self, const struct wanted *wanted, char *records, float *whole) {
    const int64_t first = wanted->tensor->offset + wanted->first, chunk = self->plan->spec.chunk_grains;
    const struct sw_span own = sw_plan_span(self->plan, SW_OPTIMIZER, wanted->tensor->unit);
    const int64_t begin = sw_max_i64(first / SW_GRAIN_ELEMS, own.first_grain);
    const int64_t end = sw_min_i64(sw_div_up(first + wanted->count, SW_GRAIN_ELEMS), own.first_grain + own.grains);
    for (int64_t grain = begin, next; grain < end; grain = next) {
        next = sw_min_i64(end, own.first_grain + ((grain - own.first_grain) / chunk + 1) * chunk);
        SW_TRY(sw_engine_read_optimizer(self->engine, wanted->tensor->unit, grain, next - grain, records));
        for (int64_t g = grain; g < next; g++)
            copy_part(self, wanted, g, records + sw_plan_optimizer_bytes(self->plan, g - grain), whole);
    }
    return SW_OK;
}

sw_status sw_library_read(spillway *self, const struct tensor *tensor, int part, int64_t first, int64_t count,
                          float *out) {
    const struct wanted wanted = {tensor, part, first, count, out};
    char *records = malloc((size_t)sw_plan_optimizer_bytes(self->plan, self->plan->spec.chunk_grains));
    float *whole = malloc(SW_OPTIMIZER_VECTORS * SW_GRAIN_ELEMS * sizeof *whole);
    const sw_status status = records != NULL && whole != NULL
                                 ? read_chunks(self, &wanted, records, whole)
                                 : sw_fail(SW_ERR_NOMEM, "no memory to read '%s'", tensor->name);
    free(records);
    free(whole);
    SW_TRY(sw_library_agree(self, status, "read"));
    return sw_library_gather_elements(self, tensor->unit, tensor->offset + first, count, out);
}
