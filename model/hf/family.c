#include "model/hf/family.h"

#include "core/json.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Reads, shows and writes fields of config.json by a table. */

const json_t *sw_config_field_of(const json_t *root, const char *name) {
    const json_t *value = json_object_get(root, name);
    return json_is_null(value) ? NULL : value;
}

const char *sw_config_show(const json_t *value, char buffer[SW_SHOWN_CHARS]) {
    char *text = sw_json_text(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(9));
    snprintf(buffer, SW_SHOWN_CHARS, "%.40s%s", text != NULL ? text : "?",
             text != NULL && strlen(text) > 40 ? "..." : "");
    free(text);
    return buffer;
}

static sw_status read_field(const struct sw_config_field *field, const json_t *value, const char *origin,
                            struct sw_model_config *out) {
    void *to = (char *)out + field->offset;
    char shown[SW_SHOWN_CHARS];
    switch (field->kind) {
    case SW_FIELD_INT: {
        const json_int_t number = json_integer_value(value);
        if (!json_is_integer(value) || number < field->int_min || number > field->int_max)
            return sw_fail(SW_ERR_ARG, "%s: '%s' is %s; it must be a whole number from %lld to %lld", origin,
                           field->name, sw_config_show(value, shown), (long long)field->int_min,
                           (long long)field->int_max);
        *(int64_t *)to = number;
        return SW_OK;
    }
    case SW_FIELD_REAL: {
        const double number = json_number_value(value);
        if (!json_is_number(value) || !(number >= field->real_min && number <= field->real_max))
            return sw_fail(SW_ERR_ARG, "%s: '%s' is %s; it must be a number from %g to %g", origin, field->name,
                           sw_config_show(value, shown), field->real_min, field->real_max);
        *(double *)to = number;
        return SW_OK;
    }
    case SW_FIELD_BOOL:
        if (!json_is_boolean(value))
            return sw_fail(SW_ERR_ARG, "%s: '%s' is %s; it must be true or false", origin, field->name,
                           sw_config_show(value, shown));
        *(bool *)to = json_is_true(value);
        return SW_OK;
    }
    return sw_fail(SW_ERR_INTERNAL, "%s: '%s' has no known kind", origin, field->name);
}

sw_status sw_config_read_fields(const struct sw_config_field *fields, const json_t *object, const char *origin,
                                const char *title, struct sw_model_config *out) {
    for (const struct sw_config_field *field = fields; field->name != NULL; field++) {
        const json_t *value = sw_config_field_of(object, field->name);
        if (value != NULL)
            SW_TRY(read_field(field, value, origin, out));
        else if (field->required)
            return sw_fail(SW_ERR_ARG, "%s has no '%s'; a %s config.json must give it", origin, field->name, title);
    }
    return SW_OK;
}

int sw_config_write_fields(json_t *object, const struct sw_config_field *fields, const struct sw_model_config *config) {
    for (const struct sw_config_field *field = fields; field->name != NULL; field++) {
        const void *from = (const char *)config + field->offset;
        json_t *value = NULL;
        if (field->kind == SW_FIELD_INT)
            value = json_integer(*(const int64_t *)from);
        else if (field->kind == SW_FIELD_REAL)
            value = json_real(*(const double *)from);
        else
            value = json_boolean(*(const bool *)from);
        /* A number is 0 if it was not given, unless 0 is a valid value. */
        const bool may_be_0 = field->kind == SW_FIELD_BOOL || (field->kind == SW_FIELD_REAL && field->real_min == 0.0);
        const bool given = may_be_0 || json_number_value(value) != 0.0;
        if (field->read_only || !given)
            json_decref(value);
        else if (json_object_set_new(object, field->name, value) != 0)
            return -1;
    }
    return 0;
}

/* Reads and writes rotary positions in config.json. */

#define INTO_ROPE(member) .offset = offsetof(struct sw_model_config, rope.member)
#define REAL(least, most) .kind = SW_FIELD_REAL, .real_min = (least), .real_max = (most)
#define FACTOR                                                                                                         \
    { .name = "factor", INTO_ROPE(factor), REAL(1, 1e6), .required = true }
#define ORIGINAL_POSITIONS                                                                                             \
    .name = "original_max_position_embeddings", INTO_ROPE(original_positions), .kind = SW_FIELD_INT, .int_min = 1,     \
    .int_max = SW_CONFIG_MAX_POSITIONS

