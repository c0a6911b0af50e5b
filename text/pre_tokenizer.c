#include "text/pre_tokenizer.h"

#include "text/pattern.h"
#include "text/unicode.h"

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
static const struct {
    const char *type;
    sw_status (*read)(const json_t *json, const char *path, struct step *step);
    utf8proc_option_t form;
} normalizer_kinds[] = {
    {.type = "NFC", .form = UTF8PROC_COMPOSE},   {.type = "NFKC", .form = UTF8PROC_COMPOSE | UTF8PROC_COMPAT},
    {.type = "NFD", .form = UTF8PROC_DECOMPOSE}, {.type = "NFKD", .form = UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT},
    {.type = "Prepend", .read = read_prepend},   {.type = "Replace", .read = read_replace},
};

static sw_status read_step(struct sw_normalizer *normalizer, const json_t *json, const char *path) {
    const char *type = json_string_value(json_object_get(json, "type"));
    for (size_t i = 0; type != NULL && i < sizeof normalizer_kinds / sizeof normalizer_kinds[0]; i++) {
        if (strcmp(type, normalizer_kinds[i].type) != 0)
            continue;
        if (normalizer->steps == MOST_STEPS)
            return sw_fail(SW_ERR_UNSUPPORTED, "%s: it has more than %d normalizers", path, MOST_STEPS);
        struct step *step = &normalizer->step[normalizer->steps++];
        *step = (struct step){.run = run_form, .form = normalizer_kinds[i].form};
        return normalizer_kinds[i].read == NULL ? SW_OK : normalizer_kinds[i].read(json, path, step);
    }
    return sw_fail(SW_ERR_UNSUPPORTED, "%s: this version does not have the normalizer '%.60s'", path,
                   type == NULL ? "" : type);
}

static sw_status read_normalizers(struct sw_normalizer *normalizer, const json_t *json, int levels, const char *path) {
    const char *type = json_string_value(json_object_get(json, "type"));
    if (type == NULL || strcmp(type, "Sequence") != 0)
        return read_step(normalizer, json, path);
    const json_t *list = json_object_get(json, "normalizers");
    if (!json_is_array(list) || levels == 0)
        return sw_fail(SW_ERR_ARG, "%s: a sequence of normalizers has no list of them, or is too deep", path);
    for (size_t i = 0; i < json_array_size(list); i++)
        SW_TRY(read_normalizers(normalizer, json_array_get(list, i), levels - 1, path));
    return SW_OK;
}

