#include "text/jinja/value.h"

#include "text/jinja/run.h"
#include "text/unicode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Strings of templates: parts, joins, and Python's methods, which count characters and not bytes. */

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

/* Python's str.isspace, which strip uses: the property White_Space and the separators U+001C to U+001F. */
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

enum { BLOCK_BYTES = 32 << 10, ALIGNMENT = 16, MOST_NESTED = 100, MOST_COMPARED = 1 << 20 };

struct sw_jinja_block {
    struct sw_jinja_block *next;
    size_t used, room;
    _Alignas(ALIGNMENT) char data[];
};

sw_status sw_jinja_take(struct sw_jinja_arena *arena, size_t bytes, void *out) {
    struct sw_jinja_block *block = arena->block;
    if (bytes > arena->most - arena->used)
        return sw_fail(SW_ERR_UNSUPPORTED, "the chat template needs more than %zu MiB of memory", arena->most >> 20);
    bytes = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (block == NULL || block->room - block->used < bytes) {
        const size_t room = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES;
        block = calloc(1, sizeof *block + room);
        if (block == NULL)
            return sw_fail(SW_ERR_NOMEM, "no memory for a chat template");
        block->room = room;
        block->next = arena->block;
        arena->block = block;
    }
    void *taken = block->data + block->used;
    block->used += bytes;
    arena->used += bytes < arena->most - arena->used ? bytes : arena->most - arena->used;
    memcpy(out, &taken, sizeof taken);
    return SW_OK;
}

void sw_jinja_arena_release(struct sw_jinja_arena *arena) {
    while (arena->block != NULL) {
        struct sw_jinja_block *next = arena->block->next;
        free(arena->block);
        arena->block = next;
    }
    arena->used = 0;
}

struct sw_jinja_value sw_jinja_bool(bool truth) {
    return (struct sw_jinja_value){.kind = SW_JINJA_BOOL, .truth = truth};
}

struct sw_jinja_value sw_jinja_int(int64_t number) {
    return (struct sw_jinja_value){.kind = SW_JINJA_INT, .number = number};
}

struct sw_jinja_value sw_jinja_string(struct sw_text text) {
    return (struct sw_jinja_value){.kind = SW_JINJA_STRING, .string = {.data = text.data, .bytes = text.bytes}};
}

struct sw_jinja_value sw_jinja_undefined(struct sw_text name) {
    return (struct sw_jinja_value){.kind = SW_JINJA_UNDEFINED, .string = {.data = name.data, .bytes = name.bytes}};
}

sw_status sw_jinja_new_list(struct sw_jinja_arena *arena, sw_jinja_kind kind, size_t count,
                            struct sw_jinja_value *out) {
    struct sw_jinja_list *list;
    SW_TRY(sw_jinja_take(arena, sizeof *list, &list));
    SW_TRY(sw_jinja_take(arena, count * sizeof *list->item, &list->item));
    list->count = count;
    *out = (struct sw_jinja_value){.kind = kind, .list = list};
    return SW_OK;
}

sw_status sw_jinja_new_dict(struct sw_jinja_arena *arena, sw_jinja_kind kind, size_t room, struct sw_jinja_value *out) {
    struct sw_jinja_dict *dict;
    SW_TRY(sw_jinja_take(arena, sizeof *dict, &dict));
    SW_TRY(sw_jinja_take(arena, room * sizeof *dict->key, &dict->key));
    SW_TRY(sw_jinja_take(arena, room * sizeof *dict->item, &dict->item));
    dict->room = room;
    *out = (struct sw_jinja_value){.kind = kind, .dict = dict};
    return SW_OK;
}

static sw_status grow(struct sw_jinja_arena *arena, struct sw_jinja_dict *dict) {
    const size_t room = dict->room * 2 + 4;
    struct sw_jinja_value *key, *item;
    SW_TRY(sw_jinja_take(arena, room * sizeof *key, &key));
    SW_TRY(sw_jinja_take(arena, room * sizeof *item, &item));
    for (size_t i = 0; i < dict->count; i++) {
        key[i] = dict->key[i];
        item[i] = dict->item[i];
    }
    dict->key = key;
    dict->item = item;
    dict->room = room;
    return SW_OK;
}

