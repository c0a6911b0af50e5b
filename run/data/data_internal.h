/* Declarations shared by the data's files. */
#ifndef SW_RUN_DATA_DATA_INTERNAL_H
#define SW_RUN_DATA_DATA_INTERNAL_H

#include "run/data/data.h"
#include "run/data/token_stream.h"

/* Tokens, or marks, per read when all of them are read; also the size of a digest's block. */
enum { SW_DATA_BLOCK = 64 * 1024 };

/* Fingerprint of a range of a stream's tokens, or of their marks, from its first reading: a digest per block. */
struct sw_data_digests {
    int64_t first, end; /* the range, in tokens */
    uint64_t *block;    /* owned, one digest per block; NULL: nothing was read */
    /* Owned, one byte per block: 1 until this process has read and compared it; NULL: it has read all. */
    uint8_t *unread;
};

/* The training part and the validation part of the data. */
typedef enum { SW_DATA_TRAINING, SW_DATA_VALIDATION, SW_DATA_PARTS } sw_data_part;

struct sw_data {
    /* Training data, and validation data that are a part of them; NULL: neither exists. */
    struct sw_token_stream *stream;
    /* Validation data in a file of their own; NULL: they are a part of `stream`. */
    struct sw_token_stream *validation_stream;
    int64_t vocab, seq;
    uint64_t seed;
    int64_t train_tokens;
    int64_t validation_first; /* first token, in its stream */
    int64_t validation_tokens;
    uint64_t digest;
    /* Indexed like the streams: of `stream`, and of validation_stream. */
    struct sw_data_digests token_digests[SW_DATA_PARTS];
    struct sw_data_digests mark_digests[SW_DATA_PARTS];
    struct sw_token_counts counts[SW_DATA_PARTS];
    int32_t *window; /* buffer of seq + 1 tokens */
    uint8_t *marks;  /* buffer of seq marks, for the targets */
    int32_t *block;  /* buffer of SW_DATA_BLOCK tokens */
};

struct sw_token_stream *sw_data_part_stream(const struct sw_data *data, sw_data_part part);

#endif
