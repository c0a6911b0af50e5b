/* Where a store is, by --nvme DIR[:SIZE]: folders or block devices, and what it may take of each. */
#ifndef SW_TRAIN_PLACES_H
#define SW_TRAIN_PLACES_H

#include "core/status.h"
#include "io/store.h"
#include "train/options.h"

struct sw_places {
    int count;
    const char *path[SW_STORE_MAX_FILES];   /* owned */
    int64_t most_bytes[SW_STORE_MAX_FILES]; /* 0: no limit */
};

/* Without --nvme, the folder alone. What stands behind the last colon is a limit where it is a size, else part of the
 * name. */
sw_status sw_places_of(const struct sw_option_list *nvme, const char *folder, struct sw_places *out);
void sw_places_release(struct sw_places *places);

/* The characters of the path in "DIR:SIZE", without the limit. */
int sw_place_path_chars(const char *text);

#endif
