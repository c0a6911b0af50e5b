#include "io/safetensors/safetensors.h"

#include "core/size.h"
#include "io/queue/file.h"
#include "io/queue/read_ahead.h"
#include "io/safetensors/safetensors_private.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Reads and parses the index. The caller releases *out, also after a failure. */
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
        status = sw_safetensors_parse_json(path, text, bytes, out);
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

/* Refuses an index some of whose shards are not there, as after a download that ended early. */
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

/* Lists each shard that the index names, once: `shards` keeps the file's number under its name. */
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
        const sw_status status = sw_safetensors_add_file(tensors, file);
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

static sw_status open_single(struct sw_safetensors *tensors, const char *folder) {
    SW_TRY(add_path(tensors, folder, SW_SAFETENSORS_SINGLE_NAME));
    SW_TRY(sw_safetensors_add_file(tensors, 0));
    return sort_names(tensors);
}

static sw_status open_folder(struct sw_safetensors *tensors, const char *folder) {
    tensors->buffer = malloc(SW_SAFETENSORS_BUFFER_BYTES);
    char *single = sw_file_path(folder, SW_SAFETENSORS_SINGLE_NAME),
         *index = sw_file_path(folder, SW_SAFETENSORS_INDEX_NAME);
    sw_status status;
    if (tensors->buffer == NULL || single == NULL || index == NULL)
        status = sw_fail(SW_ERR_NOMEM, "no memory to open the weights of %s", folder);
    else if (access(single, F_OK) == 0)
        status = open_single(tensors, folder);
    else if (access(index, F_OK) == 0)
        status = open_index(tensors, folder, index);
    else
        status = sw_fail(SW_ERR_ARG, "%s has neither %s nor %s", folder, SW_SAFETENSORS_SINGLE_NAME,
                         SW_SAFETENSORS_INDEX_NAME);
    free(single);
    free(index);
    return status;
}

sw_status sw_safetensors_open(const char *folder, struct sw_safetensors **out) {
    struct sw_safetensors *tensors = calloc(1, sizeof *tensors);
    if (tensors == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to open the weights of %s", folder);
    tensors->fd = tensors->open_file = -1;
    pthread_mutex_init(&tensors->mutex, NULL);
    const sw_status status = open_folder(tensors, folder);
    if (status != SW_OK) {
        sw_safetensors_close(tensors);
        return status;
    }
    *out = tensors;
    return SW_OK;
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
