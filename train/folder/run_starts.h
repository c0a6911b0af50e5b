/* The starts of a run: each process that trains it puts an id of its own into run.json, and then into every commit. So
 * a store whose commit has an id that run.json lacks was trained by way of another copy of the run's folder. */
#ifndef SW_TRAIN_FOLDER_RUN_STARTS_H
#define SW_TRAIN_FOLDER_RUN_STARTS_H

#include "train/folder/run.h"

/* Adds a start. found: the one that made the last commit, or empty; those between never committed, and are dropped. */
sw_status sw_run_add_start(struct sw_run *run, const char *found, const char *id);
/* The newest start's id, or an empty text. */
const char *sw_run_last_start(const struct sw_run *run);
/* Refuses a store whose last commit is of a start that this run does not know. */
sw_status sw_run_check_start(const struct sw_run *run, const struct sw_store *store, const char *place);

#endif
