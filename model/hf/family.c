#include "model/hf/family.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#define FAMILY_POINTER(name) &sw_##name##_family,
static const struct sw_family *const families[] = {SW_FAMILIES(FAMILY_POINTER)};

const struct sw_family *sw_family_find(const char *name) {
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++)
        if (strcmp(families[i]->name, name) == 0)
            return families[i];
    return NULL;
}

#define COMMA_NAME(name) ", " #name
const char *sw_family_names(void) {
    static const char names[] = SW_FAMILIES(COMMA_NAME);
    return names + strlen(", ");
}

int sw_block_pieces(const struct sw_model_config *config, enum sw_block_tensor tensor) {
    const struct sw_family *family = sw_family_find(config->family);
    assert(family != NULL);
    const struct sw_tensor_piece *piece = family->names->piece[tensor];
    int count = 0;
    if (tensor == EXPERTS)
        return config->joined_experts ? 0 : EXPERT_MATRICES * (int)config->experts;
    while (count < SW_MOST_PIECES && piece[count].name != NULL &&
           (piece[count].when == 0 || *(const bool *)((const char *)config + piece[count].when)))
        count++;
    return count;
}

void sw_block_piece_name(const struct sw_model_config *config, int64_t layer, enum sw_block_tensor tensor, int piece,
                         char *out, size_t out_bytes) {
    const struct sw_tensor_names *all = sw_family_find(config->family)->names;
    if (tensor == EMBEDDING_NORM_SCALE || tensor == EMBEDDING_NORM_BIAS)
        snprintf(out, out_bytes, "%s", all->piece[tensor][piece].name);
    else if (tensor == EXPERTS)
        snprintf(out, out_bytes, "%s%lld.%s%d.%s", all->block, (long long)layer, all->expert, piece / EXPERT_MATRICES,
                 all->expert_matrix[piece % EXPERT_MATRICES]);
    else
        snprintf(out, out_bytes, "%s%lld.%s", all->block, (long long)layer, all->piece[tensor][piece].name);
}

/* Tells whether a text begins with the module of a tensor, which is the tensor's name without its last part. */
static bool begins_with_module(const char *text, const char *tensor) {
    const size_t module = (size_t)(strrchr(tensor, '.') - tensor) + 1;
    return strncmp(text, tensor, module) == 0;
}

/* Tells whether a text is the name of a block's tensor, or of an adapter of it, whose name goes on with a dot. */
static bool is_or_adapts(const char *text, const char *tensor) {
    const char *at = strstr(text, tensor);
    return at != NULL && (at[strlen(tensor)] == '\0' || at[strlen(tensor)] == '.');
}

int sw_expert_matrix_of(const struct sw_model_config *config, const char *name) {
    const struct sw_tensor_names *all = sw_family_find(config->family)->names;
    if (config->joined_experts)
        return is_or_adapts(name, all->piece[JOINED_DOWN][0].name) ? EXPERT_DOWN
               : is_or_adapts(name, all->piece[JOINED_UP][0].name) ? EXPERT_GATE
                                                                   : -1;
    const char *expert = all->expert != NULL ? strstr(name, all->expert) : NULL;
    if (expert == NULL)
        return -1;
    expert += strlen(all->expert);
    expert += strspn(expert, "0123456789");
    for (int matrix = 0; matrix < EXPERT_MATRICES && *expert == '.'; matrix++)
        if (begins_with_module(expert + 1, all->expert_matrix[matrix]))
            return matrix;
    return -1;
}
