/* Taking a store's file away, for an owner that has another one now. */
#include "io/file.h"
#include "io/lock.h"
#include "io/store_private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static sw_status remove_at(const char *path) {
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT || errno == ENOTDIR
                   ? SW_OK
                   : sw_fail(SW_ERR_IO, "%s cannot be removed: %s", path, strerror(errno));
    sw_status status = sw_lock_take(fd, path);
    if (status == SW_OK && unlink(path) != 0 && errno != ENOENT)
        status = sw_fail(SW_ERR_IO, "%s cannot be removed: %s", path, strerror(errno));
    close(fd);
    return status;
}

sw_status sw_store_remove(const char *directory) {
    char *path = sw_file_path(directory, SW_STORE_FILE_NAME);
    if (path == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the name of a store file");
    const sw_status status = remove_at(path);
    free(path);
    return status;
}
