/* A token file F.bin and, beside it, F.bin.doc with where its documents begin (train/data/documents.h) and F.bin.mask
 * with a byte a token, 0 where it has no loss. They appear under their names only when they are whole. */
#ifndef SW_TRAIN_DOCUMENTS_TOKEN_WRITER_H
#define SW_TRAIN_DOCUMENTS_TOKEN_WRITER_H

#include "train/text/buffer.h"

#include <stdbool.h>
#include <stdint.h>

struct sw_token_writer;

/* token_bytes: 2 or 4. documents: F.bin.doc is written too. */
sw_status sw_token_writer_open(const char *path, int token_bytes, bool documents, struct sw_token_writer **out);
/* Writes a document. Its tokens fit their bytes. `loss` has a byte a token, 0 or 1. */
sw_status sw_token_writer_add(struct sw_token_writer *writer, const struct sw_token_list *tokens, struct sw_text loss);
/* Flushes the files and gives them their names. F.bin.mask is written only where a token has no loss; a file of that
 * name is refused where none is written. */
sw_status sw_token_writer_publish(struct sw_token_writer *writer);
/* Without a publication before, nothing is left. */
void sw_token_writer_close(struct sw_token_writer *writer);

int64_t sw_token_writer_tokens(const struct sw_token_writer *writer);
int64_t sw_token_writer_learnt(const struct sw_token_writer *writer); /* tokens with a loss */

#endif
