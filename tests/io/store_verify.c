/* Verification finds every bad grain of the last commit, and none elsewhere. */
#include "tests/io/store_support.h"

#include "core/size.h"
#include "io/store/store_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SEEDS = 12, MOST_BAD = 6, ALL_GRAINS = 20 };

/* The findings that are expected, in order. */
struct findings {
    int64_t unit[MOST_BAD], grain[MOST_BAD], offset[MOST_BAD];
    char path[MOST_BAD][256];
    int64_t count, found, progress;
};

static void on_bad(void *context, const struct sw_store_bad_grain *bad) {
    struct findings *self = context;
    const int64_t at = self->found++;
    CHECK(at < self->count && bad->unit == self->unit[at] && bad->grain == self->grain[at]);
    CHECK(bad->offset_bytes == self->offset[at] && strcmp(bad->path, self->path[at]) == 0 && bad->error == 0);
}

static void on_progress(void *context, int64_t done, int64_t total) {
    struct findings *self = context;
    CHECK(done > self->progress && done <= total && total == ALL_GRAINS * (int64_t)SW_OPTIMIZER_GRAIN_BYTES);
    self->progress = done;
}

/* Flips a bit in grains at random, in the order in which they are found. */
static void damage(struct findings *self, const struct sw_store *store, int generation) {
    uint64_t draws = 0;
    const struct sw_area *area = &store->areas[SW_STORE_OPTIMIZER][generation];
    for (int64_t unit = 0; unit < STORE_UNITS; unit++)
        for (int64_t grain = 0; grain < store_unit_grains[unit]; grain++) {
            if (self->count == MOST_BAD || random_below(&draws, ALL_GRAINS) > 4)
                continue;
            const struct sw_file_run run = sw_area_run(area, unit, grain, 1);
            const int64_t at = self->count++;
            self->unit[at] = unit;
            self->grain[at] = grain;
            self->offset[at] = run.offset_bytes;
            snprintf(self->path[at], sizeof self->path[at], "%s", store->files[run.file].path);
            flip_bit(self->path[at], run.offset_bytes + random_below(&draws, SW_OPTIMIZER_GRAIN_BYTES));
        }
}

/* A second time, the same bits are turned back. */
static void check_damaged(struct sw_store *store, int damaged) {
    struct findings found = {0}, again = {0};
    const struct sw_store_verifier verifier = {.bad = on_bad, .progress = on_progress, .context = &found};
    const bool committed = damaged == sw_store_last_commit(store)->generation;
    int64_t grains, bad;
    damage(&found, store, damaged);
    if (!committed)
        found.count = 0;
    CHECK_OK(sw_store_verify(store, &verifier, &grains, &bad));
    CHECK(grains == ALL_GRAINS && found.progress == ALL_GRAINS * (int64_t)SW_OPTIMIZER_GRAIN_BYTES);
    CHECK(bad == found.count && bad == found.found);
    damage(&again, store, damaged);
    CHECK(again.count > 0);
}

static void finds_every_bad_grain(void **state) {
    static const char *const names[STORE_MAX_DIRECTORIES] = {"a", "b", "c"};
    for (int files = 1; files <= STORE_MAX_DIRECTORIES; files++) {
        const struct store_directories directories =
            make_store_directories(new_subdirectory(*state, names[files - 1]), files);
        struct sw_store *store = create_store(&directories);
        commit_steps(store, 1, 2);
        for (test_seed = 1; test_seed <= SEEDS; test_seed++)
            check_damaged(store, (int)(test_seed % SW_STORE_GENERATIONS));
        check_at_step(store, 2);
        sw_store_close(store);
    }
}

static void needs_a_commit(void **state) {
    const struct store_directories directories = make_store_directories(*state, 1);
    struct sw_store *store = create_store(&directories);
    int64_t grains, bad;
    CHECK_FAILS(sw_store_verify(store, NULL, &grains, &bad), SW_ERR_ARG, "no commit to verify");
    sw_store_discard(store);
}

static struct sw_store *open_to_read(const struct store_directories *directories) {
    struct sw_store *store;
    CHECK_OK(sw_store_open_to_read(directories->path, directories->count, SW_STORE_NEWEST, &store));
    return store;
}

