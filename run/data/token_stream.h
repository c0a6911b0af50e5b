/* Files of tokens, one after the other, as one stream. */
#ifndef SW_RUN_DATA_TOKEN_STREAM_H
#define SW_RUN_DATA_TOKEN_STREAM_H

#include "core/status.h"
#include "run/data/data_file.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <xxhash.h>

struct sw_token_stream;

/* The type of a .bin file's tokens; auto: uint16 where the vocabulary has at most 65,536 entries, else uint32. In the
 * order of the choices "auto|u16|u32". */
enum { SW_TOKENS_AUTO, SW_TOKENS_U16, SW_TOKENS_U32 };
struct sw_token_format {
    int type;
    const char *flag; /* that names it, for messages; NULL: there is none */
};

/* Tells whether each byte of a file of this name is a token: .txt and .md. */
bool sw_token_stream_is_bytes(const char *path);

/* Opens .txt files (a byte is a token) and .bin files, also with llm.c's header, which says the type. Where the type is
 * auto, a file is refused that would be read as uint16 and holds uint32: of the tokens at its beginning every second
 * one would be 0, and the others differ. None may be empty or end within a token. F.mask beside a file F has a byte for
 * each of its tokens, F.doc the starts of its documents. The caller closes the stream. */
sw_status sw_token_stream_open(const char *const *files, int file_count, int64_t vocab, struct sw_token_format format,
                               struct sw_token_stream **out);
void sw_token_stream_close(struct sw_token_stream *stream);

int64_t sw_token_stream_tokens(const struct sw_token_stream *stream);

/* Reads count tokens from first on; the range must lie within the stream. Refuses what is outside the vocabulary, also
 * where a file was changed in place after it was opened. Allocates nothing. */
sw_status sw_token_stream_read(struct sw_token_stream *stream, int64_t first, int64_t count, int32_t *out);

/* Marks of a token: loss and document, as the files beside the data say. Without a mask it is learnt. The first of a
 * document is not, whatever its mask: nothing that may be seen foretells it. Where any file has documents, one without
 * is a single document. The first token of a document may also have one of the last three marks: the
 * document is padding, or the first part of one that was split, or another part (SW_MASK_... of token_writer.h). */
enum {
    SW_TOKEN_LEARNT = 1,
    SW_TOKEN_BEGINS_DOCUMENT = 2,
    SW_TOKEN_PADDING = 4,
    SW_TOKEN_SPLIT = 8,
    SW_TOKEN_CONTINUES = 16
};

/* Tells whether any file has documents, and whether any has these or a mask. */
bool sw_token_stream_has_documents(const struct sw_token_stream *stream);
bool sw_token_stream_marked(const struct sw_token_stream *stream);
/* The files of the stream, and which of the files beside one are there. */
int sw_token_stream_files(const struct sw_token_stream *stream);
struct sw_token_beside {
    const char *file;
    bool mask, documents;
};
struct sw_token_beside sw_token_stream_beside(const struct sw_token_stream *stream, int file);
/* The marks of a range, as sw_token_stream_read. */
sw_status sw_token_stream_read_marks(struct sw_token_stream *stream, int64_t first, int64_t count, uint8_t *out);

/* Tells whether a file that a range lies in, or one beside it, has another size or other times than at its opening;
 * *out gets the first such file as it is now. */
bool sw_token_stream_changed(const struct sw_token_stream *stream, int64_t first, int64_t count,
                             struct sw_data_file *out);
/* The file of the stream, or beside one, that was written to last. */
const struct sw_data_file *sw_token_stream_newest_file(const struct sw_token_stream *stream);

/* Adds to a hash what tells this stream from others without reading its tokens: the vocabulary, and the identity, size
 * and time of the last write of each file. Leaves out the time of other changes, which noting a use of the cache
 * sets. */
void sw_token_stream_hash_identity(const struct sw_token_stream *stream, XXH3_state_t *hash);

/* Where a token stands in the files: for messages. */
struct sw_token_place {
    const char *file;
    int64_t index;
};
struct sw_token_place sw_token_stream_place(const struct sw_token_stream *stream, int64_t token);

/* Counts of what a range of tokens holds, as users count: a document that was split is one, and what fills sequences up
 * is none. */
struct sw_token_counts {
    int64_t tokens, learnt; /* learnt: with a loss */
    int64_t documents;      /* 0: no file says where they begin */
    int64_t split;          /* of the documents: longer than a sequence (packer.h) */
    int64_t padding;        /* tokens that fill sequences up */
    bool is_padding;        /* the last token that was added is padding */
};

/* Adds tokens by their marks. */
void sw_token_counts_add(struct sw_token_counts *counts, const uint8_t *marks, int64_t count);

/* Writes and returns a description such as "40000 tokens in 12 documents, 87.3% of them with a loss, 4.1% padding, 2
 * documents split". */
const char *sw_token_counts_text(const struct sw_token_counts *counts, char *text, size_t chars);

#endif