static const struct sw_config_field no_fields[] = {{0}}, linear_fields[] = {FACTOR, {0}};
static const struct sw_config_field llama3_fields[] = {
    FACTOR,
    {.name = "low_freq_factor", INTO_ROPE(low_freq_factor), REAL(1e-6, 1e6), .required = true},
    {.name = "high_freq_factor", INTO_ROPE(high_freq_factor), REAL(1e-6, 1e6), .required = true},
    {ORIGINAL_POSITIONS, .required = true},
    {0},
};
static const struct sw_config_field yarn_fields[] = {
    FACTOR,
    {ORIGINAL_POSITIONS},
    {.name = "attention_factor", INTO_ROPE(attention_factor), REAL(1e-6, 1e6)},
    {.name = "beta_fast", INTO_ROPE(beta_fast), REAL(1e-6, 1e6)},
    {.name = "beta_slow", INTO_ROPE(beta_slow), REAL(1e-6, 1e6)},
    {.name = "mscale", INTO_ROPE(mscale), REAL(0, 1e6)},
    {.name = "mscale_all_dim", INTO_ROPE(mscale_all_dim), REAL(0, 1e6)},
    {.name = "truncate", INTO_ROPE(truncate), .kind = SW_FIELD_BOOL},
    {0},
};
static const struct sw_config_field theta_field[] = {{.name = "rope_theta", INTO_ROPE(theta), REAL(1, 1e15)}, {0}};

static const struct {
    const char *name;
    const struct sw_config_field *fields;
} kinds[SW_ROPE_KINDS] = {
    [SW_ROPE_DEFAULT] = {"default", no_fields},
    [SW_ROPE_LINEAR] = {"linear", linear_fields},
    [SW_ROPE_LLAMA3] = {"llama3", llama3_fields},
    [SW_ROPE_YARN] = {"yarn", yarn_fields},
};

static const double DEFAULT_THETA = 10000.0, DEFAULT_BETA_FAST = 32.0, DEFAULT_BETA_SLOW = 1.0;

static sw_status read_kind(const json_t *object, const char *origin, sw_rope_kind *out) {
    const json_t *type = sw_config_field_of(object, "rope_type");
    char shown[SW_SHOWN_CHARS];
    if (type == NULL)
        type = sw_config_field_of(object, "type");
    for (int kind = 0; kind < SW_ROPE_KINDS; kind++) {
        if (type == NULL || (json_is_string(type) && strcmp(json_string_value(type), kinds[kind].name) == 0)) {
            *out = (sw_rope_kind)kind;
            return SW_OK;
        }
    }
    return sw_fail(SW_ERR_UNSUPPORTED, "%s: 'rope_type' is %s; supported: default, linear, llama3, yarn", origin,
                   sw_config_show(type, shown));
}

static sw_status refuse_unknown(json_t *object, const char *origin, sw_rope_kind kind) {
    const char *name = NULL;
    json_t *value = NULL;
    json_object_foreach(object, name, value) {
        bool known = strcmp(name, "rope_type") == 0 || strcmp(name, "type") == 0 || strcmp(name, "rope_theta") == 0 ||
                     (strcmp(name, "partial_rotary_factor") == 0 && json_number_value(value) == 1.0);
        for (const struct sw_config_field *field = kinds[kind].fields; field->name != NULL; field++)
            known = known || strcmp(name, field->name) == 0;
        if (!known && !json_is_null(value))
            return sw_fail(SW_ERR_UNSUPPORTED, "%s: the field '%.60s' is not known for rotary positions of type %s",
                           origin, name, kinds[kind].name);
    }
    return SW_OK;
}

static sw_status read_scaling(json_t *object, const char *origin, struct sw_model_config *out) {
    char shown[SW_SHOWN_CHARS];
    struct sw_rope *rope = &out->rope;
    if (!json_is_object(object))
        return sw_fail(SW_ERR_ARG, "%s: the scaling of rotary positions is %s; it must be an object", origin,
                       sw_config_show(object, shown));
    SW_TRY(read_kind(object, origin, &rope->kind));
    SW_TRY(refuse_unknown(object, origin, rope->kind));
    SW_TRY(sw_config_read_fields(theta_field, object, origin, "", out));
    SW_TRY(sw_config_read_fields(kinds[rope->kind].fields, object, origin, kinds[rope->kind].name, out));
    if (rope->kind == SW_ROPE_LLAMA3 && rope->high_freq_factor <= rope->low_freq_factor)
        return sw_fail(SW_ERR_ARG, "%s: 'high_freq_factor' is %g but 'low_freq_factor' is %g; it must be larger",
                       origin, rope->high_freq_factor, rope->low_freq_factor);
    return SW_OK;
}

