/* The store at work: round trips over random runs, generations, commits, scratch, several lanes. */
#include "tests/io/store_support.h"

#include "core/size.h"
#include "io/store/store_private.h"

#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SEEDS = 4, ROUNDS = 60, CHUNK_GRAINS = 5, LANE_SLOTS = 6 };

static int count_names(const char *directory) {
    DIR *open = opendir(directory);
    CHECK(open != NULL);
    int count = 0;
    while (readdir(open) != NULL)
        count++;
    closedir(open);
    return count - 2; /* itself and its parent */
}

static void starts_empty_and_zero(void **state) {
    const struct store_directories directories = make_store_directories(*state, 2);
    struct sw_store *store = create_store(&directories);
    CHECK(sw_store_last_commit(store)->step == -1 && sw_store_last_commit(store)->generation == 1);
    CHECK(sw_store_unit_count(store) == STORE_UNITS && sw_store_unit_grains(store, 3) == store_unit_grains[3]);
    CHECK(sw_store_file_bytes(store) ==
          file_bytes(store_file(&directories, 0)) + file_bytes(store_file(&directories, 1)));
    struct stat info;
    CHECK(stat(store_file(&directories, 0), &info) == 0 && (info.st_mode & 0777) == 0600);
    CHECK(info.st_blocks * 512 >= info.st_size); /* all of its space is taken */
    struct sw_store_lane *lane;
    CHECK_OK(sw_store_lane_open(store, 1, &lane));
    char *buf = io_buffer(store_unit_grains[0] * SW_OPTIMIZER_GRAIN_BYTES);
    memset(buf, 1, SW_OPTIMIZER_GRAIN_BYTES);
    for (int generation = 0; generation < SW_STORE_GENERATIONS; generation++)
        CHECK_OK(sw_store_transfer(
            lane, &(struct sw_store_transfer){.generation = generation, .grains = store_unit_grains[0], .buf = buf}));
    for (int64_t i = 0; i < SW_OPTIMIZER_GRAIN_BYTES; i++)
        CHECK(buf[i] == 0);
    free(buf);
    sw_store_lane_close(lane);
    sw_store_close(store);
}

/* Nothing is in the directories while it works or after it, and a store with a name is left alone. */
static void leaves_no_name_behind(void **state) {
    const struct store_directories directories = make_store_directories(*state, 2);
    sw_store_close(create_store(&directories));
    for (int named = 1; named >= 0; named--) {
        struct sw_store *store;
        const struct sw_store_spec spec = {.directories = directories.path,
                                           .directory_count = directories.count,
                                           .unit_grains = store_unit_grains,
                                           .unit_count = STORE_UNITS,
                                           .allow_buffered = true,
                                           .unnamed = true};
        CHECK_OK(sw_store_create(&spec, NULL, NULL, &store));
        write_generation(store, 0, 7);
        CHECK_OK(sw_store_commit(store, 1, 0, "{}"));
        check_generation(store, 0, 7);
        for (int i = 0; i < directories.count; i++)
            CHECK(count_names(directories.path[i]) == named);
        if (named == 1)
            sw_store_close(store);
        else
            sw_store_discard(store);
        for (int i = 0; i < directories.count; i++) {
            CHECK(count_names(directories.path[i]) == named);
            if (named == 1)
                CHECK(unlink(store_file(&directories, i)) == 0);
        }
    }
}

/* Files without names would not meet. */
static void leaves_no_name_in_one_directory_twice(void **state) {
    const char *twice[] = {*state, *state};
    const struct sw_store_spec spec = {.directories = twice,
                                       .directory_count = 2,
                                       .unit_grains = store_unit_grains,
                                       .unit_count = STORE_UNITS,
                                       .allow_buffered = true,
                                       .unnamed = true};
    struct sw_store *store;
    CHECK_FAILS(sw_store_create(&spec, NULL, NULL, &store), SW_ERR_ARG, "are the same directory");
}

/* Every file that was moved gets its name back. */
static void gets_every_name_back(void **state) {
    const struct store_directories directories = make_store_directories(*state, STORE_MAX_DIRECTORIES);
    struct sw_store *store = create_store(&directories);
    for (int i = 0; i < directories.count; i++)
        CHECK(rename(store_file(&directories, i), in_directory(directories.path[i], "moved")) == 0);
    CHECK_OK(sw_store_keep_names(store));
    for (int i = 0; i < directories.count; i++)
        CHECK(file_bytes(store_file(&directories, i)) > 0);
    sw_store_discard(store);
}

