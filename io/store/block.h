/* A block device used directly, as one stripe of a store: opened, locked, and checked to be free. */
#ifndef SW_IO_STORE_BLOCK_H
#define SW_IO_STORE_BLOCK_H

#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

/* Returns whether the path is a block device, as far as can be told. */
bool sw_block_is_one(const char *path);
/* Finds out whether the path is a block device. A missing path is none; a path that cannot be examined is an error. */
sw_status sw_block_find(const char *path, bool *out);

/* Opens the device for direct I/O and locks it. SW_ERR_BUSY: it is mounted, part of another device, or used by another
 * process. */
sw_status sw_block_open(const char *path, int *out_fd, int64_t *out_bytes);

/* Opens the device for reading, while another process may use it. Locks nothing. */
sw_status sw_block_open_unlocked(const char *path, int *out_fd, int64_t *out_bytes);

/* Refuses with SW_ERR_SPACE a device that is smaller than needed. */
sw_status sw_block_check_room(const char *path, int64_t bytes, int64_t needed_bytes);

/* Refuses a device that has anything at either end, and names it if the format is known. */
sw_status sw_block_check_unused(int fd, const char *path, int64_t bytes);

/* Writes zeros over the ends that sw_block_check_unused reads. */
sw_status sw_block_wipe(int fd, const char *path, int64_t bytes);

#endif
