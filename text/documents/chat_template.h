/* The template that a model's chats are rendered by: that of its folder, or that of a format. */
#ifndef SW_TEXT_DOCUMENTS_CHAT_TEMPLATE_H
#define SW_TEXT_DOCUMENTS_CHAT_TEMPLATE_H

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

/* Renders messages. `asks`: what begins a reply follows them (add_generation_prompt). */
sw_status sw_chat_style_render(const struct sw_chat_style *style, const struct sw_jinja_message *message,
                               size_t messages, bool asks, struct sw_jinja_text *out);
/* Returns where the last byte with a message's mark ends, or 0. */
size_t sw_chat_content_end(const struct sw_jinja_text *text, unsigned char mark);

#endif
