/* Regular expressions of a tokenizer.json, which are written for Oniguruma, matched by PCRE2. */
#ifndef SW_TEXT_PATTERN_H
#define SW_TEXT_PATTERN_H

#include "text/buffer.h"

#include <stdbool.h>

/* Read by any number of threads. */
struct sw_pattern;

/* Compiles an expression, which sw_pattern_translate reads and which a zero byte follows, or a string that matches
 * itself. `path` is for messages. */
sw_status sw_pattern_create(struct sw_text expression, bool literal, const char *path, struct sw_pattern **out);
void sw_pattern_destroy(struct sw_pattern *pattern);

/* Scratch memory of one thread that matches. */
struct sw_pattern_scratch;
sw_status sw_pattern_scratch_create(struct sw_pattern_scratch **out);
void sw_pattern_scratch_destroy(struct sw_pattern_scratch *scratch);

/* Tells of the text in which, or in parts of which, matches will be found. */
void sw_pattern_begin(struct sw_pattern_scratch *scratch, struct sw_text text);
/* Finds the first match that is not empty and begins at `from` or later, in valid UTF-8; *out_bytes is 0 where there is
 * none. */
sw_status sw_pattern_find(const struct sw_pattern *pattern, struct sw_pattern_scratch *scratch, struct sw_text text,
                          size_t from, size_t *out_begin, size_t *out_bytes);

#endif
