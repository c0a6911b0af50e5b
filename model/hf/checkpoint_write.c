/* Writes an export: the weights in the order of their units, the configuration, and the files carried over.
 *
 * A config.json that still describes the model is copied rather than generated: other programs use fields that spillway
 * does not know. */
#include "core/files/files.h"
#include "core/files/json_file.h"
#include "core/files/model_files.h"
#include "core/json.h"
#include "core/log.h"
#include "core/size.h"
#include "core/status.h"
#include "io/safetensors/safetensors.h"
#include "model/hf/checkpoint.h"
#include "model/hf/export_folder.h"
#include "model/hf/family.h"
#include "model/hf/whole_tensor.h"

#include <assert.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_CONFIG_BYTES = 16 << 20 };

/* Reads a JSON file of the folder; *out is a new object if there is no file. */
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

/* Appends a number, or each number of a list, unless the list has it already. */
static void append_ids(json_t *list, const json_t *ids) {
    if (json_is_integer(ids) && json_integer_value(ids) >= 0 && !has_id(list, json_integer_value(ids)))
        json_array_append_new(list, json_integer(json_integer_value(ids)));
    for (size_t i = 0; i < json_array_size(ids); i++)
        append_ids(list, json_array_get(ids, i));
}

/* Sets the ids of both files. A new generation_config.json also gets the token that begins a text, which transformers
 * would have read from config.json. */
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

enum { COPY_ELEMS = 1 << 16, PATH_CHARS = 4096 };
#define CONFIG_LIMIT_BYTES ((size_t)1 << 24)
/* The smallest magnitude that rounds to infinity in each type. */
static const float overflows_at[] = {[SW_F32] = INFINITY, [SW_BF16] = 0x1.ffp127f, [SW_F16] = 65520.0f};

sw_status sw_checkpoint_check_values(const char *tensor, sw_dtype type, const float *values, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (!(fabsf(values[i]) < overflows_at[type]))
            return sw_fail(SW_ERR_ARG, "the tensor '%s' holds %g, which %s cannot represent%s", tensor,
                           (double)values[i], sw_dtype_name(type), isfinite(values[i]) ? "; export a wider type" : "");
    return SW_OK;
}

/* Writes a tensor in the element order of the whole. `values` has room for COPY_ELEMS. */
static sw_status write_whole(struct sw_safetensors_shards *shards, const struct sw_whole_tensor *whole, sw_dtype type,
                             const struct sw_load *from, float *values) {
    const int64_t elems = sw_tensor_whole_elems(whole->part[0]);
    for (int64_t at = 0, count; at < elems; at += count) {
        count = sw_min_i64(elems - at, COPY_ELEMS);
        SW_TRY(sw_whole_tensor_read(whole, from, at, count, values));
        SW_TRY(sw_checkpoint_check_values(whole->part[0]->name, type, values, count));
        SW_TRY(sw_safetensors_shards_write_f32(shards, values, count));
    }
    return SW_OK;
}

static int64_t declare_tensors(const struct sw_units *units, struct sw_safetensors_declared *declared) {
    int64_t count = 0;
    for (int64_t u = 0; u < units->count; u++) {
        for (int64_t t = 0; t < units->unit[u].tensor_count; t++) {
            const struct sw_tensor *tensor = &units->unit[u].tensor[t];
            assert(!tensor->added); /* adapters are merged before (merge.h), or written by peft.h */
            if (!sw_tensor_is_first_part(tensor))
                continue;
            declared[count].name = tensor->name;
            declared[count].dims = tensor->dims;
            memcpy(declared[count].dim, tensor->dim, sizeof tensor->dim);
            count++;
        }
    }
    return count;
}

static sw_status write_all(struct sw_safetensors_shards *shards, const struct sw_units *units,
                           struct sw_whole_tensor *whole, sw_dtype type, const struct sw_load *from, float *values) {
    for (int64_t u = 0; u < units->count; u++) {
        for (int64_t t = 0; t < units->unit[u].tensor_count; t++) {
            if (!sw_tensor_is_first_part(&units->unit[u].tensor[t]))
                continue;
            sw_whole_tensor_gather(units, u, &units->unit[u].tensor[t], whole);
            SW_TRY(write_whole(shards, whole, type, from, values));
        }
    }
    return SW_OK;
}

static sw_status write_tensors(const char *folder, const struct sw_units *units,
                               const struct sw_checkpoint_format *format, const struct sw_load *from) {
    int64_t tensors = 0;
    sw_status status = SW_OK;
    struct sw_safetensors_shards *shards = NULL;
    for (int64_t u = 0; u < units->count; u++)
        tensors += units->unit[u].tensor_count;
    assert(tensors > 0);
    struct sw_safetensors_declared *declared = calloc((size_t)tensors, sizeof *declared);
    struct sw_whole_tensor whole = {0};
    float *values = malloc(COPY_ELEMS * sizeof *values);
    if (declared == NULL || values == NULL)
        SW_TRY_GOTO(sw_fail(SW_ERR_NOMEM, "no memory to write %s", folder), end);
    SW_TRY_GOTO(sw_whole_tensor_make(units, &whole), end);
    const int64_t count = declare_tensors(units, declared);
    SW_TRY_GOTO(sw_safetensors_shards_open(folder, format->type, format->shard_bytes, declared, count, &shards), end);
    SW_TRY_GOTO(write_all(shards, units, &whole, format->type, from, values), end);
    status = sw_safetensors_shards_finish(shards);
    shards = NULL;
end:
    sw_safetensors_shards_abort(shards);
    free(values);
    sw_whole_tensor_release(&whole);
    free(declared);
    return status;
}

