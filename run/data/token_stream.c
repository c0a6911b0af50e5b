/* Token files as one stream, with the marks of loss and documents.
 *
 * Everything a token's file, mask and document list say is folded into one byte of marks per token (token_stream.h),
 * computed when a range is read. Resident memory therefore stays small however large the data are.
 *
 * A file that is read with the wrong width gives tokens that look valid, so what can be recognised is refused: pairs of
 * uint16 that are uint32, a header of llm.c that contradicts the flag, text in another encoding. */
#include "run/data/token_stream.h"

#include "core/files/files.h"
#include "core/files/model_files.h"
#include "core/log.h"
#include "core/size.h"
#include "text/documents/text_inputs.h"
#include "text/documents/token_writer.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* O_NONBLOCK: a pipe is refused instead of waited for. */
static sw_status open_at(const char *path, const char *suffix, int *out_fd) {
    char *name = NULL;
    if (asprintf(&name, "%s%s", path, suffix) < 0)
        return sw_fail(SW_ERR_NOMEM, "no memory to open %s", path);
    *out_fd = open(name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    const bool fine = *out_fd >= 0 || (*suffix != '\0' && errno == ENOENT);
    const sw_status status =
        fine ? SW_OK : sw_fail(SW_ERR_IO, "the data file %s cannot be opened: %s", name, strerror(errno));
    free(name);
    return status;
}

static void take(const struct stat *info, struct sw_data_file *out) {
    out->bytes = info->st_size;
    out->device = info->st_dev;
    out->inode = info->st_ino;
    out->written = info->st_mtim;
    out->altered = info->st_ctim;
}

static sw_status data_file_open(const char *path, const char *suffix, struct sw_data_file *out) {
    struct stat info;
    *out = (struct sw_data_file){.path = path, .suffix = suffix, .fd = -1};
    SW_TRY(open_at(path, suffix, &out->fd));
    if (!sw_data_file_is_there(out))
        return SW_OK;
    if (fstat(out->fd, &info) != 0)
        return sw_fail(SW_ERR_IO, "the data file %s%s cannot be read: %s", path, suffix, strerror(errno));
    if (!S_ISREG(info.st_mode))
        return sw_fail(SW_ERR_ARG, "the data file %s%s is not a regular file; give one", path, suffix);
    take(&info, out);
    (void)flock(out->fd, LOCK_SH | LOCK_NB);
    return SW_OK;
}

static void data_file_close(struct sw_data_file *file) {
    if (sw_data_file_is_there(file))
        close(file->fd);
    *file = SW_DATA_FILE_CLOSED;
}

static bool is_same_time(const struct timespec *a, const struct timespec *b) {
    return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

/* Tells whether a file's size or times differ from those at its opening. A file that does not exist has not changed.
 * *out describes the file as it is now. */
static bool data_file_changed(const struct sw_data_file *file, struct sw_data_file *out) {
    struct stat info;
    *out = *file;
    if (!sw_data_file_is_there(file) || fstat(file->fd, &info) != 0)
        return false;
    take(&info, out);
    return out->bytes != file->bytes || !is_same_time(&out->written, &file->written) ||
           !is_same_time(&out->altered, &file->altered);
}

/* Reads all of the bytes, or fails. */
static sw_status data_file_read(const struct sw_data_file *file, int64_t offset_bytes, int64_t bytes, void *out) {
    int64_t done = 0;
    while (done < bytes) {
        const ssize_t got = pread(file->fd, (char *)out + done, (size_t)(bytes - done), offset_bytes + done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return sw_fail(SW_ERR_IO, "the data file %s%s cannot be read at byte %lld: %s", file->path, file->suffix,
                           (long long)(offset_bytes + done), strerror(errno));
        if (got == 0)
            return sw_fail(SW_ERR_IO, "the data file %s%s became shorter while it was in use; restore it", file->path,
                           file->suffix);
        done += got;
    }
    return SW_OK;
}

/* F.doc, the companion of a token file F, lists where each document begins, counted in tokens: little-endian uint64,
 * strictly rising from 0. */
struct sw_documents {
    struct sw_data_file file;
    int64_t count; /* documents; 0: there is no such file */
};

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "document starts are read as they lie on disk");

enum { START_BYTES = sizeof(uint64_t), PIECE_STARTS = 1024 };

/* Consecutive entries of the file. */
struct piece {
    int64_t first, count;
    uint64_t start[PIECE_STARTS];
};

static sw_status read_piece(const struct sw_documents *documents, int64_t first, struct piece *out) {
    out->first = first;
    out->count = sw_min_i64(PIECE_STARTS, documents->count - first);
    return data_file_read(&documents->file, first * START_BYTES, out->count * START_BYTES, out->start);
}

/* Checks one entry. Messages count documents from 1. */
static sw_status check_start(const char *path, int64_t tokens, int64_t number, uint64_t before, uint64_t start) {
    if (number == 1 && start != 0)
        return sw_fail(SW_ERR_ARG, "%s.doc: the first document begins at token %" PRIu64 "; it must begin at 0", path,
                       start);
    if (number > 1 && start <= before)
        return sw_fail(SW_ERR_ARG,
                       "%s.doc: document %lld begins at token %" PRIu64 ", and the one before it at %" PRIu64
                       "; starts must rise",
                       path, (long long)number, start, before);
    if (start >= (uint64_t)tokens)
        return sw_fail(SW_ERR_ARG,
                       "%s.doc: document %lld begins at token %" PRIu64
                       ", beyond the %lld tokens of %s; make both from "
                       "the same text",
                       path, (long long)number, start, (long long)tokens, path);
    return SW_OK;
}

static sw_status check_all(const struct sw_documents *documents, int64_t tokens) {
    uint64_t before = 0;
    for (int64_t first = 0; first < documents->count; first += PIECE_STARTS) {
        struct piece piece;
        SW_TRY(read_piece(documents, first, &piece));
        for (int64_t i = 0; i < piece.count; i++) {
            SW_TRY(check_start(documents->file.path, tokens, first + i + 1, before, piece.start[i]));
            before = piece.start[i];
        }
    }
    return SW_OK;
}

/* Opens F.doc at `path` and checks all of it: the first document begins at 0, each other one after its predecessor, and
 * none at or beyond `tokens`. The caller closes `out`, even after a failure. */
static sw_status documents_open(const char *path, int64_t tokens, struct sw_documents *out) {
    out->count = 0;
    SW_TRY(data_file_open(path, ".doc", &out->file));
    if (!sw_data_file_is_there(&out->file))
        return SW_OK;
    if (out->file.bytes == 0 || out->file.bytes % START_BYTES != 0)
        return sw_fail(SW_ERR_ARG, "%s.doc has %lld bytes; it must hold %d bytes for each document's start, and one",
                       path, (long long)out->file.bytes, START_BYTES);
    out->count = out->file.bytes / START_BYTES;
    return check_all(out, tokens);
}

static void documents_close(struct sw_documents *documents) {
    data_file_close(&documents->file);
}

/* Finds the first document that begins at or after a token. */
static sw_status find_document(const struct sw_documents *documents, int64_t token, int64_t *out) {
    int64_t low = 0, high = documents->count;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        uint64_t start;
        SW_TRY(data_file_read(&documents->file, middle * START_BYTES, START_BYTES, &start));
        if (start < (uint64_t)token)
            low = middle + 1;
        else
            high = middle;
    }
    *out = low;
    return SW_OK;
}

/* Sets marks[i] to `mark` where a document begins at token first + i, for i in [0, count); other entries stay. */
static sw_status documents_mark(const struct sw_documents *documents, int64_t first, int64_t count, uint8_t mark,
                                uint8_t *marks) {
    int64_t next;
    SW_TRY(find_document(documents, first, &next));
    for (; next < documents->count; next += PIECE_STARTS) {
        struct piece piece;
        SW_TRY(read_piece(documents, next, &piece));
        for (int64_t i = 0; i < piece.count; i++) {
            const uint64_t at = piece.start[i] - (uint64_t)first;
            if (at >= (uint64_t)count)
                return SW_OK;
            marks[at] = mark;
        }
    }
    return SW_OK;
}

/* The header of llm.c's token files (dev/data/data_common.py of github.com/karpathy/llm.c): 256 int32, of which the
 * first three are a magic number, a version and the number of tokens that follow. */
struct sw_llmc_header {
    int64_t bytes;   /* of the header; 0: the file has none, and nothing else is set */
    int width_bytes; /* bytes per token */
};

enum { HEADER_INTS = 256, HEADER_BYTES = HEADER_INTS * sizeof(int32_t) };

/* The kinds of files with such a header. */
static const struct kind {
    int32_t magic, version;
    int width_bytes; /* bytes per token; 0: the file has no stream of tokens */
    const char *what;
} kinds[] = {
    {20240520, 1, 2, "uint16 tokens of GPT-2"},
    {20240801, 7, 4, "uint32 tokens of Llama 3"},
    {20240522, 1, 0, "questions with several answers"},
};

static const struct kind *find_kind(int32_t magic) {
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (kinds[i].magic == magic)
            return &kinds[i];
    return NULL;
}

/* Recognises the header by its magic number. Refuses an unknown version, and a count that does not fit the file's size.
 */
static sw_status llmc_header_read(const struct sw_data_file *file, struct sw_llmc_header *out) {
    int32_t header[3]; /* magic number, version, count */
    *out = (struct sw_llmc_header){0};
    if (file->bytes < (int64_t)sizeof header)
        return SW_OK;
    SW_TRY(data_file_read(file, 0, sizeof header, header));
    const struct kind *kind = find_kind(header[0]);
    if (kind == NULL)
        return SW_OK;
    if (kind->width_bytes == 0)
        return sw_fail(SW_ERR_UNSUPPORTED,
                       "the data file %s begins with llm.c's header for %s, which are no tokens to "
                       "train on; give a file of tokens",
                       file->path, kind->what);
    if (header[1] != kind->version)
        return sw_fail(SW_ERR_UNSUPPORTED,
                       "the data file %s begins with llm.c's header for %s of version %d, but this program reads "
                       "version %d; write it anew with a llm.c of that version",
                       file->path, kind->what, header[1], kind->version);
    const int64_t wanted = HEADER_BYTES + (int64_t)header[2] * kind->width_bytes;
    if (header[2] < 0 || file->bytes != wanted)
        return sw_fail(SW_ERR_ARG,
                       "the data file %s has %lld bytes, but llm.c's header says %d tokens, which are %lld bytes with "
                       "it; the file is cut off or damaged, so write it anew",
                       file->path, (long long)file->bytes, header[2], (long long)wanted);
    *out = (struct sw_llmc_header){.bytes = HEADER_BYTES, .width_bytes = kind->width_bytes};
    return SW_OK;
}

void sw_token_counts_add(struct sw_token_counts *counts, const uint8_t *marks, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        const bool begins = (marks[i] & SW_TOKEN_BEGINS_DOCUMENT) != 0;
        if (begins)
            counts->is_padding = (marks[i] & SW_TOKEN_PADDING) != 0;
        counts->documents += begins && (marks[i] & (SW_TOKEN_PADDING | SW_TOKEN_CONTINUES)) == 0;
        counts->split += (marks[i] & SW_TOKEN_SPLIT) != 0;
        counts->padding += counts->is_padding;
        counts->learnt += marks[i] == SW_TOKEN_LEARNT;
    }
    counts->tokens += count;
}

