/* Data: the order of windows, files as one stream, what is refused, and the baselines. */
#include "run/data/data.h"
#include "core/rng.h"
#include "tests/equipment/support.h"

#include <math.h>
#include <stdbool.h>

enum { MAX_FILES = 8 };

struct fixture {
    char paths[MAX_FILES][SUPPORT_PATH_CHARS];
    const char *files[MAX_FILES];
    struct sw_data_spec spec;
};

static void add_file(void *const *state, struct fixture *fixture, const char *name, const void *content, size_t bytes) {
    const int i = fixture->spec.file_count++;
    fixture->files[i] = support_write(state, name, content, bytes, fixture->paths[i]);
    fixture->spec.files = fixture->files;
}

/* Token i is i, so that a window shows where it was cut. */
static void add_counting_file(void *const *state, struct fixture *fixture, const char *name, int first, int count) {
    uint16_t *tokens = malloc((size_t)count * sizeof *tokens);
    assert_non_null(tokens);
    for (int i = 0; i < count; i++)
        tokens[i] = (uint16_t)(first + i);
    add_file(state, fixture, name, tokens, (size_t)count * sizeof *tokens);
    free(tokens);
}

static struct sw_data *open_or_fail(const struct fixture *fixture) {
    struct sw_data *data = NULL;
    support_expect_ok(sw_data_open(&fixture->spec, &data), "open");
    return data;
}

/* Checks that a window of counting tokens is whole, and returns which one it is. */
static int64_t window_index(const int32_t *inputs, const int32_t *targets, int64_t seq) {
    for (int64_t i = 0; i < seq; i++) {
        assert_int_equal(inputs[i], inputs[0] + i);
        assert_int_equal(targets[i], inputs[i] + 1);
    }
    assert_int_equal(inputs[0] % seq, 0);
    return inputs[0] / seq;
}

static void check_epochs(struct sw_data *data, int64_t seq, int64_t windows, uint64_t seed) {
    int32_t *inputs = calloc((size_t)seq, sizeof *inputs), *targets = calloc((size_t)seq, sizeof *targets);
    int64_t *orders = calloc((size_t)windows * 3, sizeof *orders);
    for (int64_t epoch = 0; epoch < 3; epoch++) {
        bool *seen = calloc((size_t)windows, sizeof *seen);
        for (int64_t i = 0; i < windows; i++) {
            support_expect_ok(
                sw_data_train_window(data, (uint64_t)(epoch * windows + i), support_window(inputs, targets)), "window");
            const int64_t index = window_index(inputs, targets, seq);
            if (index >= windows || seen[index])
                fail_msg("seed %llu epoch %lld: window %lld twice or not there", (unsigned long long)seed,
                         (long long)epoch, (long long)index);
            seen[index] = true;
            orders[epoch * windows + i] = index;
        }
        free(seen);
    }
    const size_t bytes = (size_t)windows * sizeof *orders;
    if (windows >= 20) { /* Fewer may well repeat by chance. */
        assert_memory_not_equal(orders, orders + windows, bytes);
        assert_memory_not_equal(orders + windows, orders + 2 * windows, bytes);
    }
    free(inputs);
    free(targets);
    free(orders);
}

static void test_epochs_are_permutations(void **state) {
    for (uint64_t trial = 0; trial < 40; trial++) {
        const struct sw_rng_block random = sw_rng(20240607, 0, trial);
        const int64_t seq = 1 + random.word[0] % 40;
        const int tokens = (int)seq + 1 + (int)(random.word[1] % 3000);
        struct fixture fixture = {.spec = {.vocab = 65536, .seq = seq, .seed = trial}};
        add_counting_file(state, &fixture, "tokens.bin", 0, tokens);
        struct sw_data *data = open_or_fail(&fixture);
        assert_int_equal(sw_data_train_tokens(data), tokens);
        assert_int_equal(sw_data_validation_windows(data), 0);
        check_epochs(data, seq, (tokens - 1) / seq, trial);
        sw_data_close(data);
    }
}

enum { SHORT_SEQ = 16 };

