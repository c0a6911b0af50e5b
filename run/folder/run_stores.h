/* Finds and opens the stores of a run, one for each rank. */
#ifndef SW_RUN_FOLDER_RUN_STORES_H
#define SW_RUN_FOLDER_RUN_STORES_H

#include "core/status.h"
#include "io/store/store.h"
#include "job/settings/places.h"
#include "run/folder/run.h"

#include <jansson.h>

/* Returns where a rank's store is: in the places of `moved` if it has any (it may be NULL), else where run.json says.
 */
sw_status sw_run_places(const char *folder, const struct sw_run *run, int64_t rank, const struct sw_option_list *moved,
                        struct sw_places *out);

/* Opens a rank's store in these places to train with it. Refuses a store of another run. */
sw_status sw_run_open_places(const struct sw_places *places, const struct sw_run *run, int64_t rank, int64_t most_step,
                             struct sw_store **out);

/* Tells whether a store holds the units of this model. */
struct sw_units;
bool sw_run_store_is_of(const struct sw_store *store, const struct sw_units *units);

/* All stores of a run, opened to be read (sw_store_open_to_read) at the newest step that every one has. */
struct sw_store_set {
    int count;
    struct sw_store **store;
};
sw_status sw_run_open_stores(const char *folder, const struct sw_run *run, const struct sw_option_list *moved,
                             struct sw_store_set *out);
/* Reads run.json and opens its stores. run must be zero; the caller releases it in any case. Any failure while another
 * process trains the run is SW_ERR_OVERTAKEN. */
sw_status sw_run_open_to_read(const char *folder, const struct sw_option_list *moved, struct sw_run *run,
                              struct sw_store_set *out);
void sw_store_set_close(struct sw_store_set *set);

/* Convert the stores of a run to and from run.json. */
json_t *sw_run_stores_to_json(const struct sw_run_store *stores, int64_t count);
json_t *sw_run_left_to_json(const struct sw_run *run);
/* Adds the format of the stores to run.json, where it is not fp32. */
void sw_run_optimizer_to_json(const struct sw_run *run, json_t *root);
/* Reads a list of strings, which is empty where the object lacks it. */
sw_status sw_run_list_from_json(const json_t *object, const char *name, const char *path, struct sw_option_list *out);
sw_status sw_run_stores_from_json(const json_t *root, const char *path, struct sw_run *run);

#endif
