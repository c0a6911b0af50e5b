/* The tokens of a tokenizer's model: ids by text, and texts by id. */
#ifndef SW_TEXT_VOCABULARY_H
#define SW_TEXT_VOCABULARY_H

#include "core/status.h"
#include "text/buffer.h"
#include "text/pre_tokenizer.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The inside of an object or a list, without its brackets. */
struct sw_large_member {
    struct sw_text text; /* borrowed from the file's text; NULL: not found */
    int line;            /* line of its beginning, from 1 */
    const char *path;    /* of the file, for messages; borrowed */
    char begin, end;     /* its brackets */
};

struct sw_large_members {
    struct sw_large_member vocab, merges;
};

/* Finds `vocab` and `merges` of `model`, and appends the text without their insides, but with its line ends, to *rest.
 * Members not found by exactly these names stay in the rest, as do errors. */
sw_status sw_large_members_cut(struct sw_text text, const char *path, struct sw_large_members *out,
                               struct sw_text_buffer *rest);

/* Calls `take` for one part of the member after the other; a part is an object, or a list, with some of its elements.
 * Refuses invalid JSON, with its line, and stops at the first error. */
sw_status sw_large_member_read(const struct sw_large_member *member,
                               sw_status (*take)(void *context, const json_t *part), void *context);

/* Ids are below this, so that two of them and a rank fit 64 bits. */
enum { SW_VOCABULARY_MOST_IDS = 1 << 24 };

struct sw_vocabulary;

/* Reads the object `vocab` of a tokenizer.json, text → id. With `byte_level`, each character of a text stands for a
 * byte (GPT-2's table), and the vocabulary holds the bytes. */
sw_status sw_vocabulary_create(const struct sw_large_member *vocab, bool byte_level, struct sw_vocabulary **out);
void sw_vocabulary_destroy(struct sw_vocabulary *vocabulary);

/* Returns one more than the largest id. */
int32_t sw_vocabulary_ids(const struct sw_vocabulary *vocabulary);

/* Returns the id of a token, or -1. `text` is what encoding sees: bytes, if the vocabulary is byte-level. */
int32_t sw_vocabulary_find(const struct sw_vocabulary *vocabulary, struct sw_text text);
/* Does the same for a token as the file spells it; *out_id is -1 if there is none. Fails only with SW_ERR_NOMEM. */
sw_status sw_vocabulary_find_spelled(const struct sw_vocabulary *vocabulary, struct sw_text spelled, int32_t *out_id);
/* Returns the text of an id, borrowed; 0 bytes and a NULL pointer: no token has this id. */
struct sw_text sw_vocabulary_text(const struct sw_vocabulary *vocabulary, int32_t id);

/* Appends the bytes that the characters of a token stand for in a byte-level vocabulary, or the token itself if one of
 * them stands for none. */
sw_status sw_vocabulary_append_bytes(struct sw_text spelled, struct sw_text_buffer *out);

/* Tokens in addition to a model's vocabulary, which are found in a text before it is cut ("added_tokens" of a
 * tokenizer.json): special ones, such as the end of a turn, and others. */
struct sw_added_token {
    struct sw_text content;    /* as in the file */
    struct sw_text normalized; /* what is searched for, if is_normalized is set */
    int32_t id;
    bool special;
    bool is_normalized;             /* found in the normalized text, else in the text as given */
    bool single_word;               /* not found within a word */
    bool strips_left, strips_right; /* includes the white space next to it */
};

/* Any number of threads may read it. */
struct sw_added_tokens;

sw_status sw_added_tokens_create(const json_t *json, const struct sw_vocabulary *vocabulary,
                                 const struct sw_normalizer *normalizer, const char *path,
                                 struct sw_added_tokens **out);
void sw_added_tokens_destroy(struct sw_added_tokens *added);

/* Returns the token with an id or a content, or NULL. */
const struct sw_added_token *sw_added_token_of_id(const struct sw_added_tokens *added, int32_t id);
const struct sw_added_token *sw_added_token_find(const struct sw_added_tokens *added, const char *content);
/* Returns one more than the largest id; 0: there are none. */
int32_t sw_added_tokens_ids(const struct sw_added_tokens *added);

/* Tells whether no token spans a place where sw_text_cut cuts, or includes white space or a word there. */
bool sw_added_tokens_take_parts(const struct sw_added_tokens *added);
/* Tells whether every token begins (after an optional character that stands for a space) and ends with a punctuation
 * mark, so that a space between letters is neither in a token nor next to one. */
bool sw_added_tokens_leave_words(const struct sw_added_tokens *added, struct sw_text space);

/* Finds the first special token at `from` or later, as the file spells it, without the white space it includes. Returns
 * NULL if there is none. */
const struct sw_added_token *sw_added_tokens_next_special(const struct sw_added_tokens *added, struct sw_text text,
                                                          size_t from, size_t *out_begin);

/* A token that was found, with the white space it includes. */
struct sw_added_match {
    const struct sw_added_token *token; /* NULL: there is none */
    size_t begin, end;
    size_t resume; /* where to search for the next one: before `end`, if white space was included */
};
/* The kinds of tokens to find. */
struct sw_added_search {
    bool normalized;   /* the tokens of normalized texts, else those of texts as given */
    bool with_special; /* also special tokens; otherwise they are text like any other */
};
/* Finds the token after another match; the first call passes a zeroed one. */
struct sw_added_match sw_added_tokens_next(const struct sw_added_tokens *added, struct sw_text text,
                                           struct sw_added_match before, struct sw_added_search search);

/* A hash table from 64-bit numbers to 64-bit numbers: merges by pairs of ids, and the edges of tries. Filled once, then
 * read by any number of threads. */

/* The value that means "not found"; it cannot be stored. */
#define SW_NUMBER_NONE UINT64_MAX

struct sw_number_slot {
    uint64_t key, value; /* SW_NUMBER_NONE: the slot is empty */
};

/* A zeroed map is empty and may be read. */
struct sw_number_map {
    struct sw_number_slot *slot; /* `slots` entries, a power of two, at most half of them used */
    size_t slots, used;
};

/* Stores a value, or replaces the key's. */
sw_status sw_number_map_put(struct sw_number_map *map, uint64_t key, uint64_t value);
void sw_number_map_release(struct sw_number_map *map);

static inline size_t sw_number_hash(uint64_t key) {
    key ^= key >> 32;
    key *= 0x9E3779B97F4A7C15ULL; /* the golden ratio: Fibonacci hashing */
    return (size_t)(key >> 20 ^ key >> 41);
}

/* Returns the value of a key, or SW_NUMBER_NONE. */
static inline uint64_t sw_number_map_get(const struct sw_number_map *map, uint64_t key) {
    if (map->slots == 0)
        return SW_NUMBER_NONE;
    for (size_t at = sw_number_hash(key) & (map->slots - 1);; at = (at + 1) & (map->slots - 1)) {
        const struct sw_number_slot *slot = &map->slot[at];
        if (slot->value == SW_NUMBER_NONE || slot->key == key)
            return slot->value;
    }
}

#endif
