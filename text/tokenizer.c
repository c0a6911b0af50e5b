#include "text/tokenizer.h"

#include "core/error_scope.h"
#include "core/files/files.h"
#include "core/files/hub.h"
#include "core/files/json_file.h"
#include "core/log.h"
#include "text/tokenizer_private.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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

/* The tokens that a template puts before and behind a single text. */
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

/* Reads ["<s>", 0], a token that BERT's and RoBERTa's processors put at an end of a text. */
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

/* The character that Llama 2 and Mistral put for spaces, U+2581. */
static const struct sw_text metaspace = {"\xE2\x96\x81", 3};

static sw_status build(struct sw_tokenizer *tokenizer, const json_t *json, const struct sw_large_members *large,
                       const char *path) {
    const json_t *model = json_object_get(json, "model");
    const char *type = json_string_value(json_object_get(model, "type"));
    /* Files of old versions name no type where it is BPE. */
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
    SW_TRY(sw_decoding_read(json_object_get(json, "decoder"), byte_level, path, &tokenizer->decoding));
    if (sw_bpe_may_cut_before(tokenizer->bpe, metaspace))
        sw_pre_tokenizer_cut_before(tokenizer->pre, metaspace);
    return SW_OK;
}

/* Refuses a folder that has no tokenizer.json, and says which tokenizer it has instead. */
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

/* A folder stands for the tokenizer.json in it. */
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

/* Builds a tokenizer of the text of its file. */
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

void sw_tokenizer_destroy(struct sw_tokenizer *tokenizer) {
    if (tokenizer == NULL)
        return;
    sw_decoding_release(&tokenizer->decoding);
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
    /* Without memory the token counts as not there. */
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

bool sw_tokenizer_is_special(const struct sw_tokenizer *tokenizer, int32_t id) {
    const struct sw_added_token *added = sw_added_token_of_id(tokenizer->added, id);
    return added != NULL && added->special;
}
