/* Documents out of objects of JSON, by the schemas that data sets have. */
#ifndef SW_TEXT_DOCUMENTS_JSON_DOCUMENT_H
#define SW_TEXT_DOCUMENTS_JSON_DOCUMENT_H

#include "text/documents/chat_json.h"

struct sw_json_rules {
    const char *field; /* the member that has the text, or a list of messages; NULL: by the schemas below */
    bool all_loss;
    /* Gives the style of chats. Where the model has no chat template, *out is NULL if a chat is not `needed`, and the
     * call fails if it is. */
    sw_status (*chat_style)(void *context, const char *where, bool needed, const struct sw_chat_style **out);
    void *context;
};

/* Appends the document that an object is. Its schema is one of these; members that are null are absent:
 *  - 'messages', 'conversations' or 'conversation': a chat, with 'system' perhaps;
 *  - 'prompt' and 'completion': two strings, or two lists of messages, of which the completion's replies have a loss;
 *  - 'instruction', 'input' and 'output' (Alpaca): a chat of one question, where the model has a chat template, else
 *    Alpaca's own prompt, and its completion; Dolly has 'context' for 'input';
 *  - 'question', 'query' or 'input' with 'output', 'response' or 'answer', which may follow an 'instruction' too: a
 * chat of one question;
 *  - 'text'. Beside one of the others it is passed over, as a rendered copy.
 * Refuses an object that has two schemas or none, and members that could matter (json_members.h). */
sw_status sw_json_append_document(const json_t *object, const struct sw_json_rules *rules, const char *where,
                                  struct sw_json_passed *passed, struct sw_marked_text *out);

#endif
