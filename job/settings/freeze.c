#include "job/settings/freeze.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define EMBEDDING "embedding"
#define BLOCKS "blocks:"

/* The parts of --freeze as they are written. */
struct parts {
    bool embedding, blocks;
    int64_t first_block, last_block;
};

static bool is_word(const char *part, size_t length, const char *word) {
    return strlen(word) == length && strncmp(part, word, length) == 0;
}

/* Parses a block's number. Returns what is behind it, or NULL where there is none. */
static const char *parse_number(const char *text, int64_t *out) {
    char *end;
    if (!isdigit((unsigned char)*text))
        return NULL;
    errno = 0;
    *out = strtoll(text, &end, 10);
    return errno == 0 ? end : NULL;
}

/* Parses "0-11", or "0" for one block. */
static bool parse_range(const char *range, const char *end, struct parts *out) {
    const char *at = parse_number(range, &out->first_block);
    out->last_block = out->first_block;
    if (at != NULL && at != end && *at == '-')
        at = parse_number(at + 1, &out->last_block);
    return at == end && out->first_block <= out->last_block;
}

static sw_status parse_part(const char *part, size_t length, struct parts *out) {
    const size_t prefix = strlen(BLOCKS);
    const bool blocks = length > prefix && strncmp(part, BLOCKS, prefix) == 0;
    bool *seen = blocks ? &out->blocks : &out->embedding;
    if (!blocks && !is_word(part, length, EMBEDDING))
        return sw_fail(SW_ERR_ARG,
                       "'%.*s' in --freeze is neither embedding nor blocks:FIRST-LAST; only these whole units can be "
                       "frozen, as in embedding,blocks:0-11",
                       (int)length, part);
    if (*seen)
        return sw_fail(SW_ERR_ARG, "--freeze names %s twice; give it once, as in embedding,blocks:0-11",
                       blocks ? "blocks" : EMBEDDING);
    *seen = true;
    if (blocks && !parse_range(part + prefix, part + length, out))
        return sw_fail(SW_ERR_ARG, "'%.*s' in --freeze is not blocks:FIRST-LAST, counted from 0, as in blocks:0-11",
                       (int)length, part);
    return SW_OK;
}

/* Without the embedding, or with a gap below them, frozen blocks have trained units below. */
static sw_status check_leading(const struct parts *parts) {
    const long long last = (long long)parts->last_block;
    if (!parts->blocks || (parts->embedding && parts->first_block == 0))
        return SW_OK;
    return sw_fail(SW_ERR_ARG,
                   "--freeze can only freeze blocks with everything below them, so that the backward pass ends there; "
                   "give embedding,blocks:0-%lld",
                   last);
}

sw_status sw_freeze_parse(const char *text, struct sw_freeze *out) {
    struct parts parts = {0};
    *out = (struct sw_freeze){0};
    for (const char *part = text; part != NULL;) {
        const size_t length = strcspn(part, ",");
        SW_TRY(parse_part(part, length, &parts));
        part = part[length] == ',' ? part + length + 1 : NULL;
    }
    SW_TRY(check_leading(&parts));
    *out = (struct sw_freeze){.embedding = parts.embedding, .blocks = parts.blocks ? parts.last_block + 1 : 0};
    return SW_OK;
}

sw_status sw_freeze_units(const char *text, int64_t layers, int64_t block_units, int64_t *out) {
    struct sw_freeze freeze;
    SW_TRY(sw_freeze_parse(text, &freeze));
    if (freeze.blocks > layers)
        return sw_fail(SW_ERR_ARG, "--freeze names block %lld, but the model has blocks 0 to %lld",
                       (long long)(freeze.blocks - 1), (long long)(layers - 1));
    *out = (freeze.embedding ? 1 : 0) + freeze.blocks * block_units;
    return SW_OK;
}
