/* Regular expressions of tokenizers: written for Oniguruma, matched by PCRE2.
 *
 * PCRE2 compiles to machine code and is many times as fast, but differs in syntax, in what \w means and in its version
 * of Unicode. So an expression is translated token by token, and a construct that is not known to mean the same in both
 * is refused by name: a wrong token is silent, a refusal is not.
 *
 * Characters newer than PCRE2's tables are rare. The quick form uses its tables and serves texts of characters whose
 * category has not changed since Unicode 14; other texts use an exact form with explicit ranges, compiled when the
 * first such text comes. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/pattern.h"

#include "text/buffer.h"
#include "text/unicode.h"

#include <pcre2.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Code points and whole categories. A zeroed struct is empty. */
struct sw_class {
    struct sw_code_set set;
    uint32_t categories;
};

enum { MOST_LEVELS = 16, BELOW_CLASS = 0x100, FIRST_SURROGATE = 0xD800, LAST_SURROGATE = 0xDFFF };

#define LETTERS                                                                                                        \
    (SW_OF_CATEGORY(SW_LU) | SW_OF_CATEGORY(SW_LL) | SW_OF_CATEGORY(SW_LT) | SW_OF_CATEGORY(SW_LM) |                   \
     SW_OF_CATEGORY(SW_LO))
#define MARKS (SW_OF_CATEGORY(SW_MN) | SW_OF_CATEGORY(SW_MC) | SW_OF_CATEGORY(SW_ME))
#define WORDS (LETTERS | MARKS | SW_OF_CATEGORY(SW_NL) | SW_OF_CATEGORY(SW_ND) | SW_OF_CATEGORY(SW_PC))

static const struct sw_code_range spaces[] = {{0x9, 0xD},       {0x20, 0x20},     {0x85, 0x85},     {0xA0, 0xA0},
                                              {0x1680, 0x1680}, {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F},
                                              {0x205F, 0x205F}, {0x3000, 0x3000}};
/* Characters that \w includes in addition to its categories: Oniguruma's own in Latin-1, and enclosed letters. */
static const struct sw_code_range other_words[] = {{0xB2, 0xB3},      {0xB9, 0xB9},       {0xBC, 0xBE},
                                                   {0x24B6, 0x24E9},  {0x1F130, 0x1F149}, {0x1F150, 0x1F169},
                                                   {0x1F170, 0x1F189}};
static const struct sw_code_range hexadecimals[] = {{'0', '9'}, {'A', 'F'}, {'a', 'f'}};

static void class_release(struct sw_class *class) {
    sw_code_set_release(&class->set);
    class->categories = 0;
}

static sw_status add_ranges(struct sw_class *class, const struct sw_code_range *range, size_t count) {
    for (size_t i = 0; i < count; i++)
        SW_TRY(sw_code_set_add(&class->set, range[i].first, range[i].last));
    return SW_OK;
}
#define ADD(class, ranges) add_ranges(class, ranges, sizeof(ranges) / sizeof(ranges)[0])

/* Turns categories into ranges. */
static sw_status flatten(struct sw_class *class) {
    SW_TRY(sw_code_set_add_categories(&class->set, class->categories, 0));
    class->categories = 0;
    sw_code_set_settle(&class->set);
    return SW_OK;
}

/* Adds a class or, if `negated` is set, its complement. Releases it. */
static sw_status add_class(struct sw_class *to, struct sw_class *from, bool negated) {
    sw_status status = SW_OK;
    if (negated && from->set.count == 0) {
        to->categories |= ~from->categories & ((SW_OF_CATEGORY(SW_CN) << 1) - 1);
    } else if (negated) {
        status = flatten(from);
        if (status == SW_OK)
            status = sw_code_set_invert(&from->set);
    } else {
        to->categories |= from->categories;
    }
    if (status == SW_OK)
        status = sw_code_set_add_all(&to->set, &from->set);
    class_release(from);
    return status;
}

/* Reads {NAME} after \p or \P: a category, a group of them, or a script. */
static sw_status read_property(const char *at, struct sw_class *class, size_t *out_bytes) {
    const char *end = at[2] == '{' ? strchr(at, '}') : NULL;
    if (end == NULL)
        return SW_OK;
    const bool inverts = at[3] == '^';
    const char *name = at + 3 + inverts;
    struct sw_class found = {.categories = sw_categories_named(name, (size_t)(end - name))};
    const struct sw_script *script = sw_script_named(name, (size_t)(end - name));
    if (found.categories == 0 && script == NULL)
        return SW_OK;
    if (script != NULL)
        SW_TRY(add_ranges(&found, script->range, script->ranges));
    *out_bytes = (size_t)(end - at) + 1;
    return add_class(class, &found, inverts != (at[1] == 'P'));
}

/* Reads hexadecimal digits. 0 bytes: there are none, or the number is no character. */
static size_t read_hexadecimal(const char *at, size_t most, uint32_t *out_code) {
    size_t bytes = 0;
    *out_code = 0;
    for (; bytes < most; bytes++) {
        static const char digits[] = "0123456789abcdef0123456789ABCDEF";
        const char *digit = at[bytes] == 0 ? NULL : strchr(digits, at[bytes]);
        if (digit == NULL)
            break;
        *out_code = 16 * *out_code + (uint32_t)(digit - digits) % 16;
    }
    const bool is_character = *out_code < SW_CODE_POINTS && (*out_code < FIRST_SURROGATE || *out_code > LAST_SURROGATE);
    return is_character ? bytes : 0;
}

