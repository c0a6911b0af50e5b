#include "train/checkpoint.h"

#include "core/size.h"
#include "io/safetensors.h"
#include "train/files.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NAME_PREFIX "transformer."
enum { COPY_ELEMS = 1 << 16, PATH_CHARS = 4096 };

struct sw_checkpoint {
    struct sw_safetensors *tensors;
    const struct sw_units *units;
    const struct sw_safetensor ***found; /* [unit][tensor] */
};

static const char *short_name(const char *name) {
    return strncmp(name, NAME_PREFIX, strlen(NAME_PREFIX)) == 0 ? name + strlen(NAME_PREFIX) : name;
}

static bool same_shape(const struct sw_tensor *tensor, const struct sw_safetensor *stored) {
    if (stored->dims != tensor->dims)
        return false;
    for (int d = 0; d < tensor->dims; d++)
        if (stored->dim[d] != tensor->dim[d])
            return false;
    return true;
}

static const char *shape_text(int dims, const int64_t *dim, char text[96]) {
    int used = snprintf(text, 96, "[");
    for (int d = 0; d < dims && used < 80; d++)
        used += snprintf(text + used, 96 - (size_t)used, d == 0 ? "%lld" : ", %lld", (long long)dim[d]);
    snprintf(text + used, 96 - (size_t)used, "]");
    return text;
}

static sw_status match_tensor(const struct sw_checkpoint *checkpoint, const char *folder,
                              const struct sw_tensor *tensor, const struct sw_safetensor **out) {
    *out = sw_safetensors_find(checkpoint->tensors, tensor->name);
    if (*out == NULL)
        *out = sw_safetensors_find(checkpoint->tensors, short_name(tensor->name));
    if (*out == NULL)
        return sw_fail(SW_ERR_ARG, "the weights in %s have no tensor '%s', which config.json asks for", folder,
                       tensor->name);
    if (!(*out)->supported)
        return sw_fail(SW_ERR_ARG, "the tensor '%s' in %s has a type other than F32, F16 and BF16", (*out)->name,
                       folder);
    if (same_shape(tensor, *out))
        return SW_OK;
    char stored[96], wanted[96];
    return sw_fail(SW_ERR_ARG, "the tensor '%s' in %s has the shape %s; by config.json it is %s", (*out)->name, folder,
                   shape_text((*out)->dims, (*out)->dim, stored), shape_text(tensor->dims, tensor->dim, wanted));
}

/* Buffers that transformers once stored with the weights, and a tied table stored twice. */
static bool is_harmless(const struct sw_units *units, const char *name) {
    const size_t length = strlen(name);
    const char *const endings[] = {".attn.bias", ".attn.masked_bias"};
    for (size_t e = 0; e < sizeof endings / sizeof endings[0]; e++)
        if (length > strlen(endings[e]) && strcmp(name + length - strlen(endings[e]), endings[e]) == 0)
            return true;
    return units->tied && strcmp(name, "lm_head.weight") == 0;
}

static bool is_known(const struct sw_units *units, const char *name) {
    for (int64_t u = 0; u < units->count; u++)
        for (int64_t t = 0; t < units->unit[u].tensor_count; t++)
            if (strcmp(short_name(units->unit[u].tensor[t].name), short_name(name)) == 0)
                return true;
    return is_harmless(units, name);
}

