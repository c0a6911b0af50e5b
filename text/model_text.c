#include "text/model_text.h"

#include "core/files/files.h"
#include "core/files/json_file.h"
#include "core/files/model_files.h"
#include "core/status.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

enum { MOST_CONFIG_BYTES = 16 << 20 };

/* Reads a JSON file of the folder; *out is NULL if it does not exist. */
static sw_status read_beside(const char *folder, const char *name, json_t **out) {
    char path[PATH_MAX];
    bool is_there;
    *out = NULL;
    SW_TRY(sw_model_file_find(folder, name, path, &is_there));
    return !is_there ? SW_OK : sw_json_read_file(path, MOST_CONFIG_BYTES, SW_ERR_ARG, out);
}

static sw_status add_end(struct sw_model_text *text, const json_t *id) {
    if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= text->vocab)
        return SW_OK;
    const int32_t end = (int32_t)json_integer_value(id);
    return sw_token_list_append(&text->ends, &end, 1);
}

/* Adds eos_token_id, which is a number or a list of numbers. */
static sw_status add_ends(struct sw_model_text *text, const json_t *config) {
    const json_t *ids = json_object_get(config, "eos_token_id");
    for (size_t i = 0; i < json_array_size(ids); i++)
        SW_TRY(add_end(text, json_array_get(ids, i)));
    return add_end(text, ids);
}

/* Returns the id of a token that a member names, by its spelling or by an object with its `content`; -1: none. */
static int32_t named_token(const struct sw_model_text *text, const json_t *config, const char *member) {
    const json_t *name = json_object_get(config, member);
    const char *spelled = json_string_value(json_is_object(name) ? json_object_get(name, "content") : name);
    const int32_t id = spelled != NULL ? sw_tokenizer_find(text->tokenizer, spelled) : -1;
    return id < text->vocab ? id : -1;
}

/* The files of a folder that name tokens. NULL: does not exist. */
struct configs {
    json_t *config, *generation, *tokenizer, *special;
};

static sw_status find_ends(struct sw_model_text *text, const struct configs *from) {
    SW_TRY(add_ends(text, from->config));
    const bool is_named = text->ends.count > 0;
    text->ends.count = 0;
    SW_TRY(add_ends(text, from->generation));
    text->end_from = text->ends.count > 0 ? "generation_config.json" : "config.json";
    if (text->ends.count == 0)
        SW_TRY(add_ends(text, from->config));
    text->old_end = text->end = text->ends.count > 0 ? text->ends.id[0] : -1;
    const int32_t named[] = {named_token(text, from->tokenizer, "eos_token"),
                             named_token(text, from->special, "eos_token")};
    for (int i = 1; i >= 0; i--) {
        if (is_named || named[i] < 0)
            continue;
        text->end = named[i];
        text->end_from = i == 0 ? "tokenizer_config.json" : "special_tokens_map.json";
    }
    return text->end < 0 || sw_model_text_ends(text, text->end) ? SW_OK
                                                                : sw_token_list_append(&text->ends, &text->end, 1);
}

static void find_bos(struct sw_model_text *text, const struct configs *from) {
    const json_t *id = json_object_get(from->config, "bos_token_id");
    text->bos = named_token(text, from->tokenizer, "bos_token");
    if (text->bos < 0)
        text->bos = named_token(text, from->special, "bos_token");
    if (text->bos < 0 && json_is_integer(id) && json_integer_value(id) >= 0 && json_integer_value(id) < text->vocab)
        text->bos = (int32_t)json_integer_value(id);
}

static sw_status read_configs(struct sw_model_text *text, const char *folder) {
    struct configs from = {0};
    sw_status status = read_beside(folder, "config.json", &from.config);
    if (status == SW_OK)
        status = read_beside(folder, "generation_config.json", &from.generation);
    if (status == SW_OK)
        status = read_beside(folder, "tokenizer_config.json", &from.tokenizer);
    if (status == SW_OK)
        status = read_beside(folder, "special_tokens_map.json", &from.special);
    if (status == SW_OK && json_integer_value(json_object_get(from.config, "vocab_size")) > 0)
        text->vocab = json_integer_value(json_object_get(from.config, "vocab_size"));
    if (status == SW_OK)
        status = find_ends(text, &from);
    if (status == SW_OK)
        find_bos(text, &from);
    json_decref(from.config);
    json_decref(from.generation);
    json_decref(from.tokenizer);
    json_decref(from.special);
    return status;
}

bool sw_model_text_is_there(const char *folder) {
    SW_HANDLES_ERRORS();
    char path[PATH_MAX];
    if (folder == NULL)
        return false;
    if (sw_path_join(path, sizeof path, folder, "tokenizer.json") == SW_OK)
        return faccessat(AT_FDCWD, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0 || (errno != ENOENT && errno != ENOTDIR);
    return false;
}

sw_status sw_model_text_open(const char *path, struct sw_model_text *out) {
    *out = (struct sw_model_text){.end = -1, .old_end = -1, .bos = -1};
    SW_TRY(sw_tokenizer_load(path, &out->tokenizer));
    out->vocab = sw_tokenizer_ids(out->tokenizer);
    sw_status status = sw_model_text_is_there(path) ? read_configs(out, path) : SW_OK;
    if (status == SW_OK && sw_tokenizer_ids(out->tokenizer) > out->vocab)
        status = sw_fail(SW_ERR_ARG, "%s: its tokenizer has %d tokens and its model %lld; they do not belong together",
                         path, sw_tokenizer_ids(out->tokenizer), (long long)out->vocab);
    if (status != SW_OK)
        sw_model_text_close(out);
    return status;
}

void sw_model_text_close(struct sw_model_text *text) {
    sw_tokenizer_destroy(text->tokenizer);
    free(text->ends.id);
    *text = (struct sw_model_text){0};
}

sw_status sw_model_text_begin(const struct sw_model_text *text, int bos, struct sw_token_list *out) {
    const struct sw_token_list *before = sw_tokenizer_before(text->tokenizer);
    if (bos == SW_BOS_NO)
        return SW_OK;
    if (before->count > 0 || bos == SW_BOS_AUTO)
        return sw_token_list_append(out, before->id, before->count);
    if (text->bos < 0)
        return sw_fail(SW_ERR_ARG, "--bos yes: neither the tokenizer nor tokenizer_config.json nor config.json names a "
                                   "token that begins a text");
    return sw_token_list_append(out, &text->bos, 1);
}

bool sw_model_text_ends(const struct sw_model_text *text, int32_t id) {
    for (size_t i = 0; i < text->ends.count; i++)
        if (text->ends.id[i] == id)
            return true;
    return false;
}
