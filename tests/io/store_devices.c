/* Block devices as stripes of a store: used whole, kept from others, and never overwritten unasked. */
#include "tests/io/failing_calls.h"
#include "tests/io/loop.h"
#include "tests/io/store_support.h"

#include "core/size.h"
#include "io/store/store_private.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SMALL_SECTOR_BYTES = 512, LARGE_SECTOR_BYTES = 4096, KILLS = 6, MAX_KILL_US = 60000, MORE_KILLS = 8 };
/* Not a multiple of the store's pages, where sectors allow that. */
#define DEVICE_BYTES (24 * SW_MIB + SMALL_SECTOR_BYTES)
#define LOOK_BYTES SW_MIB

struct device {
    char name[LOOP_NAME_CHARS];
    int fd;
};

/* A device that lasts as long as this process. */
static struct device make_device(const char *directory, const char *backing, int64_t bytes, int sector_bytes) {
    struct device device;
    const int64_t whole_bytes = bytes / sector_bytes * sector_bytes;
    device.fd = loop_open(in_directory(directory, backing), whole_bytes, sector_bytes, device.name);
    if (device.fd < 0)
        _exit(CHILD_SKIPPED);
    return device;
}

static struct sw_store_spec spec_of(const struct store_directories *places) {
    return (struct sw_store_spec){.directories = places->path,
                                  .directory_count = places->count,
                                  .unit_grains = store_unit_grains,
                                  .unit_count = STORE_UNITS};
}

static struct sw_store *create_on(const struct store_directories *places) {
    const struct sw_store_spec spec = spec_of(places);
    struct sw_store *store;
    CHECK_OK(sw_store_create(&spec, NULL, NULL, &store));
    return store;
}

static struct sw_store *open_on(const struct store_directories *places) {
    struct sw_store *store;
    CHECK_OK(sw_store_open(places->path, places->count, false, SW_STORE_NEWEST, &store));
    return store;
}

static void check_create_fails(const struct store_directories *places, sw_status code, const char *words) {
    const struct sw_store_spec spec = spec_of(places);
    struct sw_store *store;
    CHECK_FAILS(sw_store_create(&spec, NULL, NULL, &store), code, words);
}

