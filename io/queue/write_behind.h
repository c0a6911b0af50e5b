/* A new file, written from beginning to end in blocks, several at once, and without the page cache if the file system
 * allows it: pages waiting to be written would take memory that budgets have promised to others. */
#ifndef SW_IO_QUEUE_WRITE_BEHIND_H
#define SW_IO_QUEUE_WRITE_BEHIND_H

#include "core/status.h"

#include <stdint.h>

enum { SW_WRITE_BEHIND_BLOCK_BYTES = 1 << 20, SW_WRITE_BEHIND_BLOCKS = 8 };

struct sw_write_behind;

/* Begins to write an empty file that is open for writing as fd. The caller keeps fd and path. Reserves the space of all
 * bytes at once, so that a file system that is too small fails before anything is written. */
sw_status sw_write_behind_open(int fd, const char *path, int64_t bytes, struct sw_write_behind **out);
/* Waits for the writes under way, and frees `self`. */
void sw_write_behind_close(struct sw_write_behind *self);

/* Returns the block to fill next: SW_WRITE_BEHIND_BLOCK_BYTES, aligned. */
void *sw_write_behind_block(struct sw_write_behind *self);
/* Begins to write that block and prepares the next one. Only the last block of a file may be partial. */
sw_status sw_write_behind_put(struct sw_write_behind *self, int64_t bytes);
/* Waits until the file has all of its bytes, and checks that there are no more. They survive a power loss only after a
 * flush. */
sw_status sw_write_behind_finish(struct sw_write_behind *self);

#endif