const char *sw_token_counts_text(const struct sw_token_counts *counts, char *text, size_t chars) {
    /* The first token is never a target. */
    const double percent = 100.0 / (double)(counts->tokens > 1 ? counts->tokens - 1 : 1);
    char documents[48] = "", split[48] = "", padding[48] = "";
    if (counts->documents > 0)
        snprintf(documents, sizeof documents, " in %s", SW_COUNT(counts->documents, "document"));
    if (counts->split > 0)
        snprintf(split, sizeof split, ", %s split", SW_COUNT(counts->split, "document"));
    if (counts->padding > 0)
        snprintf(padding, sizeof padding, ", %.3g%% padding", percent * (double)counts->padding);
    snprintf(text, chars, "%s%s, %.3g%% of them with a loss%s%s", SW_COUNT(counts->tokens, "token"), documents,
             percent * (double)counts->learnt, padding, split);
    return text;
}

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "token files are read as they lie on disk");

enum { BOUNCE_BYTES = 64 * 1024, WIDE_TOKENS_FROM_VOCAB = 65537, BYTE_VOCAB = 256, FEWEST_PAIRS = 16 };
enum { HEAD_BYTES = 16 * 1024, MARK_BYTES = 3 };

struct source {
    char *path;
    struct sw_data_file file, mask;
    struct sw_documents documents;
    int width_bytes;
    int64_t head_bytes; /* length of a byte order mark or header before the tokens */
    int64_t first;      /* its first token, counted over the stream */
    int64_t tokens;
};

