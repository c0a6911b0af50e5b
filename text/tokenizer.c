/* Text to tokens and back, with the ids of Hugging Face's `tokenizers`.
 *
 * A text becomes tokens in five steps: it is made valid UTF-8; added tokens are found in it; what is between them is
 * normalized, and added tokens are found in that; pieces are cut; each piece is encoded. Each step is a file of its own
 * that reads its part of tokenizer.json and refuses what it does not have by name. An unknown setting that is ignored
 * would give ids that are nearly right.
 *
 * Special tokens in a user's text are text unless the caller asks: a document must not be able to end a turn. */
#include "text/tokenizer.h"

#include "core/files/files.h"
#include "core/files/json_file.h"
#include "core/files/model_files.h"
#include "core/log.h"
#include "core/status.h"
#include "text/bpe.h"
#include "text/pre_tokenizer.h"
#include "text/unicode.h"
#include "text/vocabulary.h"

#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* How tokens become text ("decoder" of a tokenizer.json). */
struct sw_decoding {
    enum { SW_DECODING_BYTE_LEVEL, SW_DECODING_METASPACE, SW_DECODING_STEPS } kind;
    struct sw_text_buffer from, to; /* replacement of characters in each token; from 0 bytes: none */
    bool keeps_first;               /* Metaspace: the spaces of the first token stay */
    bool joins_bytes;               /* tokens such as <0x0A> are bytes */
    char strips[8];                 /* character removed from the beginning of the text */
    int64_t strip_count;            /* at most this many */
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

/* A tokenizer.json of 256 thousand tokens has about 30 MB. */
enum { MOST_FILE_BYTES = 256 << 20 };

static sw_status add_special_id(const struct sw_tokenizer *tokenizer, const json_t *piece, const json_t *post,
                                const char *path, struct sw_token_list *list) {
    const char *name = json_string_value(json_object_get(piece, "id"));
    const json_t *ids = json_object_get(json_object_get(json_object_get(post, "special_tokens"), name), "ids");
    if (name == NULL || !json_is_array(ids))
        return sw_fail(SW_ERR_ARG, "%s: its template names a special token without ids", path);
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const int32_t id = (int32_t)json_integer_value(json_array_get(ids, i));
        if (id < 0 || id >= sw_tokenizer_ids(tokenizer))
            return sw_fail(SW_ERR_ARG, "%s: its template puts the id %d, which no token has", path, id);
        SW_TRY(sw_token_list_append(list, &id, 1));
    }
    return SW_OK;
}

/* Reads the tokens that a template puts before and after a single text. */
static sw_status read_template(struct sw_tokenizer *tokenizer, const json_t *post, const char *path) {
    const json_t *single = json_object_get(post, "single");
    bool text_seen = false;
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *part = json_array_get(single, i);
        const json_t *special = json_object_get(part, "SpecialToken");
        struct sw_token_list *list = text_seen ? &tokenizer->after : &tokenizer->before;
        if (special != NULL)
            SW_TRY(add_special_id(tokenizer, special, post, path, list));
        else if (text_seen || json_object_get(part, "Sequence") == NULL)
            return sw_fail(SW_ERR_UNSUPPORTED, "%s: its template for a text is not special tokens around it", path);
        else
            text_seen = true;
    }
    return text_seen ? SW_OK : sw_fail(SW_ERR_ARG, "%s: its template leaves out the text", path);
}

/* Reads ["<s>", 0], a token that BERT's and RoBERTa's processors put at one end of a text. */
static sw_status add_named(const struct sw_tokenizer *tokenizer, const json_t *pair, const char *path,
                           struct sw_token_list *list) {
    const json_t *number = json_array_get(pair, 1);
    if (!json_is_integer(number) || json_integer_value(number) < 0 ||
        json_integer_value(number) >= sw_tokenizer_ids(tokenizer))
        return sw_fail(SW_ERR_ARG, "%s: its post-processor puts a token that is not there", path);
    const int32_t id = (int32_t)json_integer_value(number);
    return sw_token_list_append(list, &id, 1);
}

