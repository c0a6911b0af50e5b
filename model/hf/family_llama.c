#include "model/hf/family_parts.h"

#include <string.h>

/* Llama and the families that share its block: Mistral, Qwen2, Qwen3 and Phi-3. All have root-mean-square norms, rotary
 * positions, a gated MLP and matrices stored [out, in]. They differ in biases, in norms of queries and keys, and in
 * windows. */

/* Defaults of transformers' configuration classes for fields that config.json leaves out. */
enum { DEFAULT_FULL_LAYERS = 28, QWEN3_HEAD_DIM = 128, QWEN_KV_HEADS = 32 };

static const struct sw_config_field llama_fields[] = {
    SHARED_FIELDS, ATTENTION_BIAS, {.name = "mlp_bias", INTO(mlp_bias), FLAG}, {0}};
static const struct sw_config_field shared_fields[] = {SHARED_FIELDS, {0}};
static const struct sw_config_field qwen3_fields[] = {SHARED_FIELDS, ATTENTION_BIAS, {0}};

const struct sw_config_activation sw_gated_activations[] = {
    {"silu", SW_SILU},
    {"swish", SW_SILU},
    {"gelu_pytorch_tanh", SW_GELU_TANH},
    {"gelu_new", SW_GELU_TANH},
    {"gelu", SW_GELU_ERF},
    {"relu", SW_RELU},
    {0},
};

static const struct sw_config_fixed fixed[] = {SHARED_FIXED, NO_OWN_CODE, {0}};
/* Llama has no windows, so its list of layers may name only full attention. */
static const struct sw_config_fixed llama_fixed[] = {
    SHARED_FIXED, NO_OWN_CODE, {"layer_types", SW_ONLY_FULL_ATTENTION}, {0}};
static const struct sw_config_fixed phi3_fixed[] = {SHARED_FIXED, {"attention_bias", SW_ONLY_FALSE}, {0}};

static const char *const llama_special[] = {ROPE_NAMES, NULL};
static const char *const mistral_special[] = {ROPE_NAMES, "sliding_window", NULL};
static const char *const qwen_special[] = {ROPE_NAMES,          "sliding_window", "use_sliding_window",
                                           "max_window_layers", "layer_types",    NULL};
/* pretraining_tp only slices the same products. */
static const char *const harmless[] = {"pretraining_tp", NULL};
/* Only positions of type longrope, which are refused, use the length of the first training. The code that the first
 * folders of Phi-3 brought along is what transformers has now. */
static const char *const phi3_harmless[] = {"original_max_position_embeddings", "auto_map", NULL};

sw_status sw_family_derive_heads(const struct sw_family *family, const json_t *root, const char *origin,
                                 struct sw_model_config *out) {
    const int64_t absent = family->absent_kv_heads;
    if (out->kv_heads == 0)
        out->kv_heads = absent > 0 && json_object_get(root, "num_key_value_heads") == NULL ? absent : out->heads;
    if (out->heads % out->kv_heads != 0)
        return sw_fail(SW_ERR_ARG, "%s: 'num_key_value_heads' %lld does not divide 'num_attention_heads' %lld; it must",
                       origin, (long long)out->kv_heads, (long long)out->heads);
    if (out->head_dim == 0 && out->hidden % out->heads != 0)
        return sw_fail(SW_ERR_ARG, "%s: 'num_attention_heads' %lld does not divide 'hidden_size' %lld; it must", origin,
                       (long long)out->heads, (long long)out->hidden);
    if (out->head_dim == 0)
        out->head_dim = out->hidden / out->heads;
    if (out->head_dim % 2 != 0)
        return sw_fail(SW_ERR_ARG, "%s: a head has %lld elements; rotary positions need an even number", origin,
                       (long long)out->head_dim);
    return SW_OK;
}