/* Read and write rotary positions: rope_theta and rope_scaling, or rope_parameters, in which newer versions put both.
 */
static sw_status config_read_rope(const struct sw_family *family, const json_t *root, const char *origin,
                                  struct sw_model_config *out) {
    json_t *parameters = json_object_get(root, "rope_parameters"), *scaling = json_object_get(root, "rope_scaling");
    struct sw_rope *rope = &out->rope;
    parameters = json_is_null(parameters) ? NULL : parameters;
    scaling = json_is_null(scaling) ? NULL : scaling;
    *rope = (struct sw_rope){.truncate = true};
    if (parameters != NULL && scaling != NULL && !json_equal(parameters, scaling))
        return sw_fail(SW_ERR_ARG, "%s has 'rope_parameters' and 'rope_scaling', which differ; give one of them",
                       origin);
    SW_TRY(sw_config_read_fields(theta_field, root, origin, "", out));
    const double outer_theta = rope->theta;
    if (parameters != NULL || scaling != NULL)
        SW_TRY(read_scaling(parameters != NULL ? parameters : scaling, origin, out));
    if (outer_theta != 0.0 && rope->theta != outer_theta)
        return sw_fail(SW_ERR_ARG, "%s: 'rope_theta' is %g in one place and %g in another; they must be equal", origin,
                       outer_theta, rope->theta);
    if (rope->theta == 0.0)
        rope->theta = family->absent_theta > 0.0 ? family->absent_theta : DEFAULT_THETA;
    if (rope->kind != SW_ROPE_YARN)
        return SW_OK;
    /* The bounds that yarn computes are logarithms to the base rope_theta. */
    if (rope->theta <= 1.0)
        return sw_fail(SW_ERR_ARG, "%s: 'rope_theta' is %g; rotary positions of type yarn need more than 1", origin,
                       rope->theta);
    rope->original_positions = rope->original_positions == 0 ? out->max_positions : rope->original_positions;
    rope->beta_fast = rope->beta_fast == 0.0 ? DEFAULT_BETA_FAST : rope->beta_fast;
    rope->beta_slow = rope->beta_slow == 0.0 ? DEFAULT_BETA_SLOW : rope->beta_slow;
    return SW_OK;
}

/* Writes rope_theta and rope_scaling, which every version of transformers reads. */
static int config_write_rope(json_t *root, const struct sw_model_config *config) {
    const sw_rope_kind kind = config->rope.kind;
    if (sw_config_write_fields(root, theta_field, config) != 0)
        return -1;
    if (kind == SW_ROPE_DEFAULT)
        return json_object_set_new(root, "rope_scaling", json_null());
    json_t *scaling = json_pack("{s:s}", "rope_type", kinds[kind].name);
    if (scaling == NULL || sw_config_write_fields(scaling, kinds[kind].fields, config) != 0) {
        json_decref(scaling);
        return -1;
    }
    return json_object_set_new(root, "rope_scaling", scaling);
}

/* Llama and the families that share its block: Mistral, Qwen2, Qwen3 and Phi-3. All have root-mean-square norms, rotary
 * positions, a gated MLP and matrices stored [out, in]. They differ in biases, in norms of queries and keys, and in
 * windows.
 *
 * A family is data: a table of fields, a table of tensor names, two small functions. The arithmetic sees only struct
 * sw_model_config, so two families with the same switches share every line of it. A field of config.json that no table
 * names is refused, because a field that is ignored in silence may change the model. */

/* Defaults of transformers' configuration classes for fields that config.json leaves out. */
enum {
    DEFAULT_WINDOW = 4096,
    DEFAULT_FULL_LAYERS = 28,
    QWEN3_HEAD_DIM = 128,
    MISTRAL_KV_HEADS = 8,
    QWEN_KV_HEADS = 32,
    QWEN3_MOE_KV_HEADS = 4
};
static const double MIXTRAL_THETA = 1e6;

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

static const struct sw_config_field llama_fields[] = {
    SHARED_FIELDS, ATTENTION_BIAS, {.name = "mlp_bias", INTO(mlp_bias), FLAG}, {0}};
static const struct sw_config_field shared_fields[] = {SHARED_FIELDS, {0}};
static const struct sw_config_field qwen3_fields[] = {SHARED_FIELDS, ATTENTION_BIAS, {0}};

