#include "train/text/vocabulary.h"

#include "core/json.h"
#include "train/text/utf8.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

struct entry {
    size_t begins; /* of its text, among all texts */
    uint32_t bytes;
    bool there;
    bool spelled_only; /* in a byte-level vocabulary, a token whose characters stand for no bytes: no text has it */
};

struct sw_vocabulary {
    struct sw_text_buffer texts; /* of all tokens, one after the other */
    struct entry *entry;         /* of each id */
    int32_t *slot;               /* hash table of ids; -1: empty */
    size_t slots;                /* a power of two, at least twice the tokens */
    int32_t ids;
    bool byte_level;
};

/* Returns the byte that a character stands for, or -1 (GPT-2's table): bytes that print stand for themselves, the
 * others, which are 0 to 32, 127 to 160 and 173, for the characters from 256 on, in order. */
static int byte_of_code(uint32_t code) {
    enum { FIRST = 256, LOW = 33, MIDDLE_FIRST = 127, MIDDLE = 34, LAST_BYTE = 173 };
    const int stand_in = (int)code - FIRST;
    if (stand_in < 0)
        return code < LOW || (code >= MIDDLE_FIRST && code < MIDDLE_FIRST + MIDDLE) || code == LAST_BYTE ? -1
                                                                                                         : (int)code;
    if (stand_in < LOW)
        return stand_in;
    if (stand_in < LOW + MIDDLE)
        return MIDDLE_FIRST + stand_in - LOW;
    return stand_in == LOW + MIDDLE ? LAST_BYTE : -1;
}

/* Appends the bytes that a token's characters stand for; nothing, and *out_all false, where one stands for none. */
static sw_status append_bytes(struct sw_text spelled, struct sw_text_buffer *out, bool *out_all) {
    const size_t before = out->bytes;
    *out_all = true;
    SW_TRY(sw_text_buffer_reserve(out, spelled.bytes));
    for (size_t at = 0; at < spelled.bytes && *out_all;) {
        const struct sw_utf8_sequence next = sw_utf8_read((struct sw_text){spelled.data + at, spelled.bytes - at});
        const int byte = next.kind == SW_UTF8_WHOLE ? byte_of_code(next.code) : -1;
        *out_all = byte >= 0;
        out->data[out->bytes++] = (char)byte;
        at += next.bytes;
    }
    if (!*out_all)
        out->bytes = before;
    return SW_OK;
}

sw_status sw_vocabulary_append_bytes(struct sw_text spelled, struct sw_text_buffer *out) {
    bool all;
    SW_TRY(append_bytes(spelled, out, &all));
    return all ? SW_OK : sw_text_buffer_append(out, spelled);
}

static size_t first_slot(const struct sw_vocabulary *vocabulary, struct sw_text text) {
    return XXH3_64bits(text.data, text.bytes) & (vocabulary->slots - 1);
}

static struct sw_text text_of(const struct sw_vocabulary *vocabulary, const struct entry *entry) {
    return (struct sw_text){vocabulary->texts.data + entry->begins, entry->bytes};
}

/* Returns the slot that holds a token's id, or the empty one where it belongs. */
static int32_t *slot_of(const struct sw_vocabulary *vocabulary, struct sw_text text, bool spelled_only) {
    for (size_t at = first_slot(vocabulary, text);; at = (at + 1) & (vocabulary->slots - 1)) {
        if (vocabulary->slot[at] < 0)
            return &vocabulary->slot[at];
        const struct entry *entry = &vocabulary->entry[vocabulary->slot[at]];
        if (entry->bytes == text.bytes && entry->spelled_only == spelled_only &&
            memcmp(text_of(vocabulary, entry).data, text.data, text.bytes) == 0)
            return &vocabulary->slot[at];
    }
}

int32_t sw_vocabulary_find(const struct sw_vocabulary *vocabulary, struct sw_text text) {
    return *slot_of(vocabulary, text, false);
}

sw_status sw_vocabulary_find_spelled(const struct sw_vocabulary *vocabulary, struct sw_text given, int32_t *out_id) {
    bool all = true;
    struct sw_text_buffer bytes = {0};
    SW_TRY(vocabulary->byte_level ? append_bytes(given, &bytes, &all) : SW_OK);
    const bool as_given = !vocabulary->byte_level || !all || given.bytes == 0;
    *out_id = *slot_of(vocabulary, as_given ? given : sw_text_of_buffer(&bytes), vocabulary->byte_level && !all);
    free(bytes.data);
    return SW_OK;
}

struct sw_text sw_vocabulary_text(const struct sw_vocabulary *vocabulary, int32_t id) {
    if (id < 0 || id >= vocabulary->ids || !vocabulary->entry[id].there)
        return (struct sw_text){0};
    return text_of(vocabulary, &vocabulary->entry[id]);
}

int32_t sw_vocabulary_ids(const struct sw_vocabulary *vocabulary) {
    return vocabulary->ids;
}

