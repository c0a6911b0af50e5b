/* Reads bytes of files into memory before they are used: in aligned blocks, many at once, and without the page cache if
 * the file system allows it.
 *
 * Announce bytes in the order of their use, each with a position that never decreases. One thread announces and awaits;
 * in between, any number of threads may look. */
#ifndef SW_IO_QUEUE_STREAMS_H
#define SW_IO_QUEUE_STREAMS_H

#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

/* Enough blocks under way for several drives, and little memory compared with any budget. */
enum { SW_READ_AHEAD_BLOCK_BYTES = 512 << 10, SW_READ_AHEAD_BLOCKS = 24 };

struct sw_read_ahead;

/* Opens the files, and refuses any that differs from its identity. The caller keeps both arrays and the paths until the
 * close. */
struct sw_file_identity;
sw_status sw_read_ahead_open(const char *const *paths, const struct sw_file_identity *identities,
                             struct sw_read_ahead **out);
void sw_read_ahead_close(struct sw_read_ahead *self);

/* Announces that these bytes of file paths[file] will be needed. *out_taken is false if the announcement must wait: for
 * blocks of earlier positions or, at a change of the file, for what is under way. Announcing bytes again does no harm.
 */
sw_status sw_read_ahead_announce(struct sw_read_ahead *self, int file, int64_t offset_bytes, int64_t bytes,
                                 int64_t position, bool *out_taken);

/* Declares that positions before this one have passed, so that bytes announced only for them may be dropped. */
void sw_read_ahead_pass(struct sw_read_ahead *self, int64_t position);
/* Starts to read the announced bytes, and waits for those whose position is before `end`. */
sw_status sw_read_ahead_await(struct sw_read_ahead *self, int64_t end);

/* Returns the bytes at an offset, and in *out_bytes how many follow there; NULL: they are not in memory. The last bytes
 * of a file, which fill no aligned page, are never in memory. */
const void *sw_read_ahead_look(const struct sw_read_ahead *self, int file, int64_t offset_bytes, int64_t *out_bytes);

/* Returns the number of bytes that were read ahead. */
int64_t sw_read_ahead_bytes(const struct sw_read_ahead *self);

/* A new file, written from beginning to end in blocks, several at once, and without the page cache if the file system
 * allows it: pages waiting to be written would take memory that budgets have promised to others. */
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
