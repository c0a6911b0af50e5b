/* Flags as the settings in run.json. */
#include "job/settings/options_internal.h"

#include "core/json.h"

#include <string.h>

enum { KEY_CHARS = 64, NUMBER_CHARS = 40 };

/* Turns "--micro-batch" into "micro_batch". */
static const char *key_of(const struct sw_option *option, char key[KEY_CHARS]) {
    snprintf(key, KEY_CHARS, "%s", option->name + strspn(option->name, "-"));
    for (char *at = key; *at != '\0'; at++)
        *at = *at == '-' ? '_' : *at;
    return key;
}

static bool is_kept(const struct sw_option *option) {
    return sw_option_has_flag(option) && !option->transient;
}

json_t *sw_option_list_to_json(const struct sw_option_list *list) {
    json_t *array = json_array();
    for (int i = 0; i < list->count; i++) {
        if (json_array_append_new(array, json_string(list->items[i])) != 0) {
            json_decref(array);
            return NULL;
        }
    }
    return array;
}

/* Writes steps alone as a number, as versions that knew no times did. */
static json_t *every_to_json(const struct sw_option_every *every) {
    const long long steps = (long long)every->steps, seconds = (long long)every->seconds;
    if (seconds == 0)
        return json_integer(steps);
    return steps == 0 ? json_sprintf("%llds", seconds) : json_sprintf("%lld,%llds", steps, seconds);
}

static json_t *value_to_json(const struct sw_option *option, const void *target) {
    const void *member = (const char *)target + option->offset;
    char choice[SW_OPTION_CHOICE_CHARS];
    if (sw_option_is_auto(option, target))
        return json_string("auto");
    switch (option->kind) {
    case SW_OPTION_FLAG: return json_boolean(*(const bool *)member);
    case SW_OPTION_STRING: {
        const char *text = *(char *const *)member;
        return text != NULL ? json_string(text) : json_null();
    }
    case SW_OPTION_INT:
    case SW_OPTION_SIZE:
    case SW_OPTION_DURATION: return json_integer(*(const int64_t *)member);
    case SW_OPTION_REAL: return json_real(*(const double *)member);
    case SW_OPTION_EVERY: return every_to_json(member);
    case SW_OPTION_CHOICE:
        return sw_option_choice_name(option, *(const int *)member, choice) ? json_string(choice) : NULL;
    case SW_OPTION_LIST:
    case SW_OPTION_MANY: return sw_option_list_to_json(member);
    }
    return NULL;
}

static bool is_common(const struct sw_option *option) {
    return is_kept(option) && !option->own;
}

static sw_status to_json(const struct sw_command_line *line, const void *target,
                         bool (*wanted)(const struct sw_option *), json_t **out) {
    json_t *object = json_object();
    for (const struct sw_option *option = NULL; (option = sw_option_next(line, option)) != NULL;) {
        char key[KEY_CHARS];
        if (!wanted(option))
            continue;
        if (json_object_set_new(object, key_of(option, key), value_to_json(option, target)) != 0) {
            json_decref(object);
            return sw_json_lacked_memory()
                       ? sw_fail(SW_ERR_NOMEM, "no memory to keep the value of %s", option->name)
                       : sw_fail(SW_ERR_ARG, "the value of %s cannot be kept in JSON; it must be UTF-8 text",
                                 option->name);
        }
    }
    *out = object;
    return SW_OK;
}

sw_status sw_options_to_json(const struct sw_command_line *line, const void *target, json_t **out) {
    return to_json(line, target, is_kept, out);
}

sw_status sw_options_common_json(const struct sw_command_line *line, const void *target, json_t **out) {
    return to_json(line, target, is_common, out);
}

