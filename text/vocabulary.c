#include "text/vocabulary.h"

#include "core/json.h"
#include "text/unicode.h"

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { FIRST_SLOTS = 64 };

static struct sw_number_slot *number_slot(const struct sw_number_map *map, uint64_t key) {
    size_t at = sw_number_hash(key) & (map->slots - 1);
    while (map->slot[at].value != SW_NUMBER_NONE && map->slot[at].key != key)
        at = (at + 1) & (map->slots - 1);
    return &map->slot[at];
}

static sw_status grow(struct sw_number_map *map) {
    struct sw_number_map larger = {.slots = map->slots == 0 ? FIRST_SLOTS : 2 * map->slots, .used = map->used};
    larger.slot = calloc(larger.slots, sizeof *larger.slot);
    if (larger.slot == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for a table of %zu entries", larger.slots);
    for (size_t i = 0; i < larger.slots; i++)
        larger.slot[i].value = SW_NUMBER_NONE;
    for (size_t i = 0; i < map->slots; i++)
        if (map->slot[i].value != SW_NUMBER_NONE)
            *number_slot(&larger, map->slot[i].key) = map->slot[i];
    free(map->slot);
    *map = larger;
    return SW_OK;
}

sw_status sw_number_map_put(struct sw_number_map *map, uint64_t key, uint64_t value) {
    assert(value != SW_NUMBER_NONE);
    if (2 * (map->used + 1) > map->slots)
        SW_TRY(grow(map));
    struct sw_number_slot *slot = number_slot(map, key);
    map->used += slot->value == SW_NUMBER_NONE;
    *slot = (struct sw_number_slot){.key = key, .value = value};
    return SW_OK;
}

void sw_number_map_release(struct sw_number_map *map) {
    free(map->slot);
    *map = (struct sw_number_map){0};
}

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

/* Returns the position after a string; `at` is its first quote. */
static const char *pass_string(const char *at, const char *end) {
    for (at++; at < end && *at != '"'; at++)
        if (*at == '\\' && at + 1 < end)
            at++;
    return at < end ? at + 1 : end;
}

/* Returns the position of the bracket that closes the one at `at`, or the end of the text. */
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

/* The state of a scan of a text. */
struct scan {
    struct sw_text text;
    const char *at, *copied; /* the text before `copied` is already in the rest */
    int64_t levels;
    bool in_model; /* directly in the object `model` of the outermost object, not in one of its values */
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

/* Skips a string and, if it is a name that is searched for, takes its value. */
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
        /* The contents of the model's own members are skipped as a whole. */
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
        /* A comma followed by nothing does not end a part: it is an error. */
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
    size_t begins; /* start of its text, among all texts */
    uint32_t bytes;
    bool there;
    /* In a byte-level vocabulary, a token whose characters stand for no bytes: no text contains it. */
    bool spelled_only;
};

struct sw_vocabulary {
    struct sw_text_buffer texts; /* of all tokens, one after the other */
    struct entry *entry;         /* one per id */
    int32_t *slot;               /* hash table of ids; -1: empty */
    size_t slots, tokens;        /* slots: a power of two, at least twice the tokens */
    int32_t ids, ids_room;
    bool byte_level;
};

/* Returns the byte that a character stands for, or -1 (GPT-2's table). Printable bytes stand for themselves; the others
 * (0 to 32, 127 to 160 and 173) are the characters from 256 on, in order. */
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

/* Appends the bytes that a token's characters stand for. If one stands for none, appends nothing and sets *out_all to
 * false. */
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
        /* Untouched pages cost nothing, such as those of ids without a token. */
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

/* Appends a token that is a member's name, and a zero byte. */
static sw_status append_name(struct sw_text_buffer *out, const char *token) {
    static const size_t stand_in = sizeof SW_JSON_ZERO_IN_NAME - 1;
    const char *zero;
    for (; (zero = strstr(token, SW_JSON_ZERO_IN_NAME)) != NULL; token = zero + stand_in) {
        SW_TRY(sw_text_buffer_append(out, (struct sw_text){token, (size_t)(zero - token)}));
        SW_TRY(sw_text_buffer_append(out, (struct sw_text){"", 1}));
    }
    return sw_text_buffer_append(out, (struct sw_text){token, strlen(token) + 1});
}

/* A vocabulary while it is read. */
struct reading {
    struct sw_vocabulary *vocabulary;
    struct sw_text_buffer name; /* scratch memory */
    const char *path;
};

static sw_status take_part(void *context, const json_t *part) {
    struct reading *reading = context;
    const char *token;
    json_t *value;
    /* Iterating does not change it, but Jansson takes it as writable. */
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
    /* An empty text needs an address too. */
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

/* Tries take a hundred times their text. Real tokenizers have less than 100 kB. */
enum { MOST_TEXT_BYTES = 1 << 20 };

/* A trie of the tokens to be found in one kind of text. Node 0 is the root. */
struct trie {
    struct sw_number_map edge;  /* node and byte → node */
    struct sw_number_map token; /* node → number of the token that ends there */
    uint32_t nodes;
    bool begins[256]; /* bytes with which some token begins */
};

struct sw_added_tokens {
    struct sw_added_token *token;
    size_t count;
    struct sw_number_map of_id; /* id → number of a token */
    struct trie trie[2];        /* for texts as given, and for normalized ones */
    struct trie special;        /* of the special ones, as the file spells them */
    int32_t ids;
    size_t text_bytes; /* bytes of all texts to be found */
};

static uint64_t edge_key(uint32_t node, char byte) {
    return (uint64_t)node << 8 | (unsigned char)byte;
}

static sw_status trie_add(struct trie *trie, struct sw_text text, size_t number) {
    uint32_t node = 0;
    for (size_t i = 0; i < text.bytes; i++) {
        uint64_t next = sw_number_map_get(&trie->edge, edge_key(node, text.data[i]));
        if (next == SW_NUMBER_NONE) {
            next = ++trie->nodes;
            SW_TRY(sw_number_map_put(&trie->edge, edge_key(node, text.data[i]), next));
        }
        node = (uint32_t)next;
    }
    trie->begins[(unsigned char)text.data[0]] = true;
    return sw_number_map_put(&trie->token, node, number);
}

/* Finds the longest token that begins at `at` in the text. Returns false if there is none. */
static bool trie_match(const struct trie *trie, struct sw_text text, size_t at, size_t *out_number, size_t *out_bytes) {
    uint64_t node = 0;
    bool found = false;
    for (size_t i = at; i < text.bytes; i++) {
        node = sw_number_map_get(&trie->edge, edge_key((uint32_t)node, text.data[i]));
        if (node == SW_NUMBER_NONE)
            break;
        const uint64_t number = sw_number_map_get(&trie->token, node);
        if (number != SW_NUMBER_NONE) {
            *out_number = (size_t)number;
            *out_bytes = i + 1 - at;
            found = true;
        }
    }
    return found;
}

static void trie_release(struct trie *trie) {
    sw_number_map_release(&trie->edge);
    sw_number_map_release(&trie->token);
}

static sw_status copy(struct sw_text from, struct sw_text *out) {
    char *data = malloc(from.bytes + 1);
    if (data == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for a tokenizer");
    memcpy(data, from.data, from.bytes);
    data[from.bytes] = 0;
    *out = (struct sw_text){data, from.bytes};
    return SW_OK;
}

/* If the vocabulary has the token, its id must be the vocabulary's. */
static sw_status check_id(const struct sw_added_token *token, const struct sw_vocabulary *vocabulary, json_int_t id,
                          const char *path) {
    int32_t known;
    SW_TRY(sw_vocabulary_find_spelled(vocabulary, token->content, &known));
    if (known >= 0 ? id == known : id >= 0 && id < SW_VOCABULARY_MOST_IDS)
        return SW_OK;
    if (known >= 0)
        return sw_fail(SW_ERR_ARG, "%s: the added token '%.60s' has the id %lld, and %d in the vocabulary", path,
                       token->content.data, (long long)id, known);
    return sw_fail(SW_ERR_ARG, "%s: the id of the added token '%.60s' is not a number from 0 to %d", path,
                   token->content.data, SW_VOCABULARY_MOST_IDS - 1);
}

static sw_status normalize(const struct sw_normalizer *normalizer, struct sw_added_token *token) {
    struct sw_normalizer_scratch scratch = {0};
    struct sw_pattern_scratch *pattern;
    struct sw_text text = token->content;
    SW_TRY(sw_pattern_scratch_create(&pattern));
    sw_status status = sw_normalize(normalizer, &scratch, pattern, &text);
    if (status == SW_OK)
        status = copy(text, &token->normalized);
    sw_pattern_scratch_destroy(pattern);
    sw_normalizer_scratch_release(&scratch);
    return status;
}

/* Refuses a second token with the same id, or found by the same text. */
static sw_status check_twice(const struct sw_added_tokens *added, const struct sw_added_token *token,
                             struct sw_text sought, const char *path) {
    const uint64_t other = sw_number_map_get(&added->of_id, (uint64_t)token->id);
    if (other != SW_NUMBER_NONE)
        return sw_fail(SW_ERR_ARG, "%s: the added tokens '%.60s' and '%.60s' both have the id %d", path,
                       added->token[other].content.data, token->content.data, token->id);
    size_t same = 0, bytes = 0;
    const bool found = trie_match(&added->trie[token->is_normalized], sought, 0, &same, &bytes);
    if (found && bytes == sought.bytes)
        return sw_fail(SW_ERR_ARG, "%s: the added token '%.60s' is there twice, with the ids %d and %d", path,
                       token->content.data, added->token[same].id, token->id);
    return SW_OK;
}

/* Refuses switches that are neither true nor false. */
static sw_status check_switches(const json_t *json, const char *path) {
    static const char *const switches[] = {"special", "normalized", "single_word", "lstrip", "rstrip"};
    for (size_t i = 0; i < sizeof switches / sizeof switches[0]; i++) {
        const json_t *value = json_object_get(json, switches[i]);
        if (value != NULL && !json_is_null(value) && !json_is_boolean(value))
            return sw_fail(SW_ERR_ARG, "%s: '%s' of the added token '%.60s' is neither true nor false", path,
                           switches[i], json_string_value(json_object_get(json, "content")));
    }
    return SW_OK;
}

static sw_status read_token(struct sw_added_tokens *added, const json_t *json, const struct sw_vocabulary *vocabulary,
                            const struct sw_normalizer *normalizer, const char *path) {
    const json_t *content = json_object_get(json, "content");
    const json_t *id = json_object_get(json, "id");
    if (json_string_length(content) == 0)
        return sw_fail(SW_ERR_ARG, "%s: an added token has no content", path);
    SW_TRY(check_switches(json, path));
    struct sw_added_token *token = &added->token[added->count];
    *token = (struct sw_added_token){
        .special = json_is_true(json_object_get(json, "special")),
        .is_normalized = json_is_true(json_object_get(json, "normalized")),
        .single_word = json_is_true(json_object_get(json, "single_word")),
        .strips_left = json_is_true(json_object_get(json, "lstrip")),
        .strips_right = json_is_true(json_object_get(json, "rstrip")),
    };
    SW_TRY(copy((struct sw_text){json_string_value(content), json_string_length(content)}, &token->content));
    added->count++;
    SW_TRY(check_id(token, vocabulary, json_is_integer(id) ? json_integer_value(id) : -1, path));
    token->id = (int32_t)json_integer_value(id);
    if (token->id >= added->ids)
        added->ids = token->id + 1;
    SW_TRY(token->is_normalized ? normalize(normalizer, token) : SW_OK);
    const struct sw_text sought = token->is_normalized ? token->normalized : token->content;
    added->text_bytes += sought.bytes;
    if (added->text_bytes > MOST_TEXT_BYTES)
        return sw_fail(SW_ERR_ARG, "%s: its added tokens have more than 1 MiB of text, which is the most", path);
    SW_TRY(check_twice(added, token, sought, path));
    SW_TRY(token->special ? trie_add(&added->special, token->content, added->count - 1) : SW_OK);
    SW_TRY(sw_number_map_put(&added->of_id, (uint64_t)token->id, added->count - 1));
    return sought.bytes == 0 ? SW_OK : trie_add(&added->trie[token->is_normalized], sought, added->count - 1);
}

sw_status sw_added_tokens_create(const json_t *json, const struct sw_vocabulary *vocabulary,
                                 const struct sw_normalizer *normalizer, const char *path,
                                 struct sw_added_tokens **out) {
    struct sw_added_tokens *added = calloc(1, sizeof *added);
    const size_t count = json_array_size(json);
    if (added != NULL)
        added->token = calloc(count + 1, sizeof *added->token);
    sw_status status =
        added != NULL && added->token != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory for a tokenizer");
    for (size_t i = 0; status == SW_OK && i < count; i++)
        status = read_token(added, json_array_get(json, i), vocabulary, normalizer, path);
    if (status != SW_OK) {
        sw_added_tokens_destroy(added);
        return status;
    }
    *out = added;
    return SW_OK;
}

void sw_added_tokens_destroy(struct sw_added_tokens *added) {
    if (added == NULL)
        return;
    for (size_t i = 0; i < added->count; i++) {
        free((char *)(uintptr_t)added->token[i].content.data);
        free((char *)(uintptr_t)added->token[i].normalized.data);
    }
    free(added->token);
    sw_number_map_release(&added->of_id);
    trie_release(&added->trie[0]);
    trie_release(&added->trie[1]);
    trie_release(&added->special);
    free(added);
}

const struct sw_added_token *sw_added_token_of_id(const struct sw_added_tokens *added, int32_t id) {
    const uint64_t number = sw_number_map_get(&added->of_id, (uint64_t)id);
    return number == SW_NUMBER_NONE ? NULL : &added->token[number];
}

const struct sw_added_token *sw_added_token_find(const struct sw_added_tokens *added, const char *content) {
    for (size_t i = 0; i < added->count; i++)
        if (added->token[i].content.bytes == strlen(content) && strcmp(added->token[i].content.data, content) == 0)
            return &added->token[i];
    return NULL;
}

int32_t sw_added_tokens_ids(const struct sw_added_tokens *added) {
    return added->ids;
}

static bool has_space(struct sw_text text) {
    for (size_t i = 0; i < text.bytes; i++)
        if ((unsigned char)text.data[i] <= ' ')
            return true;
    return false;
}

static bool is_mark(char c) {
    return c != '\0' && strchr("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", c) != NULL;
}

bool sw_added_tokens_leave_words(const struct sw_added_tokens *added, struct sw_text space) {
    for (size_t i = 0; i < added->count; i++) {
        const struct sw_added_token *token = &added->token[i];
        struct sw_text sought = token->is_normalized ? token->normalized : token->content;
        if (sought.bytes > space.bytes && memcmp(sought.data, space.data, space.bytes) == 0)
            sought = (struct sw_text){sought.data + space.bytes, sought.bytes - space.bytes};
        if (sought.bytes == 0 || !is_mark(sought.data[0]) || !is_mark(sought.data[sought.bytes - 1]))
            return false;
    }
    return true;
}

bool sw_added_tokens_take_parts(const struct sw_added_tokens *added) {
    for (size_t i = 0; i < added->count; i++) {
        const struct sw_added_token *token = &added->token[i];
        const struct sw_text sought = token->is_normalized ? token->normalized : token->content;
        if (sought.bytes == 0 || has_space(sought) || has_space(token->content) ||
            (token->strips_left && !is_mark(sought.data[0])) ||
            (token->strips_right && !is_mark(sought.data[sought.bytes - 1])))
            return false;
    }
    return true;
}

const struct sw_added_token *sw_added_tokens_next_special(const struct sw_added_tokens *added, struct sw_text text,
                                                          size_t from, size_t *out_begin) {
    for (size_t at = from; added->special.nodes > 0 && at < text.bytes; at++) {
        size_t number = 0, bytes = 0;
        if (!added->special.begins[(unsigned char)text.data[at]] ||
            !trie_match(&added->special, text, at, &number, &bytes))
            continue;
        *out_begin = at;
        return &added->token[number];
    }
    return NULL;
}

/* Tells whether no word continues on either side of a match. */
static bool stands_alone(struct sw_text text, size_t begin, size_t end) {
    const struct sw_text before = {text.data, begin}, after = {text.data + end, text.bytes - end};
    return (begin == 0 || !sw_utf8_is_word(sw_utf8_last(before))) &&
           (after.bytes == 0 || !sw_utf8_is_word(sw_utf8_read(after).code));
}

/* Includes the white space next to a match; on its left, only what was not taken before. */
static void take_space(struct sw_text text, size_t taken, struct sw_added_match *match) {
    if (match->token->strips_left && match->begin > taken)
        match->begin -= sw_utf8_trailing_space_bytes((struct sw_text){text.data + taken, match->begin - taken});
    if (match->token->strips_right)
        match->end += sw_utf8_leading_space_bytes((struct sw_text){text.data + match->end, text.bytes - match->end});
}

struct sw_added_match sw_added_tokens_next(const struct sw_added_tokens *added, struct sw_text text,
                                           struct sw_added_match before, struct sw_added_search search) {
    const struct trie *trie = &added->trie[search.normalized];
    for (size_t at = before.resume; trie->nodes > 0 && at < text.bytes; at++) {
        size_t number = 0, bytes = 0;
        if (!trie->begins[(unsigned char)text.data[at]] || !trie_match(trie, text, at, &number, &bytes))
            continue;
        const struct sw_added_token *token = &added->token[number];
        struct sw_added_match match = {.token = token, .begin = at, .end = at + bytes, .resume = at + bytes};
        /* After a rejected match the search continues after it, as in `tokenizers`. */
        at = match.end - 1;
        if ((token->special && !search.with_special) ||
            (token->single_word && !stands_alone(text, match.begin, match.end)))
            continue;
        take_space(text, before.end, &match);
        return match;
    }
    return (struct sw_added_match){.begin = text.bytes, .end = text.bytes, .resume = text.bytes};
}