static void test_position_decides(void **state) {
    struct fixture fixture = {.spec = {.vocab = 5000, .seq = SHORT_SEQ, .seed = 3}};
    add_counting_file(state, &fixture, "tokens.bin", 0, 5000);
    struct sw_data *whole = open_or_fail(&fixture);
    int32_t inputs[SHORT_SEQ], targets[SHORT_SEQ], again[SHORT_SEQ];
    int differing_seeds = 0;
    for (uint64_t position = 900; position > 600; position -= 7) {
        /* A data set opened anew, at any position, in any order, sees the same. */
        struct sw_data *resumed = open_or_fail(&fixture);
        assert_int_equal(sw_data_digest(whole), sw_data_digest(resumed));
        support_expect_ok(sw_data_train_window(whole, position, support_window(inputs, targets)), "window");
        support_expect_ok(sw_data_train_window(resumed, position, support_window(again, targets)), "window");
        assert_memory_equal(inputs, again, sizeof inputs);
        sw_data_close(resumed);
        struct fixture other = fixture;
        other.spec.files = other.files;
        other.spec.seed = 4;
        struct sw_data *reseeded = open_or_fail(&other);
        support_expect_ok(sw_data_train_window(reseeded, position, support_window(again, targets)), "window");
        differing_seeds += memcmp(inputs, again, sizeof inputs) != 0;
        sw_data_close(reseeded);
    }
    assert_true(differing_seeds > 30);
    sw_data_close(whole);
}

static void test_files_are_one_stream(void **state) {
    struct fixture one = {.spec = {.vocab = 4000, .seq = SHORT_SEQ, .seed = 9, .validation_percent = 12.5}};
    add_counting_file(state, &one, "all.bin", 0, 4000);
    struct fixture many = {.spec = one.spec};
    many.spec.file_count = 0;
    add_counting_file(state, &many, "a.bin", 0, 1);
    add_counting_file(state, &many, "b.bin", 1, 37);
    add_counting_file(state, &many, "c.bin", 38, 3461);
    add_counting_file(state, &many, "d.bin", 3499, 501);
    struct sw_data *a = open_or_fail(&one), *b = open_or_fail(&many);
    assert_int_equal(sw_data_train_tokens(a), 3500);
    assert_int_equal(sw_data_train_tokens(b), 3500);
    assert_int_equal(sw_data_validation_tokens(b), 500);
    assert_int_equal(sw_data_digest(a), sw_data_digest(b));
    int32_t inputs[2][SHORT_SEQ], targets[2][SHORT_SEQ];
    for (uint64_t position = 0; position < 500; position++) {
        support_expect_ok(sw_data_train_window(a, position, support_window(inputs[0], targets[0])), "one file");
        support_expect_ok(sw_data_train_window(b, position, support_window(inputs[1], targets[1])), "many files");
        assert_memory_equal(inputs[0], inputs[1], sizeof inputs[0]);
        assert_memory_equal(targets[0], targets[1], sizeof targets[0]);
        assert_true(targets[0][SHORT_SEQ - 1] < 3500); /* Nothing of the validation part. */
    }
    sw_data_close(a);
    sw_data_close(b);
}

/* The windows of validation hold every target once, in order, from `first` to the end. */
static void check_validation(struct sw_data *data, int32_t first, int64_t tokens) {
    int32_t inputs[SHORT_SEQ], targets[SHORT_SEQ];
    int64_t seen = 0;
    for (int64_t window = 0; window < sw_data_validation_windows(data); window++) {
        support_expect_ok(sw_data_validation_window(data, window, support_window(inputs, targets)),
                          "validation window");
        for (int i = 0; i < SHORT_SEQ; i++) {
            if (seen == tokens - 1) {
                assert_int_equal(targets[i], -1);
                assert_int_equal(inputs[i], 0);
                continue;
            }
            assert_int_equal(inputs[i], first + seen);
            assert_int_equal(targets[i], first + seen + 1);
            seen++;
        }
    }
    assert_int_equal(seen, tokens - 1);
}

