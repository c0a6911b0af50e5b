/* Files and block devices that a store uses: made, opened, locked, measured, and kept under their names.
 *
 * Locks are open-file-description locks: unlike POSIX record locks they also exclude a second open in the same process,
 * and are not lost when another descriptor of the file is closed. A ring that registered the file holds the lock too,
 * so the lock of a killed process lasts until its last write has landed, which is the right moment; a new owner
 * therefore tries for a while. A lock file with a process id would survive a power loss and mean nothing in another
 * container.
 *
 * Space is reserved before the first byte is written. A file system that cannot reserve gets its space by the first
 * write of every byte, so a full disk still cannot end a step. */
#include "io/queue/file.h"

#include "core/clock.h"
#include "core/confine.h"
#include "core/log.h"
#include "core/size.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/quota.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

char *sw_file_path(const char *directory, const char *name) {
    char *path = NULL;
    return asprintf(&path, "%s/%s", directory, name) < 0 ? NULL : path;
}

sw_status sw_file_write_error(int error) {
    return error == ENOSPC || error == EDQUOT ? SW_ERR_SPACE : SW_ERR_IO;
}

/* Newer kernels let memory file systems accept O_DIRECT without doing direct I/O. */
bool sw_file_is_in_memory(int fd) {
    struct statfs info;
    return fstatfs(fd, &info) == 0 && (info.f_type == TMPFS_MAGIC || info.f_type == RAMFS_MAGIC);
}

/* The alignment in bytes that direct I/O needs; 1: the system does not tell; 0: the file has no direct I/O. */
struct alignment {
    int64_t memory, offset;
};

static struct alignment direct_alignment(int fd) {
#ifdef STATX_DIOALIGN
    struct statx info;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &info) == 0 && (info.stx_mask & STATX_DIOALIGN) != 0) {
        const bool none = info.stx_dio_mem_align == 0 || info.stx_dio_offset_align == 0;
        return (struct alignment){none ? 0 : info.stx_dio_mem_align, none ? 0 : info.stx_dio_offset_align};
    }
#endif
    (void)fd;
    return (struct alignment){1, 1};
}

bool sw_file_try_direct(int fd) {
    const struct alignment alignment = sw_file_is_in_memory(fd) ? (struct alignment){0} : direct_alignment(fd);
    const int flags = fcntl(fd, F_GETFL);
    return alignment.memory > 0 && sw_max_i64(alignment.memory, alignment.offset) <= SW_BUFFER_ALIGN_BYTES &&
           flags >= 0 && fcntl(fd, F_SETFL, flags | O_DIRECT) == 0;
}

int64_t sw_file_memory_alignment(int fd) {
    const int flags = fcntl(fd, F_GETFL);
    if (flags >= 0 && (flags & O_DIRECT) == 0)
        return 1;
    const int64_t alignment = direct_alignment(fd).memory;
    return alignment > 1 ? alignment : SW_BUFFER_ALIGN_BYTES;
}

static sw_status make_direct(int fd, const char *path, bool allow_buffered) {
    const struct alignment needed = direct_alignment(fd);
    const int64_t alignment = sw_max_i64(needed.memory, needed.offset);
    if (alignment > SW_BUFFER_ALIGN_BYTES)
        return sw_fail(SW_ERR_UNSUPPORTED,
                       "%s is on a device that needs direct I/O aligned to %lld bytes, more than %d", path,
                       (long long)alignment, SW_BUFFER_ALIGN_BYTES);
    if (sw_file_try_direct(fd))
        return SW_OK;
    if (!allow_buffered)
        return sw_fail(SW_ERR_UNSUPPORTED,
                       "%s is on a file system without direct I/O: choose a directory on ext4, xfs or another disk "
                       "file system, or accept page-cache speed and memory with --allow-buffered",
                       path);
    sw_log_warn("%s is on a file system without direct I/O: its data goes through the page cache", path);
    return SW_OK;
}

