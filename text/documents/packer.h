/* Packs documents into sequences, so that none is cut where sequences of training meet. */
#ifndef SW_TEXT_DOCUMENTS_PACKER_H
#define SW_TEXT_DOCUMENTS_PACKER_H

#include "text/documents/token_writer.h"

struct sw_packer;

/* Sequences have `seq` tokens each; what a sequence lacks is filled with a document of the token `padding`, without a
 * loss. The writer is borrowed. NULL: sequences are only counted. */
sw_status sw_packer_open(struct sw_token_writer *writer, int64_t seq, int32_t padding, struct sw_packer **out);
/* Puts a document into the open sequence that it leaves the least room in. One that is longer than a sequence is split
 * into whole sequences and a rest, which are documents of their own. */
sw_status sw_packer_add(struct sw_packer *packer, const struct sw_token_list *tokens, struct sw_text loss);
/* Puts a part of a document, of which more follows unless `ends` is set. The packer is not saved between two parts. */
sw_status sw_packer_add_part(struct sw_packer *packer, const struct sw_token_list *tokens, struct sw_text loss,
                             bool ends);
/* Writes all sequences that are still open, and one token of padding: the last sequence's target. */
sw_status sw_packer_finish(struct sw_packer *packer);
void sw_packer_close(struct sw_packer *packer);

/* Appends the packer's state: its counts and the open sequences. */
sw_status sw_packer_save(const struct sw_packer *packer, struct sw_text_buffer *out);
/* Takes a new packer to the state that another one of the same --pack saved. SW_ERR_CORRUPT: it saved no such state,
 * and this packer is to be closed. */
sw_status sw_packer_restore(struct sw_packer *packer, int64_t vocab, struct sw_text state);
/* The most bytes that a saved state has. */
size_t sw_packer_most_bytes(const struct sw_packer *packer);

int64_t sw_packer_split(const struct sw_packer *packer);   /* documents that were split */
int64_t sw_packer_padding(const struct sw_packer *packer); /* tokens of padding */

#endif
