/* Classes of characters by the tables of Unicode 16, which the package `tokenizers` uses, whatever versions of PCRE2
 * and utf8proc are installed; and sets of characters. */
#ifndef SW_TEXT_UNICODE_H
#define SW_TEXT_UNICODE_H

#include "core/status.h"
#include "core/text/text.h"
#include "text/buffer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* General categories, by groups: letters are 0 to 4. */
enum sw_category {
    SW_LU,
    SW_LL,
    SW_LT,
    SW_LM,
    SW_LO,
    SW_MN,
    SW_MC,
    SW_ME,
    SW_ND,
    SW_NL,
    SW_NO,
    SW_PC,
    SW_PD,
    SW_PS,
    SW_PE,
    SW_PI,
    SW_PF,
    SW_PO,
    SW_SM,
    SW_SC,
    SW_SK,
    SW_SO,
    SW_ZS,
    SW_ZL,
    SW_ZP,
    SW_CC,
    SW_CF,
    SW_CS,
    SW_CO,
    SW_CN,
    SW_CATEGORIES
};
#define SW_OF_CATEGORY(category) (UINT32_C(1) << (category))

/* Runs of one category, by their first code point: the code point from bit 8 up, the category from bit 3 up, and in the
 * lowest bits since when: 0: Unicode 14 or before; 1: 15; 2: 15.1 or 16. */
enum { SW_CATEGORY_RUNS = 4135, SW_CODE_POINTS = 0x110000, SW_UNICODE_VERSION = 16, SW_OLDEST_UNICODE = 14 };
extern const uint32_t sw_category_run[SW_CATEGORY_RUNS];

struct sw_code_range {
    uint32_t first, last;
};
struct sw_script {
    const char *name;
    size_t ranges;
    const struct sw_code_range *range;
};
extern const struct sw_script sw_scripts[]; /* ended by an entry without a name */

enum sw_category sw_category_of(uint32_t code);
/* Tells whether every Unicode version from 14 on gives a code point its category. A code point that Unicode 16 leaves
 * unassigned may get one later. */
bool sw_category_is_stable(uint32_t code);

/* Reads the name of a category or of a group ("Lu", "L", "Uppercase_Letter"), ignoring case, spaces, '-' and '_'.
 * Returns the categories as bits; 0: no such name. */
uint32_t sw_categories_named(const char *name, size_t chars);
/* Returns the script of that name, or NULL. */
const struct sw_script *sw_script_named(const char *name, size_t chars);

/* A set of code points: ranges, sorted and disjoint once sw_code_set_settle has run. A zeroed struct is empty. */
struct sw_code_set {
    struct sw_code_range *range;
    size_t count, capacity;
};
void sw_code_set_release(struct sw_code_set *set);
sw_status sw_code_set_add(struct sw_code_set *set, uint32_t first, uint32_t last);
/* Adds the code points of categories that have had their category only since `since` (above) or later. */
sw_status sw_code_set_add_categories(struct sw_code_set *set, uint32_t categories, unsigned since);
sw_status sw_code_set_add_all(struct sw_code_set *set, const struct sw_code_set *other);
void sw_code_set_settle(struct sw_code_set *set);
sw_status sw_code_set_invert(struct sw_code_set *set);
sw_status sw_code_set_intersect(struct sw_code_set *set, struct sw_code_set *other);

/* UTF-8 (RFC 3629), and the classes of characters that tokenizers use. */

/* Reads the sequence at the beginning of a text of at least one byte. */
static inline struct sw_utf8_sequence sw_utf8_read(struct sw_text text) {
    return sw_utf8_first(text.data, text.bytes);
}

/* Returns how many bytes of the text precede its first invalid or incomplete sequence. */
size_t sw_utf8_valid_bytes(struct sw_text text);
/* Tells whether all of a text is UTF-8. */
bool sw_utf8_is_valid(struct sw_text text);
/* Appends a text in which U+FFFD replaces each maximal subpart that is not UTF-8. A sequence cut by the end is replaced
 * too, unless `out_held` is given: then it is left out, and *out_held is its length. */
sw_status sw_utf8_append_repaired(struct sw_text text, struct sw_text_buffer *out, size_t *out_held);

/* Tells whether a character has the Unicode property White_Space. */
bool sw_utf8_is_space(uint32_t code);
/* Tells whether a character has category Nd, Nl or No. */
bool sw_utf8_is_numeric(uint32_t code);
/* Tells whether \w matches a character, by Unicode Technical Standard 18: Alphabetic, marks, decimal digits,
 * connectors, joiners. */
bool sw_utf8_is_word(uint32_t code);

/* Return how many bytes of white space a text begins or ends with. */
size_t sw_utf8_leading_space_bytes(struct sw_text text);
size_t sw_utf8_trailing_space_bytes(struct sw_text text);
/* Returns the last character of a valid text that is not empty. */
uint32_t sw_utf8_last(struct sw_text text);

#endif
