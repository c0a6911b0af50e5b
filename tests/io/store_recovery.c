/* A store's files after a crash, a move, or worse: the right commit is found, or the damage is named. */
#include "tests/io/store_support.h"

#include "core/files/files.h"
#include "core/size.h"
#include "io/store/store_private.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LABEL_SEEDS = 400, KILLS = 12, MAX_KILL_US = 60000, MORE_KILLS = 8 };
/* Longer than a process waits for one that lives. */
enum { HELD_BY_THE_DEAD_US = 2600000 };

/* Sizes and places of a store's parts, for tests that damage them. */
struct anatomy {
    int64_t label_bytes, super_bytes, super_offset[SW_STORE_SLOTS];
    int slot; /* of the last commit */
};

static struct anatomy anatomy_of(const struct sw_store *store, int file) {
    return (struct anatomy){
        .label_bytes = store->label_bytes,
        .super_bytes = store->files[file].super_bytes,
        .super_offset = {sw_super_offset(store, file, 0), sw_super_offset(store, file, 1)},
        .slot = store->files[file].committed_slot,
    };
}

static int64_t grain_offset(const struct sw_store *store, int generation, int64_t unit, int64_t grain, int *out_file) {
    const struct sw_file_run run = sw_area_run(&store->areas[SW_STORE_OPTIMIZER][generation], unit, grain, 1);
    *out_file = run.file;
    return run.offset_bytes;
}

/* Overwrites a stretch of both labels. */
static void overwrite_labels(const char *file, int64_t label_bytes, int64_t offset_bytes, int64_t count,
                             unsigned char value) {
    overwrite(file, offset_bytes, count, value);
    overwrite(file, sw_format_copy_offset(label_bytes) + offset_bytes, count, value);
}

static void check_open_fails(const struct store_directories *directories, sw_status code, const char *words) {
    struct sw_store *store;
    CHECK_FAILS(sw_store_open(directories->path, directories->count, true, SW_STORE_NEWEST, &store), code, words);
}

static void refuses_a_store_without_a_commit(void **state) {
    const struct store_directories directories = make_store_directories(*state, 2);
    struct sw_store *store = create_store(&directories);
    const struct anatomy anatomy = anatomy_of(store, 0);
    sw_store_close(store);
    check_open_fails(&directories, SW_ERR_ARG, "no finished commit");
    /* The same after a crash within the first commit. */
    overwrite(store_file(&directories, 0), anatomy.super_offset[0], 4096, 0x55);
    check_open_fails(&directories, SW_ERR_CORRUPT, "no finished commit");
    overwrite_labels(store_file(&directories, 0), anatomy.label_bytes, 0, anatomy.label_bytes, 0);
    check_open_fails(&directories, SW_ERR_CORRUPT, "creation was interrupted");
}

static void falls_back_from_a_torn_superblock(void **state) {
    const struct store_directories directories = make_store_directories(*state, 1);
    struct sw_store *store = create_store(&directories);
    commit_steps(store, 1, 4);
    const struct anatomy anatomy = anatomy_of(store, 0);
    sw_store_close(store);
    /* The second half did not reach the drive. */
    overwrite(store_file(&directories, 0), anatomy.super_offset[anatomy.slot] + anatomy.super_bytes / 2,
              anatomy.super_bytes / 2, 0);
    store = reopen_store(&directories);
    check_at_step(store, 3);
    commit_steps(store, 4, 5);
    sw_store_close(store);
    store = reopen_store(&directories);
    check_at_step(store, 5);
    sw_store_close(store);
    for (int slot = 0; slot < SW_STORE_SLOTS; slot++)
        flip_bit(store_file(&directories, 0), anatomy.super_offset[slot] + SW_SUPER_SUMS_OFFSET + 3);
    check_open_fails(&directories, SW_ERR_CORRUPT, "lost both of its superblocks");
}

/* Puts a file's superblocks back as they were in a copy: a commit that reached the other files only. */
static void restore_supers(const struct anatomy *anatomy, const char *copy, const char *file) {
    const int64_t bytes = anatomy->super_offset[1] + anatomy->super_bytes - anatomy->super_offset[0];
    char *supers = io_buffer(bytes);
    const int from = open(copy, O_RDONLY), to = open(file, O_WRONLY);
    CHECK(pread(from, supers, (size_t)bytes, anatomy->super_offset[0]) == bytes);
    CHECK(pwrite(to, supers, (size_t)bytes, anatomy->super_offset[0]) == bytes);
    CHECK(close(from) == 0 && close(to) == 0);
    free(supers);
}

