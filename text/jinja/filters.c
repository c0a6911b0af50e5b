/* Filters. */
#include "text/jinja/run.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_FACTOR = 1 << 20 }; /* keeps products of lengths within 64 bits */

static const struct sw_jinja_signature filters[] = {
    {"trim", {"chars"}, 0},
    {"length", {NULL}, 0},
    {"count", {NULL}, 0},
    {"tojson", {"ensure_ascii", "indent"}, 0},
    {"join", {"d", "attribute"}, 0},
    {"upper", {NULL}, 0},
    {"lower", {NULL}, 0},
    {"capitalize", {NULL}, 0},
    {"title", {NULL}, 0},
    {"replace", {"old", "new", "count"}, 2},
    {"default", {"default_value", "boolean"}, 0},
    {"d", {"default_value", "boolean"}, 0},
    {"first", {NULL}, 0},
    {"last", {NULL}, 0},
    {"list", {NULL}, 0},
    {"string", {NULL}, 0},
    {"safe", {NULL}, 0},
    {"int", {"default"}, 0},
    {"items", {NULL}, 0},
    {"dictsort", {"case_sensitive", "by", "reverse"}, 0},
    {"reverse", {NULL}, 0},
    {"map", {NULL}, 0},
    {"select", {NULL}, 0},
    {"reject", {NULL}, 0},
    {"selectattr", {NULL}, 0},
    {"rejectattr", {NULL}, 0},
};
enum {
    TRIM,
    LENGTH,
    COUNT,
    TOJSON,
    JOIN,
    UPPER,
    LOWER,
    CAPITALIZE,
    TITLE,
    REPLACE,
    DEFAULT,
    DEFAULT_SHORT,
    FIRST,
    LAST,
    LIST,
    STRING,
    SAFE,
    INT,
    ITEMS,
    DICTSORT,
    REVERSE,
    MAP,
    SELECT,
    REJECT,
    SELECTATTR,
    REJECTATTR,
    FILTERS
};

int sw_jinja_find_filter(struct sw_text name) {
    for (int i = 0; i < FILTERS; i++)
        if (sw_jinja_is(name, filters[i].name))
            return i;
    return -1;
}

/* Looks up a member by a dotted name: function.name. */
static sw_status get_path(struct sw_jinja_run *run, struct sw_jinja_value of, struct sw_jinja_value path,
                          struct sw_jinja_value *out) {
    if (path.kind == SW_JINJA_INT)
        return sw_jinja_get_item(run, of, path, out);
    if (path.kind != SW_JINJA_STRING)
        return sw_jinja_bad_kind("no attribute is", path);
    struct sw_text left = sw_jinja_text_of(path.string);
    for (bool more = true; more;) {
        const char *dot = left.bytes > 0 ? memchr(left.data, '.', left.bytes) : NULL;
        const struct sw_text name = {left.data, dot != NULL ? (size_t)(dot - left.data) : left.bytes};
        if (name.bytes > 0 && name.data[0] >= '0' && name.data[0] <= '9')
            return sw_fail(SW_ERR_UNSUPPORTED, "numbers as attributes are not supported");
        SW_TRY(sw_jinja_charge(run, 0));
        SW_TRY(sw_jinja_get_item(run, of, sw_jinja_string(name), &of));
        more = dot != NULL;
        left = more ? (struct sw_text){dot + 1, left.bytes - name.bytes - 1} : left;
    }
    *out = of;
    return SW_OK;
}

