/* Frozen grains outlive the process that wrote them: a later one has them all, in the same places and made from the
 * same, or none of them. Power that fails, and other state that is written over them, leaves none that would be wrong;
 * a damaged one is missing in the process after the one that found it. */
#include "io/store/store_private.h"
#include "tests/io/faulty.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { SEEDS = 400, LIVES = 6, MOST_EVENTS = 90, SMALL_SECTOR = 512, LARGE_SECTOR = 4096 };
enum { FROZEN_BYTES = 8192, CELL_BYTES = 4096, FROZEN_GRAINS = 7, CELLS = 5, PAGE_BYTES = 4096, OTHER_GRAINS = 150 };

static const int64_t frozen[FAULTY_UNITS] = {3, 0, 4}, cells[FAULTY_UNITS] = {0, 5};
static const int64_t first[FAULTY_UNITS] = {0, 0, 2}, other[FAULTY_UNITS] = {OTHER_GRAINS};

/* How a process lays out its scratch: with frozen grains first, or with other state where these were. */
enum layout { KEEPS, OVERWRITES, MOVES, LAYOUTS };

struct kept_store {
    struct faulty faulty;
    uint64_t draws;
    char *buf;
};

struct tally {
    int64_t whole, made, overwritten, ended;
};

static sw_status add(struct sw_store *store, sw_store_kind kind, const int64_t *from, const int64_t *grains,
                     int64_t bytes) {
    const struct sw_store_scratch scratch = {
        .kind = kind, .unit_first = from, .unit_grains = grains, .grain_bytes = bytes};
    return sw_store_add_scratch(store, &scratch);
}

static sw_status lay_out(struct sw_store *store, enum layout layout) {
    int64_t pages[FAULTY_UNITS] = {sw_store_kept_pages(FROZEN_GRAINS + CELLS)};
    if (layout == OVERWRITES)
        return add(store, SW_STORE_GRADS, NULL, other, PAGE_BYTES);
    SW_TRY(add(store, SW_STORE_KEPT_SUMS, NULL, pages, PAGE_BYTES));
    if (layout == MOVES)
        SW_TRY(add(store, SW_STORE_FROZEN, first, frozen, FROZEN_BYTES));
    SW_TRY(add(store, SW_STORE_BASE, NULL, cells, CELL_BYTES));
    if (layout == KEEPS)
        SW_TRY(add(store, SW_STORE_FROZEN, first, frozen, FROZEN_BYTES));
    return add(store, SW_STORE_GRADS, NULL, other, PAGE_BYTES);
}

static struct sw_store_transfer transfer_of(char *buf, sw_store_kind kind, int64_t unit, bool write) {
    const bool is_base = kind == SW_STORE_BASE;
    return (struct sw_store_transfer){.write = write,
                                      .kind = kind,
                                      .unit = unit,
                                      .first_grain = is_base ? 0 : first[unit],
                                      .grains = is_base ? cells[unit] : frozen[unit],
                                      .buf = buf};
}

/* Fills the buffer with what one version of the weights has in a unit. */
static int64_t fill_unit(char *buf, const struct sw_store_transfer *transfer, int64_t version) {
    const int64_t bytes = transfer->kind == SW_STORE_BASE ? CELL_BYTES : FROZEN_BYTES;
    for (int64_t g = 0; g < transfer->grains; g++)
        fill_grain(buf + g * bytes, bytes, transfer->unit, transfer->first_grain + g, version);
    return transfer->grains * bytes;
}

/* Reads and compares the grains of a unit, or writes them. */
static sw_status transfer_unit(struct kept_store *self, struct sw_store_lane *lane, sw_store_kind kind, int64_t unit,
                               bool write, int64_t version) {
    const struct sw_store_transfer transfer = transfer_of(self->buf, kind, unit, write);
    char expected[FROZEN_GRAINS * FROZEN_BYTES];
    if (transfer.grains == 0)
        return SW_OK;
    const int64_t bytes = fill_unit(expected, &transfer, version);
    if (write)
        memcpy(self->buf, expected, (size_t)bytes);
    SW_TRY(sw_store_transfer(lane, &transfer));
    CHECK(memcmp(self->buf, expected, (size_t)bytes) == 0);
    return SW_OK;
}