static sw_status read_ends(struct sw_tokenizer *tokenizer, const json_t *post, const char *path) {
    SW_TRY(add_named(tokenizer, json_object_get(post, "cls"), path, &tokenizer->before));
    return add_named(tokenizer, json_object_get(post, "sep"), path, &tokenizer->after);
}

static sw_status read_post_processor(struct sw_tokenizer *tokenizer, const json_t *post, const char *path) {
    const char *type = json_string_value(json_object_get(post, "type"));
    if (post == NULL || json_is_null(post))
        return SW_OK;
    if (type != NULL && strcmp(type, "ByteLevel") == 0) /* changes offsets, not tokens */
        return SW_OK;
    const bool is_template = type != NULL && strcmp(type, "TemplateProcessing") == 0;
    const bool has_ends =
        type != NULL && (strcmp(type, "RobertaProcessing") == 0 || strcmp(type, "BertProcessing") == 0);
    if ((is_template || has_ends) && (tokenizer->before.count > 0 || tokenizer->after.count > 0))
        return sw_fail(SW_ERR_UNSUPPORTED, "%s: two of its post-processors put tokens around a text", path);
    if (is_template)
        return read_template(tokenizer, post, path);
    if (has_ends)
        return read_ends(tokenizer, post, path);
    if (type == NULL || strcmp(type, "Sequence") != 0)
        return sw_fail(SW_ERR_UNSUPPORTED, "%s: this version does not have the post-processor '%.60s'", path,
                       type == NULL ? "" : type);
    const json_t *list = json_object_get(post, "processors");
    for (size_t i = 0; i < json_array_size(list); i++)
        SW_TRY(read_post_processor(tokenizer, json_array_get(list, i), path));
    return SW_OK;
}

static sw_status decoding_read(const json_t *json, bool byte_level, const char *path, struct sw_decoding *out);

/* The character that Llama 2 and Mistral use for spaces, U+2581. */
static const struct sw_text metaspace = {"\xE2\x96\x81", 3};

static sw_status build(struct sw_tokenizer *tokenizer, const json_t *json, const struct sw_large_members *large,
                       const char *path) {
    const json_t *model = json_object_get(json, "model");
    const char *type = json_string_value(json_object_get(model, "type"));
    /* Old files name no type if it is BPE. */
    if (!json_is_object(model) || (type != NULL && strcmp(type, "BPE") != 0))
        return sw_fail(SW_ERR_UNSUPPORTED, "%s: this version has tokenizers of the type BPE, not '%.60s'", path,
                       type == NULL ? "" : type);
    const char *version = json_string_value(json_object_get(json, "version"));
    if (version != NULL && strcmp(version, "1.0") != 0)
        return sw_fail(SW_ERR_UNSUPPORTED, "%s: it has the version '%.20s'; this version reads 1.0", path, version);
    if (json_is_object(json_object_get(json, "truncation")) || json_is_object(json_object_get(json, "padding")))
        sw_log_info(
            "%s: its truncation and padding have no effect here, as in transformers unless a call asks for them", path);
    SW_TRY(sw_pre_tokenizer_create(json_object_get(json, "pre_tokenizer"), path, &tokenizer->pre));
    const bool byte_level = sw_pre_tokenizer_is_byte_level(tokenizer->pre);
    SW_TRY(sw_vocabulary_create(&large->vocab, byte_level, &tokenizer->vocabulary));
    SW_TRY(sw_bpe_create(model, &large->merges, tokenizer->vocabulary, byte_level, &tokenizer->bpe));
    SW_TRY(sw_normalizer_create(json_object_get(json, "normalizer"), path, &tokenizer->normalizer));
    SW_TRY(sw_added_tokens_create(json_object_get(json, "added_tokens"), tokenizer->vocabulary, tokenizer->normalizer,
                                  path, &tokenizer->added));
    SW_TRY(read_post_processor(tokenizer, json_object_get(json, "post_processor"), path));
    SW_TRY(decoding_read(json_object_get(json, "decoder"), byte_level, path, &tokenizer->decoding));
    if (sw_bpe_may_cut_before(tokenizer->bpe, metaspace))
        sw_pre_tokenizer_cut_before(tokenizer->pre, metaspace);
    return SW_OK;
}

