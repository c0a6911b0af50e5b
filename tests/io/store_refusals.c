/* The store refuses bad input in one clear sentence and with nothing left behind. */
#include "tests/io/store_support.h"

#include "core/size.h"
#include "io/queue/file.h"
#include "io/store/format.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/magic.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { NOBODY = 65534, SMALL_MEMLOCK_BYTES = 8 << 20 };

static sw_status try_create(const char *const *directories, int count, bool allow_buffered, struct sw_store **out) {
    const struct sw_store_spec spec = {
        .directories = directories,
        .directory_count = count,
        .unit_grains = store_unit_grains,
        .unit_count = STORE_UNITS,
        .allow_buffered = allow_buffered,
    };
    return sw_store_create(&spec, NULL, NULL, out);
}

static void check_create_fails(const char *directory, sw_status code, const char *words) {
    struct sw_store *store = NULL;
    CHECK_FAILS(try_create(&directory, 1, true, &store), code, words);
}

static void open_elsewhere(void *context) {
    struct sw_store *store;
    const struct store_directories *directories = context;
    CHECK_FAILS(sw_store_open(directories->path, directories->count, true, SW_STORE_NEWEST, &store), SW_ERR_BUSY,
                "in use by another");
}

static void refuses_a_store_in_use(void **state) {
    struct store_directories directories = make_store_directories(*state, 1);
    struct sw_store *store = create_store(&directories);
    commit_steps(store, 1, 1);
    CHECK(run_in_child(open_elsewhere, &directories) == 0);
    check_at_step(store, 1);
    sw_store_close(store);
    store = reopen_store(&directories);
    sw_store_close(store);
}

static void refuses_existing_files_and_missing_directories(void **state) {
    const struct store_directories directories = make_store_directories(*state, 2);
    const char *there = store_file(&directories, 1);
    write_file(there, "precious", 8);
    struct sw_store *store;
    CHECK_FAILS(try_create(directories.path, 2, true, &store), SW_ERR_ARG, "nvme1/store.spillway exists already");
    CHECK(file_bytes(store_file(&directories, 0)) == -1 && file_bytes(there) == 8);
    check_create_fails(in_directory(*state, "nowhere"), SW_ERR_ARG, "nowhere is not an existing directory");
    const char *twice[] = {directories.path[0], directories.path[0]};
    CHECK_FAILS(try_create(twice, 2, true, &store), SW_ERR_ARG, "are the same directory");
    CHECK(file_bytes(store_file(&directories, 0)) == -1);
}

static void refuses_impossible_sizes(void **state) {
    const char *directory = *state;
    const int64_t wrong[][2] = {{0, 0}, {-1, 5}, {INT64_MAX, 1}, {INT64_C(1) << 40, 1}, {INT64_C(1) << 30, 1}};
    struct sw_store *store;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        const struct sw_store_spec spec = {.directories = &directory,
                                           .directory_count = 1,
                                           .unit_grains = wrong[i],
                                           .unit_count = 2,
                                           .allow_buffered = true};
        CHECK_FAILS(sw_store_create(&spec, NULL, NULL, &store), SW_ERR_ARG, "grain");
    }
    /* 20 TB: more than any file system that the tests run on has free. */
    const int64_t large[] = {100 << 20, 1};
    const struct sw_store_spec spec = {
        .directories = &directory, .directory_count = 1, .unit_grains = large, .unit_count = 2, .allow_buffered = true};
    CHECK_FAILS(sw_store_create(&spec, NULL, NULL, &store), SW_ERR_SPACE, "the store needs 37.");
    CHECK(file_bytes(in_directory(directory, SW_STORE_FILE_NAME)) == -1);
}

static void refuses_counts_of_directories(void **state) {
    const char *directories[SW_STORE_MAX_FILES + 1];
    int64_t need[SW_STORE_MAX_FILES + 1];
    struct sw_store *store;
    for (int i = 0; i <= SW_STORE_MAX_FILES; i++)
        directories[i] = *state;
    const struct sw_store_spec spec = {.directories = directories,
                                       .directory_count = SW_STORE_MAX_FILES + 1,
                                       .unit_grains = store_unit_grains,
                                       .unit_count = STORE_UNITS};
    CHECK_FAILS(sw_store_need(&spec, need), SW_ERR_ARG, "a store has 1 to 64 directories, not 65");
    CHECK_FAILS(try_create(directories, 0, true, &store), SW_ERR_ARG, "a store has 1 to 64 directories, not 0");
    CHECK_FAILS(sw_store_open(directories, 0, true, SW_STORE_NEWEST, &store), SW_ERR_ARG, "directories, not 0");
}

