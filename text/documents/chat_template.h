/* The template that a model's chats are rendered by: that of its folder, or that of a format. */
#ifndef SW_TEXT_DOCUMENTS_CHAT_TEMPLATE_H
#define SW_TEXT_DOCUMENTS_CHAT_TEMPLATE_H

#include "core/status.h"
#include "text/jinja/jinja.h"
#include "text/model_text.h"
#include "text/tokenizer.h"

/* A document in parts: which of them may be special tokens, and which have a loss. */
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

/* A zeroed struct has no template; sw_chat_style_release frees it. */
struct sw_chat_style {
    struct sw_jinja_template *parsed; /* NULL: none is chosen */
    const char *format;               /* name of the format; NULL: the template is the folder's own */
    struct sw_jinja_variable *token;  /* [tokens], owned: bos_token and others that the folder names */
    size_t tokens;
    char *end_of_turn;     /* spelling of the special token that ends a reply */
    char *opening;         /* what the template puts before a reply that is asked for; "": nothing */
    char *behind_question; /* what it has between a question and the reply, if a question comes before: "[/INST]" */
};

/* Finds the style of a model's folder. `name` is a format's name, or "auto" for what chat_template.jinja or
 * tokenizer_config.json say. Refuses templates that this version does not render, and those in which no special token
 * of the tokenizer ends a reply: the text of a user could end one. The caller releases the style. */
sw_status sw_chat_style_open(const char *folder, const char *name, const struct sw_tokenizer *tokenizer,
                             struct sw_chat_style *out);
void sw_chat_style_release(struct sw_chat_style *style);

/* Formats of chats for models whose folder has no chat template. */
struct sw_chat_format {
    const char *name;
    const char *chat_template; /* Jinja */
    const char *begin;         /* bos_token, where the model's folder names none */
};

/* Refuses a name that is neither a format's nor "auto", and lists the formats. */
sw_status sw_chat_format_check(const char *name);

/* Chats as the text that a model was taught them in. */
typedef enum { SW_CHAT_SYSTEM, SW_CHAT_USER, SW_CHAT_ASSISTANT } sw_chat_role;

struct sw_chat_turn {
    sw_chat_role role;
    struct sw_text content; /* borrowed */
};

struct sw_chat_rendering {
    bool opens_reply; /* what begins a reply follows the turns, for the model to go on; nothing has a loss */
    bool continues;   /* the turns follow a reply that ended: nothing is put that only begins a chat */
};

/* Appends a chat. Turns of the assistant have a loss, with the token that ends them: from where the template's
 * generation prompt ends, or what is within {% generation %} where the template has that. Contents are never special
 * tokens. Refuses chats that the template refuses, and those in which it is not known where a reply begins. */
sw_status sw_chat_render(const struct sw_chat_style *style, const struct sw_chat_turn *turn, size_t turns,
                         struct sw_chat_rendering how, struct sw_marked_text *out);

#endif
