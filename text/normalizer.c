#include "text/normalizer.h"

#include "text/utf8.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum { MOST_STEPS = 8, MOST_LEVELS = 4 };

/* Bounds of what the steps may make of a text: this many times its bytes, a few more for a Prepend, and an absolute
 * limit. The longest normal form of a character has 11 times its bytes. A chain of Replace could otherwise ask for any
 * amount of memory. */
enum { MOST_GROWTH = 16, MORE_BYTES = 16, MOST_BYTES = 256 << 20 };

/* The output of a step and its bound. */
struct made {
    struct sw_text_buffer *buffer;
    size_t most_bytes;
};

struct step;
/* A function that appends what a step makes of a text. */
typedef sw_status (*step_run)(const struct step *step, struct sw_pattern_scratch *pattern, struct sw_text text,
                              struct made *out);

struct step {
    step_run run;
    utf8proc_option_t form;     /* for a Unicode normal form */
    struct sw_pattern *pattern; /* for a Replace */
    char *text;                 /* the replacement, or what is put before a text */
    bool of_spaces;             /* a Replace of each space */
};

struct sw_normalizer {
    struct step step[MOST_STEPS];
    int steps;
};

/* Characters of Unicode 10 and later that the tables of `tokenizers` do not know, so that they stand for themselves
 * there and combine with nothing. tests/parity/tokenizer_ids.py finds them. */
static const struct {
    uint32_t first, last;
} unknown_to_tokenizers[] = {
    {0x7FD, 0x7FD},     {0x897, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},     {0xC3C, 0xC3C},
    {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},   {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},
    {0x32FF, 0x32FF},   {0xA7F2, 0xA7F4},   {0xA82C, 0xA82C},   {0xAB69, 0xAB69},   {0x105C0, 0x105FF},
    {0x10781, 0x10785}, {0x10787, 0x107B0}, {0x107B2, 0x107BA}, {0x10D24, 0x10D27}, {0x10D40, 0x10D8F},
    {0x10EAB, 0x10EAC}, {0x10EFC, 0x10EFF}, {0x10F46, 0x10F50}, {0x10F82, 0x10F85}, {0x11070, 0x11070},
    {0x1133B, 0x1133B}, {0x11380, 0x113FF}, {0x1145E, 0x1145E}, {0x11839, 0x1183A}, {0x11930, 0x11930},
    {0x11938, 0x11938}, {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0}, {0x11A34, 0x11A34},
    {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45}, {0x11D97, 0x11D97},
    {0x11F41, 0x11F42}, {0x16100, 0x1613F}, {0x16D40, 0x16D7F}, {0x16FF0, 0x16FF1}, {0x1CC00, 0x1CEBF},
    {0x1E030, 0x1E06D}, {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF},
    {0x1E4EC, 0x1E4EF}, {0x1E5D0, 0x1E5FF}, {0x1F16C, 0x1F16C}, {0x1FBF0, 0x1FBF9}};

static bool is_unknown(uint32_t code) {
    size_t low = 0, high = sizeof unknown_to_tokenizers / sizeof unknown_to_tokenizers[0];
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (code > unknown_to_tokenizers[middle].last)
            low = middle + 1;
        else
            high = middle;
    }
    return low < sizeof unknown_to_tokenizers / sizeof unknown_to_tokenizers[0] &&
           code >= unknown_to_tokenizers[low].first;
}

/* Tells whether no normal form changes a character and nothing before it combines with it, by ranges. NFC: also Latin-1
 * and Latin Extended, kana, Han, Hangul, most of Cyrillic. */
static bool is_inert(uint32_t code, bool nfc) {
    if (code < 0x80)
        return true;
    return nfc && (code < 0x300 || (code >= 0x400 && code <= 0x482) || (code >= 0x48A && code <= 0x52F) ||
                   (code >= 0x2010 && code <= 0x2027) || (code >= 0x3041 && code <= 0x3096) ||
                   (code >= 0x30A1 && code <= 0x30FA) || (code >= 0x4E00 && code <= 0x9FFF) ||
                   (code >= 0xAC00 && code <= 0xD7A3) || (code >= 0x1F300 && code <= 0x1F5FF));
}

