#include "tests/kernels/emulated_device.h"

#include "kernels/cuda/emulation/machine.h"
#include "kernels/cuda/kernel_ops.h"
#include "kernels/device_ops.h"
#include "kernels/ref/ref.h"

#include <stdlib.h>

cudaStream_t sw_cuda_stream_handle(const struct sw_stream *stream) {
    (void)stream;
    return NULL;
}

sw_status sw_cuda_launched(struct sw_stream *stream, const char *op) {
    (void)stream;
    const char *error = sw_emulation_take_error();
    return error == NULL ? SW_OK : sw_fail(SW_ERR_INTERNAL, "the emulated op %s failed in %s", op, error);
}

sw_status emulated_device_open(struct sw_device **out) {
    struct sw_device *device = calloc(1, sizeof *device);
    *out = device;
    if (device == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for an emulated device");
    sw_ref_ops(&device->ops);
    sw_cuda_add_kernels(&device->ops);
    device->info =
        (struct sw_device_info){.name = "cuda-emulation", .isa = "CUDA on the host", .threads = 1, .host_memory = true};
    return SW_OK;
}
