/* Where a store is, by --nvme DIR[:SIZE]: folders or block devices, and what it may take of each. With several ranks
 * each has a store of its own: in a folder of its own below DIR, or on devices of its own. */
#ifndef SW_TRAIN_SETTINGS_PLACES_H
#define SW_TRAIN_SETTINGS_PLACES_H

#include "core/status.h"
#include "io/store/store.h"
#include "train/settings/options.h"

#include <stdbool.h>

struct sw_places {
    int count;
    const char *path[SW_STORE_MAX_FILES];   /* owned */
    int64_t most_bytes[SW_STORE_MAX_FILES]; /* 0: no limit */
};

/* Whose store it is. Stores of another number of ranks, or that are shared out otherwise, lie beside each other. */
struct sw_store_owner {
    int64_t rank, ranks; /* ranks 0: alone */
    int64_t local_rank;  /* among those of its machine */
    bool whole;          /* every rank has the whole optimizer (--zero 0) */
};

/* Without --nvme, the folder alone. What stands behind the last colon is a limit where it is a size, else part of the
 * name. {rank} and {local_rank} in a name are those of the owner (NULL: alone). */
sw_status sw_places_of(const struct sw_option_list *nvme, const char *folder, const struct sw_store_owner *owner,
                       struct sw_places *out);
/* The same with every folder replaced by the owner's in it, "rank-R-of-N", where there are several ranks. */
sw_status sw_places_of_rank(const struct sw_option_list *nvme, const char *folder, const struct sw_store_owner *owner,
                            struct sw_places *out);
/* Makes those folders, for their user only, where they are not there; removes them where they are empty. */
sw_status sw_places_make(const struct sw_places *places, const struct sw_store_owner *owner);
void sw_places_unmake(const struct sw_places *places, const struct sw_store_owner *owner);
/* Paths as they stand, without limits. */
sw_status sw_places_exactly(const struct sw_option_list *paths, struct sw_places *out);
void sw_places_release(struct sw_places *places);

/* The characters of the path in "DIR:SIZE", without the limit. */
int sw_place_path_chars(const char *text);

#endif
