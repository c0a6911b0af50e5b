/* Stands in for the CUDA device where the program is built without it. */
#include "kernels/device_ops.h"

bool sw_device_has_cuda(void) {
    return false;
}

int sw_device_gpus(void) {
    return 0;
}

sw_status sw_cuda_device_init(struct sw_device *device, const char *number) {
    (void)device;
    (void)number;
    return sw_fail(SW_ERR_UNSUPPORTED,
                   "--device cuda: this program was built without CUDA: nvcc was not found then, or not wanted; "
                   "install the CUDA Toolkit (12 or newer) and build again, or use --device cpu");
}
