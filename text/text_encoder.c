/* A text becomes tokens in five steps: it is made valid UTF-8; added tokens are taken out of it; what lies between them
 * is normalized, and added tokens are taken out of that; pieces are cut; each piece is encoded. */
#include "text/tokenizer.h"
#include "text/tokenizer_private.h"
#include "text/utf8.h"

#include <stdbool.h>
#include <stdlib.h>

static bool is_lower(char c) {
    return c >= 'a' && c <= 'z';
}

static bool is_letter(char c) {
    return is_lower(c) || (c >= 'A' && c <= 'Z');
}

/* Tells whether a byte begins a character from U+4000 to U+9FFF: none is a space or combines with another. */
static bool begins_chinese(char c) {
    const unsigned char byte = (unsigned char)c;
    return byte >= 0xE4 && byte <= 0xE9;
}

/* Tells whether the text may be cut before the space at `at`: "word| word". */
static bool is_between_words(struct sw_text text, size_t at) {
    const char *c = text.data + at;
    return c[0] == ' ' && is_lower(c[-1]) && is_letter(c[1]);
}

/* Tells whether the text may be cut before the byte at `at`: "word\n|word". */
static bool is_behind_line(struct sw_text text, size_t at) {
    const char *c = text.data + at;
    if (c[-1] != '\n' || (!is_letter(c[0]) && !begins_chinese(c[0])))
        return false;
    return (c[-2] > ' ' && c[-2] <= '~') || (at >= 4 && begins_chinese(c[-4]));
}

struct sw_text_cut sw_text_cut(struct sw_text text, enum sw_text_parts parts, size_t from) {
    enum { BEFORE = 2, BEHIND = 2 }; /* characters that are looked at beside a place */
    if (parts == SW_TEXT_WHOLE || text.bytes < BEFORE + BEHIND)
        return (struct sw_text_cut){0};
    for (size_t at = text.bytes - BEHIND; at >= BEFORE && at + BEHIND >= from; at--) {
        if (is_between_words(text, at))
            return (struct sw_text_cut){at, parts == SW_TEXT_IN_WORDS ? at + 1 : at};
        if (parts == SW_TEXT_IN_PARTS && is_behind_line(text, at))
            return (struct sw_text_cut){at, at};
    }
    return (struct sw_text_cut){0};
}

struct sw_text_encoder {
    const struct sw_tokenizer *tokenizer;
    struct sw_bpe_scratch *bpe;
    struct sw_pattern_scratch *pattern;
    struct sw_pre_tokenizer_scratch *pre;
    struct sw_normalizer_scratch normal;
    struct sw_text_buffer repaired;
};

sw_status sw_text_encoder_create(const struct sw_tokenizer *tokenizer, struct sw_text_encoder **out) {
    struct sw_text_encoder *encoder = calloc(1, sizeof *encoder);
    sw_status status = encoder == NULL ? sw_fail(SW_ERR_NOMEM, "no memory to encode text") : SW_OK;
    if (status == SW_OK)
        status = sw_bpe_scratch_create(&encoder->bpe);
    if (status == SW_OK)
        status = sw_pattern_scratch_create(&encoder->pattern);
    if (status == SW_OK)
        status = sw_pre_tokenizer_scratch_create(&encoder->pre);
    if (status != SW_OK) {
        sw_text_encoder_destroy(encoder);
        return status;
    }
    encoder->tokenizer = tokenizer;
    *out = encoder;
    return SW_OK;
}

void sw_text_encoder_destroy(struct sw_text_encoder *encoder) {
    if (encoder == NULL)
        return;
    sw_bpe_scratch_destroy(encoder->bpe);
    sw_pattern_scratch_destroy(encoder->pattern);
    sw_pre_tokenizer_scratch_destroy(encoder->pre);
    sw_normalizer_scratch_release(&encoder->normal);
    free(encoder->repaired.data);
    free(encoder);
}

const struct sw_tokenizer *sw_text_encoder_tokenizer(const struct sw_text_encoder *encoder) {
    return encoder->tokenizer;
}

/* One text on its way. */
struct encoding {
    struct sw_text_encoder *encoder;
    bool parse_special;
    struct sw_token_list *out;
};

static sw_status encode_piece(void *context, struct sw_text piece) {
    struct encoding *encoding = context;
    return sw_bpe_encode(encoding->encoder->tokenizer->bpe, encoding->encoder->bpe, piece, encoding->out);
}

static sw_status encode_cut(struct encoding *encoding, struct sw_text text, bool first) {
    const struct sw_piece_taker taker = {.take = encode_piece, .context = encoding};
    return sw_pre_tokenize(encoding->encoder->tokenizer->pre, encoding->encoder->pre, text, first, taker);
}

static sw_status encode_normalized(struct encoding *encoding, struct sw_text text, bool first);

/* Takes added tokens out of a text and hands on what lies between them. */
static sw_status encode_between(struct encoding *encoding, struct sw_text text, bool first, bool normalized) {
    const struct sw_added_search search = {.normalized = normalized, .with_special = encoding->parse_special};
    struct sw_added_match match = {0};
    do {
        const size_t at = match.end;
        match = sw_added_tokens_next(encoding->encoder->tokenizer->added, text, match, search);
        const struct sw_text between = {text.data + at, match.begin > at ? match.begin - at : 0};
        const bool begins = first && at == 0;
        SW_TRY(normalized ? encode_cut(encoding, between, begins) : encode_normalized(encoding, between, begins));
        SW_TRY(match.token == NULL ? SW_OK : sw_token_list_append(encoding->out, &match.token->id, 1));
    } while (match.token != NULL);
    return SW_OK;
}

static sw_status encode_normalized(struct encoding *encoding, struct sw_text text, bool first) {
    struct sw_text_encoder *encoder = encoding->encoder;
    SW_TRY(sw_normalize(encoder->tokenizer->normalizer, &encoder->normal, encoder->pattern, &text));
    return encode_between(encoding, text, first, true);
}

sw_status sw_text_encode(struct sw_text_encoder *encoder, struct sw_text text, struct sw_encode_options options,
                         struct sw_token_list *out) {
    const struct sw_tokenizer *tokenizer = encoder->tokenizer;
    struct encoding encoding = {.encoder = encoder, .parse_special = options.parse_special, .out = out};
    if (!sw_utf8_is_valid(text)) {
        encoder->repaired.bytes = 0;
        SW_TRY(sw_utf8_append_repaired(text, &encoder->repaired, NULL));
        text = sw_text_of_buffer(&encoder->repaired);
    }
    SW_TRY(options.add_special ? sw_token_list_append(out, tokenizer->before.id, tokenizer->before.count) : SW_OK);
    SW_TRY(encode_between(&encoding, text, !options.continues, false));
    return options.add_special ? sw_token_list_append(out, tokenizer->after.id, tokenizer->after.count) : SW_OK;
}
