/* The device that computes, and the one that updates state in the host's memory. */
#ifndef SW_TRAIN_DEVICES_DEVICES_H
#define SW_TRAIN_DEVICES_DEVICES_H

#include "kernels/device.h"

/* --device, in the order of its choices. */
typedef enum { SW_DEVICE_AUTO, SW_DEVICE_CPU, SW_DEVICE_CUDA } sw_device_choice;

struct sw_devices {
    struct sw_device *compute;
    struct sw_device *host; /* the CPU; the same one where that computes */
};

/* auto is CUDA where it is built in and a GPU can be used, else the CPU. threads: of the CPU, 0 for all cores. Ranks of
 * a machine take its GPUs in turn; a launcher that shows each of them only its own has chosen already. */
sw_status sw_devices_open(sw_device_choice which, int threads, int local_rank, struct sw_devices *out);
void sw_devices_close(struct sw_devices *devices);

/* Bytes that a plan may take of a GPU's free memory: the rest is for what its libraries load and take later on. */
int64_t sw_devices_gpu_budget(const struct sw_device_info *gpu);

/* Returns the properties of the computing device, with the number of threads of the host. */
struct sw_device_info sw_devices_info(const struct sw_devices *devices);

#endif