static void copy_device(const char *from, const char *to, int64_t bytes) {
    char *buf = io_buffer(bytes);
    const int in = open(from, O_RDONLY | O_CLOEXEC), out = open(to, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    CHECK(pread(in, buf, (size_t)bytes, 0) == bytes && pwrite(out, buf, (size_t)bytes, 0) == bytes);
    CHECK(fsync(out) == 0 && close(in) == 0 && close(out) == 0);
    free(buf);
}

/* A device and a folder, whose shares then change places by way of a third device and another folder. */
static void live_on_devices(const char *directory, int sector_bytes) {
    const struct device device = make_device(directory, "disk", DEVICE_BYTES, sector_bytes);
    struct store_directories places = make_store_directories(directory, 2);
    places.path[1] = device.name;
    struct sw_store *store = create_on(&places);
    const int64_t bytes[] = {store->files[0].sealed_bytes, store->files[1].sealed_bytes};
    CHECK(store->files[1].is_device && !store->files[0].is_device);
    CHECK((fcntl(store->files[1].fd, F_GETFL) & O_DIRECT) != 0);
    commit_steps(store, 1, 3);
    check_at_step(store, 3);
    sw_store_close(store);
    CHECK_OK(sw_store_open_to_read(places.path, places.count, SW_STORE_NEWEST, &store));
    check_at_step(store, 3);
    sw_store_close(store);
    store = open_on(&places);
    check_at_step(store, 3);
    CHECK_OK(sw_store_add_scratch(store, &(struct sw_store_scratch){.kind = SW_STORE_GRADS,
                                                                    .unit_grains = store_unit_grains,
                                                                    .grain_bytes = SW_FORMAT_PAGE_BYTES}));
    CHECK_FAILS(sw_store_add_scratch(store, &(struct sw_store_scratch){.kind = SW_STORE_ACTS,
                                                                       .unit_grains = store_unit_grains,
                                                                       .grain_bytes = 16 * SW_MIB}),
                SW_ERR_SPACE, "is too small: the store needs");
    commit_steps(store, 4, 4);
    sw_store_close(store);

    const struct device other = make_device(directory, "other", DEVICE_BYTES, sector_bytes);
    struct store_directories moved = make_store_directories(new_subdirectory(directory, "moved"), 2);
    copy_device(device.name, store_file(&moved, 0), bytes[1]);
    copy_device(store_file(&places, 0), other.name, bytes[0]);
    moved.path[1] = other.name;
    store = open_on(&moved);
    check_at_step(store, 4);
    commit_steps(store, 5, 6);
    sw_store_close(store);
    store = open_on(&moved);
    check_at_step(store, 6);
    sw_store_close(store);
}

static void live_on_small_sectors(void *context) {
    live_on_devices(context, SMALL_SECTOR_BYTES);
}

static void live_on_large_sectors(void *context) {
    live_on_devices(context, LARGE_SECTOR_BYTES);
}

static void works_on_small_sectors(void **state) {
    loop_run_or_skip(live_on_small_sectors, *state);
}

static void works_on_large_sectors(void **state) {
    loop_run_or_skip(live_on_large_sectors, *state);
}

/* Returns the bytes at a device's ends; the caller frees them. */
static char *look_at(const struct device *device, int64_t bytes) {
    char *ends = io_buffer(2 * LOOK_BYTES);
    CHECK(pread(device->fd, ends, LOOK_BYTES, 0) == LOOK_BYTES);
    CHECK(pread(device->fd, ends + LOOK_BYTES, LOOK_BYTES, bytes - LOOK_BYTES) == LOOK_BYTES);
    return ends;
}

static void put(const struct device *device, int64_t offset_bytes, const void *bytes, size_t count) {
    CHECK(pwrite(device->fd, bytes, count, offset_bytes) == (ssize_t)count && fsync(device->fd) == 0);
}

/* Everything that can lie on a device is refused, by name where it has one, and left as it is. */
static void refuse_what_holds_something(void *context) {
    static const struct {
        int64_t offset_bytes; /* from the end, where negative */
        const char *bytes, *words;
    } table[] = {
        {0, "SPILLWAY", "a spillway store that would be overwritten: resume the run"},
        {0, "XFSB", "an XFS file system"},
        {65600, "_BHRfS_M", "a Btrfs file system"},
        {4086, "SWAPSPACE2", "swap space"},
        {0, "LUKS\xba\xbe", "an encrypted volume"},
        {512, "LABELONE", "LVM"},
        {512, "EFI PART", "a partition table"},
        {4096, "EFI PART", "a partition table"},
        {510, "\x55\xaa", "a boot sector or partition table"},
        {LOOK_BYTES - 1, "x", "holds data that would be overwritten"},
        {-1, "x", "holds data at its end"},
        {-SMALL_SECTOR_BYTES, "EFI PART", "holds data at its end"},
    };
    const struct device device = make_device(context, "disk", DEVICE_BYTES, SMALL_SECTOR_BYTES);
    const struct store_directories places = {.path = {device.name}, .count = 1};
    static const char zeros[SMALL_SECTOR_BYTES];
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        const int64_t at = table[i].offset_bytes < 0 ? DEVICE_BYTES + table[i].offset_bytes : table[i].offset_bytes;
        put(&device, at, table[i].bytes, strlen(table[i].bytes));
        char *before = look_at(&device, DEVICE_BYTES);
        check_create_fails(&places, SW_ERR_ARG, table[i].words);
        check_create_fails(&places, SW_ERR_ARG, "--allow-overwrite-device");
        char *after = look_at(&device, DEVICE_BYTES);
        CHECK(memcmp(before, after, 2 * LOOK_BYTES) == 0);
        free(before);
        free(after);
        put(&device, at, zeros, strlen(table[i].bytes));
    }
    struct sw_store *store = create_on(&places);
    commit_steps(store, 1, 1);
    sw_store_close(store);
    check_create_fails(&places, SW_ERR_ARG, "a spillway store");
    struct sw_store_spec spec = spec_of(&places);
    spec.allow_overwrite_device = true;
    CHECK_OK(sw_store_create(&spec, NULL, NULL, &store));
    commit_steps(store, 1, 2);
    check_at_step(store, 2);
    sw_store_close(store);
}

static void refuses_what_holds_something(void **state) {
    loop_run_or_skip(refuse_what_holds_something, *state);
}

