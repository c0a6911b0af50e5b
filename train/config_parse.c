#include "train/config_gpt2.h"

#include <jansson.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum { FIELD_INT, FIELD_REAL, FIELD_BOOL } field_kind;

/* A field whose value goes into the configuration as it is. */
struct used_field {
    const char *name;
    field_kind kind;
    size_t offset;
    bool required;
    int64_t int_max; /* from 1 */
    double real_min, real_max;
};

#define INTO(member) .offset = offsetof(struct sw_model_config, member)
static const struct used_field used_fields[] = {
    {.name = "vocab_size", .kind = FIELD_INT, INTO(vocab), .required = true, .int_max = SW_CONFIG_MAX_VOCAB},
    {.name = "n_embd", .kind = FIELD_INT, INTO(hidden), .required = true, .int_max = SW_CONFIG_MAX_WIDTH},
    {.name = "n_layer", .kind = FIELD_INT, INTO(layers), .required = true, .int_max = SW_CONFIG_MAX_LAYERS},
    {.name = "n_head", .kind = FIELD_INT, INTO(heads), .required = true, .int_max = SW_CONFIG_MAX_WIDTH},
    {.name = "n_ctx", .kind = FIELD_INT, INTO(max_positions), .int_max = SW_CONFIG_MAX_POSITIONS},
    {.name = "n_positions", .kind = FIELD_INT, INTO(max_positions), .int_max = SW_CONFIG_MAX_POSITIONS},
    {.name = "n_inner", .kind = FIELD_INT, INTO(ffn), .int_max = SW_GPT2_FFN_FACTOR * SW_CONFIG_MAX_WIDTH},
    {.name = "layer_norm_epsilon", .kind = FIELD_REAL, INTO(norm_epsilon), .real_min = 1e-12, .real_max = 1},
    {.name = "initializer_range", .kind = FIELD_REAL, INTO(init_std), .real_max = 1},
    {.name = "tie_word_embeddings", .kind = FIELD_BOOL, INTO(tied_embeddings)},
};

/* Fields that need more than a copy; each has its own function below. */
static const char *const special_fields[] = {"model_type", "architectures", "activation_function"};

/* Fields that change what is computed, in ways that are not supported. */
struct fixed_field {
    const char *name;
    enum { ONLY_TRUE, ONLY_FALSE, ONLY_EMPTY } allowed;
};
static const struct fixed_field fixed_fields[] = {
    {"scale_attn_weights", ONLY_TRUE},           {"scale_attn_by_inverse_layer_idx", ONLY_FALSE},
    {"reorder_and_upcast_attn", ONLY_FALSE},     {"add_cross_attention", ONLY_FALSE},
    {"is_encoder_decoder", ONLY_FALSE},          {"tie_encoder_decoder", ONLY_FALSE},
    {"cross_attention_hidden_size", ONLY_EMPTY}, {"pruned_heads", ONLY_EMPTY},
    {"quantization_config", ONLY_EMPTY},         {"auto_map", ONLY_EMPTY},
};

/* Fields that do not change what is trained. Dropout is among them because training here has none. */
static const char *const harmless_fields[] = {
    "_name_or_path",
    "transformers_version",
    "torch_dtype",
    "dtype",
    "use_cache",
    "gradient_checkpointing",
    "resid_pdrop",
    "embd_pdrop",
    "attn_pdrop",
    "summary_type",
    "summary_use_proj",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "n_special",
    "predict_special_tokens",
    "output_past",
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
};

#define COUNT(table) (sizeof(table) / sizeof(table)[0])

/* null means the default, as it does in transformers. */
static const json_t *field_of(const json_t *root, const char *name) {
    const json_t *value = json_object_get(root, name);
    return json_is_null(value) ? NULL : value;
}

enum { SHOWN_CHARS = 48 };

