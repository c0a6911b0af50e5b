/* Writes one safetensors file: complete under its name, or not there at all. */
#include "io/safetensors/safetensors_private.h"

#include "core/confine.h"
#include "core/json.h"
#include "core/size.h"
#include "io/queue/file.h"
#include "io/queue/streams.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HEADER_ALIGN_BYTES = 8 };
static_assert(SW_WRITE_BEHIND_BLOCK_BYTES % HEADER_ALIGN_BYTES == 0, "no element lies across two blocks");

struct sw_safetensors_writer {
    char *path, *partial_path;
    int fd;
    sw_dtype type;
    int64_t elems, written; /* declared, and written so far */
    struct sw_write_behind *behind;
    int64_t buffered_bytes; /* bytes filled in the current block */
};

static void free_writer(struct sw_safetensors_writer *writer) {
    sw_write_behind_close(writer->behind);
    if (writer->fd >= 0)
        close(writer->fd);
    free(writer->path);
    free(writer->partial_path);
    free(writer);
}

void sw_safetensors_writer_abort(struct sw_safetensors_writer *writer) {
    if (writer == NULL)
        return;
    if (writer->fd >= 0)
        sw_path_unlink(writer->partial_path);
    free_writer(writer);
}

static sw_status write_error(const struct sw_safetensors_writer *writer, const char *what, int error) {
    return sw_fail(sw_file_write_error(error), "%s cannot be %s: %s", writer->path, what, strerror(error));
}

/* Returns the free bytes of the current block, and in *out_at where they begin. */
static int64_t room(struct sw_safetensors_writer *writer, char **out_at) {
    *out_at = (char *)sw_write_behind_block(writer->behind) + writer->buffered_bytes;
    return SW_WRITE_BEHIND_BLOCK_BYTES - writer->buffered_bytes;
}

static sw_status flush_block(struct sw_safetensors_writer *writer) {
    const int64_t bytes = writer->buffered_bytes;
    writer->buffered_bytes = 0;
    return bytes == 0 ? SW_OK : sw_write_behind_put(writer->behind, bytes);
}

static sw_status advance(struct sw_safetensors_writer *writer, int64_t bytes) {
    writer->buffered_bytes += bytes;
    return writer->buffered_bytes == SW_WRITE_BEHIND_BLOCK_BYTES ? flush_block(writer) : SW_OK;
}

static sw_status write_text(struct sw_safetensors_writer *writer, const char *text, int64_t bytes) {
    while (bytes > 0) {
        char *at;
        const int64_t now = sw_min_i64(bytes, room(writer, &at));
        memcpy(at, text, (size_t)now);
        SW_TRY(advance(writer, now));
        text += now;
        bytes -= now;
    }
    return SW_OK;
}

static json_t *describe(const struct sw_safetensors_declared *tensor, sw_dtype type, int64_t from_bytes,
                        int64_t to_bytes) {
    json_t *shape = json_array();
    for (int i = 0; i < tensor->dims; i++)
        json_array_append_new(shape, json_integer(tensor->dim[i]));
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", sw_safetensors_type_name(type), "shape", shape, "data_offsets",
                     (json_int_t)from_bytes, (json_int_t)to_bytes);
}

sw_status sw_safetensors_count_elems(const struct sw_safetensors_declared *tensor, int64_t *out) {
    *out = 1;
    bool possible = tensor->dims >= 0 && tensor->dims <= SW_SAFETENSORS_MAX_DIMS;
    for (int i = 0; possible && i < tensor->dims; i++)
        possible = sw_mul_i64(*out, tensor->dim[i], out) && *out <= SW_SAFETENSORS_MAX_ELEMS;
    if (!possible || strlen(tensor->name) >= SW_SAFETENSORS_NAME_CHARS)
        return sw_fail(SW_ERR_ARG, "tensor %s cannot be written: its name or shape is too large", tensor->name);
    return SW_OK;
}

static sw_status add_tensors(struct sw_safetensors_writer *writer, json_t *header,
                             const struct sw_safetensors_declared *tensors, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        int64_t elems;
        SW_TRY(sw_safetensors_count_elems(&tensors[i], &elems));
        if (json_object_get(header, tensors[i].name) != NULL)
            return sw_fail(SW_ERR_ARG, "tensor %s is to be written twice", tensors[i].name);
        const int64_t bytes = sw_dtype_bytes(writer->type);
        json_t *entry = describe(&tensors[i], writer->type, writer->elems * bytes, (writer->elems + elems) * bytes);
        if (json_object_set_new(header, tensors[i].name, entry) != 0)
            return sw_json_lacked_memory()
                       ? sw_fail(SW_ERR_NOMEM, "no memory to name tensor %s", tensors[i].name)
                       : sw_fail(SW_ERR_ARG, "tensor %s cannot be named in a header: its name is not UTF-8",
                                 tensors[i].name);
        writer->elems += elems;
    }
    return SW_OK;
}

/* Makes the bytes before the data, which then begin at a multiple of 8 bytes, for readers that map the file. The caller
 * frees *out. */
