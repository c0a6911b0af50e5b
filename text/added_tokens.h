/* Tokens beside a model's vocabulary, which are looked for in a text before it is cut ("added_tokens" of a
 * tokenizer.json): special ones, such as the end of a turn, and others. */
#ifndef SW_TEXT_ADDED_TOKENS_H
#define SW_TEXT_ADDED_TOKENS_H

#include "text/buffer.h"
#include "text/normalizer.h"
#include "text/vocabulary.h"

#include <jansson.h>
#include <stdbool.h>

struct sw_added_token {
    struct sw_text content;    /* as the file has it */
    struct sw_text normalized; /* what is looked for, where is_normalized is set */
    int32_t id;
    bool special;
    bool is_normalized;             /* looked for in the normalized text, else in the text as given */
    bool single_word;               /* not within a word */
    bool strips_left, strips_right; /* takes the white space beside it */
};

/* Read by any number of threads. */
struct sw_added_tokens;

sw_status sw_added_tokens_create(const json_t *json, const struct sw_vocabulary *vocabulary,
                                 const struct sw_normalizer *normalizer, const char *path,
                                 struct sw_added_tokens **out);
void sw_added_tokens_destroy(struct sw_added_tokens *added);

/* Returns the token with an id or a content, or NULL. */
const struct sw_added_token *sw_added_token_of_id(const struct sw_added_tokens *added, int32_t id);
const struct sw_added_token *sw_added_token_find(const struct sw_added_tokens *added, const char *content);
/* One more than the largest id; 0: there are none. */
int32_t sw_added_tokens_ids(const struct sw_added_tokens *added);

/* Tells whether no token reaches over a place where sw_text_cut cuts, nor takes white space or a word there. */
bool sw_added_tokens_take_parts(const struct sw_added_tokens *added);
/* Tells whether every token begins, perhaps behind the character that stands for a space, and ends with a punctuation
 * mark, so that a space between letters is neither in one nor beside one. */
bool sw_added_tokens_leave_words(const struct sw_added_tokens *added, struct sw_text space);

/* Finds the first special token at `from` or later, as it is spelled in the file, without the white space that it
 * takes. Returns NULL where there is none. */
const struct sw_added_token *sw_added_tokens_next_special(const struct sw_added_tokens *added, struct sw_text text,
                                                          size_t from, size_t *out_begin);

/* Where a token was found, with the white space that it takes. */
struct sw_added_match {
    const struct sw_added_token *token; /* NULL: there is none */
    size_t begin, end;
    size_t resume; /* where to look for the next one: before `end` where white space was taken */
};
/* The kinds of tokens to look for. */
struct sw_added_search {
    bool normalized;   /* the tokens of normalized texts, else those of texts as given */
    bool with_special; /* special tokens too; else they are text like any other */
};
/* Finds the token after another match, at first one of zeroes. */
struct sw_added_match sw_added_tokens_next(const struct sw_added_tokens *added, struct sw_text text,
                                           struct sw_added_match before, struct sw_added_search search);

#endif
