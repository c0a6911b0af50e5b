#include "model/hf/family_parts.h"

/* BLOOM: LayerNorm, also of the embedding's rows, biases of attention by distance in place of positions, one matrix
 * with queries, keys and values of each head in turn, and matrices stored [out, in]. */

enum { FFN_FACTOR = 4, VOCAB = 250880, UNKNOWN = 0, BEGIN_OF_TEXT = 1, END_OF_TEXT = 2, PADDING = 3 };

/* The files of BLOOM itself have older names for sizes. */
static const struct sw_config_field fields[] = {
    {.name = "vocab_size", INTO(vocab), WHOLE(SW_CONFIG_MAX_VOCAB), .required = true},
    {.name = "hidden_size", INTO(hidden), WHOLE(SW_CONFIG_MAX_WIDTH)},
    {.name = "n_embed", INTO(hidden), WHOLE(SW_CONFIG_MAX_WIDTH), .read_only = true},
    {.name = "num_hidden_layers", INTO(layers), WHOLE(SW_CONFIG_MAX_LAYERS), .read_only = true},
    {.name = "n_layer", INTO(layers), WHOLE(SW_CONFIG_MAX_LAYERS)},
    {.name = "num_attention_heads", INTO(heads), WHOLE(SW_CONFIG_MAX_WIDTH), .read_only = true},
    {.name = "n_head", INTO(heads), WHOLE(SW_CONFIG_MAX_WIDTH)},
    {.name = "layer_norm_epsilon", INTO(norm_epsilon), .kind = SW_FIELD_REAL, .real_min = 1e-12, .real_max = 1},
    {.name = "initializer_range", INTO(init_std), .kind = SW_FIELD_REAL, .real_max = 1},
    {.name = "tie_word_embeddings", INTO(tied_embeddings), FLAG},
    {0},
};

static const struct sw_config_fixed fixed[] = {
    {"apply_residual_connection_post_layernorm", SW_ONLY_FALSE},
    {"is_encoder_decoder", SW_ONLY_FALSE},
    {"tie_encoder_decoder", SW_ONLY_FALSE},
    {"add_cross_attention", SW_ONLY_FALSE},
    {"cross_attention_hidden_size", SW_ONLY_EMPTY},
    {"pruned_heads", SW_ONLY_EMPTY},
    NO_OWN_CODE,
    {0},
};

static const char *const special[] = {NULL};
/* How Megatron computes the same, and the length of the first training, which limits nothing. */
static const char *const harmless[] = {"slow_but_exact",
                                       "pretraining_tp",
                                       "masked_softmax_fusion",
                                       "skip_bias_add",
                                       "skip_bias_add_qkv",
                                       "bias_dropout_fusion",
                                       "offset_alibi",
                                       "unk_token_id",
                                       "attention_softmax_in_fp32",
                                       "seq_length",
                                       NULL};

static sw_status derive(const struct sw_family *family, const json_t *root, const char *origin,
                        struct sw_model_config *out) {
    (void)family;
    (void)root;
    const char *missing = out->hidden == 0   ? "'hidden_size' or 'n_embed'"
                          : out->layers == 0 ? "'n_layer'"
                          : out->heads == 0  ? "'n_head' or 'num_attention_heads'"
                                             : NULL;
    if (missing != NULL)
        return sw_fail(SW_ERR_ARG, "%s has no %s; a BLOOM config.json must give it", origin, missing);
    if (out->hidden % out->heads != 0)
        return sw_fail(SW_ERR_ARG, "%s: 'n_head' %lld does not divide 'hidden_size' %lld; it must", origin,
                       (long long)out->heads, (long long)out->hidden);
    out->kv_heads = out->heads;
    out->head_dim = out->hidden / out->heads;
    out->ffn = FFN_FACTOR * out->hidden;
    out->max_positions = SW_CONFIG_MAX_POSITIONS;
    return SW_OK;
}

/* Writes BLOOM's special tokens for its own vocabulary. For another one, null keeps transformers from using these
 * defaults. */
static int write(json_t *root, const struct sw_model_config *config) {
    static const struct {
        const char *name;
        int token;
    } tokens[] = {{"unk_token_id", UNKNOWN},
                  {"bos_token_id", BEGIN_OF_TEXT},
                  {"eos_token_id", END_OF_TEXT},
                  {"pad_token_id", PADDING}};
    int result = json_object_set_new(root, "apply_residual_connection_post_layernorm", json_false());
    for (size_t i = 0; i < sizeof tokens / sizeof tokens[0]; i++)
        result |= json_object_set_new(root, tokens[i].name,
                                      config->vocab == VOCAB ? json_integer(tokens[i].token) : json_null());
    return result;
}

static const struct sw_tensor_names names = {
    .token_table = "transformer.word_embeddings.weight",
    .final_norm_scale = "transformer.ln_f.weight",
    .final_norm_bias = "transformer.ln_f.bias",
    .output_table = "lm_head.weight",
    .block = "transformer.h.",
    .piece =
        {
            [EMBEDDING_NORM_SCALE] = {{.name = "transformer.word_embeddings_layernorm.weight"}},
            [EMBEDDING_NORM_BIAS] = {{.name = "transformer.word_embeddings_layernorm.bias"}},
            [NORM1_SCALE] = {{.name = "input_layernorm.weight"}},
            [NORM1_BIAS] = {{.name = "input_layernorm.bias"}},
            [QKV_WEIGHT] = {{.name = "self_attention.query_key_value.weight"}},
            [QKV_BIAS] = {{.name = "self_attention.query_key_value.bias"}},
            [PROJECTION_WEIGHT] = {{.name = "self_attention.dense.weight"}},
            [PROJECTION_BIAS] = {{.name = "self_attention.dense.bias"}},
            [NORM2_SCALE] = {{.name = "post_attention_layernorm.weight"}},
            [NORM2_BIAS] = {{.name = "post_attention_layernorm.bias"}},
            [UP_WEIGHT] = {{.name = "mlp.dense_h_to_4h.weight"}},
            [UP_BIAS] = {{.name = "mlp.dense_h_to_4h.bias"}},
            [DOWN_WEIGHT] = {{.name = "mlp.dense_4h_to_h.weight"}},
            [DOWN_BIAS] = {{.name = "mlp.dense_4h_to_h.bias"}},
        },
};

const struct sw_family sw_bloom_family = {
    .name = "bloom",
    .title = "BLOOM",
    .architecture = "BloomForCausalLM",
    .defaults = {.family = "bloom",
                 .norm_epsilon = 1e-5,
                 .init_std = 0.02,
                 .activation = SW_GELU_TANH,
                 .tied_embeddings = true,
                 .positions = SW_POSITIONS_ALIBI,
                 .out_first = true,
                 .embedding_norm = true,
                 .qkv_by_head = true},
    .fields = fields,
    .fixed = fixed,
    .special = special,
    .harmless = harmless,
    .derive = derive,
    .write = write,
    .names = &names,
};
