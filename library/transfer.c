/* Copies runs of elements between a unit's vector and the caller's tensors, by the casts of the CPU device. */
#include "core/size.h"
#include "library/library_private.h"

#include <string.h>

int64_t sw_library_first_run(const spillway *self, int64_t unit, int64_t first) {
    int64_t low = self->unit_first[unit], high = self->unit_first[unit + 1];
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        const struct tensor *tensor = &self->tensor[self->order[middle]];
        if (tensor->offset + tensor->count <= first)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

bool sw_library_run_at(const spillway *self, int64_t unit, int64_t position, int64_t first, int64_t count,
                       struct library_run *out) {
    if (position >= self->unit_first[unit + 1])
        return false;
    struct tensor *tensor = &self->tensor[self->order[position]];
    const int64_t begin = sw_max_i64(first, tensor->offset);
    const int64_t end = sw_min_i64(first + count, tensor->offset + tensor->count);
    *out = (struct library_run){tensor, begin - tensor->offset, begin - first, end - begin};
    return begin < end;
}

static const char *element(const void *base, sw_dtype type, int64_t index) {
    return (const char *)base + index * sw_dtype_bytes(type);
}

sw_status sw_library_take(void *context, int64_t unit, int64_t first, int64_t count, void *grads) {
    const spillway *self = context;
    int64_t position = sw_library_first_run(self, unit, first), done = 0;
    float *out = grads;
    for (struct library_run run; sw_library_run_at(self, unit, position, first, count, &run); position++) {
        const struct tensor *tensor = run.tensor;
        memset(out + done, 0, (size_t)(run.at - done) * sizeof *out);
        done = run.at + run.count;
        if (tensor->taken == NULL)
            memset(out + run.at, 0, (size_t)run.count * sizeof *out);
        else
            SW_TRY(sw_cast_to_f32(self->stream, .type = tensor->taken_type, .elems = run.count,
                                  .from = element(tensor->taken, tensor->taken_type, run.from), .to = out + run.at));
    }
    memset(out + done, 0, (size_t)(count - done) * sizeof *out);
    return sw_stream_synchronize(self->stream);
}

sw_status sw_library_give(void *context, int64_t unit, int64_t first, int64_t count, const void *weights) {
    const spillway *self = context;
    const float *from = weights;
    int64_t position = sw_library_first_run(self, unit, first);
    for (struct library_run run; sw_library_run_at(self, unit, position, first, count, &run); position++)
        SW_TRY(sw_cast_from_f32(self->stream, .type = run.tensor->type, .elems = run.count, .from = from + run.at,
                                .to = (char *)run.tensor->weights + run.from * sw_dtype_bytes(run.tensor->type)));
    return sw_stream_synchronize(self->stream);
}

sw_status sw_library_fill(void *context, int64_t unit, int64_t first, int64_t count, float *out) {
    const spillway *self = context;
    int64_t position = sw_library_first_run(self, unit, first);
    memset(out, 0, (size_t)count * sizeof *out);
    for (struct library_run run; sw_library_run_at(self, unit, position, first, count, &run); position++)
        sw_dtype_widen(run.tensor->type, element(run.tensor->weights, run.tensor->type, run.from), run.count,
                       out + run.at);
    return SW_OK;
}

sw_status sw_library_add(spillway *self, struct tensor *tensor, sw_dtype type, const void *gradient) {
    float *wide = self->sums;
    if (tensor->gradient == NULL)
        SW_TRY(sw_cast_to_f32(self->add_stream, .type = type, .elems = tensor->count, .from = gradient,
                              .to = tensor->sum));
    for (int64_t at = 0; tensor->gradient != NULL && at < tensor->count; at += LIBRARY_ADDED_AT_ONCE) {
        const int64_t count = sw_min_i64(LIBRARY_ADDED_AT_ONCE, tensor->count - at);
        SW_TRY(sw_cast_to_f32(self->add_stream, .type = type, .elems = count, .from = element(gradient, type, at),
                              .to = wide));
        SW_TRY(sw_add(self->add_stream, SW_F32, count, tensor->sum + at, wide, tensor->sum + at));
    }
    tensor->gradient = tensor->sum;
    tensor->gradient_type = SW_F32;
    return sw_stream_synchronize(self->add_stream);
}
