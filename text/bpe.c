/* Byte pair encoding by ranked merges.
 *
 * A short piece, as most words are, is scanned for the best merge each time: with a few symbols that beats any
 * structure. A long piece uses a heap of candidate merges over a doubly linked list, so that a megabyte without a space
 * still takes n log n. Entries of the heap are not removed when a neighbour changes; a stale one is recognised when it
 * comes up.
 *
 * Text repeats its words, so each thread keeps recent pieces and their ids in a small hash table without chains: a
 * collision replaces the entry and costs only time. */
#include "text/bpe.h"

#include "text/buffer.h"
#include "text/unicode.h"
#include "text/vocabulary.h"

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

struct sw_merges;

/* Memory of one thread, which grows to the needs of its longest piece. A zeroed struct is empty. */
struct sw_merge_scratch {
    struct sw_merge_symbol *symbol;
    size_t symbols;
    uint64_t *heap; /* entries of rank and position */
    size_t heap_used, heap_room;
};

struct sw_merges {
    struct sw_number_map of_pair; /* left and right id → rank and id of the merge */
};

/* A symbol of a piece. A symbol that was joined to its left neighbour has id -1. */
struct sw_merge_symbol {
    int32_t id, before, after; /* before, after: positions of the neighbours; -1: none */
};

enum { HALF_BITS = 32 };

static uint64_t pair_of(int32_t left, int32_t right) {
    return (uint64_t)(uint32_t)left << HALF_BITS | (uint32_t)right;
}

static uint32_t rank_of(uint64_t merge) {
    return (uint32_t)(merge >> HALF_BITS);
}

static sw_status find_token(const struct sw_vocabulary *vocabulary, const char *token, size_t rank, const char *path,
                            int32_t *out_id) {
    SW_TRY(sw_vocabulary_find_spelled(vocabulary, (struct sw_text){token, strlen(token)}, out_id));
    return *out_id >= 0 ? SW_OK
                        : sw_fail(SW_ERR_ARG, "%s: merge %zu names the token '%.60s', which is not in the vocabulary",
                                  path, rank + 1, token);
}

/* Adds the merge of `rank`. `both` is scratch memory. */
static sw_status add(struct sw_merges *merges, const struct sw_vocabulary *vocabulary, const char *left,
                     const char *right, size_t rank, const char *path, struct sw_text_buffer *both) {
    int32_t left_id, right_id, id;
    both->bytes = 0;
    SW_TRY(sw_text_buffer_append(both, (struct sw_text){left, strlen(left)}));
    SW_TRY(sw_text_buffer_append(both, (struct sw_text){right, strlen(right) + 1}));
    SW_TRY(find_token(vocabulary, left, rank, path, &left_id));
    SW_TRY(find_token(vocabulary, right, rank, path, &right_id));
    SW_TRY(find_token(vocabulary, both->data, rank, path, &id));
    return sw_number_map_put(&merges->of_pair, pair_of(left_id, right_id), (uint64_t)rank << HALF_BITS | (uint32_t)id);
}

/* Splits "left right", using scratch memory. */
static sw_status split(const json_t *merge, size_t rank, const char *path, struct sw_text_buffer *buffer,
                       const char **out_left, const char **out_right) {
    if (json_is_array(merge) && json_array_size(merge) == 2) {
        *out_left = json_string_value(json_array_get(merge, 0));
        *out_right = json_string_value(json_array_get(merge, 1));
        if (*out_left != NULL && *out_right != NULL)
            return SW_OK;
    }
    const char *text = json_string_value(merge);
    const char *space = text == NULL ? NULL : strchr(text, ' ');
    if (space == NULL || strchr(space + 1, ' ') != NULL)
        return sw_fail(SW_ERR_ARG, "%s: merge %zu is not two tokens", path, rank + 1);
    buffer->bytes = 0;
    SW_TRY(sw_text_buffer_append(buffer, (struct sw_text){text, strlen(text) + 1}));
    buffer->data[space - text] = 0;
    *out_left = buffer->data;
    *out_right = buffer->data + (space - text) + 1;
    return SW_OK;
}

