/* Which chat format a model has: what its chat_template, written in Jinja, is. */
#ifndef SW_TRAIN_DOCUMENTS_CHAT_TEMPLATE_H
#define SW_TRAIN_DOCUMENTS_CHAT_TEMPLATE_H

#include "train/documents/chat_format.h"

/* Returns the format that a template writes, or NULL where it is none that we have. */
const struct sw_chat_format *sw_chat_template_recognize(struct sw_text chat_template);

/* Finds the style of a model's folder. `name` is a format's name, or "auto" for what chat_template.jinja or
 * tokenizer_config.json say. The caller releases the style. */
sw_status sw_chat_style_open(const char *folder, const char *name, struct sw_chat_style *out);
void sw_chat_style_release(struct sw_chat_style *style);

#endif
