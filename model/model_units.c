/* Lists the units of a model (embedding, blocks or parts of blocks, head) and the part of each tensor that a tile has.
 *
 * A tile is a unit of its own, not a part of one: the plan, the engine and the store then fetch, update and commit it
 * like any other, and know nothing of tiles. The price is that the tiles of a half hand the sum and the normalised
 * input on as block inputs.
 *
 * Cuts go between heads and between columns of the inner layer, so each tile computes a complete term of the sum (as in
 * Megatron-LM, arXiv 1909.08053) and nothing is exchanged within it. */
#include "core/size.h"
#include "model/freeze.h"
#include "model/model_private.h"
#include "model/optimizer_for.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIVISORS_CHARS = 256 };

/* How the tiles of a block cut a tensor: not at all (the first tile of the half has it), or along the inputs or the
 * outputs of its product. */
enum cut { NOT_CUT, CUT_IN, CUT_OUT };
/* A tensor's form: a vector of the hidden size, of a head's size, of one element per output or per head; a matrix; or
 * for each expert a matrix, stored [in, out], or a bias. */
enum form { HIDDEN_VECTOR, HEAD_VECTOR, OUT_VECTOR, VECTOR_OF_HEADS, MATRIX, EXPERT_MATRICES_OF_ALL, EXPERT_BIASES };

static const struct {
    enum form form;
    enum cut cut;
} block_tensors[BLOCK_TENSORS] = {
    [EMBEDDING_NORM_SCALE] = {HIDDEN_VECTOR, NOT_CUT},
    [EMBEDDING_NORM_BIAS] = {HIDDEN_VECTOR, NOT_CUT},
    [NORM1_SCALE] = {HIDDEN_VECTOR, NOT_CUT},
    [NORM1_BIAS] = {HIDDEN_VECTOR, NOT_CUT},
    [QKV_WEIGHT] = {MATRIX, CUT_OUT},
    [QKV_BIAS] = {OUT_VECTOR, CUT_OUT},
    [Q_NORM] = {HEAD_VECTOR, NOT_CUT},
    [K_NORM] = {HEAD_VECTOR, NOT_CUT},
    [SINKS] = {VECTOR_OF_HEADS, CUT_OUT},
    [PROJECTION_WEIGHT] = {MATRIX, CUT_IN},
    [PROJECTION_BIAS] = {OUT_VECTOR, NOT_CUT},
    [ATTENTION_RESULT_NORM] = {HIDDEN_VECTOR, NOT_CUT},
    [NORM2_SCALE] = {HIDDEN_VECTOR, NOT_CUT},
    [NORM2_BIAS] = {HIDDEN_VECTOR, NOT_CUT},
    [ROUTER] = {MATRIX, NOT_CUT},
    [ROUTER_BIAS] = {OUT_VECTOR, NOT_CUT},
    [SHARED_GATE] = {MATRIX, NOT_CUT},
    [EXPERTS] = {MATRIX, NOT_CUT},
    [JOINED_UP] = {EXPERT_MATRICES_OF_ALL, CUT_OUT},
    [JOINED_UP_BIAS] = {EXPERT_BIASES, CUT_OUT},
    [JOINED_DOWN] = {EXPERT_MATRICES_OF_ALL, CUT_IN},
    [JOINED_DOWN_BIAS] = {EXPERT_BIASES, NOT_CUT},
    [UP_WEIGHT] = {MATRIX, CUT_OUT},
    [UP_BIAS] = {OUT_VECTOR, CUT_OUT},
    [DOWN_WEIGHT] = {MATRIX, CUT_IN},
    [DOWN_BIAS] = {OUT_VECTOR, NOT_CUT},
    [MLP_RESULT_NORM] = {HIDDEN_VECTOR, NOT_CUT},
};

/* Later tiles of a half have neither its norm nor the bias of its last product: the first tile has them. */
static const struct sw_block_range ranges[BLOCK_KINDS] = {
    [BLOCK_WHOLE] = {EMBEDDING_NORM_SCALE, BLOCK_TENSORS},
    [ATTENTION_FIRST] = {EMBEDDING_NORM_SCALE, NORM2_SCALE},
    [ATTENTION_NEXT] = {QKV_WEIGHT, PROJECTION_BIAS},
    [MLP_FIRST] = {NORM2_SCALE, BLOCK_TENSORS},
    [MLP_NEXT] = {UP_WEIGHT, DOWN_BIAS},
    [BLOCK_ROUTED] = {NORM1_SCALE, EXPERTS},
    [EXPERT_GROUP] = {EXPERTS, BLOCK_TENSORS},
    [SHARED_BLOCK] = {NORM1_SCALE, ROUTER},
    [SHARED_EXPERTS] = {ROUTER, BLOCK_TENSORS},
    [SHARED_MLP] = {NORM2_SCALE, BLOCK_TENSORS},
};

struct sw_block_range sw_block_range(enum block_kind kind) {
    return ranges[kind];
}

/* Describes a unit of a model whose experts are units. */
static struct sw_tile expert_tile(const struct sw_cut *cut, int64_t unit) {
    const int64_t block_units = 1 + cut->expert_units, index = (unit - 1) % block_units;
    return (struct sw_tile){
        .kind = index == 0 ? BLOCK_ROUTED : EXPERT_GROUP,
        .layer = (unit - 1) / block_units,
        .index = index,
        .first = index == 0,
        .last = index == cut->expert_units,
    };
}