/* State of reading the merges. */
struct reading {
    struct sw_merges *merges;
    const struct sw_vocabulary *vocabulary;
    const char *path;
    size_t rank; /* of the next merge */
    struct sw_text_buffer parts, both;
};

static sw_status take_part(void *context, const json_t *part) {
    struct reading *r = context;
    for (size_t i = 0; i < json_array_size(part); i++, r->rank++) {
        const char *left, *right;
        SW_TRY(split(json_array_get(part, i), r->rank, r->path, &r->parts, &left, &right));
        SW_TRY(add(r->merges, r->vocabulary, left, right, r->rank, r->path, &r->both));
    }
    return SW_OK;
}

static void merges_destroy(struct sw_merges *merges);

/* Reads the array `merges` of a tokenizer.json, "left right" or ["left", "right"]. The first has rank 0. */
static sw_status merges_create(const struct sw_large_member *list, const struct sw_vocabulary *vocabulary,
                               struct sw_merges **out) {
    if (list->text.data == NULL)
        return sw_fail(SW_ERR_ARG, "%s: its model has no list of merges", list->path);
    struct sw_merges *merges = calloc(1, sizeof *merges);
    if (merges == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for the merges of a tokenizer");
    struct reading reading = {.merges = merges, .vocabulary = vocabulary, .path = list->path};
    const sw_status status = sw_large_member_read(list, take_part, &reading);
    free(reading.parts.data);
    free(reading.both.data);
    if (status != SW_OK) {
        merges_destroy(merges);
        return status;
    }
    *out = merges;
    return SW_OK;
}

static void merges_destroy(struct sw_merges *merges) {
    if (merges == NULL)
        return;
    sw_number_map_release(&merges->of_pair);
    free(merges);
}

static void merge_scratch_release(struct sw_merge_scratch *scratch) {
    free(scratch->symbol);
    free(scratch->heap);
    *scratch = (struct sw_merge_scratch){0};
}

static uint64_t merge_of(const struct sw_merges *merges, int32_t left, int32_t right) {
    return sw_number_map_get(&merges->of_pair, pair_of(left, right));
}

/* A short piece: searching all pairs for each merge beats a heap. `merge` has the merge of each pair. */
enum { SHORT_SYMBOLS = 24 };
static void apply_to_short(const struct sw_merges *merges, struct sw_token_list *symbols) {
    uint64_t merge[SHORT_SYMBOLS];
    int32_t *id = symbols->id;
    size_t count = symbols->count;
    for (size_t i = 0; i + 1 < count; i++)
        merge[i] = merge_of(merges, id[i], id[i + 1]);
    while (count > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < count; i++)
            if (rank_of(merge[i]) < rank_of(merge[best]))
                best = i;
        if (merge[best] == SW_NUMBER_NONE)
            break;
        id[best] = (int32_t)(uint32_t)merge[best];
        count--;
        memmove(&id[best + 1], &id[best + 2], (count - best - 1) * sizeof *id);
        memmove(&merge[best], &merge[best + 1], (count - best - 1) * sizeof *merge);
        if (best + 1 < count)
            merge[best] = merge_of(merges, id[best], id[best + 1]);
        if (best > 0)
            merge[best - 1] = merge_of(merges, id[best - 1], id[best]);
    }
    symbols->count = count;
}

/* A heap of rank and position, smallest first. */
static sw_status heap_push(struct sw_merge_scratch *scratch, uint64_t entry) {
    if (scratch->heap_used == scratch->heap_room) {
        const size_t room = scratch->heap_room == 0 ? 256 : 2 * scratch->heap_room;
        uint64_t *heap = reallocarray(scratch->heap, room, sizeof *heap);
        if (heap == NULL)
            return sw_fail(SW_ERR_NOMEM, "no memory to encode a long piece of text");
        scratch->heap = heap;
        scratch->heap_room = room;
    }
    size_t at = scratch->heap_used++;
    for (; at > 0 && entry < scratch->heap[(at - 1) / 2]; at = (at - 1) / 2)
        scratch->heap[at] = scratch->heap[(at - 1) / 2];
    scratch->heap[at] = entry;
    return SW_OK;
}

