/* Declarations that the files of the data share. */
#ifndef SW_RUN_DATA_DATA_INTERNAL_H
#define SW_RUN_DATA_DATA_INTERNAL_H

#include "run/data/data.h"
#include "run/data/token_stream.h"

/* Tokens, or marks, are read at once so many at a time where all of them are. */
enum { SW_DATA_BLOCK = 64 * 1024 };

/* Fingerprint of a range of a stream's tokens, or of their marks, at its first reading: a digest of each block. */
struct sw_data_digests {
    int64_t first, end; /* of the range */
    uint64_t *block;    /* owned; NULL where nothing was read */
    uint8_t *unread;    /* per block, owned: 1 until this process has read and compared it; NULL: it has read all */
};

/* The training part and the validation part of the data. */
typedef enum { SW_DATA_TRAINING, SW_DATA_VALIDATION, SW_DATA_PARTS } sw_data_part;

struct sw_data {
    struct sw_token_stream *stream;            /* training, and the validation part where it is one; NULL: neither */
    struct sw_token_stream *validation_stream; /* NULL where validation is a part */
    int64_t vocab, seq;
    uint64_t seed;
    int64_t train_tokens;
    int64_t validation_first; /* in its stream */
    int64_t validation_tokens;
    uint64_t digest;
    struct sw_data_digests token_digests[SW_DATA_PARTS]; /* of stream and validation_stream */
    struct sw_data_digests mark_digests[SW_DATA_PARTS];
    struct sw_token_counts counts[SW_DATA_PARTS];
    int32_t *window; /* seq + 1 */
    uint8_t *marks;  /* of its targets */
    int32_t *block;  /* SW_DATA_BLOCK */
};

struct sw_token_stream *sw_data_part_stream(const struct sw_data *data, sw_data_part part);

#endif
