/* Adapters beside the matrices of blocks: their tensors, and the first values of these. adapter.c and expert_adapter.c
 * multiply by them. */
#include "model/lora.h"

#include "core/files/files.h"
#include "core/rng.h"
#include "model/model_private.h"

#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WEIGHT ".weight"
#define PEFT_ALL "all-linear"

enum { NAME_CHARS = 128 };

double sw_lora_scale(const struct sw_lora *lora) {
    const double rank = (double)lora->rank, alpha = lora->alpha > 0.0 ? lora->alpha : 2.0 * rank;
    return lora->rank_stabilized ? alpha / sqrt(rank) : alpha / rank;
}

/* Copies the part of a list at *text and moves *text behind it, to NULL after the last part. */
static sw_status next_name(const char **text, const char *flag, char name[NAME_CHARS]) {
    const size_t length = strcspn(*text, ",");
    if (length == 0)
        return sw_fail(SW_ERR_ARG, "%s has an empty part; name modules with commas between them, as in q_proj,v_proj",
                       flag);
    if (length >= NAME_CHARS)
        return sw_fail(SW_ERR_ARG, "a part of %s is longer than %d characters", flag, NAME_CHARS - 1);
    memcpy(name, *text, length);
    name[length] = '\0';
    *text = (*text)[length] == ',' ? *text + length + 1 : NULL;
    return SW_OK;
}

static sw_status check_names(const char *text, const char *flag) {
    char name[NAME_CHARS];
    while (text != NULL)
        SW_TRY(next_name(&text, flag, name));
    return SW_OK;
}

sw_status sw_lora_check(const struct sw_lora *lora) {
    SW_TRY(check_names(lora->targets, "--lora-targets"));
    SW_TRY(check_names(lora->modules_to_save, "--modules-to-save"));
    if (!(lora->dropout >= 0.0 && lora->dropout < 1.0))
        return sw_fail(SW_ERR_ARG, "--lora-dropout must be at least 0 and below 1");
    if (lora->rank > 0)
        return SW_OK;
    const char *alone = lora->alpha > 0.0               ? "--lora-alpha"
                        : lora->rank_stabilized         ? "--rslora"
                        : lora->dropout > 0.0           ? "--lora-dropout"
                        : lora->targets != NULL         ? "--lora-targets"
                        : lora->modules_to_save != NULL ? "--modules-to-save"
                                                        : NULL;
    return alone == NULL ? SW_OK
                         : sw_fail(SW_ERR_ARG, "%s is for adapters; give --lora RANK too, or leave it out", alone);
}

/* Tells whether a part of a list names a module, whose name is given whole: by all of it, by its last parts, or by a
 * pattern. */
static bool names(const char *part, const char *module) {
    const size_t length = strlen(module), tail = strlen(part);
    if (strpbrk(part, "*?[") != NULL)
        return fnmatch(part, module, 0) == 0;
    return tail <= length && strcmp(module + length - tail, part) == 0 &&
           (tail == length || module[length - tail - 1] == '.');
}

void sw_lora_module(const char *tensor, char module[SW_TENSOR_NAME_CHARS]) {
    const char *end = strrchr(tensor, '.');
    snprintf(module, SW_TENSOR_NAME_CHARS, "%.*s", end == NULL ? (int)strlen(tensor) : (int)(end - tensor), tensor);
}

void sw_lora_adapted(const char *matrix, char adapted[SW_TENSOR_NAME_CHARS]) {
    const size_t end = sw_name_ends_with(matrix, WEIGHT) ? strlen(WEIGHT) : 0;
    snprintf(adapted, SW_TENSOR_NAME_CHARS, "%.*s", (int)(strlen(matrix) - end), matrix);
}

/* Tells whether a part of --lora-targets names the matrix of a block's product. */
static bool targets(const char *part, enum linear_name linear, const char *module) {
    if (strcmp(part, SW_LORA_ALL) == 0)
        return true;
    if (strcmp(part, SW_LORA_ATTENTION) == 0)
        return linear == LINEAR_QKV || linear == LINEAR_PROJECTION;
    if (strcmp(part, SW_LORA_MLP) == 0)
        return linear == LINEAR_UP || linear == LINEAR_DOWN;
    return names(part, module);
}

