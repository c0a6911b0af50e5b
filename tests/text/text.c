/* Text to tokens and back: the ids and texts of the package `tokenizers` (tests/data/tokenizers, made by
 * tools/golden.py), streams that break no character, and files that are refused. */
#include "tests/equipment/support.h"

#include "core/rng.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

#include <jansson.h>

static const char *const names[] = {"gpt2",    "gpt2-prefix",   "llama3", "qwen", "nfkc",   "smollm", "llama2",
                                    "mistral", "llama3-marked", "gpt4o",  "kimi", "syntax", "gemma"};
enum { NAMES = sizeof names / sizeof names[0] };

static json_t *read_golden(const char *name) {
    char path[4096];
    json_error_t error;
    (void)snprintf(path, sizeof path, "%s/tokenizers/%s.json", getenv("SW_TEST_DATA"), name);
    json_t *golden = json_load_file(path, JSON_ALLOW_NUL, &error);
    assert_non_null(golden);
    return golden;
}

/* Loads a tokenizer from the text of its file. */
static sw_status load_text(struct sw_text text, struct sw_tokenizer **out) {
    const char *base = getenv("TMPDIR");
    char path[SUPPORT_PATH_CHARS];
    (void)snprintf(path, sizeof path, "%s/tokenizer-XXXXXX", base != NULL ? base : ".");
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text.data, text.bytes), text.bytes);
    close(fd);
    const sw_status status = sw_tokenizer_load(path, out);
    unlink(path);
    return status;
}

static sw_status load(const json_t *file, struct sw_tokenizer **out) {
    char *text = json_dumps(file, 0);
    assert_non_null(text);
    const sw_status status = load_text((struct sw_text){text, strlen(text)}, out);
    free(text);
    return status;
}

static struct sw_tokenizer *must_load(const json_t *golden) {
    struct sw_tokenizer *tokenizer = NULL;
    const sw_status status = load(json_object_get(golden, "tokenizer"), &tokenizer);
    if (status != SW_OK)
        fail_msg("%s", sw_error_message(status));
    return tokenizer;
}

/* The text of a case: as it is, or given as bytes in hexadecimal. */
static struct sw_text_buffer text_of_case(const json_t *item) {
    struct sw_text_buffer buffer = {0};
    const json_t *text = json_object_get(item, "text");
    const char *hex = json_string_value(json_object_get(item, "bytes"));
    assert_int_equal(sw_text_buffer_reserve(&buffer, 1), SW_OK);
    if (text != NULL) {
        const struct sw_text all = {json_string_value(text), json_string_length(text)};
        assert_int_equal(sw_text_buffer_append(&buffer, all), SW_OK);
        return buffer;
    }
    for (; hex != NULL && *hex != 0; hex += 2) {
        unsigned byte;
        assert_int_equal(sscanf(hex, "%2x", &byte), 1);
        const char letter = (char)byte;
        assert_int_equal(sw_text_buffer_append(&buffer, (struct sw_text){&letter, 1}), SW_OK);
    }
    return buffer;
}

static void check_ids(const char *name, size_t number, const struct sw_token_list *found, const json_t *wanted) {
    bool equal = found->count == json_array_size(wanted);
    for (size_t i = 0; equal && i < found->count; i++)
        equal = found->id[i] == json_integer_value(json_array_get(wanted, i));
    if (!equal)
        fail_msg("%s: case %zu has other ids", name, number);
}

/* Decodes token by token: what comes is whole characters each time. */
static void check_decoded(struct sw_text_decoder *decoder, const struct sw_token_list *ids, const json_t *wanted) {
    struct sw_text_buffer out = {0};
    assert_int_equal(sw_text_buffer_reserve(&out, 1), SW_OK);
    for (size_t i = 0; i < ids->count; i++) {
        assert_int_equal(sw_text_decode(decoder, ids->id[i], &out), SW_OK);
        assert_true(sw_utf8_is_valid(sw_text_of_buffer(&out)));
    }
    assert_int_equal(sw_text_decode_end(decoder, &out), SW_OK);
    assert_int_equal(out.bytes, json_string_length(wanted));
    assert_memory_equal(out.data, json_string_value(wanted), out.bytes);
    free(out.data);
}

