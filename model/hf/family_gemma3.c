#include "model/hf/family_parts.h"

/* Gemma 3, the models of text: norms before and after each half of a block, scales of norms stored as differences from
 * 1, scaled embeddings, and windows in most layers, whose rotary positions have a base of their own. */

enum { DEFAULT_PATTERN = 6, DEFAULT_HEAD_DIM = 256, DEFAULT_QUERY_WIDTH = 256, DEFAULT_KV_HEADS = 4 };
static const double FULL_THETA = 1e6, WINDOW_THETA = 1e4;

#define WINDOW_THETA_FIELD "rope_local_base_freq"
static const struct sw_config_field fields[] = {
    SHARED_FIELDS,
    ATTENTION_BIAS,
    {.name = "query_pre_attn_scalar", INTO(query_width), WHOLE(SW_CONFIG_MAX_WIDTH)},
    {.name = WINDOW_THETA_FIELD, INTO(window_theta), .kind = SW_FIELD_REAL, .real_min = 1, .real_max = 1e15},
    {0},
};

static const struct sw_config_fixed fixed[] = {
    SHARED_FIXED,
    NO_OWN_CODE,
    {"use_bidirectional_attention", SW_ONLY_FALSE},
    {"attn_logit_softcapping", SW_ONLY_EMPTY},
    {"final_logit_softcapping", SW_ONLY_EMPTY},
    {0},
};

static const char *const special[] = {
    ROPE_NAMES, "sliding_window", "sliding_window_pattern", "_sliding_window_pattern", "layer_types", NULL};
static const char *const harmless[] = {"cache_implementation", NULL};

static const char full_layers[] = "full_attention", window_layers[] = "sliding_attention";

/* Reads the rotary positions of one kind of layers from an object of rope_parameters. */
static sw_status read_rope_of(const struct sw_family *family, const json_t *parameters, const char *layers,
                              const char *origin, struct sw_model_config *out) {
    json_t *object = json_object_get(parameters, layers);
    json_t *root = json_pack("{s:O}", "rope_parameters", object != NULL ? object : json_null());
    if (root == NULL)
        return sw_fail(SW_ERR_NOMEM, "no memory to read %s", origin);
    const sw_status status = sw_config_read_rope(family, root, origin, out);
    json_decref(root);
    return status;
}

/* Reads rope_parameters of newer versions, which have an object for each kind of layers. */
static sw_status read_ropes(const struct sw_family *family, const json_t *root, const char *origin,
                            struct sw_model_config *out) {
    static const char *const apart[] = {"rope_theta", "rope_scaling", WINDOW_THETA_FIELD};
    const json_t *parameters = sw_config_field_of(root, "rope_parameters");
    struct sw_model_config in_window = *out;
    for (size_t i = 0; i < sizeof apart / sizeof apart[0]; i++)
        if (sw_config_field_of(root, apart[i]) != NULL)
            return sw_fail(SW_ERR_ARG, "%s has both 'rope_parameters' and '%s'; give one of them", origin, apart[i]);
    const char *name = NULL;
    json_t *value = NULL;
    json_object_foreach((json_t *)parameters, name, value) {
        if (strcmp(name, full_layers) != 0 && strcmp(name, window_layers) != 0)
            return sw_fail(SW_ERR_UNSUPPORTED, "%s: 'rope_parameters' has '%.60s'; supported: \"%s\" and \"%s\"",
                           origin, name, full_layers, window_layers);
    }
    SW_TRY(read_rope_of(family, parameters, full_layers, origin, out));
    SW_TRY(read_rope_of(family, parameters, window_layers, origin, &in_window));
    if (in_window.rope.kind != SW_ROPE_DEFAULT)
        return sw_fail(SW_ERR_UNSUPPORTED,
                       "%s: the rotary positions of \"%s\" are scaled, which is not supported; 'rope_type' must be "
                       "\"default\"",
                       origin, window_layers);
    const json_t *theta = sw_config_field_of(json_object_get(parameters, window_layers), "rope_theta");
    out->window_theta = theta == NULL ? WINDOW_THETA : in_window.rope.theta;
    return SW_OK;
}