/* Writes a value as it stands in the file, cut where it is long, and returns buffer. */
static const char *show_value(const json_t *value, char buffer[SHOWN_CHARS]) {
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(9));
    snprintf(buffer, SHOWN_CHARS, "%.40s%s", text != NULL ? text : "?", text != NULL && strlen(text) > 40 ? "..." : "");
    free(text);
    return buffer;
}

static sw_status check_family(const json_t *root, const char *origin) {
    const json_t *type = field_of(root, "model_type");
    if (type == NULL)
        return sw_fail(SW_ERR_ARG, "%s has no 'model_type'; supported: gpt2", origin);
    char shown[SHOWN_CHARS];
    if (!json_is_string(type))
        return sw_fail(SW_ERR_ARG, "%s: 'model_type' is %s; it must be a name, supported: gpt2", origin,
                       show_value(type, shown));
    if (strcmp(json_string_value(type), "gpt2") != 0)
        return sw_fail(SW_ERR_UNSUPPORTED,
                       "%s: the architecture '%.40s' is not supported by this version; supported: gpt2", origin,
                       json_string_value(type));
    const json_t *architectures = field_of(root, "architectures");
    if (architectures == NULL)
        return SW_OK;
    if (json_array_size(architectures) != 1 || !json_is_string(json_array_get(architectures, 0)) ||
        strcmp(json_string_value(json_array_get(architectures, 0)), SW_GPT2_ARCHITECTURE) != 0)
        return sw_fail(SW_ERR_UNSUPPORTED, "%s: 'architectures' is %s; supported: [\"%s\"]", origin,
                       show_value(architectures, shown), SW_GPT2_ARCHITECTURE);
    return SW_OK;
}

static bool name_in(const char *name, const char *const *names, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (strcmp(name, names[i]) == 0)
            return true;
    }
    return false;
}

static bool is_known(const char *name) {
    for (size_t i = 0; i < COUNT(used_fields); i++) {
        if (strcmp(name, used_fields[i].name) == 0)
            return true;
    }
    for (size_t i = 0; i < COUNT(fixed_fields); i++) {
        if (strcmp(name, fixed_fields[i].name) == 0)
            return true;
    }
    return name_in(name, special_fields, COUNT(special_fields)) ||
           name_in(name, harmless_fields, COUNT(harmless_fields));
}

static sw_status refuse_unknown(json_t *root, const char *origin) {
    const char *name = NULL;
    json_t *value = NULL;
    json_object_foreach(root, name, value) {
        if (!is_known(name))
            return sw_fail(SW_ERR_UNSUPPORTED,
                           "%s: the field '%.60s' is not known for gpt2; remove it if it does not change the model",
                           origin, name);
    }
    return SW_OK;
}

static sw_status refuse_fixed(const json_t *root, const char *origin) {
    for (size_t i = 0; i < COUNT(fixed_fields); i++) {
        const struct fixed_field *field = &fixed_fields[i];
        const json_t *value = field_of(root, field->name);
        if (value == NULL)
            continue;
        const bool empty = (json_is_object(value) && json_object_size(value) == 0) ||
                           (json_is_array(value) && json_array_size(value) == 0);
        const bool allowed = field->allowed == ONLY_TRUE    ? json_is_true(value)
                             : field->allowed == ONLY_FALSE ? json_is_false(value)
                                                            : empty;
        const char *wanted = field->allowed == ONLY_TRUE    ? "true"
                             : field->allowed == ONLY_FALSE ? "false"
                                                            : "absent or empty";
        char shown[SHOWN_CHARS];
        if (!allowed)
            return sw_fail(SW_ERR_UNSUPPORTED, "%s: '%s' is %s, which is not supported; it must be %s", origin,
                           field->name, show_value(value, shown), wanted);
    }
    return SW_OK;
}

