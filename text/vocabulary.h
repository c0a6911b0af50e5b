/* The tokens of a tokenizer's model: ids by text, and texts by id. */
#ifndef SW_TEXT_VOCABULARY_H
#define SW_TEXT_VOCABULARY_H

#include "text/buffer.h"

#include <jansson.h>
#include <stdbool.h>

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

/* Ids are below this, which keeps two of them and a rank in 64 bits. */
enum { SW_VOCABULARY_MOST_IDS = 1 << 24 };

struct sw_vocabulary;

/* Reads the object `vocab` of a tokenizer.json, text → id. Where byte_level is set, each character of a text stands for
 * a byte (GPT-2's table), and the vocabulary holds the bytes. */
sw_status sw_vocabulary_create(const struct sw_large_member *vocab, bool byte_level, struct sw_vocabulary **out);
void sw_vocabulary_destroy(struct sw_vocabulary *vocabulary);

/* One more than the largest id. */
int32_t sw_vocabulary_ids(const struct sw_vocabulary *vocabulary);

/* Returns the id of a token, or -1. The text is what encoding sees: bytes where the vocabulary is byte-level. */
int32_t sw_vocabulary_find(const struct sw_vocabulary *vocabulary, struct sw_text text);
/* Does the same for a token as the file spells it. SW_ERR_NOMEM or SW_OK; *out_id is -1 where it is not there. */
sw_status sw_vocabulary_find_spelled(const struct sw_vocabulary *vocabulary, struct sw_text spelled, int32_t *out_id);
/* The text of an id, borrowed; of 0 bytes with a NULL pointer where no token has this id. */
struct sw_text sw_vocabulary_text(const struct sw_vocabulary *vocabulary, int32_t id);

/* Appends the bytes that the characters of a token stand for in a byte-level vocabulary, or the token itself where one
 * of them stands for none. */
sw_status sw_vocabulary_append_bytes(struct sw_text spelled, struct sw_text_buffer *out);

#endif