static void refuse_what_is_used(void *context) {
    struct device device = make_device(context, "disk", DEVICE_BYTES, SMALL_SECTOR_BYTES);
    struct store_directories places = {.path = {device.name}, .count = 1};
    struct sw_store *store = create_on(&places), *second;
    commit_steps(store, 1, 1);
    CHECK_FAILS(sw_store_open(places.path, 1, false, SW_STORE_NEWEST, &second), SW_ERR_BUSY,
                "is already open in this process");
    check_at_step(store, 1);
    sw_store_close(store);
    store = open_on(&places);
    sw_store_close(store);

    device = make_device(context, "mountable", DEVICE_BYTES, SMALL_SECTOR_BYTES);
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        !loop_make_file_system(device.name))
        _exit(CHILD_SKIPPED);
    struct sw_store_spec spec = spec_of(&places);
    check_create_fails(&places, SW_ERR_ARG, "an ext2, ext3 or ext4 file system");
    const char *point = new_subdirectory(context, "mounted");
    CHECK(mount(device.name, point, "ext4", 0, NULL) == 0);
    spec.allow_overwrite_device = true;
    CHECK_FAILS(sw_store_create(&spec, NULL, NULL, &store), SW_ERR_BUSY, "is mounted or otherwise in use");
    CHECK_FAILS(sw_store_open(places.path, 1, false, SW_STORE_NEWEST, &store), SW_ERR_BUSY,
                "is mounted or otherwise in use");
    CHECK(umount(point) == 0);
}

static void refuses_what_is_used(void **state) {
    loop_run_or_skip(refuse_what_is_used, *state);
}

static void refuse_what_cannot_be(void *context) {
    const struct device small = make_device(context, "small", SW_MIB, SMALL_SECTOR_BYTES);
    const struct device device = make_device(context, "disk", DEVICE_BYTES, SMALL_SECTOR_BYTES);
    struct store_directories places = {.path = {small.name}, .count = 1};
    check_create_fails(&places, SW_ERR_SPACE, "and it has 1.00 MiB (1048576 bytes)");
    struct sw_store *store;
    CHECK_FAILS(sw_store_open(places.path, 1, false, SW_STORE_NEWEST, &store), SW_ERR_CORRUPT, "is not a store");
    places = (struct store_directories){.path = {device.name, device.name}, .count = 2};
    check_create_fails(&places, SW_ERR_ARG, "are the same block device");
    places = (struct store_directories){.path = {"/dev/zero"}, .count = 1};
    check_create_fails(&places, SW_ERR_ARG, "/dev/zero is no block device");
    places.path[0] = device.name;
    struct sw_store_spec spec = spec_of(&places);
    spec.unnamed = true;
    CHECK_FAILS(sw_store_create(&spec, NULL, NULL, &store), SW_ERR_ARG, "a measurement would overwrite");
}

static void refuses_what_cannot_be(void **state) {
    loop_run_or_skip(refuse_what_cannot_be, *state);
}

/* A store that was not begun leaves a device as it was; one that was begun leaves it looking unused. */
static void fail_and_leave_nothing(void *context) {
    const struct device device = make_device(context, "disk", DEVICE_BYTES, SMALL_SECTOR_BYTES);
    const struct device small = make_device(context, "small", SW_MIB, SMALL_SECTOR_BYTES);
    struct store_directories places = {.path = {device.name, small.name}, .count = 2};
    struct sw_store_spec spec = spec_of(&places);
    struct sw_store *store;
    spec.allow_overwrite_device = true;
    put(&device, 0, "XFSB", 4);
    char *before = look_at(&device, DEVICE_BYTES);
    CHECK_FAILS(sw_store_create(&spec, NULL, NULL, &store), SW_ERR_SPACE, small.name);
    char *after = look_at(&device, DEVICE_BYTES);
    CHECK(memcmp(before, after, 2 * LOOK_BYTES) == 0);
    free(before);
    free(after);
    spec.directory_count = places.count = 1;
    CHECK_OK(sw_store_create(&spec, NULL, NULL, &store));
    write_generation(store, 0, 1);
    sw_store_discard(store);
    struct stat info;
    CHECK(stat(device.name, &info) == 0 && S_ISBLK(info.st_mode));
    store = create_on(&places);
    commit_steps(store, 1, 1);
    sw_store_discard(store); /* only closes: it has been committed to */
    store = open_on(&places);
    check_at_step(store, 1);
    sw_store_close(store);
}