/* tmpfs has no direct I/O, whatever open() says on newer kernels. */
static void refuses_a_file_system_without_direct_io(void **state) {
    (void)state;
    char directory[] = "/dev/shm/spillway-io-XXXXXX";
    struct statfs info;
    if (statfs("/dev/shm", &info) != 0 || info.f_type != TMPFS_MAGIC || mkdtemp(directory) == NULL) {
        print_message("no tmpfs on /dev/shm: no root or loop device to make one\n");
        skip();
    }
    struct sw_store *store;
    const char *path = directory;
    const sw_status status = try_create(&path, 1, false, &store);
    CHECK(file_bytes(in_directory(directory, SW_STORE_FILE_NAME)) == -1);
    CHECK_FAILS(status, SW_ERR_UNSUPPORTED, "without direct I/O");
    CHECK_OK(try_create(&path, 1, true, &store));
    commit_steps(store, 1, 1);
    sw_store_close(store);
    const sw_status reopened = sw_store_open(&path, 1, false, SW_STORE_NEWEST, &store);
    CHECK_FAILS(reopened, SW_ERR_UNSUPPORTED, "--allow-buffered");
    CHECK_OK(sw_store_open(&path, 1, true, SW_STORE_NEWEST, &store));
    check_at_step(store, 1);
    sw_store_close(store);
    CHECK(unlink(in_directory(directory, SW_STORE_FILE_NAME)) == 0 && rmdir(directory) == 0);
}

/* A mount that only this process sees. */
static void mount_small(const char *directory, const char *options) {
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", directory, "tmpfs", 0, options) != 0)
        _exit(CHILD_SKIPPED);
}

static void create_in_full(void *context) {
    const char *directory = context;
    mount_small(directory, "size=1m");
    check_create_fails(directory, SW_ERR_SPACE, "1.00 MiB (1048576 bytes) are available");
    CHECK(file_bytes(in_directory(directory, SW_STORE_FILE_NAME)) == -1);
}

/* The records would fit; their scratch would not. */
static void create_with_scratch_in_full(void *context) {
    enum { LARGE_GRAIN_BYTES = 1 << 20 };
    const char *directory = context;
    mount_small(directory, "size=12m");
    const struct sw_store_scratch scratch = {
        .kind = SW_STORE_GRADS, .unit_grains = store_unit_grains, .grain_bytes = LARGE_GRAIN_BYTES};
    const struct sw_store_spec spec = {.directories = &directory,
                                       .directory_count = 1,
                                       .unit_grains = store_unit_grains,
                                       .unit_count = STORE_UNITS,
                                       .scratch = &scratch,
                                       .scratch_count = 1,
                                       .allow_buffered = true};
    struct sw_store *store = NULL;
    CHECK_FAILS(sw_store_create(&spec, NULL, NULL, &store), SW_ERR_SPACE, "12.00 MiB (12582912 bytes) are available");
    CHECK(file_bytes(in_directory(directory, SW_STORE_FILE_NAME)) == -1);
    CHECK_OK(try_create(&directory, 1, true, &store));
    sw_store_discard(store);
}

static void grow_in_full(void *context) {
    enum { LARGE_GRAIN_BYTES = 4 << 20 };
    const char *directory = context;
    mount_small(directory, "size=12m");
    struct sw_store *store;
    CHECK_OK(try_create(&directory, 1, true, &store));
    CHECK_FAILS(sw_store_add_scratch(store, &(struct sw_store_scratch){.kind = SW_STORE_GRADS,
                                                                       .unit_grains = store_unit_grains,
                                                                       .grain_bytes = LARGE_GRAIN_BYTES}),
                SW_ERR_SPACE, "store.spillway cannot have the");
    sw_store_discard(store);
    CHECK(file_bytes(in_directory(directory, SW_STORE_FILE_NAME)) == -1);
}

static void create_in_read_only(void *context) {
    const char *directory = context;
    mount_small(directory, "size=64m");
    CHECK(mount(NULL, directory, NULL, MS_REMOUNT | MS_RDONLY, NULL) == 0);
    check_create_fails(directory, SW_ERR_IO, "choose a writable directory");
}

static void run_or_skip(void (*function)(void *context), void *context) {
    const int result = run_in_child(function, context);
    if (result == CHILD_SKIPPED) {
        print_message("no root or loop device: a small file system cannot be mounted\n");
        skip();
    }
    CHECK(result == 0);
}

static void refuses_scratch_without_space(void **state) {
    run_or_skip(create_with_scratch_in_full, *state);
}

static void refuses_a_full_file_system(void **state) {
    run_or_skip(create_in_full, *state);
}

static void refuses_scratch_without_room(void **state) {
    run_or_skip(grow_in_full, *state);
}

static void refuses_a_read_only_directory(void **state) {
    run_or_skip(create_in_read_only, *state);
}

/* Ordinary users may not write a directory of mode 0500; root becomes one of them for this. */
static void create_unprivileged(void *context) {
    const char *directory = context;
    CHECK(chmod(directory, 0555) == 0);
    CHECK(geteuid() != 0 || setuid(NOBODY) == 0);
    check_create_fails(directory, SW_ERR_IO, "Permission denied");
}

static void refuses_a_directory_of_others(void **state) {
    const char *directory = new_subdirectory(*state, "closed");
    CHECK(run_in_child(create_unprivileged, (void *)directory) == 0);
}

/* Answers io_uring_setup with the error, as a container's seccomp profile or the sysctl does. */
static void forbid_io_uring(int error) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog program = {.len = sizeof filter / sizeof filter[0], .filter = filter};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

