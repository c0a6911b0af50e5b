/* A block device that is used itself, as one stripe of a store: opened, locked, and asked whether it is free to use. */
#ifndef SW_IO_STORE_BLOCK_H
#define SW_IO_STORE_BLOCK_H

#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

/* Returns whether the path is that of a block device, as far as can be told. */
bool sw_block_is_one(const char *path);
/* Finds out whether it is one. A path of nothing is none; what cannot be looked at is an error. */
sw_status sw_block_find(const char *path, bool *out);

/* Opens the device for direct I/O and locks it; SW_ERR_BUSY where it is mounted, part of another device, or used by
 * another process. */
sw_status sw_block_open(const char *path, int *out_fd, int64_t *out_bytes);

/* Opens the device to read it, beside a process that may be using it: nothing is locked. */
sw_status sw_block_open_unlocked(const char *path, int *out_fd, int64_t *out_bytes);

/* Refuses with SW_ERR_SPACE a device of fewer bytes than are needed. */
sw_status sw_block_check_room(const char *path, int64_t bytes, int64_t needed_bytes);

/* Refuses a device that holds anything at either end, and names what it knows. */
sw_status sw_block_check_unused(int fd, const char *path, int64_t bytes);

/* Writes zeros over what sw_block_check_unused looks at. */
sw_status sw_block_wipe(int fd, const char *path, int64_t bytes);

#endif
