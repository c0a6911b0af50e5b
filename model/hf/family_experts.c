#include "model/hf/family_parts.h"

/* Mixtures of experts whose attention is that of Llama: Mixtral, Qwen2-MoE, Qwen3-MoE and OLMoE. */

/* Defaults of transformers' configuration classes for fields that config.json leaves out. */
enum { QWEN2_MOE_KV_HEADS = 16, QWEN3_MOE_KV_HEADS = 4 };
static const double MIXTRAL_THETA = 1e6;

/* Versions of transformers differ in the name of the first field. Each family writes its own. */
#define EXPERTS_FIELD(field) .name = (field), INTO(experts), WHOLE(SW_MOST_EXPERTS)
#define CHOSEN_FIELD                                                                                                   \
    { .name = "num_experts_per_tok", INTO(chosen_experts), WHOLE(SW_MOST_CHOSEN) }
/* output_router_logits adds the loss that balances the experts' load. */
#define BALANCE_FIELDS                                                                                                 \
    {.name = "output_router_logits", INTO(balances_experts), FLAG}, {                                                  \
        .name = "router_aux_loss_coef", INTO(router_aux_loss), .kind = SW_FIELD_REAL, .real_min = 0, .real_max = 1e3   \
    }
#define NORMALISED_FIELD                                                                                               \
    { .name = "norm_topk_prob", INTO(normalises_chosen), FLAG }
static const struct sw_config_field mixtral_fields[] = {
    BODY_FIELDS,
    {.name = "intermediate_size", INTO(expert_ffn), FFN_WIDTH, .required = true},
    {EXPERTS_FIELD("num_local_experts")},
    {EXPERTS_FIELD("num_experts"), .read_only = true},
    CHOSEN_FIELD,
    BALANCE_FIELDS,
    {0},
};
static const struct sw_config_field qwen3_moe_fields[] = {
    BODY_FIELDS,
    ATTENTION_BIAS,
    {.name = "moe_intermediate_size", INTO(expert_ffn), FFN_WIDTH},
    {EXPERTS_FIELD("num_local_experts"), .read_only = true},
    {EXPERTS_FIELD("num_experts")},
    CHOSEN_FIELD,
    BALANCE_FIELDS,
    NORMALISED_FIELD,
    {0},
};
static const struct sw_config_field qwen2_moe_fields[] = {
    BODY_FIELDS,
    {.name = "qkv_bias", INTO(qkv_bias), FLAG},
    {.name = "moe_intermediate_size", INTO(expert_ffn), FFN_WIDTH},
    {.name = "shared_expert_intermediate_size", INTO(ffn), FFN_WIDTH},
    {EXPERTS_FIELD("num_local_experts"), .read_only = true},
    {EXPERTS_FIELD("num_experts")},
    CHOSEN_FIELD,
    BALANCE_FIELDS,
    NORMALISED_FIELD,
    {0},
};
static const struct sw_config_field olmoe_fields[] = {
    BODY_FIELDS,
    ATTENTION_BIAS,
    {.name = "intermediate_size", INTO(expert_ffn), FFN_WIDTH, .required = true},
    {EXPERTS_FIELD("num_local_experts"), .read_only = true},
    {EXPERTS_FIELD("num_experts")},
    CHOSEN_FIELD,
    BALANCE_FIELDS,
    NORMALISED_FIELD,
    {0},
};

#define EXPERTS_FIXED                                                                                                  \
    { "router_jitter_noise", SW_ONLY_ZERO }
static const struct sw_config_fixed mixtral_fixed[] = {SHARED_FIXED, NO_OWN_CODE, EXPERTS_FIXED, {0}};
static const struct sw_config_fixed qwen3_moe_fixed[] = {
    SHARED_FIXED, NO_OWN_CODE, EXPERTS_FIXED, {"decoder_sparse_step", SW_ONLY_ONE}, {"mlp_only_layers", SW_ONLY_EMPTY},
    {0},
};
/* A window would be that of every other layer. */
static const struct sw_config_fixed qwen2_moe_fixed[] = {
    SHARED_FIXED,
    NO_OWN_CODE,
    EXPERTS_FIXED,
    {"decoder_sparse_step", SW_ONLY_ONE},
    {"mlp_only_layers", SW_ONLY_EMPTY},
    {"use_sliding_window", SW_ONLY_FALSE},
    {"layer_types", SW_ONLY_FULL_ATTENTION},
    {0},
};
static const struct sw_config_fixed olmoe_fixed[] = {
    SHARED_FIXED, NO_OWN_CODE, EXPERTS_FIXED, {"clip_qkv", SW_ONLY_EMPTY}, {0}};