static void check_case(const char *name, size_t number, const json_t *item, struct sw_text_encoder *encoder,
                       struct sw_text_decoder *decoder) {
    struct sw_text_buffer text = text_of_case(item);
    struct sw_token_list ids = {0};
    const struct sw_encode_options how = {.parse_special = json_is_true(json_object_get(item, "special")),
                                          .add_special = json_is_true(json_object_get(item, "whole"))};
    assert_int_equal(sw_text_encode(encoder, sw_text_of_buffer(&text), how, &ids), SW_OK);
    check_ids(name, number, &ids, json_object_get(item, "ids"));
    check_decoded(decoder, &ids, json_object_get(item, "decoded"));
    free(ids.id);
    free(text.data);
}

static void golden_cases(void **state) {
    (void)state;
    for (int i = 0; i < NAMES; i++) {
        json_t *golden = read_golden(names[i]);
        struct sw_tokenizer *tokenizer = must_load(golden);
        struct sw_text_encoder *encoder;
        struct sw_text_decoder *decoder;
        assert_int_equal(sw_text_encoder_create(tokenizer, &encoder), SW_OK);
        assert_int_equal(sw_text_decoder_create(tokenizer, false, &decoder), SW_OK);
        const json_t *cases = json_object_get(golden, "cases");
        assert_true(json_array_size(cases) > 40);
        for (int round = 0; round < 2; round++) /* the second time from the cache of pieces */
            for (size_t c = 0; c < json_array_size(cases); c++)
                check_case(names[i], c, json_array_get(cases, c), encoder, decoder);
        sw_text_decoder_destroy(decoder);
        sw_text_encoder_destroy(encoder);
        sw_tokenizer_destroy(tokenizer);
        json_decref(golden);
    }
}

static bool is_special(const struct sw_tokenizer *tokenizer, int32_t id) {
    return sw_tokenizer_next_special(tokenizer, sw_tokenizer_text(tokenizer, id), 0).id == id;
}

static void lookups(void **state) {
    (void)state;
    json_t *golden = read_golden("qwen");
    struct sw_tokenizer *tokenizer = must_load(golden);
    const int32_t turn = sw_tokenizer_find(tokenizer, "<|turn|>");
    assert_true(turn >= 0 && is_special(tokenizer, turn));
    assert_false(is_special(tokenizer, sw_tokenizer_find(tokenizer, "word")));
    assert_int_equal(sw_tokenizer_find(tokenizer, "no such token"), -1);
    assert_int_equal(sw_tokenizer_ids(tokenizer), 403);
    sw_tokenizer_destroy(tokenizer);
    json_decref(golden);
}

/* A user's text may not end a turn; skipped special tokens leave nothing. */
static void special_tokens_are_text(void **state) {
    (void)state;
    static const struct sw_text text = {"a<|turn|>b", 10};
    json_t *golden = read_golden("llama3");
    struct sw_tokenizer *tokenizer = must_load(golden);
    const int32_t turn = sw_tokenizer_find(tokenizer, "<|turn|>");
    struct sw_text_encoder *encoder;
    struct sw_text_decoder *decoder;
    assert_int_equal(sw_text_encoder_create(tokenizer, &encoder), SW_OK);
    assert_int_equal(sw_text_decoder_create(tokenizer, true, &decoder), SW_OK);
    for (int parse = 0; parse < 2; parse++) {
        struct sw_token_list ids = {0};
        struct sw_text_buffer out = {0};
        int turns = 0;
        assert_int_equal(sw_text_encode(encoder, text, (struct sw_encode_options){.parse_special = parse}, &ids),
                         SW_OK);
        for (size_t i = 0; i < ids.count; i++) {
            turns += ids.id[i] == turn;
            assert_int_equal(sw_text_decode(decoder, ids.id[i], &out), SW_OK);
        }
        assert_int_equal(sw_text_decode_end(decoder, &out), SW_OK);
        assert_int_equal(turns, parse);
        assert_int_equal(out.bytes, parse ? 2 : 10);
        free(out.data);
        free(ids.id);
    }
    sw_text_decoder_destroy(decoder);
    sw_text_encoder_destroy(encoder);
    sw_tokenizer_destroy(tokenizer);
    json_decref(golden);
}

