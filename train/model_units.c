/* The units of a model: embedding, blocks or tiles of blocks, head; and which part of a tensor each tile has. */
#include "core/size.h"
#include "train/model_private.h"

#include <stdio.h>

enum { DIVISORS_CHARS = 256 };

/* How the tiles of a block cut a tensor. */
enum cut {
    NOT_CUT, /* in the first tile of its half */
    ROWS,
    COLUMNS,
    THIRDS /* columns of each of query, key and value */
};

static const struct {
    const char *name;
    enum cut cut;
} block_tensors[BLOCK_TENSORS] = {
    [NORM1_SCALE] = {"ln_1.weight", NOT_CUT},           [NORM1_BIAS] = {"ln_1.bias", NOT_CUT},
    [QKV_WEIGHT] = {"attn.c_attn.weight", THIRDS},      [QKV_BIAS] = {"attn.c_attn.bias", THIRDS},
    [PROJECTION_WEIGHT] = {"attn.c_proj.weight", ROWS}, [PROJECTION_BIAS] = {"attn.c_proj.bias", NOT_CUT},
    [NORM2_SCALE] = {"ln_2.weight", NOT_CUT},           [NORM2_BIAS] = {"ln_2.bias", NOT_CUT},
    [UP_WEIGHT] = {"mlp.c_fc.weight", COLUMNS},         [UP_BIAS] = {"mlp.c_fc.bias", COLUMNS},
    [DOWN_WEIGHT] = {"mlp.c_proj.weight", ROWS},        [DOWN_BIAS] = {"mlp.c_proj.bias", NOT_CUT},
};

/* Tiles after the first have neither the norm nor the bias of the sum. */
static const struct sw_block_range ranges[BLOCK_KINDS] = {
    [BLOCK_WHOLE] = {NORM1_SCALE, BLOCK_TENSORS},
    [ATTENTION_FIRST] = {NORM1_SCALE, NORM2_SCALE},
    [ATTENTION_NEXT] = {QKV_WEIGHT, PROJECTION_BIAS},
    [MLP_FIRST] = {NORM2_SCALE, BLOCK_TENSORS},
    [MLP_NEXT] = {UP_WEIGHT, DOWN_BIAS},
};

struct sw_block_range sw_block_range(enum block_kind kind) {
    return ranges[kind];
}

struct sw_tile sw_tile_of(int64_t tiles, int64_t unit) {
    if (tiles == 1)
        return (struct sw_tile){.kind = BLOCK_WHOLE, .layer = unit - 1, .first = true, .last = true};
    const int64_t within = (unit - 1) % (2 * tiles), index = within % tiles;
    const bool attends = within < tiles, first = index == 0;
    return (struct sw_tile){
        .kind = attends ? (first ? ATTENTION_FIRST : ATTENTION_NEXT) : (first ? MLP_FIRST : MLP_NEXT),
        .layer = (unit - 1) / (2 * tiles),
        .index = index,
        .first = first,
        .last = index + 1 == tiles,
    };
}

static void block_shape(const struct sw_model_config *c, enum block_tensor tensor, int *dims, int64_t dim[2]) {
    const int64_t shapes[BLOCK_TENSORS][2] = {
        [NORM1_SCALE] = {c->hidden},
        [NORM1_BIAS] = {c->hidden},
        [QKV_WEIGHT] = {c->hidden, 3 * c->hidden},
        [QKV_BIAS] = {3 * c->hidden},
        [PROJECTION_WEIGHT] = {c->hidden, c->hidden},
        [PROJECTION_BIAS] = {c->hidden},
        [NORM2_SCALE] = {c->hidden},
        [NORM2_BIAS] = {c->hidden},
        [UP_WEIGHT] = {c->hidden, c->ffn},
        [UP_BIAS] = {c->ffn},
        [DOWN_WEIGHT] = {c->ffn, c->hidden},
        [DOWN_BIAS] = {c->hidden},
    };
    dim[0] = shapes[tensor][0];
    dim[1] = shapes[tensor][1];
    *dims = dim[1] == 0 ? 1 : 2;
}

/* Tile `index` of a tensor that is cut so. */
static struct sw_part part_of(enum cut cut, int dims, const int64_t *dim, int64_t tiles, int64_t index) {
    const int64_t rows = dims == 1 ? 1 : dim[0], cols = dim[dims - 1];
    const int64_t blocks = cut == THIRDS ? 3 : 1, stride = cols / blocks;
    struct sw_part part = {.rows = rows, .cols = cols, .block_cols = cols, .block_stride = cols};
    if (cut == ROWS) {
        part.rows = rows / tiles;
        part.first_row = index * part.rows;
    } else if (cut != NOT_CUT) {
        part.cols = cols / tiles;
        part.block_cols = stride / tiles;
        part.block_stride = stride;
        part.first_col = index * part.block_cols;
    }
    return part;
}