/* The units that get adapters: a whole model's, or those of a rank of a tensor group. */
struct adapted {
    const struct sw_lora *lora;
    const struct sw_model_config *config;
    struct sw_units *units;
    bool group;
    int64_t tiles; /* of each half of a block, or of a rank's part of it */
};

/* The matrix of a product of a block, or one of its pieces, and the unit's part of it. */
struct matrix {
    char module[SW_TENSOR_NAME_CHARS];
    int64_t inputs, outputs;
    struct sw_part part;
};

static void describe(const struct adapted *adapted, const struct sw_tensor *tensor, struct matrix *out) {
    const bool out_first = adapted->config->out_first;
    sw_lora_module(tensor->name, out->module);
    out->inputs = tensor->dim[out_first ? 1 : 0];
    out->outputs = tensor->dim[out_first ? 0 : 1];
    out->part = tensor->part;
}

/* Describes a piece of the matrix of a product of the block in unit `u`. Returns false if the unit has no such piece.
 */
static bool matrix_of(const struct adapted *adapted, int64_t u, enum linear_name linear, int piece,
                      struct matrix *out) {
    const struct sw_model_config *config = adapted->config;
    const int64_t block_units = (adapted->units->count - 2) / config->layers;
    char name[SW_TENSOR_NAME_CHARS];
    if (piece >= sw_block_pieces(config, sw_weight_of(linear)))
        return false;
    sw_block_piece_name(config, (u - 1) / block_units, sw_weight_of(linear), piece, name, sizeof name);
    const struct sw_tensor *found = sw_unit_find(&adapted->units->unit[u], name);
    if (found == NULL)
        return false;
    describe(adapted, found, out);
    return true;
}

/* Return the unit's part of A and of B. The outputs of a matrix that has queries, keys and values side by side are cut
 * in three blocks, which are no run of rows of B: its part is a part of one long row. */
static struct sw_part part_of_a(const struct adapted *adapted, const struct matrix *of) {
    const bool out_first = adapted->config->out_first;
    const int64_t inputs = out_first ? of->part.cols : of->part.rows;
    return (struct sw_part){.rows = adapted->lora->rank,
                            .first_col = out_first ? of->part.first_col : of->part.first_row,
                            .cols = inputs,
                            .block_cols = inputs,
                            .block_stride = of->inputs,
                            .replicated = adapted->group && inputs == of->inputs};
}

static struct sw_part part_of_b(const struct adapted *adapted, const struct matrix *of) {
    const bool out_first = adapted->config->out_first;
    const int64_t rank = adapted->lora->rank, outputs = out_first ? of->part.rows : of->part.cols;
    struct sw_part part = {.rows = of->outputs, .cols = rank, .block_cols = rank, .block_stride = rank};
    if (outputs < of->outputs)
        return (struct sw_part){.rows = 1,
                                .width = of->outputs * rank,
                                .first_col = (out_first ? of->part.first_row : of->part.first_col) * rank,
                                .cols = outputs * rank,
                                .block_cols = (out_first ? outputs : of->part.block_cols) * rank,
                                .block_stride = (out_first ? of->outputs : of->part.block_stride) * rank};
    part.replicated = adapted->group;
    part.used_rows = of->part.used_rows;
    return part;
}

/* Adds a factor of an adapter to a unit, unless it is there. The later tiles of a half share a factor that is not cut
 * with the first, which has it. */