static sw_status filter_tojson(struct sw_jinja_run *run, struct sw_jinja_value value,
                               const struct sw_jinja_bound_arguments *bound, struct sw_jinja_value *out) {
    enum { MOST_INDENT = 16 };
    struct sw_jinja_builder builder = {.arena = &run->arena};
    const struct sw_jinja_value *indent = &bound->value[1];
    const bool indents = bound->given[1] && indent->kind != SW_JINJA_NONE;
    if (bound->given[0] && sw_jinja_truth(bound->value[0]))
        return sw_fail(SW_ERR_UNSUPPORTED, "tojson with ensure_ascii is not supported");
    if (indents && (indent->kind != SW_JINJA_INT || indent->number < 0 || indent->number > MOST_INDENT))
        return sw_fail(SW_ERR_UNSUPPORTED, "tojson with an indent that is not 0 to %d is not supported", MOST_INDENT);
    SW_TRY(sw_jinja_to_json(&builder, value, indents ? (int)indent->number : -1));
    *out = sw_jinja_built(&builder);
    return sw_jinja_charge(run, builder.bytes);
}

static sw_status filter_join(struct sw_jinja_run *run, struct sw_jinja_value value,
                             const struct sw_jinja_bound_arguments *bound, struct sw_jinja_value *out) {
    const struct sw_jinja_list *list;
    struct sw_jinja_string between = {.data = ""};
    struct sw_jinja_value members;
    SW_TRY(sw_jinja_iterate(run, value, &list));
    if (bound->given[0])
        SW_TRY(sw_jinja_str(&run->arena, bound->value[0], &between));
    if (bound->given[1] && bound->value[1].kind != SW_JINJA_NONE) {
        SW_TRY(sw_jinja_new_list(&run->arena, SW_JINJA_LIST, list->count, &members));
        for (size_t i = 0; i < list->count; i++)
            SW_TRY(get_path(run, list->item[i], bound->value[1], &members.list->item[i]));
        list = members.list;
    }
    return sw_jinja_join_list(run, between, list, out);
}

static sw_status filter_replace(struct sw_jinja_run *run, struct sw_jinja_string in,
                                const struct sw_jinja_bound_arguments *bound, struct sw_jinja_value *out) {
    struct sw_jinja_string old, with;
    const bool counts = bound->given[2] && bound->value[2].kind != SW_JINJA_NONE;
    SW_TRY(sw_jinja_str(&run->arena, bound->value[0], &old));
    SW_TRY(sw_jinja_str(&run->arena, bound->value[1], &with));
    if (counts && bound->value[2].kind != SW_JINJA_INT)
        return sw_jinja_bad_kind("replace is not counted by", bound->value[2]);
    return sw_jinja_replace(run, in, old, with, counts ? bound->value[2].number : -1, out);
}

static sw_status filter_ends(struct sw_jinja_run *run, bool last, struct sw_jinja_value value,
                             struct sw_jinja_value *out) {
    const struct sw_jinja_list *list;
    SW_TRY(sw_jinja_iterate(run, value, &list));
    *out = list->count > 0 ? list->item[last ? list->count - 1 : 0] : sw_jinja_undefined((struct sw_text){"item", 4});
    return SW_OK;
}

/* Python's int() of decimal digits; anything else becomes the default. */
static sw_status filter_int(struct sw_jinja_value value, const struct sw_jinja_bound_arguments *bound,
                            struct sw_jinja_value *out) {
    enum { MOST_DIGITS = 18 };
    *out = bound->given[0] ? bound->value[0] : sw_jinja_int(0);
    if (value.kind == SW_JINJA_INT || value.kind == SW_JINJA_BOOL)
        *out = sw_jinja_int(value.kind == SW_JINJA_BOOL ? value.truth : value.number);
    if (value.kind == SW_JINJA_UNDEFINED || value.kind != SW_JINJA_STRING)
        return value.kind == SW_JINJA_UNDEFINED ? sw_jinja_bad_kind("", value) : SW_OK;
    const struct sw_jinja_string text = sw_jinja_strip(value.string, NULL, true, true);
    const size_t sign = text.bytes > 0 && (text.data[0] == '-' || text.data[0] == '+');
    int64_t number = 0;
    bool is_number = text.bytes > sign && text.bytes - sign <= MOST_DIGITS, could_be = false;
    for (size_t i = sign; i < text.bytes; i++) {
        const bool is_digit = text.data[i] >= '0' && text.data[i] <= '9';
        is_number &= is_digit;
        could_be |= is_digit || (text.data[i] & 0x80) != 0 || strchr("nN", text.data[i]) != NULL;
        number = is_number ? number * 10 + (text.data[i] - '0') : 0;
    }
    if (!is_number && could_be)
        return sw_fail(SW_ERR_UNSUPPORTED, "int of text that is not a few decimal digits is not supported");
    if (is_number)
        *out = sw_jinja_int(text.data[0] == '-' ? -number : number);
    return SW_OK;
}

