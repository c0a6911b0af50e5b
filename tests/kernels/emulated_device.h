/* The device "cuda-emulation": the ops of the CUDA kernels run by the emulation on the host, in the host's memory, with
 * the matrix products of the reference. */
#ifndef SW_TESTS_KERNELS_EMULATED_DEVICE_H
#define SW_TESTS_KERNELS_EMULATED_DEVICE_H

#include "kernels/device.h"

/* The caller closes it by sw_device_close. */
sw_status emulated_device_open(struct sw_device **out);

#endif
