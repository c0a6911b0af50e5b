#include "model/hf/family_parts.h"

#include <string.h>

/* gpt-oss: a mixture of experts with biases everywhere, attention sinks, windows in every second layer, and experts
 * that are joined in one tensor of each kind. */

enum { DEFAULT_HEAD_DIM = 64, DEFAULT_KV_HEADS = 8, DEFAULT_WINDOW = 128, DEFAULT_EXPERTS = 128, DEFAULT_CHOSEN = 4 };
static const double DEFAULT_THETA = 150000.0;
/* The rotary positions of a config.json that does not describe them. */
static const struct sw_rope default_rope = {
    .kind = SW_ROPE_YARN, .factor = 32.0, .beta_fast = 32.0, .beta_slow = 1.0, .original_positions = 4096};

static const struct sw_config_field fields[] = {
    BODY_FIELDS,
    ATTENTION_BIAS,
    {.name = "intermediate_size", INTO(expert_ffn), FFN_WIDTH, .required = true},
    {.name = "num_local_experts", INTO(experts), WHOLE(SW_MOST_EXPERTS)},
    {.name = "num_experts", INTO(experts), WHOLE(SW_MOST_EXPERTS), .read_only = true},
    {.name = "num_experts_per_tok", INTO(chosen_experts), WHOLE(SW_MOST_CHOSEN)},
    {.name = "output_router_logits", INTO(balances_experts), FLAG},
    {.name = "router_aux_loss_coef", INTO(router_aux_loss), .kind = SW_FIELD_REAL, .real_min = 0, .real_max = 1e3},
    {0},
};
static const struct sw_config_fixed fixed[] = {SHARED_FIXED, NO_OWN_CODE, {0}};
static const struct sw_config_activation activations[] = {{"silu", SW_SILU}, {0}};
static const char *const special[] = {ROPE_NAMES,     "sliding_window", "layer_types",
                                      "swiglu_alpha", "swiglu_limit",   NULL};
/* Other programs read these. */
static const char *const harmless[] = {"initial_context_length", "experts_per_token", NULL};

/* Refuses another number than the clamped gates have. */
static sw_status check_number(const json_t *root, const char *origin, const char *name, double wanted) {
    const json_t *value = sw_config_field_of(root, name);
    char shown[SW_SHOWN_CHARS];
    if (value == NULL || (json_is_number(value) && json_number_value(value) == wanted))
        return SW_OK;
    return sw_fail(SW_ERR_UNSUPPORTED, "%s: '%s' is %s, which is not supported; it must be %g", origin, name,
                   sw_config_show(value, shown), wanted);
}

/* Refuses a number of experts for each token, under the name that other programs read, that differs from the model's.
 */
static sw_status check_chosen(const json_t *root, const char *origin, int64_t chosen) {
    const json_t *value = sw_config_field_of(root, "experts_per_token");
    char shown[SW_SHOWN_CHARS];
    if (value == NULL || (json_is_integer(value) && json_integer_value(value) == chosen))
        return SW_OK;
    return sw_fail(SW_ERR_ARG, "%s: 'experts_per_token' is %s and 'num_experts_per_tok' is %lld; make them equal",
                   origin, sw_config_show(value, shown), (long long)chosen);
}

static sw_status read_rope(const struct sw_family *family, const json_t *root, const char *origin,
                           struct sw_model_config *out) {
    SW_TRY(sw_config_read_rope(family, root, origin, out));
    if (sw_config_field_of(root, "rope_parameters") != NULL || sw_config_field_of(root, "rope_scaling") != NULL)
        return SW_OK;
    const double theta = out->rope.theta;
    out->rope = default_rope;
    out->rope.theta = theta;
    return SW_OK;
}

static sw_status derive(const struct sw_family *family, const json_t *root, const char *origin,
                        struct sw_model_config *out) {
    const json_t *types = sw_config_field_of(root, "layer_types");
    SW_TRY(sw_family_derive_heads(family, root, origin, out));
    SW_TRY(sw_family_check_experts(root, origin, out));
    SW_TRY(check_chosen(root, origin, out->chosen_experts));
    SW_TRY(check_number(root, origin, "swiglu_alpha", 1.702));
    SW_TRY(check_number(root, origin, "swiglu_limit", SW_CLAMPED_MOST));
    SW_TRY(read_rope(family, root, origin, out));
    out->window = DEFAULT_WINDOW;
    if (json_object_get(root, "sliding_window") != NULL)
        SW_TRY(sw_family_read_window(root, origin, &out->window));
    if (out->window == 0)
        return sw_fail(SW_ERR_UNSUPPORTED,
                       "%s: 'sliding_window' is null, which gpt_oss does not support; it must be a whole number from 1 "
                       "(for no windows, every entry of 'layer_types' is \"full_attention\")",
                       origin);
    if (types != NULL)
        return sw_family_read_layer_types(types, origin, out);
    for (int64_t layer = 1; layer < out->layers; layer += 2)
        sw_family_set_full(out, layer);
    return SW_OK;
}

/* Names rotary positions that are not scaled too: without a name they would be default_rope. */
static int write(json_t *root, const struct sw_model_config *config) {
    if (sw_family_write_mistral(root, config) || json_object_set_new(root, "pad_token_id", json_null()) ||
        json_object_set_new(root, "swiglu_limit", json_real(SW_CLAMPED_MOST)) ||
        sw_family_write_layer_types(root, config))
        return -1;
    return config->rope.kind == SW_ROPE_DEFAULT
               ? json_object_set_new(root, "rope_scaling", json_pack("{s:s}", "rope_type", "default"))
               : 0;
}

static const struct sw_tensor_names names = {
    SHARED_NAMES,
    .piece =
        {
            ATTENTION_PIECES,
            [SINKS] = {{.name = "self_attn.sinks"}},
            [ROUTER] = {{.name = "mlp.router.weight"}},
            [ROUTER_BIAS] = {{.name = "mlp.router.bias"}},
            [JOINED_UP] = {{.name = "mlp.experts.gate_up_proj"}},
            [JOINED_UP_BIAS] = {{.name = "mlp.experts.gate_up_proj_bias"}},
            [JOINED_DOWN] = {{.name = "mlp.experts.down_proj"}},
            [JOINED_DOWN_BIAS] = {{.name = "mlp.experts.down_proj_bias"}},
        },
};

const struct sw_family sw_gpt_oss_family = {
    .name = "gpt_oss",
    .title = "gpt-oss",
    .architecture = "GptOssForCausalLM",
    .defaults = {.family = "gpt_oss",
                 SHARED_FORM,
                 .norm_epsilon = 1e-5,
                 .head_dim = DEFAULT_HEAD_DIM,
                 .qkv_bias = true,
                 .projection_bias = true,
                 .experts = DEFAULT_EXPERTS,
                 .chosen_experts = DEFAULT_CHOSEN,
                 .joined_experts = true,
                 .normalises_chosen = true,
                 .router_aux_loss = 0.001},
    .absent_kv_heads = DEFAULT_KV_HEADS,
    .absent_theta = DEFAULT_THETA,
    .fields = fields,
    .activation_field = "hidden_act",
    .activations = activations,
    .fixed = fixed,
    .special = special,
    .harmless = harmless,
    .derive = derive,
    .write = write,
    .names = &names,
};
