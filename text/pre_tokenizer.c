#include "text/pre_tokenizer.h"

#include "text/pattern.h"
#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>

/* The treatment of a stage's matches, and of the text between them. */
enum behavior { REMOVED, ISOLATED, MERGED_WITH_PREVIOUS, MERGED_WITH_NEXT, CONTIGUOUS, BEHAVIORS };
static const char *const behavior_names[BEHAVIORS] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext",
                                                      "Contiguous"};

/* How a stage finds its matches: by an expression, as numeric characters, as runs of a character, or not at all. */
enum finder { BY_PATTERN, BY_NUMERIC, BY_RUN, BY_NOTHING };
/* Before which texts a stage puts its prefix: none, every text, or the first unless it begins with it. */
enum prepend { PREPEND_NEVER, PREPEND_ALWAYS, PREPEND_FIRST };

enum { MOST_STAGES = 8, MOST_LEVELS = 4, CHARACTER_BYTES = 8 };

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
static sw_status change(const struct stage *stage, struct sw_text_buffer *buffer, bool first, struct sw_text *text) {
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

/* Takes matches and the text between them in order. What the behavior joins waits until it is complete. */
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
    SW_TRY(change(stage, &cut->scratch->changed[number], first, &text));
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
