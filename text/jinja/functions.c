/* Global functions, and methods of strings and dicts. */
#include "text/jinja/run.h"

#include <string.h>

enum { MOST_FACTOR = 1 << 20 }; /* keeps products of lengths within 64 bits */
enum { MOST_RANGE = 100000 };   /* the most that Jinja's sandbox allows */

static const struct sw_jinja_signature functions[] = {
    {"raise_exception", {"message"}, 1}, {"namespace", {NULL}, 0}, {"dict", {NULL}, 0}, {"range", {NULL}, 0}};
enum { RAISE_EXCEPTION, NAMESPACE, DICT, RANGE, FUNCTIONS };

int sw_jinja_find_function(struct sw_text name) {
    for (int i = 0; i < FUNCTIONS; i++)
        if (sw_jinja_is(name, functions[i].name))
            return i;
    return -1;
}

static sw_status raise_exception(const struct sw_jinja_arguments *arguments) {
    struct sw_jinja_bound_arguments bound;
    SW_TRY(sw_jinja_bind(&functions[RAISE_EXCEPTION], arguments, &bound));
    if (bound.value[0].kind != SW_JINJA_STRING)
        return sw_jinja_bad_kind("raise_exception with", bound.value[0]);
    const struct sw_jinja_string message = bound.value[0].string;
    return sw_fail(SW_ERR_ARG, "the chat template refuses this chat: %.*s",
                   message.bytes < 300 ? (int)message.bytes : 300, message.data);
}

/* Makes a dict or a namespace from an optional one and from named arguments. */
static sw_status make_dict(struct sw_jinja_run *run, sw_jinja_kind kind, const struct sw_jinja_arguments *arguments,
                           struct sw_jinja_value *out) {
    SW_TRY(sw_jinja_new_dict(&run->arena, kind, arguments->named->count, out));
    if (arguments->count > 1 || (arguments->count == 1 && arguments->value[0].kind != SW_JINJA_DICT))
        return sw_fail(SW_ERR_UNSUPPORTED, "a dict of anything but a dict and names is not supported");
    const struct sw_jinja_dict *from[] = {arguments->count == 1 ? arguments->value[0].dict : NULL, arguments->named};
    for (int i = 0; i < 2; i++)
        for (size_t m = 0; from[i] != NULL && m < from[i]->count; m++) {
            SW_TRY(sw_jinja_charge(run, out->dict->count));
            SW_TRY(sw_jinja_dict_set(&run->arena, out->dict, from[i]->key[m], from[i]->item[m]));
        }
    return SW_OK;
}

static sw_status make_range(struct sw_jinja_run *run, const struct sw_jinja_arguments *arguments,
                            struct sw_jinja_value *out) {
    int64_t bound[3] = {0, 0, 1};
    if (arguments->count < 1 || arguments->count > 3 || arguments->named->count > 0)
        return sw_fail(SW_ERR_ARG, "range takes one to three numbers");
    for (size_t i = 0; i < arguments->count; i++) {
        if (arguments->value[i].kind != SW_JINJA_INT)
            return sw_jinja_bad_kind("range takes numbers, not", arguments->value[i]);
        bound[arguments->count == 1 ? 1 : i] = arguments->value[i].number;
    }
    if (bound[2] == 0)
        return sw_fail(SW_ERR_ARG, "range has the step 0");
    const int64_t low = bound[2] > 0 ? bound[0] : bound[1], high = bound[2] > 0 ? bound[1] : bound[0];
    const uint64_t size = bound[2] > 0 ? (uint64_t)bound[2] : -(uint64_t)bound[2];
    const uint64_t count = high > low ? ((uint64_t)high - (uint64_t)low - 1) / size + 1 : 0;
    if (count > MOST_RANGE)
        return sw_fail(SW_ERR_UNSUPPORTED, "range has more than %d numbers", MOST_RANGE);
    SW_TRY(sw_jinja_charge(run, count * sizeof *out));
    SW_TRY(sw_jinja_new_list(&run->arena, SW_JINJA_LIST, count, out));
    for (uint64_t i = 0; i < count; i++)
        out->list->item[i] = sw_jinja_int(bound[0] + (int64_t)i * bound[2]);
    return SW_OK;
}

sw_status sw_jinja_call_function(struct sw_jinja_run *run, int function, const struct sw_jinja_arguments *arguments,
                                 struct sw_jinja_value *out) {
    switch (function) {
    case RAISE_EXCEPTION: return raise_exception(arguments);
    case RANGE: return make_range(run, arguments, out);
    default: return make_dict(run, function == DICT ? SW_JINJA_DICT : SW_JINJA_NAMESPACE, arguments, out);
    }
}

