/* The places of a store, from --nvme DIR[:SIZE]: folders or block devices, and the bytes that the store may take in
 * each. With several ranks, each rank has a store of its own, in its own folder below DIR or on its own devices. */
#ifndef SW_JOB_SETTINGS_PLACES_H
#define SW_JOB_SETTINGS_PLACES_H

#include "core/status.h"
#include "io/store/store.h"
#include "job/settings/options.h"

#include <stdbool.h>

struct sw_places {
    int count;
    const char *path[SW_STORE_MAX_FILES];   /* owned */
    int64_t most_bytes[SW_STORE_MAX_FILES]; /* limit in bytes; 0: no limit */
};

/* The rank that a store belongs to. Stores for another number of ranks, another sharding or another format are in
 * folders of other names next to each other. */
struct sw_store_owner {
    int64_t rank, ranks;           /* ranks 0: a single rank */
    int64_t local_rank;            /* number among the ranks of its machine */
    int64_t tensor_ranks;          /* size of groups, whose ranks each have a part of the state; 0 or 1: no groups */
    int64_t expert_ranks;          /* members of a group that share out experts; 0 or 1: a tensor group */
    const char *split;             /* layers of each pipeline stage, "12,10,10"; NULL or "": no pipeline */
    bool joined;                   /* by an older version (struct sw_run) */
    bool whole;                    /* every rank has the whole optimizer state (--zero 0) */
    sw_optimizer_format optimizer; /* format of the optimizer state */
};

/* Returns the places that --nvme names, or only `folder` without --nvme. The text after the last colon is a limit,
 * unless it cannot be meant as a size or a folder or device has the whole name. {rank} and {local_rank} in a name
 * become the owner's numbers (NULL: a single rank). */
sw_status sw_places_of(const struct sw_option_list *nvme, const char *folder, const struct sw_store_owner *owner,
                       struct sw_places *out);
/* Writes the name of the owner's folder in each place, such as "rank-0-of-2". The name is "" for fp32 state of a single
 * rank, which is in the places themselves. */
enum { SW_OWNER_FOLDER_CHARS = 128 };
void sw_places_folder_name(const struct sw_store_owner *owner, char name[SW_OWNER_FOLDER_CHARS]);
/* Returns the same places with the owner's folder, if it has one, appended to each. */
sw_status sw_places_of_rank(const struct sw_option_list *nvme, const char *folder, const struct sw_store_owner *owner,
                            struct sw_places *out);
/* Makes the owner's folders that do not exist, with mode 0700. */
sw_status sw_places_make(const struct sw_places *places, const struct sw_store_owner *owner);
/* Tells whether the ranks of a machine have the same places: no name in --nvme contains the number of a rank. */
bool sw_places_are_shared(const struct sw_option_list *nvme);
/* Returns the paths as they are, without looking for limits in them. */
sw_status sw_places_exactly(const struct sw_option_list *paths, struct sw_places *out);
void sw_places_release(struct sw_places *places);

/* Refuses more places than a store may have, and a "DIR:SIZE" whose size is invalid. */
sw_status sw_places_check(const struct sw_option_list *nvme);
/* Tells whether a name would be read as DIR:SIZE if no folder had that name. */
bool sw_place_ends_like_limit(const char *name);
/* Returns the length of DIR in "DIR:SIZE". */
int sw_place_path_chars(const char *text);

#endif