static sw_status explain_create(const char *directory, const char *path, int error) {
    switch (error) {
    case EEXIST:
        return sw_fail(SW_ERR_ARG,
                       "%s exists already: resume the run that it belongs to, choose another directory, or "
                       "remove it",
                       path);
    case EROFS:
    case EACCES:
    case EPERM:
        return sw_fail(SW_ERR_IO, "%s cannot be written in (%s): choose a writable directory", directory,
                       strerror(error));
    case ENOENT:
    case ENOTDIR:
        return sw_fail(SW_ERR_ARG, "%s is not an existing directory or block device: make it, or name another",
                       directory);
    case ENOSPC:
    case EDQUOT: return sw_fail(SW_ERR_SPACE, "%s has no room for another file: %s", directory, strerror(error));
    default: return sw_fail(SW_ERR_IO, "%s cannot be created: %s", path, strerror(error));
    }
}

sw_status sw_file_create(const char *directory, const char *path, bool allow_buffered, int *out_fd) {
    *out_fd = -1;
    const int fd = sw_path_open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return explain_create(directory, path, errno);
    /* A umask takes nothing from a mode that gives only the owner access. */
    (void)fchmod(fd, 0600);
    sw_status status = sw_lock_take(fd, path);
    if (status == SW_OK)
        status = make_direct(fd, path, allow_buffered);
    if (status != SW_OK) {
        sw_path_unlink(path);
        close(fd);
        return status;
    }
    *out_fd = fd;
    return SW_OK;
}

static void lock_release(int fd);

void sw_file_close(int fd) {
    lock_release(fd);
    close(fd);
}

/* If the file system cannot make files without a name, removes the name at once. */
static int open_unnamed(const char *directory) {
    int fd = sw_path_open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR))
        return fd;
    char *path = sw_file_path(directory, "spillway-XXXXXX");
    if (path == NULL)
        return -1;
    fd = mkostemp(path, O_CLOEXEC);
    if (fd >= 0)
        sw_path_unlink(path);
    free(path);
    return fd;
}

sw_status sw_file_create_unnamed(const char *directory, bool allow_buffered, int *out_fd) {
    *out_fd = -1;
    const int fd = open_unnamed(directory);
    if (fd < 0)
        return explain_create(directory, directory, errno);
    const sw_status status = make_direct(fd, directory, allow_buffered);
    if (status != SW_OK) {
        close(fd);
        return status;
    }
    *out_fd = fd;
    return SW_OK;
}

/* A FIFO in place of a store must not block whoever opens it. */
static sw_status open_store_file(const char *path, int access, int *out_fd) {
    struct stat info;
    const int fd = sw_path_open(path, access | O_CLOEXEC | O_NONBLOCK, 0);
    if (fd < 0 && (errno == ELOOP || errno == ENOTDIR))
        return sw_fail(SW_ERR_ARG,
                       "the store file %s is a link or is reached through one, and links are not followed in the "
                       "folder of a run: name its directory by --nvme",
                       path);
    if (fd < 0)
        return errno == ENOENT
                   ? sw_fail(SW_ERR_ARG,
                             "the store file %s cannot be opened (%s): if it was moved, name its directory by --nvme",
                             path, strerror(errno))
                   : sw_fail(SW_ERR_IO, "the store file %s cannot be opened%s: %s", path,
                             access == O_RDWR ? " for writing" : "", strerror(errno));
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || fcntl(fd, F_SETFL, 0) != 0) {
        close(fd);
        return sw_fail(SW_ERR_ARG, "%s is not a regular file", path);
    }
    *out_fd = fd;
    return SW_OK;
}

/* A failed flush leaves pages in the cache that the drive never got, marked as clean. A store opened through the page
 * cache must see what the drive has. */
static sw_status forget_cached(int fd, const char *path, bool flush) {
    const int flags = fcntl(fd, F_GETFL);
    if (flags >= 0 && (flags & O_DIRECT) != 0)
        return SW_OK;
    if (flush && fdatasync(fd) != 0)
        return sw_fail(SW_ERR_IO, "%s cannot be flushed: %s", path, strerror(errno));
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    return SW_OK;
}

sw_status sw_file_open_unlocked(const char *path, int *out_fd) {
    *out_fd = -1;
    SW_TRY(open_store_file(path, O_RDONLY, out_fd));
    (void)sw_file_try_direct(*out_fd);
    return forget_cached(*out_fd, path, false);
}

