#include "run/trace_file.h"

#include "core/confine.h"
#include "core/files/files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_CHARS = 4096 };

/* A trace never replaces a file: the path may be mistyped, and name state or data. */
static sw_status must_be_free(const char *path) {
    struct stat there;
    if (sw_path_lstat(path, &there) == 0)
        return sw_fail(SW_ERR_ARG, "--trace %s exists already; name a new file", path);
    return SW_OK;
}

static sw_status open_beside(const char *path, char beside[PATH_CHARS], FILE **out) {
    const int used = snprintf(beside, PATH_CHARS, "%s.partial", path);
    if (used < 0 || used >= PATH_CHARS)
        return sw_fail(SW_ERR_ARG, "the path of --trace is too long: %.64s...", path);
    const int fd = sw_path_open(beside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    *out = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (*out != NULL)
        return SW_OK;
    const sw_status status = sw_fail(SW_ERR_IO, "cannot write the trace %s: %s", path, strerror(errno));
    if (fd >= 0) {
        close(fd);
        sw_path_unlink(beside);
    }
    return status;
}

sw_status sw_trace_file_check(const char *path) {
    char beside[PATH_CHARS];
    FILE *file;
    SW_TRY(must_be_free(path));
    SW_TRY(open_beside(path, beside, &file));
    fclose(file);
    sw_path_unlink(beside);
    return SW_OK;
}

sw_status sw_trace_file_write(const char *path, const struct sw_trace *trace) {
    char beside[PATH_CHARS];
    FILE *file;
    SW_TRY(must_be_free(path));
    SW_TRY(open_beside(path, beside, &file));
    sw_trace_write(trace, file);
    const bool written = fflush(file) == 0 && !ferror(file) && fsync(fileno(file)) == 0;
    const int write_error = errno;
    const bool closed = fclose(file) == 0;
    if (written && closed && sw_path_rename(beside, path) == 0)
        return sw_file_flush_folder_of(path);
    const int error = written ? errno : write_error;
    sw_path_unlink(beside);
    return sw_fail(error == ENOSPC ? SW_ERR_SPACE : SW_ERR_IO, "cannot write the trace %s: %s", path, strerror(error));
}
