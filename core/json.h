/* The program's only reader of JSON (RFC 8259): Jansson, behind our own limits. */
#ifndef SW_CORE_JSON_H
#define SW_CORE_JSON_H

#include "core/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* The deepest nesting of lists and objects; and the most memory for the values of one text, which may be eighty times
 * the text. */
enum { SW_JSON_MOST_LEVELS = 512, SW_JSON_MOST_BYTES = 256 << 20 };

/* Stands for U+0000 in names of members, since Jansson has no room for a zero byte there: U+FDD0 and U+FDEF, which are
 * no characters. */
#define SW_JSON_ZERO_IN_NAME "\xEF\xB7\x90\xEF\xB7\xAF"

typedef enum {
    SW_JSON_PLAIN, /* a file in which no string may have U+0000 */
    SW_JSON_TEXTS, /* a file whose strings may have U+0000 like any character (a tokenizer.json) */
    SW_JSON_DATA   /* one value of training data: of any kind; NaN, as Python writes it, is null */
} sw_json_kind;

struct sw_json_source {
    const char *text; /* UTF-8, with or without byte order mark; need not end in a zero byte */
    size_t bytes;
    const char *name; /* begins the messages */
    sw_status bad;    /* the status if the text is not JSON */
    sw_json_kind kind;
    int lines_before; /* if the text is part of a file: the number of lines before it */
};

/* Parses a text. Integers beyond 64 bits become reals; reals beyond double, and Infinity, become the largest finite
 * one. Refuses two members of the same name in an object, more than SW_JSON_MOST_LEVELS or SW_JSON_MOST_BYTES, and,
 * except in data, NaN. Errors name the line of the file. The caller releases *out. */
sw_status sw_json_decode(struct sw_json_source source, json_t **out);

/* Parses a text that may be incomplete, such as the last line of a log. *out is NULL if it is not JSON, which is no
 * error. The caller releases *out. */
sw_status sw_json_try(const char *text, size_t bytes, json_t **out);

/* Defined only by a library, in whose process others may use Jansson: its allocator is that of the process, and stays
 * as it is. The results of json_pack and the like then tell alone whether memory ran out. */
extern const bool sw_json_is_shared __attribute__((weak));

/* Tells whether memory ever ran out for a value, since the object that should hold it then silently lacks it. */
bool sw_json_lacked_memory(void);

/* Returns the text of a value, like json_dumps; NULL: no memory, now or for any value that may be missing. The caller
 * frees it. */
char *sw_json_text(const json_t *value, size_t flags);

#endif