/* A character whose last byte but one has no token is one unknown token, and none of its bytes' tokens stays. */
static void bytes_are_taken_all_or_none(void **state) {
    (void)state;
    json_t *golden = read_golden("llama2");
    json_t *model = json_object_get(json_object_get(golden, "tokenizer"), "model"),
           *vocabulary = json_object_get(model, "vocab");
    json_object_set(vocabulary, "<no byte>", json_object_get(vocabulary, "<0x98>"));
    json_object_del(vocabulary, "<0x98>");
    struct sw_tokenizer *tokenizer = must_load(golden);
    struct sw_text_encoder *encoder;
    struct sw_token_list ids = {0};
    static const struct sw_text text = {"\xF0\x9F\x98\x80", 4};
    assert_int_equal(sw_text_encoder_create(tokenizer, &encoder), SW_OK);
    assert_int_equal(sw_text_encode(encoder, text, (struct sw_encode_options){0}, &ids), SW_OK);
    assert_true(ids.count > 0 && ids.id[ids.count - 1] == sw_tokenizer_find(tokenizer, "<unk>"));
    for (size_t i = 0; i < ids.count; i++)
        assert_true(ids.id[i] != sw_tokenizer_find(tokenizer, "<0xF0>"));
    free(ids.id);
    sw_text_encoder_destroy(encoder);
    sw_tokenizer_destroy(tokenizer);
    json_decref(golden);
}

/* Expressions with constructs that mean another thing in PCRE2 than in Oniguruma, or nothing, and their names. */
static const struct {
    const char *expression, *says;
} refused_expressions[] = {
    {"a{1,2}+", "{n,m} and another"},
    {"a{2}?", "{n}?"},
    {"a{3,2}", "m below n"},
    {"(a)\\1", "\\1"},
    {"(?<n>a)\\k<n>", "\\k"},
    {"\\Ga", "\\G"},
    {"\\Ka", "\\K"},
    {"\\X", "\\X"},
    {"(?~a)", "(?~"},
    {"(*FAIL)", "(*"},
    {"(?x: a)", "(?x"},
    {"(?s:.)", "(?s"},
    {"(?|a)", "(?|"},
    {"(?i:ss)", "a pair of letters"},
    {"(?i:\xC3\xA9)", "outside of ASCII"},
    {"(?i:\\p{Lu})", "a class with characters outside"},
    {"[[:alpha:]]", "[:alpha:]"},
    {"\\p{Emoji}", "property"},
    {"[a-\\d]", "a range from or to a class"},
    {"[a", "does not end"},
    {"(a", "does not end"},
    {"a)", "')'"},
    {"\\xff", "an escape"},
    {"\\cA", "\\c"},
    {"\\Qa\\E", "\\Q"},
    {"a*", "an empty match"},
    {"\\b", "an empty match"},
    {"a|", "an empty match"},
};

static void expressions_are_refused_by_name(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof refused_expressions / sizeof refused_expressions[0]; i++) {
        json_t *golden = read_golden("gpt2"), *file = json_object_get(golden, "tokenizer");
        struct sw_tokenizer *tokenizer = NULL;
        json_t *pre = json_pack("{s:s, s:{s:s}, s:s}", "type", "Split", "pattern", "Regex",
                                refused_expressions[i].expression, "behavior", "Isolated");
        assert_int_equal(json_object_set_new(file, "pre_tokenizer", pre), 0);
        const sw_status status = load(file, &tokenizer);
        if (status == SW_OK || strstr(sw_error_message(status), refused_expressions[i].says) == NULL)
            fail_msg("%s: %s", refused_expressions[i].expression, sw_error_message(status));
        sw_error_clear();
        json_decref(golden);
    }
}

