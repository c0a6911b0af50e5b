/* Growing arrays of bytes and of token ids. A zeroed struct is an empty array; the caller frees `data` or `id`. */
#ifndef SW_TEXT_BUFFER_H
#define SW_TEXT_BUFFER_H

#include "core/status.h"

#include <stddef.h>
#include <stdint.h>

/* Borrowed bytes, not zero-terminated. */
struct sw_text {
    const char *data;
    size_t bytes;
};

struct sw_text_buffer {
    char *data;
    size_t bytes, room; /* used, and allocated */
};

struct sw_token_list {
    int32_t *id;
    size_t count, room; /* used, and allocated */
};

/* Make sure that this much more fits. SW_ERR_NOMEM leaves the array unchanged. */
sw_status sw_text_buffer_reserve(struct sw_text_buffer *buffer, size_t more_bytes);
sw_status sw_token_list_reserve(struct sw_token_list *list, size_t more_ids);

sw_status sw_text_buffer_append(struct sw_text_buffer *buffer, struct sw_text text);
sw_status sw_token_list_append(struct sw_token_list *list, const int32_t *id, size_t count);

static inline struct sw_text sw_text_of_buffer(const struct sw_text_buffer *buffer) {
    return (struct sw_text){.data = buffer->data, .bytes = buffer->bytes};
}

#endif
