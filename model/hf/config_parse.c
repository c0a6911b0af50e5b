/* Parses config.json by the tables of its family. */
#include "core/files/files.h"
#include "core/json.h"
#include "core/log.h"
#include "model/hf/family.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Refuses what no family can have: quantized weights, and models of more than text, whose language model is nested. */
static sw_status refuse_other_kinds(const json_t *root, const char *origin) {
    static const char *const quantized[] = {"quantization_config", "compression_config", "quantization"};
    const json_t *text = sw_config_field_of(root, "text_config"), *type = sw_config_field_of(root, "model_type");
    for (size_t i = 0; i < sizeof quantized / sizeof quantized[0]; i++) {
        const json_t *value = sw_config_field_of(root, quantized[i]);
        const char *method = json_string_value(json_object_get(value, "quant_method"));
        if (json_is_object(value) && json_object_size(value) > 0)
            return sw_fail(SW_ERR_UNSUPPORTED,
                           "%s says by '%s' that the weights are quantized (%.40s), and training needs them in BF16, "
                           "F16 or F32: give the model that they were made from, or write it so with transformers' "
                           "dequantize() and save_pretrained()",
                           origin, quantized[i], method != NULL ? method : "no quant_method is named");
    }
    if (text == NULL)
        return SW_OK;
    const char *outer = json_string_value(type), *inner = json_string_value(json_object_get(text, "model_type"));
    return sw_fail(SW_ERR_UNSUPPORTED,
                   "%s describes a model of more than text ('%.40s'), whose language model ('%.40s') is in "
                   "'text_config': save the language model alone with save_pretrained() and give the folder that this "
                   "makes; supported: %s",
                   origin, outer != NULL ? outer : "", inner != NULL ? inner : "", sw_family_names());
}

static sw_status find_family(const json_t *root, const char *origin, const struct sw_family **out) {
    const json_t *type = sw_config_field_of(root, "model_type");
    char shown[SW_SHOWN_CHARS];
    if (type == NULL)
        return sw_fail(SW_ERR_ARG, "%s has no 'model_type'; supported: %s", origin, sw_family_names());
    if (!json_is_string(type))
        return sw_fail(SW_ERR_ARG, "%s: 'model_type' is %s; it must be a name, supported: %s", origin,
                       sw_config_show(type, shown), sw_family_names());
    *out = sw_family_find(json_string_value(type));
    if (*out == NULL)
        return sw_fail(SW_ERR_UNSUPPORTED,
                       "%s: the architecture '%.40s' is not supported by this version; supported: %s", origin,
                       json_string_value(type), sw_family_names());
    const json_t *architectures = sw_config_field_of(root, "architectures");
    if (architectures == NULL)
        return SW_OK;
    if (json_array_size(architectures) != 1 || !json_is_string(json_array_get(architectures, 0)) ||
        strcmp(json_string_value(json_array_get(architectures, 0)), (*out)->architecture) != 0)
        return sw_fail(SW_ERR_UNSUPPORTED, "%s: 'architectures' is %s; supported: [\"%s\"]", origin,
                       sw_config_show(architectures, shown), (*out)->architecture);
    return SW_OK;
}

static bool name_in(const char *name, const char *const *names) {
    for (; *names != NULL; names++)
        if (strcmp(name, *names) == 0)
            return true;
    return false;
}

static bool is_known(const struct sw_family *family, const char *name) {
    static const char *const read_here[] = {"model_type", "architectures", NULL};
    for (const struct sw_config_field *field = family->fields; field->name != NULL; field++)
        if (strcmp(name, field->name) == 0)
            return true;
    for (const struct sw_config_fixed *field = family->fixed; field->name != NULL; field++)
        if (strcmp(name, field->name) == 0)
            return true;
    return strcmp(name, family->activation_field) == 0 || name_in(name, read_here) || name_in(name, family->special) ||
           name_in(name, family->harmless) || name_in(name, sw_harmless_fields) ||
           name_in(name, sw_passed_over_fields) || name_in(name, sw_dropout_fields);
}

/* Logs fields that have no effect here, because their user may expect one. */
static void say_passed_over(json_t *root, const char *origin) {
    const char *name = NULL;
    json_t *value = NULL;
    char names[256] = "";
    size_t used = 0;
    json_object_foreach(root, name, value) {
        const bool dropout = name_in(name, sw_dropout_fields) && json_number_value(value) != 0.0;
        if ((dropout || name_in(name, sw_passed_over_fields)) && used < sizeof names)
            used += (size_t)snprintf(names + used, sizeof names - used, "%s%s%s", used > 0 ? ", " : "", name,
                                     dropout ? " (training has no dropout)" : "");
    }
    if (used > 0)
        sw_log_info("%s: these fields have no effect here: %s", origin, names);
}

