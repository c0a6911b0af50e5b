/* Reads starting.json, and finds and removes what else an unfinished start has left. */
#ifndef SW_RUN_STORES_START_LEFT_H
#define SW_RUN_STORES_START_LEFT_H

#include "run/folder/run.h"

#define SW_START_FILE_NAME "starting.json"

struct sw_start_left {
    bool found;
    bool whole;        /* starting.json is complete; if not, the start was cut off before it made anything else */
    struct sw_run run; /* only its stores are filled in */
};

sw_status sw_start_left_write(int file, const char *path, const struct sw_run *run);
/* Reads starting.json. The caller releases *out, also after a failure. */
sw_status sw_start_left_read(const char *folder, struct sw_start_left *out);
void sw_start_left_release(struct sw_start_left *left);

/* Refuses a folder that holds anything that the start did not make. */
sw_status sw_start_left_check(const char *folder, const struct sw_start_left *left);
/* Removes the stores of the start, as far as this machine sees them, and their folders. */
sw_status sw_start_left_remove(const char *folder, const struct sw_start_left *left);
/* Tells whether this machine sees any file of the run's stores. */
bool sw_start_left_has_stores(const char *folder, const struct sw_run *run);

#endif
