/* The drives behind devices and file systems, from trees as /sys and /proc have them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "job/machine/drives.h"

enum { PATH_CHARS = 1024 };

/* A file with its text, or a link where the text begins with '>'. */
static const struct entry {
    const char *path, *text;
} entries[] = {
    /* A disk with a partition. */
    {"sys/devices/ata1/block/sda/queue/rotational", "1\n"},
    {"sys/devices/ata1/block/sda/queue/scheduler", "none mq-deadline [bfq]\n"},
    {"sys/devices/ata1/block/sda/queue/write_cache", "write back\n"},
    {"sys/devices/ata1/block/sda/device/model", "TURNING 2TB     \n"},
    {"sys/devices/ata1/block/sda/sda1/partition", "1\n"},
    {"sys/dev/block/8:0", ">../../devices/ata1/block/sda"},
    {"sys/dev/block/8:1", ">../../devices/ata1/block/sda/sda1"},
    /* Two NVMe drives of one partition each. */
    {"sys/devices/pci/nvme0/nvme0n1/queue/rotational", "0\n"},
    {"sys/devices/pci/nvme0/nvme0n1/queue/scheduler", "[none] mq-deadline\n"},
    {"sys/devices/pci/nvme0/nvme0n1/queue/write_cache", "write through\n"},
    {"sys/devices/pci/nvme0/nvme0n1/nvme0n1p1/partition", "1\n"},
    {"sys/dev/block/259:1", ">../../devices/pci/nvme0/nvme0n1/nvme0n1p1"},
    {"sys/devices/pci/nvme1/nvme1n1/queue/scheduler", "none\n"},
    {"sys/devices/pci/nvme1/nvme1n1/nvme1n1p1/partition", "1\n"},
    {"sys/dev/block/259:3", ">../../devices/pci/nvme1/nvme1n1/nvme1n1p1"},
    /* An array of both partitions, a volume on it, and a second that is also on the first drive alone. */
    {"sys/devices/virtual/block/md0/slaves/nvme0n1p1", ">../../../../pci/nvme0/nvme0n1/nvme0n1p1"},
    {"sys/devices/virtual/block/md0/slaves/nvme1n1p1", ">../../../../pci/nvme1/nvme1n1/nvme1n1p1"},
    {"sys/dev/block/9:0", ">../../devices/virtual/block/md0"},
    {"sys/devices/virtual/block/dm-0/slaves/md0", ">../../md0"},
    {"sys/devices/virtual/block/dm-0/slaves/nvme0n1p1", ">../../../../pci/nvme0/nvme0n1/nvme0n1p1"},
    {"sys/dev/block/253:0", ">../../devices/virtual/block/dm-0"},
    /* A mapping that stands on itself, as no kernel makes it. */
    {"sys/devices/virtual/block/dm-1/slaves/dm-1", ">../../dm-1"},
    {"sys/dev/block/253:1", ">../../devices/virtual/block/dm-1"},
    /* A link to nothing. */
    {"sys/dev/block/253:2", ">../../devices/virtual/block/gone"},
    /* btrfs over two devices. */
    {"sys/fs/btrfs/uuid-a/devices/other", ">../../../../devices/ata1/block/sda"},
    {"sys/fs/btrfs/uuid-b/devices/nvme0n1p1", ">../../../../devices/pci/nvme0/nvme0n1/nvme0n1p1"},
    {"sys/fs/btrfs/uuid-b/devices/sda1", ">../../../../devices/ata1/block/sda/sda1"},
    {"proc/self/mountinfo", "21 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n"
                            "22 21 0:40 /@home /my\\040data rw - btrfs /dev/my\\040disk rw,subvol=/@home\n"
                            "damaged\n"
                            "23 21 0:41 / / rw shared:1 master:2 - overlay overlay "
                            "rw,lowerdir=/l,upperdir=/var/up\\040per/diff,workdir=/w\n"
                            "24 21 0:42 / /x rw - tmpfs\n"},
};

static char root[PATH_CHARS];

static void make_entry(const struct entry *entry) {
    char path[2 * PATH_CHARS];
    snprintf(path, sizeof path, "%s/%s", root, entry->path);
    for (char *slash = path + strlen(root) + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = '\0';
        mkdir(path, 0700);
        *slash = '/';
    }
    if (entry->text[0] == '>') {
        assert_int_equal(symlink(entry->text + 1, path), 0);
        return;
    }
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(entry->text, file);
    fclose(file);
}

