/* Stores that hold a run of each unit's grains, as each of several ranks has one: grains keep their place in the whole
 * unit, on the drive and in every message. */
#include "tests/io/store_support.h"

#include "core/size.h"
#include "io/store/store_private.h"

#include <stdlib.h>
#include <string.h>

enum { RANKS = 4, GRAIN_BYTES = 8192 };

/* Shares of store_unit_grains, {13, 1, 0, 6}: uneven, with runs of no grains, and a rank that has nothing at all. */
static const int64_t firsts[RANKS][STORE_UNITS] = {{0, 0, 0, 0}, {5, 1, 0, 2}, {5, 0, 0, 5}, {13, 1, 0, 6}};
static const int64_t counts[RANKS][STORE_UNITS] = {{5, 0, 0, 2}, {0, 0, 0, 3}, {8, 1, 0, 1}, {0, 0, 0, 0}};

static struct sw_store *create_span(const struct store_directories *directories, int rank) {
    const struct sw_store_spec spec = {.directories = directories->path,
                                       .directory_count = directories->count,
                                       .unit_first = firsts[rank],
                                       .unit_grains = counts[rank],
                                       .unit_whole_grains = store_unit_grains,
                                       .unit_count = STORE_UNITS,
                                       .allow_buffered = true};
    struct sw_store *store = NULL;
    CHECK_OK(sw_store_create(&spec, NULL, NULL, &store));
    return store;
}

static void move(struct sw_store *store, int rank, const struct sw_store_transfer *like) {
    struct sw_store_lane *lane;
    CHECK_OK(sw_store_lane_open(store, STORE_DEPTH, &lane));
    char *buf = io_buffer(store_unit_grains[0] * SW_OPTIMIZER_GRAIN_BYTES),
         *wanted = io_buffer(SW_OPTIMIZER_GRAIN_BYTES);
    for (int64_t unit = 0; unit < STORE_UNITS; unit++) {
        struct sw_store_transfer transfer = *like;
        transfer.unit = unit;
        transfer.first_grain = firsts[rank][unit];
        transfer.grains = counts[rank][unit];
        transfer.buf = buf;
        for (int64_t grain = 0; like->write && grain < transfer.grains; grain++)
            fill_grain(buf + grain * SW_OPTIMIZER_GRAIN_BYTES, SW_OPTIMIZER_GRAIN_BYTES, unit,
                       transfer.first_grain + grain, like->step);
        if (transfer.grains > 0)
            CHECK_OK(sw_store_transfer(lane, &transfer));
        for (int64_t grain = 0; grain < transfer.grains; grain++) {
            fill_grain(wanted, SW_OPTIMIZER_GRAIN_BYTES, unit, transfer.first_grain + grain, like->step);
            CHECK(memcmp(wanted, buf + grain * SW_OPTIMIZER_GRAIN_BYTES, SW_OPTIMIZER_GRAIN_BYTES) == 0);
        }
    }
    free(wanted);
    free(buf);
    sw_store_lane_close(lane);
}

static void commit_step(struct sw_store *store, int rank, int64_t step) {
    const int generation = 1 - sw_store_last_commit(store)->generation;
    move(store, rank, &(struct sw_store_transfer){.write = true, .generation = generation, .step = step});
    CHECK_OK(sw_store_commit(store, step, generation, "{}"));
}

static void check_at(struct sw_store *store, int rank, int64_t step) {
    const struct sw_store_commit *commit = sw_store_last_commit(store);
    CHECK(commit->step == step);
    move(store, rank, &(struct sw_store_transfer){.generation = commit->generation, .step = step});
}

static void check_spans(struct sw_store *store, int rank) {
    int64_t held = 0, grains, bad;
    for (int64_t unit = 0; unit < STORE_UNITS; unit++) {
        const int64_t count = counts[rank][unit];
        CHECK(sw_store_unit_grains(store, unit) == count);
        CHECK(count == 0 || sw_store_unit_first(store, unit) == firsts[rank][unit]);
        CHECK(sw_store_unit_whole_grains(store, unit) == store_unit_grains[unit]);
        held += count;
    }
    CHECK_OK(sw_store_verify(store, NULL, &grains, &bad));
    CHECK(grains == held && bad == 0);
}

static void keeps_places_in_whole_units(void **state) {
    for (int rank = 0; rank < RANKS; rank++) {
        const struct store_directories directories =
            make_store_directories(new_subdirectory(*state, (const char *[]){"0", "1", "2", "3"}[rank]), 1 + rank % 3);
        struct sw_store *store = create_span(&directories, rank);
        for (int64_t step = 0; step < 3; step++)
            commit_step(store, rank, step);
        check_spans(store, rank);
        sw_store_close(store);
        store = reopen_store(&directories);
        check_spans(store, rank);
        check_at(store, rank, 2);
        sw_store_close(store);
    }
}

struct found {
    int64_t unit, grain;
};

static void on_bad(void *context, const struct sw_store_bad_grain *bad) {
    *(struct found *)context = (struct found){bad->unit, bad->grain};
}