static void read_number(const char *at, uint32_t *out_code, size_t *out_bytes) {
    enum { MOST_DIGITS = 8 };
    const bool braces = at[1] == 'x' && at[2] == '{';
    const size_t most = at[1] == 'u' ? 4 : 2;
    const size_t digits = read_hexadecimal(at + 2 + braces, braces ? MOST_DIGITS : most, out_code);
    /* \x of two digits from 0x80 on is a byte, not a character. */
    const bool whole = braces ? at[3 + digits] == '}' : digits == most && (at[1] == 'u' || *out_code < 0x80);
    *out_bytes = digits > 0 && whole ? 2 + digits + 2U * braces : 0;
}

static const struct {
    char letter;
    uint32_t code;
} characters[] = {{'n', '\n'}, {'r', '\r'}, {'t', '\t'}, {'f', '\f'}, {'v', '\v'}, {'a', '\a'}, {'e', 0x1B}};

static sw_status read_named(char letter, struct sw_class *class, bool *out_is_class) {
    struct sw_class found = {0};
    sw_status status = SW_OK;
    const bool negated = letter >= 'A' && letter <= 'Z';
    switch (letter) {
    case 's':
    case 'S': status = ADD(&found, spaces); break;
    case 'd':
    case 'D': found.categories = SW_OF_CATEGORY(SW_ND); break;
    case 'h':
    case 'H': status = ADD(&found, hexadecimals); break;
    case 'w':
    case 'W':
        found.categories = WORDS;
        status = ADD(&found, other_words);
        break;
    default: return SW_OK;
    }
    *out_is_class = true;
    return status == SW_OK ? add_class(class, &found, negated) : status;
}

/* Reads the escape after the backslash at `at`: a class (*out_is_class; added to `class`) or one character (*out_code).
 * *out_bytes is 0 if it is neither: an anchor, or something unknown. */
static sw_status class_read_escape(const char *at, struct sw_class *class, bool *out_is_class, uint32_t *out_code,
                                   size_t *out_bytes) {
    const char letter = at[1];
    *out_is_class = false;
    *out_bytes = 0;
    if (letter == 'p' || letter == 'P') {
        *out_is_class = true;
        return read_property(at, class, out_bytes);
    }
    if (letter == 'x' || letter == 'u') {
        read_number(at, out_code, out_bytes);
        return SW_OK;
    }
    for (size_t i = 0; i < sizeof characters / sizeof characters[0]; i++)
        if (letter == characters[i].letter) {
            *out_code = characters[i].code;
            *out_bytes = 2;
            return SW_OK;
        }
    SW_TRY(read_named(letter, class, out_is_class));
    const bool is_letter = (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z');
    if (*out_is_class)
        *out_bytes = 2;
    if (*out_is_class || letter == 0 || is_letter || (letter >= '0' && letter <= '9'))
        return SW_OK;
    const struct sw_utf8_sequence next = sw_utf8_read((struct sw_text){at + 1, strlen(at + 1)});
    *out_code = next.code;
    *out_bytes = 1 + next.bytes;
    return SW_OK;
}

/* A class while it is read. */
struct reading {
    const char *at;
    int levels;
    const char *fault;
};

/* Reads a bracket such as [:space:]; only those known to be equal. */
static sw_status read_posix(struct reading *reading, struct sw_class *class) {
    static const struct {
        const char *name, *escape;
    } known[] = {{"[:space:]", "\\s"},  {"[:digit:]", "\\d"},  {"[:xdigit:]", "\\h"},  {"[:word:]", "\\w"},
                 {"[:^space:]", "\\S"}, {"[:^digit:]", "\\D"}, {"[:^xdigit:]", "\\H"}, {"[:^word:]", "\\W"}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strncmp(reading->at, known[i].name, strlen(known[i].name)) != 0)
            continue;
        bool is_class;
        uint32_t code;
        size_t bytes;
        reading->at += strlen(known[i].name);
        return class_read_escape(known[i].escape, class, &is_class, &code, &bytes);
    }
    reading->fault = "a bracket such as [:alpha:]";
    return SW_OK;
}

static sw_status read_class(struct reading *reading, struct sw_class *class, bool *out_negated);

/* Reads one character or escape. *out_is_class: it was added to the class. */
static sw_status read_item(struct reading *reading, struct sw_class *class, bool *out_is_class, uint32_t *out_code) {
    size_t bytes;
    *out_is_class = false;
    if (*reading->at == '\\' && reading->at[1] == 'b') {
        *out_code = '\b';
        bytes = 2;
    } else if (*reading->at == '\\') {
        SW_TRY(class_read_escape(reading->at, class, out_is_class, out_code, &bytes));
        if (bytes == 0)
            reading->fault = "an escape in a class";
    } else {
        const struct sw_utf8_sequence next = sw_utf8_read((struct sw_text){reading->at, strlen(reading->at)});
        *out_code = next.code;
        bytes = next.bytes;
    }
    reading->at += bytes;
    return SW_OK;
}