static void takes_the_commit_that_all_files_have(void **state) {
    for (int behind = 0; behind < STORE_MAX_DIRECTORIES; behind++) {
        char name[16] = {(char)('a' + behind)};
        const struct store_directories directories =
            make_store_directories(new_subdirectory(*state, name), STORE_MAX_DIRECTORIES);
        const char *file = store_file(&directories, behind), *copy = in_directory(*state, "copy");
        struct sw_store *store = create_store(&directories);
        commit_steps(store, 1, 2);
        copy_file(file, copy);
        commit_steps(store, 3, 3);
        const struct anatomy anatomy = anatomy_of(store, behind);
        sw_store_close(store);
        restore_supers(&anatomy, copy, file);
        store = reopen_store(&directories);
        check_at_step(store, 2);
        /* Crash once more within the next commit: the leftover of the first attempt must not pair with it. */
        copy_file(store_file(&directories, (behind + 1) % STORE_MAX_DIRECTORIES), copy);
        commit_steps(store, 3, 3);
        const int other = (behind + 1) % STORE_MAX_DIRECTORIES;
        const struct anatomy other_anatomy = anatomy_of(store, other);
        sw_store_close(store);
        restore_supers(&other_anatomy, copy, store_file(&directories, other));
        store = reopen_store(&directories);
        check_at_step(store, 2);
        sw_store_close(store);
    }
}

static void names_a_damaged_grain(void **state) {
    const struct store_directories directories = make_store_directories(*state, 2);
    struct sw_store *store = create_store(&directories);
    commit_steps(store, 1, 2);
    const int generation = sw_store_last_commit(store)->generation;
    int file, other_file;
    const int64_t offset = grain_offset(store, generation, 3, 4, &file);
    const int64_t other = grain_offset(store, 1 - generation, 0, 7, &other_file);
    sw_store_close(store);

    flip_bit(store_file(&directories, other_file), other + 100);
    store = reopen_store(&directories);
    check_at_step(store, 2); /* the other generation is not part of it */
    sw_store_close(store);

    flip_bit(store_file(&directories, file), offset + SW_OPTIMIZER_GRAIN_BYTES - 1);
    store = reopen_store(&directories);
    struct sw_store_lane *lane;
    char *buf = io_buffer(6 * SW_OPTIMIZER_GRAIN_BYTES);
    struct sw_store_transfer transfer = {.generation = generation, .unit = 3, .grains = 6, .buf = buf, .step = 2};
    CHECK_OK(sw_store_lane_open(store, STORE_DEPTH, &lane));
    CHECK_FAILS(sw_store_transfer(lane, &transfer), SW_ERR_CORRUPT, "grain 4 of unit 3 (optimizer");
    CHECK_FAILS(sw_store_submit(lane, &transfer), SW_ERR_CORRUPT, "failed before");
    uint64_t tag;
    int count;
    CHECK_FAILS(sw_store_reap(lane, true, &tag, 1, &count), SW_ERR_CORRUPT, "failed before");
    sw_store_lane_close(lane);
    CHECK_OK(sw_store_lane_open(store, STORE_DEPTH, &lane));
    transfer.generation = 1 - generation;
    CHECK_FAILS(sw_store_transfer(lane, &transfer), SW_ERR_CORRUPT, "was not written since the store was opened");
    sw_store_lane_close(lane);
    CHECK_FAILS(sw_store_commit(store, 3, 1 - generation, ""), SW_ERR_INTERNAL,
                "that were never written in generation");
    sw_store_close(store);
    free(buf);
}

static void read_bad(struct sw_store *store, int generation, char *buf, const char *words) {
    struct sw_store_lane *lane;
    CHECK_OK(sw_store_lane_open(store, STORE_DEPTH, &lane));
    CHECK_FAILS(
        sw_store_transfer(
            lane, &(struct sw_store_transfer){.generation = generation, .unit = 3, .grains = 6, .buf = buf, .step = 3}),
        SW_ERR_CORRUPT, words);
    sw_store_lane_close(lane);
}

/* The commit before can be gone back to until its generation is written to. */
static void says_what_to_go_back_to(void **state) {
    const struct store_directories directories = make_store_directories(*state, 1);
    struct sw_store *store = create_store(&directories);
    commit_steps(store, 1, 3);
    CHECK(sw_store_previous_step(store) == 2);
    const int generation = sw_store_last_commit(store)->generation;
    int file;
    const int64_t offset = grain_offset(store, generation, 3, 4, &file);
    sw_store_close(store);
    flip_bit(store_file(&directories, file), offset);
    store = reopen_store(&directories);
    struct sw_store_lane *lane;
    char *buf = io_buffer(6 * SW_OPTIMIZER_GRAIN_BYTES);
    struct sw_store_transfer other = {.generation = generation, .unit = 1, .grains = 1, .buf = buf, .step = 3};
    CHECK_OK(sw_store_lane_open(store, STORE_DEPTH, &lane));
    CHECK_OK(sw_store_transfer(lane, &other));
    read_bad(store, generation, buf,
             "it belongs to the last commit (step 3): resume --previous goes back to step 2 if that is still whole");
    other.write = true;
    other.generation = 1 - generation;
    CHECK_OK(sw_store_transfer(lane, &other));
    read_bad(store, generation, buf, "it belongs to the last commit (step 3): go back to an export or another copy");
    sw_store_lane_close(lane);
    sw_store_close(store);
    free(buf);
}

