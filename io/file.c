#include "io/file.h"

#include "core/clock.h"
#include "core/log.h"
#include "core/size.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { LOCK_POLL_US = 10000, LOCK_MOST_OWNERS = 1 << 22 }; /* process ids are smaller */
#define LOCK_PATIENCE_NS INT64_C(2000000000)
#define LOCK_PATIENCE_WITH_THE_DEAD_NS INT64_C(60000000000)
/* The lock is on the first byte; a second one on the byte of this place plus its process id names its owner. */
#define LOCK_OWNER_START (INT64_C(1) << 62)

char *sw_file_path(const char *directory, const char *name) {
    char *path = NULL;
    return asprintf(&path, "%s/%s", directory, name) < 0 ? NULL : path;
}

static int lock_byte(int fd, int64_t start) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = start, .l_len = 1};
    return fcntl(fd, F_OFD_SETLK, &lock);
}

/* Whether the process that took the lock no longer exists. */
static bool owner_is_dead(int fd) {
    struct flock lock = {
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = LOCK_OWNER_START, .l_len = LOCK_MOST_OWNERS};
    if (fcntl(fd, F_OFD_GETLK, &lock) != 0 || lock.l_type == F_UNLCK || lock.l_start <= LOCK_OWNER_START)
        return false;
    return kill((pid_t)(lock.l_start - LOCK_OWNER_START), 0) != 0 && errno == ESRCH;
}

/* An open file description lock: a second open in the same process is refused too, and a ring that has the file
 * registered keeps it. So the lock of a killed process lasts until its last write and flush have landed, which is why a
 * new owner is patient for a while, and much longer where nobody is left who could be asked to stop. */
static sw_status lock_file(int fd, const char *path) {
    const int64_t start_ns = sw_now_ns();
    int64_t patient_from_ns = start_ns, now_ns;
    do {
        if (lock_byte(fd, 0) == 0 && lock_byte(fd, LOCK_OWNER_START + getpid()) == 0)
            return SW_OK;
        if (errno != EAGAIN && errno != EACCES)
            return sw_fail(SW_ERR_IO, "%s cannot be locked: %s", path, strerror(errno));
        usleep(LOCK_POLL_US);
        now_ns = sw_now_ns();
        if (now_ns - start_ns < LOCK_PATIENCE_WITH_THE_DEAD_NS && owner_is_dead(fd))
            patient_from_ns = now_ns;
    } while (now_ns - patient_from_ns < LOCK_PATIENCE_NS);
    if (owner_is_dead(fd))
        return sw_fail(SW_ERR_BUSY,
                       "%s is still held by writes of a process that has ended: see whether its drive hangs", path);
    return sw_fail(SW_ERR_BUSY, "%s is in use by another process: wait for it to end, or stop it", path);
}

void sw_file_close(int fd) {
    struct flock unlock = {.l_type = F_UNLCK, .l_whence = SEEK_SET};
    fcntl(fd, F_OFD_SETLK, &unlock);
    close(fd);
}

/* Memory file systems accept O_DIRECT on newer kernels without doing it. */
static bool is_memory(int fd) {
    struct statfs info;
    return fstatfs(fd, &info) == 0 && (info.f_type == TMPFS_MAGIC || info.f_type == RAMFS_MAGIC);
}

/* What direct I/O must be aligned to; 1 where the system does not say, 0 where there is no direct I/O. */
static int64_t direct_alignment(int fd) {
#ifdef STATX_DIOALIGN
    struct statx info;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &info) == 0 && (info.stx_mask & STATX_DIOALIGN) != 0) {
        if (info.stx_dio_mem_align == 0 || info.stx_dio_offset_align == 0)
            return 0;
        return sw_max_i64(info.stx_dio_mem_align, info.stx_dio_offset_align);
    }
#endif
    (void)fd;
    return 1;
}

