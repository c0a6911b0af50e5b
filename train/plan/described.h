/* A machine that is described and not here, for which `plan --machine` predicts. */
#ifndef SW_TRAIN_PLAN_DESCRIBED_H
#define SW_TRAIN_PLAN_DESCRIBED_H

#include "kernels/described.h"
#include "offload/simulate/rates.h"
#include "train/devices/devices.h"

struct sw_described_machine {
    struct sw_device_description device;
    int64_t host_bytes;    /* host memory */
    struct sw_rates rates; /* the unit arrays are NULL: the described device counts them */
};

/* Which of its bounds an assumed number takes: SLOW and FAST make every part of the machine slow or fast. */
typedef enum { SW_MACHINE_EXPECTED, SW_MACHINE_SLOW, SW_MACHINE_FAST } sw_machine_bound;

/* Reads and checks a description. machine: a file, or the name of a machine that the program carries
 * (sw_shipped_machines). */
sw_status sw_described_machine_read(const char *machine, sw_machine_bound bound, struct sw_described_machine *out);

/* Opens the described device, and this machine's CPU as the host device. Neither computes anything. The caller closes
 * both. */
sw_status sw_described_machine_devices(const struct sw_described_machine *machine, struct sw_devices *out);

#endif