static void commits_and_reopens(void **state) {
    for (int count = 1; count <= STORE_MAX_DIRECTORIES; count++) {
        char name[16] = {(char)('a' + count)};
        struct store_directories directories = make_store_directories(new_subdirectory(*state, name), count);
        struct sw_store *store = create_store(&directories);
        commit_steps(store, 1, 3);
        check_at_step(store, 3);
        sw_store_close(store);
        /* The order in which directories are given means nothing. */
        const char *first = directories.path[0];
        directories.path[0] = directories.path[count - 1];
        directories.path[count - 1] = first;
        store = reopen_store(&directories);
        check_at_step(store, 3);
        commit_steps(store, 4, 4);
        sw_store_close(store);
        store = reopen_store(&directories);
        check_at_step(store, 4);
        sw_store_discard(store); /* only closes: it has been committed to */
        CHECK(file_bytes(store_file(&directories, 0)) > 0);
    }
}

/* The contents that a lane's tests expect in the store: the version of each grain of one generation or of scratch. */
struct shadow {
    struct sw_store *store;
    sw_store_kind kind;
    int generation;
    int64_t grain_bytes;
    uint64_t draws;
    int64_t version[STORE_UNITS][16];
    struct slot {
        bool busy;
        struct sw_store_transfer transfer;
    } slots[LANE_SLOTS];
};

static bool overlaps_busy(const struct shadow *self, const struct sw_store_transfer *transfer) {
    for (int i = 0; i < LANE_SLOTS; i++) {
        const struct sw_store_transfer *other = &self->slots[i].transfer;
        if (self->slots[i].busy && other->unit == transfer->unit &&
            other->first_grain < transfer->first_grain + transfer->grains &&
            transfer->first_grain < other->first_grain + other->grains)
            return true;
    }
    return false;
}

static void submit_random(struct shadow *self, struct sw_store_lane *lane, int slot) {
    struct sw_store_transfer transfer = {.kind = self->kind, .generation = self->generation, .tag = (uint64_t)slot};
    do {
        transfer.unit = random_below(&self->draws, STORE_UNITS);
        const int64_t grains = store_unit_grains[transfer.unit];
        if (grains == 0)
            continue;
        transfer.first_grain = random_below(&self->draws, grains);
        transfer.grains = 1 + random_below(&self->draws, sw_min_i64(CHUNK_GRAINS, grains - transfer.first_grain));
    } while (store_unit_grains[transfer.unit] == 0 || overlaps_busy(self, &transfer));
    transfer.write = random_below(&self->draws, 2) == 0;
    transfer.buf = self->slots[slot].transfer.buf;
    for (int64_t i = 0; i < transfer.grains; i++) {
        int64_t *version = &self->version[transfer.unit][transfer.first_grain + i];
        /* Scratch must be written before it is read. */
        transfer.write = transfer.write || *version == 0;
    }
    for (int64_t i = 0; transfer.write && i < transfer.grains; i++) {
        int64_t *version = &self->version[transfer.unit][transfer.first_grain + i];
        ++*version;
        fill_grain((char *)transfer.buf + i * self->grain_bytes, self->grain_bytes, transfer.unit,
                   transfer.first_grain + i, *version);
    }
    self->slots[slot] = (struct slot){.busy = true, .transfer = transfer};
    CHECK_OK(sw_store_submit(lane, &transfer));
}

static void check_slot(struct shadow *self, int slot, char *wanted) {
    const struct sw_store_transfer *transfer = &self->slots[slot].transfer;
    CHECK(self->slots[slot].busy);
    self->slots[slot].busy = false;
    for (int64_t i = 0; i < transfer->grains; i++) {
        const int64_t grain = transfer->first_grain + i;
        fill_grain(wanted, self->grain_bytes, transfer->unit, grain, self->version[transfer->unit][grain]);
        CHECK(memcmp(wanted, (char *)transfer->buf + i * self->grain_bytes, (size_t)self->grain_bytes) == 0);
    }
}

/* Random transfers, several at once, reaped sometimes without waiting. */
static void exercise(struct shadow *self, struct sw_store_lane *lane) {
    char *wanted = io_buffer(self->grain_bytes);
    for (int i = 0; i < LANE_SLOTS; i++)
        self->slots[i].transfer.buf = io_buffer(CHUNK_GRAINS * self->grain_bytes);
    for (int round = 0; round < ROUNDS || sw_store_outstanding(lane) > 0; round++) {
        for (int i = 0; i < LANE_SLOTS && round < ROUNDS; i++)
            if (!self->slots[i].busy && random_below(&self->draws, 3) > 0)
                submit_random(self, lane, i);
        uint64_t tags[LANE_SLOTS];
        int count;
        const int max = 1 + (int)random_below(&self->draws, LANE_SLOTS);
        CHECK_OK(sw_store_reap(lane, random_below(&self->draws, 2) == 0, tags, max, &count));
        for (int i = 0; i < count; i++)
            check_slot(self, (int)tags[i], wanted);
    }
    for (int i = 0; i < LANE_SLOTS; i++)
        free(self->slots[i].transfer.buf);
    free(wanted);
}

