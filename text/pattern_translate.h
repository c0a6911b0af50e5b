/* Translates regular expressions from Oniguruma, in its syntax of Ruby, to PCRE2. */
#ifndef SW_TEXT_PATTERN_TRANSLATE_H
#define SW_TEXT_PATTERN_TRANSLATE_H

#include "text/buffer.h"

#include <stdbool.h>

/* Appends an expression for PCRE2 with its options UTF and UCP and lines that end in LF, which matches what
 * `expression` matches in Oniguruma with the tables of Unicode 16: in all texts if `exact` is set, else in those whose
 * characters are all stable (sw_category_is_stable), and quicker. A construct whose meaning is not known to be equal is
 * refused by name. `path` is for messages. */
sw_status sw_pattern_translate(const char *expression, bool exact, const char *path, struct sw_text_buffer *out);

#endif