static bool same_key(struct sw_jinja_value left, struct sw_jinja_value right) {
    if (left.kind != right.kind)
        return false;
    if (left.kind == SW_JINJA_INT)
        return left.number == right.number;
    return left.kind == SW_JINJA_STRING && left.string.bytes == right.string.bytes &&
           (left.string.bytes == 0 || memcmp(left.string.data, right.string.data, left.string.bytes) == 0);
}

const struct sw_jinja_value *sw_jinja_dict_get(const struct sw_jinja_dict *dict, struct sw_jinja_value key) {
    for (size_t i = 0; i < dict->count; i++)
        if (same_key(dict->key[i], key))
            return &dict->item[i];
    return NULL;
}

const struct sw_jinja_value *sw_jinja_dict_named(const struct sw_jinja_dict *dict, struct sw_text name) {
    return sw_jinja_dict_get(dict, sw_jinja_string(name));
}

sw_status sw_jinja_dict_set(struct sw_jinja_arena *arena, struct sw_jinja_dict *dict, struct sw_jinja_value key,
                            struct sw_jinja_value item) {
    for (size_t i = 0; i < dict->count; i++)
        if (same_key(dict->key[i], key)) {
            dict->item[i] = item;
            return SW_OK;
        }
    if (dict->count == SW_JINJA_MOST_MEMBERS)
        return sw_fail(SW_ERR_UNSUPPORTED, "a dict has more than %d members", SW_JINJA_MOST_MEMBERS);
    if (dict->count == dict->room)
        SW_TRY(grow(arena, dict));
    dict->key[dict->count] = key;
    dict->item[dict->count++] = item;
    return SW_OK;
}

const char *sw_jinja_kind_name(sw_jinja_kind kind) {
    static const char *const names[] = {
        "an undefined value", "none",   "a boolean",   "a number", "a string", "a list",     "a tuple",
        "a generator",        "a dict", "a namespace", "a loop",   "a macro",  "a function", "a method"};
    return names[kind];
}

bool sw_jinja_truth(struct sw_jinja_value value) {
    switch (value.kind) {
    case SW_JINJA_UNDEFINED:
    case SW_JINJA_NONE: return false;
    case SW_JINJA_BOOL: return value.truth;
    case SW_JINJA_INT: return value.number != 0;
    case SW_JINJA_STRING: return value.string.bytes > 0;
    case SW_JINJA_LIST:
    case SW_JINJA_TUPLE: return value.list->count > 0;
    case SW_JINJA_DICT: return value.dict->count > 0;
    default: return true;
    }
}

/* The depth of a comparison, and how many values it may still look at: a list may have one member many times. */
struct comparison {
    int depth, left;
    size_t bytes; /* bytes of strings that were compared */
};

static sw_status equal(struct sw_jinja_value left, struct sw_jinja_value right, struct comparison *c, bool *out);

static sw_status equal_lists(const struct sw_jinja_list *left, const struct sw_jinja_list *right, struct comparison *c,
                             bool *out) {
    *out = left->count == right->count;
    for (size_t i = 0; *out && i < left->count; i++)
        SW_TRY(equal(left->item[i], right->item[i], c, out));
    return SW_OK;
}

static sw_status equal_dicts(const struct sw_jinja_dict *left, const struct sw_jinja_dict *right, struct comparison *c,
                             bool *out) {
    *out = left->count == right->count;
    for (size_t i = 0; *out && i < left->count; i++) {
        const struct sw_jinja_value *other = sw_jinja_dict_get(right, left->key[i]);
        *out = other != NULL;
        if (*out)
            SW_TRY(equal(left->item[i], *other, c, out));
    }
    return SW_OK;
}

static bool is_number(struct sw_jinja_value value) {
    return value.kind == SW_JINJA_INT || value.kind == SW_JINJA_BOOL;
}