static sw_status add_block_tensors(struct sw_unit *unit, const struct sw_model_config *c, int64_t tiles,
                                   struct sw_tile tile) {
    const struct sw_block_range range = sw_block_range(tile.kind);
    for (int t = range.first; t < range.end; t++) {
        char name[SW_TENSOR_NAME_CHARS];
        int dims;
        int64_t dim[2];
        block_shape(c, (enum block_tensor)t, &dims, dim);
        snprintf(name, sizeof name, "transformer.h.%lld.%s", (long long)tile.layer, block_tensors[t].name);
        const struct sw_part part = part_of(tiles == 1 ? NOT_CUT : block_tensors[t].cut, dims, dim, tiles, tile.index);
        SW_TRY(sw_unit_add_part(unit, name, dims, dim, &part, dims > 1));
    }
    return SW_OK;
}

static void name_block(struct sw_unit *unit, int64_t tiles, struct sw_tile tile) {
    const bool attends = tile.kind == ATTENTION_FIRST || tile.kind == ATTENTION_NEXT;
    if (tiles == 1)
        snprintf(unit->name, sizeof unit->name, "block %lld", (long long)tile.layer);
    else
        snprintf(unit->name, sizeof unit->name, "block %d %s %d/%d", (int)tile.layer, attends ? "attention" : "mlp",
                 (int)tile.index + 1, (int)tiles);
}

static sw_status add_all_tensors(struct sw_units *units, const struct sw_model_config *c, int64_t tiles) {
    struct sw_unit *embedding = &units->unit[0], *head = &units->unit[units->count - 1];
    snprintf(embedding->name, sizeof embedding->name, "embedding");
    SW_TRY(sw_unit_add_tensor(embedding, "transformer.wte.weight", 2, (int64_t[]){c->vocab, c->hidden}, true));
    SW_TRY(sw_unit_add_tensor(embedding, "transformer.wpe.weight", 2, (int64_t[]){c->max_positions, c->hidden}, true));
    for (int64_t u = 1; u + 1 < units->count; u++) {
        const struct sw_tile tile = sw_tile_of(tiles, u);
        name_block(&units->unit[u], tiles, tile);
        SW_TRY(add_block_tensors(&units->unit[u], c, tiles, tile));
    }
    snprintf(head->name, sizeof head->name, "head");
    SW_TRY(sw_unit_add_tensor(head, "transformer.ln_f.weight", 1, &c->hidden, false));
    SW_TRY(sw_unit_add_tensor(head, "transformer.ln_f.bias", 1, &c->hidden, false));
    if (!c->tied_embeddings)
        SW_TRY(sw_unit_add_tensor(head, "lm_head.weight", 2, (int64_t[]){c->vocab, c->hidden}, true));
    return SW_OK;
}

static int64_t common_divisor(int64_t a, int64_t b) {
    while (b != 0) {
        const int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static sw_status check_tiles(const struct sw_model_config *c, int64_t tiles) {
    const int64_t common = common_divisor(common_divisor(c->heads, c->kv_heads), c->ffn);
    char divisors[DIVISORS_CHARS] = "";
    size_t used = 0;
    if (tiles >= 1 && common % tiles == 0)
        return SW_OK;
    for (int64_t d = 1; d <= common && used + SW_SIZE_CHARS < sizeof divisors; d++)
        if (common % d == 0)
            used += (size_t)snprintf(divisors + used, sizeof divisors - used, d == 1 ? "%lld" : ", %lld", (long long)d);
    return sw_fail(SW_ERR_ARG,
                   "--tiles %lld must divide the model's %lld heads%s and %lld columns of the MLP; give %s%s",
                   (long long)tiles, (long long)c->heads, c->kv_heads == c->heads ? "" : ", its key heads",
                   (long long)c->ffn, common == 1 ? "" : "one of ", divisors);
}

sw_status sw_model_units(const struct sw_model_config *config, int64_t tiles, struct sw_units **out) {
    struct sw_units *units;
    SW_TRY(check_tiles(config, tiles));
    SW_TRY(sw_units_create(config->layers * (tiles == 1 ? 1 : 2 * tiles) + 2, &units));
    units->tied = config->tied_embeddings;
    sw_status status = add_all_tensors(units, config, tiles);
    if (status == SW_OK)
        status = sw_units_seal(units);
    if (status != SW_OK) {
        sw_units_destroy(units);
        return status;
    }
    *out = units;
    return SW_OK;
}
