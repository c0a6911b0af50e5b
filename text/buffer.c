#include "text/buffer.h"

#include <stdlib.h>
#include <string.h>

enum { LEAST_ROOM = 64 };

/* Returns the array with room for `needed` elements. Grows it by at least half, so that appending takes linear time. */
static void *grow(void *array, size_t *room, size_t needed, size_t element_bytes) {
    size_t more = *room + *room / 2;
    if (more < needed)
        more = needed;
    if (more < LEAST_ROOM)
        more = LEAST_ROOM;
    void *grown = reallocarray(array, more, element_bytes);
    if (grown != NULL)
        *room = more;
    return grown;
}

sw_status sw_text_buffer_reserve(struct sw_text_buffer *buffer, size_t more_bytes) {
    if (buffer->room - buffer->bytes >= more_bytes)
        return SW_OK;
    char *data = grow(buffer->data, &buffer->room, buffer->bytes + more_bytes, 1);
    if (data == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for %zu bytes of text", buffer->bytes + more_bytes);
    buffer->data = data;
    return SW_OK;
}

sw_status sw_token_list_reserve(struct sw_token_list *list, size_t more_ids) {
    if (list->room - list->count >= more_ids)
        return SW_OK;
    int32_t *id = grow(list->id, &list->room, list->count + more_ids, sizeof *id);
    if (id == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for %zu tokens", list->count + more_ids);
    list->id = id;
    return SW_OK;
}

sw_status sw_text_buffer_append(struct sw_text_buffer *buffer, struct sw_text text) {
    if (text.bytes == 0)
        return SW_OK;
    SW_TRY(sw_text_buffer_reserve(buffer, text.bytes));
    memcpy(buffer->data + buffer->bytes, text.data, text.bytes);
    buffer->bytes += text.bytes;
    return SW_OK;
}

sw_status sw_token_list_append(struct sw_token_list *list, const int32_t *id, size_t count) {
    if (count == 0)
        return SW_OK;
    SW_TRY(sw_token_list_reserve(list, count));
    memcpy(list->id + list->count, id, count * sizeof *id);
    list->count += count;
    return SW_OK;
}
