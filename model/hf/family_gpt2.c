#include "model/hf/family_parts.h"

/* GPT-2: LayerNorm, learned positions, one fused matrix of queries, keys and values, matrices stored [in, out]. */

enum { FFN_FACTOR = 4, VOCAB = 50257, END_OF_TEXT = 50256 };

static const struct sw_config_field fields[] = {
    {.name = "vocab_size", INTO(vocab), WHOLE(SW_CONFIG_MAX_VOCAB), .required = true},
    {.name = "n_embd", INTO(hidden), WHOLE(SW_CONFIG_MAX_WIDTH), .required = true},
    {.name = "n_layer", INTO(layers), WHOLE(SW_CONFIG_MAX_LAYERS), .required = true},
    {.name = "n_head", INTO(heads), WHOLE(SW_CONFIG_MAX_WIDTH), .required = true},
    {.name = "n_ctx", INTO(max_positions), WHOLE(SW_CONFIG_MAX_POSITIONS), .read_only = true},
    {.name = "n_positions", INTO(max_positions), WHOLE(SW_CONFIG_MAX_POSITIONS)},
    {.name = "n_inner", INTO(ffn), WHOLE(FFN_FACTOR *SW_CONFIG_MAX_WIDTH)},
    {.name = "layer_norm_epsilon", INTO(norm_epsilon), .kind = SW_FIELD_REAL, .real_min = 1e-12, .real_max = 1},
    {.name = "initializer_range", INTO(init_std), .kind = SW_FIELD_REAL, .real_max = 1},
    {.name = "tie_word_embeddings", INTO(tied_embeddings), .kind = SW_FIELD_BOOL},
    {0},
};

static const struct sw_config_activation gpt2_activations[] = {
    {"gelu_new", SW_GELU_TANH},  {"gelu_pytorch_tanh", SW_GELU_TANH},
    {"gelu_fast", SW_GELU_TANH}, {"gelu", SW_GELU_ERF},
    {"relu", SW_RELU},           {0},
};

static const struct sw_config_fixed gpt2_fixed[] = {
    {"scale_attn_weights", SW_ONLY_TRUE},
    {"scale_attn_by_inverse_layer_idx", SW_ONLY_FALSE},
    {"reorder_and_upcast_attn", SW_ONLY_FALSE},
    {"add_cross_attention", SW_ONLY_FALSE},
    {"is_encoder_decoder", SW_ONLY_FALSE},
    {"tie_encoder_decoder", SW_ONLY_FALSE},
    {"cross_attention_hidden_size", SW_ONLY_EMPTY},
    {"pruned_heads", SW_ONLY_EMPTY},
    {"auto_map", SW_ONLY_EMPTY},
    {0},
};

static const char *const gpt2_special[] = {NULL};
static const char *const gpt2_harmless[] = {
    "summary_type",           "summary_use_proj", "summary_activation",
    "summary_first_dropout",  "n_special",        "summary_proj_to_labels",
    "predict_special_tokens", "output_past",      NULL,
};

static sw_status derive(const struct sw_family *family, const json_t *root, const char *origin,
                        struct sw_model_config *out) {
    (void)family;
    const json_t *old_positions = sw_config_field_of(root, "n_ctx");
    if (out->max_positions == 0)
        return sw_fail(SW_ERR_ARG, "%s has no 'n_positions'; a GPT-2 config.json must give it", origin);
    if (old_positions != NULL && json_integer_value(old_positions) != out->max_positions)
        return sw_fail(SW_ERR_ARG, "%s: 'n_ctx' is %lld but 'n_positions' is %lld; they must be equal", origin,
                       (long long)json_integer_value(old_positions), (long long)out->max_positions);
    if (out->hidden % out->heads != 0)
        return sw_fail(SW_ERR_ARG, "%s: 'n_head' %lld does not divide 'n_embd' %lld; it must", origin,
                       (long long)out->heads, (long long)out->hidden);
    out->kv_heads = out->heads;
    out->head_dim = out->hidden / out->heads;
    if (out->ffn == 0)
        out->ffn = FFN_FACTOR * out->hidden;
    return SW_OK;
}

/* Writes GPT-2's end of text for its own vocabulary. For another vocabulary, null keeps transformers from using that
 * default. */
static int write(json_t *root, const struct sw_model_config *config) {
    const bool has_end = config->vocab == VOCAB;
    json_t *more =
        json_pack("{s:b, s:f, s:f, s:f, s:o, s:o}", "scale_attn_weights", 1, "resid_pdrop", 0.0, "embd_pdrop", 0.0,
                  "attn_pdrop", 0.0, "bos_token_id", has_end ? json_integer(END_OF_TEXT) : json_null(), "eos_token_id",
                  has_end ? json_integer(END_OF_TEXT) : json_null());
    const int result = more == NULL ? -1 : json_object_update(root, more);
    json_decref(more);
    return result;
}

static const struct sw_tensor_names gpt2_names = {
    .token_table = "transformer.wte.weight",
    .position_table = "transformer.wpe.weight",
    .final_norm_scale = "transformer.ln_f.weight",
    .final_norm_bias = "transformer.ln_f.bias",
    .output_table = "lm_head.weight",
    .block = "transformer.h.",
    .piece =
        {
            [NORM1_SCALE] = {{.name = "ln_1.weight"}},
            [NORM1_BIAS] = {{.name = "ln_1.bias"}},
            [QKV_WEIGHT] = {{.name = "attn.c_attn.weight"}},
            [QKV_BIAS] = {{.name = "attn.c_attn.bias"}},
            [PROJECTION_WEIGHT] = {{.name = "attn.c_proj.weight"}},
            [PROJECTION_BIAS] = {{.name = "attn.c_proj.bias"}},
            [NORM2_SCALE] = {{.name = "ln_2.weight"}},
            [NORM2_BIAS] = {{.name = "ln_2.bias"}},
            [UP_WEIGHT] = {{.name = "mlp.c_fc.weight"}},
            [UP_BIAS] = {{.name = "mlp.c_fc.bias"}},
            [DOWN_WEIGHT] = {{.name = "mlp.c_proj.weight"}},
            [DOWN_BIAS] = {{.name = "mlp.c_proj.bias"}},
        },
};

const struct sw_family sw_gpt2_family = {
    .name = "gpt2",
    .title = "GPT-2",
    .architecture = "GPT2LMHeadModel",
    .defaults =
        {.family = "gpt2", .norm_epsilon = 1e-5, .init_std = 0.02, .activation = SW_GELU_TANH, .tied_embeddings = true},
    .fields = fields,
    .activation_field = "activation_function",
    .activations = gpt2_activations,
    .fixed = gpt2_fixed,
    .special = gpt2_special,
    .harmless = gpt2_harmless,
    .derive = derive,
    .write = write,
    .names = &gpt2_names,
};
