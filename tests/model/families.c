/* Llama and its relatives: what their config.json says, what is refused, and checkpoints in and out. */
#include "tests/equipment/support.h"

#include "core/size.h"
#include "model/hf/checkpoint.h"
#include "model/hf/config.h"
#include "model/model.h"
#include "model/model_private.h"

#include <math.h>
#include <stdlib.h>

#define SHAPE                                                                                                          \
    "\"vocab_size\": 300, \"hidden_size\": 48, \"intermediate_size\": 80, \"num_hidden_layers\": 4,"                   \
    "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"max_position_embeddings\": 64"
#define MODEL(family, more) "{\"model_type\": \"" family "\", " SHAPE more "}"
#define LAYERS(a, b, c, d) ", \"layer_types\": [\"" a "\", \"" b "\", \"" c "\", \"" d "\"]"
#define FULL "full_attention"
#define SLIDING "sliding_attention"

static struct sw_model_config parse(const char *text) {
    struct sw_model_config config;
    support_expect_ok(sw_config_parse(text, "config.json", &config), text);
    return config;
}

static void a_llama_is_read(void **state) {
    (void)state;
    const struct sw_model_config c = parse(MODEL("llama", ", \"rope_theta\": 500000, \"rope_scaling\": null,"
                                                          "\"attention_bias\": true, \"mlp_bias\": false,"
                                                          "\"rms_norm_eps\": 1e-5, \"hidden_act\": \"silu\""));
    assert_string_equal(c.family, "llama");
    assert_int_equal(c.kv_heads, 2);
    assert_int_equal(c.head_dim, 12);
    assert_int_equal(c.norm, SW_NORM_RMS);
    assert_int_equal(c.positions, SW_POSITIONS_ROTARY);
    assert_int_equal(c.activation, SW_SILU);
    assert_true(c.gated && c.out_first && c.qkv_bias && c.projection_bias);
    assert_false(c.mlp_bias || c.qk_norm || c.tied_embeddings);
    assert_true(c.rope.theta == 500000.0 && c.rope.kind == SW_ROPE_DEFAULT && c.window == 0);
}

static void relatives_differ_as_they_do(void **state) {
    (void)state;
    struct sw_model_config c = parse(MODEL("mistral", ", \"sliding_window\": 16"));
    assert_true(c.window == 16 && c.full_layers[0] == 0 && !c.qkv_bias);
    c = parse(MODEL("mistral", ", \"sliding_window\": null"));
    assert_int_equal(c.window, 0);
    c = parse(MODEL("mistral", ""));
    assert_int_equal(c.window, 4096); /* what transformers takes where it is left out */
    c = parse(MODEL("qwen2", ", \"use_sliding_window\": false, \"sliding_window\": 16, \"max_window_layers\": 1"));
    assert_true(c.window == 0 && c.qkv_bias && !c.projection_bias);
    c = parse(MODEL("qwen2", ", \"use_sliding_window\": true, \"sliding_window\": 16, \"max_window_layers\": 1"));
    assert_true(c.window == 16 && c.full_layers[0] == 1);
    c = parse(MODEL("qwen2", ", \"use_sliding_window\": true, \"sliding_window\": 16, \"max_window_layers\": 28"));
    assert_int_equal(c.window, 0);
    c = parse(
        MODEL("qwen3", ", \"use_sliding_window\": true, \"sliding_window\": 8" LAYERS(FULL, FULL, FULL, SLIDING)));
    assert_true(c.window == 8 && c.full_layers[0] == 7 && c.qk_norm && !c.qkv_bias);
    assert_int_equal(c.head_dim, 128);
    c = parse(MODEL("phi3", ", \"original_max_position_embeddings\": 4, \"embd_pdrop\": 0.0, \"attention_bias\": false,"
                            "\"auto_map\": {\"AutoConfig\": \"configuration_phi3.Phi3Config\"}"));
    assert_true(c.window == 0 && !c.qkv_bias && c.norm_epsilon == 1e-5);
    assert_int_equal(parse(MODEL("phi3", ", \"sliding_window\": 16")).window, 16);
    const char *const mixed =
        MODEL("qwen2", ", \"use_sliding_window\": true, \"sliding_window\": 8" LAYERS(SLIDING, FULL, FULL, SLIDING));
    c = parse(mixed);
    assert_true(c.window == 8 && c.full_layers[0] == 6);
    assert_true(sw_config_window(&c, 0) == 8 && sw_config_window(&c, 1) == 0 && sw_config_window(&c, 3) == 8);
}

/* Both names of the number of experts, and the width of the family's experts. */
static void mixtures_of_experts_are_read(void **state) {
    (void)state;
    struct sw_model_config c = parse(MODEL("mixtral", ", \"num_local_experts\": 5, \"router_aux_loss_coef\": 0.02,"
                                                      "\"output_router_logits\": false, \"router_jitter_noise\": 0.0"));
    assert_true(c.experts == 5 && c.chosen_experts == 2 && c.expert_ffn == 80 && c.ffn == 0 && c.normalises_chosen);
    assert_true(c.rope.theta == 1e6 && c.window == 0 && !c.qk_norm && c.norm_epsilon == 1e-5);
    assert_true(!c.balances_experts && c.router_aux_loss == 0.02);
    c = parse(MODEL("mixtral", ", \"output_router_logits\": true"));
    assert_true(c.balances_experts && c.router_aux_loss == 0.001);
    c = parse(MODEL("qwen3_moe", ", \"num_experts\": 6, \"num_experts_per_tok\": 3, \"moe_intermediate_size\": 20,"
                                 "\"norm_topk_prob\": true, \"mlp_only_layers\": [], \"decoder_sparse_step\": 1,"
                                 "\"use_sliding_window\": false, \"max_window_layers\": 48, \"head_dim\": 12"));
    assert_true(c.experts == 6 && c.chosen_experts == 3 && c.expert_ffn == 20 && c.ffn == 0 && c.normalises_chosen);
    assert_true(c.qk_norm && !c.joint_qk_norm && c.rope.theta == 1e4);
    c = parse(MODEL("qwen3_moe", ", \"num_local_experts\": 32, \"num_experts\": 32"));
    assert_true(c.experts == 32 && c.chosen_experts == 8 && c.expert_ffn == 768 && !c.normalises_chosen);
    assert_int_equal(parse(MODEL("qwen3_moe", ", \"sliding_window\": 16")).window, 0);
    c = parse(MODEL("qwen3_moe", ", \"use_sliding_window\": true, \"sliding_window\": 16, \"max_window_layers\": 2"));
    assert_true(c.window == 16 && c.full_layers[0] == 0);
    c = parse(MODEL("qwen2_moe",
                    ", \"moe_intermediate_size\": 20, \"shared_expert_intermediate_size\": 30,"
                    "\"num_experts\": 6, \"norm_topk_prob\": true, \"sliding_window\": 8, \"max_window_layers\": 2,"
                    "\"use_sliding_window\": false, \"layer_types\": [\"full_attention\"]"));
    assert_true(c.experts == 6 && c.chosen_experts == 4 && c.expert_ffn == 20 && c.ffn == 30 && c.normalises_chosen);
    assert_true(c.qkv_bias && !c.projection_bias && !c.qk_norm && c.window == 0);
    c = parse(MODEL("qwen2_moe", ", \"qkv_bias\": false"));
    assert_true(c.experts == 60 && c.expert_ffn == 1408 && c.ffn == 5632 && !c.normalises_chosen && !c.qkv_bias);
    c = parse(MODEL("olmoe", ", \"clip_qkv\": null"));
    assert_true(c.experts == 64 && c.chosen_experts == 8 && c.expert_ffn == 80 && c.joint_qk_norm && c.qk_norm);
}

