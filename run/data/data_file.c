#include "run/data/data_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* O_NONBLOCK: a pipe is refused instead of waited for. */
static sw_status open_at(const char *path, const char *suffix, int *out_fd) {
    char *name = NULL;
    if (asprintf(&name, "%s%s", path, suffix) < 0)
        return sw_fail(SW_ERR_NOMEM, "no memory to open %s", path);
    *out_fd = open(name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    const bool fine = *out_fd >= 0 || (*suffix != '\0' && errno == ENOENT);
    const sw_status status =
        fine ? SW_OK : sw_fail(SW_ERR_IO, "the data file %s cannot be opened: %s", name, strerror(errno));
    free(name);
    return status;
}

static void take(const struct stat *info, struct sw_data_file *out) {
    out->bytes = info->st_size;
    out->device = info->st_dev;
    out->inode = info->st_ino;
    out->written = info->st_mtim;
    out->altered = info->st_ctim;
}

sw_status sw_data_file_open(const char *path, const char *suffix, struct sw_data_file *out) {
    struct stat info;
    *out = (struct sw_data_file){.path = path, .suffix = suffix, .fd = -1};
    SW_TRY(open_at(path, suffix, &out->fd));
    if (!sw_data_file_is_there(out))
        return SW_OK;
    if (fstat(out->fd, &info) != 0)
        return sw_fail(SW_ERR_IO, "the data file %s%s cannot be read: %s", path, suffix, strerror(errno));
    if (!S_ISREG(info.st_mode))
        return sw_fail(SW_ERR_ARG, "the data file %s%s is not a regular file; give one", path, suffix);
    take(&info, out);
    (void)flock(out->fd, LOCK_SH | LOCK_NB);
    return SW_OK;
}

void sw_data_file_close(struct sw_data_file *file) {
    if (sw_data_file_is_there(file))
        close(file->fd);
    *file = SW_DATA_FILE_CLOSED;
}

static bool is_same_time(const struct timespec *a, const struct timespec *b) {
    return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

bool sw_data_file_changed(const struct sw_data_file *file, struct sw_data_file *out) {
    struct stat info;
    *out = *file;
    if (!sw_data_file_is_there(file) || fstat(file->fd, &info) != 0)
        return false;
    take(&info, out);
    return out->bytes != file->bytes || !is_same_time(&out->written, &file->written) ||
           !is_same_time(&out->altered, &file->altered);
}

sw_status sw_data_file_read(const struct sw_data_file *file, int64_t offset_bytes, int64_t bytes, void *out) {
    int64_t done = 0;
    while (done < bytes) {
        const ssize_t got = pread(file->fd, (char *)out + done, (size_t)(bytes - done), offset_bytes + done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return sw_fail(SW_ERR_IO, "the data file %s%s cannot be read at byte %lld: %s", file->path, file->suffix,
                           (long long)(offset_bytes + done), strerror(errno));
        if (got == 0)
            return sw_fail(SW_ERR_IO, "the data file %s%s became shorter while it was in use; restore it", file->path,
                           file->suffix);
        done += got;
    }
    return SW_OK;
}