static void leaves_nothing_of_what_failed(void **state) {
    loop_run_or_skip(fail_and_leave_nothing, *state);
}

/* The one that comes next waits until the writes of the dead have landed, and has the device to itself. On a busy drive
 * each lives longer, until one has committed. */
static void be_killed_on_a_device(void *context) {
    const struct device device = make_device(context, "disk", DEVICE_BYTES, SMALL_SECTOR_BYTES);
    const struct store_directories places = {.path = {device.name}, .count = 1};
    struct sw_store *store = create_on(&places);
    commit_steps(store, 1, 1);
    sw_store_close(store);
    int64_t step = 1;
    uint64_t draws = 0;
    for (test_seed = 1; test_seed <= KILLS || (step == 1 && test_seed <= KILLS + MORE_KILLS); test_seed++) {
        const uint64_t more = test_seed > KILLS ? test_seed - KILLS : 0;
        const pid_t child = fork_child();
        if (child == 0) {
            store = open_on(&places);
            commit_steps(store, sw_store_last_commit(store)->step + 1, INT64_MAX - 1);
        }
        usleep((useconds_t)((MAX_KILL_US << more) + random_below(&draws, MAX_KILL_US)));
        int how;
        CHECK(kill(child, SIGKILL) == 0 && waitpid(child, &how, 0) == child && WIFSIGNALED(how));
        store = open_on(&places);
        CHECK(sw_store_last_commit(store)->step >= step);
        step = sw_store_last_commit(store)->step;
        check_at_step(store, step);
        sw_store_close(store);
    }
    CHECK(step > 1);
}

static void resumes_after_kill(void **state) {
    loop_run_or_skip(be_killed_on_a_device, *state);
}

/* The remains of a store's making are removed by their identity; the files of another store, and files that only begin
 * with zeros, stay. */
static void clear_what_was_begun(void *context) {
    char id[SW_STORE_ID_CHARS], other[SW_STORE_ID_CHARS];
    const struct device device = make_device(context, "disk", DEVICE_BYTES, SMALL_SECTOR_BYTES);
    struct store_directories places = make_store_directories(context, 2);
    places.path[1] = device.name;
    struct sw_store_spec spec = spec_of(&places);
    CHECK_OK(sw_store_new_id(id));
    CHECK_OK(sw_store_new_id(other));
    spec.id = id;
    struct sw_store *store;
    put(&device, 1080, "\x53\xef", 2);
    CHECK_OK(sw_store_remove(device.name, id, 0));
    check_create_fails(&places, SW_ERR_ARG, "an ext2, ext3 or ext4 file system");
    put(&device, 1080, "\0", 2);
    CHECK_OK(sw_store_create(&spec, NULL, NULL, &store));
    CHECK_FAILS(sw_store_remove(device.name, id, 0), SW_ERR_BUSY, device.name);
    sw_store_close(store);
    for (int file = 0; file < 2; file++)
        CHECK_OK(sw_store_remove(places.path[file], other, 0));
    check_create_fails(&places, SW_ERR_ARG, "exists already");
    CHECK_OK(sw_store_remove(places.path[0], id, 0));
    check_create_fails(&places, SW_ERR_ARG, "a spillway store");
    CHECK_OK(sw_store_remove(places.path[1], id, 0));
    CHECK_OK(sw_store_create(&spec, NULL, NULL, &store));
    CHECK(strcmp(sw_store_id(store, other), id) == 0);
    sw_store_close(store);
}

static void clears_what_was_begun(void **state) {
    loop_run_or_skip(clear_what_was_begun, *state);
}

/* The functions below stand in front of the C library's. */

/* The bytes of a sector that devices tell; 0: their own. */
static int told_sector_bytes;