static const char *const special[] = {ROPE_NAMES, NULL};
static const char *const mixtral_special[] = {ROPE_NAMES, "sliding_window", NULL};
static const char *const qwen3_moe_special[] = {ROPE_NAMES, "sliding_window", "use_sliding_window", NULL};
static const char *const experts_harmless[] = {"pretraining_tp", NULL};
/* No layer has the dense MLP that intermediate_size describes, and a window is that of all layers. */
static const char *const qwen3_moe_harmless[] = {"intermediate_size", "max_window_layers", NULL};
static const char *const qwen2_moe_harmless[] = {"intermediate_size", "max_window_layers", "sliding_window", NULL};

sw_status sw_family_check_experts(const json_t *root, const char *origin, const struct sw_model_config *config) {
    const json_t *local = sw_config_field_of(root, "num_local_experts"), *all = sw_config_field_of(root, "num_experts");
    if (local != NULL && all != NULL && json_integer_value(local) != json_integer_value(all))
        return sw_fail(SW_ERR_ARG, "%s: 'num_local_experts' is %lld but 'num_experts' is %lld; they must be equal",
                       origin, (long long)json_integer_value(local), (long long)json_integer_value(all));
    if (config->chosen_experts > config->experts)
        return sw_fail(SW_ERR_ARG, "%s: 'num_experts_per_tok' is %lld, and the model has %lld experts", origin,
                       (long long)config->chosen_experts, (long long)config->experts);
    return SW_OK;
}

/* Checks what the router chooses, and reads everything else as for Llama. */
static sw_status derive_experts(const struct sw_family *family, const json_t *root, const char *origin,
                                struct sw_model_config *out) {
    SW_TRY(sw_family_check_experts(root, origin, out));
    return sw_family_derive_llama(family, root, origin, out);
}

static sw_status derive_mixtral(const struct sw_family *family, const json_t *root, const char *origin,
                                struct sw_model_config *out) {
    SW_TRY(derive_experts(family, root, origin, out));
    return json_object_get(root, "sliding_window") == NULL ? SW_OK : sw_family_read_window(root, origin, &out->window);
}

/* Reads the window, which has no effect unless use_sliding_window is true. */
static sw_status derive_qwen3_moe(const struct sw_family *family, const json_t *root, const char *origin,
                                  struct sw_model_config *out) {
    const json_t *use = sw_config_field_of(root, "use_sliding_window");
    char shown[SW_SHOWN_CHARS];
    SW_TRY(derive_experts(family, root, origin, out));
    if (use != NULL && !json_is_boolean(use))
        return sw_fail(SW_ERR_ARG, "%s: 'use_sliding_window' is %s; it must be true or false", origin,
                       sw_config_show(use, shown));
    SW_TRY(sw_family_read_window(root, origin, &out->window));
    out->window = json_is_true(use) ? out->window : 0;
    return SW_OK;
}

static int write_qwen3_moe(json_t *root, const struct sw_model_config *config) {
    return sw_family_write_mistral(root, config) ||
           json_object_set_new(root, "use_sliding_window", json_boolean(config->window != 0));
}

/* Writes null for the token of padding, as for Phi-3. */
static int write_olmoe(json_t *root, const struct sw_model_config *config) {
    return sw_family_write_llama(root, config) || json_object_set_new(root, "pad_token_id", json_null());
}

static const struct sw_tensor_names mixtral_names = {
    SHARED_NAMES,
    .expert = "block_sparse_moe.experts.",
    .expert_matrix = {"w1.weight", "w3.weight", "w2.weight"},
    .piece = {ATTENTION_PIECES, [ROUTER] = {{.name = "block_sparse_moe.gate.weight"}}},
};