/* Reads a character or a range of them. */
static sw_status read_range(struct reading *reading, struct sw_class *class) {
    uint32_t first = 0, last = 0;
    bool is_class;
    SW_TRY(read_item(reading, class, &is_class, &first));
    const char *at = reading->at;
    const bool ranges = at[0] == '-' && at[1] != ']' && at[1] != 0 && strncmp(at + 1, "&&", 2) != 0;
    if (reading->fault != NULL || !ranges)
        return reading->fault != NULL || is_class ? SW_OK : sw_code_set_add(&class->set, first, first);
    reading->at++;
    if (is_class || *reading->at == '[') {
        reading->fault = "a range from or to a class";
        return SW_OK;
    }
    SW_TRY(read_item(reading, class, &is_class, &last));
    if (reading->fault == NULL && (is_class || last < first))
        reading->fault = "a range from or to a class";
    return reading->fault == NULL ? sw_code_set_add(&class->set, first, last) : SW_OK;
}

/* Intersects `both` with the operand before &&, and empties the operand. */
static sw_status narrow(struct sw_class *both, struct sw_class *operand, bool first) {
    SW_TRY(flatten(operand));
    SW_TRY(first ? sw_code_set_add_all(&both->set, &operand->set) : sw_code_set_intersect(&both->set, &operand->set));
    class_release(operand);
    return SW_OK;
}

static sw_status read_nested(struct reading *reading, struct sw_class *class) {
    struct sw_class nested = {0};
    bool negated = false;
    sw_status status = read_class(reading, &nested, &negated);
    if (status == SW_OK)
        status = add_class(class, &nested, negated);
    class_release(&nested);
    return status;
}

static sw_status read_operands(struct reading *reading, struct sw_class *operand, struct sw_class *both) {
    bool narrows = false;
    for (bool first = true; reading->fault == NULL && (first || *reading->at != ']'); first = false) {
        if (*reading->at == 0)
            reading->fault = "a class that does not end";
        else if (strncmp(reading->at, "[:", 2) == 0)
            SW_TRY(read_posix(reading, operand));
        else if (*reading->at == '[')
            SW_TRY(read_nested(reading, operand));
        else if (strncmp(reading->at, "&&", 2) == 0) {
            SW_TRY(narrow(both, operand, !narrows));
            narrows = true;
            reading->at += 2;
        } else
            SW_TRY(read_range(reading, operand));
    }
    if (narrows)
        return narrow(both, operand, false);
    return add_class(both, operand, false);
}

static sw_status read_class(struct reading *reading, struct sw_class *class, bool *out_negated) {
    struct sw_class operand = {0};
    *out_negated = reading->at[1] == '^';
    reading->at += *out_negated ? 2 : 1;
    if (++reading->levels > MOST_LEVELS)
        reading->fault = "classes in classes in more than 16 levels";
    const sw_status status = read_operands(reading, &operand, class);
    class_release(&operand);
    reading->levels--;
    reading->at += reading->fault == NULL;
    return status;
}

/* Reads the class that begins with the bracket at `at`. *out_fault names what was not understood; NULL: nothing. */
static sw_status class_read(const char *at, struct sw_class *class, bool *out_negated, size_t *out_bytes,
                            const char **out_fault) {
    struct reading reading = {.at = at};
    const sw_status status = read_class(&reading, class, out_negated);
    *out_bytes = (size_t)(reading.at - at);
    *out_fault = reading.fault;
    return status;
}

/* Tells whether case does not matter: the class has no letter outside ASCII. */
static bool class_is_ascii(const struct sw_class *class) {
    if (class->categories != 0)
        return false;
    for (size_t i = 0; i < class->set.count; i++)
        for (uint32_t code = class->set.range[i].first; code <= class->set.range[i].last; code++)
            if (code >= 0x80 && !sw_utf8_is_space(code))
                return false;
    return true;
}

/* Returns the Unicode version of PCRE2's tables, such as 14. */
static int version_of_pcre2(void) {
    char text[64] = "";
    return pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, text) < 0 ? 0 : atoi(text);
}

/* Tells whether PCRE2 gives these categories to code points that do not have them in Unicode 16. */
static bool is_wrong(uint32_t categories, int version) {
    const uint32_t moved =
        categories & (SW_OF_CATEGORY(SW_MN) | SW_OF_CATEGORY(SW_MC)); /* U+1171E changed in Unicode 16 */
    const bool moves = moved == SW_OF_CATEGORY(SW_MN) || moved == SW_OF_CATEGORY(SW_MC);
    return version < SW_OLDEST_UNICODE || version > SW_UNICODE_VERSION ||
           (version < SW_UNICODE_VERSION && (moves || (categories & SW_OF_CATEGORY(SW_CN)) != 0));
}

static sw_status put_escaped(struct sw_text_buffer *out, const char *text) {
    return sw_text_buffer_append(out, (struct sw_text){text, strlen(text)});
}