/* The form in which gpt-oss was published, and what a shorter file means. */
static void gpt_oss_is_read(void **state) {
    (void)state;
    struct sw_model_config c = parse(MODEL(
        "gpt_oss", ", \"num_local_experts\": 6, \"num_experts_per_tok\": 3, \"experts_per_token\": 3,"
                   "\"initial_context_length\": 16, \"swiglu_limit\": 7.0, \"sliding_window\": 9, \"head_dim\": 12,"
                   "\"rope_theta\": 150000, \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4.0,"
                   "\"beta_fast\": 32.0, \"beta_slow\": 1.0, \"original_max_position_embeddings\": 16,"
                   "\"truncate\": false}, \"router_aux_loss_coef\": 0.9, \"attention_bias\": true,"
                   "\"quantization_config\": {\"quant_method\": \"mxfp4\"}" LAYERS(SLIDING, FULL, SLIDING, FULL)));
    assert_true(c.experts == 6 && c.chosen_experts == 3 && c.expert_ffn == 80 && c.ffn == 0 && c.joined_experts);
    assert_true(c.window == 9 && c.full_layers[0] == 10 && c.head_dim == 12 && c.qkv_bias && c.projection_bias);
    assert_true(c.rope.kind == SW_ROPE_YARN && c.rope.factor == 4.0 && !c.rope.truncate && c.router_aux_loss == 0.9);
    c = parse(MODEL("gpt_oss", ""));
    assert_true(c.experts == 128 && c.chosen_experts == 4 && c.head_dim == 64 && c.window == 128 &&
                c.normalises_chosen);
    assert_true(c.full_layers[0] == 10 && c.rope.kind == SW_ROPE_YARN && c.rope.theta == 150000.0);
    assert_true(c.rope.factor == 32.0 && c.rope.original_positions == 4096 && !c.rope.truncate && !c.tied_embeddings);
    c = parse(MODEL("gpt_oss", ", \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 50},"
                               "\"sliding_window\": 5, \"attention_bias\": false"));
    assert_true(c.rope.kind == SW_ROPE_DEFAULT && c.rope.theta == 50.0 && c.window == 5 && !c.qkv_bias);
}

#define GEMMA_LAYERS(full, window) "\"full_attention\": {" full "}, \"sliding_attention\": {" window "}"

/* The form in which Gemma 3 was published, and that of newer versions of transformers. */
static void gemma_3_is_read(void **state) {
    (void)state;
    struct sw_model_config c =
        parse(MODEL("gemma3_text", ", \"sliding_window\": 16, \"sliding_window_pattern\": 3, \"head_dim\": 12,"
                                   "\"rope_theta\": 500, \"rope_local_base_freq\": 50, \"query_pre_attn_scalar\": 9,"
                                   "\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 8.0},"
                                   "\"hidden_activation\": \"gelu_pytorch_tanh\", \"attn_logit_softcapping\": null,"
                                   "\"cache_implementation\": \"hybrid\", \"eos_token_id\": [1, 106]"));
    assert_true(c.window == 16 && c.full_layers[0] == 4 && c.head_dim == 12 && c.query_width == 9);
    assert_true(c.rope.kind == SW_ROPE_LINEAR && c.rope.theta == 500.0 && c.window_theta == 50.0);
    assert_true(c.activation == SW_GELU_TANH && c.norm_of_results && c.norm_from_one && c.scaled_embedding &&
                c.qk_norm);
    c = parse(MODEL("gemma3_text", ""));
    assert_true(c.window == 4096 && c.full_layers[0] == 0 && c.head_dim == 256 && c.query_width == 256);
    assert_true(c.rope.kind == SW_ROPE_DEFAULT && c.rope.theta == 1e6 && c.window_theta == 1e4 && c.tied_embeddings);
    c = parse(MODEL("gemma3_text", ", \"_sliding_window_pattern\": 6, \"rope_parameters\": {" GEMMA_LAYERS(
                                       "\"rope_type\": \"linear\", \"factor\": 4, \"rope_theta\": 70",
                                       "\"rope_theta\": 20") "}" LAYERS(SLIDING, FULL, SLIDING, FULL)));
    assert_true(c.full_layers[0] == 10 && c.rope.kind == SW_ROPE_LINEAR && c.rope.factor == 4.0);
    assert_true(c.rope.theta == 70.0 && c.window_theta == 20.0);
    c = parse(MODEL("gemma3_text", ", \"rope_parameters\": {\"full_attention\": {\"rope_type\": \"default\"}}"));
    assert_true(c.rope.theta == 1e6 && c.window_theta == 1e4);
}

/* Downloads of SmolLM2 and of converters have these, and none changes what is trained. */
static void fields_without_effect_are_passed_over(void **state) {
    (void)state;
    const struct sw_model_config plain = parse(MODEL("llama", ""));
    const struct sw_model_config c = parse(
        MODEL("llama", ", \"is_llama_config\": true, \"rope_interleaved\": false, \"transformers.js_config\": {},"
                       "\"unsloth_version\": \"2026.1\", \"unsloth_fixed\": true, \"max_sequence_length\": 9,"
                       "\"partial_rotary_factor\": 1.0, \"attention_dropout\": 0.1" LAYERS(FULL, FULL, FULL, FULL)));
    assert_memory_equal(&c, &plain, sizeof c);
}

