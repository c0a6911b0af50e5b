/* The devices of a process: one that computes, and the CPU, which updates state in host memory. */
#ifndef SW_JOB_MACHINE_DEVICES_H
#define SW_JOB_MACHINE_DEVICES_H

#include "kernels/device.h"

/* --device, in the order of its choices. */
typedef enum { SW_DEVICE_AUTO, SW_DEVICE_CPU, SW_DEVICE_CUDA } sw_device_choice;

struct sw_devices {
    struct sw_device *compute;
    struct sw_device *host; /* the CPU; equal to `compute` if the CPU computes */
};

/* Opens the devices. AUTO is the GPU, or the CPU if there is no GPU or driver or CUDA is not built in; a GPU that
 * cannot be used is refused. threads: CPU threads; 0: all cores. The ranks of a machine take its GPUs in turn by
 * local_rank, unless the launcher shows each rank only its own. */
sw_status sw_devices_open(sw_device_choice which, int threads, int local_rank, struct sw_devices *out);
void sw_devices_close(struct sw_devices *devices);

/* Returns the bytes of a GPU's free memory that a plan may take. The rest is for libraries, which load and allocate
 * later. */
int64_t sw_devices_gpu_budget(const struct sw_device_info *gpu);

/* Returns the properties of the computing device, with the host's number of threads. */
struct sw_device_info sw_devices_info(const struct sw_devices *devices);

/* Finds the version of this machine's NVIDIA driver. */
enum { SW_DRIVER_VERSION_CHARS = 256 };

/* Writes "535.129.03", "of unknown version", or an empty text if there is no driver. root: the prefix of /proc
 * (core/machine.h). */
void sw_driver_version(const char *root, char out[SW_DRIVER_VERSION_CHARS]);

#endif
