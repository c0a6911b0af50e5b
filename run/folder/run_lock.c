#include "run/folder/run_lock.h"

#include "core/confine.h"
#include "core/files/files.h"
#include "core/log.h"
#include "io/queue/lock.h"
#include "run/folder/run.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static sw_status lock(int file, const char *folder, const char *path) {
    struct stat info;
    if (fstat(file, &info) != 0 || !S_ISREG(info.st_mode))
        return sw_fail(SW_ERR_ARG, "%s is not a regular file: remove it", path);
    (void)fchmod(file, 0600);
    const sw_status status = sw_lock_take(file, folder);
    if (status != SW_ERR_IO)
        return status;
    sw_log_warn("%s: see yourself that no other process uses this run", sw_error_message(status));
    sw_error_clear();
    return SW_OK;
}

sw_status sw_run_lock(const char *folder, int *out) {
    char path[SW_RUN_PATH_CHARS];
    SW_TRY(sw_path_join(path, sizeof path, folder, SW_RUN_LOCK_NAME));
    const int file = sw_path_open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (file < 0)
        return sw_fail(SW_ERR_IO, "%s cannot be opened for writing: %s", path, strerror(errno));
    const sw_status status = lock(file, folder, path);
    if (status != SW_OK) {
        close(file);
        return status;
    }
    *out = file;
    return SW_OK;
}

bool sw_run_is_locked(const char *folder) {
    char path[SW_RUN_PATH_CHARS];
    const int chars = snprintf(path, sizeof path, "%s/" SW_RUN_LOCK_NAME, folder);
    const int file =
        chars < (int)sizeof path ? sw_path_open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0) : -1;
    const bool locked = file >= 0 && sw_lock_is_held(file);
    if (file >= 0)
        close(file);
    return locked;
}

void sw_run_lock_remove(const char *folder) {
    char path[SW_RUN_PATH_CHARS];
    if (sw_path_join(path, sizeof path, folder, SW_RUN_LOCK_NAME) == SW_OK)
        sw_path_unlink(path);
}
