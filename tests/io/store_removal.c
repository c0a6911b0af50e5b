/* Stores are removed by their identity, durably, and only if they are what they were taken for. And calls of the system
 * that fail, here and when a store is made or opened. */
#include "tests/io/failing_calls.h"
#include "tests/io/store_support.h"

#include "io/store/store_private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_FLUSHED = 16, HELD_US = 300000 };

/* The functions below stand in front of the C library's. */

/* A folder that another process removes once it is empty; NULL: none. */
static const char *folder_that_goes;
/* Folders that were flushed since flushed_count was 0. */
static ino_t flushed[MOST_FLUSHED];
static int flushed_count;

/* NOLINTBEGIN(readability-inconsistent-declaration-parameter-name): the C library's headers have other names. */
int unlinkat(int folder, const char *name, int flags) {
    if (fails("unlinkat"))
        return -1;
    const int result = (int)syscall(SYS_unlinkat, folder, name, flags);
    if (result == 0 && folder_that_goes != NULL)
        CHECK(rmdir(folder_that_goes) == 0);
    return result;
}

int fstatat(int folder, const char *name, struct stat *out, int flags) {
    return fails("fstatat") ? -1 : (int)syscall(SYS_newfstatat, folder, name, out, flags);
}

int fstat(int fd, struct stat *out) {
    return fails("fstat") ? -1 : (int)syscall(SYS_fstat, fd, out);
}

int fsync(int fd) {
    struct stat info;
    CHECK(syscall(SYS_fstat, fd, &info) == 0);
    if (S_ISDIR(info.st_mode))
        flushed[flushed_count++ % MOST_FLUSHED] = info.st_ino;
    return fails("fsync") ? -1 : (int)syscall(SYS_fsync, fd);
}

int fallocate(int fd, int mode, off_t offset, off_t len) {
    return fails("fallocate") ? -1 : (int)syscall(SYS_fallocate, fd, mode, offset, len);
}

int ftruncate(int fd, off_t length) {
    return fails("ftruncate") ? -1 : (int)syscall(SYS_ftruncate, fd, length);
}

ssize_t getrandom(void *buffer, size_t length, unsigned flags) {
    return fails("getrandom") ? -1 : syscall(SYS_getrandom, buffer, length, flags);
}
/* NOLINTEND(readability-inconsistent-declaration-parameter-name) */

static bool was_flushed(const char *folder) {
    struct stat info;
    bool found = false;
    CHECK(stat(folder, &info) == 0 && flushed_count <= MOST_FLUSHED);
    for (int i = 0; i < flushed_count; i++)
        found |= flushed[i] == info.st_ino;
    return found;
}

static sw_status try_create(const struct store_directories *directories, const char *id, struct sw_store **out) {
    const struct sw_store_spec spec = {.directories = directories->path,
                                       .directory_count = directories->count,
                                       .unit_grains = store_unit_grains,
                                       .unit_count = STORE_UNITS,
                                       .allow_buffered = true,
                                       .id = id};
    return sw_store_create(&spec, NULL, NULL, out);
}

/* Makes a store of one step, and closes it. */
static void make_store(const struct store_directories *directories, char id[SW_STORE_ID_CHARS]) {
    struct sw_store *store = create_store(directories);
    sw_store_id(store, id);
    commit_steps(store, 1, 1);
    sw_store_close(store);
}

/* A store goes by its identity, and only where it holds no later step than was to be given up. */
static void takes_away_only_what_was_begun(void **state) {
    const struct store_directories directories = make_store_directories(*state, 1);
    char id[SW_STORE_ID_CHARS], other[SW_STORE_ID_CHARS];
    CHECK_OK(sw_store_new_id(other));
    for (int64_t step = 0; step <= 2; step++) {
        struct sw_store *store = create_store(&directories);
        sw_store_id(store, id);
        CHECK_FAILS(sw_store_remove(directories.path[0], id, 0), SW_ERR_BUSY, directories.path[0]);
        CHECK_OK(sw_store_remove(directories.path[0], other, 0)); /* another's is left alone, also while in use */
        commit_steps(store, 0, step);
        sw_store_close(store);
        if (step == 0) {
            CHECK_OK(sw_store_remove(directories.path[0], id, 0));
            CHECK(!sw_store_is_at(directories.path[0]));
            continue;
        }
        CHECK_FAILS(sw_store_remove(directories.path[0], id, 0), SW_ERR_ARG, "only step 0 was to be given up");
        CHECK(sw_store_is_at(directories.path[0]));
        CHECK_OK(sw_store_remove(directories.path[0], other, step));
        CHECK(sw_store_is_at(directories.path[0]));
        CHECK_OK(sw_store_remove(directories.path[0], id, step));
        CHECK(!sw_store_is_at(directories.path[0]));
    }
}