static const struct sw_jinja_signature methods[] = {
    {"strip", {"chars"}, 0},
    {"lstrip", {"chars"}, 0},
    {"rstrip", {"chars"}, 0},
    {"split", {"sep", "maxsplit"}, 0},
    {"startswith", {"prefix"}, 1},
    {"endswith", {"suffix"}, 1},
    {"removeprefix", {"prefix"}, 1},
    {"removesuffix", {"suffix"}, 1},
    {"replace", {"old", "new", "count"}, 2},
    {"join", {"iterable"}, 1},
    {"find", {"sub"}, 1},
    {"rfind", {"sub"}, 1},
    {"count", {"sub"}, 1},
    {"upper", {NULL}, 0},
    {"lower", {NULL}, 0},
    {"capitalize", {NULL}, 0},
};
enum {
    STRIP,
    LSTRIP,
    RSTRIP,
    SPLIT,
    STARTSWITH,
    ENDSWITH,
    REMOVEPREFIX,
    REMOVESUFFIX,
    REPLACE,
    JOIN,
    FIND,
    RFIND,
    COUNT,
    UPPER,
    LOWER,
    CAPITALIZE,
    METHODS
};

/* Methods that Python has and this subset lacks: they exist, and are refused when called. */
static const char *const other_methods[] = {
    "casefold",   "center",  "encode",     "expandtabs", "format",       "format_map", "index",     "isalnum",
    "isalpha",    "isascii", "isdecimal",  "isdigit",    "isidentifier", "islower",    "isnumeric", "isprintable",
    "isspace",    "istitle", "isupper",    "ljust",      "maketrans",    "partition",  "rindex",    "rjust",
    "rpartition", "rsplit",  "splitlines", "swapcase",   "title",        "translate",  "zfill"};
static const char *const dict_methods[] = {"items", "keys",    "values",     "get",    "clear",   "copy",
                                           "pop",   "popitem", "setdefault", "update", "fromkeys"};
static const char *const list_methods[] = {"append", "clear", "copy",   "count",   "extend", "index",
                                           "insert", "pop",   "remove", "reverse", "sort"};

static bool is_among(struct sw_text name, const char *const *names, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (sw_jinja_is(name, names[i]))
            return true;
    return false;
}

static int find_method(struct sw_text name) {
    for (int i = 0; i < METHODS; i++)
        if (sw_jinja_is(name, methods[i].name))
            return i;
    return -1;
}

/* Tells whether values of a kind have a method. */
static bool jinja_has_method(sw_jinja_kind kind, struct sw_text name) {
    switch (kind) {
    case SW_JINJA_STRING:
        return find_method(name) >= 0 || is_among(name, other_methods, sizeof other_methods / sizeof *other_methods);
    case SW_JINJA_DICT: return is_among(name, dict_methods, sizeof dict_methods / sizeof *dict_methods);
    case SW_JINJA_LIST: return is_among(name, list_methods, sizeof list_methods / sizeof *list_methods);
    default: return false;
    }
}

static sw_status need_string(const char *method, struct sw_jinja_value value) {
    return value.kind == SW_JINJA_STRING ? SW_OK : sw_jinja_bad_kind(method, value);
}

static struct sw_jinja_value of_string(struct sw_jinja_string string) {
    return (struct sw_jinja_value){.kind = SW_JINJA_STRING, .string = string};
}

static bool begins_at(struct sw_jinja_string string, size_t at, struct sw_jinja_string with) {
    return string.bytes - at >= with.bytes && (with.bytes == 0 || memcmp(string.data + at, with.data, with.bytes) == 0);
}

/* A list that grows. */
struct list_builder {
    struct sw_jinja_value value;
    size_t room;
};

static sw_status put_item(struct sw_jinja_run *run, struct list_builder *list, struct sw_jinja_string string) {
    if (list->value.list->count == list->room) {
        const size_t count = list->room, room = count * 2 + 8;
        struct sw_jinja_value *grown;
        SW_TRY(sw_jinja_take(&run->arena, room * sizeof *grown, &grown));
        for (size_t i = 0; i < count; i++)
            grown[i] = list->value.list->item[i];
        list->value.list->item = grown;
        list->room = room;
    }
    list->value.list->item[list->value.list->count++] = of_string(string);
    return SW_OK;
}

