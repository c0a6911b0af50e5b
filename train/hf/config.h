/* A model's configuration, read from a Hugging Face config.json or taken from a preset by name. */
#ifndef SW_TRAIN_HF_CONFIG_H
#define SW_TRAIN_HF_CONFIG_H

#include "core/status.h"
#include "kernels/device.h"

#include <stdbool.h>
#include <stdint.h>

enum { SW_CONFIG_NAME_CHARS = 64 };

/* Limits that keep every later size computation inside 64 bits. */
#define SW_CONFIG_MAX_LAYERS 4096
#define SW_CONFIG_LAYER_WORDS (SW_CONFIG_MAX_LAYERS / 64)
#define SW_CONFIG_MAX_WIDTH (INT64_C(1) << 20)
#define SW_CONFIG_MAX_VOCAB (INT64_C(1) << 24)
#define SW_CONFIG_MAX_POSITIONS (INT64_C(1) << 22)

typedef enum { SW_NORM_LAYER = 0, SW_NORM_RMS = 1 } sw_norm;
typedef enum { SW_POSITIONS_LEARNED = 0, SW_POSITIONS_ROTARY = 1 } sw_positions;
typedef enum {
    SW_ROPE_DEFAULT = 0,
    SW_ROPE_LINEAR = 1,
    SW_ROPE_LLAMA3 = 2,
    SW_ROPE_YARN = 3,
    SW_ROPE_KINDS
} sw_rope_kind;

/* Rotary positions, with the names of config.json; 0 where a number is not given. */
struct sw_rope {
    sw_rope_kind kind;
    double theta, factor;
    double low_freq_factor, high_freq_factor;                              /* llama3 */
    int64_t original_positions;                                            /* llama3, yarn */
    double beta_fast, beta_slow, attention_factor, mscale, mscale_all_dim; /* yarn */
    bool truncate;                                                         /* yarn */
};

/* A model is this description and nothing else; the family only says how it is written in files. */
struct sw_model_config {
    char family[SW_CONFIG_NAME_CHARS]; /* "gpt2" */
    int64_t vocab, hidden, layers, heads, kv_heads, head_dim, ffn, max_positions;
    double norm_epsilon;
    double init_std;
    sw_activation activation;
    bool tied_embeddings;
    sw_norm norm;
    sw_positions positions;
    bool gated;                                  /* the MLP's inner layer is f(gate)·value */
    bool out_first;                              /* matrices are stored [out, in] */
    bool qkv_bias, projection_bias, mlp_bias;    /* where the family leaves them open */
    bool qk_norm;                                /* queries and keys are normalised, head by head */
    int64_t window;                              /* tokens that a layer attends to; 0: all ... */
    uint64_t full_layers[SW_CONFIG_LAYER_WORDS]; /* ... as these layers do in any case, a bit each */
    struct sw_rope rope;
};

static inline bool sw_config_in_full_layers(const struct sw_model_config *config, int64_t layer) {
    return (config->full_layers[layer / 64] >> (layer % 64) & 1) != 0;
}

/* Tokens that a layer attends to; 0: all. */
static inline int64_t sw_config_window(const struct sw_model_config *config, int64_t layer) {
    return sw_config_in_full_layers(config, layer) ? 0 : config->window;
}

/* model: a folder that holds config.json, a config.json itself, or a preset's name. Every field of config.json is used,
 * known to be harmless, or refused by name. */
sw_status sw_config_load(const char *model, struct sw_model_config *out);
/* Parses the text of a config.json; origin names it in messages. */
sw_status sw_config_parse(const char *text, const char *origin, struct sw_model_config *out);
/* The config.json that transformers loads, malloc'ed; the caller frees it. */
sw_status sw_config_to_json(const struct sw_model_config *config, char **out);

struct sw_preset {
    const char *name;
    const char *what; /* one line for --help */
    struct sw_model_config config;
};
/* NULL after the last. */
const struct sw_preset *sw_preset_at(int index);

#endif
