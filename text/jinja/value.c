#include "text/jinja/value.h"

#include "text/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* How deep a comparison is, and how many values it may still look at: a list may have one member many times. */
struct comparison {
    int depth, left;
    size_t bytes; /* of strings that were compared */
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