/* Splits a string at white space into words. After `most` cuts the last word is the rest. */
static sw_status split_words(struct sw_jinja_run *run, struct sw_jinja_string string, int64_t most,
                             struct list_builder *list) {
    for (string = sw_jinja_strip(string, NULL, true, false); string.bytes > 0; most--) {
        if (most == 0)
            return put_item(run, list, sw_jinja_strip(string, NULL, false, true));
        size_t end = 0;
        while (end < string.bytes) {
            const size_t bytes = sw_jinja_char_bytes((struct sw_text){string.data + end, string.bytes - end});
            if (sw_jinja_strip(sw_jinja_part(string, end, bytes), NULL, true, false).bytes == 0)
                break;
            end += bytes;
        }
        SW_TRY(sw_jinja_charge(run, end));
        SW_TRY(put_item(run, list, sw_jinja_part(string, 0, end)));
        string = sw_jinja_strip(sw_jinja_part(string, end, string.bytes - end), NULL, true, false);
    }
    return SW_OK;
}

static sw_status split(struct sw_jinja_run *run, struct sw_jinja_string string,
                       const struct sw_jinja_bound_arguments *bound, struct sw_jinja_value *out) {
    struct list_builder list = {0};
    const bool by_words = !bound->given[0] || bound->value[0].kind == SW_JINJA_NONE;
    int64_t most = bound->given[1] ? bound->value[1].number : -1;
    size_t from = 0;
    if (bound->given[1] && bound->value[1].kind != SW_JINJA_INT)
        return sw_jinja_bad_kind("split makes no cuts by", bound->value[1]);
    SW_TRY(sw_jinja_new_list(&run->arena, SW_JINJA_LIST, 0, &list.value));
    *out = list.value;
    if (by_words)
        return split_words(run, string, most, &list);
    SW_TRY(need_string("split at", bound->value[0]));
    const struct sw_text separator = sw_jinja_text_of(bound->value[0].string);
    if (separator.bytes == 0)
        return sw_fail(SW_ERR_ARG, "split at an empty string");
    for (;; most--) {
        const size_t at = most == 0 ? SIZE_MAX : sw_jinja_find(sw_jinja_text_of(string), separator, from, false);
        const size_t end = at == SIZE_MAX ? string.bytes : at;
        SW_TRY(sw_jinja_charge(run, end - from));
        SW_TRY(put_item(run, &list, sw_jinja_part(string, from, end - from)));
        if (at == SIZE_MAX)
            return SW_OK;
        from = at + separator.bytes;
    }
}

sw_status sw_jinja_replace(struct sw_jinja_run *run, struct sw_jinja_string in, struct sw_jinja_string old,
                           struct sw_jinja_string with, int64_t most, struct sw_jinja_value *out) {
    struct sw_jinja_builder builder = {.arena = &run->arena};
    size_t from = 0;
    if (old.bytes == 0)
        return sw_fail(SW_ERR_UNSUPPORTED, "replace of an empty string is not supported");
    for (; most != 0; most--) {
        const size_t at = sw_jinja_find(sw_jinja_text_of(in), sw_jinja_text_of(old), from, false);
        if (at == SIZE_MAX)
            break;
        SW_TRY(sw_jinja_charge(run, at - from + with.bytes));
        SW_TRY(sw_jinja_build(&builder, sw_jinja_part(in, from, at - from)));
        SW_TRY(sw_jinja_build(&builder, with));
        from = at + old.bytes;
    }
    SW_TRY(sw_jinja_charge(run, in.bytes - from));
    SW_TRY(sw_jinja_build(&builder, sw_jinja_part(in, from, in.bytes - from)));
    *out = sw_jinja_built(&builder);
    return SW_OK;
}

/* Tells whether the filter title begins a word after this character. */
static bool ends_word(char byte) {
    return (byte != '\0' && strchr("-({[<", byte) != NULL) || byte == ' ' || (byte >= '\t' && byte <= '\r') ||
           (byte >= 0x1C && byte <= 0x1F);
}

