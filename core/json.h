/* The program's one reader of JSON (RFC 8259): Jansson, behind limits that are ours. */
#ifndef SW_CORE_JSON_H
#define SW_CORE_JSON_H

#include "core/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* The deepest nesting of lists and objects that is read; and the most memory of the values of one text, which may be
 * eighty times the text. */
enum { SW_JSON_MOST_LEVELS = 512, SW_JSON_MOST_BYTES = 256 << 20 };

/* Stands for U+0000 in the names of members, where Jansson has no room for a zero byte: U+FDD0 and U+FDEF, which are
 * no characters. */
#define SW_JSON_ZERO_IN_NAME "\xEF\xB7\x90\xEF\xB7\xAF"

typedef enum {
    SW_JSON_PLAIN, /* a file of which no string may have U+0000 */
    SW_JSON_TEXTS, /* a file with texts, in which U+0000 is a character like others (a tokenizer.json) */
    SW_JSON_DATA   /* one value of training data: it may be of any kind, and NaN, as Python writes it, is null */
} sw_json_kind;

struct sw_json_source {
    const char *text; /* UTF-8, perhaps with a byte order mark; it needs no zero byte at its end */
    size_t bytes;
    const char *name; /* begins the messages */
    sw_status bad;    /* the status where the text is not JSON */
    sw_json_kind kind;
    int lines_before; /* where the text is a part of a file: lines of it before the text's first */
};

/* Parses a text. Integers beyond 64 bits become reals, and reals beyond double (Infinity as well) the largest finite
 * one. Refuses two members of one name in an object, more than SW_JSON_MOST_LEVELS or SW_JSON_MOST_BYTES, and NaN but
 * in data. Errors name
 * the line of a file. The caller releases *out. */
sw_status sw_json_decode(struct sw_json_source source, json_t **out);

/* Parses a text that may be incomplete, such as the last line of a log. *out is NULL where it is not JSON, which is no
 * error. The caller releases *out. */
sw_status sw_json_try(const char *text, size_t bytes, json_t **out);

/* Tells whether there was no memory for any value, as what was to hold it then lacks it in silence. */
bool sw_json_lacked_memory(void);

/* Returns the text of a value, like json_dumps; NULL: no memory, now or for any value that may be missing here. The
 * caller frees it. */
char *sw_json_text(const json_t *value, size_t flags);

#endif