/* Finds the largest id, and refuses what is none. */
static sw_status read_ids(const json_t *vocab, const char *path, int32_t *out_ids) {
    json_t *iterable = (json_t *)(uintptr_t)vocab; /* iterating does not change it, but Jansson wants it writable */
    const char *token;
    json_t *value;
    json_object_foreach(iterable, token, value) {
        const json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
        if (id < 0 || id >= SW_VOCABULARY_MOST_IDS)
            return sw_fail(SW_ERR_ARG, "%s: the id of the token '%.60s' is not a number from 0 to %d", path, token,
                           SW_VOCABULARY_MOST_IDS - 1);
        if (id >= *out_ids)
            *out_ids = (int32_t)id + 1;
    }
    return SW_OK;
}

static sw_status add(struct sw_vocabulary *vocabulary, struct sw_text given, int32_t id, const char *path) {
    struct entry *entry = &vocabulary->entry[id];
    if (entry->there)
        return sw_fail(SW_ERR_ARG, "%s: the token '%.60s' has the id %d of another token", path, given.data, id);
    bool all = true;
    *entry = (struct entry){.begins = vocabulary->texts.bytes, .there = true};
    SW_TRY(vocabulary->byte_level ? append_bytes(given, &vocabulary->texts, &all)
                                  : sw_text_buffer_append(&vocabulary->texts, given));
    if (!all)
        SW_TRY(sw_text_buffer_append(&vocabulary->texts, given));
    entry->spelled_only = !all;
    entry->bytes = (uint32_t)(vocabulary->texts.bytes - entry->begins);
    *slot_of(vocabulary, text_of(vocabulary, entry), entry->spelled_only) = id;
    return SW_OK;
}

static sw_status allocate(struct sw_vocabulary *vocabulary, size_t tokens) {
    vocabulary->slots = 64;
    while (vocabulary->slots < 2 * tokens)
        vocabulary->slots *= 2;
    vocabulary->slot = malloc(vocabulary->slots * sizeof *vocabulary->slot);
    vocabulary->entry = calloc((size_t)vocabulary->ids + 1, sizeof *vocabulary->entry);
    if (vocabulary->slot == NULL || vocabulary->entry == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for a vocabulary of %zu tokens", tokens);
    for (size_t i = 0; i < vocabulary->slots; i++)
        vocabulary->slot[i] = -1;
    return sw_text_buffer_reserve(&vocabulary->texts, 1); /* so that texts of no bytes have an address too */
}

/* Appends a token that is a member's name, and a zero byte behind it. */
static sw_status append_name(struct sw_text_buffer *out, const char *token) {
    static const size_t stand_in = sizeof SW_JSON_ZERO_IN_NAME - 1;
    const char *zero;
    for (; (zero = strstr(token, SW_JSON_ZERO_IN_NAME)) != NULL; token = zero + stand_in) {
        SW_TRY(sw_text_buffer_append(out, (struct sw_text){token, (size_t)(zero - token)}));
        SW_TRY(sw_text_buffer_append(out, (struct sw_text){"", 1}));
    }
    return sw_text_buffer_append(out, (struct sw_text){token, strlen(token) + 1});
}

static sw_status fill(struct sw_vocabulary *vocabulary, const json_t *vocab, const char *path) {
    SW_TRY(read_ids(vocab, path, &vocabulary->ids));
    SW_TRY(allocate(vocabulary, json_object_size(vocab)));
    json_t *iterable = (json_t *)(uintptr_t)vocab;
    const char *token;
    json_t *value;
    sw_status status = SW_OK;
    struct sw_text_buffer name = {0};
    json_object_foreach(iterable, token, value) {
        name.bytes = 0;
        SW_TRY_GOTO(append_name(&name, token), done);
        SW_TRY_GOTO(
            add(vocabulary, (struct sw_text){name.data, name.bytes - 1}, (int32_t)json_integer_value(value), path),
            done);
    }
done:
    free(name.data);
    return status;
}

sw_status sw_vocabulary_create(const json_t *vocab, bool byte_level, const char *path, struct sw_vocabulary **out) {
    if (json_object_size(vocab) == 0)
        return sw_fail(SW_ERR_ARG, "%s: its model has no vocabulary", path);
    struct sw_vocabulary *vocabulary = calloc(1, sizeof *vocabulary);
    if (vocabulary == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for a vocabulary");
    vocabulary->byte_level = byte_level;
    const sw_status status = fill(vocabulary, vocab, path);
    if (status != SW_OK) {
        sw_vocabulary_destroy(vocabulary);
        return status;
    }
    *out = vocabulary;
    return SW_OK;
}

void sw_vocabulary_destroy(struct sw_vocabulary *vocabulary) {
    if (vocabulary == NULL)
        return;
    free(vocabulary->texts.data);
    free(vocabulary->entry);
    free(vocabulary->slot);
    free(vocabulary);
}
