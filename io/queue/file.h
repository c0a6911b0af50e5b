/* Makes, opens and locks single files, and finds out what their file system can do. */
#ifndef SW_IO_QUEUE_FILE_H
#define SW_IO_QUEUE_FILE_H

#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

/* Returns "DIR/name"; the caller frees it. NULL: no memory. */
char *sw_file_path(const char *directory, const char *name);

/* Makes a new file of mode 0600 in the directory and locks it. After a failure *out_fd is -1 and nothing is left. */
sw_status sw_file_create(const char *directory, const char *path, bool allow_buffered, int *out_fd);

/* Makes a new file without a name in the directory: it is gone as soon as it is closed, however the process ends.
 * Nothing is left after a failure. */
sw_status sw_file_create_unnamed(const char *directory, bool allow_buffered, int *out_fd);

/* Opens and locks an existing file. SW_ERR_BUSY: another process has it. */
sw_status sw_file_open(const char *path, bool allow_buffered, int *out_fd);

/* Opens an existing file of a store for reading, while another process may write to it. Locks nothing, and accepts the
 * page cache if there is no direct I/O. */
sw_status sw_file_open_unlocked(const char *path, int *out_fd);

/* Turns on direct I/O if the file system has it with our buffers' alignment. Returns whether it is on. */
bool sw_file_try_direct(int fd);
/* Returns the alignment in bytes that memory of transfers needs, for offsets and lengths in whole buffers' alignments:
 * 1 without direct I/O; else that of the drive, or of our buffers if the system does not tell. */
int64_t sw_file_memory_alignment(int fd);
/* Returns whether the file system keeps its files in memory, where direct I/O means nothing. */
bool sw_file_is_in_memory(int fd);

/* Unlocks and closes. A ring that was closed just before may still hold the file, but must not hold the lock. */
void sw_file_close(int fd);

/* Returns the status of a write that failed with this errno: SW_ERR_SPACE if the file system or the user's quota is
 * full, else SW_ERR_IO. */
sw_status sw_file_write_error(int error);

/* Refuses directories and block devices that do not exist or are given twice. */
sw_status sw_file_check_distinct(const char *const *directories, int count);

/* Refuses with SW_ERR_SPACE if a file system, or the user's quota on it, has no room for the bytes of all its
 * directories. */
sw_status sw_file_check_space(const char *const *directories, const int64_t *bytes, int count);
/* Refuses a directory in which a file of a store could not be made, because it is not writable or its file system has
 * no direct I/O. Leaves nothing there. */
sw_status sw_file_check_place(const char *directory, bool allow_buffered);

/* Makes the file at least this long and reserves all its space. */
sw_status sw_file_allocate(int fd, const char *path, int64_t bytes);
/* Opens a regular file for reading. Refuses anything else, and does not wait for the other end of a FIFO. */
sw_status sw_file_open_to_read(const char *path, int *out_fd);
/* Distinguishes a file from another one of its name, and from itself before it was written to. */
struct sw_file_identity {
    int64_t device, inode, bytes, written_s, written_ns;
};
sw_status sw_file_identify(int fd, const char *path, struct sw_file_identity *out);
/* Opens a regular file that was open before, or fails with SW_ERR_IO. Refuses any other file than `expected` with
 * SW_ERR_CORRUPT: what was learned about that one, such as offsets, may be wrong for this one. */
sw_status sw_file_open_again(const char *path, const struct sw_file_identity *expected, int *out_fd);
/* Returns the file's length. */
sw_status sw_file_size(int fd, const char *path, int64_t *out_bytes);

/* Reads exactly these bytes; the file must have them. */
sw_status sw_file_read(int fd, const char *path, int64_t offset_bytes, void *out, int64_t bytes);

/* Makes names that were created or renamed in the directory durable. */
sw_status sw_file_sync_directory(const char *directory);

/* Locks an open file. SW_ERR_BUSY: another open file has the lock, in this or another process, or the file lost its
 * name during the wait. */
sw_status sw_lock_take(int fd, const char *path);

/* How long to keep trying to take a lock: for a while, and much longer while the writes of a dead owner are still under
 * way. Times are those of sw_now_ns. */
struct sw_lock_timeout {
    int64_t start_ns, counted_from_ns;
};
struct sw_lock_timeout sw_lock_timeout_begin(void);

/* Waits before the next attempt to lock a file; fd is any descriptor of it. Returns false when the time is over. */
bool sw_lock_wait(struct sw_lock_timeout *timeout, int fd);

/* Fails with SW_ERR_BUSY. The message says that another process has the lock, or that a dead one still holds it. */
sw_status sw_lock_refusal(int fd, const char *path);
/* Returns whether another open file has the lock. */
bool sw_lock_is_held(int fd);

/* Makes sure that the path leads to the open file. A file that has another name, for instance because it was moved,
 * gets this one back, with a warning. SW_ERR_IO says what became of the name if the file cannot have it back. */
sw_status sw_name_keep(int fd, const char *path);

/* Does the same, and puts a durable copy in place of a file that was removed. fd is then open on the copy. A ring that
 * registered the file still writes to the removed one, whose space stays taken until the ring closes. */
sw_status sw_name_put_back(int fd, const char *path);

#endif
