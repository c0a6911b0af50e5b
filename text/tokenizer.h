/* Text to tokens and back by a model's tokenizer.json, with the ids of Hugging Face's package `tokenizers`: byte-level
 * byte pair encoding (GPT-2, Llama 3, Qwen, SmolLM) and that of characters with byte fallback (Llama 2, Mistral).
 * Refuses by name what a file asks for and is not supported. */
#ifndef SW_TEXT_TOKENIZER_H
#define SW_TEXT_TOKENIZER_H

#include "core/status.h"
#include "text/buffer.h"

#include <stdbool.h>
#include <stdint.h>

/* How a text may be cut into parts for a tokenizer (sw_tokenizer_parts). */
enum sw_text_parts {
    SW_TEXT_WHOLE,    /* it may not be cut */
    SW_TEXT_IN_PARTS, /* at any place that sw_text_cut finds */
    /* At spaces, each of which is left out: the tokenizer puts what stands for a space before each text. */
    SW_TEXT_IN_WORDS
};

/* A place to cut. */
struct sw_text_cut {
    size_t end;   /* end of the first part; 0: there is no place */
    size_t begin; /* beginning of the second part */
};

/* Returns the last place at `from` or later. The text must be valid UTF-8. */
struct sw_text_cut sw_text_cut(struct sw_text text, enum sw_text_parts parts, size_t from);

/* Any number of threads may read it. */
struct sw_tokenizer;

/* Reads a tokenizer.json, or the one of a folder. The caller destroys the tokenizer. */
sw_status sw_tokenizer_load(const char *path, struct sw_tokenizer **out);
void sw_tokenizer_destroy(struct sw_tokenizer *tokenizer);

/* Returns one more than the largest id: the vocabulary that a model needs. */
int32_t sw_tokenizer_ids(const struct sw_tokenizer *tokenizer);
/* Returns the id of a token by its spelling in the file, or -1. */
int32_t sw_tokenizer_find(const struct sw_tokenizer *tokenizer, const char *spelled);
/* Returns the text of a token, which the tokenizer owns; empty: no token has the id. */
struct sw_text sw_tokenizer_text(const struct sw_tokenizer *tokenizer, int32_t id);
/* Returns the special tokens that the file puts before a text (`single` of its TemplateProcessing). */
const struct sw_token_list *sw_tokenizer_before(const struct sw_tokenizer *tokenizer);

/* A special token found in a text. */
struct sw_special_match {
    int32_t id; /* -1: there is none */
    size_t begin, end;
    bool strips_left, strips_right; /* it includes the white space next to it */
};
/* Finds the first special token at `from` or later. */
struct sw_special_match sw_tokenizer_next_special(const struct sw_tokenizer *tokenizer, struct sw_text text,
                                                  size_t from);

/* Returns how a text may be cut into parts whose tokens, one after the other, are those of the whole. */
enum sw_text_parts sw_tokenizer_parts(const struct sw_tokenizer *tokenizer);

/* Scratch memory of one thread that encodes. */
struct sw_text_encoder;
/* Borrows the tokenizer, which must outlive the encoder. */
sw_status sw_text_encoder_create(const struct sw_tokenizer *tokenizer, struct sw_text_encoder **out);
void sw_text_encoder_destroy(struct sw_text_encoder *encoder);
const struct sw_tokenizer *sw_text_encoder_tokenizer(const struct sw_text_encoder *encoder);

struct sw_encode_options {
    /* Special tokens spelled in the text become these tokens. Otherwise they are text like any other, as a user's text
     * must be, which may not end a turn. */
    bool parse_special;
    bool add_special; /* add what the file puts around a text, such as the token that begins it */
    bool continues;   /* the text follows others: what only begins a whole text is left out */
};
/* Appends the tokens of a text. Invalid UTF-8 becomes U+FFFD, one per maximal subpart (Unicode, 3.9). */
sw_status sw_text_encode(struct sw_text_encoder *encoder, struct sw_text text, struct sw_encode_options options,
                         struct sw_token_list *out);

/* Tokens to text, as they come. */
struct sw_text_decoder;
/* Borrows the tokenizer, which must outlive the decoder. skip_special: leaves out special tokens. */
sw_status sw_text_decoder_create(const struct sw_tokenizer *tokenizer, bool skip_special, struct sw_text_decoder **out);
void sw_text_decoder_destroy(struct sw_text_decoder *decoder);
/* Appends the text that a token completes: only whole characters. Ignores an id without a token. */
sw_status sw_text_decode(struct sw_text_decoder *decoder, int32_t id, struct sw_text_buffer *out);
/* Appends the rest, with U+FFFD for incomplete characters, and begins a new text. */
sw_status sw_text_decode_end(struct sw_text_decoder *decoder, struct sw_text_buffer *out);

#endif
