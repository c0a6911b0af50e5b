/* Memory, streams and events: the wrappers that make the objects and dispatch. */
#include "core/size.h"
#include "kernels/device.h"
#include "kernels/device_ops.h"

#include <assert.h>
#include <stdlib.h>

sw_status sw_memory_open(struct sw_device *device, const char *name, sw_memory_side side, int64_t bytes,
                         struct sw_memory **out) {
    assert(device != NULL && bytes >= 0 && out != NULL);
    *out = NULL;
    struct sw_memory *memory = calloc(1, sizeof *memory);
    if (memory == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the %s tier's handle", name);
    *memory = (struct sw_memory){.device = device,
                                 .name = name,
                                 .side = side,
                                 .bytes = sw_round_up(sw_max_i64(bytes, 1), SW_BUFFER_ALIGN_BYTES)};
    const sw_status status = device->ops.open_memory(memory);
    if (status != SW_OK) {
        free(memory);
        return status;
    }
    *out = memory;
    return SW_OK;
}

void *sw_memory_base(const struct sw_memory *memory) {
    return memory->base;
}

int64_t sw_memory_bytes(const struct sw_memory *memory) {
    return memory->bytes;
}

void sw_memory_close(struct sw_memory *memory) {
    if (memory == NULL)
        return;
    memory->device->ops.close_memory(memory);
    free(memory);
}

sw_status sw_stream_open(struct sw_device *device, struct sw_stream **out) {
    assert(device != NULL && out != NULL);
    *out = NULL;
    struct sw_stream *stream = calloc(1, sizeof *stream);
    if (stream == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for a stream");
    stream->device = device;
    const sw_status status = device->ops.open_stream(stream);
    if (status != SW_OK) {
        free(stream);
        return status;
    }
    *out = stream;
    return SW_OK;
}

void sw_stream_close(struct sw_stream *stream) {
    if (stream == NULL)
        return;
    stream->device->ops.close_stream(stream);
    free(stream);
}

sw_status sw_stream_synchronize(struct sw_stream *stream) {
    const sw_status status = stream->device->ops.synchronize(stream);
    return stream->first_error != SW_OK ? stream->first_error : status;
}

sw_status sw_event_open(struct sw_device *device, struct sw_event **out) {
    assert(device != NULL && out != NULL);
    *out = NULL;
    struct sw_event *event = calloc(1, sizeof *event);
    if (event == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for an event");
    event->device = device;
    const sw_status status = device->ops.open_event(event);
    if (status != SW_OK) {
        free(event);
        return status;
    }
    *out = event;
    return SW_OK;
}

void sw_event_close(struct sw_event *event) {
    if (event == NULL)
        return;
    event->device->ops.close_event(event);
    free(event);
}

sw_status sw_event_record(struct sw_event *event, struct sw_stream *stream) {
    assert(event->device == stream->device);
    return event->device->ops.record_event(event, stream);
}

sw_status sw_event_wait(struct sw_event *event) {
    return event->device->ops.wait_event(event);
}

sw_status sw_event_reached(struct sw_event *event, bool *out_reached) {
    assert(out_reached != NULL);
    return event->device->ops.event_reached(event, out_reached);
}

sw_status sw_stream_wait(struct sw_stream *stream, struct sw_event *event) {
    assert(event->device == stream->device);
    return stream->device->ops.stream_wait(stream, event);
}

sw_status sw_event_elapsed_ns(const struct sw_event *from, const struct sw_event *to, int64_t *out_ns) {
    assert(from->device == to->device && out_ns != NULL);
    return from->device->ops.elapsed_ns(from, to, out_ns);
}
