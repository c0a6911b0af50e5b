#include "model/hf/joined_experts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GATE, UP, DOWN, MATRICES };

/* The families' names; joined tensors have the first. */
static const struct {
    const char *experts, *first, *router; /* `first`: the prefix of the first expert */
    const char *matrix[MATRICES];
} forms[SW_EXPERT_FORMS] = {
    {".mlp.experts.",
     ".mlp.experts.0.",
     ".mlp.gate.weight",
     {"gate_proj.weight", "up_proj.weight", "down_proj.weight"}},
    {".block_sparse_moe.experts.",
     ".block_sparse_moe.experts.0.",
     ".block_sparse_moe.gate.weight",
     {"w1.weight", "w3.weight", "w2.weight"}},
};
static const char gate_up[] = "gate_up_proj", down[] = "down_proj";

/* Replaces the end of a name that begins at `at`; false: the new name is longer than any that a model has. */
static bool replace_end(const char *name, const char *at, const char *prefix, const char *matrix,
                        char out[SW_TENSOR_NAME_CHARS]) {
    return snprintf(out, SW_TENSOR_NAME_CHARS, "%.*s%s%s", (int)(at - name), name, prefix, matrix) <
           SW_TENSOR_NAME_CHARS;
}

/* Reads what follows the experts' prefix: a number and a matrix. */
static bool read_expert(const char *text, int form, int64_t *expert, int *matrix) {
    char *end;
    *expert = strtoll(text, &end, 10);
    for (*matrix = GATE; end != text && *end == '.' && *matrix < MATRICES; ++*matrix)
        if (strcmp(end + 1, forms[form].matrix[*matrix]) == 0)
            return true;
    return false;
}

bool sw_joined_tensor_of(const char *name, struct sw_joined_tensor *out) {
    for (int form = 0; form < SW_EXPERT_FORMS; form++) {
        const char *router = strstr(name, forms[form].router), *experts = strstr(name, forms[form].experts);
        int64_t expert;
        int matrix;
        if (router != NULL) {
            *out = (struct sw_joined_tensor){.parts = 0};
            return replace_end(name, router, forms[0].router, "", out->name);
        }
        if (experts == NULL || !read_expert(experts + strlen(forms[form].experts), form, &expert, &matrix))
            continue;
        *out = (struct sw_joined_tensor){.parts = matrix == DOWN ? 1 : 2};
        out->part = expert * out->parts + (matrix == UP);
        return replace_end(name, experts, forms[0].experts, matrix == DOWN ? down : gate_up, out->name);
    }
    return false;
}

bool sw_joined_tensor_first(const char *joined, int form, char out[SW_TENSOR_NAME_CHARS]) {
    const char *router = strstr(joined, forms[0].router), *experts = strstr(joined, forms[0].experts);
    if (router != NULL)
        return replace_end(joined, router, forms[form].router, "", out);
    const char *end = experts == NULL ? "" : experts + strlen(forms[0].experts);
    if (strcmp(end, gate_up) != 0 && strcmp(end, down) != 0)
        return false;
    return replace_end(joined, experts, forms[form].first, forms[form].matrix[strcmp(end, down) == 0 ? DOWN : GATE],
                       out);
}
