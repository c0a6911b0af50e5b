/* Members of values by name and by number. */
#include "text/jinja/run.h"

#include <string.h>

static sw_status loop_attribute(const struct sw_jinja_loop *loop, struct sw_text name, struct sw_jinja_value *out) {
    const size_t count = loop->list->count, index = loop->index;
    const bool ends = index + 1 >= count;
    if (sw_jinja_is(name, "index") || sw_jinja_is(name, "index0"))
        *out = sw_jinja_int((int64_t)index + (name.bytes == 5));
    else if (sw_jinja_is(name, "revindex") || sw_jinja_is(name, "revindex0"))
        *out = sw_jinja_int((int64_t)(count - index) - (name.bytes == 9));
    else if (sw_jinja_is(name, "first") || sw_jinja_is(name, "last"))
        *out = sw_jinja_bool(name.bytes == 5 ? index == 0 : ends);
    else if (sw_jinja_is(name, "length"))
        *out = sw_jinja_int((int64_t)count);
    else if (sw_jinja_is(name, "previtem"))
        *out = index > 0 ? loop->list->item[index - 1] : sw_jinja_undefined(name);
    else if (sw_jinja_is(name, "nextitem"))
        *out = !ends ? loop->list->item[index + 1] : sw_jinja_undefined(name);
    else
        return sw_fail(SW_ERR_UNSUPPORTED, "loop.%.*s is not supported", name.bytes < 40 ? (int)name.bytes : 40,
                       name.data);
    return SW_OK;
}

static sw_status bind_method(struct sw_jinja_run *run, struct sw_jinja_value of, struct sw_text name,
                             struct sw_jinja_value *out) {
    struct sw_jinja_method *method;
    SW_TRY(sw_jinja_take(&run->arena, sizeof *method, &method));
    *method = (struct sw_jinja_method){of, name};
    *out = (struct sw_jinja_value){.kind = SW_JINJA_METHOD, .method = method};
    return SW_OK;
}

static sw_status refuse_private(struct sw_text name) {
    return name.bytes > 0 && name.data[0] == '_' ? sw_fail(SW_ERR_UNSUPPORTED, "the member '%.*s' is not supported",
                                                           name.bytes < 40 ? (int)name.bytes : 40, name.data)
                                                 : SW_OK;
}

sw_status sw_jinja_get_attribute(struct sw_jinja_run *run, struct sw_jinja_value of, struct sw_text name,
                                 struct sw_jinja_value *out) {
    const struct sw_jinja_value *member = NULL;
    SW_TRY(refuse_private(name));
    if (of.kind == SW_JINJA_UNDEFINED)
        return sw_jinja_bad_kind("", of);
    if (of.kind == SW_JINJA_LOOP)
        return loop_attribute(of.loop, name, out);
    if (sw_jinja_has_method(of.kind, name))
        return bind_method(run, of, name, out);
    if (of.kind == SW_JINJA_DICT || of.kind == SW_JINJA_NAMESPACE)
        member = sw_jinja_dict_named(of.dict, name);
    *out = member != NULL ? *member : sw_jinja_undefined(name);
    return SW_OK;
}

/* Returns the place in a list of `count` that a number counted from either end means, or SIZE_MAX. */
static size_t place_of(int64_t number, size_t count) {
    if (number < 0)
        number += (int64_t)count;
    return number >= 0 && (uint64_t)number < count ? (size_t)number : SIZE_MAX;
}

static sw_status get_numbered(struct sw_jinja_run *run, struct sw_jinja_value of, int64_t number,
                              struct sw_jinja_value *out) {
    const bool is_string = of.kind == SW_JINJA_STRING;
    const struct sw_text text = is_string ? sw_jinja_text_of(of.string) : (struct sw_text){0};
    *out = sw_jinja_undefined((struct sw_text){"item", 4});
    if (!is_string && of.kind != SW_JINJA_LIST && of.kind != SW_JINJA_TUPLE)
        return SW_OK;
    SW_TRY(sw_jinja_charge(run, text.bytes));
    const size_t at = place_of(number, is_string ? sw_jinja_chars(text) : of.list->count);
    if (at == SIZE_MAX)
        return SW_OK;
    if (!is_string) {
        *out = of.list->item[at];
        return SW_OK;
    }
    const size_t begin = sw_jinja_char_at(text, at);
    const size_t bytes = sw_jinja_char_bytes((struct sw_text){text.data + begin, text.bytes - begin});
    *out = (struct sw_jinja_value){.kind = SW_JINJA_STRING, .string = sw_jinja_part(of.string, begin, bytes)};
    return SW_OK;
}

sw_status sw_jinja_get_item(struct sw_jinja_run *run, struct sw_jinja_value of, struct sw_jinja_value key,
                            struct sw_jinja_value *out) {
    if (of.kind == SW_JINJA_UNDEFINED)
        return sw_jinja_bad_kind("", of);
    const struct sw_jinja_value *member = of.kind == SW_JINJA_DICT ? sw_jinja_dict_get(of.dict, key) : NULL;
    if (member != NULL) {
        *out = *member;
        return SW_OK;
    }
    if (key.kind == SW_JINJA_STRING)
        return sw_jinja_get_attribute(run, of, sw_jinja_text_of(key.string), out);
    if (key.kind == SW_JINJA_INT || key.kind == SW_JINJA_BOOL)
        return get_numbered(run, of, key.kind == SW_JINJA_BOOL ? key.truth : key.number, out);
    *out = sw_jinja_undefined((struct sw_text){"item", 4});
    return SW_OK;
}