static void survives_being_moved(void **state) {
    struct store_directories directories = make_store_directories(*state, 2);
    struct sw_store *store = create_store(&directories);
    commit_steps(store, 1, 1);
    sw_store_close(store);
    const char *moved = in_directory(*state, "moved");
    CHECK(rename(directories.path[1], moved) == 0);
    check_open_fails(&directories, SW_ERR_ARG, "nvme1");
    directories.path[1] = moved;
    store = reopen_store(&directories);
    check_at_step(store, 1);
    sw_store_close(store);
}

static void refuses_files_that_do_not_belong_together(void **state) {
    const struct store_directories a = make_store_directories(new_subdirectory(*state, "a"), 2);
    const struct store_directories b = make_store_directories(new_subdirectory(*state, "b"), 2);
    const struct store_directories c = make_store_directories(new_subdirectory(*state, "c"), 1);
    struct sw_store *store = create_store(&a);
    commit_steps(store, 1, 1);
    sw_store_close(store);
    store = create_store(&b);
    commit_steps(store, 1, 1);
    sw_store_close(store);
    struct store_directories mixed = {.path = {a.path[0], b.path[1]}, .count = 2};
    check_open_fails(&mixed, SW_ERR_ARG, "belong to different stores");
    mixed.count = 1;
    check_open_fails(&mixed, SW_ERR_ARG, "striped over 2 directories, and 1 was given");
    copy_file(store_file(&a, 0), store_file(&c, 0));
    mixed = (struct store_directories){.path = {a.path[0], c.path[0]}, .count = 2};
    check_open_fails(&mixed, SW_ERR_ARG, "is a copy of another file");
    mixed = (struct store_directories){.path = {a.path[0], a.path[0]}, .count = 2};
    check_open_fails(&mixed, SW_ERR_ARG, "the same directory");
}

static void refuses_truncated_and_foreign_files(void **state) {
    const struct store_directories directories = make_store_directories(*state, 1);
    struct sw_store *store = create_store(&directories);
    commit_steps(store, 1, 1);
    const int64_t bytes = sw_store_file_bytes(store), label_bytes = store->label_bytes;
    sw_store_close(store);
    const char *file = store_file(&directories, 0), *copy = in_directory(*state, "copy");
    copy_file(file, copy);
    const int64_t lengths[] = {0, 1, 100, 4095, 4096, label_bytes, bytes - 1};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        copy_file(copy, file);
        CHECK(truncate(file, lengths[i]) == 0);
        check_open_fails(&directories, SW_ERR_CORRUPT, "truncated");
    }
    copy_file(copy, file);
    overwrite_labels(file, label_bytes, offsetof(struct sw_label_header, version), 1, SW_FORMAT_PACKED_VERSION + 1);
    check_open_fails(&directories, SW_ERR_UNSUPPORTED, "version 7");
    overwrite_labels(file, label_bytes, 0, label_bytes, 'x');
    check_open_fails(&directories, SW_ERR_CORRUPT, "not a store");
    copy_file(copy, file);
    overwrite_labels(file, label_bytes, sizeof(struct sw_label_header) + 2, 1, 'x');
    check_open_fails(&directories, SW_ERR_CORRUPT, "checksum is wrong");
    copy_file(copy, file);
    store = reopen_store(&directories);
    check_at_step(store, 1);
    sw_store_close(store);
}

/* Replaces a number of the label by one that is likely to hurt. */
static void mutate_label(unsigned char *label, int64_t label_bytes, uint64_t *draws) {
    static const uint64_t nasty[] = {0, 1, 4095, 4096, 1u << 20, UINT32_MAX, INT64_MAX, UINT64_MAX, UINT64_C(1) << 62};
    struct sw_label_header *header = (struct sw_label_header *)label;
    const int64_t used = 512; /* the header and the first extents */
    const int64_t width = random_below(draws, 2) == 0 ? 4 : 8;
    const int64_t at = SW_FORMAT_SUM_FROM + random_below(draws, used / width) * width;
    uint64_t value = nasty[random_below(draws, (int64_t)(sizeof nasty / sizeof nasty[0]))];
    if (random_below(draws, 2) == 0)
        value = (uint64_t)random_below(draws, 1 << 24);
    memcpy(label + at, &value, (size_t)width);
    header->sum = sw_le64_of_sum(sw_checksum(label + SW_FORMAT_SUM_FROM, label_bytes - SW_FORMAT_SUM_FROM));
}