#define HEADS_OF(family, more)                                                                                         \
    "{\"model_type\": \"" family "\", \"vocab_size\": 9, \"hidden_size\": 64, \"intermediate_size\": 8,"               \
    "\"num_hidden_layers\": 1, \"num_attention_heads\": 32, \"max_position_embeddings\": 8" more "}"

/* The configuration classes of transformers differ in what they take for an absent field, and agree on null. */
static void absent_key_value_heads_are_the_family_s(void **state) {
    (void)state;
    assert_int_equal(parse(HEADS_OF("llama", "")).kv_heads, 32);
    assert_int_equal(parse(HEADS_OF("mistral", "")).kv_heads, 8);
    assert_int_equal(parse(HEADS_OF("qwen2", "")).kv_heads, 32);
    assert_int_equal(parse(HEADS_OF("qwen3", "")).kv_heads, 32);
    assert_int_equal(parse(HEADS_OF("mistral", ", \"num_key_value_heads\": null")).kv_heads, 32);
    assert_int_equal(parse(HEADS_OF("mistral", ", \"num_key_value_heads\": 4")).kv_heads, 4);
}

/* Both forms of transformers. */
static void rotary_scalings_are_read(void **state) {
    (void)state;
    struct sw_model_config c =
        parse(MODEL("llama", ", \"rope_theta\": 100, \"rope_scaling\": {\"type\": \"linear\", \"factor\": 4}"));
    assert_true(c.rope.kind == SW_ROPE_LINEAR && c.rope.factor == 4.0 && c.rope.theta == 100.0);
    c = parse(MODEL("llama", ", \"text_config\": null, \"new_field\": null, \"rope_parameters\": {\"rope_theta\": 7},"
                             "\"rope_scaling\": {\"rope_theta\": 7}"));
    assert_true(c.rope.theta == 7);
    c = parse(MODEL("llama", ", \"rope_parameters\": {\"rope_type\": \"llama3\", \"rope_theta\": 7, \"factor\": 8,"
                             "\"low_freq_factor\": 1, \"high_freq_factor\": 4,"
                             "\"original_max_position_embeddings\": 32}"));
    assert_true(c.rope.kind == SW_ROPE_LLAMA3 && c.rope.theta == 7.0 && c.rope.original_positions == 32);
    c = parse(MODEL("qwen2", ", \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4, \"beta_slow\": 2}"));
    assert_true(c.rope.kind == SW_ROPE_YARN && c.rope.theta == 10000.0 && c.rope.original_positions == 64);
    assert_true(c.rope.beta_fast == 32.0 && c.rope.beta_slow == 2.0 && c.rope.truncate);
}

