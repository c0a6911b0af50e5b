/* Copies runs of elements between a unit's vector and the caller's tensors, by the casts of the CPU device. */
#include "core/size.h"
#include "library/device.h"
#include "library/stream_private.h"

#include <string.h>

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

bool sw_library_streams_on_cuda(const spillway *self, const void *weights) {
    const spillway_stream *stream = self->weights_stream;
    for (int64_t t = 0; stream != NULL && stream->cuda != NULL && t < stream->tensor_count; t++)
        if (stream->piece[t].address == weights)
            return true;
    return false;
}

sw_status sw_library_before_weights(spillway *self) {
    if (self->weights_stream == NULL || self->weights_stream->cuda == NULL)
        return SW_OK;
    self->renews = true;
    return sw_streamed_cuda_drain(self->weights_stream);
}

sw_status sw_library_let_go(spillway *self) {
    const sw_status status = end_use(self, &self->taking, false), given = end_use(self, &self->giving, true);
    SW_TRY(sw_library_cuda_sent(self));
    if (self->renews)
        SW_TRY(sw_streamed_renew(self->weights_stream));
    self->renews = false;
    return status != SW_OK ? status : given;
}

/* Returns the gradients of a run. fetched: those of the request that are in device memory. */
static const char *gradient_of(const struct library_run *run, const char *fetched) {
    return run->tensor->taken_cuda ? fetched + run->at * (int64_t)sizeof(float)
                                   : element(run->tensor->taken, run->tensor->taken_type, run->from);
}

sw_status sw_library_take(void *context, int64_t unit, int64_t first, int64_t count, void *grads) {
    spillway *self = context;
    int64_t position = sw_library_first_run(self, unit, first), done = 0;
    float *out = grads;
    const char *fetched;
    SW_TRY(sw_library_cuda_fetch(self, unit, first, count, &fetched));
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
                                  .from = gradient_of(&run, fetched), .to = out + run.at));
    }
    memset(out + done, 0, (size_t)(count - done) * sizeof *out);
    return sw_stream_synchronize(self->stream);
}

sw_status sw_library_give(void *context, int64_t unit, int64_t first, int64_t count, const void *weights) {
    spillway *self = context;
    const float *from = weights;
    char *room = NULL; /* for weights in device memory */
    int64_t position = sw_library_first_run(self, unit, first);
    for (struct library_run run; sw_library_run_at(self, unit, position, first, count, &run); position++) {
        if (run.tensor->weights == NULL)
            continue;
        SW_TRY(begin_use(self, &self->giving, run.tensor->streamed, &run, true));
        if (run.tensor->cuda && room == NULL)
            SW_TRY(sw_library_cuda_room(self, &room));
        char *to = run.tensor->cuda ? room + run.at * (int64_t)sizeof(float)
                                    : (char *)run.tensor->weights + run.from * sw_dtype_bytes(run.tensor->type);
        SW_TRY(sw_cast_from_f32(self->stream, .type = run.tensor->type, .elems = run.count, .from = from + run.at,
                                .to = to));
        self->giving.done += run.count;
    }
    SW_TRY(sw_stream_synchronize(self->stream));
    return room != NULL ? sw_library_cuda_send(self, unit, first, count) : SW_OK;
}

static bool is_aligned(const void *address) {
    return (uintptr_t)address % SW_LOAN_ALIGN_BYTES == 0;
}

/* Returns what is lent from element `first` on; without elements: nothing of its grain. A streamed tensor is not lent:
 * it is held only while it is taken or given. Nor is one in device memory, which the update cannot reach. */
