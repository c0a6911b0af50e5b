/* A block device as one stripe of a store: opened exclusively, locked, and checked to be free.
 *
 * A device has no name to lose and no file system to say whose it is, so it is refused unless both ends are zero: that
 * is where file systems, partition tables and arrays put their signatures. Reading the whole device would take hours.
 * O_EXCL keeps out mounts, and a lock keeps out probers, which otherwise open every device that was written to. */
#include "io/store/block.h"

#include "core/confine.h"
#include "core/log.h"
#include "core/size.h"
#include "io/queue/file.h"
#include "io/store/store_private.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

/* Bytes at each end of a device where file systems, partition tables and arrays leave their signatures. */
#define END_BYTES SW_MIB

/* The formats that messages can name. Other bytes that are not zero count as data too. */
enum { STORE }; /* index of the first signature */
static const struct signature {
    const char *name;
    int64_t offset_bytes;
    int length;
    const char *bytes;
} signatures[] = {
    [STORE] = {"a spillway store", 0, SW_FORMAT_MAGIC_BYTES, SW_LABEL_MAGIC},
    {"an ext2, ext3 or ext4 file system", 1080, 2, "\x53\xef"},
    {"an XFS file system", 0, 4, "XFSB"},
    {"a Btrfs file system", 65600, 8, "_BHRfS_M"},
    {"an F2FS file system", 1024, 4, "\x10\x20\xf5\xf2"},
    {"an NTFS file system", 3, 4, "NTFS"},
    {"an exFAT file system", 3, 5, "EXFAT"},
    {"a FAT file system", 82, 5, "FAT32"},
    {"a FAT file system", 54, 4, "FAT1"},
    {"swap space", 4086, 10, "SWAPSPACE2"},
    {"an encrypted volume (LUKS)", 0, 6, "LUKS\xba\xbe"},
    {"a physical volume of LVM", 512, 8, "LABELONE"},
    {"a part of a software RAID", 4096, 4, "\xfc\x4e\x2b\xa9"},
    {"a partition table (GPT)", 512, 8, "EFI PART"},
    {"a partition table (GPT)", 4096, 8, "EFI PART"},
    {"a boot sector or partition table", 510, 2, "\x55\xaa"},
};

bool sw_block_is_one(const char *path) {
    struct stat info;
    return sw_path_stat(path, &info) == 0 && S_ISBLK(info.st_mode);
}

sw_status sw_block_find(const char *path, bool *out) {
    bool is_there;
    SW_TRY(sw_path_find(path, &is_there));
    *out = is_there && sw_block_is_one(path);
    return SW_OK;
}

static sw_status explain_open(const char *path, int error) {
    if (error == EACCES || error == EPERM || error == EROFS)
        return sw_fail(SW_ERR_IO,
                       "the block device %s cannot be opened for writing (%s): let this user read and write it, or "
                       "choose another",
                       path, strerror(error));
    return sw_fail(SW_ERR_IO, "the block device %s cannot be opened: %s", path, strerror(error));
}

/* O_EXCL fails if the device is mounted or has another exclusive user. The last user may be a process that was killed,
 * so this tries for as long as for a lock. `probe`, which is not exclusive, tells who has the lock. */
static sw_status open_exclusively(const char *path, int probe, int *out_fd) {
    struct sw_lock_timeout timeout = sw_lock_timeout_begin();
    int error;
    do {
        *out_fd = open(path, O_RDWR | O_EXCL | O_DIRECT | O_CLOEXEC);
        error = errno;
    } while (*out_fd < 0 && error == EBUSY && sw_lock_wait(&timeout, probe));
    if (*out_fd >= 0)
        return SW_OK;
    if (error != EBUSY)
        return explain_open(path, error);
    return sw_lock_is_held(probe)
               ? sw_lock_refusal(probe, path)
               : sw_fail(SW_ERR_BUSY,
                         "%s is mounted or otherwise in use: name a device that nothing uses, or a directory on it",
                         path);
}

/* Locks the device for programs that probe devices for file systems: they leave locked devices alone, and hold the lock
 * while they probe. */
static sw_status keep_probers_away(int fd, const char *path) {
    struct sw_lock_timeout timeout = sw_lock_timeout_begin();
    while (flock(fd, LOCK_EX | LOCK_NB) != 0)
        if (errno != EWOULDBLOCK || !sw_lock_wait(&timeout, fd))
            return sw_fail(SW_ERR_BUSY, "another program keeps looking at %s: wait for it to end, or stop it", path);
    return SW_OK;
}