static const struct {
    const char *text;
    sw_status code;
    const char *message;
} bad[] = {
    {MODEL("llama", ", \"rope_interleaved\": true"), SW_ERR_UNSUPPORTED, "'rope_interleaved' is true"},
    {MODEL("llama", ", \"partial_rotary_factor\": 0.5"), SW_ERR_UNSUPPORTED, "must be 1"},
    {MODEL("llama", LAYERS(FULL, FULL, SLIDING, FULL)), SW_ERR_UNSUPPORTED, "\"full_attention\" for each layer"},
    {MODEL("llama", ", \"rope_theta\": 1, \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4}"), SW_ERR_ARG,
     "need more than 1"},
    {MODEL("llama", ", \"num_experts\": 8"), SW_ERR_UNSUPPORTED, "'num_experts' is not known for llama"},
    {MODEL("llama", ", \"sliding_window\": 8"), SW_ERR_UNSUPPORTED, "'sliding_window' is not known for llama"},
    {MODEL("llama", ", \"architectures\": [\"LlamaModel\"]"), SW_ERR_UNSUPPORTED, "LlamaForCausalLM"},
    {MODEL("llama", ", \"head_dim\": 7"), SW_ERR_ARG, "7 elements; rotary positions need an even number"},
    {MODEL("llama", ", \"head_dim\": 512"), SW_ERR_UNSUPPORTED, "512 elements; supported are at most 256"},
    {MODEL("llama", ", \"hidden_act\": \"mish\""), SW_ERR_UNSUPPORTED, "'hidden_act' is \"mish\""},
    {MODEL("llama", ", \"quantization_config\": {\"bits\": 4}"), SW_ERR_UNSUPPORTED, "'quantization_config'"},
    {MODEL("llama", ", \"rope_scaling\": {\"rope_type\": \"longrope\"}"), SW_ERR_UNSUPPORTED, "\"longrope\""},
    {MODEL("llama", ", \"rope_scaling\": {\"rope_type\": \"dynamic\", \"factor\": 2}"), SW_ERR_UNSUPPORTED, "dynamic"},
    {MODEL("llama", ", \"rope_scaling\": {\"rope_type\": \"linear\"}"), SW_ERR_ARG, "has no 'factor'"},
    {MODEL("llama", ", \"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 2, \"mscale\": 1}"),
     SW_ERR_UNSUPPORTED, "'mscale' is not known"},
    {MODEL("llama", ", \"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 0.5}"), SW_ERR_ARG, "'factor' is 0.5"},
    {MODEL("llama", ", \"rope_parameters\": {\"rope_type\": \"default\", \"partial_rotary_factor\": 0.5}"),
     SW_ERR_UNSUPPORTED, "'partial_rotary_factor'"},
    {MODEL("llama", ", \"rope_parameters\": {\"rope_theta\": 5}, \"rope_theta\": 6"), SW_ERR_ARG, "they must be equal"},
    {MODEL("llama", ", \"rope_parameters\": {\"rope_theta\": 5}, \"rope_scaling\": {}"), SW_ERR_ARG,
     "give one of them"},
    {MODEL("llama", ", \"quantization_config\": {\"quant_method\": \"gptq\"}"), SW_ERR_UNSUPPORTED,
     "the weights are quantized (gptq)"},
    {MODEL("llama", ", \"quantization\": {\"bits\": 4}"), SW_ERR_UNSUPPORTED, "the weights are quantized"},
    {MODEL("llava", ", \"text_config\": {\"model_type\": \"llama\"}"), SW_ERR_UNSUPPORTED,
     "more than text ('llava'), whose language model ('llama')"},
    {MODEL("t5", ""), SW_ERR_UNSUPPORTED, "'t5' has an encoder beside its decoder"},
    {"{\"model_type\": \"bloom\", \"vocab_size\": 300, \"n_embed\": 48, \"n_layer\": 1, \"n_head\": 4, "
     "\"apply_residual_connection_post_layernorm\": true}",
     SW_ERR_UNSUPPORTED, "'apply_residual_connection_post_layernorm' is true"},
    {"{\"model_type\": \"bloom\", \"vocab_size\": 300, \"n_embed\": 50, \"n_layer\": 1, \"n_head\": 4}", SW_ERR_ARG,
     "'n_head' 4 does not divide 'hidden_size' 50"},
    {"{\"model_type\": \"bloom\", \"vocab_size\": 300, \"n_layer\": 1, \"n_head\": 4}", SW_ERR_ARG,
     "has no 'hidden_size' or 'n_embed'"},
    {MODEL("llama", ", \"rope_scaling\": 4"), SW_ERR_ARG, "must be an object"},
    {"{\"model_type\": \"llama\", \"vocab_size\": 300, \"hidden_size\": 50, \"intermediate_size\": 80,"
     "\"num_hidden_layers\": 1, \"num_attention_heads\": 4, \"max_position_embeddings\": 8}",
     SW_ERR_ARG, "'num_attention_heads' 4 does not divide 'hidden_size' 50"},
    {"{\"model_type\": \"llama\", \"vocab_size\": 300, \"hidden_size\": 48, \"intermediate_size\": 80,"
     "\"num_hidden_layers\": 1, \"num_attention_heads\": 4, \"num_key_value_heads\": 3,"
     "\"max_position_embeddings\": 8}",
     SW_ERR_ARG, "'num_key_value_heads' 3 does not divide 'num_attention_heads' 4"},
    {"{\"model_type\": \"qwen3\", \"vocab_size\": 300}", SW_ERR_ARG, "a Qwen3 config.json must give it"},
    {MODEL("phi3", ", \"attention_bias\": true"), SW_ERR_UNSUPPORTED, "'attention_bias' is true"},
    {MODEL("phi3", ", \"partial_rotary_factor\": 0.75"), SW_ERR_UNSUPPORTED, "'partial_rotary_factor' is 0.75"},
    {MODEL("phi3", ", \"rope_scaling\": {\"type\": \"longrope\"}"), SW_ERR_UNSUPPORTED, "longrope"},
    {MODEL("llama", ", \"auto_map\": {\"AutoConfig\": \"x.Y\"}"), SW_ERR_UNSUPPORTED, "'auto_map' is"},
    {MODEL("mistral", ", \"sliding_window\": 0"), SW_ERR_ARG, "'sliding_window' is 0"},
    {MODEL("mistral", ", \"sliding_window\": \"all\""), SW_ERR_ARG, "'sliding_window' is \"all\""},
    {MODEL("qwen2", ", \"use_sliding_window\": 1"), SW_ERR_ARG, "'use_sliding_window' is 1"},
    {MODEL("qwen2", ", \"max_window_layers\": -1"), SW_ERR_ARG, "'max_window_layers' is -1"},
    {MODEL("qwen2", ", \"layer_types\": [\"full_attention\"]"), SW_ERR_ARG, "1 entries for 4 layers"},
    {MODEL("qwen2", LAYERS(FULL, FULL, FULL, SLIDING)), SW_ERR_ARG, "no sliding window is used"},
    {MODEL("qwen2", ", \"use_sliding_window\": true, \"sliding_window\": null" LAYERS(FULL, SLIDING, FULL, FULL)),
     SW_ERR_ARG, "no sliding window is used"},
    {MODEL("mixtral", ", \"num_local_experts\": 1025"), SW_ERR_ARG, "a whole number from 1 to 1024"},
    {MODEL("mixtral", ", \"num_local_experts\": 0"), SW_ERR_ARG, "'num_local_experts' is 0"},
    {MODEL("mixtral", ", \"num_experts_per_tok\": 33"), SW_ERR_ARG, "a whole number from 1 to 32"},
    {MODEL("mixtral", ", \"num_experts_per_tok\": 9"), SW_ERR_ARG,
     "'num_experts_per_tok' is 9, and the model has 8 experts"},
    {MODEL("mixtral", ", \"num_local_experts\": 4, \"num_experts\": 5"), SW_ERR_ARG, "they must be equal"},
    {MODEL("mixtral", ", \"output_router_logits\": 1"), SW_ERR_ARG, "'output_router_logits' is 1"},
    {MODEL("mixtral", ", \"router_aux_loss_coef\": -1"), SW_ERR_ARG, "'router_aux_loss_coef' is -1"},
    {MODEL("mixtral", ", \"router_jitter_noise\": 0.1"), SW_ERR_UNSUPPORTED, "'router_jitter_noise' is 0.1"},
    {MODEL("qwen3_moe", ", \"decoder_sparse_step\": 2"), SW_ERR_UNSUPPORTED, "'decoder_sparse_step' is 2"},
    {MODEL("qwen3_moe", ", \"mlp_only_layers\": [0]"), SW_ERR_UNSUPPORTED, "'mlp_only_layers' is [0]"},
    {MODEL("qwen3_moe", ", \"use_sliding_window\": 1"), SW_ERR_ARG, "'use_sliding_window' is 1"},
    {MODEL("qwen3_moe", ", \"moe_intermediate_size\": 0"), SW_ERR_ARG, "'moe_intermediate_size' is 0"},
    {MODEL("qwen3_moe", ", \"shared_expert_intermediate_size\": 8"), SW_ERR_UNSUPPORTED, "is not known for qwen3_moe"},
    {MODEL("qwen2_moe", ", \"decoder_sparse_step\": 2"), SW_ERR_UNSUPPORTED, "'decoder_sparse_step' is 2"},
    {MODEL("qwen2_moe", ", \"mlp_only_layers\": [1]"), SW_ERR_UNSUPPORTED, "'mlp_only_layers' is [1]"},
    {MODEL("qwen2_moe", ", \"use_sliding_window\": true"), SW_ERR_UNSUPPORTED, "'use_sliding_window' is true"},
    {MODEL("qwen2_moe", ", \"shared_expert_intermediate_size\": 0"), SW_ERR_ARG,
     "'shared_expert_intermediate_size' is 0"},
    {MODEL("gemma3_text", ", \"final_logit_softcapping\": 30.0"), SW_ERR_UNSUPPORTED,
     "'final_logit_softcapping' is 30"},
    {MODEL("gemma3_text", ", \"use_bidirectional_attention\": true"), SW_ERR_UNSUPPORTED, "bidirectional_attention"},
    {MODEL("gemma3_text", ", \"sliding_window_pattern\": 0"), SW_ERR_ARG, "'sliding_window_pattern' is 0"},
    {MODEL("gemma3_text", ", \"rope_parameters\": {" GEMMA_LAYERS("", "\"rope_type\": \"linear\", \"factor\": 2") "}"),
     SW_ERR_UNSUPPORTED, "positions of \"sliding_attention\" are scaled"},
    {MODEL("gemma3_text", ", \"rope_theta\": 5, \"rope_parameters\": {" GEMMA_LAYERS("", "") "}"), SW_ERR_ARG,
     "both 'rope_parameters' and 'rope_theta'"},
    {MODEL("gemma3_text", ", \"rope_parameters\": {\"other\": {}, " GEMMA_LAYERS("", "") "}"), SW_ERR_UNSUPPORTED,
     "has 'other'"},
    {MODEL("gemma3", ", \"text_config\": {\"model_type\": \"gemma3_text\"}"), SW_ERR_UNSUPPORTED,
     "more than text ('gemma3'), whose language model ('gemma3_text')"},
    {MODEL("gpt_oss", ", \"swiglu_limit\": 5.0"), SW_ERR_UNSUPPORTED, "'swiglu_limit' is 5"},
    {MODEL("gpt_oss", ", \"swiglu_alpha\": 1.0"), SW_ERR_UNSUPPORTED, "it must be 1.702"},
    {MODEL("gpt_oss", ", \"num_experts_per_tok\": 9, \"num_local_experts\": 8"), SW_ERR_ARG, "the model has 8 experts"},
    {MODEL("gpt_oss", ", \"hidden_act\": \"gelu\""), SW_ERR_UNSUPPORTED, "'hidden_act' is \"gelu\""},
    {MODEL("gpt_oss", ", \"sliding_window\": 0"), SW_ERR_ARG, "'sliding_window' is 0"},
    {MODEL("gpt_oss", ", \"sliding_window\": null"), SW_ERR_UNSUPPORTED, "'sliding_window' is null"},
    {MODEL("gpt_oss", ", \"experts_per_token\": 3"), SW_ERR_ARG, "'num_experts_per_tok' is 4"},
    {MODEL("olmoe", ", \"clip_qkv\": 8.0"), SW_ERR_UNSUPPORTED, "'clip_qkv' is 8"},
    {MODEL("qwen2", LAYERS(FULL, "linear_attention", FULL, FULL)), SW_ERR_UNSUPPORTED, "for layer 1"},
};

