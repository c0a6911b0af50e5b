/* Digests of all that decides which tokens become of text: two equal ones stand for equal token files. */
#ifndef SW_TEXT_DOCUMENTS_TOKENIZE_DIGEST_H
#define SW_TEXT_DOCUMENTS_TOKENIZE_DIGEST_H

#include "core/status.h"

#include <xxhash.h>

/* A version of the tokenization. Another one gives other digests, so that tokens of older versions are not used. */
#define SW_TOKENIZE_VERSION "text-6"

/* Takes in a text with its end, so that "ab" and "c" differ from "a" and "bc". NULL counts as a text of its own. */
void sw_digest_text(XXH3_state_t *hash, const char *text);
/* Takes in the bytes of a file. */
sw_status sw_digest_file(XXH3_state_t *hash, const char *path);
/* Takes in what a model's folder, or a tokenizer.json, says of text. */
sw_status sw_digest_model(XXH3_state_t *hash, const char *model);

#endif
