#include "core/files/json_file.h"

#include "core/files/files.h"
#include "core/json.h"
#include "core/text/text.h"

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The beginning of a file with a checksum: json_dumps begins the rest with "{\n". */
#define CHECKSUM_BEGIN "{\n  \"checksum\": \""
#define CHECKSUM_END "\",\n"
enum { CHECKSUM_DIGITS = 16, CHECKSUM_CHARS = sizeof CHECKSUM_BEGIN CHECKSUM_END - 1 + CHECKSUM_DIGITS };

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

/* Writes the beginning of a file with a checksum, for the rest `rest`. */
static void put_checksum(const char *rest, char begin[CHECKSUM_CHARS + 1]) {
    (void)snprintf(begin, CHECKSUM_CHARS + 1, CHECKSUM_BEGIN "%016" PRIx64 CHECKSUM_END,
                   sw_checksum(rest, (int64_t)strlen(rest)));
}

char *sw_json_checked_text(const json_t *object) {
    char begin[CHECKSUM_CHARS + 1], *out = NULL, *text = sw_json_text(object, JSON_INDENT(2));
    if (text == NULL)
        return NULL;
    const char *rest = text + strlen("{\n");
    put_checksum(rest, begin);
    if (asprintf(&out, "%s%s", begin, rest) < 0)
        out = NULL;
    free(text);
    return out;
}

bool sw_json_is_as_written(const char *text, const json_t *object) {
    char begin[CHECKSUM_CHARS + 1];
    if (json_object_get(object, "checksum") == NULL)
        return true;
    if (strlen(text) < CHECKSUM_CHARS)
        return false;
    put_checksum(text + CHECKSUM_CHARS, begin);
    return strncmp(text, begin, CHECKSUM_CHARS) == 0;
}

sw_status sw_json_read_checked_file(const char *path, size_t limit_bytes, sw_status bad, json_t **out) {
    char *text;
    SW_TRY(sw_file_read_own_text(path, limit_bytes, &text));
    sw_status status = sw_json_parse(text, path, bad, out);
    if (status == SW_OK && !sw_json_is_as_written(text, *out)) {
        json_decref(*out);
        status = sw_fail(bad,
                         "%s does not match its checksum, so it was damaged or edited: restore it from a copy, or, if "
                         "you edited it, remove its line \"checksum\"",
                         path);
    }
    free(text);
    return status;
}

/* Writes a text (NULL: there was no memory for it), and frees it. */
static sw_status write_text(const char *path, char *text, sw_file_readers readers) {
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
    return status;
}

sw_status sw_json_write_file(const char *path, json_t *object, sw_file_readers readers) {
    const sw_status status = write_text(path, object == NULL ? NULL : sw_json_text(object, JSON_INDENT(2)), readers);
    json_decref(object);
    return status;
}

sw_status sw_json_write_checked_file(const char *path, json_t *object, sw_file_readers readers) {
    const sw_status status = write_text(path, object == NULL ? NULL : sw_json_checked_text(object), readers);
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
    /* Iterating does not change the object, but Jansson's iterators take it as writable. */
    json_t *iterable = (json_t *)(uintptr_t)object;
    const char *key;
    json_t *value;
    json_object_foreach(iterable, key, value) SW_TRY(check_name(key, path, where, names, count));
    return SW_OK;
}