static sw_status transfer_all(struct kept_store *self, struct sw_store *store, bool write, int64_t version) {
    struct sw_store_lane *lane;
    SW_TRY(sw_store_lane_open(store, STORE_DEPTH, &lane));
    sw_status status = SW_OK;
    for (int64_t unit = 0; unit < 3 && status == SW_OK; unit++) {
        status = transfer_unit(self, lane, SW_STORE_BASE, unit, write, version);
        if (status == SW_OK)
            status = transfer_unit(self, lane, SW_STORE_FROZEN, unit, write, version);
    }
    sw_store_lane_close(lane);
    return status;
}

static bool has_all(const struct sw_store *store) {
    bool has = sw_store_has(store, SW_STORE_BASE, 1, 0, cells[1]);
    for (int64_t unit = 0; unit < 3; unit += 2)
        has &= sw_store_has(store, SW_STORE_FROZEN, unit, first[unit], frozen[unit]);
    return has;
}

static bool has_any(const struct sw_store *store) {
    bool has = false;
    for (int64_t cell = 0; cell < cells[1]; cell++)
        has |= sw_store_has(store, SW_STORE_BASE, 1, cell, 1);
    for (int64_t unit = 0; unit < 3; unit += 2)
        for (int64_t grain = 0; grain < frozen[unit]; grain++)
            has |= sw_store_has(store, SW_STORE_FROZEN, unit, first[unit] + grain, 1);
    return has;
}

/* Writes other state. */
static sw_status write_other(struct kept_store *self, struct sw_store *store) {
    struct sw_store_lane *lane;
    SW_TRY(sw_store_lane_open(store, STORE_DEPTH, &lane));
    memset(self->buf, 0x5a, OTHER_GRAINS * PAGE_BYTES);
    const struct sw_store_transfer transfer = {
        .write = true, .kind = SW_STORE_GRADS, .grains = OTHER_GRAINS, .buf = self->buf};
    const sw_status status = sw_store_transfer(lane, &transfer);
    sw_store_lane_close(lane);
    return status;
}

/* Writes other state, and commits a step, as training does. */
static sw_status go_on(struct kept_store *self, struct sw_store *store) {
    SW_TRY(write_other(self, store));
    return faulty_step(&self->faulty, store, sw_store_last_commit(store)->step + 1);
}

/* Has the frozen grains of a version whole, or writes them. */
static sw_status keep(struct kept_store *self, struct sw_store *store, int64_t version, struct tally *tally) {
    SW_TRY(sw_store_take_kept(store, (uint64_t)version));
    CHECK(has_all(store) == has_any(store));
    tally->whole += has_all(store);
    tally->made += !has_all(store);
    if (!has_all(store))
        SW_TRY(transfer_all(self, store, true, version));
    SW_TRY(sw_store_keep(store, (uint64_t)version));
    return transfer_all(self, store, false, version);
}

/* Does nothing, as there are no such grains. */
static sw_status keep_nothing(struct sw_store *store) {
    SW_TRY(sw_store_take_kept(store, 1));
    return sw_store_keep(store, 1);
}

static sw_status live(struct kept_store *self, struct tally *tally) {
    struct sw_store *store;
    const enum layout layout = (enum layout)(random_below(&self->draws, 2) * random_below(&self->draws, LAYOUTS));
    const int64_t version = 1 + random_below(&self->draws, 4) / 3;
    SW_TRY(faulty_open(&self->faulty, &store));
    sw_status status = lay_out(store, layout);
    if (status == SW_OK && layout != OVERWRITES)
        status = keep(self, store, version, tally);
    else if (status == SW_OK)
        status = keep_nothing(store);
    tally->overwritten += layout == OVERWRITES;
    if (status == SW_OK)
        status = go_on(self, store);
    sw_store_close(store);
    return status;
}

