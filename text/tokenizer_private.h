/* The parts of a tokenizer. */
#ifndef SW_TEXT_TOKENIZER_PRIVATE_H
#define SW_TEXT_TOKENIZER_PRIVATE_H

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer.h"
#include "text/vocabulary.h"

/* How tokens become text ("decoder" of a tokenizer.json). */
struct sw_decoding {
    enum { SW_DECODING_BYTE_LEVEL, SW_DECODING_METASPACE, SW_DECODING_STEPS } kind;
    struct sw_text_buffer from, to; /* characters replaced in each token, and what by; 0 bytes: none */
    bool keeps_first;               /* Metaspace: the first token's spaces stay */
    bool joins_bytes;               /* tokens such as <0x0A> are bytes */
    char strips[8];                 /* character that is taken from the text's beginning */
    int64_t strip_count;            /* so many of them at most */
};

struct sw_tokenizer {
    struct sw_vocabulary *vocabulary;
    struct sw_bpe *bpe;
    struct sw_normalizer *normalizer;
    struct sw_pre_tokenizer *pre;
    struct sw_added_tokens *added;
    struct sw_token_list before, after; /* put around a text */
    struct sw_decoding decoding;
};

/* Reads the value `decoder`. */
sw_status sw_decoding_read(const json_t *json, bool byte_level, const char *path, struct sw_decoding *out);
void sw_decoding_release(struct sw_decoding *decoding);

#endif
