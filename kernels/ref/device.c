#include "core/arena.h"
#include "core/clock.h"
#include "kernels/ref/ref.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Ranks on the host add with the host's own code, so a host device has no SW_DEVICE_RANK_SUM. */
static sw_status run(struct sw_stream *stream, sw_device_op op, const void *args) {
    assert(stream->device->ops.op[op] != NULL);
    return stream->device->ops.op[op](stream, args);
}

void sw_ref_ops(struct sw_device_ops *ops) {
    ops->run = run;
    sw_ref_add_memory(ops);
    sw_ref_add_gemm(ops);
    sw_ref_add_layernorm(ops);
    sw_ref_add_rmsnorm(ops);
    sw_ref_add_rotate(ops);
    sw_ref_add_attention(ops);
    sw_ref_add_elementwise(ops);
    sw_ref_add_embedding(ops);
    sw_ref_add_cross_entropy(ops);
    sw_ref_add_gradient(ops);
    sw_ref_add_muon(ops);
    sw_ref_add_update(ops);
    sw_ref_add_quant(ops);
    sw_ref_add_fp8(ops);
    sw_ref_add_base_format(ops);
    sw_ref_add_experts(ops);
}

sw_status sw_ref_device_init(struct sw_device *device) {
    sw_ref_ops(&device->ops);
    device->info = (struct sw_device_info){
        .name = "ref", .isa = "plain C", .threads = 1, .threads_keep_bits = {true, true, true}, .host_memory = true};
    return SW_OK;
}

/* Memory, copies, streams and events of a device that uses the host's memory and whose calls have finished when they
 * return. */

static void close_nothing(struct sw_device *device) {
    (void)device;
}

/* Whoever needs locked host memory checks the limits; nothing here depends on it. */
static sw_status open_memory(struct sw_memory *memory) {
    struct sw_arena *arena = NULL;
    sw_status status = SW_OK;
    SW_TRY(sw_arena_create(memory->name, memory->bytes, memory->side == SW_MEMORY_HOST, NULL, &arena));
    SW_TRY_GOTO(sw_arena_take(arena, memory->bytes, &memory->base), fail);
    sw_arena_seal(arena);
    memory->backend = arena;
    return SW_OK;
fail:
    sw_arena_destroy(arena);
    return status;
}

static void close_memory(struct sw_memory *memory) {
    sw_arena_destroy(memory->backend);
}

static sw_status open_stream(struct sw_stream *stream) {
    (void)stream;
    return SW_OK;
}

static void close_stream(struct sw_stream *stream) {
    (void)stream;
}

/* An event is the time at which it was recorded. */
static sw_status open_event(struct sw_event *event) {
    event->backend = calloc(1, sizeof(int64_t));
    return event->backend == NULL ? sw_fail(SW_ERR_NOMEM, "no memory for an event") : SW_OK;
}

static void close_event(struct sw_event *event) {
    free(event->backend);
}

static sw_status record_event(struct sw_event *event, struct sw_stream *stream) {
    *(int64_t *)event->backend = sw_now_ns();
    return stream->first_error;
}

static sw_status wait_event(struct sw_event *event) {
    (void)event;
    return SW_OK;
}

static sw_status event_reached(struct sw_event *event, bool *out_reached) {
    (void)event;
    *out_reached = true;
    return SW_OK;
}

static sw_status stream_wait(struct sw_stream *stream, struct sw_event *event) {
    (void)stream;
    (void)event;
    return SW_OK;
}

static sw_status elapsed_ns(const struct sw_event *from, const struct sw_event *to, int64_t *out_ns) {
    *out_ns = *(const int64_t *)to->backend - *(const int64_t *)from->backend;
    return SW_OK;
}

static sw_status copy(struct sw_stream *stream, void *to, const void *from, int64_t bytes) {
    (void)stream;
    memcpy(to, from, (size_t)bytes);
    return SW_OK;
}

static sw_status zero(struct sw_stream *stream, void *to, int64_t bytes) {
    (void)stream;
    memset(to, 0, (size_t)bytes);
    return SW_OK;
}

/* Every call has finished when it returns. */
static sw_status synchronize(struct sw_stream *stream) {
    (void)stream;
    return SW_OK;
}

void sw_ref_add_memory(struct sw_device_ops *ops) {
    ops->close = close_nothing;
    ops->open_memory = open_memory;
    ops->close_memory = close_memory;
    ops->open_stream = open_stream;
    ops->close_stream = close_stream;
    ops->open_event = open_event;
    ops->close_event = close_event;
    ops->record_event = record_event;
    ops->wait_event = wait_event;
    ops->event_reached = event_reached;
    ops->stream_wait = stream_wait;
    ops->elapsed_ns = elapsed_ns;
    ops->copy_to_device = copy;
    ops->copy_to_host = copy;
    ops->copy_on_device = copy;
    ops->zero = zero;
    ops->synchronize = synchronize;
}
