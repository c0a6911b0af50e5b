/* Makes the store that a plan needs, with its scratch area, in the places of --nvme. */
#ifndef SW_JOB_NEW_STORE_H
#define SW_JOB_NEW_STORE_H

#include "io/store/store.h"
#include "job/settings/places.h"
#include "offload/plan/plan.h"

struct sw_new_store {
    const struct sw_plan *plan;
    const struct sw_places *places;
    const char *id;                                       /* as in struct sw_store_spec */
    bool allow_buffered, allow_overwrite_device, unnamed; /* as in struct sw_store_spec */
};

/* Refuses sizes in --nvme that are smaller than the store needs. Touches nothing. */
sw_status sw_new_store_check(const struct sw_new_store *wanted);
/* How the drives of a store are looked at. */
struct sw_drive_look {
    bool named;    /* the store will be in these places, so files must be possible there; false: only the room counts */
    int64_t ranks; /* ranks whose stores, of the same size, go to the same places; at least 1 */
};
/* Does the same, and refuses places that do not exist, in which no store can be made, or whose file systems lack the
 * room (SW_ERR_SPACE). Leaves nothing there. */
sw_status sw_new_store_check_drives(const struct sw_new_store *wanted, const struct sw_drive_look *look);
sw_status sw_new_store_create(const struct sw_new_store *wanted, sw_store_progress progress, void *context,
                              struct sw_store **out);

#endif