static void test_validation(void **state) {
    struct fixture part = {.spec = {.vocab = 2000, .seq = SHORT_SEQ, .validation_percent = 5}};
    add_counting_file(state, &part, "tokens.bin", 0, 2000);
    struct sw_data *data = open_or_fail(&part);
    assert_int_equal(sw_data_validation_tokens(data), 100);
    assert_int_equal(sw_data_validation_windows(data), 7); /* 99 targets: six whole windows and a short one. */
    check_validation(data, 1900, 100);
    const uint64_t part_digest = sw_data_digest(data);
    sw_data_close(data);

    char path[SUPPORT_PATH_CHARS];
    uint16_t tokens[33];
    for (int i = 0; i < 33; i++)
        tokens[i] = (uint16_t)(700 + i);
    struct fixture file = part;
    file.spec.files = file.files;
    file.spec.validation_percent = 0;
    file.spec.validation_file = support_write(state, "val.bin", tokens, sizeof tokens, path);
    data = open_or_fail(&file);
    assert_int_equal(sw_data_train_tokens(data), 2000);
    assert_int_equal(sw_data_validation_windows(data), 2); /* 32 targets: nothing is left over. */
    check_validation(data, 700, 33);
    assert_int_not_equal(sw_data_digest(data), part_digest);
    sw_data_close(data);

    /* Nothing to train on. */
    file.spec.file_count = 0;
    data = open_or_fail(&file);
    assert_int_equal(sw_data_train_tokens(data), 0);
    check_validation(data, 700, 33);
    sw_data_close(data);
}

static void test_text_and_wide_tokens(void **state) {
    const char text[] = "caf\xc3\xa9 au lait, s'il vous pla\xc3\xaet\n";
    struct fixture bytes = {.spec = {.vocab = 256, .seq = 4}};
    add_file(state, &bytes, "text.txt", text, sizeof text - 1);
    struct sw_data *data = open_or_fail(&bytes);
    int32_t inputs[4], targets[4];
    bool found = false;
    for (uint64_t position = 0; position < 7; position++) {
        support_expect_ok(sw_data_train_window(data, position, support_window(inputs, targets)), "text");
        found |= inputs[0] == 'c' && inputs[3] == 0xc3 && targets[3] == 0xa9;
    }
    assert_true(found);
    sw_data_close(data);

    const uint32_t wide[] = {70000, 1, 65536, 2, 99999};
    struct fixture tokens = {.spec = {.vocab = 100000, .seq = 4}};
    add_file(state, &tokens, "wide.bin", wide, sizeof wide);
    data = open_or_fail(&tokens);
    support_expect_ok(sw_data_train_window(data, 12345, support_window(inputs, targets)), "wide");
    assert_memory_equal(inputs, wide, sizeof inputs);
    assert_int_equal(targets[3], 99999);
    sw_data_close(data);
}

/* A byte order mark is no token, of each file; the mask counts what is behind it. */
static void test_byte_order_marks(void **state) {
    struct fixture fixture = {.spec = {.vocab = 256, .seq = 4}};
    add_file(state, &fixture, "first.md",
             "\xef\xbb\xbf"
             "abcde",
             8);
    add_file(state, &fixture, "second.txt",
             "\xef\xbb\xbf"
             "fgh\r\n",
             8);
    add_file(state, &fixture, "third.txt", "jkl\xef\xbb\xbf", 6);
    char path[SUPPORT_PATH_CHARS];
    support_write(state, "first.md.mask", "\1\1\1\1\1", 5, path);
    struct sw_data *data = open_or_fail(&fixture);
    assert_int_equal(sw_data_train_tokens(data), 16);
    int32_t inputs[4], targets[4];
    for (uint64_t position = 0; position < 3; position++) {
        support_expect_ok(sw_data_train_window(data, position, support_window(inputs, targets)), "window");
        if (inputs[0] == 'a')
            assert_int_equal(targets[3], 'e');
        else if (inputs[0] == 'e')
            assert_int_equal(targets[3], '\r');
        else
            assert_int_equal(inputs[2], 'j');
    }
    sw_data_close(data);
}

static void expect_refused(const struct fixture *fixture, sw_status code, const char *message) {
    struct sw_data *data = NULL;
    support_expect_failure(sw_data_open(&fixture->spec, &data), code, message, message);
    assert_null(data);
}