sw_status sw_file_open(const char *path, bool allow_buffered, int *out_fd) {
    int fd;
    *out_fd = -1;
    SW_TRY(open_store_file(path, O_RDWR, &fd));
    sw_status status = sw_lock_take(fd, path);
    if (status == SW_OK)
        status = make_direct(fd, path, allow_buffered);
    if (status == SW_OK)
        status = forget_cached(fd, path, true);
    if (status != SW_OK) {
        close(fd);
        return status;
    }
    *out_fd = fd;
    return SW_OK;
}

sw_status sw_file_open_to_read(const char *path, int *out_fd) {
    struct stat info;
    *out_fd = sw_path_open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
    if (*out_fd < 0)
        return sw_fail(SW_ERR_ARG, "%s cannot be opened: %s", path, strerror(errno));
    if (fstat(*out_fd, &info) == 0 && S_ISREG(info.st_mode))
        return SW_OK;
    close(*out_fd);
    *out_fd = -1;
    return sw_fail(SW_ERR_ARG, "%s is not a regular file", path);
}

sw_status sw_file_identify(int fd, const char *path, struct sw_file_identity *out) {
    struct stat info;
    if (fstat(fd, &info) != 0)
        return sw_fail(SW_ERR_IO, "%s cannot be examined: %s", path, strerror(errno));
    *out = (struct sw_file_identity){.device = (int64_t)info.st_dev,
                                     .inode = (int64_t)info.st_ino,
                                     .bytes = info.st_size,
                                     .written_s = info.st_mtim.tv_sec,
                                     .written_ns = info.st_mtim.tv_nsec};
    return SW_OK;
}

sw_status sw_file_open_again(const char *path, const struct sw_file_identity *expected, int *out_fd) {
    struct sw_file_identity found;
    if (sw_file_open_to_read(path, out_fd) != SW_OK)
        return SW_ERR_IO; /* the path was right before, so this is no error of an argument */
    sw_status status = sw_file_identify(*out_fd, path, &found);
    if (status == SW_OK && memcmp(&found, expected, sizeof found) != 0)
        status = sw_fail(SW_ERR_CORRUPT, "%s changed while it was in use: begin again once nothing writes to it", path);
    if (status == SW_OK)
        return SW_OK;
    close(*out_fd);
    *out_fd = -1;
    return status;
}

