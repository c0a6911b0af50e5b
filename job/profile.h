/* The profile of a machine: what its device, memory, drives and links achieve, by which any model is priced without
 * running it. This machine is measured once, in less than a minute, and the profile is kept in the user's cache folder
 * (core/files/cache.h). It belongs to a processor or GPU, a driver, a number of threads, a precision, a number of ranks
 * and a build of the program; if one of these changes, it is measured again. The drives' rates are kept separately, per
 * set of folders. Another machine is described, for `plan --machine`. */
#ifndef SW_JOB_PROFILE_H
#define SW_JOB_PROFILE_H

#include "core/files/cache.h"
#include "job/machine/devices.h"
#include "job/rates.h"
#include "kernels/described.h"
#include "offload/simulate/nodes.h"

#include <jansson.h>

/* Where a profile is kept. */
struct sw_profile_source {
    char machine_path[SW_CACHE_PATH_CHARS]; /* file of the part for device and memory; "": it is not kept */
    char drives_path[SW_CACHE_PATH_CHARS];  /* file of the part for drives */
    bool doubted;                           /* only_kept was set, and a run has departed from the kept profile */
};

/* A profile, measured or described. A described machine is one GPU with its share of the node: host memory, cores,
 * drives and links of one rank. */
struct sw_profile {
    struct sw_device_description device; /* gives the seconds of ops */
    struct sw_rates rates; /* without the units' seconds and the collectives within a node; drives have 0 if a measured
                              machine was not asked for them */
    int64_t host_bytes;    /* host memory of a described machine */
    struct sw_node node;   /* described nodes; devices 0: the machine was measured, or its description has no "node" */
    struct sw_op_times *times; /* measured ops on the compute device; NULL: the machine is described */
    bool known;                /* false: only_kept was set, and the part for device and memory is not kept */
    bool measured;             /* measured now, not read */
    struct sw_profile_source source;
};
void sw_profile_release(struct sw_profile *profile);

struct sw_profile_need {
    bool drives;     /* include the rates of the target's directories */
    bool again;      /* measure even if a profile is kept */
    bool only_kept;  /* measure nothing: parts that are not kept are unknown, and the drives' rates are 0 */
    const char *why; /* end of the message that this machine is measured, such as ", to choose --order"; NULL: "" */
};
/* Finds the profile for the target's devices, threads, precision and ranks, or measures and keeps it. Warns if it
 * cannot be kept. All ranks call it together: they measure at once, and rank 0 keeps the result. The caller releases
 * the profile. */
sw_status sw_profile_find(const struct sw_rates_target *target, const struct sw_profile_need *need,
                          struct sw_profile *out);
/* Reads the part for device and memory from an entry of the cache into a profile whose `times` exists. SW_ERR_CORRUPT
 * or SW_ERR_ARG says what is wrong with the entry. */
sw_status sw_profile_from_json(const json_t *entry, struct sw_profile *profile);

/* Marks the profile's part in this file as doubtful, because a run has departed from it: the next command that may
 * measure does so. Does nothing for "", or if the file cannot be changed. */
void sw_profile_doubt(const char *path);

/* Which bound an assumed number takes: SLOW and FAST make every part of the machine slow or fast. */
typedef enum { SW_MACHINE_EXPECTED, SW_MACHINE_SLOW, SW_MACHINE_FAST } sw_machine_bound;

/* Reads and checks a description. machine: a file, or the name of a shipped machine (sw_shipped_machines). There is
 * nothing to release. */
sw_status sw_profile_describe(const char *machine, sw_machine_bound bound, struct sw_profile *out);

/* Sets *nodes for this many ranks. SW_OPTION_AUTO becomes the fewest nodes that hold the ranks and divide them; a
 * number is checked. Errors name `path`. */
sw_status sw_profile_fit_nodes(const struct sw_profile *profile, const char *path, int64_t ranks, int64_t *nodes);

/* Opens the described device, and this machine's CPU as the host device. Neither computes anything. The caller closes
 * both. */
sw_status sw_profile_open_devices(const struct sw_profile *profile, struct sw_devices *out);

/* Prices a model of these settings by a known profile: counts the seconds of each unit's ops, and adds the collectives
 * of all ranks and nodes. The caller releases the rates. */
sw_status sw_profile_price(const struct sw_profile *profile, const struct sw_settings *settings,
                           const struct sw_model_config *config, struct sw_machine_rates *out);

#endif
