/* Documents from JSON objects, by the schemas of data sets. */
#ifndef SW_TEXT_DOCUMENTS_JSON_DOCUMENT_H
#define SW_TEXT_DOCUMENTS_JSON_DOCUMENT_H

#include "core/status.h"
#include "text/documents/chat_template.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* Names of members that were passed over. A zeroed struct has none; sw_json_passed_release frees it. */
struct sw_json_passed {
    char **name;
    int count, room;
    bool more;      /* there were more names than are kept */
    int64_t beside; /* documents of another schema that also had a 'text' */
};
void sw_json_passed_release(struct sw_json_passed *passed);
/* Logs which members were passed over, if any. */
void sw_json_passed_say(const struct sw_json_passed *passed);

/* Returns a member, or NULL if it is absent or null, which means the same in training data. */
const json_t *sw_json_member(const json_t *object, const char *name);

/* Where an object is, for messages. */
struct sw_json_place {
    const char *where; /* "chat.jsonl:12" */
    const char *what;  /* such as "a message"; NULL: the line's object itself */
    bool chosen;       /* --field names what is read, so no other member matters */
};

typedef enum { SW_LOSS_NOT_SAID, SW_LOSS_OFF, SW_LOSS_ON } sw_loss_switch;

/* The turns of a chat: lists of messages, each with 'role' and 'content' or, as in ShareGPT, 'from' and 'value'.
 * Borrowed. */
struct sw_chat_lists {
    const json_t *prompt;   /* its replies have no loss, unless a switch of theirs says so; NULL: none */
    const json_t *messages; /* the turns after the prompt, or all */
    const json_t *system;   /* text of a system turn before all others; NULL: none */
};

struct sw_chat_reading {
    const struct sw_chat_style *style;
    bool all_loss;                 /* the whole chat has a loss */
    const char *where;             /* such as "chat.jsonl:12"; begins error messages */
    struct sw_json_passed *passed; /* receives members of messages that were passed over */
};

/* Appends a chat. A reply whose loss is switched off stays as context. Refuses roles other than system, user and
 * assistant; contents that are neither strings nor lists of text parts; switches that ask for what --loss does not
 * give; and, unless `all_loss` is set, chats without a reply to learn. */
sw_status sw_chat_append_json(const struct sw_chat_lists *lists, const struct sw_chat_reading *how,
                              struct sw_marked_text *out);

/* The documents of a pair of replies. */
typedef enum { SW_JSON_NO_PAIR, SW_JSON_CHOSEN, SW_JSON_REJECTED } sw_json_pair;

struct sw_json_rules {
    sw_json_pair pair; /* which document of a pair an object becomes; SW_JSON_NO_PAIR: objects are no pairs */
    const char *field; /* the member that has the text or a list of messages; NULL: by the schemas below */
    bool all_loss;
    /* Returns the style of chats in *out. If the model has no chat template, *out is NULL if the chat is not `needed`,
     * and the call fails if it is. */
    sw_status (*chat_style)(void *context, const char *where, bool needed, const struct sw_chat_style **out);
    void *context;
};

/* Appends the document that an object is. Its schema is one of these; members that are null are absent:
 *  - 'messages', 'conversations' or 'conversation': a chat, with 'system' perhaps;
 *  - 'prompt' and 'completion': two strings, or two lists of messages; replies in the completion have a loss;
 *  - 'instruction', 'input' and 'output' (Alpaca): a chat of one question, where the model has a chat template, else
 *    Alpaca's own prompt, and its completion; Dolly has 'context' for 'input';
 *  - 'question', 'query' or 'input' with 'output', 'response' or 'answer', which may follow an 'instruction' too: a
 * chat of one question;
 *  - 'text'. Together with one of the others it is passed over, as a rendered copy.
 * Refuses an object that has two schemas or none, and members that could matter.
 *
 * With rules->pair it becomes the chosen or the rejected document of a pair, in one of trl's forms: 'prompt', 'chosen'
 * and 'rejected' are three strings, or three lists of messages; or 'chosen' and 'rejected' are lists that begin with
 * the same messages, which are the prompt then, and a 'prompt' of text is a copy of them. The loss is that of a prompt
 * with its completion. */
sw_status sw_json_append_document(const json_t *object, const struct sw_json_rules *rules, const char *where,
                                  struct sw_json_passed *passed, struct sw_marked_text *out);

#endif
