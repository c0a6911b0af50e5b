/* Reads safetensors files. The header comes from outside: nothing in it is believed unchecked.
 *
 * Files are read, not mapped. A mapped file that shrinks kills the process with a signal, and mapped pages count
 * against the memory that budgets have promised. The price is a copy, which widening to fp32 makes anyway.
 *
 * Elements are read on demand under a mutex, or found in blocks that were announced and read ahead; threads look there
 * without a lock. */
#include "io/safetensors/safetensors.h"

#include "core/files/files.h"
#include "core/json.h"
#include "core/size.h"
#include "io/queue/file.h"
#include "io/queue/streams.h"
#include "io/safetensors/safetensors_private.h"

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The header of one safetensors file. */

enum {
    FAULT_BYTES = 64, /* bytes read from a file's beginning to recognise that it is something else */
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
    {"F8_E8M0", 1},
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

/* Counts the values before parsing: parsed JSON takes up to a hundred times the memory of its text. */
/* Parses text from outside with bounded memory. The caller releases *out with json_decref; NULL after a failure. */
static sw_status safetensors_parse_json(const char *name, const char *text, int64_t bytes, json_t **out) {
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

static sw_status take_offsets(const char *path, const json_t *offsets, int64_t data_bytes, struct sw_safetensor *out,
                              int64_t *out_end) {
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
    if (out->elem_bytes > 0 && *out_end - out->offset_bytes != out->elems * out->elem_bytes)
        return sw_fail(SW_ERR_ARG, "%s: tensor %s has %lld bytes, and its shape and type need %lld", path, out->name,
                       (long long)(*out_end - out->offset_bytes), (long long)(out->elems * out->elem_bytes));
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
    tensor->elem_bytes = type != NULL ? type->bytes : 0;
    snprintf(tensor->type_name, sizeof tensor->type_name, "%s", type_name);
    SW_TRY(take_shape(path, json_object_get(entry, "shape"), tensor));
    return take_offsets(path, json_object_get(entry, "data_offsets"), data_bytes, tensor, &out->end_bytes);
}

/* Orders tensors by offset. An empty tensor comes before another one at the same offset. */
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

/* Reads the header of paths[file], checks it, and appends its tensors in the order of their offsets. */
static sw_status safetensors_add_file(struct sw_safetensors *tensors, int file) {
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
        status = safetensors_parse_json(name, text, header_bytes, &header);
    free(text);
    if (status != SW_OK)
        return status;
    status = take_tensors(tensors, file, header, header_bytes, data_bytes);
    json_decref(header);
    return status;
}

/* Reads elements, from what was read ahead or else from the file. */

static_assert(__BYTE_ORDER == __LITTLE_ENDIAN, "tensors are read into place as the file has them");

static sw_status select_file(struct sw_safetensors *tensors, int file) {
    if (tensors->open_file == file)
        return SW_OK;
    if (tensors->fd >= 0)
        close(tensors->fd);
    tensors->open_file = -1;
    SW_TRY(sw_file_open_again(tensors->paths[file], &tensors->identities[file], &tensors->fd));
    tensors->open_file = file;
    return SW_OK;
}

static int64_t place_of(const struct sw_safetensor *tensor, int64_t elem) {
    return tensor->offset_bytes + elem * tensor->elem_bytes;
}

static_assert((int)SW_SAFETENSORS_BUFFER_BYTES >= (int)SW_READ_AHEAD_BLOCK_BYTES,
              "a block's elements are read at once");

/* Returns the bytes that an element takes in the caller's memory: numbers are widened to fp32, others stay bytes. */
static int64_t given_bytes(const struct sw_safetensor *tensor) {
    return tensor->supported ? (int64_t)sizeof(float) : 1;
}

/* Gives elements, which the file has at `from`, to the caller. */
static void give(const struct sw_safetensor *tensor, const void *from, int64_t count, char *out) {
    if (tensor->supported)
        sw_dtype_widen(tensor->type, from, count, (float *)(void *)out);
    else
        memcpy(out, from, (size_t)count);
}

/* Reads elements from their file. The caller holds the mutex. */
static sw_status read_now(struct sw_safetensors *tensors, const struct sw_safetensor *tensor, int64_t first,
                          int64_t count, char *out) {
    SW_TRY(select_file(tensors, tensor->file));
    SW_TRY(sw_file_read(tensors->fd, tensors->paths[tensor->file], place_of(tensor, first), tensors->buffer,
                        count * tensor->elem_bytes));
    give(tensor, tensors->buffer, count, out);
    return SW_OK;
}

/* Copies an element that spans two blocks, as happens if the header has an odd length. */
static bool look_across(const struct sw_safetensors *tensors, const struct sw_safetensor *tensor, int64_t elem,
                        char bytes[sizeof(float)]) {
    int64_t there;
    for (int64_t b = 0; b < tensor->elem_bytes; b++) {
        const char *at = sw_read_ahead_look(tensors->ahead, tensor->file, place_of(tensor, elem) + b, &there);
        if (at == NULL)
            return false;
        bytes[b] = *at;
    }
    return true;
}

/* Returns how many of these elements, from the first on, were read ahead. *out_from points to them, as stored in the
 * file: in a block, or a single element in the caller's `across`. */
static int64_t look(const struct sw_safetensors *tensors, const struct sw_safetensor *tensor, int64_t first,
                    int64_t count, char across[sizeof(float)], const char **out_from) {
    int64_t bytes = 0;
    if (tensors->ahead == NULL)
        return 0;
    *out_from = sw_read_ahead_look(tensors->ahead, tensor->file, place_of(tensor, first), &bytes);
    const int64_t there = sw_min_i64(count, bytes / tensor->elem_bytes);
    if (there > 0 || bytes == 0 || !look_across(tensors, tensor, first, across))
        return there;
    *out_from = across;
    return 1;
}

static sw_status read_some(struct sw_safetensors *tensors, const struct sw_safetensor *tensor, int64_t first,
                           int64_t count, char *out, int64_t *out_read) {
    char across[sizeof(float)];
    const char *from;
    *out_read = look(tensors, tensor, first, count, across, &from);
    if (*out_read > 0) {
        give(tensor, from, *out_read, out);
        return SW_OK;
    }
    /* Stops the read at the end of this block: the next block may already be in memory. */
    const int64_t left_bytes = SW_READ_AHEAD_BLOCK_BYTES - place_of(tensor, first) % SW_READ_AHEAD_BLOCK_BYTES;
    *out_read = sw_min_i64(count, sw_max_i64(1, left_bytes / tensor->elem_bytes));
    pthread_mutex_lock(&tensors->mutex);
    const sw_status status = read_now(tensors, tensor, first, *out_read, out);
    pthread_mutex_unlock(&tensors->mutex);
    return status;
}

static sw_status read_elems(struct sw_safetensors *tensors, const struct sw_safetensor *tensor, int64_t first,
                            int64_t count, char *out) {
    assert(first >= 0 && count >= 0 && first <= tensor->elems - count);
    for (int64_t done = 0, now; done < count; done += now) {
        const sw_status status =
            read_some(tensors, tensor, first + done, count - done, out + done * given_bytes(tensor), &now);
        if (status != SW_OK)
            return sw_fail_while(status, "reading tensor %s", tensor->name);
    }
    return SW_OK;
}

sw_status sw_safetensors_read_f32(struct sw_safetensors *tensors, const struct sw_safetensor *tensor, int64_t first,
                                  int64_t count, float *out) {
    if (!tensor->supported)
        return sw_fail(SW_ERR_UNSUPPORTED, "%s: tensor %s has a type other than F32, BF16 and F16",
                       tensors->paths[tensor->file], tensor->name);
    return read_elems(tensors, tensor, first, count, (char *)out);
}

sw_status sw_safetensors_read_bytes(struct sw_safetensors *tensors, const struct sw_safetensor *tensor, int64_t first,
                                    int64_t count, uint8_t *out) {
    assert(tensor->elem_bytes == 1);
    return read_elems(tensors, tensor, first, count, (char *)out);
}

const char *sw_shape_text(int dims, const int64_t *dim, char text[SW_SHAPE_CHARS]) {
    int used = snprintf(text, SW_SHAPE_CHARS, "[");
    for (int d = 0; d < dims; d++)
        used += snprintf(text + used, SW_SHAPE_CHARS - (size_t)used, d == 0 ? "%lld" : ", %lld", (long long)dim[d]);
    snprintf(text + used, SW_SHAPE_CHARS - (size_t)used, "]");
    return text;
}

sw_status sw_safetensors_announce(struct sw_safetensors *tensors, const struct sw_safetensor *tensor, int64_t first,
                                  int64_t count, int64_t position, bool *out_taken) {
    assert(tensor->supported || tensor->elem_bytes == 1);
    assert(first >= 0 && count >= 0 && first <= tensor->elems - count);
    if (tensors->ahead == NULL)
        SW_TRY(sw_read_ahead_open((const char *const *)tensors->paths, tensors->identities, &tensors->ahead));
    return sw_read_ahead_announce(tensors->ahead, tensor->file, place_of(tensor, first), count * tensor->elem_bytes,
                                  position, out_taken);
}

void sw_safetensors_pass(struct sw_safetensors *tensors, int64_t position) {
    if (tensors->ahead != NULL)
        sw_read_ahead_pass(tensors->ahead, position);
}

sw_status sw_safetensors_await(struct sw_safetensors *tensors, int64_t end) {
    return tensors->ahead == NULL ? SW_OK : sw_read_ahead_await(tensors->ahead, end);
}

int64_t sw_safetensors_bytes_ahead(const struct sw_safetensors *tensors) {
    return tensors->ahead == NULL ? 0 : sw_read_ahead_bytes(tensors->ahead);
}

/* Reads and parses the index. The caller releases *out, even after a failure. */
static sw_status read_index(const char *path, json_t **out) {
    int fd;
    int64_t bytes = 0;
    char *text = NULL;
    SW_TRY(sw_file_open_to_read(path, &fd));
    sw_status status = sw_file_size(fd, path, &bytes);
    if (status == SW_OK && bytes > SW_SAFETENSORS_MAX_HEADER_BYTES)
        status = sw_fail(SW_ERR_ARG, "%s has %lld bytes, more than %d", path, (long long)bytes,
                         SW_SAFETENSORS_MAX_HEADER_BYTES);
    if (status == SW_OK && (text = malloc((size_t)bytes + 1)) == NULL)
        status = sw_fail(SW_ERR_NOMEM, "no memory for %s", path);
    if (status == SW_OK)
        status = sw_file_read(fd, path, 0, text, bytes);
    close(fd);
    if (status == SW_OK)
        status = safetensors_parse_json(path, text, bytes, out);
    free(text);
    return status;
}

static sw_status add_path(struct sw_safetensors *tensors, const char *folder, const char *name) {
    char *path = sw_file_path(folder, name);
    char **paths = realloc(tensors->paths, ((size_t)tensors->file_count + 1) * sizeof *paths);
    struct sw_file_identity *identities =
        reallocarray(tensors->identities, (size_t)tensors->file_count + 1, sizeof *identities);
    if (paths != NULL)
        tensors->paths = paths;
    if (identities != NULL)
        tensors->identities = identities;
    if (path == NULL || paths == NULL || identities == NULL) {
        free(path);
        return sw_fail(SW_ERR_NOMEM, "no memory for the name of a shard");
    }
    tensors->paths[tensors->file_count++] = path;
    return SW_OK;
}

/* Refuses a shard that is not a file of the folder itself. */
static sw_status check_shard_name(const char *index_path, const char *tensor, const char *shard) {
    if (shard == NULL || shard[0] == '\0' || shard[0] == '.' || strchr(shard, '/') != NULL)
        return sw_fail(SW_ERR_ARG, "%s: tensor %s is in file '%s', which is no name of a file of that folder",
                       index_path, tensor, shard != NULL ? shard : "");
    return SW_OK;
}

/* Refuses an index whose shards are not all there, as after an incomplete download. */
static sw_status check_shards_exist(const char *folder, const char *index_path, json_t *shards) {
    const char *shard, *missing = NULL;
    json_t *value;
    size_t count = 0;
    json_object_foreach(shards, shard, value) {
        char *path = sw_file_path(folder, shard);
        if (path == NULL)
            return sw_fail(SW_ERR_NOMEM, "no memory for the name of a shard");
        const bool there = access(path, F_OK) == 0;
        free(path);
        missing = there ? missing : shard;
        count += !there;
    }
    if (missing == NULL)
        return SW_OK;
    return sw_fail(SW_ERR_ARG,
                   "%zu of the files that %s names %s %s: the download is not complete; get the model again", count,
                   index_path, count == 1 ? "is missing," : "are missing, such as", missing);
}

/* Lists each shard that the index names, once: `shards` maps its name to the file's number. */
static sw_status list_shards(struct sw_safetensors *tensors, const char *folder, const char *index_path, json_t *map,
                             json_t *shards) {
    const char *name;
    json_t *value;
    json_object_foreach(map, name, value) {
        const char *shard = json_string_value(value);
        SW_TRY(check_shard_name(index_path, name, shard));
        if (json_object_get(shards, shard) != NULL)
            continue;
        if (tensors->file_count == SW_SAFETENSORS_MAX_FILES)
            return sw_fail(SW_ERR_ARG, "%s names more than %d files", index_path, SW_SAFETENSORS_MAX_FILES);
        if (json_object_set_new(shards, shard, json_integer(tensors->file_count)) != 0)
            return sw_fail(SW_ERR_NOMEM, "no memory for the shards of %s", index_path);
        SW_TRY(add_path(tensors, folder, shard));
    }
    return check_shards_exist(folder, index_path, shards);
}

static sw_status add_shards(struct sw_safetensors *tensors, const char *index_path) {
    for (int file = 0; file < tensors->file_count; file++) {
        const sw_status status = safetensors_add_file(tensors, file);
        if (status != SW_OK)
            return sw_fail_while(status, "opening the shards that %s names", index_path);
    }
    return SW_OK;
}

static int by_name(const void *a, const void *b, void *context) {
    const struct sw_safetensor *tensors = context;
    return strcmp(tensors[*(const int64_t *)a].name, tensors[*(const int64_t *)b].name);
}

static sw_status sort_names(struct sw_safetensors *tensors) {
    tensors->by_name = calloc((size_t)tensors->count + 1, sizeof *tensors->by_name);
    if (tensors->by_name == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the names of %lld tensors", (long long)tensors->count);
    for (int64_t i = 0; i < tensors->count; i++)
        tensors->by_name[i] = i;
    qsort_r(tensors->by_name, (size_t)tensors->count, sizeof *tensors->by_name, by_name, tensors->tensors);
    for (int64_t i = 1; i < tensors->count; i++) {
        const struct sw_safetensor *a = &tensors->tensors[tensors->by_name[i - 1]];
        const struct sw_safetensor *b = &tensors->tensors[tensors->by_name[i]];
        if (strcmp(a->name, b->name) == 0)
            return sw_fail(SW_ERR_ARG, "tensor %s is both in %s and in %s", a->name, tensors->paths[a->file],
                           tensors->paths[b->file]);
    }
    return SW_OK;
}

static sw_status check_index(const struct sw_safetensors *tensors, const char *index_path, json_t *map,
                             json_t *shards) {
    const char *name;
    json_t *value;
    json_object_foreach(map, name, value) {
        const char *shard = json_string_value(value);
        const struct sw_safetensor *tensor = sw_safetensors_find(tensors, name);
        if (tensor == NULL || tensor->file != json_integer_value(json_object_get(shards, shard)))
            return sw_fail(SW_ERR_ARG, "%s says that tensor %s is in %s, and it is not there", index_path, name, shard);
    }
    return SW_OK;
}

static sw_status open_index(struct sw_safetensors *tensors, const char *folder, const char *index_path) {
    json_t *index = NULL, *shards = json_object();
    sw_status status = read_index(index_path, &index);
    json_t *map = json_object_get(index, "weight_map");
    if (status == SW_OK && json_object_size(map) == 0)
        status = sw_fail(SW_ERR_ARG, "%s has no weight_map that names a tensor", index_path);
    if (status == SW_OK)
        status = list_shards(tensors, folder, index_path, map, shards);
    if (status == SW_OK)
        status = add_shards(tensors, index_path);
    if (status == SW_OK)
        status = sort_names(tensors);
    if (status == SW_OK)
        status = check_index(tensors, index_path, map, shards);
    json_decref(index);
    json_decref(shards);
    return status;
}

static sw_status open_single(struct sw_safetensors *tensors, const char *folder, const char *name) {
    SW_TRY(add_path(tensors, folder, name));
    SW_TRY(safetensors_add_file(tensors, 0));
    return sort_names(tensors);
}

static sw_status open_folder(struct sw_safetensors *tensors, const char *folder) {
    char *single = sw_file_path(folder, SW_SAFETENSORS_SINGLE_NAME),
         *index = sw_file_path(folder, SW_SAFETENSORS_INDEX_NAME);
    sw_status status;
    if (single == NULL || index == NULL)
        status = sw_fail(SW_ERR_NOMEM, "no memory to open the weights of %s", folder);
    else if (access(single, F_OK) == 0)
        status = open_single(tensors, folder, SW_SAFETENSORS_SINGLE_NAME);
    else if (access(index, F_OK) == 0)
        status = open_index(tensors, folder, index);
    else
        status = sw_fail(SW_ERR_ARG, "%s has neither %s nor %s", folder, SW_SAFETENSORS_SINGLE_NAME,
                         SW_SAFETENSORS_INDEX_NAME);
    free(single);
    free(index);
    return status;
}

/* Opens one file of the folder, or all of its weights if `name` is NULL. */
static sw_status open_any(const char *folder, const char *name, struct sw_safetensors **out) {
    struct sw_safetensors *tensors = calloc(1, sizeof *tensors);
    if (tensors == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to open the weights of %s", folder);
    tensors->fd = tensors->open_file = -1;
    pthread_mutex_init(&tensors->mutex, NULL);
    tensors->buffer = malloc(SW_SAFETENSORS_BUFFER_BYTES);
    sw_status status = SW_OK;
    if (tensors->buffer == NULL)
        status = sw_fail(SW_ERR_NOMEM, "no memory to open the weights of %s", folder);
    if (status == SW_OK)
        status = name == NULL ? open_folder(tensors, folder) : open_single(tensors, folder, name);
    if (status != SW_OK) {
        sw_safetensors_close(tensors);
        return status;
    }
    *out = tensors;
    return SW_OK;
}

sw_status sw_safetensors_open(const char *folder, struct sw_safetensors **out) {
    return open_any(folder, NULL, out);
}

sw_status sw_safetensors_open_file(const char *folder, const char *name, struct sw_safetensors **out) {
    return open_any(folder, name, out);
}

void sw_safetensors_close(struct sw_safetensors *tensors) {
    if (tensors == NULL)
        return;
    sw_read_ahead_close(tensors->ahead);
    pthread_mutex_destroy(&tensors->mutex);
    for (int file = 0; file < tensors->file_count; file++)
        free(tensors->paths[file]);
    if (tensors->fd >= 0)
        close(tensors->fd);
    free(tensors->paths);
    free(tensors->identities);
    free(tensors->tensors);
    free(tensors->by_name);
    free(tensors->buffer);
    free(tensors);
}

int64_t sw_safetensors_count(const struct sw_safetensors *tensors) {
    return tensors->count;
}

const struct sw_safetensor *sw_safetensors_at(const struct sw_safetensors *tensors, int64_t index) {
    assert(index >= 0 && index < tensors->count);
    return &tensors->tensors[index];
}

const char *sw_safetensors_path(const struct sw_safetensors *tensors, const struct sw_safetensor *tensor) {
    return tensors->paths[tensor->file];
}

const struct sw_safetensor *sw_safetensors_find(const struct sw_safetensors *tensors, const char *name) {
    int64_t from = 0, to = tensors->count;
    while (from < to) {
        const int64_t middle = from + (to - from) / 2;
        const struct sw_safetensor *tensor = &tensors->tensors[tensors->by_name[middle]];
        const int order = strcmp(name, tensor->name);
        if (order == 0)
            return tensor;
        if (order < 0)
            to = middle;
        else
            from = middle + 1;
    }
    return NULL;
}
