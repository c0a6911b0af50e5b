/* Reads, shows and writes fields of config.json by a table. */
#include "core/json.h"
#include "model/hf/family.h"

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

/* Reads and writes rotary positions in config.json. */

#define INTO(member) .offset = offsetof(struct sw_model_config, rope.member)
#define REAL(least, most) .kind = SW_FIELD_REAL, .real_min = (least), .real_max = (most)
#define FACTOR                                                                                                         \
    { .name = "factor", INTO(factor), REAL(1, 1e6), .required = true }
#define ORIGINAL_POSITIONS                                                                                             \
    .name = "original_max_position_embeddings", INTO(original_positions), .kind = SW_FIELD_INT, .int_min = 1,          \
    .int_max = SW_CONFIG_MAX_POSITIONS

static const struct sw_config_field no_fields[] = {{0}}, linear_fields[] = {FACTOR, {0}};
static const struct sw_config_field llama3_fields[] = {
    FACTOR,
    {.name = "low_freq_factor", INTO(low_freq_factor), REAL(1e-6, 1e6), .required = true},
    {.name = "high_freq_factor", INTO(high_freq_factor), REAL(1e-6, 1e6), .required = true},
    {ORIGINAL_POSITIONS, .required = true},
    {0},
};
static const struct sw_config_field yarn_fields[] = {
    FACTOR,
    {ORIGINAL_POSITIONS},
    {.name = "attention_factor", INTO(attention_factor), REAL(1e-6, 1e6)},
    {.name = "beta_fast", INTO(beta_fast), REAL(1e-6, 1e6)},
    {.name = "beta_slow", INTO(beta_slow), REAL(1e-6, 1e6)},
    {.name = "mscale", INTO(mscale), REAL(0, 1e6)},
    {.name = "mscale_all_dim", INTO(mscale_all_dim), REAL(0, 1e6)},
    {.name = "truncate", INTO(truncate), .kind = SW_FIELD_BOOL},
    {0},
};
static const struct sw_config_field theta_field[] = {{.name = "rope_theta", INTO(theta), REAL(1, 1e15)}, {0}};

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

sw_status sw_config_read_rope(const json_t *root, const char *origin, struct sw_model_config *out) {
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
        rope->theta = DEFAULT_THETA;
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
int sw_config_write_rope(json_t *root, const struct sw_model_config *config) {
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
