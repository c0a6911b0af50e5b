/* Values of templates, and their memory. Strings know for each byte which message it comes from. */
#ifndef SW_TEXT_JINJA_VALUE_H
#define SW_TEXT_JINJA_VALUE_H

#include "text/buffer.h"

#include <stdbool.h>
#include <stdint.h>

/* Memory that is released as a whole. A zeroed struct is empty. */
struct sw_jinja_arena {
    struct sw_jinja_block *block; /* newest first */
    size_t used;                  /* bytes of all blocks */
    size_t most;                  /* bytes that may be used */
};
/* Stores the address of zeroed memory in the pointer at `out`. */
sw_status sw_jinja_take(struct sw_jinja_arena *arena, size_t bytes, void *out);
void sw_jinja_arena_release(struct sw_jinja_arena *arena);

/* Bytes of UTF-8, owned by an arena or borrowed during a rendering. */
struct sw_jinja_string {
    const char *data;
    const unsigned char *marks; /* one per byte (jinja.h); NULL: all bytes are the template's */
    size_t bytes;
};

typedef enum {
    SW_JINJA_UNDEFINED,
    SW_JINJA_NONE,
    SW_JINJA_BOOL,
    SW_JINJA_INT,
    SW_JINJA_STRING,
    SW_JINJA_LIST,
    SW_JINJA_TUPLE,
    SW_JINJA_GENERATOR, /* returned by some filters: a list that is always true and has no length */
    SW_JINJA_DICT,
    SW_JINJA_NAMESPACE,
    SW_JINJA_LOOP,
    SW_JINJA_MACRO,
    SW_JINJA_FUNCTION, /* one of the global functions */
    SW_JINJA_METHOD    /* a method, bound to a string or a dict */
} sw_jinja_kind;

struct sw_jinja_value {
    sw_jinja_kind kind;
    union {
        bool truth;
        int64_t number;
        struct sw_jinja_string string; /* of an undefined value: the name it was looked up by */
        struct sw_jinja_list *list;    /* of lists, tuples and generators */
        struct sw_jinja_dict *dict;    /* of dicts and namespaces */
        const struct sw_jinja_loop *loop;
        const struct sw_jinja_macro *macro;
        int function;
        const struct sw_jinja_method *method;
    };
};

/* Limit of members of a dict, and of names of a scope: both are searched linearly. */
enum { SW_JINJA_MOST_MEMBERS = 1024 };

/* Lists and dicts never change once they are values, except namespaces. */
struct sw_jinja_list {
    struct sw_jinja_value *item;
    size_t count;
};

struct sw_jinja_dict {
    struct sw_jinja_value *key, *item; /* [room], in insertion order */
    size_t count, room;
};

struct sw_jinja_method {
    struct sw_jinja_value self;
    struct sw_text name;
};

static inline struct sw_text sw_jinja_text_of(struct sw_jinja_string string) {
    return (struct sw_text){string.data, string.bytes};
}

static inline bool sw_jinja_is(struct sw_text text, const char *word) {
    size_t i = 0;
    while (i < text.bytes && word[i] != 0 && word[i] == text.data[i])
        i++;
    return i == text.bytes && word[i] == 0;
}

struct sw_jinja_value sw_jinja_bool(bool truth);
struct sw_jinja_value sw_jinja_int(int64_t number);
struct sw_jinja_value sw_jinja_string(struct sw_text text); /* from the template */
struct sw_jinja_value sw_jinja_undefined(struct sw_text name);

sw_status sw_jinja_new_list(struct sw_jinja_arena *arena, sw_jinja_kind kind, size_t count, struct sw_jinja_value *out);
sw_status sw_jinja_new_dict(struct sw_jinja_arena *arena, sw_jinja_kind kind, size_t room, struct sw_jinja_value *out);
/* Sets a member. Keys must be strings or numbers. */
sw_status sw_jinja_dict_set(struct sw_jinja_arena *arena, struct sw_jinja_dict *dict, struct sw_jinja_value key,
                            struct sw_jinja_value item);
/* Returns a member, or NULL. */
const struct sw_jinja_value *sw_jinja_dict_get(const struct sw_jinja_dict *dict, struct sw_jinja_value key);
const struct sw_jinja_value *sw_jinja_dict_named(const struct sw_jinja_dict *dict, struct sw_text name);

/* Returns the kind in Python's words, for messages: "a string". */
const char *sw_jinja_kind_name(sw_jinja_kind kind);
bool sw_jinja_truth(struct sw_jinja_value value);
/* Fails: an operation cannot use this value. */
sw_status sw_jinja_bad_kind(const char *what, struct sw_jinja_value value);
/* Python's ==. Fails if values are nested too deep. *out_bytes: the work it took, in bytes. */
sw_status sw_jinja_equal(struct sw_jinja_value left, struct sw_jinja_value right, bool *out, size_t *out_bytes);
/* Python's str(). Refuses lists and dicts. */
sw_status sw_jinja_str(struct sw_jinja_arena *arena, struct sw_jinja_value value, struct sw_jinja_string *out);

/* A string that grows. */
struct sw_jinja_builder {
    struct sw_jinja_arena *arena;
    char *data;
    unsigned char *marks;
    size_t bytes, room;
};
sw_status sw_jinja_build(struct sw_jinja_builder *builder, struct sw_jinja_string more);
struct sw_jinja_value sw_jinja_built(const struct sw_jinja_builder *builder);

sw_status sw_jinja_join(struct sw_jinja_arena *arena, struct sw_jinja_string left, struct sw_jinja_string right,
                        struct sw_jinja_value *out);
struct sw_jinja_string sw_jinja_part(struct sw_jinja_string string, size_t begin, size_t bytes);
/* Python's strip of characters (NULL: white space) on either side. */
struct sw_jinja_string sw_jinja_strip(struct sw_jinja_string string, const struct sw_text *characters, bool left,
                                      bool right);

/* Returns the bytes of the first character of a string that is not empty. */
size_t sw_jinja_char_bytes(struct sw_text text);
size_t sw_jinja_chars(struct sw_text text);
/* Returns the byte at which character `index` begins, or the end if there are fewer. */
size_t sw_jinja_char_at(struct sw_text text, size_t index);
/* Returns where `what` first (or last) begins, at `from` or later, or SIZE_MAX. */
size_t sw_jinja_find(struct sw_text text, struct sw_text what, size_t from, bool last);

/* Python's json.dumps with ensure_ascii=False. indent -1: on one line; else spaces per level. */
sw_status sw_jinja_to_json(struct sw_jinja_builder *out, struct sw_jinja_value value, int indent);

#endif
