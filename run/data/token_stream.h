/* Files of tokens, one after the other, as one stream. */
#ifndef SW_RUN_DATA_TOKEN_STREAM_H
#define SW_RUN_DATA_TOKEN_STREAM_H

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>
#include <xxhash.h>

/* A data file, or a companion file: its name and a suffix. Files are read, not mapped: resident memory stays small
 * however large the data, and a file that shrinks is an error that can be reported instead of a signal. */
struct sw_data_file {
    const char *path;   /* path of the data file; borrowed, must outlive this */
    const char *suffix; /* suffix of a companion file, "" for the data file; borrowed, must outlive this */
    int fd;             /* -1: there is no such file */
    int64_t bytes;
    uint64_t device, inode;           /* identify the file on this machine */
    struct timespec written, altered; /* times of its last write and last change, as of the opening */
};

/* Opens a file and, if the file system can, takes a shared lock on it, so that tokens in use are not removed from the
 * cache (text_data.h). A data file must exist, a companion file need not. The caller closes it, even after a failure. A
 * closed file is SW_DATA_FILE_CLOSED; zeroed memory is not. */
#define SW_DATA_FILE_CLOSED ((struct sw_data_file){.fd = -1})

static inline bool sw_data_file_is_there(const struct sw_data_file *file) {
    return file->fd >= 0;
}

struct sw_token_stream;

/* The type of a .bin file's tokens, in the order of the choices "auto|u16|u32". auto: uint16 if the vocabulary has at
 * most 65,536 entries, else uint32. */
enum { SW_TOKENS_AUTO, SW_TOKENS_U16, SW_TOKENS_U32 };
struct sw_token_format {
    int type;
    const char *flag; /* the flag that set it, for messages; NULL: none */
};

/* Tells whether each byte of a file of this name is a token: .txt and .md. */
bool sw_token_stream_is_bytes(const char *path);

/* Opens .txt files (a byte is a token) and .bin files; a header of llm.c says the type. With the type auto, a file is
 * refused that would be read as uint16 but holds uint32: every second one of its first tokens would be 0, and the
 * others differ. No file may be empty or end within a token. F.mask, the companion of a file F, has a byte per token;
 * F.doc has the starts of its documents. The caller closes the stream. */
sw_status sw_token_stream_open(const char *const *files, int file_count, int64_t vocab, struct sw_token_format format,
                               struct sw_token_stream **out);
void sw_token_stream_close(struct sw_token_stream *stream);

int64_t sw_token_stream_tokens(const struct sw_token_stream *stream);

/* Reads `count` tokens from `first`; the range must be within the stream. Refuses tokens outside the vocabulary, even
 * in a file changed after its opening. Allocates nothing. */
sw_status sw_token_stream_read(struct sw_token_stream *stream, int64_t first, int64_t count, int32_t *out);

/* Marks of a token, from the companion files. A token without a mask has a loss. The first token of a document has
 * none, whatever its mask: nothing the model may see predicts it. If any file has documents, a file without them is a
 * single document. The first token of a document may also have one of the last three marks: the document is padding, or
 * the first or a later part of a document that was split (SW_MASK_... of token_writer.h). */
enum {
    SW_TOKEN_LEARNT = 1,
    SW_TOKEN_BEGINS_DOCUMENT = 2,
    SW_TOKEN_PADDING = 4,
    SW_TOKEN_SPLIT = 8,
    SW_TOKEN_CONTINUES = 16
};

/* Tells whether any file has documents; and whether any has documents or a mask. */
bool sw_token_stream_has_documents(const struct sw_token_stream *stream);
bool sw_token_stream_marked(const struct sw_token_stream *stream);
/* Return the number of files of the stream, and which companions a file has. */
int sw_token_stream_files(const struct sw_token_stream *stream);
struct sw_token_beside {
    const char *file;
    bool mask, documents;
};
struct sw_token_beside sw_token_stream_beside(const struct sw_token_stream *stream, int file);
/* Reads the marks of a range, as sw_token_stream_read reads its tokens. */
sw_status sw_token_stream_read_marks(struct sw_token_stream *stream, int64_t first, int64_t count, uint8_t *out);

/* Refuses a stream that is not pairs: sequences of `seq` tokens, two a pair, each of one document with a loss and its
 * padding, and one token after the last (sw_packer_add_alone in text/documents/token_writer.h). Reads all marks. */
sw_status sw_token_stream_check_pairs(struct sw_token_stream *stream, int64_t seq);

/* Tells whether a file of a range, or a companion, has another size or other times than at its opening. *out describes
 * the first such file as it is now. */
bool sw_token_stream_changed(const struct sw_token_stream *stream, int64_t first, int64_t count,
                             struct sw_data_file *out);
/* Returns the file of the stream, companions included, that was written last. */
const struct sw_data_file *sw_token_stream_newest_file(const struct sw_token_stream *stream);

/* Adds to a hash what identifies this stream without reading its tokens: the vocabulary, and each file's identity, size
 * and time of the last write. Leaves out the time of other changes, which noting a use of the cache sets. */
void sw_token_stream_hash_identity(const struct sw_token_stream *stream, XXH3_state_t *hash);

/* The file and index of a token, for messages. */
struct sw_token_location {
    const char *file;
    int64_t index;
};
struct sw_token_location sw_token_stream_locate(const struct sw_token_stream *stream, int64_t token);

/* Counts of a range of tokens, as users count: a document that was split is one document, and padding is none. */
struct sw_token_counts {
    int64_t tokens, learnt; /* learnt: with a loss */
    int64_t documents;      /* 0: no file says where documents begin */
    int64_t split;          /* number of documents longer than a sequence, which were split (token_writer.h) */
    int64_t padding;        /* tokens that fill up sequences */
    bool is_padding;        /* the last token added is padding */
};

/* Adds tokens by their marks. */
void sw_token_counts_add(struct sw_token_counts *counts, const uint8_t *marks, int64_t count);

/* Writes and returns a description such as "40000 tokens in 12 documents, 87.3% of them with a loss, 4.1% padding, 2
 * documents split". */
const char *sw_token_counts_text(const struct sw_token_counts *counts, char *text, size_t chars);

#endif
