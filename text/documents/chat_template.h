/* The template that a model's chats are rendered by: that of its folder, or that of a format. */
#ifndef SW_TEXT_DOCUMENTS_CHAT_TEMPLATE_H
#define SW_TEXT_DOCUMENTS_CHAT_TEMPLATE_H

#include "core/status.h"
#include "text/documents/marked_text.h"
#include "text/jinja/jinja.h"
#include "text/tokenizer.h"

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
