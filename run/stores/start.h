/* The start of a new run, which may be interrupted at any time. Before the first store is created, starting.json in the
 * run's folder lists the id and the places of every rank's store, as run.json will; it is removed when every rank has
 * its first commit. So a folder with starting.json holds nothing that was trained, and the next start removes what it
 * lists, in that folder and in those of --nvme. A process that starts a run, or clears an unfinished start, holds the
 * lock on the run (run.h). */
#ifndef SW_RUN_STORES_START_H
#define SW_RUN_STORES_START_H

#include "core/status.h"
#include "job/machine/ranks.h"
#include "run/folder/run.h"

#include <stdbool.h>

/* Refuses a folder that holds anything but the remains of an unfinished start. Changes nothing. */
sw_status sw_start_check(const char *folder);
/* Tells whether a start in this folder was interrupted, or is under way. */
bool sw_start_is_unfinished(const char *folder);
/* Removes the remains of an unfinished start. All ranks call it together. */
sw_status sw_start_clear(struct sw_ranks *ranks, const char *folder);
/* Writes starting.json, which lists the stores of `run`. Creates it exclusively before anything else is written, so
 * that of two starts one fails even on a file system without locks. */
sw_status sw_start_announce(const char *folder, const struct sw_run *run);
/* Removes starting.json, if there is one: the run can be resumed from now on. All ranks call it together. */
sw_status sw_start_finish(struct sw_ranks *ranks, const char *folder);
/* Cleans up after a failed start, once this rank's store is removed. The rank that sees no other store of `run` any
 * more removes everything else, with empty folders of ranks that were killed. */
void sw_start_undo(const char *folder, const struct sw_run *run);

/* Reads starting.json, and finds and removes what else an unfinished start has left. */
#define SW_START_FILE_NAME "starting.json"

struct sw_unfinished_start {
    bool found;
    bool whole; /* starting.json is complete; if not, the start was interrupted before it created anything else */
    struct sw_run run; /* only its stores are filled in */
};

sw_status sw_unfinished_start_write(int file, const char *path, const struct sw_run *run);
/* Reads starting.json. The caller releases *out, also after a failure. */
sw_status sw_unfinished_start_read(const char *folder, struct sw_unfinished_start *out);
void sw_unfinished_start_release(struct sw_unfinished_start *unfinished);

/* Refuses a folder that holds anything that the start did not make. */
sw_status sw_unfinished_start_check(const char *folder, const struct sw_unfinished_start *unfinished);

#endif
