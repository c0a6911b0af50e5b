#include "library/device.h"

#include "core/size.h"
#include "library/cuda_driver.h"
#include "offload/plan/shard.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Two of each: one is copied while the other is used. */
enum { SLOTS = 2 };
#define CHUNK_BYTES ((int64_t)LIBRARY_CHUNK_ELEMS * (int64_t)sizeof(float))
#define PIECE_BYTES ((int64_t)LIBRARY_ADDED_AT_ONCE * (int64_t)sizeof(float))

/* Pinned memory, and the event behind the last copy from or to it. */
struct slot {
    char *memory;
    CUevent copied;
    bool filled; /* it holds gradients of elements [first, first+count) of the unit */
    int64_t unit, first, count;
};

struct sw_library_cuda {
    int number;
    CUdevice device;
    CUcontext context; /* the device's primary one */
    CUstream caller;   /* the caller's; NULL: the default stream */

    /* Made by sw_library_cuda_start. */
    char *pinned;
    CUstream down, up, pieces;   /* gradients; new weights; all that the caller's thread copies itself */
    CUstream ready;              /* has no work but waits: it is where the gradients that were handed in are ready */
    CUevent caller_at, ready_at; /* what these streams had when others were last put behind them */
    struct slot gradient[SLOTS], weights[SLOTS], piece[SLOTS];
    int next_weights;        /* the slot that is filled next */
    bool again;              /* the gradients will be taken once more */
    pthread_mutex_t copying; /* of `piece`, while a new store reads its tensors by several threads */
};

/* Calls of the driver are about the thread's current context. That of the caller's thread is put back. */

static sw_status enter(const struct sw_library_cuda *cuda) {
    return sw_cuda_driver_check(sw_cuda_driver.push(cuda->context), "choosing a GPU");
}

static sw_status leave(sw_status status) {
    CUcontext context;
    (void)sw_cuda_driver.pop(&context);
    return status;
}

static CUdeviceptr address_of(const void *at) {
    return (CUdeviceptr)(uintptr_t)at;
}

static sw_status record(CUevent event, CUstream stream) {
    return sw_cuda_driver_check(sw_cuda_driver.event_record(event, stream), "recording an event");
}

/* Puts what is given to `later` from now on behind what `earlier` has now. */
static sw_status order(CUstream earlier, CUevent at, CUstream later) {
    SW_TRY(record(at, earlier));
    return sw_cuda_driver_check(sw_cuda_driver.stream_wait(later, at, 0), "putting streams in order");
}

static sw_status order_after_caller(const struct sw_library_cuda *cuda, CUstream later) {
    return order(cuda->caller, cuda->caller_at, later);
}

static sw_status wait_for(CUevent event) {
    return sw_cuda_driver_check(sw_cuda_driver.event_synchronize(event), "waiting for the GPU");
}

static sw_status synchronize(CUstream stream) {
    return sw_cuda_driver_check(sw_cuda_driver.stream_synchronize(stream), "waiting for the GPU");
}

static sw_status copy_to_host(void *to, const void *from, int64_t bytes, CUstream stream) {
    return sw_cuda_driver_check(sw_cuda_driver.copy_to_host(to, address_of(from), (size_t)bytes, stream),
                                "copying from the GPU");
}

static sw_status copy_to_device(void *to, const void *from, int64_t bytes, CUstream stream) {
    return sw_cuda_driver_check(sw_cuda_driver.copy_to_device(address_of(to), from, (size_t)bytes, stream),
                                "copying to the GPU");
}

/* Life. */

