/* What starting.json says, and what else of an unfinished start lies about. */
#ifndef SW_TRAIN_STORES_START_LEFT_H
#define SW_TRAIN_STORES_START_LEFT_H

#include "train/folder/run.h"

#define SW_START_FILE_NAME "starting.json"

struct sw_start_left {
    bool found;
    bool whole;        /* its text; else the start was cut off before it made anything else */
    struct sw_run run; /* its stores only */
};

sw_status sw_start_left_write(int file, const char *path, const struct sw_run *run);
/* The caller releases it, also after a failure. */
sw_status sw_start_left_read(const char *folder, struct sw_start_left *out);
void sw_start_left_release(struct sw_start_left *left);

/* Refuses a folder with anything that the start has not made. */
sw_status sw_start_left_check(const char *folder, const struct sw_start_left *left);
/* Removes its stores, as far as this machine sees them, and their folders. */
sw_status sw_start_left_remove(const char *folder, const struct sw_start_left *left);
/* Whether this machine sees one of a run's store files. */
bool sw_start_left_has_stores(const char *folder, const struct sw_run *run);

#endif
