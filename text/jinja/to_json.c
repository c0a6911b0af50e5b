/* The filter tojson, as transformers has it: Python's json.dumps with ensure_ascii=False. */
#include "text/jinja/value.h"

#include <stdio.h>
#include <string.h>

enum { MOST_NESTED = 100 };

static sw_status put(struct sw_jinja_builder *out, const char *text) {
    return sw_jinja_build(out, (struct sw_jinja_string){.data = text, .bytes = strlen(text)});
}

static sw_status put_line(struct sw_jinja_builder *out, int indent, int depth) {
    SW_TRY(put(out, "\n"));
    for (int i = 0; i < indent * depth; i++)
        SW_TRY(put(out, " "));
    return SW_OK;
}

static sw_status put_string(struct sw_jinja_builder *out, struct sw_jinja_string string) {
    static const char plain[] = "\"\\\n\r\t\b\f", named[] = "\"\\nrtbf";
    SW_TRY(put(out, "\""));
    for (size_t i = 0; i < string.bytes; i++) {
        const unsigned char byte = (unsigned char)string.data[i];
        const char *place = byte != 0 ? strchr(plain, byte) : NULL;
        char escape[8] = {(char)byte, 0};
        if (place != NULL)
            (void)snprintf(escape, sizeof escape, "\\%c", named[place - plain]);
        else if (byte < 0x20)
            (void)snprintf(escape, sizeof escape, "\\u%04x", byte);
        const size_t bytes = byte == 0 || place != NULL || byte < 0x20 ? strlen(escape) : 1;
        unsigned char marks[sizeof escape];
        memset(marks, string.marks != NULL ? string.marks[i] : 0, sizeof marks);
        SW_TRY(sw_jinja_build(out, (struct sw_jinja_string){.data = escape, .marks = marks, .bytes = bytes}));
    }
    return put(out, "\"");
}

static sw_status put_value(struct sw_jinja_builder *out, struct sw_jinja_value value, int indent, int depth);

/* Puts the members of a list or a dict. */
static sw_status put_members(struct sw_jinja_builder *out, struct sw_jinja_value value, int indent, int depth) {
    const bool is_dict = value.kind == SW_JINJA_DICT;
    const size_t count = is_dict ? value.dict->count : value.list->count;
    SW_TRY(put(out, is_dict ? "{" : "["));
    for (size_t i = 0; i < count; i++) {
        if (i > 0)
            SW_TRY(put(out, indent >= 0 ? "," : ", "));
        if (indent >= 0)
            SW_TRY(put_line(out, indent, depth + 1));
        if (is_dict && value.dict->key[i].kind != SW_JINJA_STRING)
            return sw_fail(SW_ERR_UNSUPPORTED, "tojson of a dict whose keys are not strings is not supported");
        if (is_dict) {
            SW_TRY(put_string(out, value.dict->key[i].string));
            SW_TRY(put(out, ": "));
        }
        SW_TRY(put_value(out, is_dict ? value.dict->item[i] : value.list->item[i], indent, depth + 1));
    }
    if (indent >= 0 && count > 0)
        SW_TRY(put_line(out, indent, depth));
    return put(out, is_dict ? "}" : "]");
}

static sw_status put_value(struct sw_jinja_builder *out, struct sw_jinja_value value, int indent, int depth) {
    struct sw_jinja_string text;
    if (depth > MOST_NESTED)
        return sw_fail(SW_ERR_UNSUPPORTED, "values are nested more than %d deep", MOST_NESTED);
    switch (value.kind) {
    case SW_JINJA_NONE: return put(out, "null");
    case SW_JINJA_BOOL: return put(out, value.truth ? "true" : "false");
    case SW_JINJA_STRING: return put_string(out, value.string);
    case SW_JINJA_INT: SW_TRY(sw_jinja_str(out->arena, value, &text)); return sw_jinja_build(out, text);
    case SW_JINJA_LIST:
    case SW_JINJA_TUPLE:
    case SW_JINJA_DICT: return put_members(out, value, indent, depth);
    default: return sw_fail(SW_ERR_ARG, "tojson of %s", sw_jinja_kind_name(value.kind));
    }
}

sw_status sw_jinja_to_json(struct sw_jinja_builder *out, struct sw_jinja_value value, int indent) {
    return put_value(out, value, indent, 0);
}