static sw_status open_cuda(spillway *self, int number) {
    struct sw_library_cuda *cuda = calloc(1, sizeof *cuda);
    if (cuda == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for a GPU's state");
    cuda->number = number;
    const sw_status status = sw_cuda_driver_choose(number, &cuda->device, &cuda->context);
    if (status != SW_OK) {
        free(cuda);
        return status;
    }
    pthread_mutex_init(&cuda->copying, NULL);
    self->cuda = cuda;
    return SW_OK;
}

static sw_status use_cuda(spillway *self, int device, void *stream) {
    SW_TRY(sw_library_begin(self, self != NULL && self->open));
    if (self->cuda == NULL && self->open)
        return sw_fail(SW_ERR_ARG, "%s is open without a GPU: call spillway_use_cuda before spillway_open",
                       self->folder);
    if (self->cuda == NULL)
        SW_TRY(open_cuda(self, device));
    if (self->cuda->number != device)
        return sw_fail(SW_ERR_ARG,
                       "%s uses CUDA device %d, and device %d was named: tensors of one GPU or of host memory go into "
                       "a store",
                       self->folder, self->cuda->number, device);
    self->cuda->caller = stream;
    return SW_OK;
}

int spillway_use_cuda(spillway *self, int device, void *stream) {
    return sw_library_end(self, use_cuda(self, device, stream), false);
}

int64_t sw_library_cuda_bytes(const spillway *self) {
    return self->cuda != NULL ? SLOTS * (2 * CHUNK_BYTES + PIECE_BYTES) : 0;
}

static sw_status make_stream(CUstream *out) {
    return sw_cuda_driver_check(sw_cuda_driver.stream_create(out, CU_STREAM_NON_BLOCKING), "making a stream");
}

/* Whoever waits sleeps: the cores are for the update. */
static sw_status make_event(CUevent *out) {
    return sw_cuda_driver_check(sw_cuda_driver.event_create(out, CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING),
                                "making an event");
}

/* Takes the slots' memory from *memory on. */
static sw_status make_slots(struct slot slots[SLOTS], int64_t bytes, char **memory) {
    for (int i = 0; i < SLOTS; i++) {
        slots[i] = (struct slot){.memory = *memory};
        *memory += bytes;
        SW_TRY(make_event(&slots[i].copied));
    }
    return SW_OK;
}

static sw_status take_memory(struct sw_library_cuda *cuda, int64_t bytes) {
    void *pinned = NULL;
    SW_TRY(sw_cuda_driver_check(sw_cuda_driver.host_alloc(&pinned, (size_t)bytes, CU_MEMHOSTALLOC_PORTABLE),
                                "pinning staging memory for the GPU"));
    char *memory = cuda->pinned = pinned;
    SW_TRY(make_slots(cuda->gradient, CHUNK_BYTES, &memory));
    SW_TRY(make_slots(cuda->weights, CHUNK_BYTES, &memory));
    return make_slots(cuda->piece, PIECE_BYTES, &memory);
}

static sw_status start(struct sw_library_cuda *cuda, int64_t bytes) {
    SW_TRY(take_memory(cuda, bytes));
    SW_TRY(make_event(&cuda->caller_at));
    SW_TRY(make_event(&cuda->ready_at));
    SW_TRY(make_stream(&cuda->down));
    SW_TRY(make_stream(&cuda->up));
    SW_TRY(make_stream(&cuda->pieces));
    SW_TRY(make_stream(&cuda->ready));
    return synchronize(cuda->caller);
}

sw_status sw_library_cuda_start(spillway *self) {
    if (self->cuda == NULL)
        return SW_OK;
    SW_TRY(enter(self->cuda));
    return leave(start(self->cuda, sw_library_cuda_bytes(self)));
}

static void stop_stream(CUstream *stream) {
    if (*stream == NULL)
        return;
    (void)sw_cuda_driver.stream_synchronize(*stream);
    (void)sw_cuda_driver.stream_destroy(*stream);
    *stream = NULL;
}

static void stop_event(CUevent *event) {
    if (*event != NULL)
        (void)sw_cuda_driver.event_destroy(*event);
    *event = NULL;
}

/* After a kernel that failed each call returns that error, choosing the GPU too, and what was made is still there. */
void sw_library_cuda_stop(spillway *self) {
    struct sw_library_cuda *cuda = self->cuda;
    if (cuda == NULL)
        return;
    const CUresult entered = sw_cuda_driver.push(cuda->context);
    if (sw_cuda_driver_is_gone(entered))
        return;
    CUstream *const streams[] = {&cuda->down, &cuda->up, &cuda->pieces, &cuda->ready};
    for (size_t i = 0; i < sizeof streams / sizeof streams[0]; i++)
        stop_stream(streams[i]);
    for (int i = 0; i < SLOTS; i++) {
        stop_event(&cuda->gradient[i].copied);
        stop_event(&cuda->weights[i].copied);
        stop_event(&cuda->piece[i].copied);
    }
    stop_event(&cuda->caller_at);
    stop_event(&cuda->ready_at);
    if (cuda->pinned != NULL)
        (void)sw_cuda_driver.host_free(cuda->pinned);
    cuda->pinned = NULL;
    if (entered == CUDA_SUCCESS)
        (void)leave(SW_OK);
}

void sw_library_cuda_close(spillway *self) {
    if (self->cuda == NULL)
        return;
    (void)sw_cuda_driver.release(self->cuda->device);
    pthread_mutex_destroy(&self->cuda->copying);
    free(self->cuda);
    self->cuda = NULL;
}

/* Addresses and order. */

static sw_status check_address(const struct sw_library_cuda *cuda, const void *at, const char *what, const char *name) {
    unsigned type = 0;
    int device = -1;
    if (sw_cuda_driver.pointer_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address_of(at)) != CUDA_SUCCESS ||
        type != CU_MEMORYTYPE_DEVICE)
        return sw_fail(SW_ERR_ARG,
                       "the %s of '%s' are not in the memory of a CUDA device: leave SPILLWAY_CUDA out for "
                       "host memory",
                       what, name);
    SW_TRY(sw_cuda_driver_check(
        sw_cuda_driver.pointer_attribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address_of(at)),
        "asking for a tensor's GPU"));
    return device == cuda->number ? SW_OK
                                  : sw_fail(SW_ERR_ARG,
                                            "the %s of '%s' are on CUDA device %d, and spillway_use_cuda has named "
                                            "device %d: tensors of one GPU go into a store",
                                            what, name, device, cuda->number);
}