sw_status sw_normalizer_create(const json_t *json, const char *path, struct sw_normalizer **out) {
    struct sw_normalizer *normalizer = calloc(1, sizeof *normalizer);
    if (normalizer == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for a tokenizer");
    const bool none = json == NULL || json_is_null(json);
    const sw_status status = none ? SW_OK : read_normalizers(normalizer, json, MOST_LEVELS, path);
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

/* The treatment of a stage's matches, and of the text between them. */
enum behavior { REMOVED, ISOLATED, MERGED_WITH_PREVIOUS, MERGED_WITH_NEXT, CONTIGUOUS, BEHAVIORS };
static const char *const behavior_names[BEHAVIORS] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext",
                                                      "Contiguous"};

/* How a stage finds its matches: by an expression, as numeric characters, as runs of a character, or not at all. */
enum finder { BY_PATTERN, BY_NUMERIC, BY_RUN, BY_NOTHING };
/* Before which texts a stage puts its prefix: none, every text, or the first unless it begins with it. */
enum prepend { PREPEND_NEVER, PREPEND_ALWAYS, PREPEND_FIRST };

enum { MOST_STAGES = 8, CHARACTER_BYTES = 8 };

struct stage {
    enum finder finder;
    struct sw_pattern *pattern;
    bool inverted; /* what does not match counts as the match */
    enum behavior behavior;
    enum prepend prepend;
    char character[CHARACTER_BYTES]; /* of a run; also the prefix */
    bool replaces_spaces;            /* with the character */
    bool takes_parts;                /* cuts wherever sw_text_cut does, judging only by the text after that place */
};

struct sw_pre_tokenizer {
    struct stage stage[MOST_STAGES];
    int stages;
    bool byte_level;
};

struct sw_pre_tokenizer_scratch {
    struct sw_pattern_scratch *pattern;
    struct sw_text_buffer changed[MOST_STAGES]; /* one per stage that changes its text */
};

/* GPT-2's expression, for ByteLevel with use_regex. */
static const char gpt2_expression[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* Expressions of Llama 3, Qwen and GPT-4o. Each of them, and GPT-2's, matches every character and never looks behind.
 * Each ends a match before a space between two letters, and after a line end between characters that are no spaces,
 * whether the text continues there or not. So a text may be cut there (tokenizer.h). */
static const char *const part_expressions[] = {
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|"
    "'d)?|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'t|'re|'ve|'"
    "m|'ll|'d)?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"};

static bool takes_parts(const char *expression) {
    for (size_t i = 0; i < sizeof part_expressions / sizeof part_expressions[0]; i++)
        if (strcmp(expression, part_expressions[i]) == 0)
            return true;
    return false;
}

static sw_status read_behavior(const json_t *json, const char *path, enum behavior *out) {
    const char *name = json_string_value(json_object_get(json, "behavior"));
    for (int i = 0; name != NULL && i < BEHAVIORS; i++)
        if (strcmp(name, behavior_names[i]) == 0) {
            *out = (enum behavior)i;
            return SW_OK;
        }
    return sw_fail(SW_ERR_UNSUPPORTED, "%s: the behavior '%.60s' of a pre-tokenizer is not known", path,
                   name == NULL ? "" : name);
}

static sw_status read_split(const json_t *json, const char *path, struct stage *stage) {
    const json_t *pattern = json_object_get(json, "pattern");
    const json_t *expression = json_object_get(pattern, "Regex"), *literal = json_object_get(pattern, "String");
    const json_t *sought = json_is_string(expression) ? expression : literal;
    if (!json_is_string(sought))
        return sw_fail(SW_ERR_ARG, "%s: a Split has neither a Regex nor a String", path);
    stage->inverted = json_is_true(json_object_get(json, "invert"));
    SW_TRY(read_behavior(json, path, &stage->behavior));
    stage->takes_parts = sought == expression && !stage->inverted && stage->behavior == ISOLATED &&
                         takes_parts(json_string_value(sought));
    return sw_pattern_create((struct sw_text){json_string_value(sought), json_string_length(sought)}, sought == literal,
                             path, &stage->pattern);
}

static sw_status read_digits(const json_t *json, const char *path, struct stage *stage) {
    (void)path;
    stage->finder = BY_NUMERIC;
    stage->behavior = json_is_true(json_object_get(json, "individual_digits")) ? ISOLATED : CONTIGUOUS;
    return SW_OK;
}

static sw_status read_byte_level(const json_t *json, const char *path, struct stage *stage) {
    const json_t *use_regex = json_object_get(json, "use_regex");
    stage->behavior = ISOLATED;
    stage->character[0] = ' ';
    /* add_prefix_space is true by default. */
    stage->prepend = json_is_false(json_object_get(json, "add_prefix_space")) ? PREPEND_NEVER : PREPEND_ALWAYS;
    if (json_is_false(use_regex)) {
        stage->finder = BY_NOTHING;
        return SW_OK;
    }
    stage->takes_parts = true;
    return sw_pattern_create((struct sw_text){gpt2_expression, sizeof gpt2_expression - 1}, false, path,
                             &stage->pattern);
}

static sw_status read_metaspace(const json_t *json, const char *path, struct stage *stage) {
    const char *character = json_string_value(json_object_get(json, "replacement"));
    const char *scheme = json_string_value(json_object_get(json, "prepend_scheme"));
    const json_t *add = json_object_get(json, "add_prefix_space");
    const size_t bytes = character == NULL ? 0 : strlen(character);
    if (bytes == 0 || bytes >= CHARACTER_BYTES || sw_utf8_read((struct sw_text){character, bytes}).bytes != bytes)
        return sw_fail(SW_ERR_ARG, "%s: the replacement of Metaspace is not one character", path);
    memcpy(stage->character, character, bytes);
    if (scheme == NULL)
        stage->prepend = json_is_false(add) ? PREPEND_NEVER : PREPEND_ALWAYS;
    else if (strcmp(scheme, "always") == 0)
        stage->prepend = PREPEND_ALWAYS;
    else if (strcmp(scheme, "first") == 0)
        stage->prepend = PREPEND_FIRST;
    else if (strcmp(scheme, "never") == 0)
        stage->prepend = PREPEND_NEVER;
    else
        return sw_fail(SW_ERR_UNSUPPORTED, "%s: the prepend_scheme '%.60s' is not known", path, scheme);
    stage->replaces_spaces = true;
    stage->behavior = MERGED_WITH_NEXT;
    if (json_is_false(json_object_get(json, "split"))) {
        stage->finder = BY_NOTHING;
        return SW_OK;
    }
    return sw_pattern_create((struct sw_text){character, bytes}, true, path, &stage->pattern);
}

/* The kinds of pre-tokenizers, by their type in the file. */
static const struct kind {
    const char *type;
    sw_status (*read)(const json_t *json, const char *path, struct stage *stage);
    bool byte_level;
} kinds[] = {
    {.type = "Split", .read = read_split},
    {.type = "Digits", .read = read_digits},
    {.type = "ByteLevel", .read = read_byte_level, .byte_level = true},
    {.type = "Metaspace", .read = read_metaspace},
};

static sw_status read_stage(struct sw_pre_tokenizer *pre, const json_t *json, const char *path) {
    const char *type = json_string_value(json_object_get(json, "type"));
    for (size_t i = 0; type != NULL && i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strcmp(type, kinds[i].type) != 0)
            continue;
        if (pre->byte_level)
            return sw_fail(SW_ERR_UNSUPPORTED, "%s: the pre-tokenizer %s comes after ByteLevel", path, type);
        if (pre->stages == MOST_STAGES)
            return sw_fail(SW_ERR_UNSUPPORTED, "%s: it has more than %d pre-tokenizers", path, MOST_STAGES);
        pre->byte_level = kinds[i].byte_level;
        return kinds[i].read(json, path, &pre->stage[pre->stages++]);
    }
    return sw_fail(SW_ERR_UNSUPPORTED, "%s: this version does not have the pre-tokenizer '%.60s'", path,
                   type == NULL ? "" : type);
}

static sw_status read_all(struct sw_pre_tokenizer *pre, const json_t *json, int levels, const char *path) {
    const char *type = json_string_value(json_object_get(json, "type"));
    if (type == NULL || strcmp(type, "Sequence") != 0)
        return read_stage(pre, json, path);
    const json_t *list = json_object_get(json, "pretokenizers");
    if (!json_is_array(list) || levels == 0)
        return sw_fail(SW_ERR_ARG, "%s: a sequence of pre-tokenizers has no list of them, or is too deep", path);
    for (size_t i = 0; i < json_array_size(list); i++)
        SW_TRY(read_all(pre, json_array_get(list, i), levels - 1, path));
    return SW_OK;
}

sw_status sw_pre_tokenizer_create(const json_t *json, const char *path, struct sw_pre_tokenizer **out) {
    struct sw_pre_tokenizer *pre = calloc(1, sizeof *pre);
    if (pre == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for a tokenizer");
    const bool none = json == NULL || json_is_null(json);
    const sw_status status = none ? SW_OK : read_all(pre, json, MOST_LEVELS, path);
    if (status != SW_OK) {
        sw_pre_tokenizer_destroy(pre);
        return status;
    }
    *out = pre;
    return SW_OK;
}

void sw_pre_tokenizer_destroy(struct sw_pre_tokenizer *pre) {
    if (pre == NULL)
        return;
    for (int i = 0; i < pre->stages; i++)
        sw_pattern_destroy(pre->stage[i].pattern);
    free(pre);
}

bool sw_pre_tokenizer_is_byte_level(const struct sw_pre_tokenizer *pre) {
    return pre->byte_level;
}

bool sw_pre_tokenizer_takes_parts(const struct sw_pre_tokenizer *pre) {
    bool takes = false, cuts_otherwise = false;
    for (int i = 0; i < pre->stages; i++) {
        const struct stage *stage = &pre->stage[i];
        /* Stages after one that takes parts get the same pieces, except that the first piece of each part is a first
         * one. */
        if (stage->prepend == PREPEND_FIRST || (!takes && (stage->prepend == PREPEND_ALWAYS || stage->replaces_spaces)))
            return false;
        takes |= stage->takes_parts && !cuts_otherwise;
        cuts_otherwise |= stage->finder == BY_RUN || stage->finder == BY_PATTERN;
    }
    return pre->byte_level && takes;
}

static bool is_of(const struct stage *stage, struct sw_text character) {
    return strlen(stage->character) == character.bytes &&
           memcmp(stage->character, character.data, character.bytes) == 0;
}

void sw_pre_tokenizer_cut_before(struct sw_pre_tokenizer *pre, struct sw_text character) {
    struct stage *stage = &pre->stage[0];
    if (pre->stages > 1 || (pre->stages == 1 && (stage->finder != BY_NOTHING || !is_of(stage, character))))
        return;
    pre->stages = 1;
    stage->finder = BY_RUN;
    stage->behavior = MERGED_WITH_NEXT;
    memcpy(stage->character, character.data, character.bytes);
}

bool sw_pre_tokenizer_cuts_words(const struct sw_pre_tokenizer *pre, struct sw_text character, bool given) {
    const struct stage *stage = &pre->stage[0];
    if (pre->stages != 1 || stage->behavior != MERGED_WITH_NEXT || stage->inverted || !is_of(stage, character))
        return false;
    return given ? stage->finder == BY_RUN && !stage->replaces_spaces
                 : stage->replaces_spaces && stage->prepend != PREPEND_NEVER && stage->finder != BY_NOTHING;
}

sw_status sw_pre_tokenizer_scratch_create(struct sw_pre_tokenizer_scratch **out) {
    struct sw_pre_tokenizer_scratch *scratch = calloc(1, sizeof *scratch);
    if (scratch == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to cut text");
    const sw_status status = sw_pattern_scratch_create(&scratch->pattern);
    if (status != SW_OK) {
        free(scratch);
        return status;
    }
    *out = scratch;
    return SW_OK;
}

void sw_pre_tokenizer_scratch_destroy(struct sw_pre_tokenizer_scratch *scratch) {
    if (scratch == NULL)
        return;
    sw_pattern_scratch_destroy(scratch->pattern);
    for (int i = 0; i < MOST_STAGES; i++)
        free(scratch->changed[i].data);
    free(scratch);
}

/* One text on its way through the stages. */
struct cut {
    const struct sw_pre_tokenizer *pre;
    struct sw_pre_tokenizer_scratch *scratch;
    struct sw_piece_taker taker;
};
static sw_status cut_by(const struct cut *cut, int number, struct sw_text text, bool first);

static bool begins_with(struct sw_text text, const char *prefix) {
    const size_t bytes = strlen(prefix);
    return text.bytes >= bytes && memcmp(text.data, prefix, bytes) == 0;
}

/* Puts the prefix before a text and replaces spaces, if the stage does. */
static sw_status change_text(const struct stage *stage, struct sw_text_buffer *buffer, bool first,
                             struct sw_text *text) {
    const struct sw_text character = {stage->character, strlen(stage->character)};
    const bool begins = begins_with(*text, stage->character) || (stage->replaces_spaces && begins_with(*text, " "));
    const bool prepends = !begins && (stage->prepend == PREPEND_ALWAYS || (stage->prepend == PREPEND_FIRST && first));
    if (!prepends && !stage->replaces_spaces)
        return SW_OK;
    buffer->bytes = 0;
    SW_TRY(prepends ? sw_text_buffer_append(buffer, character) : SW_OK);
    if (!stage->replaces_spaces) {
        SW_TRY(sw_text_buffer_append(buffer, *text));
    } else {
        for (struct sw_text rest = *text; rest.bytes > 0;) {
            const char *space = memchr(rest.data, ' ', rest.bytes);
            const size_t before = space == NULL ? rest.bytes : (size_t)(space - rest.data);
            SW_TRY(sw_text_buffer_append(buffer, (struct sw_text){rest.data, before}));
            SW_TRY(space == NULL ? SW_OK : sw_text_buffer_append(buffer, character));
            const size_t taken = before + (space != NULL);
            rest = (struct sw_text){rest.data + taken, rest.bytes - taken};
        }
    }
    *text = sw_text_of_buffer(buffer);
    return SW_OK;
}

/* Finds the next numeric character. */
static void find_numeric(struct sw_text text, size_t from, size_t *out_begin, size_t *out_bytes) {
    *out_bytes = 0;
    for (size_t at = from; at < text.bytes;) {
        const struct sw_utf8_sequence next = sw_utf8_read((struct sw_text){text.data + at, text.bytes - at});
        if (sw_utf8_is_numeric(next.code)) {
            *out_begin = at;
            *out_bytes = next.bytes;
            return;
        }
        at += next.bytes;
    }
}

/* Finds the next run of a character. */
static void find_run(struct sw_text text, const char *character, size_t from, size_t *out_begin, size_t *out_bytes) {
    const size_t bytes = strlen(character);
    const char *begin = memmem(text.data + from, text.bytes - from, character, bytes);
    *out_bytes = 0;
    if (begin == NULL)
        return;
    *out_begin = (size_t)(begin - text.data);
    do
        *out_bytes += bytes;
    while (begins_with((struct sw_text){begin + *out_bytes, text.bytes - *out_begin - *out_bytes}, character));
}

static sw_status find(const struct cut *cut, const struct stage *stage, struct sw_text text, size_t from,
                      size_t *out_begin, size_t *out_bytes) {
    if (stage->finder == BY_PATTERN)
        return sw_pattern_find(stage->pattern, cut->scratch->pattern, text, from, out_begin, out_bytes);
    if (stage->finder == BY_NUMERIC)
        find_numeric(text, from, out_begin, out_bytes);
    else
        find_run(text, stage->character, from, out_begin, out_bytes);
    return SW_OK;
}

/* Takes matches and the text between them in order. A piece that the behavior joins waits until it is complete. */
struct joining {
    const struct cut *cut;
    int stage;
    const char *begin; /* beginning of the text */
    bool first;        /* the text is the beginning of the whole one */
    struct sw_text waiting;
    bool waiting_match;
};

static sw_status let_go(struct joining *joining) {
    const struct sw_text piece = joining->waiting;
    joining->waiting.bytes = 0;
    if (piece.bytes == 0)
        return SW_OK;
    return cut_by(joining->cut, joining->stage + 1, piece, joining->first && piece.data == joining->begin);
}

static sw_status join(struct joining *joining, struct sw_text piece, bool match) {
    const struct stage *stage = &joining->cut->pre->stage[joining->stage];
    const bool some = joining->waiting.bytes > 0, before = joining->waiting_match;
    if (piece.bytes == 0)
        return SW_OK;
    bool joins = false;
    match = match != stage->inverted;
    switch (stage->behavior) {
    case REMOVED:
        if (match)
            return SW_OK;
        break;
    case CONTIGUOUS: joins = some && match == before; break;
    case MERGED_WITH_PREVIOUS: joins = some && match && !before; break;
    case MERGED_WITH_NEXT: joins = some && !match && before; break;
    case ISOLATED:
    case BEHAVIORS: break;
    }
    joining->waiting_match = match;
    if (joins) {
        joining->waiting.bytes += piece.bytes;
        return SW_OK;
    }
    SW_TRY(let_go(joining));
    joining->waiting = piece;
    return SW_OK;
}

static sw_status cut_by(const struct cut *cut, int number, struct sw_text text, bool first) {
    if (number == cut->pre->stages)
        return cut->taker.take(cut->taker.context, text);
    const struct stage *stage = &cut->pre->stage[number];
    SW_TRY(change_text(stage, &cut->scratch->changed[number], first, &text));
    if (stage->finder == BY_NOTHING)
        return cut_by(cut, number + 1, text, first);
    struct joining joining = {.cut = cut, .stage = number, .begin = text.data, .first = first};
    for (size_t at = 0; at < text.bytes;) {
        size_t begin = 0, bytes;
        SW_TRY(find(cut, stage, text, at, &begin, &bytes));
        if (bytes == 0)
            begin = text.bytes;
        SW_TRY(join(&joining, (struct sw_text){text.data + at, begin - at}, false));
        SW_TRY(join(&joining, (struct sw_text){text.data + begin, bytes}, true));
        at = begin + bytes;
    }
    return let_go(&joining);
}

sw_status sw_pre_tokenize(const struct sw_pre_tokenizer *pre, struct sw_pre_tokenizer_scratch *scratch,
                          struct sw_text text, bool first, struct sw_piece_taker taker) {
    const struct cut cut = {.pre = pre, .scratch = scratch, .taker = taker};
    sw_pattern_begin(scratch->pattern, text);
    return text.bytes == 0 ? SW_OK : cut_by(&cut, 0, text, first);
}
