/* Sectors that a drive can no longer read, as a write leaves them that the power cut short: whichever part they are in,
 * the store opens at its last commit or at the one before. And stores of the version before, whose parts lie closer. */
#include "tests/io/store_support.h"

#include "io/store/store_private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STEPS = 3, OLD_FRONT_BYTES = 57344 };

/* A stretch of file 0 that cannot be read until it is written. */
struct unreadable {
    int64_t from, to;
    int error;
    bool stays; /* writes fail too */
    int spared; /* so many readings succeed first */
};

static struct unreadable unreadable_byte(int64_t offset_bytes, int error) {
    return (struct unreadable){.from = offset_bytes, .to = offset_bytes + 1, .error = error};
}

static int64_t carry_out(struct fake_ring_script *script, const int *files, const struct sw_ring_request *request) {
    struct unreadable *at = script->context;
    const bool hit = request->op != SW_RING_FLUSH && request->file == 0 && request->offset_bytes < at->to &&
                     at->from < request->offset_bytes + request->bytes;
    if (hit && at->spared > 0) {
        at->spared--;
        return fake_ring_do(files, request);
    }
    if (hit && (at->stays || request->op == SW_RING_READ))
        return -at->error;
    if (hit)
        at->to = at->from;
    return fake_ring_do(files, request);
}

static sw_status open_without(const struct store_directories *directories, struct unreadable *at,
                              struct sw_store **out) {
    static struct fake_ring_script script;
    script = (struct fake_ring_script){.carry_out = carry_out, .context = at, .seed = 1};
    const struct sw_ring_source rings = {.open = fake_ring_open, .context = &script};
    return sw_store_open_on(&rings, directories->path, directories->count, true, SW_STORE_NEWEST, out);
}

/* Where the parts of the store's first file begin, in their order, and how long they are. */
enum { LABEL, COPY, MARK, RECORD_0, RECORD_1, GENERATION_0, GENERATION_1, END, PARTS };
struct part {
    int64_t offset_bytes, bytes;
};

static void find_parts(const struct sw_store *store, struct part parts[PARTS]) {
    const struct sw_area *areas = store->areas[SW_STORE_OPTIMIZER];
    const struct sw_store_file *file = &store->files[0];
    parts[LABEL] = (struct part){0, store->label_bytes};
    parts[COPY] = (struct part){sw_format_copy_offset(store->label_bytes), store->label_bytes};
    parts[MARK] = (struct part){sw_format_mark_offset(store->version, store->label_bytes), SW_FORMAT_MARK_BYTES};
    for (int i = 0; i < SW_STORE_SLOTS; i++) {
        parts[RECORD_0 + i] = (struct part){sw_super_offset(store, 0, i), file->super_bytes};
        parts[GENERATION_0 + i] =
            (struct part){areas[i].offsets[0], sw_area_grains_in(&areas[i], 0) * areas[i].grain_bytes};
    }
    parts[END] = (struct part){file->sealed_bytes, 0};
}

static struct store_directories make_steps(const char *parent, int count, struct part parts[PARTS], int *out_slot) {
    const struct store_directories directories = make_store_directories(parent, count);
    struct sw_store *store = create_store(&directories);
    commit_steps(store, 1, STEPS);
    find_parts(store, parts);
    *out_slot = store->files[0].committed_slot;
    sw_store_close(store);
    return directories;
}

/* No write endangers a part that was written at another time. */
static void parts_lie_apart(void **state) {
    struct part parts[PARTS];
    int slot;
    make_steps(*state, 1, parts, &slot);
    for (int i = 1; i < PARTS; i++)
        CHECK(parts[i].offset_bytes >= parts[i - 1].offset_bytes + parts[i - 1].bytes + SW_FORMAT_APART_BYTES);
}