struct sw_expert_run sw_experts_in(const struct sw_model_config *config, const struct sw_cut *cut, int64_t unit) {
    const struct sw_tile tile = sw_tile_of(cut, unit);
    const int64_t each = config->experts / (cut->expert_ranks > 1 ? cut->expert_ranks : 1);
    if (sw_block_range(tile.kind).end <= (int)EXPERTS)
        return (struct sw_expert_run){0};
    return tile.kind == EXPERT_GROUP
               ? (struct sw_expert_run){.first = (tile.index - 1) * config->expert_group, .count = config->expert_group}
               : (struct sw_expert_run){.first = cut->expert_rank * each, .count = each};
}

struct sw_tile sw_tile_of(const struct sw_cut *cut, int64_t unit) {
    const int64_t tiles = cut->tiles;
    if (cut->expert_units > 0)
        return expert_tile(cut, unit);
    if (sw_cut_shares_out(cut) && cut->ranks > 1)
        return (struct sw_tile){
            .kind = unit % 2 == 1 ? ATTENTION_FIRST : SHARED_MLP, .layer = (unit - 1) / 2, .first = true, .last = true};
    if (sw_cut_shares_out(cut)) {
        const bool block = unit % 2 == 1;
        return (struct sw_tile){.kind = block ? SHARED_BLOCK : SHARED_EXPERTS,
                                .layer = (unit - 1) / 2,
                                .index = !block,
                                .first = block,
                                .last = !block};
    }
    if (sw_cut_parts(cut) == 1)
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

static const struct sw_tensor_names *names_of(const struct sw_model_config *config) {
    const struct sw_family *family = sw_family_find(config->family);
    assert(family != NULL);
    return family->names;
}

int sw_block_tensor_in(const struct sw_model *model, int64_t unit, enum sw_block_tensor tensor) {
    const struct sw_tile tile = sw_tile_of(&model->cut, unit);
    const struct sw_block_range range = sw_block_range(tile.kind);
    int before = 0;
    if ((int)tensor < range.first || (int)tensor >= range.end || sw_block_pieces(&model->config, tensor) == 0 ||
        !sw_block_tensor_in_layer(tensor, tile.layer))
        return -1;
    for (int t = range.first; t < (int)tensor; t++)
        if (sw_block_tensor_in_layer((enum sw_block_tensor)t, tile.layer))
            before += sw_block_pieces(&model->config, (enum sw_block_tensor)t);
    return before;
}

/* Tells whether a piece of EXPERTS is the last matrix of an expert. */
static bool is_expert_down(enum sw_block_tensor tensor, int piece) {
    return tensor == EXPERTS && piece % EXPERT_MATRICES == EXPERT_DOWN;
}

/* Returns how a piece of a tensor is cut. The matrices of an expert are cut like those of a dense MLP. */
static enum cut cut_of(enum sw_block_tensor tensor, int piece) {
    if (tensor != EXPERTS)
        return block_tensors[tensor].cut;
    return is_expert_down(tensor, piece) ? CUT_IN : CUT_OUT;
}

/* Returns the outputs of a product of the block, or those of one piece if its weight is stored in pieces. */
static int64_t outputs_of(const struct sw_model_config *c, enum sw_block_tensor tensor, int pieces, int piece) {
    const int64_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    if (tensor == QKV_WEIGHT || tensor == QKV_BIAS)
        return pieces == 1 ? q + 2 * kv : piece == 0 ? q : kv;
    if (tensor == UP_WEIGHT || tensor == UP_BIAS)
        return c->gated && pieces == 1 ? 2 * c->ffn : c->ffn;
    if (tensor == ROUTER || tensor == ROUTER_BIAS)
        return c->experts;
    if (tensor == JOINED_UP || tensor == JOINED_UP_BIAS)
        return 2 * c->expert_ffn;
    if (tensor == SHARED_GATE)
        return 1;
    return tensor == EXPERTS && !is_expert_down(tensor, piece) ? c->expert_ffn : c->hidden;
}

static int64_t inputs_of(const struct sw_model_config *c, enum sw_block_tensor tensor, int piece) {
    if (is_expert_down(tensor, piece) || tensor == JOINED_DOWN)
        return c->expert_ffn;
    return tensor == PROJECTION_WEIGHT ? c->heads * c->head_dim : tensor == DOWN_WEIGHT ? c->ffn : c->hidden;
}

/* Returns the elements of the norm of queries or keys. */
static int64_t head_norm_width(const struct sw_model_config *c, enum sw_block_tensor tensor) {
    const int64_t heads = tensor == Q_NORM ? c->heads : c->kv_heads;
    return c->joint_qk_norm ? heads * c->head_dim : c->head_dim;
}

static int64_t vector_elems(const struct sw_model_config *c, enum sw_block_tensor tensor, int64_t out) {
    switch (block_tensors[tensor].form) {
    case HIDDEN_VECTOR: return c->hidden;
    case HEAD_VECTOR: return head_norm_width(c, tensor);
    case VECTOR_OF_HEADS: return c->heads;
    default: return out;
    }
}

/* Tells whether a tensor has something of every expert of a layer. */
static bool is_of_all_experts(enum sw_block_tensor tensor) {
    return block_tensors[tensor].form == EXPERT_MATRICES_OF_ALL || block_tensors[tensor].form == EXPERT_BIASES;
}

/* Fills the dimensions of a piece of a tensor and returns their number. */
enum { MOST_DIMS = 3 };
static int shape_of(const struct sw_model_config *c, enum sw_block_tensor tensor, int pieces, int piece, bool as_stored,
                    int64_t dim[MOST_DIMS]) {
    const enum form form = block_tensors[tensor].form;
    const int64_t in = inputs_of(c, tensor, piece), out = outputs_of(c, tensor, pieces, piece);
    if (is_of_all_experts(tensor)) {
        dim[0] = c->experts;
        dim[1] = form == EXPERT_BIASES || as_stored ? out : in;
        dim[2] = as_stored ? in : out;
        return form == EXPERT_BIASES ? 2 : 3;
    }
    if (form != MATRIX) {
        dim[0] = vector_elems(c, tensor, out);
        return 1;
    }
    dim[0] = c->out_first ? out : in;
    dim[1] = c->out_first ? in : out;
    return 2;
}

/* Returns part `index` of a piece. A tensor that holds queries, keys and values is cut within each of the three, or
 * between heads if it has these head by head. */
static struct sw_part part_of(const struct sw_model_config *c, enum sw_block_tensor tensor, int pieces, int piece,
                              int dims, const int64_t *dim, int64_t parts, int64_t index) {
    const enum cut cut = parts == 1 ? NOT_CUT : cut_of(tensor, piece);
    const bool fused = pieces == 1 && !c->qkv_by_head && (tensor == QKV_WEIGHT || tensor == QKV_BIAS);
    const int64_t rows = dims == 1 ? 1 : dims == 2 ? dim[0] : dim[0] * dim[1], cols = dim[dims - 1];
    const int64_t stride = cols / (fused ? 3 : 1);
    struct sw_part part = {.rows = rows, .cols = cols, .block_cols = cols, .block_stride = cols};
    if (cut == NOT_CUT)
        return part;
    if (dims > 1 && (cut == CUT_OUT) == c->out_first) {
        part.rows = rows / parts;
        part.first_row = index * part.rows;
    } else {
        part.cols = cols / parts;
        part.block_cols = stride / parts;
        part.block_stride = stride;
        part.first_col = index * part.block_cols;
    }
    return part;
}

/* Tells whether every rank of a tensor group has the whole piece. That holds for what is not cut, and with fewer
 * key-value heads than ranks for the weights of keys and values; the biases of queries, keys and values then stay
 * together, and so do attention sinks, as narrow state has no cut vectors beside such matrices. Where ranks share out
 * experts, and are in no tensor groups, it holds for all else. */
static bool is_replicated(const struct sw_model_config *c, const struct sw_cut *cut, enum sw_block_tensor tensor,
                          int piece) {
    if (cut->expert_ranks > 1 && cut->ranks == 1)
        return tensor != EXPERTS && !is_of_all_experts(tensor);
    if (cut->ranks == 1 || cut_of(tensor, piece) == NOT_CUT)
        return cut->ranks > 1;
    return sw_cut_copies_kv(c, cut) && (tensor == QKV_BIAS || tensor == SINKS || (tensor == QKV_WEIGHT && piece > 0));
}

struct sw_own_rows sw_own_rows_of(const struct sw_model *model, enum sw_block_tensor tensor, int piece) {
    const struct widths *w = &model->widths;
    const int64_t kv_head = model->cut.rank / (model->cut.ranks / model->config.kv_heads);
    if (piece == 0)
        return (struct sw_own_rows){.first = tensor == QKV_BIAS ? model->cut.rank * w->q : 0, .rows = w->q};
    return (struct sw_own_rows){.first = kv_head * w->kv, .collected = w->q + (piece - 1) * w->kv, .rows = w->kv};
}

/* Returns part `index` of a tensor of all experts, of the experts of a run. Some rows of each matrix are a part of one
 * long row. Columns of gates and values alternate, so a cut between columns keeps pairs together. */
static struct sw_part joined_part_of(enum sw_block_tensor tensor, bool as_stored, const int64_t *dim,
                                     struct sw_expert_run experts, int64_t parts, int64_t index) {
    const bool matrices = block_tensors[tensor].form == EXPERT_MATRICES_OF_ALL;
    const bool cuts_rows = parts > 1 && matrices && (cut_of(tensor, 0) == CUT_IN) != as_stored;
    const int64_t rows = matrices && !cuts_rows ? dim[1] : 1,
                  width = cuts_rows ? dim[1] * dim[2] : dim[matrices ? 2 : 1];
    return (struct sw_part){.first_row = experts.first * rows,
                            .rows = experts.count * rows,
                            .width = cuts_rows ? width : 0,
                            .first_col = index * (width / parts),
                            .cols = width / parts,
                            .block_cols = width / parts,
                            .block_stride = width};
}

/* Returns whether joined experts are the base as MXFP4 stores them, [experts, out, in]. All else has no such form. */
static bool is_as_stored(const struct sw_model_config *c, const struct sw_units *units) {
    return c->joined_experts && units->base == SW_BASE_MXFP4;
}

/* Describes a block's matrices to Muon. A vector that counts as a matrix of one row is AdamW's, as its authors have it.
 * Queries, keys and values, and gates and values, are matrices of their own, and so is a rank's part of one that a
 * tensor group cuts into `parts`. */
static void describe_to_muon(const struct sw_model_config *c, enum sw_block_tensor tensor, int pieces, int piece,
                             bool as_stored, int64_t experts, int64_t parts, struct sw_tensor *added) {
    const bool joined = block_tensors[tensor].form == EXPERT_MATRICES_OF_ALL;
    const int64_t of_outputs = cut_of(tensor, piece) == CUT_OUT ? parts : 1, of_inputs = parts / of_outputs;
    struct sw_muon_tensor m = {.outputs = outputs_of(c, tensor, pieces, piece) / of_outputs,
                               .inputs = inputs_of(c, tensor, piece) / of_inputs,
                               .in_first = joined ? !as_stored : !c->out_first,
                               .alternate = tensor == JOINED_UP,
                               .parts = 1};
    if ((block_tensors[tensor].form != MATRIX && !joined) || m.outputs == 1 || m.inputs == 1)
        return;
    m.part_end[0] = m.outputs;
    if (tensor == JOINED_UP || (tensor == UP_WEIGHT && c->gated && pieces == 1)) {
        m.parts = 2;
        m.part_end[0] = m.outputs / 2;
        m.part_end[1] = m.outputs;
    } else if (tensor == QKV_WEIGHT && pieces == 1) {
        m.parts = 3;
        m.part_end[0] = c->heads * c->head_dim / of_outputs;
        m.part_end[1] = m.part_end[0] + c->kv_heads * c->head_dim / of_outputs;
        m.part_end[2] = m.outputs;
        m.turn = c->qkv_by_head ? c->head_dim : 0;
    }
    added->muon = m;
    added->muon_count = joined ? experts : 1;
}

static sw_status add_block_tensor(const struct sw_units *units, struct sw_unit *unit, const struct sw_model_config *c,
                                  const struct sw_cut *cut, struct sw_tile tile, struct sw_expert_run experts,
                                  enum sw_block_tensor tensor) {
    const int pieces = sw_block_tensor_in_layer(tensor, tile.layer) ? sw_block_pieces(c, tensor) : 0;
    const bool as_stored = is_as_stored(c, units);
    const int64_t index = cut->rank * cut->tiles + tile.index;
    for (int piece = 0; piece < pieces; piece++) {
        const int64_t expert = piece / EXPERT_MATRICES;
        if (tensor == EXPERTS && (expert < experts.first || expert >= experts.first + experts.count))
            continue;
        char name[SW_TENSOR_NAME_CHARS];
        int64_t dim[MOST_DIMS];
        const int dims = shape_of(c, tensor, pieces, piece, as_stored, dim);
        const bool replicated = is_replicated(c, cut, tensor, piece);
        const int64_t parts = replicated || cut_of(tensor, piece) == NOT_CUT ? 1 : sw_cut_parts(cut);
        struct sw_part part = part_of(c, tensor, pieces, piece, dims, dim, parts, index);
        if (is_of_all_experts(tensor))
            part = joined_part_of(tensor, as_stored, dim, experts, parts, parts == 1 ? 0 : index);
        const bool apart = replicated && cut->ranks > 1; /* the rank has this piece whole, and has parts of others */
        part.joined = !apart && (tensor == EXPERTS ? piece % EXPERT_MATRICES == EXPERT_UP : piece > 0);
        part.replicated = replicated;
        part.used_rows = apart && tensor == QKV_WEIGHT ? c->head_dim : 0;
        sw_block_piece_name(c, tile.layer, tensor, piece, name, sizeof name);
        const bool joined = block_tensors[tensor].form == EXPERT_MATRICES_OF_ALL;
        const bool biases = block_tensors[tensor].form == EXPERT_BIASES;
        SW_TRY(sw_unit_add_part(unit, name, dims, dim, &part, dims > 1 && !biases));
        struct sw_tensor *added = &unit->tensor[unit->tensor_count - 1];
        /* A rounding error of the router sends a token to other experts, and its matrix is small, as a gate's is. */
        added->typed = tensor == ROUTER || tensor == SHARED_GATE || biases || (as_stored && !joined);
        added->in_first = joined && !as_stored;
        if (sw_optimizer_has_muon(units->optimizer))
            describe_to_muon(c, tensor, pieces, piece, as_stored, experts.count, parts, added);
        if (added->muon_count > 0 && apart)
            return sw_fail(
                SW_ERR_UNSUPPORTED,
                "--optimizer muon does not go with --tensor %d in this model: every rank of a group has all of "
                "%s; give a smaller --tensor, or --optimizer adamw",
                cut->ranks, name);
    }
    return SW_OK;
}

static void name_block(struct sw_unit *unit, const struct sw_cut *cut, struct sw_tile tile,
                       struct sw_expert_run experts) {
    const bool attends = tile.kind == ATTENTION_FIRST || tile.kind == ATTENTION_NEXT;
    if (tile.kind == SHARED_EXPERTS || tile.kind == SHARED_MLP) /* alike on all ranks, which have different ones */
        snprintf(unit->name, sizeof unit->name, "block %d experts", (int)tile.layer);
    else if (experts.count > 0 && tile.kind == EXPERT_GROUP)
        snprintf(unit->name, sizeof unit->name, "block %d experts %d-%d", (int)tile.layer, (int)experts.first,
                 (int)(experts.first + experts.count - 1));
    else if (sw_cut_parts(cut) == 1)
        snprintf(unit->name, sizeof unit->name, "block %lld", (long long)tile.layer);
    else if (cut->tiles == 1)
        snprintf(unit->name, sizeof unit->name, "block %d %s", (int)tile.layer, attends ? "attention" : "mlp");
    else
        snprintf(unit->name, sizeof unit->name, "block %d %s %d/%d", (int)tile.layer, attends ? "attention" : "mlp",
                 (int)tile.index + 1, (int)cut->tiles);
}

/* Adds a rank's rows of a table. Its unit has room for as many rows as the largest rank has. */
static sw_status add_table(struct sw_unit *unit, const char *name, int64_t rows, int64_t cols,
                           const struct sw_cut *cut) {
    const struct sw_span own = sw_shard(rows, cut->ranks, cut->rank);
    const struct sw_part part = {.first_row = own.first_grain,
                                 .rows = own.grains,
                                 .room_rows = sw_shard_most_grains(rows, cut->ranks),
                                 .cols = cols,
                                 .block_cols = cols,
                                 .block_stride = cols,
                                 .replicated = cut->expert_ranks > 1 && cut->ranks == 1};
    return sw_unit_add_part(unit, name, 2, (int64_t[]){rows, cols}, &part, true);
}

static sw_status add_final_norm(struct sw_unit *unit, const char *name, int64_t hidden, const struct sw_cut *cut) {
    const struct sw_part part = {.rows = 1,
                                 .cols = hidden,
                                 .block_cols = hidden,
                                 .block_stride = hidden,
                                 .replicated = cut->ranks > 1 || cut->expert_ranks > 1};
    return sw_unit_add_part(unit, name, 1, &hidden, &part, false);
}

static sw_status add_all_tensors(struct sw_units *units, const struct sw_model_config *c, const struct sw_cut *cut) {
    struct sw_unit *embedding = &units->unit[0], *head = &units->unit[units->count - 1];
    const struct sw_tensor_names *names = names_of(c);
    snprintf(embedding->name, sizeof embedding->name, "embedding");
    SW_TRY(add_table(embedding, names->token_table, c->vocab, c->hidden, cut));
    if (c->positions == SW_POSITIONS_LEARNED)
        SW_TRY(add_table(embedding, names->position_table, c->max_positions, c->hidden, cut));
    for (int64_t u = 1; u + 1 < units->count; u++) {
        const struct sw_tile tile = sw_tile_of(cut, u);
        const struct sw_block_range range = sw_block_range(tile.kind);
        name_block(&units->unit[u], cut, tile, sw_experts_in(c, cut, u));
        for (int t = range.first; t < range.end; t++)
            SW_TRY(add_block_tensor(units, &units->unit[u], c, cut, tile, sw_experts_in(c, cut, u),
                                    (enum sw_block_tensor)t));
        units->unit[u].shared_out = tile.kind == SHARED_EXPERTS || tile.kind == SHARED_MLP;
    }
    snprintf(head->name, sizeof head->name, "head");
    SW_TRY(add_final_norm(head, names->final_norm_scale, c->hidden, cut));
    if (c->norm == SW_NORM_LAYER)
        SW_TRY(add_final_norm(head, names->final_norm_bias, c->hidden, cut));
    if (!c->tied_embeddings)
        SW_TRY(add_table(head, names->output_table, c->vocab, c->hidden, cut));
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

/* Returns the divisor of `whole` nearest to a number, the smaller of two. */
static int64_t nearest_divisor(int64_t whole, int64_t number) {
    int64_t best = 1;
    for (int64_t d = 1; d <= whole; d++)
        if (whole % d == 0 && llabs(d - number) < llabs(best - number))
            best = d;
    return best;
}

/* Return why the blocks of a model cannot be cut among ranks, or into tiles: the end of a sentence about it. NULL: they
 * can. Parts of a matrix with the rows of queries, keys and values would be of several runs of rows. */
static const char *why_whole(const struct sw_model_config *c) {
    if (c->norm_of_results)
        return "which normalises the results of attention and MLP";
    return c->out_first && !c->qkv_by_head && sw_block_pieces(c, QKV_WEIGHT) == 1
               ? "which has queries, keys and values in one matrix"
               : NULL;
}

static const char *why_untiled(const struct sw_model_config *c) {
    return c->experts > 0 ? "whose blocks have experts" : why_whole(c);
}

/* Returns the largest number of tiles that a rank's part of each half can be cut into; the possible numbers are its
 * divisors. Ranks that share a key-value head cannot cut: every tile would need the whole head. */
static int64_t most_tiles(const struct sw_model_config *c, int ranks) {
    if (why_untiled(c) != NULL || c->qk_norm || c->kv_heads % ranks != 0)
        return 1;
    return common_divisor(common_divisor(c->heads, c->kv_heads), c->ffn) / ranks;
}

bool sw_model_tiles_fit(const struct sw_model_config *config, int ranks, int64_t tiles) {
    return tiles >= 1 && most_tiles(config, ranks) % tiles == 0;
}

/* Refuses to cut blocks that must stay whole. */
static sw_status check_cut(const struct sw_model_config *c, const char *flag, int64_t parts, const char *why) {
    return parts <= 1 || why == NULL ? SW_OK
                                     : sw_fail(SW_ERR_UNSUPPORTED, "%s %lld is not supported for %s, %s; give 1", flag,
                                               (long long)parts, c->family, why);
}

/* Refuses to cut key-value heads that ranks share into tiles. */
static sw_status check_shared_heads(const struct sw_model_config *c, int ranks, int64_t tiles) {
    SW_TRY(check_cut(c, "--tiles", tiles, why_untiled(c)));
    if (tiles > 1 && c->qk_norm)
        return sw_fail(SW_ERR_UNSUPPORTED,
                       "--tiles %lld is not supported for %s, whose heads share the norms of queries and keys; give 1",
                       (long long)tiles, c->family);
    if (tiles > 1 && c->kv_heads % ranks != 0)
        return sw_fail(
            SW_ERR_ARG,
            "--tiles %lld does not work with --tensor %d, whose ranks share the model's %lld key-value heads; "
            "give --tiles 1, or a --tensor that divides %lld",
            (long long)tiles, ranks, (long long)c->kv_heads, (long long)c->kv_heads);
    return SW_OK;
}

static sw_status check_tiles(const struct sw_model_config *c, int ranks, int64_t tiles) {
    const int64_t most = most_tiles(c, ranks);
    char divisors[DIVISORS_CHARS] = "", of_rank[DIVISORS_CHARS] = "";
    size_t used = 0;
    SW_TRY(check_shared_heads(c, ranks, tiles));
    if (sw_model_tiles_fit(c, ranks, tiles))
        return SW_OK;
    for (int64_t d = 1; d <= most && used + SW_SIZE_CHARS < sizeof divisors; d++)
        if (most % d == 0)
            used += (size_t)snprintf(divisors + used, sizeof divisors - used, d == 1 ? "%lld" : ", %lld", (long long)d);
    if (ranks > 1)
        snprintf(of_rank, sizeof of_rank, " that each rank of --tensor %d has", ranks);
    return sw_fail(SW_ERR_ARG, "--tiles %lld must divide the %s%lld heads%s and %lld columns of the MLP%s; give %s%s",
                   (long long)tiles, ranks > 1 ? "" : "model's ", (long long)c->heads / ranks,
                   c->kv_heads == c->heads ? "" : ", the key heads", (long long)c->ffn / ranks, of_rank,
                   most == 1 ? "" : "one of ", divisors);
}

/* Refuses to train something else than adapters beside joined experts in MXFP4: an export of the whole model would have
 * them transposed. Trained experts, which are no base, would have another shape than the model's. */
static sw_status check_as_stored(const struct sw_model_config *c, const struct sw_tuning *tuning,
                                 const struct sw_units *units) {
    if (!is_as_stored(c, units))
        return SW_OK;
    for (int64_t u = 0; tuning->lora.rank > 0 && u < units->count; u++)
        for (int64_t t = 0; t < units->unit[u].tensor_count; t++) {
            const struct sw_tensor *tensor = &units->unit[u].tensor[t];
            if (tensor->dims == 3 && !tensor->frozen && !tensor->added)
                return sw_fail(SW_ERR_UNSUPPORTED,
                               "--modules-to-save trains '%s', which --base-format mxfp4 keeps as it is stored; leave "
                               "one of them out",
                               tensor->name);
        }
    return tuning->lora.rank > 0
               ? SW_OK
               : sw_fail(SW_ERR_UNSUPPORTED,
                         "--base-format mxfp4 works with --lora and not with --freeze for %s, which keeps its experts "
                         "transposed in mxfp4; give --lora, or leave --base-format out",
                         c->family);
}

static bool is_of_expert(const struct sw_tensor *tensor) {
    return strstr(tensor->name, ".experts.") != NULL;
}

/* Lets all ranks of the job share what every rank of an expert group has, but for the routers beside experts. Adapters
 * of experts are on the rank that has the experts. */
static void share_with_all(struct sw_units *units) {
    for (int64_t u = 0; u < units->count; u++)
        for (int64_t t = 0; t < units->unit[u].tensor_count; t++)
            if (!units->unit[u].shared_out || is_of_expert(&units->unit[u].tensor[t]))
                units->unit[u].tensor[t].part.replicated = false;
}

static sw_status make_units(const struct sw_model_config *config, const struct sw_cut *cut,
                            sw_optimizer_format optimizer, const struct sw_tuning *tuning, struct sw_units **out) {
    struct sw_units *units;
    const int64_t block_units = cut->expert_units > 0                               ? 1 + cut->expert_units
                                : sw_cut_parts(cut) == 1 && !sw_cut_shares_out(cut) ? 1
                                                                                    : 2 * cut->tiles;
    SW_TRY(sw_units_create(config->layers * block_units + 2, &units));
    units->tied = config->tied_embeddings;
    units->optimizer = optimizer;
    units->base = sw_tuning_freezes(tuning) ? (sw_base_format)tuning->base : SW_BASE_TYPED;
    sw_status status = add_all_tensors(units, config, cut);
    if (status == SW_OK)
        status = sw_tuning_apply(tuning, config, cut->ranks * (cut->expert_ranks > 1 ? cut->expert_ranks : 1),
                                 cut->tiles, units);
    if (status == SW_OK)
        status = sw_optimizer_for_apply(tuning, cut->ranks > 1 || cut->expert_ranks > 1, units);
    if (status == SW_OK)
        status = check_as_stored(config, tuning, units);
    if (sw_cut_shares_out(cut) && cut->ranks == 1)
        share_with_all(units);
    if (status == SW_OK)
        status = sw_units_seal(units);
    if (status != SW_OK) {
        sw_units_destroy(units);
        return status;
    }
    *out = units;
    return SW_OK;
}

int64_t sw_model_expert_units(const struct sw_model_config *config) {
    return config->expert_group > 0 ? config->experts / config->expert_group : 0;
}

sw_status sw_model_group_experts(struct sw_model_config *config, int64_t experts) {
    if (experts == 0)
        return SW_OK;
    if (config->experts == 0)
        return sw_fail(SW_ERR_UNSUPPORTED,
                       "--expert-group %lld does not work with %s, whose blocks have no experts; "
                       "leave it out",
                       (long long)experts, config->family);
    if (config->experts % experts != 0)
        return sw_fail(
            SW_ERR_ARG, "--expert-group %lld must divide the model's %lld experts; the nearest that does is %lld",
            (long long)experts, (long long)config->experts, (long long)nearest_divisor(config->experts, experts));
    config->expert_group = experts;
    return SW_OK;
}

sw_status sw_model_units(const struct sw_model_config *config, int64_t tiles, sw_optimizer_format optimizer,
                         const struct sw_tuning *tuning, struct sw_units **out) {
    const struct sw_cut cut = {.tiles = tiles, .ranks = 1, .expert_units = sw_model_expert_units(config)};
    SW_TRY(check_tiles(config, 1, tiles));
    return make_units(config, &cut, optimizer, tuning, out);
}

/* Returns the rows of the smallest table that the ranks divide. */
static int64_t least_rows(const struct sw_model_config *c) {
    return sw_min_i64(c->vocab, c->positions == SW_POSITIONS_LEARNED ? c->max_positions : c->vocab);
}

/* Tells whether the ranks divide the key-value heads, or the same number of ranks shares each. */
static bool ranks_fit_kv_heads(const struct sw_model_config *c, int64_t ranks) {
    return c->kv_heads % ranks == 0 || ranks % c->kv_heads == 0;
}

static bool ranks_fit(const struct sw_model_config *c, int64_t ranks) {
    return ranks >= 1 && (ranks == 1 || why_whole(c) == NULL) && c->heads % ranks == 0 &&
           ranks_fit_kv_heads(c, ranks) && c->ffn % ranks == 0 && c->expert_ffn % ranks == 0 && ranks <= least_rows(c);
}

/* Returns the fitting number of ranks nearest to this one, the smaller of two. One always fits. */
static int64_t nearest_ranks(const struct sw_model_config *c, int64_t ranks) {
    int64_t away = 0;
    while (!ranks_fit(c, ranks - away) && !ranks_fit(c, ranks + away))
        away++;
    return ranks_fit(c, ranks - away) ? ranks - away : ranks + away;
}

static sw_status check_ranks(const struct sw_model_config *c, int ranks) {
    SW_TRY(check_cut(c, "--tensor", ranks, why_whole(c)));
    const long long nearest = nearest_ranks(c, ranks);
    if (c->heads % ranks != 0)
        return sw_fail(SW_ERR_ARG, "--tensor %d must divide the model's %lld heads; the nearest that fits is %lld",
                       ranks, (long long)c->heads, nearest);
    if (!ranks_fit_kv_heads(c, ranks))
        return sw_fail(SW_ERR_ARG,
                       "--tensor %d must divide the model's %lld key-value heads, or be a multiple of them; the "
                       "nearest that fits is %lld",
                       ranks, (long long)c->kv_heads, nearest);
    if (c->ffn % ranks != 0)
        return sw_fail(SW_ERR_ARG,
                       "--tensor %d must divide the %lld columns of the model's MLP; the nearest that fits is %lld",
                       ranks, (long long)c->ffn, nearest);
    if (c->expert_ffn % ranks != 0)
        return sw_fail(SW_ERR_ARG,
                       "--tensor %d must divide the %lld columns of the model's experts; the nearest that fits is %lld",
                       ranks, (long long)c->expert_ffn, nearest);
    if (least_rows(c) < ranks)
        return sw_fail(SW_ERR_ARG,
                       "--tensor %d is more than the %lld rows of one of the model's tables; the nearest that fits is "
                       "%lld",
                       ranks, (long long)least_rows(c), nearest);
    return SW_OK;
}

/* Refuses what the whole model refuses: where ranks share key-value heads, the pieces that a whole block multiplies by
 * as one matrix are apart. */
static sw_status check_whole(const struct sw_model_config *config, sw_optimizer_format optimizer,
                             const struct sw_tuning *tuning) {
    struct sw_units *whole;
    if (!sw_tuning_freezes(tuning))
        return SW_OK;
    SW_TRY(sw_model_units(config, 1, optimizer, tuning, &whole));
    sw_units_destroy(whole);
    return SW_OK;
}

sw_status sw_model_rank_units(const struct sw_model_config *config, int ranks, int rank, int64_t tiles,
                              sw_optimizer_format optimizer, const struct sw_tuning *tuning, struct sw_units **out) {
    const struct sw_cut cut = {.tiles = tiles, .ranks = ranks, .rank = rank};
    if (config->expert_group > 0 && ranks > 1)
        return sw_fail(SW_ERR_UNSUPPORTED, "--expert-group %lld does not work with --tensor %d; leave one of them out",
                       (long long)config->expert_group, ranks);
    SW_TRY(check_ranks(config, ranks));
    SW_TRY(check_tiles(config, ranks, tiles));
    SW_TRY(check_whole(config, optimizer, tuning));
    return make_units(config, &cut, optimizer, tuning, out);
}

/* Refuses experts that a group cannot share out. */
static sw_status check_experts(const struct sw_model_config *c, int ranks, int64_t tiles) {
    if (c->experts == 0)
        return sw_fail(SW_ERR_ARG, "--experts %d shares out the experts of a model, and %s has none; leave it out",
                       ranks, c->family);
    if (c->experts % ranks != 0)
        return sw_fail(SW_ERR_ARG, "--experts %d must divide the model's %lld experts; the nearest that does is %lld",
                       ranks, (long long)c->experts, (long long)nearest_divisor(c->experts, ranks));
    if (c->expert_group > 0)
        return sw_fail(SW_ERR_UNSUPPORTED, "--experts %d does not work with --expert-group; leave one of them out",
                       ranks);
    return check_tiles(c, 1, tiles);
}

/* Refuses adapters of experts that tensor groups share out: the ranks of one member would have a factor in common that
 * those of others lack. */
static sw_status check_adapters(const struct sw_units *units, const struct sw_cut *cut) {
    for (int64_t u = 0; cut->ranks > 1 && u < units->count; u++)
        for (int64_t t = 0; t < units->unit[u].tensor_count; t++)
            if (units->unit[u].tensor[t].added && is_of_expert(&units->unit[u].tensor[t]))
                return sw_fail(SW_ERR_UNSUPPORTED,
                               "--experts %d with --tensor %d does not work with adapters of experts; give "
                               "--lora-targets attention, or leave one of the two out",
                               cut->expert_ranks, cut->ranks);
    return SW_OK;
}

static bool lie_alike(const struct sw_units *a, const struct sw_units *b) {
    bool alike = true;
    for (int64_t u = 0; alike && u < a->count; u++) {
        const struct sw_unit *one = &a->unit[u], *other = &b->unit[u];
        alike = one->grains == other->grains && one->trained_grain == other->trained_grain &&
                one->base_grains == other->base_grains && one->wide_grain == other->wide_grain &&
                one->replicated_grain == other->replicated_grain;
    }
    return alike;
}

/* Refuses experts of which one rank of a group has more frozen than another: its units would have other sizes. */
static sw_status check_alike(const struct sw_model_config *config, const struct sw_cut *own,
                             sw_optimizer_format optimizer, const struct sw_tuning *tuning,
                             const struct sw_units *units) {
    struct sw_cut cut = *own;
    bool alike = true;
    if (!sw_tuning_freezes(tuning))
        return SW_OK;
    for (cut.expert_rank = 0; alike && cut.expert_rank < cut.expert_ranks; cut.expert_rank++) {
        struct sw_units *other;
        SW_TRY(make_units(config, &cut, optimizer, tuning, &other));
        alike = lie_alike(units, other);
        sw_units_destroy(other);
    }
    return alike ? SW_OK
                 : sw_fail(SW_ERR_UNSUPPORTED,
                           "--experts %d gives one rank more of the experts that --freeze, --lora-targets or "
                           "--modules-to-save names than another; name as many of each rank's %lld experts, or all or "
                           "none",
                           cut.expert_ranks, (long long)(config->experts / cut.expert_ranks));
}

/* Refuses models that tensor groups do not share out: the ranks of an expert group with the same number in their tensor
 * groups would have parts of a shared expert in common, and those of one member the biases of its experts. */
static sw_status check_members(const struct sw_model_config *c, const struct sw_cut *cut) {
    if (cut->ranks == 1 || !(c->joined_experts || sw_config_has_shared_expert(c)))
        return SW_OK;
    return sw_fail(
        SW_ERR_UNSUPPORTED, "--experts %d with --tensor %d is not supported for %s, %s; leave one of the two out",
        cut->expert_ranks, cut->ranks, c->family,
        c->joined_experts ? "which has all experts of a layer in one tensor" : "whose blocks have a shared expert");
}

sw_status sw_model_group_units(const struct sw_model_config *config, const struct sw_model_group *group, int64_t tiles,
                               sw_optimizer_format optimizer, const struct sw_tuning *tuning, struct sw_units **out) {
    if (group->ranks <= 1)
        return sw_model_units(config, tiles, optimizer, tuning, out);
    if (group->experts <= 1)
        return sw_model_rank_units(config, group->ranks, group->rank, tiles, optimizer, tuning, out);
    const int tensor_ranks = group->ranks / group->experts;
    const struct sw_cut cut = {.tiles = tiles,
                               .ranks = tensor_ranks,
                               .rank = group->rank % tensor_ranks,
                               .expert_ranks = group->experts,
                               .expert_rank = group->rank / tensor_ranks,
                               .joined = group->joined};
    assert(tensor_ranks * group->experts == group->ranks && !(tensor_ranks > 1 && group->joined));
    SW_TRY(check_experts(config, group->experts, tiles));
    SW_TRY(check_members(config, &cut));
    SW_TRY(check_ranks(config, tensor_ranks));
    SW_TRY(check_whole(config, optimizer, tuning));
    struct sw_units *units;
    SW_TRY(make_units(config, &cut, optimizer, tuning, &units));
    sw_status status = check_adapters(units, &cut);
    if (status == SW_OK)
        status = check_alike(config, &cut, optimizer, tuning, units);
    if (status == SW_OK)
        *out = units;
    else
        sw_units_destroy(units);
    return status;
}
