/* Who has a store file or a block device. */
#ifndef SW_IO_QUEUE_LOCK_H
#define SW_IO_QUEUE_LOCK_H

#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

/* Locks an open file; SW_ERR_BUSY when another open file of it has the lock, in whichever process, or when the file has
 * lost its name while this waited. */
sw_status sw_lock_take(int fd, const char *path);
void sw_lock_release(int fd);

/* How long whoever comes next goes on trying: for a while, and much longer while the writes of a dead owner land. */
struct sw_lock_patience {
    int64_t start_ns, patient_from_ns;
};
struct sw_lock_patience sw_lock_patience_begin(void);

/* Waits before another attempt at what fd, any descriptor of it, is open on. False when it has been long enough. */
bool sw_lock_wait(struct sw_lock_patience *patience, int fd);

/* Says that another process has the lock, or still holds it though it is dead. */
sw_status sw_lock_refusal(int fd, const char *path);
bool sw_lock_is_held(int fd); /* by another open file */

#endif
