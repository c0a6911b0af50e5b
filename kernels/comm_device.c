/* The device functions that ranks need in order to exchange a GPU's memory. */
#include "core/ranks/comm.h"
#include "kernels/device_ops.h"

#include <assert.h>
#include <stdlib.h>

struct parts {
    struct sw_stream *stream;
    struct sw_event *events[SW_COMM_REQUESTS];
};

static sw_status enter(void *context) {
    const struct parts *parts = context;
    return parts->stream->device->ops.use(parts->stream->device);
}

static sw_status sum(void *context, const struct sw_comm_sum *sum) {
    const struct parts *parts = context;
    return sw_device_run(parts->stream, SW_DEVICE_RANK_SUM, sum);
}

static sw_status copy(void *context, void *to, const void *from, int64_t bytes) {
    const struct parts *parts = context;
    return sw_copy_on_device(parts->stream, to, from, bytes);
}

static sw_status mark(void *context, int number) {
    const struct parts *parts = context;
    return sw_event_record(parts->events[number], parts->stream);
}

static sw_status reached(void *context, int number, bool *out_reached) {
    const struct parts *parts = context;
    return sw_event_reached(parts->events[number], out_reached);
}

sw_status sw_device_comm_open(struct sw_stream *stream, struct sw_comm_device *out) {
    assert(stream != NULL && out != NULL && !stream->device->info.host_memory);
    struct parts *parts = calloc(1, sizeof *parts);
    if (parts == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the ranks' work on the GPU");
    parts->stream = stream;
    *out = (struct sw_comm_device){.context = parts,
                                   .stream = stream->backend,
                                   .enter = enter,
                                   .sum = sum,
                                   .copy = copy,
                                   .mark = mark,
                                   .reached = reached};
    sw_status status;
    for (int i = 0; i < SW_COMM_REQUESTS; i++)
        SW_TRY_GOTO(sw_event_open(stream->device, &parts->events[i]), failed);
    return SW_OK;
failed:
    sw_device_comm_close(out);
    return status;
}

void sw_device_comm_close(struct sw_comm_device *device) {
    struct parts *parts = device->context;
    if (parts == NULL)
        return;
    for (int i = 0; i < SW_COMM_REQUESTS; i++)
        sw_event_close(parts->events[i]);
    free(parts);
    *device = (struct sw_comm_device){0};
}
