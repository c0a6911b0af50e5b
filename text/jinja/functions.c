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

/* Makes a dict or a namespace of another one, perhaps, and of arguments with names. */
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

/* Methods that Python has and this subset lacks: they are there, and refused when they are called. */
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

bool sw_jinja_has_method(sw_jinja_kind kind, struct sw_text name) {
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

/* Cuts a string at white space: its words, of which the last is the rest where `most` cuts were made. */
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

/* Tells whether the filter title begins a word behind this character. */
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

/* Joins strings, and nothing else, as Python's join does. */
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

/* Methods that take one string, with which they look at `string`. */
static sw_status call_with_string(struct sw_jinja_run *run, int method, struct sw_jinja_string string,
                                  struct sw_jinja_string with, struct sw_jinja_value *out) {
    const struct sw_text text = sw_jinja_text_of(string);
    const bool begins = begins_at(string, 0, with);
    const bool ends = string.bytes >= with.bytes && begins_at(string, string.bytes - with.bytes, with);
    size_t at;
    SW_TRY(sw_jinja_charge(run, string.bytes));
    if (method == RFIND) /* each place is compared anew */
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
