/* Finds the file system of a folder, and the drives that it is on. */
#ifndef SW_JOB_MACHINE_DRIVES_H
#define SW_JOB_MACHINE_DRIVES_H

#include "kernels/device.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { SW_DRIVES_MAX = 16, SW_DRIVE_CHARS = 64, SW_SOURCE_CHARS = 1024 };

/* If the system does not tell, a text is empty and a number is -1. */
struct sw_drive {
    char name[SW_DRIVE_CHARS], model[SW_DRIVE_CHARS];
    char scheduler[SW_DRIVE_CHARS];
    char write_cache[SW_DRIVE_CHARS]; /* "write back" (volatile) or "write through" */
    int rotational;
};

struct sw_drives {
    int count;
    struct sw_drive drive[SW_DRIVES_MAX];
};

/* Returns the whole drives of a block device: the drive of a partition, or those below a device of device mapper or md.
 * root is as for sw_system_line. */
void sw_drives_of_device(const char *root, dev_t device, struct sw_drives *out);

/* Returns all drives of a btrfs, by the name of one of them. */
void sw_drives_of_btrfs(const char *root, const char *name, struct sw_drives *out);

struct sw_mount {
    char type[SW_DRIVE_CHARS];
    char source[SW_SOURCE_CHARS]; /* "/dev/nvme0n1p2", "server:/path" */
    char upper[SW_SOURCE_CHARS];  /* for an overlay, the folder that is written to, if it is visible */
};

/* Finds a mount by the number that statx gives it. Returns false if the system does not tell. */
bool sw_mount_find(const char *root, uint64_t id, struct sw_mount *out);

/* Returns the mount and the drives of an existing folder. A file system without a device of its own, such as an
 * overlay, is followed to the one below it. */
void sw_drives_of_folder(const char *root, const char *folder, struct sw_mount *out_mount, struct sw_drives *out);

/* Returns the object "machine" of run.json, which the caller owns; NULL: no memory. It does not identify the machine or
 * its user. places: the folders or block devices of this rank's store. */
json_t *sw_machine_record(const struct sw_device_info *device, const char *const *places, int place_count);

#endif
