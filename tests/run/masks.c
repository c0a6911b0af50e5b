/* F.mask beside a data file: which targets have a loss, over files, windows and parts. */
#include "core/rng.h"
#include "run/data/data.h"
#include "tests/equipment/support.h"

#include <stdbool.h>

enum { FILES = 3, TOKENS = 700, SEED = 11 };

/* Three files, the second without a mask; all tokens and masks also in memory. */
struct fixture {
    char path[FILES][SUPPORT_PATH_CHARS];
    const char *files[FILES];
    uint16_t token[FILES * TOKENS];
    unsigned char learnt[FILES * TOKENS];
    struct sw_data_spec spec;
};

static void make(void *const *state, struct fixture *f, int64_t seq) {
    char name[16], path[SUPPORT_PATH_CHARS];
    for (int i = 0; i < FILES * TOKENS; i++) {
        f->token[i] = (uint16_t)i;
        f->learnt[i] = (unsigned char)(sw_rng(SEED, 0, (uint64_t)i).word[0] % 3 * 127); /* any byte but 0 is a yes */
    }
    for (int i = 0; i < FILES; i++) {
        snprintf(name, sizeof name, "%d.bin", i);
        f->files[i] = support_write(state, name, f->token + i * TOKENS, TOKENS * sizeof *f->token, f->path[i]);
        snprintf(name, sizeof name, "%d.bin.mask", i);
        if (i != 1)
            support_write(state, name, f->learnt + i * TOKENS, TOKENS, path);
        else
            memset(f->learnt + TOKENS, 1, TOKENS);
    }
    f->spec = (struct sw_data_spec){.files = f->files, .file_count = FILES, .vocab = 65536, .seq = seq};
}

static struct sw_data *open_data(const struct fixture *f) {
    struct sw_data *data = NULL;
    support_expect_ok(sw_data_open(&f->spec, &data), "open");
    return data;
}

/* Every target is the next token, or -1 where that one is not learnt. */
static void check_window(const struct fixture *f, const int32_t *inputs, const int32_t *targets, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        const int32_t next = inputs[i] + 1;
        assert_int_equal(targets[i], f->learnt[next] != 0 ? next : -1);
    }
}

static void targets_follow_the_mask(void **state) {
    for (int64_t seq = 1; seq < TOKENS; seq = 2 * seq + 3) {
        struct fixture f;
        int32_t inputs[TOKENS], targets[TOKENS];
        make(state, &f, seq);
        f.spec.validation_percent = 40;
        struct sw_data *data = open_data(&f);
        const int64_t windows = (sw_data_train_tokens(data) - 1) / seq;
        for (int64_t w = 0; w < windows; w++) {
            int64_t count = 0, learnt = 0;
            support_expect_ok(sw_data_train_window(data, (uint64_t)w, support_window(inputs, targets)), "window");
            check_window(&f, inputs, targets, seq);
            support_expect_ok(sw_data_train_targets(data, (uint64_t)w, &count), "count");
            for (int64_t i = 0; i < seq; i++)
                learnt += targets[i] >= 0;
            assert_int_equal(count, learnt);
        }
        for (int64_t w = 0; w < sw_data_validation_windows(data); w++) {
            support_expect_ok(sw_data_validation_window(data, w, support_window(inputs, targets)), "validation window");
            int64_t count = seq;
            while (count > 1 && inputs[count - 1] == 0)
                count--;
            check_window(&f, inputs, targets, count);
        }
        sw_data_close(data);
    }
}

static uint64_t digest_of(const struct fixture *f) {
    struct sw_data *data = open_data(f);
    const uint64_t digest = sw_data_digest(data);
    sw_data_close(data);
    return digest;
}

static void the_digest_covers_masks(void **state) {
    struct fixture f;
    char path[SUPPORT_PATH_CHARS];
    make(state, &f, 16);
    const uint64_t before = digest_of(&f);
    assert_true(before == digest_of(&f));
    f.learnt[2 * TOKENS + 5] = f.learnt[2 * TOKENS + 5] == 0;
    support_write(state, "2.bin.mask", f.learnt + 2 * TOKENS, TOKENS, path);
    assert_true(before != digest_of(&f));
}

static void refuse(const struct fixture *f, const char *text) {
    struct sw_data *data = NULL;
    support_expect_failure(sw_data_open(&f->spec, &data), SW_ERR_ARG, text, "open");
}

static void bad_masks_are_refused(void **state) {
    struct fixture f;
    char path[SUPPORT_PATH_CHARS];
    make(state, &f, 16);
    support_write(state, "0.bin.mask", f.learnt, TOKENS - 1, path);
    refuse(&f, "0.bin.mask has 699 bytes, but");
    memset(f.learnt, 0, sizeof f.learnt);
    for (int i = 0; i < FILES; i++) {
        char name[16];
        snprintf(name, sizeof name, "%d.bin.mask", i);
        support_write(state, name, f.learnt, TOKENS, path);
    }
    refuse(&f, "masks and documents leave no token of the training data");
    f.learnt[TOKENS - 1] = 1;
    support_write(state, "0.bin.mask", f.learnt, TOKENS, path);
    f.spec.validation_percent = 20;
    refuse(&f, "masks and documents leave no token of the validation data");
}

/* A part's first token is nobody's target: a loss on it alone is none. */
static void the_first_token_is_no_target(void **state) {
    struct fixture f = {.spec = {.file_count = 1, .vocab = 256, .seq = 2}};
    char path[SUPPORT_PATH_CHARS];
    f.files[0] = support_write(state, "text.txt", "hello", 5, f.path[0]);
    f.spec.files = f.files;
    support_write(state, "text.txt.mask", "\1\0\0\0\0", 5, path);
    refuse(&f, "leave no token");
}

static void baselines_do_without(void **state) {
    struct fixture f = {.spec = {.file_count = 1, .vocab = 256, .seq = 2, .validation_percent = 50}};
    char path[SUPPORT_PATH_CHARS];
    double unigram, bigram;
    f.files[0] = support_write(state, "text.txt", "hello, world", 12, f.path[0]);
    f.spec.files = f.files;
    support_write(state, "text.txt.mask", "111111111111", 12, path);
    struct sw_data *data = open_data(&f);
    support_expect_failure(sw_data_baselines(data, &unigram, &bigram), SW_ERR_UNSUPPORTED, "have a mask", "masked");
    sw_data_close(data);
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, support_make_folder, support_remove_folder)

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(targets_follow_the_mask),      IN_FOLDER(the_digest_covers_masks), IN_FOLDER(bad_masks_are_refused),
        IN_FOLDER(the_first_token_is_no_target), IN_FOLDER(baselines_do_without),
    };
    return cmocka_run_group_tests_name("masks", tests, NULL, NULL);
}
