/* Locks on store files and block devices, so that one process uses each. */
#ifndef SW_IO_QUEUE_LOCK_H
#define SW_IO_QUEUE_LOCK_H

#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

/* Locks an open file; SW_ERR_BUSY when another open file of it has the lock, in whichever process, or when the file has
 * lost its name while this waited. */
sw_status sw_lock_take(int fd, const char *path);
void sw_lock_release(int fd);

/* How long a process goes on trying to take a lock: for a while, and much longer while the writes of a dead owner are
 * still under way. Times are those of sw_now_ns. */
struct sw_lock_timeout {
    int64_t start_ns, counted_from_ns;
};
struct sw_lock_timeout sw_lock_timeout_begin(void);

/* Waits before another attempt to lock the file that fd, any descriptor of it, is open on. Returns false when the time
 * to try is over. */
bool sw_lock_wait(struct sw_lock_timeout *timeout, int fd);

/* Fails with SW_ERR_BUSY and says that another process has the lock, or still holds it though it is dead. */
sw_status sw_lock_refusal(int fd, const char *path);
/* Returns whether another open file has the lock. */
bool sw_lock_is_held(int fd);

#endif
