#include "core/log.h"

#include <stdarg.h>
#include <stdio.h>

static void log_line(const char *prefix, const char *format, va_list args) {
    /* One write per line keeps lines of several threads whole. */
    char line[2048];
    int used = snprintf(line, sizeof line, "%s", prefix);
    used += vsnprintf(line + used, sizeof line - (size_t)used - 1, format, args);
    if (used > (int)sizeof line - 2)
        used = (int)sizeof line - 2;
    line[used] = '\n';
    line[used + 1] = '\0';
    fputs(line, stderr);
}

void sw_log_info(const char *format, ...) {
    va_list args;
    va_start(args, format);
    log_line("", format, args);
    va_end(args);
}

void sw_log_warn(const char *format, ...) {
    va_list args;
    va_start(args, format);
    log_line("warning: ", format, args);
    va_end(args);
}