/* Each puts one value into the file of "gpt2", and the message names what is wrong. */
static const struct refusal {
    const char *object, *member, *value, *says;
} refusals[] = {
    {"model", "type", "\"Unigram\"", "Unigram"},
    {"model", "dropout", "0.1", "dropout"},
    {"model", "end_of_word_suffix", "\"</w>\"", "end_of_word_suffix"},
    {"model", "unk_token", "\"<unk>\"", "<unk>"},
    {"model", "merges", "[\"a b c\"]", "merge 1"},
    {"model", "merges", "[[\"a\", \"nothing here\"]]", "nothing here"},
    {"model", "merges", "5", "merges"},
    {"model", "vocab", "{\"a\": 0}", "byte 0x00"},
    {"model", "vocab", "{\"a\": 0, \"b\": 0}", "another token"},
    {"model", "vocab", "{\"a\": -1}", "'a'"},
    {"model", "vocab", "{}", "vocabulary"},
    {NULL, "normalizer", "{\"type\": \"Lowercase\"}", "Lowercase"},
    {NULL, "normalizer", "{\"type\": \"Replace\", \"content\": \"x\"}", "Replace"},
    {NULL, "pre_tokenizer", "{\"type\": \"BertPreTokenizer\"}", "BertPreTokenizer"},
    {NULL, "pre_tokenizer", "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"a**\"}, \"behavior\": \"Isolated\"}",
     "wrong at"},
    {NULL, "pre_tokenizer", "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"a\"}, \"behavior\": \"Odd\"}", "Odd"},
    {NULL, "post_processor", "{\"type\": \"BertProcessing\"}", "a token that is not there"},
    {NULL, "post_processor", "{\"type\": \"WordPiece\"}", "WordPiece"},
    {NULL, "version", "\"2.0\"", "2.0"},
    {NULL, "normalizer", "{\"type\": \"Sequence\"}", "no list"},
    {"model", "new_option", "true", "new_option"},
    {"model", "ignore_merges", "\"yes\"", "ignore_merges"},
    {NULL, "added_tokens", "[{\"id\": 900, \"content\": \"new\"}, {\"id\": 901, \"content\": \"new\"}]", "twice"},
    {NULL, "added_tokens", "[{\"id\": 900, \"content\": \"new\"}, {\"id\": 900, \"content\": \"old\"}]",
     "both have the id 900"},
    {NULL, "added_tokens", "[{\"id\": 900, \"content\": \"new\", \"lstrip\": 1}]", "'lstrip'"},
    {NULL, "decoder", "{\"type\": \"WordPiece\"}", "WordPiece"},
    {NULL, "decoder", "null", "decoder"},
    {NULL, "added_tokens", "[{\"id\": 3, \"content\": \"a\"}]", "id 3"},
    {NULL, "added_tokens", "[{\"id\": -3, \"content\": \"new\"}]", "new"},
};

static void refused(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        const struct refusal *refusal = &refusals[i];
        json_t *golden = read_golden("gpt2"), *file = json_object_get(golden, "tokenizer");
        json_t *object = refusal->object == NULL ? file : json_object_get(file, refusal->object);
        json_t *value = json_loads(refusal->value, JSON_DECODE_ANY, NULL);
        struct sw_tokenizer *tokenizer = NULL;
        assert_int_equal(json_object_set_new(object, refusal->member, value), 0);
        const sw_status status = load(file, &tokenizer);
        if (status == SW_OK || strstr(sw_error_message(status), refusal->says) == NULL)
            fail_msg("%s = %s: %s", refusal->member, refusal->value, sw_error_message(status));
        assert_null(tokenizer);
        sw_error_clear();
        json_decref(golden);
    }
}

static void append(struct sw_text_buffer *to, const char *text) {
    assert_int_equal(sw_text_buffer_append(to, (struct sw_text){text, strlen(text)}), SW_OK);
}