/* The effect of a normal form on a character: it stays unless a combining character follows; it stays, and nothing
 * combines with it; it may change. */
enum change { STAYS, STAYS_ALONE, MAY_CHANGE };

static enum change change_of(uint32_t code, bool nfc) {
    if (is_inert(code, nfc))
        return STAYS;
    return is_unknown(code) ? STAYS_ALONE : MAY_CHANGE;
}

/* Returns how many bytes at the beginning of a text surely stay. A character that may change includes the one before
 * it. */
static size_t bytes_that_stay(struct sw_text text, bool nfc) {
    size_t at = 0, last = 0;
    enum change before = STAYS_ALONE;
    while (at < text.bytes) {
        const struct sw_utf8_sequence next = sw_utf8_read((struct sw_text){text.data + at, text.bytes - at});
        const enum change change = change_of(next.code, nfc);
        if (change == MAY_CHANGE)
            return before == STAYS ? last : at;
        before = change;
        last = at;
        at += next.bytes;
    }
    return at;
}

/* Returns how many bytes at the beginning of a text may change, including the character they may combine with. */
static size_t bytes_that_may_change(struct sw_text text, bool nfc) {
    size_t at = 0;
    while (at < text.bytes) {
        const struct sw_utf8_sequence next = sw_utf8_read((struct sw_text){text.data + at, text.bytes - at});
        if (at > 0 && change_of(next.code, nfc) != MAY_CHANGE)
            break;
        at += next.bytes;
    }
    return at;
}

static sw_status check_room(const struct made *made, size_t more_bytes) {
    if (more_bytes <= made->most_bytes - made->buffer->bytes)
        return SW_OK;
    return sw_fail(
        SW_ERR_ARG,
        "the normalizer of tokenizer.json makes more than %zu bytes of a text, which is the most that one of "
        "its length may become; is it the model's own file?",
        made->most_bytes);
}

static sw_status append(struct made *made, struct sw_text text) {
    SW_TRY(check_room(made, text.bytes));
    return sw_text_buffer_append(made->buffer, text);
}

/* Reports an error of utf8proc in its own words. */
static sw_status fail_form(utf8proc_ssize_t code) {
    return sw_fail(code == UTF8PROC_ERROR_NOMEM ? SW_ERR_NOMEM : SW_ERR_ARG, "normalizing text failed: %s",
                   utf8proc_errmsg(code));
}

static sw_status append_form(struct sw_text text, utf8proc_option_t form, struct made *out) {
    const utf8proc_uint8_t *from = (const utf8proc_uint8_t *)text.data;
    const utf8proc_ssize_t from_bytes = (utf8proc_ssize_t)text.bytes;
    utf8proc_uint8_t *made = NULL;
    if (text.bytes == 0)
        return SW_OK;
    /* Each character of the form takes at least a byte, and utf8proc needs four more temporarily. */
    if (text.bytes > MOST_BYTES / MOST_GROWTH) {
        const utf8proc_ssize_t count = utf8proc_decompose(from, from_bytes, NULL, 0, form | UTF8PROC_STABLE);
        SW_TRY(count > 0 ? check_room(out, (size_t)count) : SW_OK);
    }
    const utf8proc_ssize_t bytes = utf8proc_map(from, from_bytes, &made, form | UTF8PROC_STABLE);
    if (bytes < 0)
        return fail_form(bytes);
    const sw_status status = append(out, (struct sw_text){(const char *)made, (size_t)bytes});
    free(made);
    return status;
}