static sw_status match_all(struct sw_checkpoint *checkpoint, const char *folder) {
    const struct sw_units *units = checkpoint->units;
    checkpoint->found = calloc((size_t)units->count, sizeof *checkpoint->found);
    if (checkpoint->found == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to match the tensors of %s", folder);
    for (int64_t u = 0; u < units->count; u++) {
        const struct sw_unit *unit = &units->unit[u];
        checkpoint->found[u] = calloc((size_t)unit->tensor_count, sizeof **checkpoint->found);
        if (checkpoint->found[u] == NULL)
            return sw_fail(SW_ERR_NOMEM, "no memory to match the tensors of %s", folder);
        for (int64_t t = 0; t < unit->tensor_count; t++)
            SW_TRY(match_tensor(checkpoint, folder, &unit->tensor[t], &checkpoint->found[u][t]));
    }
    for (int64_t i = 0; i < sw_safetensors_count(checkpoint->tensors); i++) {
        const char *name = sw_safetensors_at(checkpoint->tensors, i)->name;
        if (!is_known(units, name))
            return sw_fail(SW_ERR_ARG, "the weights in %s have a tensor '%s' that this architecture does not know",
                           folder, name);
    }
    return SW_OK;
}

sw_status sw_checkpoint_open(const char *folder, const struct sw_units *units, struct sw_checkpoint **out) {
    struct sw_checkpoint *checkpoint = calloc(1, sizeof *checkpoint);
    if (checkpoint == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to open %s", folder);
    checkpoint->units = units;
    sw_status status = sw_safetensors_open(folder, &checkpoint->tensors);
    if (status == SW_OK)
        status = match_all(checkpoint, folder);
    if (status != SW_OK) {
        sw_checkpoint_close(checkpoint);
        return status;
    }
    *out = checkpoint;
    return SW_OK;
}

void sw_checkpoint_close(struct sw_checkpoint *checkpoint) {
    if (checkpoint == NULL)
        return;
    for (int64_t u = 0; checkpoint->found != NULL && u < checkpoint->units->count; u++)
        free(checkpoint->found[u]);
    free(checkpoint->found);
    if (checkpoint->tensors != NULL)
        sw_safetensors_close(checkpoint->tensors);
    free(checkpoint);
}

sw_status sw_checkpoint_fill(void *context, int64_t unit, int64_t first, int64_t count, float *out) {
    struct sw_checkpoint *checkpoint = context;
    const struct sw_unit *u = &checkpoint->units->unit[unit];
    memset(out, 0, (size_t)count * sizeof *out);
    for (int64_t t = 0; t < u->tensor_count; t++) {
        const struct sw_tensor *tensor = &u->tensor[t];
        const int64_t begin = sw_max_i64(first, tensor->offset);
        const int64_t end = sw_min_i64(first + count, tensor->offset + tensor->elems);
        if (begin >= end)
            continue;
        float *to = out + (begin - first);
        SW_TRY(sw_safetensors_read_f32(checkpoint->tensors, checkpoint->found[unit][t], begin - tensor->offset,
                                       end - begin, to));
        for (int64_t i = 0; i < end - begin; i++)
            if (!isfinite(to[i]))
                return sw_fail(SW_ERR_ARG, "the tensor '%s' holds a value that is not finite at element %lld",
                               tensor->name, (long long)(begin - tensor->offset + i));
    }
    return SW_OK;
}

static sw_status write_tensors(const char *path, const struct sw_units *units, sw_dtype type, sw_fill_function fill,
                               void *context) {
    int64_t count = 0, next = 0;
    sw_status status = SW_OK;
    struct sw_safetensors_writer *writer = NULL;
    for (int64_t u = 0; u < units->count; u++)
        count += units->unit[u].tensor_count;
    struct sw_safetensors_declared *declared = calloc((size_t)count, sizeof *declared);
    float *values = malloc(COPY_ELEMS * sizeof *values);
    if (declared == NULL || values == NULL)
        SW_TRY_GOTO(sw_fail(SW_ERR_NOMEM, "no memory to write %s", path), end);
    for (int64_t u = 0; u < units->count; u++) {
        for (int64_t t = 0; t < units->unit[u].tensor_count; t++, next++) {
            const struct sw_tensor *tensor = &units->unit[u].tensor[t];
            declared[next].name = tensor->name;
            declared[next].dims = tensor->dims;
            memcpy(declared[next].dim, tensor->dim, sizeof tensor->dim);
        }
    }
    SW_TRY_GOTO(sw_safetensors_writer_open(path, type, declared, count, &writer), end);
    for (int64_t u = 0; u < units->count; u++) {
        for (int64_t t = 0; t < units->unit[u].tensor_count; t++) {
            const struct sw_tensor *tensor = &units->unit[u].tensor[t];
            for (int64_t first = 0; first < tensor->elems; first += COPY_ELEMS) {
                const int64_t elems = sw_min_i64(COPY_ELEMS, tensor->elems - first);
                SW_TRY_GOTO(fill(context, u, tensor->offset + first, elems, values), end);
                SW_TRY_GOTO(sw_safetensors_write_f32(writer, values, elems), end);
            }
        }
    }
    status = sw_safetensors_writer_finish(writer);
    writer = NULL;
end:
    if (writer != NULL)
        sw_safetensors_writer_abort(writer);
    free(values);
    free(declared);
    return status;
}

static sw_status write_config(const char *folder, const struct sw_model_config *config) {
    char path[PATH_CHARS], *text = NULL;
    SW_TRY(sw_path_join(path, sizeof path, folder, "config.json"));
    SW_TRY(sw_config_to_json(config, &text));
    const sw_status status = sw_file_replace(path, text, strlen(text));
    free(text);
    return status;
}

static sw_status carry_files(const char *from, const char *to) {
    static const char *const carried[] = {"tokenizer.json",    "tokenizer_config.json", "vocab.json",
                                          "merges.txt",        "tokenizer.model",       "special_tokens_map.json",
                                          "added_tokens.json", "generation_config.json"};
    for (size_t i = 0; i < sizeof carried / sizeof carried[0]; i++) {
        char source[PATH_CHARS], target[PATH_CHARS];
        SW_TRY(sw_path_join(source, sizeof source, from, carried[i]));
        SW_TRY(sw_path_join(target, sizeof target, to, carried[i]));
        if (access(source, R_OK) == 0)
            SW_TRY(sw_file_copy(source, target));
    }
    return SW_OK;
}

sw_status sw_checkpoint_write(const char *folder, const struct sw_model_config *config, const struct sw_units *units,
                              sw_dtype type, sw_fill_function fill, void *context, const char *carry) {
    char partial[PATH_CHARS], path[PATH_CHARS];
    SW_TRY(sw_folder_must_be_free(folder));
    size_t length = strlen(folder);
    while (length > 1 && folder[length - 1] == '/')
        length--;
    if ((size_t)snprintf(partial, sizeof partial, "%.*s.partial", (int)length, folder) >= sizeof partial)
        return sw_fail(SW_ERR_ARG, "the path %s is too long", folder);
    sw_folder_remove(partial);
    SW_TRY(sw_folder_make(partial));
    sw_status status = write_config(partial, config);
    if (status == SW_OK)
        status = sw_path_join(path, sizeof path, partial, "model.safetensors");
    if (status == SW_OK)
        status = write_tensors(path, units, type, fill, context);
    if (status == SW_OK && carry != NULL)
        status = carry_files(carry, partial);
    if (status == SW_OK && rename(partial, folder) != 0)
        status = sw_fail(SW_ERR_IO, "cannot rename %s to %s: %s", partial, folder, strerror(errno));
    if (status != SW_OK)
        sw_folder_remove(partial);
    return status;
}
