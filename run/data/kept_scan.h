/* Keeps what the first reading of large data found in the user's cache, so that a later start or resume does not read
 * all of the data again. A scan is found by the identity, size and last write of every file, and by how the data are
 * divided: a file that was written or replaced since is read again. Blocks are compared with their digests when a
 * window first needs them, so that a change that no time shows is still not trained on. */
#ifndef SW_RUN_DATA_KEPT_SCAN_H
#define SW_RUN_DATA_KEPT_SCAN_H

#include "run/data/data_internal.h"

#include <stdbool.h>

/* Fills in the digest, the counts and the block digests of data whose streams are open and divided, if an earlier
 * opening kept them. Returns whether it did; where not, the caller scans. */
bool sw_kept_scan_load(struct sw_data *data);

/* Keeps the scan of these data for later openings, unless they are small, or a file was written so lately that a later
 * write might have the same time. Removes scans that were not used for 30 days. A cache that cannot be written keeps
 * nothing. */
void sw_kept_scan_save(struct sw_data *data);

#endif
