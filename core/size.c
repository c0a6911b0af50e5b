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

static const struct {
    const char *suffix;
    int shift;
} size_suffixes[] = {
    {"", 0}, {"B", 0}, {"K", 10}, {"KiB", 10}, {"M", 20}, {"MiB", 20}, {"G", 30}, {"GiB", 30}, {"T", 40}, {"TiB", 40},
};

sw_status sw_parse_size(const char *text, int64_t *out_bytes) {
    /* Digits and a point only: strtod alone would also take exponents, hexadecimal and names. */
    const size_t digits = strspn(text, "0123456789.");
    char *end = NULL;
    errno = 0;
    const double number = isdigit((unsigned char)text[0]) ? strtod(text, &end) : -1.0;
    if (end != text + digits || errno != 0 || !isfinite(number))
        return sw_fail(SW_ERR_ARG, "'%s' is not a size; write for example 512MiB or 24GiB", text);
    for (size_t i = 0; i < sizeof size_suffixes / sizeof size_suffixes[0]; i++) {
        if (strcasecmp(end, size_suffixes[i].suffix) != 0)
            continue;
        const double bytes = ldexp(number, size_suffixes[i].shift);
        if (bytes >= 9.2e18)
            return sw_fail(SW_ERR_ARG, "the size '%s' is too large", text);
        *out_bytes = (int64_t)bytes;
        return SW_OK;
    }
    return sw_fail(SW_ERR_ARG, "'%s' is not a size; write for example 512MiB or 24GiB", text);
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