/* NOLINTBEGIN(readability-inconsistent-declaration-parameter-name): the C library's headers have other names. */
int open(const char *path, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
    va_end(arguments);
    return fails("open") ? -1 : (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

int ioctl(int fd, unsigned long request, ...) {
    va_list arguments;
    va_start(arguments, request);
    void *argument = va_arg(arguments, void *);
    va_end(arguments);
    const int result = fails("ioctl") ? -1 : (int)syscall(SYS_ioctl, fd, request, argument);
    if (request == BLKSSZGET && result == 0 && told_sector_bytes > 0)
        *(int *)argument = told_sector_bytes;
    return result;
}

int flock(int fd, int operation) {
    return fails("flock") ? -1 : (int)syscall(SYS_flock, fd, operation);
}

ssize_t pread(int fd, void *out, size_t bytes, off_t offset) {
    return fails("pread") ? -1 : syscall(SYS_pread64, fd, out, bytes, offset);
}
/* NOLINTEND(readability-inconsistent-declaration-parameter-name) */

static void have_calls_fail(void *context) {
    enum { HUGE_SECTOR_BYTES = 8192 };
    const struct device device = make_device(context, "disk", DEVICE_BYTES, SMALL_SECTOR_BYTES);
    const struct store_directories places = {.path = {device.name}, .count = 1};
    struct sw_store *store;
    char id[SW_STORE_ID_CHARS];
    fail_call("open", 1, EMFILE);
    check_create_fails(&places, SW_ERR_IO, "cannot be opened: Too many open files");
    fail_call("open", 2, ENXIO);
    check_create_fails(&places, SW_ERR_IO, "cannot be opened: No such device or address");
    fail_call("open", 2, EROFS);
    check_create_fails(&places, SW_ERR_IO, "cannot be opened for writing (Read-only file system)");
    fail_call("flock", 1, EIO);
    check_create_fails(&places, SW_ERR_BUSY, "another program keeps looking at ");
    fail_call("ioctl", 1, EIO);
    check_create_fails(&places, SW_ERR_IO, "does not tell its size and sectors: Input/output error");
    told_sector_bytes = HUGE_SECTOR_BYTES;
    check_create_fails(&places, SW_ERR_UNSUPPORTED, "has sectors of 8192 bytes");
    told_sector_bytes = 0;
    for (int end = 1; end <= 2; end++) {
        fail_call("pread", end, EIO);
        check_create_fails(&places, SW_ERR_IO, "cannot be read at ");
    }
    fail_call("flock", 1, EWOULDBLOCK); /* as where a program looks at the device for a moment */
    store = create_on(&places);
    sw_store_id(store, id);
    commit_steps(store, 1, 1);
    sw_store_close(store);
    fail_call("open", 1, EIO);
    CHECK_FAILS(sw_store_open_to_read(places.path, 1, SW_STORE_NEWEST, &store), SW_ERR_IO,
                "cannot be opened to read it: Input/output error");
    fail_call("ioctl", 1, EIO);
    CHECK_FAILS(sw_store_open_to_read(places.path, 1, SW_STORE_NEWEST, &store), SW_ERR_IO, "does not tell its size");
    /* A store is looked at, its label and two records, before and after the device is locked. */
    fail_call("pread", 4, EIO);
    CHECK_FAILS(sw_store_remove(device.name, id, 1), SW_ERR_IO, "cannot be read: Input/output error");
    store = open_on(&places);
    check_at_step(store, 1);
    sw_store_close(store);
}

static void says_which_call_fails(void **state) {
    loop_run_or_skip(have_calls_fail, *state);
}

/* Devices are named by links, as in /dev/disk/by-id. Such a name is none of a file that could be lost. */
static void live_behind_a_link(void *context) {
    const struct device device = make_device(context, "disk", DEVICE_BYTES, SMALL_SECTOR_BYTES);
    const struct store_directories places = {.path = {in_directory(context, "link")}, .count = 1};
    CHECK(symlink(device.name, places.path[0]) == 0);
    struct sw_store *store = create_on(&places);
    commit_steps(store, 1, 1);
    CHECK_OK(sw_store_keep_names(store));
    CHECK_OK(sw_store_put_back_names(store));
    sw_store_close(store);
    store = open_on(&places);
    check_at_step(store, 1);
    sw_store_close(store);
}

static void works_behind_a_link(void **state) {
    loop_run_or_skip(live_behind_a_link, *state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(says_which_call_fails, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(works_behind_a_link, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(clears_what_was_begun, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(works_on_small_sectors, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(works_on_large_sectors, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(refuses_what_holds_something, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(refuses_what_is_used, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(refuses_what_cannot_be, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(leaves_nothing_of_what_failed, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(resumes_after_kill, make_directory, remove_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