static sw_status add_factor(const struct adapted *adapted, int64_t u, const struct matrix *of, const char *factor,
                            int dims, const int64_t *dim, const struct sw_part *part) {
    const int64_t block_units = (adapted->units->count - 2) / adapted->config->layers;
    const bool first = (u - 1) % block_units % adapted->tiles == 0, cut = part->rows * part->cols < dim[0] * dim[1];
    struct sw_unit *unit = &adapted->units->unit[u];
    char name[SW_TENSOR_NAME_CHARS];
    if (snprintf(name, sizeof name, "%s%s", of->module, factor) >= (int)sizeof name)
        return sw_fail(SW_ERR_UNSUPPORTED, "the adapter of %s would have a name of more than %d characters", of->module,
                       SW_TENSOR_NAME_CHARS - 1);
    if (sw_unit_find(unit, name) != NULL || !(first || cut))
        return SW_OK;
    SW_TRY(sw_unit_add_part(unit, name, dims, dim, part, true));
    unit->tensor[unit->tensor_count - 1].added = true;
    return SW_OK;
}

/* Adds the two factors of the adapter beside a matrix. */
static sw_status add_adapter(const struct adapted *adapted, int64_t u, const struct matrix *of) {
    const struct sw_part a = part_of_a(adapted, of), b = part_of_b(adapted, of);
    const int64_t rank = adapted->lora->rank;
    SW_TRY(add_factor(adapted, u, of, SW_LORA_A, 2, (int64_t[]){rank, of->inputs}, &a));
    return add_factor(adapted, u, of, SW_LORA_B, 2, (int64_t[]){of->outputs, rank}, &b);
}

/* The experts of which a unit has matrices in a tensor of all experts, and which part of each: part `index` of `parts`.
 */
struct joined_run {
    int64_t first, count, parts, index;
};

static struct joined_run joined_run_of(const struct sw_tensor *matrices) {
    const struct sw_part *part = &matrices->part;
    const int64_t width = part->width > 0 ? part->width : matrices->dim[2], elems = matrices->dim[1] * matrices->dim[2];
    struct joined_run run = {.first = part->first_row * width / elems, .count = part->rows * width / elems};
    run.parts = run.count * elems / matrices->elems;
    run.index = part->first_col * run.parts / width;
    return run;
}

/* Adds the two factors of the adapters beside a tensor of the matrices of all experts. down: its inputs are cut among
 * ranks, and not its outputs. */
static sw_status add_joined_adapter(const struct adapted *adapted, int64_t u, const struct matrix *of,
                                    const struct sw_tensor *matrices, bool down) {
    const struct joined_run run = joined_run_of(matrices);
    const int64_t rank = adapted->lora->rank, experts = matrices->dim[0];
    const int64_t inputs = of->inputs / (down ? run.parts : 1), outputs = of->outputs / (down ? 1 : run.parts);
    const struct sw_part a = {.first_row = run.first * rank,
                              .rows = run.count * rank,
                              .first_col = down ? run.index * inputs : 0,
                              .cols = inputs,
                              .block_cols = inputs,
                              .block_stride = of->inputs,
                              .replicated = adapted->group && inputs == of->inputs};
    struct sw_part b = {.first_row = run.first * outputs,
                        .rows = run.count * outputs,
                        .cols = rank,
                        .block_cols = rank,
                        .block_stride = rank,
                        .replicated = adapted->group};
    if (outputs < of->outputs) /* some rows of each expert's B: a part of one long row */
        b = (struct sw_part){.first_row = run.first,
                             .rows = run.count,
                             .width = of->outputs * rank,
                             .first_col = run.index * outputs * rank,
                             .cols = outputs * rank,
                             .block_cols = outputs * rank,
                             .block_stride = of->outputs * rank};
    SW_TRY(add_factor(adapted, u, of, SW_LORA_A, 3, (int64_t[]){experts, rank, of->inputs}, &a));
    return add_factor(adapted, u, of, SW_LORA_B, 3, (int64_t[]){experts, of->outputs, rank}, &b);
}

/* Tells whether a part of --lora-targets is a word that stands for experts too. */
static bool means_experts(const char *part) {
    return strcmp(part, SW_LORA_ALL) == 0 || strcmp(part, SW_LORA_MLP) == 0 || strcmp(part, SW_LORA_EXPERTS) == 0;
}