/* Versions of transformers differ in the name of the first field. Each family writes its own. */
#define EXPERTS_FIELD(field) .name = (field), INTO(experts), WHOLE(SW_MOST_EXPERTS)
#define CHOSEN_FIELD                                                                                                   \
    { .name = "num_experts_per_tok", INTO(chosen_experts), WHOLE(SW_MOST_CHOSEN) }
#define NORMALISED_FIELD                                                                                               \
    { .name = "norm_topk_prob", INTO(normalises_chosen), FLAG }
static const struct sw_config_field mixtral_fields[] = {
    BODY_FIELDS,
    {.name = "intermediate_size", INTO(expert_ffn), FFN_WIDTH, .required = true},
    {EXPERTS_FIELD("num_local_experts")},
    {EXPERTS_FIELD("num_experts"), .read_only = true},
    CHOSEN_FIELD,
    {0},
};
static const struct sw_config_field qwen3_moe_fields[] = {
    BODY_FIELDS,
    ATTENTION_BIAS,
    {.name = "moe_intermediate_size", INTO(expert_ffn), FFN_WIDTH},
    {EXPERTS_FIELD("num_local_experts"), .read_only = true},
    {EXPERTS_FIELD("num_experts")},
    CHOSEN_FIELD,
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
    NORMALISED_FIELD,
    {0},
};

static const struct sw_config_activation activations[] = {
    {"silu", SW_SILU},
    {"swish", SW_SILU},
    {"gelu_pytorch_tanh", SW_GELU_TANH},
    {"gelu_new", SW_GELU_TANH},
    {"gelu", SW_GELU_ERF},
    {"relu", SW_RELU},
    {0},
};

#define SHARED_FIXED                                                                                                   \
    {"is_encoder_decoder", SW_ONLY_FALSE}, {"tie_encoder_decoder", SW_ONLY_FALSE},                                     \
        {"add_cross_attention", SW_ONLY_FALSE}, {"use_mrope", SW_ONLY_FALSE}, {"rope_interleaved", SW_ONLY_FALSE},     \
        {"partial_rotary_factor", SW_ONLY_ONE}, {"pruned_heads", SW_ONLY_EMPTY}, {                                     \
        "cross_attention_hidden_size", SW_ONLY_EMPTY                                                                   \
    }
/* Code that a folder brings along may compute something else. */
#define NO_OWN_CODE                                                                                                    \
    { "auto_map", SW_ONLY_EMPTY }
static const struct sw_config_fixed fixed[] = {SHARED_FIXED, NO_OWN_CODE, {0}};
/* Llama has no windows, so its list of layers may name only full attention. */
static const struct sw_config_fixed llama_fixed[] = {
    SHARED_FIXED, NO_OWN_CODE, {"layer_types", SW_ONLY_FULL_ATTENTION}, {0}};
/* output_router_logits adds a loss that balances the load of the experts, whose factor alone has no effect. */
#define EXPERTS_FIXED                                                                                                  \
    {"output_router_logits", SW_ONLY_FALSE}, {                                                                         \
        "router_jitter_noise", SW_ONLY_ZERO                                                                            \
    }
static const struct sw_config_fixed mixtral_fixed[] = {SHARED_FIXED, NO_OWN_CODE, EXPERTS_FIXED, {0}};
static const struct sw_config_fixed qwen3_moe_fixed[] = {
    SHARED_FIXED,
    NO_OWN_CODE,
    EXPERTS_FIXED,
    {"use_sliding_window", SW_ONLY_FALSE},
    {"decoder_sparse_step", SW_ONLY_ONE},
    {"mlp_only_layers", SW_ONLY_EMPTY},
    {0},
};
static const struct sw_config_fixed olmoe_fixed[] = {
    SHARED_FIXED, NO_OWN_CODE, EXPERTS_FIXED, {"clip_qkv", SW_ONLY_EMPTY}, {0}};
static const struct sw_config_fixed phi3_fixed[] = {SHARED_FIXED, {"attention_bias", SW_ONLY_FALSE}, {0}};

#define ROPE_NAMES "rope_theta", "rope_scaling", "rope_parameters"
static const char *const llama_special[] = {ROPE_NAMES, NULL};
static const char *const mistral_special[] = {ROPE_NAMES, "sliding_window", NULL};
static const char *const qwen_special[] = {ROPE_NAMES,          "sliding_window", "use_sliding_window",
                                           "max_window_layers", "layer_types",    NULL};
/* pretraining_tp only slices the same products. */
static const char *const harmless[] = {"pretraining_tp", NULL};
#define BALANCE "router_aux_loss_coef"
static const char *const experts_harmless[] = {"pretraining_tp", BALANCE, NULL};
/* No layer has the dense MLP that intermediate_size describes, and none slides. */
static const char *const qwen3_moe_harmless[] = {BALANCE, "intermediate_size", "sliding_window", "max_window_layers",
                                                 NULL};