sw_status sw_library_cuda_check(const spillway *self, const void *address, const char *what, const char *name) {
    if (self->cuda == NULL)
        return sw_fail(SW_ERR_ARG,
                       "the %s of '%s' are said to be on a CUDA device, and none was named: call spillway_use_cuda "
                       "before spillway_open",
                       what, name);
    SW_TRY(enter(self->cuda));
    return leave(check_address(self->cuda, address, what, name));
}

sw_status sw_library_cuda_handed_in(spillway *self) {
    SW_TRY(enter(self->cuda));
    return leave(order_after_caller(self->cuda, self->cuda->ready));
}

static sw_status begin(struct sw_library_cuda *cuda) {
    for (int i = 0; i < SLOTS; i++)
        cuda->gradient[i].filled = false;
    cuda->again = true;
    SW_TRY(order(cuda->ready, cuda->ready_at, cuda->down));
    return order_after_caller(cuda, cuda->up);
}

sw_status sw_library_cuda_begin(spillway *self) {
    if (self->cuda == NULL)
        return SW_OK;
    SW_TRY(enter(self->cuda));
    return leave(begin(self->cuda));
}

void sw_library_cuda_last_pass(spillway *self) {
    if (self->cuda != NULL)
        self->cuda->again = false;
}

/* Gradients, chunk by chunk. */

static bool has_gradient(const struct library_run *run) {
    return run->tensor->taken != NULL && run->tensor->taken_cuda;
}

/* Gives a slot's copies to the stream. */
static sw_status fill(spillway *self, struct slot *slot, int64_t unit, int64_t first, int64_t count) {
    struct sw_library_cuda *cuda = self->cuda;
    int64_t position = sw_library_first_run(self, unit, first);
    slot->filled = false;
    for (struct library_run run; sw_library_run_at(self, unit, position, first, count, &run); position++) {
        const int64_t elem_bytes = sw_dtype_bytes(run.tensor->taken_type);
        if (has_gradient(&run))
            SW_TRY(copy_to_host(slot->memory + run.at * (int64_t)sizeof(float),
                                (const char *)run.tensor->taken + run.from * elem_bytes, run.count * elem_bytes,
                                cuda->down));
    }
    SW_TRY(record(slot->copied, cuda->down));
    slot->unit = unit;
    slot->first = first;
    slot->count = count;
    slot->filled = true;
    return SW_OK;
}