static void write_labels(int fd, const unsigned char *label, int64_t label_bytes) {
    CHECK(pwrite(fd, label, (size_t)label_bytes, 0) == label_bytes);
    CHECK(pwrite(fd, label, (size_t)label_bytes, sw_format_copy_offset(label_bytes)) == label_bytes);
}

/* Labels that check but lie are refused or harmless; which, does not matter as long as nothing else happens. */
static void bears_lying_labels(void **state) {
    const struct store_directories directories = make_store_directories(*state, 1);
    struct sw_store *store = create_store(&directories);
    commit_steps(store, 1, 1);
    const int64_t label_bytes = store->label_bytes;
    sw_store_close(store);
    const char *file = store_file(&directories, 0);
    unsigned char *truth = io_buffer(label_bytes), *label = io_buffer(label_bytes);
    const int fd = open(file, O_RDWR);
    CHECK(pread(fd, truth, (size_t)label_bytes, 0) == label_bytes);
    int refused = 0;
    for (test_seed = 1; test_seed <= LABEL_SEEDS; test_seed++) {
        uint64_t draws = 0;
        memcpy(label, truth, (size_t)label_bytes);
        mutate_label(label, label_bytes, &draws);
        write_labels(fd, label, label_bytes);
        if (sw_store_open(directories.path, 1, true, SW_STORE_NEWEST, &store) == SW_OK) {
            int64_t grains, bad;
            (void)sw_store_verify(store, NULL, &grains, &bad);
            sw_store_close(store);
        } else {
            refused++;
        }
        sw_error_clear();
    }
    CHECK(refused > LABEL_SEEDS / 2);
    write_labels(fd, truth, label_bytes);
    CHECK(close(fd) == 0);
    store = reopen_store(&directories);
    check_at_step(store, 1);
    sw_store_close(store);
    free(truth);
    free(label);
}

/* A process that commits until it is killed, wherever it is. On a busy drive it lives longer, until it has committed.
 */
static void resumes_after_kill(void **state) {
    const struct store_directories directories = make_store_directories(*state, 2);
    struct sw_store *store = create_store(&directories);
    commit_steps(store, 1, 1);
    sw_store_close(store);
    int64_t step = 1;
    uint64_t draws = 0;
    for (test_seed = 1; test_seed <= KILLS || (step == 1 && test_seed <= KILLS + MORE_KILLS); test_seed++) {
        const uint64_t more = test_seed > KILLS ? test_seed - KILLS : 0;
        const pid_t child = fork_child();
        if (child == 0) {
            store = reopen_store(&directories);
            commit_steps(store, sw_store_last_commit(store)->step + 1, INT64_MAX - 1);
        }
        usleep((useconds_t)random_below(&draws, MAX_KILL_US << more));
        kill(child, SIGKILL);
        int how;
        CHECK(waitpid(child, &how, 0) == child && WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL);
        store = reopen_store(&directories);
        CHECK(sw_store_last_commit(store)->step >= step);
        step = sw_store_last_commit(store)->step;
        check_at_step(store, step);
        sw_store_close(store);
    }
    CHECK(step > 1);
}

/* Takes the lock and leaves it to a child of its own, as the system holds on to the files of a process that was killed
 * until its last flush has landed. */
static void die_with_the_lock(void *context) {
    const struct store_directories *directories = context;
    reopen_store(directories);
    if (fork_child() == 0) {
        usleep(HELD_BY_THE_DEAD_US);
        _exit(0);
    }
}

static void waits_for_the_writes_of_the_dead(void **state) {
    struct store_directories directories = make_store_directories(*state, 1);
    struct sw_store *store = create_store(&directories);
    commit_steps(store, 1, 1);
    sw_store_close(store);
    CHECK(run_in_child(die_with_the_lock, &directories) == 0);
    store = reopen_store(&directories);
    check_at_step(store, 1);
    sw_store_close(store);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(refuses_a_store_without_a_commit, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(falls_back_from_a_torn_superblock, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(takes_the_commit_that_all_files_have, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(names_a_damaged_grain, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(says_what_to_go_back_to, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(survives_being_moved, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(refuses_files_that_do_not_belong_together, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(refuses_truncated_and_foreign_files, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(bears_lying_labels, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(resumes_after_kill, make_directory, remove_directory),
        cmocka_unit_test_setup_teardown(waits_for_the_writes_of_the_dead, make_directory, remove_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