/* Refuses a folder without a tokenizer.json, and says which tokenizer it has instead. */
static sw_status check_folder(const char *folder, const char *path) {
    static const char *const others[] = {"tokenizer.model", "tekken.json", "vocab.json", "spiece.model", "vocab.txt"};
    if (access(path, F_OK) == 0)
        return SW_OK;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        char other[PATH_MAX];
        SW_TRY(sw_path_join(other, sizeof other, folder, others[i]));
        if (access(other, F_OK) == 0)
            return sw_fail(SW_ERR_ARG,
                           "%s has no tokenizer.json, but %s, which is not read: make one with python3 -c \"from "
                           "transformers import AutoTokenizer as T; T.from_pretrained('%s').save_pretrained('%s')\"",
                           folder, others[i], folder, folder);
    }
    return sw_fail(SW_ERR_ARG, "%s has no tokenizer.json: download it from where the model came from", folder);
}

/* A folder stands for its tokenizer.json. */
static sw_status resolve(const char *given, char path[PATH_MAX]) {
    struct stat info;
    if (stat(given, &info) != 0)
        SW_TRY(sw_hub_refuse_name(given));
    else if (S_ISDIR(info.st_mode)) {
        SW_TRY(sw_path_join(path, PATH_MAX, given, "tokenizer.json"));
        return check_folder(given, path);
    }
    if (strlen(given) >= PATH_MAX)
        return sw_fail(SW_ERR_ARG, "the path of a tokenizer is too long");
    memcpy(path, given, strlen(given) + 1);
    return SW_OK;
}

/* Builds a tokenizer from the text of its file. */
static sw_status build_of(struct sw_tokenizer *tokenizer, struct sw_text text, const char *path) {
    struct sw_large_members large;
    struct sw_text_buffer rest = {0};
    json_t *json = NULL;
    sw_status status = sw_large_members_cut(text, path, &large, &rest);
    if (status == SW_OK)
        status = sw_text_buffer_append(&rest, (struct sw_text){"", 1});
    if (status == SW_OK)
        status = sw_json_parse_file(rest.data, path, SW_ERR_ARG, &json);
    free(rest.data);
    if (status == SW_OK)
        status = build(tokenizer, json, &large, path);
    json_decref(json);
    return status;
}

sw_status sw_tokenizer_load(const char *path, struct sw_tokenizer **out) {
    char file[PATH_MAX], *text;
    SW_TRY(resolve(path, file));
    SW_TRY(sw_file_read_text(file, MOST_FILE_BYTES, &text));
    struct sw_tokenizer *tokenizer = calloc(1, sizeof *tokenizer);
    const sw_status status = tokenizer == NULL ? sw_fail(SW_ERR_NOMEM, "no memory for a tokenizer")
                                               : build_of(tokenizer, (struct sw_text){text, strlen(text)}, file);
    free(text);
    if (status != SW_OK) {
        sw_tokenizer_destroy(tokenizer);
        return status;
    }
    *out = tokenizer;
    return SW_OK;
}

static void decoding_release(struct sw_decoding *decoding);

void sw_tokenizer_destroy(struct sw_tokenizer *tokenizer) {
    if (tokenizer == NULL)
        return;
    decoding_release(&tokenizer->decoding);
    sw_added_tokens_destroy(tokenizer->added);
    sw_normalizer_destroy(tokenizer->normalizer);
    sw_pre_tokenizer_destroy(tokenizer->pre);
    sw_bpe_destroy(tokenizer->bpe);
    sw_vocabulary_destroy(tokenizer->vocabulary);
    free(tokenizer->before.id);
    free(tokenizer->after.id);
    free(tokenizer);
}

int32_t sw_tokenizer_ids(const struct sw_tokenizer *tokenizer) {
    const int32_t model = sw_vocabulary_ids(tokenizer->vocabulary), added = sw_added_tokens_ids(tokenizer->added);
    return model > added ? model : added;
}

