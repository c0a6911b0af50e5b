#include "text/added_tokens.h"

#include "text/number_map.h"
#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>

/* Tries take a hundred times their text. Real tokenizers have less than 100 kB. */
enum { MOST_TEXT_BYTES = 1 << 20 };

/* A trie of the tokens that are looked for in one kind of text. Node 0 is the root. */
struct trie {
    struct sw_number_map edge;  /* node and byte → node */
    struct sw_number_map token; /* node → number of the token that ends there */
    uint32_t nodes;
    bool begins[256]; /* bytes that some token begins with */
};

struct sw_added_tokens {
    struct sw_added_token *token;
    size_t count;
    struct sw_number_map of_id; /* id → number of a token */
    struct trie trie[2];        /* of texts as given, and of normalized ones */
    struct trie special;        /* the special ones, as the file spells them */
    int32_t ids;
    size_t text_bytes; /* that tokens are looked for by */
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

/* Finds the longest token that the text has at `at`; false where there is none. */
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

/* A token's id is the vocabulary's, where it has one. */
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

/* Refuses a second token with the id of another one, or that is sought by the same text. */
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

/* Tells whether no word goes on at either side of a match. */
static bool stands_alone(struct sw_text text, size_t begin, size_t end) {
    const struct sw_text before = {text.data, begin}, after = {text.data + end, text.bytes - end};
    return (begin == 0 || !sw_utf8_is_word(sw_utf8_last(before))) &&
           (after.bytes == 0 || !sw_utf8_is_word(sw_utf8_read(after).code));
}

/* Takes the white space beside a match, on its left as far as it was not taken before. */
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
        /* The search goes on behind a match that is not taken, as that of `tokenizers` does. */
        at = match.end - 1;
        if ((token->special && !search.with_special) ||
            (token->single_word && !stands_alone(text, match.begin, match.end)))
            continue;
        take_space(text, before.end, &match);
        return match;
    }
    return (struct sw_added_match){.begin = text.bytes, .end = text.bytes, .resume = text.bytes};
}