struct sw_token_stream {
    struct source *sources;
    int source_count;
    int64_t tokens, vocab;
    unsigned char bounce[BOUNCE_BYTES];
};

bool sw_token_stream_is_bytes(const char *path) {
    return sw_path_ends_in(path, ".txt") || sw_path_ends_in(path, ".md");
}

/* Refuses a path that is not a data file, and says how to make one from it. */
static sw_status refuse_kind(const char *path) {
    static const struct {
        const char *ending, *unpack;
    } packed[] = {{".gz", "gunzip -k"}, {".xz", "unxz -k"}, {".bz2", "bunzip2 -k"},
                  {".zst", "zstd -d"},  {".zip", "unzip"},  {".tar", "tar -xf"}};
    struct stat info;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode))
        return sw_fail(SW_ERR_ARG, "%s is a folder; name the files in it, such as %s/*.txt, one after the other", path,
                       path);
    if (sw_text_is_json(path))
        return sw_fail(SW_ERR_ARG,
                       "the data file %s has chats or text, which become tokens only for a model whose folder has a "
                       "tokenizer.json",
                       path);
    for (size_t i = 0; i < sizeof packed / sizeof packed[0]; i++)
        if (sw_path_ends_in(path, packed[i].ending))
            return sw_fail(SW_ERR_ARG,
                           "the data file %s is packed; unpack it (`%s %s`) and name the .txt, .md or .bin that comes "
                           "of it",
                           path, packed[i].unpack, path);
    SW_TRY(stat(path, &info) != 0 ? sw_hub_refuse_data(path) : SW_OK);
    SW_TRY(sw_text_refuse_foreign(path, (struct sw_text){0}));
    return sw_fail(SW_ERR_ARG,
                   "the data file %s has an unknown kind; it must end in .txt or .md (text) or .bin (tokens), or in "
                   ".jsonl (chats and text, one a line) for a model with a tokenizer.json",
                   path);
}

