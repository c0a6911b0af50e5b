/* A model's configuration, read from a Hugging Face config.json or taken from a preset by name. */
#ifndef SW_MODEL_HF_CONFIG_H
#define SW_MODEL_HF_CONFIG_H

#include "core/status.h"
#include "kernels/device.h"

#include <stdbool.h>
#include <stdint.h>

enum { SW_CONFIG_NAME_CHARS = 64 };

/* Limits that keep every later computation of sizes within 64 bits. */
#define SW_CONFIG_MAX_LAYERS 4096
#define SW_CONFIG_LAYER_WORDS (SW_CONFIG_MAX_LAYERS / 64)
#define SW_CONFIG_MAX_WIDTH (INT64_C(1) << 20)
#define SW_CONFIG_MAX_VOCAB (INT64_C(1) << 24)
#define SW_CONFIG_MAX_POSITIONS (INT64_C(1) << 22)

typedef enum { SW_NORM_LAYER = 0, SW_NORM_RMS = 1 } sw_norm;
/* SW_POSITIONS_ALIBI: no positions; attention has biases by distance (struct sw_attention). */
typedef enum { SW_POSITIONS_LEARNED = 0, SW_POSITIONS_ROTARY = 1, SW_POSITIONS_ALIBI = 2 } sw_positions;
typedef enum {
    SW_ROPE_DEFAULT = 0,
    SW_ROPE_LINEAR = 1,
    SW_ROPE_LLAMA3 = 2,
    SW_ROPE_YARN = 3,
    SW_ROPE_KINDS
} sw_rope_kind;

/* Rotary positions, with the field names of config.json. A number that is not given is 0. */
struct sw_rope {
    sw_rope_kind kind;
    double theta, factor;
    double low_freq_factor, high_freq_factor;                              /* llama3 */
    int64_t original_positions;                                            /* llama3, yarn */
    double beta_fast, beta_slow, attention_factor, mscale, mscale_all_dim; /* yarn */
    bool truncate;                                                         /* yarn */
};

/* The complete description of a model. `family` only says how the description is written in files. */
struct sw_model_config {
    char family[SW_CONFIG_NAME_CHARS]; /* model_type, such as "gpt2" */
    int64_t vocab, hidden, layers, heads, kv_heads, head_dim, ffn, max_positions;
    double norm_epsilon;
    double init_std;
    sw_activation activation;
    bool tied_embeddings;
    sw_norm norm;
    sw_positions positions;
    bool gated;                               /* the MLP's inner layer is f(gate)·value */
    bool out_first;                           /* matrices are stored [out, in] */
    bool qkv_bias, projection_bias, mlp_bias; /* only families that have a choice set these */
    bool qk_norm;                             /* queries and keys are normalised, head by head */
    bool norm_of_results;                     /* attention's and the MLP's results are normalised, then added */
    bool norm_from_one;                       /* scales of norms are stored as their differences from 1 */
    bool scaled_embedding;                    /* embeddings are multiplied by the root of the hidden size */
    bool embedding_norm;                      /* the embedding's rows are normalised before the first block */
    bool qkv_by_head;                         /* one matrix has queries, keys and values: q, k and v of a head, then of
                                                 the next */
    bool joint_qk_norm;                       /* with qk_norm: all heads of a token at once, not head by head */
    /* A mixture of experts: each token goes through the chosen_experts with the largest router logits, and their
     * results are added, weighted by the softmax of all logits. ffn is 0 then, or the width of a shared expert's inner
     * layer, whose result is added for every token, times the sigmoid of a logit. experts 0: the MLP is dense. */
    int64_t experts, chosen_experts;
    int64_t expert_ffn; /* width of an expert's inner layer */
    /* gpt-oss: all experts of a layer are one tensor of each kind, [experts, in, out], and have biases. Gates and
     * values are one matrix whose columns alternate between the two, and the inner layer is sw_clamped_forward's. */
    bool joined_experts;
    bool normalises_chosen; /* the weights of the chosen experts are divided by their sum */
    bool balances_experts;  /* output_router_logits: training adds the loss that balances the experts' load */
    double router_aux_loss; /* router_aux_loss_coef: the factor of that loss */
    /* Neighbouring experts that are a unit of the plan, a divisor of `experts`; 0: a block is one unit. It says how a
     * run keeps the model, so files do not have it. */
    int64_t expert_group;
    int64_t window; /* tokens that a layer attends to, unless full_layers names it; 0: all */
    uint64_t full_layers[SW_CONFIG_LAYER_WORDS]; /* one bit for each layer: the layer attends to all tokens */
    struct sw_rope rope;
    double window_theta; /* base of the rotary positions of layers with a window, which are not scaled; 0: rope */
    int64_t query_width; /* scores are divided by its root; 0: head_dim */
};

static inline bool sw_config_in_full_layers(const struct sw_model_config *config, int64_t layer) {
    return (config->full_layers[layer / 64] >> (layer % 64) & 1) != 0;
}

static inline bool sw_config_has_shared_expert(const struct sw_model_config *config) {
    return config->experts > 0 && config->ffn > 0;
}

/* Returns how many tokens a layer attends to; 0: all. */
static inline int64_t sw_config_window(const struct sw_model_config *config, int64_t layer) {
    return sw_config_in_full_layers(config, layer) ? 0 : config->window;
}

/* Loads a model's description. model: a folder that holds config.json, a config.json itself, or a preset's name.
 * Refuses every field of config.json that is neither used nor known to be harmless. */
sw_status sw_config_load(const char *model, struct sw_model_config *out);
/* Parses the text of a config.json; origin names it in messages. */
sw_status sw_config_parse(const char *text, const char *origin, struct sw_model_config *out);
/* Returns the text of a config.json that transformers loads. The caller frees it. */
sw_status sw_config_to_json(const struct sw_model_config *config, char **out);

struct sw_preset {
    const char *name;
    const char *what; /* one line for --help */
    struct sw_model_config config;
};
/* Returns a preset; NULL after the last. */
const struct sw_preset *sw_preset_at(int index);

/* Returns the model whose proportions stand for a family, by the family's index; NULL after the last. It is the
 * family's largest preset, if it has one. */
const struct sw_preset *sw_proportions_at(int index);

/* Makes a model of `layers` layers with the proportions of `base`. The number of heads grows with the layers, in whole
 * groups of heads that share keys and values; hidden size and the MLP's inner layer grow with the heads. Head size,
 * vocabulary and positions stay. Fails with SW_ERR_ARG beyond the limits at the head of this file. */
sw_status sw_config_scale(const struct sw_model_config *base, int64_t layers, struct sw_model_config *out);

#endif
