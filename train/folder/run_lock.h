/* The lock on a run, beside those on its stores: a process that writes to the run holds it from before run.json is read
 * until it ends. It is on a file of its own in the folder, as run.json is replaced. */
#ifndef SW_TRAIN_FOLDER_RUN_LOCK_H
#define SW_TRAIN_FOLDER_RUN_LOCK_H

#include "core/status.h"

#include <stdbool.h>

#define SW_RUN_LOCK_NAME "run.lock"

/* Locks the folder of a run; *out is then a file to be closed. SW_ERR_BUSY where another process has it. */
sw_status sw_run_lock(const char *folder, int *out);
/* Tells whether a process has the run of a folder. */
bool sw_run_is_locked(const char *folder);
/* Removes the locked file again, where no run has come of it. */
void sw_run_lock_remove(const char *folder);

#endif
