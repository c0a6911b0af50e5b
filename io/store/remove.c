/* Removes a store by its identity, never by its path alone: another store may be there now. */
#include "core/confine.h"
#include "io/queue/file.h"
#include "io/store/block.h"
#include "io/store/store_private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool sw_store_is_at(const char *place) {
    char *path = sw_block_is_one(place) ? strdup(place) : sw_file_path(place, SW_STORE_FILE_NAME);
    const bool found = path != NULL && sw_path_exists(path);
    free(path);
    return found;
}

static const struct sw_label_header zeros;

struct removal {
    const char *path; /* of the file or device */
    uint8_t id[SW_FORMAT_ID_BYTES];
    int64_t most_step; /* newest step that may be lost */
    bool zeros_count;  /* whether zeros at the front mean a store that was being made */
    bool removed;      /* the name has been removed */
};

/* Returns whether this is the label of the store, or its label without the magic, which creation writes first. */
static bool is_label_of(const struct sw_label_header *front, const uint8_t id[SW_FORMAT_ID_BYTES]) {
    const bool may_be_label = memcmp(front->magic, zeros.magic, SW_FORMAT_MAGIC_BYTES) == 0 ||
                              memcmp(front->magic, SW_LABEL_MAGIC, SW_FORMAT_MAGIC_BYTES) == 0;
    return may_be_label && memcmp(front->store_id, id, SW_FORMAT_ID_BYTES) == 0;
}

/* Reads the label, or its copy if the file begins with zeros: a store that lost its first label still belongs to
 * someone. */
static sw_status read_front(int fd, const char *path, void *page, struct sw_label_header *out) {
    if (pread(fd, page, SW_FORMAT_PAGE_BYTES, 0) < 0)
        return sw_fail(SW_ERR_IO, "%s cannot be read: %s", path, strerror(errno));
    memcpy(out, page, sizeof *out);
    bool found = memcmp(out, &zeros, sizeof zeros) != 0;
    for (int64_t offset_bytes = SW_FORMAT_FIRST_COPY_OFFSET; !found && offset_bytes <= SW_FORMAT_LAST_COPY_OFFSET;
         offset_bytes *= 2) {
        found = pread(fd, page, SW_FORMAT_PAGE_BYTES, offset_bytes) == SW_FORMAT_PAGE_BYTES &&
                memcmp(page, SW_LABEL_MAGIC, SW_FORMAT_MAGIC_BYTES) == 0;
        if (found)
            memcpy(out, page, sizeof *out);
    }
    return SW_OK;
}

/* Finds out whether the store may be removed: it is all zeros, if those count, or it has this id. A store with a later
 * step is refused, whoever says that it is not needed. */
static sw_status look(int fd, const struct removal *removal, bool *out) {
    const char *path = removal->path;
    struct sw_label_header front = {0};
    void *page;
    *out = false;
    SW_TRY(sw_store_alloc_aligned(SW_FORMAT_PAGE_BYTES, &page));
    sw_status status = read_front(fd, path, page, &front);
    const bool whole = memcmp(front.magic, SW_LABEL_MAGIC, SW_FORMAT_MAGIC_BYTES) == 0;
    const int64_t label_bytes = sw_from_le64(front.label_bytes), super_bytes = sw_from_le64(front.super_bytes);
    *out = status == SW_OK &&
           (is_label_of(&front, removal->id) || (removal->zeros_count && memcmp(&front, &zeros, sizeof zeros) == 0));
    if (status == SW_OK && *out && whole &&
        (label_bytes < 0 || label_bytes > SW_FORMAT_MAX_LABEL_BYTES || super_bytes < 0 ||
         super_bytes > SW_RING_MAX_REQUEST_BYTES))
        status = sw_fail(SW_ERR_CORRUPT, "%s has a damaged label: its sizes are impossible; inspect it yourself", path);
    for (int slot = 0; status == SW_OK && *out && whole && slot < SW_STORE_SLOTS; slot++) {
        struct sw_super_header super;
        const int64_t offset_bytes =
            sw_format_super_offset((int)sw_from_le32(front.version), label_bytes, super_bytes, slot);
        status = sw_file_read(fd, path, offset_bytes, page, SW_FORMAT_PAGE_BYTES);
        memcpy(&super, page, sizeof super);
        if (status == SW_OK && memcmp(super.magic, SW_SUPER_MAGIC, SW_FORMAT_MAGIC_BYTES) == 0 &&
            memcmp(super.store_id, removal->id, SW_FORMAT_ID_BYTES) == 0 &&
            sw_from_le64(super.step) > removal->most_step)
            status = sw_fail(SW_ERR_ARG,
                             "%s is not removed, as it holds step %lld, and only step %lld was to be given up: resume "
                             "its run, or remove it yourself",
                             path, (long long)sw_from_le64(super.step), (long long)removal->most_step);
    }
    free(page);
    return status;
}

