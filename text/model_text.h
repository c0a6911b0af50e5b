/* The text side of a model's folder: its tokenizer, its vocabulary and the tokens that end a text. */
#ifndef SW_TEXT_MODEL_TEXT_H
#define SW_TEXT_MODEL_TEXT_H

#include "text/tokenizer.h"

struct sw_model_text {
    struct sw_tokenizer *tokenizer;
    int64_t vocab;             /* of the model, from config.json; without that file, the tokenizer's */
    struct sw_token_list ends; /* tokens that end a generated text */
    int32_t end;               /* token after a document; -1: none */
    const char *end_from;      /* the file that names it */
    int32_t old_end;           /* the same by the rules of runs before SW_RUN_TEXT_VERSION (run.h) */
    int32_t bos;               /* bos_token of the folder's files; -1: none */
};

/* Choices of --bos. A text begins with the tokens that the tokenizer puts there, with one in any case, or with none. */
#define SW_BOS_CHOICES "auto|yes|no"
enum { SW_BOS_AUTO, SW_BOS_YES, SW_BOS_NO };

/* Tells whether a folder has a tokenizer.json. NULL: there is no folder. */
bool sw_model_text_is_there(const char *folder);
/* Reads a folder, or a single tokenizer.json. Generated texts end with eos_token_id of generation_config.json, or of
 * config.json. A document ends with the first of these tokens, unless config.json names none in the vocabulary: then
 * with eos_token of tokenizer_config.json or special_tokens_map.json, if there is one. Refuses a tokenizer with more
 * tokens than the model. */
sw_status sw_model_text_open(const char *path, struct sw_model_text *out);
void sw_model_text_close(struct sw_model_text *text);

/* Appends the tokens that begin a text. Refuses SW_BOS_YES if the folder names no such token. */
sw_status sw_model_text_begin(const struct sw_model_text *text, int bos, struct sw_token_list *out);

/* Tells whether a token ends a text. */
bool sw_model_text_ends(const struct sw_model_text *text, int32_t id);

#endif
