#include "train/token_stream.h"

#include "core/size.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "token files are read as they lie on disk");

enum { BOUNCE_BYTES = 64 * 1024, WIDE_TOKENS_FROM_VOCAB = 65537, BYTE_VOCAB = 256 };

struct source {
    char *path;
    int fd, mask_fd; /* -1: no mask */
    int width_bytes;
    int64_t first; /* in the stream */
    int64_t tokens;
};

struct sw_token_stream {
    struct source *sources;
    int source_count;
    int64_t tokens;
    /* Read rather than mapped: resident memory stays small however large the data, and a file that shrinks is an error
     * that can be reported. */
    unsigned char bounce[BOUNCE_BYTES];
};

static sw_status width_of(const char *path, int64_t vocab, int *out_width) {
    const char *dot = strrchr(path, '.');
    if (dot != NULL && strcmp(dot, ".txt") == 0) {
        if (vocab != BYTE_VOCAB)
            return sw_fail(SW_ERR_ARG,
                           "%s is text, read as bytes, but the model's vocabulary has %lld entries; it needs 256, or "
                           "tokens (.bin) made with tools/tokenize.py",
                           path, (long long)vocab);
        *out_width = 1;
        return SW_OK;
    }
    if (dot != NULL && strcmp(dot, ".bin") == 0) {
        *out_width = vocab >= WIDE_TOKENS_FROM_VOCAB ? 4 : 2;
        return SW_OK;
    }
    return sw_fail(SW_ERR_ARG, "the data file %s has an unknown kind; it must end in .txt (text) or .bin (tokens)",
                   path);
}

