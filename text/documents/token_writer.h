/* A token file F.bin with two companions: F.bin.doc, where its documents begin (run/data/token_stream.h), and
 * F.bin.mask, a byte per token, 0 without a loss. In the cache, F.bin.xxh3 has the digest of each. They get their names
 * only when they are complete. */
#ifndef SW_TEXT_DOCUMENTS_TOKEN_WRITER_H
#define SW_TEXT_DOCUMENTS_TOKEN_WRITER_H

#include "text/buffer.h"

#include <stdbool.h>
#include <stdint.h>

struct sw_token_writer;

/* The first token of a document has no loss, whatever its mask. In packed files its mask marks what is not a whole
 * document: the first part of one that was split, a later part, or padding. */
enum { SW_MASK_SPLIT = 's', SW_MASK_CONTINUES = 'c', SW_MASK_PADDING = 'p' };

/* The files that have a digest: tokens, documents and mask. */
enum { SW_TOKEN_FILES = 3 };

/* The counts of what was written so far. */
struct sw_token_position {
    int64_t tokens, learnt; /* learnt: with a loss, which the first token of a document never has */
    int64_t masked;         /* tokens whose mask is not 1 */
    int64_t documents;
    uint64_t digest[SW_TOKEN_FILES]; /* XXH3 of each file so far */
};

/* The files that are written, and how. */
struct sw_token_files {
    int token_bytes; /* 2 or 4 */
    bool documents;  /* also write F.bin.doc */
    bool digests;    /* also write F.bin.xxh3 */
};
/* Opens files that are named F.bin.partial and so on until they are complete. SW_ERR_BUSY: another process is writing
 * the same file. */
sw_status sw_token_writer_open(const char *path, const struct sw_token_files *files, struct sw_token_writer **out);
/* Begins at a position that another process has flushed, or at 0. SW_ERR_CORRUPT: the files are not the flushed ones.
 */
sw_status sw_token_writer_begin(struct sw_token_writer *writer, const struct sw_token_position *position);
/* Flushes what was written, so that a writer opened after a crash can begin there. */
sw_status sw_token_writer_flush(struct sw_token_writer *writer);
struct sw_token_position sw_token_writer_position(const struct sw_token_writer *writer);
/* Write a document, or more of the last one. Its tokens must fit token_bytes. `loss` has a byte per token: 0, 1, or for
 * the first a SW_MASK_... value. */
sw_status sw_token_writer_add(struct sw_token_writer *writer, const struct sw_token_list *tokens, struct sw_text loss);
sw_status sw_token_writer_add_more(struct sw_token_writer *writer, const struct sw_token_list *tokens,
                                   struct sw_text loss);
/* Refuses an existing F.bin.mask if none is going to be written. */
sw_status sw_token_writer_refuse_mask(const struct sw_token_writer *writer);
/* Flushes the files and gives them their names, F.bin last. Meanwhile old files are at F.bin.old.partial and so on,
 * F.bin first, and are put back on failure. F.bin.mask is written only if some token's mask is not 1; if it is not
 * written, an existing one is refused. */
sw_status sw_token_writer_publish(struct sw_token_writer *writer);
/* Closes the writer. Unless it was published, or `keeps` is set, removes the partial files. */
void sw_token_writer_close(struct sw_token_writer *writer, bool keeps);

typedef enum {
    SW_TOKENS_RIGHT,
    SW_TOKENS_WITHOUT_DIGESTS, /* there is no F.bin.xxh3 */
    SW_TOKENS_DAMAGED          /* a file is not the one that was written, or is unreadable */
} sw_token_verdict;
/* Compares a token file, its documents and its mask with the digests next to them, at reading speed. */
sw_status sw_token_file_check(const char *path, sw_token_verdict *out);

/* Packs documents into sequences, so that none is cut where training sequences meet. */
struct sw_packer;

/* Opens a packer of sequences of `seq` tokens each. The rest of a sequence is filled with a document of the token
 * `padding`, without a loss. Borrows the writer; NULL: sequences are only counted. */
sw_status sw_packer_open(struct sw_token_writer *writer, int64_t seq, int32_t padding, struct sw_packer **out);
/* Adds a document to the open sequence in which it leaves the least room. A document longer than a sequence is split
 * into whole sequences and a rest, as documents of their own. */
sw_status sw_packer_add(struct sw_packer *packer, const struct sw_token_list *tokens, struct sw_text loss);
/* Writes a document of at most a sequence as a sequence of its own, filled up. */
sw_status sw_packer_add_alone(struct sw_packer *packer, const struct sw_token_list *tokens, struct sw_text loss);
/* Adds a part of a document; more follows unless `ends` is set. The packer must not be saved between two parts. */
sw_status sw_packer_add_part(struct sw_packer *packer, const struct sw_token_list *tokens, struct sw_text loss,
                             bool ends);
/* Writes all open sequences, and one token of padding: the last sequence's target. */
sw_status sw_packer_finish(struct sw_packer *packer);
void sw_packer_close(struct sw_packer *packer);

/* Appends the packer's state: its counts and the open sequences. */
sw_status sw_packer_save(const struct sw_packer *packer, struct sw_text_buffer *out);
/* Restores the state that another packer of the same --pack saved. SW_ERR_CORRUPT: it is not such a state; close this
 * packer. */
sw_status sw_packer_restore(struct sw_packer *packer, int64_t vocab, struct sw_text state);
/* Returns the largest size of a saved state. */
size_t sw_packer_most_bytes(const struct sw_packer *packer);

int64_t sw_packer_split(const struct sw_packer *packer);   /* documents that were split */
int64_t sw_packer_padding(const struct sw_packer *packer); /* tokens of padding */

#endif
