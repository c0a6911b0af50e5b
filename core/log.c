#include "core/log.h"

#include <stdarg.h>
#include <stdio.h>

static _Atomic int log_rank;

void sw_log_set_rank(int rank) {
    log_rank = rank;
}

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
    if (log_rank != 0)
        return;
    va_list args;
    va_start(args, format);
    log_line("", format, args);
    va_end(args);
}

void sw_log_warn(const char *format, ...) {
    char prefix[32] = "warning: ";
    if (log_rank != 0)
        snprintf(prefix, sizeof prefix, "rank %d: warning: ", log_rank);
    va_list args;
    va_start(args, format);
    log_line(prefix, format, args);
    va_end(args);
}