static sw_status put_range(struct sw_text_buffer *out, struct sw_code_range range) {
    char text[48];
    if (range.first >= FIRST_SURROGATE && range.first <= LAST_SURROGATE)
        range.first = LAST_SURROGATE + 1;
    if (range.last >= FIRST_SURROGATE && range.last <= LAST_SURROGATE)
        range.last = FIRST_SURROGATE - 1;
    if (range.first > range.last)
        return SW_OK;
    snprintf(text, sizeof text, range.first == range.last ? "\\x{%x}" : "\\x{%x}-\\x{%x}", range.first, range.last);
    return put_escaped(out, text);
}

static sw_status put_set(struct sw_text_buffer *out, struct sw_code_set *set) {
    sw_code_set_settle(set);
    for (size_t i = 0; i < set->count; i++)
        SW_TRY(put_range(out, set->range[i]));
    return SW_OK;
}

/* Names of categories that PCRE2 knows; groups come first. */
static const char *const known[] = {"L",  "M",  "N",  "P",  "S",  "Z",  "C",  "Lu", "Ll", "Lt", "Lm", "Lo", "Mn",
                                    "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm",
                                    "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co", "Cn"};

static bool is_one_name(uint32_t categories) {
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (categories == sw_categories_named(known[i], strlen(known[i])))
            return true;
    return false;
}

/* Appends the names of categories, using group names for whole groups. */
static sw_status put_names(struct sw_text_buffer *out, uint32_t categories) {
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        const uint32_t of_name = sw_categories_named(known[i], strlen(known[i]));
        char text[8];
        if ((categories & of_name) != of_name)
            continue;
        categories &= ~of_name;
        snprintf(text, sizeof text, "\\p{%s}", known[i]);
        SW_TRY(put_escaped(out, text));
    }
    return SW_OK;
}

/* Appends categories: by PCRE2's tables plus, if `exact` is set, ranges for what Unicode 16 adds; or all as ranges.
 * Characters of Latin-1 are written as ranges, which are looked up in a bitmap. */
static sw_status put_categories(struct sw_class *class, bool exact, struct sw_text_buffer *out) {
    const int version = version_of_pcre2();
    if (class->categories == 0)
        return SW_OK;
    if (!exact && version >= SW_OLDEST_UNICODE)
        return put_names(out, class->categories);
    if (is_wrong(class->categories, version))
        return sw_code_set_add_categories(&class->set, class->categories, 0);
    for (uint32_t code = 0; code < BELOW_CLASS; code++)
        if ((class->categories & SW_OF_CATEGORY(sw_category_of(code))) != 0)
            SW_TRY(sw_code_set_add(&class->set, code, code));
    SW_TRY(put_names(out, class->categories));
    return sw_code_set_add_categories(&class->set, class->categories, (unsigned)(version - SW_OLDEST_UNICODE + 1));
}

/* Appends the class for PCRE2: exact, or only by PCRE2's own tables, which is faster, and right if all characters are
 * stable (sw_category_is_stable). */
static sw_status class_write(struct sw_class *class, bool negated, bool exact, struct sw_text_buffer *out) {
    const bool bare = !exact && !negated && class->set.count == 0 && version_of_pcre2() >= SW_OLDEST_UNICODE;
    if (class->categories == 0 && class->set.count == 0)
        return put_escaped(out, negated ? "(?s:.)" : "(?!)");
    /* PCRE2 matches a single property faster than a class that contains it. */
    if (bare && is_one_name(class->categories))
        return put_names(out, class->categories);
    SW_TRY(put_escaped(out, negated ? "[^" : "["));
    SW_TRY(put_categories(class, exact, out));
    SW_TRY(put_set(out, &class->set));
    return put_escaped(out, "]");
}

enum { MOST_GROUPS = 64 };

/* The options that an expression changes. Oniguruma's "m" lets a dot also match the end of a line. */
struct options {
    bool caseless, dot_is_any;
};

struct translation {
    const char *expression, *path;
    const char *at;
    bool exact;
    struct sw_text_buffer *out;
    struct options options;
    struct {
        struct options outer; /* for what comes after the group */
        int closes;           /* PCRE2 brackets that end with it */
    } group[MOST_GROUPS];
    int groups;
    char letter_before; /* of a caseless literal, in lower case; else 0 */
};

static sw_status refuse(const struct translation *t, const char *what) {
    return sw_fail(SW_ERR_UNSUPPORTED, "%s: the expression '%.200s' uses %s, which this version does not have", t->path,
                   t->expression, what);
}

static sw_status put(struct translation *t, const char *text) {
    return sw_text_buffer_append(t->out, (struct sw_text){text, strlen(text)});
}

/* Refuses letters whose other cases Oniguruma finds by its own rules: letters outside ASCII, and pairs that stand for
 * one letter, as "ss" does for U+00DF. */