static uint64_t heap_pop(struct sw_merge_scratch *scratch) {
    uint64_t *heap = scratch->heap;
    const uint64_t least = heap[0], last = heap[--scratch->heap_used];
    size_t at = 0;
    for (size_t child; (child = 2 * at + 1) < scratch->heap_used; at = child) {
        if (child + 1 < scratch->heap_used && heap[child + 1] < heap[child])
            child++;
        if (last <= heap[child])
            break;
        heap[at] = heap[child];
    }
    heap[at] = last;
    return least;
}

/* Pushes the merge of the pair at a position, if there is one. */
static sw_status push_pair(const struct sw_merges *merges, struct sw_merge_scratch *scratch, int32_t at) {
    const struct sw_merge_symbol *symbol = scratch->symbol;
    if (at < 0 || symbol[at].after < 0)
        return SW_OK;
    const uint64_t merge = merge_of(merges, symbol[at].id, symbol[symbol[at].after].id);
    return merge == SW_NUMBER_NONE ? SW_OK : heap_push(scratch, (uint64_t)rank_of(merge) << HALF_BITS | (uint32_t)at);
}

static sw_status link_symbols(struct sw_merge_scratch *scratch, const struct sw_token_list *symbols) {
    if (scratch->symbols < symbols->count) {
        struct sw_merge_symbol *symbol = reallocarray(scratch->symbol, symbols->count, sizeof *symbol);
        if (symbol == NULL)
            return sw_fail(SW_ERR_NOMEM, "no memory to encode a long piece of text");
        scratch->symbol = symbol;
        scratch->symbols = symbols->count;
    }
    for (size_t i = 0; i < symbols->count; i++)
        scratch->symbol[i] = (struct sw_merge_symbol){
            .id = symbols->id[i], .before = (int32_t)i - 1, .after = i + 1 < symbols->count ? (int32_t)i + 1 : -1};
    return SW_OK;
}

/* Joins the pair at a position, unless it has changed since it was pushed with this rank. */
static sw_status join(const struct sw_merges *merges, struct sw_merge_scratch *scratch, int32_t at, uint32_t rank) {
    struct sw_merge_symbol *symbol = scratch->symbol;
    const int32_t right = symbol[at].after;
    if (symbol[at].id < 0 || right < 0)
        return SW_OK;
    const uint64_t merge = merge_of(merges, symbol[at].id, symbol[right].id);
    if (merge == SW_NUMBER_NONE || rank_of(merge) != rank)
        return SW_OK;
    symbol[at].id = (int32_t)(uint32_t)merge;
    symbol[at].after = symbol[right].after;
    symbol[right].id = -1;
    if (symbol[at].after >= 0)
        symbol[symbol[at].after].before = at;
    SW_TRY(push_pair(merges, scratch, symbol[at].before));
    return push_pair(merges, scratch, at);
}

static sw_status apply_to_long(const struct sw_merges *merges, struct sw_merge_scratch *scratch,
                               struct sw_token_list *symbols) {
    scratch->heap_used = 0;
    SW_TRY(link_symbols(scratch, symbols));
    for (size_t i = 0; i < symbols->count; i++)
        SW_TRY(push_pair(merges, scratch, (int32_t)i));
    while (scratch->heap_used > 0) {
        const uint64_t entry = heap_pop(scratch);
        SW_TRY(join(merges, scratch, (int32_t)(uint32_t)entry, (uint32_t)(entry >> HALF_BITS)));
    }
    symbols->count = 0;
    for (int32_t at = 0; at >= 0; at = scratch->symbol[at].after)
        symbols->id[symbols->count++] = scratch->symbol[at].id;
    return SW_OK;
}

/* Joins symbols in place until no merge applies. At most 2^30 symbols. */
static sw_status merges_apply(const struct sw_merges *merges, struct sw_merge_scratch *scratch,
                              struct sw_token_list *symbols) {
    if (symbols->count > SHORT_SYMBOLS)
        return apply_to_long(merges, scratch, symbols);
    apply_to_short(merges, symbols);
    return SW_OK;
}

