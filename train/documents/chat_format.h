/* Chats as the text that a model was taught them in: ChatML, Llama 3, Llama 2, Mistral and Zephyr. */
#ifndef SW_TRAIN_DOCUMENTS_CHAT_FORMAT_H
#define SW_TRAIN_DOCUMENTS_CHAT_FORMAT_H

#include "train/documents/marked_text.h"

typedef enum { SW_CHAT_SYSTEM, SW_CHAT_USER, SW_CHAT_ASSISTANT } sw_chat_role;

struct sw_chat_turn {
    sw_chat_role role;
    struct sw_text content; /* borrowed */
};

struct sw_chat_format;

/* A format and the model's own tokens that begin and end a text (bos_token, eos_token). */
struct sw_chat_style {
    const struct sw_chat_format *format; /* NULL: none is chosen */
    char *begin, *end;                   /* owned */
};

/* Returns a format by its name, or NULL. */
const struct sw_chat_format *sw_chat_format_find(const char *name);
const char *sw_chat_format_name(const struct sw_chat_format *format);
/* Refuses a name that is neither a format's nor "auto", and lists the formats. */
sw_status sw_chat_format_check(const char *name);
/* The names of all formats, for messages: "chatml, qwen2, ...". */
const char *sw_chat_format_names(void);

/* Returns the spelling of the token that ends a turn of the assistant. */
const char *sw_chat_end_of_turn(const struct sw_chat_style *style);
/* Refuses a tokenizer in which the token that ends a turn is not special: the text of a user could end one. */
sw_status sw_chat_check_tokenizer(const struct sw_chat_style *style, const struct sw_tokenizer *tokenizer);

struct sw_chat_rendering {
    bool opens_reply; /* what begins a reply follows the turns, for the model to go on */
    bool continues;   /* the turns follow a reply that ended: nothing is put that only begins a chat */
};

/* Appends a chat. Turns of the assistant have a loss, with the token that ends them. Refuses turns in an order that the
 * format does not have. */
sw_status sw_chat_render(const struct sw_chat_style *style, const struct sw_chat_turn *turn, size_t turns,
                         struct sw_chat_rendering how, struct sw_marked_text *out);

#endif
