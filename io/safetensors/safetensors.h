/* safetensors files, read and written in pieces of any size. Format: 8 bytes little-endian header length, a JSON
 * header, then the tensors' bytes (https://github.com/huggingface/safetensors). Nothing is mapped: memory stays with
 * the caller's buffers. */
#ifndef SW_IO_SAFETENSORS_SAFETENSORS_H
#define SW_IO_SAFETENSORS_SAFETENSORS_H

#include "core/dtype.h"
#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SW_SAFETENSORS_MAX_DIMS = 8, SW_SAFETENSORS_NAME_CHARS = 256, SW_SAFETENSORS_TYPE_CHARS = 16 };

struct sw_safetensors; /* a folder's tensors: model.safetensors, or model.safetensors.index.json and its shards */

struct sw_safetensor {
    char name[SW_SAFETENSORS_NAME_CHARS];
    bool supported; /* the type is F32, BF16 or F16; others cannot be read as numbers */
    sw_dtype type;  /* valid if supported */
    int elem_bytes; /* bytes of an element; 0: the type is unknown, and the tensor is only listed */
    char type_name[SW_SAFETENSORS_TYPE_CHARS]; /* as in the file, shortened if it is long */
    int dims;
    int64_t dim[SW_SAFETENSORS_MAX_DIMS];
    int64_t elems;
    int file;             /* private: index of the shard */
    int64_t offset_bytes; /* private: offset in that file */
};

/* Opens the weights of a Hugging Face folder. Every header is checked whole: lengths within the file, offsets without
 * overlap or hole, sizes that match shapes, no duplicate names, index entries that exist. */
sw_status sw_safetensors_open(const char *folder, struct sw_safetensors **out);
/* Opens a single file of a folder in the same way. */
sw_status sw_safetensors_open_file(const char *folder, const char *name, struct sw_safetensors **out);
void sw_safetensors_close(struct sw_safetensors *tensors);
int64_t sw_safetensors_count(const struct sw_safetensors *tensors);
const struct sw_safetensor *sw_safetensors_at(const struct sw_safetensors *tensors, int64_t index);
/* Returns the tensor of that name, or NULL. */
const struct sw_safetensor *sw_safetensors_find(const struct sw_safetensors *tensors, const char *name);
/* Writes a shape for messages: "[32, 96]". Returns text, which has room for the largest numbers. */
enum { SW_SHAPE_CHARS = 3 + SW_SAFETENSORS_MAX_DIMS * (int)sizeof ", 9223372036854775807" };
const char *sw_shape_text(int dims, const int64_t *dim, char text[SW_SHAPE_CHARS]);
/* Returns the path of the file that has a tensor, valid until the close. */
const char *sw_safetensors_path(const struct sw_safetensors *tensors, const struct sw_safetensor *tensor);
/* Reads elements [first, first+count), widened to fp32. Several threads may read at once, but no other call may run at
 * the same time. */
sw_status sw_safetensors_read_f32(struct sw_safetensors *tensors, const struct sw_safetensor *tensor, int64_t first,
                                  int64_t count, float *out);

/* Reads elements [first, first+count) of a tensor whose elements have one byte, as the file has them. Threads as above.
 */
sw_status sw_safetensors_read_bytes(struct sw_safetensors *tensors, const struct sw_safetensor *tensor, int64_t first,
                                    int64_t count, uint8_t *out);

/* Announces elements of a supported tensor, or of one with elements of one byte, which are then read ahead, many at
 * once and without the page cache. Affects only speed. Arguments and the three related calls are those of
 * io/queue/streams.h. */
sw_status sw_safetensors_announce(struct sw_safetensors *tensors, const struct sw_safetensor *tensor, int64_t first,
                                  int64_t count, int64_t position, bool *out_taken);
void sw_safetensors_pass(struct sw_safetensors *tensors, int64_t position);
sw_status sw_safetensors_await(struct sw_safetensors *tensors, int64_t end);
/* Returns the number of bytes that were read ahead. */
int64_t sw_safetensors_bytes_ahead(const struct sw_safetensors *tensors);

/* Writes one file: declare all tensors, then write their elements in the declared order, in pieces. The file gets its
 * name only when finish succeeds: it is written under another name, flushed and renamed. abort leaves nothing. */
struct sw_safetensors_writer;
struct sw_safetensors_declared {
    const char *name;
    int dims;
    int64_t dim[SW_SAFETENSORS_MAX_DIMS];
};
sw_status sw_safetensors_writer_open(const char *path, sw_dtype type, const struct sw_safetensors_declared *tensors,
                                     int64_t count, struct sw_safetensors_writer **out);
/* Writes the next `count` elements, rounded to the file's type. */
sw_status sw_safetensors_write_f32(struct sw_safetensors_writer *writer, const float *values, int64_t count);
sw_status sw_safetensors_writer_finish(struct sw_safetensors_writer *writer); /* always frees the writer */
void sw_safetensors_writer_abort(struct sw_safetensors_writer *writer);

/* Writes a folder's weights in the same way: as model.safetensors or, if that would have more than shard_bytes of data,
 * as several files of at most that size and model.safetensors.index.json. A tensor is never split, however large it is.
 * Names and shapes must live until the end. */
struct sw_safetensors_shards;
sw_status sw_safetensors_shards_open(const char *folder, sw_dtype type, int64_t shard_bytes,
                                     const struct sw_safetensors_declared *tensors, int64_t count,
                                     struct sw_safetensors_shards **out);
/* Writes the next `count` elements, rounded to the files' type. */
sw_status sw_safetensors_shards_write_f32(struct sw_safetensors_shards *shards, const float *values, int64_t count);
sw_status sw_safetensors_shards_finish(struct sw_safetensors_shards *shards); /* always frees the shards */
void sw_safetensors_shards_abort(struct sw_safetensors_shards *shards);

#endif
