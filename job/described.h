/* A machine that is described and not here, for which `plan --machine` predicts. */
#ifndef SW_JOB_DESCRIBED_H
#define SW_JOB_DESCRIBED_H

#include "job/machine/devices.h"
#include "job/rates.h"
#include "kernels/described.h"
#include "offload/simulate/nodes.h"

/* One GPU with its share of its node: host memory, cores, drives and links are those of one rank. */
struct sw_described_machine {
    struct sw_device_description device;
    int64_t host_bytes;    /* host memory */
    struct sw_rates rates; /* the unit arrays are NULL: the described device counts them; collectives within a node */
    struct sw_node node;   /* what several nodes of such GPUs have; devices: 0 where the description has no "node" */
};

/* Which of its bounds an assumed number takes: SLOW and FAST make every part of the machine slow or fast. */
typedef enum { SW_MACHINE_EXPECTED, SW_MACHINE_SLOW, SW_MACHINE_FAST } sw_machine_bound;

/* Reads and checks a description. machine: a file, or the name of a machine that the program carries
 * (sw_shipped_machines). */
sw_status sw_described_machine_read(const char *machine, sw_machine_bound bound, struct sw_described_machine *out);

/* Sets *nodes for so many ranks: checks the one that was named, or takes the fewest that hold the ranks and divide them
 * if it is SW_OPTION_AUTO. Errors name `path`. */
sw_status sw_described_machine_nodes(const struct sw_described_machine *machine, const char *path, int64_t ranks,
                                     int64_t *nodes);

/* Returns where the ranks of a described machine are, once --nodes is resolved. */
struct sw_node_ranks sw_described_node_ranks(const struct sw_settings *settings);

/* Returns the rates of a described machine's GPUs for a model, with the collectives of all ranks and nodes. The caller
 * releases them. */
sw_status sw_described_machine_rates(const struct sw_described_machine *machine, const struct sw_settings *settings,
                                     struct sw_model *model, struct sw_device *device, struct sw_machine_rates *out);

/* Opens the described device, and this machine's CPU as the host device. Neither computes anything. The caller closes
 * both. */
sw_status sw_described_machine_devices(const struct sw_described_machine *machine, struct sw_devices *out);

#endif