sw_status sw_family_derive_llama(const struct sw_family *family, const json_t *root, const char *origin,
                                 struct sw_model_config *out) {
    SW_TRY(sw_family_derive_heads(family, root, origin, out));
    return sw_config_read_rope(family, root, origin, out);
}

static sw_status derive_mistral(const struct sw_family *family, const json_t *root, const char *origin,
                                struct sw_model_config *out) {
    SW_TRY(sw_family_derive_llama(family, root, origin, out));
    return sw_family_read_window(root, origin, &out->window);
}

/* A missing window is none here. */
static sw_status derive_phi3(const struct sw_family *family, const json_t *root, const char *origin,
                             struct sw_model_config *out) {
    SW_TRY(sw_family_derive_llama(family, root, origin, out));
    return json_object_get(root, "sliding_window") == NULL ? SW_OK : sw_family_read_window(root, origin, &out->window);
}

/* Reads max_window_layers: that many of the first layers attend to all tokens. */
static sw_status read_full_layers(const json_t *root, const char *origin, struct sw_model_config *out) {
    const json_t *full_layers = sw_config_field_of(root, "max_window_layers");
    char shown[SW_SHOWN_CHARS];
    if (full_layers != NULL && (!json_is_integer(full_layers) || json_integer_value(full_layers) < 0))
        return sw_fail(SW_ERR_ARG, "%s: 'max_window_layers' is %s; it must be a whole number from 0", origin,
                       sw_config_show(full_layers, shown));
    const int64_t count = full_layers == NULL ? DEFAULT_FULL_LAYERS : json_integer_value(full_layers);
    for (int64_t i = 0; i < count && i < out->layers; i++)
        sw_family_set_full(out, i);
    return SW_OK;
}

static sw_status derive_qwen(const struct sw_family *family, const json_t *root, const char *origin,
                             struct sw_model_config *out) {
    const json_t *use = sw_config_field_of(root, "use_sliding_window"),
                 *types = sw_config_field_of(root, "layer_types");
    char shown[SW_SHOWN_CHARS];
    SW_TRY(sw_family_derive_llama(family, root, origin, out));
    SW_TRY(sw_family_read_window(root, origin, &out->window));
    if (use != NULL && !json_is_boolean(use))
        return sw_fail(SW_ERR_ARG, "%s: 'use_sliding_window' is %s; it must be true or false", origin,
                       sw_config_show(use, shown));
    SW_TRY(types != NULL ? sw_family_read_layer_types(types, origin, out) : read_full_layers(root, origin, out));
    const bool used = json_is_true(use) && out->window > 0, slides = sw_family_full_in_front(out) < out->layers;
    if (types != NULL && slides && !used)
        return sw_fail(SW_ERR_ARG, "%s: 'layer_types' has sliding attention, but no sliding window is used", origin);
    if (used && slides)
        return SW_OK;
    out->window = 0;
    memset(out->full_layers, 0, sizeof out->full_layers);
    return SW_OK;
}

/* Writes null for the tokens that begin and end a text: only programs that generate use them, and the configuration
 * does not hold them. */
int sw_family_write_llama(json_t *root, const struct sw_model_config *config) {
    return json_object_set_new(root, "bos_token_id", json_null()) ||
           json_object_set_new(root, "eos_token_id", json_null()) || sw_config_write_rope(root, config);
}

int sw_family_write_mistral(json_t *root, const struct sw_model_config *config) {
    return sw_family_write_llama(root, config) ||
           json_object_set_new(root, "sliding_window", sw_family_window_json(config));
}

/* Writes null for the token of padding: transformers' default, 32,000, must be in the vocabulary. */
static int write_phi3(json_t *root, const struct sw_model_config *config) {
    return sw_family_write_mistral(root, config) || json_object_set_new(root, "pad_token_id", json_null());
}