/* Adds the adapters that a part of --lora-targets names beside the tensors of all experts. */
static sw_status add_to_joined_experts(const struct adapted *adapted, int64_t u, const char *part, bool *found) {
    const int64_t tensors = adapted->units->unit[u].tensor_count;
    for (int64_t t = 0; t < tensors; t++) {
        const struct sw_tensor matrices = adapted->units->unit[u].tensor[t]; /* the unit grows */
        const int kind = sw_expert_matrix_of(adapted->config, matrices.name);
        struct matrix of;
        if (matrices.added || kind < 0)
            continue;
        sw_lora_adapted(matrices.name, of.module);
        of.inputs = matrices.dim[matrices.in_first ? 1 : 2];
        of.outputs = matrices.dim[matrices.in_first ? 2 : 1];
        if (!means_experts(part) && !names(part, of.module))
            continue;
        *found = true;
        SW_TRY(add_joined_adapter(adapted, u, &of, &matrices, kind == EXPERT_DOWN));
    }
    return SW_OK;
}

/* Adds the adapters of experts that a part of --lora-targets names, matrix after matrix, so that those of one kind are
 * the same distance apart. */
static sw_status add_to_experts(const struct adapted *adapted, int64_t u, const char *part, bool *found) {
    const char *prefix = sw_family_find(adapted->config->family)->names->expert;
    const struct sw_unit *unit = &adapted->units->unit[u];
    const int64_t tensors = unit->tensor_count;
    if (adapted->config->joined_experts)
        return add_to_joined_experts(adapted, u, part, found);
    for (int64_t t = 0; adapted->config->experts > 0 && t < tensors && !unit->tensor[t].added; t++) {
        struct matrix of;
        if (strstr(unit->tensor[t].name, prefix) == NULL || unit->tensor[t].dims != 2)
            continue;
        describe(adapted, &unit->tensor[t], &of);
        if (!means_experts(part) && !names(part, of.module))
            continue;
        *found = true;
        SW_TRY(add_adapter(adapted, u, &of));
    }
    return SW_OK;
}

/* Adds the adapters that a part of --lora-targets names, unless they are there. *found: it named some. */
static sw_status add_adapters(const struct adapted *adapted, int64_t u, const char *part, bool *found) {
    for (int linear = 0; linear < LINEARS; linear++) {
        struct matrix of;
        for (int piece = 0; matrix_of(adapted, u, (enum linear_name)linear, piece, &of); piece++) {
            if (!targets(part, (enum linear_name)linear, of.module))
                continue;
            *found = true;
            SW_TRY(add_adapter(adapted, u, &of));
        }
    }
    return add_to_experts(adapted, u, part, found);
}

static sw_status add_targets(const struct adapted *adapted) {
    const char *text = adapted->lora->targets != NULL ? adapted->lora->targets : SW_LORA_ALL;
    while (text != NULL) {
        char part[NAME_CHARS];
        bool found = false;
        SW_TRY(next_name(&text, "--lora-targets", part));
        for (int64_t u = 1; u + 1 < adapted->units->count; u++)
            SW_TRY(add_adapters(adapted, u, part, &found));
        if (!found && strcmp(part, PEFT_ALL) == 0)
            return sw_fail(SW_ERR_ARG, "'" PEFT_ALL "' in --lora-targets is PEFT's word; give " SW_LORA_ALL
                                       ", which names all matrices of the blocks but routers");
        if (!found && !adapted->group) /* other ranks of a group may have the matrix */
            return sw_fail(SW_ERR_ARG,
                           "'%s' in --lora-targets is none of " SW_LORA_ALL ", " SW_LORA_ATTENTION ", " SW_LORA_MLP
                           " and, for a mixture, " SW_LORA_EXPERTS
                           ", and no matrix of a block of the model has such a name",
                           part);
    }
    return SW_OK;
}

