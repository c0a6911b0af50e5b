/* Taking a store's file away, for an owner that has another one now. */
#include "io/block.h"
#include "io/file.h"
#include "io/lock.h"
#include "io/store_private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
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

bool sw_store_is_at(const char *place) {
    char *path = sw_block_is_one(place) ? strdup(place) : sw_file_path(place, SW_STORE_FILE_NAME);
    const bool found = path != NULL && access(path, F_OK) == 0;
    free(path);
    return found;
}

static const struct sw_label_header zeros;

/* Until all else lasts, the label has no magic. */
static bool is_label_of(const struct sw_label_header *front, const uint8_t id[SW_FORMAT_ID_BYTES]) {
    const bool may_be_label = memcmp(front->magic, zeros.magic, SW_FORMAT_MAGIC_BYTES) == 0 ||
                              memcmp(front->magic, SW_LABEL_MAGIC, SW_FORMAT_MAGIC_BYTES) == 0;
    return may_be_label && memcmp(front->store_id, id, SW_FORMAT_ID_BYTES) == 0;
}

/* What lies there may be taken away: nothing but zeros, where those are a sign, or a store of this id with its first
 * commit at most. One that has learnt something is refused, whatever is said to have begun it. */
static sw_status look(int fd, const char *path, const uint8_t id[SW_FORMAT_ID_BYTES], bool zeros_count, bool *out) {
    struct sw_label_header front = {0};
    void *page;
    *out = false;
    SW_TRY(sw_store_alloc_aligned(SW_FORMAT_PAGE_BYTES, &page));
    sw_status status = SW_OK;
    if (pread(fd, page, SW_FORMAT_PAGE_BYTES, 0) < 0)
        status = sw_fail(SW_ERR_IO, "%s cannot be read: %s", path, strerror(errno));
    memcpy(&front, page, sizeof front);
    const bool whole = memcmp(front.magic, SW_LABEL_MAGIC, SW_FORMAT_MAGIC_BYTES) == 0;
    *out = status == SW_OK && (is_label_of(&front, id) || (zeros_count && memcmp(&front, &zeros, sizeof zeros) == 0));
    for (int slot = 0; status == SW_OK && *out && whole && slot < SW_STORE_SLOTS; slot++) {
        struct sw_super_header super;
        status = sw_file_read(fd, path, sw_from_le64(front.label_bytes) + slot * sw_from_le64(front.super_bytes), page,
                              SW_FORMAT_PAGE_BYTES);
        memcpy(&super, page, sizeof super);
        if (status == SW_OK && memcmp(super.magic, SW_SUPER_MAGIC, SW_FORMAT_MAGIC_BYTES) == 0 &&
            memcmp(super.store_id, id, SW_FORMAT_ID_BYTES) == 0 && sw_from_le64(super.sequence) > 1)
            status = sw_fail(SW_ERR_ARG,
                             "%s is not what an unfinished start has left: it has been committed to again, step %lld; "
                             "resume its run, or remove it yourself",
                             path, (long long)sw_from_le64(super.step));
    }
    free(page);
    return status;
}

/* Before it is locked, as another's may be in use. */
static sw_status look_at(const char *path, const uint8_t id[SW_FORMAT_ID_BYTES], bool zeros_count, bool *out) {
    *out = false;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT || errno == ENOTDIR
                   ? SW_OK
                   : sw_fail(SW_ERR_IO, "%s cannot be removed: %s", path, strerror(errno));
    const sw_status status = look(fd, path, id, zeros_count, out);
    close(fd);
    return status;
}

/* A file of this name without a label is no one's: its space was being taken. */
static sw_status remove_begun_file(const char *path, const uint8_t id[SW_FORMAT_ID_BYTES]) {
    bool begun;
    SW_TRY(look_at(path, id, true, &begun));
    if (!begun)
        return SW_OK;
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? SW_OK : sw_fail(SW_ERR_IO, "%s cannot be removed: %s", path, strerror(errno));
    struct stat info;
    sw_status status = sw_lock_take(fd, path);
    if (status == SW_OK)
        status = look(fd, path, id, true, &begun);
    /* While this waited for the lock, another may have taken the file away and made its own. */
    const bool there = fstat(fd, &info) == 0 && info.st_nlink > 0;
    if (status == SW_OK && begun && there && unlink(path) != 0 && errno != ENOENT)
        status = sw_fail(SW_ERR_IO, "%s cannot be removed: %s", path, strerror(errno));
    close(fd);
    return status;
}

/* Zeros at the front of a device are no sign: file systems begin with them too. */
static sw_status wipe_begun_device(const char *path, const uint8_t id[SW_FORMAT_ID_BYTES]) {
    int64_t bytes;
    int fd;
    bool begun;
    SW_TRY(look_at(path, id, false, &begun));
    if (!begun)
        return SW_OK;
    SW_TRY(sw_block_open(path, &fd, &bytes));
    sw_status status = look(fd, path, id, false, &begun);
    if (status == SW_OK && begun)
        status = sw_block_wipe(fd, path, bytes);
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
