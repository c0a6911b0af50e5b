/* Classes of characters in regular expressions, "[...]" and escapes such as \w, as Oniguruma has them. */
#ifndef SW_TEXT_PATTERN_CLASS_H
#define SW_TEXT_PATTERN_CLASS_H

#include "text/buffer.h"
#include "text/unicode.h"

/* Code points and whole categories. A zeroed struct is empty. */
struct sw_class {
    struct sw_code_set set;
    uint32_t categories;
};
void sw_class_release(struct sw_class *class);

/* Reads the escape behind the backslash at `at`: a class (*out_is_class; added to `class`) or one character
 * (*out_code). *out_bytes is 0 where it is neither: an anchor, or what has no known meaning. */
sw_status sw_class_read_escape(const char *at, struct sw_class *class, bool *out_is_class, uint32_t *out_code,
                               size_t *out_bytes);
/* Reads the class that begins with the bracket at `at`. *out_fault names what was not understood; NULL: nothing. */
sw_status sw_class_read(const char *at, struct sw_class *class, bool *out_negated, size_t *out_bytes,
                        const char **out_fault);
/* Tells whether upper and lower case are the same for it: no letter outside of ASCII is in it. */
bool sw_class_is_ascii(const struct sw_class *class);
/* Appends it for PCRE2: exact, or by PCRE2's own tables alone, which is quicker and right where all characters are
 * stable (sw_category_is_stable). */
sw_status sw_class_write(struct sw_class *class, bool negated, bool exact, struct sw_text_buffer *out);

#endif
