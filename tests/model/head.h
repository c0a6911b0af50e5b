/* Helpers that the tests of the head share: a model of one block, and tilings of its head. */
#ifndef SW_TESTS_MODEL_HEAD_H
#define SW_TESTS_MODEL_HEAD_H

#include "model/model.h"

enum { HIDDEN = 64, SEQ = 37, LARGE_VOCAB = 150000 };
enum { HEAD_UNIT = 2 };

struct tiling {
    int64_t batch, vocab, tile_bytes;
    bool apart;
};
/* Gradients of 384 rows and logits of 128: 666 rows are a tile of three such parts, and one of 282 whose last has 26.
 * Rows are 1,344 elements apart. */
enum { APART_VOCAB = 1301, APART_STRIDE = 1344, APART_ROWS = 18 * SEQ, TILE_ROWS = 384, LOGITS_ROWS = 128 };
static inline struct tiling logits_apart(sw_dtype type) {
    const int64_t row_bytes = LOGITS_ROWS * (int64_t)sizeof(float) + TILE_ROWS * sw_dtype_bytes(type);
    return (struct tiling){
        .batch = APART_ROWS / SEQ, .vocab = APART_VOCAB, .tile_bytes = APART_STRIDE * row_bytes, .apart = true};
}

static inline struct sw_model_config config_of(int64_t vocab, bool tied) {
    return (struct sw_model_config){.family = "gpt2",
                                    .vocab = vocab,
                                    .hidden = HIDDEN,
                                    .layers = 1,
                                    .heads = 4,
                                    .kv_heads = 4,
                                    .head_dim = HIDDEN / 4,
                                    .ffn = 2 * HIDDEN,
                                    .max_positions = 512,
                                    .norm_epsilon = 1e-5,
                                    .init_std = 0.1,
                                    .activation = SW_GELU_TANH,
                                    .tied_embeddings = tied};
}

#endif
