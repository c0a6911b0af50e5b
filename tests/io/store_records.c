/* Damaged commit records: the other one is opened, and it is said which step is lost with this one, where its commit
 * had finished; one that never did loses nothing. */
#include "tests/io/store_support.h"

#include "core/files/files.h"
#include "core/size.h"
#include "io/store/store_private.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HEADER_BYTES = sizeof(struct sw_super_header), BITS_OF_A_BYTE = 8 };

/* Where the records of the last commit and of the one before begin in a file. */
struct records {
    int64_t last, before, bytes;
    int64_t mark; /* of the last commit that finished */
};

static struct records make_steps(const struct store_directories *directories, int64_t steps, int file) {
    struct sw_store *store = create_store(directories);
    commit_steps(store, 1, steps);
    const int slot = store->files[file].committed_slot;
    const struct records records = {.last = sw_super_offset(store, file, slot),
                                    .before = sw_super_offset(store, file, 1 - slot),
                                    .bytes = store->files[file].super_bytes,
                                    .mark = sw_format_mark_offset(store->version, store->label_bytes)};
    sw_store_close(store);
    return records;
}

static void flip(const char *path, int64_t offset_bytes, int bit) {
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    unsigned char byte;
    CHECK(pread(fd, &byte, 1, offset_bytes) == 1);
    byte ^= (unsigned char)(1 << bit);
    CHECK(pwrite(fd, &byte, 1, offset_bytes) == 1 && close(fd) == 0);
}

/* Opens at the step, with one damaged record in the file or none (offset 0). */
static struct sw_store_bad_record open_with(const struct store_directories *directories, int64_t step, int file,
                                            int64_t offset_bytes) {
    struct sw_store *store = reopen_store(directories);
    const struct sw_store_bad_record *bad;
    struct sw_store_bad_record found = {0};
    CHECK(sw_store_last_commit(store)->step == step);
    CHECK(sw_store_bad_records(store, &bad) == (offset_bytes > 0 ? 1 : 0));
    if (offset_bytes > 0) {
        char name[32];
        snprintf(name, sizeof name, "nvme%d/" SW_STORE_FILE_NAME, file);
        CHECK(bad->offset_bytes == offset_bytes && strstr(bad->path, name) != NULL);
        found = *bad;
        found.path = NULL; /* which ends with the store */
    }
    sw_store_close(store);
    return found;
}

static void whole_records_are_not_spoken_of(void **state) {
    const struct store_directories directories = make_store_directories(*state, 2);
    struct sw_store *store = create_store(&directories);
    for (int64_t step = 1; step <= 3; step++) {
        commit_steps(store, step, step);
        sw_store_close(store);
        open_with(&directories, step, 0, 0);
        store = reopen_store(&directories);
    }
    sw_store_close(store);
}

/* Whichever bit it is, the step before is opened and this one is said to be lost. */
static void a_bit_of_the_last_record(void **state) {
    const struct store_directories directories = make_store_directories(*state, 1);
    /* One bit turns six into four or two. */
    const struct records records = make_steps(&directories, 6, 0);
    const char *file = store_file(&directories, 0);
    for (int64_t byte = 0; byte < HEADER_BYTES; byte++)
        for (int bit = 0; bit < BITS_OF_A_BYTE; bit++) {
            test_seed = (uint64_t)(byte * BITS_OF_A_BYTE + bit);
            flip(file, records.last + byte, bit);
            const struct sw_store_bad_record bad = open_with(&directories, 5, 0, records.last);
            CHECK(bad.loss == SW_STORE_RECORD_LOST && bad.step == 6);
            flip(file, records.last + byte, bit);
        }
    const int64_t later[] = {HEADER_BYTES, SW_SUPER_META_OFFSET, SW_SUPER_SUMS_OFFSET, records.bytes - 1};
    for (size_t i = 0; i < sizeof later / sizeof later[0]; i++) {
        flip(file, records.last + later[i], 0);
        const struct sw_store_bad_record bad = open_with(&directories, 5, 0, records.last);
        CHECK(bad.loss == SW_STORE_RECORD_LOST && bad.step == 6);
        flip(file, records.last + later[i], 0);
    }
    /* The next commit takes the place of what was damaged. */
    flip(file, records.last + SW_SUPER_SUMS_OFFSET, 0);
    struct sw_store *store = reopen_store(&directories);
    check_at_step(store, 5);
    commit_steps(store, 6, 6);
    sw_store_close(store);
    open_with(&directories, 6, 0, 0);
}

