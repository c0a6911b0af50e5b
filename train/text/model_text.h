/* The text side of a model's folder: its tokenizer, its vocabulary and the tokens that end a text. */
#ifndef SW_TRAIN_TEXT_MODEL_TEXT_H
#define SW_TRAIN_TEXT_MODEL_TEXT_H

#include "train/text/tokenizer.h"

struct sw_model_text {
    struct sw_tokenizer *tokenizer;
    int64_t vocab;             /* the model's, of config.json; the tokenizer's where there is no such file */
    struct sw_token_list ends; /* eos_token_id of generation_config.json, or of config.json */
};

/* Tells whether a folder has a tokenizer.json. NULL: there is no folder. */
bool sw_model_text_is_there(const char *folder);
/* Reads a folder, or a tokenizer.json alone. Refuses a tokenizer with more tokens than the model. */
sw_status sw_model_text_open(const char *path, struct sw_model_text *out);
void sw_model_text_close(struct sw_model_text *text);

/* Tells whether a token ends a text. */
bool sw_model_text_ends(const struct sw_model_text *text, int32_t id);

#endif