static sw_status make_header(const struct sw_safetensors_writer *writer, const json_t *header, char **out,
                             int64_t *out_bytes) {
    char *text = sw_json_text(header, JSON_COMPACT);
    const int64_t used = text == NULL ? 0 : (int64_t)strlen(text), bytes = sw_round_up(used, HEADER_ALIGN_BYTES);
    *out_bytes = SW_SAFETENSORS_LENGTH_BYTES + bytes;
    *out = text == NULL ? NULL : malloc((size_t)*out_bytes);
    if (*out != NULL) {
        for (int i = 0; i < SW_SAFETENSORS_LENGTH_BYTES; i++)
            (*out)[i] = (char)((uint64_t)bytes >> (8 * i));
        memcpy(*out + SW_SAFETENSORS_LENGTH_BYTES, text, (size_t)used);
        memset(*out + SW_SAFETENSORS_LENGTH_BYTES + used, ' ', (size_t)(bytes - used));
    }
    free(text);
    if (*out == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the header of %s", writer->path);
    if (bytes > SW_SAFETENSORS_MAX_HEADER_BYTES)
        return sw_fail(SW_ERR_ARG, "%s would have a header of more than %d bytes: write fewer tensors into a file",
                       writer->path, SW_SAFETENSORS_MAX_HEADER_BYTES);
    return SW_OK;
}

static sw_status write_header(struct sw_safetensors_writer *writer, const json_t *header) {
    char *text = NULL;
    int64_t bytes;
    sw_status status = make_header(writer, header, &text, &bytes);
    if (status == SW_OK)
        status = sw_write_behind_open(writer->fd, writer->partial_path,
                                      bytes + writer->elems * sw_dtype_bytes(writer->type), &writer->behind);
    if (status == SW_OK)
        status = write_text(writer, text, bytes);
    free(text);
    return status;
}

static sw_status open_partial(struct sw_safetensors_writer *writer, const char *path) {
    writer->path = strdup(path);
    if (writer->path == NULL || asprintf(&writer->partial_path, "%s.partial", path) < 0) {
        writer->partial_path = NULL;
        return sw_fail(SW_ERR_NOMEM, "no memory to write %s", path);
    }
    writer->fd = sw_path_open(writer->partial_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    return writer->fd >= 0 ? SW_OK : write_error(writer, "created", errno);
}

sw_status sw_safetensors_writer_open(const char *path, sw_dtype type, const struct sw_safetensors_declared *tensors,
                                     int64_t count, struct sw_safetensors_writer **out) {
    struct sw_safetensors_writer *writer = calloc(1, sizeof *writer);
    json_t *header = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    sw_status status = SW_ERR_NOMEM;
    if (writer == NULL || header == NULL) {
        json_decref(header);
        free(writer);
        return sw_fail(status, "no memory to write %s", path);
    }
    *writer = (struct sw_safetensors_writer){.fd = -1, .type = type};
    SW_TRY_GOTO(add_tensors(writer, header, tensors, count), failed);
    SW_TRY_GOTO(open_partial(writer, path), failed);
    SW_TRY_GOTO(write_header(writer, header), failed);
    json_decref(header);
    *out = writer;
    return SW_OK;
failed:
    json_decref(header);
    sw_safetensors_writer_abort(writer);
    return status;
}

sw_status sw_safetensors_write_f32(struct sw_safetensors_writer *writer, const float *values, int64_t count) {
    if (count < 0 || count > writer->elems - writer->written)
        return sw_fail(SW_ERR_INTERNAL, "%s was declared with %lld elements, and is given more", writer->path,
                       (long long)writer->elems);
    const int64_t element_bytes = sw_dtype_bytes(writer->type);
    writer->written += count;
    while (count > 0) {
        char *at;
        const int64_t now = sw_min_i64(count, room(writer, &at) / element_bytes);
        sw_dtype_round(writer->type, values, now, at);
        SW_TRY(advance(writer, now * element_bytes));
        values += now;
        count -= now;
    }
    return SW_OK;
}

static sw_status sync_directory_of(const char *path) {
    char *copy = strdup(path); /* dirname() may change it */
    if (copy == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to finish %s", path);
    const sw_status status = sw_file_sync_directory(dirname(copy));
    free(copy);
    return status;
}

sw_status sw_safetensors_writer_finish(struct sw_safetensors_writer *writer) {
    sw_status status;
    if (writer->written != writer->elems) {
        status = sw_fail(SW_ERR_INTERNAL, "%s was declared with %lld elements, and was given %lld", writer->path,
                         (long long)writer->elems, (long long)writer->written);
        goto failed;
    }
    SW_TRY_GOTO(flush_block(writer), failed);
    SW_TRY_GOTO(sw_write_behind_finish(writer->behind), failed);
    if (fsync(writer->fd) != 0 || sw_path_rename(writer->partial_path, writer->path) != 0) {
        status = write_error(writer, "finished", errno);
        goto failed;
    }
    status = sync_directory_of(writer->path);
    free_writer(writer);
    return status;
failed:
    sw_safetensors_writer_abort(writer);
    return status;
}
