/* A document in parts: which of them may be special tokens, and which have a loss. */
#ifndef SW_TRAIN_DOCUMENTS_MARKED_TEXT_H
#define SW_TRAIN_DOCUMENTS_MARKED_TEXT_H

#include "train/text/tokenizer.h"

struct sw_text_part {
    size_t bytes;
    bool special; /* the part spells a special token, and is this token where the tokenizer has it */
    bool loss;    /* the model learns to write the part */
};

/* A zeroed struct is an empty document; sw_marked_text_release frees it. Without parts, all of the text has a loss. */
struct sw_marked_text {
    struct sw_text_buffer text;
    struct sw_text_part *part;
    size_t parts, room; /* used, and allocated */
    bool closed;        /* the text ends itself, as a chat does: no token is put behind it */
};

/* Appends a part. A document has parts for all of its text, or none. */
sw_status sw_marked_text_append(struct sw_marked_text *marked, struct sw_text text, struct sw_text_part how);
/* Makes the document empty and keeps its memory. */
void sw_marked_text_clear(struct sw_marked_text *marked);
void sw_marked_text_release(struct sw_marked_text *marked);

/* Appends the tokens of a document and, for each, a byte that is 1 where it has a loss. Parts between special tokens
 * are encoded as one text. There, the first token with a loss is the first in which the text's tokens differ from those
 * of the parts before the loss. `parse_special` is for documents without parts. */
sw_status sw_marked_text_encode(struct sw_text_encoder *encoder, const struct sw_marked_text *marked,
                                bool parse_special, struct sw_token_list *out, struct sw_text_buffer *out_loss);

#endif
