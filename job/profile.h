/* The profile of a machine: what its device, memory, drives and links reach, by which any model is priced without
 * running it. This machine is measured once, in less than a minute, and its profile is kept in the user's cache folder
 * (core/files/cache.h). It belongs to a processor or GPU, a driver, a number of threads, a precision, a number of ranks
 * and a build of the program; where one of these changes, it is measured again. The drives' rates are kept apart from
 * it, for each set of folders. Another machine is described, for `plan --machine`. */
#ifndef SW_JOB_PROFILE_H
#define SW_JOB_PROFILE_H

#include "core/files/cache.h"
#include "job/machine/devices.h"
#include "job/rates.h"
#include "kernels/described.h"
#include "kernels/op_times.h"
#include "offload/simulate/nodes.h"

#include <jansson.h>

/* Where a profile is kept. */
struct sw_profile_source {
    char machine_path[SW_CACHE_PATH_CHARS]; /* the file of the device's and the memory's part; "": nothing keeps it */
    char drives_path[SW_CACHE_PATH_CHARS];  /* the file of the drives' part */
    bool doubted;                           /* only_kept was asked for, and a run has departed from what is kept */
};

/* A described machine is one GPU with its share of its node: host memory, cores, drives and links are those of one
 * rank. */
struct sw_profile {
    struct sw_device_description device; /* counts the seconds of ops */
    struct sw_rates rates;     /* without the units' seconds, and collectives within a node; a measured machine's drives
                                  have 0 if they were not asked for */
    int64_t host_bytes;        /* host memory of a described machine */
    struct sw_node node;       /* what several described nodes have; devices: 0 where the machine was measured, or its
                                  description has no "node" */
    struct sw_op_times *times; /* measured ops on the compute device; NULL: the machine is described */
    bool known;                /* false: only_kept was asked for, and the device's and the memory's part is not kept */
    bool measured;             /* measured now, rather than read */
    struct sw_profile_source source;
};
void sw_profile_release(struct sw_profile *profile);

struct sw_profile_need {
    bool drives;     /* with the rates of the target's directories */
    bool again;      /* measure even where a profile is kept */
    bool only_kept;  /* measure nothing: parts that are not kept are not known, and the drives' rates are 0 */
    const char *why; /* ends the message that this machine is measured: ", to choose --order"; NULL: "" */
};
/* Finds the profile for the target's devices, threads, precision and ranks, or measures it and keeps it. Warns if the
 * profile cannot be kept. Ranks call this together: they measure at once, and rank 0 has what is kept. The caller
 * releases the profile. */
sw_status sw_profile_find(const struct sw_rates_target *target, const struct sw_profile_need *need,
                          struct sw_profile *out);
/* Reads the device's and the memory's part from an entry of the cache; profile->times was created. SW_ERR_CORRUPT or
 * SW_ERR_ARG says what is wrong with the entry. */
sw_status sw_profile_from_json(const json_t *entry, struct sw_profile *profile);

/* Marks the part of a profile in this file as doubtful, because a run has departed from it: whoever may measure does so
 * again. Does nothing for "", and where the file cannot be changed. */
void sw_profile_doubt(const char *path);

/* Which of its bounds an assumed number takes: SLOW and FAST make every part of the machine slow or fast. */
typedef enum { SW_MACHINE_EXPECTED, SW_MACHINE_SLOW, SW_MACHINE_FAST } sw_machine_bound;

/* Reads and checks a description. machine: a file, or the name of a machine that the program carries
 * (sw_shipped_machines). There is nothing to release. */
sw_status sw_profile_describe(const char *machine, sw_machine_bound bound, struct sw_profile *out);

/* Sets *nodes for so many ranks: checks the one that was named, or takes the fewest that hold the ranks and divide them
 * if it is SW_OPTION_AUTO. Errors name `path`. */
sw_status sw_profile_fit_nodes(const struct sw_profile *profile, const char *path, int64_t ranks, int64_t *nodes);

/* Opens the described device, and this machine's CPU as the host device. Neither computes anything. The caller closes
 * both. */
sw_status sw_profile_open_devices(const struct sw_profile *profile, struct sw_devices *out);

/* Prices a model of these settings by the profile, which is known: counts the seconds of each unit's ops, and adds the
 * collectives of all ranks and nodes. The caller releases the rates. */
sw_status sw_profile_price(const struct sw_profile *profile, const struct sw_settings *settings,
                           const struct sw_model_config *config, struct sw_machine_rates *out);

#endif