int32_t sw_tokenizer_find(const struct sw_tokenizer *tokenizer, const char *spelled) {
    SW_HANDLES_ERRORS();
    int32_t id = -1;
    const struct sw_added_token *added = sw_added_token_find(tokenizer->added, spelled);
    if (added != NULL)
        return added->id;
    /* Without memory the token counts as missing. */
    (void)sw_vocabulary_find_spelled(tokenizer->vocabulary, (struct sw_text){spelled, strlen(spelled)}, &id);
    return id;
}

struct sw_text sw_tokenizer_text(const struct sw_tokenizer *tokenizer, int32_t id) {
    const struct sw_added_token *added = sw_added_token_of_id(tokenizer->added, id);
    return added != NULL ? added->content : sw_vocabulary_text(tokenizer->vocabulary, id);
}

const struct sw_token_list *sw_tokenizer_before(const struct sw_tokenizer *tokenizer) {
    return &tokenizer->before;
}

struct sw_special_match sw_tokenizer_next_special(const struct sw_tokenizer *tokenizer, struct sw_text text,
                                                  size_t from) {
    struct sw_special_match match = {.id = -1, .begin = text.bytes, .end = text.bytes};
    const struct sw_added_token *token = sw_added_tokens_next_special(tokenizer->added, text, from, &match.begin);
    if (token == NULL)
        return match;
    return (struct sw_special_match){.id = token->id,
                                     .begin = match.begin,
                                     .end = match.begin + token->content.bytes,
                                     .strips_left = token->strips_left,
                                     .strips_right = token->strips_right};
}

enum sw_text_parts sw_tokenizer_parts(const struct sw_tokenizer *tokenizer) {
    const bool forms = sw_normalizer_is_of_forms(tokenizer->normalizer);
    if (!sw_added_tokens_take_parts(tokenizer->added))
        return SW_TEXT_WHOLE;
    if (forms && sw_pre_tokenizer_takes_parts(tokenizer->pre))
        return SW_TEXT_IN_PARTS;
    const bool normalizer_begins = sw_normalizer_is_of_words(tokenizer->normalizer, metaspace);
    const bool begins = sw_pre_tokenizer_cuts_words(tokenizer->pre, metaspace, normalizer_begins);
    return (forms || normalizer_begins) && begins && sw_added_tokens_leave_words(tokenizer->added, metaspace)
               ? SW_TEXT_IN_WORDS
               : SW_TEXT_WHOLE;
}

/* The five steps from text to tokens (see the head of this file). */

static bool is_lower(char c) {
    return c >= 'a' && c <= 'z';
}

static bool is_letter(char c) {
    return is_lower(c) || (c >= 'A' && c <= 'Z');
}

/* Tells whether a byte begins a character from U+4000 to U+9FFF: none of them is a space or combines with another. */
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
    enum { BEFORE = 2, BEHIND = 2 }; /* characters examined on either side of a place */
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

/* One text while it is encoded. */
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

/* Finds added tokens in a text and passes on what is between them. */
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

/* The state of decoding. Tokens become text as the file's decoder says. Bytes that the next token may still change are
 * held back: those of an incomplete character and, if tokens such as <0x0A> are bytes, a run of these until it ends,
 * because one wrong byte turns all of it into replacement characters. */

struct sw_text_decoder {
    const struct sw_tokenizer *tokenizer;
    bool skip_special;
    bool begun;                    /* a token of this text has come */
    int64_t stripped;              /* characters removed from its beginning */
    bool strip_over;               /* another character has come */
    struct sw_text_buffer held;    /* bytes that are not characters yet */
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

/* The steps of Llama's decoder, in order: Replace, ByteFallback, Fuse, Strip. */
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

/* Reads the value `decoder`. */
static sw_status decoding_read(const json_t *json, bool byte_level, const char *path, struct sw_decoding *out) {
    const char *type = json_string_value(json_object_get(json, "type"));
    const json_t *list = json_object_get(json, "decoders");
    /* A sequence of one is the same as its only step. */
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

static void decoding_release(struct sw_decoding *decoding) {
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

/* Appends a text without the characters that are stripped from its very beginning. */
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

/* Releases a run of byte tokens: its text, or a replacement character per byte if it is invalid. */
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

/* Reads a token such as <0x0A>; -1: any other token. */
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

/* Appends bytes. Those that begin an incomplete character wait. */
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
