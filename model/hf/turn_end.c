#include "model/hf/turn_end.h"

#include "core/files/files.h"
#include "core/files/json_file.h"
#include "core/files/model_files.h"
#include "core/json.h"
#include "model/hf/family.h"

#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_CONFIG_BYTES = 16 << 20 };

/* Reads a file of the folder; *out is a new object where it is not there. */
static sw_status read_object(const char *folder, const char *name, json_t **out) {
    char path[PATH_MAX];
    bool is_there;
    *out = NULL;
    SW_TRY(sw_model_file_find(folder, name, path, &is_there));
    if (is_there)
        return sw_json_read_file(path, MOST_CONFIG_BYTES, SW_ERR_CORRUPT, out);
    *out = json_object();
    return *out != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory to write %s", path);
}

static sw_status write_object(const char *folder, const char *name, json_t *object) {
    char path[PATH_MAX], *text = sw_config_dump(object);
    sw_status status = text != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory to write %s", name);
    if (status == SW_OK)
        status = sw_path_join(path, sizeof path, folder, name);
    if (status == SW_OK)
        status = sw_file_replace(path, text, strlen(text), SW_FILE_SHARED);
    free(text);
    return status;
}

static bool has_id(const json_t *list, json_int_t id) {
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_integer_value(json_array_get(list, i)) == id)
            return true;
    return false;
}

/* Appends a number, or the numbers of a list, that the list does not have yet. */
static void append_ids(json_t *list, const json_t *ids) {
    if (json_is_integer(ids) && json_integer_value(ids) >= 0 && !has_id(list, json_integer_value(ids)))
        json_array_append_new(list, json_integer(json_integer_value(ids)));
    for (size_t i = 0; i < json_array_size(ids); i++)
        append_ids(list, json_array_get(ids, i));
}

/* Sets the ids of both files. A new generation_config.json also has the token that begins a text, as transformers would
 * have taken it from config.json. */
static sw_status write_ids(const char *folder, int32_t id, json_t *config, json_t *generation) {
    const json_t *begin = json_object_get(config, "bos_token_id");
    json_t *ends = json_array(), *first = json_integer(id);
    append_ids(ends, first);
    append_ids(ends, json_object_get(generation, "eos_token_id"));
    append_ids(ends, json_object_get(config, "eos_token_id"));
    if (json_object_size(generation) == 0 && json_is_integer(begin))
        json_object_set_new(generation, "bos_token_id", json_integer(json_integer_value(begin)));
    const bool set = json_object_set_new(generation, "eos_token_id", ends) == 0 &&
                     json_object_set_new(config, "eos_token_id", first) == 0;
    SW_TRY(set ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory for the end of turns"));
    SW_TRY(write_object(folder, "config.json", config));
    return write_object(folder, "generation_config.json", generation);
}

static sw_status write_token(const char *folder, const char *name, const char *token) {
    json_t *object;
    SW_TRY(read_object(folder, name, &object));
    const bool set = json_object_set_new(object, "eos_token", json_string(token)) == 0;
    sw_status status = SW_OK;
    if (!set)
        status = sw_json_lacked_memory() ? sw_fail(SW_ERR_NOMEM, "no memory for the token that ends turns")
                                         : sw_fail(SW_ERR_ARG, "the token that ends turns is not UTF-8");
    if (set)
        status = write_object(folder, name, object);
    json_decref(object);
    return status;
}

sw_status sw_turn_end_write(const char *folder, const struct sw_turn_end *end) {
    json_t *config = NULL, *generation = NULL;
    char path[PATH_MAX];
    sw_status status = read_object(folder, "config.json", &config);
    if (status == SW_OK)
        status = read_object(folder, "generation_config.json", &generation);
    if (status == SW_OK)
        status = write_ids(folder, end->id, config, generation);
    json_decref(config);
    json_decref(generation);
    SW_TRY(status);
    SW_TRY(write_token(folder, "tokenizer_config.json", end->token));
    SW_TRY(sw_path_join(path, sizeof path, folder, "special_tokens_map.json"));
    return access(path, F_OK) == 0 ? write_token(folder, "special_tokens_map.json", end->token) : SW_OK;
}