static void what_is_not_supported_is_named(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct sw_model_config config = {.vocab = 7};
        const sw_status status = sw_config_parse(bad[i].text, "some/config.json", &config);
        support_expect_failure(status, bad[i].code, bad[i].message, bad[i].text);
        assert_int_equal(config.vocab, 7); /* Untouched. */
    }
}

/* A configuration that was written reads back as it was. */
static void assert_round_trip(const struct sw_model_config *config) {
    char *text = NULL;
    struct sw_model_config back;
    support_expect_ok(sw_config_to_json(config, &text), "writing");
    support_expect_ok(sw_config_parse(text, "written", &back), text);
    char *again = NULL;
    support_expect_ok(sw_config_to_json(&back, &again), "writing again");
    assert_string_equal(text, again);
    assert_int_equal(back.window, config->window);
    assert_memory_equal(back.full_layers, config->full_layers, sizeof config->full_layers);
    assert_int_equal(back.qkv_bias, config->qkv_bias);
    assert_int_equal(back.projection_bias, config->projection_bias);
    assert_int_equal(back.mlp_bias, config->mlp_bias);
    assert_int_equal(back.qk_norm, config->qk_norm);
    assert_int_equal(back.joint_qk_norm, config->joint_qk_norm);
    assert_int_equal(back.experts, config->experts);
    assert_int_equal(back.chosen_experts, config->chosen_experts);
    assert_true(back.balances_experts == config->balances_experts && back.router_aux_loss == config->router_aux_loss);
    assert_int_equal(back.expert_ffn, config->expert_ffn);
    assert_int_equal(back.normalises_chosen, config->normalises_chosen);
    assert_int_equal(back.joined_experts, config->joined_experts);
    assert_int_equal(back.norm_of_results, config->norm_of_results);
    assert_int_equal(back.norm_from_one, config->norm_from_one);
    assert_int_equal(back.scaled_embedding, config->scaled_embedding);
    assert_int_equal(back.query_width, config->query_width);
    assert_true(back.window_theta == config->window_theta);
    assert_int_equal(back.gated, config->gated);
    assert_int_equal(back.out_first, config->out_first);
    assert_int_equal(back.rope.kind, config->rope.kind);
    assert_int_equal(back.rope.original_positions, config->rope.original_positions);
    assert_int_equal(back.rope.truncate, config->rope.truncate);
    const struct sw_rope *a = &back.rope, *b = &config->rope;
    assert_true(a->theta == b->theta && a->factor == b->factor && a->low_freq_factor == b->low_freq_factor);
    assert_true(a->high_freq_factor == b->high_freq_factor && a->beta_fast == b->beta_fast);
    assert_true(a->beta_slow == b->beta_slow && a->attention_factor == b->attention_factor);
    assert_true(a->mscale == b->mscale && a->mscale_all_dim == b->mscale_all_dim);
    free(text);
    free(again);
}

static const char *const golden[] = {"llama-a", "llama-b",  "llama-long", "mistral-a",   "qwen2-a",
                                     "qwen3-a", "qwen3-b",  "phi3-a",     "mixtral-a",   "qwen3-moe-a",
                                     "olmoe-a", "gemma3-a", "gptoss-a",   "qwen2-moe-a", "bloom-a"};
enum { GOLDEN = sizeof golden / sizeof golden[0], FILE_BYTES = 1 << 20 };

static const char *golden_folder(int i, char path[SUPPORT_PATH_CHARS]) {
    const char *data = getenv("SW_TEST_DATA");
    assert_non_null(data);
    assert_true(snprintf(path, SUPPORT_PATH_CHARS, "%s/%s", data, golden[i]) < SUPPORT_PATH_CHARS);
    return path;
}

