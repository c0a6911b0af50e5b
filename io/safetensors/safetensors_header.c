/* The header of one safetensors file. It comes from outside: nothing in it is believed unchecked. */
#include "io/safetensors/safetensors_private.h"

#include "core/files/files.h"
#include "core/json.h"
#include "core/size.h"
#include "io/queue/file.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    FAULT_BYTES = 64, /* read of a file's beginning to see that it is something else */
    NAME_CHARS = 4096 + 32
};

/* The types of the format whose elements have whole bytes. The first ones, in the order of sw_dtype, are supported. */
static const struct type {
    const char *name;
    int bytes;
} types[] = {
    [SW_F32] = {"F32", 4},
    [SW_BF16] = {"BF16", 2},
    [SW_F16] = {"F16", 2},
    {"F64", 8},
    {"I64", 8},
    {"U64", 8},
    {"I32", 4},
    {"U32", 4},
    {"I16", 2},
    {"U16", 2},
    {"I8", 1},
    {"U8", 1},
    {"BOOL", 1},
    {"C64", 8},
    {"F8_E4M3", 1},
    {"F8_E5M2", 1},
};

const char *sw_safetensors_type_name(sw_dtype type) {
    return types[type].name;
}

/* Returns the type of this name, or NULL. */
static const struct type *type_named(const char *name) {
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (strcmp(types[i].name, name) == 0)
            return &types[i];
    return NULL;
}

/* Counts the values before it parses them, because parsed JSON takes up to a hundred times its text. */
sw_status sw_safetensors_parse_json(const char *name, const char *text, int64_t bytes, json_t **out) {
    int64_t values = 0;
    for (int64_t i = 0; i < bytes; i++)
        values += text[i] == ',' || text[i] == '[' || text[i] == '{';
    if (values > SW_SAFETENSORS_MAX_VALUES)
        return sw_fail(SW_ERR_ARG, "%s has more than %d values of JSON", name, SW_SAFETENSORS_MAX_VALUES);
    const struct sw_json_source source = {.text = text, .bytes = (size_t)bytes, .name = name, .bad = SW_ERR_ARG};
    SW_TRY(sw_json_decode(source, out));
    if (!json_is_object(*out)) {
        json_decref(*out);
        *out = NULL;
        return sw_fail(SW_ERR_ARG, "%s is not an object of JSON", name);
    }
    return SW_OK;
}

static sw_status refuse_fault(int fd, const char *path, int64_t file_bytes) {
    char begin[FAULT_BYTES];
    const int64_t bytes = sw_min_i64(file_bytes, FAULT_BYTES);
    SW_TRY(sw_file_read(fd, path, 0, begin, bytes));
    const char *fault = sw_download_fault(begin, (size_t)bytes);
    return fault == NULL ? SW_OK : sw_fail(SW_ERR_ARG, "%s is %s", path, fault);
}

