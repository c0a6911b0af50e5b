/* Copies runs of elements between a unit's vector and the caller's tensors, by the casts of the CPU device. */
#include "core/size.h"
#include "library/stream_private.h"

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

/* Tensors come in pieces, one tensor after the other. A streamed one is held from its first piece to that of the next.
 */

static sw_status end_use(const spillway *self, struct streamed_use *use, bool gives) {
    const int64_t piece = use->piece;
    if (piece < 0)
        return SW_OK;
    use->piece = -1;
    SW_TRY(sw_streamed_release(self->weights_stream, &piece, 1, gives));
    return !gives || use->done == use->count
               ? SW_OK
               : sw_fail(SW_ERR_INTERNAL, "a streamed tensor was given %lld of its %lld new weights",
                         (long long)use->done, (long long)use->count);
}

/* Weights that come whole need not be read before, unless somebody else may read them meanwhile. */
static enum stream_use use_of(const spillway *self, const struct library_run *run, bool gives) {
    if (!gives)
        return STREAM_READ;
    return run->from == 0 && !self->replaces ? STREAM_OVERWRITE : STREAM_CHANGE;
}

static sw_status begin_use(const spillway *self, struct streamed_use *use, int64_t piece, const struct library_run *run,
                           bool gives) {
    if (piece == use->piece)
        return SW_OK;
    SW_TRY(end_use(self, use, gives));
    if (piece < 0)
        return SW_OK;
    SW_TRY(sw_streamed_hold(self->weights_stream, &piece, 1, use_of(self, run, gives), SPILLWAY_FORWARD));
    *use = (struct streamed_use){.piece = piece, .done = run->from, .count = run->tensor->count};
    return SW_OK;
}

sw_status sw_library_let_go(spillway *self) {
    const sw_status status = end_use(self, &self->taking, false), given = end_use(self, &self->giving, true);
    return status != SW_OK ? status : given;
}

sw_status sw_library_take(void *context, int64_t unit, int64_t first, int64_t count, void *grads) {
    spillway *self = context;
    int64_t position = sw_library_first_run(self, unit, first), done = 0;
    float *out = grads;
    for (struct library_run run; sw_library_run_at(self, unit, position, first, count, &run); position++) {
        const struct tensor *tensor = run.tensor;
        memset(out + done, 0, (size_t)(run.at - done) * sizeof *out);
        done = run.at + run.count;
        if (tensor->taken != NULL)
            SW_TRY(
                begin_use(self, &self->taking, tensor->taken == tensor->sum ? tensor->streamed_sum : -1, &run, false));
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
    spillway *self = context;
    const float *from = weights;
    int64_t position = sw_library_first_run(self, unit, first);
    for (struct library_run run; sw_library_run_at(self, unit, position, first, count, &run); position++) {
        SW_TRY(begin_use(self, &self->giving, run.tensor->streamed, &run, true));
        SW_TRY(sw_cast_from_f32(self->stream, .type = run.tensor->type, .elems = run.count, .from = from + run.at,
                                .to = (char *)run.tensor->weights + run.from * sw_dtype_bytes(run.tensor->type)));
        self->giving.done += run.count;
    }
    return sw_stream_synchronize(self->stream);
}

static bool is_aligned(const void *address) {
    return (uintptr_t)address % SW_LOAN_ALIGN_BYTES == 0;
}

/* Returns what is lent from element `first` on; without elements: nothing of its grain. A streamed tensor is not lent:
 * it is held only while it is taken or given. */
static struct sw_loan loan_of(const spillway *self, int64_t unit, int64_t first, int64_t count) {
    struct library_run run;
    if (!sw_library_run_at(self, unit, sw_library_first_run(self, unit, first), first, count, &run))
        return (struct sw_loan){0};
    const struct tensor *tensor = run.tensor;
    const char *grads = tensor->taken, *weights = tensor->weights;
    if (run.at > 0 || tensor->type != SW_F32 || tensor->taken_type != SW_F32 || grads == NULL || tensor->streamed >= 0)
        return (struct sw_loan){0};
    grads += run.from * (int64_t)sizeof(float);
    weights += run.from * (int64_t)sizeof(float);
    return (struct sw_loan){
        .elems = is_aligned(grads) && is_aligned(weights) ? run.count / SW_GRAIN_ELEMS * SW_GRAIN_ELEMS : 0,
        .grads = grads,
        .weights = (void *)weights};
}

struct sw_loan sw_library_lend(void *context, int64_t unit, int64_t first, int64_t count) {
    const spillway *self = context;
    const struct sw_loan loan = loan_of(self, unit, first, count);
    int64_t elems = SW_GRAIN_ELEMS;
    if (loan.elems > 0)
        return loan;
    while (elems < count && loan_of(self, unit, first + elems, count - elems).elems == 0)
        elems += SW_GRAIN_ELEMS;
    return (struct sw_loan){.elems = elems};
}

sw_status sw_library_fill(void *context, int64_t unit, int64_t first, int64_t count, float *out) {
    const spillway *self = context;
    int64_t position = sw_library_first_run(self, unit, first);
    memset(out, 0, (size_t)count * sizeof *out);
    for (struct library_run run; sw_library_run_at(self, unit, position, first, count, &run); position++) {
        const int64_t piece = run.tensor->streamed;
        if (piece >= 0)
            SW_TRY(sw_streamed_hold(self->weights_stream, &piece, 1, STREAM_READ, SPILLWAY_FORWARD));
        sw_dtype_widen(run.tensor->type, element(run.tensor->weights, run.tensor->type, run.from), run.count,
                       out + run.at);
        if (piece >= 0)
            SW_TRY(sw_streamed_release(self->weights_stream, &piece, 1, false));
    }
    return SW_OK;
}

int64_t sw_library_pack(const spillway *self, int64_t unit, int64_t first, int64_t count, char *out) {
    int64_t position = sw_library_first_run(self, unit, first), bytes = 0;
    for (struct library_run run; sw_library_run_at(self, unit, position, first, count, &run); position++) {
        const int64_t run_bytes = run.count * sw_dtype_bytes(run.tensor->type);
        if (out != NULL)
            memcpy(out + bytes, element(run.tensor->weights, run.tensor->type, run.from), (size_t)run_bytes);
        bytes += run_bytes;
    }
    return bytes;
}

int64_t sw_library_unpack(const spillway *self, int64_t unit, int64_t first, int64_t count, const char *from) {
    int64_t position = sw_library_first_run(self, unit, first), bytes = 0;
    for (struct library_run run; sw_library_run_at(self, unit, position, first, count, &run); position++) {
        const int64_t run_bytes = run.count * sw_dtype_bytes(run.tensor->type);
        memcpy((char *)run.tensor->weights + run.from * sw_dtype_bytes(run.tensor->type), from + bytes,
               (size_t)run_bytes);
        bytes += run_bytes;
    }
    return bytes;
}

static sw_status add(spillway *self, struct tensor *tensor, sw_dtype type, const void *gradient) {
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

sw_status sw_library_add(spillway *self, struct tensor *tensor, sw_dtype type, const void *gradient) {
    const int64_t piece = tensor->streamed_sum;
    if (piece < 0)
        return add(self, tensor, type, gradient);
    SW_TRY(sw_streamed_hold(self->weights_stream, &piece, 1,
                            tensor->gradient == NULL ? STREAM_OVERWRITE : STREAM_CHANGE, SPILLWAY_FORWARD));
    const sw_status status = add(self, tensor, type, gradient);
    const sw_status released = sw_streamed_release(self->weights_stream, &piece, 1, true);
    return status != SW_OK ? status : released;
}
