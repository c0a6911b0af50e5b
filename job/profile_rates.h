/* The rates of a model by this machine's profile, the same on all ranks. */
#ifndef SW_JOB_PROFILE_RATES_H
#define SW_JOB_PROFILE_RATES_H

#include "job/profile.h"

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