/* Returns the text that a user would give the flag, so that one set of checks serves both; NULL for a wrong kind. */
static const char *scalar_text(const struct sw_option *option, const json_t *value, char buffer[NUMBER_CHARS]) {
    if (option->kind == SW_OPTION_REAL && json_is_number(value)) {
        snprintf(buffer, NUMBER_CHARS, "%.17g", json_number_value(value));
        return buffer;
    }
    const bool is_every = option->kind == SW_OPTION_EVERY;
    const bool is_whole = option->kind == SW_OPTION_INT || option->kind == SW_OPTION_SIZE ||
                          option->kind == SW_OPTION_DURATION || is_every;
    if (is_whole && json_is_integer(value)) {
        snprintf(buffer, NUMBER_CHARS, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        return buffer;
    }
    const bool is_word = option->kind == SW_OPTION_STRING || option->kind == SW_OPTION_CHOICE || is_every ||
                         (option->allow_auto && json_is_string(value) && strcmp(json_string_value(value), "auto") == 0);
    return is_word && json_is_string(value) ? json_string_value(value) : NULL;
}

static sw_status list_from_json(const struct sw_option *option, const json_t *value, void *target) {
    sw_option_clear(option, target);
    for (size_t i = 0; i < json_array_size(value); i++) {
        const char *text = json_string_value(json_array_get(value, i));
        if (text == NULL)
            return sw_fail(SW_ERR_ARG, "a value of %s is not a string; restore the file from a copy", option->name);
        SW_TRY(sw_option_set(option, text, target));
    }
    return SW_OK;
}

/* Refuses settings without a value that no command line can leave out: whoever uses them relies on it. */
static sw_status check_required(const struct sw_command_line *line, const char *origin, void *target) {
    for (const struct sw_option *option = NULL; (option = sw_option_next(line, option)) != NULL;)
        if (is_kept(option) && option->required && !sw_option_has_value(option, target))
            return sw_fail(SW_ERR_ARG, "%s gives no value for %s; restore the file from a copy", origin, option->name);
    return SW_OK;
}

static sw_status value_from_json(const struct sw_option *option, const json_t *value, void *target) {
    char buffer[NUMBER_CHARS];
    if (option->kind == SW_OPTION_FLAG && json_is_boolean(value)) {
        *(bool *)sw_option_member(option, target) = json_is_true(value);
        return SW_OK;
    }
    /* null is allowed only for a text without a default: one that has a default always has a value. */
    if (option->kind == SW_OPTION_STRING && json_is_null(value) && !option->required && option->initial == NULL) {
        sw_option_clear(option, target);
        return SW_OK;
    }
    if (sw_option_is_list(option) && json_is_array(value))
        return list_from_json(option, value, target);
    const char *text = scalar_text(option, value, buffer);
    if (text == NULL)
        return sw_fail(SW_ERR_ARG, "the value of %s has the wrong type; restore the file from a copy", option->name);
    return sw_option_set(option, text, target);
}

static const struct sw_option *find_key(const struct sw_command_line *line, const char *key) {
    char own[KEY_CHARS];
    for (const struct sw_option *option = NULL; (option = sw_option_next(line, option)) != NULL;)
        if (is_kept(option) && strcmp(key_of(option, own), key) == 0)
            return option;
    return NULL;
}

sw_status sw_options_from_json(const struct sw_command_line *line, const json_t *object, const char *origin,
                               void *target) {
    if (!json_is_object(object))
        return sw_fail(SW_ERR_ARG, "%s: the settings are not a JSON object; restore the file from a copy", origin);
    /* Iterating does not change the object, but Jansson's iterators want it writable. */
    json_t *iterable = (json_t *)(uintptr_t)object;
    const char *key = NULL;
    json_t *value = NULL;
    json_object_foreach(iterable, key, value) {
        const struct sw_option *option = find_key(line, key);
        if (option == NULL)
            return sw_fail(SW_ERR_ARG, "%s has the option '%.60s', which this version does not know", origin, key);
        const sw_status status = value_from_json(option, value, target);
        if (status != SW_OK)
            return sw_fail_while(status, "reading %s", origin);
    }
    return check_required(line, origin, target);
}