static const struct sw_tensor_names qwen3_moe_names = {
    SHARED_NAMES,
    .expert = "mlp.experts.",
    .expert_matrix = {"gate_proj.weight", "up_proj.weight", "down_proj.weight"},
    .piece = {ATTENTION_PIECES, [ROUTER] = {{.name = "mlp.gate.weight"}}},
};

static const struct sw_tensor_names qwen2_moe_names = {
    SHARED_NAMES,
    .expert = "mlp.experts.",
    .expert_matrix = {"gate_proj.weight", "up_proj.weight", "down_proj.weight"},
    .piece = {ATTENTION_PIECES, [ROUTER] = {{.name = "mlp.gate.weight"}}, SHARED_EXPERT_PIECES},
};

const struct sw_family sw_mixtral_family = {
    .name = "mixtral",
    .title = "Mixtral",
    .architecture = "MixtralForCausalLM",
    .defaults = {.family = "mixtral",
                 SHARED_FORM,
                 .norm_epsilon = 1e-5,
                 .experts = 8,
                 .chosen_experts = 2,
                 .normalises_chosen = true,
                 .router_aux_loss = 0.001},
    .absent_kv_heads = SW_MISTRAL_KV_HEADS,
    .absent_theta = MIXTRAL_THETA,
    .fields = mixtral_fields,
    .activation_field = "hidden_act",
    .activations = sw_gated_activations,
    .fixed = mixtral_fixed,
    .special = mixtral_special,
    .harmless = experts_harmless,
    .derive = derive_mixtral,
    .write = sw_family_write_mistral,
    .names = &mixtral_names,
};

const struct sw_family sw_qwen3_moe_family = {
    .name = "qwen3_moe",
    .title = "Qwen3-MoE",
    .architecture = "Qwen3MoeForCausalLM",
    .defaults = {.family = "qwen3_moe",
                 SHARED_DEFAULTS,
                 .qk_norm = true,
                 .experts = 128,
                 .chosen_experts = 8,
                 .expert_ffn = 768,
                 .router_aux_loss = 0.001},
    .absent_kv_heads = QWEN3_MOE_KV_HEADS,
    .fields = qwen3_moe_fields,
    .activation_field = "hidden_act",
    .activations = sw_gated_activations,
    .fixed = qwen3_moe_fixed,
    .special = qwen3_moe_special,
    .harmless = qwen3_moe_harmless,
    .derive = derive_qwen3_moe,
    .write = write_qwen3_moe,
    .names = &qwen3_moe_names,
};

const struct sw_family sw_qwen2_moe_family = {
    .name = "qwen2_moe",
    .title = "Qwen2-MoE",
    .architecture = "Qwen2MoeForCausalLM",
    .defaults = {.family = "qwen2_moe",
                 SHARED_DEFAULTS,
                 .qkv_bias = true,
                 .experts = 60,
                 .chosen_experts = 4,
                 .expert_ffn = 1408,
                 .ffn = 5632,
                 .router_aux_loss = 0.001},
    .absent_kv_heads = QWEN2_MOE_KV_HEADS,
    .fields = qwen2_moe_fields,
    .activation_field = "hidden_act",
    .activations = sw_gated_activations,
    .fixed = qwen2_moe_fixed,
    .special = special,
    .harmless = qwen2_moe_harmless,
    .derive = derive_experts,
    .write = sw_family_write_llama,
    .names = &qwen2_moe_names,
};

const struct sw_family sw_olmoe_family = {
    .name = "olmoe",
    .title = "OLMoE",
    .architecture = "OlmoeForCausalLM",
    .defaults = {.family = "olmoe",
                 SHARED_FORM,
                 .norm_epsilon = 1e-5,
                 .qk_norm = true,
                 .joint_qk_norm = true,
                 .experts = 64,
                 .chosen_experts = 8,
                 .router_aux_loss = 0.01},
    .fields = olmoe_fields,
    .activation_field = "hidden_act",
    .activations = sw_gated_activations,
    .fixed = olmoe_fixed,
    .special = special,
    .harmless = experts_harmless,
    .derive = derive_experts,
    .write = write_olmoe,
    .names = &qwen3_moe_names,
};
