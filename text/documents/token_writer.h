/* A token file F.bin and, beside it, F.bin.doc with where its documents begin (run/data/token_stream.h) and F.bin.mask
 * with a byte a token, 0 where it has no loss. In the cache, F.bin.xxh3 has the digest of each. They appear under their
 * names only when they are whole. */
#ifndef SW_TEXT_DOCUMENTS_TOKEN_WRITER_H
#define SW_TEXT_DOCUMENTS_TOKEN_WRITER_H

#include "text/buffer.h"

#include <stdbool.h>
#include <stdint.h>

struct sw_token_writer;

/* The first token of a document has no loss, whatever its mask. Where documents are packed, its mask says what is no
 * whole document: the first part of one that was split, another part, or padding. */
enum { SW_MASK_SPLIT = 's', SW_MASK_CONTINUES = 'c', SW_MASK_PADDING = 'p' };

/* The files that have a digest: tokens, documents and mask. */
enum { SW_TOKEN_FILES = 3 };

/* The counts of what was written so far. */
struct sw_token_position {
    int64_t tokens, learnt; /* learnt: with a loss, which the first token of a document has not */
    int64_t masked;         /* tokens whose mask is not 1 */
    int64_t documents;
    uint64_t digest[SW_TOKEN_FILES]; /* XXH3 of each file so far */
};

/* The files that are written, and how. */
struct sw_token_files {
    int token_bytes; /* 2 or 4 */
    bool documents;  /* F.bin.doc too */
    bool digests;    /* F.bin.xxh3 too */
};
/* Opens files that are F.bin.partial and the like until they are whole. SW_ERR_BUSY: another process writes the same
 * file. */
sw_status sw_token_writer_open(const char *path, const struct sw_token_files *files, struct sw_token_writer **out);
/* Begins at a position that another process has flushed, or at 0. SW_ERR_CORRUPT: the files are not those that it
 * flushed. */
sw_status sw_token_writer_begin(struct sw_token_writer *writer, const struct sw_token_position *position);
/* Flushes what was written, so that a writer that is opened after a crash can begin there. */
sw_status sw_token_writer_flush(struct sw_token_writer *writer);
struct sw_token_position sw_token_writer_position(const struct sw_token_writer *writer);
/* Writes a document, or more of the last one. Its tokens fit their bytes. `loss` has a byte a token: 0, 1, or
 * for the first one a SW_MASK_... value. */
sw_status sw_token_writer_add(struct sw_token_writer *writer, const struct sw_token_list *tokens, struct sw_text loss);
sw_status sw_token_writer_add_more(struct sw_token_writer *writer, const struct sw_token_list *tokens,
                                   struct sw_text loss);
/* Refuses a F.bin.mask that is there, where none is going to be written. */
sw_status sw_token_writer_refuse_mask(const struct sw_token_writer *writer);
/* Flushes the files and gives them their names, F.bin last. Files of before are at F.bin.old.partial and the like
 * meanwhile, F.bin first, and are put back where this fails. F.bin.mask is written only where a token's mask is not 1,
 * and is refused where none is written. */
sw_status sw_token_writer_publish(struct sw_token_writer *writer);
/* Without a publication before, nothing is left, unless `keeps` is set: then the partial files are. */
void sw_token_writer_close(struct sw_token_writer *writer, bool keeps);

typedef enum {
    SW_TOKENS_RIGHT,
    SW_TOKENS_WITHOUT_DIGESTS, /* there is no F.bin.xxh3 */
    SW_TOKENS_DAMAGED          /* a file is not the one that was written, or cannot be read */
} sw_token_verdict;
/* Compares a token file, its documents and its mask with the digests beside them, at the speed of reading. */
sw_status sw_token_file_check(const char *path, sw_token_verdict *out);

#endif