static void refuse_content(void *const *state, int64_t vocab, const char *name, const void *content, size_t bytes,
                           const char *message) {
    struct fixture fixture = {.spec = {.vocab = vocab, .seq = 4}};
    add_file(state, &fixture, name, content, bytes);
    expect_refused(&fixture, SW_ERR_ARG, message);
}

static void test_bad_files(void **state) {
    const uint16_t tokens[] = {1, 2, 3, 50256, 50257, 5, 6};
    const uint32_t negative[] = {1, 2, 3, 4, 5, UINT32_MAX};
    refuse_content(state, 50257, "bad.bin", tokens, sizeof tokens, "has the token 50257 at index 4, outside");
    refuse_content(state, 70000, "bad.bin", negative, sizeof negative, "has the token 4294967295 at index 5");
    refuse_content(state, 50257, "bad.bin", tokens, 5, "not a whole number of 2-byte tokens");
    refuse_content(state, 70000, "bad.bin", tokens, 6, "not a whole number of 4-byte tokens");
    refuse_content(state, 256, "empty.txt", "", 0, "is empty");
    refuse_content(state, 255, "text.txt", "hello", 5, "it needs 256");
    refuse_content(state, 256, "text.unknown", "hello", 5, ".txt or .md (text) or .bin (tokens)");
    refuse_content(state, 256, "chat.jsonl", "hello", 5, "a tokenizer.json");
    refuse_content(state, 256, "chat.jsonl.gz", "hello", 5, "a tokenizer.json");
    refuse_content(state, 256, "marked.txt", "\xef\xbb\xbf", 3, "is empty");
    refuse_content(state, 256, "wide.txt", "\xff\xfeh\0e\0", 6, "iconv -f utf-16");
    refuse_content(state, 256, "text.txt.gz", "hello", 5, "gunzip -k");
    refuse_content(state, 256, "short.txt", "four", 4, "holds 4 tokens, but a sequence of 4 needs 5");

    struct fixture missing = {.spec = {.vocab = 256, .seq = 4}};
    add_file(state, &missing, "gone.txt", "hello", 5);
    assert_int_equal(unlink(missing.paths[0]), 0);
    expect_refused(&missing, SW_ERR_IO, "No such file");
}

/* uint32 tokens of a small vocabulary, and what only looks like them. */
static void test_wide_tokens_of_a_small_vocabulary(void **state) {
    enum { TOKENS = 40, FEW = 10 };
    uint32_t wide[TOKENS];
    const uint32_t zeros[TOKENS] = {0};
    int32_t inputs[4], targets[4];
    for (uint32_t i = 0; i < TOKENS; i++)
        wide[i] = 100 + i;
    refuse_content(state, 50257, "wide.bin", wide, sizeof wide, "holds uint32 tokens");
    struct fixture fixture = {.spec = {.vocab = 50257, .seq = 4, .format = {.flag = "--tokens"}}};
    add_file(state, &fixture, "wide.bin", wide, sizeof wide);
    expect_refused(&fixture, SW_ERR_ARG, "give --tokens u32");
    fixture.spec.format.type = SW_TOKENS_U32;
    struct sw_data *data = open_or_fail(&fixture);
    assert_int_equal(sw_data_train_tokens(data), TOKENS);
    support_expect_ok(sw_data_train_window(data, 0, support_window(inputs, targets)), "wide");
    assert_int_equal(targets[0], inputs[0] + 1);
    sw_data_close(data);
    fixture.spec.format.type = SW_TOKENS_U16;
    data = open_or_fail(&fixture);
    assert_int_equal(sw_data_train_tokens(data), 2 * TOKENS);
    sw_data_close(data);
    /* One token alone, too few tokens to tell, and a single upper half that is not 0. */
    struct fixture others[3] = {0};
    uint32_t almost[TOKENS];
    memcpy(almost, wide, sizeof wide);
    almost[TOKENS - 1] |= 1U << 16;
    const void *content[] = {zeros, wide, almost};
    const size_t bytes[] = {sizeof zeros, FEW * sizeof *wide, sizeof almost};
    for (int i = 0; i < 3; i++) {
        others[i].spec = (struct sw_data_spec){.vocab = 50257, .seq = 4};
        add_file(state, &others[i], "narrow.bin", content[i], bytes[i]);
        sw_data_close(open_or_fail(&others[i]));
    }
}

