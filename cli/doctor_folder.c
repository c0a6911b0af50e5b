/* Checks of a folder for the store: its space, its file system, and the drives behind it. */
#include "cli/doctor.h"
#include "core/number.h"
#include "core/size.h"
#include "io/queue/file.h"
#include "job/machine/drives.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

/* Bytes that the store takes for a parameter: two generations of master weight and both moments, in fp32. */
enum { STATE_BYTES_PER_PARAMETER = 24 };
/* Less space than this is a problem: the smallest model that anybody would place here needs it. */
#define LEAST_FREE_BYTES (4 * SW_GIB)

void sw_doctor_space(struct sw_doctor *doctor) {
    struct statvfs space;
    struct stat info;
    char size[SW_SIZE_CHARS], parameters[SW_COUNT_CHARS];
    if (statvfs(doctor->folder, &space) != 0 || stat(doctor->folder, &info) != 0) {
        sw_doctor_find(doctor, (struct sw_finding){.fix = "name a folder that exists"}, "%s", strerror(errno));
        return;
    }
    if (!S_ISDIR(info.st_mode)) {
        sw_doctor_find(doctor, (struct sw_finding){.fix = "name a folder on the drive"}, "this is not a folder");
        return;
    }
    const int64_t free_bytes = (int64_t)space.f_bavail * (int64_t)space.f_frsize;
    json_t *facts = json_pack("{s:I}", "free_bytes", (json_int_t)free_bytes);
    sw_doctor_find(
        doctor,
        (struct sw_finding){.facts = facts,
                            .fix = free_bytes < LEAST_FREE_BYTES ? "free some space, or name another folder" : NULL},
        "%s free: room for the optimizer of %s parameters", sw_format_size(free_bytes, size),
        sw_format_large((int64_t)((double)free_bytes / STATE_BYTES_PER_PARAMETER), parameters));
}

/* File systems that cannot hold a store, or need a setting. */
static const struct advice {
    const char *type, *what, *fix;
} advice[] = {
    {"tmpfs", "in memory", "name a folder on a drive: this one takes memory and is gone after a restart"},
    {"ramfs", "in memory", "name a folder on a drive: this one takes memory and is gone after a restart"},
    {"btrfs", "which copies what is written again elsewhere",
     "`chattr +C` on an empty folder, before the store is made, or a folder on ext4 or xfs"},
    {"zfs", "which copies what is written again elsewhere", "name a folder on ext4 or xfs"},
    {"overlay", "a container's layers", "mount a folder of the machine's ext4 or xfs into the container and name that"},
    {"nfs", "over the network", "name a folder on a drive of this machine"},
    {"nfs4", "over the network", "name a folder on a drive of this machine"},
    {"cifs", "over the network", "name a folder on a drive of this machine"},
    {"smb3", "over the network", "name a folder on a drive of this machine"},
    {"ceph", "over the network", "name a folder on a drive of this machine"},
    {"lustre", "over the network", "name a folder on a drive of this machine"},
    {"9p", "a folder of the host machine", "name a folder on a drive that this machine has itself"},
    {"virtiofs", "a folder of the host machine", "name a folder on a drive that this machine has itself"},
    {"fuseblk", "through a process", "name a folder on ext4 or xfs"},
};

static const struct advice *advice_on(const char *type) {
    for (size_t i = 0; i < sizeof advice / sizeof advice[0]; i++)
        if (strcmp(advice[i].type, type) == 0)
            return &advice[i];
    return NULL;
}

void sw_doctor_file_system(struct sw_doctor *doctor) {
    struct sw_mount mount;
    struct sw_drives drives;
    sw_drives_of_folder(doctor->root, doctor->folder, &mount, &drives);
    const struct advice *found = advice_on(mount.type);
    json_t *facts = json_pack("{s:o, s:o}", "type", sw_fact_text(mount.type), "source", sw_fact_text(mount.source));
    if (mount.type[0] == '\0')
        sw_doctor_find(doctor, (struct sw_finding){.facts = facts, .unknown = true}, "not known");
    else
        sw_doctor_find(doctor, (struct sw_finding){.facts = facts, .fix = found != NULL ? found->fix : NULL},
                       "%s on %s%s%s", mount.type, mount.source, found != NULL ? ", " : "",
                       found != NULL ? found->what : "");
}