/* A vocabulary of several parts, of a token a line, with something else in the place of its last line. */
static void append_vocabulary(struct sw_text_buffer *to, const char *last) {
    enum { TOKENS = 20000 };
    char line[64];
    for (int i = 0; i < 256; i++) {
        const int code = i < 33 ? 256 + i : i < 127 ? i : i < 161 ? 289 + i - 127 : i == 173 ? 323 : i;
        snprintf(line, sizeof line, "\"\\u%04x\": %d,\n", (unsigned)code, i);
        append(to, line);
    }
    for (int i = 256; i < TOKENS; i++) {
        snprintf(line, sizeof line, "\"token%d\": %d,\n", i, i);
        append(to, line);
    }
    append(to, last);
}

/* A file is read in parts; the messages have its lines all the same, and names are compared across parts. The last line
 * of the vocabulary is line 20002 of the file, and its merge is in line 20004. */
static void files_in_parts(void **state) {
    (void)state;
    static const char merges[] = "\n},\"merges\": [\n[\"a\",\"b\"]]", last[] = "\"ab\": 20000";
    static const struct {
        const char *last, *between, *says;
    } cases[] = {
        {last, merges, NULL},
        {last, "\n},\"merges\":[]", NULL},
        {"\"token300\": 20000", merges, "'token300' is twice"},
        {"\"ab\": 300", merges, "another token"},
        {"\"ab\": 20000,", merges, "line 20003"},
        {",\"ab\": 20000", merges, "line 20002"},
        {"\"ab\" 20000", merges, "line 20002"},
        {"\"ab\": [}", merges, "line 20002"},
        {"\"a\xff\": 20000", merges, "line 20002"},
        {last, "\n},\"merges\": [\n[\"a\",\"b\"],]", "line 20004"},
        {last, "\n},\"merges\": [\n[\"a\" \"b\"]]", "line 20004"},
        {last, "\n},\"merges\": [\n[\"a\",\"c\"]]", "'ac', which is not"},
        {last, "\n},\"merges\": [\n[\"a\",\"b\"]}", "line 20004"},
        {last, "\n],\"merges\": [\n[\"a\",\"b\"]]", "line 20003"},
        {last, "\n},\"merges\": [\n[\"a\",\"b\"]],\"vocab\": {}", "two members of one name"},
        {last, "\n},\"merges\": [\n[\"a\",\"b", "not JSON"},
        {last, "\n},\"merges\": [\n[\"a\",\"b\"]], 5", "line 20004"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sw_text_buffer text = {0};
        struct sw_tokenizer *tokenizer = NULL;
        append(&text, "{\"x\": [{\"vocab\": 1}], \"model\": {\"type\": \"BPE\", \"unk_token\": null, \"vocab\": {\n");
        append_vocabulary(&text, cases[i].last);
        append(&text, cases[i].between);
        append(&text, "},\n\"pre_tokenizer\": {\"type\": \"ByteLevel\"}, \"decoder\": {\"type\": \"ByteLevel\"}}");
        const sw_status status = load_text(sw_text_of_buffer(&text), &tokenizer);
        const char *said = status == SW_OK ? "" : sw_error_message(status);
        if ((status == SW_OK) != (cases[i].says == NULL) || (status != SW_OK && strstr(said, cases[i].says) == NULL))
            fail_msg("case %zu, %s: %s", i, cases[i].last, said);
        assert_true(status != SW_OK || sw_tokenizer_find(tokenizer, "token19999") == 19999);
        sw_tokenizer_destroy(tokenizer);
        sw_error_clear();
        free(text.data);
    }
}

/* Appends words, marks, spaces and what combines, in any order. */
static void append_words(struct sw_text_buffer *to, uint64_t key, int count) {
    static const char *const words[] = {
        "the",      "don't", "IT'S", "x",       "Word", "12", "3.14",         "na\xC3\xAFve", "e",
        "\xCC\x81", ".",     "?!",   "//",      "\\",   "'s", "\xE4\xB8\xAD", "\xE3\x80\x82", "\xEF\xAC\x81",
        "<|turn|>", "_",     "ll",   "\xC2\xA0"};
    static const char *const spaces[] = {" ", " ", " ", " ", "\n", "\n", "  ", "\n\n", " \n", "\r\n", "\n ", "\t", ""};
    for (int i = 0; i < count; i++) {
        const struct sw_rng_block block = sw_rng(key, 0, (uint64_t)i);
        const uint32_t *random = block.word;
        append(to, words[random[0] % (sizeof words / sizeof words[0])]);
        append(to, spaces[random[1] % (sizeof spaces / sizeof spaces[0])]);
    }
}

/* Parts of a text, cut at any place where it may be, have the tokens of the whole. */
static void parts_have_the_same_tokens(void **state) {
    (void)state;
    enum { WORDS = 400, TEXTS = 40, PLAIN_TOKENS = 2 };
    int taken[SW_TEXT_IN_WORDS + 1] = {0};
    for (int n = 0; n < NAMES; n++) {
        json_t *golden = read_golden(names[n]);
        json_t *added = json_object_get(json_object_get(golden, "tokenizer"), "added_tokens");
        /* Other added tokens take the white space beside them, and no text is cut. */
        while (json_array_size(added) > PLAIN_TOKENS)
            assert_int_equal(json_array_remove(added, PLAIN_TOKENS), 0);
        struct sw_tokenizer *tokenizer = must_load(golden);
        struct sw_text_encoder *encoder;
        const enum sw_text_parts takes = sw_tokenizer_parts(tokenizer);
        taken[takes]++;
        assert_int_equal(sw_text_encoder_create(tokenizer, &encoder), SW_OK);
        for (int i = 0; takes != SW_TEXT_WHOLE && i < TEXTS; i++) {
            struct sw_text_buffer text = {0};
            struct sw_token_list whole = {0};
            const struct sw_encode_options options = {.parse_special = i % 2 == 1};
            append_words(&text, (uint64_t)i, WORDS);
            assert_int_equal(sw_text_encode(encoder, sw_text_of_buffer(&text), options, &whole), SW_OK);
            for (struct sw_text_cut at = sw_text_cut(sw_text_of_buffer(&text), takes, 0); at.end > 0;
                 at = sw_text_cut((struct sw_text){text.data, at.end + 1}, takes, 0)) {
                struct sw_token_list parts = {0};
                const struct sw_text first = {text.data, at.end},
                                     second = {text.data + at.begin, text.bytes - at.begin};
                assert_int_equal(sw_text_encode(encoder, first, options, &parts), SW_OK);
                assert_int_equal(sw_text_encode(encoder, second, options, &parts), SW_OK);
                assert_int_equal(parts.count, whole.count);
                assert_memory_equal(parts.id, whole.id, whole.count * sizeof *whole.id);
                free(parts.id);
            }
            free(whole.id);
            free(text.data);
        }
        sw_text_encoder_destroy(encoder);
        sw_tokenizer_destroy(tokenizer);
        json_decref(golden);
    }
    assert_int_equal(taken[SW_TEXT_IN_PARTS], 7);
    assert_int_equal(taken[SW_TEXT_IN_WORDS], 2);
}

/* Maximal subparts, by the examples of the Unicode Standard, table 3-8 and 3-11. */
static void broken_sequences(void **state) {
    (void)state;
    static const struct {
        const char *bytes;
        int replaced;
    } cases[] = {{"\xC0\xAF\xE0\x80\xBF\xF0\x81\x82", 8},
                 {"\xED\xA0\x80\xED\xBF\xBF\xED\xAF", 8},
                 {"\xF4\x91\x92\x93\xFF", 5},
                 {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF", 4}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sw_text_buffer out = {0};
        const struct sw_text text = {cases[i].bytes, strlen(cases[i].bytes)};
        assert_false(sw_utf8_is_valid(text));
        assert_int_equal(sw_utf8_append_repaired(text, &out, NULL), SW_OK);
        assert_int_equal(out.bytes, 3 * cases[i].replaced);
        free(out.data);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_cases),
        cmocka_unit_test(lookups),
        cmocka_unit_test(special_tokens_are_text),
        cmocka_unit_test(bytes_are_taken_all_or_none),
        cmocka_unit_test(refused),
        cmocka_unit_test(files_in_parts),
        cmocka_unit_test(parts_have_the_same_tokens),
        cmocka_unit_test(expressions_are_refused_by_name),
        cmocka_unit_test(broken_sequences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