/* Drives report such sectors differently; each answer is taken for damage, and the rest of the store is found. */
static void opens_whichever_part_is_unreadable(void **state) {
    static const int errors[] = {EIO, ENODATA, EILSEQ};
    struct part parts[PARTS];
    int slot;
    const struct store_directories directories = make_steps(*state, 2, parts, &slot);
    for (int part = LABEL; part < GENERATION_0; part++)
        for (size_t e = 0; e < sizeof errors / sizeof errors[0]; e++) {
            struct unreadable at = unreadable_byte(parts[part].offset_bytes, errors[e]);
            struct sw_store *store;
            const struct sw_store_bad_record *bad;
            test_seed = (uint64_t)part;
            CHECK_OK(open_without(&directories, &at, &store));
            const bool lost = part == RECORD_0 + slot;
            check_at_step(store, lost ? STEPS - 1 : STEPS);
            const int count = sw_store_bad_records(store, &bad);
            CHECK(count == (part == RECORD_0 || part == RECORD_1));
            CHECK(count == 0 || bad[0].loss == (lost ? SW_STORE_RECORD_LOST : SW_STORE_RECORD_HARMLESS));
            sw_store_close(store);
        }
}

/* Other errors say nothing of what the sectors hold. */
static void other_errors_are_no_damage(void **state) {
    struct part parts[PARTS];
    int slot;
    const struct store_directories directories = make_steps(*state, 1, parts, &slot);
    for (int part = MARK; part < GENERATION_0; part++) {
        struct unreadable at = unreadable_byte(parts[part].offset_bytes, ENODEV);
        struct sw_store *store;
        CHECK_FAILS(open_without(&directories, &at, &store), SW_ERR_IO, "cannot be read at offset ");
    }
}

/* A damaged mark has all records read a second time. */
static void a_second_reading_may_fail(void **state) {
    struct part parts[PARTS];
    int slot;
    const struct store_directories directories = make_steps(*state, 1, parts, &slot);
    struct unreadable at = unreadable_byte(parts[RECORD_0].offset_bytes, ENODEV);
    struct sw_store *store;
    at.spared = 1;
    overwrite(store_file(&directories, 0), parts[MARK].offset_bytes, parts[MARK].bytes, 0xff);
    CHECK_FAILS(open_without(&directories, &at, &store), SW_ERR_IO, "cannot be read at offset ");
}

static void says_where_nothing_is_left(void **state) {
    struct part parts[PARTS];
    int slot;
    const struct store_directories directories = make_steps(*state, 1, parts, &slot);
    struct sw_store *store;
    struct unreadable labels = {.to = parts[COPY].offset_bytes + 1, .error = EIO};
    CHECK_FAILS(open_without(&directories, &labels, &store), SW_ERR_IO,
                "damaged label, which cannot be read at offset 0 (Input/output error)");
    struct unreadable records = unreadable_byte(parts[RECORD_0].offset_bytes, EIO);
    records.to = parts[RECORD_1].offset_bytes + 1;
    CHECK_FAILS(open_without(&directories, &records, &store), SW_ERR_IO, "lost both of its superblocks");
}

/* A mark that cannot be read is written again before a record is: one that the power then tears is known to be of a
 * commit that never finished. */
static void writes_a_damaged_mark_again(void **state) {
    struct part parts[PARTS];
    int slot;
    const struct store_directories directories = make_steps(*state, 1, parts, &slot);
    overwrite(store_file(&directories, 0), parts[MARK].offset_bytes, parts[MARK].bytes, 0xff);
    const int64_t record = parts[RECORD_0 + 1 - slot].offset_bytes;
    struct unreadable at = {0};
    struct sw_store *store;
    const struct sw_store_bad_record *bad;
    CHECK_OK(open_without(&directories, &at, &store));
    const int generation = 1 - sw_store_last_commit(store)->generation;
    write_generation(store, generation, STEPS + 1);
    at = unreadable_byte(record, EIO);
    at.stays = true;
    CHECK_FAILS(sw_store_commit(store, STEPS + 1, generation, "{}"), SW_ERR_IO, "cannot be written at offset ");
    sw_store_close(store);
    CHECK_OK(open_without(&directories, &at, &store));
    check_at_step(store, STEPS);
    CHECK(sw_store_bad_records(store, &bad) == 1 && bad->loss == SW_STORE_RECORD_HARMLESS);
    sw_store_close(store);
}