/* Ranks that share a drive all remove what the run no longer needs. */
static void takes_away_a_store_whose_folder_goes(void **state) {
    const struct store_directories directories = make_store_directories(*state, 1);
    char id[SW_STORE_ID_CHARS];
    struct sw_store *store = create_store(&directories);
    sw_store_id(store, id);
    commit_steps(store, 0, 0);
    sw_store_close(store);
    folder_that_goes = directories.path[0];
    const sw_status status = sw_store_remove(directories.path[0], id, 0);
    folder_that_goes = NULL;
    CHECK_OK(status);
}

/* The fate of a store whose removal waits for the process that has it. */
enum change { GOES_ON, REMOVES, REPLACES, GIVES_AWAY, CHANGES };
struct owner {
    const struct store_directories *directories;
    enum change change;
    int ready;
};

static void change_it(void *context) {
    const struct owner *self = context;
    const char *file = store_file(self->directories, 0);
    struct sw_store *store = reopen_store(self->directories);
    CHECK(write(self->ready, "", 1) == 1);
    usleep(HELD_US);
    if (self->change == GOES_ON)
        commit_steps(store, 2, 2);
    if (self->change == REMOVES)
        CHECK(unlink(file) == 0);
    if (self->change == REPLACES) {
        CHECK(rename(file, in_directory(self->directories->path[0], "moved")) == 0);
        write_file(file, "precious", 8);
    }
    if (self->change == GIVES_AWAY)
        overwrite(file, offsetof(struct sw_label_header, store_id), SW_FORMAT_ID_BYTES, 0xaa);
    _exit(0);
}

static void looks_again_after_it_has_waited(void **state) {
    static const char *const names[CHANGES] = {"a", "b", "c", "d"};
    for (int change = 0; change < CHANGES; change++) {
        const struct store_directories directories = make_store_directories(new_subdirectory(*state, names[change]), 1);
        char id[SW_STORE_ID_CHARS], byte;
        int ends[2], how;
        test_seed = (uint64_t)change;
        make_store(&directories, id);
        CHECK(pipe(ends) == 0);
        struct owner owner = {.directories = &directories, .change = (enum change)change, .ready = ends[1]};
        const pid_t child = fork_child();
        if (child == 0)
            change_it(&owner);
        CHECK(read(ends[0], &byte, 1) == 1);
        const sw_status status = sw_store_remove(directories.path[0], id, 1);
        if (change == GOES_ON)
            CHECK_FAILS(status, SW_ERR_ARG, "only step 1 was to be given up");
        else
            CHECK_OK(status);
        CHECK(waitpid(child, &how, 0) == child && WIFEXITED(how) && WEXITSTATUS(how) == 0);
        CHECK(sw_store_is_at(directories.path[0]) == (change != REMOVES));
        CHECK(change != REPLACES || file_bytes(store_file(&directories, 0)) == 8);
        CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
    }
}

static void names_are_flushed(void **state) {
    const struct store_directories directories = make_store_directories(*state, 2);
    char id[SW_STORE_ID_CHARS];
    struct sw_store *store;
    for (int number = 1; number <= directories.count; number++) {
        fail_call("fsync", number, EIO);
        CHECK_FAILS(try_create(&directories, NULL, &store), SW_ERR_IO, "cannot be flushed: Input/output error");
        for (int i = 0; i < directories.count; i++)
            CHECK(!sw_store_is_at(directories.path[i]));
    }
    flushed_count = 0;
    make_store(&directories, id);
    for (int i = 0; i < directories.count; i++)
        CHECK(was_flushed(directories.path[i]));
    flushed_count = 0;
    CHECK_OK(sw_store_remove(directories.path[1], id, 1));
    CHECK(was_flushed(directories.path[1]));
}

static void making_it_says_what_fails(void **state) {
    const struct store_directories directories = make_store_directories(*state, 1);
    char id[SW_STORE_ID_CHARS];
    struct sw_store *store;
    fail_call("getrandom", 1, EIO);
    CHECK_FAILS(sw_store_new_id(id), SW_ERR_IO, "no random bytes: Input/output error");
    fail_call("getrandom", 1, EIO);
    CHECK_FAILS(try_create(&directories, NULL, &store), SW_ERR_IO, "no random bytes: Input/output error");
    fail_call("fallocate", 1, EIO);
    CHECK_FAILS(try_create(&directories, NULL, &store), SW_ERR_IO, "bytes: Input/output error");
    CHECK(!sw_store_is_at(directories.path[0]));
}