static void create_without_permission(void *context) {
    forbid_io_uring(EPERM);
    check_create_fails(context, SW_ERR_UNSUPPORTED, "kernel.io_uring_disabled");
}

static void create_without_io_uring(void *context) {
    forbid_io_uring(ENOSYS);
    check_create_fails(context, SW_ERR_UNSUPPORTED, "seccomp");
}

static void explains_forbidden_io_uring(void **state) {
    CHECK(run_in_child(create_without_permission, *state) == 0);
    CHECK(run_in_child(create_without_io_uring, *state) == 0);
    CHECK(file_bytes(in_directory(*state, SW_STORE_FILE_NAME)) == -1);
}

/* An ordinary user whose memlock limit is too small for the buffers: slower, not refused. */
static void work_with_small_memlock(void *context) {
    enum { BUFFER_BYTES = 16 << 20 };
    const struct store_directories *directories = context;
    struct sw_store *store = create_store(directories);
    void *buffer = io_buffer(BUFFER_BYTES);
    const struct rlimit limit = {.rlim_cur = SMALL_MEMLOCK_BYTES, .rlim_max = SMALL_MEMLOCK_BYTES};
    CHECK(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
    CHECK(geteuid() != 0 || setuid(NOBODY) == 0);
    /* The line that says so goes to standard error; it is caught to be counted. */
    int ends[2];
    CHECK(pipe(ends) == 0 && dup2(ends[1], STDERR_FILENO) >= 0);
    CHECK_OK(sw_store_add_buffer(store, buffer, BUFFER_BYTES));
    commit_steps(store, 1, 2);
    check_at_step(store, 2);
    char text[4096] = {0};
    CHECK(read(ends[0], text, sizeof text - 1) > 0);
    const char *line = strstr(text, "io_uring did not register");
    CHECK(line != NULL && strstr(line, "ulimit -l") != NULL && strstr(line + 1, "io_uring did not register") == NULL);
    sw_store_close(store);
    free(buffer);
}

static void works_with_a_small_memlock_limit(void **state) {
    struct store_directories directories = make_store_directories(*state, 1);
    CHECK(run_in_child(work_with_small_memlock, &directories) == 0);
}

/* Whoever waits for a file may get it when its owner has removed it. */
static void a_file_that_was_removed_is_not_locked(void **state) {
    const char *path = in_directory(*state, "file");
    const int owner = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600), next = open(path, O_RDWR | O_CLOEXEC);
    CHECK(owner >= 0 && next >= 0);
    CHECK_OK(sw_lock_take(owner, path));
    CHECK(unlink(path) == 0);
    CHECK(close(owner) == 0);
    CHECK_FAILS(sw_lock_take(next, path), SW_ERR_BUSY, "was removed");
    CHECK(!sw_lock_is_held(next));
    CHECK(close(next) == 0);
}

/* A process id means nothing in another PID namespace: whoever has it there is neither named nor taken for dead, which
 * would be waited for longer. */
static void in_other_space(void *context) {
    const int next = open(context, O_RDWR | O_CLOEXEC);
    CHECK(next >= 0);
    CHECK_FAILS(sw_lock_take(next, context), SW_ERR_BUSY, "whose id is not known here");
}

static void in_child(void *context) {
    char words[64];
    snprintf(words, sizeof words, "in use by another process (%lld)", (long long)getppid());
    const int next = open(context, O_RDWR | O_CLOEXEC);
    CHECK(next >= 0);
    CHECK_FAILS(sw_lock_take(next, context), SW_ERR_BUSY, words);
}

static void enter_other_space(void *context) {
    if (unshare(CLONE_NEWPID) != 0)
        _exit(CHILD_SKIPPED);
    _exit(run_in_child(in_other_space, context));
}

static void names_the_owner_of_a_lock(void **state) {
    char path[256];
    snprintf(path, sizeof path, "%s", in_directory(*state, "file"));
    const int owner = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600), next = open(path, O_RDWR | O_CLOEXEC);
    CHECK(owner >= 0 && next >= 0);
    CHECK_OK(sw_lock_take(owner, path));
    CHECK_FAILS(sw_lock_take(next, path), SW_ERR_BUSY, "is already open in this process");
    CHECK(run_in_child(in_child, path) == 0);
    const int status = run_in_child(enter_other_space, path);
    CHECK(close(owner) == 0 && close(next) == 0);
    if (status == CHILD_SKIPPED) {
        print_message("no root or loop device\n");
        skip();
    }
    CHECK(status == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_file_that_was_removed_is_not_locked, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(names_the_owner_of_a_lock, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(refuses_a_store_in_use, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(refuses_existing_files_and_missing_directories, make_directory,
                                        remove_directory),
        cmocka_unit_test_setup_teardown(refuses_impossible_sizes, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(refuses_counts_of_directories, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(refuses_a_file_system_without_direct_io, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(refuses_a_full_file_system, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(refuses_scratch_without_space, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(refuses_scratch_without_room, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(refuses_a_read_only_directory, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(refuses_a_directory_of_others, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(explains_forbidden_io_uring, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(works_with_a_small_memlock_limit, make_directory, remove_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