static void names_grains_of_whole_units(void **state) {
    const struct store_directories directories = make_store_directories(*state, 2);
    struct sw_store *store = create_span(&directories, 2);
    commit_step(store, 2, 0);
    const struct sw_file_run run = sw_area_run(&store->areas[SW_STORE_OPTIMIZER][0], 0, 11, 1);
    flip_bit(store->files[run.file].path, run.offset_bytes + 77);
    struct found found = {0};
    int64_t grains, bad;
    CHECK_OK(sw_store_verify(store, &(struct sw_store_verifier){.bad = on_bad, .context = &found}, &grains, &bad));
    CHECK(grains == 10 && bad == 1 && found.unit == 0 && found.grain == 11);
    struct sw_store_lane *lane;
    char *buf = io_buffer(8 * SW_OPTIMIZER_GRAIN_BYTES);
    struct sw_store_transfer transfer = {.first_grain = 5, .grains = 8, .buf = buf};
    CHECK_OK(sw_store_lane_open(store, STORE_DEPTH, &lane));
    CHECK_FAILS(sw_store_transfer(lane, &transfer), SW_ERR_CORRUPT, "grain 11 of unit 0 ");
    sw_store_lane_close(lane);
    CHECK_OK(sw_store_lane_open(store, STORE_DEPTH, &lane));
    transfer.first_grain = 4;
    CHECK_FAILS(sw_store_transfer(lane, &transfer), SW_ERR_INTERNAL, "no grains 4 to 11 of unit 0");
    sw_store_lane_close(lane);
    free(buf);
    sw_store_close(store);
}

static void holds_spans_of_scratch(void **state) {
    const struct store_directories directories = make_store_directories(*state, 3);
    struct sw_store *store = create_span(&directories, 1);
    const struct sw_store_scratch scratch = {
        .kind = SW_STORE_GRADS, .unit_first = firsts[2], .unit_grains = counts[2], .grain_bytes = GRAIN_BYTES};
    CHECK_OK(sw_store_add_scratch(store, &scratch));
    struct sw_store_lane *lane;
    CHECK_OK(sw_store_lane_open(store, STORE_DEPTH, &lane));
    char *buf = io_buffer(GRAIN_BYTES), *wanted = io_buffer(GRAIN_BYTES);
    fill_grain(wanted, GRAIN_BYTES, 3, 5, 1);
    struct sw_store_transfer transfer = {
        .write = true, .kind = SW_STORE_GRADS, .unit = 3, .first_grain = 5, .grains = 1, .buf = wanted};
    CHECK_OK(sw_store_transfer(lane, &transfer));
    transfer.write = false;
    transfer.buf = buf;
    CHECK_OK(sw_store_transfer(lane, &transfer));
    CHECK(memcmp(buf, wanted, GRAIN_BYTES) == 0);
    transfer.first_grain = 0;
    CHECK_FAILS(sw_store_transfer(lane, &transfer), SW_ERR_INTERNAL, "no grains 0 to 0 of unit 3");
    free(buf);
    free(wanted);
    sw_store_lane_close(lane);
    sw_store_close(store);
}

static void refuses_spans_outside_their_unit(void **state) {
    const char *path = *state;
    const int64_t first[STORE_UNITS] = {9}, grains[STORE_UNITS] = {5}, below[STORE_UNITS] = {-1};
    struct sw_store_spec spec = {.directories = &path,
                                 .directory_count = 1,
                                 .unit_first = first,
                                 .unit_grains = grains,
                                 .unit_whole_grains = store_unit_grains,
                                 .unit_count = STORE_UNITS,
                                 .allow_buffered = true};
    struct sw_store *store;
    CHECK_FAILS(sw_store_create(&spec, NULL, NULL, &store), SW_ERR_ARG, "cannot hold grains 9 to 13 of unit 0");
    spec.unit_first = below;
    CHECK_FAILS(sw_store_create(&spec, NULL, NULL, &store), SW_ERR_ARG, "unit 0");
}

/* Every commit that is there can be opened, and what came later goes away only when that is asked for. */
static void goes_back_by_one_commit(void **state) {
    const struct store_directories directories = make_store_directories(*state, 2);
    struct sw_store *store = create_span(&directories, 2);
    for (int64_t step = 3; step <= 9; step += 3)
        commit_step(store, 2, step);
    sw_store_close(store);
    CHECK_FAILS(sw_store_open(directories.path, 2, true, 5, &store), SW_ERR_ARG,
                "has no commit up to step 5: its last one is step 9");
    CHECK_OK(sw_store_open(directories.path, 2, true, 8, &store));
    check_at(store, 2, 6);
    CHECK_FAILS(sw_store_commit(store, 7, 1 - sw_store_last_commit(store)->generation, "{}"), SW_ERR_INTERNAL,
                "has a later commit");
    sw_store_close(store);
    store = reopen_store(&directories);
    check_at(store, 2, 9);
    CHECK_OK(sw_store_go_back(store));
    sw_store_close(store);
    CHECK_OK(sw_store_open(directories.path, 2, true, 6, &store));
    CHECK_OK(sw_store_go_back(store));
    sw_store_close(store);
    store = reopen_store(&directories);
    check_at(store, 2, 6);
    const struct sw_store_bad_record *bad;
    CHECK(sw_store_bad_records(store, &bad) == 0);
    commit_step(store, 2, 7);
    sw_store_close(store);
    store = reopen_store(&directories);
    check_at(store, 2, 7);
    sw_store_close(store);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(keeps_places_in_whole_units, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(names_grains_of_whole_units, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(holds_spans_of_scratch, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(refuses_spans_outside_their_unit, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(goes_back_by_one_commit, make_directory, remove_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
