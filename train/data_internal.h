/* What data.c and data_baselines.c share. */
#ifndef SW_TRAIN_DATA_INTERNAL_H
#define SW_TRAIN_DATA_INTERNAL_H

#include "train/data.h"
#include "train/token_stream.h"

struct sw_data {
    struct sw_token_stream *stream;            /* training, and the validation part where it is one; NULL: neither */
    struct sw_token_stream *validation_stream; /* NULL where validation is a part */
    int64_t vocab, seq;
    uint64_t seed;
    int64_t train_tokens;
    int64_t validation_first; /* in its stream */
    int64_t validation_tokens;
    uint64_t digest;
    int32_t *window; /* seq + 1 */
    uint8_t *marks;  /* of its targets */
};

struct sw_token_stream *sw_data_validation_stream(const struct sw_data *data);

#endif
