/* Writes weights into one file or, if they are too large for one, into several with an index. */
#include "io/safetensors/safetensors_private.h"

#include "core/confine.h"
#include "core/size.h"
#include "io/queue/file.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NAME_CHARS = 64 };

struct sw_safetensors_shards {
    char *folder;
    sw_dtype type;
    const struct sw_safetensors_declared *tensors;
    int64_t count;
    int64_t total_bytes;
    int64_t *shard_end;   /* per shard: the first tensor after it */
    int64_t *shard_elems; /* per shard: its elements */
    int64_t shard_count, finished;
    struct sw_safetensors_writer *writer; /* of shard `finished`; NULL before its first element and after its last */
    int64_t left_elems;                   /* elements that this shard still lacks */
};

static void shard_name(const struct sw_safetensors_shards *shards, int64_t shard, char name[NAME_CHARS]) {
    if (shards->shard_count == 1)
        snprintf(name, NAME_CHARS, SW_SAFETENSORS_SINGLE_NAME);
    else
        snprintf(name, NAME_CHARS, "model-%05lld-of-%05lld.safetensors", (long long)shard + 1,
                 (long long)shards->shard_count);
}

static char *shard_path(const struct sw_safetensors_shards *shards, int64_t shard) {
    char name[NAME_CHARS];
    shard_name(shards, shard, name);
    return sw_file_path(shards->folder, name);
}

static void free_shards(struct sw_safetensors_shards *shards) {
    free(shards->folder);
    free(shards->shard_end);
    free(shards->shard_elems);
    free(shards);
}

void sw_safetensors_shards_abort(struct sw_safetensors_shards *shards) {
    if (shards == NULL)
        return;
    sw_safetensors_writer_abort(shards->writer);
    for (int64_t shard = 0; shard < shards->finished; shard++) {
        char *path = shard_path(shards, shard);
        if (path != NULL)
            sw_path_unlink(path);
        free(path);
    }
    free_shards(shards);
}

/* A shard is full if the next tensor would exceed its size. No shard is empty unless the model is. */
static sw_status divide(struct sw_safetensors_shards *shards, int64_t shard_bytes) {
    const int64_t shard_elems = shard_bytes / sw_dtype_bytes(shards->type);
    for (int64_t i = 0; i < shards->count; i++) {
        int64_t elems;
        SW_TRY(sw_safetensors_count_elems(&shards->tensors[i], &elems));
        const int64_t last = shards->shard_count - 1;
        const bool fits =
            last >= 0 && (shards->shard_elems[last] == 0 || elems <= shard_elems - shards->shard_elems[last]);
        const int64_t shard = fits ? last : shards->shard_count++;
        shards->shard_elems[shard] += elems;
        shards->shard_end[shard] = i + 1;
        shards->total_bytes += elems * sw_dtype_bytes(shards->type);
    }
    if (shards->shard_count > SW_SAFETENSORS_MAX_FILES)
        return sw_fail(SW_ERR_ARG, "the weights would be %lld files, more than %d: allow larger ones",
                       (long long)shards->shard_count, SW_SAFETENSORS_MAX_FILES);
    return SW_OK;
}