static sw_status check_case(struct translation *t, uint32_t code) {
    static const char *const folded[] = {"ss", "ff", "fi", "fl", "st"};
    const char before = t->letter_before, letter = (char)(code >= 'A' && code <= 'Z' ? code + 32 : code);
    t->letter_before = t->options.caseless && letter >= 'a' && letter <= 'z' ? letter : 0;
    if (!t->options.caseless)
        return SW_OK;
    if (code >= 0x80)
        return refuse(t, "a character outside of ASCII without regard to case");
    for (size_t i = 0; i < sizeof folded / sizeof folded[0]; i++)
        if (before == folded[i][0] && letter == folded[i][1])
            return refuse(t, "a pair of letters that one letter may stand for (ss, ff, fi, fl, st) without regard to "
                             "case");
    return SW_OK;
}

static sw_status put_code(struct translation *t, uint32_t code) {
    char text[24];
    SW_TRY(check_case(t, code));
    snprintf(text, sizeof text, "\\x{%x}", code);
    return put(t, text);
}

/* Copies a character that stands for itself. */
static sw_status put_character(struct translation *t) {
    const struct sw_utf8_sequence next = sw_utf8_read((struct sw_text){t->at, strlen(t->at)});
    const bool plain = next.code >= 0x80 || (next.code >= '0' && next.code <= '9') ||
                       (next.code >= 'A' && next.code <= 'Z') || (next.code >= 'a' && next.code <= 'z');
    if (next.kind != SW_UTF8_WHOLE)
        return refuse(t, "bytes that are no UTF-8");
    SW_TRY(plain ? check_case(t, next.code) : put_code(t, next.code));
    SW_TRY(plain ? sw_text_buffer_append(t->out, (struct sw_text){t->at, next.bytes}) : SW_OK);
    t->at += next.bytes;
    return SW_OK;
}

static sw_status put_class(struct translation *t, struct sw_class *class, bool negated) {
    if (t->options.caseless && !class_is_ascii(class))
        return refuse(t, "a class with characters outside of ASCII without regard to case");
    return class_write(class, negated, t->exact, t->out);
}

static sw_status take_class(struct translation *t) {
    struct sw_class class = {0};
    bool negated;
    size_t bytes;
    const char *fault;
    sw_status status = class_read(t->at, &class, &negated, &bytes, &fault);
    if (status == SW_OK && fault != NULL)
        status = refuse(t, fault);
    if (status == SW_OK)
        status = put_class(t, &class, negated);
    class_release(&class);
    t->at += bytes;
    return status;
}

/* Writes a word boundary or, if `inside` is set, its opposite. */
static sw_status put_edge(struct translation *t, bool inside) {
    static const char *const parts[2][5] = {{"(?:(?<=", ")(?!", ")|(?<!", ")(?=", "))"},
                                            {"(?:(?<=", ")(?=", ")|(?<!", ")(?!", "))"}};
    for (int i = 0; i < 5; i++) {
        struct sw_class word = {0};
        bool is_class;
        uint32_t code;
        size_t bytes;
        sw_status status = put(t, parts[inside][i]);
        if (status == SW_OK && i < 4)
            status = class_read_escape("\\w", &word, &is_class, &code, &bytes);
        if (status == SW_OK && i < 4)
            status = class_write(&word, false, t->exact, t->out);
        class_release(&word);
        SW_TRY(status);
    }
    return SW_OK;
}

/* Translates an escape that is neither a character nor a class. */
static sw_status take_anchor(struct translation *t) {
    const char letter = t->at[1], name[] = {'\\', letter, 0};
    static const struct {
        char letter;
        const char *text;
    } same[] = {{'A', "\\A"},    {'z', "\\z"},   {'Z', "\\Z"}, {'R', "(?>\\r\\n|[\\n-\\r\\x{85}\\x{2028}\\x{2029}])"},
                {'N', "[^\\n]"}, {'O', "(?s:.)"}};
    t->at += 2;
    if (letter == 'b' || letter == 'B')
        return put_edge(t, letter == 'B');
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++)
        if (letter == same[i].letter)
            return put(t, same[i].text);
    return refuse(t, name);
}

static sw_status take_escape(struct translation *t) {
    struct sw_class class = {0};
    bool is_class;
    uint32_t code = 0;
    size_t bytes;
    const bool inverts = t->at[1] == 'S' || t->at[1] == 'W' || t->at[1] == 'D' || t->at[1] == 'H' || t->at[1] == 'P';
    char positive[64];
    /* A negated class is written as such, which is shorter than its complement. */
    snprintf(positive, sizeof positive, "%s", t->at);
    positive[1] = (char)(inverts ? positive[1] + 32 : positive[1]);
    sw_status status = class_read_escape(positive, &class, &is_class, &code, &bytes);
    if (status == SW_OK && bytes == 0)
        status = is_class || strchr("xu", t->at[1]) != NULL ? refuse(t, "an escape or property that is not known")
                                                            : take_anchor(t);
    else if (status == SW_OK)
        status = is_class ? put_class(t, &class, inverts) : put_code(t, code);
    class_release(&class);
    t->at += bytes;
    return status;
}

/* Reads options such as "i" or "mi-x" to their end. Refuses unknown ones. */
static sw_status read_options(struct translation *t, const char *at, struct options *out, size_t *out_chars) {
    bool on = true;
    *out = t->options;
    for (*out_chars = 0; at[*out_chars] != ':' && at[*out_chars] != ')'; ++*out_chars) {
        const char option = at[*out_chars];
        const char name[] = {'(', '?', option, ')', 0};
        if (option == '-' && on)
            on = false;
        else if (option == 'i')
            out->caseless = on;
        else if (option == 'm')
            out->dot_is_any = on;
        else if (option != 'x' || on)
            return refuse(t, option == 0 ? "a group that does not end" : name);
    }
    return SW_OK;
}

