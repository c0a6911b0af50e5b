/* Parts that families share: rows of their tables of fields and names, and functions that read and write fields. */
#ifndef SW_MODEL_HF_FAMILY_PARTS_H
#define SW_MODEL_HF_FAMILY_PARTS_H

#include "model/hf/family.h"

#include <string.h>

/* Rows of a table of fields. */
#define INTO(member) .offset = offsetof(struct sw_model_config, member)
#define WHOLE(most) .kind = SW_FIELD_INT, .int_min = 1, .int_max = (most)
#define FLAG .kind = SW_FIELD_BOOL
#define FFN_WIDTH .kind = SW_FIELD_INT, .int_min = 1, .int_max = 4 * SW_CONFIG_MAX_WIDTH
#define BODY_FIELDS                                                                                                    \
    {.name = "vocab_size", INTO(vocab), WHOLE(SW_CONFIG_MAX_VOCAB), .required = true},                                 \
        {.name = "hidden_size", INTO(hidden), WHOLE(SW_CONFIG_MAX_WIDTH), .required = true},                           \
        {.name = "num_hidden_layers", INTO(layers), WHOLE(SW_CONFIG_MAX_LAYERS), .required = true},                    \
        {.name = "num_attention_heads", INTO(heads), WHOLE(SW_CONFIG_MAX_WIDTH), .required = true},                    \
        {.name = "num_key_value_heads", INTO(kv_heads), WHOLE(SW_CONFIG_MAX_WIDTH)},                                   \
        {.name = "head_dim", INTO(head_dim), WHOLE(SW_CONFIG_MAX_WIDTH)},                                              \
        {.name = "max_position_embeddings", INTO(max_positions), WHOLE(SW_CONFIG_MAX_POSITIONS), .required = true},    \
        {.name = "rms_norm_eps", INTO(norm_epsilon), .kind = SW_FIELD_REAL, .real_min = 1e-12, .real_max = 1},         \
        {.name = "initializer_range", INTO(init_std), .kind = SW_FIELD_REAL, .real_max = 1}, {                         \
        .name = "tie_word_embeddings", INTO(tied_embeddings), FLAG                                                     \
    }
#define SHARED_FIELDS                                                                                                  \
    BODY_FIELDS, {                                                                                                     \
        .name = "intermediate_size", INTO(ffn), FFN_WIDTH, .required = true                                            \
    }
/* One field sets both biases. */
#define ATTENTION_BIAS                                                                                                 \
    {.name = "attention_bias", INTO(qkv_bias), FLAG}, {                                                                \
        .name = "attention_bias", INTO(projection_bias), FLAG                                                          \
    }

/* Rows of a table of fixed fields. */
#define SHARED_FIXED                                                                                                   \
    {"is_encoder_decoder", SW_ONLY_FALSE}, {"tie_encoder_decoder", SW_ONLY_FALSE},                                     \
        {"add_cross_attention", SW_ONLY_FALSE}, {"use_mrope", SW_ONLY_FALSE}, {"rope_interleaved", SW_ONLY_FALSE},     \
        {"partial_rotary_factor", SW_ONLY_ONE}, {"pruned_heads", SW_ONLY_EMPTY}, {                                     \
        "cross_attention_hidden_size", SW_ONLY_EMPTY                                                                   \
    }
/* Code that a folder brings along may compute something else. */
#define NO_OWN_CODE                                                                                                    \
    { "auto_map", SW_ONLY_EMPTY }

#define ROPE_NAMES "rope_theta", "rope_scaling", "rope_parameters"

/* Rows of a table of tensor names. */
#define WHEN(member) .when = offsetof(struct sw_model_config, member)
#define SHARED_NAMES                                                                                                   \
    .token_table = "model.embed_tokens.weight", .final_norm_scale = "model.norm.weight",                               \
    .output_table = "lm_head.weight", .block = "model.layers."
