/* Declarations shared by the files of the safetensors reader and writer. */
#ifndef SW_IO_SAFETENSORS_SAFETENSORS_PRIVATE_H
#define SW_IO_SAFETENSORS_SAFETENSORS_PRIVATE_H

#include "io/queue/file.h"
#include "io/safetensors/safetensors.h"

#include <pthread.h>
#include <stdint.h>

#define SW_SAFETENSORS_SINGLE_NAME "model.safetensors"
#define SW_SAFETENSORS_INDEX_NAME "model.safetensors.index.json"

enum {
    SW_SAFETENSORS_LENGTH_BYTES = 8,
    SW_SAFETENSORS_MAX_HEADER_BYTES = 100000000, /* the format's own limit */
    SW_SAFETENSORS_MAX_VALUES = 1 << 23,         /* JSON values in one header or index: bounds the memory of parsing */
    SW_SAFETENSORS_MAX_FILES = 10000,
    SW_SAFETENSORS_BUFFER_BYTES = 1 << 20,
};

#define SW_SAFETENSORS_MAX_ELEMS (INT64_C(1) << 48)

struct json_t;

struct sw_safetensors {
    struct sw_safetensor *tensors; /* sorted by file and offset, the fastest order to read them */
    int64_t count, capacity;
    int64_t *by_name;                    /* indices of tensors, sorted by name */
    char **paths;                        /* of the shards */
    struct sw_file_identity *identities; /* one per path: identifies the file whose header was checked */
    int file_count;
    struct sw_read_ahead *ahead; /* NULL until something is announced */
    pthread_mutex_t mutex;       /* guards the members below */
    int open_file, fd;           /* the shard last read on demand; -1: none */
    void *buffer;                /* buffer of SW_SAFETENSORS_BUFFER_BYTES for reads on demand */
};

/* Returns the format's name of an element type. */
const char *sw_safetensors_type_name(sw_dtype type);

/* Counts the elements of a tensor to be written. Refuses a name or shape that no header could have. */
sw_status sw_safetensors_count_elems(const struct sw_safetensors_declared *tensor, int64_t *out);

#endif
