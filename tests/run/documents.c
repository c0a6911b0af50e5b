/* F.doc beside a data file: where each window says that documents begin, which targets have a loss, and what is
 * refused.
 */
#include "core/rng.h"
#include "run/data/data.h"
#include "tests/equipment/support.h"

#include <stdbool.h>

/* More documents in the first file than are read at once. */
enum { FILES = 3, TOKENS = 2500, ALL = FILES * TOKENS, SEED = 12 };

/* Three files, the second without documents, the third also with a mask; what is said of the tokens also in memory. */
struct fixture {
    char path[FILES][SUPPORT_PATH_CHARS];
    const char *files[FILES];
    bool begins[ALL];
    unsigned char learnt[ALL];
    struct sw_data_spec spec;
};

static const char *name_of(int file, const char *suffix, char out[32]) {
    snprintf(out, 32, "%d.bin%s", file, suffix);
    return out;
}

static void write_documents(void *const *state, const struct fixture *f, int file) {
    uint64_t starts[TOKENS];
    size_t count = 0;
    char name[32], path[SUPPORT_PATH_CHARS];
    for (uint64_t t = 0; t < TOKENS; t++)
        if (f->begins[file * TOKENS + (int)t])
            starts[count++] = t;
    support_write(state, name_of(file, ".doc", name), starts, count * sizeof *starts, path);
}

/* Documents of 1 to 3 tokens in the first file, of up to 800 in the third, whose last begins in the last window; token
 * i is i. */
static void make(void *const *state, struct fixture *f, int64_t seq) {
    const uint32_t longest[FILES] = {3, TOKENS, 800};
    char name[32], path[SUPPORT_PATH_CHARS];
    *f = (struct fixture){.spec = {.file_count = FILES, .vocab = 65536, .seq = seq}};
    f->spec.files = f->files;
    memset(f->learnt, 1, sizeof f->learnt);
    for (int i = 0; i < FILES; i++) {
        uint16_t token[TOKENS];
        for (int t = 0; t < TOKENS; t++)
            token[t] = (uint16_t)(i * TOKENS + t);
        f->files[i] = support_write(state, name_of(i, "", name), token, sizeof token, f->path[i]);
        f->begins[i * TOKENS] = true;
        for (uint32_t t = 0; i != 1 && t < TOKENS; t += 1 + sw_rng(SEED, 0, t).word[0] % longest[i])
            f->begins[(uint32_t)i * TOKENS + t] = true;
    }
    f->begins[ALL - 3] = true;
    for (int t = 2 * TOKENS; t < ALL; t++)
        f->learnt[t] = sw_rng(SEED, 1, (uint64_t)t).word[0] % 4 != 0;
    support_write(state, name_of(2, ".mask", name), f->learnt + 2 * TOKENS, TOKENS, path);
    write_documents(state, f, 0);
    write_documents(state, f, 2);
}

static struct sw_data *open_data(const struct fixture *f) {
    struct sw_data *data = NULL;
    support_expect_ok(sw_data_open(&f->spec, &data), "open");
    return data;
}

struct window {
    int32_t inputs[TOKENS], targets[TOKENS], starts[TOKENS];
};

static struct sw_tokens tokens_of(struct window *w) {
    memset(w, 0x55, sizeof *w);
    return (struct sw_tokens){.inputs = w->inputs, .targets = w->targets, .document_start = w->starts};
}

static void check_window(const struct fixture *f, const struct window *w, int64_t count) {
    int32_t start = 0;
    for (int32_t i = 0; i < count; i++) {
        const int32_t next = w->inputs[i] + 1;
        if (i > 0 && f->begins[w->inputs[i]])
            start = i;
        assert_int_equal(w->inputs[i], w->inputs[0] + i);
        assert_int_equal(w->starts[i], start);
        assert_int_equal(w->targets[i], f->learnt[next] != 0 && !f->begins[next] ? next : -1);
    }
}

