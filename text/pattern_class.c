#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/pattern_class.h"

#include "text/utf8.h"

#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_LEVELS = 16, BELOW_CLASS = 0x100, FIRST_SURROGATE = 0xD800, LAST_SURROGATE = 0xDFFF };

#define LETTERS                                                                                                        \
    (SW_OF_CATEGORY(SW_LU) | SW_OF_CATEGORY(SW_LL) | SW_OF_CATEGORY(SW_LT) | SW_OF_CATEGORY(SW_LM) |                   \
     SW_OF_CATEGORY(SW_LO))
#define MARKS (SW_OF_CATEGORY(SW_MN) | SW_OF_CATEGORY(SW_MC) | SW_OF_CATEGORY(SW_ME))
#define WORDS (LETTERS | MARKS | SW_OF_CATEGORY(SW_NL) | SW_OF_CATEGORY(SW_ND) | SW_OF_CATEGORY(SW_PC))

static const struct sw_code_range spaces[] = {{0x9, 0xD},       {0x20, 0x20},     {0x85, 0x85},     {0xA0, 0xA0},
                                              {0x1680, 0x1680}, {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F},
                                              {0x205F, 0x205F}, {0x3000, 0x3000}};
/* Characters of \w beside its categories: Oniguruma's own in Latin-1, and enclosed letters. */
static const struct sw_code_range other_words[] = {{0xB2, 0xB3},      {0xB9, 0xB9},       {0xBC, 0xBE},
                                                   {0x24B6, 0x24E9},  {0x1F130, 0x1F149}, {0x1F150, 0x1F169},
                                                   {0x1F170, 0x1F189}};
static const struct sw_code_range hexadecimals[] = {{'0', '9'}, {'A', 'F'}, {'a', 'f'}};

void sw_class_release(struct sw_class *class) {
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

/* Adds a class, or, where `negated` is set, what is not in it. Releases it. */
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
    sw_class_release(from);
    return status;
}

/* Reads {NAME} behind \p or \P: a category, a group of them, or a script. */
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

/* Reads hexadecimal digits; 0 bytes where there is none or the number is no character. */
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
    /* \x of two digits from 0x80 on is a byte and not a character. */
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

sw_status sw_class_read_escape(const char *at, struct sw_class *class, bool *out_is_class, uint32_t *out_code,
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

/* Reads a bracket such as [:space:]; only those that are known to be equal. */
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
        return sw_class_read_escape(known[i].escape, class, &is_class, &code, &bytes);
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
        SW_TRY(sw_class_read_escape(reading->at, class, out_is_class, out_code, &bytes));
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

/* Narrows `both` to what the operand of && before has too, and empties that operand. */
static sw_status narrow(struct sw_class *both, struct sw_class *operand, bool first) {
    SW_TRY(flatten(operand));
    SW_TRY(first ? sw_code_set_add_all(&both->set, &operand->set) : sw_code_set_intersect(&both->set, &operand->set));
    sw_class_release(operand);
    return SW_OK;
}

static sw_status read_nested(struct reading *reading, struct sw_class *class) {
    struct sw_class nested = {0};
    bool negated = false;
    sw_status status = read_class(reading, &nested, &negated);
    if (status == SW_OK)
        status = add_class(class, &nested, negated);
    sw_class_release(&nested);
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
    sw_class_release(&operand);
    reading->levels--;
    reading->at += reading->fault == NULL;
    return status;
}

sw_status sw_class_read(const char *at, struct sw_class *class, bool *out_negated, size_t *out_bytes,
                        const char **out_fault) {
    struct reading reading = {.at = at};
    const sw_status status = read_class(&reading, class, out_negated);
    *out_bytes = (size_t)(reading.at - at);
    *out_fault = reading.fault;
    return status;
}

bool sw_class_is_ascii(const struct sw_class *class) {
    if (class->categories != 0)
        return false;
    for (size_t i = 0; i < class->set.count; i++)
        for (uint32_t code = class->set.range[i].first; code <= class->set.range[i].last; code++)
            if (code >= 0x80 && !sw_utf8_is_space(code))
                return false;
    return true;
}

/* Returns the version of Unicode that PCRE2 has, such as 14. */
static int version_of_pcre2(void) {
    char text[64] = "";
    return pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, text) < 0 ? 0 : atoi(text);
}

/* Tells whether PCRE2 gives code points these categories that do not have them in Unicode 16. */
static bool is_wrong(uint32_t categories, int version) {
    const uint32_t moved = categories & (SW_OF_CATEGORY(SW_MN) | SW_OF_CATEGORY(SW_MC)); /* U+1171E, by Unicode 16 */
    const bool moves = moved == SW_OF_CATEGORY(SW_MN) || moved == SW_OF_CATEGORY(SW_MC);
    return version < SW_OLDEST_UNICODE || version > SW_UNICODE_VERSION ||
           (version < SW_UNICODE_VERSION && (moves || (categories & SW_OF_CATEGORY(SW_CN)) != 0));
}

static sw_status put(struct sw_text_buffer *out, const char *text) {
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
    return put(out, text);
}

static sw_status put_set(struct sw_text_buffer *out, struct sw_code_set *set) {
    sw_code_set_settle(set);
    for (size_t i = 0; i < set->count; i++)
        SW_TRY(put_range(out, set->range[i]));
    return SW_OK;
}

/* Names of categories that PCRE2 knows: those of groups come first. */
static const char *const known[] = {"L",  "M",  "N",  "P",  "S",  "Z",  "C",  "Lu", "Ll", "Lt", "Lm", "Lo", "Mn",
                                    "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm",
                                    "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co", "Cn"};

static bool is_one_name(uint32_t categories) {
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (categories == sw_categories_named(known[i], strlen(known[i])))
            return true;
    return false;
}

/* Appends the names of categories, whole groups by the name of the group. */
static sw_status put_names(struct sw_text_buffer *out, uint32_t categories) {
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        const uint32_t of_name = sw_categories_named(known[i], strlen(known[i]));
        char text[8];
        if ((categories & of_name) != of_name)
            continue;
        categories &= ~of_name;
        snprintf(text, sizeof text, "\\p{%s}", known[i]);
        SW_TRY(put(out, text));
    }
    return SW_OK;
}

/* Appends categories: by PCRE2's tables, where `exact` is set with ranges for what Unicode 16 adds to them, or all as
 * ranges. Characters of Latin-1 come as ranges, which are looked up in a bitmap. */
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

sw_status sw_class_write(struct sw_class *class, bool negated, bool exact, struct sw_text_buffer *out) {
    const bool bare = !exact && !negated && class->set.count == 0 && version_of_pcre2() >= SW_OLDEST_UNICODE;
    if (class->categories == 0 && class->set.count == 0)
        return put(out, negated ? "(?s:.)" : "(?!)");
    /* PCRE2 takes a property alone quicker than a class of it. */
    if (bare && is_one_name(class->categories))
        return put_names(out, class->categories);
    SW_TRY(put(out, negated ? "[^" : "["));
    SW_TRY(put_categories(class, exact, out));
    SW_TRY(put_set(out, &class->set));
    return put(out, "]");
}