/* Nothing is committed beside a mark that would tell nothing. */
static void a_mark_that_stays_damaged_stops_a_commit(void **state) {
    struct part parts[PARTS];
    int slot;
    const struct store_directories directories = make_steps(*state, 1, parts, &slot);
    struct unreadable at = {0};
    struct sw_store *store;
    overwrite(store_file(&directories, 0), parts[MARK].offset_bytes, parts[MARK].bytes, 0xff);
    CHECK_OK(open_without(&directories, &at, &store));
    const int generation = 1 - sw_store_last_commit(store)->generation;
    write_generation(store, generation, STEPS + 1);
    at = unreadable_byte(parts[MARK].offset_bytes, EIO);
    at.stays = true;
    CHECK_FAILS(sw_store_commit(store, STEPS + 1, generation, "{}"), SW_ERR_IO, "cannot be written at offset ");
    sw_store_close(store);
    store = reopen_store(&directories);
    check_at_step(store, STEPS);
    sw_store_close(store);
}

/* It is not taken for one that was never written, which would say that no commit is lost. */
static void a_mark_that_cannot_be_read_tells_nothing(void **state) {
    struct part parts[PARTS];
    int slot;
    const struct store_directories directories = make_steps(*state, 1, parts, &slot);
    struct unreadable at = unreadable_byte(parts[MARK].offset_bytes, EIO);
    struct sw_store *store;
    const struct sw_store_bad_record *bad;
    flip_bit(store_file(&directories, 0), parts[RECORD_0 + slot].offset_bytes + SW_SUPER_META_OFFSET);
    CHECK_OK(open_without(&directories, &at, &store));
    check_at_step(store, STEPS - 1);
    CHECK(sw_store_bad_records(store, &bad) == 1 && bad->loss == SW_STORE_RECORD_UNSURE && bad->step == STEPS);
    sw_store_close(store);
}

/* A start that failed leaves zeros; a drive that lost a sector may too, and then the second label tells whose it is. */
static void a_store_without_its_first_label_is_not_removed(void **state) {
    struct part parts[PARTS];
    int slot;
    const struct store_directories directories = make_steps(*state, 1, parts, &slot);
    char id[SW_STORE_ID_CHARS];
    overwrite(store_file(&directories, 0), 0, parts[LABEL].bytes, 0);
    CHECK_OK(sw_store_new_id(id));
    CHECK_OK(sw_store_remove(directories.path[0], id, 0));
    struct sw_store *store = reopen_store(&directories);
    check_at_step(store, STEPS);
    sw_store_id(store, id);
    sw_store_close(store);
    CHECK_FAILS(sw_store_remove(directories.path[0], id, 0), SW_ERR_ARG, "only step 0 was to be given up");
}

/* The front of a store of version 2 as the program of that time wrote it, with its grains behind it: step 3 in
 * generation 0, step 2 in the other. */
static void make_old_store(const struct store_directories *directories) {
    const char *file = store_file(directories, 0), *data = getenv("SW_TEST_DATA");
    CHECK(data != NULL);
    copy_file(in_directory(data, "store-version-2.bin"), file);
    CHECK(file_bytes(file) == OLD_FRONT_BYTES);
    FILE *end = fopen(file, "ab");
    char *grain = io_buffer(SW_OPTIMIZER_GRAIN_BYTES);
    for (int64_t step = STEPS; step > STEPS - SW_STORE_GENERATIONS; step--)
        for (int64_t unit = 0; unit < STORE_UNITS; unit++)
            for (int64_t i = 0; i < store_unit_grains[unit]; i++) {
                fill_grain(grain, SW_OPTIMIZER_GRAIN_BYTES, unit, i, step);
                CHECK(fwrite(grain, SW_OPTIMIZER_GRAIN_BYTES, 1, end) == 1);
            }
    CHECK(fclose(end) == 0);
    free(grain);
}