static sw_status width_of(const char *path, int64_t vocab, int type, int *out_width) {
    if (sw_token_stream_is_bytes(path)) {
        if (vocab != BYTE_VOCAB)
            return sw_fail(SW_ERR_ARG,
                           "%s is text, read as bytes, but the model's vocabulary has %lld entries; it needs 256, or "
                           "tokens (.bin) made by spillway tokenize",
                           path, (long long)vocab);
        *out_width = 1;
        return SW_OK;
    }
    if (sw_path_ends_in(path, ".bin")) {
        const bool wide = type == SW_TOKENS_AUTO ? vocab >= WIDE_TOKENS_FROM_VOCAB : type == SW_TOKENS_U32;
        *out_width = wide ? 4 : 2;
        return SW_OK;
    }
    return refuse_kind(path);
}

/* Skips a byte order mark, which belongs to the file and not to its text. If the first bytes show anything but plain
 * UTF-8 with LF line ends, warns or refuses. */
static sw_status look_at_text(struct source *source) {
    char head[HEAD_BYTES + 1];
    const int64_t bytes = sw_min_i64(source->file.bytes, HEAD_BYTES);
    SW_TRY(data_file_read(&source->file, 0, bytes, head));
    head[bytes] = '\0';
    if (bytes >= 2 && (memcmp(head, "\xff\xfe", 2) == 0 || memcmp(head, "\xfe\xff", 2) == 0))
        return sw_fail(SW_ERR_ARG, "%s is UTF-16 text; make it UTF-8 (`iconv -f utf-16 -t utf-8 %s`)", source->path,
                       source->path);
    if (bytes >= MARK_BYTES && memcmp(head, "\xef\xbb\xbf", MARK_BYTES) == 0)
        source->head_bytes = MARK_BYTES;
    if (memmem(head, (size_t)bytes, "\r\n", 2) != NULL)
        sw_log_info("%s has lines that end in CR LF, and both are learnt; `sed -i 's/\\r$//' %s` removes the CR",
                    source->path, source->path);
    return SW_OK;
}