static void a_bit_of_the_record_before(void **state) {
    const struct store_directories directories = make_store_directories(*state, 1);
    const struct records records = make_steps(&directories, 4, 0);
    const char *file = store_file(&directories, 0);
    for (int64_t byte = 0; byte < HEADER_BYTES; byte++) {
        test_seed = (uint64_t)byte;
        flip(file, records.before + byte, 1);
        CHECK(open_with(&directories, 4, 0, records.before).loss == SW_STORE_RECORD_HARMLESS);
        flip(file, records.before + byte, 1);
    }
    flip(file, records.before + SW_SUPER_META_OFFSET, 1);
    CHECK(open_with(&directories, 4, 0, records.before).loss == SW_STORE_RECORD_HARMLESS);
}

static void copy_bytes(const char *path, int64_t offset_bytes, void *bytes, int64_t count, bool write) {
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    CHECK((write ? pwrite(fd, bytes, (size_t)count, offset_bytes) : pread(fd, bytes, (size_t)count, offset_bytes)) ==
          count);
    CHECK(close(fd) == 0);
}

/* The remains of a power failure within a commit: the mark of the one before, and a record that is partly there.
 * Nothing is lost, and the next commit takes its place. */
static void a_commit_that_never_finished(void **state) {
    for (int count = 1; count <= STORE_MAX_DIRECTORIES; count++) {
        char name[2] = {(char)('p' + count)};
        const struct store_directories directories = make_store_directories(new_subdirectory(*state, name), count);
        unsigned char marks[STORE_MAX_DIRECTORIES][SW_FORMAT_MARK_BYTES];
        struct records records = make_steps(&directories, 3, count - 1);
        unsigned char *old = io_buffer(records.bytes);
        copy_bytes(store_file(&directories, count - 1), records.before, old, records.bytes, false);
        for (int file = 0; file < count; file++)
            copy_bytes(store_file(&directories, file), records.mark, marks[file], SW_FORMAT_MARK_BYTES, false);
        struct sw_store *store = reopen_store(&directories);
        commit_steps(store, 4, 4);
        sw_store_close(store);
        for (int file = 0; file < count; file++)
            copy_bytes(store_file(&directories, file), records.mark, marks[file], SW_FORMAT_MARK_BYTES, true);
        overwrite(store_file(&directories, count - 1), records.before + records.bytes / 2, records.bytes / 2, 0);
        struct sw_store_bad_record bad = open_with(&directories, 3, count - 1, records.before);
        CHECK(bad.loss == SW_STORE_RECORD_HARMLESS && bad.step == 4);
        /* Where the record tells nothing, those of the other files tell which step it was. */
        overwrite(store_file(&directories, count - 1), records.before, records.bytes, 0xff);
        bad = open_with(&directories, 3, count - 1, records.before);
        CHECK(bad.loss == SW_STORE_RECORD_HARMLESS && bad.step == (count > 1 ? 4 : -1));
        /* The record of an earlier commit loses nothing, whatever the other files have. */
        old[SW_SUPER_META_OFFSET] ^= 1;
        copy_bytes(store_file(&directories, count - 1), records.before, old, records.bytes, true);
        free(old);
        bad = open_with(&directories, 3, count - 1, records.before);
        CHECK(bad.loss == SW_STORE_RECORD_HARMLESS && bad.step == -1);
        store = reopen_store(&directories);
        check_at_step(store, 3);
        /* The number of a record that is whole in some file is not given to another. */
        CHECK(store->sequence == (count > 1 ? 4 : 3));
        commit_steps(store, 4, 5);
        sw_store_close(store);
        open_with(&directories, 5, 0, 0);
    }
}

