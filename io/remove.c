/* Taking a store's file away, for an owner that has another one now. */
#include "io/block.h"
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

static const struct sw_label_header zeros;

/* Until all else lasts, the label has no magic. */
static bool is_label_of(const struct sw_label_header *front, const uint8_t id[SW_FORMAT_ID_BYTES]) {
    const bool may_be_label = memcmp(front->magic, zeros.magic, SW_FORMAT_MAGIC_BYTES) == 0 ||
                              memcmp(front->magic, SW_LABEL_MAGIC, SW_FORMAT_MAGIC_BYTES) == 0;
    return may_be_label && memcmp(front->store_id, id, SW_FORMAT_ID_BYTES) == 0;
}

/* A file of this name without a label is no one's: its space was being taken. */
static bool is_begun(const struct sw_label_header *front, const uint8_t id[SW_FORMAT_ID_BYTES]) {
    return memcmp(front, &zeros, sizeof zeros) == 0 || is_label_of(front, id);
}

static sw_status remove_begun_file(const char *path, const uint8_t id[SW_FORMAT_ID_BYTES]) {
    struct sw_label_header front = {0};
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT || errno == ENOTDIR
                   ? SW_OK
                   : sw_fail(SW_ERR_IO, "%s cannot be removed: %s", path, strerror(errno));
    sw_status status = sw_lock_take(fd, path);
    if (status == SW_OK && pread(fd, &front, sizeof front, 0) < 0)
        status = sw_fail(SW_ERR_IO, "%s cannot be read: %s", path, strerror(errno));
    if (status == SW_OK && is_begun(&front, id) && unlink(path) != 0 && errno != ENOENT)
        status = sw_fail(SW_ERR_IO, "%s cannot be removed: %s", path, strerror(errno));
    close(fd);
    return status;
}

/* Zeros at the front of a device are no sign: file systems begin with them too. */
static sw_status wipe_begun_device(const char *path, const uint8_t id[SW_FORMAT_ID_BYTES]) {
    int64_t bytes;
    int fd;
    void *front = NULL;
    SW_TRY(sw_block_open(path, &fd, &bytes));
    sw_status status = sw_store_alloc_aligned(SW_FORMAT_PAGE_BYTES, &front);
    if (status == SW_OK)
        status = sw_file_read(fd, path, 0, front, SW_FORMAT_PAGE_BYTES);
    if (status == SW_OK && is_label_of(front, id))
        status = sw_block_wipe(fd, path, bytes);
    free(front);
    sw_file_close(fd);
    return status;
}

sw_status sw_store_remove_begun(const char *place, const char *id) {
    uint8_t bytes[SW_FORMAT_ID_BYTES];
    SW_TRY(sw_store_id_parse(id, bytes));
    if (sw_block_is_one(place))
        return wipe_begun_device(place, bytes);
    char *path = sw_file_path(place, SW_STORE_FILE_NAME);
    if (path == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the name of a store file");
    const sw_status status = remove_begun_file(path, bytes);
    free(path);
    return status;
}
