/* Files of tokens, one after the other, as one stream. */
#ifndef SW_TRAIN_TOKEN_STREAM_H
#define SW_TRAIN_TOKEN_STREAM_H

#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

struct sw_token_stream;

/* Opens .txt files (a byte is a token) and .bin files (uint16 where the vocabulary has at most 65,536 entries, else
 * uint32). None may be empty or end within a token. F.mask beside a file F has a byte for each of its tokens. The
 * caller closes the stream. */
sw_status sw_token_stream_open(const char *const *files, int file_count, int64_t vocab, struct sw_token_stream **out);
void sw_token_stream_close(struct sw_token_stream *stream);

int64_t sw_token_stream_tokens(const struct sw_token_stream *stream);

/* Reads count tokens from first on; the range must lie within the stream. Allocates nothing. */
sw_status sw_token_stream_read(struct sw_token_stream *stream, int64_t first, int64_t count, int32_t *out);

/* Whether any file has a mask, and the masks of a range, as sw_token_stream_read: 0 where a token is not to be learnt,
 * 1 where it is, also in files without a mask. */
bool sw_token_stream_masked(const struct sw_token_stream *stream);
sw_status sw_token_stream_read_mask(struct sw_token_stream *stream, int64_t first, int64_t count, uint8_t *out);

/* Where a token stands in the files: for messages. */
struct sw_token_place {
    const char *file;
    int64_t index;
};
struct sw_token_place sw_token_stream_place(const struct sw_token_stream *stream, int64_t token);

#endif