static int make_tree(void **state) {
    (void)state;
    const char *parent = getenv("TMPDIR");
    snprintf(root, sizeof root, "%s/spillway-drives-XXXXXX", parent != NULL ? parent : ".");
    if (mkdtemp(root) == NULL)
        return -1;
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++)
        make_entry(&entries[i]);
    return 0;
}

static int remove_tree(void **state) {
    (void)state;
    char command[2 * PATH_CHARS];
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    return system(command);
}

static void names_of(const struct sw_drives *drives, char out[PATH_CHARS]) {
    out[0] = '\0';
    for (int i = 0; i < drives->count; i++) {
        strcat(out, drives->drive[i].name);
        strcat(out, " ");
    }
}

static void devices_come_down_to_drives(void **state) {
    (void)state;
    static const struct {
        unsigned major, minor;
        const char *names;
    } table[] = {
        {8, 0, "sda "},
        {8, 1, "sda "},
        {259, 1, "nvme0n1 "},
        {9, 0, "nvme0n1 nvme1n1 "},
        {253, 0, "nvme0n1 nvme1n1 "},
        {253, 1, ""},
        {253, 2, ""},
        {7, 7, ""},
        {0, 35, ""},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        struct sw_drives drives;
        char names[PATH_CHARS];
        sw_drives_of_device(root, makedev(table[i].major, table[i].minor), &drives);
        names_of(&drives, names);
        if (strcmp(names, table[i].names) != 0)
            fail_msg("%u:%u is '%s' instead of '%s'", table[i].major, table[i].minor, names, table[i].names);
    }
}

static void what_is_known_of_a_drive(void **state) {
    (void)state;
    struct sw_drives drives;
    sw_drives_of_device(root, makedev(8, 1), &drives);
    assert_string_equal(drives.drive[0].model, "TURNING 2TB");
    assert_string_equal(drives.drive[0].scheduler, "bfq");
    assert_string_equal(drives.drive[0].write_cache, "write back");
    assert_int_equal(drives.drive[0].rotational, 1);
    sw_drives_of_device(root, makedev(9, 0), &drives);
    assert_string_equal(drives.drive[0].scheduler, "none");
    assert_int_equal(drives.drive[0].rotational, 0);
    assert_string_equal(drives.drive[1].scheduler, "none");
    assert_string_equal(drives.drive[1].write_cache, "");
    assert_int_equal(drives.drive[1].rotational, -1);
}

static void btrfs_over_several(void **state) {
    (void)state;
    struct sw_drives drives = {0};
    char names[PATH_CHARS];
    sw_drives_of_btrfs(root, "sda1", &drives);
    names_of(&drives, names);
    assert_string_equal(names, "nvme0n1 sda ");
    drives = (struct sw_drives){0};
    sw_drives_of_btrfs(root, "sdz", &drives);
    assert_int_equal(drives.count, 0);
}

static void mounts(void **state) {
    (void)state;
    struct sw_mount mount;
    assert_true(sw_mount_find(root, 21, &mount));
    assert_string_equal(mount.type, "ext4");
    assert_true(sw_mount_find(root, 22, &mount));
    assert_string_equal(mount.type, "btrfs");
    assert_string_equal(mount.source, "/dev/my disk");
    assert_string_equal(mount.upper, "");
    assert_true(sw_mount_find(root, 23, &mount));
    assert_string_equal(mount.upper, "/var/up per/diff");
    assert_false(sw_mount_find(root, 24, &mount));
    assert_false(sw_mount_find(root, 2, &mount));
    assert_false(sw_mount_find("/does/not/exist", 21, &mount));
}

/* This machine's, whatever it has: nothing breaks. */
static void a_real_folder(void **state) {
    (void)state;
    struct sw_mount mount;
    struct sw_drives drives;
    sw_drives_of_folder("", "/", &mount, &drives);
    sw_drives_of_folder("", "/proc", &mount, &drives);
    assert_string_equal(mount.type, "proc");
    assert_int_equal(drives.count, 0);
    sw_drives_of_folder("", "/does/not/exist", &mount, &drives);
    assert_true(drives.count == 0 && mount.type[0] == '\0');
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(devices_come_down_to_drives),
        cmocka_unit_test(what_is_known_of_a_drive),
        cmocka_unit_test(btrfs_over_several),
        cmocka_unit_test(mounts),
        cmocka_unit_test(a_real_folder),
    };
    return cmocka_run_group_tests_name("train drives", tests, make_tree, remove_tree);
}