/* Nothing is lost by a mark alone; beside a damaged record it tells no more than the record. */
static void a_damaged_mark(void **state) {
    const struct store_directories directories = make_store_directories(*state, 1);
    const struct records records = make_steps(&directories, 4, 0);
    const char *file = store_file(&directories, 0);
    for (int64_t byte = 0; byte < (int64_t)sizeof(struct sw_mark); byte++) {
        flip(file, records.mark + byte, 2);
        open_with(&directories, 4, 0, 0);
        flip(file, records.last + SW_SUPER_META_OFFSET, 1);
        const struct sw_store_bad_record bad = open_with(&directories, 3, 0, records.last);
        CHECK(bad.loss == SW_STORE_RECORD_UNSURE && bad.step == 4);
        flip(file, records.last + SW_SUPER_META_OFFSET, 1);
        flip(file, records.mark + byte, 2);
    }
    flip(file, records.mark + SW_FORMAT_MARK_BYTES - 1, 0);
    open_with(&directories, 4, 0, 0);
}

/* A power failure may take the mark of the first commit, and with it nothing is lost: it was not flushed yet. */
static void a_mark_that_was_never_written(void **state) {
    const struct store_directories directories = make_store_directories(*state, 1);
    const struct records records = make_steps(&directories, 2, 0);
    const char *file = store_file(&directories, 0);
    overwrite(file, records.mark, SW_FORMAT_MARK_BYTES, 0);
    overwrite(file, records.last + records.bytes / 2, records.bytes / 2, 0);
    const struct sw_store_bad_record bad = open_with(&directories, 1, 0, records.last);
    CHECK(bad.loss == SW_STORE_RECORD_HARMLESS && bad.step == 2);
}

/* A file that is put back from an older copy lacks what the others have finished. */
static void an_older_copy_of_one_file(void **state) {
    const struct store_directories directories = make_store_directories(*state, 2);
    const struct records records = make_steps(&directories, 3, 1);
    const char *file = store_file(&directories, 1);
    const int64_t bytes = file_bytes(file);
    unsigned char *copy = io_buffer(bytes);
    copy_bytes(file, 0, copy, bytes, false);
    struct sw_store *store = reopen_store(&directories);
    commit_steps(store, 4, 4);
    sw_store_close(store);
    copy_bytes(file, 0, copy, bytes, true);
    const struct sw_store_bad_record bad = open_with(&directories, 3, 1, records.before);
    CHECK(bad.loss == SW_STORE_RECORD_LOST && bad.step == 4);
    free(copy);
}

/* The records of the other files tell which step it was, also where its own record tells nothing. */
static void a_record_of_one_file_of_several(void **state) {
    for (int file = 0; file < STORE_MAX_DIRECTORIES; file++) {
        char name[16] = {(char)('a' + file)};
        const struct store_directories directories =
            make_store_directories(new_subdirectory(*state, name), STORE_MAX_DIRECTORIES);
        const struct records records = make_steps(&directories, 4, file);
        overwrite(store_file(&directories, file), records.last, records.bytes, 0xff);
        const struct sw_store_bad_record bad = open_with(&directories, 3, file, records.last);
        CHECK(bad.loss == SW_STORE_RECORD_LOST && bad.step == 4);
        overwrite(store_file(&directories, file), records.last, records.bytes, 0);
        CHECK(open_with(&directories, 3, file, records.last).step == 4);
    }
}

/* A store that never held a commit is empty; one that held a commit and is empty was lost. */
static void an_emptied_record(void **state) {
    const struct store_directories directories = make_store_directories(*state, 1);
    const struct records records = make_steps(&directories, 4, 0);
    overwrite(store_file(&directories, 0), records.last, records.bytes, 0);
    const struct sw_store_bad_record bad = open_with(&directories, 3, 0, records.last);
    CHECK(bad.loss == SW_STORE_RECORD_LOST && bad.step == 4);
}

static void check_open_fails(const struct store_directories *directories, const char *words) {
    struct sw_store *store;
    CHECK_FAILS(sw_store_open(directories->path, directories->count, true, SW_STORE_NEWEST, &store), SW_ERR_CORRUPT,
                words);
}

static void the_only_record(void **state) {
    const struct store_directories directories = make_store_directories(*state, 1);
    const struct records records = make_steps(&directories, 1, 0);
    flip(store_file(&directories, 0), records.last + SW_SUPER_META_OFFSET, 3);
    check_open_fails(&directories, "has lost the record of its only commit (step 1), which had finished");
    overwrite(store_file(&directories, 0), records.mark, SW_FORMAT_MARK_BYTES, 0);
    check_open_fails(&directories, "has no finished commit: its run ended before its first one, or the record of that "
                                   "has been damaged since");
}

