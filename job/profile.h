/* The profile of this machine: what its device, its memory and its drives reach, measured once in less than a minute
 * and kept in the user's cache folder (core/files/cache.h). It prices any model without running it. A profile belongs
 * to a processor or GPU, a driver, a number of threads, a precision, a number of ranks and a build of the program;
 * where one of these changes, it is measured again. The drives' rates are kept apart from it, for each set of folders.
 */
#ifndef SW_JOB_PROFILE_H
#define SW_JOB_PROFILE_H

#include "core/files/cache.h"
#include "job/rates.h"
#include "kernels/op_times.h"

#include <jansson.h>

struct sw_profile {
    struct sw_rates rates;     /* without the units' seconds; those of the drives are 0 if they were not asked for */
    struct sw_op_times *times; /* what ops take on the compute device */
    bool known;                /* false: only_kept was asked for, and the device's and the memory's part is not kept */
    bool measured;             /* measured now, rather than read */
    bool doubted;              /* only_kept was asked for, and a run has departed from what is kept */
    char path[SW_CACHE_PATH_CHARS]; /* the file that keeps the device's and the memory's part; "": nothing keeps it */
    char drives_path[SW_CACHE_PATH_CHARS]; /* the file that keeps the drives' part */
};

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
void sw_profile_release(struct sw_profile *profile);

/* Marks the part of a profile in this file as doubtful, because a run has departed from it: whoever may measure does so
 * again. Does nothing for "", and where the file cannot be changed. */
void sw_profile_doubt(const char *path);

/* Prices the target's model by the profile, which is known: counts the seconds of each unit's ops. The caller releases
 * the rates. */
sw_status sw_profile_price(const struct sw_profile *profile, const struct sw_rates_target *target,
                           struct sw_machine_rates *out);

/* The profile that rates are from. */
struct sw_profile_source {
    char machine_path[SW_CACHE_PATH_CHARS], drives_path[SW_CACHE_PATH_CHARS]; /* its parts; "": not kept */
    bool doubted;                                                             /* an earlier run has departed from it */
};

struct sw_profile_rates {
    struct sw_machine_rates rates;
    struct sw_profile_source source;
    bool known; /* false: only_kept was asked for, and no profile is kept */
};

/* Finds the profile and prices the target's model by it. Ranks call this together, and fail together. The caller
 * releases the rates. */
sw_status sw_profile_rates(const struct sw_rates_target *target, const struct sw_profile_need *need,
                           struct sw_profile_rates *out);

#endif