static const char *dtype_text(sw_dtype type) {
    static const char *const texts[] = {[SW_F32] = "float32", [SW_BF16] = "bfloat16", [SW_F16] = "float16"};
    return texts[type];
}

/* Finds out whether a config.json still describes this model; fields that do not change the model may differ. Fails if
 * the file cannot be read. */
static sw_status find_described(const char *path, const struct sw_model_config *config, bool *out) {
    struct sw_model_config found;
    char *ours = NULL, *theirs = NULL;
    sw_status status = sw_config_load(path, &found);
    if (status == SW_OK)
        status = sw_config_to_json(config, &ours);
    if (status == SW_OK)
        status = sw_config_to_json(&found, &theirs);
    *out = status == SW_OK && strcmp(ours, theirs) == 0;
    free(ours);
    free(theirs);
    if (status == SW_ERR_NOMEM || status == SW_ERR_IO)
        return status;
    sw_error_clear();
    return SW_OK;
}

/* Sets the type of weights that config.json names, if any, to the export's, which are not quantized. Returns whether
 * that changed the file. */
static bool set_dtype(json_t *root, sw_dtype type) {
    static const char *const fields[] = {"dtype", "torch_dtype"};
    bool changed = json_object_del(root, "quantization_config") == 0;
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        const char *named = json_string_value(json_object_get(root, fields[i]));
        if (named == NULL || strcmp(named, dtype_text(type)) == 0)
            continue;
        json_object_set_new(root, fields[i], json_string(dtype_text(type)));
        changed = true;
    }
    return changed;
}

static sw_status carry_config(const char *source, const char *target, sw_dtype type) {
    json_t *root;
    SW_TRY(sw_json_read_file(source, CONFIG_LIMIT_BYTES, SW_ERR_CORRUPT, &root));
    const bool changed = set_dtype(root, type);
    char *text = changed ? sw_config_dump(root) : NULL;
    json_decref(root);
    if (!changed)
        return sw_file_copy(source, target, SW_FILE_SHARED);
    const sw_status status = text == NULL ? sw_fail(SW_ERR_NOMEM, "no memory to write %s", target)
                                          : sw_file_replace(target, text, strlen(text), SW_FILE_SHARED);
    free(text);
    return status;
}

/* Writes config.json, preferably as a copy of the source's, which has fields that other programs use. */
static sw_status write_config(const char *folder, const struct sw_model_config *config, sw_dtype type,
                              const char *carry) {
    char source[PATH_CHARS], path[PATH_CHARS], *text = NULL;
    SW_TRY(sw_path_join(path, sizeof path, folder, "config.json"));
    if (carry != NULL) {
        bool there, described = false;
        SW_TRY(sw_model_file_find(carry, "config.json", source, &there));
        if (there)
            SW_TRY(find_described(source, config, &described));
        if (described)
            return carry_config(source, path, type);
        if (there)
            sw_log_info("%s no longer describes this model: the export has a config.json of its own", source);
    }
    SW_TRY(sw_config_to_json(config, &text));
    const sw_status status = sw_file_replace(path, text, strlen(text), SW_FILE_SHARED);
    free(text);
    return status;
}

/* Copies the small files, except config.json (write_config). */
static sw_status carry_files(const char *from, const char *to) {
    for (int i = 0; sw_model_file_names[i] != NULL; i++) {
        const char *name = sw_model_file_names[i];
        char target[PATH_CHARS];
        struct sw_model_file file;
        sw_model_file_look(from, name, &file);
        if (!file.is_there || strcmp(name, SW_MODEL_CONFIG) == 0)
            continue;
        SW_TRY(sw_path_join(target, sizeof target, to, name));
        if (file.refused[0] == '\0')
            SW_TRY(sw_file_copy(file.path, target, SW_FILE_SHARED));
        else
            sw_log_warn("the export is without %s/%s, as %s", from, name, file.refused);
    }
    return SW_OK;
}

/* The sources of an export: its weights, its configuration and the files carried over. */
struct export {
    const struct sw_model_config *config;
    const struct sw_units *units;
    const struct sw_checkpoint_format *format;
    const struct sw_load *from;
    const char *carry;
};

static sw_status fill_folder(void *context, const char *folder) {
    const struct export *export = context;
    const struct sw_turn_end *end = &export->format->turn_end;
    SW_TRY(write_config(folder, export->config, export->format->type, export->carry));
    SW_TRY(write_tensors(folder, export->units, export->format, export->from));
    if (export->carry != NULL)
        SW_TRY(carry_files(export->carry, folder));
    return end->token != NULL ? sw_turn_end_write(folder, end) : SW_OK;
}

sw_status sw_checkpoint_write(const char *folder, const struct sw_model_config *config, const struct sw_units *units,
                              const struct sw_checkpoint_format *format, const struct sw_load *from,
                              const char *carry) {
    struct export export = {config, units, format, from, carry};
    return sw_export_folder_write(folder, fill_folder, &export);
}
