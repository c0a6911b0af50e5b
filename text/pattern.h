/* Regular expressions of a tokenizer.json, written for Oniguruma and matched by PCRE2. */
#ifndef SW_TEXT_PATTERN_H
#define SW_TEXT_PATTERN_H

#include "text/buffer.h"

#include <stdbool.h>

/* Any number of threads may read it. */
struct sw_pattern;

/* Compiles an expression, which must end in a zero byte; or, with `literal`,
 * a string that matches itself. `path` is for messages. */
sw_status sw_pattern_create(struct sw_text expression, bool literal, const char *path, struct sw_pattern **out);
void sw_pattern_destroy(struct sw_pattern *pattern);

/* Scratch memory of one thread that matches. */
struct sw_pattern_scratch;
sw_status sw_pattern_scratch_create(struct sw_pattern_scratch **out);
void sw_pattern_scratch_destroy(struct sw_pattern_scratch *scratch);

/* Announces the text in which, or in parts of which, matches will be searched. */
void sw_pattern_begin(struct sw_pattern_scratch *scratch, struct sw_text text);
/* Finds the first match that is not empty and begins at `from` or later, in valid UTF-8. *out_bytes is 0 if there is
 * none. */
sw_status sw_pattern_find(const struct sw_pattern *pattern, struct sw_pattern_scratch *scratch, struct sw_text text,
                          size_t from, size_t *out_begin, size_t *out_bytes);

#endif
