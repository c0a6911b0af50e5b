/* Declarations that the files of the safetensors reader share. */
#ifndef SW_IO_SAFETENSORS_SAFETENSORS_PRIVATE_H
#define SW_IO_SAFETENSORS_SAFETENSORS_PRIVATE_H

#include "io/safetensors/safetensors.h"

#include <pthread.h>
#include <stdint.h>

#define SW_SAFETENSORS_SINGLE_NAME "model.safetensors"
#define SW_SAFETENSORS_INDEX_NAME "model.safetensors.index.json"

enum {
    SW_SAFETENSORS_LENGTH_BYTES = 8,
    SW_SAFETENSORS_MAX_HEADER_BYTES = 100000000, /* the format's own limit */
    SW_SAFETENSORS_MAX_VALUES = 1 << 23, /* of JSON in one header or index: bounds the memory that parsing takes */
    SW_SAFETENSORS_MAX_FILES = 10000,
    SW_SAFETENSORS_BUFFER_BYTES = 1 << 20,
};

#define SW_SAFETENSORS_MAX_ELEMS (INT64_C(1) << 48)

struct json_t;

struct sw_safetensors {
    struct sw_safetensor *tensors; /* by file and offset, which is the quickest order to read them in */
    int64_t count, capacity;
    int64_t *by_name; /* indices of tensors */
    char **paths;     /* of the shards */
    int file_count;
    struct sw_read_ahead *ahead; /* NULL until something is announced */
    pthread_mutex_t mutex;       /* guards what follows */
    int open_file, fd;           /* the shard read last without being announced; -1 at first */
    void *buffer;                /* of that reading */
};

/* A name of a dtype that the format knows, or NULL; bytes 0 where an element has no whole bytes. */
struct sw_safetensors_type {
    const char *name;
    int bytes;
    int supported;
    sw_dtype type;
};
const struct sw_safetensors_type *sw_safetensors_type_named(const char *name);

/* Parses text from outside with bounded memory. The caller releases *out with json_decref. */
sw_status sw_safetensors_parse_json(const char *path, const char *text, int64_t bytes, struct json_t **out);

/* Reads a whole small file, no longer than max bytes. The caller frees *out. */
sw_status sw_safetensors_read_text(const char *path, int64_t max_bytes, char **out, int64_t *out_bytes);

/* Elements of a tensor that is to be written; refuses a name or shape that no header could have. */
sw_status sw_safetensors_count_elems(const struct sw_safetensors_declared *tensor, int64_t *out);

/* Reads the header of paths[file], checks it, and appends its tensors in the order of their bytes. */
sw_status sw_safetensors_add_file(struct sw_safetensors *tensors, int file);

#endif
