/* The lock on a run, in addition to those on its stores. A process that writes to the run holds it from before it reads
 * run.json until it ends. It is on a file of its own, because run.json is replaced. */
#ifndef SW_RUN_FOLDER_RUN_LOCK_H
#define SW_RUN_FOLDER_RUN_LOCK_H

#include "core/status.h"

#include <stdbool.h>

#define SW_RUN_LOCK_NAME "run.lock"

/* Locks the folder of a run. *out is a descriptor that the caller closes. SW_ERR_BUSY if another process has the lock.
 */
sw_status sw_run_lock(const char *folder, int *out);
/* Tells whether a process has locked the run. */
bool sw_run_is_locked(const char *folder);
/* Removes the lock file, after a start that made no run. */
void sw_run_lock_remove(const char *folder);

#endif
