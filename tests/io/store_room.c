/* All the room that a store and its scratch take is known, held to limits, and taken, before anything is written; and
 * making it can be stopped. */
#include "tests/io/store_support.h"

#include "core/size.h"
#include "io/store/format.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { SCRATCHES = 2, TYPED_GRAIN_BYTES = 32768 };
static const int64_t page_grains[STORE_UNITS] = {0, 70, 3, 0};
static const struct sw_store_scratch scratches[SCRATCHES] = {
    {.kind = SW_STORE_GRADS, .unit_grains = store_unit_grains, .grain_bytes = TYPED_GRAIN_BYTES},
    {.kind = SW_STORE_ACTS, .unit_grains = page_grains, .grain_bytes = SW_FORMAT_PAGE_BYTES}};

static struct sw_store_spec spec_of(const struct store_directories *directories) {
    return (struct sw_store_spec){.directories = directories->path,
                                  .directory_count = directories->count,
                                  .unit_grains = store_unit_grains,
                                  .unit_count = STORE_UNITS,
                                  .scratch = scratches,
                                  .scratch_count = SCRATCHES,
                                  .allow_buffered = true};
}

static int64_t blocks_bytes(const char *path) {
    struct stat info;
    CHECK(stat(path, &info) == 0);
    return (int64_t)info.st_blocks * 512;
}

static void add_scratches(struct sw_store *store) {
    for (int i = 0; i < SCRATCHES; i++)
        CHECK_OK(sw_store_add_scratch(store, &scratches[i]));
}

/* The room that is announced is the room that is taken, on every number of directories; and the room for scratch is
 * there when the store is made, not when scratch comes. */
static void what_is_needed_is_what_is_taken(void **state) {
    for (int count = 1; count <= STORE_MAX_DIRECTORIES; count++) {
        char name[2] = {(char)('a' + count)};
        const struct store_directories directories = make_store_directories(new_subdirectory(*state, name), count);
        const struct sw_store_spec spec = spec_of(&directories);
        int64_t need[STORE_MAX_DIRECTORIES];
        struct sw_store *store;
        CHECK_OK(sw_store_need(&spec, need));
        for (int i = 0; i < count; i++)
            CHECK(file_bytes(store_file(&directories, i)) == -1);
        CHECK_OK(sw_store_create(&spec, NULL, NULL, &store));
        for (int i = 0; i < count; i++)
            CHECK(blocks_bytes(store_file(&directories, i)) >= need[i]);
        add_scratches(store);
        commit_steps(store, 1, 2);
        int64_t total = 0;
        for (int i = 0; i < count; i++) {
            CHECK(file_bytes(store_file(&directories, i)) == need[i]);
            total += need[i];
        }
        CHECK(sw_store_file_bytes(store) == total);
        sw_store_close(store);
        /* One that goes on without scratch gives its room back. */
        store = reopen_store(&directories);
        check_at_step(store, 2);
        for (int i = 0; i < count; i++)
            CHECK(file_bytes(store_file(&directories, i)) < need[i]);
        sw_store_close(store);
    }
}

static void limits_refuse_before_anything_is_made(void **state) {
    const struct store_directories directories = make_store_directories(*state, 2);
    struct sw_store_spec spec = spec_of(&directories);
    int64_t need[2];
    CHECK_OK(sw_store_need(&spec, need));
    const int64_t limits[][2] = {{need[0] - 1, 0}, {0, need[1] - 1}, {1, 1}};
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        struct sw_store *store;
        spec.most_bytes = limits[i];
        int64_t same[2];
        CHECK_FAILS(sw_store_need(&spec, same), SW_ERR_BUDGET, "may have");
        CHECK_FAILS(sw_store_create(&spec, NULL, NULL, &store), SW_ERR_BUDGET,
                    directories.path[limits[i][0] == 0 ? 1 : 0]);
        CHECK(file_bytes(store_file(&directories, 0)) == -1 && file_bytes(store_file(&directories, 1)) == -1);
    }
    struct sw_store *store;
    spec.most_bytes = need;
    CHECK_OK(sw_store_create(&spec, NULL, NULL, &store));
    add_scratches(store);
    sw_store_close(store);
}

static void limits_hold_for_scratch_that_comes_later(void **state) {
    const struct store_directories directories = make_store_directories(*state, 2);
    struct sw_store *store = create_store(&directories);
    commit_steps(store, 1, 1);
    const int64_t bytes = file_bytes(store_file(&directories, 1));
    sw_store_close(store);
    store = reopen_store(&directories);
    CHECK_FAILS(sw_store_limit(store, directories.path[1], bytes - 1), SW_ERR_BUDGET, directories.path[1]);
    CHECK_FAILS(sw_store_limit(store, "elsewhere", bytes), SW_ERR_INTERNAL, "elsewhere");
    CHECK_OK(sw_store_limit(store, directories.path[1], bytes));
    CHECK_OK(sw_store_limit(store, directories.path[0], 0));
    CHECK_FAILS(sw_store_add_scratch(store, &(struct sw_store_scratch){.kind = SW_STORE_GRADS,
                                                                       .unit_grains = store_unit_grains,
                                                                       .grain_bytes = TYPED_GRAIN_BYTES}),
                SW_ERR_BUDGET, directories.path[1]);
    CHECK(file_bytes(store_file(&directories, 1)) == bytes);
    sw_store_close(store);
    store = reopen_store(&directories);
    check_at_step(store, 1);
    sw_store_close(store);
}

/* Stops when this share of the bytes is done: how many calls come before depends on how the drive answers. */
struct stopper {
    int quarters;
    bool asked;
};

static bool stop_later(void *context, int64_t done, int64_t total) {
    struct stopper *stopper = context;
    CHECK(done <= total && !stopper->asked);
    stopper->asked = done >= total / 4 * stopper->quarters;
    return !stopper->asked;
}

static void making_it_can_be_stopped(void **state) {
    const struct store_directories directories = make_store_directories(*state, 2);
    const struct sw_store_spec spec = spec_of(&directories);
    for (int quarters = 0; quarters <= 4; quarters++) {
        struct stopper stopper = {.quarters = quarters};
        struct sw_store *store;
        CHECK_FAILS(sw_store_create(&spec, stop_later, &stopper, &store), SW_ERR_STOPPED, "was removed");
        CHECK(stopper.asked);
        CHECK(file_bytes(store_file(&directories, 0)) == -1 && file_bytes(store_file(&directories, 1)) == -1);
    }
    struct stopper patient = {.quarters = 5};
    struct sw_store *store;
    CHECK_OK(sw_store_create(&spec, stop_later, &patient, &store));
    commit_steps(store, 1, 1);
    sw_store_close(store);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_is_needed_is_what_is_taken, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(limits_refuse_before_anything_is_made, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(limits_hold_for_scratch_that_comes_later, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(making_it_can_be_stopped, make_directory, remove_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