/* Lets the tensors of modules that a part of --modules-to-save names be trained. Returns their number. */
static int64_t save(const char *part, struct sw_units *units) {
    int64_t count = 0;
    for (int64_t u = 0; u < units->count; u++)
        for (int64_t t = 0; t < units->unit[u].tensor_count; t++) {
            struct sw_tensor *tensor = &units->unit[u].tensor[t];
            char module[SW_TENSOR_NAME_CHARS];
            sw_lora_module(tensor->name, module);
            if (tensor->added || !names(part, module))
                continue;
            tensor->frozen = false;
            count++;
        }
    return count;
}

sw_status sw_lora_add(const struct sw_lora *lora, const struct sw_model_config *config, bool group, int64_t tiles,
                      struct sw_units *units) {
    const char *text = lora->modules_to_save;
    SW_TRY(
        add_targets(&(struct adapted){.lora = lora, .config = config, .units = units, .group = group, .tiles = tiles}));
    for (int64_t u = 0; u < units->count; u++)
        for (int64_t t = 0; t < units->unit[u].tensor_count; t++)
            units->unit[u].tensor[t].frozen = !units->unit[u].tensor[t].added;
    while (text != NULL) {
        char part[NAME_CHARS];
        SW_TRY(next_name(&text, "--modules-to-save", part));
        if (save(part, units) == 0 && !group) /* other ranks of a group may have the module */
            return sw_fail(SW_ERR_ARG, "'%s' in --modules-to-save names no module of the model that has tensors", part);
    }
    return SW_OK;
}

int sw_lora_factor(const struct sw_unit *unit, const char *matrix, const char *factor) {
    char module[SW_TENSOR_NAME_CHARS], name[SW_TENSOR_NAME_CHARS + sizeof SW_LORA_A];
    sw_lora_adapted(matrix, module);
    snprintf(name, sizeof name, "%s%s", module, factor);
    const struct sw_tensor *found = sw_unit_find(unit, name);
    return found == NULL ? -1 : (int)(found - unit->tensor);
}

uint64_t sw_lora_stream(const struct sw_tensor *tensor) {
    return sw_checksum(tensor->name, (int64_t)strlen(tensor->name));
}

/* The initial values. */

struct filling {
    const struct sw_lora_init *init;
    const struct sw_unit *unit;
    float *out;
};

static sw_status fill_run(void *context, int64_t t, int64_t whole, int64_t run, int64_t at) {
    const struct filling *fill = context;
    const struct sw_tensor *tensor = &fill->unit->tensor[t];
    const bool is_a = sw_name_ends_with(tensor->name, SW_LORA_A);
    const double bound = 1.0 / sqrt((double)tensor->dim[tensor->dims - 1]);
    const uint64_t stream = sw_lora_stream(tensor);
    for (int64_t i = 0; tensor->added && i < run; i++)
        fill->out[at + i] =
            is_a ? (float)(bound * (2.0 * sw_rng_uniform(fill->init->seed, stream, (uint64_t)(whole + i)) - 1.0))
                 : 0.0f;
    return SW_OK;
}

static sw_status fill_all(void *context, int64_t unit, int64_t first, int64_t count, float *out) {
    const struct sw_lora_init *init = context;
    struct filling fill = {.init = init, .unit = &init->units->unit[unit], .out = out};
    SW_TRY(init->base.fill(init->base.context, unit, first, count, out));
    return sw_unit_walk(fill.unit, first, count, fill_run, &fill);
}

static sw_status prepare_base(void *context, int64_t unit, int64_t first, int64_t count) {
    const struct sw_lora_init *init = context;
    return init->base.prepare(init->base.context, unit, first, count);
}

static sw_status take_record(void *context, int64_t unit, int64_t grain, void *record) {
    const struct sw_lora_init *init = context;
    return init->base.record(init->base.context, unit, grain, record);
}

struct sw_load sw_lora_load(struct sw_lora_init *init) {
    struct sw_load load = init->base;
    load.fill = fill_all;
    load.prepare = init->base.prepare == NULL ? NULL : prepare_base;
    load.record = init->base.record == NULL ? NULL : take_record;
    load.context = init;
    return load;
}
