#include "core/size.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

bool sw_mul_i64(int64_t a, int64_t b, int64_t *out) {
    return a >= 0 && b >= 0 && !__builtin_mul_overflow(a, b, out);
}

bool sw_add_i64(int64_t a, int64_t b, int64_t *out) {
    return a >= 0 && b >= 0 && !__builtin_add_overflow(a, b, out);
}

/* Kubernetes writes Ki to Ti, and people put spaces before a unit. */
static const struct {
    const char *suffix;
    double bytes;
} size_suffixes[] = {
    {"", 1},        {"B", 1},        {"K", 0x1p10}, {"Ki", 0x1p10}, {"KiB", 0x1p10}, {"M", 0x1p20},
    {"Mi", 0x1p20}, {"MiB", 0x1p20}, {"G", 0x1p30}, {"Gi", 0x1p30}, {"GiB", 0x1p30}, {"T", 0x1p40},
    {"Ti", 0x1p40}, {"TiB", 0x1p40}, {"kB", 1e3},   {"MB", 1e6},    {"GB", 1e9},     {"TB", 1e12},
};

static sw_status not_a_size(const char *text) {
    return sw_fail(SW_ERR_ARG, "'%s' is not a size; write for example 512MiB, 24GiB (or 24G) or 500GB", text);
}

sw_status sw_parse_size(const char *text, int64_t *out_bytes) {
    /* Digits and a point only: strtod alone would also take exponents, hexadecimal and names. */
    const size_t digits = strspn(text, "0123456789.");
    char *end = NULL;
    errno = 0;
    const double number = isdigit((unsigned char)text[0]) ? strtod(text, &end) : -1.0;
    if (end != text + digits || errno != 0 || !isfinite(number))
        return not_a_size(text);
    if (end[0] == ' ' && end[strspn(end, " ")] != '\0')
        end += strspn(end, " ");
    for (size_t i = 0; i < sizeof size_suffixes / sizeof size_suffixes[0]; i++) {
        if (strcasecmp(end, size_suffixes[i].suffix) != 0)
            continue;
        const double bytes = number * size_suffixes[i].bytes;
        if (bytes >= 9.2e18)
            return sw_fail(SW_ERR_ARG, "the size '%s' is too large", text);
        *out_bytes = (int64_t)bytes;
        return SW_OK;
    }
    return not_a_size(text);
}

const char *sw_format_size(int64_t bytes, char buffer[SW_SIZE_CHARS]) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    size_t unit = 0;
    while (fabs(value) >= 1024.0 && unit + 1 < sizeof units / sizeof units[0]) {
        value /= 1024.0;
        unit++;
    }
    snprintf(buffer, SW_SIZE_CHARS, unit == 0 ? "%.0f %s" : "%.2f %s", value, units[unit]);
    return buffer;
}