sw_status sw_jinja_change_case(struct sw_jinja_run *run, struct sw_jinja_string in, const char *name,
                               struct sw_jinja_value *out) {
    char *data;
    SW_TRY(sw_jinja_charge(run, in.bytes));
    SW_TRY(sw_jinja_take(&run->arena, in.bytes, &data));
    for (size_t i = 0; i < in.bytes; i++) {
        const char byte = in.data[i];
        const bool ups = name[0] == 'u' || (name[0] != 'l' && i == 0) || (name[0] == 't' && ends_word(in.data[i - 1]));
        if ((byte & 0x80) != 0)
            return sw_fail(SW_ERR_UNSUPPORTED, "%s of letters beyond ASCII is not supported", name);
        data[i] = byte;
        if (ups && byte >= 'a' && byte <= 'z')
            data[i] = (char)(byte - 'a' + 'A');
        else if (!ups && byte >= 'A' && byte <= 'Z')
            data[i] = (char)(byte - 'A' + 'a');
    }
    *out = of_string((struct sw_jinja_string){.data = data, .marks = in.marks, .bytes = in.bytes});
    return SW_OK;
}

sw_status sw_jinja_join_list(struct sw_jinja_run *run, struct sw_jinja_string between, const struct sw_jinja_list *list,
                             struct sw_jinja_value *out) {
    struct sw_jinja_builder builder = {.arena = &run->arena};
    for (size_t i = 0; i < list->count; i++) {
        struct sw_jinja_string text;
        SW_TRY(sw_jinja_str(&run->arena, list->item[i], &text));
        SW_TRY(sw_jinja_charge(run, text.bytes + between.bytes));
        if (i > 0)
            SW_TRY(sw_jinja_build(&builder, between));
        SW_TRY(sw_jinja_build(&builder, text));
    }
    *out = sw_jinja_built(&builder);
    return SW_OK;
}

/* Joins strings, and refuses other values, as Python's join does. */
static sw_status join(struct sw_jinja_run *run, struct sw_jinja_string between, struct sw_jinja_value of,
                      struct sw_jinja_value *out) {
    const struct sw_jinja_list *list;
    SW_TRY(sw_jinja_iterate(run, of, &list));
    for (size_t i = 0; i < list->count; i++)
        SW_TRY(need_string("join of", list->item[i]));
    return sw_jinja_join_list(run, between, list, out);
}

static sw_status count_in(struct sw_jinja_run *run, struct sw_jinja_string string, struct sw_jinja_string what,
                          struct sw_jinja_value *out) {
    int64_t count = 0;
    if (what.bytes == 0)
        return sw_fail(SW_ERR_UNSUPPORTED, "count of an empty string is not supported");
    SW_TRY(sw_jinja_charge(run, string.bytes));
    for (size_t at = 0; (at = sw_jinja_find(sw_jinja_text_of(string), sw_jinja_text_of(what), at, false)) != SIZE_MAX;
         at += what.bytes)
        count++;
    *out = sw_jinja_int(count);
    return SW_OK;
}

/* Methods of `string` that take one string. */
static sw_status call_with_string(struct sw_jinja_run *run, int method, struct sw_jinja_string string,
                                  struct sw_jinja_string with, struct sw_jinja_value *out) {
    const struct sw_text text = sw_jinja_text_of(string);
    const bool begins = begins_at(string, 0, with);
    const bool ends = string.bytes >= with.bytes && begins_at(string, string.bytes - with.bytes, with);
    size_t at;
    SW_TRY(sw_jinja_charge(run, string.bytes));
    if (method == RFIND) /* each position is compared again */
        SW_TRY(sw_jinja_charge(run, string.bytes * (with.bytes < MOST_FACTOR ? with.bytes : MOST_FACTOR)));
    switch (method) {
    case STARTSWITH: *out = sw_jinja_bool(begins); return SW_OK;
    case ENDSWITH: *out = sw_jinja_bool(ends); return SW_OK;
    case REMOVEPREFIX:
        *out = of_string(begins ? sw_jinja_part(string, with.bytes, string.bytes - with.bytes) : string);
        return SW_OK;
    case REMOVESUFFIX:
        *out = of_string(ends ? sw_jinja_part(string, 0, string.bytes - with.bytes) : string);
        return SW_OK;
    case COUNT: return count_in(run, string, with, out);
    default:
        at = sw_jinja_find(text, sw_jinja_text_of(with), 0, method == RFIND);
        *out = sw_jinja_int(at == SIZE_MAX ? -1 : (int64_t)sw_jinja_chars((struct sw_text){text.data, at}));
        return SW_OK;
    }
}