static void descriptions_survive_writing(void **state) {
    (void)state;
    char path[SUPPORT_PATH_CHARS];
    struct sw_model_config config = parse(
        MODEL("qwen3", ", \"use_sliding_window\": true, \"sliding_window\": 8" LAYERS(SLIDING, FULL, SLIDING, FULL)));
    assert_round_trip(&config);
    config = parse(MODEL("qwen3_moe", ", \"use_sliding_window\": true, \"sliding_window\": 8"));
    assert_round_trip(&config);
    const struct sw_preset *preset = NULL;
    for (int i = 0; i < GOLDEN; i++) {
        support_expect_ok(sw_config_load(golden_folder(i, path), &config), golden[i]);
        assert_round_trip(&config);
    }
    for (int i = 0; (preset = sw_preset_at(i)) != NULL; i++)
        if (preset->config.norm == SW_NORM_RMS)
            assert_round_trip(&preset->config);
    config = parse(MODEL("qwen2", ", \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4, \"truncate\": false,"
                                  "\"mscale\": 0.7, \"mscale_all_dim\": 0.3, \"attention_factor\": 1.25}"));
    assert_round_trip(&config);
}

/* The published counts. */
static void presets_have_their_parameters(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int64_t parameters;
    } expected[] = {
        {"llama-1b", INT64_C(1235814400)},
        {"llama-8b", INT64_C(8030261248)},
        {"llama-70b", INT64_C(70553706496)},
        {"qwen2.5-0.5b", INT64_C(494032768)},
        {"qwen2.5-1.5b", INT64_C(1543714304)},
        {"qwen2.5-3b", INT64_C(3085938688)},
        {"qwen2.5-7b", INT64_C(7615616512)},
        {"qwen2.5-14b", INT64_C(14770033664)},
        {"phi-4", INT64_C(14659507200)},
        {"mixtral-8x7b", INT64_C(46702792704)},
        {"mixtral-8x22b", INT64_C(140620634112)},
        {"qwen3-30b-a3b", INT64_C(30532122624)},
        {"qwen1.5-moe-a2.7b", INT64_C(14315784192)},
        {"qwen2-57b-a14b", INT64_C(57408658944)},
        {"bloom-560m", INT64_C(559214592)},
        {"bloom-1b1", INT64_C(1065314304)},
        {"bloom-1b7", INT64_C(1722408960)},
        {"bloom-3b", INT64_C(3002557440)},
        {"bloom-7b1", INT64_C(7069016064)},
        {"bloom-176b", INT64_C(176247271424)},
        {"llama-65b", INT64_C(65285660672)},
        {"gemma3-270m", INT64_C(268098176)},
        {"gemma3-1b", INT64_C(999885952)},
        {"gemma3-4b", INT64_C(3880263168)},
        {"gemma3-12b", INT64_C(11766034176)},
        {"gemma3-27b", INT64_C(27009346304)},
        {"gpt-oss-20b", INT64_C(20914757184)},
        {"gpt-oss-120b", INT64_C(116829156672)},
    };
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        struct sw_model_config config;
        struct sw_units *units;
        support_expect_ok(sw_config_load(expected[i].name, &config), expected[i].name);
        support_expect_ok(sw_model_units(&config, 1, SW_OPTIMIZER_FP32, NULL, &units), expected[i].name);
        if (sw_units_parameters(units) != expected[i].parameters)
            fail_msg("%s has %lld parameters", expected[i].name, (long long)sw_units_parameters(units));
        sw_units_destroy(units);
    }
}

/* The file that a source of weights makes, in a fresh folder that is moved to `to`. */
static int64_t export_file(void *const *state, const struct sw_model_config *config, const struct sw_units *units,
                           void *checkpoint, const char *to, char *content) {
    char folder[SUPPORT_PATH_CHARS], path[SUPPORT_PATH_CHARS];
    const struct sw_checkpoint_format format = {.type = SW_F32, .shard_bytes = SW_CHECKPOINT_SHARD_BYTES};
    const struct sw_load from = {.fill = sw_checkpoint_fill, .prepare = sw_checkpoint_prepare, .context = checkpoint};
    support_expect_ok(sw_checkpoint_write(support_path(state, to, folder), config, units, &format, &from, NULL),
                      "writing");
    snprintf(path, sizeof path, "%.200s/model.safetensors", folder);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    const int64_t bytes = (int64_t)fread(content, 1, FILE_BYTES, file);
    assert_true(bytes > 0 && bytes < FILE_BYTES);
    fclose(file);
    return bytes;
}

static void remove_export(void *const *state, const char *name) {
    char folder[SUPPORT_PATH_CHARS], path[SUPPORT_PATH_CHARS];
    support_path(state, name, folder);
    snprintf(path, sizeof path, "%.200s/model.safetensors", folder);
    unlink(path);
    snprintf(path, sizeof path, "%.200s/config.json", folder);
    unlink(path);
    rmdir(folder);
}

static void fill_unit(struct sw_checkpoint *checkpoint, const struct sw_units *units, int64_t unit, float **out) {
    const int64_t elems = units->unit[unit].elems;
    *out = malloc((size_t)elems * sizeof **out);
    assert_non_null(*out);
    support_expect_ok(sw_checkpoint_fill(checkpoint, unit, 0, elems, *out), "reading");
}

static void expect_same_weights(struct sw_checkpoint *a, struct sw_checkpoint *b, const struct sw_units *units) {
    for (int64_t u = 0; u < units->count; u++) {
        float *x, *y;
        fill_unit(a, units, u, &x);
        fill_unit(b, units, u, &y);
        assert_memory_equal(x, y, (size_t)units->unit[u].elems * sizeof *x);
        free(x);
        free(y);
    }
}

