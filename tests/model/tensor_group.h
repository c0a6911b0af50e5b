/* Runs a step of a model, whole or by the ranks of a tensor group, and returns its loss and gradients. */
#ifndef SW_TESTS_MODEL_TENSOR_GROUP_H
#define SW_TESTS_MODEL_TENSOR_GROUP_H

#include "model/model.h"

/* Rows that four ranks have different numbers of, and tiles of the head that need several of rows and of columns. */
enum { BATCH = 3, SEQ = 7, MOST_RANKS = 4, SEED = 11, HEAD_TILE_BYTES = 16 * 512 * 8 };

struct tensor_case {
    const char *name;
    struct sw_model_config config;
    sw_dtype type;
    bool documents;
    sw_recompute recompute;
    bool sequence; /* sequence parallelism: a rank normalises its rows of a unit's input, and has no others */
    int64_t tiles; /* of a rank's part of each half of a block; 0: one */
};

/* The caller owns both arrays: `grads` has an element for each of the whole model's units, one unit after the other;
 * input_grad is the gradient at the embedding's output, [BATCH, SEQ, hidden]. */
struct tensor_result {
    double loss;
    float *grads, *input_grad;
};

/* Runs one step. whole: the units of the whole model. Gradients of replicated tensors are summed over the ranks. */
void tensor_run(const struct tensor_case *c, int ranks, const struct sw_units *whole, struct tensor_result *out);

/* Fills in the random weights of a unit, with random vectors in place of ones and zeros. */
void tensor_fill(const struct sw_model_config *config, const struct sw_units *units, int64_t unit, float *out);

/* Returns the elements of all units, and where the whole tensor of a name begins among them. */
int64_t tensor_elems(const struct sw_units *units);
int64_t tensor_place(const struct sw_units *whole, const char *name);

#endif
