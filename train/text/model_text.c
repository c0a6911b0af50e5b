#include "train/text/model_text.h"

#include "train/files/files.h"
#include "train/files/json_file.h"

#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

enum { MOST_CONFIG_BYTES = 16 << 20 };

/* Reads a JSON file of the folder; *out is NULL where it is not there. */
static sw_status read_beside(const char *folder, const char *name, json_t **out) {
    char path[PATH_MAX];
    *out = NULL;
    SW_TRY(sw_path_join(path, sizeof path, folder, name));
    return access(path, F_OK) != 0 ? SW_OK : sw_json_read_file(path, MOST_CONFIG_BYTES, SW_ERR_ARG, out);
}

static sw_status add_end(struct sw_model_text *text, const json_t *id) {
    if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= text->vocab)
        return SW_OK;
    const int32_t end = (int32_t)json_integer_value(id);
    return sw_token_list_append(&text->ends, &end, 1);
}

/* eos_token_id is a number or a list of numbers. */
static sw_status add_ends(struct sw_model_text *text, const json_t *config) {
    const json_t *ids = json_object_get(config, "eos_token_id");
    if (text->ends.count > 0)
        return SW_OK;
    for (size_t i = 0; i < json_array_size(ids); i++)
        SW_TRY(add_end(text, json_array_get(ids, i)));
    return add_end(text, ids);
}

static sw_status read_configs(struct sw_model_text *text, const char *folder) {
    json_t *config = NULL, *generation = NULL;
    sw_status status = read_beside(folder, "config.json", &config);
    if (status == SW_OK)
        status = read_beside(folder, "generation_config.json", &generation);
    if (status == SW_OK && json_integer_value(json_object_get(config, "vocab_size")) > 0)
        text->vocab = json_integer_value(json_object_get(config, "vocab_size"));
    if (status == SW_OK)
        status = add_ends(text, generation);
    if (status == SW_OK)
        status = add_ends(text, config);
    json_decref(config);
    json_decref(generation);
    return status;
}

bool sw_model_text_is_there(const char *folder) {
    char path[PATH_MAX];
    if (folder == NULL)
        return false;
    if (sw_path_join(path, sizeof path, folder, "tokenizer.json") == SW_OK)
        return access(path, F_OK) == 0;
    sw_error_clear();
    return false;
}

sw_status sw_model_text_open(const char *path, struct sw_model_text *out) {
    *out = (struct sw_model_text){0};
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

bool sw_model_text_ends(const struct sw_model_text *text, int32_t id) {
    for (size_t i = 0; i < text->ends.count; i++)
        if (text->ends.id[i] == id)
            return true;
    return false;
}
