/* Tokens become text as the file's decoder says. What may still change by the next token is held back: the bytes of a
 * character that is not whole, and, where tokens such as <0x0A> are bytes, a run of these until it ends, because one
 * wrong byte turns all of it into replacement characters. */
#include "text/tokenizer.h"
#include "text/tokenizer_private.h"
#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>

struct sw_text_decoder {
    const struct sw_tokenizer *tokenizer;
    bool skip_special;
    bool begun;                    /* a token of this text came */
    int64_t stripped;              /* characters taken from its beginning */
    bool strip_over;               /* another character came */
    struct sw_text_buffer held;    /* bytes that are no characters yet */
    struct sw_text_buffer scratch; /* of one token */
};

static const struct sw_text replacement = {"\xEF\xBF\xBD", 3};

static sw_status unsupported(const char *path, const char *type) {
    return sw_fail(SW_ERR_UNSUPPORTED, "%s: this version does not have the decoder '%.60s' at its place", path,
                   type == NULL ? "" : type);
}

static sw_status append_string(const json_t *json, const char *name, const char *path, struct sw_text_buffer *out) {
    const char *text = json_string_value(json_object_get(json, name));
    if (text == NULL)
        return sw_fail(SW_ERR_ARG, "%s: a decoder has no '%s'", path, name);
    return sw_text_buffer_append(out, (struct sw_text){text, strlen(text)});
}

static sw_status read_replace(const json_t *json, const char *path, struct sw_decoding *out) {
    const json_t *pattern = json_object_get(json, "pattern");
    if (json_object_get(pattern, "String") == NULL || out->from.bytes > 0 || out->joins_bytes)
        return unsupported(path, "Replace");
    SW_TRY(append_string(pattern, "String", path, &out->from));
    return append_string(json, "content", path, &out->to);
}

static sw_status read_strip(const json_t *json, const char *path, struct sw_decoding *out) {
    const char *content = json_string_value(json_object_get(json, "content"));
    if (content == NULL || *content == 0 || strlen(content) >= sizeof out->strips || out->strip_count > 0 ||
        json_integer_value(json_object_get(json, "stop")) != 0)
        return unsupported(path, "Strip");
    memcpy(out->strips, content, strlen(content));
    out->strip_count = json_integer_value(json_object_get(json, "start"));
    return SW_OK;
}

/* The steps of Llama's decoder, in their order: Replace, ByteFallback, Fuse, Strip. */
static sw_status read_steps(const json_t *json, const char *path, struct sw_decoding *out) {
    const json_t *list = json_object_get(json, "decoders");
    bool fused = false;
    out->kind = SW_DECODING_STEPS;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *step = json_array_get(list, i);
        const char *type = json_string_value(json_object_get(step, "type"));
        if (type != NULL && strcmp(type, "Replace") == 0 && !fused)
            SW_TRY(read_replace(step, path, out));
        else if (type != NULL && strcmp(type, "ByteFallback") == 0 && !fused)
            out->joins_bytes = true;
        else if (type != NULL && strcmp(type, "Fuse") == 0)
            fused = true;
        else if (type != NULL && strcmp(type, "Strip") == 0 && fused)
            SW_TRY(read_strip(step, path, out));
        else
            return unsupported(path, type);
    }
    return SW_OK;
}

static sw_status read_metaspace(const json_t *json, const char *path, struct sw_decoding *out) {
    const char *scheme = json_string_value(json_object_get(json, "prepend_scheme"));
    out->kind = SW_DECODING_METASPACE;
    out->keeps_first =
        scheme != NULL ? strcmp(scheme, "never") == 0 : json_is_false(json_object_get(json, "add_prefix_space"));
    SW_TRY(append_string(json, "replacement", path, &out->from));
    return sw_text_buffer_append(&out->to, (struct sw_text){" ", 1});
}