/* Examines the file without a lock, because it may be another store in use. Sets *out if there is something to remove.
 */
static sw_status look_at(const struct removal *removal, bool *out) {
    *out = false;
    const int fd = sw_path_open(removal->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
    if (fd < 0)
        return errno == ENOENT || errno == ENOTDIR
                   ? SW_OK
                   : sw_fail(SW_ERR_IO, "%s cannot be removed: %s", removal->path, strerror(errno));
    const sw_status status = look(fd, removal, out);
    close(fd);
    return status;
}

/* Tells whether the path still leads to the open file. While this process waited for the lock, another one may have
 * removed the file and made its own under that name. */
static sw_status find_still_at(int fd, const char *path, bool *out) {
    struct stat held, named;
    *out = false;
    if (fstat(fd, &held) != 0 || sw_path_lstat(path, &named) != 0)
        return errno == ENOENT ? SW_OK : sw_fail(SW_ERR_IO, "%s cannot be removed: %s", path, strerror(errno));
    *out = held.st_dev == named.st_dev && held.st_ino == named.st_ino;
    return SW_OK;
}

static sw_status remove_held(int fd, struct removal *removal) {
    bool found, is_still_there;
    SW_TRY(sw_lock_take(fd, removal->path));
    SW_TRY(look(fd, removal, &found));
    if (!found)
        return SW_OK;
    SW_TRY(find_still_at(fd, removal->path, &is_still_there));
    if (!is_still_there)
        return SW_OK;
    removal->removed = sw_path_unlink(removal->path) == 0;
    if (removal->removed || errno == ENOENT)
        return SW_OK;
    return sw_fail(SW_ERR_IO, "%s cannot be removed: %s", removal->path, strerror(errno));
}

static sw_status remove_file(struct removal *removal) {
    struct stat info;
    const int fd = sw_path_open(removal->path, O_RDWR | O_CLOEXEC | O_NONBLOCK, 0);
    if (fd < 0)
        return errno == ENOENT ? SW_OK : sw_fail(SW_ERR_IO, "%s cannot be removed: %s", removal->path, strerror(errno));
    sw_status status = remove_held(fd, removal);
    if (status != SW_OK && fstat(fd, &info) == 0 && info.st_nlink == 0) {
        sw_error_clear();
        status = SW_OK;
    }
    close(fd);
    return status;
}

static sw_status wipe_device(const struct removal *removal) {
    int64_t bytes;
    int fd;
    bool found;
    SW_TRY(sw_block_open(removal->path, &fd, &bytes));
    sw_status status = look(fd, removal, &found);
    if (status == SW_OK && found)
        status = sw_block_wipe(fd, removal->path, bytes);
    sw_file_close(fd);
    return status;
}

sw_status sw_store_remove(const char *place, const char *id, int64_t most_step) {
    struct removal removal = {.most_step = most_step};
    SW_TRY(sw_store_id_parse(id, removal.id));
    /* A file of this name that begins with zeros belongs to nobody: its space was being reserved. Zeros at the front of
     * a device mean nothing, as file systems begin with them too. */
    bool is_device;
    SW_TRY(sw_block_find(place, &is_device));
    removal.zeros_count = !is_device;
    char *path = is_device ? strdup(place) : sw_file_path(place, SW_STORE_FILE_NAME);
    if (path == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the name of a store");
    removal.path = path;
    bool found;
    sw_status status = look_at(&removal, &found);
    if (status == SW_OK && found)
        status = is_device ? wipe_device(&removal) : remove_file(&removal);
    /* Whoever lists this store will forget it next. On its own drive the name might return after a power loss. */
    if (status == SW_OK && removal.removed)
        status = sw_file_sync_directory(place);
    /* Another rank may have removed the folder, once it was empty. That rank flushes the parent folder. */
    if (status != SW_OK && removal.removed && !sw_path_exists(place)) {
        sw_error_clear();
        status = SW_OK;
    }
    free(path);
    return status;
}