static void run_seed(const struct store_directories *directories, struct tally *tally) {
    struct kept_store self = {.buf = io_buffer(OTHER_GRAINS * PAGE_BYTES)};
    struct sw_store *store;
    faulty_begin(&self.faulty, directories, test_seed % 2 == 0 ? SMALL_SECTOR : LARGE_SECTOR);
    CHECK_OK(faulty_create(&self.faulty, &store));
    CHECK_OK(faulty_step(&self.faulty, store, 0));
    sw_store_close(store);
    for (int life = 0; life < LIVES; life++) {
        struct sw_fault_disk *disk = self.faulty.disk;
        const int64_t event = life + 1 < LIVES ? 1 + random_below(&self.draws, 2 * MOST_EVENTS) : 0;
        const sw_fault_end how = random_below(&self.draws, 3) == 0 ? SW_FAULT_KILL : SW_FAULT_POWER;
        sw_fault_end_at(disk, event > 0 ? sw_fault_events(disk) + event : 0, how);
        const sw_status status = live(&self, tally);
        if ((status != SW_OK) != sw_fault_ended(disk))
            print_message("%s\n", sw_error_message(status));
        CHECK((status != SW_OK) == sw_fault_ended(disk));
        sw_error_clear();
        tally->ended += sw_fault_ended(disk);
        if (sw_fault_ended(disk))
            CHECK_OK(sw_fault_restart(disk));
    }
    faulty_end(&self.faulty);
    free(self.buf);
}

static void kept_grains_are_whole_or_missing_after_every_end(void **state) {
    static const char *const names[] = {"a", "b", "c"};
    const int64_t seeds = (int64_t)faulty_seeds(SEEDS);
    struct tally tally = {0};
    for (int i = 0; i < STORE_MAX_DIRECTORIES; i++)
        new_subdirectory(*state, names[i]);
    for (test_seed = 1; test_seed <= (uint64_t)seeds; test_seed++) {
        struct store_directories directories = {.count = 1 + (int)(test_seed % STORE_MAX_DIRECTORIES)};
        for (int i = 0; i < directories.count; i++)
            directories.path[i] = in_directory(*state, names[i]);
        run_seed(&directories, &tally);
    }
    print_message("%lld ends; %lld times the grains were there, %lld times they were made, %lld times written over\n",
                  (long long)tally.ended, (long long)tally.whole, (long long)tally.made, (long long)tally.overwritten);
    CHECK(tally.whole > seeds / 2 && tally.made > seeds && tally.overwritten > seeds / 2 && tally.ended > seeds);
}

static struct sw_store *open_with(struct kept_store *self, enum layout layout) {
    struct sw_store *store;
    CHECK_OK(faulty_open(&self->faulty, &store));
    CHECK_OK(lay_out(store, layout));
    return store;
}

static void cut_power(struct kept_store *self, struct sw_store *store) {
    struct sw_fault_disk *disk = self->faulty.disk;
    sw_fault_end_at(disk, sw_fault_events(disk) + 1, SW_FAULT_POWER);
    CHECK_FAILS(sw_store_flush(store), SW_ERR_IO, "");
    sw_store_close(store);
    CHECK_OK(sw_fault_restart(disk));
}

/* A power failure takes no grains that have been kept, and brings none back that have been written over. */
static void grains_are_kept_and_void_durably(void **state) {
    enum { FEW_SEEDS = 30 };
    struct tally tally = {0};
    const struct store_directories directories = {.path = {new_subdirectory(*state, "a")}, .count = 1};
    struct kept_store self = {.buf = io_buffer(OTHER_GRAINS * PAGE_BYTES)};
    struct faulty holder;
    struct sw_store *store;
    faulty_begin(&holder, &directories, LARGE_SECTOR);
    for (test_seed = 1; test_seed <= FEW_SEEDS; test_seed++) {
        faulty_begin(&self.faulty, &holder.directories, LARGE_SECTOR);
        CHECK_OK(faulty_create(&self.faulty, &store));
        CHECK_OK(faulty_step(&self.faulty, store, 0));
        sw_store_close(store);
        store = open_with(&self, KEEPS);
        CHECK_OK(keep(&self, store, 1, &tally));
        cut_power(&self, store);
        store = open_with(&self, KEEPS);
        CHECK_OK(sw_store_take_kept(store, 1));
        CHECK(has_all(store));
        sw_store_close(store);
        store = open_with(&self, OVERWRITES);
        CHECK_OK(write_other(&self, store));
        cut_power(&self, store);
        store = open_with(&self, KEEPS);
        CHECK_OK(sw_store_take_kept(store, 1));
        CHECK(!has_any(store));
        sw_store_close(store);
        faulty_end(&self.faulty);
    }
    faulty_end(&holder);
    free(self.buf);
}