static void opening_it_says_what_fails(void **state) {
    const struct store_directories directories = make_store_directories(*state, 1);
    char id[SW_STORE_ID_CHARS];
    struct sw_store *store;
    struct sw_store_lane *lane;
    make_store(&directories, id);
    fail_call("fstat", 3, EIO); /* the first two are of the file's kind and of its lock */
    CHECK_FAILS(sw_store_open(directories.path, 1, true, SW_STORE_NEWEST, &store), SW_ERR_IO, "the size of ");
    store = reopen_store(&directories);
    fail_call("ftruncate", 1, EIO);
    CHECK_FAILS(sw_store_lane_open(store, STORE_DEPTH, &lane), SW_ERR_IO, "cannot be cut to ");
    check_at_step(store, 1);
    sw_store_close(store);
}

static void calls_that_fail_are_told(void **state) {
    const struct store_directories directories = make_store_directories(*state, 1);
    const char *const folder = directories.path[0];
    const struct sw_store_spec spec = {.directories = directories.path,
                                       .directory_count = 1,
                                       .unit_grains = store_unit_grains,
                                       .unit_count = STORE_UNITS};
    char id[SW_STORE_ID_CHARS];
    int64_t need;
    struct sw_store *store;
    make_store(&directories, id);
    fail_call("fstatat", 1, EIO);
    CHECK_FAILS(sw_store_need(&spec, &need), SW_ERR_IO, "cannot be examined");
    fail_call("fstatat", 2, EIO); /* the first one compares directories */
    CHECK_FAILS(sw_store_open(directories.path, 1, true, SW_STORE_NEWEST, &store), SW_ERR_IO, "cannot be examined");
    fail_call("fstatat", 1, EIO);
    CHECK_FAILS(sw_store_remove(folder, id, 1), SW_ERR_IO, "cannot be examined");
    fail_call("fstatat", 3, EIO); /* the first two find out whether it is a block device */
    CHECK_FAILS(sw_store_remove(folder, id, 1), SW_ERR_IO, "cannot be removed: Input/output error");
    fail_call("unlinkat", 1, EIO);
    CHECK_FAILS(sw_store_remove(folder, id, 1), SW_ERR_IO, "cannot be removed: Input/output error");
    CHECK(sw_store_is_at(folder));
    CHECK_OK(sw_store_remove(folder, id, 1));
    CHECK(!sw_store_is_at(folder));
}

static void refuses_what_is_no_identity(void **state) {
    const struct store_directories directories = make_store_directories(*state, 1);
    struct sw_store *store;
    CHECK_FAILS(try_create(&directories, "x", &store), SW_ERR_CORRUPT, "'x' is not the identity of a store");
    CHECK(!sw_store_is_at(directories.path[0]));
    CHECK_FAILS(sw_store_remove(directories.path[0], "x", 1), SW_ERR_CORRUPT, "'x' is not the identity of a store");
}

/* Nothing is removed that cannot be told apart. */
static void leaves_what_it_cannot_read(void **state) {
    const struct store_directories directories = make_store_directories(*state, 1);
    const char *const folder = directories.path[0], *const file = store_file(&directories, 0);
    char id[SW_STORE_ID_CHARS];
    CHECK_OK(sw_store_new_id(id));
    CHECK(mkdir(file, 0700) == 0);
    CHECK_FAILS(sw_store_remove(folder, id, 1), SW_ERR_IO, "cannot be read: Is a directory");
    CHECK(rmdir(file) == 0);
    make_store(&directories, id);
    overwrite(file, offsetof(struct sw_label_header, label_bytes), sizeof(sw_le64), 0xff);
    CHECK_FAILS(sw_store_remove(folder, id, 1), SW_ERR_CORRUPT, "its sizes are impossible");
    CHECK(sw_store_is_at(folder));
}

/* A file without labels was never finished, whatever bytes its grains had. Another name of a file does not matter. */
static void takes_away_one_name_of_what_was_never_finished(void **state) {
    const struct store_directories directories = make_store_directories(*state, 1);
    const char *const file = store_file(&directories, 0), *const other = in_directory(*state, "other");
    char id[SW_STORE_ID_CHARS];
    CHECK_OK(sw_store_new_id(id));
    write_file(file, "", 0);
    CHECK(truncate(file, 2 * SW_FORMAT_FIRST_COPY_OFFSET) == 0 && link(file, other) == 0);
    overwrite(file, SW_FORMAT_FIRST_COPY_OFFSET, SW_FORMAT_PAGE_BYTES, 'x');
    CHECK_OK(sw_store_remove(directories.path[0], id, 1));
    CHECK(!sw_store_is_at(directories.path[0]) && file_bytes(other) == 2 * SW_FORMAT_FIRST_COPY_OFFSET);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(takes_away_only_what_was_begun, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(takes_away_a_store_whose_folder_goes, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(looks_again_after_it_has_waited, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(names_are_flushed, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(making_it_says_what_fails, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(opening_it_says_what_fails, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(calls_that_fail_are_told, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(refuses_what_is_no_identity, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(leaves_what_it_cannot_read, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(takes_away_one_name_of_what_was_never_finished, make_directory,
                                        remove_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
