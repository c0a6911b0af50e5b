/* The template by which a model's chats are rendered: its folder's, or a format's. */
#ifndef SW_TEXT_DOCUMENTS_CHAT_TEMPLATE_H
#define SW_TEXT_DOCUMENTS_CHAT_TEMPLATE_H

#include "core/status.h"
#include "text/jinja/jinja.h"
#include "text/model_text.h"
#include "text/tokenizer.h"

/* A document in parts: which may be special tokens, and which have a loss. */
struct sw_text_part {
    size_t bytes;
    bool special; /* special tokens spelled in the part become these tokens; false: they are text like any other */
    bool loss;    /* the model learns to write the part */
};

/* A document. A zeroed struct is empty; sw_marked_text_release frees it. Without parts, all of the text has a loss. */
struct sw_marked_text {
    struct sw_text_buffer text;
    struct sw_text_part *part;
    size_t parts, room; /* used, and allocated */
    bool closed;        /* the text has its own end, as a chat does: no token is appended */
    bool continues;     /* the text is a later part of a document */
    bool goes_on;       /* more of the document follows */
    bool chosen;        /* the next document is rejected in favour of this one */
    int64_t line;       /* where the document is in its file, from 1; 0: unknown */
    const char *from;   /* name of its file, borrowed; NULL: unknown */
};

/* Appends a part. A document has parts for all of its text, or none. */
sw_status sw_marked_text_append(struct sw_marked_text *marked, struct sw_text text, struct sw_text_part how);
/* Makes the document empty and keeps its memory. */
void sw_marked_text_clear(struct sw_marked_text *marked);
void sw_marked_text_release(struct sw_marked_text *marked);

/* The tokens around a document. */
struct sw_document_frame {
    struct sw_token_list begin; /* owned by the user; not repeated for a document that begins with them */
    bool begins_chats;          /* chats get them too, although their template writes what begins a chat */
    int32_t end;                /* after documents without an end of their own; -1: none */
    bool parse_special;         /* as below */
};
/* Appends the tokens of a document with its frame, and a byte per token that is 1 if it has a loss. A document without
 * tokens stays empty. */
sw_status sw_document_encode(struct sw_text_encoder *encoder, const struct sw_marked_text *marked,
                             const struct sw_document_frame *frame, struct sw_token_list *out,
                             struct sw_text_buffer *out_loss);

/* Appends the tokens of a prompt that a model continues. Special tokens spelled in it become these tokens, and it
 * begins as a document does (SW_BOS_...). */
sw_status sw_prompt_encode(struct sw_text_encoder *encoder, const struct sw_model_text *model, int bos,
                           struct sw_text prompt, struct sw_token_list *out);

/* Appends the tokens of a document, and a byte per token that is 1 if it has a loss. Parts between special tokens are
 * encoded as one text; its first token with a loss is the first that differs from the tokens of the parts before the
 * loss. `parse_special` is for documents without parts. */
sw_status sw_marked_text_encode(struct sw_text_encoder *encoder, const struct sw_marked_text *marked,
                                bool parse_special, struct sw_token_list *out, struct sw_text_buffer *out_loss);

/* A chat style. A zeroed struct has no template; sw_chat_style_release frees it. */
struct sw_chat_style {
    struct sw_jinja_template *parsed; /* NULL: none chosen */
    const char *format;               /* name of the format; NULL: the folder's own template */
    struct sw_jinja_variable *token;  /* bos_token and others that the folder names; owned, [tokens] */
    size_t tokens;
    const char
        *earlier_end; /* what ends the replies before the last where that is another token; NULL: the same. Not owned */
    char *end_of_turn;     /* spelling of the special token that ends a reply */
    char *opening;         /* what the template puts before the reply it asks for; "": nothing */
    char *behind_question; /* what it puts between a question and the reply, such as "[/INST]" */
};

/* Finds the style of a model's folder. `name` is a format's name, or "auto" for the template of the folder. Refuses
 * templates that this version cannot render, and those whose replies no special token of the tokenizer ends: a user's
 * text could otherwise end one. The caller releases the style. */
sw_status sw_chat_style_open(const char *folder, const char *name, const struct sw_tokenizer *tokenizer,
                             struct sw_chat_style *out);
void sw_chat_style_release(struct sw_chat_style *style);

/* Formats of chats for models whose folder has no chat template. */
struct sw_chat_format {
    const char *name;
    const char *chat_template; /* Jinja */
    const char *begin;         /* bos_token, if the model's folder names none */
    const char *earlier_end;   /* what ends replies before the last one; NULL: what ends the last one */
};

/* Refuses a name that is neither a format's nor "auto", and lists the formats. */
sw_status sw_chat_format_check(const char *name);

/* Chats, as the text in which a model learned them. */
typedef enum { SW_CHAT_SYSTEM, SW_CHAT_USER, SW_CHAT_ASSISTANT } sw_chat_role;

struct sw_chat_turn {
    sw_chat_role role;
    struct sw_text content; /* borrowed */
};

struct sw_chat_rendering {
    bool opens_reply; /* the turns are followed by what begins a reply, for the model to continue; nothing has a loss */
    bool continues;   /* the turns follow a finished reply: what only begins a chat is left out */
};

/* Appends a chat. Turns of the assistant, with the token that ends them, have a loss: from where the template's
 * generation prompt ends, or within {% generation %} if the template uses it. Contents are never special tokens.
 * Refuses chats that the template refuses, and chats in which the beginning of a reply is unknown. */
sw_status sw_chat_render(const struct sw_chat_style *style, const struct sw_chat_turn *turn, size_t turns,
                         struct sw_chat_rendering how, struct sw_marked_text *out);

#endif
