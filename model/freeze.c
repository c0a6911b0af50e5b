#include "model/freeze.h"

#include <ctype.h>
#include <errno.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#define EMBEDDING "embedding"
#define BLOCKS "blocks:"

enum { PATTERN_CHARS = 256 };

/* One part of the text. */
struct part {
    char pattern[PATTERN_CHARS]; /* the part as given */
    bool embedding, blocks;      /* what it names; neither: the tensors that match the pattern */
    int64_t first_block, last_block;
};

/* Parses a block's number. Returns what follows it, or NULL if there is no number. */
static const char *parse_number(const char *text, int64_t *out) {
    char *end;
    if (!isdigit((unsigned char)*text))
        return NULL;
    errno = 0;
    *out = strtoll(text, &end, 10);
    return errno == 0 ? end : NULL;
}

/* Parses "0-11", or "0" for one block. */
static bool parse_range(const char *range, struct part *out) {
    const char *at = parse_number(range, &out->first_block);
    out->last_block = out->first_block;
    if (at != NULL && *at == '-')
        at = parse_number(at + 1, &out->last_block);
    return at != NULL && *at == '\0' && out->first_block <= out->last_block;
}

/* Parses the part at *text and moves *text behind it, to NULL after the last part. */
static sw_status next_part(const char **text, struct part *out) {
    const size_t length = strcspn(*text, ",");
    *out = (struct part){0};
    if (length == 0)
        return sw_fail(SW_ERR_ARG, "--freeze has an empty part; name the embedding, blocks or tensors, as in "
                                   "embedding,blocks:0-11 or '*.mlp.*'");
    if (length >= sizeof out->pattern)
        return sw_fail(SW_ERR_ARG, "a part of --freeze is longer than %d characters", PATTERN_CHARS - 1);
    memcpy(out->pattern, *text, length);
    *text = (*text)[length] == ',' ? *text + length + 1 : NULL;
    out->embedding = strcmp(out->pattern, EMBEDDING) == 0;
    out->blocks = strncmp(out->pattern, BLOCKS, strlen(BLOCKS)) == 0;
    if (out->blocks && !parse_range(out->pattern + strlen(BLOCKS), out))
        return sw_fail(SW_ERR_ARG, "'%s' in --freeze is not blocks:FIRST-LAST, counted from 0, as in blocks:0-11",
                       out->pattern);
    return SW_OK;
}

static sw_status refuse_name(const struct part *part, const char *why) {
    return sw_fail(SW_ERR_ARG, "'%s' in --freeze is neither embedding nor blocks:FIRST-LAST, and %s", part->pattern,
                   why);
}

static sw_status check_freeze(const char *text) {
    struct part part;
    bool embedding = false;
    while (text != NULL) {
        SW_TRY(next_part(&text, &part));
        if (part.embedding && embedding)
            return sw_fail(SW_ERR_ARG, "--freeze names %s twice; give it once, as in embedding,blocks:0-11", EMBEDDING);
        embedding |= part.embedding;
        /* Names in checkpoints have dots. */
        if (!part.embedding && !part.blocks && strpbrk(part.pattern, ".*?[") == NULL)
            return refuse_name(&part, "no pattern of tensors' names, as '*.mlp.*' is");
    }
    return SW_OK;
}

/* Freezes the tensors of units [first, end) whose names match. Returns their number. */
static int64_t freeze_units(struct sw_units *units, int64_t first, int64_t end, const char *pattern) {
    int64_t count = 0;
    for (int64_t u = first; u < end; u++)
        for (int64_t t = 0; t < units->unit[u].tensor_count; t++)
            if (fnmatch(pattern, units->unit[u].tensor[t].name, 0) == 0) {
                units->unit[u].tensor[t].frozen = true;
                count++;
            }
    return count;
}

/* some: the units are one rank's part, so a pattern may name only tensors of other ranks. */
static sw_status freeze_part(const struct part *part, const struct sw_model_config *config, int64_t block_units,
                             bool some, struct sw_units *units) {
    if (part->embedding) {
        freeze_units(units, 0, 1, "*");
        return SW_OK;
    }
    if (part->blocks && part->last_block >= config->layers)
        return sw_fail(SW_ERR_ARG, "--freeze names block %lld, but the model has blocks 0 to %lld",
                       (long long)part->last_block, (long long)(config->layers - 1));
    if (part->blocks) {
        freeze_units(units, 1 + part->first_block * block_units, 1 + (part->last_block + 1) * block_units, "*");
        return SW_OK;
    }
    if (freeze_units(units, 0, units->count, part->pattern) > 0 || some)
        return SW_OK;
    return refuse_name(part, "no tensor of the model has such a name");
}