static sw_status make_direct(int fd, const char *path, bool allow_buffered) {
    const int64_t alignment = is_memory(fd) ? 0 : direct_alignment(fd);
    if (alignment > SW_BUFFER_ALIGN_BYTES)
        return sw_fail(SW_ERR_UNSUPPORTED,
                       "%s is on a device that needs direct I/O aligned to %lld bytes, more than %d", path,
                       (long long)alignment, SW_BUFFER_ALIGN_BYTES);
    const int flags = fcntl(fd, F_GETFL);
    if (alignment > 0 && flags >= 0 && fcntl(fd, F_SETFL, flags | O_DIRECT) == 0)
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
    case ENOTDIR: return sw_fail(SW_ERR_ARG, "%s is not an existing directory: make it first", directory);
    case ENOSPC:
    case EDQUOT: return sw_fail(SW_ERR_SPACE, "%s has no room for another file: %s", directory, strerror(error));
    default: return sw_fail(SW_ERR_IO, "%s cannot be created: %s", path, strerror(error));
    }
}

sw_status sw_file_create(const char *directory, const char *path, bool allow_buffered, int *out_fd) {
    *out_fd = -1;
    const int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return explain_create(directory, path, errno);
    sw_status status = lock_file(fd, path);
    if (status == SW_OK)
        status = make_direct(fd, path, allow_buffered);
    if (status != SW_OK) {
        unlink(path);
        close(fd);
        return status;
    }
    *out_fd = fd;
    return SW_OK;
}

/* Where the file system makes no files without a name, one loses its name at once. */
static int open_unnamed(const char *directory) {
    int fd = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR))
        return fd;
    char *path = sw_file_path(directory, "spillway-XXXXXX");
    if (path == NULL)
        return -1;
    fd = mkostemp(path, O_CLOEXEC);
    if (fd >= 0)
        unlink(path);
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

sw_status sw_file_open(const char *path, bool allow_buffered, int *out_fd) {
    *out_fd = -1;
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return sw_fail(errno == ENOENT ? SW_ERR_ARG : SW_ERR_IO, "the store file %s cannot be opened: %s", path,
                       strerror(errno));
    struct stat info;
    sw_status status = SW_OK;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode))
        status = sw_fail(SW_ERR_ARG, "%s is not a regular file", path);
    if (status == SW_OK)
        status = lock_file(fd, path);
    if (status == SW_OK)
        status = make_direct(fd, path, allow_buffered);
    if (status != SW_OK) {
        close(fd);
        return status;
    }
    *out_fd = fd;
    return SW_OK;
}

sw_status sw_file_check_distinct(const char *const *directories, int count) {
    for (int i = 0; i < count; i++) {
        struct stat here, other;
        if (stat(directories[i], &here) != 0)
            return explain_create(directories[i], directories[i], errno);
        for (int j = 0; j < i; j++)
            if (stat(directories[j], &other) == 0 && other.st_dev == here.st_dev && other.st_ino == here.st_ino)
                return sw_fail(SW_ERR_ARG, "%s and %s are the same directory: a store has one file in each",
                               directories[j], directories[i]);
    }
    return SW_OK;
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
        const int64_t available = (int64_t)space.f_bavail * (int64_t)space.f_frsize;
        char need_text[SW_SIZE_CHARS], available_text[SW_SIZE_CHARS];
        if (need > available)
            return sw_fail(SW_ERR_SPACE,
                           "the file system of %s has too little room: the store needs %s (%lld bytes) on it, %s (%lld "
                           "bytes) are available",
                           directories[i], sw_format_size(need, need_text), (long long)need,
                           sw_format_size(available, available_text), (long long)available);
    }
    return SW_OK;
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
    /* Some file systems cannot reserve space; there the first write of every byte does. */
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
    const int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const int result = fd < 0 ? -1 : fsync(fd);
    const int error = errno;
    if (fd >= 0)
        close(fd);
    if (result != 0)
        return sw_fail(SW_ERR_IO, "the directory %s cannot be flushed: %s", directory, strerror(error));
    return SW_OK;
}