enum { LLMC_INTS = 256, LLMC_TOKENS = 9 };

/* A file of llm.c: its header, and tokens that count from 0. */
static size_t make_llmc(int32_t magic, int32_t version, int32_t count, int width, unsigned char *out) {
    const int32_t header[LLMC_INTS] = {magic, version, count};
    memcpy(out, header, sizeof header);
    for (uint32_t i = 0; i < LLMC_TOKENS; i++)
        memcpy(out + sizeof header + i * (uint32_t)width, &i, (size_t)width);
    return sizeof header + (size_t)(LLMC_TOKENS * width);
}

static void test_llmc_headers(void **state) {
    const struct {
        int32_t magic, version;
        int width;
        int64_t vocab;
    } cases[] = {{20240520, 1, 2, 50257}, {20240520, 1, 2, 70000}, {20240801, 7, 4, 128256}, {20240801, 7, 4, 300}};
    unsigned char content[LLMC_INTS * 4 + LLMC_TOKENS * 4 + 4] = {0};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct fixture fixture = {.spec = {.vocab = cases[i].vocab, .seq = LLMC_TOKENS - 1}};
        const size_t bytes = make_llmc(cases[i].magic, cases[i].version, LLMC_TOKENS, cases[i].width, content);
        add_file(state, &fixture, "llmc.bin", content, bytes);
        struct sw_data *data = open_or_fail(&fixture);
        assert_int_equal(sw_data_train_tokens(data), LLMC_TOKENS);
        int32_t inputs[LLMC_TOKENS], targets[LLMC_TOKENS];
        support_expect_ok(sw_data_train_window(data, 0, support_window(inputs, targets)), "llm.c");
        assert_int_equal(window_index(inputs, targets, LLMC_TOKENS - 1), 0);
        sw_data_close(data);
        fixture.spec.format =
            (struct sw_token_format){.type = cases[i].width == 2 ? SW_TOKENS_U32 : SW_TOKENS_U16, .flag = "--tokens"};
        expect_refused(&fixture, SW_ERR_ARG, "leave out --tokens");
    }
    size_t bytes = make_llmc(20240520, 1, LLMC_TOKENS, 2, content);
    refuse_content(state, 50257, "cut.bin", content, bytes - 2, "cut off");
    refuse_content(state, 50257, "longer.bin", content, bytes + 2, "says 9 tokens");
    refuse_content(state, 50257, "header.bin", content, 12, "cut off");
    bytes = make_llmc(20240520, 1, -1, 2, content);
    refuse_content(state, 50257, "negative.bin", content, bytes, "says -1 tokens");
    struct fixture fixture = {.spec = {.vocab = 128256, .seq = 4}};
    bytes = make_llmc(20240801, 1, LLMC_TOKENS, 4, content);
    add_file(state, &fixture, "version.bin", content, bytes);
    expect_refused(&fixture, SW_ERR_UNSUPPORTED, "reads version 7");
    make_llmc(20240522, 1, LLMC_TOKENS, 2, content);
    fixture.spec.file_count = 0;
    add_file(state, &fixture, "eval.bin", content, bytes);
    expect_refused(&fixture, SW_ERR_UNSUPPORTED, "questions");
}

static void test_bad_spec(void **state) {
    /* In the second file, the place counts from that file's start. */
    const uint16_t bad[] = {1, 2, 300};
    struct fixture second = {.spec = {.vocab = 256, .seq = 4}};
    add_counting_file(state, &second, "good.bin", 0, 100);
    add_file(state, &second, "bad.bin", bad, sizeof bad);
    expect_refused(&second, SW_ERR_ARG, "bad.bin has the token 300 at index 2");

    struct fixture fixture = {.spec = {.vocab = 256, .seq = 4}};
    add_file(state, &fixture, "text.txt", "hello, world", 12);
    fixture.spec.validation_percent = 10;
    expect_refused(&fixture, SW_ERR_ARG, "the validation data holds 1 token,");
    fixture.spec.validation_percent = 50.5;
    expect_refused(&fixture, SW_ERR_ARG, "0% to 50%");
    fixture.spec.validation_percent = NAN;
    expect_refused(&fixture, SW_ERR_ARG, "0% to 50%");
    fixture.spec.validation_percent = 0;
    fixture.spec.seq = 0;
    expect_refused(&fixture, SW_ERR_ARG, "at least 1");
    fixture.spec.seq = 4;
    fixture.spec.validation_file = "nowhere.txt";
    expect_refused(&fixture, SW_ERR_IO, "nowhere.txt");
    fixture.spec.file_count = 0; /* an evaluation, of that file alone */
    expect_refused(&fixture, SW_ERR_IO, "nowhere.txt");
    fixture.spec.validation_file = NULL;
    expect_refused(&fixture, SW_ERR_ARG, "no data file");
}

