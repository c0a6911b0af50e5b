/* The recipe that repeats a run. */
#include "core/files/files.h"
#include "core/json.h"
#include "job/settings/settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FEWEST_DIGITS = 6, MOST_DIGITS = 17 };

/* Writes a value as JSON, which is YAML too. Numbers get the fewest digits that give the same double. */
static char *value_text(const json_t *value) {
    char *text = NULL;
    if (!json_is_real(value))
        return sw_json_text(value, JSON_ENCODE_ANY);
    for (int digits = FEWEST_DIGITS; digits <= MOST_DIGITS; digits++) {
        free(text);
        if (asprintf(&text, "%.*g", digits, json_real_value(value)) < 0)
            return NULL;
        if (strtod(text, NULL) == json_real_value(value))
            break;
    }
    return text;
}

static void print_pair(FILE *to, const char *key, const json_t *value) {
    char *text = value_text(value);
    for (const char *at = key; *at != '\0'; at++)
        fputc(*at == '_' ? '-' : *at, to);
    fprintf(to, ": %s\n", text != NULL ? text : "~");
    free(text);
}

static bool is_among(const char *key, const char *const *keys) {
    for (; *keys != NULL; keys++)
        if (strcmp(key, *keys) == 0)
            return true;
    return false;
}

/* Returns a new value with the absolute path of a name, where it is a file or a pattern, or of each name of a list. */
static json_t *absolute(const json_t *value) {
    char *path = json_is_string(value) ? sw_path_absolute(json_string_value(value)) : NULL;
    json_t *made = path != NULL ? json_string(path) : json_deep_copy(value);
    for (size_t i = 0; i < json_array_size(made); i++)
        json_array_set_new(made, i, absolute(json_array_get(value, i)));
    free(path);
    return made;
}

/* Everything stands as it was given, "auto" included, but paths become absolute: those of the settings are already,
 * except that text may have been replaced by its tokens. The learning rate is the one of the run, because another
 * version might choose another, and so is the size of tensor groups, because bits depend on it and other measurements
 * might choose another. */
static void print_pairs(FILE *to, json_t *given, const json_t *now, const json_t *defaults) {
    static const char *const resolved[] = {"lr", "model", "nvme", "tensor", NULL}, *const texts[] = {"data", "val",
                                                                                                     NULL};
    const char *key;
    json_t *value;
    json_object_foreach(given, key, value) {
        json_t *kept = is_among(key, texts) ? absolute(value) : json_incref(value);
        const json_t *shown = is_among(key, resolved) ? json_object_get(now, key) : kept;
        if (!json_equal(shown, json_object_get(defaults, key)))
            print_pair(to, key, shown);
        json_decref(kept);
    }
}

sw_status sw_settings_recipe(const struct sw_settings *settings, json_t *given, char **out) {
    struct sw_settings initial = {0};
    json_t *now = NULL, *defaults = NULL;
    size_t bytes;
    FILE *to = NULL;
    sw_status status = sw_options_defaults(&sw_train_command, &initial);
    *out = NULL;
    if (status == SW_OK)
        status = sw_options_to_json(&sw_train_command, &initial, &defaults);
    if (status == SW_OK)
        status = sw_options_to_json(&sw_train_command, settings, &now);
    if (status == SW_OK && (to = open_memstream(out, &bytes)) == NULL)
        status = sw_fail(SW_ERR_NOMEM, "no memory to write a recipe");
    if (status == SW_OK) {
        fputs("# spillway train --recipe THIS_FILE --run NEW_FOLDER repeats the run.\n", to);
        print_pairs(to, given, now, defaults);
        if (!sw_text_stream_end(to, out))
            status = sw_fail(SW_ERR_NOMEM, "no memory to write a recipe");
    }
    json_decref(now);
    json_decref(defaults);
    sw_options_release(&sw_train_command, &initial);
    return status;
}