static int write_qwen(json_t *root, const struct sw_model_config *config) {
    const int64_t in_front = config->window == 0 ? config->layers : sw_family_full_in_front(config);
    return sw_family_write_llama(root, config) ||
           json_object_set_new(root, "sliding_window", sw_family_window_json(config)) ||
           json_object_set_new(root, "use_sliding_window", json_boolean(config->window != 0)) ||
           json_object_set_new(root, "max_window_layers", json_integer(in_front)) ||
           sw_family_write_layer_types(root, config);
}

static const struct sw_tensor_names names = {
    SHARED_NAMES,
    .piece =
        {
            ATTENTION_PIECES,
            GATED_PIECES,
        },
};

/* One matrix holds queries, keys and values, another gates and values of the MLP. */
static const struct sw_tensor_names phi3_names = {
    SHARED_NAMES,
    .piece =
        {
            [NORM1_SCALE] = {{.name = "input_layernorm.weight"}},
            [QKV_WEIGHT] = {{.name = "self_attn.qkv_proj.weight"}},
            [PROJECTION_WEIGHT] = {{.name = "self_attn.o_proj.weight"}},
            [NORM2_SCALE] = {{.name = "post_attention_layernorm.weight"}},
            [UP_WEIGHT] = {{.name = "mlp.gate_up_proj.weight"}},
            [DOWN_WEIGHT] = {{.name = "mlp.down_proj.weight"}},
        },
};

#define SHARED_PARTS                                                                                                   \
    .activation_field = "hidden_act", .activations = sw_gated_activations, .harmless = harmless, .names = &names

const struct sw_family sw_llama_family = {
    .name = "llama",
    .title = "Llama",
    .architecture = "LlamaForCausalLM",
    .defaults = {.family = "llama", SHARED_DEFAULTS},
    .fields = llama_fields,
    .fixed = llama_fixed,
    .special = llama_special,
    .derive = sw_family_derive_llama,
    .write = sw_family_write_llama,
    SHARED_PARTS,
};

const struct sw_family sw_mistral_family = {
    .name = "mistral",
    .title = "Mistral",
    .architecture = "MistralForCausalLM",
    .defaults = {.family = "mistral", SHARED_DEFAULTS},
    .absent_kv_heads = SW_MISTRAL_KV_HEADS,
    .fields = shared_fields,
    .fixed = fixed,
    .special = mistral_special,
    .derive = derive_mistral,
    .write = sw_family_write_mistral,
    SHARED_PARTS,
};

const struct sw_family sw_qwen2_family = {
    .name = "qwen2",
    .title = "Qwen2",
    .architecture = "Qwen2ForCausalLM",
    .defaults = {.family = "qwen2", SHARED_DEFAULTS, .qkv_bias = true},
    .absent_kv_heads = QWEN_KV_HEADS,
    .fields = shared_fields,
    .fixed = fixed,
    .special = qwen_special,
    .derive = derive_qwen,
    .write = write_qwen,
    SHARED_PARTS,
};

const struct sw_family sw_qwen3_family = {
    .name = "qwen3",
    .title = "Qwen3",
    .architecture = "Qwen3ForCausalLM",
    .defaults = {.family = "qwen3", SHARED_DEFAULTS, .qk_norm = true, .head_dim = QWEN3_HEAD_DIM},
    .absent_kv_heads = QWEN_KV_HEADS,
    .fields = qwen3_fields,
    .fixed = fixed,
    .special = qwen_special,
    .derive = derive_qwen,
    .write = write_qwen,
    SHARED_PARTS,
};

const struct sw_family sw_phi3_family = {
    .name = "phi3",
    .title = "Phi-3",
    .architecture = "Phi3ForCausalLM",
    .defaults = {.family = "phi3", SHARED_FORM, .norm_epsilon = 1e-5},
    .fields = shared_fields,
    .activation_field = "hidden_act",
    .activations = sw_gated_activations,
    .fixed = phi3_fixed,
    .special = mistral_special,
    .harmless = phi3_harmless,
    .derive = derive_phi3,
    .write = write_phi3,
    .names = &phi3_names,
};
