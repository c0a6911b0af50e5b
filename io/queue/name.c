#include "io/queue/name.h"

#include "core/confine.h"
#include "core/log.h"
#include "core/size.h"
#include "io/queue/file.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { COPY_BYTES = 8 << 20 };

bool sw_name_holds(int fd, const char *path) {
    struct stat held, named;
    return fstat(fd, &held) == 0 && sw_path_lstat(path, &named) == 0 && held.st_dev == named.st_dev &&
           held.st_ino == named.st_ino;
}

/* Flushes the folder of a name. */
static sw_status flush_name(const char *path) {
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash == NULL)
        return sw_file_sync_directory(".");
    slash[slash == folder ? 1 : 0] = '\0';
    return sw_file_sync_directory(folder);
}

/* Says why the path does not lead to the file, which cannot be linked to it either. */
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

/* Finds whether the path leads to the file. Fails where the system cannot tell: then the name is not lost. */
static sw_status find_held(int fd, const char *path, bool *out) {
    errno = 0;
    *out = sw_name_holds(fd, path);
    return !*out && (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == EIO)
               ? sw_fail(SW_ERR_IO, "%s cannot be looked at: %s", path, strerror(errno))
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

/* Makes the copy under a name of its own, and gives it the other one when it is whole. */
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
    /* Opened anew, a file that is written with direct I/O can be read into any memory, and one that is only written can
     * be read at all. */
    const int from = sw_path_open(self, O_RDONLY | O_CLOEXEC, 0);
    if (from < 0)
        return sw_fail(SW_ERR_IO, "%s was removed, and its open file cannot be read: %s", path, strerror(errno));
    sw_log_warn("%s was removed while it was in use: writing its %s to a new file of this name", path,
                sw_format_size(held.st_size, size));
    const sw_status status = put_copy(fd, from, path);
    close(from);
    return status;
}
