#include "train/checkpoint.h"

#include "core/size.h"
#include "io/safetensors.h"
#include "train/files.h"

#include <assert.h>
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
    const char *const endings[] = {".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq"};
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

struct checkpoint_fill {
    struct sw_checkpoint *checkpoint;
    int64_t unit;
    float *out;
};

static sw_status fill_run(void *context, int64_t tensor, int64_t whole, int64_t run, int64_t at) {
    const struct checkpoint_fill *fill = context;
    const struct sw_checkpoint *checkpoint = fill->checkpoint;
    float *to = fill->out + at;
    SW_TRY(sw_safetensors_read_f32(checkpoint->tensors, checkpoint->found[fill->unit][tensor], whole, run, to));
    for (int64_t i = 0; i < run; i++)
        if (!isfinite(to[i]))
            return sw_fail(SW_ERR_ARG, "the tensor '%s' holds a value that is not finite at element %lld",
                           checkpoint->units->unit[fill->unit].tensor[tensor].name, (long long)(whole + i));
    return SW_OK;
}

sw_status sw_checkpoint_fill(void *context, int64_t unit, int64_t first, int64_t count, float *out) {
    struct checkpoint_fill fill = {.checkpoint = context, .unit = unit, .out = out};
    memset(out, 0, (size_t)count * sizeof *out);
    return sw_unit_walk(&fill.checkpoint->units->unit[unit], first, count, fill_run, &fill);
}

/* A whole tensor of the checkpoint: its parts are in units that follow each other. */
struct whole_tensor {
    int64_t first_unit, parts;
    const struct sw_tensor **part; /* of each of these units; room for all units */
};

static const struct sw_tensor *find_part(const struct sw_unit *unit, const char *name) {
    for (int64_t t = 0; t < unit->tensor_count; t++)
        if (strcmp(unit->tensor[t].name, name) == 0)
            return &unit->tensor[t];
    return NULL;
}

/* Whether a unit's tensor, or part of one, is the first of its name. */
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

/* The part that has element `at` of the whole tensor, beginning the search with the one before, as neighbours follow
 * each other. */
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

/* Writes a tensor in the order of the whole. values has room for COPY_ELEMS. */
static sw_status write_whole(struct sw_safetensors_writer *writer, const struct whole_tensor *whole,
                             sw_fill_function fill, void *context, float *values) {
    const int64_t elems = sw_tensor_whole_elems(whole->part[0]);
    int64_t held = 0, p = 0;
    for (int64_t at = 0; at < elems;) {
        int64_t elem, run;
        p = part_with(whole, at, p, &elem, &run);
        run = sw_min_i64(run, COPY_ELEMS - held);
        SW_TRY(fill(context, whole->first_unit + p, whole->part[p]->offset + elem, run, values + held));
        at += run;
        held += run;
        if (held == COPY_ELEMS || at == elems) {
            SW_TRY(sw_safetensors_write_f32(writer, values, held));
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

static sw_status write_all(struct sw_safetensors_writer *writer, const struct sw_units *units,
                           struct whole_tensor *whole, sw_fill_function fill, void *context, float *values) {
    for (int64_t u = 0; u < units->count; u++) {
        for (int64_t t = 0; t < units->unit[u].tensor_count; t++) {
            if (!is_first_part(&units->unit[u].tensor[t]))
                continue;
            gather_parts(units, u, &units->unit[u].tensor[t], whole);
            SW_TRY(write_whole(writer, whole, fill, context, values));
        }
    }
    return SW_OK;
}

static sw_status write_tensors(const char *path, const struct sw_units *units, sw_dtype type, sw_fill_function fill,
                               void *context) {
    int64_t tensors = 0;
    sw_status status = SW_OK;
    struct sw_safetensors_writer *writer = NULL;
    for (int64_t u = 0; u < units->count; u++)
        tensors += units->unit[u].tensor_count;
    struct sw_safetensors_declared *declared = calloc((size_t)tensors, sizeof *declared);
    struct whole_tensor whole = {.part = calloc((size_t)units->count, sizeof *whole.part)};
    float *values = malloc(COPY_ELEMS * sizeof *values);
    if (declared == NULL || values == NULL || whole.part == NULL)
        SW_TRY_GOTO(sw_fail(SW_ERR_NOMEM, "no memory to write %s", path), end);
    const int64_t count = declare_tensors(units, declared);
    SW_TRY_GOTO(sw_safetensors_writer_open(path, type, declared, count, &writer), end);
    SW_TRY_GOTO(write_all(writer, units, &whole, fill, context, values), end);
    status = sw_safetensors_writer_finish(writer);
    writer = NULL;
end:
    if (writer != NULL)
        sw_safetensors_writer_abort(writer);
    free(values);
    free(whole.part);
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