static sw_status open_group(struct translation *t, const char *text, struct options inner, size_t chars) {
    if (t->groups == MOST_GROUPS)
        return refuse(t, "more than 64 groups in groups");
    t->group[t->groups].outer = t->options;
    t->group[t->groups++].closes = 1;
    t->options = inner;
    t->at += chars;
    return put(t, text);
}

/* Translates "(?i:" or "(?i)". The latter holds to the end of the enclosing group, alternatives included, so it becomes
 * a group of its own. */
static sw_status take_options(struct translation *t) {
    struct options options;
    size_t chars;
    SW_TRY(read_options(t, t->at + 2, &options, &chars));
    const char *const text = options.caseless ? "(?i:" : "(?-i:";
    if (t->at[2 + chars] == ':')
        return open_group(t, text, options, 3 + chars);
    t->options = options;
    t->at += 3 + chars;
    t->group[t->groups - 1].closes++;
    return put(t, text);
}

static sw_status take_group(struct translation *t) {
    static const char *const same[] = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++)
        if (strncmp(t->at, same[i], strlen(same[i])) == 0)
            return open_group(t, same[i], t->options, strlen(same[i]));
    const char *end = strchr(t->at, '>'), *comment = strchr(t->at, ')');
    if (t->at[1] == '*')
        return refuse(t, "(*");
    if (t->at[1] != '?')
        return open_group(t, "(?:", t->options, 1);
    if (t->at[2] == '#' && comment != NULL && memchr(t->at, '\\', (size_t)(comment - t->at)) == NULL) {
        t->at = comment + 1;
        return SW_OK;
    }
    /* References to groups are refused, so names have no meaning. */
    if (t->at[2] == '<' && end != NULL)
        return open_group(t, "(?:", t->options, (size_t)(end - t->at) + 1);
    if (strchr("im-", t->at[2]) != NULL)
        return take_options(t);
    const char name[] = {'(', '?', t->at[2], 0};
    return refuse(t, name);
}

static sw_status close_group(struct translation *t) {
    if (t->groups <= 1)
        return refuse(t, "a bracket ')' without its '('");
    t->options = t->group[--t->groups].outer;
    for (int i = 0; i < t->group[t->groups].closes; i++)
        SW_TRY(put(t, ")"));
    t->at++;
    return SW_OK;
}

/* Translates a repetition "{n,m}", or the bracket as a character if it is none. Oniguruma repeats "{n,m}+" twice, and
 * takes "{n}?" for an optional repetition. */
static sw_status take_repetition(struct translation *t) {
    enum { MOST_REPEATS = 65535 };
    char *end;
    const char *at = t->at + 1;
    const bool has_least = *at >= '0' && *at <= '9';
    const unsigned long least = has_least ? strtoul(at, &end, 10) : 0;
    at = has_least ? end : at;
    const bool comma = *at == ',';
    at += comma;
    const bool has_most = comma && *at >= '0' && *at <= '9';
    const unsigned long most = has_most ? strtoul(at, &end, 10) : least;
    at = has_most ? end : at;
    if (*at != '}' || (!has_least && !has_most))
        return put_character(t);
    if (least > MOST_REPEATS || most > MOST_REPEATS || (has_most && most < least))
        return refuse(t, "{n,m} with m below n or beyond 65535");
    if (at[1] == '+' || at[1] == '*' || at[1] == '{' || (at[1] == '?' && !comma))
        return refuse(t, at[1] == '?' ? "{n}?" : "{n,m} and another repetition");
    char text[48];
    if (comma && !has_most)
        snprintf(text, sizeof text, "{%lu,}", least);
    else
        snprintf(text, sizeof text, comma ? "{%lu,%lu}" : "{%lu}", least, most);
    t->at = at + 1;
    return put(t, text);
}

static sw_status take_text(struct translation *t, const char *text) {
    t->at++;
    return put(t, text);
}

static sw_status take_one(struct translation *t) {
    const char letter_before = t->letter_before;
    t->letter_before = 0;
    switch (*t->at) {
    case '\\': return take_escape(t);
    case '[': return take_class(t);
    case '(': return take_group(t);
    case ')': return close_group(t);
    case '{': return take_repetition(t);
    case '^': return take_text(t, "(?m:^)");
    case '$': return take_text(t, "(?m:$)");
    case '.': return take_text(t, t->options.dot_is_any ? "(?s:.)" : "[^\\n]");
    case '|': return take_text(t, "|");
    case '*': return take_text(t, "*");
    case '+': return take_text(t, "+");
    case '?': return take_text(t, "?");
    default: t->letter_before = letter_before; return put_character(t);
    }
}