sw_status sw_decoding_read(const json_t *json, bool byte_level, const char *path, struct sw_decoding *out) {
    const char *type = json_string_value(json_object_get(json, "type"));
    const json_t *list = json_object_get(json, "decoders");
    /* A sequence of one is that one. */
    if (byte_level && type != NULL && strcmp(type, "Sequence") == 0 && json_array_size(list) == 1)
        type = json_string_value(json_object_get(json_array_get(list, 0), "type"));
    if (byte_level != (type != NULL && strcmp(type, "ByteLevel") == 0))
        return unsupported(path, type);
    if (byte_level) {
        out->kind = SW_DECODING_BYTE_LEVEL;
        return SW_OK;
    }
    if (type != NULL && strcmp(type, "Sequence") == 0)
        return read_steps(json, path, out);
    if (type != NULL && strcmp(type, "Metaspace") == 0)
        return read_metaspace(json, path, out);
    return unsupported(path, type);
}

void sw_decoding_release(struct sw_decoding *decoding) {
    free(decoding->from.data);
    free(decoding->to.data);
}

sw_status sw_text_decoder_create(const struct sw_tokenizer *tokenizer, bool skip_special,
                                 struct sw_text_decoder **out) {
    struct sw_text_decoder *decoder = calloc(1, sizeof *decoder);
    if (decoder == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to decode tokens");
    *decoder = (struct sw_text_decoder){.tokenizer = tokenizer, .skip_special = skip_special};
    *out = decoder;
    return SW_OK;
}

void sw_text_decoder_destroy(struct sw_text_decoder *decoder) {
    if (decoder == NULL)
        return;
    free(decoder->held.data);
    free(decoder->scratch.data);
    free(decoder);
}

/* Appends a text with one string replaced by another, which may be empty. */
static sw_status append_replaced(struct sw_text text, struct sw_text from, struct sw_text to,
                                 struct sw_text_buffer *out) {
    while (text.bytes > 0) {
        const char *found = from.bytes == 0 ? NULL : memmem(text.data, text.bytes, from.data, from.bytes);
        const size_t before = found == NULL ? text.bytes : (size_t)(found - text.data);
        const size_t taken = found == NULL ? before : before + from.bytes;
        SW_TRY(sw_text_buffer_append(out, (struct sw_text){text.data, before}));
        SW_TRY(found == NULL ? SW_OK : sw_text_buffer_append(out, to));
        text = (struct sw_text){text.data + taken, text.bytes - taken};
    }
    return SW_OK;
}

/* Appends a text without the characters that are stripped from the beginning of all of it. */
static sw_status append_stripped(struct sw_text_decoder *decoder, struct sw_text text, struct sw_text_buffer *out) {
    const struct sw_decoding *decoding = &decoder->tokenizer->decoding;
    const size_t bytes = strlen(decoding->strips);
    while (!decoder->strip_over && decoder->stripped < decoding->strip_count && text.bytes > 0) {
        if (text.bytes < bytes || memcmp(text.data, decoding->strips, bytes) != 0) {
            decoder->strip_over = true;
            break;
        }
        decoder->stripped++;
        text = (struct sw_text){text.data + bytes, text.bytes - bytes};
    }
    return sw_text_buffer_append(out, text);
}

/* Lets a run of byte tokens go: its text, or a replacement character for each byte where it is none. */
static sw_status end_bytes(struct sw_text_decoder *decoder, struct sw_text_buffer *out) {
    const struct sw_text held = sw_text_of_buffer(&decoder->held);
    decoder->held.bytes = 0;
    if (held.bytes == 0)
        return SW_OK;
    if (sw_utf8_is_valid(held))
        return append_stripped(decoder, held, out);
    for (size_t i = 0; i < held.bytes; i++)
        SW_TRY(append_stripped(decoder, replacement, out));
    return SW_OK;
}

/* Reads a token such as <0x0A>; -1: it is another one. */
static int byte_of(struct sw_text token) {
    if (token.bytes != 6 || memcmp(token.data, "<0x", 3) != 0 || token.data[5] != '>')
        return -1;
    int byte = 0;
    for (int i = 3; i < 5; i++) {
        static const char digits[] = "0123456789ABCDEF0123456789abcdef";
        const char *digit = token.data[i] == 0 ? NULL : strchr(digits, token.data[i]);
        if (digit == NULL)
            return -1;
        byte = 16 * byte + (int)((digit - digits) % 16);
    }
    return byte;
}

static sw_status decode_steps(struct sw_text_decoder *decoder, struct sw_text token, struct sw_text_buffer *out) {
    const struct sw_decoding *decoding = &decoder->tokenizer->decoding;
    const int byte = decoding->joins_bytes ? byte_of(token) : -1;
    if (byte >= 0) {
        const char text = (char)byte;
        return sw_text_buffer_append(&decoder->held, (struct sw_text){&text, 1});
    }
    SW_TRY(end_bytes(decoder, out));
    decoder->scratch.bytes = 0;
    SW_TRY(append_replaced(token, sw_text_of_buffer(&decoding->from), sw_text_of_buffer(&decoding->to),
                           &decoder->scratch));
    return append_stripped(decoder, sw_text_of_buffer(&decoder->scratch), out);
}

static sw_status decode_metaspace(struct sw_text_decoder *decoder, struct sw_text token, struct sw_text_buffer *out) {
    const struct sw_decoding *decoding = &decoder->tokenizer->decoding;
    const bool drops = !decoder->begun && !decoding->keeps_first;
    const struct sw_text to = drops ? (struct sw_text){0} : sw_text_of_buffer(&decoding->to);
    return append_replaced(token, sw_text_of_buffer(&decoding->from), to, out);
}

/* Appends bytes, of which those wait that are the beginning of a character. */
static sw_status decode_bytes(struct sw_text_decoder *decoder, struct sw_text bytes, struct sw_text_buffer *out) {
    size_t held;
    if (bytes.bytes == 0)
        return SW_OK;
    SW_TRY(sw_text_buffer_append(&decoder->held, bytes));
    SW_TRY(sw_utf8_append_repaired(sw_text_of_buffer(&decoder->held), out, &held));
    if (held > 0)
        memmove(decoder->held.data, decoder->held.data + decoder->held.bytes - held, held);
    decoder->held.bytes = held;
    return SW_OK;
}

sw_status sw_text_decode(struct sw_text_decoder *decoder, int32_t id, struct sw_text_buffer *out) {
    const struct sw_tokenizer *tokenizer = decoder->tokenizer;
    const struct sw_added_token *added = sw_added_token_of_id(tokenizer->added, id);
    if (added != NULL && added->special && decoder->skip_special)
        return SW_OK;
    struct sw_text text = sw_vocabulary_text(tokenizer->vocabulary, id);
    if (added != NULL)
        text = added->is_normalized ? added->normalized : added->content;
    if (text.data == NULL)
        return SW_OK;
    sw_status status;
    if (tokenizer->decoding.kind == SW_DECODING_STEPS) {
        status = decode_steps(decoder, text, out);
    } else if (tokenizer->decoding.kind == SW_DECODING_METASPACE) {
        status = decode_metaspace(decoder, text, out);
    } else if (added == NULL) {
        status = decode_bytes(decoder, text, out);
    } else {
        decoder->scratch.bytes = 0;
        status = sw_vocabulary_append_bytes(text, &decoder->scratch);
        if (status == SW_OK)
            status = decode_bytes(decoder, sw_text_of_buffer(&decoder->scratch), out);
    }
    decoder->begun = true;
    return status;
}

sw_status sw_text_decode_end(struct sw_text_decoder *decoder, struct sw_text_buffer *out) {
    sw_status status = SW_OK;
    if (decoder->tokenizer->decoding.kind == SW_DECODING_STEPS)
        status = end_bytes(decoder, out);
    else if (decoder->held.bytes > 0)
        status = sw_utf8_append_repaired(sw_text_of_buffer(&decoder->held), out, NULL);
    decoder->held.bytes = 0;
    decoder->begun = decoder->strip_over = false;
    decoder->stripped = 0;
    return status;
}
