/* The starts of a run. Each process that trains it adds an id to run.json and then puts the id into every commit. A
 * store whose last commit has an id that run.json lacks was trained through another copy of the run's folder. */
#ifndef SW_RUN_FOLDER_RUN_STARTS_H
#define SW_RUN_FOLDER_RUN_STARTS_H

#include "run/folder/run.h"

/* Adds a start. found is the id of the start that made the last commit, or empty; starts after it never committed, and
 * are dropped. */
sw_status sw_run_add_start(struct sw_run *run, const char *found, const char *id);
/* Returns how many starts the run lists after this one, 0 for the newest; -1: the start is not one of the run's. A run
 * forgets a start when SW_RUN_KEPT_STARTS newer ones have committed. */
enum { SW_RUN_KEPT_STARTS = 16 };
int sw_run_start_age(const struct sw_run *run, const char *id);
/* Returns the id of the newest start, or an empty text. */
const char *sw_run_last_start(const struct sw_run *run);
/* Refuses a store whose last commit was made by a start that run.json does not list. */
sw_status sw_run_check_start(const struct sw_run *run, const struct sw_store *store, const char *place);

#endif