/* Sets every `pattern`-th layer to attend to all tokens. */
static void set_pattern(struct sw_model_config *config, int64_t pattern) {
    for (int64_t layer = pattern - 1; layer < config->layers; layer += pattern)
        sw_family_set_full(config, layer);
}

/* Reads which layers attend to all tokens: a list, or else a number in a field that has two names. */
static sw_status read_layers(const json_t *root, const char *origin, struct sw_model_config *out) {
    const json_t *types = sw_config_field_of(root, "layer_types"),
                 *pattern = sw_config_field_of(root, "sliding_window_pattern");
    char shown[SW_SHOWN_CHARS];
    if (pattern == NULL)
        pattern = sw_config_field_of(root, "_sliding_window_pattern");
    if (pattern != NULL && (!json_is_integer(pattern) || json_integer_value(pattern) < 1))
        return sw_fail(SW_ERR_ARG, "%s: 'sliding_window_pattern' is %s; it must be a whole number from 1", origin,
                       sw_config_show(pattern, shown));
    if (types != NULL)
        return sw_family_read_layer_types(types, origin, out);
    set_pattern(out, pattern == NULL ? DEFAULT_PATTERN : json_integer_value(pattern));
    return SW_OK;
}

static sw_status derive(const struct sw_family *family, const json_t *root, const char *origin,
                        struct sw_model_config *out) {
    const json_t *parameters = sw_config_field_of(root, "rope_parameters");
    const bool by_layers =
        json_object_get(parameters, full_layers) != NULL || json_object_get(parameters, window_layers) != NULL;
    SW_TRY(sw_family_derive_heads(family, root, origin, out));
    SW_TRY(by_layers ? read_ropes(family, root, origin, out) : sw_config_read_rope(family, root, origin, out));
    SW_TRY(sw_family_read_window(root, origin, &out->window));
    return read_layers(root, origin, out);
}

/* Returns the number that describes which layers attend to all tokens, as versions without layer_types need it; 0:
 * there is none. */
static int64_t pattern_of(const struct sw_model_config *config) {
    for (int64_t pattern = 1; pattern <= config->layers + 1; pattern++) {
        struct sw_model_config other = {.layers = config->layers};
        set_pattern(&other, pattern);
        if (memcmp(other.full_layers, config->full_layers, sizeof other.full_layers) == 0)
            return pattern;
    }
    return 0;
}

static int write(json_t *root, const struct sw_model_config *config) {
    const int64_t pattern = pattern_of(config);
    return sw_family_write_mistral(root, config) || json_object_set_new(root, "pad_token_id", json_null()) ||
           (pattern > 0 && json_object_set_new(root, "sliding_window_pattern", json_integer(pattern)) != 0) ||
           sw_family_write_layer_types(root, config);
}

static const struct sw_tensor_names names = {
    SHARED_NAMES,
    .piece =
        {
            ATTENTION_PIECES_WITH("pre_feedforward_layernorm.weight"),
            [ATTENTION_RESULT_NORM] = {{.name = "post_attention_layernorm.weight"}},
            GATED_PIECES,
            [MLP_RESULT_NORM] = {{.name = "post_feedforward_layernorm.weight"}},
        },
};

const struct sw_family sw_gemma3_text_family = {
    .name = "gemma3_text",
    .title = "Gemma 3",
    .architecture = "Gemma3ForCausalLM",
    .defaults = {.family = "gemma3_text",
                 ROTARY_FORM,
                 .norm_epsilon = 1e-6,
                 .activation = SW_GELU_TANH,
                 .head_dim = DEFAULT_HEAD_DIM,
                 .query_width = DEFAULT_QUERY_WIDTH,
                 .tied_embeddings = true,
                 .qk_norm = true,
                 .norm_of_results = true,
                 .norm_from_one = true,
                 .scaled_embedding = true,
                 .window_theta = WINDOW_THETA},
    .absent_kv_heads = DEFAULT_KV_HEADS,
    .absent_theta = FULL_THETA,
    .fields = fields,
    .activation_field = "hidden_activation",
    .activations = sw_gated_activations,
    .fixed = fixed,
    .special = special,
    .harmless = harmless,
    .derive = derive,
    .write = write,
    .names = &names,
};
