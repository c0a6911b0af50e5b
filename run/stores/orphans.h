/* Orphaned stores of a run: superseded, or not yet adopted. run.json lists them by id and place until they are removed.
 */
#ifndef SW_RUN_STORES_ORPHANS_H
#define SW_RUN_STORES_ORPHANS_H

#include "core/status.h"
#include "job/machine/ranks.h"
#include "run/folder/run.h"

#include <stdint.h>

/* A function called for each place of each store of a run, until one call fails. */
typedef sw_status (*sw_place_visitor)(void *context, int64_t rank, const char *place);
sw_status sw_stores_visit(const char *folder, const struct sw_run *run, sw_place_visitor visit, void *context);

/* Removes a store from a place as sw_store_remove does, and the rank's folder there if that is empty. */
sw_status sw_stores_remove_at(const char *place, const char *id, int64_t last_step);

/* Adds the stores of `of` to the run's orphans, to be removed if they have no step later than last_step. */
sw_status sw_orphans_add(const char *folder, const struct sw_run *of, int64_t last_step, struct sw_run *run);
/* Removes the stores of `of` from the run's orphans. */
void sw_orphans_forget(struct sw_run *run, const struct sw_run *of);
/* Deletes the orphaned stores by their ids, and forgets those that are gone. The run's own stores must be open and
 * whole. All ranks call it together. */
sw_status sw_orphans_remove(struct sw_ranks *ranks, const char *folder, struct sw_run *run);

#endif