sw_status sw_safetensors_shards_open(const char *folder, sw_dtype type, int64_t shard_bytes,
                                     const struct sw_safetensors_declared *tensors, int64_t count,
                                     struct sw_safetensors_shards **out) {
    assert(count > 0 && shard_bytes > 0);
    struct sw_safetensors_shards *shards = calloc(1, sizeof *shards);
    if (shards == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to write the weights of %s", folder);
    *shards = (struct sw_safetensors_shards){.folder = strdup(folder),
                                             .type = type,
                                             .tensors = tensors,
                                             .count = count,
                                             .shard_end = calloc((size_t)count, sizeof *shards->shard_end),
                                             .shard_elems = calloc((size_t)count, sizeof *shards->shard_elems)};
    sw_status status;
    if (shards->folder == NULL || shards->shard_end == NULL || shards->shard_elems == NULL)
        status = sw_fail(SW_ERR_NOMEM, "no memory to write the weights of %s", folder);
    else
        status = divide(shards, shard_bytes);
    if (status != SW_OK) {
        free_shards(shards);
        return status;
    }
    *out = shards;
    return SW_OK;
}

static sw_status begin_shard(struct sw_safetensors_shards *shards) {
    const int64_t first = shards->finished == 0 ? 0 : shards->shard_end[shards->finished - 1];
    const int64_t end = shards->shard_end[shards->finished];
    char *path = shard_path(shards, shards->finished);
    if (path == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to write the weights of %s", shards->folder);
    shards->left_elems = shards->shard_elems[shards->finished];
    const sw_status status =
        sw_safetensors_writer_open(path, shards->type, shards->tensors + first, end - first, &shards->writer);
    free(path);
    return status;
}

static sw_status finish_shard(struct sw_safetensors_shards *shards) {
    struct sw_safetensors_writer *writer = shards->writer;
    shards->writer = NULL;
    SW_TRY(sw_safetensors_writer_finish(writer));
    shards->finished++;
    return SW_OK;
}

sw_status sw_safetensors_shards_write_f32(struct sw_safetensors_shards *shards, const float *values, int64_t count) {
    while (count > 0) {
        if (shards->finished == shards->shard_count)
            return sw_fail(SW_ERR_INTERNAL, "the weights of %s were declared with fewer elements", shards->folder);
        if (shards->writer == NULL)
            SW_TRY(begin_shard(shards));
        const int64_t now = sw_min_i64(count, shards->left_elems);
        SW_TRY(sw_safetensors_write_f32(shards->writer, values, now));
        shards->left_elems -= now;
        if (shards->left_elems == 0)
            SW_TRY(finish_shard(shards));
        values += now;
        count -= now;
    }
    return SW_OK;
}

/* Makes the index; the caller releases it. NULL: no memory. */
static json_t *describe(const struct sw_safetensors_shards *shards) {
    json_t *map = json_object();
    char name[NAME_CHARS];
    for (int64_t i = 0, shard = 0; i < shards->count; i++) {
        while (i >= shards->shard_end[shard])
            shard++;
        shard_name(shards, shard, name);
        if (json_object_set_new(map, shards->tensors[i].name, json_string(name)) != 0) {
            json_decref(map);
            return NULL;
        }
    }
    return json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)shards->total_bytes, "weight_map", map);
}

static sw_status write_index(const struct sw_safetensors_shards *shards) {
    char *path = sw_file_path(shards->folder, SW_SAFETENSORS_INDEX_NAME);
    json_t *index = describe(shards);
    sw_status status = SW_OK;
    int fd = -1;
    if (path == NULL || index == NULL)
        SW_TRY_GOTO(sw_fail(SW_ERR_NOMEM, "no memory for the index of %s", shards->folder), end);
    errno = 0;
    fd = sw_path_open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0 || json_dumpfd(index, fd, JSON_INDENT(2)) != 0 || fsync(fd) != 0) {
        status = sw_fail(sw_file_write_error(errno), "%s cannot be written: %s", path, strerror(errno));
        sw_path_unlink(path);
        goto end;
    }
    status = sw_file_sync_directory(shards->folder);
end:
    if (fd >= 0)
        close(fd);
    json_decref(index);
    free(path);
    return status;
}

sw_status sw_safetensors_shards_finish(struct sw_safetensors_shards *shards) {
    sw_status status = SW_OK;
    /* A shard without elements was never begun. If elements are missing, the writer reports it. */
    if (shards->finished < shards->shard_count && shards->writer == NULL)
        status = begin_shard(shards);
    if (status == SW_OK && shards->writer != NULL)
        status = finish_shard(shards);
    if (status == SW_OK && shards->shard_count > 1)
        status = write_index(shards);
    if (status != SW_OK) {
        sw_safetensors_shards_abort(shards);
        return status;
    }
    free_shards(shards);
    return SW_OK;
}