#define ATTENTION_PIECES_WITH(norm2)                                                                                   \
    [NORM1_SCALE] = {{.name = "input_layernorm.weight"}},                                                              \
    [QKV_WEIGHT] = {{.name = "self_attn.q_proj.weight"},                                                               \
                    {.name = "self_attn.k_proj.weight"},                                                               \
                    {.name = "self_attn.v_proj.weight"}},                                                              \
    [QKV_BIAS] = {{.name = "self_attn.q_proj.bias", WHEN(qkv_bias)},                                                   \
                  {.name = "self_attn.k_proj.bias", WHEN(qkv_bias)},                                                   \
                  {.name = "self_attn.v_proj.bias", WHEN(qkv_bias)}},                                                  \
    [Q_NORM] = {{.name = "self_attn.q_norm.weight", WHEN(qk_norm)}},                                                   \
    [K_NORM] = {{.name = "self_attn.k_norm.weight", WHEN(qk_norm)}},                                                   \
    [PROJECTION_WEIGHT] = {{.name = "self_attn.o_proj.weight"}},                                                       \
    [PROJECTION_BIAS] = {{.name = "self_attn.o_proj.bias", WHEN(projection_bias)}}, [NORM2_SCALE] = {{.name = norm2}}
#define ATTENTION_PIECES ATTENTION_PIECES_WITH("post_attention_layernorm.weight")
#define GATED_PIECES                                                                                                   \
    [UP_WEIGHT] = {{.name = "mlp.gate_proj.weight"}, {.name = "mlp.up_proj.weight"}},                                  \
    [UP_BIAS] = {{.name = "mlp.gate_proj.bias", WHEN(mlp_bias)}, {.name = "mlp.up_proj.bias", WHEN(mlp_bias)}},        \
    [DOWN_WEIGHT] = {{.name = "mlp.down_proj.weight"}}, [DOWN_BIAS] = {{.name = "mlp.down_proj.bias", WHEN(mlp_bias)}}

/* A shared expert, in the place of a dense MLP, and the gate of its result. */
#define SHARED_EXPERT_PIECES                                                                                           \
    [SHARED_GATE] = {{.name = "mlp.shared_expert_gate.weight"}},                                                       \
    [UP_WEIGHT] = {{.name = "mlp.shared_expert.gate_proj.weight"}, {.name = "mlp.shared_expert.up_proj.weight"}},      \
    [DOWN_WEIGHT] = {{.name = "mlp.shared_expert.down_proj.weight"}}

/* Switches of a block as Llama has it. */
#define ROTARY_FORM                                                                                                    \
    .init_std = 0.02, .norm = SW_NORM_RMS, .positions = SW_POSITIONS_ROTARY, .gated = true, .out_first = true
#define SHARED_FORM .activation = SW_SILU, ROTARY_FORM
#define SHARED_DEFAULTS .norm_epsilon = 1e-6, SHARED_FORM

enum { SW_MISTRAL_KV_HEADS = 8 };
extern const struct sw_config_activation sw_gated_activations[];

/* Read and write rotary positions: rope_theta and rope_scaling, or rope_parameters, in which newer versions put both.
 */
sw_status sw_config_read_rope(const struct sw_family *family, const json_t *root, const char *origin,
                              struct sw_model_config *out);
int sw_config_write_rope(json_t *root, const struct sw_model_config *config);

/* Reads the window. A missing field means the default of transformers, null means no window. */
sw_status sw_family_read_window(const json_t *root, const char *origin, int64_t *out);
json_t *sw_family_window_json(const struct sw_model_config *config);
void sw_family_set_full(struct sw_model_config *config, int64_t layer);
/* Returns how many of the first layers attend to all tokens. */
int64_t sw_family_full_in_front(const struct sw_model_config *config);
/* Read and write the list of layer types: which layers attend to all tokens. */
sw_status sw_family_read_layer_types(const json_t *types, const char *origin, struct sw_model_config *out);
int sw_family_write_layer_types(json_t *root, const struct sw_model_config *config);

/* Refuses two different numbers of experts, and more chosen experts than there are. */
sw_status sw_family_check_experts(const json_t *root, const char *origin, const struct sw_model_config *config);

/* Functions of Llama and Mistral, which other families call in theirs. */
sw_status sw_family_derive_heads(const struct sw_family *family, const json_t *root, const char *origin,
                                 struct sw_model_config *out);
sw_status sw_family_derive_llama(const struct sw_family *family, const json_t *root, const char *origin,
                                 struct sw_model_config *out);
int sw_family_write_llama(json_t *root, const struct sw_model_config *config);
int sw_family_write_mistral(json_t *root, const struct sw_model_config *config);

#endif