/* Only positions of type longrope, which are refused, use the length of the first training. The code that the first
 * folders of Phi-3 brought along is what transformers has now. */
static const char *const phi3_harmless[] = {"original_max_position_embeddings", "auto_map", NULL};

static sw_status derive_heads(const struct sw_family *family, const json_t *root, const char *origin,
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

static sw_status derive_llama(const struct sw_family *family, const json_t *root, const char *origin,
                              struct sw_model_config *out) {
    SW_TRY(derive_heads(family, root, origin, out));
    return config_read_rope(family, root, origin, out);
}

/* Reads the window. A missing field means the default of transformers, null means no window. */
static sw_status read_window(const json_t *root, const char *origin, int64_t *out) {
    const json_t *value = json_object_get(root, "sliding_window");
    char shown[SW_SHOWN_CHARS];
    *out = value == NULL ? DEFAULT_WINDOW : json_integer_value(value);
    if (value == NULL || json_is_null(value) || (json_is_integer(value) && *out >= 1))
        return SW_OK;
    return sw_fail(SW_ERR_ARG, "%s: 'sliding_window' is %s; it must be null or a whole number from 1", origin,
                   sw_config_show(value, shown));
}

/* Checks what the router chooses, and reads everything else as for Llama. */
static sw_status derive_experts(const struct sw_family *family, const json_t *root, const char *origin,
                                struct sw_model_config *out) {
    const json_t *local = sw_config_field_of(root, "num_local_experts"), *all = sw_config_field_of(root, "num_experts");
    if (local != NULL && all != NULL && json_integer_value(local) != json_integer_value(all))
        return sw_fail(SW_ERR_ARG, "%s: 'num_local_experts' is %lld but 'num_experts' is %lld; they must be equal",
                       origin, (long long)json_integer_value(local), (long long)json_integer_value(all));
    if (out->chosen_experts > out->experts)
        return sw_fail(SW_ERR_ARG, "%s: 'num_experts_per_tok' is %lld, and the model has %lld experts", origin,
                       (long long)out->chosen_experts, (long long)out->experts);
    return derive_llama(family, root, origin, out);
}

static sw_status derive_mixtral(const struct sw_family *family, const json_t *root, const char *origin,
                                struct sw_model_config *out) {
    SW_TRY(derive_experts(family, root, origin, out));
    return json_object_get(root, "sliding_window") == NULL ? SW_OK : read_window(root, origin, &out->window);
}

static sw_status derive_mistral(const struct sw_family *family, const json_t *root, const char *origin,
                                struct sw_model_config *out) {
    SW_TRY(derive_llama(family, root, origin, out));
    return read_window(root, origin, &out->window);
}

/* A missing window is none here. */
static sw_status derive_phi3(const struct sw_family *family, const json_t *root, const char *origin,
                             struct sw_model_config *out) {
    SW_TRY(derive_llama(family, root, origin, out));
    return json_object_get(root, "sliding_window") == NULL ? SW_OK : read_window(root, origin, &out->window);
}

static const char full_attention[] = "full_attention", sliding_attention[] = "sliding_attention";

static void set_full(struct sw_model_config *config, int64_t layer) {
    config->full_layers[layer / 64] |= UINT64_C(1) << (layer % 64);
}

/* Reads from the list of layer types which layers attend to all tokens. */
static sw_status read_layer_types(const json_t *types, const char *origin, struct sw_model_config *out) {
    if ((int64_t)json_array_size(types) != out->layers)
        return sw_fail(SW_ERR_ARG, "%s: 'layer_types' has %zu entries for %lld layers; it must have one for each",
                       origin, json_array_size(types), (long long)out->layers);
    for (int64_t i = 0; i < out->layers; i++) {
        const json_t *type = json_array_get(types, (size_t)i);
        const char *text = json_is_string(type) ? json_string_value(type) : "";
        char shown[SW_SHOWN_CHARS];
        if (strcmp(text, full_attention) == 0)
            set_full(out, i);
        else if (strcmp(text, sliding_attention) != 0)
            return sw_fail(SW_ERR_UNSUPPORTED, "%s: 'layer_types' has %s for layer %lld; supported: \"%s\" and \"%s\"",
                           origin, sw_config_show(type, shown), (long long)i, full_attention, sliding_attention);
    }
    return SW_OK;
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
        set_full(out, i);
    return SW_OK;
}

/* Returns how many of the first layers attend to all tokens. */
static int64_t full_in_front(const struct sw_model_config *config) {
    int64_t count = 0;
    while (count < config->layers && sw_config_in_full_layers(config, count))
        count++;
    return count;
}

static sw_status derive_qwen(const struct sw_family *family, const json_t *root, const char *origin,
                             struct sw_model_config *out) {
    const json_t *use = sw_config_field_of(root, "use_sliding_window"),
                 *types = sw_config_field_of(root, "layer_types");
    char shown[SW_SHOWN_CHARS];
    SW_TRY(derive_llama(family, root, origin, out));
    SW_TRY(read_window(root, origin, &out->window));
    if (use != NULL && !json_is_boolean(use))
        return sw_fail(SW_ERR_ARG, "%s: 'use_sliding_window' is %s; it must be true or false", origin,
                       sw_config_show(use, shown));
    SW_TRY(types != NULL ? read_layer_types(types, origin, out) : read_full_layers(root, origin, out));
    const bool used = json_is_true(use) && out->window > 0, slides = full_in_front(out) < out->layers;
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
static int write_llama(json_t *root, const struct sw_model_config *config) {
    return json_object_set_new(root, "bos_token_id", json_null()) ||
           json_object_set_new(root, "eos_token_id", json_null()) || config_write_rope(root, config);
}

static json_t *window_json(const struct sw_model_config *config) {
    return config->window == 0 ? json_null() : json_integer(config->window);
}

static int write_mistral(json_t *root, const struct sw_model_config *config) {
    return write_llama(root, config) || json_object_set_new(root, "sliding_window", window_json(config));
}

/* Writes null for the token of padding: transformers' default, 32,000, must be in the vocabulary. */
static int write_phi3(json_t *root, const struct sw_model_config *config) {
    return write_mistral(root, config) || json_object_set_new(root, "pad_token_id", json_null());
}

/* Writes null for the token of padding, as for Phi-3. */
static int write_olmoe(json_t *root, const struct sw_model_config *config) {
    return write_llama(root, config) || json_object_set_new(root, "pad_token_id", json_null());
}

/* Writes the list of layers. Versions of transformers that do not know it use max_window_layers. */
static int write_layer_types(json_t *root, const struct sw_model_config *config) {
    json_t *types = config->window == 0 ? NULL : json_array();
    if (config->window == 0)
        return 0;
    for (int64_t i = 0; i < config->layers; i++) {
        const char *type = sw_config_in_full_layers(config, i) ? full_attention : sliding_attention;
        if (json_array_append_new(types, json_string(type)) != 0) {
            json_decref(types);
            return -1;
        }
    }
    return json_object_set_new(root, "layer_types", types);
}

static int write_qwen(json_t *root, const struct sw_model_config *config) {
    const int64_t in_front = config->window == 0 ? config->layers : full_in_front(config);
    return write_llama(root, config) || json_object_set_new(root, "sliding_window", window_json(config)) ||
           json_object_set_new(root, "use_sliding_window", json_boolean(config->window != 0)) ||
           json_object_set_new(root, "max_window_layers", json_integer(in_front)) || write_layer_types(root, config);
}

#define WHEN(member) .when = offsetof(struct sw_model_config, member)
#define SHARED_NAMES                                                                                                   \
    .token_table = "model.embed_tokens.weight", .final_norm_scale = "model.norm.weight",                               \
    .output_table = "lm_head.weight", .block = "model.layers."
static const struct sw_tensor_names names = {
    SHARED_NAMES,
    .piece =
        {
            [NORM1_SCALE] = {{.name = "input_layernorm.weight"}},
            [QKV_WEIGHT] = {{.name = "self_attn.q_proj.weight"},
                            {.name = "self_attn.k_proj.weight"},
                            {.name = "self_attn.v_proj.weight"}},
            [QKV_BIAS] = {{.name = "self_attn.q_proj.bias", WHEN(qkv_bias)},
                          {.name = "self_attn.k_proj.bias", WHEN(qkv_bias)},
                          {.name = "self_attn.v_proj.bias", WHEN(qkv_bias)}},
            [Q_NORM] = {{.name = "self_attn.q_norm.weight", WHEN(qk_norm)}},
            [K_NORM] = {{.name = "self_attn.k_norm.weight", WHEN(qk_norm)}},
            [PROJECTION_WEIGHT] = {{.name = "self_attn.o_proj.weight"}},
            [PROJECTION_BIAS] = {{.name = "self_attn.o_proj.bias", WHEN(projection_bias)}},
            [NORM2_SCALE] = {{.name = "post_attention_layernorm.weight"}},
            [UP_WEIGHT] = {{.name = "mlp.gate_proj.weight"}, {.name = "mlp.up_proj.weight"}},
            [UP_BIAS] = {{.name = "mlp.gate_proj.bias", WHEN(mlp_bias)}, {.name = "mlp.up_proj.bias", WHEN(mlp_bias)}},
            [DOWN_WEIGHT] = {{.name = "mlp.down_proj.weight"}},
            [DOWN_BIAS] = {{.name = "mlp.down_proj.bias", WHEN(mlp_bias)}},
        },
};

#define EXPERT_BLOCK_PIECES                                                                                            \
    [NORM1_SCALE] = {{.name = "input_layernorm.weight"}},                                                              \
    [QKV_WEIGHT] = {{.name = "self_attn.q_proj.weight"},                                                               \
                    {.name = "self_attn.k_proj.weight"},                                                               \
                    {.name = "self_attn.v_proj.weight"}},                                                              \
    [PROJECTION_WEIGHT] = {{.name = "self_attn.o_proj.weight"}},                                                       \
    [NORM2_SCALE] = {{.name = "post_attention_layernorm.weight"}}
static const struct sw_tensor_names mixtral_names = {
    SHARED_NAMES,
    .expert = "block_sparse_moe.experts.",
    .expert_matrix = {"w1.weight", "w3.weight", "w2.weight"},
    .piece = {EXPERT_BLOCK_PIECES, [ROUTER] = {{.name = "block_sparse_moe.gate.weight"}}},
};

static const struct sw_tensor_names qwen3_moe_names = {
    SHARED_NAMES,
    .expert = "mlp.experts.",
    .expert_matrix = {"gate_proj.weight", "up_proj.weight", "down_proj.weight"},
    .piece =
        {
            EXPERT_BLOCK_PIECES,
            [QKV_BIAS] = {{.name = "self_attn.q_proj.bias", WHEN(qkv_bias)},
                          {.name = "self_attn.k_proj.bias", WHEN(qkv_bias)},
                          {.name = "self_attn.v_proj.bias", WHEN(qkv_bias)}},
            [Q_NORM] = {{.name = "self_attn.q_norm.weight", WHEN(qk_norm)}},
            [K_NORM] = {{.name = "self_attn.k_norm.weight", WHEN(qk_norm)}},
            [PROJECTION_BIAS] = {{.name = "self_attn.o_proj.bias", WHEN(projection_bias)}},
            [ROUTER] = {{.name = "mlp.gate.weight"}},
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

#define SHARED_FORM                                                                                                    \
    .init_std = 0.02, .activation = SW_SILU, .norm = SW_NORM_RMS, .positions = SW_POSITIONS_ROTARY, .gated = true,     \
    .out_first = true
#define SHARED_DEFAULTS .norm_epsilon = 1e-6, SHARED_FORM
#define SHARED_PARTS .activation_field = "hidden_act", .activations = activations, .harmless = harmless, .names = &names

const struct sw_family sw_llama_family = {
    .name = "llama",
    .title = "Llama",
    .architecture = "LlamaForCausalLM",
    .defaults = {.family = "llama", SHARED_DEFAULTS},
    .fields = llama_fields,
    .fixed = llama_fixed,
    .special = llama_special,
    .derive = derive_llama,
    .write = write_llama,
    SHARED_PARTS,
};

const struct sw_family sw_mistral_family = {
    .name = "mistral",
    .title = "Mistral",
    .architecture = "MistralForCausalLM",
    .defaults = {.family = "mistral", SHARED_DEFAULTS},
    .absent_kv_heads = MISTRAL_KV_HEADS,
    .fields = shared_fields,
    .fixed = fixed,
    .special = mistral_special,
    .derive = derive_mistral,
    .write = write_mistral,
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
    .activations = activations,
    .fixed = phi3_fixed,
    .special = mistral_special,
    .harmless = phi3_harmless,
    .derive = derive_phi3,
    .write = write_phi3,
    .names = &phi3_names,
};

/* Mixtures of experts. */

const struct sw_family sw_mixtral_family = {
    .name = "mixtral",
    .title = "Mixtral",
    .architecture = "MixtralForCausalLM",
    .defaults = {.family = "mixtral",
                 SHARED_FORM,
                 .norm_epsilon = 1e-5,
                 .experts = 8,
                 .chosen_experts = 2,
                 .normalises_chosen = true},
    .absent_kv_heads = MISTRAL_KV_HEADS,
    .absent_theta = MIXTRAL_THETA,
    .fields = mixtral_fields,
    .activation_field = "hidden_act",
    .activations = activations,
    .fixed = mixtral_fixed,
    .special = mistral_special,
    .harmless = experts_harmless,
    .derive = derive_mixtral,
    .write = write_mistral,
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
                 .expert_ffn = 768},
    .absent_kv_heads = QWEN3_MOE_KV_HEADS,
    .fields = qwen3_moe_fields,
    .activation_field = "hidden_act",
    .activations = activations,
    .fixed = qwen3_moe_fixed,
    .special = llama_special,
    .harmless = qwen3_moe_harmless,
    .derive = derive_experts,
    .write = write_llama,
    .names = &qwen3_moe_names,
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
                 .chosen_experts = 8},
    .fields = olmoe_fields,
    .activation_field = "hidden_act",
    .activations = activations,
    .fixed = olmoe_fixed,
    .special = llama_special,
    .harmless = experts_harmless,
    .derive = derive_experts,
    .write = write_olmoe,
    .names = &qwen3_moe_names,
};

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

static const struct sw_family *const families[] = {&sw_gpt2_family,    &sw_llama_family,     &sw_mistral_family,
                                                   &sw_qwen2_family,   &sw_qwen3_family,     &sw_phi3_family,
                                                   &sw_mixtral_family, &sw_qwen3_moe_family, &sw_olmoe_family};

const struct sw_family *sw_family_find(const char *name) {
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++)
        if (strcmp(families[i]->name, name) == 0)
            return families[i];
    return NULL;
}

const char *sw_family_names(void) {
    return "gpt2, llama, mistral, qwen2, qwen3, phi3, mixtral, qwen3_moe, olmoe";
}

const char *const sw_dropout_fields[] = {"attention_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop", NULL};

/* Fields that conversion scripts, quantizers and web runtimes leave in the file. */
const char *const sw_passed_over_fields[] = {
    "is_llama_config", "max_sequence_length", "transformers.js_config", "unsloth_fixed", "unsloth_version", NULL,
};

const char *const sw_harmless_fields[] = {
    "_name_or_path",
    "transformers_version",
    "torch_dtype",
    "dtype",
    "use_cache",
    "gradient_checkpointing",
    "task_specific_params",
    "finetuning_task",
    "problem_type",
    "id2label",
    "label2id",
    "num_labels",
    "_num_labels",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "sep_token_id",
    "decoder_start_token_id",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "suppress_tokens",
    "begin_suppress_tokens",
    "bad_words_ids",
    "tokenizer_class",
    "prefix",
    "is_decoder",
    "chunk_size_feed_forward",
    "torchscript",
    "use_bfloat16",
    "tf_legacy_loss",
    "return_dict",
    "return_dict_in_generate",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "max_length",
    "min_length",
    "do_sample",
    "early_stopping",
    "num_beams",
    "num_beam_groups",
    "diversity_penalty",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
    "repetition_penalty",
    "length_penalty",
    "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
    "num_return_sequences",
    "remove_invalid_values",
    "exponential_decay_length_penalty",
    "attn_implementation",
    "_attn_implementation",
    "_attn_implementation_autoset",
    NULL,
};

int sw_block_pieces(const struct sw_model_config *config, enum sw_block_tensor tensor) {
    const struct sw_family *family = sw_family_find(config->family);
    assert(family != NULL);
    const struct sw_tensor_piece *piece = family->names->piece[tensor];
    int count = 0;
    if (tensor == EXPERTS)
        return EXPERT_MATRICES * (int)config->experts;
    while (count < SW_MOST_PIECES && piece[count].name != NULL &&
           (piece[count].when == 0 || *(const bool *)((const char *)config + piece[count].when)))
        count++;
    return count;
}

void sw_block_piece_name(const struct sw_model_config *config, int64_t layer, enum sw_block_tensor tensor, int piece,
                         char *out, size_t out_bytes) {
    const struct sw_tensor_names *all = sw_family_find(config->family)->names;
    if (tensor == EXPERTS)
        snprintf(out, out_bytes, "%s%lld.%s%d.%s", all->block, (long long)layer, all->expert, piece / EXPERT_MATRICES,
                 all->expert_matrix[piece % EXPERT_MATRICES]);
    else
        snprintf(out, out_bytes, "%s%lld.%s", all->block, (long long)layer, all->piece[tensor][piece].name);
}
