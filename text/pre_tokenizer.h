/* Cuts a text into the pieces that are encoded separately ("pre_tokenizer" of a tokenizer.json). */
#ifndef SW_TEXT_PRE_TOKENIZER_H
#define SW_TEXT_PRE_TOKENIZER_H

#include "text/buffer.h"
#include "text/pattern.h"

#include <jansson.h>
#include <stdbool.h>

/* Any number of threads may read it. */
struct sw_pre_tokenizer;

/* Reads the value `pre_tokenizer`; null: the text is one piece. Refuses unsupported types by name. */
sw_status sw_pre_tokenizer_create(const json_t *json, const char *path, struct sw_pre_tokenizer **out);
void sw_pre_tokenizer_destroy(struct sw_pre_tokenizer *pre);

/* Tells whether it ends in ByteLevel: the model's symbols are bytes. */
bool sw_pre_tokenizer_is_byte_level(const struct sw_pre_tokenizer *pre);

/* Cuts texts before each run of a character, if it would leave them whole. For models whose result does not change by
 * that. */
void sw_pre_tokenizer_cut_before(struct sw_pre_tokenizer *pre, struct sw_text character);
/* Tells whether parts of a text, cut as SW_TEXT_IN_PARTS says, become the same pieces as the whole. */
bool sw_pre_tokenizer_takes_parts(const struct sw_pre_tokenizer *pre);
/* Tells whether it cuts before a character that stands for spaces, and a text gets one before its first word. `given`:
 * the normalizer has put the character in place of spaces and before the text. */
bool sw_pre_tokenizer_cuts_words(const struct sw_pre_tokenizer *pre, struct sw_text character, bool given);

struct sw_pre_tokenizer_scratch;
sw_status sw_pre_tokenizer_scratch_create(struct sw_pre_tokenizer_scratch **out);
void sw_pre_tokenizer_scratch_destroy(struct sw_pre_tokenizer_scratch *scratch);

/* The function that receives the pieces, in order. */
struct sw_piece_taker {
    sw_status (*take)(void *context, struct sw_text piece);
    void *context;
};
/* Cuts valid UTF-8. `first`: it is the beginning of the whole text. */
sw_status sw_pre_tokenize(const struct sw_pre_tokenizer *pre, struct sw_pre_tokenizer_scratch *scratch,
                          struct sw_text text, bool first, struct sw_piece_taker taker);

/* Changes a text before it is cut ("normalizer" of a tokenizer.json). */

/* Any number of threads may read it. */
struct sw_normalizer;

/* Reads the value `normalizer`; null: texts stay as they are. Refuses unsupported types by name. */
sw_status sw_normalizer_create(const json_t *json, const char *path, struct sw_normalizer **out);
void sw_normalizer_destroy(struct sw_normalizer *normalizer);
/* Tells whether all of its steps are Unicode normal forms. */
bool sw_normalizer_is_of_forms(const struct sw_normalizer *normalizer);
/* Tells whether it only puts a character before each text and in place of each space. */
bool sw_normalizer_is_of_words(const struct sw_normalizer *normalizer, struct sw_text character);

/* Buffers of one thread, between which a text alternates. A zeroed struct is empty. */
struct sw_normalizer_scratch {
    struct sw_text_buffer buffer[2];
};
void sw_normalizer_scratch_release(struct sw_normalizer_scratch *scratch);

/* Normalizes valid UTF-8. Replaces *text by the result, which is in the scratch memory until the next call, or leaves
 * it if nothing changes. Fails if the steps make a text many times as long. */
sw_status sw_normalize(const struct sw_normalizer *normalizer, struct sw_normalizer_scratch *scratch,
                       struct sw_pattern_scratch *pattern, struct sw_text *text);

#endif
