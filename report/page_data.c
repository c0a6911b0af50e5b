/* Numbers and texts of the page's data, which is JSON. */
#include "report/page_data.h"

#include <limits.h>
#include <math.h>

void sw_put_digits(FILE *to, double value, int digits) {
    if (isfinite(value))
        fprintf(to, "%.*g", digits, value);
    else
        fputs("null", to);
}

void sw_put_whole(FILE *to, const char *name, double value) {
    fprintf(to, "\"%s\":%.0f,", name, isfinite(value) ? value : 0);
}

void sw_put_value(FILE *to, const json_t *value) {
    const size_t flags = JSON_COMPACT | JSON_ENCODE_ANY | JSON_ENSURE_ASCII;
    if (value == NULL || json_dumpf(value, to, flags) != 0)
        fputs("null", to);
}

void sw_put_json(FILE *to, const char *name, const json_t *value) {
    fprintf(to, "\"%s\":", name);
    sw_put_value(to, value);
    fputc(',', to);
}

void sw_put_text(FILE *to, const char *name, const char *text) {
    char shown[PATH_MAX];
    json_t *value = json_string(text);
    if (value == NULL) {
        size_t chars = 0;
        for (; text[chars] != 0 && chars + 1 < sizeof shown; chars++)
            shown[chars] = (unsigned char)text[chars] < 0x80 ? text[chars] : '?';
        shown[chars] = 0;
        value = json_string(shown);
    }
    sw_put_json(to, name, value);
    json_decref(value);
}