static sw_status equal_members(struct sw_jinja_value left, struct sw_jinja_value right, struct comparison *c,
                               bool *out) {
    if (c->depth++ > MOST_NESTED)
        return sw_fail(SW_ERR_UNSUPPORTED, "values are nested more than %d deep", MOST_NESTED);
    SW_TRY(left.kind == SW_JINJA_DICT ? equal_dicts(left.dict, right.dict, c, out)
                                      : equal_lists(left.list, right.list, c, out));
    c->depth--;
    return SW_OK;
}

static sw_status equal(struct sw_jinja_value left, struct sw_jinja_value right, struct comparison *c, bool *out) {
    if (c->left-- == 0)
        return sw_fail(SW_ERR_UNSUPPORTED, "a comparison looks at more than %d values", MOST_COMPARED);
    *out = false;
    if (is_number(left) && is_number(right)) {
        const int64_t l = left.kind == SW_JINJA_BOOL ? left.truth : left.number;
        *out = l == (right.kind == SW_JINJA_BOOL ? right.truth : right.number);
        return SW_OK;
    }
    if (left.kind != right.kind)
        return SW_OK;
    switch (left.kind) {
    case SW_JINJA_UNDEFINED:
    case SW_JINJA_NONE: *out = true; return SW_OK;
    case SW_JINJA_STRING:
        c->bytes += left.string.bytes;
        *out = same_key(left, right);
        return SW_OK;
    case SW_JINJA_LIST:
    case SW_JINJA_TUPLE:
    case SW_JINJA_DICT: return equal_members(left, right, c, out);
    case SW_JINJA_FUNCTION: *out = left.function == right.function; return SW_OK;
    default: *out = left.dict == right.dict; return SW_OK;
    }
}

sw_status sw_jinja_equal(struct sw_jinja_value left, struct sw_jinja_value right, bool *out, size_t *out_bytes) {
    struct comparison comparison = {.left = MOST_COMPARED};
    SW_TRY(equal(left, right, &comparison, out));
    *out_bytes = comparison.bytes + (size_t)(MOST_COMPARED - comparison.left) * sizeof left;
    return SW_OK;
}

sw_status sw_jinja_str(struct sw_jinja_arena *arena, struct sw_jinja_value value, struct sw_jinja_string *out) {
    enum { MOST_DIGITS = 24 };
    char *digits;
    switch (value.kind) {
    case SW_JINJA_UNDEFINED: *out = (struct sw_jinja_string){.data = ""}; return SW_OK;
    case SW_JINJA_NONE: *out = sw_jinja_string((struct sw_text){"None", 4}).string; return SW_OK;
    case SW_JINJA_STRING: *out = value.string; return SW_OK;
    case SW_JINJA_BOOL:
        *out = sw_jinja_string(value.truth ? (struct sw_text){"True", 4} : (struct sw_text){"False", 5}).string;
        return SW_OK;
    case SW_JINJA_INT:
        SW_TRY(sw_jinja_take(arena, MOST_DIGITS, &digits));
        (void)snprintf(digits, MOST_DIGITS, "%lld", (long long)value.number);
        *out = sw_jinja_string((struct sw_text){digits, strlen(digits)}).string;
        return SW_OK;
    default: return sw_fail(SW_ERR_UNSUPPORTED, "%s as text is not supported", sw_jinja_kind_name(value.kind));
    }
}

sw_status sw_jinja_bad_kind(const char *what, struct sw_jinja_value value) {
    if (value.kind == SW_JINJA_UNDEFINED)
        return sw_fail(SW_ERR_ARG, "'%.*s' is undefined", value.string.bytes < 40 ? (int)value.string.bytes : 40,
                       value.string.data);
    return sw_fail(SW_ERR_ARG, "%s %s", what, sw_jinja_kind_name(value.kind));
}

/* Counts steps, binds arguments by name, and lists all members of a value. */

enum { BYTES_A_STEP = 64 };