static sw_status read_grain(struct sw_store *store, void *buf) {
    struct sw_store_lane *lane;
    CHECK_OK(sw_store_lane_open(store, STORE_DEPTH, &lane));
    const struct sw_store_transfer transfer = {
        .generation = sw_store_last_commit(store)->generation, .grains = 1, .buf = buf, .step = 2};
    const sw_status status = sw_store_transfer(lane, &transfer);
    sw_store_lane_close(lane);
    return status;
}

/* The store is read while its owner goes on: right bytes until they are written over, which is then said. */
static void is_read_beside_its_owner(void **state) {
    const struct store_directories directories = make_store_directories(*state, 2);
    struct sw_store *owner = create_store(&directories);
    int64_t grains, bad;
    void *buf = io_buffer(SW_OPTIMIZER_GRAIN_BYTES);
    commit_steps(owner, 1, 2);
    struct sw_store *reader = open_to_read(&directories);
    check_at_step(reader, 2);
    CHECK_FAILS(sw_store_commit(reader, 3, 0, ""), SW_ERR_INTERNAL, "read only");
    commit_steps(owner, 3, 3);
    check_at_step(reader, 2);
    write_generation(owner, 1 - sw_store_last_commit(owner)->generation, 4);
    CHECK_FAILS(sw_store_verify(reader, NULL, &grains, &bad), SW_ERR_OVERTAKEN, "written over while it was read");
    CHECK_FAILS(read_grain(reader, buf), SW_ERR_OVERTAKEN, "stop the run first");
    sw_store_close(reader);
    reader = open_to_read(&directories);
    check_at_step(reader, 3);
    sw_store_close(reader);
    sw_store_close(owner);
    free(buf);
}

/* Stores of ranks may be a commit apart. What is opened at the older one is written over with no commit in between. */
static void a_step_behind_is_read_beside_its_owner(void **state) {
    const struct store_directories directories = make_store_directories(*state, 1);
    struct sw_store *owner = create_store(&directories), *reader;
    int64_t grains, bad;
    commit_steps(owner, 1, 2);
    CHECK_OK(sw_store_open_to_read(directories.path, 1, 1, &reader));
    write_generation(owner, 1 - sw_store_last_commit(owner)->generation, 3);
    CHECK_FAILS(sw_store_verify(reader, NULL, &grains, &bad), SW_ERR_OVERTAKEN, "step 1");
    sw_store_close(owner);
    CHECK_OK(sw_store_verify(reader, NULL, &grains, &bad));
    CHECK(bad > 0);
    sw_store_close(reader);
}

/* Records that cannot be read tell of no later commit. */
static void a_file_that_was_cut_short_is_not_overtaken(void **state) {
    const struct store_directories directories = make_store_directories(*state, 1);
    struct sw_store *store = create_store(&directories);
    int64_t grains, bad;
    commit_steps(store, 1, 1);
    sw_store_close(store);
    store = open_to_read(&directories);
    CHECK(truncate(store_file(&directories, 0), SW_FORMAT_PAGE_BYTES) == 0);
    CHECK_OK(sw_store_verify(store, NULL, &grains, &bad));
    CHECK(grains == ALL_GRAINS && bad == ALL_GRAINS);
    sw_store_close(store);
}

static void a_commit_is_waited_for(void **state) {
    const struct store_directories directories = make_store_directories(*state, 1);
    struct sw_store *owner = create_store(&directories), *reader;
    CHECK_FAILS(sw_store_open_to_read(directories.path, 1, SW_STORE_NEWEST, &reader), SW_ERR_BUSY, "no commit yet");
    commit_steps(owner, 1, 1);
    sw_store_close(owner);
    reader = open_to_read(&directories);
    check_at_step(reader, 1);
    sw_store_close(reader);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(finds_every_bad_grain, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(needs_a_commit, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(is_read_beside_its_owner, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(a_step_behind_is_read_beside_its_owner, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(a_file_that_was_cut_short_is_not_overtaken, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(a_commit_is_waited_for, make_directory, remove_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