static sw_status read_header(int fd, const char *path, char **out_text, int64_t *out_bytes, int64_t *out_data_bytes) {
    int64_t file_bytes;
    unsigned char length[SW_SAFETENSORS_LENGTH_BYTES];
    SW_TRY(sw_file_size(fd, path, &file_bytes));
    SW_TRY(refuse_fault(fd, path, file_bytes));
    if (file_bytes < SW_SAFETENSORS_LENGTH_BYTES)
        return sw_fail(SW_ERR_ARG, "%s has %lld bytes and is no safetensors file: it is truncated or not complete",
                       path, (long long)file_bytes);
    SW_TRY(sw_file_read(fd, path, 0, length, sizeof length));
    uint64_t header_bytes = 0;
    for (int i = SW_SAFETENSORS_LENGTH_BYTES - 1; i >= 0; i--)
        header_bytes = header_bytes << 8 | length[i];
    if (header_bytes > SW_SAFETENSORS_MAX_HEADER_BYTES ||
        (int64_t)header_bytes > file_bytes - SW_SAFETENSORS_LENGTH_BYTES)
        return sw_fail(SW_ERR_ARG,
                       "%s says that its header has %llu bytes, and the whole file has %lld: it is truncated "
                       "or no safetensors file",
                       path, (unsigned long long)header_bytes, (long long)file_bytes);
    *out_bytes = (int64_t)header_bytes;
    *out_data_bytes = file_bytes - SW_SAFETENSORS_LENGTH_BYTES - *out_bytes;
    *out_text = malloc((size_t)header_bytes + 1);
    if (*out_text == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the header of %s", path);
    return sw_file_read(fd, path, SW_SAFETENSORS_LENGTH_BYTES, *out_text, *out_bytes);
}

static sw_status take_shape(const char *path, const json_t *shape, struct sw_safetensor *out) {
    if (!json_is_array(shape) || json_array_size(shape) > SW_SAFETENSORS_MAX_DIMS)
        return sw_fail(SW_ERR_ARG, "%s: tensor %s needs a shape of at most %d dimensions", path, out->name,
                       SW_SAFETENSORS_MAX_DIMS);
    out->dims = (int)json_array_size(shape);
    out->elems = 1;
    for (int i = 0; i < out->dims; i++) {
        const json_t *dim = json_array_get(shape, (size_t)i);
        out->dim[i] = json_is_integer(dim) ? json_integer_value(dim) : -1;
        if (out->dim[i] < 0 || !sw_mul_i64(out->elems, out->dim[i], &out->elems) ||
            out->elems > SW_SAFETENSORS_MAX_ELEMS)
            return sw_fail(SW_ERR_ARG, "%s: tensor %s has an impossible shape", path, out->name);
    }
    return SW_OK;
}

static sw_status take_offsets(const char *path, const json_t *offsets, int64_t data_bytes, int element_bytes,
                              struct sw_safetensor *out, int64_t *out_end) {
    const json_t *from = json_array_get(offsets, 0), *to = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(from) || !json_is_integer(to))
        return sw_fail(SW_ERR_ARG, "%s: tensor %s needs data_offsets of two whole numbers", path, out->name);
    out->offset_bytes = json_integer_value(from);
    *out_end = json_integer_value(to);
    if (out->offset_bytes < 0 || *out_end < out->offset_bytes || *out_end > data_bytes)
        return sw_fail(SW_ERR_ARG,
                       "%s: tensor %s lies outside the file, which has %lld bytes of data: it is truncated or "
                       "damaged",
                       path, out->name, (long long)data_bytes);
    if (element_bytes > 0 && *out_end - out->offset_bytes != out->elems * element_bytes)
        return sw_fail(SW_ERR_ARG, "%s: tensor %s has %lld bytes, and its shape and type need %lld", path, out->name,
                       (long long)(*out_end - out->offset_bytes), (long long)(out->elems * element_bytes));
    return SW_OK;
}

struct placed_tensor {
    struct sw_safetensor tensor;
    int64_t end_bytes;
};

static sw_status take_tensor(const char *path, const char *name, const json_t *entry, int64_t data_bytes,
                             struct placed_tensor *out) {
    if (strlen(name) >= SW_SAFETENSORS_NAME_CHARS)
        return sw_fail(SW_ERR_ARG, "%s: a tensor's name has %zu characters, more than %d", path, strlen(name),
                       SW_SAFETENSORS_NAME_CHARS - 1);
    struct sw_safetensor *tensor = &out->tensor;
    *tensor = (struct sw_safetensor){0};
    strcpy(tensor->name, name);
    const char *type_name = json_string_value(json_object_get(entry, "dtype"));
    if (type_name == NULL)
        return sw_fail(SW_ERR_ARG, "%s: tensor %s has no dtype", path, name);
    const struct type *type = type_named(type_name);
    tensor->supported = type != NULL && type - types < SW_DTYPES;
    tensor->type = tensor->supported ? (sw_dtype)(type - types) : SW_F32;
    snprintf(tensor->type_name, sizeof tensor->type_name, "%s", type_name);
    SW_TRY(take_shape(path, json_object_get(entry, "shape"), tensor));
    return take_offsets(path, json_object_get(entry, "data_offsets"), data_bytes, type != NULL ? type->bytes : 0,
                        tensor, &out->end_bytes);
}

