/* Strings of templates: parts, joins, and what Python's methods do, by characters and not by bytes. */
#include "text/jinja/value.h"
#include "text/utf8.h"

#include <string.h>

struct sw_jinja_string sw_jinja_part(struct sw_jinja_string string, size_t begin, size_t bytes) {
    return (struct sw_jinja_string){
        .data = string.data + begin, .marks = string.marks != NULL ? string.marks + begin : NULL, .bytes = bytes};
}

static sw_status make_room(struct sw_jinja_builder *builder, size_t more) {
    enum { LEAST_ROOM = 256 };
    if (more <= builder->room - builder->bytes)
        return SW_OK;
    size_t room = builder->room * 2 > LEAST_ROOM ? builder->room * 2 : LEAST_ROOM;
    room = room - builder->bytes < more ? builder->bytes + more : room;
    char *data;
    unsigned char *marks;
    SW_TRY(sw_jinja_take(builder->arena, room, &data));
    SW_TRY(sw_jinja_take(builder->arena, room, &marks));
    if (builder->bytes > 0) {
        memcpy(data, builder->data, builder->bytes);
        memcpy(marks, builder->marks, builder->bytes);
    }
    builder->data = data;
    builder->marks = marks;
    builder->room = room;
    return SW_OK;
}

sw_status sw_jinja_build(struct sw_jinja_builder *builder, struct sw_jinja_string more) {
    if (more.bytes == 0)
        return SW_OK;
    SW_TRY(make_room(builder, more.bytes));
    memcpy(builder->data + builder->bytes, more.data, more.bytes);
    if (more.marks != NULL)
        memcpy(builder->marks + builder->bytes, more.marks, more.bytes);
    else
        memset(builder->marks + builder->bytes, 0, more.bytes);
    builder->bytes += more.bytes;
    return SW_OK;
}

struct sw_jinja_value sw_jinja_built(const struct sw_jinja_builder *builder) {
    return (struct sw_jinja_value){.kind = SW_JINJA_STRING,
                                   .string = {.data = builder->bytes > 0 ? builder->data : "",
                                              .marks = builder->bytes > 0 ? builder->marks : NULL,
                                              .bytes = builder->bytes}};
}

sw_status sw_jinja_join(struct sw_jinja_arena *arena, struct sw_jinja_string left, struct sw_jinja_string right,
                        struct sw_jinja_value *out) {
    struct sw_jinja_builder builder = {.arena = arena};
    SW_TRY(make_room(&builder, left.bytes + right.bytes));
    SW_TRY(sw_jinja_build(&builder, left));
    SW_TRY(sw_jinja_build(&builder, right));
    *out = sw_jinja_built(&builder);
    return SW_OK;
}

size_t sw_jinja_char_bytes(struct sw_text text) {
    return sw_utf8_read(text).bytes;
}

size_t sw_jinja_chars(struct sw_text text) {
    size_t count = 0;
    for (size_t at = 0; at < text.bytes; count++)
        at += sw_jinja_char_bytes((struct sw_text){text.data + at, text.bytes - at});
    return count;
}

size_t sw_jinja_char_at(struct sw_text text, size_t index) {
    size_t at = 0;
    for (size_t i = 0; i < index && at < text.bytes; i++)
        at += sw_jinja_char_bytes((struct sw_text){text.data + at, text.bytes - at});
    return at;
}

size_t sw_jinja_find(struct sw_text text, struct sw_text what, size_t from, bool last) {
    size_t found = SIZE_MAX;
    if (what.bytes == 0)
        return last ? text.bytes : from;
    while (from <= text.bytes && text.bytes - from >= what.bytes) {
        const char *at = memmem(text.data + from, text.bytes - from, what.data, what.bytes);
        if (at == NULL)
            break;
        found = (size_t)(at - text.data);
        if (!last)
            break;
        from = found + 1;
    }
    return found;
}

/* Python's str.isspace, by which strip goes: the property White_Space and the separators U+001C to U+001F. */
static bool is_space(uint32_t code) {
    return sw_utf8_is_space(code) || (code >= 0x1C && code <= 0x1F);
}

static bool is_stripped(struct sw_text character, const struct sw_text *characters) {
    if (characters == NULL) {
        const struct sw_utf8_sequence read = sw_utf8_read(character);
        return read.kind == SW_UTF8_WHOLE && is_space(read.code);
    }
    for (size_t at = 0; at < characters->bytes;) {
        const struct sw_text left = {characters->data + at, characters->bytes - at};
        const size_t bytes = sw_jinja_char_bytes(left);
        if (bytes == character.bytes && memcmp(left.data, character.data, bytes) == 0)
            return true;
        at += bytes;
    }
    return false;
}

struct sw_jinja_string sw_jinja_strip(struct sw_jinja_string string, const struct sw_text *characters, bool left,
                                      bool right) {
    size_t begin = 0, end = string.bytes;
    while (left && begin < end) {
        const size_t bytes = sw_jinja_char_bytes((struct sw_text){string.data + begin, end - begin});
        if (!is_stripped((struct sw_text){string.data + begin, bytes}, characters))
            break;
        begin += bytes;
    }
    while (right && begin < end) {
        size_t at = end - 1;
        while (at > begin && ((unsigned char)string.data[at] & 0xC0) == 0x80)
            at--;
        if (!is_stripped((struct sw_text){string.data + at, end - at}, characters))
            break;
        end = at;
    }
    return sw_jinja_part(string, begin, end - begin);
}
