/* Data that are changed in place after they were opened: nothing of the change is trained on, nothing is read or
 * written outside of what is there, and the file and the place are named. */
#include "run/data/data.h"
#include "tests/equipment/support.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SEQ = 256, VOCAB = 1000, BLOCK = 64 * 1024, TOKENS = 2 * BLOCK, LONG_AGO = 1000000000 };

struct fixture {
    char path[SUPPORT_PATH_CHARS], mask[SUPPORT_PATH_CHARS];
    const char *files[1];
    struct sw_data_spec spec;
    struct sw_data *data;
};

/* Waits until a later write must have another time. */
static void date(const char *path) {
    const struct timespec times[] = {{.tv_sec = LONG_AGO}, {.tv_sec = LONG_AGO}};
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

static void open_fixture(void *const *state, bool masked, struct fixture *f) {
    *f = (struct fixture){.spec = {.file_count = 1, .vocab = VOCAB, .seq = SEQ, .validation_percent = 10}};
    uint16_t *tokens = malloc(TOKENS * sizeof *tokens);
    assert_non_null(tokens);
    for (int i = 0; i < TOKENS; i++)
        tokens[i] = (uint16_t)(i % VOCAB);
    f->files[0] = support_write(state, "tokens.bin", tokens, TOKENS * sizeof *tokens, f->path);
    f->spec.files = f->files;
    date(f->path);
    if (masked) {
        memset(tokens, 1, TOKENS);
        support_write(state, "tokens.bin.mask", tokens, TOKENS, f->mask);
        date(f->mask);
    }
    free(tokens);
    support_expect_ok(sw_data_open(&f->spec, &f->data), "open");
}

static void overwrite(const char *path, const void *bytes, size_t count, int64_t offset_bytes) {
    const int fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_int_equal(pwrite(fd, bytes, count, offset_bytes), count);
    assert_int_equal(close(fd), 0);
}

static sw_status read_validation(const struct fixture *f, int64_t window) {
    int32_t inputs[SEQ], targets[SEQ];
    return sw_data_validation_window(f->data, window, support_window(inputs, targets));
}

/* How many windows of an epoch are refused, all of them with these words. */
static int64_t refused_windows(const struct fixture *f, const char *words) {
    int64_t refused = 0;
    for (uint64_t window = 0; window < (uint64_t)((sw_data_train_tokens(f->data) - 1) / SEQ); window++) {
        int32_t inputs[SEQ], targets[SEQ];
        const sw_status status = sw_data_train_window(f->data, window, support_window(inputs, targets));
        if (status == SW_OK)
            continue;
        refused++;
        support_expect_failure(status, SW_ERR_ARG, words, "a changed window");
    }
    return refused;
}

static void test_tokens_outside_the_vocabulary(void **state) {
    struct fixture f;
    const uint16_t foreign = 60000;
    open_fixture(state, false, &f);
    overwrite(f.path, &foreign, sizeof foreign, 12 * sizeof foreign);
    assert_true(refused_windows(&f, "tokens.bin has the token 60000 at index 12, outside") >= 1);
    double unigram, bigram;
    support_expect_failure(sw_data_baselines(f.data, &unigram, &bigram), SW_ERR_ARG, "has the token 60000 at index 12",
                           "baselines");
    sw_data_close(f.data);
}

/* The whole block is taken for changed, the other block goes on. */
static void test_other_tokens(void **state) {
    struct fixture f;
    const uint16_t other = 7;
    open_fixture(state, false, &f);
    overwrite(f.path, &other, sizeof other, (BLOCK + 100) * sizeof other);
    const int64_t windows = (sw_data_train_tokens(f.data) - 1) / SEQ;
    const int64_t refused = refused_windows(&f, "tokens.bin was changed while it was in use (it has 262144 bytes, "
                                                "written 20");
    assert_true(refused > 0 && refused >= windows - BLOCK / SEQ && refused <= windows - BLOCK / SEQ + 1);
    support_expect_failure(read_validation(&f, 0), SW_ERR_ARG, "from token 65536 of", "validation");
    sw_data_close(f.data);
}

static void test_another_mask(void **state) {
    struct fixture f;
    const uint8_t unlearnt = 0;
    open_fixture(state, true, &f);
    overwrite(f.mask, &unlearnt, sizeof unlearnt, TOKENS - 5);
    support_expect_failure(read_validation(&f, 0), SW_ERR_ARG, "tokens.bin.mask was changed", "validation");
    assert_int_equal(refused_windows(&f, ""), 0);
    sw_data_close(f.data);
}

static void test_files_that_were_only_touched(void **state) {
    struct fixture f;
    open_fixture(state, true, &f);
    assert_int_equal(utimensat(AT_FDCWD, f.path, NULL, 0), 0);
    assert_int_equal(chmod(f.mask, 0600), 0);
    assert_int_equal(refused_windows(&f, ""), 0);
    support_expect_ok(read_validation(&f, 0), "validation");
    sw_data_close(f.data);
}

static void test_another_digest(void **state) {
    struct fixture f;
    open_fixture(state, false, &f);
    support_expect_ok(sw_data_check_digest(f.data, sw_data_digest(f.data)), "the same data");
    support_expect_failure(sw_data_check_digest(f.data, sw_data_digest(f.data) + 1), SW_ERR_ARG,
                           "tokens.bin, of 262144 bytes and written 2001-09-09 01:46:40 UTC", "other data");
    sw_data_close(f.data);
}

/* Large data, whose scan is kept: more tokens than the fewest for which one is. */
enum { MANY_TOKENS = 80 * BLOCK };

static void open_large(void *const *state, struct fixture *f) {
    *f = (struct fixture){.spec = {.file_count = 1, .vocab = VOCAB, .seq = SEQ, .validation_percent = 10}};
    uint16_t *tokens = malloc(MANY_TOKENS * sizeof *tokens);
    assert_non_null(tokens);
    for (int i = 0; i < MANY_TOKENS; i++)
        tokens[i] = (uint16_t)(i * 7 % VOCAB);
    f->files[0] = support_write(state, "large.bin", tokens, MANY_TOKENS * sizeof *tokens, f->path);
    f->spec.files = f->files;
    date(f->path);
    free(tokens);
    assert_int_equal(setenv("XDG_CACHE_HOME", ((struct support_folder *)*state)->path, 1), 0);
    support_expect_ok(sw_data_open(&f->spec, &f->data), "open");
}

/* Opens the data again, as a resume does. */
static void open_again(struct fixture *f) {
    sw_data_close(f->data);
    support_expect_ok(sw_data_open(&f->spec, &f->data), "open again");
}

static void remove_cache(void *const *state) {
    char path[SUPPORT_PATH_CHARS], command[SUPPORT_PATH_CHARS + 16];
    support_path(state, "spillway", path);
    assert_true(snprintf(command, sizeof command, "rm -r '%s'", path) < (int)sizeof command);
    assert_int_equal(system(command), 0);
}

/* A second opening knows the digest without reading the tokens, so a bit that changed without another time is not in
 * it, and is found when its block is first needed. */
static void test_a_kept_scan_is_compared_later(void **state) {
    struct fixture f;
    const uint16_t other = 8;
    open_large(state, &f);
    const uint64_t digest = sw_data_digest(f.data);
    char text[SW_DATA_TEXT_CHARS], again[SW_DATA_TEXT_CHARS];
    sw_data_text(f.data, text);
    open_again(&f);
    assert_int_equal(sw_data_digest(f.data), digest);
    assert_string_equal(sw_data_text(f.data, again), text);
    assert_int_equal(refused_windows(&f, ""), 0);
    overwrite(f.path, &other, sizeof other, (3 * BLOCK + 100) * sizeof other);
    date(f.path);
    open_again(&f);
    assert_int_equal(sw_data_digest(f.data), digest);
    const int64_t refused = refused_windows(&f, "large.bin reads differently from token 196608 on");
    assert_in_range(refused, BLOCK / SEQ, BLOCK / SEQ + 1);
    sw_data_close(f.data);
    remove_cache(state);
}

static void test_a_changed_file_is_read_again(void **state) {
    struct fixture f;
    const uint16_t other = 8;
    open_large(state, &f);
    const uint64_t digest = sw_data_digest(f.data);
    overwrite(f.path, &other, sizeof other, (3 * BLOCK + 100) * sizeof other);
    open_again(&f);
    assert_true(sw_data_digest(f.data) != digest);
    assert_int_equal(refused_windows(&f, ""), 0);
    sw_data_close(f.data);
    remove_cache(state);
}

/* Flips a bit of every kept scan. */
static void damage_cache(void *const *state) {
    char path[SUPPORT_PATH_CHARS];
    DIR *list = opendir(support_path(state, "spillway", path));
    int damaged = 0;
    assert_non_null(list);
    for (const struct dirent *entry; (entry = readdir(list)) != NULL;) {
        if (strncmp(entry->d_name, "scan-", 5) != 0)
            continue;
        unsigned char byte;
        const int fd = openat(dirfd(list), entry->d_name, O_RDWR | O_CLOEXEC);
        assert_int_equal(pread(fd, &byte, 1, 200), 1);
        byte ^= 1;
        assert_int_equal(pwrite(fd, &byte, 1, 200), 1);
        close(fd);
        damaged++;
    }
    closedir(list);
    assert_int_equal(damaged, 1);
}

static void test_a_damaged_scan_is_not_used(void **state) {
    struct fixture f;
    open_large(state, &f);
    const uint64_t digest = sw_data_digest(f.data);
    damage_cache(state);
    open_again(&f);
    assert_int_equal(sw_data_digest(f.data), digest);
    assert_int_equal(refused_windows(&f, ""), 0);
    sw_data_close(f.data);
    remove_cache(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_tokens_outside_the_vocabulary, support_make_folder, support_remove_folder),
        cmocka_unit_test_setup_teardown(test_other_tokens, support_make_folder, support_remove_folder),
        cmocka_unit_test_setup_teardown(test_another_mask, support_make_folder, support_remove_folder),
        cmocka_unit_test_setup_teardown(test_files_that_were_only_touched, support_make_folder, support_remove_folder),
        cmocka_unit_test_setup_teardown(test_another_digest, support_make_folder, support_remove_folder),
        cmocka_unit_test_setup_teardown(test_a_kept_scan_is_compared_later, support_make_folder, support_remove_folder),
        cmocka_unit_test_setup_teardown(test_a_changed_file_is_read_again, support_make_folder, support_remove_folder),
        cmocka_unit_test_setup_teardown(test_a_damaged_scan_is_not_used, support_make_folder, support_remove_folder),
    };
    return cmocka_run_group_tests_name("run/data_changes", tests, NULL, NULL);
}