/* Orders tensors by their bytes. One of no bytes comes before another that begins at the same offset. */
static int by_offset(const void *a, const void *b) {
    const struct placed_tensor *x = a, *y = b;
    if (x->tensor.offset_bytes != y->tensor.offset_bytes)
        return x->tensor.offset_bytes < y->tensor.offset_bytes ? -1 : 1;
    if (x->end_bytes != y->end_bytes)
        return x->end_bytes < y->end_bytes ? -1 : 1;
    return strcmp(x->tensor.name, y->tensor.name);
}

static sw_status check_cover(const char *path, const struct placed_tensor *placed, int64_t count, int64_t data_bytes) {
    int64_t end = 0;
    for (int64_t i = 0; i < count; i++) {
        if (placed[i].tensor.offset_bytes != end)
            return sw_fail(SW_ERR_ARG,
                           "%s: tensor %s begins at byte %lld of the data, and the one before it ends at %lld", path,
                           placed[i].tensor.name, (long long)placed[i].tensor.offset_bytes, (long long)end);
        end = placed[i].end_bytes;
    }
    if (end != data_bytes)
        return sw_fail(SW_ERR_ARG, "%s has %lld bytes of data, and its tensors end at %lld", path,
                       (long long)data_bytes, (long long)end);
    return SW_OK;
}

static sw_status append(struct sw_safetensors *tensors, const struct placed_tensor *placed, int64_t count, int file,
                        int64_t data_offset_bytes) {
    const int64_t needed = tensors->count + count;
    if (needed > tensors->capacity) {
        const int64_t capacity = sw_max_i64(needed, 2 * tensors->capacity);
        void *grown = realloc(tensors->tensors, (size_t)capacity * sizeof *tensors->tensors);
        if (grown == NULL)
            return sw_fail(SW_ERR_NOMEM, "no memory for a list of %lld tensors", (long long)needed);
        tensors->tensors = grown;
        tensors->capacity = capacity;
    }
    for (int64_t i = 0; i < count; i++) {
        struct sw_safetensor *tensor = &tensors->tensors[tensors->count++];
        *tensor = placed[i].tensor;
        tensor->file = file;
        tensor->offset_bytes += data_offset_bytes;
    }
    return SW_OK;
}

static sw_status take_tensors(struct sw_safetensors *tensors, int file, json_t *header, int64_t header_bytes,
                              int64_t data_bytes) {
    const char *path = tensors->paths[file];
    struct placed_tensor *placed = calloc(json_object_size(header) + 1, sizeof *placed);
    if (placed == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the tensors of %s", path);
    sw_status status = SW_OK;
    int64_t count = 0;
    const char *name;
    json_t *entry;
    json_object_foreach(header, name, entry) {
        if (strcmp(name, "__metadata__") == 0)
            continue;
        SW_TRY_GOTO(take_tensor(path, name, entry, data_bytes, &placed[count++]), done);
    }
    qsort(placed, (size_t)count, sizeof *placed, by_offset);
    SW_TRY_GOTO(check_cover(path, placed, count, data_bytes), done);
    status = append(tensors, placed, count, file, SW_SAFETENSORS_LENGTH_BYTES + header_bytes);
done:
    free(placed);
    return status;
}

sw_status sw_safetensors_add_file(struct sw_safetensors *tensors, int file) {
    const char *path = tensors->paths[file];
    char name[NAME_CHARS];
    int fd;
    SW_TRY(sw_file_open_to_read(path, &fd));
    (void)snprintf(name, sizeof name, "the header of %s", path);
    char *text = NULL;
    json_t *header = NULL;
    int64_t header_bytes = 0, data_bytes = 0;
    sw_status status = sw_file_identify(fd, path, &tensors->identities[file]);
    if (status == SW_OK)
        status = read_header(fd, path, &text, &header_bytes, &data_bytes);
    close(fd);
    if (status == SW_OK)
        status = sw_safetensors_parse_json(name, text, header_bytes, &header);
    free(text);
    if (status != SW_OK)
        return status;
    status = take_tensors(tensors, file, header, header_bytes, data_bytes);
    json_decref(header);
    return status;
}
