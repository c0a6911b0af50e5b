/* The subset of Jinja 2 that chat templates use, as transformers renders them: with trim_blocks, lstrip_blocks, loop
 * controls and {% generation %}. Anything else is refused by name, with its line. */
#ifndef SW_TEXT_JINJA_JINJA_H
#define SW_TEXT_JINJA_JINJA_H

#include "text/buffer.h"

#include <stdbool.h>

/* A parsed template. Any number of threads may read it. */
struct sw_jinja_template;

/* Parses a template. Copies the source. The caller destroys the template. */
sw_status sw_jinja_parse(struct sw_text source, struct sw_jinja_template **out);
void sw_jinja_destroy(struct sw_jinja_template *parsed);

struct sw_jinja_message {
    const char *role;
    struct sw_text content;
};

struct sw_jinja_variable {
    const char *name;
    const char *value;
};

/* The variables of a rendering; all borrowed. */
struct sw_jinja_input {
    const struct sw_jinja_message *message;
    size_t messages;
    const struct sw_jinja_variable *token; /* special tokens by name: bos_token, eos_token, ... */
    size_t tokens;
    bool add_generation_prompt;
};

/* Marks of rendered bytes. A byte from a message's content has the mark of the message (sw_jinja_mark_of);
 * SW_JINJA_GENERATED is added within {% generation %}. */
enum { SW_JINJA_OF_TEMPLATE = 0, SW_JINJA_CONTENT = 0x7F, SW_JINJA_GENERATED = 0x80 };
/* Returns the mark of a message's content. Marks repeat after some messages; they tell neighbours apart. */
unsigned char sw_jinja_mark_of(size_t message);

/* A zeroed struct is empty; sw_jinja_text_release frees it. */
struct sw_jinja_text {
    struct sw_text_buffer bytes, marks; /* of equal length */
};
void sw_jinja_text_release(struct sw_jinja_text *text);

/* Replaces *out by what the template renders. SW_ERR_ARG: the template refuses the chat (raise_exception) or fails on
 * it. SW_ERR_UNSUPPORTED: it uses something that this subset lacks, or exceeds a bound. */
sw_status sw_jinja_render(const struct sw_jinja_template *parsed, const struct sw_jinja_input *input,
                          struct sw_jinja_text *out);

#endif
