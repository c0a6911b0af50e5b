#include "core/size.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stddef.h>
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
    /* Allows digits and a point only: strtod by itself also accepts exponents, hexadecimal and names. */
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

const char *sw_format_count(int64_t count, const char *noun, char buffer[SW_COUNT_CHARS]) {
    snprintf(buffer, SW_COUNT_CHARS, "%lld %s%s", (long long)count, noun, count == 1 ? "" : "s");
    return buffer;
}

const char *sw_format_large(int64_t count, char buffer[SW_COUNT_CHARS]) {
    static const struct {
        double unit;
        const char *name;
    } units[] = {{1e12, "trillion"}, {1e9, "billion"}, {1e6, "million"}, {1e3, "thousand"}};
    /* A number that rounds up to 1000 of a unit is shown in the next unit. */
    const double rounds_up = 0.9995, value = (double)count;
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
        if (value >= rounds_up * units[i].unit) {
            const double number = value / units[i].unit;
            snprintf(buffer, SW_COUNT_CHARS, "%.*f %s",
                     number < 9.995   ? 2
                     : number < 99.95 ? 1
                                      : 0,
                     number, units[i].name);
            return buffer;
        }
    snprintf(buffer, SW_COUNT_CHARS, "%lld", (long long)count);
    return buffer;
}

const char *sw_format_rate(double per_s, char buffer[SW_COUNT_CHARS]) {
    snprintf(buffer, SW_COUNT_CHARS, "%.*f", per_s >= 99.95 ? 0 : per_s >= 9.995 ? 1 : per_s >= 0.9995 ? 2 : 3, per_s);
    return buffer;
}

const char *sw_format_duration(double seconds, char buffer[SW_TIME_TEXT_CHARS]) {
    enum { MINUTE = 60, HOUR = 3600, DAY = 86400 };
    const long long whole = (long long)fmin(ceil(fmax(seconds, 0.0)), 1e9);
    if (whole >= DAY)
        snprintf(buffer, SW_TIME_TEXT_CHARS, "%lld d %lld h", whole / DAY, whole % DAY / HOUR);
    else if (whole >= HOUR)
        snprintf(buffer, SW_TIME_TEXT_CHARS, "%lld h %lld min", whole / HOUR, whole % HOUR / MINUTE);
    else if (whole >= MINUTE)
        snprintf(buffer, SW_TIME_TEXT_CHARS, "%lld min %lld s", whole / MINUTE, whole % MINUTE);
    else
        snprintf(buffer, SW_TIME_TEXT_CHARS, "%lld s", whole);
    return buffer;
}

const char *sw_format_seconds(double seconds, char buffer[SW_TIME_TEXT_CHARS]) {
    const double longest = 600.0, milli = 1e3, micro = 1e6;
    if (seconds >= longest)
        return sw_format_duration(seconds, buffer);
    if (seconds >= 0.9995)
        snprintf(buffer, SW_TIME_TEXT_CHARS, "%.*f s", seconds < 9.995 ? 2 : seconds < 99.95 ? 1 : 0, seconds);
    else if (seconds >= 0.9995e-3)
        snprintf(buffer, SW_TIME_TEXT_CHARS, "%.3g ms", seconds * milli);
    else
        snprintf(buffer, SW_TIME_TEXT_CHARS, "%.3g us", seconds * micro);
    return buffer;
}
