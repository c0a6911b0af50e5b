#include "model/hf/family.h"

#include "core/json.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

enum { LEAST_DIGITS = 6, MOST_DIGITS = 17 };

static bool is_exact(double value, int digits) {
    char text[32];
    snprintf(text, sizeof text, "%.*g", digits, value);
    return strtod(text, NULL) == value;
}

/* Returns the fewest digits, at least `digits`, that give all numbers back, so that 1e-05 is written without its
 * rounding error. */
static int exact_digits(json_t *value, int digits) {
    const char *name = NULL;
    json_t *inner = NULL;
    if (json_is_real(value)) {
        while (digits < MOST_DIGITS && !is_exact(json_real_value(value), digits))
            digits++;
    } else if (json_is_object(value)) {
        json_object_foreach(value, name, inner) digits = exact_digits(inner, digits);
    }
    for (size_t i = 0; i < json_array_size(value); i++)
        digits = exact_digits(json_array_get(value, i), digits);
    return digits;
}

char *sw_config_dump(json_t *root) {
    return sw_json_text(root, JSON_INDENT(2) | JSON_REAL_PRECISION(exact_digits(root, LEAST_DIGITS)));
}

static const char *activation_text(const struct sw_family *family, sw_activation activation) {
    const struct sw_config_activation *known = family->activations;
    while (known->name != NULL && known->activation != activation)
        known++;
    return known->name;
}

sw_status sw_config_to_json(const struct sw_model_config *config, char **out) {
    const struct sw_family *family = sw_family_find(config->family);
    assert(family != NULL);
    json_t *root = json_pack("{s:s, s:[s], s:s}", "model_type", family->name, "architectures", family->architecture,
                             family->activation_field, activation_text(family, config->activation));
    const bool failed =
        root == NULL || sw_config_write_fields(root, family->fields, config) != 0 || family->write(root, config) != 0;
    *out = failed ? NULL : sw_config_dump(root);
    json_decref(root);
    return *out != NULL ? SW_OK : sw_fail(SW_ERR_NOMEM, "no memory to write a config.json");
}