/* Keeps one version of the grains, and another one in the next process, which makes the first void. */
static sw_status keep_twice(struct kept_store *self, struct sw_store **store) {
    struct tally tally = {0};
    for (int64_t version = 1; version <= 2; version++) {
        SW_TRY(faulty_open(&self->faulty, store));
        SW_TRY(lay_out(*store, KEEPS));
        SW_TRY(keep(self, *store, version, &tally));
        sw_store_close(*store);
        *store = NULL;
    }
    return SW_OK;
}

static bool fail_request(struct kept_store *self, const struct store_directories *directories, sw_ring_op op,
                         int64_t number) {
    struct sw_store *store;
    test_seed = (uint64_t)number;
    faulty_begin(&self->faulty, directories, LARGE_SECTOR);
    CHECK_OK(faulty_create(&self->faulty, &store));
    CHECK_OK(faulty_step(&self->faulty, store, 0));
    sw_store_close(store);
    store = NULL;
    struct sw_fault_disk *disk = self->faulty.disk;
    const struct sw_fault fault = {
        .kind = SW_FAULT_ERROR, .op = op, .first = sw_fault_requests(disk, op) + number, .count = 1, .error = EIO};
    sw_fault_set(disk, &fault);
    const sw_status status = keep_twice(self, &store);
    const bool struck = sw_fault_struck(disk) > 0;
    CHECK((status != SW_OK) == struck);
    sw_error_clear();
    sw_store_close(store);
    faulty_end(&self->faulty);
    return struck;
}

static void no_write_or_flush_fails_unnoticed(void **state) {
    enum { LEAST = 10 };
    const struct store_directories directories = {.path = {new_subdirectory(*state, "a")}, .count = 1};
    struct kept_store self = {.buf = io_buffer(OTHER_GRAINS * PAGE_BYTES)};
    struct faulty holder;
    faulty_begin(&holder, &directories, LARGE_SECTOR);
    int64_t failed = 0;
    for (int64_t number = 0; fail_request(&self, &holder.directories, SW_RING_WRITE, number); number++)
        failed++;
    for (int64_t number = 0; fail_request(&self, &holder.directories, SW_RING_FLUSH, number); number++)
        failed++;
    CHECK(failed > LEAST);
    faulty_end(&holder);
    free(self.buf);
}

/* Opens a store on real files that has a commit and frozen grains of a version, or makes it. */
static struct sw_store *open_kept(struct kept_store *self, const char *folder, bool create, int64_t version) {
    const struct store_directories directories = {.path = {folder}, .count = 1};
    struct sw_store *store;
    if (create) {
        const struct sw_store_spec spec = {.directories = directories.path,
                                           .directory_count = 1,
                                           .unit_grains = frozen,
                                           .unit_count = 3,
                                           .allow_buffered = true};
        CHECK_OK(sw_store_create(&spec, NULL, NULL, &store));
    } else {
        CHECK_OK(sw_store_open(directories.path, 1, true, SW_STORE_NEWEST, &store));
    }
    CHECK_OK(lay_out(store, KEEPS));
    if (!create) {
        CHECK_OK(sw_store_take_kept(store, (uint64_t)version));
        return store;
    }
    CHECK_OK(transfer_all(self, store, true, version));
    CHECK_OK(sw_store_commit(store, 0, 0, ""));
    CHECK_OK(sw_store_keep(store, (uint64_t)version));
    return store;
}

