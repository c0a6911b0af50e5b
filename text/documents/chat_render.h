/* Chats as the text that a model was taught them in. */
#ifndef SW_TEXT_DOCUMENTS_CHAT_RENDER_H
#define SW_TEXT_DOCUMENTS_CHAT_RENDER_H

#include "text/documents/chat_template.h"
#include "text/documents/marked_text.h"

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