static sw_status filter_items(struct sw_jinja_run *run, struct sw_jinja_value value, struct sw_jinja_value *out) {
    struct sw_jinja_value named;
    if (value.kind != SW_JINJA_DICT && value.kind != SW_JINJA_UNDEFINED)
        return sw_jinja_bad_kind("no items of", value);
    SW_TRY(sw_jinja_new_dict(&run->arena, SW_JINJA_DICT, 0, &named));
    const struct sw_jinja_method method = {value.kind == SW_JINJA_DICT ? value : named, {"items", 5}};
    SW_TRY(sw_jinja_call_method(run, &method, &(struct sw_jinja_arguments){.named = named.dict}, out));
    out->kind = SW_JINJA_GENERATOR;
    return SW_OK;
}

/* A member sorted by its key, as it is or in lower case. */
struct sorted {
    struct sw_jinja_value member; /* a tuple */
    struct sw_text key;
};

static sw_status take_key(struct sw_jinja_run *run, struct sw_jinja_value member, bool case_sensitive,
                          struct sorted *out) {
    struct sw_jinja_value key = member.list->item[0];
    if (key.kind != SW_JINJA_STRING)
        return sw_fail(SW_ERR_UNSUPPORTED, "dictsort by keys that are no strings is not supported");
    if (!case_sensitive)
        SW_TRY(sw_jinja_change_case(run, key.string, "lower", &key));
    *out = (struct sorted){member, sw_jinja_text_of(key.string)};
    return SW_OK;
}

/* Compares by code points, which is also the order of UTF-8 bytes. */
static int order_of(struct sw_text a, struct sw_text b) {
    const size_t bytes = a.bytes < b.bytes ? a.bytes : b.bytes;
    const int order = bytes > 0 ? memcmp(a.data, b.data, bytes) : 0;
    return order != 0 ? order : (a.bytes > b.bytes) - (a.bytes < b.bytes);
}

/* Members with equal keys keep their order, even in reverse. */
static sw_status filter_dictsort(struct sw_jinja_run *run, struct sw_jinja_value value,
                                 const struct sw_jinja_bound_arguments *bound, struct sw_jinja_value *out) {
    const bool case_sensitive = bound->given[0] && sw_jinja_truth(bound->value[0]);
    const int sign = bound->given[2] && sw_jinja_truth(bound->value[2]) ? -1 : 1;
    const struct sw_jinja_value *by = &bound->value[1];
    struct sorted *sorted;
    if (bound->given[1] && (by->kind != SW_JINJA_STRING || !sw_jinja_is(sw_jinja_text_of(by->string), "key")))
        return sw_fail(SW_ERR_UNSUPPORTED, "dictsort by something else than the key is not supported");
    if (value.kind != SW_JINJA_DICT)
        return sw_jinja_bad_kind("no items of", value);
    SW_TRY(filter_items(run, value, out));
    out->kind = SW_JINJA_LIST;
    const size_t count = out->list->count;
    SW_TRY(sw_jinja_take(&run->arena, (count + 1) * sizeof *sorted, &sorted));
    for (size_t i = 0; i < count; i++) {
        struct sorted next;
        size_t at = i;
        SW_TRY(take_key(run, out->list->item[i], case_sensitive, &next));
        for (; at > 0 && sign * order_of(sorted[at - 1].key, next.key) > 0; at--) {
            SW_TRY(sw_jinja_charge(run, next.key.bytes));
            sorted[at] = sorted[at - 1];
        }
        sorted[at] = next;
    }
    for (size_t i = 0; i < count; i++)
        out->list->item[i] = sorted[i].member;
    return SW_OK;
}