static bool follows_another(struct sw_text text, struct sw_text character) {
    bool other = false;
    for (size_t at = 0; at < text.bytes;) {
        const bool is =
            text.bytes - at >= character.bytes && memcmp(text.data + at, character.data, character.bytes) == 0;
        if (is && other)
            return true;
        other = other || !is;
        at += is ? character.bytes : 1;
    }
    return false;
}

/* Tells whether no merge makes a token in which this character follows another one. */
static bool merges_never_join_before(const struct sw_merges *merges, const struct sw_vocabulary *vocabulary,
                                     struct sw_text character) {
    for (size_t i = 0; i < merges->of_pair.slots; i++) {
        const uint64_t merge = merges->of_pair.slot[i].value;
        if (merge != SW_NUMBER_NONE &&
            follows_another(sw_vocabulary_text(vocabulary, (int32_t)(uint32_t)merge), character))
            return false;
    }
    return true;
}

enum { BYTES = 256, NO_ID = -1 };

struct sw_bpe {
    const struct sw_vocabulary *vocabulary;
    struct sw_merges *merges;
    bool byte_level;
    bool whole_first;  /* "ignore_merges": a piece that is a token becomes that token, whatever the merges make of it */
    bool fuse_unknown; /* consecutive characters without a token become one unknown token */
    int32_t unknown;   /* id for characters without a token; NO_ID: they are left out */
    int32_t of_byte[BYTES]; /* byte-level: the token of each byte; else its replacement, if all bytes have one */
    bool has_bytes;         /* a character without a token becomes the tokens of its bytes */
};

/* Recent pieces and their ids, in slots chosen by hash. Most words of a text have few bytes and fewer tokens. */
enum { CACHE_SLOTS = 1 << 14, CACHED_BYTES = 30, CACHED_IDS = 8 };
struct cached {
    uint8_t bytes, ids; /* bytes 0: the slot is empty */
    char text[CACHED_BYTES];
    int32_t id[CACHED_IDS];
};
_Static_assert(sizeof(struct cached) == 64, "a slot is a cache line");

struct sw_bpe_scratch {
    struct cached *cached;
    struct sw_token_list symbols;
    struct sw_merge_scratch merge;
};

static sw_status refuse_member(const json_t *model, const char *name, const char *path) {
    const json_t *value = json_object_get(model, name);
    if (value == NULL || json_is_null(value) || (json_is_string(value) && json_string_length(value) == 0) ||
        (json_is_number(value) && json_number_value(value) == 0))
        return SW_OK;
    return sw_fail(SW_ERR_UNSUPPORTED, "%s: its model has '%s', which this version does not have", path, name);
}

static sw_status find_byte_tokens(struct sw_bpe *bpe, const char *path) {
    for (int byte = 0; byte < BYTES; byte++) {
        const char text = (char)byte;
        char spelled[8];
        (void)snprintf(spelled, sizeof spelled, "<0x%02X>", (unsigned)byte);
        if (bpe->byte_level)
            bpe->of_byte[byte] = sw_vocabulary_find(bpe->vocabulary, (struct sw_text){&text, 1});
        else
            SW_TRY(sw_vocabulary_find_spelled(bpe->vocabulary, (struct sw_text){spelled, strlen(spelled)},
                                              &bpe->of_byte[byte]));
        if (bpe->byte_level && bpe->of_byte[byte] < 0)
            return sw_fail(SW_ERR_ARG, "%s: its vocabulary has no token for the byte 0x%02X", path, (unsigned)byte);
    }
    return SW_OK;
}