static sw_status ask_device(int fd, const char *path, int64_t *out_bytes) {
    uint64_t bytes;
    int logical_bytes;
    unsigned physical_bytes;
    if (ioctl(fd, BLKGETSIZE64, &bytes) != 0 || ioctl(fd, BLKSSZGET, &logical_bytes) != 0 ||
        ioctl(fd, BLKPBSZGET, &physical_bytes) != 0)
        return sw_fail(SW_ERR_IO, "%s does not tell its size and sectors: %s", path, strerror(errno));
    if (logical_bytes > SW_FORMAT_PAGE_BYTES)
        return sw_fail(SW_ERR_UNSUPPORTED, "%s has sectors of %d bytes; a store needs %d or fewer", path, logical_bytes,
                       SW_FORMAT_PAGE_BYTES);
    if (physical_bytes > SW_FORMAT_PAGE_BYTES)
        sw_log_warn("%s writes physical sectors of %u bytes, more than the %d that a store relies on: a power loss "
                    "within a commit may damage the one before too",
                    path, physical_bytes, SW_FORMAT_PAGE_BYTES);
    *out_bytes = (int64_t)bytes;
    return SW_OK;
}

sw_status sw_block_open(const char *path, int *out_fd, int64_t *out_bytes) {
    *out_fd = -1;
    const int probe = open(path, O_RDONLY | O_CLOEXEC);
    if (probe < 0)
        return explain_open(path, errno);
    sw_status status = open_exclusively(path, probe, out_fd);
    close(probe);
    if (status == SW_OK)
        status = sw_lock_take(*out_fd, path);
    if (status == SW_OK)
        status = keep_probers_away(*out_fd, path);
    if (status == SW_OK)
        status = ask_device(*out_fd, path, out_bytes);
    if (status != SW_OK && *out_fd >= 0) {
        close(*out_fd);
        *out_fd = -1;
    }
    return status;
}

sw_status sw_block_open_unlocked(const char *path, int *out_fd, int64_t *out_bytes) {
    *out_fd = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
    if (*out_fd < 0)
        return sw_fail(SW_ERR_IO, "the block device %s cannot be opened to read it: %s", path, strerror(errno));
    const sw_status status = ask_device(*out_fd, path, out_bytes);
    if (status != SW_OK) {
        close(*out_fd);
        *out_fd = -1;
    }
    return status;
}

sw_status sw_block_check_room(const char *path, int64_t bytes, int64_t needed_bytes) {
    char need[SW_SIZE_CHARS], have[SW_SIZE_CHARS];
    if (needed_bytes <= bytes)
        return SW_OK;
    return sw_fail(SW_ERR_SPACE, "%s is too small: the store needs %s (%lld bytes) on it, and it has %s (%lld bytes)",
                   path, sw_format_size(needed_bytes, need), (long long)needed_bytes, sw_format_size(bytes, have),
                   (long long)bytes);
}

static const char *name_of(const unsigned char *first, int64_t count) {
    for (size_t i = 0; i < sizeof signatures / sizeof signatures[0]; i++) {
        const struct signature *known = &signatures[i];
        if (known->offset_bytes + known->length <= count &&
            memcmp(first + known->offset_bytes, known->bytes, (size_t)known->length) == 0)
            return known->name;
    }
    return "data";
}

static sw_status check_ends(int fd, const char *path, int64_t bytes, unsigned char *end) {
    const int64_t count = sw_min_i64(bytes, END_BYTES);
    SW_TRY(sw_file_read(fd, path, 0, end, count));
    const char *found = sw_store_is_zero(end, count) ? NULL : name_of(end, count);
    if (found == NULL) {
        SW_TRY(sw_file_read(fd, path, bytes - count, end, count));
        found = sw_store_is_zero(end, count) ? NULL : "data at its end, as a RAID or a partition table has it,";
    }
    if (found == NULL)
        return SW_OK;
    const bool own = found == signatures[STORE].name;
    return sw_fail(SW_ERR_ARG,
                   "%s holds %s that would be overwritten: %schoose another device, or give --allow-overwrite-device "
                   "if nothing on it is needed",
                   path, found, own ? "resume the run that it belongs to, " : "");
}

sw_status sw_block_check_unused(int fd, const char *path, int64_t bytes) {
    void *end;
    SW_TRY(sw_store_alloc_aligned(END_BYTES, &end));
    const sw_status status = check_ends(fd, path, bytes, end);
    free(end);
    return status;
}

sw_status sw_block_wipe(int fd, const char *path, int64_t bytes) {
    const int64_t count = sw_min_i64(bytes, END_BYTES);
    void *zeros;
    SW_TRY(sw_store_alloc_aligned(END_BYTES, &zeros));
    const bool wiped = pwrite(fd, zeros, (size_t)count, 0) == count &&
                       pwrite(fd, zeros, (size_t)count, bytes - count) == count && fdatasync(fd) == 0;
    const int error = errno;
    free(zeros);
    return wiped ? SW_OK : sw_fail(SW_ERR_IO, "%s cannot be wiped: %s", path, strerror(error));
}
