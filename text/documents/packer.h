/* Packs documents into sequences, so that none is cut where training sequences meet. */
#ifndef SW_TEXT_DOCUMENTS_PACKER_H
#define SW_TEXT_DOCUMENTS_PACKER_H

#include "text/documents/token_writer.h"

struct sw_packer;

/* Opens a packer of sequences of `seq` tokens each. The rest of a sequence is filled with a document of the token
 * `padding`, without a loss. Borrows the writer; NULL: sequences are only counted. */
sw_status sw_packer_open(struct sw_token_writer *writer, int64_t seq, int32_t padding, struct sw_packer **out);
/* Adds a document to the open sequence in which it leaves the least room. A document longer than a sequence is split
 * into whole sequences and a rest, as documents of their own. */
sw_status sw_packer_add(struct sw_packer *packer, const struct sw_token_list *tokens, struct sw_text loss);
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