/* A tensor's elements lie side by side from its first one in the slot on, so only another end leaves them in place. */
static bool holds(const struct slot *slot, int64_t unit, int64_t first, int64_t count) {
    return slot->filled && slot->unit == unit && slot->first == first && count <= slot->count;
}

/* Returns the chunk that will be taken behind the element `at` of a unit: the unit's next one of this process, else the
 * next unit's first, and behind the last unit the first one's if there is another pass. False: there is none. */
static bool next_chunk(const spillway *self, int64_t *unit, int64_t *at, int64_t *count) {
    for (int64_t looked = 0; looked <= self->units->count; looked++) {
        const struct sw_span own = sw_plan_span(self->plan, SW_OPTIMIZER, *unit);
        const int64_t begin = own.first_grain * SW_GRAIN_ELEMS, end = begin + own.grains * SW_GRAIN_ELEMS;
        *at = sw_max_i64(*at, begin);
        *count = sw_min_i64(LIBRARY_CHUNK_ELEMS, end - *at);
        if (*count > 0)
            return true;
        *at = 0;
        if (++*unit == self->units->count && !self->cuda->again)
            return false;
        *unit = *unit == self->units->count ? 0 : *unit;
    }
    return false;
}

static bool is_wanted(const spillway *self, int64_t unit, int64_t first, int64_t count) {
    int64_t position = sw_library_first_run(self, unit, first);
    for (struct library_run run; sw_library_run_at(self, unit, position, first, count, &run); position++)
        if (has_gradient(&run))
            return true;
    return false;
}

static sw_status fetch(spillway *self, int64_t unit, int64_t first, int64_t count, const char **out) {
    struct sw_library_cuda *cuda = self->cuda;
    const int own = holds(&cuda->gradient[1], unit, first, count) ? 1 : 0;
    struct slot *slot = &cuda->gradient[own], *other = &cuda->gradient[1 - own];
    if (!holds(slot, unit, first, count))
        SW_TRY(fill(self, slot, unit, first, count));
    int64_t next_unit = unit, next = slot->first + slot->count, next_count;
    if (next_chunk(self, &next_unit, &next, &next_count) && !holds(slot, next_unit, next, next_count) &&
        !holds(other, next_unit, next, next_count) && is_wanted(self, next_unit, next, next_count))
        SW_TRY(fill(self, other, next_unit, next, next_count));
    SW_TRY(wait_for(slot->copied));
    *out = slot->memory;
    return SW_OK;
}

sw_status sw_library_cuda_fetch(spillway *self, int64_t unit, int64_t first, int64_t count, const char **out) {
    *out = NULL;
    if (self->cuda == NULL || !is_wanted(self, unit, first, count))
        return SW_OK;
    if (count > LIBRARY_CHUNK_ELEMS)
        return sw_fail(SW_ERR_INTERNAL, "a chunk of %lld elements is larger than its staging memory", (long long)count);
    SW_TRY(enter(self->cuda));
    return leave(fetch(self, unit, first, count, out));
}

/* New weights. */

sw_status sw_library_cuda_room(spillway *self, char **out) {
    struct sw_library_cuda *cuda = self->cuda;
    *out = NULL;
    if (cuda == NULL)
        return SW_OK;
    *out = cuda->weights[cuda->next_weights].memory;
    SW_TRY(enter(cuda));
    return leave(wait_for(cuda->weights[cuda->next_weights].copied));
}

