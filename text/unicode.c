#include "text/unicode.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { CODE_SHIFT = 7, CATEGORY_SHIFT = 2, CATEGORY_MASK = 31, SINCE_MASK = 3, NAME_CHARS = 48 };

static enum sw_category category_at(size_t run) {
    return (enum sw_category)(sw_category_run[run] >> CATEGORY_SHIFT & CATEGORY_MASK);
}

static uint32_t first_at(size_t run) {
    return run == SW_CATEGORY_RUNS ? SW_CODE_POINTS : sw_category_run[run] >> CODE_SHIFT;
}

static size_t run_of(uint32_t code) {
    size_t low = 0, high = SW_CATEGORY_RUNS;
    while (high - low > 1) {
        const size_t middle = (low + high) / 2;
        if (first_at(middle) <= code)
            low = middle;
        else
            high = middle;
    }
    return low;
}

enum sw_category sw_category_of(uint32_t code) {
    return category_at(run_of(code));
}

bool sw_category_is_stable(uint32_t code) {
    const size_t run = run_of(code);
    return (sw_category_run[run] & SINCE_MASK) == 0 && category_at(run) != SW_CN;
}

static const struct {
    const char *name;
    enum sw_category first, last;
} names[] = {
    {"L", SW_LU, SW_LO},
    {"LETTER", SW_LU, SW_LO},
    {"LU", SW_LU, SW_LU},
    {"UPPERCASELETTER", SW_LU, SW_LU},
    {"LL", SW_LL, SW_LL},
    {"LOWERCASELETTER", SW_LL, SW_LL},
    {"LT", SW_LT, SW_LT},
    {"TITLECASELETTER", SW_LT, SW_LT},
    {"LC", SW_LU, SW_LT},
    {"CASEDLETTER", SW_LU, SW_LT},
    {"LM", SW_LM, SW_LM},
    {"MODIFIERLETTER", SW_LM, SW_LM},
    {"LO", SW_LO, SW_LO},
    {"OTHERLETTER", SW_LO, SW_LO},
    {"M", SW_MN, SW_ME},
    {"MARK", SW_MN, SW_ME},
    {"COMBININGMARK", SW_MN, SW_ME},
    {"MN", SW_MN, SW_MN},
    {"NONSPACINGMARK", SW_MN, SW_MN},
    {"MC", SW_MC, SW_MC},
    {"SPACINGMARK", SW_MC, SW_MC},
    {"ME", SW_ME, SW_ME},
    {"ENCLOSINGMARK", SW_ME, SW_ME},
    {"N", SW_ND, SW_NO},
    {"NUMBER", SW_ND, SW_NO},
    {"ND", SW_ND, SW_ND},
    {"DECIMALNUMBER", SW_ND, SW_ND},
    {"NL", SW_NL, SW_NL},
    {"LETTERNUMBER", SW_NL, SW_NL},
    {"NO", SW_NO, SW_NO},
    {"OTHERNUMBER", SW_NO, SW_NO},
    {"P", SW_PC, SW_PO},
    {"PUNCTUATION", SW_PC, SW_PO},
    {"PC", SW_PC, SW_PC},
    {"CONNECTORPUNCTUATION", SW_PC, SW_PC},
    {"PD", SW_PD, SW_PD},
    {"DASHPUNCTUATION", SW_PD, SW_PD},
    {"PS", SW_PS, SW_PS},
    {"OPENPUNCTUATION", SW_PS, SW_PS},
    {"PE", SW_PE, SW_PE},
    {"CLOSEPUNCTUATION", SW_PE, SW_PE},
    {"PI", SW_PI, SW_PI},
    {"INITIALPUNCTUATION", SW_PI, SW_PI},
    {"PF", SW_PF, SW_PF},
    {"FINALPUNCTUATION", SW_PF, SW_PF},
    {"PO", SW_PO, SW_PO},
    {"OTHERPUNCTUATION", SW_PO, SW_PO},
    {"S", SW_SM, SW_SO},
    {"SYMBOL", SW_SM, SW_SO},
    {"SM", SW_SM, SW_SM},
    {"MATHSYMBOL", SW_SM, SW_SM},
    {"SC", SW_SC, SW_SC},
    {"CURRENCYSYMBOL", SW_SC, SW_SC},
    {"SK", SW_SK, SW_SK},
    {"MODIFIERSYMBOL", SW_SK, SW_SK},
    {"SO", SW_SO, SW_SO},
    {"OTHERSYMBOL", SW_SO, SW_SO},
    {"Z", SW_ZS, SW_ZP},
    {"SEPARATOR", SW_ZS, SW_ZP},
    {"ZS", SW_ZS, SW_ZS},
    {"SPACESEPARATOR", SW_ZS, SW_ZS},
    {"ZL", SW_ZL, SW_ZL},
    {"LINESEPARATOR", SW_ZL, SW_ZL},
    {"ZP", SW_ZP, SW_ZP},
    {"PARAGRAPHSEPARATOR", SW_ZP, SW_ZP},
    {"C", SW_CC, SW_CN},
    {"OTHER", SW_CC, SW_CN},
    {"CC", SW_CC, SW_CC},
    {"CONTROL", SW_CC, SW_CC},
    {"CF", SW_CF, SW_CF},
    {"FORMAT", SW_CF, SW_CF},
    {"CS", SW_CS, SW_CS},
    {"SURROGATE", SW_CS, SW_CS},
    {"CO", SW_CO, SW_CO},
    {"PRIVATEUSE", SW_CO, SW_CO},
    {"CN", SW_CN, SW_CN},
    {"UNASSIGNED", SW_CN, SW_CN},
};

