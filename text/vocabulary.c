#include "text/vocabulary.h"

#include "core/json.h"
#include "text/utf8.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* A part ends with the element that makes it this long. */
enum { PART_BYTES = 1 << 16 };

static bool is_space(char c) {
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static const char *pass_space(const char *at, const char *end) {
    while (at < end && is_space(*at))
        at++;
    return at;
}

/* Returns the place behind a string, of which `at` is the first quote. */
static const char *pass_string(const char *at, const char *end) {
    for (at++; at < end && *at != '"'; at++)
        if (*at == '\\' && at + 1 < end)
            at++;
    return at < end ? at + 1 : end;
}

/* Returns the place of the bracket that closes the one at `at`, or the end of the text. */
static const char *find_close(const char *at, const char *end) {
    for (int64_t levels = 0; at < end; at++) {
        if (*at == '"')
            at = pass_string(at, end) - 1;
        else if (*at == '{' || *at == '[')
            levels++;
        else if ((*at == '}' || *at == ']') && --levels == 0)
            return at;
    }
    return end;
}

static int lines_of(struct sw_text text) {
    int lines = 0;
    for (size_t i = 0; i < text.bytes; i++)
        lines += text.data[i] == '\n';
    return lines;
}

/* The place of a scan within a text. */
struct scan {
    struct sw_text text;
    const char *at, *copied; /* the text before `copied` is in the rest */
    int64_t levels;
    bool in_model; /* in the object `model` of the outermost object, but in none of its values */
    const char *path;
    struct sw_large_members *out;
    struct sw_text_buffer *rest;
};

/* Takes the inside of the value at `at` out of the text. */
static sw_status cut(struct scan *scan, struct sw_large_member *member) {
    const char *end = scan->text.data + scan->text.bytes, *inside = scan->at + 1;
    const char *close = find_close(scan->at, end);
    const struct sw_text text = {inside, (size_t)(close - inside)};
    const struct sw_text before = {scan->text.data, (size_t)(inside - scan->text.data)};
    *member = (struct sw_large_member){.text = text,
                                       .line = 1 + lines_of(before),
                                       .path = scan->path,
                                       .begin = *scan->at,
                                       .end = *scan->at == '{' ? '}' : ']'};
    const int lines = lines_of(text);
    SW_TRY(sw_text_buffer_append(scan->rest, (struct sw_text){scan->copied, (size_t)(inside - scan->copied)}));
    SW_TRY(sw_text_buffer_reserve(scan->rest, (size_t)lines));
    memset(scan->rest->data + scan->rest->bytes, '\n', (size_t)lines);
    scan->rest->bytes += (size_t)lines;
    scan->at = scan->copied = close;
    scan->levels++;
    return SW_OK;
}

/* Passes a string and, where it is a name that is looked for, its value. */
static sw_status pass_name(struct scan *scan) {
    const char *end = scan->text.data + scan->text.bytes, *name = scan->at + 1;
    scan->at = pass_string(scan->at, end);
    const size_t chars = (size_t)(scan->at - name);
    const char *colon = pass_space(scan->at, end), *value = colon < end ? pass_space(colon + 1, end) : end;
    if (value == end || *colon != ':')
        return SW_OK;
    const bool is_model = scan->levels == 1 && chars == 6 && memcmp(name, "model\"", chars) == 0 && *value == '{';
    const bool is_vocab = scan->in_model && chars == 6 && memcmp(name, "vocab\"", chars) == 0 && *value == '{';
    const bool is_merges = scan->in_model && chars == 7 && memcmp(name, "merges\"", chars) == 0 && *value == '[';
    scan->at = value;
    if (is_vocab && scan->out->vocab.text.data == NULL)
        return cut(scan, &scan->out->vocab);
    if (is_merges && scan->out->merges.text.data == NULL)
        return cut(scan, &scan->out->merges);
    if (is_model) {
        scan->in_model = true;
        scan->levels++;
        scan->at++;
    }
    return SW_OK;
}

sw_status sw_large_members_cut(struct sw_text text, const char *path, struct sw_large_members *out,
                               struct sw_text_buffer *rest) {
    const char *end = text.data + text.bytes;
    struct scan scan = {.text = text, .at = text.data, .copied = text.data, .path = path, .out = out, .rest = rest};
    *out = (struct sw_large_members){.vocab = {.path = path}, .merges = {.path = path}};
    while (scan.at < end) {
        const char c = *scan.at;
        if (c == '"') {
            SW_TRY(pass_name(&scan));
            continue;
        }
        /* The contents of the model's own members are passed as a whole. */
        if (scan.in_model && (c == '{' || c == '[') && scan.levels == 2) {
            scan.at = find_close(scan.at, end);
            scan.at += scan.at < end;
            continue;
        }
        scan.levels += (c == '{' || c == '[') - (c == '}' || c == ']');
        scan.in_model &= scan.levels >= 2;
        scan.at++;
    }
    return sw_text_buffer_append(rest, (struct sw_text){scan.copied, (size_t)(end - scan.copied)});
}

/* Returns the end of the next part: a comma between elements, or the end of the text. */
static const char *end_of_part(const char *begin, const char *end) {
    const char *at = begin;
    for (int64_t levels = 0; at < end; at++) {
        if (*at == '"')
            at = pass_string(at, end) - 1;
        else if (*at == '{' || *at == '[')
            levels++;
        else if (*at == '}' || *at == ']')
            levels--;
        else if (*at == ',' && levels == 0 && at - begin >= PART_BYTES)
            break;
    }
    return at < end ? at : end;
}

static sw_status read_part(const struct sw_large_member *member, struct sw_text text, int line,
                           struct sw_text_buffer *buffer, json_t **out) {
    buffer->bytes = 0;
    SW_TRY(sw_text_buffer_append(buffer, (struct sw_text){&member->begin, 1}));
    SW_TRY(sw_text_buffer_append(buffer, text));
    SW_TRY(sw_text_buffer_append(buffer, (struct sw_text){&member->end, 1}));
    return sw_json_decode((struct sw_json_source){.text = buffer->data,
                                                  .bytes = buffer->bytes,
                                                  .name = member->path,
                                                  .bad = SW_ERR_ARG,
                                                  .kind = SW_JSON_TEXTS,
                                                  .lines_before = line - 1},
                          out);
}

sw_status sw_large_member_read(const struct sw_large_member *member,
                               sw_status (*take)(void *context, const json_t *part), void *context) {
    const char *at = member->text.data, *end = at + member->text.bytes;
    struct sw_text_buffer buffer = {0};
    sw_status status = SW_OK;
    int line = member->line;
    while (status == SW_OK && at < end) {
        const char *part_end = end_of_part(at, end);
        /* A comma that nothing follows is no end of a part, but an error. */
        const bool is_last = part_end == end || pass_space(part_end + 1, end) == end;
        const struct sw_text text = {at, (size_t)((is_last ? end : part_end) - at)};
        json_t *part = NULL;
        status = read_part(member, text, line, &buffer, &part);
        if (status == SW_OK)
            status = take(context, part);
        json_decref(part);
        line += lines_of(text);
        at = is_last ? end : part_end + 1;
    }
    free(buffer.data);
    return status;
}

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
