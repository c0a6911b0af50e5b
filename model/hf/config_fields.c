#include "model/hf/family.h"

#include "core/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