static sw_status call_string(struct sw_jinja_run *run, int method, struct sw_jinja_string string,
                             const struct sw_jinja_bound_arguments *bound, struct sw_jinja_value *out) {
    const struct sw_jinja_value *first = &bound->value[0];
    const bool strips_all = !bound->given[0] || first->kind == SW_JINJA_NONE;
    struct sw_text characters;
    switch (method) {
    case STRIP:
    case LSTRIP:
    case RSTRIP:
        if (!strips_all)
            SW_TRY(need_string("strip of", *first));
        characters = strips_all ? (struct sw_text){0} : sw_jinja_text_of(first->string);
        SW_TRY(sw_jinja_charge(run, string.bytes));
        SW_TRY(sw_jinja_charge(run, string.bytes * (characters.bytes < MOST_FACTOR ? characters.bytes : MOST_FACTOR)));
        *out = of_string(sw_jinja_strip(string, strips_all ? NULL : &characters, method != RSTRIP, method != LSTRIP));
        return SW_OK;
    case SPLIT: return split(run, string, bound, out);
    case REPLACE:
        SW_TRY(need_string("replace of", *first));
        SW_TRY(need_string("replace by", bound->value[1]));
        if (bound->given[2] && bound->value[2].kind != SW_JINJA_INT)
            return sw_jinja_bad_kind("replace is not counted by", bound->value[2]);
        return sw_jinja_replace(run, string, first->string, bound->value[1].string,
                                bound->given[2] ? bound->value[2].number : -1, out);
    case JOIN: return join(run, string, *first, out);
    case UPPER:
    case LOWER:
    case CAPITALIZE: return sw_jinja_change_case(run, string, methods[method].name, out);
    default: break;
    }
    SW_TRY(need_string(methods[method].name, *first));
    return call_with_string(run, method, string, first->string, out);
}

static sw_status call_dict(struct sw_jinja_run *run, const struct sw_jinja_method *method,
                           const struct sw_jinja_arguments *arguments, struct sw_jinja_value *out) {
    static const struct sw_jinja_signature get = {"get", {"key", "default"}, 1}, none = {"items", {NULL}, 0};
    const struct sw_jinja_dict *dict = method->self.dict;
    struct sw_jinja_bound_arguments bound;
    const bool items = sw_jinja_is(method->name, "items"), keys = sw_jinja_is(method->name, "keys");
    if (sw_jinja_is(method->name, "get")) {
        SW_TRY(sw_jinja_bind(&get, arguments, &bound));
        const struct sw_jinja_value *found = sw_jinja_dict_get(dict, bound.value[0]);
        *out = found != NULL    ? *found
               : bound.given[1] ? bound.value[1]
                                : (struct sw_jinja_value){.kind = SW_JINJA_NONE};
        return SW_OK;
    }
    if (!items && !keys && !sw_jinja_is(method->name, "values"))
        return sw_fail(SW_ERR_UNSUPPORTED, "the method '%.*s' of a dict is not supported", (int)method->name.bytes,
                       method->name.data);
    SW_TRY(sw_jinja_bind(&none, arguments, &bound));
    SW_TRY(sw_jinja_charge(run, dict->count * sizeof *out));
    SW_TRY(sw_jinja_new_list(&run->arena, SW_JINJA_LIST, dict->count, out));
    for (size_t i = 0; i < dict->count; i++) {
        struct sw_jinja_value *item = &out->list->item[i];
        *item = keys ? dict->key[i] : dict->item[i];
        if (!items)
            continue;
        SW_TRY(sw_jinja_new_list(&run->arena, SW_JINJA_TUPLE, 2, item));
        item->list->item[0] = dict->key[i];
        item->list->item[1] = dict->item[i];
    }
    return SW_OK;
}

sw_status sw_jinja_call_method(struct sw_jinja_run *run, const struct sw_jinja_method *method,
                               const struct sw_jinja_arguments *arguments, struct sw_jinja_value *out) {
    struct sw_jinja_bound_arguments bound;
    if (method->self.kind == SW_JINJA_DICT)
        return call_dict(run, method, arguments, out);
    const int number = method->self.kind == SW_JINJA_STRING ? find_method(method->name) : -1;
    if (number < 0)
        return sw_fail(SW_ERR_UNSUPPORTED, "the method '%.*s' of %s is not supported", (int)method->name.bytes,
                       method->name.data, sw_jinja_kind_name(method->self.kind));
    SW_TRY(sw_jinja_bind(&methods[number], arguments, &bound));
    return call_string(run, number, method->self.string, &bound, out);
}

/* Operations on values. */

/* Members of values by name and by number. */

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
    if (jinja_has_method(of.kind, name))
        return bind_method(run, of, name, out);
    if (of.kind == SW_JINJA_DICT || of.kind == SW_JINJA_NAMESPACE)
        member = sw_jinja_dict_named(of.dict, name);
    *out = member != NULL ? *member : sw_jinja_undefined(name);
    return SW_OK;
}

