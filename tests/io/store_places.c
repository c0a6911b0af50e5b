/* The store on devices and files that are unusual: large sectors, a file system that fills up, more than 4 GiB. */
#include "tests/io/loop.h"
#include "tests/io/store_support.h"

#include "core/size.h"
#include "io/store/store_private.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LARGE_SECTOR_BYTES = 4096, DISK_BYTES = 48 << 20 };

/* Mounts a small ext4 on a loop device with large sectors where only this process sees it, or skips. */
static const char *mount_disk(const char *directory) {
    char device[LOOP_NAME_CHARS];
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
        _exit(CHILD_SKIPPED);
    const int loop = loop_open(in_directory(directory, "disk"), DISK_BYTES, LARGE_SECTOR_BYTES, device);
    const char *point = new_subdirectory(directory, "mounted");
    if (loop < 0 || !loop_make_file_system(device) || mount(device, point, "ext4", 0, NULL) != 0)
        _exit(CHILD_SKIPPED);
    close(loop);
    return point;
}

static struct sw_store *create_direct(const struct store_directories *directories) {
    const struct sw_store_spec spec = {.directories = directories->path,
                                       .directory_count = directories->count,
                                       .unit_grains = store_unit_grains,
                                       .unit_count = STORE_UNITS};
    struct sw_store *store;
    CHECK_OK(sw_store_create(&spec, NULL, NULL, &store));
    return store;
}

static void work_on_large_sectors(void *context) {
    const struct store_directories directories = make_store_directories(mount_disk(context), 2);
    struct sw_store *store = create_direct(&directories);
    /* Direct I/O to half a sector is what this device refuses. */
    char *half = io_buffer(LARGE_SECTOR_BYTES);
    const int fd = open(store_file(&directories, 0), O_RDONLY | O_DIRECT);
    CHECK(fd >= 0 && pread(fd, half, LARGE_SECTOR_BYTES / 2, 0) < 0 && errno == EINVAL && close(fd) == 0);
    free(half);
    commit_steps(store, 1, 3);
    check_at_step(store, 3);
    sw_store_close(store);
    CHECK_OK(sw_store_open(directories.path, 2, false, SW_STORE_NEWEST, &store));
    check_at_step(store, 3);
    commit_steps(store, 4, 4);
    check_at_step(store, 4);
    sw_store_close(store);
}

static void works_on_large_sectors(void **state) {
    loop_run_or_skip(work_on_large_sectors, *state);
}

/* Takes all that is left of the file system. */
static void fill_disk(const char *directory) {
    char *bytes = io_buffer(1 << 20);
    const int fd = open(in_directory(directory, "rest"), O_WRONLY | O_CREAT, 0600);
    for (int64_t size = 1 << 20; size >= 512; size /= 2)
        while (write(fd, bytes, (size_t)size) == size)
            continue;
    CHECK(errno == ENOSPC && close(fd) == 0);
    free(bytes);
}

static void commit_on_full_disk(void *context) {
    const char *point = mount_disk(context);
    const struct store_directories directories = make_store_directories(point, 1);
    const char *other = new_subdirectory(point, "other");
    struct sw_store *store = create_direct(&directories);
    commit_steps(store, 1, 2);
    fill_disk(point);
    const struct sw_store_spec spec = {
        .directories = &other, .directory_count = 1, .unit_grains = store_unit_grains, .unit_count = STORE_UNITS};
    struct sw_store *second;
    CHECK_FAILS(sw_store_create(&spec, NULL, NULL, &second), SW_ERR_SPACE, "other");
    CHECK_FAILS(sw_store_add_scratch(store, &(struct sw_store_scratch){.kind = SW_STORE_GRADS,
                                                                       .unit_grains = store_unit_grains,
                                                                       .grain_bytes = 1 << 20}),
                SW_ERR_SPACE, "store.spillway cannot have the");
    /* All that commits need was taken at creation. */
    commit_steps(store, 3, 6);
    check_at_step(store, 6);
    sw_store_close(store);
    CHECK_OK(sw_store_open(directories.path, 1, false, SW_STORE_NEWEST, &store));
    check_at_step(store, 6);
    commit_steps(store, 7, 7);
    sw_store_close(store);
}

static void commits_on_a_full_disk(void **state) {
    loop_run_or_skip(commit_on_full_disk, *state);
}

