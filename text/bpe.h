/* Byte pair encoding (Sennrich et al., arXiv 1508.07909): symbols of a piece of text are joined pair by pair, the pair
 * of the lowest rank first, the leftmost of equal ones. */
#ifndef SW_TEXT_BPE_H
#define SW_TEXT_BPE_H

#include "text/buffer.h"
#include "text/vocabulary.h"

#include <jansson.h>
#include <stdbool.h>

/* Vocabulary and merges. Any number of threads may read it. */
struct sw_bpe;

/* Reads the object `model` of a tokenizer.json, with its merges, and checks that everything it asks for is supported.
 * `byte_level`: symbols are bytes, else characters. Borrows the vocabulary, which must outlive it. */
sw_status sw_bpe_create(const json_t *model, const struct sw_large_member *merges,
                        const struct sw_vocabulary *vocabulary, bool byte_level, struct sw_bpe **out);
void sw_bpe_destroy(struct sw_bpe *bpe);

/* Tells whether a text may be cut before each run of this character (UTF-8) without changing the result: no merge joins
 * it to what comes before. */
bool sw_bpe_may_cut_before(const struct sw_bpe *bpe, struct sw_text character);

/* Scratch memory of one thread, with its recent pieces. */
struct sw_bpe_scratch;
sw_status sw_bpe_scratch_create(struct sw_bpe_scratch **out);
void sw_bpe_scratch_destroy(struct sw_bpe_scratch *scratch);

/* Appends the ids of a piece of at most 16 MiB of valid UTF-8. */
sw_status sw_bpe_encode(const struct sw_bpe *bpe, struct sw_bpe_scratch *scratch, struct sw_text piece,
                        struct sw_token_list *out);

#endif