static void windows_tell_documents(void **state) {
    static struct fixture f;
    static struct window w;
    for (int64_t seq = 1; seq < TOKENS; seq = 3 * seq + 2) {
        make(state, &f, seq);
        f.spec.validation_percent = 40;
        struct sw_data *data = open_data(&f);
        assert_true(sw_data_has_documents(data));
        const int64_t windows = (sw_data_train_tokens(data) - 1) / seq;
        for (int64_t i = 0; i < windows; i++) {
            support_expect_ok(sw_data_train_window(data, (uint64_t)i, tokens_of(&w)), "window");
            check_window(&f, &w, seq);
        }
        for (int64_t i = 0; i < sw_data_validation_windows(data); i++) {
            support_expect_ok(sw_data_validation_window(data, i, tokens_of(&w)), "validation window");
            int64_t count = seq;
            while (count > 1 && w.inputs[count - 1] == 0)
                count--;
            check_window(&f, &w, count);
            for (int64_t t = count; t < seq; t++) {
                assert_int_equal(w.targets[t], -1);
                assert_int_equal(w.starts[t], w.starts[count - 1]); /* starts never go back */
            }
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

static void the_digest_covers_documents(void **state) {
    static struct fixture f;
    char name[32], path[SUPPORT_PATH_CHARS];
    make(state, &f, 16);
    const uint64_t before = digest_of(&f);
    assert_true(before == digest_of(&f));
    f.begins[1] = !f.begins[1];
    write_documents(state, &f, 0);
    assert_true(before != digest_of(&f));

    /* No loss on a document's first token is less than a document. */
    static unsigned char mask[TOKENS];
    for (int t = 0; t < TOKENS; t++)
        mask[t] = !f.begins[2 * TOKENS + t] && f.learnt[2 * TOKENS + t] != 0;
    support_write(state, name_of(2, ".mask", name), mask, TOKENS, path);
    const uint64_t with_documents = digest_of(&f);
    assert_int_equal(unlink(support_path(state, name_of(2, ".doc", name), path)), 0);
    assert_true(with_documents != digest_of(&f));
}

static void a_file_without_has_none(void **state) {
    struct fixture f = {.spec = {.file_count = 1, .vocab = 256, .seq = 4}};
    int32_t inputs[4], targets[4], starts[4] = {9, 9, 9, 9};
    f.files[0] = support_write(state, "text.txt", "hello", 5, f.path[0]);
    f.spec.files = f.files;
    struct sw_data *data = open_data(&f);
    assert_false(sw_data_has_documents(data));
    support_expect_ok(sw_data_train_window(data, 0, (struct sw_tokens){inputs, targets, starts}), "window");
    for (int t = 0; t < 4; t++) {
        assert_int_equal(starts[t], 0);
        assert_int_equal(targets[t], "hello"[t + 1]);
    }
    sw_data_close(data);
}

static void bad_documents_are_refused(void **state) {
    static const struct {
        uint64_t starts[3];
        size_t bytes;
        const char *message;
    } bad[] = {
        {{0, 2, 4}, 0, "text.txt.doc has 0 bytes; it must hold 8 bytes for each document's start"},
        {{0, 2, 4}, 20, "text.txt.doc has 20 bytes; it must hold 8 bytes for each document's start"},
        {{1, 2, 4}, 24, "text.txt.doc: the first document begins at token 1; it must begin at 0"},
        {{0, 3, 3}, 24, "text.txt.doc: document 3 begins at token 3, and the one before it at 3; starts must rise"},
        {{0, 3, 2}, 24, "text.txt.doc: document 3 begins at token 2, and the one before it at 3; starts must rise"},
        {{0, 2, 5}, 24, "text.txt.doc: document 3 begins at token 5, beyond the 5 tokens of "},
        {{0, UINT64_MAX}, 16, "document 2 begins at token 18446744073709551615, beyond the 5 tokens of "},
    };
    struct fixture f = {.spec = {.file_count = 1, .vocab = 256, .seq = 4}};
    char path[SUPPORT_PATH_CHARS];
    struct sw_data *data = NULL;
    f.files[0] = support_write(state, "text.txt", "hello", 5, f.path[0]);
    f.spec.files = f.files;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        support_write(state, "text.txt.doc", bad[i].starts, bad[i].bytes, path);
        support_expect_failure(sw_data_open(&f.spec, &data), SW_ERR_ARG, bad[i].message, "open");
    }
    const uint64_t single[5] = {0, 1, 2, 3, 4};
    support_write(state, "text.txt.doc", single, sizeof single, path);
    support_expect_failure(sw_data_open(&f.spec, &data), SW_ERR_ARG, "documents leave no token of the training data",
                           "documents of one token");
}

static void a_file_that_shrinks_is_said(void **state) {
    static struct fixture f;
    static struct window w;
    char name[32], path[SUPPORT_PATH_CHARS];
    make(state, &f, 2400);
    struct sw_data *data = open_data(&f);
    assert_int_equal(truncate(support_path(state, name_of(0, ".doc", name), path), 8), 0);
    sw_status status = SW_OK;
    for (uint64_t i = 0; i < 3 && status == SW_OK; i++)
        status = sw_data_train_window(data, i, tokens_of(&w));
    support_expect_failure(status, SW_ERR_IO, "0.bin.doc became shorter", "shrunk");
    sw_data_close(data);
}

static void baselines_do_without(void **state) {
    struct fixture f = {.spec = {.file_count = 1, .vocab = 256, .seq = 2, .validation_percent = 50}};
    char path[SUPPORT_PATH_CHARS];
    double unigram, bigram;
    f.files[0] = support_write(state, "text.txt", "hello, world", 12, f.path[0]);
    f.spec.files = f.files;
    support_write(state, "text.txt.doc", "\0\0\0\0\0\0\0\0", 8, path);
    struct sw_data *data = open_data(&f);
    support_expect_failure(sw_data_baselines(data, &unigram, &bigram), SW_ERR_UNSUPPORTED, "or documents", "baselines");
    sw_data_close(data);
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, support_make_folder, support_remove_folder)

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(windows_tell_documents),      IN_FOLDER(the_digest_covers_documents),
        IN_FOLDER(a_file_without_has_none),     IN_FOLDER(bad_documents_are_refused),
        IN_FOLDER(a_file_that_shrinks_is_said), IN_FOLDER(baselines_do_without),
    };
    return cmocka_run_group_tests_name("documents", tests, NULL, NULL);
}
