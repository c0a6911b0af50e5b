/* A machine that is not here, described in a file: what `plan --machine` predicts for. */
#ifndef SW_TRAIN_PLAN_DESCRIBED_H
#define SW_TRAIN_PLAN_DESCRIBED_H

#include "kernels/described.h"
#include "offload/simulate/rates.h"
#include "train/devices/devices.h"

struct sw_described_machine {
    struct sw_device_description device;
    int64_t host_bytes;    /* of memory */
    struct sw_rates rates; /* without the units' seconds, which the device counts */
};

/* Reads and checks the file (bench/machines has some). */
sw_status sw_described_machine_read(const char *path, struct sw_described_machine *out);

/* What computes there, and this machine's CPU in the place of that one's: nothing is computed on it either. The caller
 * closes both. */
sw_status sw_described_machine_devices(const struct sw_described_machine *machine, struct sw_devices *out);

#endif
