#include "core/size.h"
#include "kernels/described/described.h"

#include <math.h>
#include <stdlib.h>

sw_status sw_described_count(struct sw_stream *stream, double flops, double flops_per_s, double bytes) {
    struct sw_described *described = stream->device->backend;
    const double arithmetic_s = flops > 0.0 ? flops / flops_per_s : 0.0;
    described->counted_s += fmax(arithmetic_s, bytes / described->what.memory_bytes_per_s) + described->what.op_s;
    return SW_OK;
}

double sw_device_counted_s(const struct sw_device *device) {
    return ((const struct sw_described *)device->backend)->counted_s;
}

static void close_described(struct sw_device *device) {
    free(device->backend);
}

sw_status sw_device_open_described(const struct sw_device_description *description, struct sw_device **out) {
    struct sw_device *device = calloc(1, sizeof *device);
    struct sw_described *described = calloc(1, sizeof *described);
    *out = NULL;
    if (device == NULL || described == NULL) {
        free(device);
        free(described);
        return sw_fail(SW_ERR_NOMEM, "no memory for the described device");
    }
    described->what = *description;
    device->backend = described;
    device->ops.close = close_described;
    sw_described_add_memory(&device->ops);
    sw_described_add_ops(&device->ops);
    device->info = (struct sw_device_info){.name = "described",
                                           .isa = "",
                                           .model = described->what.name,
                                           .bf16_fast = true,
                                           .described = true,
                                           .asynchronous = true,
                                           .memory_bytes = description->memory_bytes};
    *out = device;
    return SW_OK;
}
