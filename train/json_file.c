#include "train/json_file.h"

#include "train/files.h"

#include <stdlib.h>

static sw_status parse(const char *text, const char *path, sw_status bad, json_t **out) {
    json_error_t error;
    *out = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    return *out != NULL ? SW_OK : sw_fail(bad, "%s is not JSON: line %d: %s", path, error.line, error.text);
}

sw_status sw_json_read_file(const char *path, size_t limit_bytes, sw_status bad, json_t **out) {
    char *text;
    SW_TRY(sw_file_read_text(path, limit_bytes, &text));
    const sw_status status = parse(text, path, bad, out);
    free(text);
    return status;
}

sw_status sw_json_read_own_file(const char *path, size_t limit_bytes, sw_status bad, json_t **out) {
    char *text;
    SW_TRY(sw_file_read_own_text(path, limit_bytes, &text));
    const sw_status status = parse(text, path, bad, out);
    free(text);
    return status;
}