static sw_status refuse_unknown(const struct sw_family *family, json_t *root, const char *origin) {
    const char *name = NULL;
    json_t *value = NULL;
    json_object_foreach(root, name, value) {
        if (!json_is_null(value) && !is_known(family, name))
            return sw_fail(SW_ERR_UNSUPPORTED,
                           "%s: the field '%.60s' is not known for %s; remove it if it does not change the model",
                           origin, name, family->name);
    }
    return SW_OK;
}

static bool all_full_attention(const json_t *types) {
    bool full = json_is_array(types);
    for (size_t i = 0; full && i < json_array_size(types); i++) {
        const char *type = json_string_value(json_array_get(types, i));
        full = type != NULL && strcmp(type, "full_attention") == 0;
    }
    return full;
}

static bool is_allowed(const struct sw_config_fixed *field, const json_t *value) {
    switch (field->allowed) {
    case SW_ONLY_TRUE: return json_is_true(value);
    case SW_ONLY_FALSE: return json_is_false(value);
    case SW_ONLY_ONE: return json_number_value(value) == 1.0;
    case SW_ONLY_FULL_ATTENTION: return all_full_attention(value);
    case SW_ONLY_EMPTY: break;
    }
    return (json_is_object(value) && json_object_size(value) == 0) ||
           (json_is_array(value) && json_array_size(value) == 0);
}

static sw_status refuse_fixed(const struct sw_family *family, const json_t *root, const char *origin) {
    static const char *const wanted[] = {
        [SW_ONLY_TRUE] = "true",
        [SW_ONLY_FALSE] = "false",
        [SW_ONLY_EMPTY] = "absent or empty",
        [SW_ONLY_ONE] = "1",
        [SW_ONLY_FULL_ATTENTION] = "\"full_attention\" for each layer",
    };
    for (const struct sw_config_fixed *field = family->fixed; field->name != NULL; field++) {
        const json_t *value = sw_config_field_of(root, field->name);
        if (value == NULL)
            continue;
        char shown[SW_SHOWN_CHARS];
        if (!is_allowed(field, value))
            return sw_fail(SW_ERR_UNSUPPORTED, "%s: '%s' is %s, which is not supported; it must be %s", origin,
                           field->name, sw_config_show(value, shown), wanted[field->allowed]);
    }
    return SW_OK;
}

static sw_status read_activation(const struct sw_family *family, const json_t *root, const char *origin,
                                 struct sw_model_config *out) {
    const json_t *value = sw_config_field_of(root, family->activation_field);
    char shown[SW_SHOWN_CHARS], known[128] = "";
    size_t used = 0;
    if (value == NULL)
        return SW_OK;
    for (const struct sw_config_activation *a = family->activations; a->name != NULL; a++) {
        if (json_is_string(value) && strcmp(json_string_value(value), a->name) == 0) {
            out->activation = a->activation;
            return SW_OK;
        }
        if (used < sizeof known)
            used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", used > 0 ? ", " : "", a->name);
    }
    return sw_fail(SW_ERR_UNSUPPORTED, "%s: '%s' is %s; supported: %s", origin, family->activation_field,
                   sw_config_show(value, shown), known);
}

static sw_status parse_root(json_t *root, const char *origin, struct sw_model_config *out) {
    const struct sw_family *family = NULL;
    if (!json_is_object(root))
        return sw_fail(SW_ERR_ARG, "%s is not a model's configuration: it must be a JSON object", origin);
    SW_TRY(refuse_other_kinds(root, origin));
    SW_TRY(find_family(root, origin, &family));
    SW_TRY(refuse_unknown(family, root, origin));
    SW_TRY(refuse_fixed(family, root, origin));
    struct sw_model_config config = family->defaults;
    SW_TRY(sw_config_read_fields(family->fields, root, origin, family->title, &config));
    SW_TRY(read_activation(family, root, origin, &config));
    SW_TRY(family->derive(family, root, origin, &config));
    if (config.head_dim > SW_ATTENTION_MAX_HEAD_DIM)
        return sw_fail(SW_ERR_UNSUPPORTED, "%s: a head has %lld elements; supported are at most %d", origin,
                       (long long)config.head_dim, SW_ATTENTION_MAX_HEAD_DIM);
    say_passed_over(root, origin);
    *out = config;
    return SW_OK;
}

sw_status sw_config_parse(const char *text, const char *origin, struct sw_model_config *out) {
    json_t *root;
    const struct sw_json_source source = {.text = text, .bytes = strlen(text), .name = origin, .bad = SW_ERR_ARG};
    if (sw_download_fault(text, strlen(text)) != NULL)
        return sw_fail(SW_ERR_ARG, "%s is %s", origin, sw_download_fault(text, strlen(text)));
    SW_TRY(sw_json_decode(source, &root));
    const sw_status status = parse_root(root, origin, out);
    json_decref(root);
    return status;
}