static void a_damaged_grain_is_missing_in_the_next_process(void **state) {
    struct kept_store self = {.buf = io_buffer(OTHER_GRAINS * PAGE_BYTES)};
    struct sw_store *store = open_kept(&self, *state, true, 1);
    const int64_t offset_bytes = sw_area_run(&store->areas[SW_STORE_FROZEN][0], 2, 3, 1).offset_bytes;
    sw_store_close(store);
    flip_bit(in_directory(*state, SW_STORE_FILE_NAME), offset_bytes + 77);
    store = open_kept(&self, *state, false, 1);
    CHECK(has_all(store));
    /* Unit 0 has three grains; those of another unit follow. */
    CHECK(!sw_store_has(store, SW_STORE_FROZEN, 0, 3, 1));
    CHECK_FAILS(transfer_all(&self, store, false, 1), SW_ERR_CORRUPT, "grain 3 of unit 2 (frozen weights");
    sw_store_close(store);
    store = open_kept(&self, *state, false, 1);
    CHECK(!sw_store_has(store, SW_STORE_FROZEN, 2, 3, 1) && sw_store_has(store, SW_STORE_FROZEN, 2, 2, 1));
    CHECK(sw_store_has(store, SW_STORE_FROZEN, 2, 4, 2) && sw_store_has(store, SW_STORE_BASE, 1, 0, cells[1]));
    CHECK_OK(transfer_all(&self, store, true, 1));
    CHECK_OK(sw_store_keep(store, 1));
    sw_store_close(store);
    store = open_kept(&self, *state, false, 1);
    CHECK(has_all(store));
    CHECK_OK(transfer_all(&self, store, false, 1));
    const int64_t written = sw_store_counters(store).write_bytes;
    CHECK_OK(sw_store_keep(store, 1));
    CHECK(sw_store_counters(store).write_bytes == written);
    sw_store_close(store);
    /* Grains that were taken over stay for the next process. */
    store = open_kept(&self, *state, false, 1);
    CHECK(has_all(store));
    sw_store_close(store);
    free(self.buf);
}

static void the_process_that_made_them_notes_damage_too(void **state) {
    struct kept_store self = {.buf = io_buffer(OTHER_GRAINS * PAGE_BYTES)};
    struct sw_store *store = open_kept(&self, *state, true, 1);
    const int64_t offset_bytes = sw_area_run(&store->areas[SW_STORE_FROZEN][0], 2, 3, 1).offset_bytes;
    flip_bit(in_directory(*state, SW_STORE_FILE_NAME), offset_bytes + 77);
    CHECK_FAILS(transfer_all(&self, store, false, 1), SW_ERR_CORRUPT, "grain 3 of unit 2 (frozen weights");
    sw_store_close(store);
    store = open_kept(&self, *state, false, 1);
    CHECK(!sw_store_has(store, SW_STORE_FROZEN, 2, 3, 1) && sw_store_has(store, SW_STORE_FROZEN, 2, 2, 1));
    sw_store_close(store);
    free(self.buf);
}

static void grains_that_are_written_over_are_kept_anew(void **state) {
    struct kept_store self = {.buf = io_buffer(OTHER_GRAINS * PAGE_BYTES)};
    struct sw_store *store = open_kept(&self, *state, true, 1);
    CHECK_OK(transfer_all(&self, store, true, 2));
    CHECK_OK(sw_store_keep(store, 2));
    sw_store_close(store);
    store = open_kept(&self, *state, false, 2);
    CHECK(has_all(store));
    CHECK_OK(transfer_all(&self, store, false, 2));
    sw_store_close(store);
    free(self.buf);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(kept_grains_are_whole_or_missing_after_every_end, make_directory,
                                        remove_directory),
        cmocka_unit_test_setup_teardown(grains_are_kept_and_void_durably, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(no_write_or_flush_fails_unnoticed, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(the_process_that_made_them_notes_damage_too, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(grains_that_are_written_over_are_kept_anew, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(a_damaged_grain_is_missing_in_the_next_process, make_directory,
                                        remove_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
