/* Writes an export: the weights in the order of their units, the configuration, and the files carried over.
 *
 * The folder is written under another name and renamed when it is whole and flushed, so no program ever loads half an
 * export. A mark file, written first and removed last, tells the remains of an earlier export from a folder of the
 * user; its lock keeps two exports apart. Without the mark nothing is removed.
 *
 * A config.json that still describes the model is copied rather than generated: other programs use fields that spillway
 * does not know. */
#include "core/confine.h"
#include "core/files/files.h"
#include "core/files/json_file.h"
#include "core/files/model_files.h"
#include "core/json.h"
#include "core/log.h"
#include "core/size.h"
#include "core/status.h"
#include "io/queue/file.h"
#include "io/safetensors/safetensors.h"
#include "model/hf/checkpoint.h"
#include "model/hf/family.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
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
/* The name of the file that marks an unfinished export. */
#define MARK "spillway.partial"

/* A whole tensor of the checkpoint. Its parts are in consecutive units. */
struct whole_tensor {
    int64_t first_unit, parts;
    const struct sw_tensor **part; /* its part in each of these units; the array has room for all units */
};

static const struct sw_tensor *find_part(const struct sw_unit *unit, const char *name) {
    for (int64_t t = 0; t < unit->tensor_count; t++)
        if (strcmp(unit->tensor[t].name, name) == 0)
            return &unit->tensor[t];
    return NULL;
}

/* Tells whether this is the first part of a whole tensor, or all of it. */
static bool is_first_part(const struct sw_tensor *tensor) {
    return tensor->part.first_row == 0 && tensor->part.first_col == 0;
}

static void gather_parts(const struct sw_units *units, int64_t unit, const struct sw_tensor *first,
                         struct whole_tensor *out) {
    int64_t missing = sw_tensor_whole_elems(first);
    out->first_unit = unit;
    for (out->parts = 0; missing > 0; out->parts++) {
        out->part[out->parts] = find_part(&units->unit[unit + out->parts], first->name);
        assert(out->part[out->parts] != NULL);
        missing -= out->part[out->parts]->elems;
    }
}

/* Returns the part that holds element `at` of the whole tensor. The search begins with part `hint`: the next element is
 * mostly in the same part. */
static int64_t part_with(const struct whole_tensor *whole, int64_t at, int64_t hint, int64_t *elem, int64_t *run) {
    for (int64_t i = 0; i < whole->parts; i++) {
        const int64_t p = (hint + i) % whole->parts;
        *elem = sw_tensor_from_whole(whole->part[p], at, run);
        if (*elem >= 0)
            return p;
    }
    assert(!"parts cover their tensor");
    return 0;
}

/* The smallest magnitude that rounds to infinity in each type. */
static const float overflows_at[] = {[SW_F32] = INFINITY, [SW_BF16] = 0x1.ffp127f, [SW_F16] = 65520.0f};

static sw_status check_values(const char *tensor, sw_dtype type, const float *values, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (!(fabsf(values[i]) < overflows_at[type]))
            return sw_fail(SW_ERR_ARG, "the tensor '%s' holds %g, which %s cannot represent%s", tensor,
                           (double)values[i], sw_dtype_name(type), isfinite(values[i]) ? "; export a wider type" : "");
    return SW_OK;
}

/* Reads elements in pieces of at most most_grains grains. A piece is one grain shorter than that, because a range that
 * begins and ends within grains touches one grain more than its length says. */
static sw_status get(const struct sw_load *from, int64_t unit, int64_t first, int64_t count, float *out) {
    const int64_t most = from->most_grains > 0 ? (from->most_grains - 1) * SW_GRAIN_ELEMS : count;
    for (int64_t done = 0, now; done < count; done += now) {
        now = sw_min_i64(most, count - done);
        if (from->prepare != NULL)
            SW_TRY(from->prepare(from->context, unit, first + done, now));
        SW_TRY(from->fill(from->context, unit, first + done, now, out + done));
    }
    return SW_OK;
}