static void an_old_store_goes_on_in_its_layout(void **state) {
    const struct store_directories directories = make_store_directories(*state, 1);
    make_old_store(&directories);
    const int64_t bytes = file_bytes(store_file(&directories, 0));
    struct sw_store *store = reopen_store(&directories);
    CHECK(store->version == SW_FORMAT_DENSE_VERSION);
    check_at_step(store, STEPS);
    commit_steps(store, STEPS + 1, STEPS + 2);
    const int slot = store->files[0].committed_slot;
    const int64_t last = sw_super_offset(store, 0, slot), label_bytes = store->label_bytes;
    sw_store_close(store);
    store = reopen_store(&directories);
    check_at_step(store, STEPS + 2);
    sw_store_close(store);
    CHECK(file_bytes(store_file(&directories, 0)) == bytes);
    CHECK(last == label_bytes + slot * (OLD_FRONT_BYTES - label_bytes) / SW_STORE_SLOTS);

    struct unreadable record = unreadable_byte(last, EIO);
    CHECK_OK(open_without(&directories, &record, &store));
    check_at_step(store, STEPS + 1);
    sw_store_close(store);
    overwrite(store_file(&directories, 0), sizeof(struct sw_label_header), 1, 'x');
    CHECK_FAILS(sw_store_open(directories.path, 1, true, SW_STORE_NEWEST, &store), SW_ERR_CORRUPT,
                "damaged label: its checksum is wrong");
}

/* A label is a copy only where its own length puts one. */
static void a_label_at_another_place_is_no_copy(void **state) {
    struct part parts[PARTS];
    int slot;
    const struct store_directories directories = make_steps(*state, 1, parts, &slot);
    const char *file = store_file(&directories, 0);
    char *label = io_buffer(parts[LABEL].bytes);
    const int fd = open(file, O_RDWR | O_CLOEXEC);
    CHECK(pread(fd, label, (size_t)parts[LABEL].bytes, 0) == parts[LABEL].bytes);
    CHECK(parts[COPY].offset_bytes == SW_FORMAT_FIRST_COPY_OFFSET);
    CHECK(pwrite(fd, label, (size_t)parts[LABEL].bytes, 2 * SW_FORMAT_FIRST_COPY_OFFSET) == parts[LABEL].bytes);
    CHECK(close(fd) == 0);
    free(label);
    overwrite(file, parts[LABEL].offset_bytes, parts[LABEL].bytes, 'x');
    overwrite(file, parts[COPY].offset_bytes, parts[COPY].bytes, 'x');
    struct sw_store *store;
    CHECK_FAILS(sw_store_open(directories.path, 1, true, SW_STORE_NEWEST, &store), SW_ERR_CORRUPT, "is not a store");
}

/* Two labels are more than one only as long as a bad one does not stay. Whoever only reads leaves it. */
static void a_bad_first_label_is_written_again(void **state) {
    struct part parts[PARTS];
    int slot;
    const struct store_directories directories = make_steps(*state, 2, parts, &slot);
    const char *file = store_file(&directories, 0);
    struct sw_store *store;
    flip_bit(file, SW_FORMAT_PAGE_BYTES / 2);
    CHECK_OK(sw_store_open_to_read(directories.path, directories.count, SW_STORE_NEWEST, &store));
    CHECK(store->files[0].label_damaged);
    sw_store_close(store);
    store = reopen_store(&directories);
    CHECK(store->files[0].label_damaged);
    sw_store_close(store);
    overwrite(file, parts[COPY].offset_bytes, 1, 'x');
    store = reopen_store(&directories);
    CHECK(!store->files[0].label_damaged);
    check_at_step(store, STEPS);
    sw_store_close(store);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_bad_first_label_is_written_again, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(a_mark_that_stays_damaged_stops_a_commit, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(a_label_at_another_place_is_no_copy, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(parts_lie_apart, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(opens_whichever_part_is_unreadable, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(other_errors_are_no_damage, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(a_second_reading_may_fail, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(says_where_nothing_is_left, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(writes_a_damaged_mark_again, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(a_mark_that_cannot_be_read_tells_nothing, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(a_store_without_its_first_label_is_not_removed, make_directory,
                                        remove_directory),
        cmocka_unit_test_setup_teardown(an_old_store_goes_on_in_its_layout, make_directory, remove_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
