#include "text/bpe.h"

#include "text/merges.h"
#include "text/utf8.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { BYTES = 256, NO_ID = -1 };

struct sw_bpe {
    const struct sw_vocabulary *vocabulary;
    struct sw_merges *merges;
    bool byte_level;
    bool whole_first;       /* "ignore_merges": a piece that is a token becomes this token, whatever the merges make */
    bool fuse_unknown;      /* neighbouring characters without a token become one unknown token */
    int32_t unknown;        /* id for characters without a token; NO_ID: they are left out */
    int32_t of_byte[BYTES]; /* byte-level: the token of a byte; else what stands for it, where all bytes have one */
    bool has_bytes;         /* a character without a token becomes the tokens of its bytes */
};

/* Pieces met lately and their ids, in slots chosen by hash. Most words of a text have few bytes and fewer tokens. */
enum { CACHE_SLOTS = 1 << 14, CACHED_BYTES = 30, CACHED_IDS = 8 };
struct cached {
    uint8_t bytes, ids; /* 0 bytes: empty */
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

/* Refuses members that are not known, and switches that are neither true nor false. */
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
    return sw_merges_create(merges, bpe->vocabulary, &bpe->merges);
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
    sw_merges_destroy(bpe->merges);
    free(bpe);
}

bool sw_bpe_may_cut_before(const struct sw_bpe *bpe, struct sw_text character) {
    return !bpe->whole_first && sw_vocabulary_find(bpe->vocabulary, character) >= 0 &&
           sw_merges_never_join_before(bpe->merges, bpe->vocabulary, character);
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
    sw_merge_scratch_release(&scratch->merge);
    free(scratch);
}

static void take_bytes(const struct sw_bpe *bpe, struct sw_text piece, struct sw_token_list *symbols) {
    for (size_t i = 0; i < piece.bytes; i++)
        symbols->id[symbols->count++] = bpe->of_byte[(unsigned char)piece.data[i]];
}

/* The tokens of a character's bytes; false where one of them has none. */
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

/* An unknown token is put only once a known one follows it, or the end, because neighbours may be fused. */
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
    SW_TRY(sw_merges_apply(bpe->merges, &scratch->merge, symbols));
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