static sw_status run_form(const struct step *step, struct sw_pattern_scratch *pattern, struct sw_text text,
                          struct made *out) {
    (void)pattern;
    const bool nfc = (step->form & UTF8PROC_COMPOSE) != 0 && (step->form & UTF8PROC_COMPAT) == 0;
    while (text.bytes > 0) {
        const size_t stay = bytes_that_stay(text, nfc);
        SW_TRY(append(out, (struct sw_text){text.data, stay}));
        text = (struct sw_text){text.data + stay, text.bytes - stay};
        const size_t change = bytes_that_may_change(text, nfc);
        SW_TRY(append_form((struct sw_text){text.data, change}, step->form, out));
        text = (struct sw_text){text.data + change, text.bytes - change};
    }
    return SW_OK;
}

static sw_status run_prepend(const struct step *step, struct sw_pattern_scratch *pattern, struct sw_text text,
                             struct made *out) {
    (void)pattern;
    SW_TRY(append(out, (struct sw_text){step->text, strlen(step->text)}));
    return append(out, text);
}

static sw_status run_replace(const struct step *step, struct sw_pattern_scratch *pattern, struct sw_text text,
                             struct made *out) {
    const struct sw_text content = {step->text, strlen(step->text)};
    sw_pattern_begin(pattern, text);
    for (size_t at = 0; at < text.bytes;) {
        size_t begin = 0, bytes;
        SW_TRY(sw_pattern_find(step->pattern, pattern, text, at, &begin, &bytes));
        if (bytes == 0)
            begin = text.bytes;
        SW_TRY(append(out, (struct sw_text){text.data + at, begin - at}));
        SW_TRY(bytes == 0 ? SW_OK : append(out, content));
        at = begin + bytes;
    }
    return SW_OK;
}

static sw_status copy_text(const json_t *text, const char *path, struct step *step) {
    if (!json_is_string(text))
        return sw_fail(SW_ERR_ARG, "%s: a normalizer has no text to put", path);
    step->text = strdup(json_string_value(text));
    return step->text != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory for a tokenizer");
}

static sw_status read_prepend(const json_t *json, const char *path, struct step *step) {
    step->run = run_prepend;
    return copy_text(json_object_get(json, "prepend"), path, step);
}

static sw_status read_replace(const json_t *json, const char *path, struct step *step) {
    const json_t *pattern = json_object_get(json, "pattern");
    const json_t *expression = json_object_get(pattern, "Regex"), *literal = json_object_get(pattern, "String");
    const json_t *sought = json_is_string(expression) ? expression : literal;
    if (!json_is_string(sought))
        return sw_fail(SW_ERR_ARG, "%s: a Replace has neither a Regex nor a String", path);
    step->run = run_replace;
    step->of_spaces = sought == literal && strcmp(json_string_value(sought), " ") == 0;
    SW_TRY(copy_text(json_object_get(json, "content"), path, step));
    return sw_pattern_create((struct sw_text){json_string_value(sought), json_string_length(sought)}, sought == literal,
                             path, &step->pattern);
}

/* The kinds of normalizers, by their type in the file. Those with members are parsed; the others are normal forms. */
static const struct kind {
    const char *type;
    sw_status (*read)(const json_t *json, const char *path, struct step *step);
    utf8proc_option_t form;
} kinds[] = {
    {.type = "NFC", .form = UTF8PROC_COMPOSE},   {.type = "NFKC", .form = UTF8PROC_COMPOSE | UTF8PROC_COMPAT},
    {.type = "NFD", .form = UTF8PROC_DECOMPOSE}, {.type = "NFKD", .form = UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT},
    {.type = "Prepend", .read = read_prepend},   {.type = "Replace", .read = read_replace},
};