/* Makes files sparse: the store then takes no room that it does not write to. */
static void forbid_fallocate(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fallocate, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EOPNOTSUPP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog program = {.len = sizeof filter / sizeof filter[0], .filter = filter};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

enum { SMALL_GRAIN_BYTES = 64 << 10, RUN_GRAINS = 20 };
#define BOUNDARY_GRAIN (4 * SW_GIB / SMALL_GRAIN_BYTES)

static void transfer_run(struct sw_store *store, bool write, int64_t first, char *buf) {
    struct sw_store_lane *lane;
    CHECK_OK(sw_store_lane_open(store, STORE_DEPTH, &lane));
    const struct sw_store_transfer transfer = {
        .write = write, .kind = SW_STORE_GRADS, .first_grain = first, .grains = RUN_GRAINS, .buf = buf};
    CHECK_OK(sw_store_transfer(lane, &transfer));
    sw_store_lane_close(lane);
}

/* Grains on both sides of 4 GiB and at the end of a file of more than 5 GiB. */
static void reach_far(void *context) {
    forbid_fallocate();
    const struct store_directories directories = make_store_directories(context, 1);
    const int64_t scratch[STORE_UNITS] = {BOUNDARY_GRAIN + BOUNDARY_GRAIN / 4};
    const int64_t places[] = {0, BOUNDARY_GRAIN - RUN_GRAINS, BOUNDARY_GRAIN, scratch[0] - RUN_GRAINS};
    struct sw_store *store = create_store(&directories);
    CHECK_OK(sw_store_add_scratch(
        store,
        &(struct sw_store_scratch){.kind = SW_STORE_GRADS, .unit_grains = scratch, .grain_bytes = SMALL_GRAIN_BYTES}));
    CHECK(sw_store_file_bytes(store) > 5 * SW_GIB && file_bytes(store_file(&directories, 0)) > 5 * SW_GIB);
    char *buf = io_buffer(RUN_GRAINS * SMALL_GRAIN_BYTES), *wanted = io_buffer(RUN_GRAINS * SMALL_GRAIN_BYTES);
    for (size_t p = 0; p < sizeof places / sizeof places[0]; p++) {
        fill_grain(buf, RUN_GRAINS * SMALL_GRAIN_BYTES, 0, places[p], 1);
        transfer_run(store, true, places[p], buf);
    }
    for (size_t p = 0; p < sizeof places / sizeof places[0]; p++) {
        fill_grain(wanted, RUN_GRAINS * SMALL_GRAIN_BYTES, 0, places[p], 1);
        transfer_run(store, false, places[p], buf);
        CHECK(memcmp(buf, wanted, RUN_GRAINS * SMALL_GRAIN_BYTES) == 0);
        const struct sw_file_run run = sw_area_run(&store->areas[SW_STORE_GRADS][0], 0, places[p], 1);
        CHECK(p < 2 || run.offset_bytes > 4 * SW_GIB);
        const int fd = open(store_file(&directories, 0), O_RDONLY);
        CHECK(pread(fd, buf, SMALL_GRAIN_BYTES, run.offset_bytes) == SMALL_GRAIN_BYTES && close(fd) == 0);
        CHECK(memcmp(buf, wanted, SMALL_GRAIN_BYTES) == 0);
    }
    commit_steps(store, 1, 2);
    check_at_step(store, 2);
    free(buf);
    free(wanted);
    sw_store_close(store);
}

static void reaches_past_4_gib(void **state) {
    CHECK(run_in_child(reach_far, *state) == 0);
}

/* A grain of 5 GiB: what was asked of the ring for it, which moves nothing. */
struct large_grain {
    int64_t offset_bytes, bytes;
    const char *buf;
};

static int64_t note_piece(struct fake_ring_script *script, const int *files, const struct sw_ring_request *request) {
    struct large_grain *self = script->context;
    (void)files;
    CHECK(request->bytes <= SW_RING_MAX_REQUEST_BYTES && request->bytes % SW_BUFFER_ALIGN_BYTES == 0);
    CHECK(request->offset_bytes == self->offset_bytes && (char *)request->buf == self->buf);
    /* Some transfers stop on the way. */
    const int64_t moved = script->requests % 3 == 0 ? request->bytes / 2 : request->bytes;
    self->offset_bytes += moved;
    self->buf += moved;
    self->bytes -= moved;
    return moved;
}

static void move_large_grain(void *context) {
    forbid_fallocate();
    const int64_t grain_bytes = 5 * SW_GIB;
    const struct store_directories directories = make_store_directories(context, 1);
    const int64_t scratch[STORE_UNITS] = {1, 1};
    struct sw_store *store = create_store(&directories);
    CHECK_OK(sw_store_add_scratch(
        store, &(struct sw_store_scratch){.kind = SW_STORE_ACTS, .unit_grains = scratch, .grain_bytes = grain_bytes}));
    /* Never written to, so that it takes no memory. */
    char *buf = mmap(NULL, (size_t)grain_bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(buf != MAP_FAILED);
    struct large_grain grain;
    struct fake_ring_script script = {.carry_out = note_piece, .context = &grain};
    store->open_ring = fake_ring_open;
    store->ring_context = &script;
    struct sw_store_lane *lane;
    CHECK_OK(sw_store_lane_open(store, STORE_DEPTH, &lane));
    const struct sw_file_run run = sw_area_run(&store->areas[SW_STORE_ACTS][0], 1, 0, 1);
    CHECK(run.offset_bytes > 5 * SW_GIB);
    for (int write = 1; write >= 0; write--) {
        grain = (struct large_grain){.offset_bytes = run.offset_bytes, .bytes = grain_bytes, .buf = buf};
        const struct sw_store_transfer transfer = {
            .write = write, .kind = SW_STORE_ACTS, .unit = 1, .grains = 1, .buf = buf};
        CHECK_OK(sw_store_transfer(lane, &transfer));
        CHECK(grain.bytes == 0);
    }
    sw_store_lane_close(lane);
    CHECK(sw_store_counters(store).write_bytes >= grain_bytes);
    munmap(buf, (size_t)grain_bytes);
    sw_store_close(store);
}

static void moves_a_grain_of_more_than_4_gib(void **state) {
    CHECK(run_in_child(move_large_grain, *state) == 0);
}

/* Checksums of so many kept grains that their pages are in both files. */
static void keep_many_grains(void *context) {
    enum { SUMS_OF_A_PAGE = SW_FORMAT_PAGE_BYTES / sizeof(sw_le64) };
    forbid_fallocate();
    const struct store_directories directories = make_store_directories(context, 2);
    const int64_t last = SW_LAYOUT_STRIPE_BYTES / SW_FORMAT_PAGE_BYTES * SUMS_OF_A_PAGE;
    const int64_t cells[STORE_UNITS] = {last + 1}, pages[STORE_UNITS] = {sw_store_kept_pages(last + 1)};
    const struct sw_store_scratch kinds[] = {
        {.kind = SW_STORE_KEPT_SUMS, .unit_grains = pages, .grain_bytes = SW_FORMAT_PAGE_BYTES},
        {.kind = SW_STORE_BASE, .unit_grains = cells, .grain_bytes = SW_FORMAT_PAGE_BYTES}};
    char *buf = io_buffer(SW_FORMAT_PAGE_BYTES);
    for (int life = 0; life < 2; life++) {
        struct sw_store *store = life == 0 ? create_store(&directories) : reopen_store(&directories);
        struct sw_store_lane *lane;
        struct sw_store_transfer transfer = {
            .write = life == 0, .kind = SW_STORE_BASE, .first_grain = last, .grains = 1, .buf = buf};
        for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
            CHECK_OK(sw_store_add_scratch(store, &kinds[i]));
        CHECK_OK(sw_store_take_kept(store, 1));
        CHECK(sw_store_has(store, SW_STORE_BASE, 0, last, 1) == (life == 1));
        CHECK(!sw_store_has(store, SW_STORE_BASE, 0, last - 1, 1));
        CHECK_OK(sw_store_lane_open(store, STORE_DEPTH, &lane));
        CHECK_OK(sw_store_transfer(lane, &transfer));
        sw_store_lane_close(lane);
        if (life == 0) {
            commit_steps(store, 1, 1);
            CHECK_OK(sw_store_keep(store, 1));
        }
        sw_store_close(store);
    }
    free(buf);
}

static void keeps_checksums_over_several_files(void **state) {
    CHECK(run_in_child(keep_many_grains, *state) == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(keeps_checksums_over_several_files, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(works_on_large_sectors, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(commits_on_a_full_disk, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(reaches_past_4_gib, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(moves_a_grain_of_more_than_4_gib, make_directory, remove_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