/* Returns the index in a list of `count` of a number that may count from the end, or SIZE_MAX. */
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

static bool as_number(struct sw_jinja_value value, int64_t *out) {
    *out = value.kind == SW_JINJA_BOOL ? value.truth : value.kind == SW_JINJA_INT ? value.number : 0;
    return value.kind == SW_JINJA_BOOL || value.kind == SW_JINJA_INT;
}

static sw_status calculate(int operation, int64_t left, int64_t right, struct sw_jinja_value *out) {
    const bool divides = operation == SW_JINJA_DIVIDE_DOWN || operation == SW_JINJA_MODULO;
    bool overflows = divides && right == -1 && left == INT64_MIN;
    int64_t result = 0;
    if (divides && right == 0)
        return sw_fail(SW_ERR_ARG, "a division by zero");
    if (operation == SW_JINJA_ADD)
        overflows = __builtin_add_overflow(left, right, &result);
    else if (operation == SW_JINJA_SUBTRACT)
        overflows = __builtin_sub_overflow(left, right, &result);
    else if (operation == SW_JINJA_MULTIPLY)
        overflows = __builtin_mul_overflow(left, right, &result);
    else if (!overflows) {
        /* Python rounds down, C towards zero. */
        const int64_t rest = left % right;
        const bool is_up = rest != 0 && (rest < 0) != (right < 0);
        result = operation == SW_JINJA_MODULO ? rest + (is_up ? right : 0) : left / right - is_up;
    }
    if (overflows)
        return sw_fail(SW_ERR_UNSUPPORTED, "numbers of more than 64 bits are not supported");
    *out = sw_jinja_int(result);
    return SW_OK;
}

static sw_status add_lists(struct sw_jinja_run *run, struct sw_jinja_value left, struct sw_jinja_value right,
                           struct sw_jinja_value *out) {
    const struct sw_jinja_list *first = left.list, *second = right.list;
    SW_TRY(sw_jinja_charge(run, first->count + second->count));
    SW_TRY(sw_jinja_new_list(&run->arena, left.kind, first->count + second->count, out));
    for (size_t i = 0; i < out->list->count; i++)
        out->list->item[i] = i < first->count ? first->item[i] : second->item[i - first->count];
    return SW_OK;
}

static sw_status repeat(struct sw_jinja_run *run, struct sw_jinja_string string, int64_t times,
                        struct sw_jinja_value *out) {
    struct sw_jinja_builder builder = {.arena = &run->arena};
    for (int64_t i = 0; i < times && string.bytes > 0; i++) {
        SW_TRY(sw_jinja_charge(run, string.bytes));
        SW_TRY(sw_jinja_build(&builder, string));
    }
    *out = sw_jinja_built(&builder);
    return SW_OK;
}

sw_status sw_jinja_calculate(struct sw_jinja_run *run, int operation, struct sw_jinja_value left,
                             struct sw_jinja_value right, struct sw_jinja_value *out) {
    static const char *const names[] = {"+", "-", "*", "//", "%"};
    int64_t l, r;
    const bool left_is_number = as_number(left, &l), right_is_number = as_number(right, &r);
    if (left_is_number && right_is_number)
        return calculate(operation, l, r, out);
    if (operation == SW_JINJA_ADD && left.kind == right.kind && left.kind == SW_JINJA_STRING) {
        SW_TRY(sw_jinja_charge(run, left.string.bytes + right.string.bytes));
        return sw_jinja_join(&run->arena, left.string, right.string, out);
    }
    if (operation == SW_JINJA_ADD && left.kind == right.kind &&
        (left.kind == SW_JINJA_LIST || left.kind == SW_JINJA_TUPLE))
        return add_lists(run, left, right, out);
    if (operation == SW_JINJA_MULTIPLY && left.kind == SW_JINJA_STRING && right_is_number)
        return repeat(run, left.string, r, out);
    if (operation == SW_JINJA_MULTIPLY && right.kind == SW_JINJA_STRING && left_is_number)
        return repeat(run, right.string, l, out);
    if (left.kind == SW_JINJA_UNDEFINED || right.kind == SW_JINJA_UNDEFINED)
        return sw_jinja_bad_kind("", left.kind == SW_JINJA_UNDEFINED ? left : right);
    return sw_fail(operation == SW_JINJA_ADD || operation == SW_JINJA_SUBTRACT ? SW_ERR_ARG : SW_ERR_UNSUPPORTED,
                   "%s %s %s", sw_jinja_kind_name(left.kind), names[operation], sw_jinja_kind_name(right.kind));
}

