/* A document in parts: which of them may be special tokens, and which have a loss. */
#ifndef SW_TEXT_DOCUMENTS_MARKED_TEXT_H
#define SW_TEXT_DOCUMENTS_MARKED_TEXT_H

#include "text/model_text.h"

struct sw_text_part {
    size_t bytes;
    bool special; /* special tokens that the part spells are these tokens, else text like any other */
    bool loss;    /* the model learns to write the part */
};

/* A zeroed struct is an empty document; sw_marked_text_release frees it. Without parts, all of the text has a loss. */
struct sw_marked_text {
    struct sw_text_buffer text;
    struct sw_text_part *part;
    size_t parts, room; /* used, and allocated */
    bool closed;        /* the text ends itself, as a chat does: no token is put behind it */
    bool continues;     /* the text is a part of a document, and not the first */
    bool goes_on;       /* the text is a part of a document, and not the last */
    const char *from;   /* the name of its file; borrowed. NULL: unknown */
};

/* Appends a part. A document has parts for all of its text, or none. */
sw_status sw_marked_text_append(struct sw_marked_text *marked, struct sw_text text, struct sw_text_part how);
/* Makes the document empty and keeps its memory. */
void sw_marked_text_clear(struct sw_marked_text *marked);
void sw_marked_text_release(struct sw_marked_text *marked);

/* The tokens that stand around a document. */
struct sw_document_frame {
    struct sw_token_list begin; /* owned by the user; a document that begins with them already gets no more */
    bool begins_chats;          /* chats get them too, though their template puts what begins a chat */
    int32_t end;                /* behind documents that do not end themselves; -1: none */
    bool parse_special;         /* as below */
};
/* Appends the tokens of a document with what stands around it and, for each, a byte that is 1 where it has a loss. A
 * document without tokens stays empty. */
sw_status sw_document_encode(struct sw_text_encoder *encoder, const struct sw_marked_text *marked,
                             const struct sw_document_frame *frame, struct sw_token_list *out,
                             struct sw_text_buffer *out_loss);

/* Appends the tokens of a prompt, which a model goes on with: special tokens that it spells are these tokens, and what
 * begins a document (SW_BOS_...) stands before it. */
sw_status sw_prompt_encode(struct sw_text_encoder *encoder, const struct sw_model_text *model, int bos,
                           struct sw_text prompt, struct sw_token_list *out);

/* Appends the tokens of a document and, for each, a byte that is 1 where it has a loss. Parts between special tokens
 * are encoded as one text. There, the first token with a loss is the first in which the text's tokens differ from those
 * of the parts before the loss. `parse_special` is for documents without parts. */
sw_status sw_marked_text_encode(struct sw_text_encoder *encoder, const struct sw_marked_text *marked,
                                bool parse_special, struct sw_token_list *out, struct sw_text_buffer *out_loss);

#endif