/* Bytes that writing all grains of unit 0 takes, whose records are zeros but for their masters, of this value. */
static int64_t write_masters(struct sw_store *store, struct sw_store_lane *lane, int generation, unsigned char value) {
    const int64_t grains = store_unit_grains[0], master_bytes = SW_OPTIMIZER_GRAIN_BYTES / SW_OPTIMIZER_VECTORS;
    char *records = io_buffer(grains * SW_OPTIMIZER_GRAIN_BYTES), *read = io_buffer(grains * SW_OPTIMIZER_GRAIN_BYTES);
    memset(records, 0, (size_t)(grains * SW_OPTIMIZER_GRAIN_BYTES));
    for (int64_t g = 0; g < grains; g++)
        memset(records + g * SW_OPTIMIZER_GRAIN_BYTES, value, (size_t)master_bytes);
    struct sw_store_transfer transfer = {
        .write = true, .generation = generation, .grains = grains, .buf = records, .zeros_from_bytes = master_bytes};
    const int64_t before = sw_store_counters(store).write_bytes;
    CHECK_OK(sw_store_transfer(lane, &transfer));
    const int64_t written = sw_store_counters(store).write_bytes - before;
    transfer = (struct sw_store_transfer){.generation = generation, .grains = grains, .buf = read};
    CHECK_OK(sw_store_transfer(lane, &transfer));
    CHECK(memcmp(records, read, (size_t)(grains * SW_OPTIMIZER_GRAIN_BYTES)) == 0);
    free(records);
    free(read);
    return written;
}

static void zeros_of_creation_are_not_written_again(void **state) {
    const struct store_directories directories = make_store_directories(*state, 2);
    const int64_t whole = store_unit_grains[0] * SW_OPTIMIZER_GRAIN_BYTES, masters = whole / SW_OPTIMIZER_VECTORS;
    struct sw_store *store = create_store(&directories);
    struct sw_store_lane *lane;
    CHECK_OK(sw_store_lane_open(store, STORE_DEPTH, &lane));
    CHECK(write_masters(store, lane, 0, 1) == masters);
    CHECK(write_masters(store, lane, 0, 2) == whole); /* the drive may hold anything now */
    CHECK(write_masters(store, lane, 1, 3) == masters);
    sw_store_lane_close(lane);
    CHECK_OK(sw_store_commit(store, 0, 1, "{}"));
    sw_store_close(store);
    /* Who opens a store does not know what creation has left. */
    store = reopen_store(&directories);
    CHECK_OK(sw_store_lane_open(store, STORE_DEPTH, &lane));
    CHECK(write_masters(store, lane, 0, 4) == whole);
    sw_store_lane_close(lane);
    sw_store_close(store);
}

static void round_trips_random_runs(void **state) {
    for (test_seed = 1; test_seed <= SEEDS; test_seed++) {
        char name[16] = {(char)('a' + test_seed)};
        const struct store_directories directories =
            make_store_directories(new_subdirectory(*state, name), 1 + (int)(test_seed % STORE_MAX_DIRECTORIES));
        struct sw_store *store = create_store(&directories);
        struct shadow shadow = {
            .store = store, .kind = SW_STORE_OPTIMIZER, .generation = 1, .grain_bytes = SW_OPTIMIZER_GRAIN_BYTES};
        struct sw_store_lane *lane;
        CHECK_OK(sw_store_lane_open(store, 1 + (int)(test_seed * 3), &lane));
        exercise(&shadow, lane);
        sw_store_lane_close(lane);
        sw_store_discard(store);
        CHECK(file_bytes(store_file(&directories, 0)) == -1);
    }
}

static void *exercise_in_thread(void *argument) {
    struct shadow *self = argument;
    struct sw_store_lane *lane = NULL;
    /* A lane is used by a thread other than the one that opened it. */
    lane = self->slots[0].transfer.buf;
    exercise(self, lane);
    return NULL;
}

