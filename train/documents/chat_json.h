/* Chats, and prompts with what completes them, out of objects of JSON. */
#ifndef SW_TRAIN_DOCUMENTS_CHAT_JSON_H
#define SW_TRAIN_DOCUMENTS_CHAT_JSON_H

#include "train/documents/chat_format.h"

#include <jansson.h>

typedef enum { SW_JSON_TEXT, SW_JSON_CHAT, SW_JSON_COMPLETION } sw_json_document;

/* Tells what an object is: a chat ("messages", or "prompt" and "completion" that are lists of them), a prompt and its
 * completion (strings), or another text. */
sw_json_document sw_json_document_of(const json_t *object);

/* Appends a chat. `where` ("chat.jsonl:12") begins the messages of errors. Refuses roles other than system, user and
 * assistant, contents that are no strings, and chats without a turn of the assistant unless `all_loss` is set, which
 * gives all of the chat a loss. */
sw_status sw_chat_append_json(const json_t *object, const struct sw_chat_style *style, bool all_loss, const char *where,
                              struct sw_marked_text *out);

/* Appends a prompt, which has a loss only where `all_loss` is set, and its completion, which must not be empty. */
sw_status sw_completion_append_json(const json_t *object, bool all_loss, const char *where, struct sw_marked_text *out);

#endif