static sw_status read_step(struct sw_normalizer *normalizer, const json_t *json, const char *path) {
    const char *type = json_string_value(json_object_get(json, "type"));
    for (size_t i = 0; type != NULL && i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strcmp(type, kinds[i].type) != 0)
            continue;
        if (normalizer->steps == MOST_STEPS)
            return sw_fail(SW_ERR_UNSUPPORTED, "%s: it has more than %d normalizers", path, MOST_STEPS);
        struct step *step = &normalizer->step[normalizer->steps++];
        *step = (struct step){.run = run_form, .form = kinds[i].form};
        return kinds[i].read == NULL ? SW_OK : kinds[i].read(json, path, step);
    }
    return sw_fail(SW_ERR_UNSUPPORTED, "%s: this version does not have the normalizer '%.60s'", path,
                   type == NULL ? "" : type);
}

static sw_status read_all(struct sw_normalizer *normalizer, const json_t *json, int levels, const char *path) {
    const char *type = json_string_value(json_object_get(json, "type"));
    if (type == NULL || strcmp(type, "Sequence") != 0)
        return read_step(normalizer, json, path);
    const json_t *list = json_object_get(json, "normalizers");
    if (!json_is_array(list) || levels == 0)
        return sw_fail(SW_ERR_ARG, "%s: a sequence of normalizers has no list of them, or is too deep", path);
    for (size_t i = 0; i < json_array_size(list); i++)
        SW_TRY(read_all(normalizer, json_array_get(list, i), levels - 1, path));
    return SW_OK;
}

sw_status sw_normalizer_create(const json_t *json, const char *path, struct sw_normalizer **out) {
    struct sw_normalizer *normalizer = calloc(1, sizeof *normalizer);
    if (normalizer == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for a tokenizer");
    const bool none = json == NULL || json_is_null(json);
    const sw_status status = none ? SW_OK : read_all(normalizer, json, MOST_LEVELS, path);
    if (status != SW_OK) {
        sw_normalizer_destroy(normalizer);
        return status;
    }
    *out = normalizer;
    return SW_OK;
}

void sw_normalizer_destroy(struct sw_normalizer *normalizer) {
    if (normalizer == NULL)
        return;
    for (int i = 0; i < normalizer->steps; i++) {
        sw_pattern_destroy(normalizer->step[i].pattern);
        free(normalizer->step[i].text);
    }
    free(normalizer);
}

bool sw_normalizer_is_of_forms(const struct sw_normalizer *normalizer) {
    for (int i = 0; i < normalizer->steps; i++)
        if (normalizer->step[i].run != run_form)
            return false;
    return true;
}

static bool puts_character(const struct step *step, struct sw_text character) {
    return strlen(step->text) == character.bytes && memcmp(step->text, character.data, character.bytes) == 0;
}

bool sw_normalizer_is_of_words(const struct sw_normalizer *normalizer, struct sw_text character) {
    const struct step *before = &normalizer->step[0], *spaces = &normalizer->step[1];
    return normalizer->steps == 2 && before->run == run_prepend && puts_character(before, character) &&
           spaces->run == run_replace && spaces->of_spaces && puts_character(spaces, character);
}

void sw_normalizer_scratch_release(struct sw_normalizer_scratch *scratch) {
    free(scratch->buffer[0].data);
    free(scratch->buffer[1].data);
    *scratch = (struct sw_normalizer_scratch){0};
}

sw_status sw_normalize(const struct sw_normalizer *normalizer, struct sw_normalizer_scratch *scratch,
                       struct sw_pattern_scratch *pattern, struct sw_text *text) {
    const bool is_short = text->bytes < (MOST_BYTES - MORE_BYTES) / MOST_GROWTH;
    const size_t most_bytes = is_short ? text->bytes * MOST_GROWTH + MORE_BYTES : MOST_BYTES;
    for (int i = 0; i < normalizer->steps && text->bytes > 0; i++) {
        struct made made = {.buffer = &scratch->buffer[i % 2], .most_bytes = most_bytes};
        made.buffer->bytes = 0;
        SW_TRY(normalizer->step[i].run(&normalizer->step[i], pattern, *text, &made));
        *text = sw_text_of_buffer(made.buffer);
    }
    return SW_OK;
}