static sw_status filter_reverse(struct sw_jinja_run *run, struct sw_jinja_value value, struct sw_jinja_value *out) {
    const struct sw_jinja_list *list;
    SW_TRY(sw_jinja_iterate(run, value, &list));
    SW_TRY(sw_jinja_charge(run, list->count * sizeof *out));
    SW_TRY(sw_jinja_new_list(&run->arena, SW_JINJA_GENERATOR, list->count, out));
    for (size_t i = 0; i < list->count; i++)
        out->list->item[i] = list->item[list->count - 1 - i];
    return value.kind == SW_JINJA_STRING ? sw_jinja_join_list(run, (struct sw_jinja_string){.data = ""}, out->list, out)
                                         : SW_OK;
}

/* Returns the arguments after the first `count`. */
static struct sw_jinja_arguments rest_of(const struct sw_jinja_arguments *arguments, size_t count) {
    return (struct sw_jinja_arguments){
        .value = arguments->value + count, .count = arguments->count - count, .named = arguments->named};
}

static sw_status map_member(struct sw_jinja_run *run, const struct sw_jinja_arguments *arguments,
                            struct sw_jinja_value value, struct sw_jinja_value *out) {
    const struct sw_jinja_value *attribute = sw_jinja_dict_named(arguments->named, (struct sw_text){"attribute", 9});
    if (attribute != NULL && arguments->count == 0 && arguments->named->count == 1)
        return get_path(run, value, *attribute, out);
    if (arguments->count == 0 || arguments->value[0].kind != SW_JINJA_STRING)
        return sw_fail(SW_ERR_UNSUPPORTED, "map with these arguments is not supported");
    const int filter = sw_jinja_find_filter(sw_jinja_text_of(arguments->value[0].string));
    if (filter < 0 || filter >= MAP)
        return sw_fail(SW_ERR_UNSUPPORTED, "map with this filter is not supported");
    const struct sw_jinja_arguments rest = rest_of(arguments, 1);
    return sw_jinja_filter(run, filter, value, &rest, out);
}

static sw_status filter_map(struct sw_jinja_run *run, struct sw_jinja_value value,
                            const struct sw_jinja_arguments *arguments, struct sw_jinja_value *out) {
    const struct sw_jinja_list *list;
    SW_TRY(sw_jinja_iterate(run, value, &list));
    SW_TRY(sw_jinja_new_list(&run->arena, SW_JINJA_GENERATOR, list->count, out));
    for (size_t i = 0; i < list->count; i++)
        SW_TRY(map_member(run, arguments, list->item[i], &out->list->item[i]));
    return SW_OK;
}

/* Tells whether a member passes the test that a filter's arguments name. */
static sw_status passes(struct sw_jinja_run *run, int filter, const struct sw_jinja_arguments *arguments,
                        struct sw_jinja_value value, bool *out) {
    const size_t paths = filter == SELECTATTR || filter == REJECTATTR;
    if (arguments->count < paths)
        return sw_fail(SW_ERR_ARG, "%s lacks the name of an attribute", filters[filter].name);
    if (paths > 0)
        SW_TRY(get_path(run, value, arguments->value[0], &value));
    *out = sw_jinja_truth(value);
    if (arguments->count == paths)
        return SW_OK;
    const struct sw_jinja_value name = arguments->value[paths];
    const int test = name.kind == SW_JINJA_STRING ? sw_jinja_find_test(sw_jinja_text_of(name.string)) : -1;
    if (test < 0)
        return sw_fail(SW_ERR_UNSUPPORTED, "%s with this test is not supported", filters[filter].name);
    const struct sw_jinja_arguments rest = rest_of(arguments, paths + 1);
    return sw_jinja_test(run, test, value, &rest, out);
}