/* Read, written and read again, every weight has its bits; and in tiles the file has its bytes. */
static void check_in_and_out(void *const *state, int i) {
    char path[SUPPORT_PATH_CHARS], *expected = malloc(FILE_BYTES), *found = malloc(FILE_BYTES);
    struct sw_model_config config;
    struct sw_units *units, *cut;
    struct sw_checkpoint *original, *written, *in_tiles;
    support_expect_ok(sw_config_load(golden_folder(i, path), &config), golden[i]);
    const int64_t tiles = sw_model_tiles_fit(&config, 1, config.kv_heads) ? config.kv_heads : 1;
    support_expect_ok(sw_model_units(&config, 1, SW_OPTIMIZER_FP32, NULL, &units), golden[i]);
    support_expect_ok(sw_model_units(&config, tiles, SW_OPTIMIZER_FP32, NULL, &cut), golden[i]);
    assert_int_equal(sw_units_parameters(cut), sw_units_parameters(units));
    support_expect_ok(sw_checkpoint_open(path, units, &original), golden[i]);
    support_expect_ok(sw_checkpoint_open(path, cut, &in_tiles), golden[i]);
    const int64_t bytes = export_file(state, &config, units, original, "whole", expected);
    const int64_t cut_bytes = export_file(state, &config, cut, in_tiles, "cut", found);
    if (bytes != cut_bytes || memcmp(expected, found, (size_t)bytes) != 0)
        fail_msg("%s differs in %lld tiles", golden[i], (long long)tiles);
    support_expect_ok(sw_checkpoint_open(support_path(state, "whole", path), units, &written), "reading again");
    expect_same_weights(original, written, units);
    sw_checkpoint_close(original);
    sw_checkpoint_close(written);
    sw_checkpoint_close(in_tiles);
    sw_units_destroy(units);
    sw_units_destroy(cut);
    remove_export(state, "whole");
    remove_export(state, "cut");
    free(expected);
    free(found);
}

static void checkpoints_go_in_and_out(void **state) {
    for (int i = 0; i < GOLDEN; i++)
        check_in_and_out(state, i);
}

/* Products take queries, keys and values as one matrix, whatever their sizes. */
static void parts_of_a_product_lie_together(void **state) {
    (void)state;
    struct sw_model_config config = parse(MODEL("llama", ", \"attention_bias\": true, \"head_dim\": 2"));
    struct sw_units *units;
    config.hidden = 50;
    support_expect_ok(sw_model_units(&config, 2, SW_OPTIMIZER_FP32, NULL, &units), "units");
    for (int64_t u = 1; u + 1 < units->count; u++) {
        for (int64_t t = 0; t < units->unit[u].tensor_count; t++) {
            const struct sw_tensor *tensor = &units->unit[u].tensor[t];
            const bool joined = strstr(tensor->name, ".k_proj.") != NULL || strstr(tensor->name, ".v_proj.") != NULL ||
                                strstr(tensor->name, ".up_proj.") != NULL;
            if (joined)
                assert_int_equal(tensor->offset, tensor[-1].offset + tensor[-1].elems);
            else
                assert_int_equal(tensor->offset % SW_TENSOR_ALIGN_ELEMS, 0);
        }
    }
    sw_units_destroy(units);
}

static void shared_norms_refuse_tiles(void **state) {
    (void)state;
    const struct sw_model_config config = parse(MODEL("qwen3", ""));
    struct sw_units *units;
    support_expect_failure(sw_model_units(&config, 2, SW_OPTIMIZER_FP32, NULL, &units), SW_ERR_UNSUPPORTED,
                           "--tiles 2 is not supported for qwen3", "tiles");
}

static void fused_matrices_are_not_cut(void **state) {
    (void)state;
    const struct sw_model_config config = parse(MODEL("phi3", ""));
    struct sw_units *units;
    support_expect_failure(sw_model_units(&config, 2, SW_OPTIMIZER_FP32, NULL, &units), SW_ERR_UNSUPPORTED,
                           "--tiles 2 is not supported for phi3", "tiles");
    support_expect_failure(sw_model_rank_units(&config, 2, 0, 1, SW_OPTIMIZER_FP32, NULL, &units), SW_ERR_UNSUPPORTED,
                           "--tensor 2 is not supported for phi3", "ranks");
}

static void norms_of_results_refuse_parts(void **state) {
    (void)state;
    const struct sw_model_config config = parse(MODEL("gemma3_text", ""));
    struct sw_units *units;
    support_expect_failure(sw_model_units(&config, 2, SW_OPTIMIZER_FP32, NULL, &units), SW_ERR_UNSUPPORTED,
                           "--tiles 2 is not supported for gemma3_text, which normalises the results", "tiles");
    support_expect_failure(sw_model_rank_units(&config, 2, 0, 1, SW_OPTIMIZER_FP32, NULL, &units), SW_ERR_UNSUPPORTED,
                           "--tensor 2 is not supported for gemma3_text", "ranks");
}

static void blocks_with_experts_are_not_cut_into_tiles(void **state) {
    (void)state;
    static const char *const names[] = {"mixtral", "qwen2_moe", "gpt_oss"};
    const struct sw_model_config configs[] = {parse(MODEL("mixtral", "")), parse(MODEL("qwen2_moe", "")),
                                              parse(MODEL("gpt_oss", ", \"num_local_experts\": 8"))};
    struct sw_units *units;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char message[128];
        snprintf(message, sizeof message, "--tiles 2 is not supported for %s, whose blocks have experts", names[i]);
        support_expect_failure(sw_model_units(&configs[i], 2, SW_OPTIMIZER_FP32, NULL, &units), SW_ERR_UNSUPPORTED,
                               message, "tiles");
        support_expect_failure(sw_model_rank_units(&configs[i], 2, 0, 2, SW_OPTIMIZER_FP32, NULL, &units),
                               SW_ERR_UNSUPPORTED, message, "tiles of ranks");
    }
}

/* A unit of experts has rows of the tensors that have all experts of a layer, and their biases. */
static void units_have_their_part_of_joined_experts(void **state) {
    (void)state;
    struct sw_model_config config = parse(MODEL("gpt_oss", ", \"num_local_experts\": 8"));
    struct sw_units *units;
    support_expect_ok(sw_model_group_experts(&config, 4), "experts as units");
    support_expect_ok(sw_model_units(&config, 1, SW_OPTIMIZER_FP32, NULL, &units), "units");
    assert_int_equal(units->count, 2 + 3 * config.layers);
    for (int64_t u = 1; u + 1 < units->count; u++) {
        const struct sw_unit *unit = &units->unit[u];
        const int64_t within = (u - 1) % 3;
        const struct sw_tensor *last = &unit->tensor[unit->tensor_count - 1];
        if (within == 0)
            assert_true(strstr(last->name, ".mlp.router.bias") != NULL);
        for (int64_t t = 0; within > 0 && t < unit->tensor_count; t++) {
            const struct sw_tensor *tensor = &unit->tensor[t];
            assert_int_equal(unit->tensor_count, 4);
            assert_true(strstr(tensor->name, ".mlp.experts.") != NULL && tensor->dim[0] == 8);
            assert_int_equal(2 * tensor->elems, sw_tensor_whole_elems(tensor));
            assert_int_equal(tensor->part.first_row, (within - 1) * tensor->part.rows);
        }
    }
    sw_units_destroy(units);
}