/* Appends an expression for PCRE2 (options UTF and UCP, lines end in LF) that matches what `expression` matches in
 * Oniguruma with the tables of Unicode 16: in all texts if `exact` is set, else, and faster, in texts whose characters
 * are all stable (sw_category_is_stable). Refuses by name a construct whose meaning is not known to be equal. `path` is
 * for messages. */
static sw_status translate(const char *expression, bool exact, const char *path, struct sw_text_buffer *out) {
    struct translation t = {
        .expression = expression, .path = path, .at = expression, .exact = exact, .out = out, .groups = 1};
    while (*t.at != 0)
        SW_TRY(take_one(&t));
    if (t.groups != 1)
        return refuse(&t, "a group that does not end");
    for (int i = 0; i < t.group[0].closes; i++)
        SW_TRY(put(&t, ")"));
    return SW_OK;
}

/* Compiling takes far more memory than an expression, and minutes for longer ones. */
enum { MOST_BYTES = 8 << 10 };

/* The code that is right for all texts. Few texts need it and compiling takes milliseconds, so the first such text
 * compiles it. */
struct exact {
    pthread_mutex_t mutex; /* held while it is made */
    _Atomic(pcre2_code *) code;
    char *expression, *path;
};

struct sw_pattern {
    pcre2_code *code;    /* right for texts whose characters are all stable (sw_category_is_stable) */
    struct exact *exact; /* NULL: the code is right for all texts */
};

struct sw_pattern_scratch {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    bool exact; /* the text may have characters that are new to PCRE2 */
};