/* Checks direct I/O in the way in which the store uses it. */
void sw_doctor_direct(struct sw_doctor *doctor) {
    int file;
    const bool works = sw_file_create_unnamed(doctor->folder, false, &file) == SW_OK;
    json_t *facts = json_pack("{s:b}", "works", works);
    if (works) {
        sw_doctor_find(doctor, (struct sw_finding){.facts = facts}, "direct I/O works");
        sw_file_close(file);
        return;
    }
    sw_doctor_find(doctor,
                   (struct sw_finding){.facts = facts,
                                       .fix = "name a folder on ext4 or xfs that you may write to, or accept the page "
                                              "cache with --allow-buffered, which is slower"},
                   "%s", sw_error_message(SW_ERR_UNSUPPORTED));
    sw_error_clear();
}

static void find_drives(struct sw_doctor *doctor, struct sw_drives *out) {
    struct sw_mount mount;
    sw_drives_of_folder(doctor->root, doctor->folder, &mount, out);
    if (out->count == 0)
        sw_doctor_find(doctor, (struct sw_finding){.unknown = true}, "the system does not tell which drive is behind");
}

/* Tells whether a drive is virtual (virtio or Xen), with an unknown drive behind it. */
static bool is_virtual(const struct sw_drive *drive) {
    return strncmp(drive->name, "vd", 2) == 0 || strncmp(drive->name, "xvd", 3) == 0;
}

void sw_doctor_drive(struct sw_doctor *doctor) {
    struct sw_drives drives;
    find_drives(doctor, &drives);
    for (int i = 0; i < drives.count; i++) {
        const struct sw_drive *drive = &drives.drive[i];
        const bool known = drive->rotational == 0 || (drive->rotational > 0 && !is_virtual(drive));
        const bool turns = known && drive->rotational > 0;
        json_t *facts = json_pack("{s:s, s:o, s:o}", "name", drive->name, "model", sw_fact_text(drive->model),
                                  "rotational", known ? json_boolean(turns) : json_null());
        sw_doctor_find(
            doctor,
            (struct sw_finding){.facts = facts, .fix = turns ? "name a folder on an SSD" : NULL, .unknown = !known},
            "%s%s%s, %s", drive->name, drive->model[0] != '\0' ? ", " : "", drive->model,
            !known  ? "not known whether it is a rotating disk: see its rates"
            : turns ? "a rotating disk"
                    : "an SSD");
    }
}

void sw_doctor_scheduler(struct sw_doctor *doctor) {
    struct sw_drives drives;
    char fix[2 * SW_DRIVE_CHARS + 64];
    find_drives(doctor, &drives);
    for (int i = 0; i < drives.count; i++) {
        const struct sw_drive *drive = &drives.drive[i];
        json_t *facts = json_pack("{s:s, s:o}", "name", drive->name, "scheduler", sw_fact_text(drive->scheduler));
        /* bfq orders requests for fairness, which costs fast drives most of their rate. */
        const bool slow = strcmp(drive->scheduler, "bfq") == 0;
        snprintf(fix, sizeof fix, "it slows fast drives: `echo none > /sys/block/%s/queue/scheduler`", drive->name);
        sw_doctor_find(
            doctor,
            (struct sw_finding){.facts = facts, .fix = slow ? fix : NULL, .unknown = drive->scheduler[0] == '\0'},
            "%s: %s", drive->name, drive->scheduler[0] != '\0' ? drive->scheduler : "not known");
    }
}

void sw_doctor_write_cache(struct sw_doctor *doctor) {
    struct sw_drives drives;
    find_drives(doctor, &drives);
    for (int i = 0; i < drives.count; i++) {
        const struct sw_drive *drive = &drives.drive[i];
        const bool known = drive->write_cache[0] != '\0', back = strcmp(drive->write_cache, "write back") == 0;
        json_t *facts = json_pack("{s:s, s:o}", "name", drive->name, "write_cache", sw_fact_text(drive->write_cache));
        sw_doctor_find(doctor, (struct sw_finding){.facts = facts, .unknown = !known}, "%s: %s%s", drive->name,
                       known ? drive->write_cache : "not known", back ? ", which every commit flushes" : "");
    }
}