static sw_status filter_select(struct sw_jinja_run *run, int filter, struct sw_jinja_value value,
                               const struct sw_jinja_arguments *arguments, struct sw_jinja_value *out) {
    const struct sw_jinja_list *list;
    const bool wanted = filter == SELECT || filter == SELECTATTR;
    SW_TRY(sw_jinja_iterate(run, value, &list));
    SW_TRY(sw_jinja_new_list(&run->arena, SW_JINJA_GENERATOR, list->count, out));
    out->list->count = 0;
    for (size_t i = 0; i < list->count; i++) {
        bool passed;
        SW_TRY(sw_jinja_charge(run, 0));
        SW_TRY(passes(run, filter, arguments, list->item[i], &passed));
        if (passed == wanted)
            out->list->item[out->list->count++] = list->item[i];
    }
    return SW_OK;
}

/* Filters that treat the value as text. */
static sw_status filter_text(struct sw_jinja_run *run, int filter, struct sw_jinja_value value,
                             const struct sw_jinja_bound_arguments *bound, struct sw_jinja_value *out) {
    struct sw_jinja_string text;
    const bool has_characters = bound->given[0] && bound->value[0].kind != SW_JINJA_NONE;
    SW_TRY(sw_jinja_str(&run->arena, value, &text));
    if (filter == REPLACE)
        return filter_replace(run, text, bound, out);
    if (filter == UPPER || filter == LOWER || filter == CAPITALIZE || filter == TITLE)
        return sw_jinja_change_case(run, text, filters[filter].name, out);
    if (filter == TRIM) {
        if (has_characters && bound->value[0].kind != SW_JINJA_STRING)
            return sw_jinja_bad_kind("trim of", bound->value[0]);
        const struct sw_text characters =
            has_characters ? sw_jinja_text_of(bound->value[0].string) : (struct sw_text){0};
        SW_TRY(
            sw_jinja_charge(run, text.bytes * (characters.bytes < MOST_FACTOR ? 1 + characters.bytes : MOST_FACTOR)));
        text = sw_jinja_strip(text, has_characters ? &characters : NULL, true, true);
    }
    *out = (struct sw_jinja_value){.kind = SW_JINJA_STRING, .string = text};
    return SW_OK;
}

sw_status sw_jinja_filter(struct sw_jinja_run *run, int filter, struct sw_jinja_value value,
                          const struct sw_jinja_arguments *arguments, struct sw_jinja_value *out) {
    struct sw_jinja_bound_arguments bound;
    const struct sw_jinja_list *list;
    int64_t length;
    if (filter == MAP)
        return filter_map(run, value, arguments, out);
    if (filter > MAP)
        return filter_select(run, filter, value, arguments, out);
    SW_TRY(sw_jinja_bind(&filters[filter], arguments, &bound));
    switch (filter) {
    case LENGTH:
    case COUNT:
        SW_TRY(sw_jinja_length(run, value, &length));
        *out = sw_jinja_int(length);
        return SW_OK;
    case TOJSON: return filter_tojson(run, value, &bound, out);
    case JOIN: return filter_join(run, value, &bound, out);
    case DEFAULT:
    case DEFAULT_SHORT:
        *out = value;
        if (value.kind == SW_JINJA_UNDEFINED ||
            (bound.given[1] && sw_jinja_truth(bound.value[1]) && !sw_jinja_truth(value)))
            *out = bound.given[0] ? bound.value[0] : sw_jinja_string((struct sw_text){"", 0});
        return SW_OK;
    case FIRST:
    case LAST: return filter_ends(run, filter == LAST, value, out);
    case LIST:
        SW_TRY(sw_jinja_iterate(run, value, &list));
        *out = (struct sw_jinja_value){.kind = SW_JINJA_LIST, .list = (struct sw_jinja_list *)(uintptr_t)list};
        return SW_OK;
    case INT: return filter_int(value, &bound, out);
    case ITEMS: return filter_items(run, value, out);
    case DICTSORT: return filter_dictsort(run, value, &bound, out);
    case REVERSE: return filter_reverse(run, value, out);
    default: return filter_text(run, filter, value, &bound, out);
    }
}