/* Gives the last record of a file another number and step, and the checksum that goes with them. */
static void renumber(const char *path, const struct records *records, int64_t sequence, int64_t step) {
    unsigned char *super = io_buffer(records->bytes);
    struct sw_super_header *header = (struct sw_super_header *)super;
    copy_bytes(path, records->last, super, records->bytes, false);
    header->sequence = sw_le64_of(sequence);
    header->step = sw_le64_of(step);
    header->sum = sw_le64_of_sum(sw_checksum(super + SW_FORMAT_SUM_FROM, records->bytes - (int64_t)SW_FORMAT_SUM_FROM));
    copy_bytes(path, records->last, super, records->bytes, true);
    free(super);
}

/* The number of a commit is the last that there is: nothing can be added, and what is there is not lost. */
static void the_last_number(void **state) {
    const struct store_directories directories = make_store_directories(*state, 1);
    const struct records records = make_steps(&directories, 2, 0);
    renumber(store_file(&directories, 0), &records, INT64_MAX, 2);
    check_open_fails(&directories, "numbers its last commit 9223372036854775807");
    struct sw_store *store;
    CHECK_OK(sw_store_open_to_read(directories.path, 1, SW_STORE_NEWEST, &store));
    check_at_step(store, 2);
    sw_store_close(store);
}

static void one_number_for_two_steps(void **state) {
    const struct store_directories directories = make_store_directories(*state, 2);
    const struct records records = make_steps(&directories, 2, 1);
    renumber(store_file(&directories, 1), &records, 2, 3);
    check_open_fails(&directories, "tell of different commits under the same number");
}

/* A file that is put back from a copy too old has whole records, but none that the others have, too. */
static void a_much_older_copy_of_one_file(void **state) {
    const struct store_directories directories = make_store_directories(*state, 2);
    make_steps(&directories, 2, 1);
    const char *file = store_file(&directories, 1), *copy = in_directory(*state, "copy");
    copy_file(file, copy);
    struct sw_store *store = reopen_store(&directories);
    commit_steps(store, 3, 4);
    sw_store_close(store);
    copy_file(copy, file);
    check_open_fails(&directories, "have no commit in common");
}

/* Records count, whole or not. Other bytes do not. */
static void the_newest_of_all_records(void **state) {
    const struct store_directories directories = make_store_directories(*state, 1);
    const struct records records = make_steps(&directories, 4, 0);
    const int64_t newest[] = {4, 3};
    for (int i = 0; i < 2; i++) {
        struct sw_store *store = reopen_store(&directories);
        CHECK(sw_store_newest_record(store) == newest[i]);
        sw_store_close(store);
        overwrite(store_file(&directories, 0), records.last, records.bytes, 0x7f);
    }
}

static void the_record_of_one_generation(void **state) {
    const struct store_directories directories = make_store_directories(*state, 1);
    const struct sw_store_spec spec = {.directories = directories.path,
                                       .directory_count = 1,
                                       .unit_grains = store_unit_grains,
                                       .unit_count = STORE_UNITS,
                                       .allow_buffered = true,
                                       .one_generation = true};
    struct sw_store *store;
    CHECK_OK(sw_store_create(&spec, NULL, NULL, &store));
    for (int64_t step = 1; step <= 2; step++) {
        CHECK_OK(sw_store_withdraw(store));
        write_generation(store, 0, step);
        CHECK_OK(sw_store_commit(store, step, 0, "{}"));
    }
    const int64_t offset = sw_super_offset(store, 0, store->files[0].committed_slot);
    sw_store_close(store);
    open_with(&directories, 2, 0, 0);
    flip(store_file(&directories, 0), offset + SW_SUPER_META_OFFSET, 3);
    check_open_fails(&directories, "did not end cleanly, or the record of that end has been damaged since");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(whole_records_are_not_spoken_of, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(a_bit_of_the_last_record, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(a_bit_of_the_record_before, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(a_commit_that_never_finished, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(a_damaged_mark, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(a_mark_that_was_never_written, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(an_older_copy_of_one_file, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(a_record_of_one_file_of_several, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(an_emptied_record, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(the_last_number, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(the_only_record, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(one_number_for_two_steps, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(a_much_older_copy_of_one_file, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(the_newest_of_all_records, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(the_record_of_one_generation, make_directory, remove_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
