/* Which file system a folder is on, and which drives are behind it. */
#ifndef SW_TRAIN_CLI_DRIVES_H
#define SW_TRAIN_CLI_DRIVES_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { SW_DRIVES_MAX = 16, SW_DRIVE_CHARS = 64, SW_SOURCE_CHARS = 1024 };

/* What the system does not tell is an empty text, or -1. */
struct sw_drive {
    char name[SW_DRIVE_CHARS], model[SW_DRIVE_CHARS];
    char scheduler[SW_DRIVE_CHARS];
    char write_cache[SW_DRIVE_CHARS]; /* "write back": volatile; "write through" */
    int rotational;
};

struct sw_drives {
    int count;
    struct sw_drive drive[SW_DRIVES_MAX];
};

/* The whole drives behind a block device: of a partition its drive; of what device mapper and md make, those below.
 * root: as for sw_system_line. */
void sw_drives_of_device(const char *root, dev_t device, struct sw_drives *out);

/* Of a btrfs on one of several drives, by its name, all of them. */
void sw_drives_of_btrfs(const char *root, const char *name, struct sw_drives *out);

struct sw_mount {
    char type[SW_DRIVE_CHARS];
    char source[SW_SOURCE_CHARS]; /* "/dev/nvme0n1p2", "server:/path" */
    char upper[SW_SOURCE_CHARS];  /* of an overlay, the folder that is written to, if it can be seen */
};

/* A mount by the number that the system has for it (statx). False where the system does not tell. */
bool sw_mount_find(const char *root, uint64_t id, struct sw_mount *out);

/* Both for an existing folder. A file system that has no device of its own, such as an overlay, is followed to what is
 * below. */
void sw_drives_of_folder(const char *root, const char *folder, struct sw_mount *out_mount, struct sw_drives *out);

#endif