/* Threads check with asserts that end the program's test, so that the failure is seen at the join as well. */
static void runs_lanes_in_threads(void **state) {
    enum { GRADS_GRAIN_BYTES = 32768, LANES = 3 };
    const struct store_directories directories = make_store_directories(*state, 2);
    struct sw_store *store = create_store(&directories);
    CHECK_OK(sw_store_add_scratch(store, &(struct sw_store_scratch){.kind = SW_STORE_GRADS,
                                                                    .unit_grains = store_unit_grains,
                                                                    .grain_bytes = GRADS_GRAIN_BYTES}));
    struct shadow shadows[LANES] = {
        {.store = store, .kind = SW_STORE_OPTIMIZER, .generation = 0, .grain_bytes = SW_OPTIMIZER_GRAIN_BYTES},
        {.store = store, .kind = SW_STORE_OPTIMIZER, .generation = 1, .grain_bytes = SW_OPTIMIZER_GRAIN_BYTES},
        {.store = store, .kind = SW_STORE_GRADS, .generation = 0, .grain_bytes = GRADS_GRAIN_BYTES},
    };
    struct sw_store_lane *lanes[LANES];
    pthread_t threads[LANES];
    for (int i = 0; i < LANES; i++) {
        CHECK_OK(sw_store_lane_open(store, STORE_DEPTH, &lanes[i]));
        shadows[i].draws = (uint64_t)i << 32;
        shadows[i].slots[0].transfer.buf = lanes[i];
    }
    for (int i = 0; i < LANES; i++)
        CHECK(pthread_create(&threads[i], NULL, exercise_in_thread, &shadows[i]) == 0);
    for (int i = 0; i < LANES; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    for (int i = 0; i < LANES; i++)
        sw_store_lane_close(lanes[i]);
    sw_store_close(store);
}

/* Scratch grows the files behind what is sealed, is gone after a reopen, and its space too. */
static void lays_scratch_anew(void **state) {
    enum { GRAIN_BYTES = 65536 };
    const struct store_directories directories = make_store_directories(*state, 1);
    struct sw_store *store = create_store(&directories);
    const int64_t sealed = sw_store_file_bytes(store);
    CHECK_OK(sw_store_add_scratch(store, &(struct sw_store_scratch){.kind = SW_STORE_GRADS,
                                                                    .unit_grains = store_unit_grains,
                                                                    .grain_bytes = GRAIN_BYTES}));
    CHECK(sw_store_file_bytes(store) == sealed + 20 * GRAIN_BYTES);
    CHECK(file_bytes(store_file(&directories, 0)) == sealed + 20 * GRAIN_BYTES);
    struct sw_store_lane *lane;
    CHECK_OK(sw_store_lane_open(store, 4, &lane));
    char *buf = io_buffer(GRAIN_BYTES);
    struct sw_store_transfer transfer = {.kind = SW_STORE_GRADS, .unit = 3, .first_grain = 5, .grains = 1, .buf = buf};
    CHECK_FAILS(sw_store_transfer(lane, &transfer), SW_ERR_CORRUPT, "nothing has been committed yet");
    sw_store_lane_close(lane);
    commit_steps(store, 1, 1);
    CHECK_OK(sw_store_lane_open(store, 4, &lane));
    transfer.write = true;
    CHECK_OK(sw_store_transfer(lane, &transfer));
    transfer.write = false;
    transfer.first_grain = 4;
    CHECK_FAILS(sw_store_transfer(lane, &transfer), SW_ERR_CORRUPT, "grain 4 of unit 3 (grads, generation 0");
    sw_store_lane_close(lane);
    sw_store_close(store);

    store = reopen_store(&directories);
    check_at_step(store, 1);
    CHECK(sw_store_file_bytes(store) == sealed && file_bytes(store_file(&directories, 0)) == sealed);
    sw_store_close(store);
    free(buf);
}

static void refuses_what_it_does_not_hold(void **state) {
    const struct store_directories directories = make_store_directories(*state, 1);
    struct sw_store *store = create_store(&directories);
    struct sw_store_lane *lane;
    CHECK_OK(sw_store_lane_open(store, 4, &lane));
    char *buf = io_buffer(SW_OPTIMIZER_GRAIN_BYTES);
    const struct sw_store_transfer wrong[] = {
        {.unit = 0, .first_grain = 13, .grains = 1, .buf = buf},
        {.unit = 0, .first_grain = 12, .grains = 2, .buf = buf},
        {.unit = 2, .grains = 1, .buf = buf},
        {.unit = STORE_UNITS, .grains = 1, .buf = buf},
        {.unit = 0, .grains = 0, .buf = buf},
        {.generation = 2, .grains = 1, .buf = buf},
        {.kind = SW_STORE_GRADS, .grains = 1, .buf = buf},
        {.unit = 0, .first_grain = -1, .grains = 1, .buf = buf},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        CHECK_FAILS(sw_store_submit(lane, &wrong[i]), SW_ERR_INTERNAL, "the store has no grains");
    CHECK(sw_store_outstanding(lane) == 0);
    struct sw_store_lane *other;
    CHECK_FAILS(sw_store_lane_open(store, 0, &other), SW_ERR_ARG, "an I/O depth of 0");
    CHECK_FAILS(sw_store_lane_open(store, SW_QUEUE_MAX_DEPTH + 1, &other), SW_ERR_ARG, "is not within 1 and 1024");
    sw_store_lane_close(NULL); /* as where none was opened */
    CHECK_FAILS(sw_store_withdraw(store), SW_ERR_INTERNAL, "of two generations cannot be withdrawn");
    CHECK_FAILS(sw_store_commit(store, 1, 2, ""), SW_ERR_INTERNAL, "cannot be committed");
    char *text = io_buffer(SW_STORE_META_BYTES + 1);
    memset(text, 'x', SW_STORE_META_BYTES);
    CHECK_FAILS(sw_store_commit(store, 1, 0, text), SW_ERR_INTERNAL, "16384 bytes");
    text[SW_STORE_META_BYTES - 1] = '\0';
    CHECK_OK(sw_store_commit(store, 1, 0, text));
    CHECK_FAILS(sw_store_commit(store, 2, 0, text), SW_ERR_INTERNAL, "generation 0 of ");
    CHECK_FAILS(sw_store_submit(lane, &(struct sw_store_transfer){.write = true, .grains = 1, .buf = buf}),
                SW_ERR_INTERNAL, "is committed and cannot be written to");
    sw_store_lane_close(lane);
    sw_store_close(store);
    store = reopen_store(&directories);
    CHECK(strcmp(sw_store_last_commit(store)->meta, text) == 0);
    sw_store_close(store);
    free(text);
    free(buf);
}

static void bounds_the_regions_of_memory(void **state) {
    const struct store_directories directories = make_store_directories(*state, 1);
    struct sw_store *store = create_store(&directories);
    void *buf = io_buffer(SW_BUFFER_ALIGN_BYTES);
    for (int i = 0; i < SW_RING_MAX_BUFFERS; i++)
        CHECK_OK(sw_store_add_buffer(store, buf, SW_BUFFER_ALIGN_BYTES));
    CHECK_FAILS(sw_store_add_buffer(store, buf, SW_BUFFER_ALIGN_BYTES), SW_ERR_INTERNAL, "at most 16 regions");
    sw_store_close(store);
    free(buf);
}

static void bounds_what_is_outstanding(void **state) {
    const struct store_directories directories = make_store_directories(*state, 1);
    struct sw_store *store = create_store(&directories);
    struct sw_store_lane *lane;
    CHECK_OK(sw_store_lane_open(store, 2, &lane));
    char *buf = io_buffer(SW_OPTIMIZER_GRAIN_BYTES);
    const struct sw_store_transfer transfer = {.unit = 1, .grains = 1, .buf = buf};
    for (int i = 0; i < SW_STORE_LANE_TRANSFERS; i++)
        CHECK_OK(sw_store_submit(lane, &transfer));
    CHECK_FAILS(sw_store_submit(lane, &transfer), SW_ERR_BUSY, "256 transfers");
    uint64_t tags[4];
    int count, reaped = 0;
    while (sw_store_outstanding(lane) > 0) {
        CHECK_OK(sw_store_reap(lane, true, tags, 4, &count));
        CHECK(count > 0);
        reaped += count;
    }
    CHECK(reaped == SW_STORE_LANE_TRANSFERS);
    CHECK_OK(sw_store_reap(lane, true, tags, 4, &count));
    CHECK(count == 0);
    CHECK(sw_store_counters(store).read_bytes == SW_STORE_LANE_TRANSFERS * SW_OPTIMIZER_GRAIN_BYTES);
    CHECK(sw_store_counters(store).write_bytes == 0);
    sw_store_lane_close(lane);
    sw_store_close(store);
    free(buf);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(starts_empty_and_zero, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(leaves_no_name_behind, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(leaves_no_name_in_one_directory_twice, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(gets_every_name_back, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(commits_and_reopens, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(zeros_of_creation_are_not_written_again, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(round_trips_random_runs, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(runs_lanes_in_threads, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(lays_scratch_anew, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(refuses_what_it_does_not_hold, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(bounds_the_regions_of_memory, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(bounds_what_is_outstanding, make_directory, remove_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
