/* Chats and completions out of JSON. */
#ifndef SW_TEXT_DOCUMENTS_CHAT_JSON_H
#define SW_TEXT_DOCUMENTS_CHAT_JSON_H

#include "text/documents/chat_render.h"
#include "text/documents/json_members.h"

#include <jansson.h>

/* The turns of a chat: lists of messages, each with 'role' and 'content' or, as ShareGPT has them, 'from' and 'value'.
 * Borrowed. */
struct sw_chat_lists {
    const json_t *prompt;   /* its replies have no loss, unless a switch of theirs says so; NULL: none */
    const json_t *messages; /* the turns behind the prompt, or all */
    const json_t *system;   /* text of a system turn before all others; NULL: none */
};

struct sw_chat_reading {
    const struct sw_chat_style *style;
    bool all_loss;                 /* all of the chat has a loss */
    const char *where;             /* "chat.jsonl:12", which begins the messages of errors */
    struct sw_json_passed *passed; /* receives members of messages that were passed over */
};

/* Appends a chat. A reply whose loss is switched off (json_members.h) stays as context. Refuses roles other than
 * system, user and assistant, contents that are neither strings nor lists of parts with text, switches that ask for
 * what --loss does not give, and chats without a reply to learn unless `all_loss` is set. */
sw_status sw_chat_append_json(const struct sw_chat_lists *lists, const struct sw_chat_reading *how,
                              struct sw_marked_text *out);

/* Appends a prompt, which has a loss only where `all_loss` is set, and its completion, which must not be empty. */
sw_status sw_completion_append_json(const json_t *prompt, const json_t *completion, bool all_loss, const char *where,
                                    struct sw_marked_text *out);

#endif