/* Returns the number of tensors that are trained. */
static int64_t count_trained(const struct sw_units *units) {
    int64_t trained = 0;
    for (int64_t u = 0; u < units->count; u++)
        for (int64_t t = 0; t < units->unit[u].tensor_count; t++)
            trained += !units->unit[u].tensor[t].frozen;
    return trained;
}

/* Freezes what --freeze names. */
static sw_status freeze_tensors(const char *text, const struct sw_model_config *config, int64_t block_units, bool some,
                                struct sw_units *units) {
    while (text != NULL) {
        struct part part;
        SW_TRY(next_part(&text, &part));
        SW_TRY(freeze_part(&part, config, block_units, some, units));
    }
    return count_trained(units) > 0 ? SW_OK : sw_fail(SW_ERR_ARG, "--freeze leaves no tensor of the model to train");
}

static bool same_text(const char *a, const char *b) {
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

static const char **texts_of(struct sw_tuning *tuning, int i) {
    const char **texts[] = {&tuning->freeze, &tuning->lora.targets, &tuning->lora.modules_to_save,
                            &tuning->optimizer_for};
    return i < (int)(sizeof texts / sizeof texts[0]) ? texts[i] : NULL;
}

sw_status sw_tuning_copy(const struct sw_tuning *from, struct sw_tuning *out) {
    const char **text;
    bool whole = true;
    *out = *from;
    for (int i = 0; (text = texts_of(out, i)) != NULL; i++)
        if (*text != NULL)
            whole &= (*text = strdup(*text)) != NULL;
    if (whole)
        return SW_OK;
    sw_tuning_release(out);
    return sw_fail(SW_ERR_NOMEM, "no memory to describe what is trained");
}

void sw_tuning_release(struct sw_tuning *tuning) {
    const char **text;
    for (int i = 0; (text = texts_of(tuning, i)) != NULL; i++)
        free((char *)*text);
    *tuning = (struct sw_tuning){0};
}

bool sw_tuning_same(const struct sw_tuning *a, const struct sw_tuning *b) {
    const struct sw_lora *x = &a->lora, *y = &b->lora;
    return same_text(a->freeze, b->freeze) && a->base == b->base && a->optimizer == b->optimizer &&
           same_text(a->optimizer_for, b->optimizer_for) && x->rank == y->rank && x->alpha == y->alpha &&
           x->rank_stabilized == y->rank_stabilized && x->dropout == y->dropout && same_text(x->targets, y->targets) &&
           same_text(x->modules_to_save, y->modules_to_save);
}

sw_status sw_tuning_check(const struct sw_tuning *tuning) {
    if (tuning->freeze != NULL && tuning->lora.rank > 0)
        return sw_fail(SW_ERR_ARG, "--lora freezes all but the adapters and --modules-to-save; leave out --freeze");
    if (tuning->base != SW_BASE_TYPED && !sw_tuning_freezes(tuning))
        return sw_fail(SW_ERR_ARG,
                       "--base-format %s is for weights that are not trained; give --lora or --freeze too, or leave it "
                       "out",
                       sw_base_format_name((sw_base_format)tuning->base));
    SW_TRY(sw_lora_check(&tuning->lora));
    return check_freeze(tuning->freeze);
}

sw_status sw_tuning_apply(const struct sw_tuning *tuning, const struct sw_model_config *config, int ranks,
                          int64_t tiles, struct sw_units *units) {
    const struct sw_unit *embedding = &units->unit[0];
    const int64_t block_units = (units->count - 2) / config->layers;
    if (!sw_tuning_freezes(tuning))
        return SW_OK;
    units->base = (sw_base_format)tuning->base;
    SW_TRY(tuning->lora.rank > 0 ? sw_lora_add(&tuning->lora, config, ranks > 1, tiles, units)
                                 : freeze_tensors(tuning->freeze, config, block_units, ranks > 1, units));
    /* Its gradient comes first, and that of a tied table begins with the head. */
    for (int64_t t = 1; t < embedding->tensor_count; t++)
        if (embedding->tensor[0].frozen && !embedding->tensor[t].frozen)
            return sw_fail(SW_ERR_UNSUPPORTED, "%s is trained only with %s", embedding->tensor[t].name,
                           embedding->tensor[0].name);
    return SW_OK;
}