/* Compiles an expression for PCRE2. `shown` is its form in the file. */
static sw_status compile(struct sw_text expression, bool literal, struct sw_text shown, const char *path,
                         pcre2_code **out) {
    int error;
    size_t where;
    const int chars = (int)(shown.bytes < 200 ? shown.bytes : 200);
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (context == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for an expression");
    (void)pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    const uint32_t options = PCRE2_UTF | PCRE2_NO_UTF_CHECK | (literal ? PCRE2_LITERAL : PCRE2_UCP);
    *out = pcre2_compile((PCRE2_SPTR)expression.data, expression.bytes, options, &error, &where, context);
    pcre2_compile_context_free(context);
    if (*out == NULL) {
        char message[256];
        pcre2_get_error_message(error, (PCRE2_UCHAR *)message, sizeof message);
        return sw_fail(SW_ERR_ARG, "%s: the expression '%.*s' is wrong at %zu: %s", path, chars, shown.data, where,
                       message);
    }
    uint32_t may_be_empty = 0;
    (void)pcre2_pattern_info(*out, PCRE2_INFO_MATCHEMPTY, &may_be_empty);
    if (may_be_empty)
        return sw_fail(SW_ERR_UNSUPPORTED,
                       "%s: the expression '%.*s' allows an empty match, which this version does not have", path, chars,
                       shown.data);
    (void)pcre2_jit_compile(*out, PCRE2_JIT_COMPLETE); /* without it, matching is slower but equal */
    return SW_OK;
}

static sw_status translate_and_compile(const char *expression, bool exact, const char *path, pcre2_code **out) {
    struct sw_text_buffer translated = {0};
    sw_status status = translate(expression, exact, path, &translated);
    if (status == SW_OK)
        status =
            compile(sw_text_of_buffer(&translated), false, (struct sw_text){expression, strlen(expression)}, path, out);
    free(translated.data);
    return status;
}

static sw_status make(struct sw_pattern *pattern, struct sw_text expression, bool literal, const char *path) {
    if (expression.bytes == 0)
        return sw_fail(SW_ERR_ARG, "%s: an expression is empty", path);
    if (expression.bytes > MOST_BYTES)
        return sw_fail(SW_ERR_ARG, "%s: an expression has %zu bytes; the most are %d", path, expression.bytes,
                       MOST_BYTES);
    if (literal)
        return compile(expression, true, expression, path, &pattern->code);
    if (memchr(expression.data, 0, expression.bytes) != NULL)
        return sw_fail(SW_ERR_UNSUPPORTED, "%s: the expression '%.200s' has U+0000, which this version does not have",
                       path, expression.data);
    SW_TRY(translate_and_compile(expression.data, false, path, &pattern->code));
    pattern->exact = calloc(1, sizeof *pattern->exact);
    if (pattern->exact == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for an expression");
    pthread_mutex_init(&pattern->exact->mutex, NULL);
    pattern->exact->expression = strdup(expression.data);
    pattern->exact->path = strdup(path);
    return pattern->exact->expression != NULL && pattern->exact->path != NULL
               ? SW_OK
               : sw_fail(SW_ERR_NOMEM, "no memory for an expression");
}

sw_status sw_pattern_create(struct sw_text expression, bool literal, const char *path, struct sw_pattern **out) {
    struct sw_pattern *pattern = calloc(1, sizeof *pattern);
    if (pattern == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for an expression");
    const sw_status status = make(pattern, expression, literal, path);
    if (status != SW_OK) {
        sw_pattern_destroy(pattern);
        return status;
    }
    *out = pattern;
    return SW_OK;
}

void sw_pattern_destroy(struct sw_pattern *pattern) {
    if (pattern == NULL)
        return;
    pcre2_code_free(pattern->code);
    if (pattern->exact != NULL) {
        pcre2_code_free(pattern->exact->code);
        pthread_mutex_destroy(&pattern->exact->mutex);
        free(pattern->exact->expression);
        free(pattern->exact->path);
        free(pattern->exact);
    }
    free(pattern);
}

sw_status sw_pattern_scratch_create(struct sw_pattern_scratch **out) {
    enum { STACK_FIRST_BYTES = 64 << 10, STACK_MOST_BYTES = 64 << 20 };
    struct sw_pattern_scratch *scratch = calloc(1, sizeof *scratch);
    if (scratch == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to match expressions");
    scratch->data = pcre2_match_data_create(1, NULL);
    scratch->context = pcre2_match_context_create(NULL);
    scratch->stack = pcre2_jit_stack_create(STACK_FIRST_BYTES, STACK_MOST_BYTES, NULL);
    if (scratch->data == NULL || scratch->context == NULL) {
        sw_pattern_scratch_destroy(scratch);
        return sw_fail(SW_ERR_NOMEM, "no memory to match expressions");
    }
    if (scratch->stack != NULL) /* NULL: PCRE2 has no compiler for this processor */
        pcre2_jit_stack_assign(scratch->context, NULL, scratch->stack);
    *out = scratch;
    return SW_OK;
}

void sw_pattern_scratch_destroy(struct sw_pattern_scratch *scratch) {
    if (scratch == NULL)
        return;
    pcre2_match_data_free(scratch->data);
    pcre2_match_context_free(scratch->context);
    pcre2_jit_stack_free(scratch->stack);
    free(scratch);
}

/* Tells by a sequence of several bytes that its character is stable: most of Latin, Cyrillic and Arabic, punctuation,
 * kana, Han, Hangul and full-width forms. */
static bool begins_stable(const unsigned char *byte) {
    switch (byte[0]) {
    case 0xE2: return byte[1] == 0x80;
    case 0xE3:
        return byte[1] == 0x80 || byte[1] == 0x83 || (byte[1] == 0x81 && byte[2] != 0x80) ||
               (byte[1] == 0x82 && byte[2] != 0x97 && byte[2] != 0x98);
    case 0xEF: return byte[1] == 0xBC && byte[2] != 0x80;
    default:
        return byte[0] <= 0xCC || (byte[0] >= 0xCF && byte[0] <= 0xD3) || (byte[0] >= 0xD8 && byte[0] <= 0xDB) ||
               (byte[0] >= 0xE4 && byte[0] <= 0xE9) || byte[0] == 0xEB || byte[0] == 0xEC;
    }
}

/* Tells whether a text has no character that is new to some PCRE2. */
static bool is_stable(struct sw_text text) {
    for (size_t at = 0; at < text.bytes;) {
        uint64_t eight;
        if (text.bytes - at >= sizeof eight) {
            memcpy(&eight, text.data + at, sizeof eight);
            if ((eight & 0x8080808080808080ULL) == 0) {
                at += sizeof eight;
                continue;
            }
        }
        const unsigned char first = (unsigned char)text.data[at];
        if (first < 0x80) {
            at++;
        } else if (begins_stable((const unsigned char *)text.data + at)) {
            at += first < 0xE0 ? 2 : 3;
        } else {
            const struct sw_utf8_sequence next = sw_utf8_read((struct sw_text){text.data + at, text.bytes - at});
            if (!sw_category_is_stable(next.code))
                return false;
            at += next.bytes;
        }
    }
    return true;
}

void sw_pattern_begin(struct sw_pattern_scratch *scratch, struct sw_text text) {
    scratch->exact = !is_stable(text);
}

static sw_status make_exact(struct exact *exact, const pcre2_code **out) {
    sw_status status = SW_OK;
    pcre2_code *code = exact->code;
    if (code == NULL) {
        pthread_mutex_lock(&exact->mutex);
        code = exact->code;
        if (code == NULL)
            status = translate_and_compile(exact->expression, true, exact->path, &code);
        if (status == SW_OK)
            exact->code = code;
        pthread_mutex_unlock(&exact->mutex);
    }
    *out = code;
    return status;
}

sw_status sw_pattern_find(const struct sw_pattern *pattern, struct sw_pattern_scratch *scratch, struct sw_text text,
                          size_t from, size_t *out_begin, size_t *out_bytes) {
    *out_bytes = 0;
    const pcre2_code *code = pattern->code;
    if (scratch->exact && pattern->exact != NULL)
        SW_TRY(make_exact(pattern->exact, &code));
    const int found = pcre2_match(code, (PCRE2_SPTR)text.data, text.bytes, from, PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY,
                                  scratch->data, scratch->context);
    if (found == PCRE2_ERROR_NOMATCH)
        return SW_OK;
    if (found < 0) {
        char message[256];
        pcre2_get_error_message(found, (PCRE2_UCHAR *)message, sizeof message);
        return sw_fail(SW_ERR_UNSUPPORTED, "matching a tokenizer's expression failed: %s", message);
    }
    const size_t *offset = pcre2_get_ovector_pointer(scratch->data);
    *out_begin = offset[0];
    *out_bytes = offset[1] - offset[0];
    return SW_OK;
}