/* Refuses unknown members, and switches that are neither true nor false. */
static sw_status check_members(const json_t *model, const char *path) {
    static const char *const known[] = {
        "type",          "vocab", "merges", "unk_token", "continuing_subword_prefix", "dropout", "end_of_word_suffix",
        "cache_capacity"};
    static const char *const switches[] = {"ignore_merges", "fuse_unk", "byte_fallback"};
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)model, name, value) {
        bool is_known = json_is_null(value);
        for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
            is_known = is_known || strcmp(name, known[i]) == 0;
        for (size_t i = 0; i < sizeof switches / sizeof switches[0]; i++)
            is_known = is_known || (strcmp(name, switches[i]) == 0 && json_is_boolean(value));
        if (!is_known)
            return sw_fail(SW_ERR_UNSUPPORTED, "%s: the member '%.60s' of its model is not known or has an odd value",
                           path, name);
    }
    return SW_OK;
}

static sw_status read_model(struct sw_bpe *bpe, const json_t *model, const struct sw_large_member *merges) {
    const char *path = merges->path;
    static const char *const lacking[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix"};
    SW_TRY(check_members(model, path));
    for (size_t i = 0; i < sizeof lacking / sizeof lacking[0]; i++)
        SW_TRY(refuse_member(model, lacking[i], path));
    bpe->whole_first = json_is_true(json_object_get(model, "ignore_merges"));
    bpe->fuse_unknown = json_is_true(json_object_get(model, "fuse_unk"));
    bpe->has_bytes = !bpe->byte_level && json_is_true(json_object_get(model, "byte_fallback"));
    const char *unknown = json_string_value(json_object_get(model, "unk_token"));
    bpe->unknown = NO_ID;
    if (unknown != NULL) {
        SW_TRY(sw_vocabulary_find_spelled(bpe->vocabulary, (struct sw_text){unknown, strlen(unknown)}, &bpe->unknown));
        if (bpe->unknown < 0)
            return sw_fail(SW_ERR_ARG, "%s: its unk_token '%.60s' is not in the vocabulary", path, unknown);
    }
    SW_TRY(find_byte_tokens(bpe, path));
    return merges_create(merges, bpe->vocabulary, &bpe->merges);
}

sw_status sw_bpe_create(const json_t *model, const struct sw_large_member *merges,
                        const struct sw_vocabulary *vocabulary, bool byte_level, struct sw_bpe **out) {
    struct sw_bpe *bpe = calloc(1, sizeof *bpe);
    if (bpe == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory for a tokenizer");
    bpe->vocabulary = vocabulary;
    bpe->byte_level = byte_level;
    const sw_status status = read_model(bpe, model, merges);
    if (status != SW_OK) {
        sw_bpe_destroy(bpe);
        return status;
    }
    *out = bpe;
    return SW_OK;
}

void sw_bpe_destroy(struct sw_bpe *bpe) {
    if (bpe == NULL)
        return;
    merges_destroy(bpe->merges);
    free(bpe);
}

bool sw_bpe_may_cut_before(const struct sw_bpe *bpe, struct sw_text character) {
    return !bpe->whole_first && sw_vocabulary_find(bpe->vocabulary, character) >= 0 &&
           merges_never_join_before(bpe->merges, bpe->vocabulary, character);
}

sw_status sw_bpe_scratch_create(struct sw_bpe_scratch **out) {
    struct sw_bpe_scratch *scratch = calloc(1, sizeof *scratch);
    if (scratch != NULL)
        scratch->cached = calloc(CACHE_SLOTS, sizeof *scratch->cached);
    if (scratch == NULL || scratch->cached == NULL) {
        sw_bpe_scratch_destroy(scratch);
        return sw_fail(SW_ERR_NOMEM, "no memory to encode text");
    }
    *out = scratch;
    return SW_OK;
}

void sw_bpe_scratch_destroy(struct sw_bpe_scratch *scratch) {
    if (scratch == NULL)
        return;
    free(scratch->cached);
    free(scratch->symbols.id);
    merge_scratch_release(&scratch->merge);
    free(scratch);
}

static void take_bytes(const struct sw_bpe *bpe, struct sw_text piece, struct sw_token_list *symbols) {
    for (size_t i = 0; i < piece.bytes; i++)
        symbols->id[symbols->count++] = bpe->of_byte[(unsigned char)piece.data[i]];
}

/* Appends the tokens of a character's bytes. Returns false if a byte has none. */
static bool take_byte_tokens(const struct sw_bpe *bpe, struct sw_text character, struct sw_token_list *symbols) {
    const size_t before = symbols->count;
    for (size_t i = 0; i < character.bytes; i++) {
        const int32_t id = bpe->of_byte[(unsigned char)character.data[i]];
        if (id < 0) {
            symbols->count = before;
            return false;
        }
        symbols->id[symbols->count++] = id;
    }
    return true;
}

/* An unknown token is appended only once a known one, or the end, follows, because consecutive ones may be fused. */
static void take_characters(const struct sw_bpe *bpe, struct sw_text piece, struct sw_token_list *symbols) {
    bool waits = false;
    for (size_t at = 0, bytes; at < piece.bytes; at += bytes) {
        bytes = sw_utf8_read((struct sw_text){piece.data + at, piece.bytes - at}).bytes;
        const struct sw_text character = {piece.data + at, bytes};
        const int32_t id = sw_vocabulary_find(bpe->vocabulary, character);
        if (id < 0 && bpe->has_bytes && take_byte_tokens(bpe, character, symbols))
            continue;
        if (waits && (id >= 0 || !bpe->fuse_unknown)) {
            symbols->id[symbols->count++] = bpe->unknown;
            waits = false;
        }
        if (id >= 0)
            symbols->id[symbols->count++] = id;
        else
            waits = bpe->unknown >= 0;
    }
    if (waits)
        symbols->id[symbols->count++] = bpe->unknown;
}

static sw_status merge(const struct sw_bpe *bpe, struct sw_bpe_scratch *scratch, struct sw_text piece,
                       struct sw_token_list *out) {
    struct sw_token_list *symbols = &scratch->symbols;
    symbols->count = 0;
    SW_TRY(sw_token_list_reserve(symbols, piece.bytes));
    if (bpe->byte_level)
        take_bytes(bpe, piece, symbols);
    else
        take_characters(bpe, piece, symbols);
    SW_TRY(merges_apply(bpe->merges, &scratch->merge, symbols));
    return sw_token_list_append(out, symbols->id, symbols->count);
}

static sw_status encode(const struct sw_bpe *bpe, struct sw_bpe_scratch *scratch, struct sw_text piece,
                        struct sw_token_list *out) {
    if (bpe->whole_first) {
        const int32_t id = sw_vocabulary_find(bpe->vocabulary, piece);
        if (id >= 0)
            return sw_token_list_append(out, &id, 1);
    }
    return merge(bpe, scratch, piece, out);
}

sw_status sw_bpe_encode(const struct sw_bpe *bpe, struct sw_bpe_scratch *scratch, struct sw_text piece,
                        struct sw_token_list *out) {
    enum { MOST_BYTES = 16 << 20 }; /* merging takes thirty times as much */
    if (piece.bytes == 0)
        return SW_OK;
    if (piece.bytes > MOST_BYTES)
        return sw_fail(SW_ERR_UNSUPPORTED,
                       "a piece of text of %zu bytes without a break cannot be encoded; at most 16 MiB", piece.bytes);
    if (piece.bytes > CACHED_BYTES)
        return encode(bpe, scratch, piece, out);
    struct cached *cached = &scratch->cached[XXH3_64bits(piece.data, piece.bytes) & (CACHE_SLOTS - 1)];
    if (cached->bytes == piece.bytes && memcmp(cached->text, piece.data, piece.bytes) == 0)
        return sw_token_list_append(out, cached->id, cached->ids);
    const size_t before = out->count;
    SW_TRY(encode(bpe, scratch, piece, out));
    const size_t ids = out->count - before;
    if (ids <= CACHED_IDS) {
        cached->bytes = (uint8_t)piece.bytes;
        cached->ids = (uint8_t)ids;
        memcpy(cached->text, piece.data, piece.bytes);
        if (ids > 0)
            memcpy(cached->id, out->id + before, ids * sizeof *out->id);
    }
    return SW_OK;
}
