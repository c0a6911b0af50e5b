/* Changes a text before it is cut ("normalizer" of a tokenizer.json). */
#ifndef SW_TEXT_NORMALIZER_H
#define SW_TEXT_NORMALIZER_H

#include "text/buffer.h"
#include "text/pattern.h"

#include <jansson.h>

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
