#include "core/number.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>

const char *sw_format_count(int64_t count, const char *noun, char buffer[SW_COUNT_CHARS]) {
    snprintf(buffer, SW_COUNT_CHARS, "%lld %s%s", (long long)count, noun, count == 1 ? "" : "s");
    return buffer;
}

const char *sw_format_large(int64_t count, char buffer[SW_COUNT_CHARS]) {
    static const struct {
        double unit;
        const char *name;
    } units[] = {{1e12, "trillion"}, {1e9, "billion"}, {1e6, "million"}, {1e3, "thousand"}};
    /* A number that rounds up to 1000 of a unit is one of the next. */
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
