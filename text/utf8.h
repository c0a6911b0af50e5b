/* UTF-8 (RFC 3629), and the classes of characters that tokenizers use. */
#ifndef SW_TEXT_UTF8_H
#define SW_TEXT_UTF8_H

#include "core/text/text.h"
#include "text/buffer.h"

#include <stdbool.h>
#include <stdint.h>

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
