/* Locks on open file descriptions: a second open in the same process is refused too, and a ring that has the file
 * registered keeps the lock. So that of a killed process lasts until its last write and flush have landed, which is why
 * a new owner is patient for a while, and much longer where nobody is left who could be asked to stop. */
#include "io/lock.h"

#include "core/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { POLL_US = 10000, MOST_OWNERS = 1 << 22 }; /* process ids are smaller */
#define PATIENCE_NS INT64_C(2000000000)
#define PATIENCE_WITH_THE_DEAD_NS INT64_C(60000000000)
/* The lock is on the first byte; a second one on the byte of this place plus its process id names its owner. */
#define OWNER_START (INT64_C(1) << 62)

static int lock_byte(int fd, int64_t start) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = start, .l_len = 1};
    return fcntl(fd, F_OFD_SETLK, &lock);
}

/* Whether the process that took the lock no longer exists. */
static bool owner_is_dead(int fd) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = OWNER_START, .l_len = MOST_OWNERS};
    if (fcntl(fd, F_OFD_GETLK, &lock) != 0 || lock.l_type == F_UNLCK || lock.l_start <= OWNER_START)
        return false;
    return kill((pid_t)(lock.l_start - OWNER_START), 0) != 0 && errno == ESRCH;
}

bool sw_lock_is_held(int fd) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
    return fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

struct sw_lock_patience sw_lock_patience_begin(void) {
    const int64_t now_ns = sw_now_ns();
    return (struct sw_lock_patience){.start_ns = now_ns, .patient_from_ns = now_ns};
}

bool sw_lock_wait(struct sw_lock_patience *patience, int fd) {
    usleep(POLL_US);
    const int64_t now_ns = sw_now_ns();
    if (now_ns - patience->start_ns < PATIENCE_WITH_THE_DEAD_NS && owner_is_dead(fd))
        patience->patient_from_ns = now_ns;
    return now_ns - patience->patient_from_ns < PATIENCE_NS;
}

sw_status sw_lock_refusal(int fd, const char *path) {
    if (owner_is_dead(fd))
        return sw_fail(SW_ERR_BUSY,
                       "%s is still held by writes of a process that has ended: see whether its drive hangs", path);
    return sw_fail(SW_ERR_BUSY, "%s is in use by another process: wait for it to end, or stop it", path);
}

/* The owner before may have removed the file: whatever is written to it then is lost. */
static sw_status check_name(int fd, const char *path) {
    struct stat info;
    if (fstat(fd, &info) != 0 || info.st_nlink > 0)
        return SW_OK;
    sw_lock_release(fd);
    return sw_fail(SW_ERR_BUSY, "%s was removed by the process that had it: begin again", path);
}

sw_status sw_lock_take(int fd, const char *path) {
    struct sw_lock_patience patience = sw_lock_patience_begin();
    do {
        if (lock_byte(fd, 0) == 0 && lock_byte(fd, OWNER_START + getpid()) == 0)
            return check_name(fd, path);
        if (errno != EAGAIN && errno != EACCES)
            return sw_fail(SW_ERR_IO, "%s cannot be locked: %s", path, strerror(errno));
    } while (sw_lock_wait(&patience, fd));
    return sw_lock_refusal(fd, path);
}

void sw_lock_release(int fd) {
    struct flock unlock = {.l_type = F_UNLCK, .l_whence = SEEK_SET};
    fcntl(fd, F_OFD_SETLK, &unlock);
}
