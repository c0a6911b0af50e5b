#include "model/hf/family_parts.h"

#include <string.h>

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

sw_status sw_config_read_rope(const struct sw_family *family, const json_t *root, const char *origin,
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