static sw_status send(spillway *self, int64_t unit, int64_t first, int64_t count) {
    struct sw_library_cuda *cuda = self->cuda;
    const struct slot *slot = &cuda->weights[cuda->next_weights];
    int64_t position = sw_library_first_run(self, unit, first);
    for (struct library_run run; sw_library_run_at(self, unit, position, first, count, &run); position++) {
        const int64_t elem_bytes = sw_dtype_bytes(run.tensor->type);
        if (run.tensor->cuda)
            SW_TRY(copy_to_device((char *)run.tensor->weights + run.from * elem_bytes,
                                  slot->memory + run.at * (int64_t)sizeof(float), run.count * elem_bytes, cuda->up));
    }
    cuda->next_weights = (cuda->next_weights + 1) % SLOTS;
    return record(slot->copied, cuda->up);
}

sw_status sw_library_cuda_send(spillway *self, int64_t unit, int64_t first, int64_t count) {
    if (self->cuda == NULL)
        return SW_OK;
    SW_TRY(enter(self->cuda));
    return leave(send(self, unit, first, count));
}

sw_status sw_library_cuda_sent(spillway *self) {
    if (self->cuda == NULL || self->cuda->up == NULL)
        return SW_OK;
    SW_TRY(enter(self->cuda));
    return leave(synchronize(self->cuda->up));
}

/* Copies of the caller's thread. */

static sw_status copy_from(struct sw_library_cuda *cuda, char *to, const char *from, int64_t bytes) {
    for (int64_t at = 0, part; at < bytes; at += part) {
        part = sw_min_i64(PIECE_BYTES, bytes - at);
        memcpy(cuda->piece[0].memory, from + at, (size_t)part);
        SW_TRY(copy_to_device(to + at, cuda->piece[0].memory, part, cuda->pieces));
        SW_TRY(synchronize(cuda->pieces));
    }
    return SW_OK;
}

sw_status sw_library_cuda_write(spillway *self, void *to, int64_t bytes, const void *from) {
    SW_TRY(enter(self->cuda));
    return leave(copy_from(self->cuda, to, from, bytes));
}

/* The pieces of a tensor, and how many of its elements were given to the stream. */
struct pieces {
    const char *tensor;
    int64_t elem_bytes, count, given;
};

/* Gives the next piece's copy to the stream, if there is one. */
static sw_status give_piece(struct sw_library_cuda *cuda, struct pieces *pieces, int number) {
    struct slot *slot = &cuda->piece[number % SLOTS];
    const int64_t count = sw_min_i64(LIBRARY_ADDED_AT_ONCE, pieces->count - pieces->given);
    if (count == 0)
        return SW_OK;
    SW_TRY(copy_to_host(slot->memory, pieces->tensor + pieces->given * pieces->elem_bytes, count * pieces->elem_bytes,
                        cuda->pieces));
    pieces->given += count;
    slot->count = count;
    return record(slot->copied, cuda->pieces);
}

static sw_status use_pieces(struct sw_library_cuda *cuda, struct pieces *pieces, sw_library_piece use, void *context) {
    SW_TRY(give_piece(cuda, pieces, 0));
    int number = 0;
    for (int64_t at = 0; at < pieces->count; number++) {
        const struct slot *slot = &cuda->piece[number % SLOTS];
        const int64_t count = slot->count;
        SW_TRY(give_piece(cuda, pieces, number + 1));
        SW_TRY(wait_for(slot->copied));
        SW_TRY(use(context, slot->memory, at, count));
        at += count;
    }
    return SW_OK;
}

sw_status sw_library_cuda_pieces(spillway *self, const void *tensor, sw_dtype type, int64_t count, bool made_by_caller,
                                 sw_library_piece use, void *context) {
    struct sw_library_cuda *cuda = self->cuda;
    struct pieces pieces = {.tensor = tensor, .elem_bytes = sw_dtype_bytes(type), .count = count};
    SW_TRY(enter(cuda));
    pthread_mutex_lock(&cuda->copying);
    sw_status status = made_by_caller ? order_after_caller(cuda, cuda->pieces) : SW_OK;
    if (status == SW_OK)
        status = use_pieces(cuda, &pieces, use, context);
    pthread_mutex_unlock(&cuda->copying);
    return leave(status);
}