sw_status sw_jinja_charge(struct sw_jinja_run *run, size_t amount) {
    run->steps -= 1 + (int64_t)(amount / BYTES_A_STEP);
    return run->steps > 0
               ? SW_OK
               : sw_fail(SW_ERR_UNSUPPORTED, "the chat template needs more than %d steps", SW_JINJA_MOST_STEPS);
}

sw_status sw_jinja_bind(const struct sw_jinja_signature *signature, const struct sw_jinja_arguments *arguments,
                        struct sw_jinja_bound_arguments *out) {
    size_t named = 0, i = 0;
    *out = (struct sw_jinja_bound_arguments){0};
    for (; i < SW_JINJA_MOST_PARAMETERS && signature->parameter[i] != NULL; i++) {
        const struct sw_text name = {signature->parameter[i], strlen(signature->parameter[i])};
        const struct sw_jinja_value *given = sw_jinja_dict_named(arguments->named, name);
        out->given[i] = i < arguments->count || given != NULL;
        if (i < arguments->count)
            out->value[i] = arguments->value[i];
        else if (given != NULL)
            out->value[i] = *given;
        named += given != NULL;
        if (!out->given[i] && (int)i < signature->least)
            return sw_fail(SW_ERR_ARG, "'%s' lacks the argument '%s'", signature->name, signature->parameter[i]);
    }
    if (arguments->count > i || named < arguments->named->count)
        return sw_fail(SW_ERR_UNSUPPORTED, "'%s' with these arguments is not supported", signature->name);
    return SW_OK;
}

sw_status sw_jinja_iterate(struct sw_jinja_run *run, struct sw_jinja_value of, const struct sw_jinja_list **out) {
    struct sw_jinja_value list;
    size_t count = 0;
    if (of.kind == SW_JINJA_LIST || of.kind == SW_JINJA_TUPLE || of.kind == SW_JINJA_GENERATOR) {
        *out = of.list;
        return SW_OK;
    }
    if (of.kind == SW_JINJA_STRING)
        count = sw_jinja_chars(sw_jinja_text_of(of.string));
    else if (of.kind == SW_JINJA_DICT)
        count = of.dict->count;
    else if (of.kind != SW_JINJA_UNDEFINED)
        return sw_jinja_bad_kind("nothing to go through in", of);
    SW_TRY(sw_jinja_charge(run, count * sizeof list));
    SW_TRY(sw_jinja_new_list(&run->arena, SW_JINJA_LIST, count, &list));
    for (size_t i = 0, at = 0; i < count; i++) {
        if (of.kind == SW_JINJA_DICT) {
            list.list->item[i] = of.dict->key[i];
            continue;
        }
        const size_t bytes = sw_jinja_char_bytes((struct sw_text){of.string.data + at, of.string.bytes - at});
        list.list->item[i] =
            (struct sw_jinja_value){.kind = SW_JINJA_STRING, .string = sw_jinja_part(of.string, at, bytes)};
        at += bytes;
    }
    *out = list.list;
    return SW_OK;
}

sw_status sw_jinja_length(struct sw_jinja_run *run, struct sw_jinja_value of, int64_t *out) {
    switch (of.kind) {
    case SW_JINJA_UNDEFINED: *out = 0; return SW_OK;
    case SW_JINJA_STRING:
        SW_TRY(sw_jinja_charge(run, of.string.bytes));
        *out = (int64_t)sw_jinja_chars(sw_jinja_text_of(of.string));
        return SW_OK;
    case SW_JINJA_LIST:
    case SW_JINJA_TUPLE: *out = (int64_t)of.list->count; return SW_OK;
    case SW_JINJA_DICT: *out = (int64_t)of.dict->count; return SW_OK;
    default: return sw_jinja_bad_kind("no length of", of);
    }
}

/* The filter tojson, as transformers has it: Python's json.dumps with ensure_ascii=False. */

enum { MOST_NESTED_JSON = 100 };

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

/* Writes the members of a list or a dict. */
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
    if (depth > MOST_NESTED_JSON)
        return sw_fail(SW_ERR_UNSUPPORTED, "values are nested more than %d deep", MOST_NESTED_JSON);
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
