#include "train/json_file.h"

#include "train/files.h"

#include <stdlib.h>

sw_status sw_json_read_file(const char *path, size_t limit_bytes, sw_status bad, json_t **out) {
    char *text;
    json_error_t error;
    *out = NULL;
    SW_TRY(sw_file_read_text(path, limit_bytes, &text));
    *out = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    free(text);
    return *out != NULL ? SW_OK : sw_fail(bad, "%s is not JSON: line %d: %s", path, error.line, error.text);
}