/* The companion of a data file, if there is one: fd -1 where not. */
static sw_status open_companion(const char *path, const char *suffix, int *out_fd) {
    char *companion = NULL;
    if (asprintf(&companion, "%s%s", path, suffix) < 0)
        return sw_fail(SW_ERR_NOMEM, "no memory to open %s", path);
    *out_fd = open(companion, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    const sw_status status = *out_fd < 0 && errno != ENOENT
                                 ? sw_fail(SW_ERR_IO, "%s cannot be opened: %s", companion, strerror(errno))
                                 : SW_OK;
    free(companion);
    return status;
}

/* To pass over document starts would be wrong in silence. */
static sw_status refuse_documents(const char *path) {
    int fd;
    SW_TRY(open_companion(path, ".doc", &fd));
    if (fd < 0)
        return SW_OK;
    close(fd);
    return sw_fail(SW_ERR_UNSUPPORTED, "%s.doc exists, but this version does not use such files; move it away", path);
}

static sw_status open_mask(struct source *source) {
    struct stat info;
    SW_TRY(open_companion(source->path, ".mask", &source->mask_fd));
    if (source->mask_fd < 0)
        return SW_OK;
    if (fstat(source->mask_fd, &info) != 0)
        return sw_fail(SW_ERR_IO, "%s.mask cannot be read: %s", source->path, strerror(errno));
    if (!S_ISREG(info.st_mode) || info.st_size != source->tokens)
        return sw_fail(SW_ERR_ARG, "%s.mask has %lld bytes, but %s has %lld tokens; give it one byte a token",
                       source->path, (long long)info.st_size, source->path, (long long)source->tokens);
    return SW_OK;
}

static sw_status open_source(const char *path, int64_t vocab, struct source *out) {
    SW_TRY(width_of(path, vocab, &out->width_bytes));
    assert(out->width_bytes > 0);
    SW_TRY(refuse_documents(path));
    out->path = strdup(path);
    if (out->path == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to open %s", path);
    out->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat info;
    if (out->fd < 0 || fstat(out->fd, &info) != 0)
        return sw_fail(SW_ERR_IO, "the data file %s cannot be opened: %s", path, strerror(errno));
    if (!S_ISREG(info.st_mode))
        return sw_fail(SW_ERR_ARG, "the data file %s is not a regular file; give one", path);
    if (info.st_size == 0)
        return sw_fail(SW_ERR_ARG, "the data file %s is empty; give one that holds text or tokens", path);
    if (info.st_size % out->width_bytes != 0)
        return sw_fail(
            SW_ERR_ARG,
            "the data file %s has %lld bytes, which is not a whole number of %d-byte tokens (the width for a "
            "vocabulary of %lld); it is cut off or was made for another vocabulary",
            path, (long long)info.st_size, out->width_bytes, (long long)vocab);
    out->tokens = info.st_size / out->width_bytes;
    return open_mask(out);
}

sw_status sw_token_stream_open(const char *const *files, int file_count, int64_t vocab, struct sw_token_stream **out) {
    if (file_count < 1)
        return sw_fail(SW_ERR_ARG, "no data file is given; give at least one");
    struct sw_token_stream *stream = calloc(1, sizeof *stream);
    struct source *sources = calloc((size_t)file_count, sizeof *sources);
    if (stream == NULL || sources == NULL) {
        free(stream);
        free(sources);
        return sw_fail(SW_ERR_NOMEM, "no memory to open %d data files", file_count);
    }
    stream->sources = sources;
    for (int i = 0; i < file_count; i++) {
        sources[i].fd = sources[i].mask_fd = -1;
        stream->source_count = i + 1;
        const sw_status status = open_source(files[i], vocab, &sources[i]);
        if (status != SW_OK) {
            sw_token_stream_close(stream);
            return status;
        }
        sources[i].first = stream->tokens;
        stream->tokens += sources[i].tokens;
    }
    *out = stream;
    return SW_OK;
}

void sw_token_stream_close(struct sw_token_stream *stream) {
    if (stream == NULL)
        return;
    for (int i = 0; i < stream->source_count; i++) {
        if (stream->sources[i].fd >= 0)
            close(stream->sources[i].fd);
        if (stream->sources[i].mask_fd >= 0)
            close(stream->sources[i].mask_fd);
        free(stream->sources[i].path);
    }
    free(stream->sources);
    free(stream);
}

int64_t sw_token_stream_tokens(const struct sw_token_stream *stream) {
    return stream->tokens;
}

/* The last source that starts at or before the token. */
static const struct source *source_of(const struct sw_token_stream *stream, int64_t token) {
    int low = 0, high = stream->source_count - 1;
    while (low < high) {
        const int middle = low + (high - low + 1) / 2;
        if (stream->sources[middle].first <= token)
            low = middle;
        else
            high = middle - 1;
    }
    return &stream->sources[low];
}

struct sw_token_place sw_token_stream_place(const struct sw_token_stream *stream, int64_t token) {
    assert(token >= 0 && token < stream->tokens);
    const struct source *source = source_of(stream, token);
    return (struct sw_token_place){.file = source->path, .index = token - source->first};
}

static void widen(const unsigned char *from, int width_bytes, int64_t count, int32_t *to) {
    if (width_bytes == 4) {
        memcpy(to, from, (size_t)count * sizeof *to);
    } else if (width_bytes == 2) {
        const uint16_t *narrow = (const uint16_t *)(const void *)from;
        for (int64_t i = 0; i < count; i++)
            to[i] = narrow[i];
    } else {
        for (int64_t i = 0; i < count; i++)
            to[i] = from[i];
    }
}

static sw_status read_bytes(const struct source *source, int fd, unsigned char *to, int64_t bytes, int64_t offset) {
    const char *suffix = fd == source->mask_fd ? ".mask" : "";
    int64_t done = 0;
    while (done < bytes) {
        const ssize_t got = pread(fd, to + done, (size_t)(bytes - done), offset + done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return sw_fail(SW_ERR_IO, "the data file %s%s cannot be read at byte %lld: %s", source->path, suffix,
                           (long long)(offset + done), strerror(errno));
        if (got == 0)
            return sw_fail(SW_ERR_IO, "the data file %s%s became shorter while it was in use; restore it", source->path,
                           suffix);
        done += got;
    }
    return SW_OK;
}

sw_status sw_token_stream_read(struct sw_token_stream *stream, int64_t first, int64_t count, int32_t *out) {
    assert(first >= 0 && count >= 0 && count <= stream->tokens - first);
    while (count > 0) {
        const struct source *source = source_of(stream, first);
        const int64_t index = first - source->first;
        const int64_t piece = sw_min_i64(sw_min_i64(count, source->tokens - index), BOUNCE_BYTES / source->width_bytes);
        SW_TRY(
            read_bytes(source, source->fd, stream->bounce, piece * source->width_bytes, index * source->width_bytes));
        widen(stream->bounce, source->width_bytes, piece, out);
        first += piece;
        count -= piece;
        out += piece;
    }
    return SW_OK;
}

bool sw_token_stream_masked(const struct sw_token_stream *stream) {
    bool masked = false;
    for (int i = 0; i < stream->source_count; i++)
        masked |= stream->sources[i].mask_fd >= 0;
    return masked;
}

sw_status sw_token_stream_read_mask(struct sw_token_stream *stream, int64_t first, int64_t count, uint8_t *out) {
    assert(first >= 0 && count >= 0 && count <= stream->tokens - first);
    while (count > 0) {
        const struct source *source = source_of(stream, first);
        const int64_t index = first - source->first, piece = sw_min_i64(count, source->tokens - index);
        memset(out, 1, (size_t)piece);
        if (source->mask_fd >= 0)
            SW_TRY(read_bytes(source, source->mask_fd, out, piece, index));
        for (int64_t i = 0; i < piece; i++)
            out[i] = out[i] != 0;
        first += piece;
        count -= piece;
        out += piece;
    }
    return SW_OK;
}