static sw_status read_field(const struct used_field *field, const json_t *value, const char *origin,
                            struct sw_model_config *out) {
    void *to = (char *)out + field->offset;
    char shown[SHOWN_CHARS];
    switch (field->kind) {
    case FIELD_INT: {
        const json_int_t number = json_integer_value(value);
        if (!json_is_integer(value) || number < 1 || number > field->int_max)
            return sw_fail(SW_ERR_ARG, "%s: '%s' is %s; it must be a whole number from 1 to %lld", origin, field->name,
                           show_value(value, shown), (long long)field->int_max);
        *(int64_t *)to = number;
        return SW_OK;
    }
    case FIELD_REAL: {
        const double number = json_number_value(value);
        if (!json_is_number(value) || !(number >= field->real_min && number <= field->real_max))
            return sw_fail(SW_ERR_ARG, "%s: '%s' is %s; it must be a number from %g to %g", origin, field->name,
                           show_value(value, shown), field->real_min, field->real_max);
        *(double *)to = number;
        return SW_OK;
    }
    case FIELD_BOOL:
        if (!json_is_boolean(value))
            return sw_fail(SW_ERR_ARG, "%s: '%s' is %s; it must be true or false", origin, field->name,
                           show_value(value, shown));
        *(bool *)to = json_is_true(value);
        return SW_OK;
    }
    return sw_fail(SW_ERR_INTERNAL, "%s: '%s' has no known kind", origin, field->name);
}

static sw_status read_fields(const json_t *root, const char *origin, struct sw_model_config *out) {
    for (size_t i = 0; i < COUNT(used_fields); i++) {
        const json_t *value = field_of(root, used_fields[i].name);
        if (value != NULL)
            SW_TRY(read_field(&used_fields[i], value, origin, out));
        else if (used_fields[i].required)
            return sw_fail(SW_ERR_ARG, "%s has no '%s'; a GPT-2 config.json must give it", origin, used_fields[i].name);
    }
    return SW_OK;
}

static sw_status read_activation(const json_t *root, const char *origin, struct sw_model_config *out) {
    const json_t *value = field_of(root, "activation_function");
    if (value == NULL)
        return SW_OK;
    for (size_t i = 0; json_is_string(value) && i < SW_GPT2_ACTIVATIONS; i++) {
        if (strcmp(json_string_value(value), sw_gpt2_activations[i].name) == 0) {
            out->activation = sw_gpt2_activations[i].activation;
            return SW_OK;
        }
    }
    char shown[SHOWN_CHARS];
    return sw_fail(SW_ERR_UNSUPPORTED, "%s: 'activation_function' is %s; supported: gelu_new, gelu, relu", origin,
                   show_value(value, shown));
}

/* What follows from several fields at once. */
static sw_status derive(const json_t *root, const char *origin, struct sw_model_config *out) {
    const json_t *old_positions = field_of(root, "n_ctx");
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
        out->ffn = SW_GPT2_FFN_FACTOR * out->hidden;
    return SW_OK;
}

static sw_status parse_root(json_t *root, const char *origin, struct sw_model_config *out) {
    if (!json_is_object(root))
        return sw_fail(SW_ERR_ARG, "%s is not a model's configuration: it must be a JSON object", origin);
    SW_TRY(check_family(root, origin));
    SW_TRY(refuse_unknown(root, origin));
    SW_TRY(refuse_fixed(root, origin));
    struct sw_model_config config = {
        .family = "gpt2",
        .norm_epsilon = 1e-5,
        .init_std = 0.02,
        .activation = SW_GELU_TANH,
        .tied_embeddings = true,
    };
    SW_TRY(read_fields(root, origin, &config));
    SW_TRY(read_activation(root, origin, &config));
    SW_TRY(derive(root, origin, &config));
    *out = config;
    return SW_OK;
}

sw_status sw_config_parse(const char *text, const char *origin, struct sw_model_config *out) {
    json_error_t error;
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL)
        return sw_fail(SW_ERR_ARG, "%s is not valid JSON: line %d: %s", origin, error.line, error.text);
    const sw_status status = parse_root(root, origin, out);
    json_decref(root);
    return status;
}