static sw_status open_mask(struct source *source) {
    SW_TRY(data_file_open(source->path, ".mask", &source->mask));
    if (sw_data_file_is_there(&source->mask) && source->mask.bytes != source->tokens)
        return sw_fail(SW_ERR_ARG, "%s.mask has %lld bytes, but %s has %lld tokens; give it one byte a token",
                       source->path, (long long)source->mask.bytes, source->path, (long long)source->tokens);
    return SW_OK;
}

/* Tells whether pairs of uint16 are really uint32 of a small vocabulary: all upper halves are 0, and the lower halves
 * differ. */
static bool are_wide(const uint16_t *half, int64_t pairs) {
    bool differ = false;
    for (int64_t i = 0; i < pairs; i++) {
        if (half[2 * i + 1] != 0)
            return false;
        differ |= half[2 * i] != half[0];
    }
    return differ && pairs >= FEWEST_PAIRS;
}

static sw_status refuse_wide_tokens(const struct source *source, int64_t vocab, const char *flag) {
    uint16_t sample[BOUNCE_BYTES / sizeof(uint16_t)];
    const int64_t bytes = sw_min_i64(source->file.bytes, sizeof sample);
    if (source->file.bytes % (int64_t)sizeof(uint32_t) != 0)
        return SW_OK;
    SW_TRY(data_file_read(&source->file, 0, bytes, sample));
    if (!are_wide(sample, bytes / (int64_t)sizeof(uint32_t)))
        return SW_OK;
    if (flag == NULL)
        return sw_fail(
            SW_ERR_ARG,
            "the data file %s holds uint32 tokens, as every second 16 bits are 0, but tokens of a vocabulary "
            "of %lld are read as uint16; write it as uint16",
            source->path, (long long)vocab);
    return sw_fail(SW_ERR_ARG,
                   "the data file %s holds uint32 tokens, as every second 16 bits are 0, but tokens of a vocabulary of "
                   "%lld are read as uint16; give %s u32, or %s u16 if every second token is meant to be 0",
                   source->path, (long long)vocab, flag, flag);
}