static void tensor_groups_do_not_share_out_all_experts(void **state) {
    (void)state;
    const struct sw_model_config shared = parse(MODEL("qwen2_moe", "")),
                                 joined = parse(MODEL("gpt_oss", ", \"num_local_experts\": 8"));
    const struct sw_model_group group = {.ranks = 4, .experts = 2};
    struct sw_units *units;
    support_expect_failure(sw_model_group_units(&shared, &group, 1, SW_OPTIMIZER_FP32, NULL, &units),
                           SW_ERR_UNSUPPORTED,
                           "--experts 2 with --tensor 2 is not supported for qwen2_moe, whose blocks have a shared "
                           "expert; leave one of the two out",
                           "a shared expert");
    support_expect_failure(sw_model_group_units(&joined, &group, 1, SW_OPTIMIZER_FP32, NULL, &units),
                           SW_ERR_UNSUPPORTED,
                           "--experts 2 with --tensor 2 is not supported for gpt_oss, which has all experts of a layer "
                           "in one tensor; leave one of the two out",
                           "joined experts");
}

/* One grouped product takes all experts' matrices of one kind; gate and up are one matrix. Frozen experts lie apart, in
 * a run of their own. */
static void experts_lie_at_one_stride(void **state) {
    (void)state;
    struct sw_model_config config = parse(MODEL("mixtral", ""));
    const struct sw_tuning tuning = {.freeze = "*.experts.[2-3].*"};
    struct sw_units *units;
    config.expert_ffn = 81; /* a matrix of 81·48 elements ends between two multiples of the alignment */
    for (int freeze = 0; freeze < 2; freeze++) {
        support_expect_ok(sw_model_units(&config, 1, SW_OPTIMIZER_8BIT, freeze ? &tuning : NULL, &units), "units");
        const struct sw_unit *unit = &units->unit[1];
        const struct sw_tensor *first = sw_unit_find(unit, "model.layers.0.block_sparse_moe.experts.0.w1.weight");
        assert_non_null(first);
        assert_int_equal(first - unit->tensor + EXPERT_MATRICES * config.experts, unit->tensor_count);
        const int64_t stride = first[EXPERT_MATRICES].offset - first->offset;
        for (int64_t e = 0; e < config.experts; e++) {
            const struct sw_tensor *of = &first[EXPERT_MATRICES * e];
            assert_int_equal(of[EXPERT_UP].offset, of->offset + of->elems);
            assert_int_equal(of->offset % SW_TENSOR_ALIGN_ELEMS, 0);
            assert_int_equal(of[EXPERT_DOWN].offset % SW_TENSOR_ALIGN_ELEMS, 0);
            if (!freeze)
                assert_int_equal(of->offset, first->offset + e * stride);
            else if (e >= 2 && e < 4)
                assert_true(of->frozen && of->offset < unit->trained_grain * SW_GRAIN_ELEMS);
            else
                assert_int_equal(of->offset, first->offset + (e < 2 ? e : e - 2) * stride);
        }
        sw_units_destroy(units);
    }
}

/* Frequencies of a llama3 scaling: short waves stay, long ones are slowed by the factor, and between them it is
 * neither.
 */
static void frequencies_are_scaled(void **state) {
    (void)state;
    enum { DIM = 32, TOKENS = 2 };
    struct sw_model_config plain = parse(MODEL("llama", ", \"head_dim\": 32"));
    struct sw_model_config scaled = plain;
    scaled.rope = (struct sw_rope){.kind = SW_ROPE_LLAMA3,
                                   .theta = plain.rope.theta,
                                   .factor = 8,
                                   .low_freq_factor = 1,
                                   .high_freq_factor = 4,
                                   .original_positions = 1024};
    float before[TOKENS * DIM], after[TOKENS * DIM];
    int stayed = 0, slowed = 0, between = 0;
    sw_rope_table(&plain, TOKENS, before);
    sw_rope_table(&scaled, TOKENS, after);
    for (int i = 0; i < DIM / 2; i++) {
        const double slow_sine = after[DIM + DIM / 2 + i], slow_cosine = after[DIM + i];
        const double sine = before[DIM + DIM / 2 + i], cosine = before[DIM + i];
        const double ratio = atan2(sine, cosine) / atan2(slow_sine, slow_cosine);
        assert_true(before[i] == 1.0f && after[i] == 1.0f && before[DIM / 2 + i] == 0.0f);
        stayed += fabs(ratio - 1.0) < 1e-5;
        slowed += fabs(ratio - 8.0) < 1e-4;
        between += ratio > 1.001 && ratio < 7.999;
    }
    assert_true(stayed > 0 && slowed > 0 && between > 0 && stayed + slowed + between == DIM / 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_llama_is_read),
        cmocka_unit_test(relatives_differ_as_they_do),
        cmocka_unit_test(mixtures_of_experts_are_read),
        cmocka_unit_test(gemma_3_is_read),
        cmocka_unit_test(gpt_oss_is_read),
        cmocka_unit_test(fields_without_effect_are_passed_over),
        cmocka_unit_test(absent_key_value_heads_are_the_family_s),
        cmocka_unit_test(rotary_scalings_are_read),
        cmocka_unit_test(what_is_not_supported_is_named),
        cmocka_unit_test(descriptions_survive_writing),
        cmocka_unit_test(presets_have_their_parameters),
        cmocka_unit_test_setup_teardown(checkpoints_go_in_and_out, support_make_folder, support_remove_folder),
        cmocka_unit_test(parts_of_a_product_lie_together),
        cmocka_unit_test(shared_norms_refuse_tiles),
        cmocka_unit_test(fused_matrices_are_not_cut),
        cmocka_unit_test(norms_of_results_refuse_parts),
        cmocka_unit_test(blocks_with_experts_are_not_cut_into_tiles),
        cmocka_unit_test(tensor_groups_do_not_share_out_all_experts),
        cmocka_unit_test(units_have_their_part_of_joined_experts),
        cmocka_unit_test(experts_lie_at_one_stride),
        cmocka_unit_test(frequencies_are_scaled),
    };
    return cmocka_run_group_tests_name("train families", tests, NULL, NULL);
}