/* A block device may have several names. */
static bool is_same_place(const struct stat *a, const struct stat *b) {
    if (S_ISBLK(a->st_mode) && S_ISBLK(b->st_mode))
        return a->st_rdev == b->st_rdev;
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

sw_status sw_file_check_distinct(const char *const *directories, int count) {
    for (int i = 0; i < count; i++) {
        struct stat here, other;
        if (sw_path_stat(directories[i], &here) != 0)
            return explain_create(directories[i], directories[i], errno);
        if (S_ISCHR(here.st_mode))
            return sw_fail(SW_ERR_ARG,
                           "%s is no block device: the drive of an NVMe controller is named like /dev/nvme0n1",
                           directories[i]);
        for (int j = 0; j < i; j++)
            if (stat(directories[j], &other) == 0 && is_same_place(&here, &other))
                return sw_fail(SW_ERR_ARG, "%s and %s are the same %s", directories[j], directories[i],
                               S_ISBLK(here.st_mode) ? "block device" : "directory: a store has one file in each");
    }
    return SW_OK;
}

/* Returns what the user's quota leaves of a file system; INT64_MAX: there is none, or the kernel does not tell. */
static int64_t quota_left_bytes(const char *directory) {
    int64_t left = INT64_MAX;
#ifdef SYS_quotactl_fd
    const int64_t unit = SW_KIB; /* unit of quota limits, whatever the file system's block size */
    struct dqblk quota = {0};
    const int fd = sw_path_open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    if (fd >= 0 && syscall(SYS_quotactl_fd, fd, QCMD((unsigned)Q_GETQUOTA, USRQUOTA), geteuid(), &quota) == 0 &&
        quota.dqb_bhardlimit > 0 && quota.dqb_bhardlimit < (uint64_t)(INT64_MAX / unit))
        left = sw_max_i64(0, (int64_t)quota.dqb_bhardlimit * unit - (int64_t)quota.dqb_curspace);
    if (fd >= 0)
        close(fd);
#else
    (void)directory;
#endif
    return left;
}

sw_status sw_file_check_space(const char *const *directories, const int64_t *bytes, int count) {
    for (int i = 0; i < count; i++) {
        struct stat here, other;
        struct statvfs space;
        if (stat(directories[i], &here) != 0 || statvfs(directories[i], &space) != 0)
            return explain_create(directories[i], directories[i], errno);
        int64_t need = 0;
        for (int j = 0; j < count; j++)
            if (stat(directories[j], &other) == 0 && other.st_dev == here.st_dev)
                need += bytes[j];
        const int64_t free_bytes = (int64_t)space.f_bavail * (int64_t)space.f_frsize;
        const int64_t quota = quota_left_bytes(directories[i]), available = sw_min_i64(free_bytes, quota);
        char need_text[SW_SIZE_CHARS], available_text[SW_SIZE_CHARS];
        if (need > available)
            return sw_fail(SW_ERR_SPACE,
                           "the file system of %s has too little room: the store needs %s (%lld bytes) on it, %s (%lld "
                           "bytes) are available%s",
                           directories[i], sw_format_size(need, need_text), (long long)need,
                           sw_format_size(available, available_text), (long long)available,
                           quota < free_bytes ? " by this user's quota" : "");
    }
    return SW_OK;
}

sw_status sw_file_check_place(const char *directory, bool allow_buffered) {
    const int fd = open_unnamed(directory);
    if (fd < 0)
        return explain_create(directory, directory, errno);
    const sw_status status = allow_buffered ? SW_OK : make_direct(fd, directory, false);
    close(fd);
    return status;
}

sw_status sw_file_allocate(int fd, const char *path, int64_t bytes) {
    int result;
    do
        result = fallocate(fd, 0, 0, bytes);
    while (result != 0 && errno == EINTR);
    if (result == 0)
        return SW_OK;
    int error = errno;
    if (error == ENOSPC || error == EDQUOT || error == EFBIG) {
        char need[SW_SIZE_CHARS];
        return sw_fail(SW_ERR_SPACE, "%s cannot have the %s (%lld bytes) that it needs: %s", path,
                       sw_format_size(bytes, need), (long long)bytes, strerror(error));
    }
    /* Some file systems cannot reserve space. On these, the first write of every byte does. */
    if (error == EOPNOTSUPP) {
        int64_t size = 0;
        SW_TRY(sw_file_size(fd, path, &size));
        if (size >= bytes || ftruncate(fd, bytes) == 0)
            return SW_OK;
        error = errno;
    }
    return sw_fail(SW_ERR_IO, "%s cannot be extended to %lld bytes: %s", path, (long long)bytes, strerror(error));
}

sw_status sw_file_size(int fd, const char *path, int64_t *out_bytes) {
    struct stat info;
    if (fstat(fd, &info) != 0)
        return sw_fail(SW_ERR_IO, "the size of %s cannot be read: %s", path, strerror(errno));
    *out_bytes = info.st_size;
    return SW_OK;
}

sw_status sw_file_read(int fd, const char *path, int64_t offset_bytes, void *out, int64_t bytes) {
    int64_t done = 0;
    while (done < bytes) {
        const ssize_t got = pread(fd, (char *)out + done, (size_t)(bytes - done), offset_bytes + done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return sw_fail(SW_ERR_IO, "%s cannot be read at %lld: %s", path, (long long)(offset_bytes + done),
                           strerror(errno));
        if (got == 0)
            return sw_fail(SW_ERR_CORRUPT,
                           "%s ends at %lld, where %lld bytes more should follow: it has been truncated", path,
                           (long long)(offset_bytes + done), (long long)(bytes - done));
        done += got;
    }
    return SW_OK;
}

sw_status sw_file_sync_directory(const char *directory) {
    const int fd = sw_path_open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    const int result = fd < 0 ? -1 : fsync(fd);
    const int error = errno;
    if (fd >= 0)
        close(fd);
    if (result != 0)
        return sw_fail(SW_ERR_IO, "the directory %s cannot be flushed: %s", directory, strerror(error));
    return SW_OK;
}

/* Time between two attempts to take a lock. */

enum { POLL_US = 10000 };
#define TIMEOUT_NS INT64_C(2000000000)
#define DEAD_OWNER_TIMEOUT_NS INT64_C(60000000000)
/* The lock is on the first byte. Two more locked bytes identify the owner: OWNER_START plus its process id, and
 * SPACE_START plus the number of the PID namespace in which the id is valid, if the system tells it. */
#define OWNER_START (INT64_C(1) << 62)
#define MOST_OWNERS (INT64_C(1) << 22) /* process ids are smaller */
#define SPACE_START (OWNER_START + (INT64_C(1) << 32))
#define MOST_SPACES (INT64_C(1) << 32)

static int lock_byte(int fd, int64_t start) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = start, .l_len = 1};
    return fcntl(fd, F_OFD_SETLK, &lock);
}