static sw_status contains(struct sw_jinja_run *run, struct sw_jinja_value in, struct sw_jinja_value what, bool *out) {
    const struct sw_jinja_list *list;
    size_t bytes;
    *out = false;
    if (in.kind == SW_JINJA_STRING && what.kind != SW_JINJA_STRING)
        return sw_jinja_bad_kind("a string has no", what);
    if (in.kind == SW_JINJA_STRING) {
        SW_TRY(sw_jinja_charge(run, in.string.bytes));
        *out = sw_jinja_find(sw_jinja_text_of(in.string), sw_jinja_text_of(what.string), 0, false) != SIZE_MAX;
        return SW_OK;
    }
    SW_TRY(sw_jinja_iterate(run, in, &list));
    for (size_t i = 0; i < list->count && !*out; i++) {
        SW_TRY(sw_jinja_equal(list->item[i], what, out, &bytes));
        SW_TRY(sw_jinja_charge(run, bytes));
    }
    return SW_OK;
}

/* Returns a negative number, 0 or a positive one, as `left` is less than, equal to or greater than `right`. */
static sw_status order(struct sw_jinja_value left, struct sw_jinja_value right, int *out) {
    int64_t l, r;
    if (as_number(left, &l) && as_number(right, &r)) {
        *out = (l > r) - (l < r);
        return SW_OK;
    }
    if (left.kind != SW_JINJA_STRING || right.kind != SW_JINJA_STRING)
        return sw_jinja_bad_kind("no order of", left.kind == SW_JINJA_STRING ? right : left);
    /* UTF-8 bytes sort like code points. */
    const size_t shared = left.string.bytes < right.string.bytes ? left.string.bytes : right.string.bytes;
    *out = shared > 0 ? memcmp(left.string.data, right.string.data, shared) : 0;
    if (*out == 0)
        *out = (left.string.bytes > right.string.bytes) - (left.string.bytes < right.string.bytes);
    return SW_OK;
}

sw_status sw_jinja_compare(struct sw_jinja_run *run, int operation, struct sw_jinja_value left,
                           struct sw_jinja_value right, bool *out) {
    int how = 0;
    size_t bytes = 0;
    if (operation == SW_JINJA_EQUAL || operation == SW_JINJA_UNEQUAL)
        SW_TRY(sw_jinja_equal(left, right, out, &bytes));
    else if (operation == SW_JINJA_IN || operation == SW_JINJA_NOT_IN)
        SW_TRY(contains(run, right, left, out));
    else
        SW_TRY(order(left, right, &how));
    SW_TRY(sw_jinja_charge(run, bytes));
    switch (operation) {
    case SW_JINJA_UNEQUAL:
    case SW_JINJA_NOT_IN: *out = !*out; break;
    case SW_JINJA_LESS: *out = how < 0; break;
    case SW_JINJA_LESS_OR_EQUAL: *out = how <= 0; break;
    case SW_JINJA_GREATER: *out = how > 0; break;
    case SW_JINJA_GREATER_OR_EQUAL: *out = how >= 0; break;
    default: break;
    }
    return SW_OK;
}

/* Tests: what follows `is`. */

typedef enum {
    DEFINED,
    UNDEFINED,
    NONE,
    STRING,
    MAPPING,
    ITERABLE,
    SEQUENCE,
    BOOLEAN,
    NUMBER,
    INTEGER,
    FLOAT,
    TRUE,
    FALSE,
    ODD,
    EVEN,
    COMPARISON /* compares with the argument */
} test_kind;

