#include "train/files/json_file.h"

#include "core/json.h"
#include "io/safetensors/safetensors.h"
#include "train/files/nearest.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static sw_status parse(const char *text, const char *name, sw_status bad, sw_json_kind kind, json_t **out) {
    const struct sw_json_source source = {.text = text, .bytes = strlen(text), .name = name, .bad = bad, .kind = kind};
    return sw_json_decode(source, out);
}

sw_status sw_json_parse(const char *text, const char *name, sw_status bad, json_t **out) {
    return parse(text, name, bad, SW_JSON_PLAIN, out);
}

sw_status sw_json_parse_file(const char *text, const char *path, sw_status bad, json_t **out) {
    const char *fault = sw_download_fault(text, strlen(text));
    return fault != NULL ? sw_fail(bad, "%s is %s", path, fault) : parse(text, path, bad, SW_JSON_TEXTS, out);
}

sw_status sw_json_read_file(const char *path, size_t limit_bytes, sw_status bad, json_t **out) {
    char *text;
    SW_TRY(sw_file_read_text(path, limit_bytes, &text));
    const sw_status status = sw_json_parse_file(text, path, bad, out);
    free(text);
    return status;
}

sw_status sw_json_read_own_file(const char *path, size_t limit_bytes, sw_status bad, json_t **out) {
    char *text;
    SW_TRY(sw_file_read_own_text(path, limit_bytes, &text));
    const sw_status status = sw_json_parse(text, path, bad, out);
    free(text);
    return status;
}

sw_status sw_json_write_file(const char *path, json_t *object, sw_file_readers readers) {
    char *text = object == NULL ? NULL : json_dumps(object, JSON_INDENT(2));
    sw_status status = SW_OK;
    if (text == NULL)
        status = sw_fail(SW_ERR_NOMEM, "no memory to write %s", path);
    else if (strlen(text) > SW_JSON_MOST_WRITTEN_BYTES)
        status = sw_fail(SW_ERR_ARG,
                         "%s would have %zu bytes and may have at most %zu; if it lists many files, give fewer and "
                         "larger ones",
                         path, strlen(text), SW_JSON_MOST_WRITTEN_BYTES);
    else
        status = sw_file_replace(path, text, strlen(text), readers);
    free(text);
    json_decref(object);
    return status;
}

static sw_status check_name(const char *key, const char *path, const char *where, const char *const *names,
                            size_t count) {
    struct sw_nearest nearest = sw_nearest_begin(key, strlen(key));
    for (size_t i = 0; i < count; i++) {
        if (strcmp(key, names[i]) == 0)
            return SW_OK;
        sw_nearest_consider(&nearest, names[i]);
    }
    if (nearest.name != NULL)
        return sw_fail(SW_ERR_ARG, "%s: %s has an unknown field '%.60s'; did you mean %s?", path, where, key,
                       nearest.name);
    return sw_fail(SW_ERR_ARG, "%s: %s has an unknown field '%.60s'; remove it", path, where, key);
}

sw_status sw_json_refuse_unknown(const json_t *object, const char *path, const char *where, const char *const *names,
                                 size_t count) {
    /* Iterating does not change the object, but Jansson's iterators want it writable. */
    json_t *iterable = (json_t *)(uintptr_t)object;
    const char *key;
    json_t *value;
    json_object_foreach(iterable, key, value) SW_TRY(check_name(key, path, where, names, count));
    return SW_OK;
}