/* Returns which byte of a range another open file has locked, counted from the range's start, or -1. */
static int64_t find_locked(int fd, int64_t start, int64_t bytes) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = start, .l_len = bytes};
    return fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK ? lock.l_start - start : -1;
}

/* Returns the number of this process's PID namespace, or -1. */
static int64_t own_space(void) {
    struct stat info;
    return stat("/proc/self/ns/pid", &info) == 0 && (int64_t)info.st_ino < MOST_SPACES ? (int64_t)info.st_ino : -1;
}

/* Returns the process that has the lock, or -1 if unknown: the id of a process in another container means nothing here.
 */
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
    if (owner == getpid())
        return sw_fail(SW_ERR_BUSY, "%s is already open in this process: close it first", path);
    if (owner > 0)
        return sw_fail(SW_ERR_BUSY, "%s is in use by another process (%lld): wait for it to end, or stop it", path,
                       (long long)owner);
    return sw_fail(SW_ERR_BUSY,
                   "%s is in use by another process, whose id is not known here, as it may be in another container or "
                   "on another machine: wait for it to end, or stop it",
                   path);
}

/* Refuses a file that its previous owner has removed: whatever is written to it would be lost. */
static sw_status check_name(int fd, const char *path) {
    struct stat info;
    if (fstat(fd, &info) != 0 || info.st_nlink > 0)
        return SW_OK;
    lock_release(fd);
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

static void lock_release(int fd) {
    struct flock unlock = {.l_type = F_UNLCK, .l_whence = SEEK_SET};
    fcntl(fd, F_OFD_SETLK, &unlock);
}

enum { COPY_BYTES = 8 << 20 };

/* Returns whether the path leads to the open file. */
static bool name_holds(int fd, const char *path) {
    struct stat held, named;
    return fstat(fd, &held) == 0 && sw_path_lstat(path, &named) == 0 && held.st_dev == named.st_dev &&
           held.st_ino == named.st_ino;
}

/* Flushes the folder that contains the name. */
static sw_status flush_name(const char *path) {
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash == NULL)
        return sw_file_sync_directory(".");
    slash[slash == folder ? 1 : 0] = '\0';
    return sw_file_sync_directory(folder);
}

/* Says why the path does not lead to the file, and why the file cannot be linked to it. */
static sw_status explain(int fd, const char *path, int error) {
    char now[PATH_MAX];
    struct stat held;
    if (sw_path_exists(path))
        return sw_fail(SW_ERR_IO, "%s was replaced by another file while it was in use: move that one away", path);
    if (fstat(fd, &held) == 0 && held.st_nlink == 0)
        return sw_fail(SW_ERR_IO, "%s was removed while it was in use", path);
    if (sw_path_of(fd, now))
        return sw_fail(SW_ERR_IO,
                       "%s was moved to %s while it was in use, and its name cannot be restored (%s): move "
                       "it back",
                       path, now, strerror(error));
    return sw_fail(
        SW_ERR_IO,
        "%s cannot be found any more (%s): its folder was moved or removed, or its drive was unmounted, while "
        "it was in use",
        path, strerror(error));
}

/* Finds out whether the path leads to the file. Fails if the system cannot tell: the name is then not lost. */
static sw_status find_held(int fd, const char *path, bool *out) {
    errno = 0;
    *out = name_holds(fd, path);
    return !*out && (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == EIO)
               ? sw_fail(SW_ERR_IO, "%s cannot be examined: %s", path, strerror(errno))
               : SW_OK;
}