static struct sw_loan loan_of(const spillway *self, int64_t unit, int64_t first, int64_t count) {
    struct library_run run;
    if (!sw_library_run_at(self, unit, sw_library_first_run(self, unit, first), first, count, &run))
        return (struct sw_loan){0};
    const struct tensor *tensor = run.tensor;
    const char *grads = tensor->taken, *weights = tensor->weights;
    if (run.at > 0 || tensor->type != SW_F32 || tensor->taken_type != SW_F32 || grads == NULL ||
        tensor->streamed >= 0 || tensor->cuda || tensor->taken_cuda)
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

/* A run in device memory, and where its elements go. */
struct reading {
    sw_dtype type;
    char *out;
};

static sw_status widen_piece(void *context, const void *piece, int64_t at, int64_t count) {
    const struct reading *reading = context;
    sw_dtype_widen(reading->type, piece, count, (float *)(void *)reading->out + at);
    return SW_OK;
}

static sw_status copy_piece(void *context, const void *piece, int64_t at, int64_t count) {
    const struct reading *reading = context;
    const int64_t elem_bytes = sw_dtype_bytes(reading->type);
    memcpy(reading->out + at * elem_bytes, piece, (size_t)(count * elem_bytes));
    return SW_OK;
}

/* Reads the weights of a run that are in device memory. */
static sw_status read_run(spillway *self, const struct library_run *run, sw_library_piece use, void *out) {
    struct reading reading = {run->tensor->type, out};
    return sw_library_cuda_pieces(self, element(run->tensor->weights, reading.type, run->from), reading.type,
                                  run->count, false, use, &reading);
}

sw_status sw_library_fill(void *context, int64_t unit, int64_t first, int64_t count, float *out) {
    spillway *self = context;
    int64_t position = sw_library_first_run(self, unit, first);
    memset(out, 0, (size_t)count * sizeof *out);
    for (struct library_run run; sw_library_run_at(self, unit, position, first, count, &run); position++) {
        const int64_t piece = run.tensor->streamed;
        if (run.tensor->weights == NULL)
            continue;
        if (run.tensor->cuda) {
            SW_TRY(read_run(self, &run, widen_piece, out + run.at));
            continue;
        }
        if (piece >= 0)
            SW_TRY(sw_streamed_hold(self->weights_stream, &piece, 1, STREAM_READ, SPILLWAY_FORWARD));
        sw_dtype_widen(run.tensor->type, element(run.tensor->weights, run.tensor->type, run.from), run.count,
                       out + run.at);
        if (piece >= 0)
            SW_TRY(sw_streamed_release(self->weights_stream, &piece, 1, false));
    }
    return SW_OK;
}

int64_t sw_library_packed_bytes(const spillway *self, int64_t unit, int64_t first, int64_t count) {
    int64_t position = sw_library_first_run(self, unit, first), bytes = 0;
    for (struct library_run run; sw_library_run_at(self, unit, position, first, count, &run); position++)
        bytes += run.tensor->weights != NULL ? run.count * sw_dtype_bytes(run.tensor->type) : 0;
    return bytes;
}

sw_status sw_library_pack(spillway *self, int64_t unit, int64_t first, int64_t count, char *out) {
    int64_t position = sw_library_first_run(self, unit, first);
    for (struct library_run run; sw_library_run_at(self, unit, position, first, count, &run); position++) {
        if (run.tensor->weights == NULL)
            continue;
        const int64_t bytes = run.count * sw_dtype_bytes(run.tensor->type);
        if (run.tensor->cuda)
            SW_TRY(read_run(self, &run, copy_piece, out));
        else
            memcpy(out, element(run.tensor->weights, run.tensor->type, run.from), (size_t)bytes);
        out += bytes;
    }
    return SW_OK;
}

sw_status sw_library_unpack(spillway *self, int64_t unit, int64_t first, int64_t count, const char *from) {
    int64_t position = sw_library_first_run(self, unit, first);
    for (struct library_run run; sw_library_run_at(self, unit, position, first, count, &run); position++) {
        if (run.tensor->weights == NULL)
            continue;
        const int64_t elem_bytes = sw_dtype_bytes(run.tensor->type), bytes = run.count * elem_bytes;
        char *weights = (char *)run.tensor->weights + run.from * elem_bytes;
        if (run.tensor->cuda)
            SW_TRY(sw_library_cuda_write(self, weights, bytes, from));
        else
            memcpy(weights, from, (size_t)bytes);
        from += bytes;
    }
    return SW_OK;
}

/* A gradient that is being added to a tensor's sum, or begins it. */
struct addition {
    spillway *self;
    const struct tensor *tensor;
    sw_dtype type;
};

/* Adds elements [at, at+count) (sw_library_piece). */
static sw_status add_piece(void *context, const void *piece, int64_t at, int64_t count) {
    const struct addition *a = context;
    float *wide = a->self->sums, *sum = a->tensor->sum + at;
    const bool begins = a->tensor->gradient == NULL;
    SW_TRY(
        sw_cast_to_f32(a->self->add_stream, .type = a->type, .elems = count, .from = piece, .to = begins ? sum : wide));
    if (!begins)
        SW_TRY(sw_add(a->self->add_stream, SW_F32, count, sum, wide, sum));
    return sw_stream_synchronize(a->self->add_stream);
}

static sw_status add_all(struct addition *a, const void *gradient, bool on_cuda) {
    const int64_t count = a->tensor->count;
    if (on_cuda)
        return sw_library_cuda_pieces(a->self, gradient, a->type, count, true, add_piece, a);
    if (a->tensor->gradient == NULL)
        return add_piece(a, gradient, 0, count);
    for (int64_t at = 0; at < count; at += LIBRARY_ADDED_AT_ONCE)
        SW_TRY(add_piece(a, element(gradient, a->type, at), at, sw_min_i64(LIBRARY_ADDED_AT_ONCE, count - at)));
    return SW_OK;
}

static sw_status add(spillway *self, struct tensor *tensor, sw_dtype type, const void *gradient, bool on_cuda) {
    struct addition addition = {self, tensor, type};
    SW_TRY(add_all(&addition, gradient, on_cuda));
    tensor->gradient = tensor->sum;
    tensor->gradient_type = SW_F32;
    tensor->gradient_cuda = false;
    return SW_OK;
}

sw_status sw_library_add(spillway *self, struct tensor *tensor, sw_dtype type, const void *gradient, bool on_cuda) {
    const int64_t piece = tensor->streamed_sum;
    if (piece < 0)
        return add(self, tensor, type, gradient, on_cuda);
    SW_TRY(sw_streamed_hold(self->weights_stream, &piece, 1,
                            tensor->gradient == NULL ? STREAM_OVERWRITE : STREAM_CHANGE, SPILLWAY_FORWARD));
    const sw_status status = add(self, tensor, type, gradient, on_cuda);
    const sw_status released = sw_streamed_release(self->weights_stream, &piece, 1, true);
    return status != SW_OK ? status : released;
}