/* Writes a name in capitals, without the characters that comparisons ignore; empty if it is too long. */
static void fold(const char *name, size_t chars, char out[NAME_CHARS]) {
    size_t used = 0;
    for (size_t i = 0; i < chars && used + 1 < NAME_CHARS; i++)
        if (strchr(" -_", name[i]) == NULL)
            out[used++] = (char)toupper((unsigned char)name[i]);
    out[used + 1 < NAME_CHARS ? used : 0] = 0;
}

uint32_t sw_categories_named(const char *name, size_t chars) {
    char folded[NAME_CHARS];
    fold(name, chars, folded);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(folded, names[i].name) == 0)
            return (SW_OF_CATEGORY(names[i].last) << 1) - SW_OF_CATEGORY(names[i].first);
    return 0;
}

const struct sw_script *sw_script_named(const char *name, size_t chars) {
    char folded[NAME_CHARS];
    fold(name, chars, folded);
    for (const struct sw_script *script = sw_scripts; script->name != NULL; script++)
        if (strcasecmp(folded, script->name) == 0)
            return script;
    return NULL;
}

void sw_code_set_release(struct sw_code_set *set) {
    free(set->range);
    *set = (struct sw_code_set){0};
}

sw_status sw_code_set_add(struct sw_code_set *set, uint32_t first, uint32_t last) {
    if (set->count > 0 && set->range[set->count - 1].last + 1 == first) {
        set->range[set->count - 1].last = last;
        return SW_OK;
    }
    if (set->count == set->capacity) {
        const size_t capacity = set->capacity == 0 ? 16 : 2 * set->capacity;
        struct sw_code_range *range = realloc(set->range, capacity * sizeof *range);
        if (range == NULL)
            return sw_fail(SW_ERR_NOMEM, "no memory for an expression");
        set->range = range;
        set->capacity = capacity;
    }
    set->range[set->count++] = (struct sw_code_range){first, last};
    return SW_OK;
}

sw_status sw_code_set_add_categories(struct sw_code_set *set, uint32_t categories, unsigned since) {
    for (size_t run = 0; run < SW_CATEGORY_RUNS; run++)
        if ((categories & SW_OF_CATEGORY(category_at(run))) != 0 && (sw_category_run[run] & SINCE_MASK) >= since)
            SW_TRY(sw_code_set_add(set, first_at(run), first_at(run + 1) - 1));
    return SW_OK;
}

sw_status sw_code_set_add_all(struct sw_code_set *set, const struct sw_code_set *other) {
    for (size_t i = 0; i < other->count; i++)
        SW_TRY(sw_code_set_add(set, other->range[i].first, other->range[i].last));
    return SW_OK;
}

static int by_first(const void *a, const void *b) {
    const struct sw_code_range *x = a, *y = b;
    return x->first < y->first ? -1 : x->first > y->first;
}

void sw_code_set_settle(struct sw_code_set *set) {
    size_t kept = 0;
    if (set->count == 0)
        return;
    qsort(set->range, set->count, sizeof *set->range, by_first);
    for (size_t i = 1; i < set->count; i++) {
        struct sw_code_range *before = &set->range[kept];
        if (set->range[i].first > before->last + 1)
            set->range[++kept] = set->range[i];
        else if (set->range[i].last > before->last)
            before->last = set->range[i].last;
    }
    set->count = kept + 1;
}

sw_status sw_code_set_invert(struct sw_code_set *set) {
    struct sw_code_set out = {0};
    uint32_t next = 0;
    sw_status status = SW_OK;
    sw_code_set_settle(set);
    for (size_t i = 0; status == SW_OK && i < set->count; i++) {
        if (set->range[i].first > next)
            status = sw_code_set_add(&out, next, set->range[i].first - 1);
        next = set->range[i].last + 1;
    }
    if (status == SW_OK && next < SW_CODE_POINTS)
        status = sw_code_set_add(&out, next, SW_CODE_POINTS - 1);
    sw_code_set_release(set);
    *set = out;
    return status;
}

