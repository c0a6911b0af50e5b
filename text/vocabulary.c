#include "text/vocabulary.h"

#include "core/json.h"
#include "text/utf8.h"

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
    size_t slots, tokens;        /* slots: a power of two, at least twice the tokens */
    int32_t ids, ids_room;
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

/* Doubles the hash table. */
static sw_status rehash(struct sw_vocabulary *vocabulary) {
    enum { FEWEST_SLOTS = 64 };
    const size_t slots = vocabulary->slots > 0 ? 2 * vocabulary->slots : FEWEST_SLOTS;
    int32_t *before = vocabulary->slot, *slot = malloc(slots * sizeof *slot);
    if (slot == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for a vocabulary of %zu tokens", vocabulary->tokens);
    for (size_t i = 0; i < slots; i++)
        slot[i] = -1;
    vocabulary->slot = slot;
    const size_t count = vocabulary->slots;
    vocabulary->slots = slots;
    for (size_t i = 0; i < count; i++)
        if (before[i] >= 0) {
            const struct entry *entry = &vocabulary->entry[before[i]];
            *slot_of(vocabulary, text_of(vocabulary, entry), entry->spelled_only) = before[i];
        }
    free(before);
    return SW_OK;
}

/* Makes room for one more token with this id. */
static sw_status make_room(struct sw_vocabulary *vocabulary, int32_t id) {
    if (id >= vocabulary->ids_room) {
        const int32_t twice = 2 * vocabulary->ids_room, room = twice > id ? twice : id + 1;
        /* Fresh pages cost nothing before they are used, as those of ids that no token has. */
        struct entry *entry = calloc((size_t)room, sizeof *entry);
        if (entry == NULL)
            return sw_fail(SW_ERR_NOMEM, "no memory for a vocabulary of %d tokens", room);
        if (vocabulary->ids > 0)
            memcpy(entry, vocabulary->entry, (size_t)vocabulary->ids * sizeof *entry);
        free(vocabulary->entry);
        vocabulary->entry = entry;
        vocabulary->ids_room = room;
    }
    return 2 * (vocabulary->tokens + 1) > vocabulary->slots ? rehash(vocabulary) : SW_OK;
}

static sw_status add(struct sw_vocabulary *vocabulary, struct sw_text given, int32_t id, const char *path) {
    SW_TRY(make_room(vocabulary, id));
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
    int32_t *slot = slot_of(vocabulary, text_of(vocabulary, entry), entry->spelled_only);
    if (*slot >= 0)
        return sw_fail(SW_ERR_ARG, "%s: the token '%.60s' is twice in the vocabulary, with the ids %d and %d", path,
                       given.data, *slot, id);
    *slot = id;
    vocabulary->tokens++;
    vocabulary->ids = id >= vocabulary->ids ? id + 1 : vocabulary->ids;
    return SW_OK;
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

/* A vocabulary that is being read. */
struct reading {
    struct sw_vocabulary *vocabulary;
    struct sw_text_buffer name; /* scratch memory */
    const char *path;
};

static sw_status take_part(void *context, const json_t *part) {
    struct reading *reading = context;
    const char *token;
    json_t *value;
    /* Iterating does not change it, but Jansson wants it writable. */
    json_object_foreach((json_t *)(uintptr_t)part, token, value) {
        const json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
        if (id < 0 || id >= SW_VOCABULARY_MOST_IDS)
            return sw_fail(SW_ERR_ARG, "%s: the id of the token '%.60s' is not a number from 0 to %d", reading->path,
                           token, SW_VOCABULARY_MOST_IDS - 1);
        reading->name.bytes = 0;
        SW_TRY(append_name(&reading->name, token));
        const struct sw_text name = {reading->name.data, reading->name.bytes - 1};
        SW_TRY(add(reading->vocabulary, name, (int32_t)id, reading->path));
    }
    return SW_OK;
}

static sw_status fill(struct sw_vocabulary *vocabulary, const struct sw_large_member *vocab) {
    struct reading reading = {.vocabulary = vocabulary, .path = vocab->path};
    /* Texts of no bytes have an address too. */
    sw_status status = sw_text_buffer_reserve(&vocabulary->texts, 1);
    if (status == SW_OK)
        status = sw_large_member_read(vocab, take_part, &reading);
    free(reading.name.data);
    if (status == SW_OK && vocabulary->tokens == 0)
        status = sw_fail(SW_ERR_ARG, "%s: its model has no vocabulary", vocab->path);
    return status;
}

sw_status sw_vocabulary_create(const struct sw_large_member *vocab, bool byte_level, struct sw_vocabulary **out) {
    struct sw_vocabulary *vocabulary = calloc(1, sizeof *vocabulary);
    if (vocabulary == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for a vocabulary");
    vocabulary->byte_level = byte_level;
    const sw_status status = fill(vocabulary, vocab);
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