static void test_file_that_shrinks(void **state) {
    struct fixture fixture = {.spec = {.vocab = 2000, .seq = SHORT_SEQ}};
    add_counting_file(state, &fixture, "tokens.bin", 0, 2000);
    struct sw_data *data = open_or_fail(&fixture);
    assert_int_equal(truncate(fixture.paths[0], 10), 0);
    int32_t inputs[SHORT_SEQ], targets[SHORT_SEQ];
    support_expect_failure(sw_data_train_window(data, 0, support_window(inputs, targets)), SW_ERR_IO, "became shorter",
                           "shrunk");
    sw_data_close(data);
}

static void test_baselines(void **state) {
    /* Training "abababab" and validation "abba" in a vocabulary of 256, by hand. */
    struct fixture fixture = {.spec = {.vocab = 256, .seq = 2}};
    char path[SUPPORT_PATH_CHARS];
    add_file(state, &fixture, "train.txt", "abababab", 8);
    fixture.spec.validation_file = support_write(state, "val.txt", "abba", 4, path);
    struct sw_data *data = open_or_fail(&fixture);
    double unigram = 0, bigram = 0;
    support_expect_ok(sw_data_baselines(data, &unigram, &bigram), "baselines");
    const double p = 5.0 / 264.0;    /* of a and of b: four of each in eight, and one for each of 256 */
    const double ab = (4 + p) / 5.0; /* a is followed by b four times of four */
    const double bb = (0 + p) / 4.0; /* b by b never in three */
    const double ba = (3 + p) / 4.0;
    assert_true(fabs(unigram + log2(p)) < 1e-12);
    assert_true(fabs(bigram + (log2(ab) + log2(bb) + log2(ba)) / 3.0) < 1e-12);
    sw_data_close(data);
}

static void test_baselines_refused(void **state) {
    struct fixture wide = {.spec = {.vocab = 4097, .seq = 4, .validation_percent = 20}};
    add_counting_file(state, &wide, "tokens.bin", 0, 4097);
    double unigram = 0, bigram = 0;
    struct sw_data *data = open_or_fail(&wide);
    support_expect_failure(sw_data_baselines(data, &unigram, &bigram), SW_ERR_UNSUPPORTED, "up to 4096", "wide");
    sw_data_close(data);
    struct fixture none = {.spec = {.vocab = 256, .seq = 4}};
    add_file(state, &none, "text.txt", "hello, world", 12);
    data = open_or_fail(&none);
    support_expect_failure(sw_data_baselines(data, &unigram, &bigram), SW_ERR_ARG, "need validation", "none");
    sw_data_close(data);
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, support_make_folder, support_remove_folder)

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(test_epochs_are_permutations),
        IN_FOLDER(test_position_decides),
        IN_FOLDER(test_files_are_one_stream),
        IN_FOLDER(test_validation),
        IN_FOLDER(test_text_and_wide_tokens),
        IN_FOLDER(test_byte_order_marks),
        IN_FOLDER(test_bad_files),
        IN_FOLDER(test_wide_tokens_of_a_small_vocabulary),
        IN_FOLDER(test_llmc_headers),
        IN_FOLDER(test_bad_spec),
        IN_FOLDER(test_file_that_shrinks),
        IN_FOLDER(test_baselines),
        IN_FOLDER(test_baselines_refused),
    };
    return cmocka_run_group_tests_name("data", tests, NULL, NULL);
}