/* Intersects by complements: a code point is in both sets if neither complement has it. */
sw_status sw_code_set_intersect(struct sw_code_set *set, struct sw_code_set *other) {
    SW_TRY(sw_code_set_invert(set));
    SW_TRY(sw_code_set_invert(other));
    SW_TRY(sw_code_set_add_all(set, other));
    return sw_code_set_invert(set);
}

size_t sw_utf8_valid_bytes(struct sw_text text) {
    size_t at = 0;
    while (at < text.bytes) {
        uint64_t eight;
        if (text.bytes - at >= sizeof eight) {
            memcpy(&eight, text.data + at, sizeof eight);
            if ((eight & 0x8080808080808080ULL) == 0) {
                at += sizeof eight;
                continue;
            }
        }
        const struct sw_utf8_sequence next = sw_utf8_read((struct sw_text){text.data + at, text.bytes - at});
        if (next.kind != SW_UTF8_WHOLE)
            break;
        at += next.bytes;
    }
    return at;
}

bool sw_utf8_is_valid(struct sw_text text) {
    return sw_utf8_valid_bytes(text) == text.bytes;
}

sw_status sw_utf8_append_repaired(struct sw_text text, struct sw_text_buffer *out, size_t *out_held) {
    static const struct sw_text replacement = {"\xEF\xBF\xBD", 3};
    if (out_held != NULL)
        *out_held = 0;
    for (;;) {
        const size_t valid = sw_utf8_valid_bytes(text);
        SW_TRY(sw_text_buffer_append(out, (struct sw_text){text.data, valid}));
        text = (struct sw_text){text.data + valid, text.bytes - valid};
        if (text.bytes == 0)
            return SW_OK;
        const struct sw_utf8_sequence broken = sw_utf8_read(text);
        if (broken.kind == SW_UTF8_CUT && out_held != NULL) {
            *out_held = broken.bytes;
            return SW_OK;
        }
        SW_TRY(sw_text_buffer_append(out, replacement));
        text = (struct sw_text){text.data + broken.bytes, text.bytes - broken.bytes};
    }
}

bool sw_utf8_is_space(uint32_t code) {
    return (code >= 0x09 && code <= 0x0D) || code == 0x20 || code == 0x85 || code == 0xA0 || code == 0x1680 ||
           (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F ||
           code == 0x3000;
}

bool sw_utf8_is_numeric(uint32_t code) {
    if (code < 0x80)
        return code >= '0' && code <= '9';
    const enum sw_category category = sw_category_of(code);
    return category == SW_ND || category == SW_NL || category == SW_NO;
}

/* Circled and squared letters are alphabetic although their category is So (Unicode, Other_Alphabetic). */
static bool is_enclosed_letter(uint32_t code) {
    return (code >= 0x24B6 && code <= 0x24E9) || (code >= 0x1F130 && code <= 0x1F149) ||
           (code >= 0x1F150 && code <= 0x1F169) || (code >= 0x1F170 && code <= 0x1F189);
}

bool sw_utf8_is_word(uint32_t code) {
    enum { ZERO_WIDTH_NON_JOINER = 0x200C, ZERO_WIDTH_JOINER = 0x200D };
    switch (sw_category_of(code)) {
    case SW_LU:
    case SW_LL:
    case SW_LT:
    case SW_LM:
    case SW_LO:
    case SW_NL:
    case SW_MN:
    case SW_MC:
    case SW_ME:
    case SW_ND:
    case SW_PC: return true;
    default: return is_enclosed_letter(code) || code == ZERO_WIDTH_NON_JOINER || code == ZERO_WIDTH_JOINER;
    }
}

size_t sw_utf8_leading_space_bytes(struct sw_text text) {
    size_t at = 0;
    while (at < text.bytes) {
        const struct sw_utf8_sequence next = sw_utf8_read((struct sw_text){text.data + at, text.bytes - at});
        if (!sw_utf8_is_space(next.code))
            break;
        at += next.bytes;
    }
    return at;
}

/* Returns where the last character of a valid text that is not empty begins. */
static size_t last_begins(struct sw_text text) {
    size_t at = text.bytes - 1;
    while (at > 0 && ((unsigned char)text.data[at] & 0xC0) == 0x80)
        at--;
    return at;
}

uint32_t sw_utf8_last(struct sw_text text) {
    const size_t at = last_begins(text);
    return sw_utf8_read((struct sw_text){text.data + at, text.bytes - at}).code;
}

size_t sw_utf8_trailing_space_bytes(struct sw_text text) {
    struct sw_text left = text;
    while (left.bytes > 0 && sw_utf8_is_space(sw_utf8_last(left)))
        left.bytes = last_begins(left);
    return text.bytes - left.bytes;
}