sw_status sw_name_keep(int fd, const char *path) {
    char now[PATH_MAX];
    bool held;
    SW_TRY(find_held(fd, path, &held));
    if (held)
        return SW_OK;
    const bool is_elsewhere = sw_path_of(fd, now);
    if (sw_path_link(fd, path) != 0)
        return explain(fd, path, errno);
    SW_TRY(flush_name(path));
    sw_log_warn("%s lost its name while it was in use, and has it again%s%s", path,
                is_elsewhere ? "; it is the same file as " : "", now);
    return SW_OK;
}

static sw_status copy_bytes(int from, int to, const char *path, int64_t bytes) {
    char *box = malloc(COPY_BYTES);
    sw_status status = box != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory to copy %s", path);
    for (int64_t at = 0, run; at < bytes && status == SW_OK; at += run) {
        run = sw_min_i64(bytes - at, COPY_BYTES);
        status = sw_file_read(from, path, at, box, run);
        for (int64_t done = 0; done < run && status == SW_OK;) {
            const ssize_t put = pwrite(to, box + done, (size_t)(run - done), at + done);
            if (put < 0 && errno != EINTR)
                status = sw_fail(sw_file_write_error(errno), "%s cannot be written: %s", path, strerror(errno));
            done += put > 0 ? put : 0;
        }
    }
    free(box);
    return status;
}

/* Copies a file by sharing its blocks where the file system can do so. */
static sw_status copy(int from, int to, const char *path) {
    int64_t bytes;
    SW_TRY(sw_file_size(from, path, &bytes));
    if (ioctl(to, FICLONE, from) != 0) {
        SW_TRY(sw_file_allocate(to, path, bytes));
        SW_TRY(copy_bytes(from, to, path, bytes));
    }
    return fsync(to) == 0 ? SW_OK
                          : sw_fail(sw_file_write_error(errno), "%s cannot be flushed: %s", path, strerror(errno));
}

/* Makes the copy under a temporary name, and renames it when it is complete. */
static sw_status put_copy(int fd, int from, const char *path) {
    char partial[PATH_MAX];
    if (snprintf(partial, sizeof partial, "%s.partial", path) >= (int)sizeof partial)
        return sw_fail(SW_ERR_ARG, "the path %s is too long", path);
    (void)sw_path_unlink(partial);
    const int to = sw_path_open(partial, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (to < 0)
        return sw_fail(sw_file_write_error(errno), "%s cannot be made: %s", partial, strerror(errno));
    sw_status status = copy(from, to, path);
    if (status == SW_OK && (fcntl(to, F_SETFL, fcntl(fd, F_GETFL)) != 0 || sw_path_link(to, path) != 0))
        status = sw_fail(SW_ERR_IO, "%s cannot be made: %s", path, strerror(errno));
    (void)sw_path_unlink(partial);
    if (status == SW_OK)
        status = flush_name(path);
    if (status == SW_OK && dup3(to, fd, O_CLOEXEC) < 0)
        status = sw_fail(SW_ERR_IO, "%s cannot be opened: %s", path, strerror(errno));
    close(to);
    return status;
}

sw_status sw_name_put_back(int fd, const char *path) {
    char self[32], size[SW_SIZE_CHARS];
    struct stat held;
    bool is_held;
    SW_TRY(find_held(fd, path, &is_held));
    if (is_held)
        return SW_OK;
    if (fstat(fd, &held) != 0 || held.st_nlink > 0 || sw_path_exists(path))
        return sw_name_keep(fd, path);
    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    /* A second open, without O_DIRECT, allows reads into any memory, and reads of a file that was opened for writing
     * only. */
    const int from = sw_path_open(self, O_RDONLY | O_CLOEXEC, 0);
    if (from < 0)
        return sw_fail(SW_ERR_IO, "%s was removed, and its open file cannot be read: %s", path, strerror(errno));
    sw_log_warn("%s was removed while it was in use: writing its %s to a new file of this name", path,
                sw_format_size(held.st_size, size));
    const sw_status status = put_copy(fd, from, path);
    close(from);
    return status;
}
