/* The vocabulary and the merges of a tokenizer.json, which are read in parts: as values of Jansson they would take
 * twenty times their size. */
#ifndef SW_TEXT_LARGE_MEMBERS_H
#define SW_TEXT_LARGE_MEMBERS_H

#include "text/buffer.h"

#include <jansson.h>

/* The inside of an object or a list, without its brackets. */
struct sw_large_member {
    struct sw_text text; /* borrowed from the file's text; NULL: not found */
    int line;            /* where it begins, from 1 */
    const char *path;    /* of the file, for messages; borrowed */
    char begin, end;     /* its brackets */
};

struct sw_large_members {
    struct sw_large_member vocab, merges;
};

/* Finds `vocab` and `merges` of `model`, and appends the text without their insides, but with its lines, to *rest. What
 * is not found by its name as it is written here stays in the rest; so do errors. */
sw_status sw_large_members_cut(struct sw_text text, const char *path, struct sw_large_members *out,
                               struct sw_text_buffer *rest);

/* Calls `take` for one part of the member after the other: an object, or a list, with some of its elements. Refuses
 * what is not JSON, with its line, and stops at the first error. */
sw_status sw_large_member_read(const struct sw_large_member *member,
                               sw_status (*take)(void *context, const json_t *part), void *context);

#endif