static const struct test {
    struct sw_jinja_signature signature;
    test_kind kind;
    int operation;
} tests[] = {
    {{"defined", {NULL}, 0}, DEFINED, 0},
    {{"undefined", {NULL}, 0}, UNDEFINED, 0},
    {{"none", {NULL}, 0}, NONE, 0},
    {{"string", {NULL}, 0}, STRING, 0},
    {{"mapping", {NULL}, 0}, MAPPING, 0},
    {{"iterable", {NULL}, 0}, ITERABLE, 0},
    {{"sequence", {NULL}, 0}, SEQUENCE, 0},
    {{"boolean", {NULL}, 0}, BOOLEAN, 0},
    {{"number", {NULL}, 0}, NUMBER, 0},
    {{"integer", {NULL}, 0}, INTEGER, 0},
    {{"float", {NULL}, 0}, FLOAT, 0},
    {{"true", {NULL}, 0}, TRUE, 0},
    {{"false", {NULL}, 0}, FALSE, 0},
    {{"odd", {NULL}, 0}, ODD, 0},
    {{"even", {NULL}, 0}, EVEN, 0},
    {{"equalto", {"b"}, 1}, COMPARISON, SW_JINJA_EQUAL},
    {{"eq", {"b"}, 1}, COMPARISON, SW_JINJA_EQUAL},
    {{"==", {"b"}, 1}, COMPARISON, SW_JINJA_EQUAL},
    {{"ne", {"b"}, 1}, COMPARISON, SW_JINJA_UNEQUAL},
    {{"!=", {"b"}, 1}, COMPARISON, SW_JINJA_UNEQUAL},
    {{"lt", {"b"}, 1}, COMPARISON, SW_JINJA_LESS},
    {{"lessthan", {"b"}, 1}, COMPARISON, SW_JINJA_LESS},
    {{"le", {"b"}, 1}, COMPARISON, SW_JINJA_LESS_OR_EQUAL},
    {{"gt", {"b"}, 1}, COMPARISON, SW_JINJA_GREATER},
    {{"greaterthan", {"b"}, 1}, COMPARISON, SW_JINJA_GREATER},
    {{"ge", {"b"}, 1}, COMPARISON, SW_JINJA_GREATER_OR_EQUAL},
    {{"in", {"seq"}, 1}, COMPARISON, SW_JINJA_IN},
};
enum { TESTS = sizeof tests / sizeof tests[0] };

int sw_jinja_find_test(struct sw_text name) {
    for (int i = 0; i < TESTS; i++)
        if (sw_jinja_is(name, tests[i].signature.name))
            return i;
    return -1;
}

static bool is_list(struct sw_jinja_value value) {
    return value.kind == SW_JINJA_LIST || value.kind == SW_JINJA_TUPLE;
}

static bool is_sequence(struct sw_jinja_value value) {
    return is_list(value) || value.kind == SW_JINJA_STRING || value.kind == SW_JINJA_DICT ||
           value.kind == SW_JINJA_UNDEFINED;
}

static sw_status is_odd(struct sw_jinja_value value, bool *out) {
    if (value.kind != SW_JINJA_INT && value.kind != SW_JINJA_BOOL)
        return sw_jinja_bad_kind("neither odd nor even is", value);
    *out = value.kind == SW_JINJA_BOOL ? value.truth : value.number % 2 != 0;
    return SW_OK;
}

sw_status sw_jinja_test(struct sw_jinja_run *run, int test, struct sw_jinja_value value,
                        const struct sw_jinja_arguments *arguments, bool *out) {
    struct sw_jinja_bound_arguments bound;
    SW_TRY(sw_jinja_bind(&tests[test].signature, arguments, &bound));
    switch (tests[test].kind) {
    case DEFINED: *out = value.kind != SW_JINJA_UNDEFINED; return SW_OK;
    case UNDEFINED: *out = value.kind == SW_JINJA_UNDEFINED; return SW_OK;
    case NONE: *out = value.kind == SW_JINJA_NONE; return SW_OK;
    case STRING: *out = value.kind == SW_JINJA_STRING; return SW_OK;
    case MAPPING: *out = value.kind == SW_JINJA_DICT; return SW_OK;
    case ITERABLE: *out = is_sequence(value) || value.kind == SW_JINJA_GENERATOR; return SW_OK;
    case SEQUENCE: *out = is_sequence(value); return SW_OK;
    case BOOLEAN: *out = value.kind == SW_JINJA_BOOL; return SW_OK;
    case NUMBER: *out = value.kind == SW_JINJA_INT || value.kind == SW_JINJA_BOOL; return SW_OK;
    case INTEGER: *out = value.kind == SW_JINJA_INT; return SW_OK;
    case FLOAT: *out = false; return SW_OK;
    case TRUE: *out = value.kind == SW_JINJA_BOOL && value.truth; return SW_OK;
    case FALSE: *out = value.kind == SW_JINJA_BOOL && !value.truth; return SW_OK;
    case ODD: return is_odd(value, out);
    case EVEN:
        SW_TRY(is_odd(value, out));
        *out = !*out;
        return SW_OK;
    case COMPARISON: break;
    }
    return sw_jinja_compare(run, tests[test].operation, value, bound.value[0], out);
}
