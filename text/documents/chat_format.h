/* Formats of chats for models whose folder has no chat template. */
#ifndef SW_TEXT_DOCUMENTS_CHAT_FORMAT_H
#define SW_TEXT_DOCUMENTS_CHAT_FORMAT_H

#include "core/status.h"

struct sw_chat_format {
    const char *name;
    const char *chat_template; /* Jinja */
    const char *begin;         /* bos_token, where the model's folder names none */
};

/* Returns a format by its name, or NULL. */
const struct sw_chat_format *sw_chat_format_find(const char *name);
/* Refuses a name that is neither a format's nor "auto", and lists the formats. */
sw_status sw_chat_format_check(const char *name);
/* The names of all formats, for messages: "chatml, qwen2, ...". */
const char *sw_chat_format_names(void);

#endif