/* Takes the width of tokens from a header. --tokens may only say the same. */
static sw_status look_at_header(struct source *source, struct sw_token_format format) {
    struct sw_llmc_header header;
    SW_TRY(llmc_header_read(&source->file, &header));
    if (header.bytes == 0)
        return SW_OK;
    if (format.type != SW_TOKENS_AUTO && (format.type == SW_TOKENS_U32) != (header.width_bytes == 4))
        return sw_fail(SW_ERR_ARG, "the data file %s holds uint%d tokens, as its header says; leave out %s",
                       source->path, header.width_bytes * 8, format.flag);
    source->head_bytes = header.bytes;
    source->width_bytes = header.width_bytes;
    return SW_OK;
}

static sw_status open_source(const char *path, int64_t vocab, struct sw_token_format format, struct source *out) {
    SW_TRY(width_of(path, vocab, format.type, &out->width_bytes));
    assert(out->width_bytes > 0);
    out->path = strdup(path);
    if (out->path == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to open %s", path);
    SW_TRY(data_file_open(out->path, "", &out->file));
    SW_TRY(sw_token_stream_is_bytes(path) ? look_at_text(out) : look_at_header(out, format));
    if (out->file.bytes == out->head_bytes)
        return sw_fail(SW_ERR_ARG, "the data file %s is empty; give one that holds text or tokens", path);
    if (out->file.bytes % out->width_bytes != 0)
        return sw_fail(
            SW_ERR_ARG,
            "the data file %s has %lld bytes, which is not a whole number of %d-byte tokens (the width for a "
            "vocabulary of %lld); it is cut off or was made for another vocabulary",
            path, (long long)out->file.bytes, out->width_bytes, (long long)vocab);
    if (out->width_bytes == 2 && format.type == SW_TOKENS_AUTO && out->head_bytes == 0)
        SW_TRY(refuse_wide_tokens(out, vocab, format.flag));
    out->tokens = (out->file.bytes - out->head_bytes) / out->width_bytes;
    SW_TRY(open_mask(out));
    return documents_open(out->path, out->tokens, &out->documents);
}

sw_status sw_token_stream_open(const char *const *files, int file_count, int64_t vocab, struct sw_token_format format,
                               struct sw_token_stream **out) {
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
    stream->vocab = vocab;
    for (int i = 0; i < file_count; i++) {
        sources[i].file = sources[i].mask = sources[i].documents.file = SW_DATA_FILE_CLOSED;
        stream->source_count = i + 1;
        const sw_status status = open_source(files[i], vocab, format, &sources[i]);
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
        data_file_close(&stream->sources[i].file);
        data_file_close(&stream->sources[i].mask);
        documents_close(&stream->sources[i].documents);
        free(stream->sources[i].path);
    }
    free(stream->sources);
    free(stream);
}

int64_t sw_token_stream_tokens(const struct sw_token_stream *stream) {
    return stream->tokens;
}

/* Returns the last source that starts at or before the token. */
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

struct sw_token_location sw_token_stream_locate(const struct sw_token_stream *stream, int64_t token) {
    assert(token >= 0 && token < stream->tokens);
    const struct source *source = source_of(stream, token);
    return (struct sw_token_location){.file = source->path, .index = token - source->first};
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

static sw_status check_vocabulary(const struct sw_token_stream *stream, const struct source *source, int64_t index,
                                  const int32_t *tokens, int64_t count) {
    uint32_t largest = 0;
    for (int64_t i = 0; i < count; i++)
        largest = largest > (uint32_t)tokens[i] ? largest : (uint32_t)tokens[i];
    if (largest < stream->vocab)
        return SW_OK;
    int64_t i = 0;
    while ((uint32_t)tokens[i] < stream->vocab)
        i++;
    return sw_fail(SW_ERR_ARG,
                   "the data file %s has the token %u at index %lld, outside the model's vocabulary of %lld; "
                   "make it with the model's own tokenizer (spillway tokenize)",
                   source->path, (uint32_t)tokens[i], (long long)(index + i), (long long)stream->vocab);
}

sw_status sw_token_stream_read(struct sw_token_stream *stream, int64_t first, int64_t count, int32_t *out) {
    assert(first >= 0 && count >= 0 && count <= stream->tokens - first);
    while (count > 0) {
        const struct source *source = source_of(stream, first);
        const int64_t index = first - source->first;
        const int64_t piece = sw_min_i64(sw_min_i64(count, source->tokens - index), BOUNCE_BYTES / source->width_bytes);
        SW_TRY(data_file_read(&source->file, source->head_bytes + index * source->width_bytes,
                              piece * source->width_bytes, stream->bounce));
        widen(stream->bounce, source->width_bytes, piece, out);
        SW_TRY(check_vocabulary(stream, source, index, out, piece));
        first += piece;
        count -= piece;
        out += piece;
    }
    return SW_OK;
}

/* The files of a source: its tokens and the two companions. */
enum { SOURCE_FILES = 3 };
static const struct sw_data_file *file_of(const struct source *source, int which) {
    const struct sw_data_file *files[SOURCE_FILES] = {&source->file, &source->mask, &source->documents.file};
    return files[which];
}

/* Tells whether the marks of a sequence are those of one document, which has a loss, and of its padding. */
static bool is_one_of_pair(const uint8_t *marks, int64_t seq) {
    bool learns = false, pads = false, is_one = (marks[0] & SW_TOKEN_BEGINS_DOCUMENT) != 0;
    is_one &= (marks[0] & (SW_TOKEN_PADDING | SW_TOKEN_SPLIT | SW_TOKEN_CONTINUES)) == 0;
    for (int64_t i = 1; i < seq; i++) {
        const bool begins = (marks[i] & SW_TOKEN_BEGINS_DOCUMENT) != 0;
        is_one &= !begins || (!pads && (marks[i] & SW_TOKEN_PADDING) != 0);
        pads |= begins;
        learns |= !pads && (marks[i] & SW_TOKEN_LEARNT) != 0;
    }
    return is_one && learns;
}

sw_status sw_token_stream_check_pairs(struct sw_token_stream *stream, int64_t seq) {
    const int64_t sequences = (stream->tokens - 1) / seq;
    bool is_right = stream->tokens % seq == 1 % seq && sequences % 2 == 0;
    int64_t bad = stream->tokens - 1;
    uint8_t *marks = malloc((size_t)seq);
    sw_status status = marks != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory to check the pairs");
    for (int64_t s = 0; status == SW_OK && is_right && s < sequences; s++) {
        bad = s * seq;
        status = sw_token_stream_read_marks(stream, bad, seq, marks);
        is_right = status == SW_OK && is_one_of_pair(marks, seq);
    }
    free(marks);
    if (status != SW_OK || is_right)
        return status;
    const struct sw_token_location at = sw_token_stream_locate(stream, bad);
    return sw_fail(SW_ERR_ARG,
                   "%s is no file of pairs in sequences of %lld tokens, as token %lld shows; make it with spillway "
                   "tokenize --dpo --pack %lld",
                   at.file, (long long)seq, (long long)at.index, (long long)seq);
}

bool sw_token_stream_changed(const struct sw_token_stream *stream, int64_t first, int64_t count,
                             struct sw_data_file *out) {
    const struct source *end = stream->sources + stream->source_count;
    for (const struct source *source = source_of(stream, first); source < end && source->first < first + count;
         source++)
        for (int which = 0; which < SOURCE_FILES; which++)
            if (data_file_changed(file_of(source, which), out))
                return true;
    return false;
}

void sw_token_stream_hash_identity(const struct sw_token_stream *stream, XXH3_state_t *hash) {
    const int64_t counts[] = {stream->vocab, stream->source_count};
    XXH3_128bits_update(hash, counts, sizeof counts);
    for (int i = 0; i < stream->source_count; i++) {
        const struct source *source = &stream->sources[i];
        const int64_t form[] = {source->width_bytes, source->head_bytes};
        XXH3_128bits_update(hash, form, sizeof form);
        for (int which = 0; which < SOURCE_FILES; which++) {
            const struct sw_data_file *file = file_of(source, which);
            const int64_t identity[] = {sw_data_file_is_there(file), (int64_t)file->device,
                                        (int64_t)file->inode,        file->bytes,
                                        file->written.tv_sec,        file->written.tv_nsec};
            XXH3_128bits_update(hash, identity, sizeof identity);
        }
    }
}

const struct sw_data_file *sw_token_stream_newest_file(const struct sw_token_stream *stream) {
    const struct sw_data_file *newest = &stream->sources[0].file;
    for (int i = 0; i < stream->source_count; i++)
        for (int which = 0; which < SOURCE_FILES; which++) {
            const struct sw_data_file *file = file_of(&stream->sources[i], which);
            if (sw_data_file_is_there(file) && file->written.tv_sec > newest->written.tv_sec)
                newest = file;
        }
    return newest;
}

bool sw_token_stream_has_documents(const struct sw_token_stream *stream) {
    bool has = false;
    for (int i = 0; i < stream->source_count; i++)
        has |= stream->sources[i].documents.count > 0;
    return has;
}

bool sw_token_stream_marked(const struct sw_token_stream *stream) {
    bool marked = sw_token_stream_has_documents(stream);
    for (int i = 0; i < stream->source_count; i++)
        marked |= sw_data_file_is_there(&stream->sources[i].mask);
    return marked;
}

int sw_token_stream_files(const struct sw_token_stream *stream) {
    return stream->source_count;
}

struct sw_token_beside sw_token_stream_beside(const struct sw_token_stream *stream, int file) {
    const struct source *source = &stream->sources[file];
    return (struct sw_token_beside){
        .file = source->path, .mask = sw_data_file_is_there(&source->mask), .documents = source->documents.count > 0};
}

static sw_status read_masks(const struct source *source, int64_t first, int64_t count, uint8_t *out) {
    memset(out, 1, (size_t)count);
    return sw_data_file_is_there(&source->mask) ? data_file_read(&source->mask, first, count, out) : SW_OK;
}

/* Combines masks and `begins`, which is 1 where a document begins, into marks. */
static void make_marks(const uint8_t *begins, int64_t count, uint8_t *masks) {
    for (int64_t i = 0; i < count; i++) {
        const uint8_t mask = masks[i];
        masks[i] = mask != 0 ? SW_TOKEN_LEARNT : 0;
        if (!begins[i])
            continue;
        masks[i] = SW_TOKEN_BEGINS_DOCUMENT;
        masks[i] |= mask == SW_MASK_PADDING ? SW_TOKEN_PADDING : 0;
        masks[i] |= mask == SW_MASK_SPLIT ? SW_TOKEN_SPLIT : 0;
        masks[i] |= mask == SW_MASK_CONTINUES ? SW_TOKEN_CONTINUES : 0;
    }
}

sw_status sw_token_stream_read_marks(struct sw_token_stream *stream, int64_t first, int64_t count, uint8_t *out) {
    const bool documents = sw_token_stream_has_documents(stream);
    uint8_t *begins = stream->bounce;
    assert(first >= 0 && count >= 0 && count <= stream->tokens - first);
    while (count > 0) {
        const struct source *source = source_of(stream, first);
        const int64_t index = first - source->first,
                      piece = sw_min_i64(sw_min_i64(count, source->tokens - index), BOUNCE_BYTES);
        memset(begins, 0, (size_t)piece);
        begins[0] = documents && index == 0;
        SW_TRY(documents_mark(&source->documents, index, piece, 1, begins));
        SW_TRY(read_masks(source, index, piece, out));
        make_marks(begins, piece, out);
        first += piece;
        count -= piece;
        out += piece;
    }
    return SW_OK;
}
