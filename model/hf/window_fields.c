#include "model/hf/family_parts.h"

#include <string.h>

/* Reads and writes the windows of attention in config.json. */

static const int64_t DEFAULT_WINDOW = 4096;
static const char full_attention[] = "full_attention", sliding_attention[] = "sliding_attention";

sw_status sw_family_read_window(const json_t *root, const char *origin, int64_t *out) {
    const json_t *value = json_object_get(root, "sliding_window");
    char shown[SW_SHOWN_CHARS];
    *out = value == NULL ? DEFAULT_WINDOW : json_integer_value(value);
    if (value == NULL || json_is_null(value) || (json_is_integer(value) && *out >= 1))
        return SW_OK;
    return sw_fail(SW_ERR_ARG, "%s: 'sliding_window' is %s; it must be null or a whole number from 1", origin,
                   sw_config_show(value, shown));
}

void sw_family_set_full(struct sw_model_config *config, int64_t layer) {
    config->full_layers[layer / 64] |= UINT64_C(1) << (layer % 64);
}

sw_status sw_family_read_layer_types(const json_t *types, const char *origin, struct sw_model_config *out) {
    if ((int64_t)json_array_size(types) != out->layers)
        return sw_fail(SW_ERR_ARG, "%s: 'layer_types' has %zu entries for %lld layers; it must have one for each",
                       origin, json_array_size(types), (long long)out->layers);
    for (int64_t i = 0; i < out->layers; i++) {
        const json_t *type = json_array_get(types, (size_t)i);
        const char *text = json_is_string(type) ? json_string_value(type) : "";
        char shown[SW_SHOWN_CHARS];
        if (strcmp(text, full_attention) == 0)
            sw_family_set_full(out, i);
        else if (strcmp(text, sliding_attention) != 0)
            return sw_fail(SW_ERR_UNSUPPORTED, "%s: 'layer_types' has %s for layer %lld; supported: \"%s\" and \"%s\"",
                           origin, sw_config_show(type, shown), (long long)i, full_attention, sliding_attention);
    }
    return SW_OK;
}

int64_t sw_family_full_in_front(const struct sw_model_config *config) {
    int64_t count = 0;
    while (count < config->layers && sw_config_in_full_layers(config, count))
        count++;
    return count;
}

json_t *sw_family_window_json(const struct sw_model_config *config) {
    return config->window == 0 ? json_null() : json_integer(config->window);
}

int sw_family_write_layer_types(json_t *root, const struct sw_model_config *config) {
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
