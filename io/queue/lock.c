/* Locks on open file descriptions: a second open in the same process is refused too, and a ring that has the file
 * registered keeps the lock. The lock of a killed process therefore lasts until its last write and flush have landed.
 * Hence a new owner tries for a while, and much longer where nobody is left who could be asked to stop. */
#include "io/queue/lock.h"

#include "core/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { POLL_US = 10000 };
#define TIMEOUT_NS INT64_C(2000000000)
#define DEAD_OWNER_TIMEOUT_NS INT64_C(60000000000)
/* The lock is on the first byte. Two more name its owner: the byte of OWNER_START plus its process id, and that of
 * SPACE_START plus the number of the PID namespace that the id is of, where the system tells it. */
#define OWNER_START (INT64_C(1) << 62)
#define MOST_OWNERS (INT64_C(1) << 22) /* process ids are smaller */
#define SPACE_START (OWNER_START + (INT64_C(1) << 32))
#define MOST_SPACES (INT64_C(1) << 32)

static int lock_byte(int fd, int64_t start) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = start, .l_len = 1};
    return fcntl(fd, F_OFD_SETLK, &lock);
}

/* Returns the number of the byte in a range that another open file has locked, counted from the range's start, or -1.
 */
static int64_t find_locked(int fd, int64_t start, int64_t bytes) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = start, .l_len = bytes};
    return fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK ? lock.l_start - start : -1;
}

/* Returns the number of this process's PID namespace, or -1. */
static int64_t own_space(void) {
    struct stat info;
    return stat("/proc/self/ns/pid", &info) == 0 && (int64_t)info.st_ino < MOST_SPACES ? (int64_t)info.st_ino : -1;
}

/* Returns the process that has the lock, or -1 where it is not known: the id of a process in another container means
 * nothing here. */
static pid_t find_owner(int fd) {
    const int64_t space = find_locked(fd, SPACE_START, MOST_SPACES);
    const int64_t owner = find_locked(fd, OWNER_START, MOST_OWNERS);
    return owner > 0 && space >= 0 && space == own_space() ? (pid_t)owner : -1;
}

static bool is_dead(pid_t owner) {
    return owner > 0 && kill(owner, 0) != 0 && errno == ESRCH;
}

bool sw_lock_is_held(int fd) {
    return find_locked(fd, 0, 1) == 0;
}

struct sw_lock_timeout sw_lock_timeout_begin(void) {
    const int64_t now_ns = sw_now_ns();
    return (struct sw_lock_timeout){.start_ns = now_ns, .counted_from_ns = now_ns};
}

bool sw_lock_wait(struct sw_lock_timeout *timeout, int fd) {
    usleep(POLL_US);
    const int64_t now_ns = sw_now_ns();
    if (now_ns - timeout->start_ns < DEAD_OWNER_TIMEOUT_NS && is_dead(find_owner(fd)))
        timeout->counted_from_ns = now_ns;
    return now_ns - timeout->counted_from_ns < TIMEOUT_NS;
}

sw_status sw_lock_refusal(int fd, const char *path) {
    const pid_t owner = find_owner(fd);
    if (is_dead(owner))
        return sw_fail(SW_ERR_BUSY,
                       "%s is still held by writes of a process that has ended: see whether its drive hangs", path);
    if (owner > 0)
        return sw_fail(SW_ERR_BUSY, "%s is in use by another process (%lld): wait for it to end, or stop it", path,
                       (long long)owner);
    return sw_fail(SW_ERR_BUSY,
                   "%s is in use by another process, whose id is not known here, as it may be in another container or "
                   "on another machine: wait for it to end, or stop it",
                   path);
}

/* Refuses a file whose previous owner has removed it: what is written to it would be lost. */
static sw_status check_name(int fd, const char *path) {
    struct stat info;
    if (fstat(fd, &info) != 0 || info.st_nlink > 0)
        return SW_OK;
    sw_lock_release(fd);
    return sw_fail(SW_ERR_BUSY, "%s was removed by the process that had it: begin again", path);
}

static int name_owner(int fd) {
    const int64_t space = own_space();
    const int named = space < 0 ? 0 : lock_byte(fd, SPACE_START + space);
    return named == 0 ? lock_byte(fd, OWNER_START + getpid()) : named;
}

sw_status sw_lock_take(int fd, const char *path) {
    struct sw_lock_timeout timeout = sw_lock_timeout_begin();
    do {
        if (lock_byte(fd, 0) == 0 && name_owner(fd) == 0)
            return check_name(fd, path);
        if (errno != EAGAIN && errno != EACCES)
            return sw_fail(SW_ERR_IO, "%s cannot be locked: %s", path, strerror(errno));
    } while (sw_lock_wait(&timeout, fd));
    return sw_lock_refusal(fd, path);
}

void sw_lock_release(int fd) {
    struct flock unlock = {.l_type = F_UNLCK, .l_whence = SEEK_SET};
    fcntl(fd, F_OFD_SETLK, &unlock);
}
