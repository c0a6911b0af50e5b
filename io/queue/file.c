#include "io/queue/file.h"

#include "core/confine.h"
#include "core/log.h"
#include "core/size.h"
#include "io/queue/lock.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

/* Memory file systems accept O_DIRECT on newer kernels without doing it. */
bool sw_file_is_in_memory(int fd) {
    struct statfs info;
    return fstatfs(fd, &info) == 0 && (info.f_type == TMPFS_MAGIC || info.f_type == RAMFS_MAGIC);
}

/* Returns the alignment in bytes that direct I/O needs; 1 where the system does not tell, 0 where the file has no
 * direct I/O. */
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

bool sw_file_try_direct(int fd) {
    const int64_t alignment = sw_file_is_in_memory(fd) ? 0 : direct_alignment(fd);
    const int flags = fcntl(fd, F_GETFL);
    return alignment > 0 && alignment <= SW_BUFFER_ALIGN_BYTES && flags >= 0 &&
           fcntl(fd, F_SETFL, flags | O_DIRECT) == 0;
}

static sw_status make_direct(int fd, const char *path, bool allow_buffered) {
    const int64_t alignment = direct_alignment(fd);
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
    /* A umask takes nothing from a file that is its user's alone. */
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

void sw_file_close(int fd) {
    sw_lock_release(fd);
    close(fd);
}

/* Where the file system makes no files without a name, one loses its name at once. */
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

/* A FIFO in the place of a store must not keep whoever opens it waiting. */
static sw_status open_store_file(const char *path, int access, int *out_fd) {
    struct stat info;
    const int fd = sw_path_open(path, access | O_CLOEXEC | O_NONBLOCK, 0);
    if (fd < 0 && (errno == ELOOP || errno == ENOTDIR))
        return sw_fail(SW_ERR_ARG,
                       "the store file %s is or lies behind a link, and no link is followed in the folder of a run: "
                       "name its directory by --nvme",
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

/* A flush that failed leaves in the page cache what the drive never got, and as clean. A store that is opened through
 * the page cache must see what the drive has. */
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
        return sw_fail(SW_ERR_IO, "%s cannot be looked at: %s", path, strerror(errno));
    *out = (struct sw_file_identity){.device = (int64_t)info.st_dev,
                                     .inode = (int64_t)info.st_ino,
                                     .bytes = info.st_size,
                                     .written_s = info.st_mtim.tv_sec,
                                     .written_ns = info.st_mtim.tv_nsec};
    return SW_OK;
}

sw_status sw_file_open_again(const char *path, const struct sw_file_identity *expected, int *out_fd) {
    struct sw_file_identity found;
    SW_TRY(sw_file_open_to_read(path, out_fd));
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

/* Returns what the quota of this process's user leaves of a file system; INT64_MAX where there is none, or none that
 * the kernel tells of. */
static int64_t quota_left_bytes(const char *directory) {
    int64_t left = INT64_MAX;
#ifdef SYS_quotactl_fd
    const int64_t unit = SW_KIB; /* of limits, whatever the block of the file system */
    struct dqblk quota = {0};
    const int fd = sw_path_open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    if (fd >= 0 && syscall(SYS_quotactl_fd, fd, QCMD(Q_GETQUOTA, USRQUOTA), geteuid(), &quota) == 0 &&
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
    const int fd = sw_path_open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    const int result = fd < 0 ? -1 : fsync(fd);
    const int error = errno;
    if (fd >= 0)
        close(fd);
    if (result != 0)
        return sw_fail(SW_ERR_IO, "the directory %s cannot be flushed: %s", directory, strerror(error));
    return SW_OK;
}