/* Writes a tensor in the element order of the whole. `values` has room for COPY_ELEMS. */
static sw_status write_whole(struct sw_safetensors_shards *shards, const struct whole_tensor *whole, sw_dtype type,
                             const struct sw_load *from, float *values) {
    const int64_t elems = sw_tensor_whole_elems(whole->part[0]);
    int64_t held = 0, p = 0;
    for (int64_t at = 0; at < elems;) {
        int64_t elem, run;
        p = part_with(whole, at, p, &elem, &run);
        run = sw_min_i64(run, COPY_ELEMS - held);
        SW_TRY(get(from, whole->first_unit + p, whole->part[p]->offset + elem, run, values + held));
        at += run;
        held += run;
        if (held == COPY_ELEMS || at == elems) {
            SW_TRY(check_values(whole->part[0]->name, type, values, held));
            SW_TRY(sw_safetensors_shards_write_f32(shards, values, held));
            held = 0;
        }
    }
    return SW_OK;
}

static int64_t declare_tensors(const struct sw_units *units, struct sw_safetensors_declared *declared) {
    int64_t count = 0;
    for (int64_t u = 0; u < units->count; u++) {
        for (int64_t t = 0; t < units->unit[u].tensor_count; t++) {
            const struct sw_tensor *tensor = &units->unit[u].tensor[t];
            if (!is_first_part(tensor))
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
                           struct whole_tensor *whole, sw_dtype type, const struct sw_load *from, float *values) {
    for (int64_t u = 0; u < units->count; u++) {
        for (int64_t t = 0; t < units->unit[u].tensor_count; t++) {
            if (!is_first_part(&units->unit[u].tensor[t]))
                continue;
            gather_parts(units, u, &units->unit[u].tensor[t], whole);
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
    for (int64_t u = 0; u < units->count; u++) {
        tensors += units->unit[u].tensor_count;
        for (int64_t t = 0; t < units->unit[u].tensor_count; t++)
            if (units->unit[u].tensor[t].added)
                return sw_fail(SW_ERR_UNSUPPORTED, "adapters cannot be exported yet");
    }
    assert(tensors > 0);
    struct sw_safetensors_declared *declared = calloc((size_t)tensors, sizeof *declared);
    struct whole_tensor whole = {.part = calloc((size_t)units->count, sizeof *whole.part)};
    float *values = malloc(COPY_ELEMS * sizeof *values);
    if (declared == NULL || values == NULL || whole.part == NULL)
        SW_TRY_GOTO(sw_fail(SW_ERR_NOMEM, "no memory to write %s", folder), end);
    const int64_t count = declare_tensors(units, declared);
    SW_TRY_GOTO(sw_safetensors_shards_open(folder, format->type, format->shard_bytes, declared, count, &shards), end);
    SW_TRY_GOTO(write_all(shards, units, &whole, format->type, from, values), end);
    status = sw_safetensors_shards_finish(shards);
    shards = NULL;
end:
    sw_safetensors_shards_abort(shards);
    free(values);
    free(whole.part);
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

/* Sets the type of weights that config.json names, if any, to the export's. Returns whether that changed the file. */
static bool set_dtype(json_t *root, sw_dtype type) {
    static const char *const fields[] = {"dtype", "torch_dtype"};
    bool changed = false;
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

static sw_status find_empty(const char *folder, bool *out) {
    DIR *directory = sw_folder_list(folder);
    int names = 0;
    if (directory == NULL)
        return sw_fail(SW_ERR_IO, "the folder %s cannot be read: %s", folder, strerror(errno));
    while (readdir(directory) != NULL)
        names++;
    closedir(directory);
    *out = names == 2; /* "." and ".." */
    return SW_OK;
}

/* Removes the mark last: the next export removes only folders that have one. */
static void remove_partial(const char *partial) {
    SW_HANDLES_ERRORS();
    if (sw_folder_empty(partial, MARK) == SW_OK)
        (void)sw_folder_remove(partial);
}

/* Makes the folder of an unfinished export, with its mark and lock, or takes over the one that an earlier export left.
 * Refuses anything else of this name. */
static sw_status take_partial(const char *partial, int *out_mark) {
    char path[PATH_CHARS];
    struct stat info;
    SW_TRY(sw_path_join(path, sizeof path, partial, MARK));
    bool empty = false;
    sw_status status = sw_folder_make_own(partial, 0755);
    if (status == SW_OK)
        status = find_empty(partial, &empty);
    const int flags = empty ? O_RDWR | O_CREAT | O_EXCL : O_RDWR;
    if (status == SW_OK)
        *out_mark = sw_path_open(path, flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
    if (*out_mark < 0 && empty && errno != EEXIST)
        status = sw_fail(sw_file_write_error(errno), "%s cannot be made: %s", path, strerror(errno));
    if (status != SW_OK) {
        (void)sw_path_rmdir(partial); /* fails if the folder is not empty, which is right */
        return status;
    }
    if (*out_mark < 0 || fstat(*out_mark, &info) != 0 || !S_ISREG(info.st_mode))
        return sw_fail(SW_ERR_ARG, "%s is in the way, and is not what an unfinished export has left: move it away",
                       partial);
    status = sw_lock_take(*out_mark, partial);
    if (status != SW_OK && status != SW_ERR_IO)
        return status;
    /* A file system without locks is no reason to refuse an export. */
    sw_error_clear();
    /* The mark must be on the drive before anything else is in the folder. */
    status = sw_file_flush_folder_of(path);
    if (status != SW_OK)
        remove_partial(partial);
    return status;
}

/* Gives the export its final name. Flushes names before and after the change. Removes the mark last: under its final
 * name the folder is complete with or without a mark, but a FOLDER.partial without one could never be removed. */
static sw_status finish_partial(const char *partial, const char *folder) {
    char path[PATH_CHARS];
    SW_TRY(sw_path_join(path, sizeof path, partial, MARK));
    SW_TRY(sw_file_flush_folder_of(path));
    if (sw_path_rename(partial, folder) != 0)
        return sw_fail(SW_ERR_IO, "cannot rename %s to %s: %s", partial, folder, strerror(errno));
    const sw_status flushed = sw_file_flush_folder_of(partial);
    SW_TRY(sw_path_join(path, sizeof path, folder, MARK));
    sw_path_unlink(path);
    SW_TRY(flushed);
    return sw_file_flush_folder_of(path);
}

static sw_status fill_partial(const char *partial, const struct sw_model_config *config, const struct sw_units *units,
                              const struct sw_checkpoint_format *format, const struct sw_load *from,
                              const char *carry) {
    SW_TRY(sw_folder_empty(partial, MARK));
    SW_TRY(write_config(partial, config, format->type, carry));
    SW_TRY(write_tensors(partial, units, format, from));
    if (carry != NULL)
        SW_TRY(carry_files(carry, partial));
    return format->turn_end.token != NULL ? sw_turn_end_write(partial, &format->turn_end) : SW_OK;
}

sw_status sw_checkpoint_write(const char *folder, const struct sw_model_config *config, const struct sw_units *units,
                              const struct sw_checkpoint_format *format, const struct sw_load *from,
                              const char *carry) {
    char partial[PATH_CHARS];
    int mark = -1;
    SW_TRY(sw_folder_must_be_free(folder, NULL));
    size_t length = strlen(folder);
    while (length > 1 && folder[length - 1] == '/')
        length--;
    if ((size_t)snprintf(partial, sizeof partial, "%.*s.partial", (int)length, folder) >= sizeof partial)
        return sw_fail(SW_ERR_ARG, "the path %s is too long", folder);
    sw_status status = take_partial(partial, &mark);
    if (status == SW_OK) {
        status = fill_partial(partial, config, units, format, from, carry);
        if (status == SW_OK)
            status = finish_partial(partial, folder);
        if (status != SW_OK)
            remove_partial(partial);
    }
    if (mark >= 0)
        close(mark);
    return status;
}
